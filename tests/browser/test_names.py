"""What users call tensors, and the sentence about the largest gain, as the page shows them."""

import pytest
from browser.stage import Stage
from browser.waiting import expect
from fuser_lab_widgets import Explorer

import fuser_lab as fl

pytestmark = pytest.mark.browser

SCRIPT = """
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    total = fd.ops.sum(x, dims=[0], keepdim=True)
    total = fd.ops.mul(total, total)
    a_name_that_is_longer_than_its_box = fd.ops.add(x, total)
    fd.add_output(a_name_that_is_longer_than_its_box)
inputs = [torch.randn(4096, 4096)]
fd.execute(inputs)
"""
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def plan():
    return fl.segment(*fl.load_repro(SCRIPT))


def show(browser, plan, **look):
    stage = Stage(browser, **look)
    stage.show(Explorer(plan, []))
    stage.settle()
    stage.rest()
    return stage


def name_in(stage, op):
    """Return the visible text of the name in an op's box."""
    return stage.root.locator(".fl-node.fl-op", has_text=op).first.evaluate(
        "(e) => [...e.querySelectorAll('.fl-name, .fl-name tspan')].filter((t) => t.checkVisibility())"
        ".map((t) => t.firstChild.data.trim()).join(' ')",
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_boxes_say_the_variable_at_the_scale_at_which_the_picture_opens(browser, plan, theme):
    stage = show(browser, plan, theme=theme, size=(1280, 800))
    assert name_in(stage, "mul").startswith("mul total")
    assert name_in(stage, "add").startswith("add a_name_that_is_lo…")
    whole = stage.root.locator(".fl-node.fl-op", has_text="add").first.locator("title")
    assert "a_name_that_is_longer_than_its_box T" in whole.text_content()  # settled
    assert stage.errors == []
    stage.close()


def test_sentences_buttons_and_tables_say_it_before_the_tensors_own_name(browser, plan):
    stage = show(browser, plan)
    tensors = [tensor for name, tensor in plan.names if name == "total"]
    edge = stage.root.locator(f'.fl-edge.fl-boundary[data-id^="{tensors[1]}|"]').first
    edge.locator(".fl-hit").dispatch_event("click", {"shiftKey": True})
    stage.rest()
    inspector = stage.root.locator(".fx-inspector")
    expect(inspector.get_by_role("button", name=f"Pass total {tensors[1]} as Half")).to_be_visible()
    expect(inspector.locator("h3")).to_contain_text(f"total {tensors[1]}")
    expect(inspector.locator("h3 small")).to_have_text(tensors[1])
    sizes = inspector.locator("small").evaluate_all("(all) => all.map((e) => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 10
    assert stage.errors == []
    stage.close()


def test_names_are_text_and_never_markup(browser, plan):
    kept = {name: getattr(plan, name) for name in plan.__dataclass_fields__ if name not in {"_cache", "_lock"}}
    hostile = type(plan)(**kept | {"names": tuple((HOSTILE, tensor) for _, tensor in plan.names)})
    stage = show(browser, hostile)
    stage.root.locator(".fl-edge.fl-boundary .fl-hit").first.dispatch_event("click", {"shiftKey": True})
    stage.rest()
    expect(stage.root.locator(".fx-inspector h3")).to_contain_text(HOSTILE)
    expect(stage.root.locator("img")).to_have_count(0)
    assert stage.errors == []
    stage.close()


def test_the_largest_gain_has_a_button_that_makes_the_edit(browser):
    plan = fl.segment(*fl.example("softmax"), strategy="unfused")
    stage = show(browser, plan)
    stage.rest()
    gain = plan.advice()
    expect(stage.root.get_by_role("note", name="Largest known gain")).to_contain_text(str(gain))
    before = stage.root.locator(".fx-canvas").bounding_box()
    stage.root.locator(".fx-advice button").click()
    stage.rest()
    assert stage.explorer.plan.hash == plan.with_edit(gain.edit).hash
    moved = stage.root.locator(".fl-node.fx-moved")
    assert stage.explorer.plan.change_from(plan).difference.moved
    expect(moved).to_have_count(len(stage.explorer.plan.change_from(plan).difference.moved))
    assert stage.root.locator(".fx-canvas").bounding_box() == before  # settled
    stage.root.get_by_role("button", name="Undo").click()
    stage.rest()
    expect(moved).to_have_count(0)
    stage.close()


def test_the_answer_to_an_edit_has_more_room_than_all_other_sentences(browser):
    stage = show(browser, fl.segment(*fl.example("sum_broadcast_add")), size=(1024, 760))
    advice = stage.root.locator(".fx-advice span")
    assert advice.evaluate("(words) => words.scrollHeight - words.clientHeight") <= 1  # settled
    stage.root.locator(".fl-edge.fl-inside").first.focus()
    stage.page.keyboard.press("s")
    stage.rest()
    expect(stage.status).to_contain_text("because a hint keeps")
    expect(stage.root.locator(".fx-head .fx-badge")).to_have_text("segment_set(total T2)")
    parts = (".fx-feedback", ".fx-status", ".fx-advice")
    row, answer, other = (stage.root.locator(part).bounding_box()["width"] for part in parts)
    assert answer > 0.4 * row > other > 0
    assert stage.errors == []
    stage.close()


def test_a_narrow_head_shows_the_whole_title_and_buttons_stay_where_they_are_during_a_run(browser, plan):
    stage = Stage(browser, size=(640, 700))
    stage.show(Explorer(plan, [], title="inference region 1 of drop"))
    stage.rest()
    cut_off = stage.root.locator(".fx-title").evaluate("(title) => title.scrollWidth - title.clientWidth")
    assert cut_off <= 0
    run = stage.root.locator(".fx-primary")
    widths = run.evaluate(
        "(run) => { const idle = run.offsetWidth; run.classList.remove('fx-primary'); run.textContent = 'Cancel';"
        " return [idle, run.offsetWidth]; }",
    )
    assert widths[0] == widths[1]
    stage.close()
