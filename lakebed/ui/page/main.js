// Shows a view and polls the server. Every answer has a tag; the server does not send an unchanged answer again.

import { counted, clock, h, setClock, tick, zone } from "./dom.js";
import { Overview } from "./overview.js";
import { Runbook } from "./runbook.js";
import { TableView } from "./table.js";

const POLL_MS = 2000;
const ANSWERS_MAX = 50;
const answers = new Map(); // the tag and the value of the newest answer, by address; those used last
const main = document.getElementById("main");
const state = document.getElementById("state");
const about = document.getElementById("about");
let view = null;
let silentSince = null;
let polls = 0;

/** The answer at an address: the same object as last time if it did not change; null if there is none. */
async function ask(address) {
  const last = answers.get(address);
  const headers = last ? { "If-None-Match": last.tag } : {};
  const answer = await fetch(address, { headers, cache: "no-store" });
  setClock(Date.parse(answer.headers.get("Date")));
  if (answer.status !== 304 && !answer.ok) return null;
  const found = answer.status === 304 ? last : { tag: answer.headers.get("ETag"), value: await answer.json() };
  answers.delete(address);
  answers.set(address, found);
  if (answers.size > ANSWERS_MAX) answers.delete(answers.keys().next().value);
  return found.value;
}

function route() {
  const [, kind, name] = /^#\/(table|runbook)\/(.+)$/.exec(location.hash) ?? [];
  try {
    return [kind, name && decodeURIComponent(name)];
  } catch {
    return [kind, name]; // it was not encoded
  }
}

function show() {
  const [kind, name] = route();
  view?.close?.();
  if (kind === "table") view = new TableView(name, ask);
  else if (kind === "runbook") view = new Runbook(name, ask);
  else view = new Overview();
  main.replaceChildren(view.element);
  document.title = kind ? `${name.split("/").filter(Boolean).pop() ?? name} – lakebed` : "lakebed";
  window.scrollTo(0, 0);
  poll();
}

async function poll() {
  const mine = ++polls; // a later call takes over
  if (document.visibilityState === "visible") {
    try {
      const tables = await ask("api/tables");
      if (mine !== polls) return;
      if (tables) {
        await view.update(tables);
        silentSince = null;
        const bad = tables.tables.filter((table) => table.severity !== "ok" && table.severity !== null).length;
        say(`${counted(tables.tables.length, "table", "tables")}, ${bad ? `${bad} not healthy` : "all healthy"}`);
        about.textContent = `lakebed ${tables.lakebed} · times in ${zone()}`;
      }
    } catch (error) {
      if (mine !== polls) return;
      if (!(error instanceof TypeError)) console.error(error);
      silentSince ??= Date.now();
      say(`no answer since ${clock(silentSince)}: what is shown is from then`, true);
    }
  }
  if (mine === polls) setTimeout(() => mine === polls && poll(), POLL_MS);
}

function say(text, isBad = false) {
  if (state.textContent !== text) state.replaceChildren(h("span", { class: isBad ? "critical" : null }, text));
}

window.addEventListener("hashchange", () => {
  if (location.hash !== "#main") show();
});
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && poll());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
setInterval(() => (tick(), view.tick?.()), 1000);
show();
