// The history of the table as small charts over the same time, with one step per commit.

import { clock, count, counted, day, duration, h, now, ratio, svg } from "./dom.js";

const HEIGHT = 132;
const LEFT = 40;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const REDRAW_MS = 5000;

const CHARTS = [
  { name: "rows_per_second", title: "Rows in", subtitle: "a second, over the minute before", format: rate, quiet_ms: 60000 },
  {
    name: "tail_seconds", title: "In the tail", format: duration, least: 0.1,
    subtitle: "from the write of a change until it was settled",
  },
  {
    name: "write_amplification", title: "Write amplification", format: ratio,
    subtitle: "bytes written ÷ ingested, over the hour before",
  },
  { name: "depth", title: "Depth", subtitle: "parts over the deepest point", format: count, budget: true },
  { name: "parts", title: "Parts", subtitle: "in the base", format: count },
  { name: "tail_parts", title: "Tail", subtitle: "change parts not yet settled", format: count },
];

export class Curves {
  constructor() {
    this.data = null;
    this.pointed = null; // the version that the pointer is at
    this.note = h("p", { class: "quiet note" });
    this.charts = CHARTS.map((chart) => {
      const value = h("span", { class: "now" });
      const picture = svg("svg", { class: "curve", role: "img", height: HEIGHT });
      const subtitle = h("span", { class: "quiet" }, chart.subtitle);
      const caption = h("figcaption", {}, h("b", {}, chart.title), " ", subtitle, value);
      const element = h("figure", { class: "chart" }, caption, picture);
      picture.addEventListener("pointermove", (event) => this.point(event));
      picture.addEventListener("pointerleave", () => this.leave());
      return { ...chart, value, picture, element };
    });
    this.element = h("div", {}, h("div", { class: "charts" }, this.charts.map((chart) => chart.element)), this.note);
    this.resized = new ResizeObserver(() => this.data && this.draw());
    this.resized.observe(this.element);
  }

  close() {
    this.resized.disconnect();
  }

  update(data) {
    this.data = data;
    const curves = data.curves;
    const commits = curves.version.length;
    const since = commits ? `${day(curves.at_ms[0])} ${clock(curves.at_ms[0])}` : "";
    const more = data.is_whole ? "" : "; older ones are being read";
    this.note.textContent = `From the ${counted(commits, "newest commit", "newest commits")} of the log, since ${since}${more}.`;
    this.draw();
  }

  draw() {
    const { curves, read_budget: budget } = this.data;
    this.drawnAt = now();
    for (const chart of this.charts) {
      const values = curves[chart.name];
      const [at, drawn] = untilNow(chart, curves.at_ms, values ?? []);
      const newest = drawn.findLast((value) => value !== null);
      chart.value.textContent = newest === undefined ? "not known" : chart.format(newest);
      const width = Math.max(200, chart.picture.clientWidth || 480);
      chart.plot = plotted(at, drawn, width, chart.budget ? budget : null, chart.least ?? 1);
      chart.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      chart.picture.setAttribute("aria-label", values ? spoken(chart, values, newest) : `${chart.title}: not known`);
      chart.picture.replaceChildren(...drawing(chart, chart.plot, width, budget));
    }
    this.mark();
  }

  /** Time goes on without new versions. */
  tick() {
    if (this.data && this.pointed === null && now() - this.drawnAt > REDRAW_MS) this.draw();
  }

  point(event) {
    const { version, at_ms } = this.data.curves;
    if (!version.length) return;
    const chart = this.charts.find((each) => each.picture === event.currentTarget);
    const box = event.currentTarget.getBoundingClientRect();
    const ms = chart.plot.msAt(((event.clientX - box.left) / box.width) * chart.plot.width);
    this.pointed = version[Math.max(0, at_ms.findLastIndex((each) => each <= ms))];
    this.mark();
  }

  /** Shows the values at the version that the pointer is at; it stays there when newer versions come. */
  mark() {
    const { version, at_ms } = this.data.curves;
    const index = this.pointed === null ? -1 : version.indexOf(this.pointed);
    if (index < 0) return;
    for (const each of this.charts) {
      const value = this.data.curves[each.name]?.[index];
      const text = value === null || value === undefined ? "–" : each.format(value);
      each.value.textContent = `${text} at version ${count(version[index])}, ${clock(at_ms[index])}`;
      const x = each.plot.x(at_ms[index]);
      const line = each.picture.querySelector(".pointer") ?? each.picture.appendChild(svg("line", { class: "pointer" }));
      for (const [name, at] of [["x1", x], ["x2", x], ["y1", TOP], ["y2", HEIGHT - BOTTOM]]) line.setAttribute(name, at);
    }
  }

  leave() {
    this.pointed = null;
    this.draw();
  }
}

function rate(value) {
  return value === null || value === undefined || value >= 100 ? count(value) : String(Number(value.toFixed(1)));
}

/**
 * The curve up to now, but by no more than a fourth longer than it is. What the table was at its newest version it still is;
 * and a minute after it no rows came in.
 */
function untilNow(chart, at, values) {
  if (!values.length) return [at, values];
  const last = at.at(-1);
  const quiet = chart.quiet_ms && now() > last + chart.quiet_ms ? last + chart.quiet_ms : null;
  const end = Math.min(now(), last + Math.max(1000, last - at[0]) / 4);
  if (quiet !== null && quiet < end) return [[...at, quiet, end], [...values, 0, 0]];
  const held = quiet === null ? values.at(-1) : 0;
  return end > last ? [[...at, end], [...values, held]] : [at, values];
}

function plotted(at, values, width, budget, least) {
  const first = at[0] ?? 0;
  const span = Math.max(1000, (at.at(-1) ?? 0) - first);
  const inner = width - LEFT - RIGHT;
  const found = values.filter((value) => value !== null);
  const most = nice(Math.max(least, budget ?? 0, ...bounded(found)));
  return {
    width, first, span, most, at, values,
    x: (ms) => LEFT + ((ms - first) / span) * inner,
    y: (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM),
    msAt: (x) => first + ((x - LEFT) / inner) * span,
  };
}

function bounded(values) {
  return values.length ? [values.reduce((most, value) => (value > most ? value : most), values[0])] : [];
}

function nice(value) {
  if (value <= 1) return [0.2, 0.4, 0.6, 1, 2].find((each) => each >= value * 1.02);
  const unit = 10 ** Math.floor(Math.log10(value));
  const candidates = [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12].map((each) => Math.round(each * unit));
  return candidates.find((each) => each % 2 === 0 && each >= value * 1.02) ?? 20 * unit;
}

function drawing(chart, plot, width, budget) {
  const out = [];
  for (const value of [0, plot.most / 2, plot.most]) {
    const y = plot.y(value);
    out.push(svg("line", { class: value ? "rule" : "axis", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
    const text = plot.most < 2 ? String(Number(value.toFixed(2))) : count(value);
    out.push(svg("text", { class: "tick", x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, text));
  }
  for (const [ms, anchor] of moments(plot, width)) {
    const text = plot.span > 86400000 ? day(ms).slice(5) : clock(ms).slice(0, plot.span < 600000 ? 8 : 5);
    out.push(svg("text", { class: "tick", x: plot.x(ms), y: HEIGHT - 5, "text-anchor": anchor }, text));
  }
  if (chart.budget) {
    const y = plot.y(budget);
    out.push(svg("line", { class: "budget", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
    out.push(svg("text", { class: "tick", x: LEFT + 4, y: y - 4 }, "read budget"));
  }
  out.push(svg("path", { class: "line", d: steps(plot) }));
  return out;
}

function moments(plot, width) {
  const several = width > 360 ? 3 : 1;
  const out = [];
  for (let place = 0; place <= several; place++) {
    const anchor = place === 0 ? "start" : place === several ? "end" : "middle";
    out.push([plot.first + (plot.span * place) / several, anchor]);
  }
  return out;
}

/** A path of steps. For commits on the same pixel it has the first, least, greatest and last value. */
function steps(plot) {
  let path = "";
  let isDown = false;
  let index = 0;
  while (index < plot.values.length) {
    const value = plot.values[index];
    if (value === null) {
      isDown = false;
      index += 1;
      continue;
    }
    const x = Math.round(plot.x(plot.at[index]));
    let [low, high, last] = [value, value, value];
    let next = index + 1;
    while (next < plot.values.length && plot.values[next] !== null && Math.round(plot.x(plot.at[next])) === x) {
      last = plot.values[next];
      low = Math.min(low, last);
      high = Math.max(high, last);
      next += 1;
    }
    const y = plot.y(value).toFixed(1);
    path += isDown ? `H${x}V${y}` : `M${x} ${y}`;
    if (next > index + 1) path += `V${plot.y(low).toFixed(1)}V${plot.y(high).toFixed(1)}V${plot.y(last).toFixed(1)}`;
    isDown = true;
    index = next;
  }
  return path;
}

function spoken(chart, values, newest) {
  const found = values.filter((value) => value !== null);
  if (!found.length) return `${chart.title}: no value`;
  const low = found.reduce((one, other) => Math.min(one, other));
  const high = found.reduce((one, other) => Math.max(one, other));
  const span = duration((values.length && chart.plot.span / 1000) || 0);
  const range = `between ${chart.format(low)} and ${chart.format(high)} over ${span}`;
  return `${chart.title}, ${chart.subtitle}: now ${chart.format(newest)}, ${range}`;
}
