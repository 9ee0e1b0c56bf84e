// All tables of the service: the worst first, or as the reader sorts them. A page at a time, so thousands are as quick as ten.

import { age, bytes, count, counted, h } from "./dom.js";
import { tableLink } from "./jobs.js";
import { Paged, States } from "./paged.js";

const STATES = ["unreadable", "parked", "failing", "critical", "late", "running", "waiting", "quiet"];
const BAD = new Set(["unreadable", "parked", "failing", "critical", "late"]);
const COLUMNS = [
  ["Table", false, "name"], ["State", false, "state"], ["Settled rows", true, "rows"], ["Size", true, "bytes"],
  ["Parts", true, "parts"],
  ["Depth / budget", true, "depth"], ["Tail rows", true, null], ["Tail since", true, "late"],
  ["Newest commit", true, "committed"], ["Jobs", true, null],
];
const kept = { search: "", sort: "state", state: "" }; // also after a look at a table

export class TablesView extends Paged {
  constructor(shell) {
    super(shell, [], "Tables");
    this.path = "v1/survey";
    this.member = "rows";
    this.empty = "No table is found.";
    this.wanted = kept;
    this.sorts = new Map();
    for (const [name, isNumber, sort] of COLUMNS) {
      const label = sort ? h("button", { class: "plain-link", onclick: () => this.sortBy(sort) }, name) : name;
      const cell = h("th", { scope: "col", class: isNumber ? "number" : null }, label);
      if (sort) this.sorts.set(sort, cell);
      this.head.append(cell);
    }
    const search = h("input", {
      type: "search", id: "search", value: kept.search, placeholder: "a part of the name", autocomplete: "off",
    });
    this.states = new States(this, STATES);
    this.element = h("section", { class: "overview", "aria-label": "All tables" },
      h("h1", {}, "Tables"),
      h("p", { class: "controls" }, h("label", { for: "search" }, "Search"), this.field("search", search)),
      this.states.element, this.note, this.list, this.pages,
      h("p", { class: "quiet note" },
        "A column's name sorts by it. Late is a table whose oldest change is older than lakebed.freshness, or, without that, ",
        "was due to be settled two minutes ago. Depth counts runs of parts over the deepest point of the sort key."));
  }

  sortBy(sort) {
    this.wanted.sort = sort;
    this.after = [];
    this.load().catch(() => {});
  }

  show(answer) {
    super.show(answer);
    this.states.show(answer.states);
    const order = ["name", "state"].includes(this.wanted.sort) ? "ascending" : "descending";
    for (const [sort, cell] of this.sorts) {
      if (sort === this.wanted.sort) cell.setAttribute("aria-sort", order);
      else cell.removeAttribute("aria-sort");
    }
  }

  summary() {
    if (!this.answer) return "";
    const found = Object.entries(this.answer.states).filter(([state]) => BAD.has(state));
    const bad = found.map(([state, tables]) => `${count(tables)} ${state}`);
    return `${counted(this.answer.survey.tables, "table", "tables")}, ${bad.length ? bad.join(", ") : "none is late or parked"}`;
  }

  key(row) {
    return row.root;
  }

  row(row) {
    const since = row.tail_since === null ? "–" : age(Date.parse(row.tail_since));
    const depth = `${count(row.depth)} / ${count(row.read_budget)}`;
    const cells = [
      count(row.rows), bytes(row.bytes), count(row.parts),
      h("span", { class: row.depth > 2 * row.read_budget ? "beyond" : null }, depth),
      count(row.tail_rows), since, row.committed_at === null ? "–" : age(Date.parse(row.committed_at)),
      row.jobs ? count(row.jobs) : "",
    ];
    return h("tr", {},
      h("th", { scope: "row", "data-label": "Table" }, tableLink(row.name, row.root, row.root)),
      h("td", { "data-label": "State" }, stateOf(row.state), row.why ? h("div", { class: "quiet" }, row.why) : null),
      cells.map((cell, place) => h("td", { class: "number", "data-label": COLUMNS[place + 2][0] }, cell)));
  }
}

const SEVERITY = {
  unreadable: "critical", parked: "critical", failing: "critical", critical: "critical", late: "warning", running: "ok",
  quiet: "ok",
};

function stateOf(state) {
  return h("span", { class: `health ${SEVERITY[state] ?? "unknown"}` }, state);
}
