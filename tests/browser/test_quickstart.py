import pytest
from browser.lab import open_notebook

pytestmark = pytest.mark.browser

QUICKSTART = "00_quickstart.ipynb"


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_the_quickstart_from_the_first_cell_to_the_timing_table(lab, browser, shots, theme):
    if not (lab.root / QUICKSTART).exists():
        pytest.skip(f"notebooks/{QUICKSTART} is not there yet")
    desk, errors = open_notebook(lab, browser, QUICKSTART, theme=theme)
    assert errors == []
    desk.show_cell("fl.explore(fd")
    assert desk.facts().startswith("2 segments")
    assert desk.is_centred()
    total, took = desk.sum_result(), []
    took.append(desk.click_edge(total, "inside"))
    assert desk.facts().startswith("3 segments")
    desk.page.wait_for_timeout(300)
    desk.explorer.screenshot(path=shots / f"quickstart-cut-{theme}.png")
    took.append(desk.click_edge(total, "boundary", mouse=False))
    assert desk.facts().startswith("2 segments")
    took.append(desk.click_edge(total, "inside", mouse=False))
    assert desk.facts().startswith("3 segments")
    assert min(took) > 0
    desk.explorer.get_by_role("button", name="Run").click()
    desk.explorer.get_by_text("Done. The table shows medians.").wait_for()
    assert desk.explorer.locator(".fx-table .fx-total").count() == 2
    assert "CPU" in desk.explorer.locator(".fx-table thead").inner_text()
    desk.page.screenshot(path=shots / f"quickstart-{theme}.png")
    assert desk.complaints == []
    assert desk.strangers == []
