// Round values for the ticks of an axis of numbers or of times, and their texts. Times are epoch milliseconds, shown in UTC.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const MONTH = 30.44 * DAY;
const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500,
  ...[1, 2, 5, 10, 15, 30].map((each) => each * SECOND), ...[1, 2, 5, 10, 15, 30].map((each) => each * MINUTE),
  ...[1, 2, 3, 6, 12].map((each) => each * HOUR), ...[1, 2, 7, 14].map((each) => each * DAY),
];
const MONTHS = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000];
const TICKS_MAX = 200;

/** At most `most` round values from `from` to `to`, each with its text. */
export function ticks(unit, from, to, most) {
  return unit === "time" ? times(from, to, most) : numbers(from, to, most);
}

function numbers(from, to, most) {
  const least = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least * 0.999) ?? 10 * power;
  const digits = Math.max(0, Math.min(12, -Math.floor(Math.log10(step) + 1e-9)));
  const format = new Intl.NumberFormat("en-US", { maximumFractionDigits: digits });
  const out = [];
  for (let number = Math.ceil(from / step); number * step <= to && out.length < TICKS_MAX; number++) {
    out.push([number * step, format.format(number * step)]);
  }
  return out;
}

function times(from, to, most) {
  const least = (to - from) / Math.max(1, most);
  const step = STEPS.find((each) => each >= least);
  const out = [];
  let before = "";
  const add = (ms, parts) => {
    const at = new Date(ms);
    if (Number.isNaN(at.getTime())) return;
    const [day, clock] = at.toISOString().replace("Z", "").split("T");
    // A day is named where it begins.
    out.push([ms, parts === 0 ? day : `${day === before ? "" : `${day} `}${clock.slice(0, parts)}`]);
    before = day;
  };
  if (step === undefined) {
    const months = MONTHS.find((each) => each * MONTH >= least) ?? MONTHS.at(-1);
    const begin = new Date(from);
    let month = Math.ceil((begin.getUTCFullYear() * 12 + begin.getUTCMonth()) / months) * months;
    for (; out.length < TICKS_MAX; month += months) {
      const ms = new Date(0).setUTCFullYear(Math.floor(month / 12), month % 12, 1);
      if (!(ms <= to)) break;
      if (ms >= from) add(ms, 0);
    }
    return out;
  }
  const parts = step >= DAY ? 0 : step >= MINUTE ? 5 : step >= SECOND ? 8 : 12;
  for (let number = Math.ceil(from / step); number * step <= to && out.length < TICKS_MAX; number++) add(number * step, parts);
  return out;
}
