// Learning curves of all trials, drawn over each other. Three canvases lie on each other: the axes,
// all curves, and the one that is looked at, so that the pointer's moving draws one curve only.

import { framed, h, say } from "./dom.js";
import { bytes, duration, short } from "./format.js";
import { Lines } from "./lines.js";
import { linear, logarithmic, surface, tone } from "./scale.js";

const EDGE = { left: 58, right: 14, top: 12, bottom: 30 };
const NEAR = 28;
/** Pixels between the last tick of an axis and its unit. */
const BETWEEN = 8;
/** Readings that are so many usual distances apart have a gap between them: nothing ran. */
const APART = 8;

export class Curves {
  constructor(board) {
    this.board = board;
    this.curves = new Map();
    this.options = { log: false, smooth: 0, clip: false };
    this.canvas = h("canvas", {
      class: "curves",
      tabindex: "0",
      role: "img",
      "aria-label": "Learning curves. Arrow keys walk through the trials, Enter opens one.",
    });
    this.draw = framed(this.canvas, () => this.#draw());
    this.text = short;
    this.tip = h("div", { class: "tip", hidden: true });
    this.grid = h("canvas", { class: "layer" });
    this.all = new Lines(board);
    this.element = h("div", { class: "chart" }, this.grid, this.all.canvas, this.canvas, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#leave());
    this.canvas.addEventListener("click", () => this.board.pick(this.board.hover));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** Takes trial id → points of step (or seconds, if `timed`) and value of a metric; draws. */
  set(curves, { timed = false, metric = "" } = {}) {
    this.curves = curves;
    this.timed = timed;
    this.text = metric.endsWith("_bytes") ? bytes : short;
    this.draw();
  }

  /** Draws the curve that is looked at, and the others pale. */
  drawTop() {
    if (!this.frame || !this.canvas.isConnected) return;
    const { context } = surface(this.canvas);
    const looked = this.board.hover ?? this.board.picked;
    const line = this.lines.find(({ trial }) => trial.id === looked);
    this.all.canvas.classList.toggle("pale", Boolean(line));
    if (line) this.#inside(context, () => this.#line(context, line, true));
  }

  #draw() {
    const { context: under, width, height } = surface(this.grid);
    const frame = { x0: EDGE.left, x1: width - EDGE.right, y0: height - EDGE.bottom, y1: EDGE.top };
    this.lines = this.#lines();
    const [x, y] = this.#scales();
    this.place = (step, value) => [
      frame.x0 + x.at(step) * (frame.x1 - frame.x0),
      frame.y0 - y.at(value) * (frame.y0 - frame.y1),
    ];
    this.frame = frame;
    axes(under, frame, x, y);
    if (!this.lines.length) empty(under, width, height);
    this.all.draw(
      this.lines,
      (context, line) => this.#line(context, line, false),
      (context, draw) => this.#inside(context, draw),
    );
    this.drawTop();
  }

  #inside(context, paint) {
    const { x0, x1, y0, y1 } = this.frame;
    context.save();
    context.beginPath();
    context.rect(x0 - 4, y1 - 6, x1 - x0 + 8, y0 - y1 + 8);
    context.clip();
    paint();
    context.restore();
  }

  /** Lines to draw, the best last, so that they lie on top. */
  #lines() {
    return [...this.curves]
      .filter(([id, points]) => points.length && this.board.trials.has(id))
      .map(([id, points]) => ({ id, trial: this.board.trials.get(id), points: this.#smoothed(points) }))
      .sort((a, b) => b.trial.rank - a.trial.rank);
  }

  #smoothed(points) {
    const keep = this.options.smooth;
    if (!keep) return points;
    let mean = null;
    let weight = 0;
    return points.map(([step, value]) => {
      if (!Number.isFinite(value)) return [step, value];
      mean = keep * (mean ?? 0) + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
      return [step, mean / weight];
    });
  }

  #scales() {
    let [x0, x1, values] = [Infinity, -Infinity, []];
    for (const { points } of this.lines) {
      for (const [step, value] of points) {
        if (step < x0) x0 = step;
        if (step > x1) x1 = step;
        if (Number.isFinite(value) && !(this.options.log && value <= 0)) values.push(value);
      }
    }
    const up = (scale) => ({ ...scale, text: this.text });
    if (!values.length) return [{ ...linear(0, 1), label: "step", text: short }, up(linear(0, 1))];
    values = Float64Array.from(values).sort();
    const cut = this.options.clip ? Math.floor(values.length * 0.03) : 0;
    const [low, high] = [values[cut], values[values.length - 1 - cut]];
    const across = this.timed ? times(x0, x1) : { ...linear(x0, x1, 8), label: "step", text: short };
    if (this.options.log) return [across, up(logarithmic(low, high))];
    const room = (high - low) * 0.03;
    return [across, up(linear(low - room, high + room))];
  }

  #line(context, { trial, points }, chosen) {
    context.globalAlpha = chosen ? 1 : this.board.isOut(trial.id) ? 0.05 : 0.85;
    context.strokeStyle = context.fillStyle = trial.color;
    context.lineWidth = chosen ? 3 : trial.rank === 0 ? 2.4 : 1.3;
    context.lineJoin = context.lineCap = "round";
    context.beginPath();
    const apart = this.timed ? APART * usual(points) : Infinity;
    let before = -Infinity;
    const odd = [];
    for (const [step, value] of points) {
      if (!Number.isFinite(value) || (this.options.log && value <= 0)) {
        odd.push(step);
        before = -Infinity;
        continue;
      }
      const [px, py] = this.place(step, value);
      if (!(step - before <= apart)) context.moveTo(px, py);
      context.lineTo(px, py);
      before = step;
    }
    context.stroke();
    for (const step of odd) cross(context, this.place(step, 1)[0], this.frame.y0 - 6);
    const last = points.findLast(([, value]) => Number.isFinite(value));
    if (last && (chosen || points.length === 1 || trial.state === "running")) {
      context.beginPath();
      context.arc(...this.place(...last), chosen ? 4.5 : 2.8, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const [mx, my] = [event.clientX - box.left, event.clientY - box.top];
    let [best, found] = [NEAR ** 2, null];
    for (const { trial, points } of this.all.drawn) {
      for (const point of points) {
        if (!Number.isFinite(point[1])) continue;
        const [px, py] = this.place(...point);
        const distance = (px - mx) ** 2 + (py - my) ** 2;
        if (distance < best) [best, found] = [distance, { trial, point, px, py }];
      }
    }
    this.board.look(found?.trial.id ?? null);
    if (found) this.#tell(found);
    else this.tip.hidden = true;
  }

  #tell({ trial, point, px, py }) {
    const place = this.timed ? `after ${duration(point[0])}` : `at step ${short(point[0])}`;
    say(this.tip, `trial ${trial.index} · ${this.text(point[1])} ${place}`);
    this.tip.hidden = false;
    const room = this.element.clientWidth - this.tip.offsetWidth - 8;
    this.tip.style.left = `${Math.max(4, Math.min(px + 12, room))}px`;
    this.tip.style.top = `${Math.max(2, py - 34)}px`;
  }

  #leave() {
    this.tip.hidden = true;
    this.board.look(null);
  }

  #key(event) {
    const order = (this.lines ?? []).map(({ trial }) => trial).sort((a, b) => a.rank - b.rank);
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter") this.board.pick(this.board.hover);
    else if (event.key === "Escape") this.#leave();
    if (!step || !order.length) return;
    event.preventDefault();
    const at = order.findIndex(({ id }) => id === this.board.hover);
    const trial = order[at < 0 ? 0 : (at + step + order.length) % order.length];
    this.board.look(trial.id);
    const { points } = this.lines.find((line) => line.trial.id === trial.id);
    const point = points.findLast(([, value]) => Number.isFinite(value));
    if (!point) return;
    const [px, py] = this.place(...point);
    this.#tell({ trial, point, px, py });
  }
}

/** Returns the median distance between points. */
function usual(points) {
  const distances = points.slice(1).map(([step], i) => step - points[i][0]);
  return distances.sort((a, b) => a - b)[distances.length >> 1] ?? 0;
}

/** Returns a scale of seconds, with ticks in a unit that fits. */
function times(low, high) {
  const fits = ([, seconds]) => high - low >= 2 * seconds;
  const [label, size] = [["d", 86400], ["h", 3600], ["min", 60]].find(fits) ?? ["s", 1];
  const scale = linear(low / size, high / size, 8);
  const ticks = scale.ticks.map((tick) => tick * size);
  return { at: (seconds) => scale.at(seconds / size), ticks, label, text: (seconds) => short(seconds / size) };
}

function axes(context, frame, x, y) {
  context.strokeStyle = tone("--line");
  context.fillStyle = tone("--muted");
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const tick of y.ticks) {
    const py = Math.round(frame.y0 - y.at(tick) * (frame.y0 - frame.y1)) + 0.5;
    if (py > frame.y0 + 1 || py < frame.y1 - 8) continue;
    context.beginPath();
    context.moveTo(frame.x0, py);
    context.lineTo(frame.x1, py);
    context.stroke();
    context.fillText(y.text(tick), frame.x0 - 8, py);
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  const room = frame.x1 - context.measureText(x.label).width - BETWEEN;
  for (const tick of x.ticks) {
    const px = frame.x0 + x.at(tick) * (frame.x1 - frame.x0);
    const text = x.text(tick);
    if (px + context.measureText(text).width / 2 <= room) context.fillText(text, px, frame.y0 + 8);
  }
  context.textAlign = "right";
  context.fillText(x.label, frame.x1, frame.y0 + 8);
}

function cross(context, px, py) {
  context.lineWidth = 1.6;
  context.beginPath();
  context.moveTo(px - 3, py - 3);
  context.lineTo(px + 3, py + 3);
  context.moveTo(px + 3, py - 3);
  context.lineTo(px - 3, py + 3);
  context.stroke();
}

function empty(context, width, height) {
  context.fillStyle = tone("--muted");
  context.textAlign = "center";
  context.font = "13px system-ui, sans-serif";
  context.fillText("Nothing reported yet", width / 2, height / 2);
}
