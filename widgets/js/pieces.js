// Pieces of the panels: tables, lists of facts, verdicts of schedulers.

import { h } from "./dom.js";

export function table(data, rowAttrs) {
  const cell = (tag) => (text, n) => h(data.numeric[n] ? `${tag}.fx-num` : tag, tag === "th" ? { scope: "col" } : { title: text.length > 40 ? text : null }, text);
  return h("div.fx-scroll", { tabindex: 0, role: "group", "aria-label": "Table" }, h("table.fx-table", {},
    h("thead", {}, h("tr", {}, ...data.columns.map(cell("th")))),
    h("tbody", {}, ...data.rows.map((row, n) => {
      const made = h("tr", rowAttrs(n), ...row.map(cell("td")));
      if (data.strong.includes(n)) made.classList.add("fx-total");
      return made;
    }))));
}

export function facts(list) {
  return h("dl.fx-facts-list", {}, ...list.flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

export function reasons(list) {
  return list?.length ? h("ul", {}, ...list.map((text) => h("li", {}, text))) : "";
}

export function mark(ok) {
  return h(ok ? "span.fx-good" : "span.fx-bad", { role: "img", "aria-label": ok ? "accepted" : "refused" }, ok ? "✓" : "✗");
}

/** The schedulers' verdicts; `lift` returns a button for the rule of a refusal, or nothing. */
export function verdicts(list, lift = () => null) {
  return h("ul.fx-verdicts", {}, ...(list || []).map((v) => h("li", {}, mark(v.ok), h("b", {}, v.scheduler), h("span", {}, v.text), v.ok ? null : lift(v.code))));
}
