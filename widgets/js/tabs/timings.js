// The tab of measured times.

import { h } from "../dom.js";
import { table } from "../pieces.js";

export class TimingsTab {
  constructor(explorer) {
    this.explorer = explorer;
  }

  draw() {
    const { channel } = this.explorer;
    const { table: data, note, running, done, total, plans = [] } = channel.get("times");
    const state = running ? h("p.fx-note", {}, total ? `Timing … ${done} of ${total}` : "Timing … the first run compiles the kernels") : null;
    if (!data) return [state || h("p.fx-empty", {}, note || "No timings yet. Run times the baseline plan and this one on this machine.")];
    const { hash } = channel.get("scene");
    const attrs = (n) => {
      const [, segment] = data.rows[n];
      return plans[n] === hash && segment.startsWith("S") ? { tabindex: 0, "data-id": `segment:${segment.slice(1)}`, class: "fx-row" } : {};
    };
    const timed = plans.filter(Boolean); // peers are not plans
    const other = timed.length && !timed.includes(hash) ? h("p.fx-note", {}, "None of these plans is the one on show.") : "";
    return [table(data, attrs), ...(state ? [state] : []), other, h("p.fx-note", {}, note || "")];
  }
}
