// Linked columns of lines: a line under the pointer or with the focus marks the lines of the same statements.

import { centre, flag, h } from "./dom.js";

export class Linked {
  /** Columns are pairs of a title and HTML, whose lines have role "option" and contain their links. */
  constructor(columns) {
    this.lists = columns.map(([title, html]) => {
      const list = h("div.fx-code.fx-list", { role: "listbox", tabindex: 0, "aria-label": title });
      list.innerHTML = html; // escaped in Python
      return list;
    });
    this.byLink = new Map();
    for (const line of this.lists.flatMap((list) => [...list.children])) {
      for (const link of this.links(line)) this.byLink.set(link, [...(this.byLink.get(link) || []), line]);
    }
    this.marked = [];
    this.element = h("div.fx-columns", { onpointermove: (e) => this.onPoint(e), onpointerleave: () => this.mark(this.chosen), onclick: (e) => this.onClick(e), onkeydown: (e) => this.onKey(e) },
      ...this.lists.map((list, n) => h("div.fx-column", {}, h("b", {}, columns[n][0]), list)));
  }

  /** The statements of a line, which are written as ranges of a phase: "0.3-7 1.2-2". */
  links(line) {
    return (line?.dataset.links?.split(" ") || []).flatMap((run) => {
      const [phase, first, last] = run.split(/[.-]/).map(Number);
      return Array.from({ length: last - first + 1 }, (_, n) => `${phase}.${first + n}`);
    });
  }

  onPoint(event) {
    const line = event.target.closest("[role=option]");
    if (line && line !== this.marked[0]) this.mark(line);
  }

  onClick(event) {
    const line = event.target.closest("[role=option]");
    if (line) this.choose(line);
  }

  onKey(event) {
    const list = event.target.closest("[role=listbox]");
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (!list || !(event.key in steps)) return;
    const lines = [...list.children];
    const at = lines.indexOf(this.chosen);
    const next = lines.slice(0); // the next linked line in the direction of the key
    const order = steps[event.key] > 0 ? next.slice(at + 1) : next.slice(0, at < 0 ? next.length : at).reverse();
    const line = order.find((one) => one.dataset.links);
    if (line) this.choose(line);
    event.preventDefault();
    event.stopPropagation();
  }

  /** Keep a line marked, and scroll its linked lines into view. */
  choose(line) {
    this.chosen?.setAttribute("aria-selected", "false");
    this.chosen = line;
    line.setAttribute("aria-selected", "true");
    for (const list of this.lists) list.removeAttribute("aria-activedescendant");
    line.parentNode.setAttribute("aria-activedescendant", line.id);
    this.mark(line);
    for (const list of this.lists) {
      const first = list.contains(line) ? line : list.querySelector(".fx-lit");
      if (first) centre(list, first);
    }
  }

  mark(line) {
    for (const old of this.marked) flag(old, "lit", false);
    this.marked = line ? [line, ...this.links(line).flatMap((link) => this.byLink.get(link))] : [];
    for (const one of this.marked) flag(one, "lit", true);
  }
}
