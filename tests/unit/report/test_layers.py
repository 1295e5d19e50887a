"""The layered layout: legal for any graph, fast for large ones, and deterministic."""

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import allowed
from thorough import tries

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.report import layers
from fuser_lab.report.geometry import Room
from fuser_lab.report.layers import Graph, Item, Net, Wire, place, solve
from fuser_lab.report.layout import lay_out
from fuser_lab.report.view_model import view_plan

GAP = 10.0


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 14))
    items = tuple(
        Item(width=draw(st.integers(4, 90)), height=draw(st.integers(0, 40)), low=draw(st.booleans()))
        for _ in range(count)
    )
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    wires = tuple(
        Wire(source=min(a, b), target=max(a, b), trunk=min(a, b), enters=draw(st.sampled_from([-2.0, 0.0, 2.0])))
        for a, b in dict.fromkeys(pairs) if a != b
    )
    return Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP)


def boxes_of(graph, placed):
    return [
        (x - item.width / 2, y - item.height / 2, x + item.width / 2, y + item.height / 2)
        for item, (x, y) in zip(graph.items, placed.centres, strict=True)
    ]


def assert_apart(boxes, tolerance=1e-6):
    for a, b in itertools.combinations(boxes, 2):
        side_by_side = a[2] <= b[0] - GAP / 2 + tolerance or b[2] <= a[0] - GAP / 2 + tolerance
        assert side_by_side or a[3] <= b[1] - GAP + 1e-6 or b[3] <= a[1] - GAP + 1e-6


@st.composite
def edits(draw):
    """A graph, the number of its bands, and another graph, whose items stood where items of the first one did."""
    before, after = draw(graphs()), draw(graphs())
    drawn = solve(before)
    bands = max(drawn.extents(draw(st.integers(1, 3))))
    placed = drawn.placed(bands)
    stood = st.sampled_from([*placed.stands, None])
    items = tuple(item._replace(stood=draw(stood)) for item in after.items)
    return before, bands, replace(after, items=items, origins=placed.origins)


@tries(100, deadline=None)
@given(edits())
def test_what_stands_needs_no_links(edit):
    before, bands, graph = edit
    bends = solve(before).bends
    net = solve(graph, bends)
    with patch.object(Net, "_loose", lambda self: set(range(len(self._rank)))):  # everything is linked
        whole = solve(graph, bends)
    bands = max(net.extents(bands, bands))
    assert net.placed(bands) == whole.placed(bands)
    assert net.bends == whole.bends
    assert_apart(boxes_of(graph, net.placed(bands)), tolerance=5e-3)  # places are rounded


@tries(60, deadline=None)
@given(graphs(), st.integers(1, 3))
def test_an_unchanged_graph_stays_where_it_stood(graph, most):
    net = solve(graph)
    bands = max(net.extents(most))
    placed = net.placed(bands)
    items = tuple(item._replace(stood=stood) for item, stood in zip(graph.items, placed.stands, strict=True))
    again = solve(replace(graph, items=items, origins=placed.origins), net.bends).placed(bands)
    assert (again.centres, again.routes, again.stands) == (placed.centres, placed.routes, placed.stands)


@pytest.mark.parametrize(("room", "stays"), [(0.0, True), (170.0, True), (171.0, False)])
def test_empty_room_above_or_beside_an_item_stays_up_to_170_pixels(room, stays):
    graph = Graph(
        items=(Item(width=40, height=20),) * 2, wires=(Wire(source=0, target=1, trunk=0),), gap=GAP, rank_gap=GAP,
    )
    net = solve(graph)
    first = net.placed(1)
    upper, lower = first.stands

    def again(below, beside):
        stands = (upper, lower._replace(top=lower.top + below))
        items = tuple(item._replace(stood=stand) for item, stand in zip(graph.items, stands, strict=True))
        origins = tuple(origin + beside for origin in first.origins)
        return solve(replace(graph, items=items, origins=origins), net.bends).placed(1).centres

    moved = room if stays else 0.0
    assert again(room, 0.0) == (first.centres[0], (first.centres[1][0], first.centres[1][1] + moved))
    assert again(0.0, room) == tuple((x + moved, y) for x, y in first.centres)


@tries(150, deadline=None)
@given(graphs())
def test_items_stand_apart_and_wires_run_down(graph):
    placed = place(graph)
    boxes = boxes_of(graph, placed)
    assert_apart(boxes)
    for left, top, right, bottom in boxes:
        assert left >= -1e-6
        assert top >= -1e-6
        assert right <= placed.width + 1e-6
        assert bottom <= placed.height + 1e-6
    for wire, route in zip(graph.wires, placed.routes, strict=True):
        source, target = boxes[wire.source], boxes[wire.target]
        assert route[0][1] == pytest.approx(source[3])
        assert route[-1] == pytest.approx(((target[0] + target[2]) / 2 + wire.enters, target[1]))
        assert all(upper[1] < lower[1] for upper, lower in itertools.pairwise(route))


@tries(100, deadline=None)
@given(graphs())
def test_no_wire_passes_through_an_item(graph):
    placed = place(graph)
    boxes = boxes_of(graph, placed)
    for route in placed.routes:
        for (x0, y0), (x1, y1) in itertools.pairwise(route):
            for left, top, right, bottom in boxes:
                # Between two ranks a wire may be slanted; beside an item of a rank it is vertical, and does not touch
                # the item.
                if y0 < bottom - 1e-6 and y1 > top + 1e-6:
                    assert max(x0, x1) <= left + 1e-6 or min(x0, x1) >= right - 1e-6


def test_a_shared_trunk_is_drawn_once():
    items = tuple(Item(width=20, height=10) for _ in range(6))
    chain = [Wire(source=n, target=n + 1, trunk=n) for n in range(5)]
    shared = [Wire(source=0, target=n, trunk=0) for n in (3, 4, 5)]
    placed = place(Graph(items=items, wires=(*chain, *shared), gap=GAP, rank_gap=GAP))
    first, second, third = (placed.routes[len(chain) + n] for n in range(3))
    assert first[1] == second[1] == third[1]
    assert len(third) == 4  # out of its source, aside, down in one line, and back


def test_a_cycle_is_refused():
    wires = (Wire(source=0, target=1, trunk=0), Wire(source=1, target=0, trunk=1))
    with pytest.raises(ValueError, match="0 of 2 items can be ranked: the wires form a cycle"):
        place(Graph(items=(Item(width=1, height=1),) * 2, wires=wires, gap=GAP, rank_gap=GAP))


def test_crossings_that_can_be_avoided_are():
    items = tuple(Item(width=20, height=10) for _ in range(6))
    wires = tuple(Wire(source=n, target=5 - n, trunk=n) for n in range(3))
    centres = place(Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP)).centres
    above = sorted(range(3), key=lambda n: centres[n][0])
    assert [5 - n for n in above] == sorted(range(3, 6), key=lambda n: centres[n][0])


def shared_input_chain(ops):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64, 256], dtype=DataType.Float)
        y = fd.define_tensor(shape=[64, 256], dtype=DataType.Float)
        v = x
        for _ in range(ops // 5):
            e = fd.ops.exp(fd.ops.mul(v, y))
            v = fd.ops.add(fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True)), v)
        fd.add_output(v)
    return fl.segment(fd, [fl.spec((64, 256), "float32")] * 2)


@pytest.mark.benchmark
def test_a_long_chain_with_a_shared_input_is_laid_out_at_once():
    plan = shared_input_chain(300)  # kept Graphviz busy for minutes
    view = view_plan(plan)
    place.cache_clear()
    start = time.process_time()
    first = lay_out(view)
    assert time.process_time() - start < allowed(1)
    again = lay_out(view)
    assert again == first


def test_an_edit_lays_out_only_what_it_changed():
    plan = shared_input_chain(60)
    plan = plan.cut(plan.fusion.exprs[30].out.name)
    room = Room(width=4000, height=4000)  # in which nothing is too small
    drawn = lay_out(view_plan(plan), room)
    before = place.cache_info()
    lay_out(view_plan(plan.cut(plan.fusion.exprs[50].out.name)), room, drawn)
    after = place.cache_info()
    assert after.hits == before.hits  # the segment above is reused unchanged
    assert after.misses - before.misses == 2  # two new segments


@pytest.mark.parametrize("shared", [False, True], ids=["inputs", "one input"])
def test_the_longest_wires_have_no_bends_where_these_would_be_too_many(monkeypatch, shared):
    monkeypatch.setattr(layers, "_MOST_BENDS", 300)
    monkeypatch.setattr(layers, "_MOST_PIECES", 1000)
    for steps in (30, 60, 120):
        items = (Item(30.0, 20.0, first=True),) * steps + (Item(30.0, 20.0),) * steps
        wires = tuple(
            Wire(source=0 if shared else n, target=steps + n, trunk=0 if shared else n) for n in range(steps)
        ) + tuple(Wire(source=steps + n, target=steps + n + 1, trunk=steps + n) for n in range(steps - 1))
        graph = Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP)
        placed = place(graph)
        assert len(solve(graph).bends) <= 300
        assert sum(map(len, placed.routes)) <= 1000 + 4 * len(wires)
        assert_apart(boxes_of(graph, placed))
        for wire, route in zip(wires, placed.routes, strict=True):
            (x, y), (u, v) = placed.centres[wire.source], placed.centres[wire.target]
            assert route[0] == pytest.approx((x, y + 10))
            assert route[-1] == pytest.approx((u, v - 10))


def test_empty_graph():
    empty = place(Graph(items=(), wires=(), gap=GAP, rank_gap=GAP))
    assert SimpleNamespace(width=empty.width, height=empty.height) == SimpleNamespace(width=0, height=0)
