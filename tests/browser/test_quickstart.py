import pytest
from browser.lab import open_notebook
from browser.waiting import eventually, expect

pytestmark = pytest.mark.browser

QUICKSTART = "00_quickstart.ipynb"


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_the_quickstart_from_the_first_cell_to_the_timing_table(lab, browser, shots, theme):
    if not (lab.root / QUICKSTART).exists():
        pytest.skip(f"notebooks/{QUICKSTART} is not there yet")
    desk, errors = open_notebook(lab, browser, QUICKSTART, theme=theme)
    assert errors == []
    desk.show_cell('view="decisions"')
    now = desk.explorer.locator(".fx-decision.fx-now")
    expect(now).to_contain_text("T4 expands ")  # the reason, and the keys, without a click
    for key in "jkp":
        expect(desk.explorer.locator(".fx-player").get_by_text(key, exact=True)).to_be_visible()
    desk.explorer.screenshot(path=shots / f"quickstart-player-{theme}.png")
    desk.explorer.press("j")
    expect(now).to_contain_text("accepted as reduction")
    desk.explorer.press("Escape")
    expect(now).to_have_count(0)
    desk.has_segments(2)
    desk.settle()
    eventually(desk.is_centred, wanted=True)
    total, took = desk.sum_result(), []
    took.append(desk.click_edge(total, "inside"))
    desk.has_segments(3)
    desk.settle()
    desk.explorer.screenshot(path=shots / f"quickstart-cut-{theme}.png")
    took.append(desk.click_edge(total, "boundary", mouse=False))
    desk.has_segments(2)
    took.append(desk.click_edge(total, "inside", mouse=False))
    desk.has_segments(3)
    assert min(took) > 0
    desk.explorer.get_by_role("button", name="Run").click()
    desk.explorer.get_by_text("Done: ").wait_for()
    expect(desk.explorer.locator(".fx-table .fx-total")).to_have_count(2)
    expect(desk.explorer.locator(".fx-table thead")).to_contain_text("CPU")
    desk.page.screenshot(path=shots / f"quickstart-{theme}.png")
    assert desk.complaints == []
    assert desk.strangers == []
