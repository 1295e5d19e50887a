// The tabs below the graph, each with one or more views. Python names them; those that it does not write as HTML are
// drawn by a module of this table. A view keeps its content while it `waits` for Python to replace it, and all views have
// one height, so that the canvas keeps its size.

import { enter, flag, h, redraw, show, split } from "./dom.js";
import { DecisionsTab } from "./tabs/decisions.js";
import { SegmentsTab } from "./tabs/segments.js";
import { SourceTab } from "./tabs/source.js";
import { TimingsTab } from "./tabs/timings.js";
import { WrittenTab } from "./tabs/written.js";

const DRAWN = { decisions: DecisionsTab, segments: SegmentsTab, source: SourceTab, timings: TimingsTab };

export class Tabs {
  /** Uses the explorer's channel, selection, and the visibility of the panel. */
  constructor(explorer) {
    this.explorer = explorer;
    const list = explorer.channel.get("views"); // name and label of each view, and the tab that it is in
    this.views = new Map(list.map(([name]) => [name, DRAWN[name] ? new DRAWN[name](explorer) : new WrittenTab(explorer, name)]));
    this.labels = new Map(list);
    this.tabs = [...Map.groupBy(list, ([, , tab]) => tab).values()].map((views) => views.map(([name]) => name)); // the names of their views
    this.latest = this.tabs.map(([name]) => name); // the view of each tab that was open last
    [this.current] = this.latest;
    const tab = (data, label, act) => h("button.fx-tab", { role: "tab", ...data, onclick: act }, label);
    this.buttons = this.tabs.map(([name], n) => tab({ "data-tab": n }, list.find(([each]) => each === name)[2], () => this.toggle(this.latest[n], n)));
    this.choices = list.map(([name, label]) => tab({ "data-view": name, "data-tab": this.tabOf(name) }, label, () => this.open(name)));
    this.shelf = h("div.fx-views", { role: "tablist", "aria-label": "Views of the tab" }, ...this.choices);
    this.bar = h("div.fx-tabs", {}, h("div.fx-questions", { role: "tablist", "aria-label": "Questions about the plan" }, ...this.buttons), this.shelf);
    this.panel = h("div.fx-panel", { role: "tabpanel", tabindex: 0, onclick: (e) => this.onClick(e) });
  }

  /** The number of the tab of a view. */
  tabOf(name) {
    return this.tabs.findIndex((names) => names.includes(name));
  }

  /** Whether a view is open. */
  shows(name) {
    return name === this.current && this.explorer.panels.tables.shown;
  }

  /** Open a view. */
  open(name) {
    const { tables } = this.explorer.panels;
    this.choose(name);
    if (!tables.shown) tables.toggle(true);
  }

  /** Open a view; if it, or another one of its tab if that is named, is open, close the panel. */
  toggle(name, tab = null) {
    const { tables } = this.explorer.panels;
    const isOpen = tables.shown && (tab == null ? name === this.current : tab === this.tabOf(this.current));
    if (isOpen) tables.toggle(false);
    else this.open(name);
  }

  /** Open a tab by its number, from 1, or if it is open, its next view. */
  openNumber(number) {
    const names = this.tabs[number - 1];
    if (!names) return;
    const at = names.indexOf(this.current);
    const isIn = this.bar.contains(document.activeElement);
    this.open(this.explorer.panels.tables.shown && at >= 0 ? names[(at + 1) % names.length] : this.latest[number - 1]);
    if (isIn) enter(this.buttons[number - 1]);
  }

  choose(name) {
    if (name !== this.current) this.views.get(this.current).leave?.();
    this.current = name;
    const tab = this.tabOf(name);
    this.latest[tab] = name;
    const select = (buttons, isOpen) => {
      for (const each of buttons) {
        each.setAttribute("aria-selected", String(isOpen(each)));
        each.tabIndex = isOpen(each) ? 0 : -1;
      }
    };
    select(this.buttons, ({ dataset }) => Number(dataset.tab) === tab);
    select(this.choices, ({ dataset }) => dataset.view === name);
    for (const each of this.choices) each.hidden = Number(each.dataset.tab) !== tab;
    this.shelf.hidden = this.tabs[tab].length < 2;
    this.panel.setAttribute("aria-label", this.labels.get(name));
    this.draw();
  }

  dispose() {
    this.views.get(this.current).leave?.();
  }

  /** Go from a tab, or a view, to the next one beside it. */
  walk(button, step) {
    const isTab = this.buttons.includes(button);
    const shown = isTab ? this.buttons : this.choices.filter((each) => !each.hidden);
    const next = shown[(shown.indexOf(button) + step + shown.length) % shown.length];
    this.open(isTab ? this.latest[next.dataset.tab] : next.dataset.view);
    next.focus();
  }

  /** Draw the open view; given names, only if it is one of these. */
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
