// The status line: one sentence, and a button for a possible action.

import { flag, h, split } from "./dom.js";

export class Status {
  constructor() {
    this.words = h("span.fx-said");
    this.element = h("div.fx-status", { role: "status", "aria-live": "polite" }, this.words);
  }

  tell(text, kind = "info") {
    this.words.textContent = this.words.title = text; // two lines are visible; the canvas keeps its size
    this.element.replaceChildren(this.words);
    flag(this.element, "error", kind === "error");
  }

  draw(channel) {
    const { text = "", kind, action } = channel.get("status");
    this.tell(text, kind);
    if (action) this.element.append(h("button.fx-button", { onclick: () => channel.send(...split(action)) }, action.label));
  }
}
