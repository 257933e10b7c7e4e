// Policies and templates of a workspace: documents in YAML, which the server checks when they are set.

import { getAll, post, send } from "./api.js";
import { attempted, button, confirmed, fill, h, panel, table } from "./dom.js";
import { asked } from "./form.js";
import { moment } from "./format.js";

const KINDS = [
  ["defaults", "defaults: what a file leaves open"],
  ["constraints", "constraints: what a file may not exceed"],
  ["invariants", "invariants: what holds whatever a file says"],
];
const HINTS = {
  policy: "YAML: a part of an experiment file; of constraints, FIELD: {at_most: N}, {at_least: N} or {one_of: […]}",
  template: "YAML: a part of an experiment file",
};
const KEPT = "Experiments that were submitted with it stay as they are.";

/** A part of a workspace's view that lists documents of one kind. */
class DocumentsPanel {
  constructor(word, title, heads, changed) {
    this.word = word;
    this.changed = changed;
    this.add = button(`New ${word}`, () => this.#create());
    this.list = table(title, [...heads, "Changed", "Document", ""]);
    this.none = h("p", { class: "empty" }, `No ${title.toLowerCase()}.`);
    this.element = panel(title, this.add, this.list.element, this.none);
  }

  async load(workspace, signal) {
    const may = (permission) => workspace.permissions.includes(permission);
    this.workspace = workspace;
    this.element.hidden = !may(`${this.word}.view`);
    if (this.element.hidden) return;
    const items = await this.found(signal);
    const editable = may(`${this.word}.edit`) && !workspace.archived;
    this.add.hidden = !editable;
    fill(this.list.rows, items.map((it) => ({ ...it, editable: editable && this.owns(it) })), (it) => this.#row(it));
    this.none.hidden = items.length > 0;
  }

  #row(it) {
    const { word } = this;
    const acts = it.editable
      ? [
          button("Edit", () => this.#edit(it), "small", { "aria-label": `Edit ${word} ${it.name}` }),
          button("Remove", () => this.#remove(it), "small danger", { "aria-label": `Remove ${word} ${it.name}` }),
        ]
      : [];
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, it.name),
      this.cells(it).map((text) => h("td", {}, text)),
      h("td", {}, moment(it.changed_at)),
      h("td", { class: "document" }, h("details", {}, h("summary", {}, summaryOf(it.document)), h("pre", {}, it.document))),
      h("td", { class: "acts" }, acts),
    );
  }

  async #create() {
    const fields = [
      { name: "name", label: "Name", required: true, maxlength: 100 },
      ...(await this.choices()),
      this.#document(""),
    ];
    const form = { title: `New ${this.word}`, fields, action: "Create" };
    if (await asked(form, (values) => checked(() => this.make(values)))) this.changed();
  }

  async #edit(it) {
    const form = { title: `Edit ${this.word} ${it.name}`, fields: [this.#document(it.document)], action: "Save" };
    if (await asked(form, (values) => checked(() => this.save(it, values)))) this.changed();
  }

  async #remove(it) {
    if (!(await confirmed(`Remove ${this.word} ${it.name}?`, KEPT, "Remove"))) return;
    await attempted(() => post(`${this.pathOf(it)}/delete`, it.version), `${it.name} is removed.`);
    this.changed();
  }

  #document(value) {
    const code = { class: "code", rows: 12, spellcheck: "false", wrap: "off", required: true };
    return { name: "document", label: "Document", type: "textarea", value, hint: HINTS[this.word], ...code };
  }
}

/** Lists the policies that hold in a workspace; its own and those of its projects can be changed. */
export class PoliciesPanel extends DocumentsPanel {
  constructor(changed) {
    super("policy", "Policies", ["Name", "Kind", "Of"], changed);
  }

  owns = (it) => it.workspace_id === this.workspace.id;
  cells = (it) => [it.kind, it.scope];
  pathOf = (it) => `/policies/${encodeURIComponent(it.id)}`;

  async found(signal) {
    const items = await getAll("/policies", {}, signal);
    const held = items.filter((it) => it.workspace_id === null || this.owns(it));
    return held.sort((a, b) => this.owns(b) - this.owns(a) || a.scope.localeCompare(b.scope) || a.name.localeCompare(b.name));
  }

  async choices() {
    const projects = await getAll("/projects", { workspace: this.workspace.id }).catch(() => []);
    const places = projects.map(({ id, name }) => [id, `project ${name}`]);
    return [
      { name: "kind", label: "Kind", options: KINDS },
      { name: "place", label: "Of", options: [["", `workspace ${this.workspace.name}`], ...places] },
    ];
  }

  make = ({ place, ...values }) =>
    send("/policies", { ...values, ...(place ? { project: place } : { workspace: this.workspace.id }) }, null);

  save({ name, kind, project_id: project, version }, { document }) {
    const place = project ? { project } : { workspace: this.workspace.id };
    return send("/policies", { name, kind, document, ...place }, version);
  }
}

/** Lists the templates of a workspace. */
export class TemplatesPanel extends DocumentsPanel {
  constructor(changed) {
    super("template", "Templates", ["Name"], changed);
  }

  owns = () => true;
  cells = () => [];
  choices = () => [];
  pathOf = (it) => `${this.#path()}/${encodeURIComponent(it.id)}`;
  make = (values) => send(this.#path(), values, null);
  save = ({ name, version }, { document }) => send(this.#path(), { name, document }, version);

  async found(signal) {
    const items = await getAll(this.#path(), {}, signal);
    return items.sort((a, b) => a.name.localeCompare(b.name));
  }

  #path() {
    return `/workspaces/${encodeURIComponent(this.workspace.id)}/templates`;
  }
}

/** Does something; where the server refuses a document, says what is wrong in which line of it. */
async function checked(work) {
  try {
    return await work();
  } catch (error) {
    const lines = (error.errors ?? []).map(({ path, line, message }) => {
      const place = [path, line && `line ${line}`].filter(Boolean).join(", ");
      return place ? `${place}: ${message}` : message;
    });
    throw lines.length > 0 ? new Error(lines.join("\n")) : error;
  }
}

/** Returns the beginning of a document. */
function summaryOf(text) {
  const lines = text.trim().split("\n");
  return lines.length > 1 ? `${lines[0]} …` : lines[0];
}
