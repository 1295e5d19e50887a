// A tab that Python writes as HTML, when it is opened.

import { h } from "../dom.js";

export class WrittenTab {
  constructor(explorer, name) {
    this.channel = explorer.channel;
    this.name = name;
  }

  /** What is shown in the panel, or null where that is on show already. */
  draw(panel) {
    const { hash } = this.channel.get("scene");
    const said = this.channel.get("panels")[this.name];
    if (said?.hash === hash) {
      this.asked = null;
      if (panel.firstChild && panel.firstChild === this.first && said === this.said) return null;
      panel.innerHTML = said.html; // made in Python, which escapes every name
      [this.said, this.first] = [said, panel.firstChild];
      return null;
    }
    const key = `${this.name} ${hash}`;
    if (this.asked !== key) {
      this.asked = key;
      this.channel.send("panel", { name: this.name });
    }
    return [h("p.fx-empty", {}, "…")];
  }

  /** The tab gives way to another: what it asks for next may be the same again. */
  leave() {
    this.asked = null;
  }
}
