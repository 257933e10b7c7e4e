// Speaks to the gateway: JSON answers, pages of lists, and server-sent events. Requests are sent
// with a token, or with the cookie of a session, which no script can read.

const KEY = "rung-token";
const BASE = "/api/v1";

export class ApiError extends Error {
  constructor(status, title, detail, errors = []) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.errors = errors;
  }
}

/** Returns a part of an address decoded, or as it is where that is not possible (`%`). */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Takes a token out of the address (`#token=…`), so that it is neither kept there nor shared. */
export function takeTokenFromAddress() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (!found) return;
  setToken(decoded(found[1]));
  const rest = location.hash.slice(1).replace(/&?token=[^&]+/, "");
  history.replaceState(null, "", `${location.pathname}#${rest || "/"}`);
}

export const token = () => sessionStorage.getItem(KEY);
export const setToken = (value) => sessionStorage.setItem(KEY, value.trim());
export const forgetToken = () => sessionStorage.removeItem(KEY);

let asker = null; // who is signed in, by token or by cookie: `{user, permissions}`
let session = false; // whether by cookie
export const user = () => asker?.user ?? null;
export const inSession = () => session;
export const signedIn = () => Boolean(token() || session);
/** Returns whether the user has a permission in the cluster. */
export const may = (permission) => Boolean(asker?.permissions.includes(permission));

/** Returns how one signs in here, and notes who has and what they may in the cluster. */
export async function methods() {
  const sent = token();
  const found = await get("/auth/methods");
  if (sent !== token()) return methods(); // signed in or out meanwhile
  asker = found.user ? found : null;
  session = Boolean(found.user && !sent);
  return found;
}

/** Signs in with a password; the session is in a cookie. */
export async function signIn(name, password) {
  forgetToken();
  await send("/auth/password", { name, password, cookie: true });
  await methods();
}

/** Ends the session, or forgets the token, which stays valid elsewhere. */
export async function signOut() {
  if (session) await post("/auth/sign-out");
  forgetAsker();
}

export function forgetAsker() {
  forgetToken();
  asker = null;
  session = false;
}

let after = null; // how far the ledger reached with what this page wrote
const headers = (more, known = after) => ({
  ...(token() && { Authorization: `Bearer ${token()}` }),
  ...(known && { "Rung-After": known }),
  ...more,
});

const read = (text) => JSON.parse(atob(text.replaceAll("-", "+").replaceAll("_", "/")));
const write = (positions) =>
  btoa(JSON.stringify(positions)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

/** Returns a token that stands for what both do: of writes at the same time neither has all. */
export function merged(known, written) {
  if (!known || !written) return written ?? known;
  const [[before, first], [ledger, second]] = [read(known), read(written)];
  if (before !== ledger) return written;
  const last = new Map();
  for (const [topic, partition, position] of [...first, ...second]) {
    const place = `${topic}/${partition}`;
    last.set(place, [topic, partition, Math.max(position, last.get(place)?.[2] ?? 0)]);
  }
  return write([ledger, [...last.values()]]);
}

/** Returns a token that stands for all up to an event: its id has a position for each place. */
function reached(places, id) {
  const [ledger, rows] = read(places);
  const ends = id.split(".").map(Number);
  return write([ledger, rows.map(([topic, partition], i) => [topic, partition, ends[i] - 1])]);
}

/** Passes an answer on, or throws its problem; `sent` is the token that the request had. */
async function answered(response, sent) {
  if (response.ok) return response;
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // not a problem document; the status has to do
  }
  const current = sent === token(); // not one that was replaced meanwhile
  if (response.status === 401 && current && signedIn()) dispatchEvent(new CustomEvent("rung-signed-out"));
  const title = problem.title || `The server answered ${response.status}`;
  throw new ApiError(response.status, title, problem.detail, problem.errors);
}

function address(path, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value != null && value !== "");
  const text = new URLSearchParams(given).toString();
  return BASE + path + (text ? `?${text}` : "");
}

async function ask(path, { method = "GET", query, signal, seen, body, version } = {}) {
  let response;
  const sent = token();
  const more = {
    ...(body !== undefined && { "Content-Type": "application/json" }),
    ...(version === null && { "If-None-Match": "*" }),
    ...(version != null && { "If-Match": `"${version}"` }),
  };
  try {
    const given = { method, signal, headers: headers(more, merged(after, seen)) };
    response = await fetch(address(path, query), { ...given, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer", "The server does not answer. Is Rung up?");
  }
  after = merged(after, response.headers.get("Rung-After"));
  return answered(response, sent);
}

/** Returns an answer; with `seen`, a token of `follow`, one that includes what was seen. */
export const get = async (path, query, signal, seen) => (await ask(path, { query, signal, seen })).json();
/**
 * Sends a change; with `version`, of that version alone: where another came first the answer is a 412.
 * With null, of nothing that is there: it makes something, or is refused.
 */
export const send = async (path, body, version) => (await ask(path, { method: "POST", body, version })).json();
export const post = (path, version) => send(path, undefined, version);
export const fetchBlob = async (path) => (await ask(path)).blob();

/** Returns the items of all pages of a list, at most `most` of them. */
export async function getAll(path, query, signal, most = 5000, { seen, limit = 500 } = {}) {
  const items = [];
  let cursor;
  do {
    const page = await get(path, { ...query, cursor, limit }, signal, seen);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && items.length < most);
  return items;
}

/**
 * Follows a stream of server-sent events until the signal aborts, coming back after each end.
 * `EventSource` cannot send the token, hence by hand. `onEvent` gets name, data, and a function that
 * returns a token for `get`, if the stream is of what the gateway folds.
 */
export async function follow(path, { query, signal, onEvent, onState = () => {} }) {
  let last = null;
  let waitMs = 500;
  while (!signal.aborted) {
    try {
      const resume = last ? { "Last-Event-ID": last } : {};
      const sent = token();
      const asked = { signal, headers: headers({ Accept: "text/event-stream", ...resume }) };
      const response = await answered(await fetch(address(path, query), asked), sent);
      const places = response.headers.get("Rung-After");
      onState(true);
      waitMs = 500;
      for await (const event of events(response.body)) {
        if (event.id !== null) last = event.id;
        const seen = () => places && reached(places, event.id);
        if (event.data !== null) onEvent(event.name, JSON.parse(event.data), seen);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 400) last = null; // of another ledger: begin anew
      if (error.status === 401 || error.status === 404) return;
    }
    onState(false);
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    waitMs = Math.min(waitMs * 2, 10_000);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) yield parse(block);
  }
}

function parse(block) {
  const event = { name: "message", id: null, data: null };
  for (const line of block.split(/\r?\n/)) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") event.data = event.data === null ? value : `${event.data}\n${value}`;
  }
  return event;
}
