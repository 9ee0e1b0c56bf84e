// The commits, newest first, of all operations or of one; claims only if asked for. An opened row shows all that the log
// records of its commit. It stays in the list, however many commits come after it.

import { bytes, clock, count, counted, day, h, keyed } from "./dom.js";

const SHOWN = 50;

export class Timeline {
  constructor() {
    this.data = null;
    this.opened = new Set();
    this.shown = SHOWN;
    this.operation = "";
    this.select = h("select", { id: "operation", onchange: () => this.choose() });
    this.claims = h("input", { type: "checkbox", id: "claims", onchange: () => this.chooseClaims() });
    this.note = h("span", { class: "quiet", role: "status" });
    this.body = h("tbody");
    this.more = h("button", { type: "button", class: "plain", onclick: () => this.showMore() }, "Show more");
    const head = ["Version", "Time", "Operation", "Base parts", "Tail parts", "Written", "Changes in", "Why"];
    this.element = h("div", {},
      h("p", { class: "controls" }, h("label", { for: "operation" }, "Operation"), this.select,
        h("label", {}, this.claims, " show claims"), this.note),
      h("div", { class: "wide" }, h("table", { class: "grid commits" },
        h("thead", {}, h("tr", {}, head.map(column))), this.body)),
      this.more);
  }

  update(data) {
    this.data = data;
    const versions = new Set(data.commits.map((commit) => commit.version));
    for (const version of this.opened) if (!versions.has(version)) this.opened.delete(version);
    this.draw();
  }

  /** The commits to choose from: all, or all but claims. */
  commits() {
    return this.data.commits.filter((commit) => this.claims.checked || !commit.is_claim);
  }

  /** Lists the operations. An option that is there stays, so that an open list stays open. */
  list(commits) {
    const counts = new Map([["", commits.length]]);
    for (const { operation } of commits) counts.set(operation, (counts.get(operation) ?? 0) + 1);
    if (!counts.has(this.operation)) counts.set(this.operation, 0);
    const options = new Map([...this.select.options].map((option) => [option.value, option]));
    for (const [value, option] of options) if (!counts.has(value)) option.remove();
    for (const [place, value] of [...counts.keys()].sort().entries()) {
      const option = options.get(value) ?? h("option", { value });
      const text = `${value || "all"} (${count(counts.get(value))})`;
      if (option.textContent !== text) option.textContent = text;
      if (this.select.options[place] !== option) this.select.insertBefore(option, this.select.options[place] ?? null);
    }
    if (this.select.value !== this.operation) this.select.value = this.operation;
  }

  chooseClaims() {
    if (!this.claims.checked && !this.commits().some((commit) => commit.operation === this.operation)) this.operation = "";
    this.draw();
  }

  choose() {
    this.operation = this.select.value;
    this.shown = SHOWN;
    this.draw();
  }

  showMore() {
    this.shown += 4 * SHOWN;
    this.draw();
  }

  toggle(version) {
    if (!this.opened.delete(version)) this.opened.add(version);
    this.draw();
  }

  draw() {
    const all = this.commits();
    this.list(all);
    const found = all.filter((commit) => !this.operation || commit.operation === this.operation);
    const listed = found.filter(({ version }, place) => place < this.shown || this.opened.has(version));
    keyed(this.body, listed.map((commit) =>
      [commit.version, { ...commit, isOpen: this.opened.has(commit.version) }, (value) => this.rows(value)]));
    this.more.hidden = found.length <= this.shown;
    const from = all.at(-1);
    const commits = counted(found.length, "commit", "commits");
    this.note.textContent = from ? `${commits} since ${day(from.at_ms)} ${clock(from.at_ms)}` : "";
  }

  rows(commit) {
    const isOpen = commit.isOpen;
    const id = `commit-${commit.version}`;
    const button = h("button", {
      type: "button", class: "row", "aria-expanded": isOpen ? "true" : "false", "aria-controls": isOpen ? id : null,
      "data-focus": commit.version, onclick: () => this.toggle(commit.version),
    }, commit.operation || "(unknown)");
    const why = commit.parameters.why;
    return [
      h("tr", {},
        h("td", { class: "number" }, count(commit.version)),
        h("td", { class: "when", title: day(commit.at_ms) }, clock(commit.at_ms)),
        h("td", {}, button),
        h("td", { class: "number" }, changed(commit.parts_added, commit.parts_removed, commit.parts_marked)),
        h("td", { class: "number" }, changed(commit.change_parts_added, commit.change_parts_settled)),
        h("td", { class: "number" }, commit.written_bytes ? bytes(commit.written_bytes) : "–"),
        h("td", { class: "number" }, commit.ingested_rows ? count(commit.ingested_rows) : "–"),
        h("td", { class: "quiet" }, typeof why === "string" ? why : "")),
      isOpen && h("tr", { class: "details", id }, h("td", { colspan: 8 }, details(commit))),
    ];
  }
}

function column(name, place) {
  return h("th", { scope: "col", class: [1, 2, 7].includes(place) ? null : "number" }, name);
}

function changed(added, removed, marked = 0) {
  const texts = [
    added ? `+${count(added)}` : "", removed ? `−${count(removed)}` : "", marked ? `${count(marked)} marked` : "",
  ];
  return texts.filter(Boolean).join("  ") || "–";
}

function details(commit) {
  const marked = count(commit.parts_marked);
  const entries = [
    ["time", `${day(commit.at_ms)} ${clock(commit.at_ms)}`],
    ["engine", commit.engine],
    [
      "base parts",
      `${count(commit.parts_added)} added, ${count(commit.parts_removed)} removed, rows marked dead in ${marked}`,
    ],
    ["change parts", `${count(commit.change_parts_added)} added, ${count(commit.change_parts_settled)} left the tail`],
    ...Object.entries(commit.parameters),
    ...Object.entries(commit.metrics),
  ];
  const known = entries.filter(([, value]) => value !== "" && value !== null);
  return h("dl", { class: "facts" }, known.map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, text(value)))));
}

function text(value) {
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : String(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}
