"""The findings of axe-core in a part of a page; its script comes with a package, so nothing is fetched."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# The rules for the states of a theme: all in the light one, since a theme changes only colours.
RULES: dict[str, tuple[str, ...]] = {"light": (), "dark": ("color-contrast",)}
RUN = """async ([selector, rules]) => {
  const moving = document.getAnimations().filter((one) => one.effect.getComputedTiming().endTime < Infinity);
  await Promise.allSettled(moving.map((one) => one.finished));  // what fades in has too little contrast until then
  const given = { resultTypes: ['violations'], preload: false };  // its preloading reads all style sheets of JupyterLab
  const only = rules.length ? { runOnly: { type: 'rule', values: rules } } : {};
  const found = await window.axe.run(selector, { ...given, ...only });
  return found.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical').flatMap(
    (v) => v.nodes.map((n) => `${v.id}: ${n.html.slice(0, 200)} ${n.any.map((c) => c.message).join(' ')}`));
}"""


def serious_findings(page: Page, selector: str = ".fl-explorer", *, rules: tuple[str, ...] = ()) -> list[str]:
    """Return the serious and critical findings below a selector, each with its element.

    ``rules`` are the ids of the rules to check; all of them if empty.
    """
    if not page.evaluate("() => Boolean(window.axe)"):
        script = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
        page.evaluate(f"() => {{ {script} }}")
    found: list[str] = page.evaluate(RUN, [selector, list(rules)])
    return found
