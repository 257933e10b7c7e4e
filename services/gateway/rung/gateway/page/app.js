// Starts the page: sign-in, the bar on top, and which view the address asks for.

import { AccountPage } from "./account.js";
import { decoded, forgetAsker, get, may, methods, signedIn, signOut } from "./api.js";
import { takeTokenFromAddress, token, user } from "./api.js";
import { h, say, toast } from "./dom.js";
import { ExperimentPage } from "./experiment.js";
import { many } from "./format.js";
import { ListPage } from "./list.js";
import { ModelPage } from "./models.js";
import { PeoplePage } from "./people.js";
import { SignInForm } from "./sign_in.js";
import { WebhookPage } from "./webhooks.js";
import { WorkspacePage } from "./workspace.js";
import { WorkspacesPage } from "./workspaces.js";

const main = document.getElementById("main");
const views = document.getElementById("views");
const crumbs = document.getElementById("crumbs");
const live = document.getElementById("live");
const installation = document.getElementById("installation");
const account = document.getElementById("account");

let view = null;

/** Shows whether what is seen is up to date. */
export function tellLive(state, text) {
  live.className = `live ${state}`;
  say(live, text);
}

function route() {
  const [path, text] = location.hash.slice(1).split("?");
  const [, kind, id, tab] = path.split("/").map(decoded);
  if (kind === "sign-in" && !signedIn()) return signIn(id);
  if (!signedIn()) return signIn();
  showAccount();
  const query = new URLSearchParams(text);
  if (kind === "x" && id) return open("experiment", id, tab || "search", query);
  if (kind === "workspaces") return open(id ? "workspace" : "workspaces", id || undefined, undefined, query);
  if (kind === "models" && id) return open("model", id, undefined, query);
  if (kind === "webhooks" && id) return open("webhook", id, undefined, query);
  return open(["people", "account"].includes(kind) ? kind : "experiments", undefined, undefined, query);
}

const VIEWS = {
  experiments: () => new ListPage(tellLive),
  experiment: (id) => new ExperimentPage(id, tellLive),
  workspaces: () => new WorkspacesPage(tellLive),
  workspace: (id) => new WorkspacePage(id, tellLive),
  model: (id) => new ModelPage(id, tellLive),
  webhook: (id) => new WebhookPage(id, tellLive),
  people: () => new PeoplePage(tellLive),
  account: () => new AccountPage(tellLive, showAccount),
};

function open(kind, id, tab, query) {
  if (view?.kind === kind && view.id === id) {
    view.turnTo?.(tab, query);
    return;
  }
  close();
  view = VIEWS[kind](id);
  Object.assign(view, { kind, id });
  for (const link of views.children) {
    const { view: name } = link.dataset;
    if (name === kind) link.setAttribute("aria-current", "page");
    else if (name === `${kind}s`) link.setAttribute("aria-current", "true"); // of which this is one
    else link.removeAttribute("aria-current");
  }
  say(crumbs, kind === "experiment" ? id : "");
  main.replaceChildren(view.element);
  view.turnTo?.(tab, query);
  if (!document.hidden) view.start();
}

function close() {
  view?.stop();
  view = null;
}

/** Asks who somebody is; `why` says what went wrong before. */
async function signIn(why) {
  close();
  say(crumbs, "");
  installation.replaceChildren();
  account.replaceChildren();
  views.hidden = true;
  tellLive("", "");
  document.title = "Sign in · Rung";
  const next = location.hash.startsWith("#/sign-in/") ? "/" : location.hash.slice(1) || "/";
  const form = new SignInForm(await methods().catch(() => ({})), next, why, () => {
    if (location.hash.startsWith("#/sign-in/")) history.replaceState(null, "", "#/");
    route();
    pulse();
  });
  main.replaceChildren(form.element);
  form.focus();
}

/** Shows who is signed in, and how to end that. */
function showAccount() {
  views.hidden = false;
  const name = user();
  if (account.dataset.user === name && account.children.length) return;
  account.dataset.user = name;
  const leave = async () => {
    try {
      await signOut();
    } catch (error) {
      return toast(error.message, "error"); // still signed in
    }
    signIn();
  };
  const link = h("a", { href: "#/account", title: "You, your tokens and sessions" }, name ?? "Account");
  account.replaceChildren(link, h("button", { type: "button", onclick: leave }, "Sign out"));
}

async function pulse() {
  if (!signedIn() || document.hidden) return;
  try {
    if (!user()) {
      await methods();
      if (signedIn()) showAccount();
    }
    const status = await get("/status");
    const slots = status.pools.reduce((sum, pool) => sum + pool.slots, 0);
    const used = status.pools.reduce((sum, pool) => sum + pool.slots_used, 0);
    const waiting = status.pools.reduce((sum, pool) => sum + pool.waiting, 0);
    const parts = [h("span", {}, `${used} of ${many(slots, "slot")} busy`)];
    if (waiting) parts.push(h("span", {}, `${many(waiting, "run")} waiting`));
    const draining = status.pools.reduce((sum, pool) => sum + pool.draining, 0);
    if (draining) {
      const agents = may("cluster.view") ? (await get("/agents")).items : [];
      const going = agents.filter((agent) => agent.state === "draining");
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
  if (!signedIn()) return;
  const why = token() ? "token" : "ended";
  forgetAsker();
  signIn(why);
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
if (!token()) await methods().catch(() => null); // with a token the first view shows whether it is valid
route();
pulse();
setInterval(pulse, 4000);
