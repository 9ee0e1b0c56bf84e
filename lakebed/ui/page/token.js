// The token that goes with each request: from the link that `lakebed serve api` prints, or typed in. It is kept for this tab,
// in sessionStorage, which no other site can read; and no browser sends it by itself.

import { h } from "./dom.js";

const KEY = "lakebed.token";

/** Takes the token out of an address like `#token=…`, which is not sent to any server, and out of the history. */
export function takeFromAddress() {
  const found = /^#token=([\w-]{1,200})$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", `${location.pathname}#/`);
}

export function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export function forget() {
  sessionStorage.removeItem(KEY);
}

export class TokenForm {
  constructor(shell, why = "") {
    this.input = h("input", {
      type: "password", id: "token", autocomplete: "off", required: true, maxlength: "200", spellcheck: "false",
    });
    const keep = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, this.input.value.trim().replace(/[^\x21-\x7e]/g, ""));
      if (location.hash === "#/token") location.hash = "#/";
      else shell.show();
    };
    const wrong = why && sessionStorage.getItem(KEY) ? h("p", { class: "critical", role: "alert" }, why) : null;
    this.element = h("section", { "aria-label": "Who asks" },
      h("h1", {}, "A token"), wrong,
      h("p", {}, "This service asks who you are. ",
        h("code", {}, "lakebed serve token NAME --role operator --tokens FILE"),
        " makes a token; without --tokens, ", h("code", {}, "lakebed serve api"), " prints one when it starts."),
      h("form", { class: "controls", onsubmit: keep }, h("label", { for: "token" }, "Token"), this.input,
        h("button", { type: "submit" }, "Use it")),
      h("p", { class: "quiet note" }, "It is kept until this tab is closed, and sent to this service alone."));
  }

  async update() {}
}
