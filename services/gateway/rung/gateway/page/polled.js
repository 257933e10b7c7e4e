// A view that asks for what it shows every so often, while it is seen.

import { h, say } from "./dom.js";

const EVERY_MS = 5000;

/** A view of this kind has a method `load(signal)`, which shows what it found. */
export class Polled {
  constructor(tellLive) {
    this.tellLive = tellLive;
    this.note = h("p", { class: "empty" }, "Loading…");
    this.body = h("div", { class: "parts", hidden: true });
    this.element = h("section", { class: "page" }, this.note, this.body);
  }

  start() {
    this.control = new AbortController();
    this.#poll(this.control.signal);
  }

  stop() {
    this.control?.abort();
    this.control = null;
  }

  /** Asks again now. */
  reload() {
    if (!this.control) return;
    this.stop();
    this.start();
  }

  async #poll(signal) {
    while (!signal.aborted) {
      try {
        await this.load(signal);
        this.#reveal(true);
        this.tellLive("on", "live");
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 0) this.tellLive("off", "not connected");
        say(this.note, error.message);
        if ([403, 404].includes(error.status)) this.#reveal(false);
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  #reveal(known) {
    this.note.hidden = known;
    this.body.hidden = !known;
  }
}
