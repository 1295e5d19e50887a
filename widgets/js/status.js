// The status line: one sentence, of which two lines are visible until the reader asks for all of it, and a button for a
// possible action.

import { flag, h, soon, split } from "./dom.js";

export class Status {
  constructor() {
    this.words = h("span.fx-said");
    this.more = h("button.fx-button.fx-more", { onclick: () => this.open(!this.isOpen) });
    this.element = h("div.fx-status", { role: "status", "aria-live": "polite" }, this.words);
    this.open(false);
    this.sizes = new ResizeObserver(() => this.offer());
    this.sizes.observe(this.words);
  }

  dispose() {
    this.sizes.disconnect();
  }

  tell(text, kind = "info") {
    this.words.textContent = this.words.title = text; // the rest opens over the canvas, which keeps its size
    this.element.replaceChildren(this.words);
    flag(this.element, "error", kind === "error");
    this.open(false);
    soon(() => this.offer());
  }

  /** Offer the rest of a sentence that is longer than what is visible. */
  offer() {
    if (this.isOpen) return;
    if (this.words.scrollHeight <= this.words.clientHeight + 1) this.more.remove();
    else if (!this.more.isConnected) this.words.after(this.more);
  }

  get isOpen() {
    return this.element.classList.contains("fx-open");
  }

  /** Show all of the sentence, or its first two lines. */
  open(isOpen) {
    flag(this.element, "open", isOpen);
    this.more.setAttribute("aria-expanded", String(isOpen));
    this.more.textContent = isOpen ? "Less" : "Read on";
  }

  draw(channel) {
    const { text = "", kind, action } = channel.get("status");
    this.tell(text, kind);
    if (action) this.element.append(h("button.fx-button", { onclick: () => channel.send(...split(action)) }, action.label));
  }
}
