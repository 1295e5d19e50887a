// The log of decisions, and stepping through it on the graph.

import { button, flag, h, redraw } from "./dom.js";
import { Groups } from "./groups.js";
import { mark, verdicts } from "./pieces.js";

const SHOWN = 200; // decisions in the page at once
const NONE = "No decision led to this plan.";
const EDIT = "edit"; // how phases of the attempts of edits begin
const OUTCOMES = [["all", "all"], ["yes", "accepted"], ["no", "refused"]];

export class Decisions {
  /** Uses the explorer's channel, graph, tabs, status line, and level of detail. */
  constructor(explorer) {
    this.explorer = explorer;
    this.channel = explorer.channel;
    this.log = null; // the number of the log that is shown
    this.total = 0; // number of its decisions
    this.taken = []; // the rows that Python has sent
    this.step = null; // number of decisions applied while stepping through the log
    this.playing = null;
    this.filter = { text: "", outcome: "all", mine: false };
    const named = (label, key, title, act) => {
      const made = button(h("span", {}, label), `${title} (${key})`, act);
      made.setAttribute("aria-label", made.title);
      made.append(h("kbd.fx-key", {}, key));
      return made;
    };
    this.count = h("span.fx-note");
    this.slider = h("input.fx-slider", { type: "range", min: 0, "aria-label": "Decisions taken", oninput: (e) => this.stepTo(Number(e.target.value)) });
    this.playButton = named("▶", "p", "Play or pause", () => this.play());
    this.stepCount = h("span.fx-note");
    this.leave = named("Plan", "Esc", "End stepping and show the plan", () => this.stepTo(null));
    this.player = h("div.fx-player", { role: "group", "aria-label": "Step through the decisions" }, named("◂", "k", "One decision back", () => this.stepBy(-1)), this.playButton,
      named("▸", "j", "One decision forward", () => this.stepBy(1)), this.slider, this.stepCount, this.leave);
    this.mine = h("input", { type: "checkbox", title: "Only decisions about the selection", onchange: (e) => this.filterBy("mine", e.target.checked) });
    this.rows = h("ol.fx-decisions", { onclick: (e) => this.onClick(e) });
    this.filters = h("div.fx-filters", {},
      h("input.fx-search", { type: "search", placeholder: "filter: T3, cycle …", "aria-label": "Filter decisions", oninput: (e) => this.filterBy("text", e.target.value.toLowerCase()) }),
      h("select", { "aria-label": "Outcome", onchange: (e) => this.filterBy("outcome", e.target.value) }, ...OUTCOMES.map(([v, t]) => h("option", { value: v }, t))));
    this.element = h("section.fx-log", { "aria-label": "Decisions" },
      h("div.fx-log-head", {}, this.player, this.filters, h("label", {}, this.mine, " selection only"), this.count), this.rows);
  }

  dispose() {
    clearInterval(this.playing);
  }

  // ---- the list

  /** Receive data from Python: another log, or the next page of this one. */
  draw() {
    const { log, total = 0, first, rows = [], verdicts: said = [] } = this.channel.get("decisions");
    if (log !== this.log) {
      this.log = log;
      this.total = total;
      this.taken = [];
      if (this.step != null) this.stepTo(total ? Math.min(this.step, total) : null);
      this.slider.max = total;
      this.player.hidden = this.filters.hidden = this.mine.parentNode.hidden = !total;
    } else if (first !== this.taken.length || !rows.length) return;
    if (first === this.taken.length) {
      for (const row of rows) this.taken.push({ ...row, step: this.taken.length + 1, verdicts: row.verdicts.map((n) => said[n]) });
    }
    if (this.explorer.tabs.shows("decisions")) this.load();
    this.drawRows();
    this.refresh();
  }

  /** Request the next decisions, unless all have arrived. */
  load() {
    const key = `${this.log} ${this.taken.length}`;
    if (this.taken.length >= this.total || this.asked === key) return;
    this.asked = key;
    this.channel.send("decisions", { first: this.taken.length });
  }

  filterBy(name, value) {
    this.filter[name] = value;
    this.drawRows();
  }

  drawRows() {
    const all = this.taken;
    const { names = [] } = this.channel.get("answer");
    const called = this.channel.get("called") || {};
    const { text, outcome, mine } = this.filter;
    const found = all.filter((row) =>
      (outcome === "all" || row.ok === (outcome === "yes")) && (!mine || this.isMine(row)) &&
      (!text || `${row.names.map((name) => called[name] || "").join(" ")} ${row.of} ${row.phase} ${row.kind} ${row.reason} ${row.verdicts.map((v) => v.scheduler + v.text).join(" ")}`.toLowerCase().includes(text)));
    this.count.textContent = this.total ? `${found.length} of ${this.total}` : "";
    const empty = !this.total ? NONE : all.length < this.total ? "…" : mine && !names.length ? "Select an edge, an op or a segment first." : "No decision matches.";
    // A window around the current step, because a page of thousands of rows would be slow.
    const from = Math.max(0, Math.min((this.step || 1) - SHOWN / 2, found.length - SHOWN));
    const shown = found.slice(from, from + SHOWN).map((row) => item(row, () => this.verdicts(row)));
    this.rows.replaceChildren(...(shown.length ? shown : [h("li.fx-empty", {}, empty)]));
    if (found.length > SHOWN) this.rows.append(h("li.fx-empty", {}, `${found.length - SHOWN} more are not listed; filter to see them.`));
    this.markMine();
    this.drawPlayer();
  }

  /** Whether a decision is about the selection. */
  isMine(row) {
    const { names = [], attempts = [] } = this.channel.get("answer");
    return attempts.includes(row.seq) || Boolean(names.length && (names.length > 2 ? names.some((n) => row.names.includes(n)) : names.every((n) => row.names.includes(n))));
  }

  /** Update for a new selection. */
  drawSelection() {
    if (this.filter.mine) this.drawRows();
    else this.markMine();
  }

  /** Highlight the decisions about the selection. */
  markMine() {
    const rows = this.taken;
    for (const one of this.rows.children) {
      const row = rows[one.dataset.step - 1];
      if (row) flag(one, "mine", this.isMine(row));
    }
  }

  showMine() {
    this.explorer.tabs.open("decisions");
    this.mine.checked = this.filter.mine = true;
    this.drawRows();
    this.rows.querySelector("button")?.focus();
  }

  onClick(event) {
    const row = event.target.closest("[data-step]");
    if (!row || event.target.closest("details")) return;
    const step = Number(row.dataset.step);
    this.stepTo(this.step === step && !event.target.closest("button") ? null : step);
  }

  // ---- the decisions, one by one

  stepBy(way) {
    this.stop();
    this.stepTo(this.step == null ? (way > 0 ? 1 : this.total) : this.step + way);
  }

  play() {
    if (this.playing) {
      this.stop();
      return;
    }
    const { total } = this;
    if (!total) return;
    this.stepTo(this.step == null || this.step >= total ? 0 : this.step);
    this.playing = setInterval(() => (this.step < total ? this.stepTo(this.step + 1) : this.stop()), Math.min(900, Math.max(60, 15000 / total)));
    this.playButton.firstChild.textContent = "❚❚";
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    this.playButton.firstChild.textContent = "▶";
  }

  /** Show the groups after a number of decisions, or (null) the plan. */
  stepTo(step) {
    const { explorer, channel } = this;
    if (step == null) this.stop();
    else if (!this.total) {
      explorer.status.tell(NONE);
      return;
    } else explorer.tabs.open("decisions");
    this.step = step == null ? null : Math.min(Math.max(step, 0), this.total);
    if (step != null && channel.get("scene").detail !== "ops") channel.send("detail", { detail: "ops", quiet: true }); // the status line shows the step
    else this.showStep();
    this.drawPlayer();
  }

  /** Show the current step in another picture, and offer to lift the rules that another plan follows. */
  refresh() {
    if (this.step != null) this.showStep();
    const { plan } = this.channel.get("scene");
    if (plan === this.plan) return;
    this.plan = plan;
    const drawn = this.rows.querySelectorAll(".fx-decision .fx-verdicts");
    if (drawn.length) redraw(this.rows, () => drawn.forEach((list) => list.replaceWith(this.verdicts(this.taken[list.closest("[data-step]").dataset.step - 1]))));
  }

  verdicts(row) {
    return verdicts(row.verdicts, (code) => this.explorer.lift(code));
  }

  showStep() {
    const { graph, status } = this.explorer;
    const rows = this.taken;
    const on = this.step != null;
    if (on && this.step > rows.length) {
      this.load();
      return;
    }
    this.groups = on ? new Groups(rows.slice(0, this.step)) : null;
    this.markStep();
    const row = on ? rows[this.step - 1] : null;
    if (row) graph.revealOne(row.names);
    const later = this.channel.get("history").edits?.length && !row?.phase.startsWith(EDIT) ? " (before your edits)" : "";
    if (row) status.tell(`Decision ${row.seq} (${this.step} of ${this.total}): ${row.of} ${outcome(row)}${later}`);
    else if (on) status.tell("No decision yet: every op is a separate group.");
    else status.draw(this.channel); // what it said before the steps
  }

  /** Show the groups after the current step in the picture. */
  markStep() {
    const { graph } = this.explorer;
    const on = this.step != null && this.step <= this.taken.length;
    if (!on && !this.isMarked) return;
    this.isMarked = on;
    const row = on ? this.taken[this.step - 1] : null;
    const mates = new Map(); // the ops of each segment
    for (const { segment, names } of on ? graph.nodes : []) {
      if (!mates.has(segment)) mates.set(segment, new Set());
      for (const name of names) mates.get(segment).add(name);
    }
    const home = (id) => {
      const node = graph.node(id);
      return on && node?.kind === "op" ? node.names.map((n) => this.groups.home(n, mates.get(node.segment))).find(Boolean) : null;
    };
    flag(graph.canvas, "stepping", on);
    const hues = new Map(graph.nodes.flatMap((n) => n.names.map((name) => [name, n.hue])));
    for (const one of graph.items) {
      const { id } = one.dataset;
      const [edge, node] = [graph.edge(id), graph.node(id)];
      const joined = edge ? home(edge.source) && home(edge.source) === home(edge.target) : home(id)?.size > 1;
      const about = Boolean(row && node?.kind === "op" && node.names.some((n) => row.names.includes(n)));
      flag(one, "joined", joined);
      const [first] = joined ? home(edge ? edge.source : id) : [];
      one.style.setProperty("--fx-group", `var(--fl-h${hues.get(first) ?? 0})`);
      flag(one, "about", about && row.ok);
      flag(one, "refusing", about && !row.ok);
    }
  }

  drawPlayer() {
    const rows = this.taken;
    this.slider.value = this.step ?? this.total;
    this.stepCount.textContent = this.step == null ? "" : `${this.step} of ${this.total}`;
    this.leave.hidden = this.step == null;
    for (const old of this.rows.querySelectorAll(".fx-now")) {
      old.classList.remove("fx-now");
      old.removeAttribute("aria-current");
    }
    if (!this.step) return;
    const find = () => this.rows.querySelector(`[data-step="${this.step}"]`);
    if (!find() && rows.length > SHOWN && !this.isRefilling) {
      this.isRefilling = true; // the window of the log moves; a filter may still hide the row
      this.drawRows();
      this.isRefilling = false;
    }
    const now = find();
    if (!now) return;
    now.classList.add("fx-now");
    now.setAttribute("aria-current", "step");
    this.rows.scrollTop = now.offsetTop - this.rows.offsetTop - this.rows.clientHeight / 2;
  }
}

/** The outcome of a decision with its reason, which may begin with the outcome. */
function outcome({ ok, reason }) {
  const said = ok ? "accepted" : "refused";
  if (reason.startsWith(said)) return reason;
  return reason ? `${said}; ${reason}` : said;
}

/** A decision as an item of the list; `said` makes the list of its verdicts. */
function item(row, said) {
  const place = [row.phase, row.kind].filter(Boolean).join(" · ").replaceAll("_", " ");
  const count = row.verdicts.length;
  return h("li.fx-decision", { "data-step": row.step },
    h("button.fx-seq", { title: "Show the groups after this decision", "aria-label": `Decision ${row.seq}: show the groups after it` }, String(row.seq)), mark(row.ok),
    h("div.fx-what", {}, h("b", {}, row.of),
      count ? h("details", { ontoggle: (e) => e.target.children[1] || e.target.append(said()) }, h("summary.fx-note", { title: `What ${count === 1 ? "a scheduler" : "schedulers"} said` }, place)) : h("span.fx-note", {}, place),
      h("span.fx-reason", { title: row.reason }, row.reason)));
}
