// One experiment: its header, its tabs, and what keeps them up to date.

import { ActsTab } from "./acts.js";
import { follow, get, getAll, post, send } from "./api.js";
import { CheckpointsTab } from "./checkpoints.js";
import { attempted, badge, confirmed, h, paced, say, toast, visible } from "./dom.js";
import { EventsTab } from "./events.js";
import { asked } from "./form.js";
import { bytes, duration, lasting, many, moment, percent, seconds, short } from "./format.js";
import { LogsTab } from "./logs.js";
import { SearchTab } from "./search.js";

const IDLE_MS = 5000;
const EVENTS_MAX = 20_000;
/** So many trials that changed are asked for by their indices in one request, */
const NAMED_MAX = 500;
/** and of more than so many, all are. */
const CHANGED_MAX = 2000;
const PAGE = 1000;

export class ExperimentPage {
  constructor(id, tellLive) {
    this.path = `/experiments/${encodeURIComponent(id)}`;
    this.hash = `#/x/${encodeURIComponent(id)}`;
    this.tellLive = tellLive;
    this.experiment = null;
    this.rights = { place: null, permissions: null };
    this.trials = []; // by index; one that did not change stays the same object
    this.revision = 0; // how often any of them changed; 0: they are not read yet
    this.changed = new Set(); // indices of those that changed since they were read
    this.whole = false; // whether all are to be read
    this.events = new Map();
    this.tabs = new Map();
    this.head = new Head((wish) => this.#wish(wish), this.hash);
    this.links = Object.entries(TABS).map(([name, [title]]) =>
      h("a", { href: `${this.hash}/${name}`, "data-tab": name }, title),
    );
    this.body = h("div", { class: "body" });
    this.note = h("p", { class: "empty" }, "Loading…");
    this.nav = h("nav", { class: "tabs", "aria-label": "Parts of the experiment" }, this.links);
    this.element = h(
      "section",
      { class: "page" },
      this.head.element,
      this.nav,
      this.note,
      this.body,
    );
    this.refresh = paced(() => this.#load(), 600);
  }

  /** Shows a tab; `query` is what the address says behind `?`. */
  turnTo(name, query) {
    this.name = Object.hasOwn(TABS, name) ? name : "search";
    for (const link of this.links) {
      if (link.dataset.tab === this.name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const Tab = TABS[this.name][1];
    if (!this.tabs.has(this.name)) this.tabs.set(this.name, new Tab(this));
    this.tab = this.tabs.get(this.name);
    this.tab.take?.(query ?? new URLSearchParams());
    this.body.replaceChildren(this.tab.element);
    this.repaint();
    if (this.control) this.#enter();
  }

  start() {
    this.control = new AbortController();
    const { signal } = this.control;
    this.#load();
    this.timer = setInterval(() => {
      this.whole ||= !this.revision;
      if (this.whole || !this.experiment?.ended_at) this.refresh();
    }, IDLE_MS);
    follow(`${this.path}/events`, {
      signal,
      query: { from: "now" },
      onEvent: (_, event, seen) => this.#take(event, seen),
      onState: (up) => this.#turned(up),
    });
    if (this.told) this.tell();
    if (this.tab) this.#enter();
  }

  stop() {
    clearInterval(this.timer);
    this.control?.abort();
    this.entered?.abort();
    this.control = null;
  }

  repaint() {
    if (this.revision && this.experiment) this.tab?.update(this.experiment);
  }

  /** Reads the events so far, too, for a view that shows them; they come to `events`. */
  tell() {
    this.told = true;
    if (!this.control || this.telling === this.control) return;
    this.telling = this.control;
    const { signal } = this.control;
    follow(`${this.path}/events`, { signal, onEvent: (_, event) => this.#keep(event) });
  }

  /** Reads all trials once the stream is up: what changes from then on, it tells. */
  #turned(up) {
    this.tellLive(up ? "on" : "off", up ? "live" : "not connected");
    if (!up) return;
    this.whole = true;
    if (this.revision) this.refresh();
    else this.#load();
  }

  #enter() {
    this.entered?.abort();
    this.entered = new AbortController();
    this.tab.enter?.(this.entered.signal);
  }

  #take(event, seen) {
    this.seen = seen;
    const trial = event.data.trial_id ?? event.data.spec?.trial_id;
    if (trial) this.changed.add(Number(trial.split(".").pop()));
    else if (OF_ALL.test(event.type)) this.whole = true;
    this.#keep(event);
    this.refresh();
  }

  #keep(event) {
    if (this.events.has(event.id)) return;
    this.events.set(event.id, event);
    if (this.events.size > EVENTS_MAX) this.events.delete(this.events.keys().next().value);
    this.came ??= paced(() => {
      this.tab?.eventsCame?.();
    }, 250);
    this.came();
  }

  async #load() {
    const signal = this.control?.signal;
    if (!signal) return;
    try {
      const seen = this.seen?.();
      const experiment = await get(this.path, { trials: "none" }, signal, seen);
      await this.#readTrials(signal, seen);
      this.experiment = { ...experiment, trials: this.trials, revision: this.revision };
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 503 && this.seen) {
        this.seen = null; // of a server that is far behind, what it has
        this.refresh();
      }
      const gone = error.status === 410;
      if (this.experiment === null || error.status === 404 || gone) say(this.note, error.message);
      this.#reveal(this.experiment !== null && !gone);
      if (gone) this.stop();
      return;
    }
    await this.#readRights(signal);
    if (signal.aborted) return;
    this.#reveal(true);
    document.title = `${visible(this.experiment.name)} (${percent(this.experiment.progress)}) · Rung`;
    this.head.show(this.experiment, this.rights.permissions);
    this.repaint();
  }

  /** Reads the trials that changed since they were read, or all. */
  async #readTrials(signal, seen) {
    const { changed } = this;
    const all = this.whole || changed.size > CHANGED_MAX;
    if (!all && (!changed.size || !this.revision)) return;
    this.changed = new Set();
    this.whole = false;
    try {
      const indices = all ? [] : [...changed];
      const parts = all ? [null] : [];
      while (indices.length) parts.push(indices.splice(0, NAMED_MAX).join());
      for (const index of parts) {
        const query = { validations: "last", index };
        const found = await getAll(`${this.path}/trials`, query, signal, Infinity, { seen, limit: PAGE });
        for (const trial of found) this.trials[trial.index] = trial;
      }
      this.revision += 1;
    } catch (error) {
      for (const index of changed) this.changed.add(index);
      this.whole ||= all;
      throw error;
    }
  }

  /** Reads what one may where the experiment is; it is shown without buttons until that is known. */
  async #readRights(signal) {
    const { workspace_id: place } = this.experiment;
    if (this.rights.place === place && this.rights.permissions) return;
    this.rights = { place, permissions: null };
    try {
      this.rights.permissions = (await get(`/workspaces/${encodeURIComponent(place)}`, null, signal)).permissions;
    } catch (error) {
      if ([403, 404].includes(error.status)) this.rights.permissions = []; // else read again
    }
  }

  /** Shows the experiment, or nothing but the note on why there is none. */
  #reveal(known) {
    this.note.hidden = known;
    for (const part of [this.head.element, this.nav, this.body]) part.hidden = !known;
  }

  async #wish(wish) {
    const { name } = this.experiment;
    if (wish === "edit") return this.#edit();
    if (wish === "archive" || wish === "unarchive") return this.#archive(wish === "archive");
    if (wish === "cancel") {
      const text = "Its trials write a checkpoint and leave. It cannot be resumed afterwards.";
      if (!(await confirmed(`Cancel ${name}?`, text, "Cancel the experiment"))) return;
    }
    if (wish === "kill") {
      const text = "Its trials are ended at once, without a checkpoint. It cannot be resumed.";
      if (!(await confirmed(`Kill ${name}?`, text, "Kill the experiment"))) return;
    }
    try {
      if (wish === "delete") {
        const query = await this.#deletion();
        if (query === null) return;
        wish += query;
      }
      await post(`${this.path}/${wish}`);
      this.refresh();
    } catch (error) {
      toast(error.message, "error");
    }
  }

  /** Asks for another name, description, labels and notes: of the version that is shown. */
  async #edit() {
    let before;
    try {
      before = await get(`${this.path}/description`);
    } catch (error) {
      return toast(error.message, "error");
    }
    const fields = [
      { name: "name", label: "Name", value: before.name, required: true, maxlength: 500 },
      { name: "description", label: "Description", type: "textarea", value: before.description, rows: 2 },
      { name: "labels", label: "Labels", type: "textarea", value: before.labels.join("\n"), rows: 3, hint: "one a line" },
      { name: "notes", label: "Notes", type: "textarea", value: before.notes, rows: 8 },
    ];
    const form = { title: `Edit ${before.name}`, fields, action: "Save" };
    const saved = await asked(form, ({ labels, ...values }) => {
      const lines = labels.split("\n").map((label) => label.trim());
      const changed = labels === before.labels.join("\n") ? null : lines.filter(Boolean);
      return send(`${this.path}/description`, { ...values, labels: changed }, before.version);
    });
    if (saved) this.refresh();
  }

  async #archive(archived) {
    const done = archived ? "Archived: lists leave it out unless asked for it." : "In lists again.";
    await attempted(() => send(`${this.path}/description`, { archived }), done);
    this.refresh();
  }

  /** Shows what a deletion would delete; returns its query, null if it is not wanted. */
  async #deletion() {
    const plan = await post(`${this.path}/delete?dry_run=true`);
    if (!(await confirmed(`Delete ${plan.name}?`, lossOf(plan), "Delete the experiment"))) return null;
    return plan.dependents.length ? "?force=true" : "";
  }
}

/** Returns what goes with an experiment, and what depends on it, in a sentence or two. */
function lossOf({ trial_count: trials, checkpoint_count: count, dependents, ...sizes }) {
  const kept = `${many(count, "checkpoint")} (${bytes(sizes.checkpoint_bytes)})`;
  const lines = sizes.log_lines === null ? "the log" : many(sizes.log_lines, "log line");
  const parts = [`${many(trials, "trial")} with all metrics`, kept, lines];
  const code = sizes.code_shared ? "" : " and the code";
  const from = dependents.map((it) => `${it.name} (${it.experiment_id}, ${it.state})`).join(", ");
  const until = sizes.restorable_until;
  const back = until ? `Until ${moment(until)}, "rung restore" brings all of it back` : "It cannot be undone";
  const text = `This deletes ${parts.join(", ")}${code}. ${back}; the ledger's record stays.`;
  return from ? `${text} These experiments started from its checkpoints: ${from}.` : text;
}

/** Name, state, progress, best value, time left, and what can be asked for. */
class Head {
  constructor(wish, hash) {
    this.hash = hash;
    this.name = h("h1", {});
    this.state = h("span", {});
    this.about = h("p", { class: "about" });
    this.archived = h("span", { class: "badge", hidden: true }, "archived");
    this.description = h("p", { class: "words", hidden: true });
    this.notes = h("p", { class: "notes", role: "note", "aria-label": "Notes", hidden: true });
    this.reason = h("p", { class: "reason", hidden: true });
    this.failures = h("ul", { class: "failures", "aria-label": "Why trials failed", hidden: true });
    this.bar = h("progress", { max: "1", "aria-label": "Progress of the experiment" });
    this.buttons = ["pause", "resume", "cancel", "kill", "delete", "edit", "archive", "unarchive"].map((name) =>
      h(
        "button",
        {
          type: "button",
          hidden: true,
          class: ["kill", "delete"].includes(name) ? "danger" : "",
          onclick: () => wish(name),
        },
        name[0].toUpperCase() + name.slice(1),
      ),
    );
    this.facts = h("dl", { class: "facts" });
    this.element = h(
      "header",
      { class: "head" },
      h(
        "div",
        { class: "headline" },
        this.name,
        this.state,
        this.archived,
        h("span", { class: "spring" }),
        h("div", { class: "buttons" }, this.buttons),
      ),
      this.about,
      this.description,
      this.reason,
      this.failures,
      this.bar,
      this.facts,
      this.notes,
    );
  }

  /** Shows an experiment, and buttons for what its permissions allow; null: not known. */
  show(experiment, permissions) {
    say(this.name, experiment.name);
    for (const part of ["description", "notes"]) {
      say(this[part], experiment[part]);
      this[part].hidden = !experiment[part];
    }
    this.archived.hidden = !experiment.archived;
    this.state.replaceChildren(badge(experiment.state));
    const by = experiment.owner ? ` by ${experiment.owner}` : "";
    const place = [experiment.workspace, experiment.project]
      .filter((name) => name && name !== "default")
      .join(" / ");
    const labels = experiment.labels.join(", ");
    const origin = experiment.parent ? `made from ${experiment.parent}` : "";
    const parts = [experiment.id, experiment.method, place, labels, origin].filter(Boolean);
    say(this.about, `${parts.join(" · ")} · submitted ${moment(experiment.submitted_at)}${by}`);
    const ended = experiment.state !== "completed" && !experiment.failures.length && experiment.reason;
    const telling = experiment.unplaced ?? (ended || "");
    this.reason.hidden = !telling;
    say(this.reason, telling);
    this.failures.hidden = !experiment.failures.length && !experiment.late_failures.length;
    this.failures.replaceChildren(...failuresOf(experiment, this.hash));
    this.bar.value = experiment.progress;
    this.bar.className = experiment.state;
    const [pause, resume, cancel, kill, remove, edit, archive, unarchive] = this.buttons;
    const over = experiment.ended_at !== null;
    const fixed = !permissions?.includes("experiment.edit");
    edit.hidden = fixed;
    archive.hidden = fixed || experiment.archived;
    unarchive.hidden = fixed || !experiment.archived;
    pause.hidden = fixed || experiment.state !== "active";
    resume.hidden = fixed || experiment.state !== "paused";
    cancel.hidden = fixed || over || experiment.state === "canceling";
    kill.hidden = fixed || over;
    remove.hidden = !over || !permissions?.includes("experiment.delete");
    this.facts.replaceChildren(
      ...factsOf(experiment, this.hash).map(([term, value, more]) =>
        h("div", {}, h("dt", {}, term), h("dd", {}, value, more ? h("small", {}, more) : null)),
      ),
    );
  }
}

/** Types of events after which any trial may be shown otherwise. */
const OF_ALL = /(experiment\.(paused|resumed)|search\.(planned|extended))\.v/;
const CAUSES_SHOWN = 3;

/** The commonest causes of errored trials, and of those that failed after they were trained. */
function failuresOf({ failures, late_failures: late, trial_count: all }, hash) {
  return [...causesOf(failures, "errored", all, hash), ...causesOf(late, "failed after the training", all, hash)];
}

/** The commonest causes, each with the log of the first such trial. */
function causesOf(failures, what, all, hash) {
  const items = failures.slice(0, CAUSES_SHOWN).map(({ cause, trials: count, trial_id: id }) => {
    const index = id.split(".").pop();
    const log = h("a", { href: `${hash}/logs?trial=${index}` }, `log of trial ${index}`);
    return h("li", {}, `${count} of ${many(all, "trial")} ${what}: ${cause} (`, log, ")");
  });
  const left = failures.slice(CAUSES_SHOWN).reduce((sum, { trials: count }) => sum + count, 0);
  return left ? [...items, h("li", {}, `${left} ${what} for other causes`)] : items;
}

function factsOf(experiment, hash) {
  const { best } = experiment;
  const index = best?.trial_id.split(".").pop();
  const states = Object.entries(experiment.trial_states);
  const counts = states.map(([state, count]) => `${count} ${state}`).join(", ");
  const over = experiment.ended_at !== null;
  const elapsed = duration(seconds(experiment.submitted_at, experiment.ended_at));
  const facts = [
    ["Progress", percent(experiment.progress), over ? "" : "of the expected training"],
    [
      `Best ${best?.metric ?? experiment.config.searcher.metric}`,
      best ? h("a", { href: `${hash}/search?trial=${index}` }, short(best.value)) : "–",
      best ? `trial ${index} at step ${short(best.steps)}` : "no validation yet",
    ],
    ["Trials", String(experiment.trial_count), counts],
    ["Checkpoints", experiment.checkpoint_count.toLocaleString("en"), bytes(experiment.checkpoint_bytes)],
    over
      ? ["Took", elapsed, `until ${moment(experiment.ended_at)}`]
      : ["Time left", duration(experiment.eta_seconds), `${elapsed} so far`],
  ];
  if (experiment.units_full) facts.push(savedBy(experiment));
  return facts;
}

function savedBy({ units_trained: trained, units_full: full, plan, ended_at: ended }) {
  const unit = plan?.time_metric ?? "units";
  let saved = `of ${short(full)}, were every trial trained in full`;
  if (ended) saved = trained < full ? `${percent(1 - trained / full)} less than every trial in full` : "";
  return ["Trained", lasting(Math.round(trained), unit), saved];
}

/** The experiment file, as it was written and as it was understood. */
class ConfigTab {
  constructor() {
    this.source = h("pre", { tabindex: "0" });
    this.full = h("pre", { tabindex: "0" });
    this.code = h("p", { class: "hint" });
    this.element = h(
      "div",
      { class: "search" },
      h("section", { class: "panel" }, h("div", { class: "controls" }, h("h2", {}, "As written")), this.source),
      h(
        "section",
        { class: "panel" },
        h("div", { class: "controls" }, h("h2", {}, "With every default")),
        this.full,
        this.code,
      ),
    );
  }

  update(experiment) {
    say(this.source, experiment.source);
    say(this.full, JSON.stringify(experiment.config, null, 2));
    say(this.code, experiment.code_digest ? `code: SHA-256 ${experiment.code_digest}` : "no code folder");
  }
}

const TABS = {
  search: ["Search", SearchTab],
  logs: ["Logs", LogsTab],
  checkpoints: ["Checkpoints", CheckpointsTab],
  events: ["Events", EventsTab],
  log: ["Who did what", ActsTab],
  config: ["Configuration", ConfigTab],
};
