// Searching the graph, and stepping through the decisions: the explorer's methods for both.

Object.assign(Explorer.prototype, {
  // ---- search

  find() {
    const text = this.search.value.trim().toLowerCase();
    this.found = text ? [...this.nodes.values()].filter((n) => `${n.text} ${n.names.join(" ")}`.toLowerCase().includes(text)) : [];
    this.canvas.classList.toggle("fx-searching", Boolean(text));
    const found = new Set(this.found.map((n) => n.id));
    for (const item of this.items) item.classList.toggle("fx-found", found.has(item.dataset.id));
    this.matches.textContent = text ? `${found.size} found` : "";
    if (this.found.length) this.reveal(this.found[0].id);
  },

  findNext(way) {
    const at = this.found.findIndex((n) => n.id === this.selected);
    const next = this.found[(at + way + this.found.length) % this.found.length];
    if (next) this.select(next.id);
  },

  // ---- the decisions, one by one

  stepBy(way) {
    this.stop();
    const { rows = [] } = this.model.get("decisions");
    this.stepTo(this.step == null ? (way > 0 ? 1 : rows.length) : this.step + way);
  },

  play() {
    if (this.playing) return this.stop();
    const { rows = [] } = this.model.get("decisions");
    if (!rows.length) return;
    this.stepTo(this.step == null || this.step >= rows.length ? 0 : this.step);
    this.playing = setInterval(() => (this.step < rows.length ? this.stepTo(this.step + 1) : this.stop()), Math.min(900, Math.max(60, 15000 / rows.length)));
    if (this.playButton) this.playButton.textContent = "❚❚";
  },

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    if (this.playButton) this.playButton.textContent = "▶";
  },

  /** Show the groups as they are after so many decisions, or (null) the plan. */
  stepTo(step) {
    const { rows = [] } = this.model.get("decisions");
    if (step == null) this.stop();
    else if (this.tab !== "decisions") this.openTab("decisions");
    this.step = step == null ? null : Math.min(Math.max(step, 0), rows.length);
    if (step != null && this.model.get("scene").detail === "segments") return this.setDetail("ops");
    this.showStep();
    if (this.tab === "decisions") this.drawPlayer();
  },

  showStep() {
    const { rows = [] } = this.model.get("decisions");
    const on = this.step != null;
    const homes = on ? groupsAfter(rows.slice(0, this.step)) : new Map();
    const row = on ? rows[this.step - 1] : null;
    const home = (id) => {
      const node = this.nodes.get(id);
      return node?.kind === "op" ? node.names.map((n) => homes.get(n)).find(Boolean) : null;
    };
    this.canvas.classList.toggle("fx-stepping", on);
    for (const item of this.items || []) {
      const edge = this.edges.get(item.dataset.id);
      const node = this.nodes.get(item.dataset.id);
      const joined = edge ? home(edge.source) && home(edge.source) === home(edge.target) : home(item.dataset.id)?.size > 1;
      const about = Boolean(row && node?.kind === "op" && node.names.some((n) => row.names.includes(n)));
      item.classList.toggle("fx-joined", Boolean(joined));
      item.classList.toggle("fx-about", about && row.ok);
      item.classList.toggle("fx-refusing", about && !row.ok);
    }
    if (row) this.tell(`Decision ${this.step} of ${rows.length}, ${row.ok ? "accepted" : "refused"}: ${row.of}. ${row.reason}`);
    else if (on) this.tell("No decision was taken yet: every op is a group of its own.");
  },

  drawPlayer() {
    const { rows = [] } = this.model.get("decisions");
    this.player.value = this.step ?? rows.length;
    this.stepCount.textContent = this.step == null ? `${rows.length} in all` : `${this.step} of ${rows.length}`;
    for (const old of this.decisionRows.querySelectorAll(".fx-now")) old.classList.remove("fx-now");
    const now = this.step && this.decisionRows.querySelector(`[data-step="${this.step}"]`);
    if (!now) return;
    now.classList.add("fx-now");
    this.panel.scrollTop = now.offsetTop - this.panel.offsetTop - this.panel.clientHeight / 2;
  },
});

/** The groups that decisions make, as a map from a name to the set of names that it is with. */
function groupsAfter(rows) {
  const homes = new Map();
  const join = (names) => {
    const group = new Set(names.flatMap((n) => [...(homes.get(n) || [n])]));
    for (const n of group) homes.set(n, group);
  };
  for (const { ok, kind, groups } of rows) {
    if (!ok) continue;
    if (kind === "merge" || kind === "replicate") join(groups.flat());
    else if (kind === "partition" || kind === "rewrite" || kind === "store") {
      if (kind === "partition") homes.clear();
      for (const group of groups) for (const n of group) homes.delete(n);
      if (kind !== "rewrite") groups.forEach(join);
    }
  }
  return homes;
}
