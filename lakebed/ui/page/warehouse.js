// The page of a service: all tables, the queue, jobs, and a page for each table. It asks the routes that everybody may ask.

import { h } from "./dom.js";
import { JobsView, TableJobs } from "./jobs.js";
import { QueueView } from "./queue.js";
import { Runbook } from "./runbook.js";
import { Shell } from "./shell.js";
import { TableView } from "./table.js";
import { TablesView } from "./tables.js";
import { TokenForm, forget, headers, takeFromAddress } from "./token.js";

takeFromAddress();
const caller = document.getElementById("caller");

/** A table as a pipeline's page shows it, with its jobs. */
class ServedTable {
  constructor(name) {
    this.name = name;
    this.table = new TableView(name, shell.ask);
    this.jobs = new TableJobs(name, shell);
    this.missing = h("p", { class: "notice", hidden: true }, "There is no such table.");
    this.element = h("div", {}, this.missing, this.table.element, this.jobs.element);
  }

  close() {
    this.table.close();
  }

  tick() {
    this.table.tick();
  }

  async update(who) {
    await this.table.update({ tables: [{ path: this.name, is_late: false }] });
    this.missing.hidden = Boolean(this.table.data);
    await this.jobs.update(who);
  }
}

const shell = new Shell({
  make(kind, name) {
    for (const link of document.querySelectorAll("nav a")) {
      const isHere = link.getAttribute("href") === `#/${kind === "queue" || kind === "jobs" ? kind : ""}`;
      if (isHere && !name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (kind === "table" && name) return new ServedTable(name);
    if (kind === "runbook" && name) return new Runbook(name, shell.ask);
    if (kind === "queue") return new QueueView(shell);
    if (kind === "jobs") return new JobsView(shell);
    if (kind === "token") return new TokenForm(shell);
    return new TablesView(shell);
  },
  address: "v1/whoami",
  summary: (_, view) => view.summary?.() ?? "",
  version(who) {
    const link = who.name
      ? h("button", { class: "plain-link", onclick: () => (forget(), location.reload()) }, "forget the token")
      : h("a", { href: "#/token" }, "use a token");
    const text = who.name ? `${who.name}, ${who.role}` : `no token, ${who.role}`;
    if (caller.dataset.who !== text) caller.replaceChildren("· ", text, " · ", link);
    caller.dataset.who = text;
    return "";
  },
  headers,
  refused: (error) => new TokenForm(shell, error.message),
});
shell.start();
