// Webhooks: those of a workspace, and one of them with what it delivered.

import { get, getAll, post, send } from "./api.js";
import { attempted, badge, button, confirmed, fill, h, panel, say, table } from "./dom.js";
import { asked, shownOnce } from "./form.js";
import { many, moment } from "./format.js";
import { Polled } from "./polled.js";

const FORMATS = [
  ["cloudevents", "cloudevents: JSON, signed"],
  ["slack", "slack: a message"],
  ["teams", "teams: a message"],
  ["email", "email"],
];
const TYPES = [
  "rung.search.planned.v1",
  "rung.experiment.paused.v1",
  "rung.experiment.resumed.v1",
  "rung.experiment.ended.v1",
  "rung.trial.requested.v1",
  "rung.trial.closed.v1",
  "rung.trial.exited.v1",
  "rung.log.matched.v1",
];
const KEY = "It verifies what arrives (docs/WEBHOOKS.md). It is shown this once; a new one can be drawn.";
const DELIVERIES_MAX = 100;

/** The part of a workspace's view that lists its webhooks. */
export class WebhooksPanel {
  /** `changed` is called after a change, to load again. */
  constructor(changed) {
    this.changed = changed;
    this.add = button("New webhook", () => this.#create());
    this.list = table("Webhooks", ["Name", "To", "Tells of", "State"]);
    this.none = h("p", { class: "empty" }, "No webhooks.");
    this.element = panel("Webhooks", this.add, this.list.element, this.none);
  }

  async load(workspace, signal) {
    const may = (permission) => workspace.permissions.includes(permission);
    this.workspace = workspace;
    this.element.hidden = !may("webhook.view");
    if (this.element.hidden) return;
    const items = await getAll("/webhooks", { workspace: workspace.id }, signal);
    items.sort((a, b) => a.name.localeCompare(b.name));
    fill(this.list.rows, items, rowOf);
    this.none.hidden = items.length > 0;
    this.add.hidden = !may("webhook.edit") || workspace.archived;
  }

  async #create() {
    const form = { title: "New webhook", fields: fieldsOf(), action: "Create" };
    const made = await asked(form, (values) => send("/webhooks", { ...wantedOf(values), workspace: this.workspace.id }));
    if (!made) return;
    this.changed();
    if (made.key) await shownOnce(`Key of webhook ${made.name}`, KEY, made.key);
  }
}

/** One webhook, with what it delivered last. */
export class WebhookPage extends Polled {
  constructor(id, tellLive) {
    super(tellLive);
    this.path = `/webhooks/${encodeURIComponent(id)}`;
    this.name = h("h1", {});
    this.state = h("span", {});
    this.about = h("p", { class: "about" });
    this.told = h("p", { class: "words" });
    this.test = button("Send a test", () => this.#test(), "");
    this.edit = button("Edit", () => this.#edit(), "");
    this.rotate = button("New key", () => this.#rotate(), "");
    this.turn = button("", () => this.#switch(), "");
    this.remove = button("Remove", () => this.#remove(), "danger");
    this.acts = h("div", { class: "buttons" }, this.test, this.edit, this.rotate, this.turn, this.remove);
    this.list = table("Deliveries", ["When", "Event", "About", "State", "Attempts", "Last answer", "Next", ""]);
    this.none = h("p", { class: "empty" }, "Nothing was delivered yet.");
    this.body.append(
      h(
        "header",
        { class: "head" },
        h("div", { class: "headline" }, this.name, this.state, h("span", { class: "spring" }), this.acts),
        this.about,
        this.told,
      ),
      panel("Deliveries", null, this.list.element, this.none),
    );
  }

  async load(signal) {
    const [webhook, { items }] = await Promise.all([
      get(this.path, null, signal),
      get(`${this.path}/deliveries`, { limit: DELIVERIES_MAX }, signal),
    ]);
    const { permissions } = await get(`/workspaces/${encodeURIComponent(webhook.workspace_id)}`, null, signal);
    const editable = permissions.includes("webhook.edit");
    this.webhook = webhook;
    document.title = `${webhook.name} · Rung`;
    say(this.name, webhook.name);
    this.state.replaceChildren(stateOf(webhook));
    const place = h("a", { href: `#/workspaces/${encodeURIComponent(webhook.workspace_id)}` }, webhook.workspace);
    this.about.replaceChildren("workspace ", place, ` · ${webhook.format} · `, h("span", {}, webhook.to));
    say(this.told, `Tells of ${tellsOf(webhook)}.`);
    this.acts.hidden = !editable;
    this.test.disabled = !webhook.active;
    this.rotate.hidden = webhook.format !== "cloudevents";
    say(this.turn, webhook.active ? "Switch off" : "Switch on");
    const again = editable && webhook.active;
    fill(this.list.rows, items.map((it) => ({ ...it, again })), (it) => this.#row(it));
    this.none.hidden = items.length > 0;
  }

  #row(it) {
    const experiment = it.experiment_id && h("a", { href: `#/x/${encodeURIComponent(it.experiment_id)}` }, it.subject);
    const answer = [it.status, it.reason].filter(Boolean).join(" ");
    const more = { "aria-label": `Deliver again: ${it.type} of ${it.subject}` };
    return h(
      "tr",
      {},
      h("td", {}, moment(it.requested_at)),
      h("th", { scope: "row", title: it.id }, it.type),
      h("td", {}, experiment || it.subject),
      h("td", {}, badge(it.state)),
      h("td", {}, it.attempts),
      h("td", { class: "words" }, answer || (it.attempts ? `${it.took_ms} ms` : "")),
      h("td", {}, it.next_at ? moment(it.next_at) : ""),
      h("td", { class: "acts" }, it.again ? button("Deliver again", () => this.#again(it), "small", more) : null),
    );
  }

  async #test() {
    await attempted(() => post(`${this.path}/test`), "A test is on its way; the list shows how it went.");
    this.reload();
  }

  async #again(it) {
    const path = `${this.path}/deliveries/${encodeURIComponent(it.id)}/redeliver`;
    await attempted(() => post(path), "It is delivered again, under the same id.");
    this.reload();
  }

  async #edit() {
    const { webhook } = this;
    const form = { title: `Edit webhook ${webhook.name}`, fields: fieldsOf(webhook), action: "Save" };
    const saved = await asked(form, (values) => send(this.path, wantedOf(values, webhook), webhook.version));
    if (!saved) return;
    this.reload();
    if (saved.key) await shownOnce(`Key of webhook ${saved.name}`, KEY, saved.key);
  }

  async #rotate() {
    const { name, version } = this.webhook;
    const text = "The present key signs nothing from the next attempt on.";
    if (!(await confirmed(`Draw a new key of ${name}?`, text, "Draw"))) return;
    let made = null;
    await attempted(async () => {
      made = await post(`${this.path}/rotate`, version);
    }, `${name} has a new key.`);
    this.reload();
    if (made) await shownOnce(`Key of webhook ${name}`, KEY, made.key);
  }

  async #switch() {
    const { name, active, version } = this.webhook;
    const text = "What waits for it is dropped.";
    if (active && !(await confirmed(`Switch ${name} off?`, text, "Switch off"))) return;
    const act = active ? "deactivate" : "activate";
    await attempted(() => post(`${this.path}/${act}`, version), `${name} is ${active ? "off" : "on"}.`);
    this.reload();
  }

  async #remove() {
    const { name, version, workspace_id: place } = this.webhook;
    if (!(await confirmed(`Remove webhook ${name}?`, "What waits for it is dropped.", "Remove"))) return;
    if (await attempted(() => post(`${this.path}/delete`, version), `${name} is removed.`)) {
      location.hash = `#/workspaces/${encodeURIComponent(place)}`;
    }
  }
}

function rowOf(it) {
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: `#/webhooks/${encodeURIComponent(it.id)}` }, it.name)),
    h("td", {}, `${it.format}: ${it.to}`),
    h("td", { class: "words" }, tellsOf(it)),
    h("td", {}, stateOf(it)),
  );
}

const stateOf = (it) => h("span", { class: it.active ? "badge stored" : "badge" }, it.active ? "on" : "off");

/** Returns what a webhook subscribes to, in words. */
function tellsOf(it) {
  const parts = [
    ...it.events,
    it.states.length > 0 && `in the states ${it.states.join(", ")}`,
    ...it.metrics.map(({ metric, above, below }) => (above != null ? `${metric} > ${above}` : `${metric} < ${below}`)),
    it.logs.length > 0 && many(it.logs.length, "pattern") + " of log lines",
    it.experiment_id && `of experiment ${it.experiment_id}`,
    it.project_id && `of project ${it.project_id}`,
  ];
  return parts.filter(Boolean).join(", ") || "nothing";
}

function fieldsOf(it) {
  const lines = (values) => values?.join("\n");
  const kept = it ? `empty: it stays (${it.to})` : "URL of the receiver; it is encrypted and never shown";
  const metrics = it?.metrics.map(({ metric, above, below }) => `${metric} ${above != null ? ">" : "<"} ${above ?? below}`);
  return [
    { name: "name", label: "Name", value: it?.name, required: true, maxlength: 100 },
    { name: "format", label: "Format", options: FORMATS, value: it?.format },
    { name: "to", label: "Address", hint: `${kept}; of “email” addresses with commas between them` },
    {
      name: "events",
      label: "Events",
      type: "textarea",
      value: it ? lines(it.events) : "rung.experiment.ended.v1",
      rows: 3,
      hint: `one in a line: ${TYPES.join(" ")}`,
    },
    {
      name: "states",
      label: "States of ends",
      value: it?.states.join(" "),
      hint: "empty: in any; or of completed errored canceled stopped, with spaces between them",
    },
    { name: "metrics", label: "Metrics", type: "textarea", value: lines(metrics), rows: 2, hint: "one in a line: accuracy > 0.9" },
    { name: "logs", label: "Log lines", type: "textarea", value: lines(it?.logs), rows: 2, hint: "one pattern (RE2) in a line" },
  ];
}

/** Returns what a form says; of a webhook that is there, an address alone that was entered. */
function wantedOf({ name, format, to, events, states, metrics, logs }, before) {
  const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
  const mails = to.split(/[\s,]+/).filter(Boolean);
  const address = format === "email" ? { mail_to: mails } : { url: to.trim() };
  return {
    name,
    ...(before?.format === format ? {} : { format }),
    ...(before && !to.trim() ? {} : address),
    events: lines(events),
    states: states.split(/[\s,]+/).filter(Boolean),
    metrics: lines(metrics).map(thresholdOf),
    logs: lines(logs),
  };
}

function thresholdOf(line) {
  const [, metric, sign, value] = /^(.+?)\s*([<>])\s*(\S+)$/.exec(line) ?? [];
  if (metric === undefined || Number.isNaN(Number(value))) throw new Error(`metrics: write “accuracy > 0.9”, not “${line}”`);
  return { metric, [sign === ">" ? "above" : "below"]: Number(value) };
}
