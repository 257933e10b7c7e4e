// The workspaces that one sees.

import { getAll, may, methods, send } from "./api.js";
import { button, fill, h, say, table } from "./dom.js";
import { asked } from "./form.js";
import { many } from "./format.js";
import { Polled } from "./polled.js";

const HEADS = ["Name", "Description", "Owner", "Default pool", "Projects", ""];

export class WorkspacesPage extends Polled {
  constructor(tellLive) {
    super(tellLive);
    document.title = "Workspaces · Rung";
    this.archived = h("input", { type: "checkbox", onchange: () => this.reload() });
    this.create = button("New workspace", () => this.#create(), "primary", { hidden: true });
    this.none = h("p", { class: "empty", hidden: true });
    const { rows, element } = table("Workspaces", HEADS);
    this.rows = rows;
    this.body.append(
      h(
        "div",
        { class: "headline" },
        h("h1", {}, "Workspaces"),
        h("span", { class: "spring" }),
        h("label", { class: "check" }, this.archived, "archived ones, too"),
        this.create,
      ),
      h("div", { class: "panel" }, element, this.none),
    );
  }

  async load(signal) {
    const only = this.archived.checked ? {} : { archived: false };
    const [workspaces, projects] = await Promise.all([
      getAll("/workspaces", only, signal),
      getAll("/projects", { archived: false }, signal),
      methods(),
    ]);
    const counts = new Map();
    for (const { workspace_id: id } of projects) counts.set(id, (counts.get(id) ?? 0) + 1);
    const named = workspaces.sort((a, b) => a.name.localeCompare(b.name));
    fill(this.rows, named.map((it) => ({ ...it, projects: counts.get(it.id) ?? 0 })), row);
    this.create.hidden = !may("workspace.create");
    this.none.hidden = named.length > 0;
    say(this.none, "You are a member of no workspace. The administrators of one can add you.");
  }

  async #create() {
    const made = await asked({ title: "New workspace", fields: fieldsOf({}), action: "Create" }, (values) =>
      send("/workspaces", wantedOf(values)),
    );
    if (made) location.hash = placeOf(made.id);
  }
}

/** Returns the address of a workspace's view. */
export const placeOf = (id) => `#/workspaces/${encodeURIComponent(id)}`;

/** Returns the address of the experiments in a workspace, or in one of its projects. */
export function experimentsOf(workspaceId, projectId) {
  const terms = [`workspace:${workspaceId}`, projectId && `project:${projectId}`].filter(Boolean);
  return `#/?filter=${encodeURIComponent(terms.join(" "))}`;
}

/** Returns the fields of a form for a workspace. */
export function fieldsOf(it, people) {
  return [
    { name: "name", label: "Name", value: it.name, required: true, maxlength: 100 },
    { name: "description", label: "Description", type: "textarea", value: it.description, rows: 2 },
    {
      name: "owner",
      label: "Owner",
      value: it.owner,
      suggestions: people,
      required: Boolean(it.id),
      hint: it.id ? "a user, who may everything in it" : "a user, who may everything in it; empty: you",
    },
    { name: "default_pool", label: "Default pool", value: it.default_pool, hint: "of experiments that name none" },
    { name: "storage", label: "Storage", value: it.storage, hint: "part of the object store for checkpoints of later experiments, such as vision; empty: none" },
  ];
}

/** Returns what the API takes of such a form. */
export const wantedOf = ({ owner, ...values }) => ({ ...values, owner: owner.trim() || null });

function row(it) {
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      h("a", { href: placeOf(it.id) }, it.name),
      it.archived ? h("span", { class: "badge" }, "archived") : null,
    ),
    h("td", { class: "words" }, it.description),
    h("td", {}, it.owner),
    h("td", {}, it.default_pool),
    h("td", {}, many(it.projects, "project")),
    h(
      "td",
      { class: "acts" },
      h("a", { href: experimentsOf(it.id), "aria-label": `Experiments of ${it.name}` }, "Experiments"),
    ),
  );
}
