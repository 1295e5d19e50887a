// Searching the graph for ops and tensors.

import { h } from "./dom.js";

export class Search {
  /** `select(id)` selects a search result. */
  constructor(graph, select) {
    this.graph = graph;
    this.select = select;
    this.found = [];
    this.input = h("input.fx-search", { type: "search", placeholder: "search  /", "aria-label": "Search the graph", oninput: () => this.go(), onkeydown: (e) => this.onKey(e) });
    this.matches = h("span.fx-note", { role: "status" });
    this.element = h("span.fx-find", { role: "search" }, this.input, this.matches);
  }

  onKey(event) {
    if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      this.input.value = "";
      this.go();
      this.graph.enter();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Search for the typed text, and show the first result. */
  go() {
    this.find();
    if (this.found.length) this.graph.reveal(this.found[0].id);
  }

  find() {
    const text = this.input.value.trim().toLowerCase();
    this.found = text ? this.graph.nodes.filter((n) => `${n.text} ${n.names.join(" ")}`.toLowerCase().includes(text)) : [];
    const exact = (n) => n.names.some((name) => name.toLowerCase() === text);
    this.found.sort((a, b) => exact(b) - exact(a));
    const found = new Set(this.found.map((n) => n.id));
    this.graph.markFound(found, text);
    this.matches.textContent = text ? `${found.size} found` : "";
  }

  /** Search again in another picture. */
  refresh() {
    if (this.input.value) this.find();
  }

  next(way) {
    const at = this.found.findIndex((n) => n.id === this.graph.explorer.selected);
    const next = this.found[(at + way + this.found.length) % this.found.length];
    if (next) this.select(next.id);
  }
}
