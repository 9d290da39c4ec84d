"use strict";
// What the pages share: elements, numbers in words, and colors, which follow the system, the reader or a notebook.

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

/** "12%", or the number itself where weights are no shares (`bare`). */
function share(value, bare) {
  if (bare) return value.toPrecision(2);
  if (value > 0 && value < 0.0005) return "<0.1%";
  return value >= 0.0995 ? `${Math.round(value * 100)}%` : `${(value * 100).toFixed(1)}%`;
}

// Colors, from the style sheet: they change with the theme.
let ramp = null;

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  ramp = {
    more: [read("--map-0"), read("--map-1"), read("--map-2")],
    less: [read("--map-0"), read("--less-1"), read("--less-2")],
    heat: read("--heat"), cold: read("--cold"), line: read("--line"),
  };
}

/** The color of a share from -1 to 1 of the largest weight; roots, so that small ones are seen. */
function color(share) {
  const stops = share < 0 ? ramp.less : ramp.more, t = Math.min(1, Math.sqrt(Math.abs(share))) * 2;
  const from = stops[t < 1 ? 0 : 1], to = stops[t < 1 ? 1 : 2], part = t < 1 ? t : t - 1;
  return from.map((value, i) => Math.round(value + (to[i] - value) * part));
}

/** The color of letters on a color. */
function ink([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#10141a" : "#ffffff";
}

/** The button that chooses the colors. In a frame, the page around chooses them, and gets the height of this page. */
function startColors(repaint) {
  const button = document.getElementById("theme"), themes = ["system", "light", "dark"];
  const show = (name) => { document.documentElement.dataset.theme = name; button.textContent = `colors: ${name}`; readColors(); repaint(); };
  button.addEventListener("click", () => show(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); repaint(); });
  show("system");
  if (parent === window) return;
  document.documentElement.style.setProperty("--window", `${innerHeight}px`);
  new ResizeObserver(() => parent.postMessage({ manyheads: "height", height: document.body.scrollHeight }, "*")).observe(document.body);
  addEventListener("message", ({ source, data }) => { if (source === parent && themes.includes(data?.theme)) show(data.theme); });
}
