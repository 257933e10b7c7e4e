// From numbers to places on an axis, ticks, and colours of trials.

/** Returns a scale: `at(value)` in 0…1 and `ticks`, which are pairs of value and label. */
export function linear(low, high, wanted = 6) {
  if (!(high > low)) {
    const room = Math.abs(low) * 0.1 || 1;
    low -= room;
    high += room;
  }
  const at = (value) => (value - low) / (high - low);
  return { low, high, at, back: (place) => low + place * (high - low), ticks: evenly(low, high, wanted) };
}

export function logarithmic(low, high, wanted = 6) {
  if (!(high > low)) {
    low /= 2;
    high *= 2;
  }
  const [bottom, top] = [Math.log10(low), Math.log10(high)];
  const at = (value) => (Math.log10(value) - bottom) / (top - bottom);
  const back = (place) => 10 ** (bottom + place * (top - bottom));
  const decades = Math.ceil(top) - Math.floor(bottom);
  const steps = decades <= 2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / wanted));
  const ticks = [];
  for (let power = Math.floor(bottom); power <= Math.ceil(top); power += every) {
    for (const step of steps) {
      const value = step * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return { low, high, at, back, ticks: ticks.length > 1 ? ticks : evenly(low, high, 4) };
}

function evenly(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}

/** Returns a style variable of the page. */
export const tone = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const parts = (text) => [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));

/** Returns a function from a rank (0: best, 1: worst) to a colour. */
export function ramp() {
  const stops = ["--ramp-best", "--ramp-good", "--ramp-fair", "--ramp-poor"].map((name) => parts(tone(name)));
  return (rank) => {
    const place = Math.min(Math.max(rank, 0), 1) * (stops.length - 1);
    const index = Math.min(Math.floor(place), stops.length - 2);
    const mix = stops[index].map((from, i) => Math.round(from + (place - index) * (stops[index + 1][i] - from)));
    return `rgb(${mix.join(",")})`;
  };
}

/** Fits a canvas to its box, or another one's, and returns its context, cleared, and its size. */
export function surface(canvas, box = canvas) {
  const ratio = devicePixelRatio || 1;
  const { width, height } = box.getBoundingClientRect();
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}
