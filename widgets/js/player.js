// A kernel step by step: the elements that each statement accesses, as grids, with its source line.

import { button, centre, flag, h, isStill } from "./dom.js";

const PACE = 350; // milliseconds per step during playback
const LISTED = 64; // maximum number of threads in the selection list

export class Player {
  /** `data` is the page form of steps from Python. */
  constructor(data) {
    this.data = data;
    this.at = 0;
    this.followed = ""; // the number of a thread, or "" for all of them
    const last = data.steps.length - 1;
    this.play = button("Play", isStill() ? "Off, because the system prefers reduced motion: use the slider" : "Play or pause (space)", () => this.toggle());
    this.play.disabled = isStill();
    this.slider = h("input", { type: "range", min: 0, max: last, value: 0, "aria-label": "Step", oninput: () => this.goTo(Number(this.slider.value)) });
    this.threads = h("select", { "aria-label": "Threads", onchange: () => { this.followed = this.threads.value; this.draw(); } });
    this.count = h("span.fx-note");
    this.said = h("p.fx-step-text", { role: "status" });
    this.code = h("pre.fx-code", { tabindex: 0, "aria-label": "Source of the kernel" });
    this.code.innerHTML = data.html; // escaped in Python
    this.lines = new Map([...this.code.querySelectorAll("[data-line]")].map((line) => [Number(line.dataset.line), line]));
    this.grids = data.grids.map((grid) => this.grid(grid));
    const legend = h("p.fx-note.fx-marks", {}, h("i.fx-cell.fx-reads"), " read now ", h("i.fx-cell.fx-writes"), " written now ", h("i.fx-cell.fx-was"), " written before");
    this.shelf = h("div.fx-grids", { role: "group", "aria-label": "Elements of the tensors", tabindex: 0 }, legend, ...this.grids.map((one) => one.element),
      data.note ? h("p.fx-note", {}, data.note) : "");
    this.element = h("div.fx-kernel-player", { role: "group", "aria-label": "Steps of the kernel", onkeydown: (e) => this.onKey(e) },
      h("div.fx-filters", {}, button("First", "First step", () => this.goTo(0)), button("Back", "One step back", () => this.goTo(this.at - 1)), this.play,
        button("Next", "One step forward", () => this.goTo(this.at + 1)), this.slider, this.count, this.threads),
      this.said,
      h("div.fx-followed", {}, this.code, this.shelf));
    this.draw();
    requestAnimationFrame(() => this.draw()); // scroll to the line once the source is in the page
  }

  grid([name, role, shape, cells]) {
    const columns = shape.length ? shape[shape.length - 1] : 1;
    const made = cells.map((element) => h("i.fx-cell", { title: `${name}[${element}]` }));
    const places = new Map();
    cells.forEach((element, n) => places.set(element, [...(places.get(element) || []), made[n]]));
    const own = { shared: ", of a block", scratch: ", of a thread" }[role] || "";
    return { name, role, made, places, element: h("figure.fx-tensor", {}, h("figcaption", {}, h("b", {}, name), ` ${role}${own} [${shape.join(", ")}]`),
      h("div.fx-elements", { style: `grid-template-columns: repeat(${Math.max(columns, 1)}, 13px)`, "aria-hidden": "true" }, ...made)) };
  }

  get step() {
    return this.data.steps[this.at];
  }

  goTo(step) {
    this.at = Math.min(Math.max(step, 0), this.data.steps.length - 1);
    this.draw();
  }

  toggle() {
    if (this.timer) return this.pause();
    if (this.play.disabled) return;
    if (this.at === this.data.steps.length - 1) this.at = 0;
    this.timer = setInterval(() => {
      if (!this.element.isConnected || this.at === this.data.steps.length - 1) this.pause();
      else this.goTo(this.at + 1);
    }, PACE);
    this.said.setAttribute("aria-live", "off"); // a screen reader would read it at every step
    this.play.textContent = "Pause";
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.said.removeAttribute("aria-live");
    this.play.textContent = "Play";
  }

  onKey(event) {
    if (event.key !== " " || event.target.closest("button, select")) return;
    this.toggle();
    event.preventDefault();
    event.stopPropagation();
  }

  /** The name of a thread: "block 0, thread x 5". */
  threadName(number, axes) {
    const words = [];
    for (let n = axes.length - 1, rest = number; n >= 0; n--) {
      const [word, count] = axes[n];
      words.unshift(`${word} ${rest % count}`);
      rest = Math.floor(rest / count);
    }
    return words.join(", ") || "the only thread";
  }

  draw() {
    const { step } = this;
    const { lines, threads, axes, rounds } = step;
    this.slider.value = this.at;
    this.count.textContent = `${this.at + 1} of ${this.data.steps.length}`;
    for (const line of this.code.querySelectorAll(".fx-doing")) flag(line, "doing", false);
    lines.forEach((n) => flag(this.lines.get(n), "doing", true));
    this.drawThreads(step);
    // Only the source scrolls, so that the page does not jump.
    const line = this.lines.get(lines[lines.length - 1]);
    if (line) centre(this.code, line);
    const shown = this.followed === "" ? null : Number(this.followed);
    for (const grid of this.grids) this.drawGrid(grid, shown);
    this.revealGrid(step);
    const who = threads.length === 1 ? this.threadName(threads[0], axes) : `${threads.length} threads`;
    const text = `Line ${lines[lines.length - 1]}: ${step.text}${rounds ? `; ${rounds}` : ""}; ${who}.`;
    this.said.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
  }

  /** The active threads: a block may have many more than a small example needs. */
  drawThreads({ axes }) {
    const key = JSON.stringify(axes);
    if (key === this.listed) return;
    this.listed = key;
    const alike = this.data.steps.filter((step) => JSON.stringify(step.axes) === key);
    const busy = [...new Set(alike.flatMap((step) => step.threads))].sort((a, b) => a - b);
    const each = busy.length > 1 && busy.length <= LISTED ? busy : [];
    this.threads.hidden = !each.length;
    if (!each.includes(Number(this.followed))) this.followed = "";
    this.threads.replaceChildren(h("option", { value: "" }, "all threads"), ...each.map((n) => h("option", { value: n, selected: String(n) === this.followed }, this.threadName(n, axes))));
  }

  /** Scroll to the tensor that the step writes unless all of it is in view, or reads unless some of it is. */
  revealGrid({ touches }) {
    const [name, writes] = touches.find(([, writing]) => writing) || touches[0] || [];
    const { element } = this.grids.find((grid) => grid.name === name) || {};
    if (!element) return;
    const { offsetTop: top, offsetHeight: height } = element;
    const { scrollTop, clientHeight } = this.shelf;
    const needed = writes ? Math.min(height, clientHeight) : 20;
    if (Math.min(top + height, scrollTop + clientHeight) - Math.max(top, scrollTop) < needed) this.shelf.scrollTop = top;
  }

  drawGrid(grid, followed) {
    const { steps } = this.data;
    const own = grid.role === "scratch" ? followed ?? this.step.threads[0] : followed;
    for (const cell of grid.made) cell.className = "fx-cell";
    const mark = (touch, name) => {
      if (touch[0] !== grid.name) return;
      touch[2].forEach((thread, n) => {
        if (own != null && thread !== own) return;
        for (const cell of grid.places.get(touch[3][n]) || []) flag(cell, name, true);
      });
    };
    for (let n = 0; n < this.at; n++) for (const touch of steps[n].touches) if (touch[1]) mark(touch, "was");
    for (const touch of this.step.touches) mark(touch, touch[1] ? "writes" : "reads");
  }
}
