// How results look. What models and users say becomes text, never markup. `el` is of views.js.

const HUES = 6; // of the kinds of tags and entities: see page.css

export const percent = (value) => share(value); // of maps.js

/** A list, likeliest first: rows of { name, value, said, choose, mark }. A bar is as long as `value`, of which 1 is the whole width.
 * A row with `mark` is no item: a line at a limit, such as a threshold. */
export function ranking(heading, rows) {
  return el("div", { className: "ranking" }, heading ? el("h3", {}, heading) : null, el("ol", {}, ...rows.map(({ name, value, said, choose, mark }) =>
    el("li", mark ? { className: "limit" } : {}, choose ? el("button", { type: "button", className: "name", onclick: choose }, name) : el("span", { className: "name" }, name),
      value === undefined ? null : el("span", { className: "bar", style: `--share:${Math.max(0, Math.min(1, value))}` }), el("span", { className: "amount" }, said ?? percent(value))))));
}

/** A text with parts of it marked: `spans` of { start, end, kind, title } in characters, in their order. */
export function marked(text, spans) {
  const letters = [...text]; // the service counts characters, scripts count halves of some
  const kinds = [...new Set(spans.map(({ kind }) => kind))], made = [];
  let at = 0;
  for (const { start, end, kind, title } of spans) {
    made.push(letters.slice(at, start).join(""), el("mark", { className: `hue-${kinds.indexOf(kind) % HUES}`, title },
      letters.slice(start, end).join(""), kind ? el("small", {}, kind) : null));
    at = end;
  }
  return el("p", { className: "said" }, ...made, letters.slice(at).join(""));
}

export const said = (...parts) => el("p", { className: "said" }, ...parts);
