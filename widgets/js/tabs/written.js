// A tab that Python writes as HTML, when it is opened.

import { h, plainText } from "../dom.js";

const title = ({ firstElementChild: first }) => first && plainText(first);
const titles = (panel, selector) => [...panel.querySelectorAll(selector)].map(title);

export class WrittenTab {
  constructor(explorer, name) {
    this.channel = explorer.channel;
    this.name = name;
    this.opened = [];
  }

  /** The contents of the panel, or null if they stay, also while it waits for others. */
  draw(panel) {
    const { hash } = this.channel.get("scene");
    const said = this.channel.get("panels")[this.name];
    const isShown = panel.firstChild && panel.firstChild === this.first;
    if (isShown) this.opened = titles(panel, "details[open]");
    this.waits = said?.hash !== hash;
    if (this.waits) {
      this.ask(hash);
      return isShown ? null : [h("p.fx-empty", {}, "…")];
    }
    this.asked = null;
    if (isShown && said.html === this.html) return null;
    panel.innerHTML = said.html; // made in Python, which escapes every name
    [this.html, this.first] = [said.html, panel.firstChild];
    // Sections that the reader has opened stay open if they still exist.
    for (const one of panel.querySelectorAll("details")) one.open ||= this.opened.includes(title(one));
    return null;
  }

  /** Ask for the contents, once for each plan. */
  ask(hash) {
    const key = `${this.name} ${hash}`;
    if (this.asked === key) return;
    this.asked = key;
    this.channel.send("panel", { name: this.name });
  }

  /** The tab is closed: its next request may be the same again. */
  leave() {
    this.asked = null;
    this.opened = [];
  }
}
