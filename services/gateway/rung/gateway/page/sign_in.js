// The form by which somebody signs in: the identity provider, a password, or a token.

import { setToken, signIn } from "./api.js";
import { h, say } from "./dom.js";

const WHY = {
  token:
    "The server does not accept this token. `rung up` makes a new one at each start:" +
    " open the address that it printed, or enter the new token here.",
  ended: "The session has ended. Sign in again.",
  expired: "The sign-in took too long, or was begun in another window. Try it again.",
  refused: "You were not let in. The administrators of this server see why in its log.",
  unavailable: "The identity provider does not answer. Try it again later.",
};

export class SignInForm {
  /** Makes the form for the ways that the server has; `done` is called once somebody is in. */
  constructor({ provider = null, passwords = false }, next, why, done) {
    this.done = done;
    this.problem = h("p", { class: "problem", role: "alert", hidden: !Object.hasOwn(WHY, why ?? "") }, WHY[why] ?? "");
    const start = `/api/v1/auth/start?next=${encodeURIComponent(next)}`;
    this.parts = [
      provider && h("a", { class: "button primary", id: "provider", href: start }, `Sign in with ${provider}`),
      passwords && this.#passwordForm(),
      this.#tokenForm(!provider && !passwords),
    ].filter(Boolean);
    this.element = h("section", { class: "signin panel" }, h("h1", {}, "Rung"), this.problem, this.parts);
  }

  focus() {
    this.element.querySelector("a.button, input")?.focus();
  }

  #passwordForm() {
    const name = h("input", { id: "name", autocomplete: "username", required: true, maxlength: "200" });
    const password = h("input", {
      type: "password",
      id: "password",
      autocomplete: "current-password",
      required: true,
      maxlength: "256",
    });
    const enter = async (event) => {
      event.preventDefault();
      try {
        await signIn(name.value, password.value);
      } catch (error) {
        password.value = "";
        say(this.problem, error.message);
        this.problem.hidden = false;
        return;
      }
      this.done();
    };
    return h(
      "form",
      { id: "with-password", onsubmit: enter },
      h("label", { for: "name" }, "Name"),
      name,
      h("label", { for: "password" }, "Password"),
      password,
      h("button", { type: "submit", class: "primary" }, "Sign in"),
    );
  }

  #tokenForm(open) {
    const input = h("input", {
      type: "password",
      id: "token",
      autocomplete: "off",
      required: true,
      "aria-describedby": "token-help",
    });
    const enter = (event) => {
      event.preventDefault();
      if (!input.value.trim()) return;
      setToken(input.value);
      this.done();
    };
    const form = h(
      "form",
      { id: "with-token", onsubmit: enter },
      h("label", { for: "token" }, "Token"),
      input,
      h(
        "p",
        { id: "token-help", class: "hint" },
        "That of ",
        h("code", {}, "rung up"),
        " lies in the file ",
        h("code", {}, "token"),
        " of the data folder (",
        h("code", {}, "~/.rung"),
        " unless said otherwise), and in the address that it prints.",
      ),
      h("button", { type: "submit", class: "primary" }, "Open"),
    );
    return open ? form : h("details", { open: true }, h("summary", {}, "With a token"), form);
  }
}
