// Changes the experiments that are chosen in the list, each by itself.

import { send } from "./api.js";
import { confirmed, h, say, toast } from "./dom.js";
import { many } from "./format.js";

const TOLD = 3; // reasons of refusals that are shown
const AT_ONCE = 1000;
const VERBS = [
  { name: "Pause", done: "asked to pause", wanted: () => ({ action: "pause" }) },
  { name: "Archive", done: "archived", wanted: () => ({ action: "describe", description: { archived: true } }) },
  { name: "Unarchive", done: "in lists again", wanted: () => ({ action: "describe", description: { archived: false } }) },
  { name: "Add label", done: "labelled", wanted: (label) => ({ action: "describe", description: { add_labels: [label] } }) },
  { name: "Delete", done: "deleted", wanted: () => ({ action: "delete" }) },
];
const LOSS = " Their checkpoints, metrics and log lines go, for good once they cannot be restored any more; the record of what happened stays.";

export class Bulk {
  /** `changed` is called after each change. */
  constructor(changed) {
    this.changed = changed;
    this.chosen = new Set();
    this.boxes = new Map();
    this.count = h("strong", {});
    this.label = h("input", { placeholder: "label", "aria-label": "Label to add", maxlength: "500", size: "12" });
    this.buttons = VERBS.map((verb) => {
      const looks = verb.name === "Delete" ? "small danger" : "small";
      return h("button", { type: "button", class: looks, onclick: () => this.#change(verb) }, verb.name);
    });
    const place = VERBS.findIndex(({ name }) => name === "Add label");
    const parts = [...this.buttons.slice(0, place), this.label, ...this.buttons.slice(place)];
    const named = { class: "buttons bulk", role: "group", "aria-label": "Chosen experiments", hidden: true };
    this.element = h("div", named, this.count, parts);
    this.all = h("input", { type: "checkbox", "aria-label": "Choose all that are shown", onchange: () => this.#chooseAll() });
  }

  /** Returns the checkbox of an experiment. */
  box(id, name) {
    const box = h("input", { type: "checkbox", "aria-label": `Choose ${name}`, checked: this.chosen.has(id) });
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.add(id);
      else this.chosen.delete(id);
      this.#show();
    });
    this.boxes.set(id, box);
    return box;
  }

  /** Forgets those that are no longer shown: nothing is changed that is not seen. */
  keep(ids) {
    for (const id of this.boxes.keys()) {
      if (ids.has(id)) continue;
      this.boxes.delete(id);
      this.chosen.delete(id);
    }
    this.#show();
  }

  #chooseAll() {
    for (const [id, box] of this.boxes) {
      box.checked = this.all.checked;
      if (box.checked) this.chosen.add(id);
    }
    if (!this.all.checked) this.chosen.clear();
    this.#show();
  }

  #show() {
    const count = this.chosen.size;
    say(this.count, `${many(count, "experiment")} chosen`);
    this.element.hidden = !count;
    this.all.checked = count > 0 && count === this.boxes.size;
    this.all.indeterminate = count > 0 && count < this.boxes.size;
  }

  async #change(verb) {
    const ids = [...this.chosen].slice(0, AT_ONCE);
    const label = this.label.value.trim();
    const labels = verb.name === "Add label";
    if (labels && !label) {
      this.label.focus();
      return;
    }
    const deletes = verb.name === "Delete";
    const title = `${verb.name}${labels ? ` ${label}` : ""}: ${many(ids.length, "experiment")}?`;
    const text = `${many(ids.length, "experiment")} will be ${verb.done}.${deletes ? LOSS : ""}`;
    if ((ids.length > 1 || deletes) && !(await confirmed(title, text, verb.name))) return;
    this.buttons.forEach((button) => (button.disabled = true));
    try {
      const answer = await send("/experiments:batch", { ...verb.wanted(label), ids });
      if (answer.done) toast(`${many(answer.done, "experiment")} ${verb.done}.`);
      const refused = answer.items.filter(({ outcome }) => outcome !== "done");
      for (const { reason } of refused.slice(0, TOLD)) toast(reason, "error");
      if (refused.length > TOLD) toast(`${refused.length - TOLD} more were refused.`, "error");
      for (const { experiment_id: id, outcome } of answer.items) {
        if (outcome !== "done") continue;
        this.chosen.delete(id);
        const box = this.boxes.get(id);
        if (box) box.checked = false;
      }
      if (labels) this.label.value = "";
    } catch (error) {
      toast(error.message, "error");
    }
    this.buttons.forEach((button) => (button.disabled = false));
    this.#show();
    this.changed();
  }
}
