// One input: what is chosen of it (`state`), its parts, and how they follow the choice.

const NAMES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross", self: "Self" };

class Panel {
  constructor(data, number, changed) {
    Object.assign(this, { data, number, changed });
    this.state = { axis: 0, view: null, picked: new Set(["0:0"]), words: false, special: true, focus: { q: null, k: null },
      held: false, step: null, starts: [0, 0] }; // starts: the first units that are shown
    this.root = el("section", { className: "panel", "aria-label": `${data.model}: ${data.title}` });
    const cross = Math.max(0, data.axes.findIndex((axis) => axis.name === "cross"));
    this.choose({ axis: cross, picked: new Set([this.sharpest(data.axes[cross])]) }, false);
    this.open(data.opening ?? {});
  }

  /** Show what a link or the page's author names: an axis, the number of a layer or step, a head of it, a view. Other values are ignored. */
  open({ axis: name, layer: number, head, view }, tell = false) {
    const at = this.data.axes.findIndex((each) => each.name === name), axis = at < 0 ? this.state.axis : at;
    const { layers } = this.data.axes[axis], row = layers.findIndex((layer) => String(layer.step ?? layer.number) === String(number));
    const change = at < 0 ? {} : { axis };
    if (row >= 0) {
      const column = layers[row].heads.findIndex((each) => String(each) === String(head));
      change.picked = new Set(column >= 0 ? [`${row}:${column}`] : layers[row].heads.map((_, each) => `${row}:${each}`));
    }
    if (view in VIEWS) change.view = view;
    if (Object.keys(change).length) this.choose(change, tell);
  }
  /** The link to what is shown. */
  get link() {
    const [row, column] = this.picked[0], layer = this.axis.layers[row], one = new Set(this.picked.map(([each]) => each)).size === 1;
    const parts = { axis: this.axis.name, ...(one ? { layer: layer.step ?? layer.number } : {}), ...(this.picked.length === 1 ? { head: layer.heads[column] } : {}), view: this.state.view };
    return `#${new URLSearchParams(parts)}`;
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
    const state = this.state, token = state.step === null ? null : this.units[0][state.step].members.at(-1);
    const anew = ["words", "special"].some((name) => name in change) || ("axis" in change && change.axis !== state.axis) || !this.units;
    if ("axis" in change && change.axis !== state.axis) Object.assign(state, { step: null, picked: new Set([this.sharpest(this.data.axes[change.axis])]) });
    if (anew) Object.assign(state, { focus: { q: null, k: null }, held: false, starts: [0, 0] });
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
    if (anew && state.step !== null) { // the step is that of the same token, where it is still there
      const at = queries.findIndex((unit) => unit.members.includes(token));
      Object.assign(state, at < 0 ? { step: null } : { step: at, starts: this.startsAt(at) });
    }
    this.several = this.picked.map(([layer, head]) => mapOf(this.axis.layers[layer], head, queries, keys));
    const running = queries.map(({ steps }) => this.picked.map(([row]) => steps === null || this.axis.layers[row].step <= steps));
    this.map = mean(this.several, running, keys.length);
    this.most = fullest(this.layer, largest(this.map), keys.length);
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
    if (this.layer.calculation && this.state.held) // a token of each side is a pair
      focus = { q: focus.q ?? this.state.focus.q, k: focus.k ?? this.state.focus.k };
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
      el("header", {}, el("h2", {}, data.model || "A model"), el("p", { className: "input" }, data.title), predicted(data.prediction),
        ...data.told.map((note) => el("p", { className: "told" }, note))),
      el("div", { className: "bar" },
        data.axes.length > 1 ? this.tabs("attention", data.axes.map((axis, at) => [at, NAMES[axis.name] ?? axis.name]), state.axis, (axis) => this.choose({ axis: Number(axis) })) : null,
        this.tabs("view", this.views.map((view) => [view, view[0].toUpperCase() + view.slice(1)]), state.view, (view) => this.choose({ view })),
        several && !of.grid ? this.check("words", "whole words") : null,
        specials && !of.grid ? this.check("special", "special tokens") : null),
      el("div", { className: "body" }, this.heads(), el("div", { className: "stage" },
        this.caption(), this.stepper(), ...this.pagers(),
        el("div", { className: `scene as-${state.view}` }, VIEWS[state.view](this), this.readout = el("div", { className: "readout", "aria-live": "polite" })),
        this.calculated = this.layer.calculation ? calculated(this) : null)),
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
      el("button", { type: "button", className: "all", "data-at": `row-${row}`, title: `all heads of ${layer.name}`, "aria-label": `${this.called(row)}, all heads`, onclick: () => this.choose({ picked: new Set(layer.heads.map((_, head) => `${row}:${head}`)) }) }, this.called(row).match(/\d+/g).join("·")),
      ...layer.heads.map((head, column) => {
        const at = `${row}:${column}`, canvas = el("canvas");
        this.painters.push(() => this.thumb(canvas, layer, column));
        const order = this.state.picked.size > 1 && this.several.length <= HUES.length ? this.picked.findIndex((each) => each.join(":") === at) : -1;
        return el("button", { type: "button", className: "thumb", "data-at": `thumb-${at}`, tabIndex: tabbed === `thumb-${at}` ? 0 : -1, style: order >= 0 ? `--hue:${HUES[order]}` : "",
          "aria-pressed": this.state.picked.has(at), title: `${this.called(row)}, head ${head}`, "aria-label": `${this.called(row)}, head ${head}`,
          onclick: (event) => this.pick(at, event.shiftKey || event.ctrlKey || event.metaKey) }, canvas);
      })));
    const most = Math.max(...layers.map((layer) => layer.heads.length)), every = layers.flatMap((layer, row) => layer.heads.map((_, column) => `${row}:${column}`));
    const aside = el("aside", { className: "heads", style: `--heads:${most};--layers:${layers.length}` },
      el("p", { className: "legend" }, layers[0].step ? "steps ↓ from 1, heads → from 0" : "layers ↓ heads →, from 0",
        every.length > 1 ? el("button", { type: "button", className: "quiet", "data-at": "every", onclick: () => this.choose({ picked: new Set(every) }) }, "mean of all") : null), el("div", { className: "grid" }, ...rows));
    aside.addEventListener("keydown", (event) => {
      const [row, column] = (event.target.dataset.at?.match(/^thumb-(\d+):(\d+)$/) ?? []).slice(1).map(Number);
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (row === undefined || !step) return;
      event.preventDefault();
      aside.querySelector(`[data-at="thumb-${row + step[0]}:${column + step[1]}"]`)?.focus();
    });
    return aside;
  }

  called(row, axis = this.axis) {
    const { number, step } = axis.layers[row];
    if (step === null) return `layer ${number}`;
    return axis.layers.every((layer) => layer.number === number) ? `step ${step}` : `layer ${number}, step ${step}`;
  }
  /** The head of an axis here that is called as one that is picked elsewhere; undefined where there is none. */
  counterpart(other, [row, head], axis) {
    const here = axis.layers.findIndex((_, each) => this.called(each, axis) === other.called(row));
    const at = axis.layers[here]?.heads.indexOf(other.axis.layers[row].heads[head]) ?? -1;
    return at < 0 ? undefined : `${here}:${at}`;
  }
  /** The unit here that is one of another panel: the same token, or the patch at the same place; -1 where there is none. */
  partner(other, side, at) {
    const unit = other.units[side][at], [own, its] = [this, other].map((panel) => panel.data.sides[side ? panel.layer.keys : panel.layer.queries]);
    if (!own.grid || !its.grid) return this.units[side][at]?.label === unit.label ? at : -1;
    return unit.word === SPECIAL ? own.tokens.findIndex((token, each) => own.words[each] === SPECIAL && token === unit.label) : placed(at, its, own);
  }
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
      return thumbnail(canvas, (at) => weight(layer, head, bytes[at]), layer.rows, layer.columns, (value) => color(value / (fullest(layer, layer.scale[head]) || 1)));
    }
    // the patch in focus, or the one at the same place on this layer's grid
    const from = this.data.sides[layer.queries], own = this.data.sides[this.layer.queries];
    const before = from.tokens.length - from.grid[0] * from.grid[1];
    let row = q ?? 0;
    if (row >= before && from !== own) row = placed(row, own, from);
    const cells = side.grid[0] * side.grid[1], begin = (row + 1) * layer.columns - cells;
    const weights = Array.from(bytes.subarray(begin, begin + cells), (byte) => weight(layer, head, byte)), span = spanOf(layer, weights);
    thumbnail(canvas, (at) => weights[at], side.grid[0], side.grid[1], (value) => heated(heatOf(value, span)));
  }

  caption() {
    const picked = this.picked, [row, column] = picked[0], layer = this.axis.layers[row];
    const what = picked.length === 1 ? `${this.called(row)} · head ${layer.heads[column]}`
      : new Set(picked.map(([each]) => each)).size === 1 ? `${this.called(row)} · ${picked.length} heads` : `${picked.length} heads`;
    const low = el("span"), scale = el("canvas", { className: "scale", width: 64, height: 1 }), high = el("span");
    this.painters.push(() => {
      const over = this.state.view === "picture", [from, to] = over ? this.span : [0, this.most];
      low.textContent = layer.signed ? `−${to.toPrecision(2)}` : from ? `even ${share(from)}` : "0";
      high.textContent = share(to, !layer.shares);
      thumbnail(scale, (at) => (layer.signed ? (at - 31.5) / 31.5 : at / 63), 1, 64, over ? heated : color, 64);
    });
    return el("p", { className: "caption" }, el("strong", {}, what), el("span", { className: "name" }, picked.length === 1 ? layer.name : this.state.view === "lines" && picked.length <= HUES.length ? "their mean; each has lines of its color" : "their mean"),
      picked.length === 1 && layer.shares && evenMap(this.map, this.units[1].length) ? el("span", { className: "even" }, "looks evenly") : null,
      el("span", { className: "range" }, low, scale, high),
      el("span", { className: "saves" }, "save ", ...["png", "svg"].map((kind) => el("button", { type: "button", className: "quiet", "data-at": `save-${kind}`, title: `save this view as ${kind.toUpperCase()}`, onclick: () => save(this, kind) }, kind.toUpperCase()))));
  }

  /** Whether there are steps of writing or of reading to go through; those of tied depth are layers. */
  get stepping() { return this.axis.stepwise && this.axis.layers[0].step === null && this.units[0].length > 1; }

  /** A slider over the steps: of tied depth, or of a text, behind whose last one all are shown. */
  stepper() {
    const { layers } = this.axis, [queries] = this.units, depth = layers[0].step !== null, count = depth ? layers.length : queries.length;
    if (depth ? count < 2 : !this.stepping) return null;
    const said = el("output"), input = el("input", { type: "range", min: 0, max: depth ? count - 1 : count, "data-at": "step", "aria-label": "step" });
    const all = depth ? null : el("button", { type: "button", className: "quiet", "data-at": "all-steps", onclick: () => this.take(null) }, "all");
    input.addEventListener("input", () => {
      const at = Number(input.value);
      if (depth) this.choose({ picked: new Set(this.picked.map(([, head]) => `${at}:${head}`)) });
      else this.take(at < count ? at : null);
    });
    this.painters.push(() => {
      const { step } = this.state, row = this.picked[0][0];
      input.value = depth ? row : step ?? count;
      if (depth) said.textContent = this.called(row) + (layers.every((layer, at) => layer.step === at + 1) ? ` of ${count}` : "");
      else said.textContent = step === null ? `all ${count} steps` : `step ${step + 1} of ${count}: ${queries[step].label}`;
      if (all) all.hidden = step === null;
    });
    return el("div", { className: "stepper" }, said, input, all);
  }

  /** Go to a step of a text that is written or read from left to right; null: all of them. */
  take(step, tell = true) {
    const [from] = this.state.starts, turn = step !== null && (step < from || step >= from + LONGEST);
    Object.assign(this.state, { step, held: false, focus: { q: step, k: null }, ...(turn ? { starts: this.startsAt(step) } : {}) });
    if (turn) this.build();
    else this.paint();
    if (tell) this.changed(this, { step });
  }

  /** Whether queries and keys are the same tokens: they have one pager. */
  get same() { return this.layer.queries === this.layer.keys; }
  /** The first units that are shown where the last query is one: a full page, as far as there are that many. */
  startsAt(query) {
    const start = Math.max(0, query - LONGEST + 1);
    return [start, this.same ? start : this.state.starts[1]];
  }

  pagers() {
    if (this.pictured) return [];
    return this.units.map((units, side) => {
      const from = this.state.starts[side], { first, total } = this.data.sides[side ? this.layer.keys : this.layer.queries];
      if (units.length <= LONGEST || (side && this.same)) return null;
      const to = Math.min(from + LONGEST, units.length), moved = (by) => Math.max(0, Math.min(from + by * LONGEST, units.length - LONGEST));
      const turn = (by, label, there) => el("button", { type: "button", className: "quiet", disabled: !there, "data-at": `turn-${side}-${by}`, onclick: () => this.choose({ starts: this.state.starts.map((old, at) => (at === side || this.same ? moved(by) : old)), focus: { q: null, k: null }, held: false }) }, label);
      const what = this.same ? "tokens" : side ? "source tokens" : "target tokens";
      const said = `${what} ${first + units[from].members[0] + 1}–${first + units[to - 1].members.at(-1) + 1} of ${total}`;
      return el("div", { className: "pager" }, turn(-1, "‹ earlier", from > 0), el("span", {}, said), turn(1, "later ›", to < units.length));
    });
  }

  /** The units of a side that are shown, with their numbers. */
  shown(side) {
    const from = this.pictured ? 0 : this.state.starts[side];
    return this.units[side].map((unit, at) => ({ ...unit, at })).slice(from, this.pictured ? undefined : from + LONGEST);
  }

  value(q, k, map = this.map) { return map[q * this.units[1].length + k]; }
  /** Whether a query took fewer steps than all that are picked. */
  halted({ steps }) { return steps !== null && this.picked.every(([row]) => this.axis.layers[row].step > steps); }
  hidden(q) { return this.axis.stepwise && this.state.step !== null && q > this.state.step; }

  get strongest() { // of the row or column in focus
    const { q, k } = this.state.focus, [queries, keys] = this.units;
    if (q === null && k === null) return this.most;
    return fullest(this.layer, largest(q !== null ? keys.map((_, j) => this.value(q, j)) : queries.map((_, i) => this.value(i, k))), keys.length);
  }

  get span() { // of the colors over the image, for the patch that looks
    const { grid } = this.data.sides[this.layer.keys], columns = this.units[1].length, end = (this.state.focus.q + 1) * columns;
    return spanOf(this.layer, this.map.subarray(end - grid[0] * grid[1], end));
  }

  /** In words, and read out: where the unit in focus looks, or who looks at it. */
  tell() {
    const { q, k } = this.state.focus, [queries, keys] = this.units, { shares } = this.layer;
    const quoted = (side, unit) => {
      const grid = this.data.sides[side ? this.layer.keys : this.layer.queries].grid;
      return grid && unit.word !== SPECIAL ? `row ${unit.label.replace(",", ", column ")}` : unit.label;
    };
    if (q === null && k === null)
      return this.readout.replaceChildren(el("p", { className: "hint" }, "Hover a token, or go there with Tab and the arrows, to see where it looks."));
    const given = q !== null ? q : k, row = q !== null, unit = (row ? queries : keys)[given], halted = row && this.halted(unit);
    const weights = (row ? keys : queries).map((unit, at) => [unit, row ? this.value(given, at) : this.value(at, given)]);
    const top = [...weights].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 5).filter(([, value], _, all) => value && Math.abs(value) > Math.abs(all[0][1]) / 500);
    const most = Math.abs(top[0]?.[1] ?? 1), rest = 1 - weights.reduce((sum, [, value]) => sum + value, 0);
    const subject = el("b", {}, quoted(row ? 0 : 1, unit));
    const both = row && k !== null ? [" · at ", el("b", {}, quoted(1, keys[k])), ` ${share(this.value(q, k), !shares)}`] : [];
    const even = row && shares && !halted ? evenly(keys.map((_, at) => this.value(given, at))) : 0;
    const bar = ([name, value]) => el("li", {}, el("span", { className: "what" }, name), el("span", { className: "bar", style: `--share:${shares ? value : Math.abs(value) / most}` }), el("span", { className: "amount" }, share(value, !shares)));
    const listed = top.map(([unit, value]) => [quoted(row ? 1 : 0, unit), value]);
    if (row && !halted && shares && rest > 0.01 && (this.data.sides[this.layer.keys].total > this.data.sides[this.layer.keys].tokens.length || !this.state.special)) listed.push(["keys that are not shown", rest]);
    this.readout.replaceChildren(el("p", {}, subject, halted ? " had halted" : even ? ` looks evenly at ${even} ${this.data.sides[this.layer.keys].grid ? "places" : "tokens"}` : row ? " looks at" : " is looked at by", ...both, unit.steps === null ? null : el("span", { className: "took" }, ` · ${took(unit)}`), this.state.held ? el("span", { className: "held" }, " held; Esc releases it") : null),
      el("ul", {}, ...listed.map(bar)));
  }
}
