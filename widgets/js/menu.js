// The menu of all other tools: what a click does, what is drawn, colours, panels, and more of the plan.

import { button, choice, enter, h, option, press } from "./dom.js";

const DETAILS = [["ops", "Ops", "op"], ["segments", "Segments", "segment"], ["blocks", "Blocks", "run of repeated segments"], ["modules", "Modules", "module in each segment"]];

export class Menu {
  /** Uses the explorer's channel, click modes, graph, panels and help. */
  constructor(explorer) {
    const { channel, modes, graph, panels, help } = explorer;
    this.channel = channel;
    this.button = button("More", "All other tools (m)", () => this.toggle());
    this.button.setAttribute("aria-haspopup", "dialog");
    this.details = DETAILS.map(([name, label, one]) => option(label, false, () => this.setDetail(name), { title: `One box per ${one} (o)` }));
    this.reset = button("Reset", "Drop all edits", () => channel.send("reset"));
    this.segmenter = h("span.fx-group"); // the segmenter's switches
    const row = (label, ...tools) => h("div.fx-menu-row", {}, h("span.fx-note", { "aria-hidden": "true" }, label), ...tools);
    this.clicks = row("A click on an edge", choice("What a click on an edge does", ...modes.buttons));
    this.plan = row("The plan", this.segmenter, this.reset);
    this.element = h("div.fx-menu", { role: "dialog", "aria-label": "All other tools", tabindex: -1, onclick: (e) => this.onClick(e), onfocusout: (e) => this.onLeave(e) },
      this.clicks, row("Boxes", choice("What is drawn", ...this.details)), row("Colour", graph.heat.choice),
      row("Panels", choice("Panels", ...panels.buttons)), this.plan, row("Help", button("Keys", "Keys (?)", () => help.toggle())));
    this.toggle(false);
  }

  get shown() {
    return !this.element.hidden;
  }

  toggle(shown = !this.shown) {
    const isLeft = this.element.contains(document.activeElement);
    this.element.hidden = !shown;
    this.button.setAttribute("aria-expanded", String(shown));
    if (shown) enter(this.element.querySelector("button, select"));
    else if (isLeft) enter(this.button);
  }

  /** A choice is made: the menu closes. */
  onClick({ target }) {
    if (target.closest("button") && this.shown) this.toggle(false);
  }

  onLeave({ relatedTarget }) {
    if (relatedTarget && relatedTarget !== this.button && !this.element.contains(relatedTarget)) this.toggle(false);
  }

  draw({ detail, repeats, modules }) {
    this.details[2].hidden = !repeats;
    this.details[3].hidden = !modules;
    press(this.details, DETAILS.findIndex(([name]) => name === detail));
  }

  drawHistory({ fixed, resettable }) {
    this.clicks.hidden = this.plan.hidden = Boolean(fixed);
    this.reset.disabled = !resettable;
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
