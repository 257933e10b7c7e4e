// All experiments, the newest first, or those that a search finds.

import { get } from "./api.js";
import { badge, h, keyed, say } from "./dom.js";
import { ago, duration, many, moment, percent, seconds, short } from "./format.js";

const EVERY_MS = 2500;
const STATES = ["active", "paused", "canceling", "completed", "errored", "canceled"];

export class ListPage {
  constructor(tellLive) {
    this.tellLive = tellLive;
    this.limit = 50;
    this.state = "";
    document.title = "Experiments · Rung";
    this.rows = h("tbody", {});
    this.note = h("p", { class: "empty" }, "Loading…");
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.#more() }, "Show more");
    const state = h(
      "select",
      { "aria-label": "Which experiments", onchange: () => this.#choose(state.value) },
      h("option", { value: "" }, "all states"),
      STATES.map((name) => h("option", { value: name }, name)),
    );
    this.words = h("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": "Words in names, labels, descriptions and hyperparameters",
      maxlength: "500",
      oninput: () => this.#choose(state.value),
    });
    const names = ["Name", "State", "Progress", "Method", "Trials", "Best", "Time", "Submitted"];
    const looks = { Trials: "number" };
    const heads = names.map((name) => h("th", { scope: "col", class: looks[name] }, name));
    this.table = h(
      "table",
      { class: "list", hidden: true },
      h("thead", {}, h("tr", {}, heads)),
      this.rows,
    );
    this.element = h(
      "section",
      { class: "page" },
      h("div", { class: "headline" }, h("h1", {}, "Experiments"), h("span", { class: "spring" }), this.words, state),
      h("div", { class: "panel scroll" }, this.table, this.note),
      this.more,
    );
  }

  start() {
    this.control = new AbortController();
    this.#poll(this.control.signal);
  }

  stop() {
    this.control?.abort();
  }

  #choose(state) {
    this.state = state;
    this.stop();
    this.start();
  }

  #more() {
    this.limit = Math.min(1000, this.limit * 2);
    this.#choose(this.state);
  }

  async #poll(signal) {
    while (!signal.aborted) {
      try {
        const query = { limit: this.limit, state: this.state, q: this.words.value.trim() };
        this.#show(await get("/experiments", query, signal));
        this.tellLive("on", "live");
      } catch (error) {
        if (signal.aborted) return;
        this.tellLive("off", "not connected");
        if (this.table.hidden) say(this.note, error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  #show({ items, next_cursor: next }) {
    keyed(this.rows, items, (item) => item.id, row);
    this.table.hidden = !items.length;
    this.note.hidden = items.length > 0;
    this.more.hidden = !next || this.limit >= 1000;
    if (items.length) return;
    if (this.words.value.trim()) say(this.note, "No experiment has all of these words.");
    else if (this.state) say(this.note, `No experiment is ${this.state}.`);
    else {
      this.note.replaceChildren(
        "No experiments yet. Submit one with ",
        h("code", {}, "rung submit experiment.yaml folder"),
        ".",
      );
    }
  }
}

function row(item) {
  const href = `#/x/${encodeURIComponent(item.id)}`;
  const name = h("a", { href, class: "name" });
  const labels = h("span", { class: "labels" });
  const state = h("td", {});
  const bar = h("progress", { max: "1", "aria-label": "progress" });
  const done = h("span", { class: "number" });
  const cells = Array.from({ length: 5 }, () => h("td", {}));
  const element = h(
    "tr",
    { onclick: (event) => event.target.closest("a") || (location.hash = href) },
    h("td", {}, name, h("code", { class: "id" }, item.id), labels),
    state,
    h("td", { class: "nowrap" }, bar, done),
    cells,
  );
  element.show = (now) => {
    say(name, now.name);
    labels.replaceChildren(...now.labels.map((label) => h("span", { class: "label" }, label)));
    if (state.textContent !== now.state) state.replaceChildren(badge(now.state));
    state.title = now.reason ?? "";
    bar.value = now.progress;
    bar.className = now.state;
    say(done, percent(now.progress));
    const best = now.best ? `${short(now.best.value)} ${now.best.metric}` : "–";
    const took = now.ended_at ? `took ${duration(seconds(now.submitted_at, now.ended_at))}` : null;
    const left = took ?? (now.eta_seconds === null ? "–" : `about ${duration(now.eta_seconds)}`);
    const texts = [now.method, String(now.trial_count), best, left, ago(now.submitted_at)];
    cells.forEach((cell, i) => say(cell, texts[i]));
    cells[1].className = "number";
    cells[4].title = moment(now.submitted_at);
    element.setAttribute("aria-label", `${now.name}, ${now.state}, ${many(now.trial_count, "trial")}`);
  };
  return element;
}
