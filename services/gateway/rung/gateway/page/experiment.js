// One experiment: its header, its tabs, and what keeps them up to date.

import { follow, get, post } from "./api.js";
import { CheckpointsTab } from "./checkpoints.js";
import { badge, confirmed, h, paced, say, toast, visible } from "./dom.js";
import { EventsTab } from "./events.js";
import { duration, many, moment, percent, seconds, short } from "./format.js";
import { LogsTab } from "./logs.js";
import { SearchTab } from "./search.js";

const IDLE_MS = 5000;
const EVENTS_MAX = 20_000;

export class ExperimentPage {
  constructor(id, tellLive) {
    this.path = `/experiments/${encodeURIComponent(id)}`;
    this.hash = `#/x/${encodeURIComponent(id)}`;
    this.tellLive = tellLive;
    this.experiment = null;
    this.events = new Map();
    this.tabs = new Map();
    this.head = new Head((wish) => this.#wish(wish), this.hash);
    this.links = Object.entries(TABS).map(([name, [title]]) =>
      h("a", { href: `${this.hash}/${name}`, "data-tab": name }, title),
    );
    this.body = h("div", { class: "body" });
    this.note = h("p", { class: "empty" }, "Loading…");
    this.element = h(
      "section",
      { class: "page" },
      this.head.element,
      h("nav", { class: "tabs", "aria-label": "Parts of the experiment" }, this.links),
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
    if (this.experiment) this.tab.update(this.experiment);
    if (this.control) this.#enter();
  }

  start() {
    this.control = new AbortController();
    const { signal } = this.control;
    this.#load();
    this.timer = setInterval(() => !this.experiment?.ended_at && this.refresh(), IDLE_MS);
    follow(`${this.path}/events`, {
      signal,
      onEvent: (_, event, seen) => this.#take(event, seen),
      onState: (up) => this.tellLive(up ? "on" : "off", up ? "live" : "not connected"),
    });
    if (this.tab) this.#enter();
  }

  stop() {
    clearInterval(this.timer);
    this.control?.abort();
    this.entered?.abort();
    this.control = null;
  }

  repaint() {
    if (this.experiment) this.tab?.update(this.experiment);
  }

  #enter() {
    this.entered?.abort();
    this.entered = new AbortController();
    this.tab.enter?.(this.entered.signal);
  }

  #take(event, seen) {
    this.seen = seen;
    if (this.events.has(event.id)) return;
    this.events.set(event.id, event);
    if (this.events.size > EVENTS_MAX) this.events.delete(this.events.keys().next().value);
    this.changed ??= paced(() => {
      this.tab?.eventsCame?.();
    }, 250);
    this.changed();
    this.refresh();
  }

  async #load() {
    const signal = this.control?.signal;
    if (!signal) return;
    try {
      this.experiment = await get(this.path, null, signal, this.seen?.());
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 503 && this.seen) {
        this.seen = null; // of a server that is far behind, what it has
        this.refresh();
      }
      if (this.experiment === null || error.status === 404) say(this.note, error.message);
      this.note.hidden = this.experiment !== null;
      return;
    }
    this.note.hidden = true;
    document.title = `${visible(this.experiment.name)} (${percent(this.experiment.progress)}) · Rung`;
    this.head.show(this.experiment);
    this.tab?.update(this.experiment);
  }

  async #wish(wish) {
    const { name } = this.experiment;
    if (wish === "cancel") {
      const text = "Its trials write a checkpoint and leave. It cannot be resumed afterwards.";
      if (!(await confirmed(`Cancel ${name}?`, text, "Cancel the experiment"))) return;
    }
    if (wish === "kill") {
      const text = "Its trials are ended at once, without a checkpoint. It cannot be resumed.";
      if (!(await confirmed(`Kill ${name}?`, text, "Kill the experiment"))) return;
    }
    try {
      await post(`${this.path}/${wish}`);
      this.refresh();
    } catch (error) {
      toast(error.message, "error");
    }
  }
}

/** Name, state, progress, best value, time left, and what can be asked for. */
class Head {
  constructor(wish, hash) {
    this.hash = hash;
    this.name = h("h1", {});
    this.state = h("span", {});
    this.about = h("p", { class: "about" });
    this.reason = h("p", { class: "reason", hidden: true });
    this.bar = h("progress", { max: "1", "aria-label": "Progress of the experiment" });
    this.buttons = ["pause", "resume", "cancel", "kill"].map((name) =>
      h(
        "button",
        { type: "button", hidden: true, class: name === "kill" ? "danger" : "", onclick: () => wish(name) },
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
        h("span", { class: "spring" }),
        h("div", { class: "buttons" }, this.buttons),
      ),
      this.about,
      this.reason,
      this.bar,
      this.facts,
    );
  }

  show(experiment) {
    say(this.name, experiment.name);
    this.state.replaceChildren(badge(experiment.state));
    const by = experiment.actor ? ` by ${experiment.actor}` : "";
    const place = [experiment.workspace, experiment.project]
      .filter((name) => name && name !== "Uncategorized")
      .join(" / ");
    const labels = experiment.labels.join(", ");
    const parts = [experiment.id, experiment.method, place, labels].filter(Boolean);
    say(this.about, `${parts.join(" · ")} · submitted ${moment(experiment.submitted_at)}${by}`);
    const telling = experiment.reason && experiment.state !== "completed";
    this.reason.hidden = !telling;
    say(this.reason, experiment.reason ?? "");
    this.bar.value = experiment.progress;
    this.bar.className = experiment.state;
    const [pause, resume, cancel, kill] = this.buttons;
    const over = experiment.ended_at !== null;
    pause.hidden = experiment.state !== "active";
    resume.hidden = experiment.state !== "paused";
    cancel.hidden = over || experiment.state === "canceling";
    kill.hidden = over;
    this.facts.replaceChildren(
      ...factsOf(experiment, this.hash).map(([term, value, more]) =>
        h("div", {}, h("dt", {}, term), h("dd", {}, value, more ? h("small", {}, more) : null)),
      ),
    );
  }
}

function factsOf(experiment, hash) {
  const { best } = experiment;
  const trial = best && experiment.trials.find(({ id }) => id === best.trial_id);
  const states = new Map();
  for (const { state } of experiment.trials) states.set(state, (states.get(state) ?? 0) + 1);
  const counts = [...states].map(([state, count]) => `${count} ${state}`).join(", ");
  const over = experiment.ended_at !== null;
  const elapsed = duration(seconds(experiment.submitted_at, experiment.ended_at));
  const facts = [
    ["Progress", percent(experiment.progress), over ? "" : "of the expected training"],
    [
      `Best ${best?.metric ?? experiment.config.searcher.metric}`,
      best ? h("a", { href: `${hash}/search?trial=${trial?.index ?? ""}` }, short(best.value)) : "–",
      best ? `trial ${trial?.index ?? best.trial_id} at step ${short(best.steps)}` : "no validation yet",
    ],
    ["Trials", String(experiment.trials.length), counts],
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
  return ["Trained", many(Math.round(trained), unit.replace(/s$/, "")), saved];
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
  config: ["Configuration", ConfigTab],
};
