// Makes elements. Whatever users made enters the page as text, never as markup, and all of it can
// be seen: controls, bidirectional marks and characters without width are written as escapes.

const UNSEEN =
  /(?![\n\t\ufe00-\ufe0f])[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\ufff9-\ufffb]/gu;

/** Returns a text with what cannot be seen, or turns what is beside it round, as `\u202e`. */
export function visible(text) {
  return text.replace(UNSEEN, (letter) => {
    const code = letter.codePointAt(0).toString(16);
    return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  });
}

/** Returns an element: `h("a", {href: "#/", class: "x", onclick: f}, "text", child)`. */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else if (name === "title") element.title = visible(String(value));
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

/** Sets an element's text, touching the page only if it differs. */
export function say(element, text) {
  const shown = visible(String(text));
  if (element.textContent !== shown) element.textContent = shown;
}

/**
 * Brings the children of `parent` in line with `items`, keeping the elements (and so the focus and
 * the hover) of items that stay. `make` returns an element with a method `show(item)`.
 */
export function keyed(parent, items, key, make) {
  const known = (parent.keyedChildren ??= new Map());
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    wanted.add(name);
    let element = known.get(name);
    if (!element) known.set(name, (element = make(item)));
    element.show(item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const [name, element] of known) {
    if (wanted.has(name)) continue;
    element.remove();
    known.delete(name);
  }
}

/** Shows a short message for a while. */
export function toast(text, kind = "info") {
  const element = h("p", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), kind === "error" ? 9000 : 4500);
}

/** Does something; shows `done`, or the server's words where it refuses. Returns whether it did. */
export async function attempted(work, done) {
  try {
    await work();
  } catch (error) {
    toast(error.message, "error");
    return false;
  }
  toast(done);
  return true;
}

/** Shows a dialog until it is closed or its page is left; resolves to what it was closed with. */
export function modal(dialog) {
  return new Promise((resolve) => {
    const leave = () => dialog.close("");
    const leaving = ["hashchange", "rung-signed-out"];
    for (const name of leaving) addEventListener(name, leave);
    dialog.addEventListener("close", () => {
      for (const name of leaving) removeEventListener(name, leave);
      resolve(dialog.returnValue);
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Asks before something that cannot be undone; resolves to whether it was confirmed. */
export async function confirmed(title, text, action) {
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, title),
    h("p", {}, text),
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", onclick: () => dialog.close("") }, "Back"),
      h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, action),
    ),
  );
  return (await modal(dialog)) === "yes";
}

/** Returns a table with its body, which `fill` fills. */
export function table(label, heads) {
  const rows = h("tbody", {});
  const cells = heads.map((text) => h("th", { scope: "col" }, text));
  const whole = h("table", { class: "things", "aria-label": label }, h("thead", {}, h("tr", {}, cells)), rows);
  return { rows, element: h("div", { class: "scroll" }, whole) };
}

/** Returns a part of a view with a title, and a button beside it. */
export function panel(title, act, ...parts) {
  return h(
    "section",
    { class: "panel", "aria-label": title },
    h("div", { class: "controls" }, h("h2", {}, title), h("span", { class: "spring" }), act),
    parts,
  );
}

/** Shows a row for each item; rows of items that are as before stay, with their focus. */
export function fill(rows, items, make) {
  keyed(rows, items, JSON.stringify, (item) => Object.assign(make(item), { show: () => {} }));
}

/** Returns a button. */
export function button(text, onclick, looks = "small", more = {}) {
  return h("button", { type: "button", class: looks, onclick, ...more }, text);
}

/** Returns a function that calls `work` soon, at most once per `gapMs` and not while it runs. */
export function paced(work, gapMs) {
  let timer = null;
  let running = false;
  let again = false;
  const run = async () => {
    timer = null;
    running = true;
    const began = performance.now();
    try {
      await work();
    } finally {
      running = false;
      if (again) {
        again = false;
        timer = setTimeout(run, Math.max(gapMs, 4 * (performance.now() - began)));
      }
    }
  };
  return () => {
    if (running) again = true;
    else timer ??= setTimeout(run, gapMs);
  };
}

/** Returns a function that draws on a canvas once before the next frame, however often called. */
export function framed(canvas, draw) {
  let asked = null;
  return () => {
    asked ??= requestAnimationFrame(() => {
      asked = null;
      if (canvas.isConnected) draw();
    });
  };
}

/** Returns a state as a badge. */
export function badge(state) {
  return h("span", { class: `badge ${state}` }, state);
}
