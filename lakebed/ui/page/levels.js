// Draws the parts as bars over the sort key, and below them the depth. Each level is a band; bars that overlap are in
// different lanes of it. Dragging, + and - zoom; arrow keys go from bar to bar.
//
// The axis has a rank for each bound of a part. `starts` and `ends` say where the cell of a rank is drawn: by rank one step,
// by value a point. `view` is what is seen of the axis, in the same measure. A new version has other ranks: what was zoomed to
// is found again by the bounds at its edges, and what was chosen by the id of the part.

import { bytes, count, counted, h, replace, share } from "./dom.js";
import { ticks } from "./ticks.js";

const LEFT = 76;
const RIGHT = 10;
const GAP = 10;
const BANDS_HEIGHT = 360;
const LANE_MAX = 12;
const LANE_MIN = 2;
const DEPTH_HEIGHT = 84;
const AXIS_HEIGHT = 34;
const TICK_PX = 170;
const DEAD_STEPS = 5;
const PLACES = 1e8;
const TICKS_PX = { number: 110, time: 150 };

export class Levels {
  constructor(askPart) {
    this.askPart = askPart;
    this.data = null;
    this.chosen = -1; // the index of a bar
    this.chosenId = null; // its part's id; the part may have left since
    this.parts = new Map(); // what the server said of parts, by id
    this.scale = "value";
    this.view = [0, 1];
    this.isWhole = true;
    this.canvas = h("canvas", {
      tabindex: "0", role: "img", "aria-describedby": "levels-description",
      onpointermove: (event) => this.moved(event), onpointerleave: () => this.left(),
      onpointerdown: (event) => this.pressed(event), onpointerup: (event) => this.released(event),
      ondblclick: () => this.whole(), onkeydown: (event) => this.key(event), onblur: () => this.choose(-1),
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.spoken = h("p", { class: "unseen", id: "levels-description", "aria-live": "polite" });
    this.legend = h("p", { class: "legend" });
    this.note = h("p", { class: "quiet note" });
    this.rows = h("tbody");
    const button = (text, label, act) =>
      h("button", { type: "button", class: "small", "aria-label": label, onclick: act }, text);
    this.scaled = button("by value", "distances are values", () => this.rescale());
    const head = ["Level", "Parts", "Rows", "Dead rows", "Dead", "Size", "Lanes"].map((title, place) =>
      h("th", { scope: "col", class: place ? "number" : null }, title));
    this.element = h("div", {},
      h("div", { class: "controls" }, this.legend,
        h("span", { class: "zoom" }, this.scaled,
          button("+", "look closer", () => this.zoom(0.5)),
          button("−", "look from further", () => this.zoom(2)),
          button("whole", "show the whole sort key", () => this.whole()))),
      h("div", { class: "stage" }, this.canvas, this.tip), this.spoken, this.note,
      h("div", { class: "wide" },
        h("table", { class: "grid of-levels" }, h("caption", { class: "unseen" }, "Parts by level"),
          h("thead", {}, h("tr", {}, head)), this.rows)));
    this.resized = new ResizeObserver(() => this.data && this.draw());
    this.resized.observe(this.canvas.parentElement);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recoloured = () => this.data && (this.showLegend(), this.draw());
    this.scheme.addEventListener("change", this.recoloured);
  }

  close() {
    this.resized.disconnect();
    this.scheme.removeEventListener("change", this.recoloured);
  }

  update(data) {
    const before = this.data && this.measure();
    this.data = data;
    this.index();
    this.keepView(before);
    this.keepChoice();
    this.showLegend();
    this.showNote();
    const levels = data.groups.map((group) => `${name(group)} ${counted(group.parts, "part", "parts")}`).join(", ");
    this.canvas.setAttribute("aria-label", `Parts by level: ${levels || "none"}. Arrow keys go from part to part.`);
    replace(this.rows, data.groups.map(row));
    this.draw();
  }

  /** Where the view is, to be found again after a change of the axis. */
  measure() {
    return { axis: this.data.axis, byValue: this.byValue, starts: this.starts, view: this.view, isWhole: this.isWhole };
  }

  /** Shows what was shown before: the same values, or the ranks of the same bounds. */
  keepView(before) {
    this.view = this.extent;
    if (!before || before.isWhole) return;
    let [from, to] = before.view;
    if (!before.byValue || !this.byValue) {
      const find = finder(before.axis, this.data.axis);
      [from, to] = before.view.map((edge) => this.movedEdge(before, edge, find));
    }
    if (to > this.extent[0] && from < this.extent[1] && to > from) this.look(from, to, true);
    else this.isWhole = true;
  }

  /** Where an edge of the view is now: as far from the nearest bound that there still is as before. */
  movedEdge({ axis, byValue, starts }, edge, find) {
    const rank = Math.max(0, Math.min(axis.points - 1, lastAtMost(starts, edge)));
    const rest = byValue ? 0 : edge - rank;
    for (let away = 0; away < axis.points; away++) {
      for (const tried of [rank - away, rank + away]) {
        const now = find(tried);
        if (now !== undefined) return this.byValue ? this.starts[now] : now + (rank - tried) + rest;
      }
    }
    return edge;
  }

  /** The chosen part stays chosen. If it left the table, what was said of it stays until the reader goes on. */
  keepChoice() {
    const { id } = this.data.columns;
    const live = new Set(id);
    for (const known of this.parts.keys()) if (!live.has(known) && known !== this.chosenId) this.parts.delete(known);
    if (this.chosenId === null) return;
    this.chosen = id.indexOf(this.chosenId);
    if (this.chosen >= 0) this.describe(this.chosen, this.parts.get(this.chosenId), false);
    else if (!this.tip.querySelector(".gone")) {
      this.tip.append(h("p", { class: "gone" }, `It left the table by version ${count(this.data.version)}.`));
    }
  }

  showNote() {
    const { axis, columns, parts } = this.data;
    const by = axis.by.join(", ");
    const drawn = columns.first.length;
    let along = "The table has no order with known bounds, so parts are drawn over the versions whose rows they hold.";
    if (!parts) along = "The table has no parts.";
    else if (this.byValue) {
      const inUtc = axis.values.unit === "time" ? ", times in UTC" : "";
      along = `Along ${by}: distances are those of ${axis.by[0]}${inUtc}.`;
    } else if (axis.kind === "sort_key") {
      along = `Along ${by}: every bound of a part is one step, so distances are ranks, not values.`;
    }
    const few = `Only the ${count(drawn)} largest of ${count(parts)} parts are drawn, and the depth counts only these.`;
    this.note.textContent = drawn < parts ? `${along} ${few}` : along;
    this.scaled.hidden = !axis.values;
    this.scaled.textContent = this.byValue ? "by rank" : "by value";
    this.scaled.setAttribute("aria-label", this.byValue ? "make each bound one step" : "make distances those of values");
  }

  rescale() {
    const before = this.measure();
    this.scale = this.byValue ? "rank" : "value";
    this.index();
    this.keepView(before);
    this.showNote();
    this.draw();
  }

  /** Collects the bars of each lane from left to right, and counts the bars of the base that cover each step of the axis. */
  index() {
    const { columns, groups, axis } = this.data;
    this.byValue = this.scale === "value" && axis.values !== null;
    if (this.byValue) {
      const { low, high } = axis.values;
      this.starts = valuesOf(axis);
      this.ends = this.starts;
      this.extent = [low, high];
    } else {
      this.starts = Float64Array.from({ length: axis.points }, (_, rank) => rank);
      this.ends = this.starts.map((rank) => rank + 1);
      this.extent = [0, Math.max(1, axis.points)];
    }
    this.lanes = groups.map((group) => Array.from({ length: group.lanes }, () => []));
    const begin = new Int32Array(axis.points);
    const end = new Int32Array(axis.points);
    columns.first.forEach((first, index) => {
      const group = columns.group[index];
      this.lanes[group][columns.lane[index]].push(index);
      if (groups[group].level < 0) return;
      begin[first] += 1;
      end[columns.last[index]] += 1;
    });
    this.cover = new Int32Array(axis.points); // of a rank
    this.between = new Int32Array(axis.points); // of what lies after it, up to the next rank
    let running = 0;
    this.deepest = 0;
    for (let rank = 0; rank < axis.points; rank++) {
      running += begin[rank];
      this.cover[rank] = running;
      if (running > this.deepest) this.deepest = running;
      running -= end[rank];
      this.between[rank] = running;
    }
  }

  layout() {
    const { groups } = this.data;
    const lanes = groups.reduce((sum, group) => sum + group.lanes, 0) || 1;
    this.lane = Math.max(Math.min(LANE_MAX, BANDS_HEIGHT / lanes), Math.min(LANE_MIN, 1200 / lanes));
    let y = 4;
    this.bands = groups.map((group) => {
      const band = { y, height: Math.max(14, group.lanes * this.lane) };
      y += band.height + GAP;
      return band;
    });
    this.depthTop = y + 6;
    this.height = this.depthTop + (this.hasDepth() ? DEPTH_HEIGHT : 0) + AXIS_HEIGHT;
  }

  hasDepth() {
    return this.data.axis.kind === "sort_key";
  }

  x(step) {
    const [from, to] = this.view;
    return LEFT + ((step - from) / (to - from)) * this.inner;
  }

  stepAt(x) {
    const [from, to] = this.view;
    return from + ((x - LEFT) / this.inner) * (to - from);
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.paint();
    });
  }

  paint() {
    const began = performance.now();
    this.layout();
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    this.inner = Math.max(50, width - LEFT - RIGHT);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.pen = pen;
    this.colours = colours();
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    this.paintBands(width);
    const drawn = this.paintBars();
    if (this.hasDepth()) this.paintDepth(width);
    this.paintAxis();
    this.paintDrag();
    this.canvas.dataset.bars = drawn;
    this.canvas.dataset.version = this.data.version;
    this.canvas.dataset.view = this.view.join(" ");
    const ids = this.data.axis.ids ?? [];
    this.canvas.dataset.bounds = this.view.map((edge) => ids[lastAtMost(this.starts, edge)] ?? "").join(" ");
    this.canvas.dataset.ms = (performance.now() - began).toFixed(1);
  }

  paintBands(width) {
    const { pen, colours: colour } = this;
    this.data.groups.forEach((group, place) => {
      const band = this.bands[place];
      pen.fillStyle = colour.band;
      pen.fillRect(LEFT, band.y, width - LEFT - RIGHT, band.height);
      pen.fillStyle = colour.text;
      pen.textAlign = "right";
      const middle = band.y + band.height / 2;
      pen.fillText(name(group), LEFT - 8, band.height > 26 ? middle - 7 : middle);
      if (band.height > 26) {
        pen.fillStyle = colour.quiet;
        pen.fillText(count(group.parts), LEFT - 8, middle + 7);
      }
    });
    for (const [rank] of this.data.axis.partitions) {
      const step = this.starts[rank];
      if (step <= this.view[0] || step >= this.view[1]) continue;
      pen.fillStyle = colour.rule;
      pen.fillRect(Math.round(this.x(step)), 0, 1, this.height - AXIS_HEIGHT);
    }
  }

  paintBars() {
    const { pen, colours: colour } = this;
    const { columns, states } = this.data;
    const byColour = new Map();
    const [from, to] = this.view;
    let drawn = 0;
    for (let index = 0; index < columns.first.length; index++) {
      const first = this.starts[columns.first[index]];
      const last = this.ends[columns.last[index]];
      if (last < from || first > to) continue;
      const state = states[columns.state[index]];
      const fill = state === "settled"
        ? colour.dead[deadStep(columns.dead_rows[index], columns.rows[index])]
        : colour[state];
      const band = this.bands[columns.group[index]];
      const left = Math.max(LEFT, this.x(first));
      const right = Math.min(LEFT + this.inner, this.x(last));
      const gap = right - left > 4 ? 1 : 0;
      const top = band.y + columns.lane[index] * this.lane;
      const height = Math.max(0.75, this.lane - (this.lane > 3 ? 1 : 0));
      const box = [left, top, Math.max(this.byValue ? 1.5 : 0.75, right - left - gap), height];
      if (!byColour.has(fill)) byColour.set(fill, []);
      byColour.get(fill).push(box);
      drawn += 1;
    }
    for (const [fill, boxes] of byColour) {
      pen.fillStyle = fill;
      for (const box of boxes) pen.fillRect(...box);
    }
    if (this.chosen >= 0) {
      const box = this.box(this.chosen);
      pen.strokeStyle = colour.text;
      pen.lineWidth = 1.5;
      pen.strokeRect(box.left - 0.75, box.top - 0.75, box.width + 1.5, box.height + 1.5);
    }
    return drawn;
  }

  box(index) {
    const { columns } = this.data;
    const left = Math.max(LEFT, this.x(this.starts[columns.first[index]]));
    const right = Math.min(LEFT + this.inner, this.x(this.ends[columns.last[index]]));
    const top = this.bands[columns.group[index]].y + columns.lane[index] * this.lane;
    return { left, top, width: Math.max(1, right - left), height: Math.max(1, this.lane - 1) };
  }

  paintDepth(width) {
    const { pen, colours: colour, depthTop: top } = this;
    const bottom = top + DEPTH_HEIGHT;
    const budget = this.data.read_budget;
    const most = Math.max(this.deepest, budget, 1) * 1.08;
    const y = (value) => bottom - (value / most) * DEPTH_HEIGHT;
    pen.fillStyle = colour.depth;
    this.depths().forEach((deep, place) => {
      if (deep) pen.fillRect(LEFT + place, y(deep), 1, bottom - y(deep));
    });
    pen.fillStyle = colour.axis;
    pen.fillRect(LEFT, bottom, width - LEFT - RIGHT, 1);
    pen.strokeStyle = colour.budget;
    pen.setLineDash([4, 3]);
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(LEFT, Math.round(y(budget)) + 0.5);
    pen.lineTo(width - RIGHT, Math.round(y(budget)) + 0.5);
    pen.stroke();
    pen.setLineDash([]);
    pen.textAlign = "right";
    pen.fillStyle = colour.text;
    pen.fillText("depth", LEFT - 8, top + 6);
    pen.fillStyle = colour.quiet;
    pen.fillText(`max ${count(this.deepest)}`, LEFT - 8, top + 20);
    pen.fillText(`budget ${count(budget)}`, LEFT - 8, Math.max(top + 34, Math.min(bottom - 4, y(budget))));
  }

  /** The greatest depth at each pixel. */
  depths() {
    const out = new Int32Array(Math.ceil(this.inner));
    const fill = (from, to, deep) => {
      const first = Math.max(0, Math.floor(from));
      const last = Math.min(out.length - 1, Math.max(first, Math.ceil(to - 1e-9) - 1));
      for (let place = first; place <= last; place++) if (out[place] < deep) out[place] = deep;
    };
    for (let rank = 0; rank < this.cover.length; rank++) {
      const [from, to] = [this.x(this.starts[rank]) - LEFT, this.x(this.ends[rank]) - LEFT];
      const next = rank + 1 < this.starts.length ? this.x(this.starts[rank + 1]) - LEFT : to;
      if (next < 0) continue;
      if (from >= out.length) break;
      if (to >= 0) fill(from, to, this.cover[rank]);
      if (next > to) fill(to, next, this.between[rank]);
    }
    return out;
  }

  paintAxis() {
    if (this.byValue) this.paintTicks();
    else this.paintLabels();
  }

  /** Ticks at round values, and at the places of what has no value. */
  paintTicks() {
    const { pen, colours: colour } = this;
    const top = this.height - AXIS_HEIGHT;
    const { unit, is_mirrored: isMirrored, marks, low, high } = this.data.axis.values;
    const [from, to] = this.view;
    const most = this.inner / TICKS_PX[unit];
    const found = isMirrored
      ? ticks(unit, -to, -from, most).map(([value, text]) => [-value, text])
      : ticks(unit, from, to, most);
    const named = marks.map(([place, text]) => [low + (place / PLACES) * (high - low), text]);
    let taken = [];
    for (const [step, text] of [...named, ...found]) {
      if (step < from || step > to) continue;
      const x = this.x(step);
      const width = pen.measureText(text).width;
      const left = Math.max(LEFT, Math.min(LEFT + this.inner - width, x - width / 2));
      pen.fillStyle = colour.axis;
      pen.fillRect(Math.min(Math.round(x), LEFT + this.inner - 1), top, 1, 5);
      if (taken.some(([begin, end]) => left < end + 8 && left + width > begin - 8)) continue;
      taken.push([left, left + width]);
      pen.fillStyle = colour.quiet;
      pen.textAlign = "left";
      pen.fillText(text, left, top + 12);
    }
  }

  paintLabels() {
    const { pen, colours: colour } = this;
    const top = this.height - AXIS_HEIGHT;
    const { labels, partitions } = this.data.axis;
    const apart = Math.min(TICK_PX, this.inner / 2 - 4);
    const tick = (step, text, y, edge) => {
      const x = this.x(step);
      const room = apart - 12;
      pen.textAlign = edge > 0 ? "right" : "left";
      pen.fillText(fitted(pen, text, room), edge > 0 ? x : x + (edge < 0 ? 0 : 3), y);
    };
    const [from, to] = this.view;
    const visible = labels.filter(([step]) => step >= from && step < to);
    let free = LEFT;
    let before = null;
    visible.forEach(([step, text], place) => {
      if (text === before) return;
      const isLast = place === visible.length - 1 && visible.length > 1;
      const x = this.x(isLast ? step + 1 : step);
      if (isLast ? x - apart < free - 1 : x < free || (x + 2 * apart > LEFT + this.inner && place > 0)) return;
      pen.fillStyle = colour.axis;
      pen.fillRect(Math.round(isLast ? x - 1 : x), top, 1, 5);
      pen.fillStyle = colour.quiet;
      tick(isLast ? step + 1 : step, text, top + 12, isLast ? 1 : place ? 0 : -1);
      free = x + apart;
      before = text;
    });
    let taken = LEFT;
    pen.fillStyle = colour.text;
    for (const [step, text] of partitions) {
      const x = Math.max(LEFT, this.x(step));
      if (x < taken || step >= to) continue;
      pen.textAlign = "left";
      const words = fitted(pen, text, TICK_PX);
      pen.fillText(words, x, top + 26);
      taken = x + pen.measureText(words).width + 12;
    }
  }

  paintDrag() {
    if (!this.drag || this.drag.to === undefined) return;
    const [left, right] = [this.drag.from, this.drag.to].sort((one, other) => one - other);
    this.pen.fillStyle = this.colours.drag;
    this.pen.fillRect(left, 0, right - left, this.height - AXIS_HEIGHT);
  }

  // -- the pointer and the keys

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  at(x, y) {
    const group = this.bands?.findIndex((band) => y >= band.y && y < band.y + band.height) ?? -1;
    if (group < 0 || x < LEFT) return -1;
    const lane = Math.floor((y - this.bands[group].y) / this.lane);
    const step = this.stepAt(x);
    const { first, last } = this.data.columns;
    const slack = (1.5 / this.inner) * (this.view[1] - this.view[0]);
    for (const tried of [lane, lane - 1, lane + 1]) {
      const bars = this.lanes[group][tried] ?? [];
      let [low, high] = [0, bars.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.starts[first[bars[middle]]] <= step + slack) low = middle + 1;
        else high = middle;
      }
      const found = bars[low - 1];
      if (found !== undefined && this.ends[last[found]] >= step - slack) return found;
      if (this.lane > 3) break;
    }
    return -1;
  }

  moved(event) {
    if (!this.data) return;
    const [x, y] = this.place(event);
    if (this.drag) {
      this.drag.to = Math.max(LEFT, Math.min(LEFT + this.inner, x));
      this.draw();
      return;
    }
    const found = this.at(x, y);
    if (found !== this.chosen || (found < 0 && this.chosenId !== null)) this.choose(found, false);
    if (found >= 0) this.putTip(x, y);
  }

  left() {
    if (!this.drag && document.activeElement !== this.canvas) this.choose(-1);
  }

  pressed(event) {
    if (event.button !== 0 || !this.data) return;
    const [x, y] = this.place(event);
    if (event.pointerType === "touch") {
      this.choose(this.at(x, y));
      return this.putTip(x, y);
    }
    if (x < LEFT) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { from: x };
  }

  released() {
    const drag = this.drag;
    this.drag = null;
    if (!drag || drag.to === undefined || Math.abs(drag.to - drag.from) < 6) return this.data && this.draw();
    const [left, right] = [drag.from, drag.to].sort((one, other) => one - other).map((x) => this.stepAt(x));
    this.look(left, right);
  }

  look(from, to, keepsTip = false) {
    const [low, high] = this.extent;
    const least = this.byValue ? (high - low) / 1e6 : 2;
    const width = Math.min(high - low, Math.max(least, to - from));
    const start = Math.max(low, Math.min(high - width, from));
    this.isWhole = width >= (high - low) * (1 - 1e-9);
    this.view = this.isWhole ? this.extent : [start, start + width];
    if (!keepsTip) this.tip.hidden = true;
    this.draw();
  }

  zoom(factor) {
    if (!this.data) return;
    const [from, to] = this.view;
    const { first, last } = this.data.columns;
    const middle = this.chosen >= 0
      ? (this.starts[first[this.chosen]] + this.ends[last[this.chosen]]) / 2
      : (from + to) / 2;
    const half = ((to - from) / 2) * factor;
    this.look(middle - half, middle + half);
    if (this.chosen >= 0) this.show(this.chosen);
  }

  whole() {
    if (this.data) this.look(...this.extent);
  }

  key(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowRight: () => this.go(1), ArrowLeft: () => this.go(-1),
      ArrowDown: () => this.goLane(1), ArrowUp: () => this.goLane(-1),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      Escape: () => (this.choose(-1), this.whole()),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  go(by) {
    const total = this.data.columns.first.length;
    if (!total) return;
    if (this.chosen < 0) return this.show(0);
    const { group, lane } = this.data.columns;
    const bars = this.lanes[group[this.chosen]][lane[this.chosen]];
    const next = bars[bars.indexOf(this.chosen) + by];
    if (next !== undefined) this.show(next);
  }

  goLane(by) {
    if (this.chosen < 0) return this.go(1);
    const { group, lane, first, last } = this.data.columns;
    const rows = this.lanes.flatMap((lanes, number) => lanes.map((bars, place) => ({ number, place, bars })));
    const here = rows.findIndex((row) => row.number === group[this.chosen] && row.place === lane[this.chosen]);
    const bars = rows[here + by]?.bars;
    if (!bars?.length) return;
    const middle = (first[this.chosen] + last[this.chosen]) / 2;
    const away = (index) => Math.max(0, first[index] - middle, middle - last[index]);
    this.show(bars.reduce((best, index) => (away(index) < away(best) ? index : best), bars[0]));
  }

  show(index) {
    const { first, last } = this.data.columns;
    const [from, to] = this.view;
    const half = (to - from) / 2;
    const [begin, end] = [this.starts[first[index]], this.ends[last[index]]];
    if (end < from || begin > to) this.look(begin - half, begin + half);
    this.choose(index);
    const box = this.box(index);
    this.putTip(Math.max(LEFT, Math.min(LEFT + this.inner, box.left + box.width / 2)), box.top + box.height);
  }

  // -- the description of a bar

  async choose(index, speak = true) {
    const id = index < 0 ? null : this.data.columns.id[index];
    this.chosen = index;
    this.chosenId = id;
    this.draw();
    this.tip.hidden = index < 0;
    if (id === null) return;
    this.describe(index, this.parts.get(id), speak);
    if (this.parts.has(id)) return;
    await new Promise((resolve) => setTimeout(resolve, 40)); // no request for a pointer that only passes by
    if (this.chosenId !== id) return;
    const value = await this.askPart(id).catch(() => null); // without an answer the tip lacks the path, until it is chosen again
    if (!value || this.chosenId !== id) return;
    this.parts.set(id, value);
    if (this.chosen >= 0) this.describe(this.chosen, value, speak);
  }

  describe(index, part, speak) {
    const { columns, states, groups } = this.data;
    const rows = columns.rows[index];
    const dead = columns.dead_rows[index];
    const [first, last] = [columns.min_block[index], columns.max_block[index]];
    const blocks = first === last ? `version ${count(first)}` : `versions ${count(first)} to ${count(last)}`;
    const lines = [
      ["part", part?.path ?? "…"],
      part?.partition ? ["partition", part.partition] : null,
      ["from", part?.from ?? "…"],
      ["to", part?.to ?? "…"],
      ["rows", `${count(rows)}, ${count(dead)} dead (${share(dead, rows)})`],
      ["size", bytes(columns.bytes[index])],
      ["rows of", blocks],
      ["state", `${name(groups[columns.group[index]])}, ${STATES[states[columns.state[index]]]}`],
    ].filter(Boolean);
    this.tip.replaceChildren(h("dl", { class: "facts" }, lines.map(([key, value]) =>
      h("div", {}, h("dt", {}, key), h("dd", { class: key === "part" ? "path" : null }, value)))));
    if (speak && part) this.spoken.textContent = lines.map(([key, value]) => `${key} ${value}`).join(", ");
  }

  putTip(x, y) {
    const stage = this.canvas.parentElement.clientWidth;
    const width = Math.min(430, stage - 16);
    this.tip.style.width = `${width}px`;
    this.tip.style.left = `${Math.max(0, Math.min(stage - width, x + 14))}px`;
    this.tip.style.top = `${y + 16}px`;
  }

  showLegend() {
    const colour = colours();
    const found = new Set(this.data.columns.state.map((state) => this.data.states[state]));
    const mark = (fill) => {
      const element = h("i", { class: "mark" });
      element.style.background = fill;
      return element;
    };
    const items = [];
    if (found.has("settled")) items.push(h("span", {}, colour.dead.map(mark), ` settled, 0 to 100 % dead rows`));
    for (const state of ["claimed", "other_order", "tail"]) {
      if (found.has(state)) items.push(h("span", {}, mark(colour[state]), ` ${STATES[state]}`));
    }
    replace(this.legend, items);
  }
}

const STATES = {
  settled: "settled", claimed: "being merged", other_order: "not sorted by today's sort key", tail: "not yet settled",
};

function name(group) {
  return group.level < 0 ? "tail" : `level ${group.level}`;
}

function row(group) {
  const cells = [
    count(group.parts), count(group.rows), count(group.dead_rows), share(group.dead_rows, group.rows), bytes(group.bytes),
    count(group.lanes),
  ];
  return h("tr", {}, h("th", { scope: "row" }, name(group)), cells.map((text) => h("td", { class: "number" }, text)));
}

function deadStep(dead, rows) {
  return rows > 0 && dead > 0 ? Math.min(DEAD_STEPS - 1, 1 + Math.floor((dead / rows) * (DEAD_STEPS - 1))) : 0;
}

function valuesOf({ values: { low, high, places } }) {
  return Float64Array.from(places, (place) => low + (place / PLACES) * (high - low));
}

/** A function from ranks of an axis to ranks of a later one: by values, or else the same bound; undefined if it left. */
function finder(before, after) {
  if (before.values && after.values) {
    const [old, now] = [valuesOf(before), valuesOf(after)];
    return (rank) => (old[rank] === undefined ? undefined : Math.max(0, lastAtMost(now, old[rank])));
  }
  const ranks = new Map((after.ids ?? []).map((id, rank) => [id, rank]));
  return (rank) => ranks.get(before.ids?.[rank]);
}

/** The place of the last value that is not above `most` in a sorted array; -1 if all are. */
function lastAtMost(values, most) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= most) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function fitted(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (variable) => style.getPropertyValue(`--${variable}`).trim();
  return {
    text: of("text"), quiet: of("quiet"), rule: of("rule"), axis: of("axis"), band: of("band"), depth: of("depth"),
    budget: of("budget"), drag: of("drag"), claimed: of("claimed"), other_order: of("other-order"), tail: of("tail"),
    dead: Array.from({ length: DEAD_STEPS }, (_, step) => of(`dead-${step}`)),
  };
}
