// The panels to the right of and below the canvas, what is seen of the picture, and full screen.

import { button, flag, h, option } from "./dom.js";

/** A panel that a button shows and hides. */
class Panel {
  constructor(root, hidden, [label, title], shown = () => {}) {
    this.root = root;
    this.hidden = hidden; // the flag of the root while the panel is hidden
    this.onShown = shown;
    this.button = option(label, false, () => this.toggle(), { title });
  }

  get shown() {
    return !this.root.classList.contains(`fx-${this.hidden}`);
  }

  toggle(shown = !this.shown) {
    flag(this.root, this.hidden, !shown);
    this.button.setAttribute("aria-pressed", String(shown));
    if (shown) this.onShown();
  }
}

export class Panels {
  /** Uses the explorer's root element, graph, tabs and status line. */
  constructor(explorer) {
    this.explorer = explorer;
    const { root, graph } = explorer;
    this.side = new Panel(root, "noside", ["Inspector", "Show or hide the inspector and the overview (i)"]);
    this.tables = new Panel(root, "nopanel", ["Tables", "Show or hide the tables below (t)"], () => explorer.tabs.draw());
    this.side.toggle(true);
    this.tables.toggle(false);
    this.zoom = zoomTools(graph.viewport, () => this.toggleFull());
  }

  get buttons() {
    return [this.side, this.tables].map((one) => one.button);
  }

  toggleFull() {
    return toggleFull(this.explorer.root, (text) => this.explorer.status.tell(text, "error"));
  }
}

/** The buttons that decide what is seen of a picture. */
export function zoomTools(viewport, full) {
  return h("span.fx-zoom", { role: "group", "aria-label": "Zoom" },
    button("+", "Zoom in (+)", () => viewport.zoom(1.25)), button("−", "Zoom out (−)", () => viewport.zoom(0.8)),
    button("Fit", "Fit (0)", () => viewport.fit()), button("Full", "Full screen (f)", full));
}

/** Show a view on the full screen or in the page again, and tell why that is not possible. */
export async function toggleFull(root, tell) {
  try {
    if (document.fullscreenElement) await document.exitFullscreen();
    else await root.requestFullscreen();
  } catch {
    tell("The browser does not allow full screen here.");
  }
}
