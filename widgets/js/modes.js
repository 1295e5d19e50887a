// What a click on an edge does.

import { flag, option, press } from "./dom.js";

export const MODES = [
  ["Cut", "A click on an edge cuts or glues there, and overrules the segmenter"],
  ["segment_set", "A click on an edge inserts or removes segment_set there, and the segmenter runs again"],
  ["Look", "A click selects and changes nothing; in the other modes, Shift+click does the same"],
];
const MARKS = 1;
const LOOK = 2;

export class Modes {
  /** Uses the explorer's channel and status line. */
  constructor(explorer) {
    this.explorer = explorer;
    this.channel = explorer.channel;
    this.buttons = MODES.map(([label, title], n) => option(label, false, () => this.choose(n), { title: `${title} (e)` }));
  }

  /** Marks a part of the page in the modes in which clicks do not edit, or insert marks. */
  mark(root) {
    this.root = root;
    this.set(0);
  }

  set(mode) {
    this.mode = mode;
    press(this.buttons, mode);
    flag(this.root, "looking", mode === LOOK);
    flag(this.root, "marking", mode === MARKS);
  }

  /** Set the mode, and say what it means. */
  choose(mode) {
    this.set(mode);
    this.explorer.status.tell(`${MODES[mode][1]}.`);
  }

  next() {
    this.choose((this.mode + 1) % MODES.length);
  }

  /** The current effect of a click on an edge, or on any other item (null). */
  at(edge, lookOnly = false) {
    return edge && this.channel.editable && !lookOnly ? this.mode : LOOK;
  }
}
