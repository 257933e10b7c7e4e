// What trials print, live, with filters.

import { follow, get } from "./api.js";
import { h, say } from "./dom.js";
import { clock, moment } from "./format.js";

const LINES_MAX = 4000;
const TEXT_MAX = 4000;
const LEVELS = ["debug", "info", "warning", "error", "critical"];
const COLOURS = /\u001b\[[0-9;?]*[A-Za-z]/g;

export class LogsTab {
  constructor(page) {
    this.page = page;
    this.count = 0;
    const again = () => this.enter(this.signal);
    this.trial = h("input", {
      type: "number",
      min: "0",
      placeholder: "all",
      "aria-label": "Trial",
      onchange: again,
    });
    this.rank = h("input", { type: "number", min: "0", placeholder: "all", "aria-label": "Rank", onchange: again });
    this.level = h(
      "select",
      { "aria-label": "Least level", onchange: again },
      h("option", { value: "" }, "all levels"),
      LEVELS.map((name) => h("option", { value: name }, name === "critical" ? name : `${name} or worse`)),
    );
    this.text = h("input", {
      type: "search",
      placeholder: "containing …",
      "aria-label": "Lines containing",
      oninput: () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(again, 300);
      },
    });
    this.stick = h("input", { type: "checkbox", checked: true, onchange: () => this.#toEnd() });
    this.lines = h("div", { class: "lines", tabindex: "0", role: "log", "aria-label": "Printed lines" });
    this.note = h("span", { class: "hint", role: "status" });
    this.earlier = h("button", { type: "button", class: "small", onclick: () => this.#earlier() }, "Load earlier");
    this.element = h(
      "section",
      { class: "panel" },
      h(
        "div",
        { class: "controls" },
        h("label", {}, "trial", this.trial),
        h("label", {}, "rank", this.rank),
        this.level,
        this.text,
        this.note,
        h("span", { class: "spring" }),
        this.earlier,
        h("label", {}, this.stick, "follow"),
      ),
      this.lines,
    );
    this.lines.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.lines;
      this.stick.checked = scrollTop + clientHeight >= scrollHeight - 8;
    });
  }

  take(query) {
    if (query.has("trial")) this.trial.value = query.get("trial");
  }

  update(experiment) {
    const first = !this.experiment;
    this.experiment = experiment;
    if (first && this.signal) this.enter(this.signal);
  }

  /** Shows the newest lines, then what comes; anew whenever a filter changes. */
  async enter(signal) {
    this.signal = signal;
    this.round?.abort();
    if (!signal || signal.aborted || !this.experiment) return;
    this.round = new AbortController();
    signal.addEventListener("abort", () => this.round.abort(), { once: true });
    const own = this.round.signal;
    const { rank, level } = this.#query();
    let waiting = [];
    follow(`${this.#path()}/stream`, {
      signal: own,
      query: { from: "now", rank, level },
      onEvent: (_, batch) => {
        if (waiting) waiting.push(batch);
        else this.#add(batch);
      },
    });
    say(this.note, "loading…");
    try {
      const found = await this.#before(own);
      this.lines.replaceChildren(...found.map(lineOf));
      const seen = new Set(found.slice(-1000).map(keyOf));
      for (const batch of waiting) this.#add(batch, seen);
      waiting = null;
      this.stick.checked = true;
      this.#toEnd();
      this.#tell();
    } catch (error) {
      if (!own.aborted) say(this.note, error.message);
    }
  }

  #path() {
    const index = this.trial.value.trim();
    if (!index) return `${this.page.path}/logs`;
    return `/trials/${encodeURIComponent(`${this.experiment.id}.${index}`)}/logs`;
  }

  #query() {
    return { rank: this.rank.value, level: this.level.value, text: this.text.value.trim() };
  }

  /** Returns the newest lines, or those before the ones that are shown. */
  async #before(signal, after = null) {
    const query = { ...this.#query(), order: "newest", limit: LINES_MAX / 2, after };
    const { items, next_cursor: cursor } = await get(this.#path(), query, signal);
    this.cursor = cursor;
    return items.reverse();
  }

  async #earlier() {
    if (!this.cursor || !this.round) return;
    const height = this.lines.scrollHeight;
    const found = await this.#before(this.round.signal, this.cursor);
    this.lines.prepend(...found.map(lineOf));
    this.lines.scrollTop += this.lines.scrollHeight - height;
    this.#tell();
  }

  #add({ trial_id: id, run, lines }, seen) {
    const wanted = this.text.value.trim().toLowerCase();
    const added = lines
      .map((line) => ({ ...line, trial_id: id, run }))
      .filter((line) => !wanted || line.text.toLowerCase().includes(wanted))
      .filter((line) => !seen?.has(keyOf(line)));
    if (!added.length) return;
    this.lines.append(...added.map(lineOf));
    while (this.stick.checked && this.lines.childElementCount > LINES_MAX) this.lines.firstChild.remove();
    this.#toEnd();
    this.#tell();
  }

  #toEnd() {
    if (this.stick.checked) this.lines.scrollTop = this.lines.scrollHeight;
  }

  #tell() {
    this.earlier.hidden = !this.cursor;
    say(this.note, this.lines.childElementCount ? "" : "No line is like that.");
  }
}

const keyOf = (line) => `${line.trial_id}|${line.run}|${line.rank}|${line.time_ms}|${line.text}`;

function lineOf(line) {
  let text = line.text.replace(COLOURS, "");
  if (text.length > TEXT_MAX) text = `${text.slice(0, TEXT_MAX)} … ${text.length - TEXT_MAX} more characters`;
  const rank = line.rank ? `/${line.rank}` : "";
  return h(
    "div",
    { class: `line ${line.level} ${line.stream}` },
    h("time", { title: moment(line.time_ms) }, clock(line.time_ms, true)),
    h("span", { class: "who" }, `${line.trial_id.split(".").pop()}${rank}`),
    h("span", { class: "text" }, text),
  );
}
