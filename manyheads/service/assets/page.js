// The page: which model, which verb, what was typed; it asks, shows, and keeps its state in the address.

import * as address from "./address.js";
import { Attention } from "./attention.js";
import { Curves } from "./curves.js";
import { field } from "./fields.js";
import { Fault, ask, keepToken, stream } from "./service.js";
import { VERBS, called } from "./verbs.js";

const at = (id) => document.getElementById(id);
const RUN = "curves:"; // before the name of a run, among the models
const FIELDS = { texts: "text", pairs: "pair", images: "image", prompt: "text", max_tokens: "tokens" }; // of requests, and what they are here
const attention = new Attention(at("attention"), at("note")), curves = new Curves(at("curves"));

let cards = [], card = null, verb = null, fields = [], asking = null;

// --- what is chosen

function tell(message) {
  at("told").textContent = message;
  at("told").hidden = !message;
}

function options(found, runs) {
  const group = (label, made) => (made.length ? [el("optgroup", { label }, ...made)] : []);
  const picker = at("model");
  picker.replaceChildren(
    ...group("Models", found.map(({ id }) => el("option", { value: id }, id))),
    ...group("Curves", runs.map(({ name }) => el("option", { value: RUN + name }, `${name} (curves)`))));
  at("pick").hidden = at("link").hidden = !picker.options.length;
  if (!picker.options.length) tell("This service has no models.");
}

/** Choose a model, or the curves of a run. `asked`: a verb and values to begin with. */
function choose(name, asked = {}) {
  stop();
  tell("");
  const picker = at("model");
  picker.value = name;
  if (picker.selectedIndex < 0) {
    tell(`This service has no ${name}: it has ${[...picker.options].map(({ value }) => value).join(", ")}.`);
    picker.selectedIndex = 0;
    asked = {};
  }
  name = picker.value;
  const run = name.startsWith(RUN);
  at("desk").hidden = run;
  card = run ? null : cards.find(({ id }) => id === name);
  if (run) curves.show(name.slice(RUN.length));
  else curves.stop();
  if (run) return address.write({ model: name });
  at("about").textContent = about(card);
  const able = card.verbs.filter((each) => VERBS[each]);
  at("verbs").replaceChildren(able.length > 1 ? tabs(able) : "");
  at("form").hidden = !able.length;
  take(able.includes(asked.verb) ? asked.verb : able[0], asked.values ?? {});
}

function about({ languages, labels, attends }) {
  const said = [];
  if (languages) said.push(`${called(languages[0])} to ${called(languages[1])}`);
  if (labels.length === 1) said.push("predicts a number");
  if (labels.length > 1) said.push(`${labels.length} labels: ${labels.slice(0, 6).join(", ")}${labels.length > 6 ? " …" : ""}`);
  if (!attends) said.push("no attention heads");
  return said.join(" · ");
}

function tabs(able) {
  return el("fieldset", { className: "tabs" }, el("legend", {}, "what it does"), ...able.map((each) =>
    el("label", {}, el("input", { type: "radio", name: "verb", value: each, onchange: () => { stop(); take(each); } }), el("span", {}, VERBS[each].called))));
}

function take(name, values = {}) {
  verb = name;
  const kept = Object.fromEntries(fields.map((each) => [each.name, each.read()]));
  fields = name ? VERBS[name].fields(card).map(field) : [];
  for (const each of fields) {
    const value = values[each.name] ?? (each.name === "text" ? kept.text : undefined);
    if (value !== undefined) each.write(value);
  }
  at("fields").replaceChildren(...fields.map(({ root }) => root));
  const tab = document.querySelector(`#verbs input[value="${name}"]`);
  if (tab) tab.checked = true;
  at("what").textContent = at("run").textContent = name ? VERBS[name].called : "Nothing to try";
  blank();
  remember();
}

/** Nothing has been asked of this model and verb. */
function blank() {
  at("result").replaceChildren();
  at("state").textContent = "";
  attention.clear(card.attends ? undefined : "This model has no attention heads.");
}

const shared = () => Object.fromEntries(fields.filter(({ take }) => !take).map((each) => [each.name, each.read()]).filter(([, value]) => value !== ""));
const remember = () => address.write({ model: card.id, verb, values: shared() });

// --- what is asked

function stop() {
  asking?.abort();
  asking = null;
  at("stop").hidden = true;
}

async function run() {
  tell("");
  if (fields.some((each) => each.take && each.required && !each.read())) return tell("Choose an image first.");
  if (!at("form").reportValidity()) return;
  stop(); // what is under way, now that there is something to ask instead
  remember();
  const { signal } = (asking = new AbortController()), model = card;
  const values = Object.fromEntries(fields.map((each) => [each.name, each.read()])), result = at("result");
  let shown = false;
  const desk = { // what a verb works with; once it is stopped, nothing more of it is shown
    ask: (path, body) => ask(path, body, signal),
    stream: (path, body) => stream(path, body, signal),
    show: (...nodes) => {
      if (signal.aborted) return;
      shown = true;
      result.replaceChildren(...nodes);
    },
    point: (at) => attention.point(at),
    look: (body, how) => { if (!signal.aborted && model.attends) attention.show({ model: model.id, ...body }, how); },
  };
  at("state").textContent = "Computing …";
  at("stop").hidden = false;
  try {
    await VERBS[verb].run(model, values, desk);
    at("state").textContent = "Done";
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) return login(error.message);
    at("state").textContent = "";
    if (!shown) blank(); // or what was asked before would stand there as if it were the answer; what has been written stays
    tell(inWords(error));
  } finally {
    if (asking?.signal === signal) { // it is over, and what it shows can be used until there is something else
      asking = null;
      at("stop").hidden = true;
    }
  }
}

/** What the service says of a request, in words of the page: its labels are the names of the fields here. */
function inWords({ message, field }) {
  if (!field) return message;
  const [name, at] = field.split("."), named = name === "input" ? (at === "1" ? "other" : fields[0].name) : FIELDS[name] ?? name;
  const label = document.querySelector(`label[for="field-${named}"]`);
  const said = message.slice(message.startsWith(`${field}: `) ? field.length + 2 : 0).replace("cut it with truncate=true", "choose to cut it");
  return `${label ? label.textContent : field}${verb === "translate" && at ? `, line ${Number(at) + 1}` : ""}: ${said}`;
}

// --- the beginning

function login(message) {
  at("login").hidden = false;
  at("desk").hidden = true;
  tell(message);
  at("token").focus();
}

async function start() {
  tell("");
  try {
    const [found, { runs }] = await Promise.all([ask("v1/models"), ask("runs")]);
    cards = found.data;
    at("login").hidden = true;
    options(cards, runs);
    restore();
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    if (error.status === 401) login(sessionStorage.getItem("token") ? "That is not the token." : "");
    else tell(error.message);
  }
  document.documentElement.dataset.ready = "";
}

/** As the address says; what it asks with is asked at once. */
function restore() {
  if (!at("model").options.length) return;
  const { model, verb, values } = address.read();
  choose(model ?? at("model").options[0].value, { verb, values });
  if (card && fields.length && fields.every((each) => !each.take) && Object.keys(values).length && at("form").checkValidity()) run();
}

function colors() {
  const themes = ["system", "light", "dark"], kept = localStorage.getItem("theme");
  const show = (name) => {
    document.documentElement.dataset.theme = name;
    at("theme").textContent = `colors: ${name}`;
    attention.repaint();
  };
  at("theme").addEventListener("click", () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
    localStorage.setItem("theme", next);
    show(next);
  });
  show(themes.includes(kept) ? kept : "system");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => attention.repaint());
}

at("model").addEventListener("change", (event) => choose(event.target.value));
at("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
at("form").addEventListener("chosen", run); // an image
at("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
});
at("stop").addEventListener("click", () => { stop(); at("state").textContent = "Stopped"; });
at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token").value.trim());
  at("token").value = "";
  start();
});
at("link").addEventListener("click", async () => {
  if (card) remember();
  at("link").textContent = (await address.copy()) ? "copied" : "it is in the address bar";
  setTimeout(() => { at("link").textContent = "copy link"; }, 2500);
});
for (const kind of ["dragover", "drop"]) // beside the field, an image would take the place of the page; text is for fields
  addEventListener(kind, (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
addEventListener("paste", (event) => { // the first that is empty, or else the first
  const images = fields.filter((each) => each.take);
  (images.find((each) => !each.read()) ?? images[0])?.take(event.clipboardData.files[0]);
});
addEventListener("hashchange", restore);
addEventListener("resize", () => attention.repaint());
addEventListener("keydown", (event) => { if (event.key === "Escape") attention.release(); });
colors();
start();
