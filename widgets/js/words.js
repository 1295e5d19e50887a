// The text in the picture that is readable at its scale.

import { flag } from "./dom.js";

const LEAST_TEXT = 11; // pixels on the screen; smaller text is not drawn
const NAME = 13; // pixels: the size of a node's name in the picture
const LEAST_LETTERS = 3; // minimum length of a truncated name
const LABEL = 11; // pixels: labels of edges and details
const GROWN = 1.25; // maximum enlargement of an edge label that does not touch the next one
const LINE = 1.25; // height of a line, in sizes of its text
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map(); // width of text at 100 px, independent of the scale

/** The width of bold text at a size. */
function measured(words, size) {
  if (!widths.has(words)) {
    pen.font = `600 100px Inter, "Helvetica Neue", Arial, "Liberation Sans", sans-serif`;
    widths.set(words, pen.measureText(words).width);
  }
  return (widths.get(words) * size) / 100;
}

export class Words {
  constructor(canvas) {
    this.canvas = canvas;
    this.times = {};
  }

  /** Use these times of segments in what is said of them. */
  tell(times = {}) {
    this.times = times;
    if (this.redraw && this.summary) this.redraw();
  }

  /** Draw the readable text of a graph at a scale: all of it, only names, or (`summary`) what segments are. */
  draw(graph, summary, scale, again = false) {
    const rounded = Math.round(scale * 50) / 50 || scale;
    if (this.at === rounded && this.summary === summary && !again) return;
    this.redraw = () => this.draw(graph, summary, scale, true);
    Object.assign(this, { at: rounded, summary });
    const near = scale >= 0.999;
    const size = Math.max(NAME, LEAST_TEXT / scale);
    const { style } = graph.svg;
    style.setProperty("--fx-up", 1 / Math.min(scale, 1));
    style.setProperty("--fx-hit", `${Math.min(Math.max(8, 6 / scale), 12)}px`); // edges are at least 12 apart
    flag(this.canvas, "far", !near);
    flag(this.canvas, "unlabelled", LEAST_TEXT / scale > LABEL * GROWN);
    flag(this.canvas, "tiny", summary);
    graph.picture.cover(summary);
    for (const [id, one] of graph.picture.layer("nodes")) {
      flag(one.element, "dot", !drawName(one, graph.node(id), near, size));
      flag(one.element, "named", one.words.named); // a new picture sets the classes of all elements
    }
    for (const [index, one] of graph.picture.layer("headers")) {
      const box = graph.boxes.get(index);
      if (summary) drawSummary(one, box, size, this.times[index]);
      else drawHeader(one, box, { near, scale });
    }
  }
}

/** Draw the name of a node and return whether it is readable. */
function drawName(one, node, near, size) {
  if (one.words?.near === near && one.words.size === size) return one.words.readable;
  const text = one.element.querySelector(".fl-name");
  const { dataset } = text;
  dataset.y ??= text.getAttribute("y");
  dataset.words ??= text.firstChild.data;
  const forms = [dataset.words, node.kind === "segment" ? dataset.words.split(" ")[0] : dataset.words];
  const fits = (words) => measured(words, size) <= node.w - 8;
  const fitting = size <= node.h && (forms.find(fits) || shortened(forms[1], fits));
  const words = near ? dataset.words : fitting || "";
  const called = node.kind === "op" && text.querySelector("tspan")?.textContent; // the user's name, or else that of the tensor
  const named = Boolean(called) && words === dataset.words && fits(`${words}${called}`);
  if (text.firstChild.data !== words) text.firstChild.data = words;
  text.style.fontSize = near ? "" : `${size}px`;
  text.setAttribute("y", near ? dataset.y : size * 0.35);
  one.words = { near, size, named, readable: Boolean(words) };
  return one.words.readable;
}

/** The longest prefix of a name that fits, or nothing if it is too short to identify an op. */
function shortened(words, fits) {
  for (let kept = words.length - 2; kept >= LEAST_LETTERS; kept--) if (fits(`${words.slice(0, kept)}…`)) return `${words.slice(0, kept)}…`;
  return "";
}

/** The label of a header at another scale than its own, which hides the rest of it; without lines, none. */
function label(one, lines, { size, x, y, anchor }) {
  const head = one.element;
  const old = head.querySelector(".fx-label");
  if (!lines) {
    old?.remove();
    return;
  }
  const text = old || head.appendChild(head.querySelector("text").cloneNode());
  text.setAttribute("class", "fx-label");
  text.style.fontSize = `${size}px`;
  text.setAttribute("text-anchor", anchor);
  text.replaceChildren(...lines.map((line, n) => {
    const part = document.createElementNS(text.namespaceURI, "tspan");
    part.textContent = line;
    part.setAttribute("x", x);
    part.setAttribute("y", y + n * LINE * size);
    return part;
  }));
}

/** What a header says that fits: number and scheduler, on two lines if necessary, and numbers of ops and bytes. */
function said(one, fits) {
  const [number, scheduler, ...numbers] = [...one.element.querySelectorAll("text:not(.fx-label)")].map((text) => text.textContent);
  const whole = `${number} ${scheduler}`;
  return [fits(whole) ? [whole] : [number, scheduler].filter((line, n) => !n || fits(line)), numbers.flatMap((line) => line.split(" · "))];
}

function drawHeader(one, box, { near, scale }) {
  const looks = near ? "near" : ["header", scale, box.id, box.w].join();
  flag(one.element, "plain", !near); // a new picture sets the classes of all elements
  if (one.words === looks) return;
  one.words = looks;
  const size = Math.max(12, LEAST_TEXT / scale);
  const [x, y, width] = ["x", "y", "width"].map((name) => Number(one.element.querySelector(".fl-band").getAttribute(name)));
  label(one, near ? null : said(one, (text) => measured(text, size) <= width)[0], { size, x, y: y + size, anchor: "start" });
}

/** Say in the box of a segment what it is: as many lines as it has room for. */
function drawSummary(one, box, size, time) {
  const looks = ["summary", size, box.id, box.w, box.h, time].join();
  flag(one.element, "plain", true);
  if (one.words === looks) return;
  one.words = looks;
  const fits = (text) => measured(text, size) <= box.w - 0.6 * size;
  const [names, numbers] = said(one, fits);
  const lines = [...names, ...[...numbers, time].filter((line) => line && fits(line))].slice(0, Math.max(Math.floor(box.h / (LINE * size)), 1));
  label(one, lines, { size, x: box.w / 2, y: box.h / 2 - ((lines.length - 1) / 2) * LINE * size + 0.35 * size, anchor: "middle" });
}
