"""The explorer's traits, as other widgets and cells use them."""

import re

import pytest

pytest.importorskip("anywidget")

import ipywidgets
import traitlets

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from tests.unit.widgets.test_explorer import Page


def chain(rows=64):
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, 64], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sin(fd.ops.neg(fd.ops.exp(x))))
    return fd


@pytest.fixture
def explorer():
    made = fl.explore(chain())
    yield made
    made.close()


def test_what_is_observed_is_consistent(explorer):
    seen = []

    def note(change):
        seen.append((change["name"], explorer.strategy, explorer.plan.strategy, len(explorer.plan.segments)))

    explorer.observe(note, ["plan", "strategy"])
    page = Page(explorer)
    page.send("strategy", strategy="unfused")
    assert seen == [("plan", "unfused", "unfused", 3), ("strategy", "unfused", "unfused", 3)]
    seen.clear()
    page.send("undo")
    assert {name for name, *_ in seen} == {"plan", "strategy"}
    page.send("select", id="segment:0")
    assert len(seen) == 2
    assert explorer.selection == "S0"


def test_setting_a_trait_does_what_the_page_does_and_is_undone(explorer):
    explorer.strategy = "top_down"
    assert explorer.plan.strategy == "top_down"
    assert explorer.status["text"] == "Top-down: the same plan as bottom-up."
    explorer.reading = "cut"
    assert explorer.plan.options.segment_set.value == "cut"
    explorer.whole_fusion = False
    assert not explorer.plan.options.whole_fusion
    page = Page(explorer)
    page.number = explorer.acked
    page.send("undo")
    assert explorer.whole_fusion
    page.send("undo")
    assert (explorer.reading, explorer.strategy) == ("hint", "top_down")


def test_what_a_strategy_refuses_goes_back(explorer):
    explorer.cut_reshape_inputs = True
    assert not explorer.cut_reshape_inputs
    assert "only 'top_down' does" in explorer.status["text"]
    explorer.running = True
    assert not explorer.running
    assert explorer.status["text"].startswith("Run needs inputs")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("strategy", "sideways", "unknown strategy 'sideways'; choose from bottom_up, top_down, optimal, unfused"),
        ("reading", "perhaps", "reading must be 'hint', 'cut' or 'ignore', given 'perhaps'"),
        ("selection", "T99", "the plan does not contain 'T99'"),
        ("plan", 3, "must be a plan, as fl.segment returns it, given 3"),
    ],
)
def test_what_a_trait_does_not_take_raises(explorer, name, value, said):
    before = getattr(explorer, name)
    with pytest.raises(traitlets.TraitError, match=said):
        setattr(explorer, name, value)
    assert getattr(explorer, name) is before


def test_a_page_may_be_saved_with_what_differs_from_the_defaults(explorer):
    explorer.whole_fusion = True
    saved = explorer.get_state(drop_defaults=True)
    assert "whole_fusion" not in saved
    assert saved["scene"] == explorer.scene


@pytest.mark.parametrize("words", ["T0", "T1", "T1 -> T2", "T3 -> output", "S0", ""])
def test_a_selection_is_set_in_words_and_told_in_the_same(explorer, words):
    explorer.selection = "T2"
    explorer.selection = words
    assert explorer.selection == words
    assert bool(explorer.answer.get("id")) == bool(words)
    assert explorer.answer["adopt"]


def test_a_plan_that_is_set_is_shown_and_edits_go_on_from_it(explorer):
    first = explorer.plan
    explorer.plan = first.annotate("T1")
    assert [str(one) for one in explorer.plan.annotations] == ["T1 -> T2"]
    assert explorer.scene["hash"] == explorer.plan.hash
    page = Page(explorer)
    page.number = explorer.acked
    page.send("strategy", strategy="top_down")
    assert explorer.plan.annotations
    assert explorer._session.baseline is first
    other = fl.segment(chain(128))
    explorer.plan = other
    assert explorer._session.baseline is other
    page.send("undo")
    assert explorer.plan.annotations
    page.send("undo")
    page.send("undo")
    assert explorer.plan is first


def test_a_search_ends_in_the_trait(explorer):
    seen = []
    explorer.observe(lambda change: seen.append(change["new"]), ["strategy"])
    explorer.strategy = "optimal"
    explorer.wait(300)
    assert explorer.strategy == "optimal"
    assert explorer.plan.strategy == "optimal"
    assert seen[-1] == "optimal"


def test_a_run_is_started_observed_and_cancelled(timer, stubs):
    from fuser_lab_widgets import Explorer

    explorer, seen = Explorer(stubs.sum_broadcast_add(), [], timer=timer), []
    explorer.observe(lambda change: seen.append((change["name"], explorer.running)), ["running", "timings"])
    assert explorer.timings is None
    timer.gate.clear()
    explorer.running = True
    assert seen == [("running", True)]
    timer.gate.set()
    explorer.wait(300)
    assert not explorer.running
    assert len(explorer.timings.rows) == 3
    assert seen[-2:] == [("timings", False), ("running", False)]
    timer.gate.clear()
    explorer.running = True
    explorer.running = False
    timer.gate.set()
    explorer.wait(300)
    assert explorer.status["text"] == "Cancelled; no segment was measured yet."
    explorer.close()


def test_it_is_linked_and_stands_in_a_box(explorer):
    choice = ipywidgets.Dropdown(options=["bottom_up", "top_down", "unfused"])
    link = ipywidgets.link((explorer, "strategy"), (choice, "value"))
    choice.value = "unfused"
    assert len(explorer.plan.segments) == 3
    page = Page(explorer)
    page.send("undo")
    assert choice.value == "bottom_up"
    busy = ipywidgets.ToggleButton()
    switches = {"strategy", "reading", "whole_fusion", "cut_reshape_inputs", "cut_resize_inputs"}
    assert {"selection", "running", *switches} <= set(explorer.keys)  # what jslink needs
    js = ipywidgets.jslink((busy, "value"), (explorer, "running"))
    box = ipywidgets.VBox([choice, busy, explorer])
    assert explorer in box.children
    link.unlink()
    js.unlink()


def test_an_observer_may_set_another_trait(explorer):
    def always_cut(change):
        explorer.reading = "cut"

    explorer.observe(always_cut, ["strategy"])
    explorer.strategy = "top_down"
    assert explorer.reading == "cut"
    assert explorer.plan.options.segment_set.value == "cut"


SCRIPT = """
import torch
from nvfuser_direct import FusionDefinition, DataType

def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
    fd.add_output(fd.ops.neg(T0))

with FusionDefinition() as fd:
    nvfuser_fusion_id0(fd)
if torch.cuda.device_count() > 3:
    fast = True
"""


def test_a_script_that_was_loaded_runs_at_once_and_its_notes_are_shown():
    explorer = fl.explore(*fl.load_repro(SCRIPT + "fd.execute([torch.randn(6, 4, device='cuda:0')])"))
    assert explorer.history["notes"] == [
        "Run creates inputs of the given sizes", "line 11: a branch on a value that is not read is skipped",
    ]
    assert explorer.history["runnable"]
    explorer.running = True
    explorer.wait(300)
    assert re.fullmatch(r"Done: bottom-up takes [0-9.]+ [nµm]s \(median on this CPU\)\.", explorer.status["text"])
    assert explorer.timings.rows
    explorer.close()


def test_a_script_without_inputs_runs_with_sizes_that_are_assumed():
    explorer = fl.explore(*fl.load_repro(SCRIPT))
    assert "No inputs are given, so open sizes are assumed to be 256" in explorer.history["notes"]
    assert explorer.plan.inputs[0].shape == (256, 256)
    assert explorer.history["runnable"]
    explorer.close()


def test_inputs_beyond_the_memory_become_smaller_and_the_header_says_so(monkeypatch):
    monkeypatch.setattr("fuser_lab.api.exploring.free_bytes", lambda: 1 << 20)
    script = SCRIPT + "fd.execute([torch.randn(8192, 4096)])"
    explorer = fl.explore(*fl.load_repro(script))
    assert explorer.history["notes"][0].startswith("Smaller inputs ([128, 128] for [8192, 4096])")
    assert explorer.plan.inputs[0].shape == (128, 128)
    explorer.close()
    explorer = fl.explore(*fl.load_repro(script.replace("[-1, -1]", "[8192, 4096]")))
    assert explorer.history["notes"][0].startswith("These inputs cannot be created: the given sizes need 537 MB")
    assert not explorer.history["runnable"]
    explorer.close()
