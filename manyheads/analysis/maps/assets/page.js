// The page: its panels, which keep in step, and its colors.

async function start() {
  const data = JSON.parse(document.getElementById("data").textContent), room = document.getElementById("panels");
  for (const panel of data.panels) {
    place(panel, await inflate(panel.maps));
    if (panel.calculations) placeCalculations(panel, await inflate(panel.calculations));
  }
  readColors();
  const embedded = parent !== window;
  const together = document.querySelector("#together input"), panels = [];
  let following = false, begun = false; // the address stays as it is until the reader chooses
  const changed = (source, change) => { // the other panels follow, as far as they have the same
    if (begun && !embedded && source === panels[0] && ["axis", "picked", "view"].some((name) => name in change)) history.replaceState(null, "", source.link);
    if (following || !together.checked) return;
    following = true;
    for (const panel of panels) {
      if (panel === source) continue;
      if ("step" in change) {
        const step = change.step === null ? null : panel.partner(source, 0, change.step);
        if (panel.stepping && step !== -1) panel.take(step);
      } else if ("focus" in change) {
        const same = ["q", "k"].map((name, side) => {
          const at = change.focus[name] === null ? null : panel.partner(source, side, change.focus[name]);
          return at !== -1 ? at : panel.pictured ? panel.state.focus[name] : null; // over an image one patch always looks
        });
        panel.focus({ q: same[0], k: same[1] });
      } else {
        const asked = {}, at = panel.data.axes.findIndex((each) => each.name === source.axis.name);
        if ("axis" in change && at >= 0) asked.axis = at;
        for (const name of ["view", "words", "special"]) if (name in change) asked[name] = source.state[name];
        const picked = source.picked.map((each) => panel.counterpart(source, each, panel.data.axes[asked.axis ?? panel.state.axis])).filter(Boolean);
        if (("axis" in change || "picked" in change) && picked.length) asked.picked = new Set(picked);
        if (Object.keys(asked).length) panel.choose(asked);
      }
    }
    following = false;
  };
  const heats = data.findings.map((each) => new Heat(each));
  data.panels.forEach((each, number) => panels.push(new Panel(each, number, changed)));
  const followLink = () => panels[0].open(Object.fromEntries(new URLSearchParams(location.hash.slice(1))), true);
  if (panels.length) {
    followLink();
    changed(panels[0], { axis: 0, picked: 0, view: 0 }); // they begin with the same head
  }
  begun = true;
  room.className = panels.length > 1 ? "beside" : "";
  room.replaceChildren(...panels.map((panel) => panel.root));
  room.before(...heats.map((heat) => heat.root));
  document.getElementById("together").hidden = panels.length < 2;
  const repaint = () => { heats.forEach((heat) => heat.paint()); for (const panel of panels) { panel.root.querySelectorAll("canvas").forEach((canvas) => { canvas.done = false; }); panel.paint(); } };
  addEventListener("resize", () => panels.forEach((panel) => panel.paint()));
  addEventListener("keydown", (event) => { if (event.key === "Escape") panels.forEach((panel) => panel.release()); });
  startColors(repaint);
  if (!embedded && panels.length) addEventListener("hashchange", followLink);
  document.documentElement.dataset.ready = "";
}

start().catch((error) => { document.getElementById("panels").textContent = `The page cannot be shown: ${error.message}`; });
