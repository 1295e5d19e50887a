// The report's model: it answers from data in the page, as Python answers the widget.

export class Baked {
  /** A `link` names the plan that is shown first, and its level of detail. */
  constructor(data, link = {}) {
    this.data = data;
    this.listeners = {};
    this.at = Math.max(this.indexOf(link.plan), 0); // the number of the shown plan
    this.detail = this.plan.scenes[link.detail] ? link.detail : this.plan.detail;
    this.state = { events: [], acked: 0, answer: {}, source: {}, code: {}, advice: {}, certificate: {}, foreseen: {}, views: data.views, opens: data.opens, targets: data.targets, status: { text: data.hint, kind: "info" }, times: data.timings };
    data.chunks.forEach((chunk, n) => (this.state[`chunk${n}`] = chunk));
    this.show();
  }

  get(name) {
    return this.state[name];
  }

  set(name, value) {
    this.state[name] = value;
  }

  on(name, run) {
    (this.listeners[name] ||= []).push(run);
  }

  off(name, run) {
    this.listeners[name] = (this.listeners[name] || []).filter((one) => one !== run);
  }

  tell(name, value) {
    this.state[name] = value;
    for (const run of this.listeners[`change:${name}`] || []) run();
  }

  /** Answer later, as Python does, because the caller is still drawing. */
  save_changes() {
    queueMicrotask(() => {
      for (const event of this.state.events.filter((e) => e.n > this.state.acked)) {
        this.state.acked = event.n;
        this.answer(event);
      }
    });
  }

  get plan() {
    return this.data.plans[this.at];
  }

  indexOf(hash) {
    return this.data.plans.findIndex(({ scenes }) => scenes.ops.hash === hash);
  }

  /** Whether the page contains the plan with a hash. */
  holds(hash) {
    return this.indexOf(hash) >= 0;
  }

  /** Show the code of a plan that the page does not contain. */
  offer(text) {
    const makes = text ? "; this Python code makes it, in a notebook" : "";
    this.tell("code", { text, shown: true });
    this.tell("status", { text: `The link refers to a plan that this report does not contain${makes}.`, kind: "error" });
  }

  show() {
    const { plans } = this.data;
    this.state.panels = this.plan.panels;
    this.state.called = this.plan.called;
    this.tell("decisions", { log: this.at, ...this.plan.decisions });
    this.tell("history", { fixed: true, profiled: this.plan.profiled, undo: false, redo: false, edits: [], runnable: false, searching: "", strategy: String(this.at), controls: [["Strategy", "", plans.map((p, n) => [String(n), p.name, n === this.at, true, "", { type: "strategy", strategy: String(n) }]), "always"]] });
    this.state.heat = { ...this.plan.heat, plan: this.at };
    this.tell("scene", { ...this.plan.scenes[this.detail], plan: this.at, rev: (this.state.scene?.rev || 0) + 1 });
  }

  answer(event) {
    const { plan } = this;
    const acts = {
      select: () => this.tell("answer", plan.answers[event.id] || {}),
      strategy: () => {
        this.at = Number(event.strategy);
        this.show();
        this.tell("answer", this.plan.answers[this.state.answer.id] || {});
      },
      detail: () => {
        this.detail = event.detail;
        this.show();
      },
      source: () => {
        const { hash } = plan.scenes.ops;
        const { segment, target, view = "source" } = event;
        const found = plan.sources[segment]?.[target]?.[view] || { problem: "The report omits this view for a plan of this size; the explorer shows it." };
        this.tell("source", { segment, target, view, hash, ...found });
      },
      code: () => this.tell("code", { text: plan.code }),
    };
    acts[event.type]?.();
  }
}
