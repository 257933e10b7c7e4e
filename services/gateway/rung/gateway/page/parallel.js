// Hyperparameters against the metric: one axis each, one line per trial. Dragging along an axis
// keeps the trials within that range, here and in the curves and the table. Two canvases lie on each
// other: the lines, and the axes with the line that is looked at.

import { framed, h, say } from "./dom.js";
import { flat, plain, same, short } from "./format.js";
import { Lines } from "./lines.js";
import { linear, logarithmic, surface, tone } from "./scale.js";

const EDGE = { left: 46, right: 46, top: 30, bottom: 22 };

export class Parallel {
  constructor(board) {
    this.board = board;
    this.axes = [];
    this.rows = [];
    this.ranges = new Map();
    this.canvas = h("canvas", {
      class: "parallel",
      role: "img",
      "aria-label": "Hyperparameters against the metric, one line per trial; the table has the same.",
    });
    this.draw = framed(this.canvas, () => this.#draw());
    this.tip = h("div", { class: "tip", hidden: true });
    this.all = new Lines(board);
    this.element = h("div", { class: "chart" }, this.all.canvas, this.canvas, this.tip);
    this.canvas.addEventListener("pointerdown", (event) => this.#press(event));
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    this.canvas.addEventListener("pointerup", () => this.#release());
    this.canvas.addEventListener("pointerleave", () => !this.drag && this.#leave());
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** Takes the experiment as the gateway shows it; draws. */
  set(experiment, metric) {
    this.rows = experiment.trials.map((trial) => ({
      id: trial.id,
      rank: this.board.trials.get(trial.id)?.rank ?? 1,
      hparams: flat(trial.hparams),
      value: trial.best?.value,
    }));
    this.axes = axesOf(this.rows, experiment.config.hyperparameters, metric);
    this.element.parentElement.hidden = this.axes.length < 2;
    if (this.ranges.size) this.#filter();
    this.draw();
  }

  /** Gives up all ranges. */
  clear() {
    this.ranges.clear();
    this.#filter();
  }

  /** Draws the axes and the line that is looked at, and the others pale. */
  drawTop() {
    if (!this.frame || !this.canvas.isConnected) return;
    const { context } = surface(this.canvas);
    const looked = this.board.hover ?? this.board.picked;
    const path = this.paths.find(({ id }) => id === looked);
    this.all.canvas.classList.toggle("pale", Boolean(path));
    if (path) this.#stroke(context, path, true);
    this.axes.forEach((axis, index) => this.#axis(context, axis, index));
  }

  #draw() {
    const { width, height } = this.canvas.getBoundingClientRect();
    this.frame = { x0: EDGE.left, x1: width - EDGE.right, y0: height - EDGE.bottom, y1: EDGE.top };
    const { x0, x1 } = this.frame;
    this.axes.forEach((axis, index) => {
      axis.x = this.axes.length > 1 ? x0 + (index / (this.axes.length - 1)) * (x1 - x0) : (x0 + x1) / 2;
    });
    this.paths = this.rows.map((row) => this.#path(row)).filter((path) => path.points.length > 1);
    this.paths.sort((a, b) => b.rank - a.rank);
    this.all.draw(this.paths, (context, path) => this.#stroke(context, path, false));
    this.drawTop();
  }

  #path(row) {
    const points = [];
    for (const axis of this.axes) {
      const place = axis.at(valueOf(row, axis.name), row.rank);
      if (Number.isFinite(place)) points.push([axis.x, this.#y(place)]);
    }
    return { id: row.id, rank: row.rank, points, whole: points.length === this.axes.length };
  }

  #y(place) {
    return this.frame.y0 - place * (this.frame.y0 - this.frame.y1);
  }

  #stroke(context, { id, points, whole }, chosen) {
    const trial = this.board.trials.get(id);
    if (!trial) return;
    context.globalAlpha = chosen ? 1 : this.board.isOut(id) ? 0.05 : whole ? 0.7 : 0.18;
    context.strokeStyle = trial.color;
    context.lineWidth = chosen ? 3 : trial.rank === 0 ? 2.4 : 1.3;
    context.beginPath();
    context.moveTo(...points[0]);
    for (let i = 1; i < points.length; i += 1) {
      const [[ax, ay], [bx, by]] = [points[i - 1], points[i]];
      const middle = (ax + bx) / 2;
      context.bezierCurveTo(middle, ay, middle, by, bx, by);
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  #axis(context, axis, index) {
    const { y0, y1 } = this.frame;
    const right = index === this.axes.length - 1;
    context.strokeStyle = tone("--axis");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(axis.x, y0);
    context.lineTo(axis.x, y1);
    context.stroke();
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = index === 0 ? "left" : right ? "right" : "center";
    const shift = index === 0 ? -EDGE.left + 6 : right ? EDGE.right - 6 : 0;
    context.fillStyle = tone("--text");
    context.textBaseline = "alphabetic";
    const room = (this.frame.x1 - this.frame.x0) / Math.max(1, this.axes.length - 1) - 8;
    context.fillText(cut(context, axis.label, room), axis.x + shift, y1 - 14);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = right ? "left" : "right";
    context.fillStyle = tone("--muted");
    const side = right ? 6 : -6;
    for (const [place, text] of axis.marks) {
      halo(context, cut(context, text, 64), axis.x + side, this.#y(place));
    }
    const range = this.ranges.get(axis.name);
    if (range) {
      context.fillStyle = tone("--brush");
      context.fillRect(axis.x - 6, this.#y(range[1]), 12, this.#y(range[0]) - this.#y(range[1]));
    }
  }

  #spot(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const place = (this.frame.y0 - y) / (this.frame.y0 - this.frame.y1);
    const axis = this.axes.find((each) => Math.abs(each.x - x) < 12);
    return { x, y, axis, place: Math.min(1.02, Math.max(-0.02, place)) };
  }

  #press(event) {
    const { axis, place } = this.#spot(event);
    if (!axis) return this.board.pick(this.board.hover);
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { axis, from: place };
    this.ranges.delete(axis.name);
    this.#filter();
  }

  #move(event) {
    const spot = this.#spot(event);
    this.canvas.style.cursor = spot.axis ? "ns-resize" : "default";
    if (this.drag) {
      const { axis, from } = this.drag;
      const range = [Math.min(from, spot.place), Math.max(from, spot.place)];
      if (range[1] - range[0] > 0.015) this.ranges.set(axis.name, range);
      return this.#filter();
    }
    const id = this.#nearest(spot);
    this.board.look(id);
    this.tip.hidden = !id;
    if (!id) return;
    const row = this.rows.find((each) => each.id === id);
    const trial = this.board.trials.get(id);
    say(this.tip, `trial ${trial.index} · ${short(row.value)}`);
    this.tip.style.left = `${Math.min(spot.x + 12, this.element.clientWidth - this.tip.offsetWidth - 8)}px`;
    this.tip.style.top = `${Math.max(2, spot.y - 34)}px`;
  }

  /** The trial whose line passes closest above or below the pointer. */
  #nearest({ x, y }) {
    let [best, found] = [12, null];
    for (const { id, points } of this.all.drawn) {
      const after = points.findIndex(([px]) => px >= x);
      if (after < 1) continue;
      const [[ax, ay], [bx, by]] = [points[after - 1], points[after]];
      const t = (x - ax) / (bx - ax);
      const distance = Math.abs(ay + (by - ay) * t * t * (3 - 2 * t) - y);
      if (distance < best) [best, found] = [distance, id];
    }
    return found;
  }

  #release() {
    this.drag = null;
  }

  #leave() {
    this.tip.hidden = true;
    this.board.look(null);
  }

  #filter() {
    if (!this.ranges.size) return this.board.keep(null);
    const inside = (row) =>
      [...this.ranges].every(([name, [low, high]]) => {
        const place = this.axes.find((axis) => axis.name === name)?.at(valueOf(row, name));
        return place >= low && place <= high;
      });
    this.board.keep(new Set(this.rows.filter(inside).map((row) => row.id)));
  }
}

const METRIC = "\0metric";

const valueOf = (row, name) => (name === METRIC ? row.value : row.hparams.get(name));

/** Axes of the hyperparameters that differ between trials, and of the metric. */
function axesOf(rows, declared, metric) {
  const kinds = new Map(declarations(declared));
  const names = new Set();
  for (const { hparams } of rows) for (const name of hparams.keys()) names.add(name);
  const axes = [];
  for (const name of [...names].sort()) {
    const values = rows.map(({ hparams }) => hparams.get(name)).filter((value) => value !== undefined);
    if (values.some((value) => !same(value, values[0]))) axes.push(axisOf(name, name, values, kinds.get(name)));
  }
  const best = rows.map(({ value }) => value).filter((value) => Number.isFinite(value));
  axes.push(axisOf(METRIC, metric, best, null));
  return axes;
}

function axisOf(name, label, values, kind) {
  const numeric = kind !== "categorical" && values.every((value) => typeof value === "number");
  if (!numeric) return categories(name, label, values);
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (!values.length) [low, high] = [0, 1];
  const scale = kind === "log" && low > 0 ? logarithmic(low, high, 5) : linear(low, high, 5);
  const at = (value) => (typeof value === "number" ? scale.at(value) : NaN);
  return { name, label, at, marks: scale.ticks.map((tick) => [scale.at(tick), short(tick)]) };
}

function categories(name, label, values) {
  const texts = [...new Set(values.map((value) => JSON.stringify(value)))].sort((a, b) =>
    a.localeCompare(b, "en", { numeric: true }),
  );
  const places = new Map(texts.map((text, i) => [text, (i + 0.5) / texts.length]));
  const marks = texts.length > 40 ? [] : texts.map((text) => [places.get(text), plain(JSON.parse(text))]);
  // Within a category the better trials lie higher, so that its lines can be told apart.
  const spread = 0.55 / texts.length;
  const at = (value, rank = 0.5) => (places.get(JSON.stringify(value)) ?? NaN) + (0.5 - rank) * spread;
  return { name, label, at, marks };
}

/** Pairs of dotted name and kind: `["optimizer.lr", "log"]`. */
function declarations(declared, prefix = "") {
  return Object.entries(declared ?? {}).flatMap(([name, value]) => {
    if (value === null || typeof value !== "object" || Array.isArray(value)) return [];
    if (typeof value.type === "string") return [[prefix + name, value.type]];
    return declarations(value, `${prefix}${name}.`);
  });
}

function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > room) end -= 1;
  return `${text.slice(0, end)}…`;
}

function halo(context, text, x, y) {
  context.strokeStyle = tone("--panel");
  context.lineWidth = 3;
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}
