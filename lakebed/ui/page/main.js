// The page beside a pipeline, and of `lakebed serve page`: some tables, read-only.

import { counted } from "./dom.js";
import { Overview } from "./overview.js";
import { Runbook } from "./runbook.js";
import { Shell } from "./shell.js";
import { TableView } from "./table.js";

const shell = new Shell({
  make(kind, name) {
    if (kind === "table" && name) return new TableView(name, shell.ask);
    if (kind === "runbook" && name) return new Runbook(name, shell.ask);
    return new Overview();
  },
  address: "api/tables",
  summary({ tables }) {
    const bad = tables.filter((table) => table.severity !== "ok" && table.severity !== null).length;
    return `${counted(tables.length, "table", "tables")}, ${bad ? `${bad} not healthy` : "all healthy"}`;
  },
  version: (found) => `lakebed ${found.lakebed}`,
});
shell.start();
