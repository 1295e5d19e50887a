// The one sentence about the plan on show: the largest known gain with the button that makes the edit, or the bound.

import { h, split } from "./dom.js";

export class Advice {
  /** Uses the explorer's channel. */
  constructor({ channel }) {
    this.channel = channel;
    this.element = h("div.fx-advice", { role: "note", "aria-label": "Largest known gain" });
  }

  /** Python computes it in the background; until then there is none. */
  draw() {
    const { plan, text, action } = this.channel.get("advice") || {};
    const isShown = plan != null && plan === this.channel.get("scene").plan;
    this.element.hidden = !isShown;
    if (!isShown || this.text === text + plan) return;
    this.text = text + plan;
    const button = action && h("button.fx-button", { title: text, onclick: () => this.channel.send(...split({ ...action, plan })) }, action.label);
    this.element.replaceChildren(h("span", { title: text }, text), ...(button ? [button] : []));
  }
}
