// Elements and texts. Values of a table become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props` are attributes; a function, such as `onclick`, is a listener; null and false are left out. */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** An SVG element. */
export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function counted(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let size = value;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (size < 1000) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

export function ratio(value) {
  return value === null || value === undefined ? "–" : value.toFixed(2);
}

export function share(part, all) {
  return all > 0 ? `${((100 * part) / all).toFixed(part && part / all < 0.1 ? 1 : 0)} %` : "–";
}

export function duration(seconds) {
  const value = Math.max(0, seconds);
  if (value < 10) return `${value.toFixed(value < 1 ? 2 : 1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} days`;
}

const two = (value) => String(value).padStart(2, "0");

export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

// How far the server's clock, as its answers report it, is ahead of ours. Ages use the server's clock.
let offset = 0;

export function setClock(serverMs) {
  const found = serverMs - Date.now();
  // A Date header has whole seconds.
  if (Math.abs(found - offset) > 1500) offset = Math.abs(found) < 2000 ? 0 : found;
}

export function now() {
  return Date.now() + offset;
}

/** An element with the time since (or until) a moment; `tick` keeps it up to date. */
export function age(ms, suffix = "") {
  if (ms === null || ms === undefined) return h("span", {}, "–");
  if (Number.isNaN(new Date(ms).getTime())) return h("span", { title: `${ms} ms` }, "beyond any date");
  const element = h("time", {
    datetime: new Date(ms).toISOString(), title: `${day(ms)} ${clock(ms)}`, "data-ms": ms, "data-suffix": suffix,
  });
  showAge(element);
  return element;
}

function showAge(element) {
  const seconds = (now() - Number(element.dataset.ms)) / 1000;
  const shown = Math.abs(seconds);
  element.textContent = (shown < 10 ? `${shown.toFixed(0)} s` : duration(shown)) + element.dataset.suffix;
}

export function tick() {
  for (const element of document.querySelectorAll("time[data-ms]")) showAge(element);
}

/** Replaces the children; the focus stays on the element with the same `data-focus`. */
export function replace(parent, ...children) {
  const focused = focusIn(parent);
  parent.replaceChildren(...children.flat(Infinity).filter(Boolean));
  putFocus(parent, focused);
}

const kept = new WeakMap(); // of a parent that `keyed` filled: what is in it, by key

/**
 * Makes the children those of `items`: a key, a value, and a function that makes elements of the value. Elements whose
 * value is the same as before stay, with the selection, scroll position and focus that a reader has in them.
 */
export function keyed(parent, items) {
  const before = kept.get(parent) ?? new Map();
  const after = new Map();
  const focused = focusIn(parent);
  for (const [key, value, make] of items) {
    const sign = JSON.stringify(value);
    const old = before.get(key);
    const isSame = old !== undefined && old.sign === sign;
    after.set(key, isSame ? old : { sign, elements: [make(value)].flat(Infinity).filter(Boolean) });
  }
  const stays = new Set([...after.values()].flatMap((item) => item.elements));
  for (const child of [...parent.childNodes]) if (!stays.has(child)) child.remove();
  let at = parent.firstChild;
  for (const element of stays) {
    if (element === at) at = at.nextSibling;
    else parent.insertBefore(element, at);
  }
  kept.set(parent, after);
  if (!parent.contains(document.activeElement)) putFocus(parent, focused);
}

function focusIn(parent) {
  return parent.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
}

function putFocus(parent, focused) {
  if (focused === undefined) return;
  for (const element of parent.querySelectorAll("[data-focus]")) {
    if (element.dataset.focus === focused) return element.focus({ preventScroll: true });
  }
}

/** The time zone of all times on the page but those on the axis of the levels. */
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const apart = `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return name && name !== "UTC" ? `${name} (${apart})` : "UTC";
}

const WORDS = { ok: "healthy", warning: "warning", critical: "critical" };

/** The health of a table: a word, and a symbol in its colour. */
export function health(table) {
  const severity = table.severity ?? "unknown";
  return h("span", { class: `health ${severity}` }, table.is_parked ? "parked" : WORDS[severity] ?? "looking…");
}

/** Each finding with its remedy, as a list; null without findings. */
export function findings(table) {
  const items = table.findings.map((finding) =>
    h("li", { class: `finding ${finding.severity}` },
      h("p", {}, h("b", {}, `${finding.severity} · ${finding.check}`),
        finding.where ? [" ", h("span", { class: "path" }, finding.where)] : null, ": ", finding.what),
      h("p", { class: "remedy" }, h("span", { class: "quiet" }, "what to do: "), h("code", {}, finding.remedy),
        finding.runbook ? [" · ", h("a", { href: `#/runbook/${encodeURIComponent(finding.runbook)}` }, "runbook")] : null)));
  if (table.findings_more) {
    items.push(h("li", { class: "quiet" }, `and ${count(table.findings_more)} more: lakebed status lists all`));
  }
  if (table.error && !table.findings.some((finding) => finding.what === table.error)) {
    items.unshift(h("li", { class: "finding critical" }, h("p", {}, h("b", {}, "not up to date"), ": ", table.error)));
  }
  if (table.is_late) {
    const text = ": reading the table has taken more than 15 s; the page shows an older state";
    items.unshift(h("li", { class: "finding warning" }, h("p", {}, h("b", {}, "late"), text)));
  }
  return items.length ? h("ul", { class: "findings" }, items) : null;
}
