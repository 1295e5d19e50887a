// The tab of the segments.

import { table } from "../pieces.js";

export class SegmentsTab {
  constructor(explorer) {
    this.explorer = explorer;
  }

  draw() {
    const { channel, selected, segment } = this.explorer;
    const data = channel.get("scene").segments;
    if (!data) return [];
    return [table(data, (n) => ({ tabindex: 0, "data-segment": n, "data-id": `segment:${n}`, class: selected && n === segment ? "fx-row fx-tab-segment" : "fx-row" }))];
  }
}
