// Users and groups: seen by all, changed by those who may.

import { getAll, may, methods, post, send } from "./api.js";
import { attempted, button, confirmed, fill, h, say, table } from "./dom.js";
import { asked } from "./form.js";
import { many } from "./format.js";
import { Polled } from "./polled.js";

const SHOWN = 100;

export class PeoplePage extends Polled {
  constructor(tellLive) {
    super(tellLive);
    document.title = "People · Rung";
    this.search = h("input", {
      type: "search",
      placeholder: "Part of a name",
      "aria-label": "Part of the name or address of users",
      oninput: () => this.#show(),
    });
    this.inactive = h("input", { type: "checkbox", onchange: () => this.#show() });
    this.addUser = button("New user", () => this.#createUser());
    this.addGroup = button("New group", () => this.#createGroup());
    this.users = table("Users", ["Name", "Full name", "Address", "Groups", ""]);
    this.groups = table("Groups", ["Name", "Description", "Members", ""]);
    this.more = h("p", { class: "hint" });
    this.none = h("p", { class: "empty" }, "No groups.");
    this.body.append(
      h("div", { class: "headline" }, h("h1", {}, "People")),
      h(
        "section",
        { class: "panel", "aria-label": "Users" },
        h(
          "div",
          { class: "controls" },
          h("h2", {}, "Users"),
          this.search,
          h("label", { class: "check" }, this.inactive, "deactivated ones, too"),
          h("span", { class: "spring" }),
          this.addUser,
        ),
        this.users.element,
        this.more,
      ),
      h(
        "section",
        { class: "panel", "aria-label": "Groups" },
        h("div", { class: "controls" }, h("h2", {}, "Groups"), h("span", { class: "spring" }), this.addGroup),
        this.groups.element,
        this.none,
      ),
    );
  }

  async load(signal) {
    const [users, groups] = await Promise.all([getAll("/users", {}, signal), getAll("/groups", {}, signal), methods()]);
    const byName = (a, b) => a.name.localeCompare(b.name);
    this.found = { users: users.sort(byName), groups: groups.sort(byName) };
    this.#show();
  }

  #show() {
    if (!this.found) return;
    const { users, groups } = this.found;
    const part = this.search.value.trim().toLowerCase();
    const names = new Map(groups.map(({ id, name }) => [id, name]));
    const wanted = users.filter(
      (it) =>
        (it.active || this.inactive.checked) &&
        [it.name, it.display_name, it.email].some((text) => text.toLowerCase().includes(part)),
    );
    const editable = may("user.edit");
    const rows = wanted.slice(0, SHOWN).map((it) => {
      const joined = it.groups.map((id) => names.get(id)).filter(Boolean);
      return { ...it, joined, editable };
    });
    fill(this.users.rows, rows, (it) => this.#userRow(it));
    this.more.hidden = wanted.length <= SHOWN;
    say(this.more, `${many(wanted.length - SHOWN, "more user")}: enter a part of the name.`);
    this.addUser.hidden = !editable;
    const tidy = may("group.edit");
    fill(this.groups.rows, groups.map((it) => ({ ...it, editable: tidy })), (it) => this.#groupRow(it));
    this.addGroup.hidden = !tidy;
    this.none.hidden = groups.length > 0;
  }

  #userRow(it) {
    const acts = it.editable
      ? [
          act("Edit", it, () => this.#editUser(it)),
          it.issuer ? null : act("Set password", it, () => this.#setPassword(it)),
          it.active
            ? act("Deactivate", it, () => this.#deactivate(it), "small danger")
            : act("Activate", it, () => this.#activate(it)),
        ]
      : [];
    return h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        it.name,
        it.active ? null : h("span", { class: "badge" }, "deactivated"),
        it.issuer ? h("span", { class: "badge", title: it.issuer }, "identity provider") : null,
      ),
      h("td", {}, it.display_name),
      h("td", {}, it.email),
      h("td", { class: "words" }, it.joined.join(", ")),
      h("td", { class: "acts" }, acts),
    );
  }

  #groupRow(it) {
    const acts = it.editable
      ? [
          act("Edit", it, () => this.#editGroup(it)),
          act("Members", it, () => this.#changeMembers(it)),
          act("Delete", it, () => this.#deleteGroup(it), "small danger"),
        ]
      : [];
    const names = it.members.map(({ name }) => name).sort();
    return h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        it.name,
        it.issuer ? h("span", { class: "badge", title: it.issuer }, "identity provider") : null,
      ),
      h("td", { class: "words" }, it.description),
      h("td", { class: "words", title: names.join("\n") }, shortened(names)),
      h("td", { class: "acts" }, acts),
    );
  }

  async #createUser() {
    const form = { title: "New user", fields: userFields({}), action: "Create" };
    if (await asked(form, (values) => send("/users", values))) this.reload();
  }

  async #editUser(it) {
    const form = { title: `Edit ${it.name}`, fields: userFields(it), action: "Save" };
    if (await asked(form, (values) => send(pathOf("users", it), values, it.version))) this.reload();
  }

  async #setPassword(it) {
    const hint = "12 to 256 characters; it can be changed by its user";
    const given = { type: "password", required: true, maxlength: 256, autocomplete: "new-password", hint };
    const fields = [{ ...given, name: "password", label: "Password" }];
    const text = "The user signs in with it; sessions of before end.";
    await asked({ title: `Password of ${it.name}`, text, fields, action: "Set" }, (values) =>
      send(`${pathOf("users", it)}/password`, values),
    );
  }

  async #deactivate(it) {
    const text = "All tokens and sessions are revoked at once. What the user has made stays.";
    if (!(await confirmed(`Deactivate ${it.name}?`, text, "Deactivate"))) return;
    await attempted(() => post(`${pathOf("users", it)}/deactivate`, it.version), `${it.name} is deactivated.`);
    this.reload();
  }

  async #activate(it) {
    await attempted(() => post(`${pathOf("users", it)}/activate`, it.version), `${it.name} is active again.`);
    this.reload();
  }

  async #createGroup() {
    const form = { title: "New group", fields: groupFields({}), action: "Create" };
    if (await asked(form, (values) => send("/groups", values))) this.reload();
  }

  async #editGroup(it) {
    const form = { title: `Edit group ${it.name}`, fields: groupFields(it), action: "Save" };
    if (await asked(form, (values) => send(pathOf("groups", it), values, it.version))) this.reload();
  }

  async #changeMembers(it) {
    const hint = "names of users, with commas between them";
    const suggestions = this.found.users.map(({ name }) => name);
    const fields = [
      { name: "add", label: "Add", hint, suggestions },
      { name: "remove", label: "Remove", hint, suggestions: it.members.map(({ name }) => name) },
    ];
    const names = it.members.map(({ name }) => name).sort();
    const text = names.length ? `Members: ${names.join(", ")}.` : "It has no members.";
    const form = { title: `Members of ${it.name}`, text, fields, action: "Change" };
    const split = (given) => given.split(",").map((name) => name.trim()).filter(Boolean);
    const change = ({ add, remove }) =>
      send(`${pathOf("groups", it)}/members`, { add: split(add), remove: split(remove) }, it.version);
    if (await asked(form, change)) this.reload();
  }

  async #deleteGroup(it) {
    const text = "Its members lose the roles that were given to the group.";
    if (!(await confirmed(`Delete group ${it.name}?`, text, "Delete"))) return;
    await attempted(() => post(`${pathOf("groups", it)}/delete`, it.version), `${it.name} is deleted.`);
    this.reload();
  }
}

const pathOf = (kind, { id }) => `/${kind}/${encodeURIComponent(id)}`;
const act = (text, it, work, looks = "small") => button(text, work, looks, { "aria-label": `${text}: ${it.name}` });
const shortened = (names) => (names.length > 8 ? `${names.slice(0, 8).join(", ")} and ${names.length - 8} more` : names.join(", "));

function userFields(it) {
  return [
    { name: "name", label: "Name", value: it.name, required: true, maxlength: 100, hint: "to sign in with" },
    { name: "display_name", label: "Full name", value: it.display_name, maxlength: 200 },
    { name: "email", label: "Address", type: "email", value: it.email, maxlength: 200 },
  ];
}

function groupFields(it) {
  return [
    { name: "name", label: "Name", value: it.name, required: true, maxlength: 100 },
    { name: "description", label: "Description", type: "textarea", value: it.description, rows: 2 },
  ];
}
