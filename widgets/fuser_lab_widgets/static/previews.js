// What an edit would give, before it is made: at the pointer, at the focused edge, in the inspector, and as colours.

const WAIT = 60; // milliseconds that the pointer rests on an edge before Python is asked about it
const SAVES = ["", "saves1", "saves2", "saves3"];

Object.assign(Explorer.prototype, {
  /** What Python has found out about the edit at an edge: legal, colour, name and words. */
  foretold(id) {
    const { plan, edges } = this.get("foreseen") || {};
    return plan === this.get("scene").plan ? edges?.[id] : undefined;
  },

  /** What a click on an edge does, and what that would give. */
  clickText(edge, mode) {
    const { tensor, kind, from, to, hint, id } = edge;
    if (mode > 1) return `look at ${tensor}`;
    if (mode) return `${hint ? "remove" : "insert"} segment_set at ${tensor}`;
    const said = this.foretold(id);
    if (said) return `${said[0] ? "" : "cannot "}${said[2]}: ${said[3]}`;
    return { inside: `cut at ${tensor}`, boundary: `glue S${from} and S${to}` }[kind] || `${tensor} is a fusion ${kind}`;
  },

  /** Show what a click would do at a place of the page; ask for what is not known yet. */
  foretell(edge, mode, place) {
    this.telling = { edge, mode, place };
    this.showHint(this.clickText(edge, mode), place);
    flag(this.hint, "cannot", !mode && this.foretold(edge.id)?.[0] === false);
    const key = `${this.get("scene").plan} ${edge.id}`;
    if (mode || this.foretold(edge.id) || this.askedAbout === key || !["inside", "boundary"].includes(edge.kind)) return;
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      if (this.telling?.edge !== edge) return;
      this.askedAbout = key;
      this.send("preview", { id: edge.id });
    }, WAIT);
  },

  /** The same for an edge that has the focus of the keyboard. */
  foretellFocused(item, edge, mode) {
    const { left, top, width, height } = item.getBoundingClientRect();
    this.foretell(edge, mode, { clientX: left + width / 2, clientY: top + height / 2 });
    item.setAttribute("aria-description", `Enter: ${this.clickText(edge, mode)}.`);
  },

  drawForeseen() {
    this.colourEdges();
    const { edge, mode, place } = this.telling || {};
    if (!edge || !this.hint.classList.contains("fx-on") || !this.edges.has(edge.id)) return;
    this.foretell(edge, mode, place);
    const item = this.item(edge.id);
    if (item?.hasAttribute("aria-description")) item.setAttribute("aria-description", `Enter: ${this.clickText(edge, mode)}.`);
  },

  /** Colour boundaries by the time that gluing there would save; grey those that cannot be glued. */
  colourEdges() {
    for (const item of this.coloured || []) item.classList.remove("fx-cannot", ...SAVES.slice(1).map((name) => `fx-${name}`));
    this.coloured = [];
    for (const [id, edge] of this.edges || []) {
      const said = edge.kind === "boundary" && this.editable && this.foretold(id);
      const item = said && this.item(id);
      if (!item || (said[0] && !said[1])) continue;
      item.classList.add(`fx-${said[0] ? SAVES[said[1]] : "cannot"}`);
      this.coloured.push(item);
    }
  },

  /** A button of the inspector; one whose edit is refused is greyed and says why. */
  actionButton(action, plan) {
    const { refused } = action;
    if (!refused) return h("button.fx-button", { title: action.title, onclick: () => this.send(...split({ ...action, plan })) }, action.label);
    return h("button.fx-button", { title: refused, "aria-disabled": "true", onclick: () => this.tell(refused, "error") }, action.label);
  },

  /** What the inspector says about the edit of the selected edge. */
  previewBlock(preview) {
    if (!preview?.legal) return "";
    return h("div.fx-preview", {}, h("p", {}, h("b", {}, `${preview.name}: `), `${preview.change} (${preview.device}). ${preview.rule}`), reasons(preview.because));
  },

  /** Why the last edit changed more than it names. */
  lastEdit() {
    const { step, because } = this.get("history").last || {};
    if (!because?.length) return "";
    return h("details.fx-preview", {}, h("summary", {}, `Why ${step} changed more than it names`), reasons(because));
  },
});

function reasons(list) {
  return list?.length ? h("ul", {}, ...list.map((text) => h("li", {}, text))) : "";
}
