// Models: those of a workspace, and one of them with its versions.

import { get, getAll, post, send } from "./api.js";
import { attempted, button, confirmed, fill, h, panel, say, table } from "./dom.js";
import { asked } from "./form.js";
import { many, moment } from "./format.js";
import { Polled } from "./polled.js";

const LABELS_HINT = "separated by commas";

/** The part of a workspace's view that lists its models. */
export class ModelsPanel {
  /** `changed` is called after a change, to load again. */
  constructor(changed) {
    this.changed = changed;
    this.add = button("New model", () => this.#create());
    this.list = table("Models", ["Name", "Description", "Labels", "Versions"]);
    this.none = h("p", { class: "empty" }, "No models.");
    this.element = panel("Models", this.add, this.list.element, this.none);
  }

  async load(workspace, signal) {
    const may = (permission) => workspace.permissions.includes(permission);
    this.workspace = workspace;
    this.element.hidden = !may("model.view");
    if (this.element.hidden) return;
    const items = await getAll("/models", { workspace: workspace.id }, signal);
    items.sort((a, b) => a.archived - b.archived || a.name.localeCompare(b.name));
    fill(this.list.rows, items, modelRow);
    this.none.hidden = items.length > 0;
    this.add.hidden = !may("model.edit") || workspace.archived;
  }

  async #create() {
    const form = { title: "New model", fields: modelFields({}), action: "Create" };
    const wanted = (values) => ({ ...modelOf(values), workspace: this.workspace.id });
    if (await asked(form, (values) => send("/models", wanted(values)))) this.changed();
  }
}

/** One model, with its versions. */
export class ModelPage extends Polled {
  constructor(id, tellLive) {
    super(tellLive);
    this.path = `/models/${encodeURIComponent(id)}`;
    this.name = h("h1", {});
    this.badge = h("span", { class: "badge" }, "archived");
    this.about = h("p", { class: "about" });
    this.words = h("p", { class: "words" });
    this.edit = button("Edit", () => this.#edit(), "");
    this.archive = button("", () => this.#archive(), "");
    this.remove = button("Delete", () => this.#remove(), "danger");
    this.acts = h("div", { class: "buttons" }, this.edit, this.archive, this.remove);
    this.add = button("Register a checkpoint", () => this.#register());
    this.list = table("Versions", ["Version", "Name", "Checkpoint", "Notes", "Labels", "Registered", ""]);
    this.none = h("p", { class: "empty" }, "No versions.");
    this.body.append(
      h(
        "header",
        { class: "head" },
        h("div", { class: "headline" }, this.name, this.badge, h("span", { class: "spring" }), this.acts),
        this.about,
        this.words,
      ),
      panel("Versions", this.add, this.list.element, this.none),
    );
  }

  async load(signal) {
    const [model, versions] = await Promise.all([
      get(this.path, null, signal),
      getAll(`${this.path}/versions`, {}, signal),
    ]);
    const { permissions } = await get(`/workspaces/${encodeURIComponent(model.workspace_id)}`, null, signal);
    const editable = permissions.includes("model.edit");
    this.model = model;
    document.title = `${model.name} · Rung`;
    say(this.name, model.name);
    this.badge.hidden = !model.archived;
    const place = h("a", { href: `#/workspaces/${encodeURIComponent(model.workspace_id)}` }, model.workspace);
    const labels = model.labels.length ? ` · ${model.labels.join(", ")}` : "";
    this.about.replaceChildren("workspace ", place, ` · ${model.id}`, labels);
    say(this.words, model.description);
    this.words.hidden = !model.description;
    this.acts.hidden = !editable;
    this.edit.disabled = model.archived;
    say(this.archive, model.archived ? "Open again" : "Archive");
    this.add.hidden = !editable || model.archived;
    fill(this.list.rows, versions.map((it) => ({ ...it, editable })), (it) => this.#row(it));
    this.none.hidden = versions.length > 0;
  }

  #row(it) {
    const href = `#/x/${encodeURIComponent(it.experiment_id)}`;
    const remove = it.editable
      ? button("Delete", () => this.#removeVersion(it), "small danger", { "aria-label": `Delete version ${it.number}` })
      : null;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, it.number),
      h("td", {}, it.name),
      h("td", {}, h("a", { href, title: `experiment ${it.experiment_id}` }, it.checkpoint_id)),
      h("td", { class: "words" }, it.notes),
      h("td", {}, it.labels.join(", ")),
      h("td", {}, moment(it.created_at)),
      h("td", { class: "acts" }, remove),
    );
  }

  async #register() {
    const fields = [
      { name: "checkpoint", label: "Checkpoint", required: true, hint: "its id, as `rung checkpoints` lists it" },
      { name: "name", label: "Name", maxlength: 100 },
      { name: "notes", label: "Notes", type: "textarea", rows: 3 },
      { name: "labels", label: "Labels", hint: LABELS_HINT },
    ];
    const form = { title: `Register a version of ${this.model.name}`, fields, action: "Register" };
    const wanted = (values) => ({ ...values, labels: listOf(values.labels) });
    if (await asked(form, (values) => send(`${this.path}/versions`, wanted(values)))) this.reload();
  }

  async #edit() {
    const { model } = this;
    const form = { title: `Edit model ${model.name}`, fields: modelFields(model), action: "Save" };
    if (await asked(form, (values) => send(this.path, modelOf(values), model.version))) this.reload();
  }

  async #archive() {
    const { name, archived, version } = this.model;
    const act = archived ? "unarchive" : "archive";
    await attempted(() => post(`${this.path}/${act}`, version), `${name} is ${archived ? "open again" : "archived"}.`);
    this.reload();
  }

  async #remove() {
    const { name, version, version_count: count, workspace_id: place } = this.model;
    const text = `Its ${many(count, "version")} end with it. Checkpoints stay, and may be deleted from then on.`;
    if (!(await confirmed(`Delete model ${name}?`, text, "Delete"))) return;
    if (!(await attempted(() => post(`${this.path}/delete`, version), `${name} is deleted.`))) return;
    location.hash = `#/workspaces/${encodeURIComponent(place)}`;
  }

  async #removeVersion(it) {
    const text = "Its checkpoint stays, and may be deleted from then on. The number is never used again.";
    if (!(await confirmed(`Delete version ${it.number} of ${this.model.name}?`, text, "Delete"))) return;
    const path = `${this.path}/versions/${it.number}/delete`;
    await attempted(() => post(path, it.version), `Version ${it.number} is deleted.`);
    this.reload();
  }
}

function modelRow(it) {
  const href = `#/models/${encodeURIComponent(it.id)}`;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href }, it.name), it.archived ? h("span", { class: "badge" }, "archived") : null),
    h("td", { class: "words" }, it.description),
    h("td", {}, it.labels.join(", ")),
    h("td", {}, it.version_count ? `${it.version_count}, the newest ${it.newest}` : "none"),
  );
}

function modelFields(it) {
  return [
    { name: "name", label: "Name", value: it.name, required: true, maxlength: 100 },
    { name: "description", label: "Description", type: "textarea", value: it.description, rows: 3 },
    { name: "labels", label: "Labels", value: (it.labels ?? []).join(", "), hint: LABELS_HINT },
  ];
}

const modelOf = (values) => ({ ...values, labels: listOf(values.labels) });
const listOf = (text) => [...new Set(text.split(",").map((it) => it.trim()).filter(Boolean))];
