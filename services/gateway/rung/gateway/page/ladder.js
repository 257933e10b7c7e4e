// The rungs of a search: how many trials reached which length.

import { h } from "./dom.js";
import { many, short } from "./format.js";

export class Ladder {
  constructor() {
    this.body = h("div", { class: "brackets" });
    this.element = h(
      "section",
      { class: "panel wide", "aria-label": "Rungs", hidden: true },
      h("div", { class: "controls" }, h("h2", {}, "Rungs")),
      this.body,
    );
  }

  show({ plan, trials }) {
    const brackets = (plan?.brackets ?? []).filter(({ lengths }) => lengths.length > 1);
    this.element.hidden = !brackets.length;
    this.body.replaceChildren(
      ...brackets.map((bracket) => {
        const own = trials.filter((trial) => trial.bracket === bracket.bracket);
        return h(
          "div",
          { class: "bracket" },
          h("h3", {}, brackets.length > 1 ? `Bracket ${bracket.bracket}` : "", h("small", {}, many(own.length, "trial"))),
          bracket.lengths.map((length, rung) => rungOf(own, rung, length, plan.time_metric)).reverse(),
        );
      }),
    );
  }
}

function rungOf(trials, rung, length, unit) {
  const reached = trials.filter((trial) => trial.rung !== null && trial.rung >= rung).length;
  const bar = h("meter", { min: "0", max: String(Math.max(1, trials.length)), value: reached, "aria-hidden": "true" });
  return h(
    "div",
    { class: "rung", title: `${many(reached, "trial")} reached ${short(length)} ${unit}` },
    h("span", { class: "number" }, short(length)),
    bar,
    h("span", { class: "number" }, String(reached)),
  );
}
