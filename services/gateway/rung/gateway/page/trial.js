// The panel of one trial: why it is as it is, its hyperparameters, its story.

import { badge, h, say, toast } from "./dom.js";
import { entryOf, inOrder } from "./events.js";
import { clock, flat, plain, short } from "./format.js";

const TOLD = /trial\.(promoted|stopped|closed|started|restored|exited)|run\.|checkpoint\.damaged/;

export class TrialPanel {
  constructor(board, page) {
    this.board = board;
    this.page = page;
    this.title = h("h2", { tabindex: "-1" });
    this.state = h("span", {});
    this.reason = h("p", { class: "reason" });
    this.facts = h("dl", { class: "facts tight" });
    this.hparams = h("dl", { class: "pairs" });
    this.story = h("ol", { class: "story" });
    this.logs = h("a", {}, "Logs of this trial");
    this.element = h(
      "aside",
      { class: "drawer panel", hidden: true, "aria-label": "Trial" },
      h(
        "div",
        { class: "controls" },
        this.title,
        this.state,
        h("span", { class: "spring" }),
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
    const trial = this.experiment?.trials.find(({ id }) => id === this.board.picked);
    const opened = trial && this.element.hidden;
    this.element.hidden = !trial;
    if (!trial) return;
    if (opened) {
      this.before = document.activeElement;
      this.title.focus({ preventScroll: true });
    }
    if (this.trial === trial) return;
    this.trial = trial;
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
    const reason = trial.reason ?? (trial.restarts ? trial.message : null);
    this.reason.hidden = !reason;
    say(this.reason, reason ?? "");
    const unit = this.experiment.plan?.time_metric ?? "batches";
    const length = trial.length === null ? "" : ` of ${short(trial.length)}`;
    const facts = [
      [`Best ${this.experiment.config.searcher.metric}`, trial.best ? short(trial.best.value) : "–"],
      ["Trained", `${short(trial.units)}${length} ${unit}`],
      ["Rung", trial.rung === null ? "–" : String(trial.rung)],
      ["Run", String(trial.run)],
      ["Restarts", String(trial.restarts)],
      ["Seed", String(trial.seed)],
    ];
    if (trial.parent) facts.push(["Started from", `trial ${trial.parent.split(".").pop()}`]);
    this.facts.replaceChildren(...facts.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
    this.hparams.replaceChildren(
      ...flat(trial.hparams).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, plain(value))]),
    );
    this.logs.href = `${this.page.hash}/logs?trial=${trial.index}`;
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
