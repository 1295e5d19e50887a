// The graph on the canvas: draws scenes, marks the selection, and handles clicks and keys in the picture.

import { enter, flag, h, isStill, mayEnter, soon } from "./dom.js";
import { Drawn } from "./drawn.js";
import { Heat } from "./heat.js";
import { Overview } from "./overview.js";
import { Picture } from "./picture.js";
import { Stock } from "./stock.js";
import { Viewport } from "./viewport.js";
import { Words } from "./words.js";

const GLIDE = 220; // milliseconds
const LARGE = 400; // maximum number of items that are animated
const WHOLE = 2000; // maximum number of items up to which a whole graph is kept in the page, not only its visible part
const MARGIN = 0.35; // of the canvas: how much of a large graph around the visible part is also in the page
const OPS_FROM = 0.55; // minimum scale at which ops are drawn: their names can be read, if only shortened
const LABELS_FROM = 0.7; // minimum scale at which edges have labels
const READABLE = 0.85; // scale used to show an item that is too small to be drawn
const AROUND = 160; // of the picture: room for the boxes of ops around their centres
const MOST_KEPT = 300; // maximum number of marked items that are drawn at any scale and position
const ACTS = ["act", "mark", "select"]; // what a click on an edge sends, by the number of a mode

export class Graph {
  /** Uses the explorer's channel, selection, click modes and previews. */
  constructor(explorer) {
    this.explorer = explorer;
    this.stock = new Stock((n) => explorer.channel.get(`chunk${n}`));
    this.drawn = null; // all contents of the picture
    this.items = []; // the edges and nodes that are in the page
    this.found = new Set(); // ids of search results
    this.lit = []; // elements of the selection and of its neighborhood
    this.byId = new Map();
    const { previews } = explorer;
    this.canvas = h("div.fx-canvas", { role: "group", "aria-label": "Graph of the plan", onclick: (e) => this.onClick(e), ondblclick: (e) => this.open(e.target.closest("[data-id]")?.dataset.id),
      onpointermove: (e) => this.onHover(e), onpointerleave: () => previews.hide(), onfocusin: (e) => this.onFocus(e), onfocusout: () => previews.hide() });
    this.element = h("div.fx-graph", {}, this.canvas, previews.hint);
    this.words = new Words(this.canvas);
    this.viewport = new Viewport(this.canvas, () => this.onMoved());
    this.overview = new Overview(this.viewport);
    this.heat = new Heat(() => this.drawHeat());
    this.sizes = new ResizeObserver(([entry]) => this.resize(entry.contentRect));
    this.sizes.observe(this.element);
  }

  dispose() {
    this.sizes.disconnect();
    clearTimeout(this.gliding);
    cancelAnimationFrame(this.filling);
  }

  /** All nodes. */
  get nodes() {
    return this.drawn?.nodes || [];
  }

  /** All edges. */
  get edges() {
    return this.drawn?.edges || [];
  }

  get boxes() {
    return this.drawn.boxes;
  }

  get svg() {
    return this.picture?.svg;
  }

  item(id) {
    return this.byId.get(id);
  }

  node(id) {
    return this.drawn?.node(id);
  }

  edge(id) {
    return this.drawn?.edge(id);
  }

  // ---- drawing

  /** Draw a scene; the selected and the focused element keep their place if they still exist. */
  draw(scene) {
    const { selected, previews } = this.explorer;
    previews.hide();
    const before = this.drawn;
    const anchor = before && this.locate(selected);
    const focused = this.canvas.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.picture ??= new Picture(this.canvas);
    this.stock.take(scene.chunks);
    this.picture.draw(scene, this.stock.shapes[scene.patterns]);
    this.drawn = new Drawn(scene, this.stock);
    this.marks = Object.entries(scene.marks || {});
    this.viewport.look(this.svg, scene.size, this.drawn.start);
    this.seen = null;
    const isNew = this.detail !== scene.detail || !this.viewport.box;
    this.detail = scene.detail;
    if (isNew) this.start();
    else if (this.viewport.fitted) this.viewport.fit(this.viewport.least);
    else if (!anchor || !this.viewport.hold(anchor, this.locate(selected))) this.viewport.apply();
    this.fill();
    if (this.items.length === this.drawn.count) this.overview.draw(this);
    else soon(() => this.overview.draw(this));
    this.animate(before);
    this.keepFocus(focused);
  }

  /** Show the picture as it opens, with the selection in view. */
  start() {
    this.viewport.home();
    this.reveal(this.explorer.selected);
  }

  /** Draw on a canvas of another size. */
  resize(size) {
    const isFirst = !this.viewport.box;
    this.viewport.resize(size);
    if (!isFirst || !this.viewport.box) return;
    this.reveal(this.explorer.selected);
    this.refill();
  }

  /** The pieces of the picture that have to be in the page for the visible part. */
  get wanted() {
    const { box } = this.viewport;
    const all = this.drawn.count <= WHOLE;
    const scale = box && this.viewport.scale;
    return { all, box, ops: all || scale >= OPS_FROM, labels: all || scale >= LABELS_FROM };
  }

  onMoved() {
    this.explorer.root.setAttribute("data-settled", ""); // the canvas has a size, and the picture a place on it
    this.overview.drawFrame();
    if (!this.seen) {
      this.refillSoon();
      return;
    }
    this.words.draw(this, this.viewport.scale < OPS_FROM, this.viewport.scale);
    if (this.seen.all) return;
    const { box, ops, labels } = this.wanted;
    const { area } = this.seen;
    const isIn = box.x >= area.x && box.y >= area.y && box.x + box.w <= area.x + area.w && box.y + box.h <= area.y + area.h;
    if (isIn && ops === this.seen.ops && labels === this.seen.labels && box.w > area.w / 6) return;
    this.refillSoon();
  }

  refillSoon() {
    cancelAnimationFrame(this.filling);
    this.filling = requestAnimationFrame(() => this.refill());
  }

  /** Put the visible pieces into the page, with their marks. */
  refill() {
    const focused = this.canvas.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.fill();
    this.explorer.decisions.markStep();
    this.keepFocus(focused);
  }

  fill() {
    cancelAnimationFrame(this.filling);
    const { all, box, ops, labels } = this.wanted;
    if (!box) return; // the canvas has no size yet, and its text no scale
    const area = all ? null : { x: box.x - MARGIN * box.w, y: box.y - MARGIN * box.h, w: (1 + 2 * MARGIN) * box.w, h: (1 + 2 * MARGIN) * box.h };
    const { selected, previews } = this.explorer;
    const marked = [selected, ...this.found, ...this.marks.flatMap(([, ids]) => ids)];
    this.seen = { all, area, ops, labels };
    this.picture.hold(this.drawn.in(area, { ops, labels, kept: new Set(marked.slice(0, MOST_KEPT)) }), this.stock.shapes);
    this.prepare();
    this.words.draw(this, this.viewport.scale < OPS_FROM, this.viewport.scale, true);
    this.drawHeat();
    for (const [name, ids] of this.marks) for (const id of ids) this.item(id)?.classList.add(`fx-${name}`);
    for (const id of this.found) this.item(id)?.classList.add("fx-found");
    this.mark();
    previews.colourEdges();
  }

  drawHeat() {
    const { channel, root } = this.explorer;
    const heat = channel.get("heat");
    if (heat.plan !== channel.get("scene").plan) return; // they come in a moment
    this.heat.draw(root, this, heat);
    this.words.tell(heat.time?.labels);
  }

  /** Make edges and nodes reachable by keyboard and named for screen readers. */
  prepare() {
    const [edges, nodes] = ["edges", "nodes"].map((layer) => this.picture.layer(layer));
    this.items = [...edges.values(), ...nodes.values()].map((one) => one.element);
    this.byId = new Map(this.items.map((item) => [item.dataset.id, item]));
    for (const [id, one] of edges) {
      const { tensor, kind, from, to, hint } = this.edge(id);
      const where = { inside: ` inside segment ${from}`, boundary: ` from segment ${from} to segment ${to}` }[kind] || `, a fusion ${kind}`;
      const label = (hint ? "annotated " : "") + tensor + where;
      if (one.label !== label) one.element.setAttribute("aria-label", (one.label = label));
    }
    if (!this.svg.querySelector("[tabindex='0']")) nodes.values().next().value?.element.setAttribute("tabindex", "0");
  }

  keepFocus(focused) {
    if (!focused || document.activeElement?.dataset.id === focused) return;
    // Focusing makes the browser lay out the picture, so a large one is shown first.
    if (this.items.length <= LARGE) this.focus(focused);
    else requestAnimationFrame(() => (document.activeElement === this.explorer.root || mayEnter(this.canvas)) && this.focus(focused));
  }

  /** Animate items from their old positions, unless the user prefers reduced motion. */
  animate(before) {
    if (!before || isStill() || this.items.length > LARGE) return;
    this.canvas.classList.add("fx-gliding"); // a moving item must not catch a click meant for an edge
    clearTimeout(this.gliding);
    this.gliding = setTimeout(() => this.canvas.classList.remove("fx-gliding"), GLIDE);
    for (const layer of this.picture.placed) {
      for (const [id, { element, from, x, y }] of layer) {
        const node = from ? null : before.node(id);
        const old = from || (node && [node.x, node.y]);
        if (!old) element.animate([{ opacity: 0 }, {}], { duration: GLIDE, easing: "ease-in" });
        else if (Math.abs(old[0] - x) + Math.abs(old[1] - y) > 1) {
          element.animate([{ transform: `translate(${old[0] - x}px,${old[1] - y}px)` }, { transform: "translate(0px,0px)" }], { duration: GLIDE, easing: "ease-out", composite: "add" });
        }
      }
    }
  }

  // ---- positions

  /** The centre of an item in the picture; asking the browser for its box would lay out everything. */
  locate(id) {
    if (id == null || !this.drawn) return null;
    const edge = this.edge(id);
    if (edge) {
      const [a, b] = [this.node(edge.source), this.node(edge.target)];
      return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    }
    const index = id.startsWith("segment:") ? Number(id.slice(8)) : null; // its box, its node, or its block
    const box = this.boxes.get(index);
    if (box) return { x: box.x + box.w / 2, y: box.y + box.h / 2 };
    return this.node(id) || [...this.drawn.free.values()].find(({ segment }) => segment === (index ?? -1)) || null;
  }

  /** Move the picture so that an item is visible, and zoom in if it would be too small to be drawn. */
  reveal(id) {
    const at = this.locate(id);
    if (!this.viewport.box) return; // the canvas has no size yet
    const isSmall = this.viewport.scale < OPS_FROM && (this.edge(id)?.kind === "inside" || this.boxes.get(this.node(id)?.segment)?.part);
    if (at && isSmall) this.viewport.approach(at, READABLE);
    else this.viewport.reveal(at);
  }

  /** Move the picture so that an op that computes one of these tensors is visible, and at a scale at which it has a name. */
  revealOne(names) {
    const { viewport } = this;
    const ops = this.nodes.filter((node) => node.kind === "op" && node.names.some((name) => names.includes(name)));
    if (!ops.length || !viewport.box) return;
    if (viewport.scale >= OPS_FROM) {
      if (!ops.some((op) => viewport.shows(op))) this.reveal(ops[0].id);
      return;
    }
    const [xs, ys] = ["x", "y"].map((axis) => ops.map((op) => op[axis]));
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const { w, h } = viewport.room;
    const scale = Math.min(w / (right - left + AROUND), h / (bottom - top + AROUND), READABLE);
    if (scale >= OPS_FROM) viewport.approach({ x: (left + right) / 2, y: (top + bottom) / 2 }, scale);
    else viewport.approach(ops[0], READABLE);
  }

  /** Focus an item of the picture, even if it is not visible. */
  focus(id) {
    if (!this.item(id) && (this.node(id) || this.edge(id))) {
      this.reveal(id);
      this.refill();
    }
    enter(this.item(id));
  }

  // ---- the selection

  /** The names of the tensors of an item. */
  names(id) {
    return this.edge(id) ? [this.edge(id).tensor] : this.node(id)?.names || [];
  }

  /** The segment of an item, for an edge the one that writes its tensor; undefined outside of segments. */
  home(id) {
    if (id?.startsWith("segment:")) return Number(id.slice(8));
    const edge = this.edge(id);
    return (edge ? (edge.from ?? edge.to) : this.node(id)?.segment) ?? undefined;
  }

  /** Mark the selection, and the ends of a selected edge. */
  mark() {
    if (!this.svg) return;
    const { selected } = this.explorer;
    for (const old of this.lit) old.classList.remove("fx-selected", "fx-near");
    this.lit = [];
    if (selected == null) return;
    const light = (id, css) => this.picture.elements(id).forEach((element) => this.lit.push(element) && element.classList.add(css));
    light(selected, "fx-selected");
    const edge = this.edge(selected);
    if (edge) [edge.source, edge.target].forEach((id) => light(id, "fx-near"));
  }

  // ---- pointer and keys

  onClick(event) {
    if (this.viewport.dragged) return;
    const item = event.target.closest("[data-id]");
    if (!item) {
      this.explorer.select(null);
      return;
    }
    this.act(item.dataset.id, event.shiftKey || event.altKey);
    this.focus(item.dataset.id);
  }

  /** Handle a click on an item; `lookOnly` only selects it. */
  act(id, lookOnly = false) {
    const edge = this.edge(id);
    this.explorer.previews.hide();
    this.acted = id;
    this.explorer.channel.send(ACTS[this.explorer.modes.at(edge, lookOnly)], { id, kind: edge?.kind }); // Python works while the page draws
    this.explorer.setSelected(id);
  }

  /** Expand a box, or collapse the one around an item; return whether there is such a box. */
  open(id) {
    const { channel } = this.explorer;
    const node = this.node(id);
    if (!channel.editable || !node) return false;
    const { detail, plan } = channel.get("scene");
    const inside = channel.get("answer").id === id && channel.get("answer").actions?.find(({ module }) => module);
    let box = null;
    if (id.startsWith("module:")) box = { module: id.slice(7, id.lastIndexOf("@")) };
    else if (id.startsWith("block:")) box = { block: id };
    else if (inside) box = { module: inside.module };
    else if (node.segment != null && (node.kind === "segment" || detail === "segments" || detail === "blocks")) box = { segment: node.segment };
    if (box) channel.send("open", { ...box, plan });
    return Boolean(box);
  }

  onHover(event) {
    const { previews, modes } = this.explorer;
    const item = event.target.closest?.(".fl-edge, .fl-label");
    const edge = item && this.edge(item.dataset.id);
    if (edge?.id !== this.acted) this.acted = null; // of what was clicked, the answer is in sight
    if (!edge || event.buttons || this.acted) previews.hide();
    else previews.show(edge, modes.at(edge, event.shiftKey), event);
  }

  onFocus(event) {
    const { previews, modes, selected } = this.explorer;
    const item = event.target.closest("[data-id]");
    if (!item || this.item(item.dataset.id) !== item) return;
    const { id } = item.dataset;
    const edge = this.edge(id);
    const mode = modes.at(edge);
    if (edge && mode < 2 && item.matches(":focus-visible")) previews.showFocused(item, edge, mode);
    this.svg.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    item.setAttribute("tabindex", "0");
    if (!item.matches(":focus-visible")) return;
    if (selected === id) this.reveal(id);
    else this.explorer.select(id);
  }

  /** Return the focus to the last focused item of the graph. */
  enter() {
    enter(this.canvas.querySelector("[tabindex='0']"));
  }

  /** Whether an item is drawn at this scale, or would be if its part of the picture were visible. */
  isDrawn(id) {
    const item = this.item(id);
    if (item) return getComputedStyle(item).display !== "none"; // checkVisibility is true of all SVG elements in some browsers
    return this.viewport.scale >= OPS_FROM || !["inside", undefined].includes(this.edge(id)?.kind);
  }

  /** Follow edges (down, up) to the next item that is drawn, or move to the previous or next one. */
  walk(id, down, side) {
    const edge = this.edge(id);
    let next = null;
    if (down) {
      const [from, to] = down > 0 ? ["source", "target"] : ["target", "source"];
      const after = (at) => (this.edge(at) ? [this.edge(at)[to]] : this.edges.filter((e) => e[from] === at).map((e) => e.id));
      const way = new Set(after(id));
      for (const at of way) {
        if (this.isDrawn(at)) {
          next = at;
          break;
        }
        for (const further of after(at)) way.add(further);
      }
    } else {
      const beside = (edge ? this.edges : this.nodes).filter((one) => one.id === id || this.isDrawn(one.id));
      const at = beside.findIndex((one) => one.id === id);
      next = beside[(at + side + beside.length) % beside.length]?.id;
    }
    if (next) this.focus(next);
  }

  /** Show a search result. */
  markFound(found, searching) {
    flag(this.canvas, "searching", searching);
    this.found = found;
    if (this.seen?.all) for (const item of this.items) flag(item, "found", found.has(item.dataset.id));
    else if (this.seen) this.refill();
  }
}
