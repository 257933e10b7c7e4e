// What the curves, the hyperparameters and the table of one experiment share: colours, the trial
// under the pointer, the trial that is open, and which trials the ranges keep.

import { ramp } from "./scale.js";

export class Board extends EventTarget {
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
