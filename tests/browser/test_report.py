"""The report, opened from disk with no network: everything but editing and running."""

import re

import pytest
from browser.lab import PATIENCE

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def plans():
    """Two sums of a matrix, along rows and along columns: three segments, one more after an edit."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
        wide = fd.ops.cast(fd.ops.cast(x, dtype=DataType.Double), dtype=DataType.Float)
        a = fd.ops.exp(wide)
        rows = fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True])
        b = fd.ops.mul(a, rows)
        columns = fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])
        fd.add_output(fd.ops.add(fd.ops.mul(b, columns), y))
        fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), dims=[1]))
    plan = fl.segment(fd)
    return plan, fl.segment(fd, strategy="unfused")


@pytest.fixture
def open_report(browser, tmp_path):
    """Open a report from disk in a browser that reaches nothing; returns the page, what it asked for, its errors."""
    pages = []

    def open_it(*plans, theme="light", scripts=True, **options):
        path = fl.report(list(plans), tmp_path / "report.html", **options)
        context = browser.new_context(
            viewport={"width": 1400, "height": 1000}, color_scheme=theme, offline=True, java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        asked, errors = [], []
        page.on("request", lambda r: asked.append(r.url))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("dialog", lambda d: errors.append(f"dialog {d.message}"))
        page.goto(path.as_uri())
        pages.append(page)
        return page, asked, errors

    yield open_it
    for page in pages:
        page.context.close()


def op(page, name):
    return page.locator(f".fl-op:has(title:text-matches('^{name} ='))")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_one_selection_is_shared_by_graph_inspector_code_and_tables(open_report, shots, plans, theme):
    page, asked, errors = open_report(*plans, theme=theme, title="sums both ways")
    page.locator(".fx-tab").first.wait_for()
    assert page.locator(".fx-facts").inner_text().startswith(f"{len(plans[0].segments)} segments")
    assert page.locator("#fl-static").count() == 0
    node = page.locator(".fl-op").first
    name = node.evaluate("(g) => g.querySelector('title').textContent").partition(" ")[0]
    node.click()
    inspector = page.locator(".fx-inspector")
    inspector.get_by_text("Schedulers, as asked").wait_for()
    assert name in inspector.inner_text()
    inspector.get_by_role("button", name="Show source").click()
    lit = page.locator(".fx-panel .fx-lit")
    lit.first.wait_for()
    assert set(lit.evaluate_all("(all) => all.map((line) => line.dataset.name)")) == {name}
    page.screenshot(path=shots / f"report-source-{theme}.png")
    other = page.locator(f".fx-panel .fx-at:not([data-name='{name}'])").first
    aim = other.get_attribute("data-name")
    other.click()
    selected = page.locator(".fl-node.fx-selected title").first.evaluate("(t) => t.textContent")
    assert aim in selected
    page.get_by_role("tab", name="Table").click()
    row = page.locator(".fx-panel tr.fx-current")
    assert aim in row.inner_text()
    page.locator(".fx-panel tr[data-id^='op:']").last.click()
    assert page.locator(".fl-node.fx-selected").count() == 1
    assert page.locator(".fl-node.fx-selected title").first.evaluate("(t) => t.textContent") != selected
    tabs = "Segments Compare Timings Roofline Memory Layouts Passes Certificate"
    for tab in tabs.split():
        page.get_by_role("tab", name=tab).click()
        assert page.locator(".fx-panel").inner_text().strip() not in {"", "…"}
        page.screenshot(path=shots / f"report-{tab.lower()}-{theme}.png")
    assert errors == []
    assert [url for url in asked if not url.startswith("file:")] == []


def test_nothing_in_it_can_be_edited_or_run(open_report, plans):
    page, _, errors = open_report(plans[0])
    page.locator(".fx-tab").first.wait_for()
    for name in ("Undo", "Redo", "Reset", "Run", "Cut", "segment_set", "Look"):
        assert page.get_by_role("button", name=name, exact=True).count() == 0
    edge = page.locator(".fl-edge.fl-inside").first
    edge.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("c")
    page.keyboard.press("r")
    assert page.locator(".fx-facts").inner_text().startswith(f"{len(plans[0].segments)} segments")
    assert page.locator(".fx-inspector button", has_text="Cut").count() == 0
    assert errors == []


def test_the_plans_are_tabs_and_the_others_are_coloured_by_what_differs(open_report, shots, plans):
    page, _, errors = open_report(*plans)
    page.get_by_role("button", name=plans[1].name).click()
    count = len(plans[1].segments)
    page.locator(".fx-facts").get_by_text(f"{count} segments").wait_for()
    page.get_by_role("tab", name="Compare").click()
    difference = fl.diff(*plans)
    assert page.locator(".fl-op.fx-moved").count() == len(difference.moved)
    crossing = {c.name for c in difference.now_crossing}
    new = page.locator(".fl-edge.fx-new").evaluate_all("(all) => all.map((e) => e.dataset.id.split('|')[0])")
    assert set(new) == crossing
    assert difference.headline in page.locator(".fx-panel").inner_text()
    assert page.locator(".fx-panel table").last.locator("tbody tr").count() == 2
    page.screenshot(path=shots / "report-diff.png")
    assert errors == []


def test_the_log_is_stepped_through_until_the_groups_are_the_segments(open_report, shots, plans):
    page, _, errors = open_report(plans[0])
    page.locator(".fx-tab").first.wait_for()
    page.locator(".fl-node[tabindex='0']").focus()
    page.keyboard.press("j")
    slider = page.get_by_label("Decisions taken")
    slider.wait_for()
    assert page.locator(".fx-stepping").count() == 1
    steps = len(plans[0].decisions)
    joined = []
    for step in range(steps + 1):
        slider.fill(str(step))
        joined.append(page.locator(".fl-edge.fx-joined").count())
        if step == steps // 2:
            page.screenshot(path=shots / "report-steps.png")
    assert joined[0] == 0
    assert joined == sorted(joined)
    inside = page.locator(".fl-edge.fl-inside").evaluate_all("(all) => all.map((e) => e.dataset.id)")
    assert page.locator(".fl-edge.fx-joined").evaluate_all("(all) => all.map((e) => e.dataset.id)") == inside
    assert f"Decision {steps} of {steps}" in page.locator(".fx-status").inner_text()
    refused = next(a for a in plans[0].decisions if not a.accepted)
    slider.fill(str(refused.seq + 1))
    drawn = {n.partition(" ")[0] for n in page.locator(".fl-op.fx-refusing title").all_text_contents()}
    assert drawn == set(refused.names)
    page.locator(".fl-node[tabindex='0']").focus()
    page.keyboard.press("Escape")
    assert page.locator(".fx-stepping").count() == 0
    assert errors == []


def test_a_report_without_timings_says_how_one_gets_them(open_report, plans):
    page, _, errors = open_report(plans[0])
    page.get_by_role("tab", name="Timings").click()
    said = page.locator(".fx-panel").inner_text()
    assert said.startswith("The report contains no timings; fl.report(plans, path, fl.time(plans, inputs))")
    assert "Run" not in said
    assert errors == []


def test_playing_goes_on_by_itself_and_ends(open_report, plans):
    page, _, _ = open_report(plans[0])
    page.evaluate("() => { const every = setInterval; window.setInterval = (act, wait) => every(act, wait / 20); }")
    page.get_by_role("button", name="Decisions").click()
    page.get_by_role("button", name="Play or pause").click()
    steps = len(plans[0].decisions)
    page.locator(".fx-status").get_by_text(f"Decision {steps} of {steps}").wait_for()
    page.get_by_role("button", name="Play or pause").get_by_text("▶").wait_for()


def test_search_finds_ops_and_goes_from_one_to_the_next(open_report, plans):
    page, _, errors = open_report(plans[0])
    page.locator(".fl-node[tabindex='0']").focus()
    page.keyboard.press("/")
    page.keyboard.type("sum")
    sums = sum(e.op.name == "sum" for e in plans[0].fusion.exprs)
    page.get_by_text(f"{sums} found").wait_for()
    assert page.locator(".fl-op.fx-found").count() == sums
    seen = set()
    for _ in range(sums):
        page.keyboard.press("Enter")
        seen.add(page.locator(".fl-node.fx-selected").get_attribute("data-id"))
    assert len(seen) == sums
    page.keyboard.press("Escape")
    assert page.locator(".fx-searching").count() == 0
    assert errors == []


def test_segments_are_boxes_or_single_nodes(open_report, shots, plans):
    page, _, errors = open_report(plans[0])
    ops = page.locator(".fl-op").count()
    page.get_by_role("button", name="Segments", exact=True).click()
    page.locator(".fl-whole").first.wait_for()
    assert page.locator(".fl-whole").count() == len(plans[0].segments) < ops
    page.locator(".fl-whole").first.click()
    page.locator(".fx-inspector").get_by_role("heading", name="Segment 0:").wait_for()
    page.screenshot(path=shots / "report-segments-only.png")
    page.locator(".fl-node.fx-selected").focus()
    page.keyboard.press("o")
    page.locator(".fl-box").first.wait_for()
    assert page.locator(".fl-op").count() == ops
    assert errors == []


def test_everything_has_a_role_and_a_name(open_report, plans):
    page, _, _ = open_report(*plans)
    page.locator(".fx-tab").first.wait_for()
    page.locator(".fl-op").first.click()
    unnamed = """(all) => all.filter((e) => e.offsetParent !== null && !(
        e.getAttribute('aria-label') || e.textContent.trim() || e.title || (e.labels && e.labels.length)
      )).map((e) => e.outerHTML)"""
    for tab in page.locator(".fx-tab").all():
        tab.click()
        assert tab.get_attribute("aria-selected") == "true"
        assert page.locator("button, select, input, [role=img]").evaluate_all(unnamed) == []
        assert page.locator(".fx-panel th:not([scope])").count() == 0
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("heading", level=1).inner_text() == plans[0].name
    assert page.get_by_role("tablist").count() == 1
    for item in page.locator(".fl-node, .fl-edge").all():
        assert item.get_attribute("role") == "button"
        assert item.evaluate("(g) => g.getAttribute('aria-label') || g.querySelector('title').textContent")
    assert page.locator(".fl-node[tabindex='0'], .fl-edge[tabindex='0']").count() == 1
    assert page.locator(".fx-status").get_attribute("aria-live") == "polite"


def test_hostile_text_stays_text(open_report, plans):
    page, asked, errors = open_report(plans[0].renamed(HOSTILE), plans[1], title=HOSTILE)
    page.locator(".fx-tab").first.wait_for()
    assert page.locator(".fx-title").inner_text() == HOSTILE
    assert page.title() == HOSTILE
    assert page.locator("img").count() == 0
    assert errors == []
    assert [url for url in asked if not url.startswith("file:")] == []


def test_without_scripts_the_plan_can_still_be_read(open_report, plans):
    page, _, _ = open_report(plans[0], scripts=False)
    assert page.locator("#fl-static svg").count() == 1
    assert page.locator("#fl-static table tbody tr").count() == len(plans[0].segments)
    assert re.search(rf"{len(plans[0].segments)}\s*segments", page.locator("#fl-static").inner_text())


def test_a_link_leads_to_the_plan_the_selection_and_the_tab(open_report, plans):
    page, asked, errors = open_report(*plans)
    page.get_by_role("button", name="unfused").click()
    page.locator(".fl-op").last.click()
    page.get_by_role("tab", name="Memory").click()
    selected = page.locator(".fl-node.fx-selected").get_attribute("data-id")
    page.get_by_role("button", name="Copy as code").click()
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("() => location.hash.includes('plan=')")
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.locator(".fx-inspector").get_by_text("Schedulers, as asked").wait_for()
    assert page.locator(".fl-node.fx-selected").get_attribute("data-id") == selected
    assert page.locator("[aria-label=Strategy] [aria-pressed=true]").inner_text() == plans[1].name
    assert page.get_by_role("tab", name="Memory").get_attribute("aria-selected") == "true"
    # The same link in a report without that plan: it says so, and shows the Python that makes the plan.
    other, _, problems = open_report(plans[0])
    other.goto(other.url + link[link.index("#") :])  # the page loads itself again
    other.get_by_text("The link is to a plan that this report does not hold").wait_for()
    assert plans[1].to_python() == other.locator(".fx-inspector pre").inner_text()
    assert [url for url in asked if not url.startswith(("file:", "about:", "blob:"))] == []
    assert errors == problems == []
