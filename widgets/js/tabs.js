// The tabs below the graph. Python names them; those that it does not write as HTML are drawn by a module of this
// table. A tab keeps its content while it `waits` for Python to replace it, and its height does not depend on its
// content: the canvas would change its size with it, and Python's picture with the canvas.

import { flag, h, redraw, show, split } from "./dom.js";
import { SegmentsTab } from "./tabs/segments.js";
import { SourceTab } from "./tabs/source.js";
import { TimingsTab } from "./tabs/timings.js";
import { WrittenTab } from "./tabs/written.js";

const DRAWN = { segments: SegmentsTab, source: SourceTab, timings: TimingsTab };

export class Tabs {
  /** Uses the explorer's channel, selection, and the visibility of the panel. */
  constructor(explorer) {
    this.explorer = explorer;
    this.list = explorer.channel.get("views"); // name and label of each tab
    this.views = new Map(this.list.map(([name]) => [name, DRAWN[name] ? new DRAWN[name](explorer) : new WrittenTab(explorer, name)]));
    this.current = this.list[0][0];
    this.bar = h("div.fx-tabs", { role: "tablist", "aria-label": "Views of the plan" }, ...this.list.map(([name, label]) =>
      h("button.fx-tab", { role: "tab", "data-tab": name, onclick: () => this.open(name, true) }, label)));
    this.panel = h("div.fx-panel", { role: "tabpanel", tabindex: 0, onclick: (e) => this.onClick(e) });
  }

  /** Open a tab; if it is clicked `again`, close it. */
  open(name, again = false) {
    const { panels } = this.explorer;
    const isShut = !panels.tables.shown;
    if (again && name === this.current && !isShut) {
      panels.tables.toggle(false);
      return;
    }
    this.choose(name);
    if (isShut) panels.tables.toggle(true);
  }

  /** Open a tab by its number, from 1. */
  openNumber(number) {
    const view = this.list[number - 1];
    if (view) this.open(view[0]);
  }

  choose(name) {
    if (name !== this.current) this.views.get(this.current).leave?.();
    this.current = name;
    for (const tab of this.bar.children) {
      const open = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(open));
      tab.tabIndex = open ? 0 : -1;
      if (open) this.panel.setAttribute("aria-label", tab.textContent);
    }
    this.draw();
  }

  dispose() {
    this.views.get(this.current).leave?.();
  }

  walk(step) {
    const names = this.list.map(([name]) => name);
    this.open(names[(names.indexOf(this.current) + step + names.length) % names.length]);
    this.bar.querySelector("[aria-selected=true]").focus();
  }

  /** Draw the open tab; given names, only if it is one of these. */
  draw(...only) {
    if (!this.explorer.panels.tables.shown || (only.length && !only.includes(this.current))) return;
    const view = this.views.get(this.current);
    redraw(this.panel, () => {
      const made = view.draw(this.panel);
      if (made) this.panel.replaceChildren(...made);
    });
    this.panel.setAttribute("aria-busy", String(Boolean(view.waits)));
    this.mark();
  }

  showSource(segment) {
    this.explorer.segment = segment;
    this.open("source");
  }

  /** Highlight the selection in the tab. */
  mark() {
    const { selected, graph } = this.explorer;
    const names = graph.names(selected);
    for (const row of this.panel.querySelectorAll("[data-id]")) flag(row, "current", row.dataset.id === selected);
    let first = null;
    for (const line of this.panel.querySelectorAll("[data-name]")) {
      const lit = names.includes(line.dataset.name);
      flag(line, "lit", lit);
      if (lit) first ??= line;
    }
    const row = first || this.panel.querySelector(".fx-current[data-id]");
    if (row && !this.panel.contains(document.activeElement)) show(this.panel, row); // the page around it stays where it is
  }

  onClick(event) {
    const { channel, graph, segment } = this.explorer;
    const ask = event.target.closest("[data-send]");
    if (ask) {
      channel.send(...split(JSON.parse(ask.dataset.send)));
      return;
    }
    const row = event.target.closest("[data-id]");
    if (row) {
      this.explorer.select(row.dataset.id);
      return;
    }
    const line = event.target.closest("[data-name]");
    const nodes = line ? graph.nodes.filter((n) => n.names.includes(line.dataset.name)) : [];
    const node = nodes.find((n) => n.segment === segment) || nodes[0];
    if (node) this.explorer.select(node.id);
  }
}
