// Checkpoints: which are there, which are gone and why.

import { fetchBlob, getAll } from "./api.js";
import { badge, h, keyed, paced, say, toast } from "./dom.js";
import { ago, bytes, many, moment, short } from "./format.js";

const BROWSER_MAX = 512 * 1024 * 1024;
const COUNTS = new Set(["batches", "epochs", "records"]);
const HEADS = ["Trial", "Step", "State", "Metrics", "Size", "Stored", "Why", ""];
const NUMBERS = new Set(["Trial", "Step", "Size"]);

export class CheckpointsTab {
  constructor(page) {
    this.page = page;
    this.gone = h("input", { type: "checkbox", onchange: () => this.draw() });
    this.count = h("span", { class: "hint" });
    this.area = h("span", { class: "hint" });
    this.rows = h("tbody", {});
    this.note = h("p", { class: "empty" }, "Loading…");
    const heads = HEADS.map((text) => h("th", { scope: "col", class: looks(text) }, text));
    this.element = h(
      "section",
      { class: "panel" },
      h(
        "div",
        { class: "controls" },
        h("h2", {}, "Checkpoints"),
        this.count,
        this.area,
        h("span", { class: "spring" }),
        h("label", {}, this.gone, "show deleted ones"),
      ),
      h(
        "div",
        { class: "scroll" },
        h("table", {}, h("thead", {}, h("tr", {}, heads)), this.rows),
      ),
      this.note,
    );
    this.items = null;
    this.reload = paced(() => this.#load(), 1000);
  }

  enter(signal) {
    this.signal = signal;
    this.reload();
  }

  update(experiment) {
    this.metric = experiment.config.searcher.metric;
    say(this.area, experiment.storage ? `in storage ${experiment.storage}` : "");
    this.reload();
  }

  async #load() {
    if (!this.signal || this.signal.aborted) return;
    try {
      this.items = await getAll(`${this.page.path}/checkpoints`, {}, this.signal);
      this.draw();
    } catch (error) {
      if (!this.signal.aborted) say(this.note, error.message);
    }
  }

  draw() {
    if (!this.items) return;
    const there = this.items.filter(({ state }) => state !== "deleted");
    const shown = (this.gone.checked ? this.items : there).toReversed();
    keyed(this.rows, shown, ({ id }) => id, (item) => row(item, this.metric));
    const size = there.reduce((sum, item) => sum + item.size_bytes, 0);
    say(this.count, `${many(there.length, "checkpoint")}, ${bytes(size)}; ${this.items.length - there.length} deleted`);
    this.note.hidden = shown.length > 0;
    say(this.note, this.items.length ? "All checkpoints are deleted." : "No checkpoint was stored yet.");
  }
}

function looks(head) {
  return NUMBERS.has(head) ? "number" : "";
}

function row(item, metric) {
  const cells = HEADS.map((text) => h("td", { class: looks(text) }));
  const fetchIt = h("button", { type: "button", class: "small" }, "Download");
  const copy = h("button", { type: "button", class: "small" }, "Copy command");
  cells.at(-1).append(fetchIt, copy);
  cells.at(-1).className = "buttons";
  fetchIt.addEventListener("click", () => download(item, fetchIt));
  copy.addEventListener("click", () => copyCommand(item));
  const element = h("tr", {}, cells);
  element.show = (now) => {
    say(cells[0], now.trial_id.split(".").pop());
    say(cells[1], short(now.steps_completed));
    if (cells[2].textContent !== now.state) cells[2].replaceChildren(badge(now.state));
    const all = Object.entries(now.metrics).filter(([name]) => !COUNTS.has(name));
    const metrics = all.sort(([a], [b]) => Number(b === metric) - Number(a === metric));
    say(cells[3], metrics.map(([name, value]) => `${name} ${short(value)}`).join(", "));
    say(cells[4], bytes(now.size_bytes));
    cells[4].title = many(now.file_count, "file");
    say(cells[5], ago(now.stored_at));
    cells[5].title = moment(now.stored_at);
    say(cells[6], now.pinned_by.length ? `used by ${now.pinned_by.join(", ")}` : (now.reason ?? ""));
    fetchIt.hidden = now.state === "deleted" || now.size_bytes > BROWSER_MAX;
    copy.hidden = now.state === "deleted";
  };
  return element;
}

async function download(item, button) {
  button.disabled = true;
  try {
    const blob = await fetchBlob(`/checkpoints/${encodeURIComponent(item.id)}/archive`);
    const url = URL.createObjectURL(blob);
    h("a", { href: url, download: `${item.id}.tar` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (error) {
    toast(error.message, "error");
  }
  button.disabled = false;
}

async function copyCommand(item) {
  const command = `rung download ${item.id}`;
  try {
    await navigator.clipboard.writeText(command);
    toast(`Copied: ${command}`);
  } catch {
    toast(`In a terminal: ${command}`);
  }
}
