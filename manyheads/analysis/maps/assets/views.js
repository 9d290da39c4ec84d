// What the stage shows of a panel: lines between tokens, a matrix, or the image.

const HEADINGS = {
  encoder: ["this source token", "looks at these"],
  decoder: ["to write this token", "it looks at what is written"],
  cross: ["to write this token", "it looks at the source"],
  self: ["this token", "looks at these"],
};
const LINE = 26; // pixels of a token in a list
const NARROW = 480; // pixels of a panel below which query and keys share one image; also in the style sheet

/** The labels that the model gives the input, with their probabilities. */
function predicted(prediction) {
  if (!prediction?.length) return null;
  return el("p", { className: "prediction" }, "prediction: ", ...prediction.flatMap(([label, value], at) => [at ? ", " : "", at ? label : el("b", {}, label), ` ${share(value)}`]));
}

/** In words, how long a position thought. */
const took = ({ steps }) => `took ${steps} step${steps === 1 ? "" : "s"}`;
const stepsOf = (unit) => (unit.steps === null ? null : el("span", { className: "steps", title: took(unit) }, unit.steps));

function tokens(panel, side, units) {
  const name = side ? "k" : "q", other = side ? "q" : "k";
  const only = (at) => ({ [name]: at, [other]: null });
  const list = el("ol", { className: `tokens ${name}` }, ...units.map((unit, order) => {
    const amount = el("span", { className: "share" });
    const button = el("button", { type: "button", className: unit.word === SPECIAL ? "token special" : "token", "data-at": `${name}-${unit.at}`, tabIndex: order ? -1 : 0, title: unit.steps === null ? "" : took(unit),
      onpointermove: () => panel.hover(only(unit.at)), onfocus: () => panel.hover(only(unit.at)), onclick: () => panel.hold(only(unit.at)) }, el("span", { className: "text" }, unit.label), stepsOf(unit), amount);
    panel.painters.push(() => {
      const focus = panel.state.focus, from = focus[other];
      const value = from === null ? 0 : side ? panel.value(from, unit.at) : panel.value(unit.at, from);
      const most = from === null ? 1 : panel.strongest;
      button.classList.toggle("on", focus[name] === unit.at);
      button.classList.toggle("later", !side && panel.hidden(unit.at));
      button.classList.toggle("halted", !side && panel.halted(unit));
      button.setAttribute("aria-pressed", panel.state.held && focus[name] === unit.at);
      button.style.setProperty("--share", Math.min(1, Math.abs(value) / most));
      amount.textContent = Math.abs(value) >= 0.05 * most && from !== null && (!panel.layer.shares || value >= 0.005) ? share(value, !panel.layer.shares) : "";
    });
    return el("li", {}, button);
  }));
  list.addEventListener("keydown", (event) => {
    const at = Number(event.target.dataset.at?.slice(2)), by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const across = { ArrowLeft: "q", ArrowRight: "k" }[event.key];
    if (!by && !across) return;
    event.preventDefault();
    if (by) list.querySelector(`[data-at="${name}-${at + by}"]`)?.focus();
    else if (across !== name) panel.root.querySelector(`.tokens.${across} button`)?.focus();
  });
  return list;
}

function lines(panel) {
  const [left, right] = [panel.shown(0), panel.shown(1)], canvas = el("canvas", { className: "threads" }), [from, to] = HEADINGS[panel.axis.name] ?? HEADINGS.self;
  const heading = (text) => el("p", { className: "heading" }, text);
  const view = el("div", { className: "lines", onpointerleave: () => panel.hover({ q: panel.state.step, k: null }) },
    heading(from), el("span"), heading(to), tokens(panel, 0, left), canvas, tokens(panel, 1, right));
  panel.painters.push(() => {
    const box = canvas.parentElement.getBoundingClientRect(), width = canvas.clientWidth, height = canvas.clientHeight;
    if (!box.width || !width) return;
    const dots = devicePixelRatio || 1, context = canvas.getContext("2d"), { q, k } = panel.state.focus;
    canvas.width = width * dots;
    canvas.height = height * dots;
    context.scale(dots, dots);
    const many = panel.several.length > 1 && panel.several.length <= HUES.length;
    const most = panel.strongest; // of the token in focus: its lines are seen, however weak they are among all
    (many ? panel.several : [panel.map]).forEach((map, order) => {
      context.strokeStyle = many ? HUES[order] : `rgb(${ramp.line})`;
      left.forEach((query, i) => {
        if ((q !== null && k === null && q !== query.at) || panel.hidden(query.at)) return;
        right.forEach((key, j) => {
          if (k !== null && k !== key.at) return;
          const part = Math.abs(panel.value(query.at, key.at, map)) / most;
          if (part < 0.02) return;
          const [y, z] = [(i + 0.5) * LINE, (j + 0.5) * LINE + (many ? (order - (panel.several.length - 1) / 2) * 2.2 : 0)];
          context.globalAlpha = Math.min(1, q === null && k === null ? part * 0.75 : 0.12 + part);
          context.lineWidth = 0.6 + 2.6 * Math.min(1, part);
          context.beginPath();
          context.moveTo(0, y);
          context.bezierCurveTo(width * 0.45, y, width * 0.55, z, width, z);
          context.stroke();
        });
      });
    });
  });
  return view;
}

/** What the rows and the columns of a matrix are. */
function axisNames(panel) {
  const { grid } = panel.data.sides[panel.layer.queries], cross = panel.axis.name === "cross";
  return [grid ? "query patch" : cross ? "target token" : "query token", panel.data.sides[panel.layer.keys].grid ? "key patch" : cross ? "source token" : "key token"];
}

/** The name of a unit at the edge of a matrix: of patches, the first of each row has one. */
function nameIn(unit, pictured) {
  if (!pictured || unit.word === SPECIAL) return unit.label;
  const [row, column] = unit.label.split(",");
  return column === "0" ? `row ${row}` : "";
}

function matrix(panel) {
  const [left, right] = [panel.shown(0), panel.shown(1)], pictured = panel.pictured;
  const canvas = el("canvas", { className: "cells", width: right.length, height: left.length, tabIndex: 0, "data-at": "cells", role: "img", "aria-label": "matrix of weights: the arrows move over it, Enter holds" });
  const frame = el("span", { className: "frame" });
  const at = (event) => {
    const box = canvas.getBoundingClientRect(), clamp = (value, most) => Math.max(0, Math.min(most - 1, Math.floor(value)));
    return { q: left[clamp(((event.clientY - box.top) / box.height) * left.length, left.length)].at, k: right[clamp(((event.clientX - box.left) / box.width) * right.length, right.length)].at };
  };
  canvas.addEventListener("pointermove", (event) => panel.hover(at(event)));
  canvas.addEventListener("pointerleave", () => panel.hover({ q: null, k: null }));
  canvas.addEventListener("click", (event) => panel.hold(at(event)));
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" && panel.state.focus.q !== null) panel.hold({ ...panel.state.focus });
    if (!by) return;
    event.preventDefault();
    const move = (units, now, step) => units[Math.max(0, Math.min(units.length - 1, now === null ? 0 : now - units[0].at + step))].at;
    panel.focus({ q: move(left, panel.state.focus.q, by[0]), k: move(right, panel.state.focus.k, by[1]) });
  });
  const label = (unit, name) => {
    const made = el("span", { className: unit.word === SPECIAL ? "label special" : "label", "data-label": `${name}-${unit.at}` }, nameIn(unit, pictured), stepsOf(unit));
    made.classList.toggle("halted", name === "q" && panel.halted(unit));
    panel.painters.push(() => made.classList.toggle("on", panel.state.focus[name] === unit.at));
    return made;
  };
  const widest = (units) => Math.max(...units.map((unit) => nameIn(unit, pictured).length)), [names, long] = [Math.min(20, widest(left)), Math.min(13, widest(right))];
  panel.painters.push(() => {
    // as large as the room allows, and legible
    const room = (view.parentElement?.clientWidth || 640) - (names * 7.5 + 88), [least, most] = pictured ? [1, 28] : [10, 28];
    const cell = Math.max(least, Math.min(most, Math.floor(room / right.length)));
    view.style.setProperty("--cell", `${cell}px`);
    const context = canvas.getContext("2d"), image = context.createImageData(right.length, left.length), { q, k } = panel.state.focus;
    left.forEach((query, i) => right.forEach((key, j) => {
      const value = panel.hidden(query.at) ? 0 : panel.value(query.at, key.at);
      image.data.set([...color(value / panel.most), 255], (i * right.length + j) * 4);
    }));
    context.putImageData(image, 0, 0);
    const [i, j] = [left.findIndex((unit) => unit.at === q), right.findIndex((unit) => unit.at === k)];
    frame.hidden = i < 0 || (j < 0 && k !== null);
    Object.assign(frame.style, { top: `${i * cell}px`, height: `${cell}px`, left: `${Math.max(0, j) * cell}px`, width: `${(j < 0 ? right.length : 1) * cell}px` });
  });
  const [from, to] = axisNames(panel);
  const view = el("div", { className: pictured ? "matrix plain" : "matrix", style: `--long:${long}ch;--rows:${left.length};--columns:${right.length}` },
    el("p", { className: "axis-name of-rows" }, `${from} ↓`), el("p", { className: "axis-name of-columns" }, `${to} →`),
    el("div", { className: "across" }, ...right.map((unit) => label(unit, "k"))),
    el("div", { className: "down" }, ...left.map((unit) => label(unit, "q"))),
    el("div", { className: "box" }, canvas, frame));
  return view;
}

function picture(panel) {
  const board = (side, heading) => {
    const name = side ? "k" : "q", other = side ? "q" : "k", of = panel.data.sides[side ? panel.layer.keys : panel.layer.queries];
    const [rows, columns] = of.grid, units = panel.units[side], before = units.length - rows * columns;
    // on a narrow screen there is one image: a patch that is touched there is the one that looks
    const overlaid = () => panel.same && panel.root.clientWidth < NARROW;
    const only = (at) => (side && !overlaid() ? { q: panel.state.focus.q, k: at } : { q: at, k: null });
    const canvas = el("canvas", { width: 480, height: 480 });
    const place = el("div", { className: `board ${name}`, tabIndex: 0, role: "application", "data-at": `board-${name}`, "aria-label": `${heading}: the arrows move over the places` },
      panel.data.picture ? el("img", { src: panel.data.picture, alt: "", className: panel.data.small ? "small" : "" }) : null, canvas);
    const at = (event) => {
      const box = place.getBoundingClientRect();
      const y = Math.floor(((event.clientY - box.top) / box.height / of.cover[0]) * rows), x = Math.floor(((event.clientX - box.left) / box.width / of.cover[1]) * columns);
      return before + Math.max(0, Math.min(rows - 1, y)) * columns + Math.max(0, Math.min(columns - 1, x));
    };
    place.addEventListener("pointermove", (event) => panel.hover(only(at(event))));
    place.addEventListener("pointerleave", () => side && !overlaid() && panel.hover(only(null)));
    place.addEventListener("click", (event) => panel.hold(only(at(event))));
    place.addEventListener("keydown", (event) => {
      const by = { ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const now = Math.max(before, panel.state.focus[overlaid() ? "q" : name] ?? before), next = now + by;
      if (next >= before && next < units.length) panel.focus(only(next));
    });
    const chips = units.slice(0, before).map((unit, order) => {
      const amount = el("span", { className: "share" });
      const chip = el("button", { type: "button", className: "token special", "data-at": `${name}-${order}`, onpointermove: () => side || panel.hover(only(order)), onclick: () => panel.hold(only(order)) }, el("span", { className: "text" }, unit.label), amount);
      panel.painters.push(() => {
        const { q } = panel.state.focus;
        chip.classList.toggle("on", panel.state.focus[name] === order);
        chip.style.setProperty("--share", side && q !== null ? Math.abs(panel.value(q, order)) / panel.strongest : 0);
        amount.textContent = side && q !== null ? share(panel.value(q, order), !panel.layer.shares) : "";
      });
      return chip;
    });
    panel.painters.push(() => {
      const context = canvas.getContext("2d"), { q } = panel.state.focus, [high, wide] = [480 * of.cover[0] / rows, 480 * of.cover[1] / columns];
      context.clearRect(0, 0, 480, 480);
      if (side && q !== null) { // a dot a patch, enlarged as a whole: no seams between patches
        const dots = el("canvas", { width: columns, height: rows }), image = new ImageData(columns, rows), { span } = panel;
        for (let cell = 0; cell < rows * columns; cell++) {
          const heat = heatOf(panel.value(q, before + cell), span);
          image.data.set([...tone(heat), Math.abs(heat) * OPAQUE * 255], cell * 4);
        }
        dots.getContext("2d").putImageData(image, 0, 0);
        context.imageSmoothingEnabled = false;
        context.drawImage(dots, 0, 0, columns * wide, rows * high);
      }
      for (const [focus, dashed] of side ? [[panel.state.focus.k, false], [q, true]] : [[q, false]]) {
        const cell = focus === null ? -1 : focus - before;
        if (cell < 0 || (dashed && panel.layer.queries !== panel.layer.keys)) continue;
        const box = [(cell % columns) * wide, Math.floor(cell / columns) * high, wide, high];
        context.setLineDash(dashed ? [6, 5] : []);
        for (const [stroke, thick] of [["#000", 5], ["#fff", 2.5]]) { context.strokeStyle = stroke; context.lineWidth = thick; context.strokeRect(...box); }
      }
    });
    return el("figure", { className: `picture ${name}` }, el("figcaption", { className: "heading" }, heading), el("div", { className: "chips" }, ...chips), place);
  };
  return el("div", { className: panel.same ? "pictures same" : "pictures" }, board(0, "this place"), board(1, "looks at these"));
}

const VIEWS = { lines, matrix, picture };
