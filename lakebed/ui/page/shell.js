// What both pages have in common: shows a view and polls the server. Every answer has a tag, if it can be the same again; the
// server does not send an unchanged answer again.

import { clock, h, setClock, tick, zone } from "./dom.js";

const POLL_MS = 2000;
const ANSWERS_MAX = 50;
const answers = new Map(); // the tag and the value of the newest answer, by address; those used last
const main = document.getElementById("main");
const state = document.getElementById("state");
const about = document.getElementById("about");

/** A request that got an error: its status, and what the server says. */
export class Failed extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/**
 * Shows the views of a page until it is closed.
 *
 * `make(kind, name)` makes the view of an address `#/kind/name`; `address` is what is asked at each poll, and the answer goes to
 * the view; `summary` says in a line what it shows; `headers` go with each request; `refused` takes the place of a view if the
 * server says 401.
 */
export class Shell {
  constructor({ make, address, summary, version, headers = () => ({}), refused = null }) {
    Object.assign(this, { make, address, summary, version, headers, refused });
    this.view = null;
    this.silentSince = null;
    this.polls = 0;
  }

  start() {
    window.addEventListener("hashchange", () => {
      if (location.hash !== "#main") this.show();
    });
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.poll());
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      main.focus();
    });
    setInterval(() => (tick(), this.view?.tick?.()), 1000);
    this.show();
  }

  /** The answer at an address: the same object as last time if it did not change; null if there is none. */
  ask = async (address) => {
    const last = answers.get(address);
    const headers = { ...this.headers(), ...(last ? { "If-None-Match": last.tag } : {}) };
    const answer = await fetch(address, { headers, cache: "no-store" });
    setClock(Date.parse(answer.headers.get("Date")));
    if (answer.status === 401) throw new Failed(401, (await answer.json()).detail ?? "");
    if (answer.status !== 304 && !answer.ok) return null;
    const tag = answer.headers.get("ETag");
    const found = answer.status === 304 ? last : { tag, value: await answer.json() };
    answers.delete(address);
    if (tag) answers.set(address, found);
    if (answers.size > ANSWERS_MAX) answers.delete(answers.keys().next().value);
    return found.value;
  };

  /** The answer to a request that changes something. Raises Failed with what the server says. */
  send = async (method, address, body) => {
    const headers = { ...this.headers(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
    const answer = await fetch(address, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const value = await answer.json();
    if (!answer.ok) throw new Failed(answer.status, value.detail ?? answer.statusText);
    return value;
  };

  show() {
    const [kind, name] = route();
    this.view?.close?.();
    this.view = this.make(kind, name);
    main.replaceChildren(this.view.element);
    document.title = name ? `${name.split("/").filter(Boolean).pop() ?? name} – lakebed` : "lakebed";
    window.scrollTo(0, 0);
    this.poll();
  }

  poll = async () => {
    const mine = ++this.polls; // a later call takes over
    if (document.visibilityState === "visible") {
      try {
        const found = await this.ask(this.address);
        if (mine !== this.polls) return;
        if (found) {
          await this.view.update(found);
          if (mine !== this.polls) return;
          this.silentSince = null;
          this.say(this.summary(found, this.view));
          about.textContent = [this.version(found), `times in ${zone()}`].filter(Boolean).join(" · ");
        }
      } catch (error) {
        if (mine !== this.polls) return;
        if (error instanceof Failed && error.status === 401 && this.refused) return this.refuse(error);
        if (!(error instanceof TypeError)) console.error(error);
        this.silentSince ??= Date.now();
        this.say(`no answer since ${clock(this.silentSince)}: what is shown is from then`, true);
      }
    }
    if (mine === this.polls) setTimeout(() => mine === this.polls && this.poll(), POLL_MS);
  };

  refuse(error) {
    this.view?.close?.();
    this.view = this.refused(error);
    this.say("");
    main.replaceChildren(this.view.element);
  }

  say(text, isBad = false) {
    if (state.textContent !== text) state.replaceChildren(h("span", { class: isBad ? "critical" : null }, text));
  }
}

function route() {
  const [, kind, name] = /^#\/(\w+)(?:\/(.+))?$/.exec(location.hash) ?? [];
  try {
    return [kind, name && decodeURIComponent(name)];
  } catch {
    return [kind, name]; // it was not encoded
  }
}
