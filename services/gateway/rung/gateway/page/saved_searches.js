// Saved searches in the head of the list: open one, save the filter that is shown, remove one.

import { getAll, post, send } from "./api.js";
import { attempted, button, confirmed, h } from "./dom.js";
import { asked } from "./form.js";

export class SavedSearches {
  /** `present` returns the filter that is shown; `open` is called with one to show. */
  constructor(present, open) {
    this.present = present;
    this.open = open;
    this.items = [];
    this.select = h("select", { "aria-label": "Saved searches", onchange: () => this.#chosen() });
    this.save = button("Save", () => this.#save(), "", { title: "Save this search under a name" });
    this.remove = button("Remove", () => this.#remove(), "", { hidden: true, title: "Remove this saved search" });
    this.elements = [this.select, this.save, this.remove];
    this.#fill();
  }

  /** Reads which ones there are, once. */
  async start(signal) {
    if (!this.loaded) await this.#load(signal);
  }

  async #load(signal) {
    try {
      this.items = await getAll("/searches", {}, signal);
      this.loaded = true;
    } catch {
      return; // read at the next start
    }
    this.items.sort((a, b) => a.name.localeCompare(b.name));
    this.#fill();
    this.show();
  }

  /** Shows whether the present filter is a saved one. */
  show() {
    const filter = this.present();
    const chosen = this.items.find(({ id }) => id === this.select.value);
    const found = chosen?.query === filter ? chosen : this.items.find(({ query }) => query === filter);
    this.select.value = found?.id ?? "";
    this.save.hidden = !filter || Boolean(found);
    this.remove.hidden = !found?.editable;
  }

  #fill() {
    const { value } = this.select;
    this.select.replaceChildren(
      h("option", { value: "" }, "Saved searches"),
      ...this.items.map(({ id, name, workspace }) =>
        h("option", { value: id }, workspace === null ? name : `${name} (in ${workspace})`),
      ),
    );
    this.select.hidden = !this.items.length;
    this.select.value = value;
  }

  #chosen() {
    const found = this.items.find(({ id }) => id === this.select.value);
    this.open(found?.query ?? "");
  }

  async #save() {
    const query = this.present();
    const places = (await getAll("/workspaces", { archived: false }).catch(() => [])).filter((it) =>
      it.permissions.includes("search.edit"),
    );
    const fields = [
      { name: "name", label: "Name", required: true, maxlength: 100, hint: "one of this name is replaced" },
      {
        name: "workspace",
        label: "For",
        options: [["", "you alone"], ...places.map(({ id, name }) => [id, `all who see workspace ${name}`])],
      },
    ];
    const form = { title: "Save this search", text: query, fields, action: "Save" };
    const saved = await asked(form, ({ name, workspace }) =>
      send("/searches", { name, query, workspace: workspace || null }),
    );
    if (saved) await this.#load();
  }

  async #remove() {
    const found = this.items.find(({ id }) => id === this.select.value);
    const whose = found.workspace === null ? "" : ` All who see workspace ${found.workspace} lose it.`;
    if (!(await confirmed(`Remove ${found.name}?`, `The search alone is removed.${whose}`, "Remove"))) return;
    const path = `/searches/${encodeURIComponent(found.id)}/delete`;
    await attempted(() => post(path, found.version), `${found.name} is removed.`);
    await this.#load();
  }
}
