// Jobs: those of all tables, those of one, and for an operator the form that starts one. What kinds there are and which arguments
// they take is what the service's own description says.

import { age, count, counted, h, keyed } from "./dom.js";
import { Paged } from "./paged.js";

const STATES = ["waiting", "running", "succeeded", "failed", "cancelled"];
const COLUMNS = [
  ["Job", false], ["Table", false], ["State", false], ["Asked by", false], ["Asked", true], ["Took", true],
  ["How far, or what it did", false], ["", false],
];

export class JobsView extends Paged {
  constructor(shell) {
    super(shell, COLUMNS, "Jobs");
    this.path = "v1/jobs";
    this.member = "jobs";
    this.empty = "There is no such job. An operator starts jobs on the page of a table.";
    const options = ["", ...STATES].map((state) => h("option", { value: state }, state || "all"));
    const state = h("select", { id: "state-of-jobs" }, options);
    this.kind = h("select", { id: "kind-of-jobs" }, h("option", { value: "" }, "all"));
    this.element = h("section", { class: "jobs", "aria-label": "Jobs" },
      h("h1", {}, "Jobs"),
      h("p", { class: "controls" }, h("label", { for: state.id }, "State"), this.field("state", state),
        h("label", { for: this.kind.id }, "Kind"), this.field("kind", this.kind)),
      this.note, this.list, this.pages,
      h("p", { class: "quiet note" }, "The newest 100 jobs of each table that have ended are kept."));
  }

  async update(who) {
    if (this.kind.options.length === 1) {
      for (const kind of [...(await kindsOf(this.shell)).keys(), "drop"]) this.kind.append(h("option", { value: kind }, kind));
    }
    await super.update(who);
  }

  summary() {
    const shown = this.answer?.jobs ?? [];
    const running = shown.filter((job) => job.state === "running").length;
    return `${counted(shown.length, "job", "jobs")} shown${running ? `, ${count(running)} running` : ""}`;
  }

  key(job) {
    return `${job.table}\n${job.id}`;
  }

  signed(job) {
    return { ...job, is_operator: this.who?.role === "operator" };
  }

  row(job) {
    return jobRow(job, this.shell, this);
  }
}

const FAILED = new Set(["failed"]);
const ENDED = new Set(["succeeded", "failed", "cancelled"]);

/** A link to the page of a table. `focus`: what the link is among others to the same table. */
export function tableLink(name, focus, root = name) {
  return h("a", { href: `#/table/${encodeURIComponent(name)}`, "data-focus": focus, title: root }, name);
}

function jobRow(job, shell, list) {
  const asked = Object.entries(job.arguments).map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join(", ");
  const began = job.started === null ? null : Date.parse(job.started);
  let took = "–";
  if (job.ended !== null && began !== null) took = `${((Date.parse(job.ended) - began) / 1000).toFixed(1)} s`;
  else if (began !== null && job.state === "running") took = age(began);
  const due = job.state === "waiting" && job.not_before ? h("div", {}, "due in ", age(Date.parse(job.not_before))) : null;
  const mayCancel = job.is_operator && !ENDED.has(job.state) && !job.cancel_asked;
  return h("tr", {},
    h("th", { scope: "row", "data-label": "Job" }, job.kind, asked ? h("div", { class: "quiet path" }, asked) : null),
    h("td", { "data-label": "Table" }, tableLink(job.table, job.id)),
    h("td", { "data-label": "State" }, h("span", { class: FAILED.has(job.state) ? "critical" : null }, job.state),
      job.cancel_asked && !ENDED.has(job.state) ? h("div", { class: "quiet" }, "is being cancelled") : null),
    h("td", { "data-label": "Asked by" }, job.by || "–"),
    h("td", { class: "number", "data-label": "Asked" }, job.asked === null ? "–" : age(Date.parse(job.asked), " ago")),
    h("td", { class: "number", "data-label": "Took" }, took),
    h("td", { "data-label": "How far", class: "why" }, due, job.error ? h("span", { class: "critical" }, job.error) : null,
      progressOf(ENDED.has(job.state) ? job.result : job.progress),
      job.runner && job.state === "running" ? h("div", { class: "quiet path" }, `by ${job.runner}`) : null),
    h("td", {}, mayCancel ? cancelButton(shell, job.table, job.id, job.kind, list) : null));
}

/** The figures of a job, as it reports them. */
export function progressOf(figures) {
  const shown = Object.entries(figures ?? {}).map(([name, value]) =>
    `${name.replaceAll("_", " ")} ${typeof value === "number" ? count(value) : JSON.stringify(value)}`);
  return shown.length ? h("span", {}, shown.join(" · ")) : null;
}

/** Cancels a job, and shows the list anew. What the service says against it stands beside the button. */
export function cancelButton(shell, table, id, kind, list) {
  const said = h("div", { class: "critical", role: "alert" });
  const button = h("button", {
    "aria-label": `Cancel ${kind} of ${table}`, "data-focus": `cancel-${id}`,
    async onclick() {
      button.disabled = true;
      try {
        await shell.send("DELETE", `v1/tables/${encodeURIComponent(table)}/jobs/${encodeURIComponent(id)}`);
        await list.load();
      } catch (error) {
        said.textContent = error.message;
      }
      button.disabled = false;
    },
  }, "Cancel");
  return [button, said];
}

/** The kinds of jobs by name: what each does, its arguments as JSON Schema, whether it deletes anything. */
async function kindsOf(shell) {
  const document = await shell.ask("v1/openapi.json");
  const body = document.paths["/v1/tables/{name}/jobs"].post.requestBody.content["application/json"].schema;
  return new Map(body.oneOf.map((one) => [one.properties.kind.const, {
    summary: one.description,
    destroys: one["x-destroys"] === true,
    fields: one.properties.arguments.properties,
    required: one.properties.arguments.required,
  }]));
}

/** The jobs of one table, newest first, and the form that starts one. */
export class TableJobs {
  constructor(name, shell) {
    this.name = name;
    this.shell = shell;
    this.who = null;
    this.kinds = null;
    this.body = h("tbody");
    this.none = h("p", { class: "quiet", hidden: true }, "No job was asked for.");
    const head = COLUMNS.map(([title, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : null }, title));
    this.list = h("div", { class: "wide" }, h("table", { class: "cards", "aria-label": "Jobs of the table" },
      h("thead", {}, h("tr", {}, head)), this.body));
    this.kind = h("select", { id: "kind-to-start", oninput: () => this.choose() });
    this.fields = h("span", { class: "fields" });
    this.what = h("p", { class: "quiet" });
    this.said = h("p", { class: "critical", role: "alert" });
    this.button = h("button", { type: "submit" }, "Start");
    this.form = h("form", { hidden: true, onsubmit: (event) => (event.preventDefault(), this.ask()) },
      h("p", { class: "controls" }, h("label", { for: this.kind.id }, "Start a job"), this.kind, this.fields, this.button),
      this.what, this.said);
    this.sure = h("dialog", { "aria-labelledby": "title-sure" });
    this.element = h("section", { class: "block jobs-of-table", "aria-labelledby": "title-jobs", hidden: true },
      h("h2", { id: "title-jobs" }, "Jobs"), this.form, this.none, this.list, this.sure);
  }

  async update(who) {
    this.who = who;
    if (!this.kinds && who.role === "operator") {
      this.kinds = await kindsOf(this.shell);
      this.kind.replaceChildren(...[...this.kinds.keys()].map((kind) => h("option", { value: kind }, kind)));
      this.choose();
    }
    this.form.hidden = who.role !== "operator";
    await this.load();
  }

  async load() {
    const answer = await this.shell.ask(`v1/tables/${encodeURIComponent(this.name)}/jobs`);
    this.element.hidden = !answer;
    if (!answer) return;
    const isOperator = this.who?.role === "operator";
    const rows = answer.jobs.map((job) => [job.id, { ...job, is_operator: isOperator }]);
    keyed(this.body, rows.map((row) => [...row, (job) => jobRow(job, this.shell, this)]));
    this.none.hidden = rows.length > 0;
    this.list.hidden = !rows.length;
  }

  choose() {
    const chosen = this.kinds.get(this.kind.value);
    this.what.textContent = `${this.kind.value}: ${chosen.summary}.`;
    this.said.textContent = "";
    this.inputs = Object.entries(chosen.fields).map(([name, schema]) => {
      const type = [schema.type].flat()[0];
      const id = `argument-${name}`;
      const field = type === "boolean"
        ? h("input", { type: "checkbox", id })
        : h("input", {
            type: type === "integer" ? "number" : "text", id, min: schema.minimum, max: schema.maximum,
            maxlength: schema.maxLength, required: chosen.required.includes(name), autocomplete: "off",
          });
      return [name, type, field, h("label", { for: id }, name)];
    });
    this.fields.replaceChildren(...this.inputs.flatMap(([, , field, label]) => [label, field]));
  }

  given() {
    const found = {};
    for (const [name, type, field] of this.inputs) {
      if (type === "boolean" && field.checked) found[name] = true;
      else if (type === "integer" && field.value !== "") found[name] = Number(field.value);
      else if (type === "string" && field.value !== "") found[name] = field.value;
    }
    return found;
  }

  ask() {
    const kind = this.kind.value;
    const body = { kind, arguments: this.given(), id: newId() };
    if (this.kinds.get(kind).destroys) this.confirm(body);
    else this.start(body);
  }

  /** What deletes something is started when its user has said so once more. */
  confirm(body) {
    const asked = Object.entries(body.arguments).map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join(", ");
    const yes = h("button", { onclick: () => (this.sure.close(), this.start(body)) }, `Start ${body.kind}`);
    const no = h("button", { autofocus: true, onclick: () => this.sure.close() }, "Don't");
    this.sure.replaceChildren(
      h("h2", { id: "title-sure" }, `${body.kind} of ${this.name}`),
      h("p", {}, `It will ${this.kinds.get(body.kind).summary}. What is deleted does not come back.`),
      h("p", { class: "path" }, asked || "no arguments: as the table's properties say"),
      h("p", { class: "controls" }, no, yes));
    this.sure.showModal();
  }

  async start(body) {
    this.button.disabled = true;
    this.said.textContent = "";
    try {
      await this.shell.send("POST", `v1/tables/${encodeURIComponent(this.name)}/jobs`, body);
      await this.load();
    } catch (error) {
      this.said.textContent = error.message;
    }
    this.button.disabled = false;
  }
}

/** An id of our own, so that a request that is sent again asks for the same job. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
