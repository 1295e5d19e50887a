// Previews of edits: at the pointer, at the focused edge, in the inspector, and as colours.

import { flag, h, split } from "./dom.js";
import { reasons } from "./pieces.js";

const WAIT = 60; // milliseconds that the pointer rests on an edge before its preview is requested
const SAVES = ["", "fx-saves1", "fx-saves2", "fx-saves3"];
const CANNOT = "fx-cannot";

export class Previews {
  /** Uses the explorer's channel, graph and status line. */
  constructor(explorer) {
    this.explorer = explorer;
    this.channel = explorer.channel;
    this.hint = h("div.fx-hint", { "aria-hidden": "true" });
    this.coloured = [];
  }

  dispose() {
    clearTimeout(this.resting);
  }

  /** Python's preview of the edit at an edge: legality, colour, name and text. */
  known(id) {
    const { plan, edges } = this.channel.get("foreseen") || {};
    return plan === this.channel.get("scene").plan ? edges?.[id] : undefined;
  }

  /** The effect of a click on an edge, and its preview. */
  clickText(edge, mode) {
    const { tensor, kind, from, to, hint, id } = edge;
    if (mode > 1) return `select ${tensor}`;
    if (mode) return `${hint ? "remove" : "insert"} segment_set at ${tensor}`;
    const said = this.known(id);
    if (said) return `${said[0] ? "" : "cannot "}${said[2]}: ${said[3]}`;
    return { inside: `cut at ${tensor}`, boundary: `glue S${from} and S${to}` }[kind] || `${tensor} is a fusion ${kind}`;
  }

  // ---- at the pointer

  /** Show the effect of a click at a position of the page; request an unknown preview. */
  show(edge, mode, place) {
    this.shown = { edge, mode, place };
    this.showHint(this.clickText(edge, mode), place, edge);
    flag(this.hint, "cannot", !mode && this.known(edge.id)?.[0] === false);
    const key = `${this.channel.get("scene").plan} ${edge.id}`;
    if (mode || this.known(edge.id) || this.asked === key || !["inside", "boundary"].includes(edge.kind)) return;
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      if (this.shown?.edge !== edge) return;
      this.asked = key;
      this.channel.send("preview", { id: edge.id });
    }, WAIT);
  }

  /** The same for an edge with keyboard focus. */
  showFocused(item, edge, mode) {
    const { left, top, width, height } = item.getBoundingClientRect();
    this.show(edge, mode, { clientX: left + width / 2, clientY: top + height / 2 });
    this.described = item;
    item.setAttribute("aria-description", `Enter: ${this.clickText(edge, mode)}.`);
  }

  hide() {
    flag(this.hint, "on", false);
    this.described?.removeAttribute("aria-description"); // which another plan would make untrue
    this.shown = this.described = null;
  }

  /** Show a text at the height of a position, beside the boxes at the ends of an edge that are there. */
  showHint(text, { clientX, clientY }, edge) {
    const { hint, explorer: { graph } } = this;
    flag(hint, "on", true);
    hint.textContent = text;
    const frame = hint.parentNode.getBoundingClientRect();
    const [x, width, height] = [clientX - frame.left, hint.offsetWidth, hint.offsetHeight];
    const top = Math.min(Math.max(clientY - frame.top - height / 2, 0), frame.height - height);
    let [left, right] = [x - 14, x + 14];
    for (const id of [edge.source, edge.target]) {
      const box = graph.item(id)?.getBoundingClientRect();
      if (!box || box.bottom < top + frame.top || box.top > top + frame.top + height) continue;
      [left, right] = [Math.min(left, box.left - frame.left - 6), Math.max(right, box.right - frame.left + 6)];
    }
    hint.style.left = `${right + width < frame.width || left < width ? Math.min(right, frame.width - width - 6) : left - width}px`;
    hint.style.top = `${top}px`;
  }

  // ---- previews from Python

  draw() {
    const { graph } = this.explorer;
    this.colourEdges();
    const { edge, mode, place } = this.shown || {};
    if (!edge || !graph.edge(edge.id)) return;
    this.show(edge, mode, place);
    const item = graph.item(edge.id);
    if (item?.hasAttribute("aria-description")) item.setAttribute("aria-description", `Enter: ${this.clickText(edge, mode)}.`);
  }

  /** Colour boundaries by the time that gluing there would save; grey out those that cannot be glued. */
  colourEdges() {
    const { graph } = this.explorer;
    for (const item of this.coloured) item.classList.remove(CANNOT, ...SAVES.slice(1));
    this.coloured = [];
    if (!this.channel.editable) return;
    for (const item of graph.items) {
      const { id } = item.dataset;
      const said = graph.edge(id)?.kind === "boundary" && this.known(id);
      if (!said || (said[0] && !said[1])) continue;
      item.classList.add(said[0] ? SAVES[said[1]] : CANNOT);
      this.coloured.push(item);
    }
  }

  // ---- in the inspector

  /** A button for an edit of a plan; a refused edit is greyed out with the reason. */
  button(action, plan) {
    const { refused, title, label } = action;
    if (!refused) return h("button.fx-button", { title, onclick: () => this.channel.send(...split({ ...action, plan })) }, label);
    return h("button.fx-button", { title: refused, "aria-disabled": "true", onclick: () => this.explorer.status.tell(refused, "error") }, label);
  }

  /** The preview of the edit at the selected edge. */
  block(preview) {
    if (!preview?.legal) return "";
    return h("div.fx-preview", {}, h("p", {}, h("b", {}, `${preview.name}: `), `${preview.change} (${preview.device}). ${preview.rule}`), reasons(preview.because));
  }

  /** Why the last edit changed more than it names. */
  lastEdit() {
    const { step, because } = this.channel.get("history").last || {};
    if (!because?.length) return "";
    return h("details.fx-preview", { open: true }, h("summary", {}, `Why ${step} also changed other ops`), reasons(because));
  }
}
