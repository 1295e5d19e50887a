// The explorer in the page: shows what Python sends, and sends back what the user does. The explorer holds the state
// that its parts share: the channel to Python and the selection. A part draws itself on request, and passes the user's
// actions to the explorer or to another part.

import { Advice } from "./advice.js";
import { Channel } from "./channel.js";
import { Decisions } from "./decisions.js";
import { button, h, soon } from "./dom.js";
import { Focus } from "./focus.js";
import { Graph } from "./graph.js";
import { Header } from "./header.js";
import { Inspector } from "./inspector.js";
import { Help, Keyboard } from "./keyboard.js";
import { Menu } from "./menu.js";
import { Modes } from "./modes.js";
import { Names } from "./names.js";
import { Panels } from "./panels.js";
import { Previews } from "./previews.js";
import { Search } from "./search.js";
import { Shortcuts } from "./shortcuts.js";
import { Status } from "./status.js";
import { Tabs } from "./tabs.js";

export class Explorer {
  constructor(model, el) {
    this.selected = null; // the id of an edge, a node, or "segment:0"
    this.segment = 0; // the segment in tabs: that of the selection, or the last one
    this.root = h("div.fl-explorer", { role: "region", tabindex: -1, onkeydown: (e) => this.keyboard.onKey(e) });
    this.status = new Status();
    this.channel = new Channel(model, (text, kind) => this.status.tell(text, kind), () => this.status.draw(this.channel));
    this.modes = new Modes(this);
    this.previews = new Previews(this);
    this.graph = new Graph(this);
    this.search = new Search(this.graph, (id) => this.select(id));
    this.tabs = new Tabs(this);
    this.panels = new Panels(this);
    this.help = new Help(this.root);
    this.menu = new Menu(this);
    this.header = new Header(this);
    this.inspector = new Inspector(this);
    this.decisions = new Decisions(this);
    this.keyboard = new Keyboard(this);
    this.focus = new Focus(this.root);
    this.shortcuts = new Shortcuts(this.root);
    this.advice = new Advice(this);
    this.names = new Names(this);
    this.build(el);
    this.listen();
    this.decisions.draw();
    this.drawScene();
    this.header.drawHistory();
    this.drawAnswer();
    this.header.drawTimes();
    this.status.draw(this.channel);
    const tab = this.channel.get("opens");
    if (tab) this.restore({ tab, step: tab === "decisions" ? 1 : null });
  }

  build(el) {
    const { root, header, status, search, graph, panels, inspector, tabs, help } = this;
    graph.element.append(help.element);
    root.append(header.element, h("div.fx-feedback", {}, h("div.fx-answers", {}, status.element, this.advice.element), header.controls, graph.heat.legend, search.element), header.notes, header.progress,
      h("div.fx-main", {}, graph.element, h("div.fx-side", {}, h("div.fx-around", {}, graph.overview.element, panels.zoom), inspector.element)), tabs.bar, tabs.panel);
    this.modes.mark(root);
    tabs.choose(tabs.current);
    el.append(root, h("style", {}, this.channel.get("hides") || ""));
  }

  listen() {
    const { channel, tabs } = this;
    channel.on("scene", () => this.drawScene());
    channel.on("history", () => this.header.drawHistory());
    channel.on("answer", () => this.drawAnswer());
    channel.on("decisions", () => soon(() => this.decisions.draw()));
    channel.on("source", () => tabs.draw("source"));
    channel.on("panels", () => tabs.draw());
    channel.on("heat", () => {
      this.graph.drawHeat();
      this.header.drawFacts();
    });
    channel.on("foreseen", () => this.previews.draw());
    channel.on("advice", () => this.advice.draw());
    channel.on("times", () => this.header.drawTimes());
    channel.on("status", () => {
      this.status.draw(channel);
      if (channel.get("answer").refused) this.inspector.draw(); // the status line has the sentence, or no longer
    });
    channel.on("code", () => this.inspector.drawCode());
  }

  dispose() {
    for (const part of [this.channel, this.graph, this.tabs, this.previews, this.decisions, this.status, this.focus, this.shortcuts, this.names]) part.dispose();
  }

  /** Draw another picture, and everything that depends on the plan. */
  drawScene() {
    const { root, channel } = this;
    const scene = channel.get("scene");
    if (!scene.nodes) return;
    this.header.drawTitle(scene);
    this.header.drawFacts();
    this.menu.draw(scene);
    this.advice.draw();
    this.graph.draw(scene);
    this.segment = Math.min(this.graph.home(this.selected) ?? this.segment, scene.segments.rows.length - 1);
    this.search.refresh();
    this.decisions.refresh();
    this.inspector.refresh();
    this.tabs.draw();
    root.dataset.rev = scene.rev;
    root.dispatchEvent(new CustomEvent("fuser-lab-drawn", { bubbles: true, detail: scene.rev }));
  }

  /** The view, as a link names it. */
  get looked() {
    const { hash, detail } = this.channel.get("scene");
    return { plan: hash, detail, select: this.selected, tab: this.panels.tables.shown ? this.tabs.current : "", step: this.decisions.step };
  }

  /** Go to the view that a link names. */
  restore({ select, tab, step }) {
    if (select && this.graph.locate(select)) this.select(select);
    if (this.tabs.views.has(tab)) this.tabs.open(tab);
    if (step) this.decisions.stepTo(Number(step));
  }

  drawAnswer() {
    const answer = this.channel.get("answer");
    this.decisions.drawSelection();
    if (answer.adopt && this.selected !== answer.id) this.setSelected(answer.id); // set in Python
    this.inspector.draw();
  }

  /** A button that shows the plan without a rule of nvFuser, if the plan on show follows it. */
  lift(code) {
    const { channel } = this;
    if (!channel.editable || !channel.get("history").liftable?.includes(code)) return null;
    const { plan } = channel.get("scene");
    const made = button("Lift this rule", `Segment again without ${code}, and compare`, () => channel.send("lift", { rule: code, plan }), ".fx-lift");
    made.setAttribute("aria-label", `Lift this rule: ${code}`);
    return made;
  }

  /** Select something, or (null) nothing. */
  select(id) {
    this.channel.send("select", { id: id ?? "" });
    this.setSelected(id);
  }

  /** Show the selection; Python already has it, or the caller sends it. */
  setSelected(id) {
    const { graph, tabs } = this;
    this.selected = id;
    this.segment = graph.home(id) ?? this.segment;
    graph.mark();
    tabs.mark();
    if (id) graph.reveal(id);
    tabs.draw("segments", "source");
  }
}
