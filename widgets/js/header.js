// The head of the explorer: the plan and its numbers, the buttons that are used most, and the progress of a run.

import { button, choice, enter, flag, h, isStill, option, split } from "./dom.js";

const FEW = 2; // strategies that have a button each

export class Header {
  /** Uses the explorer's channel, tabs, menu, and root element. */
  constructor(explorer) {
    this.explorer = explorer;
    const { channel } = explorer;
    this.channel = channel;
    this.title = h("strong.fx-title", { role: "heading", "aria-level": 2 });
    this.facts = h("div.fx-facts");
    this.badge = h("span.fx-badge.fx-note");
    this.notes = h("ul.fx-notes", { "aria-label": "Inputs and notes of the script", tabindex: 0 });
    this.controls = h("div.fx-controls");
    this.strategies = h("div.fx-controls");
    this.stopSearch = button("Cancel search", "End the search for a cheaper plan", () => channel.send("stop"));
    this.stopSearch.hidden = true;
    this.undo = button("↶", "Undo (u)", () => channel.send("undo"));
    this.redo = button("↷", "Redo (U)", () => channel.send("redo"));
    this.undo.setAttribute("aria-label", "Undo");
    this.redo.setAttribute("aria-label", "Redo");
    const copy = button("Code", "Copy the Python code of this plan (y)", () => channel.send("code"));
    copy.setAttribute("aria-label", "Copy as code");
    this.run = button("Run", "Time this plan and the baseline (r)", () => this.toggleRun(), ".fx-primary");
    this.bar = h("div.fx-bar");
    this.progress = h("div.fx-progress", { role: "progressbar", "aria-label": "Timing", "aria-valuemin": 0, "aria-valuemax": 100 }, this.bar);
    this.element = h("div.fx-head", {}, this.title, this.badge, this.facts,
      h("div.fx-tools", { role: "toolbar", "aria-label": "Plan" }, this.strategies, this.stopSearch,
        h("span.fx-group", {}, this.undo, this.redo), this.run, copy, explorer.menu.button, explorer.menu.element));
  }

  drawTitle({ title, hash }) {
    this.title.textContent = title;
    this.title.title = `${title}, plan ${hash}`;
    this.explorer.root.setAttribute("aria-label", `Fusion explorer: ${title}`);
  }

  /** The numbers of the plan, and its measurements: as many as have room in the row, all of them on request. A
   *  measurement is the last to go, and a time by bytes alone the first. */
  drawFacts() {
    const { facts: [segments, ...others] = [], hash, plan } = this.channel.get("scene");
    const heat = this.channel.get("heat");
    if (heat.plan === plan) this.times = heat.times; // until then, those of the plan before
    const { times = [] } = this;
    const measured = this.channel.get("times").measured?.[hash];
    const unmeasured = !measured && this.channel.get("history").runnable && ["–", "measured", "not measured yet: Run times the plan on this machine"];
    const isPredicted = ([, name]) => name.startsWith("predicted");
    const all = segments ? [segments, measured, ...times.filter(isPredicted), unmeasured, ...others, ...times.filter((time) => !isPredicted(time))].filter(Boolean) : [];
    this.facts.title = all.map(([value, name]) => `${value} ${name}`).join(", ");
    this.facts.replaceChildren(...all.map(([value, name, title]) => h("span", { title }, h("b", {}, value), ` ${name}`)));
  }

  drawHistory() {
    const history = this.channel.get("history");
    const { root, menu } = this.explorer;
    if (!history.controls) return;
    for (const one of [this.undo.parentNode, this.run]) one.hidden = Boolean(history.fixed);
    this.undo.disabled = !history.undo;
    this.redo.disabled = !history.redo;
    flag(root, "marked", history.annotations?.length);
    menu.drawHistory(history);
    this.run.disabled = !history.runnable;
    this.run.title = history.runnable ? "Time this plan and the baseline (r)" : "Run needs arrays: fl.explore(fd, inputs)";
    this.notes.replaceChildren(...(history.notes || []).map((note) => h("li", {}, note)));
    this.drawBadge(history);
    const focused = document.activeElement;
    const kept = root.contains(focused) ? focused.dataset.key : null;
    this.drawControls(history);
    if (!history.searching && focused === this.stopSearch) enter(root);
    this.stopSearch.hidden = !history.searching;
    if (kept) root.querySelector(`[data-key="${CSS.escape(kept)}"]`)?.focus();
    else if (root.contains(focused) && focused.disabled) enter(root);
    this.drawFacts();
    this.showSearch(Boolean(history.searching));
  }

  drawBadge(history) {
    const edits = [...(history.annotations || []), ...history.edits];
    const last = edits.slice(-4);
    this.badge.textContent = `${edits.length > last.length ? "… · " : ""}${last.join(" · ")}`;
    this.badge.title = `Annotations of the definition, and edits since the ${history.strategy.replaceAll("_", "-")} plan: ${edits.join(", ")}`;
    this.badge.hidden = !edits.length;
  }

  drawControls({ controls, searching }) {
    const one = ([key, words, on, free, title, event]) =>
      option(words, on, () => this.channel.send(...split(event)), { "aria-busy": String(key === searching), disabled: !free, title, "data-key": key });
    const [[label, , strategies], ...others] = controls;
    const few = strategies.filter(([key]) => key !== "mine").length <= FEW;
    const shown = few ? choice(label, ...strategies.map(one)) : this.menu(label, strategies, searching);
    shown.hidden = strategies.length < 2;
    this.strategies.replaceChildren(shown);
    const group = ([name, before, buttons, when]) => h("span.fx-group", { "data-when": when }, h("span.fx-note", {}, before), choice(name, ...buttons.map(one)));
    this.controls.replaceChildren(...others.filter(([, , , when]) => when !== "menu").map(group));
    this.explorer.menu.segmenter.replaceChildren(...others.filter(([, , , when]) => when === "menu").map(group));
  }

  /** Many strategies as one control, which leaves room for the numbers. */
  menu(label, strategies, searching) {
    const options = strategies.map(([key, words, on, free]) => h("option", { value: key, selected: on, disabled: !free }, key === searching ? `${words} …` : words));
    const events = new Map(strategies.map(([key, , , , , event]) => [key, event]));
    return h("select", { "aria-label": label, title: label, "data-key": "strategies", onchange: (e) => this.channel.send(...split(events.get(e.target.value))) }, ...options);
  }

  showSearch(on) {
    flag(this.progress, "busy", on);
    this.moving?.cancel();
    this.moving = null;
    if (!on || isStill()) return;
    this.moving = this.progress.animate([{ backgroundPositionX: "-60%" }, { backgroundPositionX: "160%" }], { duration: 1200, iterations: Infinity });
  }

  // ---- a run

  toggleRun() {
    this.channel.send(this.channel.get("times").running ? "cancel" : "run");
    if (!this.channel.get("times").running) this.explorer.tabs.open("timings");
  }

  drawTimes() {
    const { running, done, total } = this.channel.get("times");
    const part = running ? Math.max(total ? done / total : 0, 0.03) : 0;
    this.bar.style.width = `${100 * part}%`;
    flag(this.progress, "on", running);
    this.progress.setAttribute("aria-valuenow", Math.round(100 * part));
    this.run.textContent = running ? "Cancel" : "Run";
    flag(this.run, "primary", !running);
    this.drawFacts();
    this.explorer.tabs.draw("timings", ...(running ? [] : ["roofline"]));
  }
}
