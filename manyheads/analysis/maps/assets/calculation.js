// How one weight comes about: query x key by dimension, their sum, the scale, the softmax against the other keys of the
// row, and the values that the head mixes by it. Numbers are the model's own, in float32; what is computed here is not
// rounded to it.

/** A row of one head: query · key, what is added, the score and the weight of each key. */
function weightsOf({ calculation, columns }, head, query) {
  const own = calculation.query(head, query), added = calculation.added?.(head, query);
  const keys = Array.from({ length: columns }, (_, at) => {
    const key = calculation.key(head, at), plus = added?.[at] ?? 0;
    let sum = 0;
    for (let d = 0; d < own.length; d++) sum += own[d] * key[d];
    return { sum, added: plus, score: sum * calculation.scale + plus, weight: 0 };
  });
  const most = keys.reduce((all, { score }) => Math.max(all, score), -Infinity);
  if (most === -Infinity) return keys; // a query that may look nowhere
  const total = keys.reduce((all, { score }) => all + Math.exp(score - most), 0);
  for (const key of keys) key.weight = Math.exp(key.score - most) / total;
  return keys;
}

/** The same with the products by dimension and the values; and what the head gives. */
function calculate(layer, head, query) {
  const { calculation } = layer, own = calculation.query(head, query);
  const keys = weightsOf(layer, head, query).map((key, at) => ({ ...key,
    products: Float64Array.from(calculation.key(head, at), (number, d) => number * own[d]), value: calculation.value(head, at) }));
  const output = Float64Array.from(keys[0].value, (_, d) => keys.reduce((all, { weight, value }) => all + weight * value[d], 0));
  return { own, keys, output };
}

const figure = (number) => (number === -Infinity ? "−∞" : `${number < 0 ? "−" : ""}${Math.abs(number).toFixed(2)}`);

/** Numbers as colors, of which `most` is the fullest; the one under the mouse is told. */
function strip(panel, numbers, most, name, more = {}) {
  const canvas = el("canvas", { role: "img", "aria-label": `${name}: ${numbers.length} numbers from ${figure(Math.min(...numbers))} to ${figure(Math.max(...numbers))}`, ...more });
  canvas.numbers = numbers;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), at = Math.max(0, Math.min(numbers.length - 1, Math.floor(((event.clientX - box.left) / box.width) * numbers.length)));
    canvas.title = `${name}, dimension ${at}: ${figure(numbers[at])}`;
  });
  panel.painters.push(() => {
    if (canvas.done) return;
    canvas.done = true;
    thumbnail(canvas, (at) => numbers[at] / most, 1, numbers.length, color, numbers.length);
  });
  return el("span", { className: "strip" }, canvas);
}

/** The calculation of the pair that is held, below the view; it follows the choice, and is built anew for another pair. */
function calculated(panel) {
  const room = el("section", { className: "calculation", "aria-label": "calculation of a weight" }), others = panel.painters;
  let shown = null, own = [];
  panel.painters.push(() => {
    const { q, k } = panel.state.focus, told = pairOf(panel), pair = told.hint ?? `${q}:${k}`;
    if (pair !== shown) {
      const active = room.contains(document.activeElement) ? document.activeElement.dataset.at : null;
      shown = pair;
      panel.painters = own = []; // those of the pair
      room.replaceChildren(...(told.hint ? [el("p", { className: "hint" }, told.hint)] : pairShown(panel, told)));
      panel.painters = others;
      if (active) room.querySelector(`[data-at="${active}"]`)?.focus({ preventScroll: true });
    }
    for (const painter of own) painter();
  });
  return room;
}

/** Which head and which two tokens are to be shown, or a hint what to do. */
function pairOf(panel) {
  const { state: { focus: { q, k }, held }, picked, layer, units: [queries, keys] } = panel;
  if (picked.length > 1) return { hint: "Select a single head to see a calculation." };
  if (!held || q === null || k === null) return { hint: "To see how a weight is computed, select a token on each side or a cell of the matrix, with a click or with the arrow keys and Enter." };
  if (queries[q].members.length > 1 || keys[k].members.length > 1) return { hint: "Switch off whole words to see a calculation." };
  if (panel.halted(queries[q])) return { hint: "This position has halted. Its weights no longer change the output." };
  const [query, key] = [queries[q].members[0], keys[k].members[0]], head = picked[0][1];
  return { query, key, head, name: queries[q].label, other: keys[k].label, row: calculate(layer, head, query) };
}

function pairShown(panel, { query, key, name, other, row: { own, keys, output } }) {
  const { layer } = panel, { scale } = layer.calculation, chosen = keys[key], theirs = layer.calculation.key(panel.picked[0][1], key);
  const tokens = panel.data.sides[layer.keys].tokens, unitAt = (at) => panel.units[1].findIndex(({ members }) => members.length === 1 && members[0] === at);
  const most = { products: largest(keys.flatMap(({ products }) => [...products])), values: largest([...keys.flatMap(({ value }) => [...value]), ...output]) };
  const line = (label, token, numbers, fullest, at) => [el("span", { className: "what" }, label, token && el("b", {}, token)), strip(panel, numbers, fullest, label, { "data-at": at })];
  const said = el("output"), cursor = el("input", { type: "range", min: 0, max: own.length - 1, "data-at": "dimension", "aria-label": "dimension" });
  const vectors = el("div", { className: "vectors", style: `--dimensions:${own.length}` },
    ...line("query ", name, own, largest(own), "query"), ...line("key ", other, theirs, largest(theirs), "key"),
    ...line("query × key", null, chosen.products, largest(chosen.products), "products"), el("label", {}, "dimension"), cursor, el("span"), said);
  const tell = () => {
    const at = Number(cursor.value);
    vectors.style.setProperty("--dimension", at);
    said.textContent = `dimension ${at}: ${figure(own[at])} × ${figure(theirs[at])} = ${figure(chosen.products[at])}`;
  };
  cursor.value = chosen.products.reduce((best, each, at) => (Math.abs(each) > Math.abs(chosen.products[best]) ? at : best), 0);
  cursor.addEventListener("input", tell);
  tell();
  const factor = Math.abs(scale * Math.sqrt(own.length) - 1) < 1e-6 ? `1/√${own.length}` : scale.toPrecision(3);
  const steps = [["query · key, the sum of all dimensions", chosen.sum], [`× ${factor}, the scale`, chosen.sum * scale],
    ...(layer.calculation.added ? [[chosen.added === -Infinity ? "hidden by the mask" : "+ bias", chosen.added], ["the score", chosen.score]] : []),
    [`softmax against all ${keys.length} keys: the weight`, chosen.weight]];
  const number = (value, className, at, text = figure(value)) => el("span", { className, title: String(value), "data-at": at }, text);
  const rows = keys.map((each, at) => {
    const unit = unitAt(at), hidden = each.score === -Infinity;
    return el("li", { className: at === key ? "on" : hidden ? "later" : "" },
      el("button", { type: "button", className: "token", "data-at": `c-${at}`, disabled: unit < 0, "aria-pressed": at === key, onclick: () => panel.focus({ q: panel.state.focus.q, k: unit }) }, el("span", { className: "text" }, tokens[at])),
      strip(panel, each.products, most.products, `query × key of ${tokens[at]}`), number(each.score, "score", `score-${at}`),
      number(each.weight, "weight", `weight-${at}`, share(each.weight)), strip(panel, each.value, most.values, `value of ${tokens[at]}`));
  });
  const list = el("ol", { className: "row-of-keys", onkeydown: (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key], at = Number(event.target.dataset.at?.slice(2));
    if (!by) return;
    event.preventDefault();
    list.querySelector(`[data-at="c-${at + by}"]`)?.focus();
  } }, el("li", { className: "heading" }, el("span", {}, "key"), el("span", {}, "query × key"), el("span", {}, "score"), el("span", {}, "weight"), el("span", {}, "value")),
  ...rows, el("li", { className: "sum" }, el("span", {}, "the head's output, the sum of weight × value"), strip(panel, output, most.values, "the head's output", { "data-at": "output" })));
  return [
    el("h3", {}, "Weight from ", el("b", {}, name), " to ", el("b", {}, other)),
    el("p", { className: "heading" }, "blue is positive, orange negative"), vectors,
    el("dl", { className: "steps-of-score" }, ...steps.flatMap(([what, value], at) => [el("dt", {}, what), el("dd", { title: String(value), "data-at": `step-${at}` }, at === steps.length - 1 ? share(value) : figure(value))])),
    list,
  ];
}
