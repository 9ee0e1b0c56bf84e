// A section of the runbook: what a finding means, how to look, what to do.

import { h, replace } from "./dom.js";

export class Runbook {
  constructor(section, ask) {
    this.ask = ask;
    this.address = `api/runbook?section=${encodeURIComponent(section)}`;
    this.section = section;
    this.data = null;
    this.body = h("div");
    const back = h("p", { class: "crumbs" }, h("a", { href: "#/" }, "All tables"));
    this.element = h("article", { class: "runbook" }, back, h("h1", {}, section), this.body);
  }

  async update() {
    if (this.data) return;
    this.data = await this.ask(this.address);
    const text = this.data ? this.data.text : "The runbook has no such section.";
    replace(this.body, h("pre", {}, text.replace(/^## .*\n+/, "")),
      h("p", { class: "quiet" }, "The whole runbook: ", h("code", {}, "lakebed docs runbook")));
  }
}
