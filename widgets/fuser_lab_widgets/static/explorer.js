// The explorer in the page: shows what Python sends and sends back what the user does. No build step, no dependency.

const TABS = [
  ["segments", "Segments"],
  ["decisions", "Decisions"],
  ["passes", "Passes"],
  ["certificate", "Certificate"],
  ["source", "Source"],
  ["timings", "Timings"],
];
const KEYS = [
  ["Tab", "go into the graph"],
  ["↓ ↑", "follow edges down, up"],
  ["← →", "go to the next op or edge beside"],
  ["Enter", "cut or glue at an edge, look at an op"],
  ["Shift+Enter", "look at an edge without editing"],
  ["c", "cut at the selected edge"],
  ["g", "glue at the selected edge"],
  ["u  U", "undo, redo"],
  ["r", "run both plans"],
  ["+ − 0", "zoom in, out, fit"],
  ["Esc", "clear the selection"],
  ["?", "show or hide these keys"],
];
const DRAG = 4; // pixels that tell a drag from a click
const GLIDE = 220; // milliseconds
const PATIENCE = 4000; // milliseconds
const SHOWN = 200; // decisions in the page at once

const sent = new WeakMap(); // model -> events that the kernel has not handled yet, shared by all views of the model

/** Make an element: h("b.name", {title: "x"}, child, ...). Text is set as text, never as markup. */
function h(spec, attrs = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const made = document.createElement(tag || "div");
  if (classes.length) made.className = classes.join(" ");
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
    this.tab = "segments";
    this.editing = true;
    this.fitted = true;
    this.filter = { text: "", outcome: "all", mine: false };
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
    on("decisions", this.drawPanel);
    on("source", this.drawPanel);
    on("certificate", this.drawPanel);
    on("passes", this.drawPanel);
    on("timings", this.drawTimings);
    on("status", this.drawStatus);
    on("code", this.copyCode);
    this.sizes = new ResizeObserver(() => this.resized());
    this.sizes.observe(this.graph);
    this.drawScene();
    this.drawHistory();
    this.drawInspector();
    this.drawTimings();
    this.drawStatus();
  }

  dispose() {
    this.listeners.forEach(([name, run]) => this.model.off(name, run));
    this.sizes.disconnect();
    clearTimeout(this.waiting);
  }

  send(type, data) {
    const n = send(this.model, type, data);
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      if (this.model.get("acked") < n) this.tell("No answer from the kernel yet: it is busy, or it was restarted and the cell has to run again.", "error");
    }, PATIENCE);
  }

  // ---- the frame

  build(el) {
    const button = (label, title, act, extra = "") => h(`button.fx-button${extra}`, { type: "button", title, onclick: act }, label);
    this.title = h("strong.fx-title");
    this.badge = h("span.fx-badge");
    this.facts = h("div.fx-facts");
    this.strategies = h("div.fx-switch", { role: "group", "aria-label": "Strategy" });
    this.undo = button("Undo", "Undo (u)", () => this.send("undo"));
    this.redo = button("Redo", "Redo (U)", () => this.send("redo"));
    this.reset = button("Reset", "Drop all edits", () => this.send("reset"));
    this.copy = button("Copy as code", "Copy Python that makes this plan", () => this.send("code"));
    this.run = button("Run", "Time this plan and the baseline (r)", () => this.toggleRun(), ".fx-primary");
    this.bar = h("div.fx-bar");
    this.progress = h("div.fx-progress", { role: "progressbar", "aria-label": "Timing", "aria-valuemin": 0, "aria-valuemax": 100 }, this.bar);
    this.canvas = h("div.fx-canvas", { role: "group", "aria-label": "Graph of the plan" });
    this.hint = h("div.fx-hint", { "aria-hidden": "true" });
    this.help = h("div.fx-help", { hidden: true, role: "dialog", "aria-label": "Keys" }, h("b", {}, "Keys"),
      h("dl", {}, ...KEYS.flatMap(([key, text]) => [h("dt", {}, key), h("dd", {}, text)])));
    const mode = (label, title, editing) => h("button.fx-mode", { type: "button", title, onclick: () => this.setMode(editing) }, label);
    this.modes = [mode("Edit", "A click on an edge cuts or glues", true), mode("Look", "A click on an edge only selects it", false)];
    this.graph = h("div.fx-graph", {}, this.canvas, this.badge, this.hint, this.help,
      h("div.fx-switch.fx-modes", { role: "group", "aria-label": "What a click on an edge does" }, ...this.modes),
      h("div.fx-zoom", { role: "group", "aria-label": "Zoom" },
        button("+", "Zoom in (+)", () => this.zoom(1.25)), button("−", "Zoom out (−)", () => this.zoom(0.8)),
        button("Fit", "Fit (0)", () => this.fit()), button("?", "Keys (?)", () => this.toggleHelp())));
    this.inspector = h("aside.fx-inspector", { "aria-label": "Inspector" });
    this.tabs = h("div.fx-tabs", { role: "tablist" }, ...TABS.map(([name, label]) =>
      h("button.fx-tab", { type: "button", role: "tab", "data-tab": name, onclick: () => this.openTab(name) }, label)));
    this.panel = h("div.fx-panel", { role: "tabpanel", tabindex: 0 });
    this.status = h("div.fx-status", { role: "status", "aria-live": "polite" });
    this.root = h("div.fl-explorer", { "data-lm-suppress-shortcuts": "true", role: "region", tabindex: -1 },
      h("div.fx-head", {}, this.title, this.facts,
        h("div.fx-tools", { role: "toolbar", "aria-label": "Plan" }, this.strategies,
          h("span.fx-group", {}, this.undo, this.redo, this.reset), this.copy, this.run)),
      this.progress, h("div.fx-main", {}, this.graph, this.inspector), this.tabs, this.panel, this.status);
    this.root.addEventListener("keydown", (e) => this.onKey(e));
    this.canvas.addEventListener("click", (e) => this.onClick(e));
    this.canvas.addEventListener("pointerdown", (e) => this.onDown(e));
    this.canvas.addEventListener("pointermove", (e) => this.onHover(e));
    this.canvas.addEventListener("pointerleave", () => this.showHint(null));
    this.canvas.addEventListener("wheel", (e) => this.onWheel(e), { passive: false });
    this.canvas.addEventListener("focusin", (e) => this.onFocus(e));
    this.setMode(true);
    this.openTab("segments");
    el.append(this.root);
  }

  setMode(editing) {
    this.editing = editing;
    this.modes.forEach((b, n) => b.setAttribute("aria-pressed", String((n === 0) === editing)));
    this.root?.classList.toggle("fx-looking", !editing);
  }

  toggleHelp() {
    this.help.hidden = !this.help.hidden;
  }

  // ---- the graph

  drawScene() {
    const scene = this.model.get("scene");
    if (!scene.svg) return;
    this.showHint(null);
    const before = this.boxes();
    const focused = this.canvas.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.canvas.innerHTML = scene.svg; // made by the SVG writer in Python, which escapes every name
    this.svg = this.canvas.querySelector("svg");
    this.edges = new Map(scene.edges.map(([id, kind, source, target, tensor, from, to]) => [id, { id, kind, source, target, tensor, from, to }]));
    this.nodes = new Map(scene.nodes.map(([id, kind, segment]) => [id, { id, kind, segment }]));
    this.title.textContent = scene.title;
    this.root.setAttribute("aria-label", `Fusion explorer: ${scene.title}`);
    this.facts.replaceChildren(...scene.facts.map(([value, name, title]) => h("span", { title }, h("b", {}, value), ` ${name}`)));
    this.segment = Math.min(this.segment, scene.segments.rows.length - 1);
    this.title.title = `plan ${scene.hash}`;
    if (this.svg) {
      this.prepare();
      const size = this.svg.viewBox.baseVal;
      this.size = { w: size.width, h: size.height };
      if (!before) this.chooseHeight();
      const anchor = before && this.selected && before.get(this.selected);
      if (this.fitted || !anchor || !this.keepInPlace(anchor)) this.fit();
      this.animate(before);
      this.mark();
      if (focused) this.focus(focused);
    }
    this.drawPanel();
    this.root.dataset.rev = scene.rev;
    this.root.dispatchEvent(new CustomEvent("fuser-lab-drawn", { bubbles: true, detail: scene.rev }));
  }

  /** Make edges and nodes reachable by keyboard and named for screen readers. */
  prepare() {
    this.svg.setAttribute("preserveAspectRatio", "xMidYMid meet");
    this.items = [...this.svg.querySelectorAll(".fl-node, .fl-edge")];
    for (const item of this.items) {
      const title = item.querySelector("title");
      const edge = this.edges.get(item.dataset.id);
      const act = edge ? { inside: "Enter cuts here.", boundary: "Enter glues here." }[edge.kind] || "" : "";
      item.setAttribute("aria-label", `${title.textContent}. ${act}`.trim());
      item.setAttribute("role", "button");
      item.setAttribute("tabindex", "-1");
      if (edge) title.remove(); // the hint beside the pointer says more
    }
    const first = this.items.find((i) => i.classList.contains("fl-node"));
    if (first) first.setAttribute("tabindex", "0");
  }

  boxes() {
    if (!this.svg) return null;
    const found = new Map();
    for (const item of this.svg.querySelectorAll(".fl-node, .fl-edge")) {
      const box = item.querySelector(".fl-shape, .fl-wire").getBBox();
      found.set(item.dataset.id, { x: box.x + box.width / 2, y: box.y + box.height / 2 });
    }
    found.view = this.box;
    return found;
  }

  /** Let nodes glide from where they were, unless the user asked for less motion. */
  animate(before) {
    if (!before || matchMedia("(prefers-reduced-motion: reduce)").matches || this.items.length > 400) return;
    this.canvas.classList.add("fx-gliding"); // what glides past takes no click that is meant for an edge
    clearTimeout(this.gliding);
    this.gliding = setTimeout(() => this.canvas.classList.remove("fx-gliding"), GLIDE);
    for (const item of this.items) {
      const old = before.get(item.dataset.id);
      if (item.classList.contains("fl-edge") || !old) {
        item.animate([{ opacity: 0 }, { opacity: getComputedStyle(item).opacity }], { duration: GLIDE, easing: "ease-in" });
        continue;
      }
      const box = item.querySelector(".fl-shape").getBBox();
      const [dx, dy] = [old.x - box.x - box.width / 2, old.y - box.y - box.height / 2];
      if (Math.abs(dx) + Math.abs(dy) > 1) {
        item.animate([{ transform: `translate(${dx}px,${dy}px)` }, { transform: "none" }], { duration: GLIDE, easing: "ease-out" });
      }
    }
  }

  keepInPlace(old) {
    const item = this.item(this.selected);
    if (!item || !this.box) return false;
    const box = item.querySelector(".fl-shape, .fl-wire").getBBox();
    this.box.x += box.x + box.width / 2 - old.x;
    this.box.y += box.y + box.height / 2 - old.y;
    this.applyBox();
    return true;
  }

  /** Give large graphs more height, once; after that the height is the user's (the corner can be dragged). */
  chooseHeight() {
    const width = this.graph.clientWidth;
    if (!width) return;
    this.sized = true;
    const needed = this.size.h * Math.min(1, (width - 24) / this.size.w) + 64;
    // The tabs and the status line below it should stay on the screen.
    const most = Math.min(640, Math.max(280, 0.5 * window.innerHeight));
    this.graph.style.height = `${Math.min(Math.max(needed, 280), most)}px`;
  }

  fit() {
    if (!this.svg || !this.graph.clientWidth) return;
    const [w, height] = [this.graph.clientWidth, this.graph.clientHeight];
    // Below this size text cannot be read: a long graph then starts at its top.
    const scale = Math.min(Math.max(this.size.w / (w - 24), this.size.h / (height - 24), 1 / 1.1), 2.4);
    this.box = { w: w * scale, h: height * scale };
    this.box.x = this.size.w > this.box.w ? -12 * scale : (this.size.w - this.box.w) / 2;
    this.box.y = this.size.h > this.box.h ? -12 * scale : (this.size.h - this.box.h) / 2;
    this.fitted = true;
    this.applyBox();
  }

  zoom(factor, at) {
    if (!this.box) return;
    const centre = at || { x: this.box.x + this.box.w / 2, y: this.box.y + this.box.h / 2 };
    const scale = Math.min(Math.max(1 / factor, this.graph.clientWidth / 4 / this.box.w), (4 * Math.max(this.size.w, 400)) / this.box.w);
    this.box.x = centre.x + (this.box.x - centre.x) * scale;
    this.box.y = centre.y + (this.box.y - centre.y) * scale;
    this.box.w *= scale;
    this.box.h *= scale;
    this.fitted = false;
    this.applyBox();
  }

  applyBox() {
    this.svg.setAttribute("viewBox", `${this.box.x} ${this.box.y} ${this.box.w} ${this.box.h}`);
  }

  resized() {
    if (!this.svg) return;
    if (!this.sized) this.chooseHeight();
    if (this.fitted || !this.box) return this.fit();
    this.box.h = (this.box.w * this.graph.clientHeight) / this.graph.clientWidth;
    this.applyBox();
  }

  item(id) {
    return this.items?.find((item) => item.dataset.id === id);
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
      const scale = this.box.w / this.canvas.clientWidth;
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
    this.focus(item.dataset.id);
    this.act(item.dataset.id, event.shiftKey || event.altKey);
  }

  act(id, lookOnly = false) {
    const edge = this.edges.get(id);
    this.setSelected(id);
    this.send(edge && this.editing && !lookOnly ? "act" : "select", { id });
  }

  select(id) {
    this.setSelected(id);
    this.send("select", { id: id ?? "" });
  }

  setSelected(id) {
    this.selected = id;
    const segment = id?.startsWith("segment:") ? Number(id.slice(8)) : this.nodes?.get(id)?.segment;
    if (segment != null && segment !== this.segment) this.segment = segment;
    this.mark();
    this.drawPanel();
  }

  mark() {
    if (!this.svg) return;
    for (const old of this.svg.querySelectorAll(".fx-selected, .fx-near")) old.classList.remove("fx-selected", "fx-near");
    if (this.selected == null) return;
    for (const item of this.svg.querySelectorAll(`[data-id="${CSS.escape(this.selected)}"]`)) item.classList.add("fx-selected");
    const edge = this.edges.get(this.selected);
    if (edge) [edge.source, edge.target].forEach((id) => this.item(id)?.classList.add("fx-near"));
  }

  onHover(event) {
    const item = event.target.closest?.(".fl-edge, .fl-label");
    const edge = item && this.edges.get(item.dataset.id);
    if (!edge || event.buttons) return this.showHint(null);
    const look = !this.editing || event.shiftKey;
    const text = look ? `look at ${edge.tensor}` : {
      inside: `cut at ${edge.tensor}`,
      boundary: `glue S${edge.from} and S${edge.to}`,
      input: `${edge.tensor} is a fusion input`,
      output: `${edge.tensor} is a fusion output`,
    }[edge.kind];
    this.showHint(text, event);
  }

  showHint(text, event) {
    this.hint.classList.toggle("fx-on", Boolean(text));
    if (!text) return;
    this.hint.textContent = text;
    const frame = this.graph.getBoundingClientRect();
    this.hint.style.left = `${Math.min(event.clientX - frame.left + 14, frame.width - this.hint.offsetWidth - 6)}px`;
    this.hint.style.top = `${event.clientY - frame.top + 16}px`;
  }

  // ---- keys

  onKey(event) {
    if (event.target.closest("input, select, textarea, pre") || event.ctrlKey || event.metaKey) return;
    const inGraph = this.canvas.contains(event.target);
    const onButton = event.target.closest("button, summary");
    const edge = this.edges?.get(this.selected);
    const moves = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const keys = {
      c: () => (edge ? this.send("cut", { id: edge.id }) : this.tell("Select an edge first: Tab into the graph, then ↓.")),
      g: () => (edge ? this.send("glue", { id: edge.id }) : this.tell("Select an edge first: Tab into the graph, then ↓.")),
      u: () => this.send("undo"),
      U: () => this.send("redo"),
      r: () => this.toggleRun(),
      "+": () => this.zoom(1.25),
      "=": () => this.zoom(1.25),
      "-": () => this.zoom(0.8),
      0: () => this.fit(),
      "?": () => this.toggleHelp(),
      Escape: () => (this.help.hidden ? this.select(null) : this.toggleHelp()),
    };
    if (inGraph && moves[event.key]) this.walk(event.target.dataset.id, ...moves[event.key]);
    else if (inGraph && (event.key === "Enter" || event.key === " ")) this.act(event.target.dataset.id, event.shiftKey);
    else if (event.key in keys && !(onButton && event.key === " ")) keys[event.key]();
    else if (event.target.role === "tab" && moves[event.key]) this.walkTabs(moves[event.key][1]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  onFocus(event) {
    const item = event.target.closest("[data-id]");
    if (!item || !this.items?.includes(item)) return;
    this.items.forEach((i) => i.setAttribute("tabindex", i === item ? "0" : "-1"));
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

  focus(id) {
    const item = this.items?.find((i) => i.dataset.id === id);
    if (item) item.focus({ preventScroll: true });
  }

  walkTabs(step) {
    const at = TABS.findIndex(([name]) => name === this.tab);
    this.openTab(TABS[(at + step + TABS.length) % TABS.length][0]);
    this.tabs.querySelector("[aria-selected=true]").focus();
  }

  // ---- header and status

  drawHistory() {
    const history = this.model.get("history");
    if (!history.strategies) return;
    this.undo.disabled = !history.undo;
    this.redo.disabled = !history.redo;
    this.reset.disabled = !history.edits.length;
    this.run.disabled = !history.runnable;
    this.run.title = history.runnable ? "Time this plan and the baseline (r)" : "Needs arrays: explore(fd, inputs)";
    const last = history.edits.slice(-4);
    this.badge.textContent = `${history.edits.length > last.length ? "… · " : ""}${last.join(" · ")}`;
    this.badge.title = `Edits since the ${history.strategy.replaceAll("_", "-")} plan: ${history.edits.join(", ")}`;
    this.badge.hidden = !history.edits.length;
    this.strategies.hidden = history.strategies.length < 2;
    this.strategies.replaceChildren(...history.strategies.map(([name, words]) => h("button.fx-mode", {
      type: "button", "aria-pressed": String(name === history.strategy), "data-strategy": name,
      "aria-busy": String(name === history.searching), disabled: Boolean(history.searching) && name === history.searching,
      onclick: () => this.send("strategy", { strategy: name }),
    }, words)));
    this.showSearch(Boolean(history.searching));
    if (this.tab === "certificate") this.drawPanel();
  }

  showSearch(on) {
    this.progress.classList.toggle("fx-busy", on);
    this.moving?.cancel();
    this.moving = null;
    if (!on || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    this.moving = this.progress.animate([{ backgroundPositionX: "-60%" }, { backgroundPositionX: "160%" }], { duration: 1200, iterations: Infinity });
  }

  drawStatus() {
    const status = this.model.get("status");
    this.tell(status.text || "", status.kind);
  }

  tell(text, kind = "info") {
    this.status.textContent = text;
    this.status.classList.toggle("fx-error", kind === "error");
  }

  toggleRun() {
    this.send(this.model.get("timings").running ? "cancel" : "run");
    if (!this.model.get("timings").running) this.openTab("timings");
  }

  async copyCode() {
    const { text } = this.model.get("code");
    this.inspector.replaceChildren(h("h3", {}, "This plan as code"), h("pre.fx-code", { tabindex: 0 }, text || ""));
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      this.tell("The browser gave no access to the clipboard; the code stands in the inspector.");
    }
  }

  // ---- inspector

  drawInspector() {
    this.inspector.scrollTop = 0;
    const answer = this.model.get("answer");
    if (!answer.id) {
      this.inspector.replaceChildren(h("h3", {}, "Inspector"), h("p.fx-empty", {}, "Select an edge, an op or a segment to see what it moves and why it is there."),
        h("ul.fx-empty", {}, h("li", {}, "An edge inside a segment: a click cuts there."), h("li", {}, "An edge between segments: a click glues the two sides, or says why not.")));
      return;
    }
    const buttons = (answer.actions || []).map((a) => h("button.fx-button", { type: "button", onclick: () => this.send(a.type, { id: a.id }) }, a.label));
    if (answer.segment != null) {
      buttons.push(h("button.fx-button", { type: "button", onclick: () => this.showSource(answer.segment) }, "Show source"));
    }
    if (answer.names?.length) {
      buttons.push(h("button.fx-button", { type: "button", onclick: () => this.showMine() }, "Decisions about it"));
    }
    this.inspector.replaceChildren(
      h("h3", {}, answer.title),
      answer.sentence ? h(`p.fx-why${answer.refused ? ".fx-refused" : ""}`, {}, answer.sentence) : "",
      h("dl.fx-facts-list", {}, ...answer.facts.flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)])),
      answer.note ? h("p.fx-note", {}, answer.note) : "",
      answer.verdicts?.length ? h("h4", {}, "Schedulers, as asked") : "",
      verdicts(answer.verdicts),
      h("div.fx-actions", {}, ...buttons),
    );
  }

  // ---- the tabs below

  openTab(name) {
    this.tab = name;
    for (const tab of this.tabs.children) {
      const open = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(open));
      tab.tabIndex = open ? 0 : -1;
    }
    this.drawPanel();
  }

  drawPanel() {
    const draw = { segments: this.segmentPanel, decisions: this.decisionPanel, passes: this.passPanel, certificate: this.certificatePanel, source: this.sourcePanel, timings: this.timingPanel };
    const typing = this.panel.querySelector("input:focus");
    if (typing) return this.drawDecisionRows();
    this.panel.replaceChildren(...draw[this.tab].call(this));
    if (this.tab === "decisions") this.drawDecisionRows();
  }

  segmentPanel() {
    const data = this.model.get("scene").segments;
    if (!data) return [];
    return [table(data, (n) => ({
      tabindex: 0, "data-segment": n, class: n === this.segment ? "fx-row fx-current" : "fx-row",
      onclick: () => this.select(`segment:${n}`),
      onkeydown: (e) => e.key === "Enter" && this.select(`segment:${n}`),
    }))];
  }

  passPanel() {
    const { rows } = this.model.get("passes");
    if (!rows) {
      if (!this.askedPasses) this.send("passes");
      this.askedPasses = true;
      return [h("p.fx-empty", {}, "Running the passes once more …")];
    }
    if (!rows.length) return [h("p.fx-empty", {}, "This plan does not tell what it was made of.")];
    const changed = rows.filter((row) => row.diff.length || row.outcome === "changed");
    const line = (text) => h(text[0] === "+" ? "span.fx-added" : "span.fx-gone", {}, `${text}\n`);
    const item = (row) => h("li", {}, h("details", { open: true }, h("summary.fx-line", {}, h("b", {}, row.name), h("span.fx-note", {}, row.about)),
      h("pre.fx-code", {}, ...(row.diff.length ? row.diff.map(line) : ["Layouts or aliases only; the expressions are the same."]))));
    const others = rows.filter((row) => !changed.includes(row)).map((row) => h("li.fx-line", {}, h("b", {}, row.name), h("span.fx-note", {}, `${row.outcome} · ${row.about}`)));
    return [h("p.fx-note", {}, `${changed.length} of ${rows.length} passes before the cut changed the fusion, in this order.`), h("ol.fx-decisions", {}, ...changed.map(item), ...others)];
  }

  certificatePanel() {
    const found = this.model.get("certificate");
    const { hash } = this.model.get("scene");
    const { searching } = this.model.get("history");
    if (searching) return [h("p.fx-empty", {}, "Searching … edits, drawing and source go on meanwhile.")];
    if (found.hash !== hash) {
      const ask = h("button.fx-button", { type: "button", onclick: () => this.send("certificate") }, "Look for a cheaper plan");
      return [h("p.fx-empty", {}, "Is there a cheaper plan, in bytes and launches? If not, this shows why not."), h("div.fx-actions", {}, ask)];
    }
    if (found.problem) return [h("p.fx-why.fx-refused", {}, found.problem)];
    const rows = (list) => h("ol.fx-decisions.fx-costs", {}, ...list.map(([cost, text]) => h("li.fx-line", {}, h("b", {}, cost), h("span", {}, text))));
    const part = (title, list, open) => list.length ? h("details", { open }, h("summary", {}, title), rows(list)) : null;
    return [
      h("p.fx-verdict", {}, h("b", {}, found.status), ...found.costs.map(([cost, text]) => h("span", {}, h("b", {}, cost), ` ${text}`)), h("span.fx-note", {}, found.model)),
      part("What the cheaper plan saves, and why this one did not", found.missed, true),
      part("What every plan pays", found.terms, !found.missed.length),
    ].filter(Boolean);
  }

  decisionPanel() {
    const choose = (e) => {
      this.filter.outcome = e.target.value;
      this.drawDecisionRows();
    };
    const outcomes = [["all", "all"], ["yes", "accepted"], ["no", "refused"]];
    this.decisionRows = h("ol.fx-decisions");
    this.decisionCount = h("span.fx-note");
    this.mine = h("input", { type: "checkbox", onchange: (e) => { this.filter.mine = e.target.checked; this.drawDecisionRows(); } });
    this.mine.checked = this.filter.mine;
    const search = h("input.fx-search", { type: "search", placeholder: "filter: T3, reduction, cycle …", "aria-label": "Filter decisions",
      oninput: (e) => { this.filter.text = e.target.value.toLowerCase(); this.drawDecisionRows(); } });
    search.value = this.filter.text;
    const select = h("select", { "aria-label": "Outcome", onchange: choose }, ...outcomes.map(([v, t]) => h("option", { value: v, selected: v === this.filter.outcome }, t)));
    return [h("div.fx-filters", {}, search, select, h("label", {}, this.mine, " about the selection only"), this.decisionCount), this.decisionRows];
  }

  drawDecisionRows() {
    const rows = this.model.get("decisions").rows || [];
    const { names = [], attempts = [] } = this.model.get("answer");
    const { text, outcome, mine } = this.filter;
    const about = (row) => attempts.includes(row.seq) || (names.length > 2 ? names.some((n) => row.names.includes(n)) : names.every((n) => row.names.includes(n)));
    const found = rows.filter((row) =>
      (outcome === "all" || row.ok === (outcome === "yes")) && (!mine || (names.length && about(row))) &&
      (!text || `${row.of} ${row.phase} ${row.kind} ${row.reason} ${row.verdicts.map((v) => v.scheduler + v.text).join(" ")}`.toLowerCase().includes(text)));
    this.decisionCount.textContent = `${found.length} of ${rows.length}`;
    const empty = !rows.length ? "No decision was needed: one scheduler took the whole fusion." : mine && !names.length ? "Select an edge, an op or a segment first." : "No decision matches.";
    this.decisionRows.replaceChildren(...(found.length ? found.slice(0, SHOWN).map(decision) : [h("li.fx-empty", {}, empty)]));
    if (found.length > SHOWN) this.decisionRows.append(h("li.fx-empty", {}, `… and ${found.length - SHOWN} more; filter to see them.`));
  }

  showMine() {
    this.filter.mine = true;
    this.openTab("decisions");
  }

  showSource(segment) {
    this.segment = segment;
    this.openTab("source");
  }

  sourcePanel() {
    const count = this.model.get("scene").segments?.rows.length || 0;
    const source = this.model.get("source");
    const hash = this.model.get("scene").hash;
    const current = source.hash === hash && source.segment === this.segment && source.target === this.target;
    if (!current) this.askSource(hash);
    const pick = h("select", { "aria-label": "Segment", onchange: (e) => { this.segment = Number(e.target.value); this.drawPanel(); } },
      ...Array.from({ length: count }, (_, n) => h("option", { value: n, selected: n === this.segment }, `segment S${n}`)));
    const target = (name, words) => h("button.fx-mode", { type: "button", "aria-pressed": String(this.target === name), onclick: () => { this.target = name; this.drawPanel(); } }, words);
    const head = h("div.fx-filters", {}, pick, h("div.fx-switch", { role: "group", "aria-label": "Target" }, target("cpu", "CPU"), target("cuda", "CUDA")));
    if (!current) return [head, h("p.fx-empty", {}, "Generating …")];
    if (source.problem) return [head, h("p.fx-why.fx-refused", {}, source.problem)];
    const pre = h("pre.fx-code", { tabindex: 0, "aria-label": `Source of segment ${source.segment}` });
    pre.innerHTML = source.html; // escaped by Pygments
    return [head, pre];
  }

  askSource(hash) {
    const key = `${hash} ${this.segment} ${this.target}`;
    if (this.asked === key) return;
    this.asked = key;
    this.send("source", { segment: this.segment, target: this.target });
  }

  drawTimings() {
    const { running, done, total } = this.model.get("timings");
    const part = running ? Math.max(total ? done / total : 0, 0.03) : 0;
    this.bar.style.width = `${100 * part}%`;
    this.progress.classList.toggle("fx-on", Boolean(running));
    this.progress.setAttribute("aria-valuenow", Math.round(100 * part));
    this.run.textContent = running ? "Cancel" : "Run";
    this.run.classList.toggle("fx-primary", !running);
    if (this.tab === "timings") this.drawPanel();
  }

  timingPanel() {
    const { table: data, note, running, done, total } = this.model.get("timings");
    const state = running ? h("p.fx-note", {}, total ? `Timing … ${done} of ${total}` : "Timing … the first run compiles the kernels") : null;
    if (!data) return [state || h("p.fx-empty", {}, "No timings yet. Run times the baseline plan and this one on this machine.")];
    return [table(data, () => ({})), ...(state ? [state] : []), h("p.fx-note", {}, note || "")];
  }
}

// ---- pieces

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
  return h(ok ? "span.fx-good" : "span.fx-bad", { "aria-label": ok ? "accepted" : "refused" }, ok ? "✓" : "✗");
}

function verdicts(list) {
  return h("ul.fx-verdicts", {}, ...(list || []).map((v) => h("li", {}, mark(v.ok), h("b", {}, v.scheduler), h("span", {}, v.text))));
}

function decision(row) {
  const line = [h("span.fx-seq", {}, String(row.seq)), mark(row.ok), h("b", {}, row.of), h("span.fx-note", {}, [row.phase, row.kind].filter(Boolean).join(" · ").replaceAll("_", " ")), h("span", {}, row.reason)];
  if (!row.verdicts.length) return h("li", {}, h("div.fx-line", {}, ...line));
  return h("li", {}, h("details", {}, h("summary.fx-line", {}, ...line), verdicts(row.verdicts)));
}

export default { render };
