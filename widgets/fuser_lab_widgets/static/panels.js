// The inspector, and the tabs below the graph: the explorer's methods for both.

function facts(list) {
  return h("dl.fx-facts-list", {}, ...list.flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

Object.assign(Explorer.prototype, {
  drawInspector() {
    this.inspector.scrollTop = 0;
    const answer = this.get("answer");
    this.markLog();
    if (answer.adopt && this.selected !== answer.id) this.setSelected(answer.id); // set in Python
    if (!answer.id) {
      this.inspector.replaceChildren(h("h3", {}, "Inspector"), h("p.fx-empty", {}, "Select an edge, an op or a segment to see what it moves and why it is there."),
        !this.editable ? "" : h("ul.fx-empty", {}, ...MODES.map(([label, title]) => h("li", {}, h("b", {}, label), `. ${title}.`))), this.lastEdit());
      return;
    }
    const buttons = (answer.actions || []).map((action) => this.actionButton(action, answer.plan));
    if (answer.segment != null) {
      buttons.push(h("button.fx-button", { onclick: () => this.showSource(answer.segment) }, "Show source"));
      if (this.get("scene").detail !== "ops" && this.editable) {
        buttons.push(h("button.fx-button", { onclick: () => this.send("open", { segment: answer.segment, plan: answer.plan }) }, "Show or hide its ops"));
      }
    }
    if (answer.names?.length) {
      buttons.push(h("button.fx-button", { onclick: () => this.showMine() }, "Decisions about it"));
    }
    this.inspector.replaceChildren(
      h("h3", {}, answer.title),
      answer.sentence ? h(`p.fx-why${answer.refused ? ".fx-refused" : ""}`, {}, answer.sentence) : "",
      h("div.fx-actions", {}, ...buttons),
      this.previewBlock(answer.preview),
      this.lastEdit(),
      facts(answer.facts),
      answer.layout?.length ? h("details", {}, h("summary", {}, "How it lies in memory"), facts(answer.layout)) : "",
      answer.note ? h("p.fx-note", {}, answer.note) : "",
      answer.moves?.length ? h("h4", {}, "Moved to another segment") : "",
      answer.moves?.length ? verdicts(answer.moves) : "",
      answer.verdicts?.length ? h("h4", {}, "Schedulers, as asked") : "",
      verdicts(answer.verdicts),
    );
  },

  // ---- the tabs below

  /** Open a tab; the open one is closed. */
  openTab(name, again = false) {
    const shut = this.root.classList.contains("fx-nopanel");
    if (again && name === this.tab && !shut) return this.toggleTables(false);
    this.chooseTab(name);
    if (shut) this.toggleTables(true);
  },

  chooseTab(name) {
    this.tab = name;
    for (const tab of this.tabs.children) {
      const open = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(open));
      tab.tabIndex = open ? 0 : -1;
      if (open) this.panel.setAttribute("aria-label", tab.textContent);
    }
    this.drawPanel();
  },

  drawPanel() {
    if (this.root?.classList.contains("fx-nopanel")) return;
    const draw = { segments: this.segmentPanel, source: this.sourcePanel, timings: this.timingPanel };
    const [, , written] = this.views.find(([name]) => name === this.tab);
    if (written) this.writtenPanel(this.tab);
    else {
      this.written = this.askedPanel = null;
      this.panel.replaceChildren(...draw[this.tab].call(this));
    }
    this.markPanel();
  },

  segmentPanel() {
    const data = this.get("scene").segments;
    if (!data) return [];
    return [table(data, (n) => ({ tabindex: 0, "data-segment": n, "data-id": `segment:${n}`, class: this.selected && n === this.segment ? "fx-row fx-at-hand" : "fx-row" }))];
  },

  writtenPanel(name) {
    const { hash } = this.get("scene");
    const said = this.get("panels")[name];
    if (said?.hash === hash) {
      if (this.written !== said) this.panel.innerHTML = said.html; // made in Python, which escapes every name
      this.written = said;
      this.askedPanel = null;
      return;
    }
    this.written = null;
    this.panel.replaceChildren(h("p.fx-empty", {}, "…"));
    if (this.askedPanel === `${name} ${hash}`) return;
    this.askedPanel = `${name} ${hash}`;
    this.send("panel", { name });
  },

  showSource(segment) {
    this.segment = segment;
    this.openTab("source");
  },

  sourcePanel() {
    const count = this.get("scene").segments?.rows.length || 0;
    const source = this.get("source");
    const hash = this.get("scene").hash;
    const current = source.hash === hash && source.segment === this.segment && source.target === this.target;
    if (!current) this.askSource(hash);
    const pick = h("select", { "aria-label": "Segment", onchange: (e) => { this.segment = Number(e.target.value); this.drawPanel(); } },
      ...Array.from({ length: count }, (_, n) => h("option", { value: n, selected: n === this.segment }, `segment S${n}`)));
    const target = (name, words) => option(words, this.target === name, () => { this.target = name; this.drawPanel(); });
    const head = h("div.fx-filters", {}, pick, choice("Target", target("cpu", "CPU"), target("cuda", "CUDA"), this.editable ? target("ptx", "PTX") : ""),
      h("span.fx-note", {}, "Click a line to see its op; select an op to see its lines."));
    if (!current) return [head, h("p.fx-empty", {}, this.target === "ptx" ? "Compiling …" : "Generating …")];
    if (source.problem) return [head, h("p.fx-why.fx-refused", {}, source.problem)];
    const pre = h("pre.fx-code", { tabindex: 0, "aria-label": `Source of segment ${source.segment}` });
    pre.innerHTML = source.html; // escaped in Python
    return [head, pre];
  },

  askSource(hash) {
    const key = `${hash} ${this.segment} ${this.target}`;
    if (this.asked === key) return;
    this.asked = key;
    this.send("source", { segment: this.segment, target: this.target });
  },

  drawTimings() {
    const { running, done, total } = this.get("times");
    const part = running ? Math.max(total ? done / total : 0, 0.03) : 0;
    this.bar.style.width = `${100 * part}%`;
    flag(this.progress, "on", running);
    this.progress.setAttribute("aria-valuenow", Math.round(100 * part));
    this.run.textContent = running ? "Cancel" : "Run";
    flag(this.run, "primary", !running);
    this.drawFacts();
    if (this.tab === "timings" || (this.tab === "roofline" && !running)) this.drawPanel();
  },

  timingPanel() {
    const { table: data, note, running, done, total } = this.get("times");
    const state = running ? h("p.fx-note", {}, total ? `Timing … ${done} of ${total}` : "Timing … the first run compiles the kernels") : null;
    if (!data) return [state || h("p.fx-empty", {}, note || "No timings yet. Run times the baseline plan and this one on this machine.")];
    const { plan } = this.get("history");
    const attrs = (n) => {
      const [name, segment] = data.rows[n];
      return name === plan && segment.startsWith("S") ? { tabindex: 0, "data-id": `segment:${segment.slice(1)}`, class: "fx-row" } : {};
    };
    return [table(data, attrs), ...(state ? [state] : []), h("p.fx-note", {}, note || "")];
  },
});
