// The tab of a segment's generated kernel: its source, side by side with schedule and PTX, and its steps.

import { centre, choice, h, option, soon } from "../dom.js";
import { Linked } from "../linked.js";
import { Player } from "../player.js";

const VIEWS = [["source", "Source", "The generated source"], ["beside", "Side by side", "Source, schedule and machine code, linked line by line"],
  ["steps", "Steps", "What each statement reads and writes, on a small example"],
  ["profile", "Profile", "What bounds the kernel, and the bytes of each line that reads or writes memory"]];
const WAITING = { source: "Generating …", assembly: "Compiling …", beside: "Generating and compiling …", steps: "Stepping through the kernel …", profile: "Searching for a profile …" };

export class SourceTab {
  constructor(explorer) {
    this.explorer = explorer;
    [this.offer] = explorer.channel.get("targets"); // the target, and its source or machine code
    this.view = "source";
  }

  get target() {
    return this.offer.target;
  }

  /** The view in messages. */
  get wanted() {
    return this.view === "source" ? this.offer.view : this.view;
  }

  draw(panel) {
    const { channel, segment, tabs } = this.explorer;
    const { hash, segments } = channel.get("scene");
    const key = `${hash} ${segment} ${this.target} ${this.wanted}`;
    const latest = channel.get("source");
    // It stays if another view of the explorer asks for another kernel.
    if (`${latest.hash} ${latest.segment} ${latest.target} ${latest.view || "source"}` === key) [this.answer, this.answered] = [latest, key];
    const { answer: source } = this;
    const isShown = panel.contains(this.made);
    this.waits = this.answered !== key;
    if (!this.waits) this.asked = null;
    if (!this.waits && source === this.shown && isShown) return null;
    const kind = `${this.target} ${this.wanted}`; // content of another kind than the chosen one does not stay
    const keeps = this.waits && isShown && this.shownKind === kind;
    if (!keeps) this.leave();
    if (this.waits) this.ask(key);
    const pick = h("select", { "aria-label": "Segment", onchange: (e) => tabs.showSource(Number(e.target.value)) },
      ...(segments?.rows || []).map((_, n) => h("option", { value: n, selected: n === segment }, `segment S${n}`)));
    const offered = channel.get("targets").filter(({ view }) => view === "source" || (channel.editable && this.view === "source"));
    const targets = offered.map((offer) => option(offer.label, offer.target === this.target && offer.view === this.offer.view, () => { this.offer = offer; tabs.draw(); }));
    const views = VIEWS.filter(([name]) => name !== "profile" || channel.editable || channel.get("history").profiled).map(([name, words, title]) => option(words, this.view === name, () => this.choose(name), { title }));
    const hints = { source: "Click a line to see its op; select an op to see its lines.", beside: "Hover over a line, or use ↓ and ↑, to see the lines of the same statements.", profile: "Hover over a line, or use ↓ and ↑, to see what it accesses." };
    const head = h("div.fx-filters", {}, pick, choice("Target", ...targets), choice("View", ...views), h("span.fx-note", {}, keeps ? WAITING[this.wanted] : hints[this.view] || ""));
    if (keeps) {
      panel.firstChild.replaceWith(head);
      return null;
    }
    if (this.waits) return [head, h("p.fx-empty", {}, WAITING[this.wanted])];
    if (source.problem) return [head, h("p.fx-why.fx-refused", {}, source.problem)];
    if (source.waiting) return [head, h("p.fx-empty", {}, source.waiting)];
    if (source.unprofiled) return [head, this.unprofiled()];
    [this.shown, this.shownKind] = [source, kind];
    this.made = this[this.view](source);
    return [head, this.made];
  }

  choose(view) {
    this.view = view;
    if (view !== "source") this.offer = this.explorer.channel.get("targets").find(({ target, view: code }) => target === this.target && code === "source");
    this.explorer.tabs.draw();
  }

  source(source) {
    const pre = h("pre.fx-code", { tabindex: 0, "aria-label": `Source of segment ${source.segment}` });
    pre.innerHTML = source.html; // escaped in Python
    return pre;
  }

  beside(source) {
    return h("div", {}, new Linked(source.columns).element, source.note ? h("p.fx-note", {}, source.note) : "");
  }

  profile(source) {
    const made = this.beside(source);
    const list = made.querySelector(".fx-list");
    soon(() => { // the first line with bytes is far below the header
      const first = list.isConnected && list.querySelector(".fx-cost:not(:empty)");
      if (first) centre(list, first.parentNode);
    });
    return made;
  }

  unprofiled() {
    const { plan } = this.explorer.channel.get("scene");
    return h("div.fx-filters", {}, h("button.fx-button", { "data-send": JSON.stringify({ type: "profile", target: this.target, plan }) }, "Profile this plan"), h("span.fx-note", {}, this.offer.profile));
  }

  steps(source) {
    this.player = new Player(source.steps);
    return this.player.element;
  }

  leave() {
    this.player?.pause();
    this.player = this.made = null;
  }

  ask(key) {
    const { channel, segment } = this.explorer;
    if (this.asked === key) return;
    this.asked = key;
    channel.send("source", { segment, target: this.target, view: this.wanted });
  }
}
