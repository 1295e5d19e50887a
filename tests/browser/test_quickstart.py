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
    desk.show_cell("fl.explore(fd")
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
    desk.explorer.get_by_text("Done. The table shows medians.").wait_for()
    expect(desk.explorer.locator(".fx-table .fx-total")).to_have_count(2)
    expect(desk.explorer.locator(".fx-table thead")).to_contain_text("CPU")
    desk.page.screenshot(path=shots / f"quickstart-{theme}.png")
    assert desk.complaints == []
    assert desk.strangers == []
