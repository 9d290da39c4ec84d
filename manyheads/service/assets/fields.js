// What a verb is asked with. `el` is of views.js, the scripts of `manyheads attend`, which are loaded before.

const LARGEST = 2.9 * 2 ** 20; // bytes of an image: in base64 it is a third more, and a request has bounds

/** One field: `kind` is "text" of several lines, "line", "number", "check" or "image". `read()` gives its value, "" for none; only
 * an image's has `take(file)`. */
export function field({ name, label, kind = "text", value = "", rows = 3, required = false, help, insert, ...bounds }) {
  const id = `field-${name}`;
  if (kind === "image") return imageField(id, name, label, required);
  if (kind === "check") return checkField(id, name, label);
  const input = kind === "text" ? el("textarea", { id, rows, required, spellcheck: false })
    : el("input", { id, type: kind === "number" ? "number" : "text", required, autocomplete: "off", ...bounds });
  input.value = value;
  const put = insert && el("button", { type: "button", className: "quiet", onclick: () => {
    input.setRangeText(insert, input.selectionStart, input.selectionEnd, "end");
    input.focus();
  } }, `insert ${insert}`);
  const root = el("div", { className: `field of-${kind}` },
    el("label", { htmlFor: id }, label), input, put, help ? el("p", { className: "hint" }, help) : null);
  const read = () => (kind === "number" && input.value !== "" ? input.valueAsNumber : input.value);
  return { name, root, read, write: (text) => { input.value = text; } };
}

function checkField(id, name, label) {
  const input = el("input", { id, type: "checkbox" });
  const root = el("div", { className: "field" }, el("label", { className: "check" }, input, label));
  return { name, root, read: () => (input.checked ? "yes" : ""), write: (value) => { input.checked = value === "yes"; } };
}

function imageField(id, name, label, required) {
  const input = el("input", { id, type: "file", accept: "image/*" });
  const preview = el("img", { alt: "the chosen image", hidden: true }), said = el("span", { className: "hint" }, "or drop one here, or paste it");
  const root = el("div", { className: "field of-image" }, el("label", { htmlFor: id }, label), preview, input, said);
  let chosen = "";
  const take = async (file) => {
    if (!file) return;
    if (file.size > LARGEST) {
      said.textContent = `${file.name} is larger than 2.9 MB: choose a smaller image`;
      return;
    }
    const url = await dataUrl(file);
    chosen = url.slice(url.indexOf(",") + 1);
    Object.assign(preview, { src: url, hidden: false });
    said.textContent = file.name;
    root.dispatchEvent(new Event("chosen", { bubbles: true }));
  };
  input.addEventListener("change", () => take(input.files[0]));
  for (const kind of ["dragenter", "dragover"])
    root.addEventListener(kind, (event) => { event.preventDefault(); root.classList.add("over"); });
  for (const kind of ["dragleave", "drop"]) root.addEventListener(kind, () => root.classList.remove("over"));
  root.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
  return { name, root, read: () => chosen, write: () => {}, take, required };
}

const dataUrl = (file) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(file);
});
