// The overview: the whole picture, small, with a frame around the visible part.

import { h } from "./dom.js";

const MOST_DOTS = 400; // maximum number of nodes; beyond it, only segments are drawn

export class Overview {
  constructor(viewport) {
    this.viewport = viewport;
    this.element = h("div.fx-overview", { onpointerdown: (e) => this.onPointer(e), onpointermove: (e) => this.onPointer(e) });
  }

  draw(graph) {
    const { size } = this.viewport;
    const rect = ({ x, y, w, h: height }, css) => `<rect class="${css}" x="${x}" y="${y}" width="${w}" height="${height}" rx="4"/>`;
    const parts = [...graph.boxes.values()].map((b) => rect(b, `fx-area fl-h${b.hue}`));
    if (graph.drawn.count <= 2 * MOST_DOTS && graph.nodes.length <= MOST_DOTS) {
      for (const n of graph.nodes) parts.push(rect({ ...n, x: n.x - n.w / 2, y: n.y - n.h / 2 }, `fx-dot ${n.hue == null ? "" : `fl-h${n.hue}`}`));
    }
    this.element.innerHTML = `<svg class="fl-svg" viewBox="0 0 ${size.w} ${size.h}" aria-hidden="true">${parts.join("")}<rect class="fx-frame"/></svg>`; // only numbers
    this.frame = this.element.querySelector(".fx-frame");
    this.drawFrame();
  }

  /** Draw the frame around what is visible of the picture, the whole of which may be smaller than the canvas. */
  drawFrame() {
    const { box, size } = this.viewport;
    if (!this.frame || !box) return;
    const [x, y] = [Math.max(box.x, 0), Math.max(box.y, 0)];
    const [right, bottom] = [Math.min(box.x + box.w, size.w), Math.min(box.y + box.h, size.h)];
    for (const [key, value] of Object.entries({ x, y, width: Math.max(right - x, 0), height: Math.max(bottom - y, 0) })) this.frame.setAttribute(key, value);
  }

  /** Go to the position clicked in the overview. */
  onPointer(event) {
    const map = this.element.firstChild;
    if (!map || (event.type === "pointermove" && !event.buttons)) return;
    this.viewport.centre(new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse()));
  }
}
