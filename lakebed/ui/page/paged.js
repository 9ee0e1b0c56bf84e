// What the lists of the service have in common: a search, a filter by state, pages, and what the service knows so far.

import { age, count, counted, h, keyed } from "./dom.js";

const PAGE = 100;
const TYPING_MS = 200;

/** A list of rows that are asked for by pages. A subclass has `path`, `member`, `key(row)`, `row(row)` and `query()`. */
export class Paged {
  constructor(shell, columns, label) {
    this.shell = shell;
    this.after = [];
    this.wanted = {};
    this.answer = null;
    this.asks = 0;
    this.body = h("tbody");
    this.head = h("tr");
    this.about = h("p", { class: "quiet", role: "status" });
    this.note = h("p", { class: "notice", hidden: true });
    this.newer = h("button", { onclick: () => this.turn(-1), disabled: true }, "Previous");
    this.older = h("button", { onclick: () => this.turn(1), disabled: true }, "Next");
    this.columns = columns;
    this.head.append(...columns.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : null }, name)));
    this.list = h("div", { class: "wide" }, h("table", { class: "cards", "aria-label": label },
      h("thead", {}, this.head), this.body));
    this.pages = h("p", { class: "controls pages" }, this.newer, this.older, this.about);
  }

  /** A field that narrows the list, as the user types or chooses. */
  field(name, element) {
    const change = () => {
      this.wanted[name] = element.value;
      this.after = [];
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.load().catch(() => {}), element.type === "search" ? TYPING_MS : 0);
    };
    element.addEventListener("input", change);
    return element;
  }

  turn(step) {
    if (step < 0) this.after.pop();
    else if (this.answer?.next) this.after.push(this.answer.next);
    this.load().then(() => window.scrollTo(0, 0), () => {});
  }

  close() {
    clearTimeout(this.typing);
    this.asks += 1; // what is on its way is not shown any more
  }

  async update(who) {
    this.who = who;
    await this.load();
  }

  async load() {
    const mine = ++this.asks;
    const query = new URLSearchParams({ limit: String(PAGE) });
    for (const [name, value] of Object.entries({ ...this.wanted, after: this.after.at(-1) })) {
      if (value !== undefined && value !== null && value !== "") query.set(name, value);
    }
    const answer = await this.shell.ask(`${this.path}?${query}`);
    if (mine !== this.asks || !answer) return;
    this.answer = answer;
    this.show(answer);
  }

  show(answer) {
    const rows = answer[this.member];
    if (!rows.length && this.after.length) {
      this.after.pop(); // the last page is gone
      this.load().catch(() => {});
      return;
    }
    keyed(this.body, rows.map((row) => [this.key(row), this.signed(row), (value) => this.row(value)]));
    this.newer.disabled = !this.after.length;
    this.older.disabled = answer.next === null;
    const { tables, unseen, looked_at: looked, error } = answer.survey;
    const found = answer.found === undefined ? counted(rows.length, "row", "rows") : `${count(answer.found)} found`;
    const text = [found, `of ${counted(tables, "table", "tables")}`, unseen ? `${count(unseen)} not read yet` : null];
    const place = this.after.length ? `page ${count(this.after.length + 1)}` : null;
    this.about.replaceChildren([...text, place].filter(Boolean).join(" · "),
      ...(looked ? [" · looked at within ", age(Date.parse(looked))] : []));
    const empty = rows.length ? "" : tables || unseen ? this.empty : "There is no table below the roots of this service.";
    const said = error ? `The tables can't be listed: ${error}` : empty;
    if (this.note.textContent !== said) this.note.textContent = said;
    this.note.hidden = !said;
  }

  /** What of a row is shown: without what changes all the time. */
  signed(row) {
    return { ...row, late_seconds: undefined };
  }
}

/** The number of rows of each state, as buttons that show only these. */
export class States {
  constructor(list, words) {
    this.list = list;
    this.words = words;
    this.element = h("p", { class: "controls states", role: "group", "aria-label": "States" });
  }

  show(states) {
    const chosen = this.list.wanted.state ?? "";
    const all = Object.values(states).reduce((sum, one) => sum + one, 0);
    const items = [["", "all", all], ...this.words.map((word) => [word, word, states[word] ?? 0])]
      .filter(([state, , found]) => found || state === chosen || !state);
    keyed(this.element, items.map(([state, word, found]) => [state, { word, found, is: state === chosen }, (value) =>
      h("button", {
        class: `state-${word}`, "aria-pressed": String(value.is), "data-focus": `state-${word}`,
        onclick: () => this.choose(state),
      }, `${value.word} ${count(value.found)}`)]));
  }

  choose(state) {
    this.list.wanted.state = state;
    this.list.after = [];
    this.list.load().catch(() => {});
  }
}
