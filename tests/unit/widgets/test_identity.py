"""What is selected, unfolded or measured stays the same thing, whatever number and name an edit gives it."""

import pytest

pytest.importorskip("anywidget")

from browser.sizes import chain, rewritable
from fuser_lab_widgets import Explorer
from fuser_lab_widgets.heat import heat
from unit.widgets import drawn
from unit.widgets.events import send

from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.report.repeats import blocks
from fuser_lab.report.roofline_plot import measured_seconds


@pytest.fixture(scope="module")
def plan():
    """Two segments, of which the first can be cut."""
    return rewritable()


def edges(explorer, kind):
    return [edge for edge in explorer._page.view.edges if edge.kind == kind]


def ops(explorer):
    """The ops that the picture shows."""
    return {node[0] for node in drawn.nodes(explorer) if node[1] == "op"}


def folded(explorer):
    """The blocks that the picture shows as one box."""
    return [node[0] for node in drawn.nodes(explorer) if node[0].startswith("block:")]


def test_a_segment_that_is_unfolded_stays_so_when_an_edit_gives_it_another_number(explorer):
    last = len(explorer.plan.segments) - 1
    send(explorer, "detail", detail="segments")
    send(explorer, "open", segment=last)
    shown = ops(explorer)
    assert shown == set(explorer._page.view.segments[last].nodes)
    assert send(explorer, "act", id=edges(explorer, "inside")[0].id).startswith("Cut at")
    assert len(explorer.plan.segments) > last + 1
    assert ops(explorer) == shown
    send(explorer, "open", segment=len(explorer.plan.segments) - 1)
    assert ops(explorer) == set()
    send(explorer, "undo")
    assert ops(explorer) == set()


def test_a_block_that_is_unfolded_stays_so_when_an_edit_gives_it_another_beginning():
    explorer = Explorer(chain(6), [])
    send(explorer, "detail", detail="blocks")
    (block,) = folded(explorer)
    send(explorer, "select", id=block)
    assert [action["label"] for action in explorer.answer["actions"]] == ["Show its segments"]
    send(explorer, "open", block=block)
    assert [action["label"] for action in explorer.answer["actions"]] == ["Fold its segments"]
    assert send(explorer, "act", id=edges(explorer, "boundary")[1].id).startswith("Glued S1 and S2")
    (other,) = blocks(explorer._page.view)
    assert other.id != block
    assert folded(explorer) == []
    send(explorer, "open", block=other.id)
    assert folded(explorer) == [other.id]
    explorer.close()


def test_the_edge_that_is_edited_stays_selected(explorer):
    for kind, done in (("inside", "Cut at"), ("boundary", "Glued")):
        send(explorer, "select", id=edges(explorer, "input")[0].id)
        edge = edges(explorer, kind)[0]
        assert send(explorer, "act", id=edge.id).startswith(done)
        assert explorer.answer["id"] == edge.id
        assert explorer.selection.startswith(f"{edge.tensor} -> ")


def test_a_selected_segment_is_the_same_ops_in_another_plan_or_none(explorer):
    last = explorer._page.view.segments[-1]
    send(explorer, "select", id=f"segment:{last.index}")
    send(explorer, "edit", edit=["cut", edges(explorer, "inside")[0].tensor])
    chosen = next(s for s in explorer._page.view.segments if f"segment:{s.index}" == explorer.answer["id"])
    assert set(chosen.nodes) == set(last.nodes)
    assert chosen.index != last.index
    send(explorer, "strategy", strategy="unfused")
    assert explorer.answer.get("id") is None


def test_times_belong_to_the_plan_that_was_timed_not_to_another_of_its_name(plan):
    first, second = (plan.cut(edge) for edge in ("T2", "T3"))
    assert first.name == second.name
    rows = [
        TimingRow(plan=first.name, segment=s.index, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0,
                  median=1e-3 * (1 + s.index), device="CPU", plan_hash=first.hash)
        for s in first.segments
    ]
    assert measured_seconds(first, rows) == {s.index: pytest.approx(1e-3 * (1 + s.index)) for s in first.segments}
    assert measured_seconds(second, rows) == {}
    explorer = Explorer(second, [])
    assert "predicted" in heat(second, explorer._page.view, rows)["time"]["about"]
    explorer.close()


def test_a_timer_of_plans_alone_times_all_plans_without_their_ops(plan, timer):
    explorer = Explorer(plan, [], strategies=["unfused"], timer=timer)
    timer.gate.clear()
    assert send(explorer, "run_all") == "Timing 2 plans."
    timer.gate.set()
    explorer.wait(60)
    assert explorer.status["text"].startswith("Done: ")
    assert [len(asked) for asked in timer.asked] == [2]
    explorer.close()
