// One workspace: its projects, who has which role in it, its policies, templates, models and webhooks.

import { get, getAll, post, send } from "./api.js";
import { attempted, button, confirmed, fill, h, panel, say, table } from "./dom.js";
import { PoliciesPanel, TemplatesPanel } from "./documents.js";
import { asked } from "./form.js";
import { moment } from "./format.js";
import { ModelsPanel } from "./models.js";
import { Polled } from "./polled.js";
import { WebhooksPanel } from "./webhooks.js";
import { experimentsOf, fieldsOf, wantedOf } from "./workspaces.js";

const CLOSED = "Nothing new can be submitted there until it is opened again. What runs goes on; nothing is deleted.";

export class WorkspacePage extends Polled {
  constructor(id, tellLive) {
    super(tellLive);
    this.path = `/workspaces/${encodeURIComponent(id)}`;
    this.name = h("h1", {});
    this.badge = h("span", { class: "badge" }, "archived");
    this.about = h("p", { class: "about" });
    this.words = h("p", { class: "words" });
    this.experiments = h("a", {}, "Experiments");
    this.edit = button("Edit", () => this.#edit(), "");
    this.archive = button("", () => this.#archive(), "");
    this.add = button("New project", () => this.#addProject());
    this.give = button("Add a member", () => this.#addMember());
    this.projects = table("Projects", ["Name", "Description", "", ""]);
    this.noProjects = h("p", { class: "empty" }, "No projects.");
    this.members = table("Members", ["Who", "Role", "Since", ""]);
    const changed = () => this.reload();
    const kinds = [PoliciesPanel, TemplatesPanel, ModelsPanel, WebhooksPanel];
    this.panels = kinds.map((Panel) => new Panel(changed));
    this.unseen = h("p", { class: "hint" }, "Who else is a member is shown to those with the permission role.view.");
    this.body.append(
      h(
        "header",
        { class: "head" },
        h(
          "div",
          { class: "headline" },
          this.name,
          this.badge,
          h("span", { class: "spring" }),
          h("div", { class: "buttons" }, this.experiments, this.edit, this.archive),
        ),
        this.about,
        this.words,
      ),
      panel("Projects", this.add, this.projects.element, this.noProjects),
      panel("Members", this.give, this.members.element, this.unseen),
      ...this.panels.map(({ element }) => element),
    );
  }

  async load(signal) {
    const workspace = await get(this.path, null, signal);
    const may = (permission) => workspace.permissions.includes(permission);
    const [projects, assignments] = await Promise.all([
      getAll("/projects", { workspace: workspace.id }, signal),
      may("role.view") ? getAll("/assignments", { workspace: workspace.id }, signal) : [],
      ...this.panels.map((it) => it.load(workspace, signal)),
    ]);
    this.workspace = workspace;
    this.path = `/workspaces/${encodeURIComponent(workspace.id)}`; // which stays when it is renamed
    this.#showHead(may);
    const named = projects.sort((a, b) => a.archived - b.archived || a.name.localeCompare(b.name));
    const editable = may("project.edit");
    fill(this.projects.rows, named.map((it) => ({ ...it, editable })), (it) => this.#projectRow(it));
    this.add.hidden = !editable || workspace.archived;
    this.noProjects.hidden = named.length > 0;
    const removable = may("role.assign");
    const owner = { id: "", user: workspace.owner, role: "workspace-admin", owner: true };
    const members = assignments.map((it) => ({ ...it, removable })).sort((a, b) => whoOf(a).localeCompare(whoOf(b)));
    fill(this.members.rows, [owner, ...members], (it) => this.#memberRow(it));
    this.give.hidden = !removable;
    this.unseen.hidden = may("role.view");
  }

  #showHead(may) {
    const { workspace } = this;
    document.title = `${workspace.name} · Rung`;
    say(this.name, workspace.name);
    this.badge.hidden = !workspace.archived;
    const parts = [
      workspace.id,
      `owner ${workspace.owner}`,
      workspace.default_pool && `default pool ${workspace.default_pool}`,
      workspace.storage && `storage ${workspace.storage}`,
      workspace.storage && `storage ${workspace.storage}`,
    ];
    say(this.about, parts.filter(Boolean).join(" · "));
    say(this.words, workspace.description);
    this.words.hidden = !workspace.description;
    this.experiments.href = experimentsOf(workspace.id);
    this.edit.hidden = !may("workspace.edit");
    this.archive.hidden = !may("workspace.archive");
    say(this.archive, workspace.archived ? "Open again" : "Archive");
  }

  #projectRow(it) {
    const acts = it.editable
      ? [
          button("Edit", () => this.#editProject(it), "small", { "aria-label": `Edit project ${it.name}` }),
          button(it.archived ? "Open again" : "Archive", () => this.#archiveProject(it), "small", {
            "aria-label": `${it.archived ? "Open again" : "Archive"}: project ${it.name}`,
          }),
        ]
      : [];
    const href = experimentsOf(it.workspace_id, it.id);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, it.name, it.archived ? h("span", { class: "badge" }, "archived") : null),
      h("td", { class: "words" }, it.description),
      h("td", {}, h("a", { href, "aria-label": `Experiments of project ${it.name}` }, "Experiments")),
      h("td", { class: "acts" }, acts),
    );
  }

  #memberRow(it) {
    const who = whoOf(it);
    const remove = it.removable
      ? button("Remove", () => this.#removeMember(it), "small danger", { "aria-label": `Remove ${it.role} of ${who}` })
      : null;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, who, it.group_id ? h("span", { class: "badge" }, "group") : null),
      h("td", {}, it.role, it.owner ? " (owner)" : ""),
      h("td", {}, it.created_at ? moment(it.created_at) : ""),
      h("td", { class: "acts" }, remove),
    );
  }

  async #edit() {
    const { workspace } = this;
    const people = await namesOf("/users");
    const form = { title: `Edit workspace ${workspace.name}`, fields: fieldsOf(workspace, people), action: "Save" };
    if (await asked(form, (values) => send(this.path, wantedOf(values), workspace.version))) this.reload();
  }

  async #archive() {
    const { name, archived, version } = this.workspace;
    if (!archived && !(await confirmed(`Archive workspace ${name}?`, CLOSED, "Archive"))) return;
    const act = archived ? "unarchive" : "archive";
    await attempted(() => post(`${this.path}/${act}`, version), `${name} is ${archived ? "open again" : "archived"}.`);
    this.reload();
  }

  async #addProject() {
    const form = { title: "New project", fields: projectFields({}), action: "Create" };
    const made = await asked(form, (values) => send("/projects", { ...values, workspace: this.workspace.id }));
    if (made) this.reload();
  }

  async #editProject(it) {
    const form = { title: `Edit project ${it.name}`, fields: projectFields(it), action: "Save" };
    if (await asked(form, (values) => send(pathOf(it), values, it.version))) this.reload();
  }

  async #archiveProject(it) {
    if (!it.archived && !(await confirmed(`Archive project ${it.name}?`, CLOSED, "Archive"))) return;
    const act = it.archived ? "unarchive" : "archive";
    const done = `${it.name} is ${it.archived ? "open again" : "archived"}.`;
    await attempted(() => post(`${pathOf(it)}/${act}`, it.version), done);
    this.reload();
  }

  async #addMember() {
    const [users, accounts, groups, roles] = await Promise.all([
      namesOf("/users"),
      namesOf("/service-accounts"),
      namesOf("/groups"),
      get("/roles").then(({ items }) => items.filter(({ places }) => places.includes("workspace")), () => []),
    ]);
    const fields = [
      {
        name: "who",
        label: "Who",
        required: true,
        suggestions: [...users, ...accounts, ...groups.map((name) => GROUP + name)],
        hint: `a user or a service account by name, or ${GROUP}NAME`,
      },
      { name: "role", label: "Role", options: roles.map((it) => [it.name, `${it.name}: ${it.description}`]) },
    ];
    const form = { title: `Add a member of ${this.workspace.name}`, fields, action: "Add" };
    const made = await asked(form, ({ who, role }) => {
      const group = who.startsWith(GROUP);
      const named = group ? { group: who.slice(GROUP.length) } : { user: who };
      return send("/assignments", { ...named, role, workspace: this.workspace.id });
    });
    if (made) this.reload();
  }

  async #removeMember(it) {
    const who = whoOf(it);
    const text = "What this role alone allows is refused from now on, in streams that are open, too.";
    if (!(await confirmed(`Take ${it.role} from ${who}?`, text, "Remove"))) return;
    const path = `/assignments/${encodeURIComponent(it.id)}/delete`;
    await attempted(() => post(path), `${who} is ${it.role} no longer.`);
    this.reload();
  }
}

const GROUP = "group:";
const whoOf = (it) => it.user ?? it.group ?? it.user_id ?? it.group_id;
const pathOf = (project) => `/projects/${encodeURIComponent(project.id)}`;

function projectFields(it) {
  return [
    { name: "name", label: "Name", value: it.name, required: true, maxlength: 100 },
    { name: "description", label: "Description", type: "textarea", value: it.description, rows: 2 },
  ];
}

/** Returns the names of what a list has, for suggestions; none where it cannot be had. */
async function namesOf(path) {
  try {
    return (await getAll(path)).map(({ name }) => name).sort();
  } catch {
    return [];
  }
}
