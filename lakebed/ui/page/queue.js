// The queue: who works, what runs, what waits and why, what is parked; of all tables.

import { age, bytes, count, counted, h, keyed } from "./dom.js";
import { cancelButton, progressOf, tableLink } from "./jobs.js";
import { Paged, States } from "./paged.js";

const STATES = ["running", "waiting", "parked", "held"];
const COLUMNS = [
  ["Table", false], ["State", false], ["What", false], ["Who", false], ["Since", true], ["Until", true], ["Tail since", true],
  ["Why, or how far", false], ["", false],
];
const WORKERS = [
  ["Worker", false], ["Cores", true], ["Running", true], ["Tables that wait", true], ["Since", true], ["Seen", false],
];

export class QueueView extends Paged {
  constructor(shell) {
    super(shell, COLUMNS, "Work");
    this.path = "v1/queue";
    this.member = "tasks";
    this.empty = "Nothing runs, waits or is parked.";
    this.states = new States(this, STATES);
    this.workers = h("tbody");
    this.noWorker = h("p", { class: "quiet" });
    const search = h("input", {
      type: "search", id: "search", placeholder: "a part of a table's name", autocomplete: "off",
    });
    const head = WORKERS.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : null }, name));
    this.workerTable = h("div", { class: "wide" }, h("table", { class: "cards", "aria-label": "Workers" },
      h("thead", {}, h("tr", {}, head)), this.workers));
    this.element = h("section", { class: "queue", "aria-label": "The queue" },
      h("h1", {}, "Queue"),
      h("section", { class: "block", "aria-labelledby": "title-workers" },
        h("h2", { id: "title-workers" }, "Workers of the fleet"), this.noWorker, this.workerTable),
      h("section", { class: "block", "aria-labelledby": "title-work" }, h("h2", { id: "title-work" }, "Work"),
        h("p", { class: "controls" }, h("label", { for: "search" }, "Search"), this.field("search", search)),
        this.states.element, this.note, this.list, this.pages),
      h("p", { class: "quiet note" },
        "What waits stands in the order in which a fleet takes it. Who is the replica or runner that has the work, or the ",
        "worker that looks after the table. Who stands by settles it if its freshness is in danger. Held is what was merged ",
        "and is on a replica's disk until it is uploaded."));
  }

  show(answer) {
    super.show(answer);
    this.states.show(answer.states);
    const { workers } = answer;
    this.workerTable.hidden = !workers.length;
    this.noWorker.textContent = workers.length ? ""
      : "The roots of this service have no fleet. Pipelines and lakebed maintain look after the tables, if they run.";
    const shown = workers.map((worker) => ({ ...worker, until: worker.is_alive ? "" : worker.until }));
    keyed(this.workers, shown.map((worker) => [worker.id, worker, workerRow]));
  }

  summary() {
    if (!this.answer) return "";
    const { states, workers } = this.answer;
    const alive = workers.filter((worker) => worker.is_alive).length;
    return [`${counted(alive, "worker", "workers")}`, ...STATES.filter((state) => states[state])
      .map((state) => `${count(states[state])} ${state}`)].join(", ");
  }

  key(task) {
    return [task.root, task.state, task.what, task.job ?? task.who, task.since].join("\n");
  }

  signed(task) {
    return { ...super.signed(task), is_operator: this.who?.role === "operator" };
  }

  row(task) {
    const when = (time, suffix) => (time === null ? "–" : age(Date.parse(time), suffix));
    const size = task.bytes ? `, ${bytes(task.bytes)}` : "";
    const parts = task.parts ? h("div", { class: "quiet" }, `${counted(task.parts, "part", "parts")}${size}`) : null;
    const late = task.tail_since === null ? "–" : age(Date.parse(task.tail_since));
    const mayCancel = task.job && task.is_operator;
    const standing = task.standbys.length ? `standing by: ${task.standbys.join(", ")}` : "";
    const standbys = standing ? h("div", { class: "quiet" }, standing) : null;
    const button = mayCancel ? cancelButton(this.shell, task.table, task.job, task.what, this) : null;
    return h("tr", {},
      h("th", { scope: "row", "data-label": "Table" }, tableLink(task.table, this.key(task), task.root)),
      h("td", { "data-label": "State" }, h("span", { class: task.state === "parked" ? "critical" : null }, task.state)),
      h("td", { "data-label": "What" }, task.what, task.job ? h("div", { class: "quiet" }, "job") : null),
      h("td", { "data-label": "Who", class: "path" }, task.who || task.owner || "–", standbys),
      h("td", { "data-label": "Since", class: "number" }, when(task.since, "")),
      h("td", { "data-label": "Until", class: "number" }, when(task.until, "")),
      h("td", { "data-label": "Tail since", class: "number" }, late),
      h("td", { "data-label": "Why", class: "why" }, task.why, progressOf(task.progress), parts),
      h("td", {}, button));
  }
}

function workerRow(worker) {
  const seen = worker.is_alive ? "alive" : ["gone since ", worker.until ? age(Date.parse(worker.until)) : "–"];
  return h("tr", {},
    h("th", { scope: "row", class: "path" }, worker.id),
    h("td", { class: "number", "data-label": "Cores" }, String(worker.cores)),
    h("td", { class: "number", "data-label": "Running" }, count(worker.running)),
    h("td", { class: "number", "data-label": "Tables that wait" }, count(worker.waiting)),
    h("td", { class: "number", "data-label": "Since" }, worker.since ? age(Date.parse(worker.since)) : "–"),
    h("td", { "data-label": "Seen", class: worker.is_alive ? null : "critical" }, seen));
}
