"""What an edit changed, as one sentence, by comparison with the plans themselves."""

import numpy as np
import pytest
from fuser_lab_widgets import Explorer

import fuser_lab as fl


@pytest.fixture(scope="module")
def plan():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        total = fd.ops.sum(x, dims=[0])
        spread = fd.ops.broadcast(total, [True, False])
        shifted = x + spread
        fd.add_output(shifted)
    return fl.segment(fd)


def test_an_edit_that_moves_an_op_says_from_where_and_to_where(plan):
    change = plan.annotate("total").change_from(plan)
    assert [(m.op, m.before, m.after) for m in change.difference.moved] == [("broadcast", (0,), (1,))]
    assert change.text.startswith(
        "Broadcast T2 moved from S0 to S1, because a hint keeps T1 and T2 apart; T1_hint is new; ",
    )
    assert "T1_hint is new; 2 → 2 segments, ±0 B moved" in change.text
    assert str(change).startswith("Broadcast spread T2 moved")


def test_the_counts_are_those_of_the_plans():
    before = fl.segment(*fl.example("llama3_rope_backward"))
    after = before.cut("T20")
    change = after.change_from(before)
    assert change.moved == sum(s.bytes for s in after.segments) - sum(s.bytes for s in before.segments) > 0
    assert change.seconds == after.predicted_time().seconds - before.predicted_time().seconds
    for move in change.difference.moved:
        homes = [p.segmented.homes[move.name] for p in (before, after)]
        assert homes == [move.before, move.after]
    assert change.text.endswith(f"{change.counts}.")


def test_the_same_plan_is_said_to_be_the_same(plan):
    again = plan.cut("total").glue(0, 1)
    assert again.hash == plan.hash
    change = again.change_from(plan)
    assert change.is_same
    assert change.text.startswith("The plan is the same; 2 → 2 segments, ±0 B moved, ±0.00 µs predicted")
    assert not plan.annotate("spread").change_from(plan).is_same


def test_segments_with_other_numbers_are_named_by_both():
    before = fl.segment(*fl.example("llama3_rope_backward"))
    text = before.annotate("T20").change_from(before).text
    assert "from S2 (S0 before) to S0" in text
    assert "4 ops (" in text


def test_the_explorer_says_what_moved_and_marks_it_until_the_next_edit(plan):
    explorer = Explorer(plan, [np.zeros((4096, 4096), np.float32)], strategies=("bottom_up", "unfused"))
    _send(explorer, "annotate", id=_edge(explorer, "T1"))
    assert "2 → 2 segments, ±0 B moved" in explorer.status["text"]
    assert "broadcast T2 moved from S0 to S1, because" in explorer.status["text"]
    assert set(explorer.scene["marks"]["moved"]) == {_node(explorer, "T2"), _node(explorer, "T1_hint")}
    _send(explorer, "undo")
    assert "marks" not in explorer.scene
    explorer.close()


def test_plans_that_are_the_same_have_one_title(plan):
    explorer = Explorer(plan, [np.zeros((4096, 4096), np.float32)], strategies=("bottom_up", "saving"))
    edge = _edge(explorer, "T1")
    _send(explorer, "cut", id=edge)
    assert explorer.scene["title"] == "bottom-up*"
    _send(explorer, "glue", id=_edge(explorer, "T1"))
    assert explorer.scene["title"] == "bottom-up"
    _send(explorer, "strategy", strategy="saving")
    assert explorer.plan.hash == plan.hash
    assert explorer.scene["title"] == "saving (the same plan as bottom-up)"
    assert explorer.status["text"] == "Saving: the same plan as bottom-up."
    explorer.close()


def test_the_inspector_names_the_refusal_beside_the_segments_of_a_tensor_that_crosses(plan):
    explorer = Explorer(plan, [np.zeros((4096, 4096), np.float32)])
    _send(explorer, "select", id=_edge(explorer, "T2"))
    refusal = next(v for v in explorer.answer["verdicts"] if v["scheduler"] == "outer_persistent")
    assert "no scheduler accepts both" in explorer.answer["sentence"]
    assert refusal["text"] in explorer.answer["sentence"]
    explorer.close()


def test_the_inspector_says_of_a_segment_of_views_that_it_launches_nothing(plan):
    cut = plan.cut("T1")
    explorer = Explorer(cut, [np.zeros((4096, 4096), np.float32)])
    said = {}
    for index in range(len(cut.segments)):
        _send(explorer, "select", id=f"segment:{index}")
        said[index] = "launches nothing" in explorer.answer["sentence"]
    assert {index for index, is_said in said.items() if is_said} == cut.idle != frozenset()
    explorer.close()


def _send(explorer, kind, **data):
    explorer.events = [{"n": explorer.acked + 1, "type": kind, **data}]


def _edge(explorer, tensor):
    return next(edge.id for edge in explorer._page.view.edges if edge.tensor == tensor)


def _node(explorer, tensor):
    return next(node.id for node in explorer._page.view.nodes if tensor in node.tensors and node.kind == "op")
