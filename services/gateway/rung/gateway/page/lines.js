// Draws lines of trials on a canvas: some in each frame, so that the page stays fluent however many
// there are, and of very many only the best and an even choice of the others.

import { framed, h } from "./dom.js";
import { surface } from "./scale.js";

/** How many lines are drawn at most, of trials that are kept and as many of others. */
export const DRAWN = 2000;
const IN_A_FRAME = 150;

/** A canvas with lines; what it shows stays until all of what follows is drawn. */
export class Lines {
  constructor(board) {
    this.board = board;
    this.canvas = h("canvas", { class: "layer" });
    this.back = document.createElement("canvas");
    this.drawn = [];
    this.next = framed(this.canvas, () => this.#draw());
  }

  /**
   * Draws lines, which have the `id` of their trial and are sorted by rank, the best last. `paint`
   * draws one onto a context; `around`, called with a context and a function that draws some, may
   * set what holds for all of them.
   */
  draw(lines, paint, around = (_, draw) => draw()) {
    this.drawn = some(lines.filter(({ id }) => !this.board.isOut(id)));
    const behind = this.board.kept ? some(lines.filter(({ id }) => this.board.isOut(id))) : [];
    const all = [...behind, ...this.drawn];
    this.wanted = { all, paint, around, at: 0 };
    if (all.length > IN_A_FRAME) return this.next();
    this.going = null;
    this.#draw();
  }

  #draw() {
    if (!this.going) {
      [this.going, this.wanted] = [this.wanted, null];
      if (!this.going) return;
      this.context = surface(this.back, this.canvas).context;
    }
    const { all, paint, around, at } = this.going;
    around(this.context, () => all.slice(at, at + IN_A_FRAME).forEach((line) => paint(this.context, line)));
    this.going.at += IN_A_FRAME;
    if (this.going.at >= all.length) {
      this.going = null;
      const { context } = surface(this.canvas);
      context.setTransform(1, 0, 0, 1, 0, 0);
      if (this.back.width && this.back.height) context.drawImage(this.back, 0, 0);
    }
    if (this.going || this.wanted) this.next();
  }
}

/** Returns the best of many lines, and an even choice of the others. */
function some(lines) {
  if (lines.length <= DRAWN) return lines;
  const others = lines.length - DRAWN / 2;
  const chosen = Array.from({ length: DRAWN / 2 }, (_, i) => lines[Math.floor((i * others) / (DRAWN / 2))]);
  return [...chosen, ...lines.slice(others)];
}
