// The canvas: what part of the picture is seen, which words are large enough to be read there, overview and heat.

const LEAST_TEXT = 11; // pixels on the screen; smaller words are not drawn
const NAME = 13; // pixels: the size of a node's name in the picture
const LABEL = 11; // pixels: labels of edges and details
const GROWN = 1.25; // how much larger than drawn the label of an edge may be without touching the next
const HEADER = 36; // pixels above the ops of a segment
const MARGIN = 6; // pixels around a picture that fits
const CLOSEST = 4; // times larger than drawn
const HEATS = [["", "by segment"], ["bytes", "by bytes"], ["time", "by time"], ["roof", "by distance from the roof"]];
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map(); // of words at 100 px, which no scale changes

/** The width of bold words at a size. */
function measured(words, size) {
  if (!widths.has(words)) {
    pen.font = `600 100px Inter, "Helvetica Neue", Arial, "Liberation Sans", sans-serif`;
    widths.set(words, pen.measureText(words).width);
  }
  return (widths.get(words) * size) / 100;
}

Object.assign(Explorer.prototype, {
  /** How much larger than drawn the picture is shown. */
  shown() {
    return this.room.w / this.box.w;
  },

  /** Show the whole picture, as large as it goes. */
  fit() {
    if (!this.svg || !this.room?.w) return;
    const { w, h: height } = this.room;
    const scale = Math.min((w - 2 * MARGIN) / this.size.w, (height - 2 * MARGIN) / this.size.h, 1.3);
    this.box = { w: w / scale, h: height / scale };
    this.box.x = (this.size.w - this.box.w) / 2;
    this.box.y = (this.size.h - this.box.h) / 2;
    this.fitted = true;
    this.applyBox();
  },

  zoom(factor, at) {
    if (!this.box) return;
    const centre = at || { x: this.box.x + this.box.w / 2, y: this.box.y + this.box.h / 2 };
    const fitting = Math.max(this.size.w / this.room.w, this.size.h / this.room.h, 1);
    const scale = Math.min(Math.max(1 / factor, this.room.w / CLOSEST / this.box.w), (1.5 * fitting * this.room.w) / this.box.w);
    this.box.x = centre.x + (this.box.x - centre.x) * scale;
    this.box.y = centre.y + (this.box.y - centre.y) * scale;
    this.box.w *= scale;
    this.box.h *= scale;
    this.fitted = false;
    this.applyBox();
  },

  applyBox() {
    // The picture as a whole is moved and scaled: with another viewBox the page would lay out all text again.
    const scale = this.shown();
    this.svg.style.transform = `scale(${scale}) translate(${-this.box.x}px, ${-this.box.y}px)`;
    this.drawWords();
    this.drawFrame();
  },

  resized(room) {
    const before = this.room;
    this.room = { w: room.width, h: room.height }; // asking the page itself would make it lay out everything
    if (!this.svg || !room.width || !room.height) return;
    if (this.fitted || !this.box) this.fit();
    else {
      this.box.w *= room.width / before.w;
      this.box.h = (this.box.w * room.height) / room.width;
      this.applyBox();
    }
    this.tellRoom();
  },

  /** Tell Python the shape of the canvas, once it has one: a picture may run across or down. */
  tellRoom() {
    clearTimeout(this.roomTimer);
    this.roomTimer = setTimeout(() => {
      if (!this.room || !this.get("scene").room) return;
      const { room } = this.get("scene");
      const { w, h: height } = this.room;
      const other = w > 200 && height > 100 && Math.abs(Math.log((room[0] * height) / (room[1] * w))) > 0.15;
      this.root.toggleAttribute("data-settled", !other || !this.editable);
      if (other && this.editable) this.send("room", { width: Math.round(w), height: Math.round(height) });
    }, 150);
  },

  keepInPlace(old) {
    const now = this.box && this.locate(this.selected);
    if (!now) return false;
    this.box.x += now.x - old.x;
    this.box.y += now.y - old.y;
    this.applyBox();
    return true;
  },

  /** Move the picture so that something is seen. */
  reveal(id) {
    const at = this.box && this.locate(id);
    if (!at) return;
    const { x, y, w, h: height } = this.box;
    if (at.x > x + 30 && at.x < x + w - 30 && at.y > y + 30 && at.y < y + height - 30) return;
    Object.assign(this.box, { x: at.x - w / 2, y: at.y - height / 2 });
    this.fitted = false;
    this.applyBox();
  },

  // ---- words

  /** Draw the words that can be read at this scale: all of them, names alone, segments alone. */
  drawWords() {
    const scale = Math.round(this.shown() * 50) / 50 || this.shown();
    if (this.wordsAt === scale && this.wordsOf === this.nodes) return;
    [this.wordsAt, this.wordsOf] = [scale, this.nodes];
    const near = this.shown() >= 0.999;
    const size = Math.max(NAME, LEAST_TEXT / this.shown());
    this.svg.style.setProperty("--fx-up", 1 / Math.min(this.shown(), 1));
    this.svg.style.setProperty("--fx-hit", `${Math.min(Math.max(8, 6 / this.shown()), 12)}px`); // wires run at least 12 apart
    flag(this.canvas, "far", !near);
    flag(this.canvas, "unlabelled", LEAST_TEXT / this.shown() > LABEL * GROWN);
    let readable = 0;
    for (const [id, { element }] of this.picture.placed[4]) {
      const node = this.nodes.get(id);
      const text = element.querySelector(".fl-name");
      const { dataset } = text;
      dataset.y ??= text.getAttribute("y");
      dataset.words ??= text.firstChild.data;
      const fitting = size <= node.h && [dataset.words, node.kind === "segment" ? dataset.words.split(" ")[0] : dataset.words].find((words) => measured(words, size) <= node.w - 8);
      const words = near ? dataset.words : fitting || "";
      readable += Boolean(words);
      if (text.firstChild.data !== words) text.firstChild.data = words;
      text.style.fontSize = near ? "" : `${size}px`;
      text.setAttribute("y", near ? dataset.y : size * 0.35);
    }
    const alone = size > HEADER && readable < this.nodes.size / 2; // no words on ops, so that segments may have theirs there
    flag(this.canvas, "tiny", alone);
    for (const [index, { element }] of this.picture.placed[2]) this.drawHeader(element, this.boxes.get(index), near, alone);
  },

  drawHeader(head, box, near, alone) {
    let label = head.querySelector(".fx-label");
    const words = [...head.querySelectorAll("text")].slice(0, 2).map((one) => one.textContent);
    const size = Math.max(12, LEAST_TEXT / this.shown());
    const said = [words.join(" "), words[0]].find((text) => measured(text, size) <= box.w - 10);
    const room = alone ? box.h : HEADER;
    flag(head, "plain", !near);
    if (near) return label?.remove();
    if (!label) head.append((label = head.querySelector("text").cloneNode()));
    label.setAttribute("class", "fx-label");
    label.textContent = said && size <= room ? said : "";
    label.style.fontSize = `${size}px`;
    label.setAttribute("text-anchor", alone ? "middle" : "start");
    label.setAttribute("x", alone ? box.w / 2 : Math.min(14, (box.w - measured(label.textContent, size)) / 2));
    label.setAttribute("y", (alone ? box.h / 2 : HEADER / 2) + size * 0.35);
  },

  // ---- overview

  drawOverview() {
    const few = this.nodes.size <= LARGE;
    const rect = ({ x, y, w, h: height }, css) => `<rect class="${css}" x="${x}" y="${y}" width="${w}" height="${height}" rx="4"/>`;
    const nodes = [...this.nodes.values()].map((n) => ({ ...n, x: n.x - n.w / 2, y: n.y - n.h / 2, hue: n.hue }));
    const parts = [...this.boxes.values()].map((b) => rect(b, `fx-area fl-h${b.hue}`));
    if (few) parts.push(...nodes.map((n) => rect(n, `fx-dot ${n.hue == null ? "" : `fl-h${n.hue}`}`)));
    this.overview.innerHTML = `<svg class="fl-svg" viewBox="0 0 ${this.size.w} ${this.size.h}" aria-hidden="true">${parts.join("")}<rect class="fx-frame"/></svg>`; // numbers alone
    this.frame = this.overview.querySelector(".fx-frame");
    this.drawFrame();
  },

  drawFrame() {
    if (!this.frame || !this.box) return;
    for (const [key, value] of Object.entries({ x: this.box.x, y: this.box.y, width: this.box.w, height: this.box.h })) this.frame.setAttribute(key, value);
  },

  /** Go to where the overview is clicked. */
  onOverview(event) {
    const map = this.overview.firstChild;
    if (!map || (event.type === "pointermove" && !event.buttons)) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    Object.assign(this.box, { x: at.x - this.box.w / 2, y: at.y - this.box.h / 2 });
    this.fitted = false;
    this.applyBox();
  },

  // ---- heat

  nextHeat() {
    this.heatBy.selectedIndex = (this.heatBy.selectedIndex + 1) % HEATS.length;
    this.drawHeat();
    this.tell(this.heatBy.value ? this.heatLegend.title : "Colours tell segments apart.");
  },

  /** Colour segments and their ops by a number of theirs, from none to the greatest. */
  drawHeat() {
    const found = this.get("scene").heat?.[this.heatBy.value];
    flag(this.root, "heat", found);
    this.heatLegend.hidden = !found;
    const { values = {}, least = "", most = "", about = "" } = found || {};
    this.heatLegend.title = about;
    this.heatLegend.replaceChildren(h("span", {}, least), h("i"), h("span", {}, most));
    const paint = (element, segment) => {
      const part = values[segment];
      if (part == null) element.style.removeProperty("--fx-heat");
      else element.style.setProperty("--fx-heat", `${Math.round(8 + 80 * part)}%`);
    };
    if (!this.picture) return;
    for (const [index, { element }] of this.picture.placed[0]) paint(element, index);
    for (const [id, { element }] of this.picture.placed[4]) paint(element, this.nodes.get(id).segment);
  },

  // ---- room

  toggleSide(shown = this.root.classList.contains("fx-noside")) {
    flag(this.root, "noside", !shown);
    this.sideButton.setAttribute("aria-pressed", String(shown));
  },

  toggleTables(shown = this.root.classList.contains("fx-nopanel")) {
    flag(this.root, "nopanel", !shown);
    this.tablesButton.setAttribute("aria-pressed", String(shown));
    if (shown) this.drawPanel();
  },

  async toggleFull() {
    try {
      if (document.fullscreenElement) await document.exitFullscreen();
      else await this.root.requestFullscreen();
    } catch {
      this.tell("The browser does not allow a full screen here.", "error");
    }
  },
});
