// The map of a model in the page: Python draws it, this module shows it on a canvas like the explorer's, sends clicks and
// keys, and keeps the focus.

import { h, mayEnter, redraw } from "./dom.js";
import { toggleFull, zoomTools } from "./panels.js";
import { Shortcuts, isPlain, leave } from "./shortcuts.js";
import { Viewport } from "./viewport.js";

const REGION_COMES = 4000; // milliseconds within which the explorer of a region is in the page
const LEAST = 11; // pixels; smaller text is not drawn
const TALLEST = 25; // maximum size of a name in pixels of the drawing, so that it stays in its box
const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };

/** Keep text readable: as a map shrinks, names are enlarged, shortened if necessary, and all other text is hidden. */
function drawWords(svg, scaled) {
  const words = [...svg.querySelectorAll("text")];
  for (const word of words) {
    word.style.fontSize = word.style.display = "";
    word.dataset.words ??= word.textContent;
    word.dataset.y ??= word.getAttribute("y");
    if (word.textContent !== word.dataset.words) word.textContent = word.dataset.words;
    word.setAttribute("y", word.dataset.y);
  }
  const sizes = words.map((word) => parseFloat(getComputedStyle(word).fontSize));
  words.forEach((word, n) => {
    const isName = word.classList.contains("fl-name");
    const size = Math.max(sizes[n], LEAST / scaled);
    const box = word.parentNode.querySelector(":scope > .fl-shape, :scope > .fl-frame");
    if (!isName || !box || size > TALLEST) {
      if (sizes[n] * scaled < LEAST) word.style.display = "none";
      return;
    }
    const { y, height, width } = box.getBBox();
    if (scaled < 1 && box.matches(".fl-shape")) word.setAttribute("y", y + height / 2 + 0.35 * size); // the only text in its box
    if (size === sizes[n]) return;
    word.style.fontSize = `${size}px`;
    const fits = [word.dataset.words, word.dataset.words.split(" · ")[0]].some((text) => {
      if (word.textContent !== text) word.textContent = text;
      return word.getComputedTextLength() <= width - 16;
    });
    if (!fits) word.style.display = "none";
  });
}

class ModelMap {
  constructor(model, el) {
    this.model = model;
    this.shown = {}; // the contents of each part
    this.wanted = ""; // the box that gets the focus with the next picture
    this.canvas = h("div.fx-canvas");
    this.viewport = new Viewport(this.canvas, () => this.onMoved(), (LEAST + 0.5) / TALLEST);
    this.search = h("input.fx-search", { type: "search", placeholder: "search  /", "aria-label": "Search the map", onkeydown: (e) => this.onSearchKey(e) });
    this.status = h("p.fm-status.fx-note", { role: "status" });
    const picture = h("div.fx-graph.fm-picture", {}, this.canvas);
    this.parts = { bar: h("div.fm-bar"), picture: this.canvas, side: h("div.fx-inspector", { tabindex: 0, role: "group", "aria-label": "Details" }), below: h("div.fm-below") };
    const tools = h("div.fx-around", {}, h("span.fx-find", {}, this.search), zoomTools(this.viewport, () => this.full()));
    this.root = h("div.fl-explorer.fl-modelmap", { tabindex: -1, onclick: (e) => this.onClick(e), onkeydown: (e) => this.onKey(e) },
      this.parts.bar, h("div.fx-main", {}, picture, h("div.fx-side.fm-side", {}, tools, this.parts.side)), this.parts.below, this.status);
    this.keys = { "+": () => this.viewport.zoom(1.25), "=": () => this.viewport.zoom(1.25), "-": () => this.viewport.zoom(0.8), 0: () => this.viewport.fit(), f: () => this.full(), "/": () => this.search.focus() };
    el.append(this.root);
    this.shortcuts = new Shortcuts(this.root);
    this.sizes = new ResizeObserver(([entry]) => this.viewport.resize(entry.contentRect));
    this.sizes.observe(picture);
    this.onView = () => this.draw();
    model.on("change:view", this.onView);
    this.draw();
  }

  dispose() {
    this.shortcuts.dispose();
    this.sizes.disconnect();
    clearInterval(this.following);
    this.model.off("change:view", this.onView);
  }

  get svg() {
    return this.canvas.querySelector("svg");
  }

  get boxes() {
    return [...this.canvas.querySelectorAll("[data-box]")];
  }

  box(id) {
    return this.boxes.find((each) => each.dataset.box === id);
  }

  /** The middle of a box in the picture. */
  locate(box) {
    if (!box) return null;
    const { x, y, width, height } = box.querySelector(":scope > .fl-shape, :scope > .fl-frame").getBBox();
    return { x: x + width / 2, y: y + Math.min(height, 60) / 2 };
  }

  draw() {
    const { viewport, shown, parts } = this;
    const view = this.model.get("view");
    const follows = mayEnter(this.canvas); // otherwise the user continued while Python was working
    const isNew = shown.picture !== view.picture;
    const before = isNew && this.locate(this.box(view.selected));
    for (const [name, part] of Object.entries(parts)) {
      if (shown[name] === view[name]) continue;
      shown[name] = view[name];
      redraw(part, () => (part.innerHTML = view[name]));
    }
    this.status.textContent = view.status;
    for (const each of this.boxes) each.classList.toggle("fm-selected", each.dataset.box === view.selected);
    const selected = this.box(view.selected);
    const first = selected || this.boxes[0];
    if (isNew) this.drawPicture(before, this.locate(selected));
    if (selected) viewport.reveal(this.locate(selected));
    if (first) first.setAttribute("tabindex", "0");
    if (this.wanted && first && follows) this.focus(this.box(this.wanted) || first);
    this.wanted = "";
    this.root.dispatchEvent(new CustomEvent("fuser-lab-drawn", { bubbles: true }));
  }

  /** Show another picture, in which the selected box keeps its place. */
  drawPicture(before, now) {
    const { viewport, svg } = this;
    if (!svg) return;
    this.scaled = null;
    viewport.look(svg, [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height]);
    if (!viewport.box) viewport.home();
    else if (viewport.fitted) viewport.fit(viewport.least);
    else if (!before || !viewport.hold(before, now)) viewport.apply();
  }

  onMoved() {
    const { scale } = this.viewport;
    if (scale === this.scaled || !this.svg.isConnected) return;
    this.scaled = scale;
    drawWords(this.svg, scale);
  }

  focus(box) {
    for (const other of this.boxes) other.setAttribute("tabindex", other === box ? "0" : "-1");
    box.focus({ preventScroll: true });
    this.viewport.reveal(this.locate(box));
  }

  /** Whether a box is in a module, whose id begins its own. */
  isInside(box) {
    return this.boxes.some((other) => other !== box && other.ariaExpanded === "true" && box.dataset.box.startsWith(other.dataset.box));
  }

  full() {
    toggleFull(this.root, (text) => (this.status.textContent = text));
  }

  // ---- what the user does

  send(message) {
    this.model.send(message);
    if (message.type === "open") this.follow();
  }

  /** Scroll to the explorer of a region once it is in the page, where it is not beside the map. */
  follow() {
    const end = performance.now() + REGION_COMES;
    const before = this.region;
    clearInterval(this.following);
    this.following = setInterval(() => {
      const isNew = this.region && this.region !== before;
      if (isNew) this.region.scrollIntoView({ block: "nearest" });
      if (isNew || performance.now() > end) clearInterval(this.following);
    }, 50);
  }

  /** The explorer of the region that is open. */
  get region() {
    return this.root.closest(".widget-box")?.querySelector(".fl-explorer:not(.fl-modelmap)");
  }

  press(box) {
    this.wanted = box.dataset.box;
    this.send({ type: "box", id: this.wanted });
  }

  onClick({ target }) {
    const asks = target.closest("[data-send]");
    const box = target.closest("[data-box]");
    if (asks) this.send(JSON.parse(asks.dataset.send));
    else if (box && !this.viewport.dragged) this.press(box);
  }

  onSearchKey(event) {
    if (event.key === "Enter" && this.search.value.trim()) this.send({ type: "find", text: this.search.value });
    else if (event.key === "Escape") (this.box(this.model.get("view").selected) || this.root).focus({ preventScroll: true });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  onKey(event) {
    if (!isPlain(event)) return;
    event.stopPropagation();
    if (event.target !== this.search && this.handle(event)) event.preventDefault();
  }

  /** Handle a key, and return whether it has an action. */
  handle({ key, target }) {
    const row = target.closest("tr[data-send]");
    const box = target.closest("[data-box]");
    const isEnter = key === "Enter" || key === " ";
    if (row && isEnter) this.send(JSON.parse(row.dataset.send));
    else if (box && isEnter) this.press(box);
    else if (box && key in STEPS) this.focus(this.boxes[Math.min(Math.max(this.boxes.indexOf(box) + STEPS[key], 0), this.boxes.length - 1)]);
    else if (key === "Escape" && box && (this.model.get("view").selected || this.isInside(box))) {
      this.wanted = box.dataset.box;
      this.send({ type: "out", id: this.wanted });
    } else if (key === "Escape") leave(this.root);
    else if (this.keys[key]) this.keys[key]();
    else return false;
    return true;
  }
}

function render({ model, el }) {
  const view = new ModelMap(model, el);
  return () => view.dispose();
}

export default { render };
