"""Browser tests wait for what they assert: the page responds some time after a click."""

import ast
from pathlib import Path

import pytest

BROWSER = Path(__file__).resolve().parents[1] / "browser"
# Methods with which Playwright reads the page without waiting, and the check that does so.
READS = {
    "all_inner_texts", "all_text_contents", "bounding_box", "count", "evaluate", "evaluate_all", "get_attribute",
    "inner_html", "inner_text", "input_value", "is_checked", "is_disabled", "is_editable", "is_enabled", "is_hidden",
    "is_visible", "serious_findings", "text_content", "title",
}  # fmt: skip
SETTLED = "# settled"


def immediate_reads(source: str) -> list[str]:
    """The assertions in a module's source that read a page without waiting, and do not state why that is enough."""
    lines, found = source.splitlines(), []
    for one in ast.walk(ast.parse(source)):
        if not isinstance(one, ast.Assert) or any(SETTLED in line for line in lines[one.lineno - 1 : one.end_lineno]):
            continue
        for call in ast.walk(one.test):
            match call:
                case ast.Call(func=ast.Attribute(attr="count" | "title"), args=[_, *_]):  # of a text or a list
                    continue
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in READS:
                    found.append(f"line {one.lineno}: {ast.unparse(one)}")
    return found


def test_no_browser_test_asserts_what_a_page_shows_at_once():
    files = sorted(BROWSER.glob("*.py"))
    assert len(files) > 20
    found = {path.name: reads for path in files if (reads := immediate_reads(path.read_text("utf-8")))}
    assert not found, f"write `expect(...)` or `eventually(...)` of tests/browser/waiting.py: {found}"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("assert rows.count() == 2\n", 1),
        ("assert not page.locator('b').is_visible()\n", 1),
        ("assert serious_findings(page) == []\n", 1),
        ("assert rows.count() == 2  # settled: the page cannot change any more\n", 0),
        ("assert said.count('T0') == 2\n", 0),
        ("expect(rows).to_have_count(2)\n", 0),
    ],
)
def test_the_check_itself(source, count):
    assert len(immediate_reads(source)) == count
