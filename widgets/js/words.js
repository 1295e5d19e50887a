// The text in the picture that is readable at its scale.

import { flag } from "./dom.js";

const LEAST_TEXT = 11; // pixels on the screen; smaller text is not drawn
const NAME = 13; // pixels: the size of a node's name in the picture
const LEAST_LETTERS = 3; // minimum length of a truncated name
const LABEL = 11; // pixels: labels of edges and details
const GROWN = 1.25; // maximum enlargement of an edge label that does not touch the next one
const HEADER = 36; // pixels above the ops of a segment
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
  }

  /** Draw the readable text of a graph at a scale: all of it, only names, or only segments. */
  draw(graph, scale, again = false) {
    const rounded = Math.round(scale * 50) / 50 || scale;
    if (this.at === rounded && !again) return;
    this.at = rounded;
    const near = scale >= 0.999;
    const size = Math.max(NAME, LEAST_TEXT / scale);
    const { style } = graph.svg;
    style.setProperty("--fx-up", 1 / Math.min(scale, 1));
    style.setProperty("--fx-hit", `${Math.min(Math.max(8, 6 / scale), 12)}px`); // edges are at least 12 apart
    flag(this.canvas, "far", !near);
    flag(this.canvas, "unlabelled", LEAST_TEXT / scale > LABEL * GROWN);
    let readable = 0;
    const nodes = graph.picture.layer("nodes");
    for (const [id, one] of nodes) readable += drawName(one, graph.node(id), near, size);
    const alone = size > HEADER && readable <= nodes.size / 2; // no text on ops, so that segment names can be there
    flag(this.canvas, "tiny", alone);
    for (const [index, one] of graph.picture.layer("headers")) drawHeader(one, graph.boxes.get(index), { near, alone, scale });
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
  if (text.firstChild.data !== words) text.firstChild.data = words;
  text.style.fontSize = near ? "" : `${size}px`;
  text.setAttribute("y", near ? dataset.y : size * 0.35);
  one.words = { near, size, readable: Boolean(words) };
  return one.words.readable;
}

/** The longest prefix of a name that fits, or nothing if it is too short to identify an op. */
function shortened(words, fits) {
  for (let kept = words.length - 2; kept >= LEAST_LETTERS; kept--) if (fits(`${words.slice(0, kept)}…`)) return `${words.slice(0, kept)}…`;
  return "";
}

function drawHeader(one, box, { near, alone, scale }) {
  const head = one.element;
  const looks = near ? "near" : [alone, scale, box.id, box.w, box.h].join();
  flag(head, "plain", !near);
  if (one.words === looks) return;
  one.words = looks;
  let label = head.querySelector(".fx-label");
  const words = [...head.querySelectorAll("text")].slice(0, 2).map((one) => one.textContent);
  const size = Math.max(12, LEAST_TEXT / scale);
  const said = [words.join(" "), words[0]].find((text) => measured(text, size) <= box.w - 10);
  const room = alone ? box.h : HEADER;
  if (near) {
    label?.remove();
    return;
  }
  if (!label) head.append((label = head.querySelector("text").cloneNode()));
  label.setAttribute("class", "fx-label");
  label.textContent = said && size <= room ? said : "";
  label.style.fontSize = `${size}px`;
  label.setAttribute("text-anchor", alone ? "middle" : "start");
  label.setAttribute("x", alone ? box.w / 2 : Math.min(14, (box.w - measured(label.textContent, size)) / 2));
  label.setAttribute("y", (alone ? box.h / 2 : HEADER / 2) + size * 0.35);
}
