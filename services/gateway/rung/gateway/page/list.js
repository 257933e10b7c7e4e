// All experiments, the newest first, or those that a filter selects, which stands in the address.

import { get, getAll } from "./api.js";
import { Bulk } from "./bulk.js";
import { badge, h, keyed, say } from "./dom.js";
import { ago, duration, many, moment, percent, seconds, short } from "./format.js";
import { SavedSearches } from "./saved_searches.js";

const EVERY_MS = 2500;
const FIELDS =
  "All terms must hold: a word, field:value or a comparison; - in front means not. Fields: id, name, state, owner, " +
  "label, workspace, project, pool, method, submitted, ended, older, newer, trials, best, size, archived, metric.NAME, hp.NAME";
const STATES = ["active", "paused", "canceling", "completed", "errored", "canceled"];

export class ListPage {
  constructor(tellLive) {
    this.tellLive = tellLive;
    this.limit = 50;
    document.title = "Experiments · Rung";
    this.rows = h("tbody", {});
    this.note = h("p", { class: "empty" }, "Loading…");
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.#more() }, "Show more");
    this.states = h(
      "select",
      { "aria-label": "Which experiments", onchange: () => this.#choose() },
      h("option", { value: "" }, "all states"),
      STATES.map((name) => h("option", { value: name }, name)),
    );
    this.places = new Places((filter) => {
      this.filter.value = filter;
      this.#choose();
    });
    this.saved = new SavedSearches(
      () => [this.filter.value.trim(), this.states.value && `state:${this.states.value}`].filter(Boolean).join(" "),
      (filter) => {
        this.filter.value = filter;
        this.states.value = "";
        this.#choose();
      },
    );
    this.filter = h("input", {
      type: "search",
      placeholder: "Words, or best<0.1 older:7d",
      title: FIELDS,
      "aria-label": "Words in names, labels, descriptions and hyperparameters, or terms of a filter",
      maxlength: "2000",
      size: "28",
      oninput: () => this.#choose(),
    });
    this.wrong = h("p", { class: "problem", role: "alert", hidden: true });
    const names = ["Name", "State", "Progress", "Method", "Trials", "Best", "Time", "Submitted"];
    const looks = { Trials: "number" };
    this.bulk = new Bulk(() => this.#restart());
    const heads = names.map((name) => h("th", { scope: "col", class: looks[name] }, name));
    this.table = h(
      "table",
      { class: "list", hidden: true },
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "choose" }, this.bulk.all), heads)),
      this.rows,
    );
    this.element = h(
      "section",
      { class: "page" },
      h(
        "div",
        { class: "headline" },
        h("h1", {}, "Experiments"),
        h("span", { class: "spring" }),
        this.places.elements,
        this.filter,
        this.states,
        this.saved.elements,
      ),
      this.wrong,
      this.bulk.element,
      h("div", { class: "panel scroll" }, this.table, this.note),
      this.more,
    );
  }

  /** Takes what the address asks for. */
  turnTo(_tab, query) {
    const [filter, state] = [query?.get("filter") ?? "", query?.get("state") ?? ""];
    if (filter === this.filter.value && state === this.states.value) return;
    this.filter.value = filter;
    this.states.value = STATES.includes(state) ? state : "";
    this.#showChoices();
    if (this.control) this.#restart();
  }

  start() {
    this.control = new AbortController();
    this.#poll(this.control.signal);
    this.saved.start(this.control.signal);
    this.places.start(this.control.signal);
  }

  #showChoices() {
    this.places.show(this.filter.value);
    this.saved.show();
  }

  stop() {
    this.control?.abort();
  }

  #choose() {
    this.#showChoices();
    const query = new URLSearchParams();
    if (this.filter.value.trim()) query.set("filter", this.filter.value.trim());
    if (this.states.value) query.set("state", this.states.value);
    history.replaceState(null, "", query.size ? `#/?${query}` : "#/");
    this.#restart();
  }

  #restart() {
    this.stop();
    this.start();
  }

  #more() {
    this.limit = Math.min(1000, this.limit * 2);
    this.#restart();
  }

  async #poll(signal) {
    while (!signal.aborted) {
      try {
        const query = { limit: this.limit, state: this.states.value, filter: this.filter.value.trim() };
        this.#show(await get("/experiments", query, signal));
        this.wrong.hidden = true;
        this.tellLive("on", "live");
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 400) {
          say(this.wrong, error.message);
          this.wrong.hidden = false;
          return;
        }
        this.tellLive("off", "not connected");
        if (this.table.hidden) say(this.note, error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  #show({ items, next_cursor: next }) {
    keyed(this.rows, items, (item) => item.id, (item) => row(item, this.bulk));
    this.bulk.keep(new Set(items.map(({ id }) => id)));
    this.table.hidden = !items.length;
    this.note.hidden = items.length > 0;
    this.more.hidden = !next || this.limit >= 1000;
    if (items.length) return;
    if (this.filter.value.trim()) say(this.note, "Of no experiment all of these terms hold.");
    else if (this.states.value) say(this.note, `No experiment is ${this.states.value}.`);
    else {
      this.note.replaceChildren(
        "No experiments yet. Submit one with ",
        h("code", {}, "rung submit experiment.yaml folder"),
        ".",
      );
    }
  }
}

const TERM = /(?:"(?:[^"\\]|\\.)*"|[^\s"])+/g;
const OTHER = "?";

/** Choices of a workspace and a project, which are terms of the filter. */
class Places {
  /** `choose` is called with the filter that has what was chosen. */
  constructor(choose) {
    this.choose = choose;
    this.filter = "";
    this.found = { workspace: [], project: [] };
    this.selects = {
      workspace: h("select", { "aria-label": "Workspace", onchange: () => this.#chosen(["workspace", "project"]) }),
      project: h("select", { "aria-label": "Project", onchange: () => this.#chosen(["project"]), hidden: true }),
    };
    this.elements = Object.values(this.selects);
    this.#fill("workspace", []);
  }

  /** Reads what there is to choose from, once. */
  async start(signal) {
    if (this.loaded) return;
    try {
      const [workspace, project] = await Promise.all([
        getAll("/workspaces", {}, signal),
        getAll("/projects", {}, signal),
      ]);
      this.found = { workspace, project };
      this.loaded = true;
    } catch {
      return; // read at the next start
    }
    this.#fill("workspace", this.found.workspace);
    this.show(this.filter);
  }

  /** Shows which ones a filter selects. */
  show(filter) {
    this.filter = filter;
    const place = this.#mark("workspace", this.found.workspace);
    const projects = this.found.project.filter((it) => it.workspace_id === place);
    this.selects.project.hidden = !projects.length;
    this.#fill("project", projects);
    this.#mark("project", projects);
  }

  #fill(field, items) {
    const named = [...items].sort((a, b) => a.name.localeCompare(b.name));
    const options = named.map(({ id, name }) => h("option", { value: id }, name));
    const other = h("option", { value: OTHER, hidden: true }, "as in the filter");
    this.selects[field].replaceChildren(h("option", { value: "" }, `all ${field}s`), ...options, other);
  }

  /** Chooses what the filter's term has; returns its id. */
  #mark(field, items) {
    const term = termsOf(this.filter).find((it) => it.startsWith(`${field}:`));
    const wanted = term?.slice(field.length + 1).replace(/^"(.*)"$/s, "$1").replace(/\\(.)/gs, "$1");
    const same = ({ id, name }) => id === wanted || name.toLowerCase() === wanted.toLowerCase();
    const found = wanted === undefined ? null : items.find(same);
    this.selects[field].value = found?.id ?? (term ? OTHER : "");
    return found?.id;
  }

  #chosen(fields) {
    const [field] = fields;
    const kept = termsOf(this.filter).filter((term) => !fields.some((it) => term.startsWith(`${it}:`)));
    const { value } = this.selects[field];
    this.choose([...kept, ...(value ? [`${field}:${value}`] : [])].join(" "));
  }
}

const termsOf = (filter) => filter.match(TERM) ?? [];

function row(item, bulk) {
  const href = `#/x/${encodeURIComponent(item.id)}`;
  const name = h("a", { href, class: "name" });
  const labels = h("span", { class: "labels" });
  const place = h("a", { class: "label", title: "Those in this workspace and project alone" });
  const state = h("td", {});
  const bar = h("progress", { max: "1", "aria-label": "progress" });
  const done = h("span", { class: "number" });
  const cells = Array.from({ length: 5 }, () => h("td", {}));
  const element = h(
    "tr",
    { onclick: (event) => event.target.closest("a, .choose") || (location.hash = href) },
    h("td", { class: "choose" }, bulk.box(item.id, item.name)),
    h("td", {}, name, h("code", { class: "id" }, item.id), place, labels),
    state,
    h("td", { class: "nowrap" }, bar, done),
    cells,
  );
  element.show = (now) => {
    say(name, now.name);
    say(place, `${now.workspace} / ${now.project}`);
    place.hidden = now.workspace_id === "default" && now.project_id === "default";
    place.href = `#/?filter=${encodeURIComponent(`workspace:${now.workspace_id} project:${now.project_id}`)}`;
    labels.replaceChildren(...now.labels.map((label) => h("span", { class: "label" }, label)));
    if (state.textContent !== now.state) state.replaceChildren(badge(now.state));
    const errored = now.failures.reduce((sum, { trials }) => sum + trials, 0);
    state.title = now.reason ?? now.failures[0]?.cause ?? "";
    bar.value = now.progress;
    bar.className = now.state;
    say(done, percent(now.progress));
    const best = now.best ? `${short(now.best.value)} ${now.best.metric}` : "–";
    const took = now.ended_at ? `took ${duration(seconds(now.submitted_at, now.ended_at))}` : null;
    const left = took ?? (now.eta_seconds === null ? "–" : `about ${duration(now.eta_seconds)}`);
    const trials = errored ? `${now.trial_count} (${errored} errored)` : String(now.trial_count);
    const texts = [now.method, trials, best, left, ago(now.submitted_at)];
    cells.forEach((cell, i) => say(cell, texts[i]));
    cells[1].className = "number";
    cells[4].title = moment(now.submitted_at);
    element.setAttribute("aria-label", `${now.name}, ${now.state}, ${many(now.trial_count, "trial")}`);
  };
  return element;
}
