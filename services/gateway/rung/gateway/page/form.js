// Dialogs that ask for values.

import { h, modal, say } from "./dom.js";

/**
 * Asks for values in a dialog. A field has `name` and `label`, and may have `type` (of an input, or
 * `textarea`), `value`, `options` (of a choice: pairs of value and text), `suggestions`, `hint` and
 * further attributes. `work` gets the values by name; what it throws is shown, and the dialog stays.
 * Resolves to what `work` returned, null where the dialog was left.
 */
export async function asked({ title, text, fields, action }, work) {
  let answer = null;
  const inputs = new Map();
  const rows = fields.map((field) => {
    const { input, row } = rowOf(field);
    inputs.set(field.name, input);
    return row;
  });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const submit = h("button", { type: "submit", class: "primary" }, action);
  const enter = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    problem.hidden = true;
    try {
      answer = await work(Object.fromEntries([...inputs].map(([name, input]) => [name, input.value])));
      dialog.close("done");
    } catch (error) {
      say(problem, error.message);
      problem.hidden = false;
    }
    submit.disabled = false;
  };
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "dialog-title" },
    h(
      "form",
      { onsubmit: enter },
      h("h2", { id: "dialog-title" }, title),
      text ? h("p", {}, text) : null,
      rows,
      problem,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close("") }, "Back"), submit),
    ),
  );
  await modal(dialog);
  return answer;
}

/** Shows a secret, this once: it goes with the dialog, which only its button closes. */
export async function shownOnce(title, text, secret) {
  const input = h("input", { id: "secret", readonly: true, value: secret, onfocus: () => input.select() });
  const stay = (event) => (event.type === "cancel" || event.key === "Escape") && event.preventDefault();
  const copied = h("span", { class: "hint", role: "status" });
  const copy = async () => {
    input.select();
    try {
      await navigator.clipboard.writeText(secret);
      say(copied, "Copied.");
    } catch {
      say(copied, "It is selected: copy it with the keyboard."); // this address may not use the clipboard
    }
  };
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "dialog-title", oncancel: stay, onkeydown: stay },
    h("h2", { id: "dialog-title" }, title),
    h("p", {}, text),
    h("label", { for: "secret" }, "Secret"),
    input,
    h(
      "div",
      { class: "buttons" },
      copied,
      h("button", { type: "button", onclick: copy }, "Copy"),
      h("button", { type: "button", class: "primary", onclick: () => dialog.close("done") }, "I have it"),
    ),
  );
  await modal(dialog);
  input.value = "";
}

function rowOf({ name, label, type = "text", value = "", options, suggestions, hint, ...more }) {
  const id = `field-${name}`;
  const given = { id, name, autocomplete: "off", "aria-describedby": hint ? `${id}-hint` : null, ...more };
  const list = suggestions && h("datalist", { id: `${id}-list` }, suggestions.map((it) => h("option", { value: it })));
  let input;
  if (options) {
    input = h("select", given, options.map(([option, text]) => h("option", { value: option }, text)));
    if (value) input.value = value;
  } else if (type === "textarea") {
    input = h("textarea", { rows: "5", ...given });
    input.value = value;
  } else {
    input = h("input", { type, list: list && `${id}-list`, ...given, value });
  }
  const row = h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    input,
    list,
    hint ? h("small", { id: `${id}-hint` }, hint) : null,
  );
  return { input, row };
}
