"""Questions of lessons in JupyterLab: Run All reveals nothing; an answer in the control does, and so does Skip."""

import pytest
from browser.waiting import expect

pytestmark = pytest.mark.browser

ASK = """\
from fuser_lab.teaching import predict, score
first = predict("How many segments?", None)
first"""
TELL = 'told = first.reveal(12345, because="Counted.")\ntold'
CHOOSE = 'second = predict("Who takes it?", choices=["resize", "pointwise"])\nsecond'
TELL_TOO = 'also = second.reveal("resize", because="It slices.")\nalso'


def test_run_all_tells_nothing_until_a_question_is_answered_or_skipped(open_explorer, shots):
    desk = open_explorer("Explorer(plan, [], timer=timer)", ASK, TELL, CHOOSE, TELL_TOO)
    page = desk.page
    desk.show_cell("second.reveal")
    page.get_by_placeholder("your prediction").wait_for()
    outputs = page.locator(".jp-OutputArea-output")
    outputs.get_by_text("The answer stays hidden until the question").first.wait_for()
    expect(page.get_by_text("As predicted")).to_have_count(0)
    for hidden in ("Counted.", "It slices.", "Replace None with your prediction"):
        expect(outputs.get_by_text(hidden).first).to_be_hidden()
    page.get_by_placeholder("your prediction").fill("12,345")
    page.get_by_role("button", name="Answer").first.click()
    page.get_by_text("✓ As predicted: 12,345.").wait_for()
    page.get_by_role("button", name="Skip").last.click()
    page.get_by_text("The answer: resize.").wait_for()
    page.screenshot(path=shots / "question.png")
    assert desk.complaints == []
