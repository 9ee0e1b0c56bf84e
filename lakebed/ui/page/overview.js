// All tables, one row each, the sickest first: whether the table is healthy, and if not, why.

import { age, bytes, count, counted, findings, h, health, keyed, ratio } from "./dom.js";

const COLUMNS = [
  ["Table", false],
  ["Health", false],
  ["Settled rows", true],
  ["Size", true],
  ["Parts", true],
  ["Tail rows", true],
  ["Newest commit", true],
  ["Unread", true],
  ["Depth / budget", true],
  ["Write ampl.", true],
  ["Reference", true],
  ["Backlog", true],
];
const SICKEST = ["critical", "warning", null, "ok"];
let sought = ""; // what was searched for, also after a look at a table

export class Overview {
  constructor() {
    this.data = null; // the answer that is shown
    this.body = h("tbody");
    this.search = h("input", {
      type: "search", id: "search", value: sought, placeholder: "name, path, health or finding", autocomplete: "off",
      oninput: () => this.seek(),
    });
    this.databases = h("div");
    this.found = h("span", { class: "quiet", role: "status" });
    const head = COLUMNS.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : null }, name));
    this.element = h("section", { class: "overview", "aria-label": "All tables" },
      h("h1", {}, "Tables"),
      this.databases,
      h("p", { class: "controls" }, h("label", { for: "search" }, "Search"), this.search, this.found),
      h("div", { class: "wide" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, head)), this.body)),
      h("p", { class: "quiet note" },
        "Tables that are not healthy come first. Unread are records of the source that no batch has read yet, where the " +
        "process that ingests serves the page. A table of a database has the figures that need a closer look on a page of " +
        "its own. Write amplification is that of the last hour. The reference is what the best order of merges writes for " +
        "equal batches of new rows that span the whole sort key; other batches may cost less. Depth counts runs of parts " +
        "over the deepest point of the sort key."));
  }

  async update(data) {
    if (data === this.data) return;
    this.data = data;
    this.draw();
  }

  seek() {
    sought = this.search.value;
    if (this.data) this.draw();
  }

  draw() {
    const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.data.tables.filter((table) => isFound(table, words)).sort(bySickness);
    this.databases.replaceChildren(...this.data.databases.map(databaseLine));
    keyed(this.body, shown.map((table) => [table.path, table, rows]));
    this.found.textContent = words.length ? `${counted(shown.length, "table", "tables")} found` : "";
  }
}

/** A database in a line: how many tables, how many are parked, up to when all are whole; below it what is wrong with it. */
function databaseLine(database) {
  const point = database.point;
  const left = point ? Object.entries(point.left_out) : [];
  const line = h("p", { class: "database" }, h("b", { class: "path" }, database.path),
    ` · ${counted(database.tables, "table", "tables")}`,
    database.parked ? h("span", { class: "critical" }, ` · ${count(database.parked)} parked`) : null,
    point ? [` · point ${count(point.number)}, of the source `, age(point.time_ms, " ago")] : null,
    left.length ? ` · without ${left.map(([name, why]) => `${name} (${why})`).join(", ")}` : null);
  return h("div", {}, line, findings(database));
}

function isFound(table, words) {
  const text = [table.path, table.severity ?? "", ...table.findings.map((each) => `${each.check} ${each.what}`)]
    .join(" ").toLowerCase();
  return words.every((word) => text.includes(word) || (word === "healthy" && table.severity === "ok"));
}

function bySickness(one, other) {
  const place = (table) => SICKEST.indexOf(table.severity === "ok" && table.is_late ? "warning" : table.severity);
  return place(one) - place(other) || (one.name < other.name ? -1 : Number(one.name > other.name));
}

function rows(table) {
  const figures = table.figures;
  const address = `#/table/${encodeURIComponent(table.path)}`;
  const name = h("a", { href: address, "data-focus": table.path, title: table.path }, table.name);
  const first = h("th", { scope: "row", "data-label": "Table" }, name, h("div", { class: "path quiet" }, table.path));
  const cells = figures
    ? [
        count(figures.rows), bytes(figures.bytes), count(figures.parts), count(figures.tail_rows),
        age(figures.committed_ms), count(table.unread), over(figures.depth, figures.read_budget),
        ratio(figures.write_amplification),
        ratio(figures.write_amplification_reference), bytes(figures.backlog_bytes),
      ]
    : COLUMNS.slice(2).map(() => "–");
  const list = findings(table);
  const said = [
    table.resnapshot ? h("div", { class: "quiet" }, table.resnapshot) : null,
    table.verified ? h("div", { class: "quiet" }, `${table.verified}, `, age(table.verified_ms, " ago")) : null,
  ];
  return [
    h("tr", { class: list ? "with-findings" : null }, first, h("td", { "data-label": "Health" }, health(table), said),
      cells.map((cell, place) => h("td", { class: "number", "data-label": COLUMNS[place + 2][0] }, cell))),
    list && h("tr", { class: "of-findings" }, h("td", { colspan: COLUMNS.length }, list)),
  ];
}

function over(depth, budget) {
  if (depth === undefined) return "–"; // a table of a database: its own page knows
  return h("span", { class: depth > 2 * budget ? "beyond" : null }, `${count(depth)} / ${count(budget)}`);
}
