// The experiment's events, as sentences: who decided what, and why.

import { get } from "./api.js";
import { h, keyed, say } from "./dom.js";
import { bytes, clock, lasting, many, moment, plain, short } from "./format.js";

const SHOWN = 300;
const GROUPS = {
  search: "Search",
  runs: "Runs",
  validations: "Validations",
  checkpoints: "Checkpoints",
  requests: "Requests",
};

const trialOf = (data) => (data.trial_id ?? data.spec?.trial_id ?? "").split(".").pop();
const metricsOf = (metrics) =>
  Object.entries(metrics)
    .map(([name, value]) => `${name} ${short(value)}`)
    .join(", ");
const because = (reason) => (reason ? `: ${reason}` : "");

/** Type without `rung.` and version → group and sentence. */
const ENTRIES = {
  "experiment.submitted": ["requests", (_, e) => `Submitted${e.actor ? ` by ${e.actor}` : ""}`],
  "experiment.pause_requested": ["requests", (_, e) => `Pause requested${e.actor ? ` by ${e.actor}` : ""}`],
  "experiment.resume_requested": ["requests", (_, e) => `Resume requested${e.actor ? ` by ${e.actor}` : ""}`],
  "experiment.cancel_requested": ["requests", (_, e) => `Cancel requested${e.actor ? ` by ${e.actor}` : ""}`],
  "trial.kill_requested": ["requests", (d, e) => `Trial ${trialOf(d)}: kill requested${e.actor ? ` by ${e.actor}` : ""}`],
  "experiment.kill_requested": ["requests", (_, e) => `Kill requested${e.actor ? ` by ${e.actor}` : ""}`],
  "experiment.deletion_requested": ["requests", (_, e) => `Deletion requested${e.actor ? ` by ${e.actor}` : ""}`],
  "experiment.retention_changed": [
    "requests",
    (d, e) =>
      `Kept from now on: best ${d.save_experiment_best} of the experiment, best ${d.save_trial_best} and latest ` +
      `${d.save_trial_latest} of each trial${e.actor ? ` (${e.actor})` : ""}`,
  ],
  "trial.move_requested": ["requests", (d, e) => `Trial ${trialOf(d)}: move${d.to ? ` to ${d.to}` : ""} requested${e.actor ? ` by ${e.actor}` : ""}`],
  "experiment.extension_requested": ["requests", (d, e) => `${moreOf(d)} requested${e.actor ? ` by ${e.actor}` : ""}`],
  "search.extended": ["search", (d) => `Extended: ${many(d.brackets.reduce((sum, each) => sum + each.trials, 0), "trial")} in all, rungs at ${rungsOf(d)}`],
  "search.deferred": ["search", () => "More to decide follows in the next step"],
  "search.continued": ["search", () => "Next step"],
  "experiment.paused": ["search", () => "Paused"],
  "experiment.resumed": ["search", () => "Resumed"],
  "experiment.ended": ["search", (d) => `Experiment ${d.state}${because(d.reason)}`],
  "search.planned": [
    "search",
    (d) => `Planned ${d.method}: ${many(d.brackets.length, "bracket")}, rungs at ${rungsOf(d)}`,
  ],
  "trial.requested": ["search", (d) => `Trial ${d.index} created`],
  "trial.promoted": ["search", (d) => `Trial ${trialOf(d)} promoted to rung ${d.rung}, to ${short(d.length)}${because(d.reason)}`],
  "trial.stopped": ["search", (d) => `Trial ${trialOf(d)} stopped${because(d.reason)}`],
  "trial.closed": ["search", (d) => `Trial ${trialOf(d)} ${d.state}${because(d.reason)}`],
  "run.requested": ["runs", (d) => `Trial ${trialOf(d)}: run ${d.spec.run} wanted${toLength(d.spec)}${because(d.reason)}`],
  "run.withdrawn": ["runs", (d) => `Trial ${trialOf(d)}: run ${d.run} withdrawn${because(d.reason)}`],
  "trial.started": ["runs", (d) => `Trial ${trialOf(d)}: run ${d.run} started on ${d.agent_id}`],
  "trial.restored": ["runs", (d) => `Trial ${trialOf(d)}: goes on from step ${short(d.steps_completed)}`],
  "trial.status_set": ["runs", (d) => `Trial ${trialOf(d)}: ${d.status}`],
  "trial.metadata_set": ["runs", (d) => `Trial ${trialOf(d)}: metadata set`],
  "trial.progress_reported": ["runs", (d) => `Trial ${trialOf(d)}: ${Math.round(100 * d.progress)}% done`],
  "trial.exited": ["runs", (d) => `Trial ${trialOf(d)}: run ${d.run} ${d.outcome}${because(d.message)}`],
  "allocation.lost": ["runs", (d) => `Trial ${trialOf(d)}: run ${d.run} lost${because(d.reason)}`],
  "allocation.dropped": ["runs", (d) => `Trial ${trialOf(d)}: run ${d.run} dropped${because(d.reason)}`],
  "trial.validated": ["validations", (d) => `Trial ${trialOf(d)} at step ${short(d.steps_completed)}: ${metricsOf(d.metrics)}`],
  "checkpoint.stored": ["checkpoints", (d) => `Trial ${trialOf(d)}: checkpoint at step ${short(d.steps_completed)}, ${bytes(d.size_bytes)}`],
  "checkpoint.damaged": ["checkpoints", (d) => `Trial ${trialOf(d)}: a checkpoint is damaged${because(d.reason)}`],
  "checkpoint.pinned": ["checkpoints", (d) => `Checkpoint ${d.checkpoint_id} pinned by ${d.by}`],
  "checkpoint.deletion_requested": [
    "requests",
    (d, e) => `Deletion of checkpoint ${d.checkpoint_id} requested${e.actor ? ` by ${e.actor}` : ""}`,
  ],
  "checkpoint.retired": ["checkpoints", (d) => `Trial ${trialOf(d)}: checkpoint retired${because(d.reason)}`],
  "checkpoint.deleted": ["checkpoints", (d) => `Trial ${trialOf(d)}: checkpoint deleted`],
};

const moreOf = (asked) =>
  [asked.trials && many(asked.trials, "trial"), asked.max_time && `length ${short(asked.max_time)}`]
    .filter(Boolean)
    .join(", ");
const rungsOf = (plan) =>
  plan.brackets.map(({ lengths }) => lengths.map(short).join("–") || "no length").join("; ");
const toLength = (spec) => (spec.length === null ? "" : `, to ${lasting(spec.length, spec.time_metric)}`);

/** Returns the group and the sentence of an event. */
export function entryOf(event) {
  const name = event.type.replace(/^rung\./, "").replace(/\.v\d+$/, "");
  const unknown = ["search", () => `${name} ${plain(event.data)}`];
  const [group, tell] = Object.hasOwn(ENTRIES, name) ? ENTRIES[name] : unknown;
  return { name, group, text: tell(event.data, event) };
}

const isDecision = (event) => Number(event.causeposition !== undefined);

/** Orders events by time; a decision has its fact's time, and comes behind it. */
export function inOrder(a, b) {
  return a.time.localeCompare(b.time) || isDecision(a) - isDecision(b) || (a.causeindex ?? 0) - (b.causeindex ?? 0);
}

export class EventsTab {
  constructor(page) {
    this.page = page;
    this.limit = SHOWN;
    this.groups = new Set(["search", "runs", "requests"]);
    this.list = h("ol", { class: "events" });
    this.note = h("p", { class: "empty" }, "Loading…");
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.#more() }, "Show earlier ones");
    this.text = h("input", {
      type: "search",
      placeholder: "trial 7, stopped, rung 2 …",
      "aria-label": "Events containing",
      oninput: () => this.draw(),
    });
    this.verdict = h("span", { role: "status", class: "verdict" });
    this.audit = h("button", { type: "button", onclick: () => this.#audit() }, "Audit");
    this.audit.title = "Decide every decision of this experiment again and compare";
    this.element = h(
      "section",
      { class: "panel" },
      h(
        "div",
        { class: "controls" },
        Object.entries(GROUPS).map(([name, title]) => this.#chip(name, title)),
        this.text,
        h("span", { class: "spring" }),
        this.verdict,
        this.audit,
      ),
      this.list,
      this.note,
      this.more,
    );
  }

  enter() {
    this.page.tell();
  }

  update() {
    this.draw();
  }

  eventsCame() {
    this.draw();
  }

  draw() {
    const words = this.text.value.toLowerCase().trim();
    const found = [];
    for (const event of this.page.events.values()) {
      event.entry ??= entryOf(event);
      if (!this.groups.has(event.entry.group)) continue;
      if (words && !`${event.entry.text} ${event.entry.name}`.toLowerCase().includes(words)) continue;
      found.push(event);
    }
    found.sort((a, b) => inOrder(b, a));
    keyed(this.list, found.slice(0, this.limit), ({ id }) => id, row);
    this.note.hidden = found.length > 0;
    say(this.note, this.page.events.size ? "No event is like that." : "Loading…");
    this.more.hidden = found.length <= this.limit;
  }

  #chip(name, title) {
    const box = h("input", {
      type: "checkbox",
      checked: this.groups.has(name),
      onchange: () => {
        if (box.checked) this.groups.add(name);
        else this.groups.delete(name);
        this.draw();
      },
    });
    return h("label", { class: "chip" }, box, title);
  }

  #more() {
    this.limit *= 4;
    this.draw();
  }

  async #audit() {
    this.audit.disabled = true;
    this.verdict.className = "verdict";
    say(this.verdict, "deciding everything again…");
    try {
      const { same, decisions } = await get(`${this.page.path}/audit`);
      this.verdict.classList.add(same ? "good" : "problem");
      const text = same ? `All ${many(decisions, "decision")} are decided the same again.` : "Some decisions differ; see `rung audit`.";
      say(this.verdict, text);
    } catch (error) {
      this.verdict.classList.add("problem");
      say(this.verdict, error.message);
    }
    this.audit.disabled = false;
  }
}

function row(event) {
  const element = h(
    "li",
    { class: `event ${event.entry.group} ${event.entry.name.replace(".", "-")}` },
    h("time", { datetime: event.time, title: moment(event.time) }, clock(event.time)),
    h("span", { class: "type" }, event.entry.name),
    h("span", {}, event.entry.text),
  );
  element.show = () => {};
  return element;
}
