import itertools
import threading
import time

import pytest
from machine import allowed

import fuser_lab as fl
from fuser_lab.report.collapse import collapsed
from fuser_lab.report.geometry import Room
from fuser_lab.report.layout import lay_out
from fuser_lab.report.view_model import view_plan


def inside(box, outer):
    return (
        outer.x <= box.x
        and outer.y <= box.y
        and box.x + box.width <= outer.x + outer.width
        and box.y + box.height <= outer.y + outer.height
    )


def apart(a, b):
    return a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y


WIDE, TALL = Room(width=1600, height=400), Room(width=400, height=1600)


@pytest.mark.parametrize("room", [WIDE, TALL])
@pytest.mark.parametrize("name", ["sum_broadcast_add", "rope_like"])
def test_boxes_hold_their_ops_and_nothing_overlaps(stubs, name, room):
    view = view_plan(getattr(stubs, name)())
    drawn = lay_out(view, room)
    for node in view.nodes:
        for index, box in drawn.segments.items():
            assert inside(drawn.nodes[node.id], box) is (node.segment == index)
    assert all(apart(a, b) for a, b in itertools.combinations(drawn.nodes.values(), 2))
    assert all(apart(a, b) for a, b in itertools.combinations(drawn.segments.values(), 2))


def test_every_edge_is_a_chain_of_bezier_curves(stubs):
    view = view_plan(stubs.rope_like())
    drawn = lay_out(view)
    assert all(len(drawn.edges[e.id].points) % 3 == 1 for e in view.edges)
    said = [(e.source, e.tensor) for e in view.edges if drawn.edges[e.id].label is not None]
    assert len(said) == len(set(said))
    assert set(said) == {(e.source, e.tensor) for e in view.edges if e.labelled}


def test_several_threads_may_lay_out_at_once(stubs):
    view = view_plan(stubs.rope_like(4, 3))
    expected, found = lay_out(view), []
    threads = [threading.Thread(target=lambda: found.append(lay_out(view))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6


@pytest.mark.benchmark
@pytest.mark.parametrize(("heads", "most"), [(6, 0.06), (30, 0.3)])
def test_layout_is_quick(stubs, heads, most):
    view = view_plan(stubs.rope_like(heads))
    lay_out(view)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        lay_out(view)
        seconds.append(time.process_time() - start)
    assert min(seconds) < allowed(most)


def at(curve, share):
    """Return the point of a curve at a parameter in its pieces, by Bézier's formula."""
    pieces = (len(curve.points) - 1) // 3
    n = min(int(share * pieces), pieces - 1)
    t = share * pieces - n
    weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
    corners = curve.points[3 * n : 3 * n + 4]
    return tuple(sum(w * p[axis] for w, p in zip(weights, corners, strict=True)) for axis in (0, 1))


@pytest.mark.parametrize("room", [WIDE, TALL])
@pytest.mark.parametrize("whole", [False, True])
def test_no_edge_runs_below_a_box(stubs, room, whole):
    view = view_plan(stubs.rope_like(12, 6))
    view = collapsed(view) if whole else view
    drawn = lay_out(view, room)
    for edge in view.edges:
        others = [box for name, box in drawn.nodes.items() if name not in {edge.source, edge.target}]
        for n in range(1, 40):
            x, y = at(drawn.edges[edge.id], n / 40)
            assert not any(b.x < x < b.x + b.width and b.y < y < b.y + b.height for b in others), edge.id


def test_the_drawing_turns_and_breaks_to_fit_its_room(stubs):
    view = collapsed(view_plan(stubs.rope_like(24, 18)))

    wide, tall = lay_out(view, WIDE), lay_out(view, TALL)
    assert wide.width > 1.5 * wide.height
    assert tall.height > 1.5 * tall.width


def test_a_small_graph_that_an_edit_would_shrink_is_laid_out_anew():
    room = Room(width=1000, height=430)
    plan = fl.segment(*fl.example("layer_norm_backward"))
    before = lay_out(view_plan(plan), room)
    inside = [edge.tensor for edge in view_plan(plan).edges if edge.kind == "inside"]
    edited = view_plan(plan.cut(inside[len(inside) // 2]))

    def scale(drawn):
        return min(1.0, room.width / drawn.width, room.height / drawn.height)

    assert scale(lay_out(edited, room, before)) > 0.75 * scale(lay_out(edited, room))


def test_what_an_edit_does_not_change_stays_where_it_is(stubs):
    plan = stubs.rope_like(12, 4)
    view = view_plan(plan)
    before = lay_out(view)
    edited = plan.cut(plan.groups[2][len(plan.groups[2]) // 2])
    after = lay_out(view_plan(edited), before=before)
    same = [s for s in view.segments if s.nodes in {t.nodes for t in view_plan(edited).segments}]
    assert len(same) == 3
    moves = {
        (round(after.nodes[name].x - box.x, 3), round(after.nodes[name].y - box.y, 3))
        for segment in same for name, box in before.nodes.items() if name in segment.nodes
    }
    assert (0.0, 0.0) in moves
    assert len(moves) <= 2, "items below the cut move together, if at all"
    again = lay_out(view, before=before)
    for name, box in before.nodes.items():
        assert (again.nodes[name].x, again.nodes[name].y) == pytest.approx((box.x, box.y), abs=0.01), name
