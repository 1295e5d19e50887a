// The explorer in the page: shows what Python sends and sends back what the user does. No build step, no dependency.

const KEYS = [
  ["Tab", "go into the graph"],
  ["↓ ↑", "follow edges down, up"],
  ["← →", "go to the next op or edge beside"],
  ["Enter", "edit at an edge, look at an op"],
  ["Shift+Enter", "look at an edge without editing"],
  ["/  n", "search the graph, next match"],
  ["j k p", "step through the decisions, play"],
  ["d i t", "decisions, inspector, tables"],
  ["f h", "full screen, next colouring"],
  ["o e", "ops or segments, what a click does"],
  ["c g", "cut, glue at the selected edge"],
  ["s", "insert or remove segment_set there"],
  ["u  U", "undo, redo"],
  ["r y", "run both plans, copy as code"],
  ["1 … 9", "open a tab"],
  ["+ − 0", "zoom in, out, fit"],
  ["Esc", "clear the selection"],
  ["?", "show or hide these keys"],
];
const MODES = [
  ["Cut", "A click on an edge cuts or glues: it overrules the segmenter"],
  ["segment_set", "A click on an edge inserts it or removes it: it asks the segmenter"],
  ["Look", "A click only selects, and so does Shift and a click"],
];
const DETAILS = [["ops", "Ops", "op"], ["segments", "Segments", "segment"], ["blocks", "Blocks", "run of segments that repeats"]];
const ACTS = ["act", "mark", "select"]; // what a click on an edge sends
const DRAG = 4; // pixels that tell a drag from a click
const GLIDE = 220; // milliseconds
const PATIENCE = 4000; // milliseconds
const LARGE = 400; // items, beyond which nothing glides
const SHOWN = 200; // decisions in the page at once

const sent = new WeakMap(); // model -> events that the kernel has not handled yet, shared by all views of the model

/** Make an element: h("b.name", {title: "x"}, child, ...). Text is set as text, never as markup. */
function h(spec, attrs = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const made = document.createElement(tag || "div");
  if (classes.length) made.className = classes.join(" ");
  if (tag === "button") made.type = "button";
  for (const [key, value] of Object.entries(attrs)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((c) => c != null));
  return made;
}

function send(model, type, data = {}) {
  const queue = (sent.get(model) || []).filter((e) => e.n > model.get("acked"));
  const last = queue.length ? queue[queue.length - 1].n : Math.max(model.get("acked"), sent.get(model)?.last || 0);
  queue.push({ n: last + 1, type, ...data });
  queue.last = last + 1;
  sent.set(model, queue);
  model.set("events", [...queue]);
  model.save_changes();
  return last + 1;
}

function render({ model, el }) {
  const view = new Explorer(model, el);
  return () => view.dispose();
}

class Explorer {
  constructor(model, el) {
    this.model = model;
    this.selected = null; // the id of an edge, a node, or "segment:0"
    this.segment = 0;
    this.target = "cpu";
    this.views = this.get("views"); // name, label, and whether Python writes it as HTML
    this.tab = "segments";
    this.fitted = true;
    this.step = null; // how many decisions are shown as taken, while the log is stepped through
    this.found = [];
    this.listeners = [];
    this.build(el);
    const on = (name, act) => {
      const run = () => act.call(this);
      model.on(`change:${name}`, run);
      this.listeners.push([`change:${name}`, run]);
    };
    on("scene", this.drawScene);
    on("history", this.drawHistory);
    on("answer", this.drawInspector);
    on("decisions", () => soon(() => this.drawLog()));
    on("source", this.drawPanel);
    on("panels", this.drawPanel);
    on("foreseen", this.drawForeseen);
    on("times", this.drawTimings);
    on("status", this.drawStatus);
    on("code", this.copyCode);
    this.sizes = new ResizeObserver(([entry]) => this.resized(entry.contentRect));
    this.sizes.observe(this.graph);
    this.drawLog();
    this.drawScene();
    this.drawHistory();
    this.drawInspector();
    this.drawTimings();
    this.drawStatus();
  }

  dispose() {
    this.listeners.forEach(([name, run]) => this.model.off(name, run));
    this.sizes.disconnect();
    clearInterval(this.playing);
    clearTimeout(this.waiting);
    clearTimeout(this.roomTimer);
  }

  get(name) {
    return this.model.get(name);
  }

  send(type, data) {
    const n = send(this.model, type, data);
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      if (this.get("acked") < n) this.tell(...kernelText(this.model));
    }, PATIENCE);
  }

  // ---- the frame

  build(el) {
    const button = (label, title, act, extra = "") => h(`button.fx-button${extra}`, { title, onclick: act }, label);
    this.title = h("strong.fx-title", { role: "heading", "aria-level": 2 });
    this.badge = h("span.fx-badge.fx-note");
    this.facts = h("div.fx-facts");
    this.notes = h("ul.fx-notes", { "aria-label": "Inputs and notes of the script", tabindex: 0 });
    this.controls = h("div.fx-controls");
    this.strategies = h("div.fx-controls");
    this.stopSearch = button("Cancel search", "End the search for a cheaper plan", () => this.send("stop"));
    this.stopSearch.hidden = true;
    this.undo = button("Undo", "Undo (u)", () => this.send("undo"));
    this.redo = button("Redo", "Redo (U)", () => this.send("redo"));
    this.reset = button("Reset", "Drop all edits", () => this.send("reset"));
    this.copy = button("Code", "Copy Python that makes this plan (y)", () => this.send("code"));
    this.copy.setAttribute("aria-label", "Copy as code");
    this.run = button("Run", "Time this plan and the baseline (r)", () => this.toggleRun(), ".fx-primary");
    this.bar = h("div.fx-bar");
    this.progress = h("div.fx-progress", { role: "progressbar", "aria-label": "Timing", "aria-valuemin": 0, "aria-valuemax": 100 }, this.bar);
    this.canvas = h("div.fx-canvas", { role: "group", "aria-label": "Graph of the plan", onclick: (e) => this.onClick(e), onpointerdown: (e) => this.onDown(e),
      onpointermove: (e) => this.onHover(e), onpointerleave: () => this.showHint(null), onfocusin: (e) => this.onFocus(e), onfocusout: () => this.showHint(null) });
    this.hint = h("div.fx-hint", { "aria-hidden": "true" });
    this.help = h("div.fx-help", { hidden: true, role: "dialog", "aria-label": "Keys", tabindex: 0 }, h("b", {}, "Keys"),
      h("dl", {}, ...KEYS.flatMap(([key, text]) => [h("dt", {}, key), h("dd", {}, text)])));
    const mode = (label, title, act) => option(label, false, act, { title });
    this.logButton = mode("Decisions", "Show or hide the decisions (d)", () => this.toggleLog());
    this.modes = MODES.map(([label, title], n) => mode(label, `${title} (e)`, () => this.setMode(n)));
    this.details = DETAILS.map(([d, label, one]) => mode(label, `One box per ${one} (o)`, () => this.setDetail(d)));
    this.sideButton = mode("Inspector", "Show or hide the inspector and the overview (i)", () => this.toggleSide());
    this.tablesButton = mode("Tables", "Show or hide the tables below (t)", () => this.toggleTables());
    this.heatBy = h("select", { "aria-label": "Colour", title: "Colour (h)", onchange: () => this.drawHeat() }, ...HEATS.map(([value, words]) => h("option", { value }, words)));
    this.heatLegend = h("span.fx-legend.fx-note", { hidden: true });
    this.search = h("input.fx-search", { type: "search", placeholder: "search  /", "aria-label": "Search the graph", oninput: () => this.find(),
      onkeydown: (e) => {
        if (e.key === "Enter") this.findNext(e.shiftKey ? -1 : 1);
        else if (e.key === "Escape") { this.search.value = ""; this.find(); enter(this.canvas.querySelector("[tabindex='0']")); }
        else return;
        e.preventDefault();
        e.stopPropagation();
      } });
    this.matches = h("span.fx-note", { role: "status" });
    this.graph = h("div.fx-graph", {}, this.canvas, this.hint, this.help);
    this.bar2 = h("div.fx-bar2", { role: "toolbar", "aria-label": "Canvas" },
      choice("What a click on an edge does", ...this.modes), choice("What is drawn", ...this.details), this.heatBy, this.heatLegend,
      h("span.fx-find", { role: "search" }, this.search, this.matches),
      h("span.fx-zoom", { role: "group", "aria-label": "Zoom" },
        button("+", "Zoom in (+)", () => this.zoom(1.25)), button("−", "Zoom out (−)", () => this.zoom(0.8)),
        button("Fit", "Fit (0)", () => this.fit()), button("Full", "Full screen (f)", () => this.toggleFull())),
      choice("Panels", this.logButton, this.sideButton, this.tablesButton), button("?", "Keys (?)", () => this.toggleHelp()));
    this.overview = h("div.fx-overview", { onpointerdown: (e) => this.onOverview(e), onpointermove: (e) => this.onOverview(e) });
    this.inspector = h("section.fx-inspector", { "aria-label": "Inspector", tabindex: 0 });
    this.tabs = h("div.fx-tabs", { role: "tablist", "aria-label": "Views of the plan" }, ...this.views.map(([name, label]) =>
      h("button.fx-tab", { role: "tab", "data-tab": name, onclick: () => this.openTab(name, true) }, label)));
    this.panel = h("div.fx-panel", { role: "tabpanel", tabindex: 0, onclick: (e) => this.onPanel(e) });
    this.status = h("div.fx-status", { role: "status", "aria-live": "polite" });
    this.root = h("div.fl-explorer.fx-nolog", { "data-lm-suppress-shortcuts": "true", role: "region", tabindex: -1, onkeydown: (e) => this.onKey(e) },
      h("div.fx-head", {}, this.title, this.facts,
        h("div.fx-tools", { role: "toolbar", "aria-label": "Plan" }, this.strategies, this.stopSearch,
          h("span.fx-group", {}, this.undo, this.redo, this.reset), this.copy, this.run)),
      this.bar2, h("div.fx-told", {}, this.status, this.badge, this.controls), this.notes, this.progress,
      h("div.fx-main", {}, this.graph, this.buildLog(), h("div.fx-side", {}, this.overview, this.inspector)), this.tabs, this.panel);
    this.toggleSide(true);
    this.toggleTables(false);
    this.canvas.addEventListener("wheel", (e) => this.onWheel(e), { passive: false });
    this.setMode(0);
    this.chooseTab("segments");
    el.append(this.root, h("style", {}, this.get("hides") || ""));
  }

  setMode(mode) {
    this.mode = mode;
    press(this.modes, mode);
    flag(this.root, "looking", mode > 1);
  }

  /** What a click on an edge does: the number of a mode. */
  modeAt(edge, lookOnly) {
    return edge && this.editable && !lookOnly ? this.mode : 2;
  }

  setDetail(detail) {
    this.send("detail", { detail });
  }

  nextDetail() {
    const { detail, repeats } = this.get("scene");
    const offered = DETAILS.map(([name]) => name).filter((name) => repeats || name !== "blocks");
    this.setDetail(offered[(offered.indexOf(detail) + 1) % offered.length]);
  }

  toggleHelp() {
    const back = this.help.hidden ? document.activeElement : this.helped;
    this.help.hidden = !this.help.hidden;
    if (this.help.hidden) enter(this.root.contains(back) ? back : this.root);
    else enter(this.help);
    this.helped = back;
  }

  // ---- pointer

  onDown(event) {
    if (event.button !== 0 || !this.svg) return;
    const start = { x: event.clientX, y: event.clientY, box: { ...this.box } };
    this.dragged = false;
    const move = (e) => {
      const [dx, dy] = [e.clientX - start.x, e.clientY - start.y];
      if (!this.dragged && Math.hypot(dx, dy) < DRAG) return;
      this.dragged = true;
      this.fitted = false;
      this.canvas.classList.add("fx-dragging");
      const scale = this.box.w / this.room.w;
      this.box.x = start.box.x - dx * scale;
      this.box.y = start.box.y - dy * scale;
      this.applyBox();
    };
    const up = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      this.canvas.classList.remove("fx-dragging");
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
  }

  onWheel(event) {
    // A plain wheel scrolls the notebook, as everywhere; with Ctrl, or pinched on a touchpad, it zooms.
    if (!(event.ctrlKey || event.metaKey) || !this.svg) return;
    event.preventDefault();
    const frame = this.canvas.getBoundingClientRect();
    const at = {
      x: this.box.x + ((event.clientX - frame.left) / frame.width) * this.box.w,
      y: this.box.y + ((event.clientY - frame.top) / frame.height) * this.box.h,
    };
    this.zoom(Math.exp(-event.deltaY / 300), at);
  }

  onClick(event) {
    if (this.dragged) return;
    const item = event.target.closest("[data-id]");
    if (!item) return this.select(null);
    this.act(item.dataset.id, event.shiftKey || event.altKey);
    this.focus(item.dataset.id);
  }

  act(id, lookOnly = false) {
    const edge = this.edges.get(id);
    this.send(ACTS[this.modeAt(edge, lookOnly)], { id, kind: edge?.kind }); // Python works while the page draws
    this.setSelected(id);
  }

  select(id) {
    this.send("select", { id: id ?? "" });
    this.setSelected(id);
  }

  setSelected(id) {
    this.selected = id;
    const segment = id?.startsWith("segment:") ? Number(id.slice(8)) : this.nodes?.get(id)?.segment;
    if (segment != null && segment !== this.segment) this.segment = segment;
    this.mark();
    if (id) this.reveal(id);
    if (this.tab === "segments" || this.tab === "source") this.drawPanel();
  }

  names() {
    const edge = this.edges?.get(this.selected);
    return edge ? [edge.tensor] : this.nodes?.get(this.selected)?.names || [];
  }

  mark() {
    this.markGraph();
    this.markPanel();
  }

  markGraph() {
    if (!this.svg) return;
    for (const old of this.svg.querySelectorAll(".fx-selected, .fx-near")) old.classList.remove("fx-selected", "fx-near");
    if (this.selected == null) return;
    for (const item of this.svg.querySelectorAll(`[data-id="${CSS.escape(this.selected)}"]`)) item.classList.add("fx-selected");
    const edge = this.edges.get(this.selected);
    if (edge) [edge.source, edge.target].forEach((id) => this.item(id)?.classList.add("fx-near"));
  }

  /** Light up what the tab below says about the selection. */
  markPanel() {
    const names = this.names();
    for (const row of this.panel.querySelectorAll("[data-id]")) flag(row, "current", row.dataset.id === this.selected);
    let first = null;
    for (const line of this.panel.querySelectorAll("[data-name]")) {
      const lit = names.includes(line.dataset.name);
      flag(line, "lit", lit);
      if (lit) first ??= line;
    }
    const row = first || this.panel.querySelector(".fx-current[data-id]");
    if (row && !this.panel.contains(document.activeElement)) row.scrollIntoView?.({ block: "nearest" });
  }

  onPanel(event) {
    const ask = event.target.closest("[data-send]");
    if (ask) return this.send(...split(JSON.parse(ask.dataset.send)));
    const row = event.target.closest("[data-id]");
    if (row) return this.select(row.dataset.id);
    const line = event.target.closest("[data-name]");
    const nodes = line ? [...this.nodes.values()].filter((n) => n.names.includes(line.dataset.name)) : [];
    const node = nodes.find((n) => n.segment === this.segment) || nodes[0];
    if (node) this.select(node.id);
  }

  onHover(event) {
    const item = event.target.closest?.(".fl-edge, .fl-label");
    const edge = item && this.edges.get(item.dataset.id);
    if (!edge || event.buttons) return this.showHint(null);
    this.foretell(edge, this.modeAt(edge, event.shiftKey), event);
  }

  showHint(text, event) {
    flag(this.hint, "on", text);
    if (!text) return void (this.telling = null);
    this.hint.textContent = text;
    const frame = this.graph.getBoundingClientRect();
    this.hint.style.left = `${Math.min(event.clientX - frame.left + 14, frame.width - this.hint.offsetWidth - 6)}px`;
    this.hint.style.top = `${event.clientY - frame.top + 16}px`;
  }

  // ---- keys

  onKey(event) {
    if (event.target.closest("input:not([type=range], [type=checkbox]), select, textarea, pre") || event.ctrlKey || event.metaKey) return;
    const inGraph = this.canvas.contains(event.target);
    const edge = this.edges?.get(this.selected);
    const moves = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const edits = !this.editable ? {} : {
      ...Object.fromEntries([["c", "cut"], ["g", "glue"], ["s", "mark"]].map(([key, type]) =>
        [key, () => (edge ? this.send(type, { id: edge.id }) : this.tell("Select an edge first: Tab into the graph, then ↓."))])),
      u: () => this.send("undo"),
      U: () => this.send("redo"),
      r: () => this.toggleRun(),
      e: () => this.setMode((this.mode + 1) % 3),
    };
    const keys = {
      ...edits,
      "/": () => this.search.focus(),
      n: () => this.findNext(1),
      N: () => this.findNext(-1),
      j: () => this.stepBy(1),
      k: () => this.stepBy(-1),
      p: () => this.play(),
      d: () => this.toggleLog(),
      i: () => this.toggleSide(),
      t: () => this.toggleTables(),
      f: () => this.toggleFull(),
      h: () => this.nextHeat(),
      y: () => this.send("code"),
      o: () => this.nextDetail(),
      "+": () => this.zoom(1.25),
      "=": () => this.zoom(1.25),
      "-": () => this.zoom(0.8),
      0: () => this.fit(),
      "?": () => this.toggleHelp(),
      Escape: () => (!this.help.hidden ? this.toggleHelp() : this.step != null ? this.stepTo(null) : this.select(null)),
    };
    if (inGraph && moves[event.key]) this.walk(event.target.dataset.id, ...moves[event.key]);
    else if (inGraph && (event.key === "Enter" || event.key === " ")) this.act(event.target.dataset.id, event.shiftKey);
    else if (event.key === "Enter" && event.target.dataset.id) this.select(event.target.dataset.id);
    else if (event.key in keys) keys[event.key]();
    else if (/^[1-9]$/.test(event.key)) this.views[event.key - 1] && this.openTab(this.views[event.key - 1][0]);
    else if (event.target.role === "tab" && moves[event.key]) this.walkTabs(moves[event.key][1]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  onFocus(event) {
    const item = event.target.closest("[data-id]");
    if (!item || this.byId?.get(item.dataset.id) !== item) return;
    const edge = this.edges.get(item.dataset.id);
    const mode = this.modeAt(edge);
    if (edge && mode < 2 && item.matches(":focus-visible")) this.foretellFocused(item, edge, mode);
    this.svg.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    item.setAttribute("tabindex", "0");
    if (this.selected !== item.dataset.id && item.matches(":focus-visible")) this.select(item.dataset.id);
  }

  /** Go along edges (down, up) or to what stands beside. */
  walk(id, down, side) {
    const edge = this.edges.get(id);
    let next = null;
    if (down) {
      if (edge) next = down > 0 ? edge.target : edge.source;
      else next = [...this.edges.values()].find((e) => (down > 0 ? e.source : e.target) === id)?.id;
    } else {
      const kind = edge ? "fl-edge" : "fl-node";
      const beside = this.items.filter((i) => i.classList.contains(kind));
      const at = beside.findIndex((i) => i.dataset.id === id);
      next = beside[(at + side + beside.length) % beside.length]?.dataset.id;
    }
    if (next) this.focus(next);
  }

  get editable() {
    return !this.get("history").fixed;
  }

  focus(id) {
    enter(this.item(id));
  }

  walkTabs(step) {
    const { length } = this.views;
    const at = this.views.findIndex(([name]) => name === this.tab);
    this.openTab(this.views[(at + step + length) % length][0]);
    this.tabs.querySelector("[aria-selected=true]").focus();
  }

  // ---- header and status

  drawHistory() {
    const history = this.get("history");
    if (!history.controls) return;
    for (const one of [this.undo.parentNode, this.run, this.modes[0].parentNode]) one.hidden = Boolean(history.fixed);
    this.undo.disabled = !history.undo;
    this.redo.disabled = !history.redo;
    this.reset.disabled = !history.resettable;
    this.run.disabled = !history.runnable;
    this.run.title = history.runnable ? "Time this plan and the baseline (r)" : "Needs arrays: explore(fd, inputs)";
    this.notes.replaceChildren(...(history.notes || []).map((note) => h("li", {}, note)));
    const edits = [...(history.annotations || []), ...history.edits];
    const last = edits.slice(-4);
    this.badge.textContent = `${edits.length > last.length ? "… · " : ""}${last.join(" · ")}`;
    this.badge.title = `Annotations of the definition, and edits since the ${history.strategy.replaceAll("_", "-")} plan: ${edits.join(", ")}`;
    this.badge.hidden = !edits.length;
    const focused = document.activeElement;
    const kept = this.root.contains(focused) ? focused.dataset.key : null;
    const [first, ...rest] = history.controls.map(([label, before, buttons]) => h("span.fx-group", {}, h("span.fx-note", {}, before),
      choice(label, ...buttons.map(([key, words, on, free, title, event]) => option(words, on, () => this.send(...split(event)), {
        "aria-busy": String(key === history.searching), disabled: !free, title, "data-key": key })))));
    first.hidden = history.controls[0][2].length < 2;
    this.strategies.replaceChildren(first);
    this.controls.replaceChildren(...rest);
    if (!history.searching && focused === this.stopSearch) enter(this.root);
    this.stopSearch.hidden = !history.searching;
    if (kept) this.root.querySelector(`[data-key="${CSS.escape(kept)}"]`)?.focus();
    else if (this.root.contains(focused) && focused.disabled) enter(this.root);
    this.drawFacts();
    this.showSearch(Boolean(history.searching));
  }

  showSearch(on) {
    flag(this.progress, "busy", on);
    this.moving?.cancel();
    this.moving = null;
    if (!on || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    this.moving = this.progress.animate([{ backgroundPositionX: "-60%" }, { backgroundPositionX: "160%" }], { duration: 1200, iterations: Infinity });
  }

  drawStatus() {
    const status = this.get("status");
    this.tell(status.text || "", status.kind);
    const { action } = status;
    if (action) this.status.append(" ", h("button.fx-button", { onclick: () => this.send(...split(action)) }, action.label));
  }

  tell(text, kind = "info") {
    this.status.textContent = text;
    flag(this.status, "error", kind === "error");
  }

  toggleRun() {
    this.send(this.get("times").running ? "cancel" : "run");
    if (!this.get("times").running) this.openTab("timings");
  }

  async copyCode() {
    const { text, form, forms = [] } = this.get("code");
    this.inspector.replaceChildren(h("h3", {}, "This plan as code"),
      choice("Written for", ...forms.map((f) => option(f, f === form, () => this.send("code", { form: f })))),
      h("pre.fx-code", { tabindex: 0 }, text || ""));
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      this.tell("The browser gave no access to the clipboard; the code stands in the inspector.");
    }
  }
}

/** Why the kernel has not answered, as far as the page can tell: JupyterLab says how its kernel is. */
function kernelText(model) {
  const status = model.widget_manager?.kernel?.status;
  if (status === "busy") return ["The kernel is busy with a cell; it answers when that is done."];
  if (["dead", "terminating", "unknown"].includes(status)) return ["The kernel has ended; start it and run the cell again.", "error"];
  if (["starting", "restarting", "autorestarting"].includes(status)) return ["The kernel is starting; run the cell again.", "error"];
  if (status === "idle") return ["The kernel was restarted and does not know this view; run the cell again.", "error"];
  return ["No answer from the kernel yet: it is busy, or it was restarted and the cell has to run again.", "error"];
}

// ---- pieces

/** Do something after what is shown now was drawn. */
function soon(act) {
  requestAnimationFrame(() => setTimeout(act));
}

function flag(item, name, on) {
  item.classList.toggle(`fx-${name}`, Boolean(on));
}

function press(buttons, chosen) {
  buttons.forEach((b, n) => b.setAttribute("aria-pressed", String(n === chosen)));
}

/** Buttons of which one is chosen, or each is on or off. */
function choice(label, ...buttons) {
  return h("div.fx-switch", { role: "group", "aria-label": label }, ...buttons);
}

function option(words, on, onclick, attrs) {
  return h("button.fx-mode", { "aria-pressed": String(on), onclick, ...attrs }, words);
}

/** Give something the focus without scrolling the page. */
function enter(item) {
  item?.focus({ preventScroll: true });
}

function split({ type, label, title, ...data }) {
  return [type, data];
}

function table(data, rowAttrs) {
  const cell = (tag) => (text, n) => h(data.numeric[n] ? `${tag}.fx-num` : tag, tag === "th" ? { scope: "col" } : { title: text.length > 40 ? text : null }, text);
  return h("div.fx-scroll", {}, h("table.fx-table", {},
    h("thead", {}, h("tr", {}, ...data.columns.map(cell("th")))),
    h("tbody", {}, ...data.rows.map((row, n) => {
      const made = h("tr", rowAttrs(n), ...row.map(cell("td")));
      if (data.strong.includes(n)) made.classList.add("fx-total");
      return made;
    }))));
}

function mark(ok) {
  return h(ok ? "span.fx-good" : "span.fx-bad", { role: "img", "aria-label": ok ? "accepted" : "refused" }, ok ? "✓" : "✗");
}

function verdicts(list) {
  return h("ul.fx-verdicts", {}, ...(list || []).map((v) => h("li", {}, mark(v.ok), h("b", {}, v.scheduler), h("span", {}, v.text))));
}

function decision(row, step) {
  const place = [row.phase, row.kind].filter(Boolean).join(" · ").replaceAll("_", " ");
  const count = row.verdicts.length;
  return h("li.fx-decision", { "data-step": step },
    h("button.fx-seq", { title: "Show the groups after this decision", "aria-label": `Decision ${row.seq}: show the groups after it` }, String(row.seq)), mark(row.ok),
    h("div.fx-what", {}, h("b", {}, row.of),
      count ? h("details", { ontoggle: (e) => e.target.children[1] || e.target.append(verdicts(row.verdicts)) }, h("summary.fx-note", { title: `What ${count === 1 ? "a scheduler" : "schedulers"} said` }, place)) : h("span.fx-note", {}, place),
      h("span.fx-reason", { title: row.reason }, row.reason)));
}

export default { render };
