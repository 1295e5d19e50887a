"""The results of edits are shown before the click, and the reasons for further changes after it."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("anywidget")

from fuser_lab_widgets import Explorer, previews
from unit.widgets import drawn

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, examples


class Page:
    """Sends events as the page does."""

    def __init__(self, explorer):
        self.explorer, self.number = explorer, 0

    def send(self, kind, **data):
        self.number += 1
        self.explorer.events = [{"n": self.number, "type": kind, **data}]
        self.explorer.wait(300)
        return self.explorer.status["text"]

    def edge(self, tensor, kind):
        return next(e[0] for e in drawn.edges(self.explorer) if e[4] == tensor and e[1] == kind)


@pytest.fixture
def rope():
    example = examples.get("llama3_rope_backward")
    with FusionDefinition() as fd:
        example.define(fd, "full")
    explorer = Explorer(fl.segment(fd, example.specs("full")), strategies=["unfused"])
    explorer.wait(300)
    yield Page(explorer)
    explorer.close()


def test_what_edits_give_is_there_before_the_click(rope):
    foreseen = rope.explorer.foreseen["edges"]
    cut = foreseen[rope.edge("T12", "inside")]
    assert cut == [True, 0, "cut T12", f"{rope.explorer.plan.preview_cut('T12').change} (H200)"]
    assert cut[3].startswith("3 → 4 segments, +537 MB moved, +")
    legal, colour, name, words = foreseen[rope.edge("T28", "boundary")]
    assert (legal, colour, name) == (False, 0, "glue S0 and S1")
    assert words.startswith("No scheduler accepts segments 0 and 1 as one")


def test_after_an_edit_the_status_says_why_it_changed_more_than_it_names(rope):
    told = rope.send("cut", id=rope.edge("T4", "inside"))
    assert told.startswith("Cut at T4: ")
    assert " moved from S" in told
    assert "; 3 → 7 segments, +1.22 GB moved, +" in told
    assert ". The part before the cut, {T4, T7," in told
    assert told.endswith("it is segmented bottom-up into 3 segments.")
    last = rope.explorer.history["last"]
    assert last["step"] == "cut(T4)"
    assert len(last["because"]) == 2
    rope.send("undo")
    assert rope.explorer.history["last"] == {}
    rope.send("redo")
    assert rope.explorer.history["last"] == last
    rope.send("cut", id=rope.edge("T58", "inside"))
    assert rope.explorer.history["last"] == {}


def test_an_edit_that_is_refused_is_no_button_that_works(rope):
    rope.send("select", id=rope.edge("T28", "boundary"))
    glue = rope.explorer.answer["actions"][0]
    assert glue["label"] == "Glue S0 and S1"
    assert glue["refused"].startswith("No scheduler accepts segments 0 and 1 as one")
    rope.send("select", id=rope.edge("T12", "inside"))
    said = rope.explorer.answer
    assert "refused" not in said["actions"][0]
    assert said["preview"]["change"] == rope.explorer.plan.preview_cut("T12").change


def buttons(page):
    html = page.explorer.panels["edits"]["html"]
    return [json.loads(one.replace("&quot;", '"')) for one in re.findall(r'data-send="([^"]*)"', html)]


def test_the_best_edits_are_listed_and_made_by_a_click_on_the_plan_that_they_are_for(rope, monkeypatch):
    monkeypatch.setattr(previews, "SECONDS", 300.0)  # a busy machine lists fewer within the time limit
    rope.send("panel", name="edits")
    assert "No single cut, glue, move or segment_set that was examined is " in rope.explorer.panels["edits"]["html"]
    rope.send("strategy", strategy="unfused")
    assert "edits" not in rope.explorer.panels
    rope.send("panel", name="edits")
    best = buttons(rope)
    assert len(best) == 12
    old = rope.explorer.plan
    kind, *arguments = best[0]["edit"]
    told = rope.send(best[0].pop("type"), **best[0])
    assert told.startswith(f"Glued S{arguments[0]} and S{arguments[1]}: ")
    assert "; 57 → 56 segments, −268 MB moved, " in told
    assert rope.explorer.plan == getattr(old, kind)(*arguments)
    assert "nothing was done" in rope.send(best[1].pop("type"), **best[1])
    assert len(rope.explorer.plan.segments) == 56


def test_the_advice_is_the_first_row_of_the_best_edits_also_if_that_is_a_hint(monkeypatch):
    monkeypatch.setattr(previews, "SECONDS", 300.0)
    explorer = Explorer(fl.segment(*fl.example("reshape_decides", "full")))
    explorer.wait(300)
    page = Page(explorer)
    page.send("panel", name="edits")
    first = buttons(page)[0]
    assert first["edit"] == explorer.advice["action"]["edit"] == ["annotate", "T0"]
    html = explorer.panels["edits"]["html"]
    assert explorer.plan.best_edits(1, seconds=0)[0].times in html
    before = explorer.plan
    told = page.send(first.pop("type"), **first)
    assert told.startswith("Inserted segment_set at T0: ")
    assert explorer.plan == before.annotate("T0")
    explorer.close()


def test_a_boundary_is_coloured_by_the_share_of_time_that_gluing_saves():
    with FusionDefinition() as fd:
        x = fd.define_tensor([1000, 1000], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(fd.ops.sum(fd.ops.sin(x), dims=[1])))
    explorer = Explorer(fl.segment(fd, strategy="unfused"))
    explorer.wait(300)
    page = Page(explorer)
    colours = [explorer.foreseen["edges"][page.edge(tensor, "boundary")][:2] for tensor in ("T1", "T2")]
    assert colours == [[True, 3], [True, 2]]
    explorer.close()


def test_what_is_found_out_while_the_first_picture_is_sent_reaches_the_page():
    class Watched(Explorer):
        def send_state(self, key=None):
            super().send_state(key)
            if self.scene:
                with ThreadPoolExecutor(1) as another:
                    free.append(another.submit(self._lock.acquire, timeout=0.01).result())
                    if free[-1]:
                        another.submit(self._lock.release).result()

    free = []
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([8], contiguity=True)))
    explorer = Watched(fl.segment(fd))
    assert free[0] is False
    explorer.close()
