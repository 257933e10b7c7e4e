// The user who is signed in: rights in the cluster, password, tokens and sessions.

import { get, getAll, inSession, methods, post, send, signIn, user } from "./api.js";
import { attempted, button, confirmed, fill, h, panel, say, table } from "./dom.js";
import { asked, shownOnce } from "./form.js";
import { many, moment } from "./format.js";
import { Polled } from "./polled.js";

const HEADS = ["Name", "Kind", "May", "Workspace", "Created", "Expires", "Last used", ""];
const ONCE = "Keep it where your program finds it, such as RUNG_TOKEN. It is shown this once, and kept nowhere.";

export class AccountPage extends Polled {
  /** `named` is called once the name of the user is known. */
  constructor(tellLive, named) {
    super(tellLive);
    this.named = named;
    document.title = "You · Rung";
    this.name = h("h1", {});
    this.about = h("p", { class: "about" });
    this.password = button("Change password", () => this.#changePassword(), "");
    this.list = table("Tokens and sessions", HEADS);
    this.none = h("p", { class: "empty" }, "No tokens.");
    this.body.append(
      h(
        "header",
        { class: "head" },
        h("div", { class: "headline" }, this.name, h("span", { class: "spring" }), this.password),
        this.about,
      ),
      panel("Tokens and sessions", button("New token", () => this.#create()), this.list.element, this.none),
    );
  }

  async load(signal) {
    const [{ user: name, passwords, permissions }, { items }] = await Promise.all([methods(), get("/tokens", null, signal)]);
    this.named();
    say(this.name, name ?? "");
    const way = inSession() ? "signed in with this browser" : "by a token, in this tab";
    say(this.about, `${way} · ${many(permissions.length, "permission")} in the cluster`);
    this.about.title = permissions.join("\n");
    this.password.hidden = !passwords || !inSession();
    fill(this.list.rows, items, (it) => this.#row(it));
    this.none.hidden = items.length > 0;
  }

  #row(it) {
    const may = it.scope ? many(it.scope.length, "permission") : "all that you may";
    const named = { "aria-label": `Revoke ${it.name || it.kind}` };
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, it.name || it.id, it.current ? h("span", { class: "badge stored" }, "this one") : null),
      h("td", {}, it.kind),
      h("td", { title: it.scope?.join("\n") }, may),
      h("td", {}, it.workspace ?? "all"),
      h("td", {}, moment(it.created_at)),
      h("td", {}, it.expires_at ? moment(it.expires_at) : "never"),
      h("td", {}, it.used_at ? moment(it.used_at) : "never"),
      h("td", { class: "acts" }, button("Revoke", () => this.#revoke(it), "small danger", named)),
    );
  }

  async #create() {
    const places = await getAll("/workspaces", { archived: false }).catch(() => []);
    const fields = [
      { name: "name", label: "Name", required: true, maxlength: 200, hint: "what it is for" },
      {
        name: "scope",
        label: "May",
        options: [
          ["", "all that you may"],
          ["read", "read: see everything, change nothing"],
          ["people", "people: users and groups"],
          ["listed", "these permissions:"],
        ],
      },
      {
        name: "permissions",
        label: "Permissions",
        placeholder: "experiment.view experiment.create",
        hint: "only where “these permissions” is chosen; with spaces between them",
      },
      {
        name: "workspace",
        label: "Workspace",
        options: [["", "all"], ...places.map(({ id, name }) => [id, name])],
      },
      {
        name: "days",
        label: "Days until it expires",
        type: "number",
        value: "90",
        min: "1",
        max: "3650",
        hint: "empty: it never does",
      },
    ];
    const issued = await asked({ title: "New token", fields, action: "Create" }, (values) =>
      send("/tokens", wantedOf(values)),
    );
    if (!issued) return;
    this.reload();
    await shownOnce(`Token ${issued.token.name}`, ONCE, issued.secret);
  }

  async #revoke(it) {
    const name = it.name || it.kind;
    const more = it.current ? " You are signed out with it." : "";
    const text = `What still uses it is refused from now on, in streams that are open, too.${more}`;
    if (!(await confirmed(`Revoke ${name}?`, text, "Revoke"))) return;
    await attempted(() => post(`/tokens/${encodeURIComponent(it.id)}/revoke`), `${name} is revoked.`);
    this.reload();
  }

  async #changePassword() {
    const secret = { type: "password", required: true, maxlength: 256 };
    const fields = [
      { ...secret, name: "current", label: "Present password", autocomplete: "current-password" },
      { ...secret, name: "password", label: "New password", autocomplete: "new-password", hint: "12 to 256 characters" },
    ];
    const name = user();
    const text = "Your sessions elsewhere end with it; tokens stay.";
    await asked({ title: "Change password", text, fields, action: "Change" }, async (values) => {
      await send(`/users/${encodeURIComponent(name)}/password`, values);
      await signIn(name, values.password); // this session has ended, too
    });
    this.reload();
  }
}

function wantedOf({ name, scope, permissions, workspace, days }) {
  const listed = permissions.split(/[\s,]+/).filter(Boolean);
  const chosen = { "": null, listed }[scope];
  return {
    name,
    scope: chosen === undefined ? [scope] : chosen,
    workspace: workspace || null,
    expires_days: days ? Number(days) : null,
  };
}
