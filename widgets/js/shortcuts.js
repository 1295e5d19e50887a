// Which keys the page around a view gets, such as JupyterLab: those with Ctrl, Cmd or Alt, and function keys. Plain keys
// belong to the view, because a notebook in command mode would edit its cells.

import { enter } from "./dom.js";

const SUPPRESSED = "data-lm-suppress-shortcuts"; // JupyterLab ignores keys inside an element with this attribute
const FIELDS = "input:not([type=range], [type=checkbox]), textarea";
const EDITS = /^([acvxyzVZ]|Arrow.*|Home|End|Backspace|Delete)$/; // keys that, with Ctrl, Cmd or Alt, edit the text of a field

/** Whether a key belongs to the view. */
export function isPlain(event) {
  if (event.target.matches(FIELDS) && EDITS.test(event.key)) return true;
  if (event.getModifierState("AltGraph")) return true; // it types a character
  return !event.ctrlKey && !event.metaKey && !event.altKey && !/^F\d+$/.test(event.key);
}

/** Give the keyboard back to what is around a view: a cell of a notebook, for example, or the page. */
export function leave(root) {
  const around = root.parentElement?.closest("[tabindex]");
  if (around) enter(around);
  else document.activeElement?.blur();
}

export class Shortcuts {
  constructor(root) {
    this.root = root;
    this.onKey = (event) => root.contains(event.target) && root.toggleAttribute(SUPPRESSED, isPlain(event));
    this.onMouse = (event) => event.shiftKey && root.contains(event.target) && event.stopImmediatePropagation(); // a notebook would select more cells
    addEventListener("keydown", this.onKey, true); // before any listener of the page around the view
    addEventListener("mousedown", this.onMouse, true);
  }

  dispose() {
    removeEventListener("keydown", this.onKey, true);
    removeEventListener("mousedown", this.onMouse, true);
  }
}
