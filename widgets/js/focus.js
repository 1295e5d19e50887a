// Keeps the focus in the explorer when the focused element is redrawn or hidden; otherwise the next key would reach the
// notebook.

import { enter } from "./dom.js";

export class Focus {
  constructor(root) {
    this.root = root;
    this.last = null; // the element that has the focus, or had it when it was removed
    root.addEventListener("focusin", ({ target }) => (this.last = target));
    root.addEventListener("focusout", ({ target }) => setTimeout(() => this.leave(target)));
    this.changes = new MutationObserver(() => this.hold()); // not every browser reports that a removed element loses the focus
    this.changes.observe(root, { childList: true, subtree: true });
  }

  dispose() {
    this.changes.disconnect();
  }

  /** Take the focus if it was lost with its element. */
  hold() {
    if (document.activeElement !== document.body || !this.last || isShown(this.last)) return;
    this.last = null;
    enter(this.root);
  }

  leave(item) {
    this.hold();
    if (this.last === item && document.activeElement !== item) this.last = null; // the user moved it elsewhere
  }
}

function isShown(item) {
  return item.isConnected && item.checkVisibility();
}
