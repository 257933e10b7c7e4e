// Starts the page: sign-in, the bar on top, and which view the address asks for.

import { decoded, forgetToken, get, setToken, takeTokenFromAddress, token } from "./api.js";
import { h, say } from "./dom.js";
import { ExperimentPage } from "./experiment.js";
import { many } from "./format.js";
import { ListPage } from "./list.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const live = document.getElementById("live");
const installation = document.getElementById("installation");

let view = null;

/** Shows whether what is seen is up to date. */
export function tellLive(state, text) {
  live.className = `live ${state}`;
  say(live, text);
}

function route() {
  const [path, query] = location.hash.slice(1).split("?");
  const [, kind, id, tab] = path.split("/").map(decoded);
  if (!token()) return signIn();
  if (kind === "x" && id) return open("experiment", id, tab || "search", new URLSearchParams(query));
  return open("list");
}

function open(kind, id, tab, query) {
  if (view?.kind === kind && view.id === id) {
    view.turnTo?.(tab, query);
    return;
  }
  close();
  view = kind === "list" ? new ListPage(tellLive) : new ExperimentPage(id, tellLive);
  Object.assign(view, { kind, id });
  crumbs.replaceChildren(...(id ? [h("a", { href: "#/" }, "Experiments"), h("span", {}, id)] : []));
  main.replaceChildren(view.element);
  view.turnTo?.(tab, query);
  if (!document.hidden) view.start();
}

function close() {
  view?.stop();
  view = null;
}

function signIn(refused = false) {
  close();
  crumbs.replaceChildren();
  installation.replaceChildren();
  tellLive("", "");
  document.title = "Sign in · Rung";
  const input = h("input", {
    type: "password",
    id: "token",
    autocomplete: "current-password",
    required: true,
    "aria-describedby": "token-help",
  });
  const enter = (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    setToken(input.value);
    route();
    pulse();
  };
  main.replaceChildren(
    h(
      "form",
      { class: "signin panel", onsubmit: enter },
      h("h1", {}, "Rung"),
      refused
        ? h(
            "p",
            { class: "problem", role: "alert" },
            "The server does not accept this token. `rung up` makes a new one at each start:" +
              " open the address that it printed, or enter the new token here.",
          )
        : null,
      h("label", { for: "token" }, "Token"),
      input,
      h(
        "p",
        { id: "token-help", class: "hint" },
        "It lies in the file ",
        h("code", {}, "token"),
        " of the data folder (",
        h("code", {}, "~/.rung"),
        " unless said otherwise), and in the address that ",
        h("code", {}, "rung up"),
        " prints.",
      ),
      h("button", { type: "submit", class: "primary" }, "Open"),
    ),
  );
  input.focus();
}

async function pulse() {
  if (!token() || document.hidden) return;
  try {
    const status = await get("/status");
    const slots = status.pools.reduce((sum, pool) => sum + pool.slots, 0);
    const used = status.pools.reduce((sum, pool) => sum + pool.slots_used, 0);
    const waiting = status.pools.reduce((sum, pool) => sum + pool.waiting, 0);
    const parts = [h("span", {}, `${used} of ${many(slots, "slot")} busy`)];
    if (waiting) parts.push(h("span", {}, `${many(waiting, "run")} waiting`));
    const draining = status.pools.reduce((sum, pool) => sum + pool.draining, 0);
    if (draining) {
      const going = (await get("/agents")).items.filter((agent) => agent.state === "draining");
      const title = going.map((agent) => `${agent.id}: ${agent.reason}`).join("\n");
      parts.push(h("span", { class: "problem", title }, `${many(draining, "agent")} draining`));
    }
    if (status.problems.length) {
      const title = status.problems.join("\n");
      parts.push(h("span", { class: "problem", title }, many(status.problems.length, "problem")));
    }
    if (status.dead_letters) {
      const title = "Messages that a service could not take in; `rung status` names them";
      parts.push(h("span", { class: "problem", title }, many(status.dead_letters, "dead letter")));
    }
    installation.replaceChildren(...parts);
    installation.title = `Rung ${status.version}`;
  } catch {
    // the view says that the server does not answer
  }
}

addEventListener("hashchange", () => {
  takeTokenFromAddress();
  route();
});
addEventListener("rung-signed-out", () => {
  if (!token()) return;
  forgetToken();
  signIn(true);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) view?.stop(); // a browser has six connections for all its tabs
  else {
    view?.start();
    pulse();
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.repaint?.());

takeTokenFromAddress();
route();
pulse();
setInterval(pulse, 4000);
