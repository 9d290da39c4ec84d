// Where the heads look, beside the result. `Panel`, `place`, `readColors` and `inflate` are those of `manyheads attend`,
// plain scripts that are loaded before.

import { ask } from "./service.js";

/** One view. What is asked for while an answer is awaited waits, and only the last of it: a stream is never behind. */
export class Attention {
  constructor(room, note) {
    Object.assign(this, { room, note, panel: null, running: null, waiting: null });
  }

  /** Forget what was shown; what is under way is not shown any more. */
  clear(hint = "Attention weights appear here.") {
    this.abort?.abort();
    Object.assign(this, { panel: null, running: null, waiting: null });
    this.note.hidden = true;
    this.room.replaceChildren(el("p", { className: "hint" }, hint));
  }

  /** Show an input of a model. `live`: it still grows, and the view is at its last token. Then `told(answer)` or `refused()`. */
  show(body, { live = false, told = () => {}, refused = () => {} } = {}) {
    this.waiting = { body, live, told, refused };
    this.running ??= this.work();
    return this.running;
  }

  async work() {
    const { signal } = (this.abort = new AbortController());
    while (this.waiting && !signal.aborted) {
      const { body, live, told, refused } = this.waiting;
      this.waiting = null;
      try {
        const answer = await ask("attend", body, signal);
        const { panel } = answer;
        place(panel, await inflate(panel.maps));
        if (signal.aborted) return;
        this.draw(panel, live);
        this.note.hidden = true;
        told(answer);
      } catch (error) {
        if (signal.aborted) return;
        this.note.textContent = `The attention weights cannot be shown: ${error.message.replace(/^text: (the text )?/, "the text ").replace(/, or cut it with \S+$/, "")}`;
        this.note.hidden = false;
        if (!(live && this.panel && body.text.startsWith(this.panel.data.title))) { // what is there is of another text
          this.panel = null;
          this.room.replaceChildren();
        }
        if (live && this.waiting?.live) this.waiting = null; // the same text, longer
        refused();
      }
    }
    if (!signal.aborted) this.running = null;
  }

  /** The same choice as before, of axis, heads and view, and the same focus of the keyboard, as far as it is there. */
  draw(data, live) {
    readColors();
    const old = this.panel?.state, panel = new Panel(data, 0, () => {});
    const active = this.room.contains(document.activeElement) ? document.activeElement.dataset.at : null;
    if (old && data.axes[old.axis]) {
      const { axis, picked, view, words, special } = old;
      panel.choose({ axis });
      panel.choose({ picked, view, words, special });
    }
    this.panel = panel;
    this.room.replaceChildren(panel.root);
    if (live && !panel.pictured) {
      const last = panel.units[0].length - 1;
      panel.choose({ starts: panel.startsAt(last), focus: { q: last, k: null } });
    }
    if (active) panel.root.querySelector(`[data-at="${active}"]`)?.focus({ preventScroll: true });
    panel.paint(); // it knows its size only now
  }

  /** After a change of size or colors. */
  repaint() {
    if (!this.panel) return;
    readColors();
    this.panel.root.querySelectorAll("canvas").forEach((canvas) => { canvas.done = false; });
    this.panel.paint();
  }

  /** Hold the query number `at`. */
  point(at) {
    if (!this.panel) return;
    this.panel.state.held = true;
    this.panel.focus({ q: at, k: null });
    this.panel.paint();
  }

  release() { this.panel?.release(); }
}
