"""A click in a large graph takes little time in Python and in the page, as counted by `tests.browser.measure`."""

import pytest
from browser.measure import MOST_CLICK, Measured, Page, plan_of
from machine import allowed

pytestmark = [pytest.mark.browser, pytest.mark.benchmark]


def test_a_click_in_thousands_of_unfolded_ops_takes_little_processor_time(browser):
    found = Measured()
    page = Page(browser, plan_of(3000), Measured())
    page.unfold(found)
    page.cut_and_select(found)
    assert page.stage.errors == []
    page.close()
    assert min(found.click_cpu) < 2 * allowed(MOST_CLICK)  # work after the picture counts too
