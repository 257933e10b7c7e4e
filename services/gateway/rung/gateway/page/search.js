// The tab of a search: learning curves, hyperparameters, trials; what one shows, all show.

import { follow, get } from "./api.js";
import { Curves } from "./curves.js";
import { h, paced, say, toast } from "./dom.js";
import { many, number, short } from "./format.js";
import { DRAWN } from "./lines.js";
import { Parallel } from "./parallel.js";
import { ramp } from "./scale.js";
import { TrialPanel } from "./trial.js";
import { TrialTable } from "./trials.js";

const POINTS = 30_000;
/** The curves of more trials are read again every so often alone: what is reported is added to them. */
const MANY = 500;
const RELOAD_MS = 30_000;
/** Groups of metrics in the order in which they are offered; those of scripts lie before the machine's. */
const KINDS = ["validation", "training", "", "system"];

export class SearchTab {
  constructor(page) {
    this.page = page;
    this.board = new Board();
    this.curves = new Curves(this.board);
    this.parallel = new Parallel(this.board);
    this.table = new TrialTable(this.board);
    this.ladder = new Ladder();
    this.panel = new TrialPanel(this.board, page);
    this.metric = null;
    this.wanted = null;
    this.data = new Map();
    this.note = h("span", { class: "hint", role: "status" });
    this.all = h("button", { type: "button", class: "small", hidden: true }, "Keep all");
    this.all.addEventListener("click", () => this.parallel.clear());
    this.element = h(
      "div",
      { class: "search" },
      h("section", { class: "panel wide", "aria-label": "Learning curves" }, this.#controls(), this.curves.element),
      h(
        "section",
        { class: "panel wide", "aria-label": "Hyperparameters" },
        h(
          "div",
          { class: "controls" },
          h("h2", {}, "Hyperparameters"),
          h("span", { class: "hint" }, "drag along an axis to keep the trials in a range"),
          h("span", { class: "spring" }),
          this.note,
          this.all,
        ),
        this.parallel.element,
      ),
      this.ladder.element,
      this.table.element,
      this.panel.element,
    );
    for (const name of ["look", "pick"]) this.board.addEventListener(name, () => this.#looked());
    this.board.addEventListener("pick", () => this.wanted === null && this.#address());
    this.board.addEventListener("keep", () => this.#kept());
    this.reload = paced(() => this.#load(), 1000);
  }

  #controls() {
    const { options } = this.curves;
    const redraw = () => this.curves.draw();
    this.choice = h("select", { "aria-label": "Metric", onchange: () => this.#choose(this.choice.value) });
    const log = h("input", { type: "checkbox", onchange: () => ((options.log = log.checked), redraw()) });
    const clip = h("input", { type: "checkbox", onchange: () => ((options.clip = clip.checked), redraw()) });
    const smooth = h("input", {
      type: "range",
      min: "0",
      max: "0.98",
      step: "0.02",
      value: "0",
      "aria-label": "Smoothing",
      oninput: () => ((options.smooth = Number(smooth.value)), redraw()),
    });
    this.problem = h("span", { class: "problem", role: "status" });
    this.some = h("span", { class: "hint" });
    return h(
      "div",
      { class: "controls" },
      h("h2", {}, "Learning curves"),
      this.choice,
      this.problem,
      this.some,
      h("span", { class: "spring" }),
      h("label", {}, "smooth", smooth),
      h("label", { title: "Leave out the outermost 3 % of the values" }, clip, "clip outliers"),
      h("label", {}, log, "log scale"),
    );
  }

  /** Opens the trial that the address names, or closes the one that is open. */
  take(query) {
    this.wanted = query.get("trial");
    if (this.wanted === null) this.board.pick(null);
  }

  update(experiment) {
    this.experiment = experiment;
    this.metric ??= { kind: "validation", name: experiment.config.searcher.metric };
    this.ladder.show(experiment);
    const changed = experiment.revision !== this.revision;
    this.revision = experiment.revision;
    if (changed) this.board.set(experiment);
    const count = experiment.trials.length;
    say(this.some, count > DRAWN ? `lines of ${short(DRAWN)} of ${many(count, "trial")}, the best among them` : "");
    if (this.wanted !== null) this.#open(experiment.trials[Number(this.wanted)]);
    if (changed) {
      this.parallel.set(experiment, experiment.config.searcher.metric);
      this.table.set(experiment);
    }
    this.panel.set(experiment);
    this.curves.draw();
    const age = performance.now() - (this.loaded ?? -Infinity);
    if (experiment.trials.length <= MANY || age > RELOAD_MS) this.reload();
  }

  #open(trial) {
    if (!trial) toast(`There is no trial ${this.wanted} so far`, "error");
    this.wanted = null;
    this.board.pick(trial?.id ?? null);
    this.#address();
  }

  /** Has the address, and the way back from another tab, name the trial that is open. */
  #address() {
    const trial = this.board.trials.get(this.board.picked);
    const hash = `${this.page.hash}/search${trial ? `?trial=${trial.index}` : ""}`;
    this.page.links[0].href = hash;
    if (this.element.isConnected && location.hash !== hash) history.replaceState(null, "", hash);
  }

  enter(signal) {
    this.signal = signal;
    this.reload();
    follow(`${this.page.path}/metrics/stream`, {
      signal,
      query: { from: "now" },
      onEvent: (_, report) => this.#append(report),
    });
  }

  eventsCame() {
    this.panel.eventsCame();
  }

  #choose(value) {
    this.metric = JSON.parse(value);
    this.data = new Map();
    this.begun = undefined;
    this.curves.set(this.data, { timed: this.#timed(), metric: this.metric?.name });
    this.#load();
  }

  async #load() {
    const { signal, metric } = this;
    if (!this.experiment || !signal || signal.aborted) return;
    const points = Math.round(Math.min(400, Math.max(20, POINTS / (this.experiment.trials.length || 1))));
    let found;
    try {
      found = await get(`${this.page.path}/metrics`, { ...metric, points }, signal);
    } catch (error) {
      if (!signal.aborted) say(this.problem, error.message);
      return;
    }
    if (metric !== this.metric) return;
    this.loaded = performance.now();
    say(this.problem, "");
    this.#offer(found.names);
    const curves = Object.entries(found.curves);
    this.begun = curves.flatMap(([, each]) => each).reduce((least, [, , time]) => Math.min(least, time), Infinity);
    this.data = new Map(
      curves.map(([id, each]) => [id, each.map(([step, value, time]) => [this.#place(step, time), number(value)])]),
    );
    this.curves.set(this.data, { timed: this.#timed(), metric: this.metric?.name });
  }

  /** Whether the metric is one of the machine's, whose steps are times. */
  #timed() {
    return this.metric?.kind === "system";
  }

  /** Returns where on the horizontal axis a report lies: its step, or seconds since the first. */
  #place(step, time) {
    return this.#timed() ? (time - this.begun) / 1000 : step;
  }

  #offer(names) {
    const { kind, name } = this.metric;
    const place = (each) => KINDS.indexOf(KINDS.includes(each.kind) ? each.kind : "");
    const there = names.some((each) => each.kind === kind && each.name === name);
    const all = [...(there ? [] : [this.metric]), ...names].sort((a, b) => place(a) - place(b));
    const texts = all.map((each) => JSON.stringify({ kind: each.kind, name: each.name }));
    if (texts.join() === this.offered) return;
    this.offered = texts.join();
    this.choice.replaceChildren(
      ...all.map((each, i) => h("option", { value: texts[i] }, `${each.kind} · ${each.name}`)),
    );
    this.choice.value = JSON.stringify({ kind, name });
  }

  /** Adds what was just reported to the curves, without asking for them again. */
  #append({ trial_id: id, rows }) {
    const { kind, name } = this.metric ?? {};
    for (const row of rows) {
      if (row.kind !== kind || !Object.hasOwn(row.values, name)) continue;
      if (!this.data.has(id)) this.data.set(id, []);
      this.begun = Math.min(this.begun ?? Infinity, row.time_ms);
      insert(this.data.get(id), [this.#place(row.step, row.time_ms), number(row.values[name])]);
    }
    this.curves.draw();
    if ([...this.data.values()].some((points) => points.length > 2000)) this.reload();
  }

  #looked() {
    this.curves.drawTop();
    this.parallel.drawTop();
    this.table.mark();
    this.panel.show();
  }

  #kept() {
    this.curves.draw();
    this.parallel.draw();
    this.table.draw();
    const kept = this.board.kept;
    this.all.hidden = kept === null;
    say(this.note, kept ? `${many(kept.size, "trial")} of ${short(this.board.trials.size)} kept` : "");
  }
}

/** Puts a point where its step belongs; a step reported again is replaced. */
function insert(points, point) {
  let at = points.length;
  while (at > 0 && points[at - 1][0] > point[0]) at -= 1;
  const same = at > 0 && points[at - 1][0] === point[0];
  points.splice(same ? at - 1 : at, same ? 1 : 0, point);
}

/**
 * What the curves, the hyperparameters and the table of one experiment share: colours, the trial
 * under the pointer, the trial that is open, and which trials the ranges keep.
 */
class Board extends EventTarget {
  trials = new Map();
  hover = null;
  picked = null;
  kept = null;

  /** Takes the experiment as the gateway shows it: the better a trial, the stronger its colour. */
  set(experiment) {
    const smaller = experiment.config.searcher.smaller_is_better !== false;
    const sign = smaller ? 1 : -1;
    const order = experiment.trials
      .filter((trial) => trial.best)
      .sort((a, b) => sign * (a.best.value - b.best.value) || a.index - b.index);
    const ranks = new Map(order.map((trial, i) => [trial.id, i / Math.max(1, order.length - 1)]));
    const color = ramp();
    this.trials = new Map(
      experiment.trials.map((trial) => {
        const rank = ranks.get(trial.id) ?? 1;
        return [trial.id, { id: trial.id, index: trial.index, state: trial.state, rank, color: color(rank) }];
      }),
    );
  }

  look(id) {
    if (id === this.hover) return;
    this.hover = id;
    this.dispatchEvent(new Event("look"));
  }

  pick(id) {
    if (id === this.picked) return;
    this.picked = id;
    this.dispatchEvent(new Event("pick"));
  }

  /** Keeps these trials in view, all if `ids` is null. */
  keep(ids) {
    this.kept = ids;
    this.dispatchEvent(new Event("keep"));
  }

  isOut(id) {
    return this.kept !== null && !this.kept.has(id);
  }
}

/** The rungs of a search: how many trials reached which length. */
class Ladder {
  constructor() {
    this.body = h("div", { class: "brackets" });
    this.unit = h("small");
    this.element = h(
      "section",
      { class: "panel wide", "aria-label": "Rungs", hidden: true },
      h("div", { class: "controls" }, h("h2", {}, "Rungs"), this.unit),
      this.body,
    );
  }

  show({ plan, rungs }) {
    const all = plan?.brackets ?? [];
    const brackets = all.length > 1 ? all : all.filter(({ lengths }) => lengths.length > 1);
    this.element.hidden = !brackets.some(({ lengths }) => lengths.length);
    say(this.unit, plan?.time_metric ?? "");
    this.body.replaceChildren(
      ...brackets.map((bracket) => {
        const { trials, reached } = rungs.find((each) => each.bracket === bracket.bracket);
        return h(
          "div",
          { class: "bracket" },
          h("h3", {}, brackets.length > 1 ? `Bracket ${bracket.bracket}` : "", h("small", {}, many(trials, "trial"))),
          bracket.lengths.map((length, rung) => rungOf(trials, reached[rung], length, plan.time_metric)).reverse(),
        );
      }),
    );
  }
}

function rungOf(trials, reached, length, unit) {
  const bar = h("meter", { min: "0", max: String(Math.max(1, trials)), value: reached, "aria-hidden": "true" });
  return h(
    "div",
    { class: "rung", title: `${many(reached, "trial")} reached ${short(length)} ${unit}` },
    h("span", { class: "number" }, short(length)),
    bar,
    h("span", { class: "number" }, String(reached)),
  );
}
