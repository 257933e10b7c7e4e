// The experiment file, as it was written and as it was understood.

import { h, say } from "./dom.js";

export class ConfigTab {
  constructor() {
    this.source = h("pre", { tabindex: "0" });
    this.full = h("pre", { tabindex: "0" });
    this.code = h("p", { class: "hint" });
    this.element = h(
      "div",
      { class: "search" },
      h("section", { class: "panel" }, h("div", { class: "controls" }, h("h2", {}, "As written")), this.source),
      h(
        "section",
        { class: "panel" },
        h("div", { class: "controls" }, h("h2", {}, "With every default")),
        this.full,
        this.code,
      ),
    );
  }

  update(experiment) {
    say(this.source, experiment.source);
    say(this.full, JSON.stringify(experiment.config, null, 2));
    say(this.code, experiment.code_digest ? `code: SHA-256 ${experiment.code_digest}` : "no code folder");
  }
}
