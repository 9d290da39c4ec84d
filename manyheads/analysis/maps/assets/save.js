// Saves the view of a panel as a file: SVG, drawn anew from its data, or PNG, painted from the SVG.

const EDGE = 20; // pixels around a saved view
const MANY = 64 * 64; // cells of a matrix that are drawn one by one; a larger one is an image

/** An element of an SVG file, as text. */
function svg(tag, properties = {}, ...children) {
  const escaped = (text) => String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const given = Object.entries(properties).map(([name, value]) => ` ${name}="${escaped(value)}"`).join("");
  return `<${tag}${given}>${children.map((child) => (child?.text === undefined ? child : escaped(child.text))).join("")}</${tag}>`;
}
const rgb = (color) => `rgb(${color.join(",")})`;
const written = (text, x, y, properties = {}) => svg("text", { x, y, "font-size": 14, fill: inks().ink, ...properties }, { text });
const inks = () => Object.fromEntries(["ink", "faint", "paper"].map((name) => [name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()]));
const lengthOf = (texts, size = 14) => Math.max(0, ...texts.map((text) => text.length)) * size * 0.6;

/** The lines between tokens, as [parts, width, height]. */
function drawnLines(panel) {
  const [left, right] = [panel.shown(0), panel.shown(1)], start = lengthOf(left.map((unit) => unit.label)) + 10, width = 260;
  const many = panel.several.length > 1 && panel.several.length <= HUES.length, { q, k } = panel.state.focus, most = panel.strongest;
  const parts = [];
  (many ? panel.several : [panel.map]).forEach((map, order) => left.forEach((query, i) => {
    if ((q !== null && k === null && q !== query.at) || panel.hidden(query.at)) return;
    right.forEach((key, j) => {
      const part = Math.abs(panel.value(query.at, key.at, map)) / most;
      if ((k !== null && k !== key.at) || part < 0.02) return;
      const [y, z] = [(i + 0.5) * LINE, (j + 0.5) * LINE];
      parts.push(svg("path", { d: `M${start} ${y}C${start + width * 0.45} ${y} ${start + width * 0.55} ${z} ${start + width} ${z}`, fill: "none", stroke: many ? HUES[order] : rgb(ramp.line),
        "stroke-width": (0.6 + 2.6 * Math.min(1, part)).toFixed(2), "stroke-opacity": Math.min(1, q === null && k === null ? part * 0.75 : 0.12 + part).toFixed(3) }));
    });
  }));
  left.forEach((unit, i) => parts.push(written(unit.label, start - 10, (i + 0.5) * LINE + 5, { "text-anchor": "end", "font-weight": q === unit.at ? 700 : 400 })));
  right.forEach((unit, j) => parts.push(written(unit.label, start + width + 10, (j + 0.5) * LINE + 5, { "font-weight": k === unit.at ? 700 : 400 })));
  return [parts, start + width + 10 + lengthOf(right.map((unit) => unit.label)), Math.max(left.length, right.length) * LINE];
}

/** The matrix with the names of its rows and columns, as [parts, width, height]. */
function drawnMatrix(panel) {
  const [left, right] = [panel.shown(0), panel.shown(1)], { pictured } = panel, cell = Math.max(2, Math.min(18, Math.floor(720 / right.length)));
  const names = [left, right].map((units) => units.map((unit) => nameIn(unit, pictured))), size = Math.max(8, Math.min(13, cell * 0.75)), [rows, columns] = axisNames(panel);
  const start = lengthOf(names[0], size) + 30, top = lengthOf(names[1], size) + 30, parts = [];
  if (left.length * right.length <= MANY)
    left.forEach((query, i) => right.forEach((key, j) => {
      const value = panel.hidden(query.at) ? 0 : panel.value(query.at, key.at);
      parts.push(svg("rect", { x: start + j * cell, y: top + i * cell, width: cell, height: cell, fill: rgb(color(value / panel.most)), "shape-rendering": "crispEdges" }));
    }));
  else parts.push(svg("image", { x: start, y: top, width: right.length * cell, height: left.length * cell, style: "image-rendering:pixelated", href: panel.root.querySelector("canvas.cells").toDataURL() }));
  names[0].forEach((name, i) => parts.push(written(name, start - 6, top + (i + 0.5) * cell + size / 3, { "text-anchor": "end", "font-size": size })));
  names[1].forEach((name, j) => parts.push(written(name, 0, 0, { transform: `translate(${start + (j + 0.5) * cell + size / 3} ${top - 6}) rotate(-90)`, "font-size": size })));
  parts.push(written(`${columns} →`, start, 12, { fill: inks().faint, "font-size": 13 }), written(`${rows} ↓`, 0, 0, { transform: `translate(12 ${top}) rotate(-90)`, "text-anchor": "end", fill: inks().faint, "font-size": 13 }));
  return [parts, start + right.length * cell, top + left.length * cell];
}

/** The image with the patch that looks, and with the patches that it looks at, as [parts, width, height]. */
function drawnPicture(panel) {
  const side = 340, parts = [svg("filter", { id: "gray" }, svg("feColorMatrix", { type: "saturate", values: 0 }))];
  [...panel.root.querySelectorAll(".board")].forEach((board, at) => {
    const x = at * (side + 24), [picture, canvas] = [board.querySelector("img"), board.querySelector("canvas")];
    parts.push(written(at ? "looks at these" : "this place", x, 12, { fill: inks().faint, "font-size": 13 }));
    if (picture) parts.push(svg("image", { x, y: 22, width: side, height: side, preserveAspectRatio: "none", href: picture.src, ...(at ? { filter: "url(#gray)" } : {}), ...(panel.data.small ? { style: "image-rendering:pixelated" } : {}) }));
    parts.push(svg("image", { x, y: 22, width: side, height: side, href: canvas.toDataURL() }));
  });
  return [parts, 2 * side + 24, side + 22];
}

/** The view of a panel as the text of an SVG file, with its width and height. */
function drawn(panel) {
  const [parts, wide, high] = { lines: drawnLines, matrix: drawnMatrix, picture: drawnPicture }[panel.state.view](panel);
  const caption = panel.root.querySelector(".caption"), what = [caption.querySelector("strong"), caption.querySelector(".name")].map((part) => part.textContent).join(" · ");
  const lines = [panel.data.title, [panel.data.model, what].filter(Boolean).join(" · "), panel.root.querySelector(".prediction")?.textContent].filter(Boolean), top = 22 * lines.length + 12;
  const width = Math.ceil(Math.max(wide, lengthOf(lines.map((line) => line.slice(0, 100)))) + 2 * EDGE), height = Math.ceil(high + top + 2 * EDGE);
  const heading = lines.map((line, at) => written(line.length > 100 ? `${line.slice(0, 99)}…` : line, 0, 14 + 22 * at, { fill: at ? inks().faint : inks().ink }));
  const text = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif" },
    svg("rect", { width, height, fill: inks().paper }), svg("g", { transform: `translate(${EDGE} ${EDGE})` }, ...heading, svg("g", { transform: `translate(0 ${top})` }, ...parts)));
  return { text, width, height };
}

async function save(panel, kind) {
  const { text, width, height } = drawn(panel);
  let file = new Blob([text], { type: "image/svg+xml" });
  if (kind === "png") {
    const picture = new Image(), canvas = el("canvas", { width: 2 * width, height: 2 * height });
    picture.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
    await picture.decode();
    canvas.getContext("2d").drawImage(picture, 0, 0, 2 * width, 2 * height);
    file = await new Promise((done) => canvas.toBlob(done, "image/png"));
  }
  const address = URL.createObjectURL(file), name = `attention ${new URLSearchParams(panel.link.slice(1)).toString().replace(/[=&]/g, "-")}.${kind}`;
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
