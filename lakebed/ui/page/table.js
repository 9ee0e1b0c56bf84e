// One table: figures, levels, curves, running merges, the plan, who writes, the quarantine, schema and properties, and the
// timeline. What did not change is left as it is, so that a new version takes nothing out of a reader's hands.

import { age, bytes, count, counted, duration, findings, h, health, keyed, now, ratio, replace, share } from "./dom.js";
import { Curves } from "./curves.js";
import { Levels } from "./levels.js";
import { Timeline } from "./timeline.js";

const TOGETHER_MAX = 4;

export class TableView {
  constructor(path, ask) {
    this.path = path;
    this.ask = ask;
    const query = `path=${encodeURIComponent(path)}`;
    this.addresses = { table: `api/table?${query}`, levels: `api/levels?${query}`, timeline: `api/timeline?${query}` };
    this.head = h("div", { class: "head" });
    this.figures = h("dl", { class: "figures" });
    this.levels = new Levels((id) => ask(`api/part?${query}&id=${id}`));
    this.curves = new Curves();
    this.timeline = new Timeline();
    this.merges = new Grid("Claims", CLAIM_COLUMNS, "No merge is under way: the log holds no claim.");
    this.plans = new Grid("Plans", PLAN_COLUMNS, "Nothing: the plan is empty.");
    this.left = h("ul", { class: "left-alone" });
    this.writers = new Grid("Writers", WRITER_COLUMNS, "Nobody committed within the last hour of the log.");
    this.reasons = new Grid("Reasons", REASON_COLUMNS, "The quarantine is empty.");
    this.live = h("dl", { class: "facts of-source" });
    this.columns = new Grid("Columns", COLUMN_COLUMNS, "The table has no columns.");
    this.properties = new Grid("Properties", PROPERTY_COLUMNS, "No property is set.");
    this.liveSection = section("Source, seen from this process", "live", this.live);
    this.sections = [
      this.figures,
      section("Levels", "levels", this.levels.element),
      section("Over time", "curves", this.curves.element),
      this.liveSection,
      section("Running merges", "merges", this.merges.element),
      section("What would be done now, and why", "plan", this.plans.element, h("h3", {}, "Left alone"), this.left),
      section("Who writes", "writers", this.writers.element),
      section("Quarantine by reason", "reasons", this.reasons.element),
      section("Timeline", "timeline", this.timeline.element),
      section("Schema", "schema", this.columns.element),
      section("Properties", "properties", this.properties.element),
    ];
    this.element = h("article", { class: "table-view" }, this.head, this.sections);
    for (const each of this.sections) each.hidden = true;
    this.data = null; // the answer that is shown
    this.late = false;
  }

  close() {
    this.levels.close();
    this.curves.close();
  }

  tick() {
    showProgress(this.merges.element);
    this.curves.tick();
  }

  async update(tables) {
    const mine = tables.tables.find((table) => table.path === this.path);
    if (!mine) {
      replace(this.head,
        h("p", { class: "crumbs" }, h("a", { href: "#/", "data-focus": "all" }, "All tables")),
        h("h1", {}, this.path),
        h("p", { class: "notice" }, "This table is not shown here. The page was started with other tables."));
      return;
    }
    const [table, levels, timeline] = await this.together();
    if (table && (table !== this.data || this.late !== mine.is_late)) {
      this.data = table;
      this.late = mine.is_late;
      this.show(table, mine.is_late);
    }
    if (!table?.figures) return;
    if (levels && levels !== this.levels.data) this.levels.update(levels);
    if (timeline && timeline !== this.timeline.data) {
      this.curves.update(timeline);
      this.timeline.update(timeline);
      this.writers.show(timeline.writers.map((one) => [one.who, one, writer]));
    }
  }

  /** The answers about one version. Where the server looked again between two requests, they are asked for once more. */
  async together() {
    const { table, levels, timeline } = this.addresses;
    for (let attempt = 0; attempt < TOGETHER_MAX; attempt++) {
      const whole = await this.ask(table);
      if (!whole?.figures) return [whole];
      const drawings = await Promise.all([this.ask(levels), this.ask(timeline)]);
      if (drawings.every((one) => one?.version === whole.figures.version)) return [whole, ...drawings];
    }
    return []; // what is shown stays, and is of one version
  }

  show(table, isLate) {
    const shape = table.shape;
    const order = shape && [
      shape.keys.length ? `keys ${shape.keys.join(", ")}` : "no keys",
      shape.sort_key.length ? `sorted by ${shape.sort_key.join(", ")}` : null,
      shape.partition_by.length ? `partitioned by ${shape.partition_by.join(", ")}` : null,
    ].filter(Boolean).join(" · ");
    replace(this.head,
      h("p", { class: "crumbs" }, h("a", { href: "#/", "data-focus": "all" }, "All tables")),
      h("h1", {}, table.name, " ", health(table)),
      h("p", { class: "path quiet" }, table.path), order && h("p", { class: "quiet" }, order),
      findings({ ...table, is_late: isLate }));
    for (const each of this.sections) each.hidden = !table.figures;
    if (!table.figures) return;
    keyed(this.figures, figures(table.figures));
    this.merges.show(table.claims.map((claim) => [claim.id, claim, claimCells]), table.claims_more, mergesNote(table));
    this.tick();
    this.plans.show(table.plan.plans.map((one, place) => [place, one, planCells]));
    const left = table.plan.left.length ? table.plan.left : [{ cause: "", count: null, why: "Nothing is left alone." }];
    keyed(this.left, left.map((one) => [one.cause, one, leftAlone]));
    const found = table.quarantine ?? { reasons: [], more: 0, error: null };
    this.reasons.show(found.reasons.map((one) => [one.reason, one, reasonCells]), found.more, found.error ?? "");
    this.liveSection.hidden = !table.live;
    if (table.live) keyed(this.live, liveFacts(table.live));
    this.columns.show(shape.columns.map((one) => [one.name, { ...one, role: role(one.name, shape) }, columnCells]),
      shape.columns_more);
    this.properties.show(Object.entries(shape.properties).map((pair) => [pair[0], pair, (shown) => shown.map(String)]));
  }
}

function section(title, id, ...children) {
  const heading = h("h2", { id: `title-${id}` }, title);
  return h("section", { class: `block ${id}`, "aria-labelledby": heading.id }, heading, children);
}

function figures(data) {
  const all = data.rows + data.dead_rows;
  const levels = Object.entries(data.parts_by_level).map(([level, parts]) => `L${level} ${count(parts)}`).join("  ");
  const reference = data.write_amplification_reference === null
    ? "nothing came in"
    : `reference ${ratio(data.write_amplification_reference)}, last ${duration(data.recent_seconds)}`;
  const tail = data.tail_parts ? `${counted(data.tail_parts, "part", "parts")}, ` : "empty";
  const merges = data.claims_live ? `${counted(data.claims_live, "merge runs", "merges run")}` : "no merge runs";
  const since = data.tail_parts ? [data.tail_since_ms, " old"] : null;
  const shown = [
    ["Version", count(data.version), "", [data.committed_ms, " ago"]],
    ["Settled rows", count(data.rows), `${share(data.dead_rows, all)} dead`],
    ["Size", bytes(data.bytes), `space ampl. ${ratio(data.space_amplification)}`],
    ["Parts", count(data.parts), levels || "none"],
    ["Tail", count(data.tail_rows), tail, since],
    ["Depth", count(data.depth), `read budget ${count(data.read_budget)}`, null, data.depth > 2 * data.read_budget],
    ["Write ampl.", ratio(data.write_amplification), reference],
    ["Backlog", bytes(data.backlog_bytes), merges],
    ["Quarantine", count(data.quarantined), data.quarantined === 1 ? "record" : "records", null, data.quarantined > 0],
    ["Log", counted(data.log_files, "file", "files"), `from version ${count(data.oldest_version)} on`],
  ];
  return shown.map((figure) => [figure[0], figure, figureOf]);
}

function figureOf([name, value, more, since, isBeyond]) {
  return h("div", {}, h("dt", {}, name), h("dd", { class: isBeyond ? "value beyond" : "value" }, value),
    h("dd", { class: "more" }, more, since && age(...since)));
}

/** A table whose rows come and go; while there are none, a sentence in its place. */
class Grid {
  constructor(label, columns, none) {
    this.styles = columns.map(([, isNumber, style]) => (isNumber ? "number" : style ?? null));
    const head = columns.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : null }, name));
    this.body = h("tbody");
    this.wide = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label },
      h("table", { class: "grid" }, h("thead", {}, h("tr", {}, head)), this.body));
    this.none = h("p", { class: "quiet" }, none);
    this.more = h("p", { class: "quiet" });
    this.note = h("p", { class: "quiet note" });
    this.element = h("div", {}, this.wide, this.none, this.more, this.note);
  }

  /** `items`: the key and the value of each row, and a function that makes cells of the value. */
  show(items, more = 0, note = "") {
    const row = (cells) => h("tr", {}, cells.map((cell, place) => h("td", { class: this.styles[place] }, cell)));
    keyed(this.body, items.map(([key, value, cells]) => [key, value, (each) => row(cells(each))]));
    this.wide.hidden = !items.length;
    this.none.hidden = items.length > 0 || Boolean(note);
    for (const [element, text] of [[this.more, more ? `and ${count(more)} more` : ""], [this.note, note]]) {
      if (element.textContent !== text) element.textContent = text;
      element.hidden = !text;
    }
  }
}

const CLAIM_COLUMNS = [
  ["Claim", false], ["Replica", false], ["State", false], ["Into level", true], ["Parts", true], ["Rows", true],
  ["Size", true], ["Running for", true], ["Lease", true], ["Progress (estimate)", false, "progress-cell"],
];

function claimCells(claim) {
  return [
    h("span", { class: "path", title: claim.id }, claim.id.slice(0, 8)), claim.replica, stateOf(claim), count(claim.level),
    claim.left ? `${count(claim.parts)} + ${count(claim.left)} gone` : count(claim.parts), count(claim.rows),
    bytes(claim.bytes), age(claim.since_ms), age(claim.lease_ms, claim.is_live ? " left" : " ago"), progress(claim),
  ];
}

function mergesNote(table) {
  if (!table.claims.length) return "";
  const weighed = table.merges_weighed;
  return weighed
    ? "The log does not record the progress of a running merge. The estimate is the seconds that its bytes take at the " +
      `rate of the newest ${counted(weighed, "merge", "merges")}, from claim to commit.`
    : "The log does not record the progress of a running merge, and there is no earlier merge to estimate from.";
}

function stateOf(claim) {
  if (!claim.is_live) return "lease ended";
  return claim.kind === "volatile" ? "on a replica's disk" : "merging";
}

function progress(claim) {
  if (claim.kind === "volatile") return h("span", { class: "quiet" }, "until it is uploaded");
  if (claim.estimated_seconds === null) return h("span", { class: "quiet" }, "nothing to estimate from");
  return h("span", { class: "progress", "data-since": claim.since_ms, "data-seconds": claim.estimated_seconds },
    h("progress", { max: "1", value: "0", "aria-label": "elapsed of the estimated seconds" }), h("span"));
}

function showProgress(parent) {
  for (const element of parent.querySelectorAll(".progress")) {
    const elapsed = (now() - Number(element.dataset.since)) / 1000;
    const seconds = Number(element.dataset.seconds);
    element.firstChild.value = Math.min(1, elapsed / seconds);
    element.lastChild.textContent = elapsed > seconds
      ? `longer than about ${duration(seconds)}`
      : `${duration(elapsed)} of about ${duration(seconds)}`;
  }
}

const PLAN_COLUMNS = [
  ["What", false], ["Partition", false], ["Into level", true], ["Parts", true], ["Rows", true], ["Dead", true],
  ["Reads", true], ["Writes", true], ["Depth", true], ["Why", false, "why"],
];

function planCells(one) {
  return [
    one.kind, one.partition || "–", count(one.level), count(one.parts), count(one.rows), count(one.dead_rows),
    bytes(one.bytes_in), bytes(one.bytes_out), `${count(one.depth_before)} → ${count(one.depth_after)}`, one.why,
  ];
}

function leftAlone(one) {
  if (one.count === null) return h("li", { class: "quiet" }, one.why);
  return h("li", {}, h("span", { class: "number" }, count(one.count)), " ", one.why);
}

const WRITER_COLUMNS = [
  ["Who", false, "path"], ["Program", false], ["Newest commit", true], ["Changes in", true], ["Written", true],
  ["Commits within the last hour", false, "why"],
];

function writer(one) {
  const commits = Object.entries(one.commits).map(([operation, times]) => `${operation || "(unknown)"} ${count(times)}`);
  return [
    one.who, one.engine, age(one.newest_ms, " ago"), count(one.ingested_rows), bytes(one.written_bytes), commits.join(", "),
  ];
}

const REASON_COLUMNS = [["Records", true], ["Newest", true], ["Reason", false, "why"]];

function reasonCells(one) {
  return [count(one.records), age(one.newest_ms, " ago"), one.reason || "(none)"];
}

const COLUMN_COLUMNS = [["Column", false], ["Type", false, "path"], ["Null", false], ["Role", false]];

function columnCells(one) {
  return [one.name, one.type, one.is_nullable ? "" : "not null", one.role];
}

function role(name, shape) {
  return [
    shape.keys.includes(name) ? "key" : "",
    shape.sort_key.includes(name) ? "sort key" : "",
    shape.sequence_by === name ? "sequence" : "",
    shape.partition_by.includes(name) ? "partition" : "",
  ].filter(Boolean).join(", ");
}

const PROPERTY_COLUMNS = [["Property", false, "path"], ["Value", false, "why"]];

/** What only the process that ingests knows. */
function liveFacts(live) {
  const since = (seconds) => (seconds === null ? "–" : duration(seconds));
  const facts = [
    ["committed after, this table", since(live.committed_seconds)],
    ["visible after, this table", since(live.visible_seconds)],
    ["newest event", live.newest_event_ms === null ? "–" : { ms: live.newest_event_ms }],
    ...Object.entries(live.queries).map(([name, state]) => [`${name} query`, state]),
    ...live.lag.map((one) => [`lag of ${one.topic}`, counted(one.records, "record", "records")]),
  ];
  return facts.map((fact) => [fact[0], fact, ([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "string" ? value : age(value.ms, " ago")))]);
}
