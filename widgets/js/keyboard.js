// The keys and their actions.

import { button, enter, h } from "./dom.js";
import { isPlain, leave } from "./shortcuts.js";

const KEYS = [
  ["Tab", "go to the next button; the graph follows those above it"],
  ["↓ ↑", "enter the graph, follow edges down, up"],
  ["← →", "go to the previous or next op or edge"],
  ["Enter", "cut or glue at an edge, select an op"],
  ["Shift+Enter", "select an edge without editing"],
  ["/  n", "search the graph, next match"],
  ["j k p", "step through the decisions, play"],
  ["d i t", "decisions, inspector, tables"],
  ["m", "all other tools"],
  ["f h", "full screen, next colouring"],
  ["x", "open or close the selected box (also by double click)"],
  ["o e", "next level of detail, next click mode"],
  ["c g", "cut, glue at the selected edge"],
  ["s", "insert or remove segment_set at the selected edge"],
  ["u  U", "undo, redo"],
  ["r y", "time the plan and the baseline, copy the plan as code"],
  ["1 … 6", "open a tab, or its next view"],
  ["+ − 0", "zoom in, out, fit"],
  ["Esc", "close what is open, end stepping, clear the selection, then return to the notebook"],
  ["?", "show or hide these keys"],
];
const MOVES = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const TYPED = "input:not([type=range], [type=checkbox]), textarea, pre"; // elements that handle keys themselves
const CHANGES = /^(Arrow.*|Page.*|Home|End|Enter)$/; // keys that change a closed menu of a page, or open it

/** The list of the keys, over the canvas. */
export class Help {
  constructor(root) {
    this.root = root;
    this.element = h("div.fx-help", { hidden: true, role: "dialog", "aria-label": "Keys", tabindex: 0 },
      h("div.fx-help-head", {}, h("b", {}, "Keys"), button("Close", "Close (Esc)", () => this.toggle())),
      h("dl", {}, ...KEYS.flatMap(([key, text]) => [h("dt", {}, key), h("dd", {}, text)])));
  }

  get shown() {
    return !this.element.hidden;
  }

  toggle() {
    const back = this.shown ? this.left : document.activeElement;
    this.element.hidden = this.shown;
    if (this.shown) enter(this.element);
    else enter(this.root.contains(back) ? back : this.root);
    this.left = back;
  }
}

export class Keyboard {
  constructor(explorer) {
    this.explorer = explorer;
    const { channel, graph, search, panels, tabs, decisions, header, menu, modes, help } = explorer;
    const { viewport, heat } = graph;
    const send = (type) => () => channel.send(type);
    this.edits = { c: () => this.edit("cut"), g: () => this.edit("glue"), s: () => this.edit("mark"), u: send("undo"), U: send("redo"), r: () => header.toggleRun(), e: () => modes.next() };
    this.keys = {
      "/": () => search.input.focus(),
      n: () => search.next(1),
      N: () => search.next(-1),
      j: () => decisions.stepBy(1),
      k: () => decisions.stepBy(-1),
      p: () => decisions.play(),
      d: () => tabs.toggle("decisions"),
      i: () => panels.side.toggle(),
      t: () => panels.tables.toggle(),
      m: () => menu.toggle(),
      f: () => panels.toggleFull(),
      h: () => explorer.status.tell(heat.next()),
      y: send("code"),
      o: () => menu.nextDetail(),
      x: () => graph.open(explorer.selected) || explorer.status.tell("Select a box of a module, a segment or a run of segments first."),
      "+": () => viewport.zoom(1.25),
      "=": () => viewport.zoom(1.25),
      "-": () => viewport.zoom(0.8),
      0: () => viewport.fit(),
      "?": () => help.toggle(),
      Escape: () => this.escape(),
    };
  }

  /** Edit at the selected edge. */
  edit(type) {
    const { channel, graph, selected, status } = this.explorer;
    const edge = graph.edge(selected);
    if (edge) channel.send(type, { id: edge.id });
    else status.tell("Select an edge first: click it, or press ↓ until it has the focus.");
  }

  escape() {
    const { help, menu, decisions, selected, root, status } = this.explorer;
    if (status.isOpen) status.open(false);
    else if (menu.shown) menu.toggle(false);
    else if (help.shown) help.toggle();
    else if (decisions.step != null) decisions.stepTo(null);
    else if (selected) this.explorer.select(null);
    else leave(root);
  }

  onKey(event) {
    if (!isPlain(event)) return;
    event.stopPropagation(); // the notebook has actions for most keys
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.localName === "select" && this.onSelect(event)) return;
    const field = event.target.closest(TYPED);
    const isFree = !field || (event.key === "Escape" && !field.matches("input, textarea"));
    if (isFree && this.handle(event)) event.preventDefault();
  }

  /** Choose in a menu of the page only after it was opened, because a choice may begin a search; return whether the menu
   *  handles the key. */
  onSelect(event) {
    const { target, key } = event;
    if (CSS.supports("selector(:open)") && target.matches(":open")) return true;
    if (!CHANGES.test(key)) return key === " ";
    event.preventDefault();
    target.showPicker?.();
    return true;
  }

  /** Handle a key, and return whether it has an action. */
  handle({ key, target, shiftKey }) {
    const { channel, graph, tabs, root } = this.explorer;
    const { id } = target.dataset;
    const inGraph = graph.canvas.contains(target);
    const move = MOVES[key];
    const act = this.keys[key] || (channel.editable && this.edits[key]);
    if (target === root && move) graph.enter();
    else if (inGraph && move) graph.walk(id, ...move);
    else if (inGraph && (key === "Enter" || key === " ")) graph.act(id, shiftKey);
    else if (key === "Enter" && id) this.explorer.select(id);
    else if (act) act();
    else if (/^[1-9]$/.test(key)) tabs.openNumber(Number(key));
    else if (target.role === "tab" && move) tabs.walk(target, move[1]);
    else return false;
    return true;
  }
}
