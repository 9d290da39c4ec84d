// The data of the page: unpacked, cut into what is shown, and turned into colors.

const SPECIAL = -1;
const LONGEST = 64; // units of a side that are shown at once
const FULL = 4; // even shares: the least that has the full color, so that the noise of an even look has not
const PALE = 25; // even shares: what has the full color in a map that looks evenly, so that its colors are pale
const OPAQUE = 0.9; // of the strongest patch
// Okabe and Ito's colors, told apart by every kind of color vision: for several heads at once
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Where each head's map (queries x keys bytes) begins; layers are packed in their order. */
function place(panel, bytes) {
  let at = 0;
  for (const axis of panel.axes)
    for (const layer of axis.layers) {
      layer.rows = panel.sides[layer.queries].tokens.length;
      layer.columns = panel.sides[layer.keys].tokens.length;
      layer.taken = panel.sides[layer.queries].steps; // by each query, where positions halt
      layer.bytes = layer.heads.map((_, head) => {
        const size = layer.rows * layer.columns;
        return bytes.subarray(at + head * size, at + (head + 1) * size);
      });
      at += layer.heads.length * layer.rows * layer.columns;
    }
}

/** What the maps were computed from: of each layer tables (heads, rows, numbers), where a head or its only one gives a row. */
function placeCalculations(panel, bytes) {
  const numbers = new Float32Array(bytes.buffer);
  let at = 0;
  for (const axis of panel.axes)
    for (const { calculation } of axis.layers)
      for (const [name, [heads, rows, width]] of Object.entries(calculation?.shapes ?? {})) {
        const from = at;
        calculation[name] = (head, row) => numbers.subarray(from + (Math.min(head, heads - 1) * rows + row) * width).subarray(0, width);
        at += heads * rows * width;
      }
}

/** A byte as a weight: the root of it was packed. */
function weight(layer, head, byte) {
  const root = layer.signed ? (byte - 128) / 127 : byte / 255;
  return layer.scale[head] * root * Math.abs(root);
}

/** What a side is shown as: tokens, or words of several; special tokens of a text may be left out. */
function unitsOf(side, words, special) {
  const units = [];
  side.tokens.forEach((token, at) => {
    const word = side.words[at], steps = side.steps?.[at] ?? null, last = units[units.length - 1];
    if (word === SPECIAL && !special && !side.grid) return;
    if (words && !side.grid && last && word !== SPECIAL && last.word === word) {
      last.label += token;
      last.members.push(at);
      last.steps = steps === null ? null : Math.max(last.steps, steps); // a word halts with the last of its tokens
    } else units.push({ label: token, word, steps, members: [at] });
  });
  return units;
}

/** The patch of another grid that lies where a patch does. */
function placed(at, from, to) {
  const before = (side) => side.tokens.length - side.grid[0] * side.grid[1], patch = at - before(from);
  const y = Math.floor((Math.floor(patch / from.grid[1]) * to.grid[0]) / from.grid[0]);
  const x = Math.floor(((patch % from.grid[1]) * to.grid[1]) / from.grid[1]);
  return before(to) + y * to.grid[1] + x;
}

/** The map of one head between units: added up over keys, averaged over queries that have not halted; exact where it can be. */
function mapOf(layer, head, queries, keys) {
  const bytes = layer.bytes[head], map = new Float32Array(queries.length * keys.length);
  const table = Float32Array.from({ length: 256 }, (_, byte) => weight(layer, head, byte));
  const exact = layer.calculation && Array.from({ length: layer.rows }, (_, row) => weightsOf(layer, head, row));
  const at = (row, column) => (exact ? exact[row][column].weight : table[bytes[row * layer.columns + column]]);
  queries.forEach((query, i) => {
    const running = query.members.filter((row) => !layer.taken || layer.step <= layer.taken[row]);
    for (const row of running)
      keys.forEach((key, j) => {
        for (const column of key.members)
          map[i * keys.length + j] += at(row, column) / running.length;
      });
  });
  return map;
}

/** Of each query the mean over the maps in which it still runs: `running` (query, map). */
function mean(maps, running, columns) {
  if (maps.length === 1) return maps[0];
  const sum = new Float32Array(maps[0].length);
  running.forEach((runs, query) => {
    const count = runs.filter(Boolean).length;
    for (let i = query * columns; i < (query + 1) * columns; i++)
      maps.forEach((map, at) => { if (runs[at]) sum[i] += map[i] / count; });
  });
  return sum;
}

function largest(map) {
  let most = 0;
  for (const value of map) most = Math.max(most, Math.abs(value));
  return most || 1;
}

/** The weight that has the full color: the largest, or at least FULL even shares. If no weight is much larger than an even share, it is PALE even shares. */
function fullest(layer, most, columns = layer.columns) {
  if (!layer.shares) return most;
  return Math.min(1, most * columns <= 1.5 ? PALE / columns : Math.max(most, FULL / columns));
}

/** At how many keys a query looks evenly: none gets half more than their mean. 0 if it prefers some. */
function evenly(weights) {
  const seen = weights.filter((value) => value > 0);
  return seen.length > 1 && largest(seen) * seen.length <= 1.5 * seen.reduce((sum, value) => sum + value, 0) ? seen.length : 0;
}

/** Whether all queries of a map do, except one that sees a single key, the first of a text that is written. */
function evenMap(map, columns) {
  const rows = Array.from({ length: map.length / columns }, (_, row) => map.subarray(row * columns, (row + 1) * columns));
  const counts = rows.map((row, at) => evenly(row) || (at ? 0 : Number(row.filter((value) => value > 0).length === 1)));
  return counts.every(Boolean) && counts.reduce((sum, count) => sum + count, 0) >= 0.45 * map.length;
}

/** From where to where the colors over an image go, of the weights that one query gives the patches. */
function spanOf(layer, weights) {
  const most = largest(weights), even = 1 / layer.columns;
  return layer.shares ? [even, Math.max(most, FULL * even)] : [0, most];
}

/** Where a weight lies between them, from -1 to 1: a share by how many even ones it is, on a logarithmic scale. */
function heatOf(value, [from, to]) {
  if (!from) return value / to;
  return value > from ? Math.log(value / from) / Math.log(to / from) : 0;
}

const tone = (heat) => (heat < 0 ? ramp.cold : ramp.heat);
/** The color of heat from -1 to 1 where no image lies below. */
function heated(heat) {
  return ramp.more[0].map((value, i) => Math.round(value + (tone(heat)[i] - value) * Math.abs(heat) * OPAQUE));
}

/** A map of any size on a small canvas; the largest weight of each cell is what shows, in the color that `paint` gives it. */
function thumbnail(canvas, values, rows, columns, paint, side = 48) {
  const down = Math.min(rows, side), across = Math.min(columns, side);
  canvas.width = across;
  canvas.height = down;
  const context = canvas.getContext("2d"), image = context.createImageData(across, down);
  const cells = new Float32Array(down * across);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const at = Math.floor((row * down) / rows) * across + Math.floor((column * across) / columns);
      const value = values(row * columns + column);
      if (Math.abs(value) > Math.abs(cells[at])) cells[at] = value;
    }
  cells.forEach((value, at) => image.data.set([...paint(value), 255], at * 4));
  context.putImageData(image, 0, 0);
}
