"""Recomputing a tensor and passing it in 16 bits in the explorer: clicked at an edge, undone, explained, exported."""

import pytest

pytest.importorskip("anywidget")

from unit.widgets.events import send

import fuser_lab as fl
from fuser_lab import FusionDefinition
from tests.unit.test_plan import made_by


@pytest.fixture(scope="module")
def plan():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([32, 64], contiguity=True) for _ in range(2))
        a = fd.ops.exp(fd.ops.add(x, y))
        fd.add_output(fd.ops.sum(a, [1]))
        fd.add_output(fd.ops.sum(a, [0]))
    return fl.segment(fd)


def offered(explorer, tensor="T3"):
    (edge,) = (e for e in explorer._page.view.edges if e.tensor == tensor and e.kind == "boundary")
    send(explorer, "select", id=edge.id)
    return {action["label"]: action for action in explorer.answer["actions"]}


def test_a_tensor_is_recomputed_by_a_click(explorer, plan):
    action = offered(explorer)["Recompute T3 in S1"]
    assert "values do not change" in action["title"]
    said = send(explorer, action["type"], id=action["id"])
    assert said.startswith("Recomputed T3 in S1: ")
    assert "; 2 → 2 segments, ±0 B moved, " in said
    assert "T3 is recomputed in segment 1" in said
    assert explorer.plan == plan.recompute("T3")
    assert explorer.history["edits"] == ["recompute(T3, S1)"]
    assert made_by(explorer.plan.to_python()) == explorer.plan
    assert send(explorer, "undo").startswith("Undid recompute(T3, S1)")
    assert explorer.plan == plan


@pytest.mark.parametrize(("dtype", "bound"), [("BFloat16", "1/256"), ("Half", "1/2048")])
def test_a_tensor_is_narrowed_by_a_click_that_states_the_error(explorer, plan, dtype, bound):
    action = offered(explorer)[f"Pass T3 as {dtype}"]
    assert f"Values change: each element is rounded by at most {bound}" in action["title"]
    said = send(explorer, action["type"], id=action["id"], dtype=action["dtype"])
    assert said.startswith(f"T3 passes as {dtype}: ")
    last = explorer.plan.decisions.filter(kind="cast", accepted=True)[-1].text
    assert last in said
    assert explorer.plan == plan.narrow("T3", fl.DataType[dtype])
    assert explorer.plan.bytes_crossing == plan.bytes_crossing // 2
    assert send(explorer, "undo").startswith(f"Undid narrow(T3, {dtype})")
    assert explorer.plan == plan


def test_an_edit_that_is_refused_says_why(explorer):
    (edge,) = (e for e in explorer._page.view.edges if e.tensor == "T3" and e.kind == "boundary")
    send(explorer, "select", id=edge.id)
    send(explorer, "recompute", id=edge.id)
    said = send(explorer, "recompute", id=edge.id)
    assert explorer.status["kind"] == "error"
    assert "no longer" in said or "does not" in said


def test_only_tensors_that_cross_are_offered(explorer):
    (edge,) = (e for e in explorer._page.view.edges if e.tensor == "T2")
    send(explorer, "select", id=edge.id)
    assert not any(action["type"] in {"recompute", "narrow"} for action in explorer.answer["actions"])


def test_an_edit_that_would_be_refused_is_greyed_out_with_the_reason(explorer):
    offered(explorer)["Recompute T3 in S1"]
    assert not any("refused" in action for action in explorer.answer["actions"] if action["type"] != "glue")
    send(explorer, "narrow", id=explorer.answer["id"], dtype="Half")
    view = explorer._page.view
    (cast,) = (tensor for tensor in explorer.plan.fusion.tensors if tensor not in explorer.plan.definition.tensors
               and any(edge.tensor == tensor and edge.kind == "boundary" for edge in view.edges))
    actions = offered(explorer, cast)
    insert = next(action for label, action in actions.items() if label.startswith("Insert segment_set"))
    assert cast in insert["refused"]
    assert send(explorer, "annotate", id=insert["id"]) != ""
    assert explorer.status["kind"] == "error"
    recompute = next(action for label, action in actions.items() if label.startswith("Recompute"))
    send(explorer, "recompute", id=recompute["id"])
    assert (explorer.status["kind"] == "error") == ("refused" in recompute)
