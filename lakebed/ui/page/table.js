// One table: figures, levels, running merges, the plan, curves and the timeline.

import { age, bytes, count, counted, duration, findings, h, health, now, ratio, replace, share } from "./dom.js";
import { Curves } from "./curves.js";
import { Levels } from "./levels.js";
import { Timeline } from "./timeline.js";

export class TableView {
  constructor(path, ask) {
    this.path = path;
    this.ask = ask;
    const query = `path=${encodeURIComponent(path)}`;
    this.addresses = { table: `api/table?${query}`, levels: `api/levels?${query}`, timeline: `api/timeline?${query}` };
    this.head = h("div", { class: "head" });
    this.figures = h("dl", { class: "figures" });
    this.levels = new Levels((version, index) => ask(`api/part?${query}&version=${version}&index=${index}`));
    this.merges = h("div");
    this.plan = h("div");
    this.curves = new Curves();
    this.timeline = new Timeline();
    this.sections = [
      this.figures,
      section("Levels", "levels", this.levels.element),
      section("Running merges", "merges", this.merges),
      section("What would be done now, and why", "plan", this.plan),
      section("Amplification", "curves", this.curves.element),
      section("Timeline", "timeline", this.timeline.element),
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
    showProgress(this.merges);
  }

  async update(tables) {
    const mine = tables.tables.find((table) => table.path === this.path);
    if (!mine) {
      replace(this.head,
        h("p", { class: "crumbs" }, h("a", { href: "#/", "data-focus": "all" }, "All tables")),
        h("h1", {}, this.path),
        h("p", { class: "notice" }, "This table is not shown here. lakebed ui was started with other tables."));
      return;
    }
    const table = await this.ask(this.addresses.table);
    if (table && (table !== this.data || this.late !== mine.is_late)) {
      this.data = table;
      this.late = mine.is_late;
      this.show(table, mine.is_late);
    }
    if (!table?.figures) return;
    const [levels, timeline] = await Promise.all([this.ask(this.addresses.levels), this.ask(this.addresses.timeline)]);
    if (levels && levels !== this.levels.data) this.levels.update(levels);
    if (timeline && timeline !== this.timeline.data) {
      this.curves.update(timeline);
      this.timeline.update(timeline);
    }
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
    replace(this.figures, figures(table.figures));
    replace(this.merges, merges(table));
    this.tick();
    replace(this.plan, plan(table.plan));
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
  const tail = data.tail_parts
    ? [`${counted(data.tail_parts, "part", "parts")}, `, age(data.tail_since_ms, " old")]
    : ["empty"];
  const merges = data.claims_live ? `${counted(data.claims_live, "merge runs", "merges run")}` : "no merge runs";
  const shown = [
    ["Version", count(data.version), [age(data.committed_ms, " ago")]],
    ["Rows", count(data.rows), [`${share(data.dead_rows, all)} dead`]],
    ["Size", bytes(data.bytes), [`space ampl. ${ratio(data.space_amplification)}`]],
    ["Parts", count(data.parts), [levels || "none"]],
    ["Tail", count(data.tail_rows), tail],
    ["Depth", count(data.depth), [`read budget ${count(data.read_budget)}`], data.depth > 2 * data.read_budget],
    ["Write ampl.", ratio(data.write_amplification), [reference]],
    ["Backlog", bytes(data.backlog_bytes), [merges]],
    ["Quarantine", count(data.quarantined), [data.quarantined === 1 ? "record" : "records"], data.quarantined > 0],
    ["Log", counted(data.log_files, "file", "files"), [`from version ${count(data.oldest_version)} on`]],
  ];
  return shown.map(([name, value, more, isBeyond]) =>
    h("div", {}, h("dt", {}, name), h("dd", { class: isBeyond ? "value beyond" : "value" }, value),
      h("dd", { class: "more" }, more)));
}

function grid(label, columns, rows) {
  const head = columns.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : null }, name));
  const styles = columns.map(([, isNumber, style]) => (isNumber ? "number" : style ?? null));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell, place) => h("td", { class: styles[place] }, cell))));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: "grid" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

function merges(table) {
  if (!table.claims.length) return h("p", { class: "quiet" }, "No merge is under way: the log holds no claim.");
  const columns = [
    ["Claim", false], ["Replica", false], ["State", false], ["Into level", true], ["Parts", true], ["Rows", true],
    ["Size", true], ["Running for", true], ["Lease", true], ["Progress (estimate)", false, "progress-cell"],
  ];
  const rows = table.claims.map((claim) => [
    h("span", { class: "path", title: claim.id }, claim.id.slice(0, 8)), claim.replica, stateOf(claim), count(claim.level),
    claim.left ? `${count(claim.parts)} + ${count(claim.left)} gone` : count(claim.parts), count(claim.rows),
    bytes(claim.bytes), age(claim.since_ms), age(claim.lease_ms, claim.is_live ? " left" : " ago"), progress(claim),
  ]);
  const weighed = table.merges_weighed;
  const note = weighed
    ? "The log does not record the progress of a running merge. The estimate is the seconds that its bytes take at the " +
      `rate of the newest ${counted(weighed, "merge", "merges")}, from claim to commit.`
    : "The log does not record the progress of a running merge, and there is no earlier merge to estimate from.";
  const more = table.claims_more ? h("p", { class: "quiet" }, `and ${count(table.claims_more)} more`) : null;
  return [grid("Claims", columns, rows), h("p", { class: "quiet note" }, note), more];
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

function plan(data) {
  const columns = [
    ["What", false], ["Partition", false], ["Into level", true], ["Parts", true], ["Rows", true], ["Dead", true],
    ["Reads", true], ["Writes", true], ["Depth", true], ["Why", false, "why"],
  ];
  const rows = data.plans.map((one) => [
    one.kind, one.partition || "–", count(one.level), count(one.parts), count(one.rows), count(one.dead_rows),
    bytes(one.bytes_in), bytes(one.bytes_out), `${count(one.depth_before)} → ${count(one.depth_after)}`, one.why,
  ]);
  const left = data.left.map((one) => h("li", {}, h("span", { class: "number" }, count(one.count)), " ", one.why));
  return [
    rows.length ? grid("Plans", columns, rows) : h("p", { class: "quiet" }, "Nothing: the plan is empty."),
    h("h3", {}, "Left alone"),
    left.length ? h("ul", { class: "left-alone" }, left) : h("p", { class: "quiet" }, "Nothing is left alone."),
  ];
}
