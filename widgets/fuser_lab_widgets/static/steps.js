// Searching the graph, the log of decisions, and stepping through it: the explorer's methods for all three.

Object.assign(Explorer.prototype, {
  // ---- search

  find() {
    const text = this.search.value.trim().toLowerCase();
    this.found = text ? [...this.nodes.values()].filter((n) => `${n.text} ${n.names.join(" ")}`.toLowerCase().includes(text)) : [];
    flag(this.canvas, "searching", text);
    const exact = (n) => n.names.some((name) => name.toLowerCase() === text);
    this.found.sort((a, b) => exact(b) - exact(a));
    const found = new Set(this.found.map((n) => n.id));
    for (const item of this.items) flag(item, "found", found.has(item.dataset.id));
    this.matches.textContent = text ? `${found.size} found` : "";
    if (this.found.length) this.reveal(this.found[0].id);
  },

  findNext(way) {
    const at = this.found.findIndex((n) => n.id === this.selected);
    const next = this.found[(at + way + this.found.length) % this.found.length];
    if (next) this.select(next.id);
  },

  // ---- the log

  /** The decisions that led to the plan. */
  taken() {
    return this.get("decisions").rows || [];
  },

  buildLog() {
    const button = (label, title, act) => h("button.fx-button", { title, "aria-label": title, onclick: act }, label);
    const outcomes = [["all", "all"], ["yes", "accepted"], ["no", "refused"]];
    this.filter = { text: "", outcome: "all", mine: false };
    const set = (name, value) => {
      this.filter[name] = value;
      this.drawRows();
    };
    this.logCount = h("span.fx-note");
    this.player = h("input.fx-slider", { type: "range", min: 0, "aria-label": "Decisions taken", oninput: (e) => this.stepTo(Number(e.target.value)) });
    this.playButton = button("▶", "Play or pause (p)", () => this.play());
    this.stepCount = h("span.fx-note");
    this.leave = button("Plan", "Leave the steps, show the plan (Esc)", () => this.stepTo(null));
    this.playing = null;
    this.playerBar = h("div.fx-player", { role: "group", "aria-label": "Step through the decisions" }, button("◂", "One decision back (k)", () => this.stepBy(-1)), this.playButton,
      button("▸", "One decision on (j)", () => this.stepBy(1)), this.player, this.stepCount, this.leave);
    this.mine = h("input", { type: "checkbox", title: "Only what is about the selection", onchange: (e) => set("mine", e.target.checked) });
    this.rows = h("ol.fx-decisions", { onclick: (e) => this.onLog(e) });
    this.log = h("section.fx-log", { "aria-label": "Decisions" },
      h("div.fx-log-head", {}, h("h3", {}, "Decisions"), h("label", {}, this.mine, " selection only"), this.logCount),
      this.playerBar,
      this.logFilters = h("div.fx-filters", {},
        h("input.fx-search", { type: "search", placeholder: "T3, reduction, cycle …", "aria-label": "Filter decisions", oninput: (e) => set("text", e.target.value.toLowerCase()) }),
        h("select", { "aria-label": "Outcome", onchange: (e) => set("outcome", e.target.value) }, ...outcomes.map(([v, t]) => h("option", { value: v }, t)))),
      this.rows);
    return this.log;
  },

  toggleLog(shown = !this.logShown) {
    this.logShown = shown;
    flag(this.root, "nolog", !shown);
    this.logButton.setAttribute("aria-pressed", String(shown));
  },

  /** Show the decisions of another plan, unless they are the same. */
  drawLog() {
    const rows = this.taken();
    const key = rows.map((row) => `${row.seq} ${row.ok} ${row.of} ${row.reason}`).join("\n");
    if (key === this.drawnLog) return; // as after most edits
    this.drawnLog = key;
    this.player.max = rows.length;
    this.playerBar.hidden = this.logFilters.hidden = this.mine.parentNode.hidden = !rows.length;
    this.drawRows();
  },

  drawRows() {
    const all = this.taken();
    const { names = [] } = this.get("answer");
    const { text, outcome, mine } = this.filter;
    const found = all.filter((row) =>
      (outcome === "all" || row.ok === (outcome === "yes")) && (!mine || this.isMine(row)) &&
      (!text || `${row.of} ${row.phase} ${row.kind} ${row.reason} ${row.verdicts.map((v) => v.scheduler + v.text).join(" ")}`.toLowerCase().includes(text)));
    this.logCount.textContent = all.length ? `${found.length} of ${all.length}` : "";
    const empty = !all.length ? "No decision led to this plan." : mine && !names.length ? "Select an edge, an op or a segment first." : "No decision matches.";
    // A window around the step at hand: a page of thousands of rows would be slow.
    const from = Math.max(0, Math.min((this.step || 1) - SHOWN / 2, found.length - SHOWN));
    const shown = found.slice(from, from + SHOWN).map((row) => decision(row, all.indexOf(row) + 1));
    this.rows.replaceChildren(...(shown.length ? shown : [h("li.fx-empty", {}, empty)]));
    if (found.length > SHOWN) this.rows.append(h("li.fx-empty", {}, `${found.length - SHOWN} more are not listed; filter to see them.`));
    this.markLog();
    this.drawPlayer();
  },

  /** Whether a decision is about the selection. */
  isMine(row) {
    const { names = [], attempts = [] } = this.get("answer");
    return attempts.includes(row.seq) || Boolean(names.length && (names.length > 2 ? names.some((n) => row.names.includes(n)) : names.every((n) => row.names.includes(n))));
  },

  /** Light up the decisions about the selection. */
  markLog() {
    const rows = this.taken();
    for (const item of this.rows.children) {
      const row = rows[item.dataset.step - 1];
      if (row) flag(item, "mine", this.isMine(row));
    }
  },

  showMine() {
    this.toggleLog(true);
    this.mine.checked = this.filter.mine = true;
    this.drawRows();
    this.rows.querySelector("button")?.focus();
  },

  onLog(event) {
    const row = event.target.closest("[data-step]");
    if (!row || event.target.closest("details")) return;
    const step = Number(row.dataset.step);
    this.stepTo(this.step === step && !event.target.closest("button") ? null : step);
  },

  // ---- the decisions, one by one

  stepBy(way) {
    this.stop();
    const rows = this.taken();
    this.stepTo(this.step == null ? (way > 0 ? 1 : rows.length) : this.step + way);
  },

  play() {
    if (this.playing) return this.stop();
    const rows = this.taken();
    if (!rows.length) return;
    this.stepTo(this.step == null || this.step >= rows.length ? 0 : this.step);
    this.playing = setInterval(() => (this.step < rows.length ? this.stepTo(this.step + 1) : this.stop()), Math.min(900, Math.max(60, 15000 / rows.length)));
    this.playButton.textContent = "❚❚";
  },

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    this.playButton.textContent = "▶";
  },

  /** Show the groups as they are after so many decisions, or (null) the plan. */
  stepTo(step) {
    const rows = this.taken();
    if (step == null) this.stop();
    else if (!this.logShown) this.toggleLog(true);
    this.step = step == null ? null : Math.min(Math.max(step, 0), rows.length);
    if (step != null && this.get("scene").detail !== "ops") this.setDetail("ops");
    else this.showStep();
    this.drawPlayer();
  },

  showStep() {
    const rows = this.taken();
    const on = this.step != null;
    const homes = on ? groupsAfter(rows.slice(0, this.step)) : new Map();
    const row = on ? rows[this.step - 1] : null;
    const home = (id) => {
      const node = this.nodes.get(id);
      return node?.kind === "op" ? node.names.map((n) => homes.get(n)).find(Boolean) : null;
    };
    flag(this.canvas, "stepping", on);
    const hues = new Map([...this.nodes.values()].flatMap((n) => n.names.map((name) => [name, n.hue])));
    for (const item of this.items || []) {
      const edge = this.edges.get(item.dataset.id);
      const node = this.nodes.get(item.dataset.id);
      const joined = edge ? home(edge.source) && home(edge.source) === home(edge.target) : home(item.dataset.id)?.size > 1;
      const about = Boolean(row && node?.kind === "op" && node.names.some((n) => row.names.includes(n)));
      flag(item, "joined", joined);
      const [first] = joined ? home(edge ? edge.source : node.id) : [];
      item.style.setProperty("--fx-group", `var(--fl-h${hues.get(first) ?? 0})`);
      flag(item, "about", about && row.ok);
      flag(item, "refusing", about && !row.ok);
    }
    const later = this.get("history").edits?.length ? " (before your edits)" : "";
    if (row) this.tell(`Decision ${this.step} of ${rows.length}, ${row.ok ? "accepted" : "refused"}: ${row.of}. ${row.reason}${later}`);
    else if (on) this.tell("No decision was taken yet: every op is a group of its own.");
  },

  drawPlayer() {
    const rows = this.taken();
    this.player.value = this.step ?? rows.length;
    this.stepCount.textContent = this.step == null ? "" : `${this.step} of ${rows.length}`;
    this.leave.hidden = this.step == null;
    for (const old of this.rows.querySelectorAll(".fx-now")) {
      old.classList.remove("fx-now");
      old.removeAttribute("aria-current");
    }
    if (!this.step) return;
    let now = this.rows.querySelector(`[data-step="${this.step}"]`);
    if (!now && rows.length > SHOWN && !this.refilling) {
      this.refilling = true; // the window of the log moves on; a filter may hide the row all the same
      this.drawRows();
      this.refilling = false;
      now = this.rows.querySelector(`[data-step="${this.step}"]`);
    }
    if (!now) return;
    now.classList.add("fx-now");
    now.setAttribute("aria-current", "step");
    this.rows.scrollTop = now.offsetTop - this.rows.offsetTop - this.rows.clientHeight / 2;
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
