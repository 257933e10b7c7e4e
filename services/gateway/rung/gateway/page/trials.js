// The table of trials: sortable, and in step with the curves.

import { badge, h, keyed, say } from "./dom.js";
import { flat, many, plain, same, short } from "./format.js";

const SHOWN = 150;

export class TrialTable {
  constructor(board) {
    this.board = board;
    this.sort = { name: "best", down: false };
    this.limit = SHOWN;
    this.trials = [];
    this.head = h("tr", {});
    this.rows = h("tbody", {});
    this.count = h("span", { class: "hint" });
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.#more() }, "Show all");
    this.element = h(
      "section",
      { class: "panel wide", "aria-label": "Trials" },
      h("div", { class: "controls" }, h("h2", {}, "Trials"), this.count, h("span", { class: "spring" }), this.more),
      h("div", { class: "scroll" }, h("table", { class: "trials" }, h("thead", {}, this.head), this.rows)),
    );
    this.rows.addEventListener("pointerleave", () => board.look(null));
  }

  set(experiment) {
    const { searcher } = experiment.config;
    this.trials = experiment.trials;
    this.smaller = searcher.smaller_is_better !== false;
    const columns = columnsOf(experiment, this.smaller);
    const names = columns.map(({ title }) => title).join();
    if (names !== this.names) {
      this.names = names;
      this.columns = columns;
      this.rows.replaceChildren();
      this.rows.keyedChildren = undefined;
      this.head.replaceChildren(...columns.map((column) => this.#heading(column)));
    }
    this.columns = columns;
    this.draw();
  }

  draw() {
    const column = this.columns.find(({ name }) => name === this.sort.name) ?? this.columns[0];
    const flip = this.sort.down ? -1 : 1;
    const sorted = this.trials
      .filter(({ id }) => !this.board.isOut(id))
      .sort((a, b) => compare(column.key(a), column.key(b), flip) || a.index - b.index);
    keyed(this.rows, sorted.slice(0, this.limit), ({ id }) => id, () => this.#row());
    this.more.hidden = sorted.length <= this.limit;
    say(this.count, many(sorted.length, "trial"));
    for (const cell of this.head.children) {
      const own = cell.dataset.name === column.name;
      cell.setAttribute("aria-sort", own ? (this.sort.down ? "descending" : "ascending") : "none");
    }
    this.mark();
  }

  /** Shows which trial is looked at and which is open. */
  mark() {
    const { hover, picked } = this.board;
    for (const row of this.rows.children) {
      row.classList.toggle("looked", row.trial === hover);
      row.classList.toggle("picked", row.trial === picked);
    }
  }

  #more() {
    this.limit = Infinity;
    this.draw();
  }

  #heading({ name, title, numeric }) {
    const turn = () => {
      this.sort = { name, down: this.sort.name === name && !this.sort.down };
      this.draw();
    };
    return h(
      "th",
      { scope: "col", "data-name": name, class: numeric ? "number" : "" },
      h("button", { type: "button", class: "sort", onclick: turn }, title),
    );
  }

  #row() {
    const cells = this.columns.map(({ numeric }) => h("td", { class: numeric ? "number" : "" }));
    const swatch = h("span", { class: "swatch" });
    const open = h("button", { type: "button", class: "plain" });
    cells[0].append(swatch, open);
    const row = h("tr", {}, cells);
    row.addEventListener("pointerenter", () => this.board.look(row.trial));
    row.addEventListener("click", () => this.board.pick(row.trial));
    row.show = (trial) => {
      row.trial = trial.id;
      const shown = this.board.trials.get(trial.id);
      swatch.style.background = trial.best ? shown?.color : "transparent";
      say(open, String(trial.index));
      open.setAttribute("aria-label", `Open trial ${trial.index}`);
      this.columns.forEach(({ name, text, hint }, i) => {
        if (i === 0) return;
        if (name === "state") {
          if (cells[i].textContent !== trial.state) cells[i].replaceChildren(badge(trial.state));
        } else say(cells[i], text(trial));
        cells[i].title = hint?.(trial) ?? "";
      });
    };
    return row;
  }
}

function columnsOf(experiment, smaller) {
  const metric = experiment.config.searcher.metric;
  const unit = experiment.plan?.time_metric ?? "batches";
  const columns = [
    { name: "index", title: "Trial", key: (t) => t.index },
    { name: "state", title: "State", key: (t) => t.state, hint: (t) => t.reason ?? t.message ?? "" },
    {
      name: "best",
      title: `Best ${metric}`,
      numeric: true,
      key: (t) => (t.best ? (smaller ? t.best.value : -t.best.value) : null),
      text: (t) => (t.best ? short(t.best.value) : "–"),
      hint: (t) => (t.best ? `at step ${t.best.steps}` : ""),
    },
    {
      name: "rung",
      title: "Rung",
      numeric: true,
      key: (t) => t.rung,
      text: (t) => (t.rung === null ? "–" : String(t.rung)),
    },
    {
      name: "units",
      title: unit[0].toUpperCase() + unit.slice(1),
      numeric: true,
      key: (t) => t.units,
      text: (t) => (t.length === null ? short(t.units) : `${short(t.units)} / ${short(t.length)}`),
    },
  ];
  if (experiment.trials.some((trial) => trial.restarts)) {
    columns.push({
      name: "restarts",
      title: "Restarts",
      numeric: true,
      key: (t) => t.restarts,
      text: (t) => String(t.restarts),
    });
  }
  for (const name of varying(experiment.trials)) {
    const value = (t) => flat(t.hparams).get(name);
    columns.push({
      name: `h:${name}`,
      title: name,
      numeric: experiment.trials.every((t) => ["number", "undefined"].includes(typeof value(t))),
      key: value,
      text: (t) => plain(value(t)),
    });
  }
  return columns;
}

/** Names of the hyperparameters that differ between trials; of a single trial all. */
function varying(trials) {
  const [first, several] = [new Map(), new Set()];
  for (const { hparams } of trials) {
    for (const [name, value] of flat(hparams)) {
      if (!first.has(name)) first.set(name, value);
      else if (!several.has(name) && !same(value, first.get(name))) several.add(name);
    }
  }
  return [...(trials.length === 1 ? first.keys() : several)].sort();
}

/** Orders two values; what is missing comes last in either direction. */
function compare(a, b, flip) {
  const [none, other] = [a === null || a === undefined, b === null || b === undefined];
  if (none || other) return Number(none) - Number(other);
  if (typeof a === "number" && typeof b === "number") return flip * (a - b);
  return flip * String(a).localeCompare(String(b), "en", { numeric: true });
}
