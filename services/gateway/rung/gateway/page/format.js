// Numbers, times and values as people read them.

/** Returns a metric on the wire as a number. */
export const number = (value) => (value === null || value === undefined ? NaN : Number(value));

/** Returns a number with about four significant digits. */
export function short(value) {
  if (typeof value === "string") value = Number(value);
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  return String(Number(value.toPrecision(4)));
}

/** Returns a hyperparameter's value. */
export function plain(value) {
  if (typeof value === "number") return short(value);
  if (typeof value === "string") return value;
  return value === undefined ? "" : JSON.stringify(value);
}

/** Returns seconds as `3 h 12 min`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const total = Math.max(0, Math.round(seconds));
  const [days, hours] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24];
  const [minutes, rest] = [Math.floor(total / 60) % 60, total % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  if (minutes) return minutes < 10 ? `${minutes} min ${rest} s` : `${minutes} min`;
  return `${rest} s`;
}

/** Returns how long ago a time was. */
export function ago(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  return seconds < 5 ? "just now" : `${duration(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}

export function seconds(from, to) {
  return ((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000;
}

const pad = (value, size = 2) => String(value).padStart(size, "0");

/** Returns a time of day, in the reader's own zone. */
export function clock(time, withMs = false) {
  const at = new Date(time);
  const text = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return withMs ? `${text}.${pad(at.getMilliseconds(), 3)}` : text;
}

/** Returns a date and time, in the reader's own zone. */
export function moment(time) {
  const at = new Date(time);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(time)}`;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (Math.round(count) >= 1024 && place < units.length - 1) {
    count /= 1024;
    place += 1;
  }
  const whole = place === 0 || count >= 100;
  return `${whole ? Math.round(count).toLocaleString("en") : count.toPrecision(3)} ${units[place]}`;
}

export const percent = (fraction) => `${Math.floor(100 * fraction)} %`;

/** Returns `1 trial`, `2 trials`. */
export const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** Returns `1 batch`, `2.5 epochs`: so many of a time metric. */
export function lasting(count, unit) {
  const one = unit === "batches" ? "batch" : unit.replace(/s$/, "");
  return `${short(count)} ${count === 1 ? one : unit}`;
}

/** Returns whether two values of JSON are equal. */
export const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

const flattened = new WeakMap();

/** Returns nested hyperparameters as a map of dotted names and values. */
export function flat(hparams) {
  if (!hparams) return new Map();
  if (!flattened.has(hparams)) flattened.set(hparams, new Map(pairs(hparams, "")));
  return flattened.get(hparams);
}

const pairs = (hparams, prefix) =>
  Object.entries(hparams).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? pairs(value, `${prefix}${name}.`)
      : [[prefix + name, value]],
  );
