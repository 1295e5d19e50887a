// The connection to Python: its state, and the user's events, in order and exactly once.

const PATIENCE = 4000; // milliseconds
const sent = new WeakMap(); // model -> events that the kernel has not handled yet, shared by all views of the model

export class Channel {
  /** `tell(text, kind)` shows why no answer comes, and `answered()` is called if one comes after that. */
  constructor(model, tell, answered) {
    this.model = model;
    this.tell = tell;
    this.listeners = [];
    this.late = Infinity; // the number of an event that has no answer, once this is shown
    this.on("acked", () => {
      if (this.get("acked") < this.late) return;
      this.late = Infinity;
      answered();
    });
  }

  get(name) {
    return this.model.get(name);
  }

  /** Whether the plan can be edited; plans in a report are fixed. */
  get editable() {
    return !this.get("history").fixed;
  }

  on(name, act) {
    const key = `change:${name}`;
    const run = () => act(); // a separate function, because listeners are removed by identity
    this.model.on(key, run);
    this.listeners.push([key, run]);
  }

  /** Send an event, and return its number, which Python acknowledges. */
  send(type, data = {}) {
    const { model } = this;
    const queue = (sent.get(model) || []).filter((e) => e.n > model.get("acked"));
    const n = 1 + (queue.length ? queue[queue.length - 1].n : Math.max(model.get("acked"), sent.get(model)?.last || 0));
    queue.push({ n, type, ...data });
    queue.last = n;
    sent.set(model, queue);
    model.set("events", [...queue]);
    model.save_changes();
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      if (this.get("acked") >= n) return;
      this.late = n;
      this.tell(...kernelText(model));
    }, PATIENCE);
    return n;
  }

  dispose() {
    this.listeners.forEach(([name, run]) => this.model.off(name, run));
    clearTimeout(this.waiting);
  }
}

/** Why the kernel has not answered, as far as the page can tell from JupyterLab's kernel status. */
function kernelText(model) {
  const status = model.widget_manager?.kernel?.status;
  if (status === "busy") return ["The kernel is busy with a cell and answers when it is done."];
  if (["dead", "terminating", "unknown"].includes(status)) return ["The kernel has ended; start it and run the cell again.", "error"];
  if (["starting", "restarting", "autorestarting"].includes(status)) return ["The kernel is starting; run the cell again.", "error"];
  if (status === "idle") return ["The kernel was restarted and no longer has this view; run the cell again.", "error"];
  return ["No answer from the kernel yet: it is busy, or it was restarted and the cell must be run again.", "error"];
}
