"use strict";
// The page of a lens: a cell for each layer and position, and the likeliest words of the cell in focus.

const PATCH = 0.85; // opacity of the darkest patch over an image

const data = JSON.parse(document.getElementById("data").textContent);
const count = data.tokens.length, top_ = data.layers.length - 1, before = data.grid ? data.grid.tokens.length : 0;
const nameOf = (layer) => (typeof layer === "string" ? layer : `layer ${layer}`);
const most = (name) => Math.max(...data.layers.map((layer) => Math.max(...layer[name])));
const worst = { ranks: most("ranks"), kl: most("kl") };
const nats = (value) => `${value < 0.995 ? value.toFixed(2) : value.toPrecision(3)} nats`;

/** What the colors show: a share of 1 is the darkest color. The squares undo the roots of `color`. */
const SHOWN = {
  probability: { of: (layer, at) => layer.positions[at][0].probability ** 2, pale: "0%", dark: "100%" },
  rank: { of: (layer, at) => (1 - Math.log(layer.ranks[at]) / Math.log(Math.max(2, worst.ranks))) ** 2, pale: `rank ${worst.ranks.toLocaleString("en")}`, dark: "1" },
  KL: { of: (layer, at) => (1 - layer.kl[at] / (worst.kl || 1)) ** 2, pale: nats(worst.kl), dark: "0" },
};

const state = { shown: data.grid ? "rank" : "probability", layer: top_, at: data.grid ? 0 : count - 1, held: false };
const cells = data.layers.map((layer, number) => data.tokens.map((_, at) => cellOf(layer, number, at)));

function cellOf(layer, number, at) {
  const [{ word }] = layer.positions[at], patch = data.grid && at >= before;
  const show = () => { if (!state.held) focus(number, at); };
  const cell = el("button", { type: "button", className: "cell", tabIndex: -1, "data-at": `${number}-${at}`, "aria-pressed": "false",
    onpointerenter: show, onfocus: () => focus(number, at, state.held), onclick: () => focus(number, at, true) },
  patch ? null : data.grid ? `${data.tokens[at]} ${word} ${share(layer.positions[at][0].probability)}` : word);
  if (patch) cell.setAttribute("aria-label", `${data.tokens[at]}: ${word}`);
  cell.classList.toggle("answer", word === data.answers[at]);
  return cell;
}

function focus(layer, at, held = false) {
  const old = cells[state.layer][state.at];
  old.classList.remove("on");
  old.tabIndex = -1;
  old.setAttribute("aria-pressed", "false");
  Object.assign(state, { layer, at, held });
  const cell = cells[layer][at];
  cell.classList.add("on");
  cell.tabIndex = 0;
  cell.setAttribute("aria-pressed", String(held));
  tell();
}

/** Move with the arrow keys: over layers and positions of a text, or over the patches and the tokens before them. */
function move(event) {
  const { layer, at } = state, columns = data.grid?.columns;
  const by = data.grid
    ? { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [0, at < before ? -1 : -columns], ArrowDown: [0, at < before ? before - at : columns], PageUp: [1, 0], PageDown: [-1, 0] }[event.key]
    : { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
  if (!by || !event.target.matches(".cell")) return;
  event.preventDefault();
  const next = Math.max(0, at + by[1]);
  cells[layer + by[0]]?.[next]?.focus();
}

function paint() {
  const { of } = SHOWN[state.shown];
  data.layers.forEach((layer, number) => cells[number].forEach((cell, at) => {
    const amount = of(layer, at);
    if (data.grid && at >= before) {
      cell.style.background = `rgb(${ramp.heat.join(" ")} / ${(Math.sqrt(amount) * PATCH).toFixed(3)})`;
      return;
    }
    const tint = color(amount);
    cell.style.background = `rgb(${tint.join(" ")})`;
    cell.style.color = ink(tint);
  }));
  const stops = Array.from({ length: 9 }, (_, i) => (data.grid ? `rgb(${ramp.heat.join(" ")} / ${(i / 8) * PATCH})` : `rgb(${color((i / 8) ** 2).join(" ")})`));
  legend.replaceChildren(SHOWN[state.shown].pale, el("i", { style: `background: linear-gradient(90deg, ${stops.join(", ")})` }), SHOWN[state.shown].dark);
}

function tell() {
  const layer = data.layers[state.layer], { at } = state, words = layer.positions[at];
  const quoted = (text) => el("b", {}, `“${text}”`);
  const place = data.grid ? (at < before ? data.tokens[at] : `the patch in row ${data.tokens[at].replace(",", ", column ")}`) : `position ${at}, `;
  said.replaceChildren(
    el("p", {}, el("b", {}, nameOf(layer.layer)), " at ", place, data.grid ? null : quoted(data.tokens[at]),
      " · rank of the answer ", quoted(data.answers[at]), `: ${layer.ranks[at].toLocaleString("en")} · KL ${nats(layer.kl[at])}`),
    el("ul", {}, ...words.map(({ word, probability }) => el("li", {}, el("span", { className: "what" }, word), el("span", { className: "bar", style: `--share:${probability}` }), el("span", { className: "amount" }, share(probability))))));
}

function table() {
  const body = data.layers.map((layer, number) => el("tr", {}, el("th", { scope: "row" }, nameOf(layer.layer)), ...cells[number].map((cell) => el("td", {}, cell)))).reverse();
  const tokens = el("tr", {}, el("td"), ...data.tokens.map((token) => el("th", { scope: "col", title: token }, token)));
  return el("div", { className: "lens" }, el("table", {}, el("tbody", {}, ...body), el("tfoot", {}, tokens)));
}

function boards() {
  const { rows, columns, cover } = data.grid;
  return el("div", { className: "layers" }, ...data.layers.map((layer, number) => {
    const patches = el("div", { className: "patches", style: `grid-template: repeat(${rows}, 1fr) / repeat(${columns}, 1fr); width: ${cover[1] * 100}%; height: ${cover[0] * 100}%` }, ...cells[number].slice(before));
    return el("figure", { className: "picture" }, el("figcaption", { className: "heading" }, nameOf(layer.layer)), el("div", { className: "chips" }, ...cells[number].slice(0, before)),
      el("div", { className: "board" }, el("img", { src: data.picture, alt: "", className: data.small ? "small" : "" }), patches));
  }));
}

const said = el("div", { className: "readout", "aria-live": "polite" }), legend = el("span", { className: "ramp" });
const tabs = el("fieldset", { className: "tabs" }, el("legend", {}, "What the color shows"), ...Object.keys(SHOWN).map((name) =>
  el("label", {}, el("input", { type: "radio", name: "shown", value: name, checked: name === state.shown, onchange: () => { state.shown = name; paint(); } }), el("span", {}, name))));
const grid = data.grid ? boards() : table();
grid.addEventListener("keydown", move);
addEventListener("keydown", (event) => { if (event.key === "Escape") focus(state.layer, state.at); });
document.getElementById("panels").replaceChildren(el("section", { className: "panel" },
  el("header", {}, el("h2", {}, data.model), el("p", { className: "input" }, data.text)),
  el("div", { className: "bar" }, tabs, legend), grid, el("div", { className: "said" }, said)));
startColors(paint);
focus(state.layer, state.at);
grid.scrollLeft = grid.scrollWidth;
document.documentElement.dataset.ready = "";
