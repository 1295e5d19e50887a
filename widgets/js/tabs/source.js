// The tab of the generated kernel of a segment.

import { choice, h, option } from "../dom.js";

const TARGETS = [["cpu", "CPU"], ["cuda", "CUDA"], ["ptx", "PTX"]];

export class SourceTab {
  constructor(explorer) {
    this.explorer = explorer;
    this.target = "cpu";
  }

  draw() {
    const { channel, segment, tabs } = this.explorer;
    const { hash, segments } = channel.get("scene");
    const source = channel.get("source");
    const current = source.hash === hash && source.segment === segment && source.target === this.target;
    if (!current) this.ask(hash);
    const pick = h("select", { "aria-label": "Segment", onchange: (e) => tabs.showSource(Number(e.target.value)) },
      ...(segments?.rows || []).map((_, n) => h("option", { value: n, selected: n === segment }, `segment S${n}`)));
    const offered = TARGETS.filter(([name]) => name !== "ptx" || channel.editable);
    const targets = offered.map(([name, words]) => option(words, this.target === name, () => { this.target = name; tabs.draw(); }));
    const head = h("div.fx-filters", {}, pick, choice("Target", ...targets), h("span.fx-note", {}, "Click a line to see its op; select an op to see its lines."));
    if (!current) return [head, h("p.fx-empty", {}, this.target === "ptx" ? "Compiling …" : "Generating …")];
    if (source.problem) return [head, h("p.fx-why.fx-refused", {}, source.problem)];
    const pre = h("pre.fx-code", { tabindex: 0, "aria-label": `Source of segment ${source.segment}` });
    pre.innerHTML = source.html; // escaped in Python
    return [head, pre];
  }

  ask(hash) {
    const { channel, segment } = this.explorer;
    const key = `${hash} ${segment} ${this.target}`;
    if (this.asked === key) return;
    this.asked = key;
    channel.send("source", { segment, target: this.target });
  }
}
