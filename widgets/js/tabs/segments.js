// The tab of the segments.

import { table } from "../pieces.js";

export class SegmentsTab {
  constructor(explorer) {
    this.explorer = explorer;
  }

  draw() {
    const { channel, graph, selected, segment } = this.explorer;
    const data = channel.get("scene").segments;
    if (!data) return [];
    const rows = data.rows.map((row, n) => [`S${n}`, ...graph.stock.rows[row]]);
    return [table({ ...data, rows }, (n) => ({ tabindex: 0, "data-segment": n, "data-id": `segment:${n}`, class: selected && n === segment ? "fx-row fx-tab-segment" : "fx-row" }))];
  }
}
