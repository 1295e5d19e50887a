// What an explorer's page shows and offers, as data that Python compares with the plan on show.
() => {
  const root = document.querySelector(".fl-explorer");
  const { model } = window;
  const all = (selector, from = root) => [...from.querySelectorAll(selector)];
  const unnamed = (part) => { // without the users' names, which are added to the texts of tensors
    const copy = part.cloneNode(true);
    copy.querySelectorAll(".fx-name").forEach((name) => name.replaceWith(name.lastChild.textContent));
    copy.normalize();
    return copy;
  };
  const plain = (one) => (one?.querySelector(".fx-name") ? unnamed(one) : one)?.textContent ?? "";
  const text = (selector, from = root) => plain(from.querySelector(selector));
  const words = (selector, from = root) => all(selector, from).map(plain);
  const ids = (selector) => [...new Set(all(selector).map((one) => one.dataset.id))].sort();
  const pressed = (buttons) => buttons.map((one) => [one.textContent, one.getAttribute("aria-pressed") === "true", !one.disabled]);
  const verdicts = (list) => all("li", list).map((one) => [one.children[0].getAttribute("aria-label") === "accepted", plain(one.children[1]), plain(one.children[2])]);
  const inspector = root.querySelector(".fx-inspector");
  const panel = root.querySelector(".fx-panel");
  const tab = root.querySelector(".fx-views [aria-selected=true]").dataset.view;
  const written = document.createElement("div");
  written.innerHTML = model.get("panels")[tab]?.html || "";
  const clear = (html) => html.replace(/ ?fx-(current|lit)/g, "").replace(/ class=""/g, "").replace(/( (open|title)="[^"]*")/g, "");
  const heated = root.classList.contains("fx-heat");
  const hint = root.querySelector(".fx-hint");
  const now = root.querySelector(".fx-log .fx-now");
  return {
    scene: model.get("scene"),
    title: [text(".fx-title"), root.getAttribute("aria-label"), text("svg title")],
    facts: words(".fx-facts > span"),
    strategy: [...pressed(all("[aria-label=Strategy] button")), ...all("[aria-label=Strategy] option").map((one) => [one.textContent, one.selected, !one.disabled])],
    switches: all("[data-when] > .fx-switch").map((one) => [one.getAttribute("aria-label"), pressed(all("button", one))]),
    history: [...all(".fx-tools > .fx-group button"), root.querySelector(".fx-menu-row > button[title^=Drop]")].map((one) => !one.disabled),
    badge: root.querySelector(".fx-badge").hidden ? "" : root.querySelector(".fx-badge").title,
    picture: text("svg desc"),
    edges: Object.fromEntries(all(".fl-edge").map((one) => [one.dataset.id, one.getAttribute("aria-label")])),
    described: all("[aria-description]").map((one) => [one.dataset.id, one.getAttribute("aria-description")]),
    hint: hint.classList.contains("fx-on") ? plain(hint) : "",
    hinted: hint.classList.contains("fx-cannot"),
    greyed: ids(".fl-boundary.fx-cannot"),
    saving: [1, 2, 3].map((n) => ids(`.fl-boundary.fx-saves${n}`)),
    nodes: words(".fl-node title").sort(),
    boxes: all(".fl-segment").map((one) => [one.dataset.id, text("title", one)]).sort(),
    heads: all(".fl-head").map((one) => [one.dataset.id, ...words("text:not(.fx-label)", one)]).sort(),
    labels: all(".fx-label").map((one) => [one.closest("[data-id]").dataset.id, words("tspan", one)]),
    selected: ids(".fx-canvas .fx-selected"),
    found: [root.querySelector("[aria-label='Search the graph']").value, text(".fx-find [role=status]"), ids(".fx-canvas .fx-found")],
    marks: Object.fromEntries(["moved", "new", "gone"].map((name) => [name, ids(`.fx-canvas .fx-${name}`)])),
    colour: root.querySelector("[aria-label=Colour]").selectedIndex,
    legend: heated ? [...words(".fx-legend > span"), root.querySelector(".fx-legend").title] : [],
    heats: heated ? Object.fromEntries(all(".fl-segment").map((one) => [one.dataset.id.slice(8), one.style.getPropertyValue("--fx-heat")])) : {},
    heading: text("h3", inspector),
    why: text(":scope > .fx-why", inspector),
    about: words(":scope > .fx-facts-list dt, :scope > .fx-facts-list dd", inspector),
    layout: words(":scope > details:not(.fx-preview) dt, :scope > details:not(.fx-preview) dd", inspector),
    note: text(":scope > .fx-note", inspector),
    preview: text(":scope > div.fx-preview > p", inspector),
    reasons: words(":scope > div.fx-preview li", inspector),
    last: all(":scope > details.fx-preview", inspector).flatMap((one) => [text("summary", one), ...words("li", one)]),
    verdicts: all(":scope > .fx-verdicts", inspector).flatMap(verdicts),
    actions: all(":scope > .fx-actions > button", inspector).map((one) => [plain(one), one.getAttribute("aria-disabled") !== "true"]),
    lifts: all(".fx-lift").map((one) => one.getAttribute("aria-label").replace("Lift this rule: ", "")),
    code: text(":scope > pre", inspector),
    status: text(".fx-said"),
    said: model.get("status").n,
    error: root.querySelector(".fx-status").classList.contains("fx-error"),
    count: text(".fx-log-head .fx-note"),
    decisions: all(".fx-decision").map((one) => [Number(one.dataset.step), text(".fx-what > b", one), text(".fx-reason", one)]),
    step: now ? Number(now.dataset.step) : null,
    stepping: root.querySelector(".fx-stepping") !== null,
    tab,
    open: !root.classList.contains("fx-nopanel"),
    panel: clear(unnamed(panel).innerHTML),
    written: clear(written.innerHTML),
    cells: all("tbody tr", panel).map((row) => words("td", row)),
    rows: all("tbody tr", panel).map((row) => row.dataset.id ?? ""),
    chosen: all(".fx-tab-segment", panel).map((row) => row.dataset.id),
    source: { ...model.get("source"), shown: text("pre.fx-code", panel), of: panel.querySelector("[aria-label=Segment]")?.value },
    linked: Object.fromEntries(["strategy", "reading", "whole_fusion", "selection", "running"].map((name) => [name, model.get(name)])),
    copied: window.copied,
  };
}
