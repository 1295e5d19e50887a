// Colours of segments and their ops by a value, from zero to the largest.

import { flag, h } from "./dom.js";

const HEATS = [["", "by segment"], ["bytes", "by bytes"], ["time", "by time"], ["roof", "by distance from the roof"]];

export class Heat {
  /** `changed()` is called when the user chooses another colouring. */
  constructor(changed) {
    this.choice = h("select", { "aria-label": "Colour", title: "Colour (h)", onchange: changed }, ...HEATS.map(([value, words]) => h("option", { value }, words)));
    this.legend = h("span.fx-legend.fx-note", { hidden: true });
  }

  /** Choose the next colouring and return its meaning. */
  next() {
    this.choice.selectedIndex = (this.choice.selectedIndex + 1) % HEATS.length;
    this.choice.dispatchEvent(new Event("change"));
    return this.choice.value ? `Coloured ${this.choice.selectedOptions[0].text}: ${this.legend.title}.` : "Colours distinguish segments.";
  }

  draw(root, graph, heat) {
    const found = heat?.[this.choice.value];
    flag(root, "heat", found);
    this.legend.hidden = !found;
    const { values = {}, least = "", most = "", about = "" } = found || {};
    this.legend.title = about;
    this.legend.replaceChildren(h("span", {}, least), h("i"), h("span", {}, most));
    if (!graph.picture || (!found && !this.painted)) return;
    this.painted = Boolean(found);
    const paint = (element, segment) => {
      const part = values[segment];
      if (part == null) element.style.removeProperty("--fx-heat");
      else element.style.setProperty("--fx-heat", `${Math.round(8 + 52 * part)}%`);
    };
    for (const [index, { element }] of graph.picture.layer("boxes")) paint(element, index);
    for (const [id, { element }] of graph.picture.layer("nodes")) paint(element, graph.node(id).segment);
  }
}
