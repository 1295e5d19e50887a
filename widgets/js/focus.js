// The focus stays in the explorer when what has it is drawn anew or hidden: the next key would reach the notebook.

import { enter } from "./dom.js";

export class Focus {
  constructor(root) {
    this.root = root;
    this.last = null; // what has the focus in the explorer, or had it when it vanished
    root.addEventListener("focusin", ({ target }) => (this.last = target));
    root.addEventListener("focusout", ({ target }) => setTimeout(() => this.leave(target)));
    this.changes = new MutationObserver(() => this.hold()); // not every browser tells that what is removed loses the focus
    this.changes.observe(root, { childList: true, subtree: true });
  }

  dispose() {
    this.changes.disconnect();
  }

  /** Take the focus if it was lost with what had it. */
  hold() {
    if (document.activeElement !== document.body || !this.last || isShown(this.last)) return;
    this.last = null;
    enter(this.root);
  }

  leave(item) {
    this.hold();
    if (this.last === item && document.activeElement !== item) this.last = null; // the user went elsewhere
  }
}

function isShown(item) {
  return item.isConnected && item.getClientRects().length > 0;
}
