// The inspector: Python's answer about the selection, and the plan as code.

import { button, choice, h, option, redraw } from "./dom.js";
import { fragment } from "./link.js";
import { MODES } from "./modes.js";
import { facts, verdicts } from "./pieces.js";

export class Inspector {
  /** Uses the explorer's channel, previews, tabs, decisions and status line. */
  constructor(explorer) {
    this.explorer = explorer;
    this.channel = explorer.channel;
    this.element = h("section.fx-inspector", { "aria-label": "Inspector", tabindex: 0 });
  }

  draw() {
    const { id, plan } = this.channel.get("answer");
    if (id === this.shown?.id && plan === this.shown?.plan) redraw(this.element, () => this.write());
    else this.write(); // a button of the same name would make a different edit
    this.shown = { id, plan };
  }

  /** Drop what is not about the picture on show, which has other buttons; about another plan, Python sends an answer. */
  refresh() {
    const { plan, detail } = this.channel.get("scene");
    const isAnswered = Boolean(this.channel.get("answer").id);
    if (plan !== this.plan ? !isAnswered : detail !== this.detail && isAnswered && !this.isCode) this.draw();
    Object.assign(this, { plan, detail });
  }

  write() {
    const { previews } = this.explorer;
    const answer = this.channel.get("answer");
    if (this.shown) requestAnimationFrame(() => (this.element.scrollTop = 0)); // at once, it would lay out the picture
    this.isCode = false;
    if (!answer.id) {
      const said = (text) => h("p.fx-empty", {}, text);
      const edits = !this.channel.editable ? [] : [said("A click on an edge does what the menu More or the key e chooses:"), h("ul.fx-empty", {}, ...MODES.map(([label, title]) => h("li", {}, h("b", {}, label), `. ${title}.`))),
        said("A green band along an edge means that gluing there saves time; a wider band saves more. A grey edge between segments cannot be glued.")];
      this.element.replaceChildren(h("h3", {}, "Inspector"), said("Select an edge, an op or a segment to see what it moves and why."), ...edits, previews.lastEdit());
      return;
    }
    this.element.replaceChildren(
      h("h3", {}, answer.title),
      answer.sentence && answer.sentence !== this.channel.get("status").text ? h(`p.fx-why${answer.refused ? ".fx-refused" : ""}`, {}, answer.sentence) : "",
      h("div.fx-actions", {}, ...this.buttons(answer)),
      previews.block(answer.preview),
      previews.lastEdit(),
      facts(answer.facts),
      answer.layout?.length ? h("details", {}, h("summary", {}, "Memory layout"), facts(answer.layout)) : "",
      answer.note ? h("p.fx-note", {}, answer.note) : "",
      ...(answer.moves?.length ? [h("h4", {}, "Moved to another segment"), verdicts(answer.moves)] : []),
      answer.verdicts?.length ? h("h4", {}, "Schedulers, in order") : "",
      verdicts(answer.verdicts, (code) => this.explorer.lift(code)),
    );
  }

  buttons({ actions = [], segment, names = [], plan }) {
    const { previews, tabs, decisions } = this.explorer;
    const made = actions.map((action) => previews.button(action, plan));
    const add = (label, act) => made.push(h("button.fx-button", { onclick: act }, label));
    if (segment != null) {
      add("Show source", () => tabs.showSource(segment));
      const isFolded = ["segments", "blocks"].includes(this.channel.get("scene").detail);
      if (isFolded && this.channel.editable) add("Show or hide its ops", () => this.channel.send("open", { segment, plan }));
    }
    if (names.length) add("Decisions about it", () => decisions.showMine());
    return made;
  }

  /** Show the plan as code, and copy it if requested. */
  drawCode() {
    const { text = "", form, forms = [], shown } = this.channel.get("code");
    this.isCode = true;
    const link = button("Copy link", "Copy the address of this report with the plan and the view", () => this.copyLink(text));
    this.element.replaceChildren(h("h3", {}, "This plan as code"),
      choice("Written for", ...forms.map((f) => option(f, f === form, () => this.channel.send("code", { form: f })))),
      shown ? "" : h("div.fx-actions", {}, link),
      h("pre.fx-code", { tabindex: 0 }, text));
    if (!shown) this.copy(text, "The browser denied access to the clipboard; the inspector shows the code.");
  }

  /** Copy the link to the view; a notebook has no address, so its link is only a fragment. */
  async copyLink(code) {
    const end = await fragment({ ...this.explorer.looked, code });
    const isPage = !this.channel.editable && window === window.top;
    if (isPage) history.replaceState(null, "", end);
    this.explorer.status.tell(isPage ? "The link is in the clipboard, and in the address of this page." : "The link is in the clipboard: append it to the address of a report of this fusion.");
    await this.copy(isPage ? location.href : end, isPage ? "The link is in the address of this page." : "The browser denied access to the clipboard.");
  }

  async copy(text, otherwise) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      this.explorer.status.tell(otherwise);
    }
  }
}
