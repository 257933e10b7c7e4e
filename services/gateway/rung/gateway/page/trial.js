// The panel of one trial: why it is as it is, its hyperparameters, its story.

import { get, post } from "./api.js";
import { badge, confirmed, h, say, toast } from "./dom.js";
import { entryOf, inOrder } from "./events.js";
import { clock, duration, flat, lasting, plain, short } from "./format.js";

/** Between two requests for a period that is not chosen yet. */
const ASK_AGAIN_MS = 10_000;

const TOLD = /trial\.(kill_requested|promoted|stopped|closed|started|restored|exited)|run\.|checkpoint\.damaged/;

export class TrialPanel {
  constructor(board, page) {
    this.board = board;
    this.page = page;
    this.title = h("h2", { tabindex: "-1" });
    this.state = h("span", {});
    this.reason = h("p", { class: "reason" });
    this.facts = h("dl", { class: "facts tight" });
    this.hparams = h("dl", { class: "pairs" });
    this.period = h("span", {});
    this.story = h("ol", { class: "story" });
    this.logs = h("a", {}, "Logs of this trial");
    this.kill = h("button", { type: "button", class: "small danger", onclick: () => this.#kill() }, "Kill");
    this.element = h(
      "aside",
      { class: "drawer panel", hidden: true, "aria-label": "Trial" },
      h(
        "div",
        { class: "controls" },
        this.title,
        this.state,
        h("span", { class: "spring" }),
        this.kill,
        h("button", { type: "button", "aria-label": "Close", class: "plain close", onclick: () => this.#close() }, "✕"),
      ),
      this.reason,
      this.facts,
      h(
        "div",
        { class: "controls" },
        h("h3", {}, "Hyperparameters"),
        h("span", { class: "spring" }),
        h("button", { type: "button", class: "small", onclick: () => this.#copy() }, "Copy as JSON"),
      ),
      this.hparams,
      h("h3", {}, "Story"),
      this.story,
      this.logs,
    );
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.#close());
  }

  set(experiment) {
    this.experiment = experiment;
    this.show();
  }

  show() {
    const trial = this.experiment?.trials[this.board.trials.get(this.board.picked)?.index];
    const opened = trial && this.element.hidden;
    this.element.hidden = !trial;
    if (!trial) return;
    if (opened) {
      this.before = document.activeElement;
      this.title.focus({ preventScroll: true });
    }
    if (this.trial === trial) return;
    this.trial = trial;
    this.page.tell();
    this.#fill(trial);
    this.eventsCame();
  }

  /** Brings the story up to date. */
  eventsCame() {
    if (this.element.hidden || !this.trial) return;
    const own = [...this.page.events.values()].filter(
      (event) => (event.data.trial_id ?? event.data.spec?.trial_id) === this.trial.id && TOLD.test(event.type),
    );
    own.sort(inOrder);
    this.story.replaceChildren(
      ...own.map((event) => h("li", {}, h("time", { datetime: event.time }, clock(event.time)), entryOf(event).text)),
    );
  }

  #fill(trial) {
    say(this.title, `Trial ${trial.index}`);
    this.state.replaceChildren(badge(trial.state));
    this.kill.hidden = ["completed", "stopped", "errored", "canceled"].includes(trial.state);
    const reason = trial.reason ?? (trial.restarts ? trial.message : null);
    this.reason.hidden = !reason;
    say(this.reason, reason ?? "");
    const unit = this.experiment.plan?.time_metric ?? "batches";
    const trained =
      trial.length === null ? lasting(trial.units, unit) : `${short(trial.units)} of ${lasting(trial.length, unit)}`;
    const facts = [
      [`Best ${this.experiment.config.searcher.metric}`, trial.best ? short(trial.best.value) : "–"],
      ["Trained", trained],
      ["Rung", trial.rung === null ? "–" : String(trial.rung)],
      ["Run", String(trial.run)],
      ["Restarts", String(trial.restarts)],
      ...(trial.status ? [["Status", trial.status]] : []),
      ...(trial.progress == null ? [] : [["Progress", `${Math.round(100 * trial.progress)}%`]]),
      ["Seed", String(trial.seed)],
      ["Checkpoints", this.period],
    ];
    this.#tellPeriod(trial);
    if (trial.parent) facts.push(["Started from", `trial ${trial.parent.split(".").pop()}`]);
    for (const [name, value] of flat(trial.metadata ?? {})) facts.push([`Metadata ${name}`, plain(value)]);
    this.facts.replaceChildren(...facts.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
    this.hparams.replaceChildren(
      ...[...flat(trial.hparams)].flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, plain(value))]),
    );
    this.logs.href = `${this.page.hash}/logs?trial=${trial.index}`;
  }

  async #kill() {
    const { id, index } = this.trial;
    const text = "It ends at once, without a checkpoint. The search goes on without it.";
    if (!(await confirmed(`Kill trial ${index}?`, text, "Kill the trial"))) return;
    try {
      await post(`/trials/${id}/kill`);
      toast(`Trial ${index} is asked to end`);
    } catch (error) {
      toast(error.message, "error");
    }
  }

  /** Shows how often the trial checkpoints: by its experiment file, or as its run has chosen. */
  async #tellPeriod(trial) {
    const set = this.experiment.config.min_checkpoint_period;
    if (set) {
      const [[unit, count]] = Object.entries(set);
      say(this.period, count ? `every ${short(count)} ${unit}` : "no period");
      return;
    }
    const run = `${trial.id}.${trial.run}`;
    if (this.asked?.run === run && (this.asked.found || Date.now() < this.asked.until)) return;
    if (this.asked?.run !== run) say(this.period, "–");
    const asked = { run, until: Date.now() + ASK_AGAIN_MS, found: false };
    this.asked = asked;
    const newest = async (name) => {
      const curve = await get(`/trials/${trial.id}/metrics`, { kind: "system", name });
      return curve.points.at(-1)?.[1];
    };
    const names = ["checkpoint_period_s", "checkpoint_held_s"];
    const [every, held] = await Promise.all(names.map(newest)).catch(() => []);
    if (every === undefined || this.asked !== asked) return;
    asked.found = true;
    say(this.period, `every ${duration(every)}; one holds training for ${short(held)} s`);
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(JSON.stringify(this.trial.hparams, null, 2));
      toast(`Hyperparameters of trial ${this.trial.index} copied`);
    } catch {
      toast("The browser did not let the page copy", "error");
    }
  }

  #close() {
    this.board.pick(null);
    this.before?.focus?.();
  }
}
