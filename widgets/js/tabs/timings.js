// The tab of measured times.

import { h } from "../dom.js";
import { table } from "../pieces.js";

export class TimingsTab {
  constructor(explorer) {
    this.explorer = explorer;
  }

  draw() {
    const { channel } = this.explorer;
    const { table: data, note, running, done, total } = channel.get("times");
    const state = running ? h("p.fx-note", {}, total ? `Timing … ${done} of ${total}` : "Timing … the first run compiles the kernels") : null;
    if (!data) return [state || h("p.fx-empty", {}, note || "No timings yet. Run times the baseline plan and this one on this machine.")];
    const { plan } = channel.get("history");
    const attrs = (n) => {
      const [name, segment] = data.rows[n];
      return name === plan && segment.startsWith("S") ? { tabindex: 0, "data-id": `segment:${segment.slice(1)}`, class: "fx-row" } : {};
    };
    return [table(data, attrs), ...(state ? [state] : []), h("p.fx-note", {}, note || "")];
  }
}
