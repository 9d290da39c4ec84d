// The curves of a run, while it is trained and afterwards: a small chart for each number that it measures.

import { drawn } from "./results.js";
import { ask } from "./service.js";

const AGAIN = 3000; // milliseconds, while a run is not finished
const WIDE = 360, HIGH = 190, LEFT = 52, BOTTOM = 24, TOP = 8, RIGHT = 10; // of a chart
const MOST_DOTS = 40; // that a curve marks, one a validation
const FIRST = ["loss", "accuracy", "top1", "perplexity", "bleu"]; // the others follow as they come

export class Curves {
  constructor(room) {
    Object.assign(this, { room, timer: null, name: null });
  }

  show(name) {
    this.stop();
    this.name = name;
    this.room.hidden = false;
    this.room.replaceChildren(el("p", { className: "hint" }, "Reading …"));
    return this.work(name);
  }

  stop() {
    clearTimeout(this.timer);
    this.name = null;
    this.room.hidden = true;
  }

  async work(name) {
    let run = null;
    try {
      if (!document.hidden || this.room.querySelector("svg") === null) run = await ask(`runs/${encodeURIComponent(name)}`);
      if (this.name !== name) return;
      if (run) this.draw(run);
    } catch (error) {
      if (this.name !== name) return;
      this.room.replaceChildren(el("p", { className: "told", role: "alert" }, error.message));
    }
    if (!run?.finished) this.timer = setTimeout(() => this.work(name), AGAIN);
  }

  draw({ name, finished, seconds, curves }) {
    const place = (metric) => (FIRST.includes(metric) ? FIRST.indexOf(metric) : FIRST.length);
    const metrics = [...new Set(curves.map(({ metric }) => metric))].sort((a, b) => place(a) - place(b));
    const steps = Math.max(0, ...curves.map(({ steps }) => steps.at(-1)));
    const state = finished ? "finished" : seconds === null ? "has measured nothing yet" : `last measured ${ago(seconds)} ago`;
    this.room.replaceChildren(el("h2", {}, name), el("p", { className: "about", role: "status" }, steps ? `step ${steps.toLocaleString("en")} · ${state}` : state),
      el("div", { className: "charts" }, ...metrics.map((metric) => chart(metric, curves.filter((curve) => curve.metric === metric)))));
  }
}

const ago = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`);

/** A number as short as it can be told apart. */
const short = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 0.01 ? value.toExponential(1) : String(Number(value.toPrecision(3))));

function chart(metric, curves) {
  const all = curves.flatMap(({ steps }) => steps), values = curves.flatMap(({ values }) => values);
  const [from, to] = [Math.min(...all), Math.max(...all)];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const x = (step) => LEFT + ((step - from) / (to - from || 1)) * (WIDE - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HIGH - TOP - BOTTOM);
  const grid = [0, 0.5, 1].map((part) => low + part * (high - low)).flatMap((value) => [
    drawn("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: y(value), y2: y(value) }),
    drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value))]);
  const ends = [[from, "start"], [to, "end"]].map(([step, anchor]) => drawn("text", { x: x(step), y: HIGH - 6, "text-anchor": anchor }, step.toLocaleString("en")));
  const lines = curves.flatMap(({ split, steps, values }) => {
    const points = steps.map((step, at) => [x(step).toFixed(1), y(values[at]).toFixed(1)]);
    const dotted = split === "validation" && points.length <= MOST_DOTS;
    return [drawn("polyline", { class: split, points: points.join(" ") }), ...(dotted ? points.map(([cx, cy]) => drawn("circle", { class: split, cx, cy, r: 2.5 })) : [])];
  });
  const told = curves.map(({ split, values }) => `${split} ${short(values.at(-1))}`);
  const named = metric.replaceAll("_", " ");
  return el("figure", { className: "chart" },
    el("figcaption", {}, el("strong", {}, named), ...curves.map(({ split }, each) => el("span", { className: `key ${split}` }, told[each]))),
    drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${named} over steps ${from} to ${to}: last ${told.join(", ")}` }, ...grid, ...ends, ...lines));
}
