// The map of a model in the page: Python draws it, this module sends clicks and keys and keeps the focus.

import { mayEnter, redraw } from "./dom.js";
import { Shortcuts, isPlain } from "./shortcuts.js";

const PARTS = ["bar", "picture", "side", "below"];
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

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "fl-explorer fl-modelmap";
  const parts = {};
  for (const name of PARTS) {
    parts[name] = document.createElement("div");
    parts[name].className = `fm-${name}`;
    root.append(parts[name]);
  }
  parts.picture.tabIndex = -1;
  const status = document.createElement("p");
  status.className = "fm-status fx-note";
  status.setAttribute("role", "status");
  root.append(status);
  el.append(root);
  const shown = {};
  let zoom = 1;
  let wanted = "";

  const boxes = () => [...parts.picture.querySelectorAll("[data-box]")];
  const box = (id) => boxes().find((one) => one.dataset.box === id);
  const focusBox = (one) => {
    for (const other of boxes()) other.setAttribute("tabindex", other === one ? "0" : "-1");
    one.focus({ preventScroll: true });
    one.querySelector(".fl-name").scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  const scale = () => {
    const svg = parts.picture.querySelector("svg");
    if (!svg) return;
    const { width, height } = svg.viewBox.baseVal;
    const fit = Math.min(1, (parts.picture.clientWidth - 4) / width || 1);
    const scaled = Math.max(fit, 0.45) * zoom;
    svg.setAttribute("width", width * scaled);
    svg.setAttribute("height", height * scaled);
    if (svg.isConnected) drawWords(svg, scaled); // it has no styles before
  };
  const draw = () => {
    const view = model.get("view");
    const follows = mayEnter(parts.picture); // otherwise the user continued while Python was working
    for (const name of PARTS) {
      if (shown[name] === view[name]) continue;
      shown[name] = view[name];
      redraw(parts[name], () => (parts[name].innerHTML = view[name]));
    }
    status.textContent = view.status;
    for (const one of boxes()) one.classList.toggle("fm-selected", one.dataset.box === view.selected);
    scale();
    const first = box(view.selected) || boxes()[0];
    if (first) first.setAttribute("tabindex", "0");
    if (wanted && first && follows) focusBox(box(wanted) || first);
    wanted = "";
    root.dispatchEvent(new CustomEvent("fuser-lab-drawn", { bubbles: true }));
  };
  const send = (message) => model.send(message);
  const press = (one) => {
    wanted = one.dataset.box;
    send({ type: "box", id: wanted });
  };

  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-send]");
    if (button) return send(JSON.parse(button.dataset.send));
    const zoomed = event.target.closest("[data-zoom]");
    if (zoomed) {
      zoom = Number(zoomed.dataset.zoom) ? zoom * Number(zoomed.dataset.zoom) : 1;
      return scale();
    }
    const one = event.target.closest("[data-box]");
    if (one) press(one);
  });
  root.addEventListener("keydown", (event) => {
    if (!isPlain(event)) return;
    event.stopPropagation();
    const row = event.target.closest("tr[data-send]");
    const one = event.target.closest("[data-box]");
    if (row && (event.key === "Enter" || event.key === " ")) send(JSON.parse(row.dataset.send));
    else if (one && (event.key === "Enter" || event.key === " ")) press(one);
    else if (one && event.key in STEPS) {
      const every = boxes();
      focusBox(every[Math.min(Math.max(every.indexOf(one) + STEPS[event.key], 0), every.length - 1)]);
    } else if (one && event.key === "Escape") {
      wanted = one.dataset.box;
      send({ type: "out", id: wanted });
    } else return;
    event.preventDefault();
  });
  const shortcuts = new Shortcuts(root);
  const resized = new ResizeObserver(scale);
  resized.observe(parts.picture);
  model.on("change:view", draw);
  draw();
  return () => {
    shortcuts.dispose();
    resized.disconnect();
    model.off("change:view", draw);
  };
}

export default { render };
