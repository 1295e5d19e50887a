"""The optimal plan, certificates and passes in the explorer: computed on request, for a real plan."""

import re
import threading
import time

import pytest

pytest.importorskip("anywidget")

from fuser_lab_widgets import answers
from fuser_lab_widgets.background import Background
from unit.widgets import drawn

import fuser_lab as fl
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.process.ending import ending_when
from fuser_lab.segmentation.ideals import Budget
from tests.unit.widgets.test_explorer import Page


@pytest.fixture
def page():
    fd, specs = fl.example("sum_broadcast_add", "full")
    explorer = fl.explore(fd, specs)
    yield Page(explorer)
    explorer.close()


def test_options_of_cutting_are_refused_for_what_is_cut_already(page):
    with pytest.raises(ArgumentTypeError, match="explore: strategy is an option of cutting .*, given a plan"):
        fl.explore(page.explorer.plan, strategy="optimal")


def test_the_optimal_plan_is_searched_when_it_is_asked_for(page):
    explorer = page.explorer
    assert "optimal" in [key for key, *_ in explorer.history["controls"][0][2]]
    assert explorer.history["searching"] == ""
    assert not explorer.certificate
    assert page.send("strategy", strategy="optimal").startswith(("Searching for the optimal plan", "Optimal: "))
    explorer.wait(300)
    assert explorer.plan.strategy == "optimal"
    assert explorer.history["strategy"] == "optimal"
    assert explorer.history["searching"] == ""
    assert explorer.status["text"] == f"Optimal: {len(explorer.plan.segments)} segments, proved by search."
    assert explorer.certificate["hash"] == explorer.scene["hash"]
    assert explorer.certificate["status"] == str(explorer.plan.certificate()).splitlines()[0]
    page.send("undo")
    assert explorer.plan.strategy == "bottom_up"
    assert page.send("strategy", strategy="optimal").startswith("Optimal: ")


def test_while_it_searches_the_plan_can_be_edited_and_a_second_search_is_refused(page, monkeypatch):
    explorer = page.explorer
    gate = threading.Event()
    make = explorer._session.make

    def held(*asked):
        gate.wait(300)
        return make(*asked)

    monkeypatch.setattr(explorer._session, "make", held)
    page.send("strategy", strategy="optimal")
    assert explorer.history["searching"] == "optimal"
    assert page.send("certificate") == "A search is in progress; wait for it to end, or cancel it."
    inside = next(edge[0] for edge in drawn.edges(explorer) if edge[1] == "inside")
    assert page.send("act", id=inside).startswith("Cut at ")
    edited = explorer.plan
    gate.set()
    explorer.wait(300)
    assert explorer.plan is edited
    assert explorer.history["edits"]
    assert explorer.history["searching"] == ""
    assert explorer.status["text"] == "The optimal plan is ready: 2 segments, proved by search."
    assert "certificate" not in explorer.panels
    action = dict(explorer.status["action"])
    assert action.pop("label") == "Show it"
    page.send(action.pop("type"), **action)
    assert explorer.plan.strategy == "optimal"
    assert not explorer.plan.edits
    assert "action" not in explorer.status
    page.send("panel", name="certificate")
    assert "proved by search" in explorer.panels["certificate"]["html"]
    page.send("undo")
    assert explorer.plan is edited
    page.send("panel", name="certificate")
    assert "Search for a cheaper plan" in explorer.panels["certificate"]["html"]


@pytest.mark.parametrize("what", ["optimal", "certificate"])
def test_a_search_can_be_cancelled(page, monkeypatch, what):
    explorer = page.explorer
    gate, ended = threading.Event(), threading.Event()
    make, certificate = explorer._session.make, answers.certificate

    def held(made, *given):
        gate.wait(300)
        ended.set() if Budget().is_late else None
        return made(*given)

    monkeypatch.setattr(explorer._session, "make", lambda *asked: held(make, *asked))
    monkeypatch.setattr(answers, "certificate", lambda plan: held(certificate, plan))
    started = page.send("strategy", strategy="optimal") if what == "optimal" else page.send("certificate")
    assert ", 30 s at most" in started
    assert explorer.history["searching"] == what
    page.send("panel", name="certificate")
    assert "Cancel the search" in explorer.panels["certificate"]["html"]
    thread = explorer._search.background._thread
    before = explorer.plan
    assert page.send("stop") == "The search was cancelled."
    assert explorer.history["searching"] == ""
    assert explorer.plan is before
    gate.set()
    thread.join(300)
    assert ended.is_set(), "a search is cancelled if its result is not awaited"
    assert explorer.plan is before
    assert not explorer.certificate
    assert explorer.status["text"] == "The search was cancelled."
    assert page.send("stop") == "No search is in progress."
    page.send("certificate")
    explorer.wait(300)
    assert explorer.certificate["status"]


def test_a_search_ends_in_time_unless_the_options_say_when(monkeypatch):
    fd, specs = fl.example("llama3_rope_backward")
    with ending_when(lambda: True):
        ended = fl.segment(fd, specs, strategy="optimal").certificate()
    assert ended.bound <= ended.known <= ended.cost
    assert ended.status.startswith("at most ")
    monkeypatch.setattr("fuser_lab_widgets.parts.search.SECONDS", 0.0)
    page = Page(fl.explore(fd, specs))
    assert ", 0 s at most" in page.send("certificate")
    page.explorer.wait(300)
    assert page.explorer.certificate["status"].startswith("at most ")
    page.explorer.close()
    page = Page(fl.explore(fd, specs, options=fl.SegmenterOptions(search_seconds=0.5)))
    assert "at most" not in page.send("certificate")
    page.explorer.close()


def test_a_plan_is_called_optimal_only_if_that_is_proved(monkeypatch):
    monkeypatch.setattr("fuser_lab_widgets.parts.search.SECONDS", 0.0)
    page = Page(fl.explore(*fl.example("llama3_rope_backward")))
    page.send("strategy", strategy="optimal")
    page.explorer.wait(300)
    assert not page.explorer.certificate["proved"]
    assert page.explorer.status["text"].startswith("Cheapest found: ")
    assert page.explorer.scene["title"] == "cheapest found"
    page.send("undo")
    assert page.send("strategy", strategy="optimal").startswith("Cheapest found: ")
    page.explorer.close()


def test_a_search_that_fails_says_so(page, monkeypatch):
    def broken(*_):
        message = "kaput"
        raise KeyError(message)

    monkeypatch.setattr(page.explorer._session, "make", broken)
    page.send("strategy", strategy="optimal")
    page.explorer.wait(300)
    assert page.explorer.status["text"] == "The search failed: KeyError: 'kaput'"
    assert page.explorer.status["kind"] == "error"
    assert page.explorer.history["searching"] == ""
    assert page.explorer.plan.strategy == "bottom_up"


def test_any_plan_can_be_asked_for_its_certificate(page):
    explorer = page.explorer
    page.send("certificate")
    explorer.wait(300)
    found = explorer.certificate
    certificate = explorer.plan.certificate()
    assert found["hash"] == explorer.plan.hash
    assert found["costs"][0] == [certificate.time_text(certificate.cost), "this plan"]
    assert [text for _, text in found["terms"]] == [term.text for term in certificate.terms if term.cost]
    acked = explorer.status["n"]
    page.send("certificate")
    assert explorer.status["n"] == acked


def test_the_passes_tell_what_they_changed_and_which_were_off():
    with fl.FusionDefinition() as casts:
        x = casts.define_tensor([8, 8], contiguity=True)
        wide = casts.ops.cast(casts.ops.cast(x, dtype=fl.DataType.Double), dtype=fl.DataType.BFloat16)
        casts.add_output(casts.ops.neg(wide))
    options = fl.SegmenterOptions(disabled_passes=frozenset({"move_pad"}))
    page = Page(fl.explore(casts, options=options))
    page.send("panel", name="passes")
    html = page.explorer.panels["passes"]["html"]
    rows = {re.search("<b>(.*?)</b>", row).group(1): row for row in re.findall(r"<li.*?</li>", html, re.DOTALL)}
    assert "<details" in rows["consecutive_casts"]
    assert re.search(r'fx-gone">-[^<]*Double', rows["consecutive_casts"])
    assert ">switched off" in rows["move_pad"]
    assert ">nothing to do" in rows["remove_empty"]
    page.explorer.close()


def test_a_plan_without_a_cost_model_says_so(stubs):
    from fuser_lab_widgets import Explorer

    explorer = Explorer(stubs.sum_broadcast_add())
    page = Page(explorer)
    page.send("certificate")
    explorer.wait(300)
    assert "no cost model" in explorer.certificate["problem"]
    page.send("panel", name="passes")
    assert "has no record of its passes" in explorer.panels["passes"]["html"]
    explorer.close()


def test_who_waits_while_a_question_is_being_asked_waits_for_it_or_not_at_all(monkeypatch):
    background, begun = Background(), threading.Event()
    start = threading.Thread.start

    def slowly(thread):
        background.wait(0.01)  # as the kernel's thread may, while another thread asks
        start(thread)
        begun.set()

    monkeypatch.setattr(threading.Thread, "start", slowly)
    assert background.start(lambda: None, lambda *_: None)
    assert begun.is_set()
    background.wait(300)


def test_a_computation_that_begins_after_a_pause_begins_at_once_when_it_is_waited_for():
    background, told = Background(pause=600), []
    background.start(lambda: 1, lambda *answer: told.append(answer))
    assert (told, background.busy) == ([], True)
    background.wait(300)
    assert told == [(1, "")]


def test_the_first_picture_does_not_wait_for_predicted_times(monkeypatch):
    from fuser_lab_widgets import Explorer
    from fuser_lab_widgets.parts import picture

    threads, heat = [], picture.heat

    def recorded(*given):
        threads.append(threading.current_thread())
        return heat(*given)

    monkeypatch.setattr(picture, "heat", recorded)
    explorer = Explorer(fl.segment(*fl.example("softmax")))
    explorer.wait(300)
    assert threads
    assert threading.current_thread() not in threads
    assert [name for _, name, _ in explorer.heat["times"]] == ["predicted (H200)"]
    explorer.close()


def test_previews_of_an_explorer_end_when_it_is_closed(stubs, monkeypatch):
    from fuser_lab_widgets import Explorer, previews

    begun, ended = threading.Event(), threading.Event()

    def batches(_plan, _view, is_over):
        begun.set()
        while not is_over():
            time.sleep(0.01)
        ended.set()
        return iter(())

    monkeypatch.setattr(previews, "can_preview", lambda _plan: True)
    monkeypatch.setattr(previews, "in_batches", batches)
    explorer = Explorer(stubs.sum_broadcast_add())
    assert begun.wait(60)
    explorer.close()
    assert ended.wait(60)


def test_without_threads_a_computation_runs_when_it_is_waited_for(monkeypatch):
    def no_thread(_thread):
        raise RuntimeError

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    background, told = Background(), []
    assert background.start(lambda: 1, lambda answer, problem: told.append((answer, problem)))
    assert background.busy
    assert not background.start(lambda: 2, lambda *_: told.append("second"))
    background.wait()
    assert (told, background.busy) == ([(1, "")], False)
    background.start(lambda: 3, lambda *_: told.append("cancelled"))
    background.cancel()
    background.wait()
    assert told == [(1, "")]
