// How results look. What models and users say becomes text, never markup. `el` is of views.js.

const HUES = 6; // of the kinds of tags and entities: see page.css

export const percent = (value) => share(value); // of common.js

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

const SVG = "http://www.w3.org/2000/svg";

/** An element of SVG. */
export function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** An image with the boxes of its objects, each of which can be chosen. `source` is a data URL. */
export async function boxes(source, found, choose) {
  const picture = el("img", { src: source, alt: "the image" });
  try {
    await picture.decode();
  } catch {
    return el("p", { className: "hint" }, "This browser cannot show the image.");
  }
  const kinds = [...new Set(found.map(({ label }) => label))];
  const drawing = drawn("svg", { viewBox: `0 0 ${picture.naturalWidth} ${picture.naturalHeight}`, role: "img", "aria-label": `${found.length} boxes` },
    ...found.map(({ label, left, top, right, bottom }, at) => {
      const box = drawn("rect", { class: `hue-${kinds.indexOf(label) % HUES}`, x: left, y: top, width: right - left, height: bottom - top }, drawn("title", {}, label));
      box.addEventListener("click", () => choose(at));
      return box;
    }));
  return el("div", { className: "boxes" }, picture, drawing);
}
