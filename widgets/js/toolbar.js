// The toolbar of the canvas: what a click does, what is drawn, colours, search, zoom, and the panels.

import { button, choice, h, option, press } from "./dom.js";

const DETAILS = [["ops", "Ops", "op"], ["segments", "Segments", "segment"], ["blocks", "Blocks", "run of repeated segments"], ["modules", "Modules", "module in each segment"]];

export class Toolbar {
  /** Uses the explorer's channel, click modes, graph, search, panels and help. */
  constructor(explorer) {
    const { channel, modes, graph, search, panels, help } = explorer;
    const { viewport, heat } = graph;
    this.channel = channel;
    this.details = DETAILS.map(([name, label, one]) => option(label, false, () => this.setDetail(name), { title: `One box per ${one} (o)` }));
    this.element = h("div.fx-bar2", { role: "toolbar", "aria-label": "Canvas" },
      choice("What a click on an edge does", ...modes.buttons), choice("What is drawn", ...this.details), heat.choice, heat.legend, search.element,
      h("span.fx-zoom", { role: "group", "aria-label": "Zoom" },
        button("+", "Zoom in (+)", () => viewport.zoom(1.25)), button("−", "Zoom out (−)", () => viewport.zoom(0.8)),
        button("Fit", "Fit (0)", () => viewport.fit()), button("Full", "Full screen (f)", () => panels.toggleFull())),
      choice("Panels", ...panels.buttons), button("?", "Keys (?)", () => help.toggle()));
  }

  draw({ detail, repeats, modules }) {
    this.details[2].hidden = !repeats;
    this.details[3].hidden = !modules;
    press(this.details, DETAILS.findIndex(([name]) => name === detail));
  }

  setDetail(detail) {
    this.channel.send("detail", { detail });
  }

  nextDetail() {
    const { detail } = this.channel.get("scene");
    const offered = DETAILS.map(([name]) => name).filter((_, n) => !this.details[n].hidden);
    this.setDetail(offered[(offered.indexOf(detail) + 1) % offered.length]);
  }
}
