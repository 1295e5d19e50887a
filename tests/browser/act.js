// Click on one of the elements of a selector that are visible. Returns its name, and whether it is an enabled control.
([selector, number, kind, untried]) => {
  const found = [...document.querySelectorAll(selector)].filter((one) => (one.closest("select") || one).getClientRects().length && !untried.includes(one.textContent));
  if (!found.length) return null;
  const one = found[number % found.length];
  const words = one.closest("[data-id]")?.dataset.id || one.getAttribute("aria-label") || one.textContent;
  if (one.matches("option")) {
    one.selected = true;
    one.parentNode.dispatchEvent(new Event("change"));
    return [words, true];
  }
  const event = { fold: "dblclick", hover: "pointermove" }[kind] || "click";
  const { x, y } = one.getBoundingClientRect();
  one.dispatchEvent(new PointerEvent(event, { bubbles: true, shiftKey: kind === "look", clientX: x, clientY: y }));
  // Whether a changed schedule is legal is known only once it is lowered.
  const isTried = one.dataset.send?.includes('"step"');
  const offers = one.matches("button") && one.getAttribute("aria-disabled") !== "true" && !isTried;
  return [words, offers];
}
