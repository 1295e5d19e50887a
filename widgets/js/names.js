// What the user calls tensors, added to the texts of the page: "total T2" for T2. Python sends sentences and tables with
// the fusion's names, by which events and links refer to tensors; this adds names wherever a part of the page changes.

const TENSOR = /\bT\d+(?:_\w+)?\b/g;
const PLAIN = "pre, code, svg, textarea, .fx-name, .fx-overview, .fx-code, .fx-kernel-player"; // source text, and pictures, which have names

export class Names {
  /** Uses the explorer's channel, and the parts that have sentences and tables. */
  constructor({ advice, channel, status, inspector, decisions, tabs, previews, header }) {
    this.channel = channel;
    this.watch = new MutationObserver((changes) => this.add(changes));
    const parts = [advice.element, status.element, inspector.element, decisions.element, tabs.panel, previews.hint, header.badge];
    for (const part of parts) this.watch.observe(part, { childList: true, subtree: true });
  }

  dispose() {
    this.watch.disconnect();
  }

  add(changes) {
    const called = this.channel.get("called") || {};
    if (!Object.keys(called).length) return;
    const parts = new Set(changes.flatMap(({ addedNodes }) => [...addedNodes]));
    for (const part of parts) if (part.isConnected && !(part.closest ? part : part.parentNode).closest(PLAIN)) write(part, called);
    this.watch.takeRecords(); // of what was just added
  }
}

/** The name of a tensor, or of the one that it derives from: T2_lower is named after T2. */
function nameOf(tensor, called) {
  while (!Object.hasOwn(called, tensor) && tensor.includes("_")) tensor = tensor.slice(0, tensor.lastIndexOf("_"));
  return Object.hasOwn(called, tensor) ? called[tensor] : "";
}

/** Add the names to the texts of a part. */
function write(part, called) {
  const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT, (node) =>
    node.nodeType === Node.TEXT_NODE ? NodeFilter.FILTER_ACCEPT : node.matches(PLAIN) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP);
  const found = part.nodeType === Node.TEXT_NODE ? [part] : [];
  while (texts.nextNode()) found.push(texts.currentNode);
  for (const text of found) replace(text, called);
  for (const one of part.querySelectorAll?.("[title]") || []) if (!one.closest(PLAIN)) one.title = one.title.replace(TENSOR, (tensor) => [nameOf(tensor, called), tensor].filter(Boolean).join(" "));
}

function replace(text, called) {
  if (text.parentNode.localName === "option") return;
  const words = text.data;
  const parts = [];
  let end = 0;
  for (const { 0: tensor, index } of words.matchAll(TENSOR)) {
    const name = nameOf(tensor, called);
    if (!name) continue;
    parts.push(words.slice(end, index), named(tensor, name));
    end = index + tensor.length;
  }
  if (parts.length) text.replaceWith(...parts, words.slice(end));
}

function named(tensor, name) {
  const [whole, added] = [document.createElement("span"), document.createElement("span")];
  whole.className = "fx-name";
  added.className = "fx-called";
  added.textContent = `${name} `;
  const suffix = document.createElement("small");
  suffix.textContent = tensor;
  whole.append(added, suffix);
  return whole;
}
