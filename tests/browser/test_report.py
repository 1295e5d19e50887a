"""The report, opened from disk with no network: everything but editing and running."""

import re

import pytest
from browser.pages import open_page
from browser.tools import is_open, open_view, tool, view_names
from browser.waiting import eventually, expect, until

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
    """Open a report from disk in a browser without network; returns the page, its requests, its errors."""
    opened = []

    def open_it(*plans, theme="light", **options):
        path = fl.report(list(plans), tmp_path / "report.html", **options)
        place = open_page(browser, size=(1400, 1000), theme=theme)
        opened.append(place)
        place.page.goto(path.as_uri())
        return place.page, place.requests, place.errors

    yield open_it
    for place in opened:
        place.close()


def has_segments(page, count):
    expect(page.locator(".fx-facts")).to_have_text(re.compile(rf"^{count} segment"))


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_one_selection_is_shared_by_graph_inspector_code_and_tables(open_report, shots, plans, theme):
    page, asked, errors = open_report(*plans, theme=theme, title="sums both ways")
    page.locator(".fx-tab").first.wait_for()
    has_segments(page, len(plans[0].segments))
    expect(page.locator("#fl-static")).to_have_count(0)
    node = page.locator(".fl-op").first
    name = node.evaluate("(g) => g.querySelector('title').textContent").partition(" ")[0]
    node.click()
    inspector = page.locator(".fx-inspector")
    inspector.get_by_text("Schedulers, in order").wait_for()
    expect(inspector).to_contain_text(name)
    inspector.get_by_role("button", name="Show source").click()
    lit = page.locator(".fx-panel .fx-lit")
    eventually(lambda: set(lit.evaluate_all("(all) => all.map((line) => line.dataset.name)")), {name})
    page.screenshot(path=shots / f"report-source-{theme}.png")
    other = page.locator(f".fx-panel .fx-at:not([data-name='{name}'])").first
    aim = other.get_attribute("data-name")
    other.click()
    title = page.locator(".fl-node.fx-selected title").first
    expect(title).to_contain_text(aim)
    selected = title.text_content()
    open_view(page, "graph")
    row = page.locator(".fx-panel tr.fx-current")
    expect(row).to_contain_text(aim)
    page.locator(".fx-panel tr[data-id^='op:']").last.click()
    expect(page.locator(".fl-node.fx-selected")).to_have_count(1)
    expect(title).not_to_have_text(selected)
    for view in view_names(page):
        open_view(page, view)
        expect(page.locator(".fx-panel")).not_to_have_text(re.compile(r"^\s*$|…\s*$"))
        page.screenshot(path=shots / f"report-{view}-{theme}.png")
    assert errors == []
    assert [url for url in asked if not url.startswith("file:")] == []


def test_nothing_in_it_can_be_edited_or_run(open_report, plans):
    page, _, errors = open_report(plans[0])
    page.locator(".fx-tab").first.wait_for()
    for name in ("Undo", "Redo", "Reset", "Run", "Cut", "segment_set", "Look"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    edge = page.locator(".fl-edge.fl-inside").first
    edge.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("c")
    page.keyboard.press("r")
    page.locator(".fx-inspector .fx-facts-list").first.wait_for()  # Enter selected it
    has_segments(page, len(plans[0].segments))
    expect(page.locator(".fx-inspector button", has_text="Cut")).to_have_count(0)
    assert errors == []


def test_the_plans_are_tabs_and_the_others_are_coloured_by_what_differs(open_report, shots, plans):
    page, _, errors = open_report(*plans)
    page.get_by_role("button", name=plans[1].name).click()
    count = len(plans[1].segments)
    page.locator(".fx-facts").get_by_text(f"{count} segments").wait_for()
    open_view(page, "compare")
    difference = fl.diff(*plans)
    expect(page.locator(".fl-op.fx-moved")).to_have_count(len(difference.moved))
    crossing = {c.name for c in difference.now_crossing}
    names = "(all) => all.map((e) => e.dataset.id.split('|')[0])"
    eventually(lambda: set(page.locator(".fl-edge.fx-new").evaluate_all(names)), crossing)
    expect(page.locator(".fx-panel")).to_contain_text(difference.headline)
    expect(page.locator(".fx-panel table").last.locator("tbody tr")).to_have_count(2)
    page.screenshot(path=shots / "report-diff.png")
    assert errors == []


def test_the_log_is_stepped_through_until_the_groups_are_the_segments(open_report, shots, plans):
    page, _, errors = open_report(plans[0])
    page.locator(".fx-tab").first.wait_for()
    page.locator(".fl-node[tabindex='0']").focus()
    page.keyboard.press("j")
    slider = page.get_by_label("Decisions taken")
    slider.wait_for()
    expect(page.locator(".fx-stepping")).to_have_count(1)
    expect(page.locator(".fx-status")).to_contain_text("Decision 0 (1 of ")
    steps = len(plans[0].decisions)
    joined = []
    for step in range(steps + 1):
        slider.fill(str(step))
        said = f"({step} of {steps}): " if step else "No decision yet"
        expect(page.locator(".fx-status")).to_contain_text(said)
        joined.append(page.locator(".fl-edge.fx-joined").count())
        if step == steps // 2:
            page.screenshot(path=shots / "report-steps.png")
    assert joined[0] == 0
    assert joined == sorted(joined)
    inside = page.locator(".fl-edge.fl-inside").evaluate_all("(all) => all.map((e) => e.dataset.id)")
    eventually(lambda: page.locator(".fl-edge.fx-joined").evaluate_all("(all) => all.map((e) => e.dataset.id)"), inside)
    expect(page.locator(".fx-status")).to_contain_text(f"Decision {steps - 1} ({steps} of {steps})")
    refused = next(a for a in plans[0].decisions if not a.accepted)
    slider.fill(str(refused.seq + 1))
    titles = page.locator(".fl-op.fx-refusing title")
    eventually(lambda: {text.partition(" ")[0] for text in titles.all_text_contents()}, set(refused.names))
    page.locator(".fl-node[tabindex='0']").focus()
    page.keyboard.press("Escape")
    expect(page.locator(".fx-stepping")).to_have_count(0)
    assert errors == []


def test_an_op_that_two_groups_compute_again_does_not_join_them_in_the_log(open_report):
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=fl.DataType.Float) for _ in range(2))
        a = fd.ops.exp(x)
        fd.add_output(fd.ops.mul(y, fd.ops.broadcast(fd.ops.sum(a, dims=[0]), [True, False])))
        fd.add_output(fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, dims=[1]), [False, True])))
    plan = fl.segment(fd, [fl.spec((512, 512))] * 2)
    steps = len(plan.decisions)
    page, _, errors = open_report(plan)
    open_view(page, "decisions")
    page.get_by_label("Decisions taken").fill(str(steps))
    expect(page.locator(".fx-status")).to_contain_text(f"({steps} of {steps})")
    inside = page.locator(".fl-edge.fl-inside").evaluate_all("(all) => all.map((e) => e.dataset.id)")
    eventually(lambda: page.locator(".fl-edge.fx-joined").evaluate_all("(all) => all.map((e) => e.dataset.id)"), inside)
    hue = "(all) => all.map((e) => e.style.getPropertyValue('--fx-group'))"
    eventually(lambda: set(page.locator(".fl-op.fx-joined").evaluate_all(hue)), {"var(--fl-h0)", "var(--fl-h1)"})
    assert errors == []


def test_a_report_without_timings_says_how_one_gets_them(open_report, plans):
    page, _, errors = open_report(plans[0])
    open_view(page, "timings")
    start = "The report contains no timings; fl.report(plans, path, fl.time(plans, inputs))"
    said = until(page.locator(".fx-panel").inner_text, lambda text: text.startswith(start))
    assert "Run" not in said
    assert errors == []


def test_playing_goes_on_by_itself_and_ends(open_report, plans):
    page, _, _ = open_report(plans[0])
    page.evaluate("() => { const every = setInterval; window.setInterval = (act, wait) => every(act, wait / 20); }")
    open_view(page, "decisions")
    page.get_by_role("button", name="Play or pause").click()
    steps = len(plans[0].decisions)
    page.locator(".fx-status").get_by_text(f"Decision {steps - 1} ({steps} of {steps})").wait_for()
    page.get_by_role("button", name="Play or pause").get_by_text("▶").wait_for()


def test_search_finds_ops_and_goes_from_one_to_the_next(open_report, plans):
    page, _, errors = open_report(plans[0])
    page.locator(".fl-node[tabindex='0']").focus()
    page.keyboard.press("/")
    page.keyboard.type("sum")
    sums = sum(e.op.name == "sum" for e in plans[0].fusion.exprs)
    page.get_by_text(f"{sums} found").wait_for()
    expect(page.locator(".fl-op.fx-found")).to_have_count(sums)
    seen = set()
    for _ in range(sums):
        page.keyboard.press("Enter")
        selected = page.locator(".fl-node.fx-selected")
        seen.add(until(lambda at=selected: at.get_attribute("data-id"), lambda at: at not in seen))
    assert len(seen) == sums
    page.keyboard.press("Escape")
    expect(page.locator(".fx-searching")).to_have_count(0)
    assert errors == []


def test_segments_are_boxes_or_single_nodes(open_report, shots, plans):
    page, _, errors = open_report(plans[0])
    page.locator(".fl-op").first.wait_for()
    ops = page.locator(".fl-op").count()
    tool(page, "Segments").click()
    page.locator(".fl-whole").first.wait_for()
    expect(page.locator(".fl-whole")).to_have_count(len(plans[0].segments))
    assert len(plans[0].segments) < ops
    page.locator(".fl-whole").first.click()
    page.locator(".fx-inspector").get_by_role("heading", name="Segment 0:").wait_for()
    page.screenshot(path=shots / "report-segments-only.png")
    page.locator(".fl-node.fx-selected").focus()
    page.keyboard.press("o")
    page.locator(".fl-box").first.wait_for()
    expect(page.locator(".fl-op")).to_have_count(ops)
    assert errors == []


def test_everything_has_a_role_and_a_name(open_report, plans):
    page, _, _ = open_report(*plans)
    page.locator(".fx-tab").first.wait_for()
    page.locator(".fl-op").first.click()
    page.locator(".fx-inspector").get_by_text("Schedulers, in order").wait_for()
    unnamed = """(all) => all.filter((e) => e.offsetParent !== null && !(
        e.getAttribute('aria-label') || e.textContent.trim() || e.title || (e.labels && e.labels.length)
      )).map((e) => e.outerHTML)"""
    for view in view_names(page):
        open_view(page, view)
        eventually(lambda: page.locator("button, select, input, [role=img]").evaluate_all(unnamed), [])
        expect(page.locator(".fx-panel th:not([scope])")).to_have_count(0)
    expect(page.get_by_role("main")).to_have_count(1)
    expect(page.get_by_role("heading", level=1)).to_have_text(plans[0].name)
    expect(page.get_by_role("tablist")).to_have_count(2)
    names = "(all) => all.map((g) => g.getAttribute('aria-label') || g.querySelector('title').textContent)"
    assert all(page.locator(".fl-node, .fl-edge").evaluate_all(names))  # settled: the picture is drawn
    expect(page.locator(":is(.fl-node, .fl-edge):not([role=button])")).to_have_count(0)
    expect(page.locator(".fl-node[tabindex='0'], .fl-edge[tabindex='0']")).to_have_count(1)
    expect(page.locator(".fx-status")).to_have_attribute("aria-live", "polite")


def test_hostile_text_stays_text(open_report, plans):
    page, asked, errors = open_report(plans[0].renamed(HOSTILE), plans[1], title=HOSTILE)
    page.locator(".fx-tab").first.wait_for()
    expect(page.locator(".fx-title")).to_have_text(HOSTILE)
    expect(page).to_have_title(HOSTILE)
    expect(page.locator("img")).to_have_count(0)
    assert errors == []
    assert [url for url in asked if not url.startswith("file:")] == []


def test_without_scripts_the_plan_can_still_be_read(browser, plans, tmp_path):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(fl.report([plans[0]], tmp_path / "report.html").as_uri())
    expect(page.locator("#fl-static svg")).to_have_count(1)
    expect(page.locator("#fl-static table tbody tr")).to_have_count(len(plans[0].segments))
    expect(page.locator("#fl-static")).to_have_text(re.compile(rf"{len(plans[0].segments)}\s*segments"))
    context.close()


def test_a_link_leads_to_the_plan_the_selection_and_the_tab(open_report, plans):
    page, asked, errors = open_report(*plans)
    page.get_by_role("button", name="unfused").click()
    expect(page.get_by_role("button", name="unfused")).to_have_attribute("aria-pressed", "true")
    page.locator(".fl-op").last.click()
    open_view(page, "memory")
    selected = page.locator(".fl-node.fx-selected").get_attribute("data-id")
    page.get_by_role("button", name="Copy as code").click()
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("() => location.hash.includes('plan=')")
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.locator(".fx-inspector").get_by_text("Schedulers, in order").wait_for()
    expect(page.locator(".fl-node.fx-selected")).to_have_attribute("data-id", selected)
    expect(page.locator("[aria-label=Strategy] [aria-pressed=true]")).to_have_text(plans[1].name)
    is_open(page, "memory")
    # The same link in a report without that plan: a message, and the Python code that makes the plan.
    other, _, problems = open_report(plans[0])
    other.goto(other.url + link[link.index("#") :])  # the page reloads itself
    other.get_by_text("The link refers to a plan that this report does not contain").wait_for()
    eventually(other.locator(".fx-inspector pre").inner_text, plans[1].to_python())
    assert [url for url in asked if not url.startswith(("file:", "about:", "blob:"))] == []
    assert errors == problems == []
