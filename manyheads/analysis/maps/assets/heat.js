// Heat maps of an analysis, above the attention maps of its inputs: effects of patches, or parts that explain a prediction.

const SEEN = 0.85; // opacity of the strongest place of an image
const PIXELS = 2000; // places of an image, from which on they are pixels

/** A number with three digits, and its sign. */
const amount = (value) => (value < 0 ? "−" : "") + Number(Math.abs(value).toPrecision(3));

class Heat {
  constructor({ title, model, unit, maps }) {
    this.said = el("div", { className: "readout", "aria-live": "polite" });
    this.painters = [];
    const pictured = maps.every((map) => map.picture), values = maps.flatMap((map) => map.values.flat()).sort((a, b) => Math.abs(a) - Math.abs(b));
    // A few extreme pixels exceed the limit, because the scale would otherwise be too wide for all others.
    this.limit = Math.abs(values[pictured ? Math.floor((values.length - 1) * (values.length > PIXELS ? 0.99 : 1)) : values.length - 1]) || 1;
    this.low = pictured && values.every((value) => value >= 0) ? values[0] : null; // of a scale without negative values
    this.unit = unit;
    const legend = el("span", { className: "ramp" });
    this.painters.push(() => {
      const stops = Array.from({ length: 17 }, (_, at) => (this.low === null ? at / 8 - 1 : at / 16));
      const tints = stops.map((part) => (pictured ? this.veil(part) : `rgb(${color(part).join(" ")})`));
      legend.replaceChildren(amount(this.low ?? -this.limit), el("i", { style: `background: linear-gradient(90deg, ${tints.join(", ")})` }), amount(this.limit), ` ${unit}`);
    });
    this.root = el("section", { className: "panel heat", "aria-label": title },
      el("header", {}, el("h2", {}, model), el("p", { className: "input" }, title)), legend,
      ...maps.map((map) => el("figure", {}, el("figcaption", { className: "heading" }, map.title), map.picture ? this.board(map) : map.rows.length > 1 ? this.table(map) : this.words(map))),
      el("div", { className: "said" }, this.said));
    this.said.append(el("p", { className: "hint" }, "Point at a place, or go there with Tab and the arrows, to read its value."));
  }

  paint() { for (const painter of this.painters) painter(); }
  veil(part) { return `rgb(${(part < 0 ? ramp.cold : ramp.heat).join(" ")} / ${(Math.min(1, Math.abs(part)) * SEEN).toFixed(3)})`; }

  tell(map, row, column) {
    const where = map.picture ? `row ${row}, column ${column}` : map.rows.length > 1 ? [map.rows[row], " · ", el("b", {}, map.columns[column])] : el("b", {}, map.columns[column]);
    this.said.replaceChildren(el("p", {}, map.title, ": ", ...[where].flat(), " ", el("b", {}, amount(map.values[row][column])), ` ${this.unit}`));
  }

  /** Buttons, one for each value, between which the arrow keys move. */
  cells(map, label) {
    const made = map.values.map((values, row) => values.map((value, column) => {
      const tell = () => this.tell(map, row, column);
      const cell = el("button", { type: "button", className: "cell", tabIndex: row || column ? -1 : 0, onpointerenter: tell, onfocus: tell, "aria-label": `${map.rows[row]}, ${map.columns[column]}: ${amount(value)}` }, label(value, column));
      cell.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        if (!by) return;
        event.preventDefault();
        made[row + by[0]]?.[column + by[1]]?.focus();
      });
      this.painters.push(() => {
        const tint = color(value / this.limit);
        Object.assign(cell.style, { background: `rgb(${tint.join(" ")})`, color: ink(tint) });
      });
      return cell;
    }));
    return made;
  }

  table(map) {
    const cells = this.cells(map, (value) => value.toFixed(2).replace("-", "−").replace("−0.00", "0.00"));
    const rows = cells.map((row, at) => el("tr", {}, el("th", { scope: "row" }, map.rows[at]), ...row.map((cell) => el("td", {}, cell))));
    const names = el("tr", {}, el("td"), ...map.columns.map((name) => el("th", { scope: "col", title: name }, name)));
    return el("div", { className: "lens" }, el("table", {}, el("tbody", {}, ...rows), el("tfoot", {}, names)));
  }

  words(map) { return el("div", { className: "words" }, ...this.cells(map, (_, column) => map.columns[column])[0]); }

  /** The image, with a veil over each of its places. */
  board(map) {
    const rows = map.values.length, columns = map.values[0].length, [down, across] = map.cover, at = { row: 0, column: 0 };
    const canvas = el("canvas", { width: columns, height: rows, style: `width: ${across * 100}%; height: ${down * 100}%` });
    const place = el("div", { className: "board", tabIndex: 0, role: "application", "aria-label": `${map.title}: the arrows move over the places` },
      el("img", { src: map.picture, alt: "", className: map.small ? "small" : "" }), canvas);
    const go = (row, column) => {
      Object.assign(at, { row: Math.max(0, Math.min(rows - 1, row)), column: Math.max(0, Math.min(columns - 1, column)) });
      this.tell(map, at.row, at.column);
    };
    place.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      go(Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns));
    });
    place.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!by) return;
      event.preventDefault();
      go(at.row + by[0], at.column + by[1]);
    });
    this.painters.push(() => {
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, columns, rows);
      map.values.forEach((values, row) => values.forEach((value, column) => {
        context.fillStyle = this.veil(this.low === null ? value / this.limit : (value - this.low) / (this.limit - this.low || 1));
        context.fillRect(column, row, 1, 1);
      }));
    });
    return place;
  }
}
