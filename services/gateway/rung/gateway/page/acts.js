// Who asked for what of an experiment.

import { getAll } from "./api.js";
import { h, keyed, paced, say } from "./dom.js";
import { moment } from "./format.js";

const HEADS = ["Time", "Who", "Did"];
/** Shown where the record names no actor, as those of earlier releases. */
const NOBODY = "somebody";

export class ActsTab {
  constructor(page) {
    this.page = page;
    this.rows = h("tbody", {});
    this.note = h("p", { class: "empty" }, "Loading…");
    const heads = HEADS.map((text) => h("th", { scope: "col" }, text));
    this.element = h(
      "section",
      { class: "panel acts" },
      h("div", { class: "controls" }, h("h2", {}, "Who did what")),
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), this.rows)),
      this.note,
    );
    this.reload = paced(() => this.#load(), 1000);
  }

  enter(signal) {
    this.signal = signal;
    this.reload();
  }

  update(experiment) {
    this.id = experiment.id;
    this.reload();
  }

  async #load() {
    if (!this.id || !this.signal || this.signal.aborted) return;
    try {
      const items = await getAll("/log", { experiment: this.id }, this.signal);
      keyed(this.rows, items, ({ id }) => id, row);
      this.note.hidden = items.length > 0;
      say(this.note, "Nobody asked for anything yet.");
    } catch (error) {
      if (this.signal.aborted) return;
      this.note.hidden = false;
      say(this.note, error.message);
    }
  }
}

function row(act) {
  const who = h("td", {}, act.actor_name ?? act.actor ?? NOBODY);
  if (act.on_behalf_of) who.append(` (for ${act.on_behalf_of_name ?? act.on_behalf_of})`);
  const element = h("tr", {}, h("td", {}, moment(act.at)), who, h("td", {}, act.did));
  element.show = () => {};
  return element;
}
