// One input: what is chosen of it (`state`), its parts, and how they follow the choice.

const HEADINGS = {
  encoder: ["this source token", "looks at these"],
  decoder: ["to write this token", "it looks at what is written"],
  cross: ["to write this token", "it looks at the source"],
  self: ["this token", "looks at these"],
};
const NAMES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross", self: "Self" };

function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

class Panel {
  constructor(data, number, changed) {
    Object.assign(this, { data, number, changed });
    this.state = { axis: 0, view: null, picked: new Set(["0:0"]), words: false, special: true, focus: { q: null, k: null },
      held: false, step: null, pages: [0, 0] };
    this.root = el("section", { className: "panel", "aria-label": `${data.model}: ${data.title}` });
    const cross = data.axes.findIndex((axis) => axis.name === "cross");
    this.choose({ axis: Math.max(0, cross), picked: new Set([this.sharpest(data.axes[Math.max(0, cross)])]) }, false);
  }

  get axis() { return this.data.axes[this.state.axis]; }
  get picked() { // [layer, head] of what is chosen, in order
    return [...this.state.picked].map((at) => at.split(":").map(Number)).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  }
  get layer() { return this.axis.layers[this.picked[0][0]]; }
  get pictured() { return this.data.sides[this.layer.queries].grid !== null; }
  get views() { return this.pictured ? ["picture", "matrix"] : ["lines", "matrix"]; }

  /** The head of the last layer that is sharpest, looks at special tokens aside: a page begins with it. */
  sharpest(axis) {
    const row = axis.layers.length - 1, layer = axis.layers[row], { words } = this.data.sides[layer.keys];
    let best = [`${row}:0`, -1];
    layer.heads.forEach((_, head) => {
      let sum = 0;
      for (let query = 0; query < layer.rows; query++) {
        let most = 0;
        for (let key = 0; key < layer.columns; key++) if (words[key] !== SPECIAL) most = Math.max(most, weight(layer, head, layer.bytes[head][query * layer.columns + key]));
        sum += most / layer.rows;
      }
      if (sum > best[1]) best = [`${row}:${head}`, sum];
    });
    return best[0];
  }

  /** Change what is chosen, and build the panel anew. */
  choose(change, tell = true) {
    const state = this.state;
    if ("axis" in change && change.axis !== state.axis) Object.assign(state, { step: null, picked: new Set([this.sharpest(this.data.axes[change.axis])]) });
    if ("axis" in change || "words" in change || "special" in change) Object.assign(state, { focus: { q: null, k: null }, held: false, pages: [0, 0] });
    Object.assign(state, change);
    const there = [...state.picked].filter((at) => {
      const [layer, head] = at.split(":").map(Number);
      return this.axis.layers[layer]?.heads[head] !== undefined;
    });
    // maps of layers on different grids cannot be put together: the first decides
    const first = this.axis.layers[(there[0] ?? "0:0").split(":")[0]];
    const alike = (at) => ["queries", "keys"].every((side) => this.axis.layers[at.split(":")[0]][side] === first[side]);
    state.picked = new Set(there.length ? there.filter(alike) : ["0:0"]);
    if (!this.views.includes(state.view)) state.view = this.views[0];
    this.units = [this.layer.queries, this.layer.keys].map((side) => unitsOf(this.data.sides[side], state.words, state.special));
    const [queries, keys] = this.units;
    this.several = this.picked.map(([layer, head]) => mapOf(this.axis.layers[layer], head, queries, keys));
    this.map = mean(this.several);
    this.most = largest(this.map);
    if (this.pictured && state.focus.q === null) {
      const { grid } = this.data.sides[this.layer.queries], before = queries.length - grid[0] * grid[1];
      state.focus = { q: before > 0 ? 0 : (grid[0] >> 1) * grid[1] + (grid[1] >> 1), k: null };
    }
    this.build();
    if (tell) this.changed(this, change);
  }

  focus(focus, tell = true) {
    if (focus.q === this.state.focus.q && focus.k === this.state.focus.k) return;
    this.state.focus = focus;
    this.paint();
    if (tell) this.changed(this, { focus });
  }

  hover(focus) { if (!this.state.held) this.focus(focus); }
  hold(focus) {
    const same = this.state.held && focus.q === this.state.focus.q && focus.k === this.state.focus.k;
    this.state.held = !same;
    this.focus(focus);
    this.paint();
  }
  release() {
    this.state.held = false;
    this.focus(this.pictured ? { q: this.state.focus.q ?? 0, k: null } : { q: null, k: null });
    this.paint();
  }

  build() {
    const active = document.activeElement?.dataset?.at, inside = this.root.contains(document.activeElement);
    const { data, state } = this, of = data.sides[this.layer.queries];
    this.painters = [];
    const several = data.sides.some((side) => side.words.some((word, at) => at && word !== SPECIAL && word === side.words[at - 1]));
    const specials = data.sides.some((side) => !side.grid && side.words.includes(SPECIAL));
    this.root.replaceChildren(
      el("header", {}, el("h2", {}, data.model || "A model"), el("p", { className: "input" }, data.title),
        ...data.told.map((note) => el("p", { className: "told" }, note))),
      el("div", { className: "bar" },
        data.axes.length > 1 ? this.tabs("attention", data.axes.map((axis, at) => [at, NAMES[axis.name] ?? axis.name]), state.axis, (axis) => this.choose({ axis: Number(axis) })) : null,
        this.tabs("view", this.views.map((view) => [view, view[0].toUpperCase() + view.slice(1)]), state.view, (view) => this.choose({ view })),
        several && !of.grid ? this.check("words", "whole words") : null,
        specials && !of.grid ? this.check("special", "special tokens") : null),
      el("div", { className: "body" }, this.heads(), el("div", { className: "stage" },
        this.caption(), this.stepper(), ...this.pagers(),
        el("div", { className: `scene as-${state.view}` }, this[state.view](), this.readout = el("div", { className: "readout", "aria-live": "polite" })))),
    );
    if (inside && active) this.root.querySelector(`[data-at="${active}"]`)?.focus({ preventScroll: true });
    this.paint();
  }

  paint() { for (const painter of this.painters) painter(); this.tell(); }

  tabs(name, choices, chosen, pick) {
    return el("fieldset", { className: "tabs" }, el("legend", {}, name), ...choices.map(([value, label]) =>
      el("label", {}, el("input", { type: "radio", name: `${name}${this.number}`, value, checked: value === chosen, "data-at": `${name}-${value}`, onchange: () => pick(value) }), el("span", {}, label))));
  }

  check(name, label) {
    return el("label", { className: "check" }, el("input", { type: "checkbox", checked: this.state[name], "data-at": name, onchange: (event) => this.choose({ [name]: event.target.checked }) }), label);
  }

  /** All heads at a glance: layers down, heads across. Over an image, where the patch in focus looks. */
  heads() {
    const { layers } = this.axis, tabbed = `thumb-${this.picked[0].join(":")}`;
    const rows = layers.map((layer, row) => el("div", { className: "row" },
      el("button", { type: "button", className: "all", "data-at": `row-${row}`, title: `all heads of ${layer.name}`, "aria-label": `${this.called(row)}, all heads`, onclick: () => this.choose({ picked: new Set(layer.heads.map((_, head) => `${row}:${head}`)), ...this.stepOf(row) }) }, layer.step ?? row),
      ...layer.heads.map((head, column) => {
        const at = `${row}:${column}`, canvas = el("canvas");
        this.painters.push(() => this.thumb(canvas, layer, column));
        const order = this.state.picked.size > 1 && this.several.length <= HUES.length ? this.picked.findIndex((each) => each.join(":") === at) : -1;
        return el("button", { type: "button", className: "thumb", "data-at": `thumb-${at}`, tabIndex: tabbed === `thumb-${at}` ? 0 : -1, style: order >= 0 ? `--hue:${HUES[order]}` : "",
          "aria-pressed": this.state.picked.has(at), title: `${this.called(row)}, head ${head}`, "aria-label": `${this.called(row)}, head ${head}`,
          onclick: (event) => this.pick(at, event.shiftKey || event.ctrlKey || event.metaKey) }, canvas);
      })));
    const most = Math.max(...layers.map((layer) => layer.heads.length));
    const aside = el("aside", { className: "heads", style: `--heads:${most}` },
      el("p", { className: "legend" }, layers[0].step ? "steps ↓ heads →" : "layers ↓ heads →"), el("div", { className: "grid" }, ...rows));
    aside.addEventListener("keydown", (event) => {
      const [row, column] = (event.target.dataset.at?.match(/^thumb-(\d+):(\d+)$/) ?? []).slice(1).map(Number);
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (row === undefined || !step) return;
      event.preventDefault();
      aside.querySelector(`[data-at="thumb-${row + step[0]}:${column + step[1]}"]`)?.focus();
    });
    return aside;
  }

  called(row) { const { step } = this.axis.layers[row]; return step ? `step ${step}` : `layer ${row}`; }
  stepOf(row) { return this.axis.layers[row].step ? { step: null } : {}; }
  pick(at, more) {
    const picked = new Set(more ? this.state.picked : []);
    if (more && picked.has(at) && picked.size > 1) picked.delete(at);
    else picked.add(at);
    const order = more ? [...this.state.picked].filter((each) => picked.has(each)).concat(at) : [at];
    this.choose({ picked: new Set(order.filter((each) => picked.has(each))) });
  }

  thumb(canvas, layer, head) {
    const bytes = layer.bytes[head], side = this.data.sides[layer.keys], { q } = this.state.focus;
    if (!side.grid) {
      if (canvas.done) return;
      canvas.done = true; // of a text it never changes
      return thumbnail(canvas, (at) => weight(layer, head, bytes[at]), layer.rows, layer.columns, layer.scale[head] || 1);
    }
    // the patch in focus, or the one at the same place on this layer's grid
    const from = this.data.sides[layer.queries], own = this.data.sides[this.layer.queries];
    const before = from.tokens.length - from.grid[0] * from.grid[1];
    let row = q ?? 0;
    if (row >= before && from !== own) {
      const [y, x] = [Math.floor((row - before) / own.grid[1]), (row - before) % own.grid[1]];
      row = before + Math.floor((y * from.grid[0]) / own.grid[0]) * from.grid[1] + Math.floor((x * from.grid[1]) / own.grid[1]);
    }
    const begin = row * layer.columns + side.tokens.length - side.grid[0] * side.grid[1];
    let most = 0;
    for (let at = row * layer.columns; at < (row + 1) * layer.columns; at++) most = Math.max(most, Math.abs(weight(layer, head, bytes[at])));
    thumbnail(canvas, (at) => weight(layer, head, bytes[begin + at]), side.grid[0], side.grid[1], most || 1);
  }

  caption() {
    const picked = this.picked, [row, column] = picked[0], layer = this.axis.layers[row];
    const what = picked.length === 1 ? `${this.called(row)} · head ${layer.heads[column]}`
      : new Set(picked.map(([each]) => each)).size === 1 ? `${this.called(row)} · ${picked.length} heads` : `${picked.length} heads`;
    const low = layer.signed ? `−${this.most.toPrecision(2)}` : "0";
    const scale = el("canvas", { className: "scale", width: 64, height: 1 });
    this.painters.push(() => thumbnail(scale, (at) => (layer.signed ? (at - 31.5) / 31.5 : at / 63), 1, 64, 1, 64));
    return el("p", { className: "caption" }, el("strong", {}, what), el("span", { className: "name" }, picked.length === 1 ? layer.name : this.state.view === "lines" && picked.length <= HUES.length ? "their mean; each has lines of its colour" : "their mean"),
      el("span", { className: "range" }, low, scale, share(this.most, layer.signed)));
  }

  /** A slider over the steps: of tied depth, or of a text that is written or read from left to right. */
  stepper() {
    const { layers, stepwise } = this.axis, [queries] = this.units;
    const depth = layers[0].step !== null, count = depth ? layers.length : queries.length;
    if ((!depth && !stepwise) || count < 2) return null;
    const now = depth ? this.picked[0][0] : this.state.step ?? count - 1;
    const said = el("output"), input = el("input", { type: "range", min: 0, max: count - 1, value: now, "data-at": "step", "aria-label": "step" });
    const say = (at) => { said.textContent = depth ? `step ${layers[at].step} of ${count}` : this.state.step === null ? `all ${count} steps` : `step ${at + 1} of ${count}: ${queries[at].label}`; };
    say(now);
    input.addEventListener("input", () => {
      const at = Number(input.value);
      if (depth) return this.choose({ picked: new Set(this.picked.map(([, head]) => `${at}:${head}`)) });
      Object.assign(this.state, { step: at, held: false });
      say(at);
      this.state.focus = { q: at, k: null };
      const page = Math.floor(at / LONGEST);
      if (page !== this.state.pages[0]) this.choose({ pages: this.turned(0, page) });
      else this.paint();
      this.changed(this, { step: at, focus: this.state.focus });
    });
    const all = depth ? null : el("button", { type: "button", className: "quiet", "data-at": "all-steps", onclick: () => this.choose({ step: null, focus: { q: null, k: null } }) }, "all");
    if (all) this.painters.push(() => { all.hidden = this.state.step === null; });
    return el("div", { className: "stepper" }, said, input, all);
  }

  turned(side, page) {
    return this.layer.queries === this.layer.keys ? [page, page] : this.state.pages.map((old, at) => (at === side ? page : old));
  }

  pagers() {
    if (this.pictured) return [];
    return this.units.map((units, side) => {
      const page = this.state.pages[side], { first, total } = this.data.sides[side ? this.layer.keys : this.layer.queries];
      if (units.length <= LONGEST) return null;
      const [from, to] = [page * LONGEST, Math.min((page + 1) * LONGEST, units.length)];
      const turn = (by, label, there) => el("button", { type: "button", className: "quiet", disabled: !there, "data-at": `turn-${side}-${by}`, "aria-label": label, onclick: () => this.choose({ pages: this.turned(side, page + by), focus: { q: null, k: null }, held: false }) }, by < 0 ? "‹" : "›");
      const said = `${side ? "right" : "left"}: ${first + units[from].members[0] + 1}–${first + units[to - 1].members.at(-1) + 1} of ${total} tokens`;
      return el("div", { className: "pager" }, turn(-1, "earlier tokens", page > 0), el("span", {}, said), turn(1, "later tokens", to < units.length));
    });
  }

  /** The units of a side that are shown, with their numbers. */
  shown(side) {
    const from = this.pictured ? 0 : this.state.pages[side] * LONGEST;
    return this.units[side].map((unit, at) => ({ ...unit, at })).slice(from, this.pictured ? undefined : from + LONGEST);
  }

  value(q, k, map = this.map) { return map[q * this.units[1].length + k]; }
  hidden(q) { return this.axis.stepwise && this.state.step !== null && q > this.state.step; }

  tokens(side, units) {
    const name = side ? "k" : "q", other = side ? "q" : "k";
    const only = (at) => ({ [name]: at, [other]: null });
    const list = el("ol", { className: `tokens ${name}` }, ...units.map((unit, order) => {
      const amount = el("span", { className: "share" });
      const button = el("button", { type: "button", className: unit.word === SPECIAL ? "token special" : "token", "data-at": `${name}-${unit.at}`, tabIndex: order ? -1 : 0,
        onpointermove: () => this.hover(only(unit.at)), onfocus: () => this.hover(only(unit.at)), onclick: () => this.hold(only(unit.at)) }, el("span", { className: "text" }, unit.label), amount);
      this.painters.push(() => {
        const focus = this.state.focus, from = focus[other];
        const value = from === null ? 0 : side ? this.value(from, unit.at) : this.value(unit.at, from);
        const most = from === null ? 1 : this.strongest;
        button.classList.toggle("on", focus[name] === unit.at);
        button.classList.toggle("later", !side && this.hidden(unit.at));
        button.setAttribute("aria-pressed", this.state.held && focus[name] === unit.at);
        button.style.setProperty("--share", Math.min(1, Math.abs(value) / most));
        amount.textContent = Math.abs(value) >= 0.05 * most && from !== null && (this.layer.signed || value >= 0.005) ? share(value, this.layer.signed) : "";
      });
      return el("li", {}, button);
    }));
    list.addEventListener("keydown", (event) => {
      const at = Number(event.target.dataset.at?.slice(2)), by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      const across = { ArrowLeft: "q", ArrowRight: "k" }[event.key];
      if (!by && !across) return;
      event.preventDefault();
      if (by) list.querySelector(`[data-at="${name}-${at + by}"]`)?.focus();
      else if (across !== name) this.root.querySelector(`.tokens.${across} button`)?.focus();
    });
    return list;
  }

  lines() {
    const [left, right] = [this.shown(0), this.shown(1)], canvas = el("canvas", { className: "threads" }), [from, to] = HEADINGS[this.axis.name] ?? HEADINGS.self;
    const heading = (text) => el("p", { className: "heading" }, text);
    const view = el("div", { className: "lines", onpointerleave: () => this.hover({ q: this.state.step, k: null }) },
      heading(from), el("span"), heading(to), this.tokens(0, left), canvas, this.tokens(1, right));
    this.painters.push(() => {
      const box = canvas.parentElement.getBoundingClientRect(), width = canvas.clientWidth, height = canvas.clientHeight;
      if (!box.width || !width) return;
      const dots = devicePixelRatio || 1, context = canvas.getContext("2d"), { q, k } = this.state.focus;
      canvas.width = width * dots;
      canvas.height = height * dots;
      context.scale(dots, dots);
      const line = 26, many = this.several.length > 1 && this.several.length <= HUES.length;
      (many ? this.several : [this.map]).forEach((map, order) => {
        context.strokeStyle = many ? HUES[order] : `rgb(${ramp.line})`;
        left.forEach((query, i) => {
          if ((q !== null && k === null && q !== query.at) || this.hidden(query.at)) return;
          right.forEach((key, j) => {
            if (k !== null && k !== key.at) return;
            const part = Math.abs(this.value(query.at, key.at, map)) / this.most;
            if (part < 0.02) return;
            const [y, z] = [(i + 0.5) * line, (j + 0.5) * line + (many ? (order - (this.several.length - 1) / 2) * 2.2 : 0)];
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

  matrix() {
    const [left, right] = [this.shown(0), this.shown(1)], pictured = this.pictured;
    const canvas = el("canvas", { className: "cells", width: right.length, height: left.length, tabIndex: 0, "data-at": "cells", role: "img", "aria-label": "matrix of weights: the arrows move over it" });
    const frame = el("span", { className: "frame" });
    const at = (event) => {
      const box = canvas.getBoundingClientRect(), clamp = (value, most) => Math.max(0, Math.min(most - 1, Math.floor(value)));
      return { q: left[clamp(((event.clientY - box.top) / box.height) * left.length, left.length)].at, k: right[clamp(((event.clientX - box.left) / box.width) * right.length, right.length)].at };
    };
    canvas.addEventListener("pointermove", (event) => this.hover(at(event)));
    canvas.addEventListener("pointerleave", () => this.hover({ q: null, k: null }));
    canvas.addEventListener("click", (event) => this.hold(at(event)));
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!by) return;
      event.preventDefault();
      const move = (units, now, step) => units[Math.max(0, Math.min(units.length - 1, now === null ? 0 : now - units[0].at + step))].at;
      this.focus({ q: move(left, this.state.focus.q, by[0]), k: move(right, this.state.focus.k, by[1]) });
    });
    const label = (unit, name) => {
      const made = el("span", { className: unit.word === SPECIAL ? "label special" : "label", "data-label": `${name}-${unit.at}` }, unit.label);
      this.painters.push(() => made.classList.toggle("on", this.state.focus[name] === unit.at));
      return made;
    };
    const [names, long] = [Math.min(20, Math.max(...left.map((unit) => unit.label.length))), Math.min(13, Math.max(...right.map((unit) => unit.label.length)))];
    this.painters.push(() => {
      // as large as the room allows, and legible
      const room = (view.parentElement?.clientWidth || 640) - (pictured ? 8 : names * 7.5 + 64), [least, most] = pictured ? [1, 12] : [10, 28];
      const cell = Math.max(least, Math.min(most, Math.floor(room / right.length)));
      view.style.setProperty("--cell", `${cell}px`);
      const context = canvas.getContext("2d"), image = context.createImageData(right.length, left.length), { q, k } = this.state.focus;
      left.forEach((query, i) => right.forEach((key, j) => {
        const value = this.hidden(query.at) ? 0 : this.value(query.at, key.at);
        image.data.set([...colour(value / this.most), 255], (i * right.length + j) * 4);
      }));
      context.putImageData(image, 0, 0);
      const [i, j] = [left.findIndex((unit) => unit.at === q), right.findIndex((unit) => unit.at === k)];
      frame.hidden = i < 0 || (j < 0 && k !== null);
      Object.assign(frame.style, { top: `${i * cell}px`, height: `${cell}px`, left: `${Math.max(0, j) * cell}px`, width: `${(j < 0 ? right.length : 1) * cell}px` });
    });
    const view = el("div", { className: pictured ? "matrix plain" : "matrix", style: `--long:${long}ch;--rows:${left.length};--columns:${right.length}` },
      pictured ? null : el("div", { className: "across" }, ...right.map((unit) => label(unit, "k"))),
      pictured ? null : el("div", { className: "down" }, ...left.map((unit) => label(unit, "q"))),
      el("div", { className: "box" }, canvas, frame));
    return view;
  }

  picture() {
    const board = (side, heading) => {
      const name = side ? "k" : "q", other = side ? "q" : "k", of = this.data.sides[side ? this.layer.keys : this.layer.queries];
      const [rows, columns] = of.grid, units = this.units[side], before = units.length - rows * columns;
      const only = (at) => (side ? { q: this.state.focus.q, k: at } : { q: at, k: null });
      const canvas = el("canvas", { width: 480, height: 480 });
      const place = el("div", { className: `board ${name}`, tabIndex: 0, role: "application", "data-at": `board-${name}`, "aria-label": `${heading}: the arrows move over the patches` },
        this.data.picture ? el("img", { src: this.data.picture, alt: "", className: this.data.small ? "small" : "" }) : null, canvas);
      const at = (event) => {
        const box = place.getBoundingClientRect();
        const y = Math.floor(((event.clientY - box.top) / box.height / of.cover[0]) * rows), x = Math.floor(((event.clientX - box.left) / box.width / of.cover[1]) * columns);
        return before + Math.max(0, Math.min(rows - 1, y)) * columns + Math.max(0, Math.min(columns - 1, x));
      };
      place.addEventListener("pointermove", (event) => this.hover(only(at(event))));
      place.addEventListener("pointerleave", () => side && this.hover(only(null)));
      place.addEventListener("click", (event) => this.hold(only(at(event))));
      place.addEventListener("keydown", (event) => {
        const by = { ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!by) return;
        event.preventDefault();
        const now = Math.max(before, this.state.focus[name] ?? before), next = now + by;
        if (next >= before && next < units.length) this.focus(only(next));
      });
      const chips = units.slice(0, before).map((unit, order) => {
        const amount = el("span", { className: "share" });
        const chip = el("button", { type: "button", className: "token special", "data-at": `${name}-${order}`, onpointermove: () => side || this.hover(only(order)), onclick: () => this.hold(only(order)) }, el("span", { className: "text" }, unit.label), amount);
        this.painters.push(() => {
          const { q } = this.state.focus;
          chip.classList.toggle("on", this.state.focus[name] === order);
          chip.style.setProperty("--share", side && q !== null ? Math.abs(this.value(q, order)) / this.strongest : 0);
          amount.textContent = side && q !== null ? share(this.value(q, order), this.layer.signed) : "";
        });
        return chip;
      });
      this.painters.push(() => {
        const context = canvas.getContext("2d"), { q } = this.state.focus, [high, wide] = [480 * of.cover[0] / rows, 480 * of.cover[1] / columns];
        context.clearRect(0, 0, 480, 480);
        if (side && q !== null)
          for (let cell = 0; cell < rows * columns; cell++) {
            const part = this.value(q, before + cell) / this.strongest;
            context.fillStyle = `rgb(${(part < 0 ? ramp.cold : ramp.heat).join(" ")} / ${Math.sqrt(Math.abs(part)) * 0.88})`;
            context.fillRect((cell % columns) * wide, Math.floor(cell / columns) * high, wide + 0.5, high + 0.5);
          }
        for (const [focus, dashed] of side ? [[this.state.focus.k, false], [q, true]] : [[q, false]]) {
          const cell = focus === null ? -1 : focus - before;
          if (cell < 0 || (dashed && this.layer.queries !== this.layer.keys)) continue;
          const box = [(cell % columns) * wide, Math.floor(cell / columns) * high, wide, high];
          context.setLineDash(dashed ? [6, 5] : []);
          for (const [stroke, thick] of [["#000", 5], ["#fff", 2.5]]) { context.strokeStyle = stroke; context.lineWidth = thick; context.strokeRect(...box); }
        }
      });
      return el("figure", { className: "picture" }, el("figcaption", { className: "heading" }, heading), el("div", { className: "chips" }, ...chips), place);
    };
    return el("div", { className: "pictures" }, board(0, "this patch"), board(1, "looks at these"));
  }

  get strongest() { // of the row or column in focus
    const { q, k } = this.state.focus, [queries, keys] = this.units;
    if (q === null && k === null) return this.most;
    return largest(q !== null ? keys.map((_, j) => this.value(q, j)) : queries.map((_, i) => this.value(i, k)));
  }

  /** In words, and read out: where the unit in focus looks, or who looks at it. */
  tell() {
    const { q, k } = this.state.focus, [queries, keys] = this.units, { signed } = this.layer;
    const quoted = (side, unit) => {
      const grid = this.data.sides[side ? this.layer.keys : this.layer.queries].grid;
      return grid && unit.word !== SPECIAL ? `patch ${unit.label}` : unit.label;
    };
    if (q === null && k === null)
      return this.readout.replaceChildren(el("p", { className: "hint" }, "Hover a token, or go there with Tab and the arrows, to see where it looks."));
    const given = q !== null ? q : k, row = q !== null;
    const found = (row ? keys : queries).map((unit, at) => [unit, row ? this.value(given, at) : this.value(at, given)]);
    const top = [...found].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 5).filter(([, value], _, all) => value && Math.abs(value) > Math.abs(all[0][1]) / 500);
    const most = Math.abs(top[0]?.[1] ?? 1), rest = 1 - found.reduce((sum, [, value]) => sum + value, 0);
    const subject = el("b", {}, quoted(row ? 0 : 1, (row ? queries : keys)[given]));
    const both = row && k !== null ? [" · at ", el("b", {}, quoted(1, keys[k])), ` ${share(this.value(q, k), signed)}`] : [];
    const bar = ([name, value]) => el("li", {}, el("span", { className: "what" }, name), el("span", { className: "bar", style: `--share:${Math.abs(value) / most}` }), el("span", { className: "amount" }, share(value, signed)));
    const listed = top.map(([unit, value]) => [quoted(row ? 1 : 0, unit), value]);
    if (row && !signed && rest > 0.01 && (this.data.sides[this.layer.keys].total > this.data.sides[this.layer.keys].tokens.length || !this.state.special)) listed.push(["what is not shown", rest]);
    this.readout.replaceChildren(el("p", {}, subject, row ? " looks at" : " is looked at by", ...both, this.state.held ? el("span", { className: "held" }, " held, Esc lets go") : null),
      el("ul", {}, ...listed.map(bar)));
  }
}

async function start() {
  const data = JSON.parse(document.getElementById("data").textContent), room = document.getElementById("panels");
  for (const panel of data.panels) place(panel, await inflate(panel.maps));
  readColours();
  const together = document.querySelector("#together input"), panels = [];
  let following = false;
  const changed = (source, change) => { // the other panels follow, as far as they have the same
    if (following || !together.checked) return;
    following = true;
    for (const panel of panels) {
      if (panel === source) continue;
      if ("focus" in change) {
        const same = ["q", "k"].map((name, side) => { const at = change.focus[name]; return at === null || panel.units[side][at]?.label === source.units[side][at]?.label ? at : null; });
        if ("step" in change) panel.state.step = Math.min(change.step, panel.units[0].length - 1);
        panel.focus({ q: same[0], k: same[1] });
      } else {
        const axis = panel.data.axes.findIndex((each) => each.name === source.axis.name), { picked, view, words, special } = source.state;
        panel.choose({ ...("axis" in change && axis >= 0 ? { axis } : {}), ...("picked" in change ? { picked: new Set(picked) } : {}), ...("view" in change ? { view } : {}),
          ...("words" in change ? { words } : {}), ...("special" in change ? { special } : {}) });
      }
    }
    following = false;
  };
  data.panels.forEach((each, number) => panels.push(new Panel(each, number, changed)));
  changed(panels[0], { axis: 0, picked: 0 }); // they begin with the same head
  room.className = panels.length > 1 ? "beside" : "";
  room.replaceChildren(...panels.map((panel) => panel.root));
  document.getElementById("together").hidden = panels.length < 2;
  const repaint = () => { readColours(); for (const panel of panels) { panel.root.querySelectorAll("canvas").forEach((canvas) => { canvas.done = false; }); panel.paint(); } };
  const theme = document.getElementById("theme"), themes = ["system", "light", "dark"];
  const show = (name) => { document.documentElement.dataset.theme = name; theme.textContent = `colours: ${name}`; repaint(); };
  theme.addEventListener("click", () => show(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  addEventListener("resize", () => panels.forEach((panel) => panel.paint()));
  addEventListener("keydown", (event) => { if (event.key === "Escape") panels.forEach((panel) => panel.release()); });
  show("system");
  document.documentElement.dataset.ready = "";
}

start().catch((error) => { document.getElementById("panels").textContent = `The page cannot be shown: ${error.message}`; });
