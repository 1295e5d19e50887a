// Elements, and common operations on them.

/** Make an element: h("b.name", {title: "x"}, child, ...). Text is set as text, never as markup. */
export function h(spec, attrs = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const made = document.createElement(tag || "div");
  if (classes.length) made.className = classes.join(" ");
  if (tag === "button") made.type = "button";
  for (const [key, value] of Object.entries(attrs)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((c) => c != null));
  return made;
}

export function button(label, title, act, extra = "") {
  return h(`button.fx-button${extra}`, { title, onclick: act }, label);
}

/** Buttons, either with one chosen or each on or off. */
export function choice(label, ...buttons) {
  return h("div.fx-switch", { role: "group", "aria-label": label }, ...buttons);
}

export function option(words, on, onclick, attrs) {
  return h("button.fx-mode", { "aria-pressed": String(on), onclick, ...attrs }, words);
}

export function press(buttons, chosen) {
  buttons.forEach((b, n) => b.setAttribute("aria-pressed", String(n === chosen)));
}

export function flag(item, name, on) {
  item.classList.toggle(`fx-${name}`, Boolean(on));
}

/** Focus an element without scrolling the page. */
export function enter(item) {
  item?.focus({ preventScroll: true });
}

/** Draw a part of the page again; a focused control keeps the focus if the new part has the same control. */
export function redraw(part, draw) {
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  draw();
  if (!focused || part.contains(focused)) return;
  const words = controlText(focused);
  enter([...part.querySelectorAll(focused.localName)].find((one) => controlText(one) === words));
}

/** The identity of a control: what it sends, and its name. */
function controlText(item) {
  return JSON.stringify([{ ...item.dataset }, item.getAttribute("aria-label"), plainText(item)]);
}

/** The text of an element without the users' names in it, which are added later. */
export function plainText(item) {
  return [...item.childNodes].map((part) => (part.className === "fx-called" ? "" : part.nodeType === Node.TEXT_NODE ? part.data : plainText(part))).join("");
}

/** Whether an element or nothing has the focus; any other focused element was chosen by the user. */
export function mayEnter(part) {
  const { activeElement } = document;
  return activeElement === null || activeElement === document.body || part.contains(activeElement);
}

/** Scroll only a list, so that one of its lines is in view. */
export function centre(list, line) {
  list.scrollTop += line.getBoundingClientRect().top - list.getBoundingClientRect().top - list.clientHeight / 3;
}

/** Scroll only a list, by no more than shows one of its lines. */
export function show(list, line) {
  const [seen, box] = [list.getBoundingClientRect(), line.getBoundingClientRect()];
  if (box.top < seen.top) list.scrollTop += box.top - seen.top;
  else list.scrollTop += Math.max(0, Math.min(box.bottom - seen.bottom, box.top - seen.top));
}

/** Call a function after the current frame is drawn. */
export function soon(act) {
  requestAnimationFrame(() => setTimeout(act));
}

/** Whether the user prefers reduced motion. */
export function isStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** What a button sends: the type of the event and its data. */
export function split({ type, label, title, ...data }) {
  return [type, data];
}
