"""The layered layout: legal for any graph, fast for large ones, and deterministic."""

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import allowed
from thorough import tries

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.report import layers
from fuser_lab.report.layers import Frame, Graph, Item, Net, Wire, place
from fuser_lab.report.layout import lay_out
from fuser_lab.report.ranks import shortest
from fuser_lab.report.view_model import view_plan

GAP = 10.0
CORNER = Item(1.0, 1.0).corner


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 14))
    items = tuple(Item(width=draw(st.integers(4, 90)), height=draw(st.integers(0, 90))) for _ in range(count))
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    wires = tuple(
        Wire(source=min(a, b), target=max(a, b), trunk=min(a, b), enters=draw(st.sampled_from([-2.0, 0.0, 2.0, None])))
        for a, b in dict.fromkeys(pairs) if a != b
    )
    pitch = draw(st.sampled_from([None, 25.0]))
    return Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP, pitch=pitch)


@st.composite
def framed(draw):
    """A graph in a frame, with annexes that lead into it or come from it."""
    inner = draw(graphs())
    count = len(inner.items)
    items, wires = list(inner.items), list(inner.wires)
    for _ in range(draw(st.integers(0, 6))):
        at, n = len(items), draw(st.integers(0, count - 1))
        items.append(Item(width=draw(st.integers(20, 60)), height=15, annex=True))
        wires.append(Wire(at, n, at) if draw(st.booleans()) else Wire(n, at, n))
    frame = Frame(header=(50.0, 12.0), padding=8.0, rim=8.0, gap=10.0)
    return replace(inner, items=tuple(items), wires=tuple(wires), pitch=None, frame=frame)


def boxes_of(graph, placed):
    return [
        (x - item.width / 2, y - item.height / 2, x + item.width / 2, y + item.height / 2)
        for item, (x, y) in zip(graph.items, placed.centres, strict=True)
    ]


def assert_apart(boxes, tolerance=5e-3):
    for a, b in itertools.combinations(boxes, 2):
        side_by_side = a[2] <= b[0] - GAP / 2 + tolerance or b[2] <= a[0] - GAP / 2 + tolerance
        assert side_by_side or a[3] <= b[1] - GAP + 1e-6 or b[3] <= a[1] - GAP + 1e-6


def paths_down(edges, count):
    """The ranks of all drawings of a few ranks, by brute force."""
    for ranks in itertools.product(range(count), repeat=count):
        if all(ranks[a] < ranks[b] for a, b in edges):
            yield ranks


@tries(60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda p: p[0] < p[1]), min_size=1, max_size=9))
def test_wires_are_as_short_as_ranks_permit(edges):
    ranks = shortest([1] * 5, edges)
    assert all(ranks[a] < ranks[b] for a, b in edges)
    least = min(sum(each[b] - each[a] for a, b in edges) for each in paths_down(edges, 5))
    assert sum(ranks[b] - ranks[a] for a, b in edges) == least


@tries(100, deadline=None)
@given(framed())
def test_a_frame_is_around_its_items_and_annexes_are_outside(graph):
    placed = place(graph)
    boxes = boxes_of(graph, placed)
    (left, top), (width, height) = placed.frame
    assert_apart(boxes)
    for item, (x0, y0, x1, y1) in zip(graph.items, boxes, strict=True):
        is_in = x0 >= left + 7.99 and x1 <= left + width - 7.99 and y0 >= top + 7.99 and y1 <= top + height - 7.99
        is_out = x1 <= left - 9.99 or x0 >= left + width + 9.99 or y1 <= top - 9.99 or y0 >= top + height + 9.99
        assert is_out if item.annex else is_in
    for route in placed.routes:
        assert all(upper[1] <= lower[1] for upper, lower in itertools.pairwise(route))


def test_an_annex_is_one_rank_from_what_it_leads_to():
    chain = tuple(Wire(n, n + 1, n) for n in range(5))
    items = (*(Item(40.0, 20.0) for _ in range(6)), Item(30.0, 20.0, annex=True), Item(30.0, 20.0, annex=True))
    wires = (*chain, Wire(6, 4, 6), Wire(2, 7, 2))
    frame = Frame(header=(0, 0), padding=GAP, rim=GAP, gap=GAP)
    graph = Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP, frame=frame)
    centres = place(graph).centres
    assert centres[6][1] == centres[3][1]  # beside the op before its reader
    assert centres[7][1] == centres[3][1]  # beside the op after its producer
    assert abs(centres[6][0] - centres[0][0]) < 80


@pytest.mark.parametrize("wide", [0, 1])
def test_a_wire_between_boxes_one_above_the_other_is_straight_and_another_ends_at_the_near_corner(wide):
    items = (Item(200.0, 20.0), Item(40.0, 20.0), Item(200.0, 20.0, corner=None), Item(40.0, 20.0))
    wires = (Wire(wide, 3, 0), Wire(0, 1, 1), Wire(2, 3, 2, leaves=30.0))
    placed = place(Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP))
    for wire, route in zip(wires, placed.routes, strict=True):
        (x, _), (u, _) = placed.centres[wire.source], placed.centres[wire.target]
        rooms = [items[n].width / 2 - CORNER for n in (wire.source, wire.target)]
        if items[wire.source].corner is None:  # the other end comes as near as it can
            assert route[0][0] == pytest.approx(x + 30)
            assert abs(route[-1][0] - route[0][0]) == pytest.approx(max(abs(x + 30 - u) - rooms[1], 0), abs=12)
        else:
            assert abs(route[-1][0] - route[0][0]) == pytest.approx(max(abs(x - u) - sum(rooms), 0), abs=12)
        assert abs(route[-1][0] - u) <= rooms[1] + 1e-6


def test_tips_are_in_the_order_from_which_their_wires_come():
    items = tuple(Item(width=40, height=10) for _ in range(4))
    wires = tuple(Wire(source=n, target=3, trunk=n) for n in (2, 0, 1))
    placed = place(Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP))
    starts = [placed.centres[wire.source][0] for wire in wires]
    tips = [route[-1][0] for route in placed.routes]
    assert sorted(range(3), key=starts.__getitem__) == sorted(range(3), key=tips.__getitem__)


def test_an_order_is_kept_where_no_other_has_fewer_crossings():
    items = tuple(Item(width=20, height=10) for _ in range(4))
    wires = tuple(Wire(source=0, target=n, trunk=0) for n in (1, 2, 3))
    graph = Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP)
    for order in itertools.permutations((1, 2, 3)):
        hints = {n: 30.0 * at for at, n in enumerate(order)}
        hinted = replace(graph, items=tuple(item._replace(x=hints.get(n)) for n, item in enumerate(items)))
        centres = place(hinted).centres
        assert tuple(sorted((1, 2, 3), key=lambda n: centres[n][0])) == order


@tries(150, deadline=None)
@given(graphs())
def test_items_are_apart_and_wires_run_down(graph):
    placed = place(graph)
    boxes = boxes_of(graph, placed)
    assert_apart(boxes)
    for left, top, right, bottom in boxes:
        assert left >= -1e-6
        assert top >= -1e-6
        assert right <= placed.width + 1e-3  # places across are rounded to thousandths of a pixel
        assert bottom <= placed.height + 1e-6
    for wire, route in zip(graph.wires, placed.routes, strict=True):
        source, target = boxes[wire.source], boxes[wire.target]
        assert route[0][1] == pytest.approx(source[3])
        assert route[-1][1] == pytest.approx(target[1])
        assert target[0] - 2 <= route[-1][0] <= target[2] + 2
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
    with pytest.raises(ValueError, match="items cannot be ranked: the wires form a cycle"):
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
    drawn = lay_out(view_plan(plan))
    before = place.cache_info()
    lay_out(view_plan(plan.cut(plan.fusion.exprs[50].out.name)), drawn)
    after = place.cache_info()
    assert after.misses - before.misses == 3  # two new segments, and what is between all of them


@pytest.mark.parametrize("shared", [False, True], ids=["inputs", "one input"])
def test_the_longest_wires_have_no_bends_where_these_would_be_too_many(monkeypatch, shared):
    monkeypatch.setattr(layers, "_MOST_BENDS", 300)
    monkeypatch.setattr(layers, "_MOST_PIECES", 1000)
    for steps in (30, 60, 120):
        items = (Item(30.0, 20.0),) * steps + (Item(30.0, 20.0),) * steps
        wires = tuple(
            Wire(source=0 if shared else n, target=steps + n, trunk=0 if shared else n) for n in range(steps)
        ) + tuple(Wire(source=steps + n, target=steps + n + 1, trunk=steps + n) for n in range(steps - 1))
        graph = Graph(items=items, wires=wires, gap=GAP, rank_gap=GAP)
        placed = place(graph)
        assert len(Net(graph).rank) - len(items) <= 300
        assert sum(map(len, placed.routes)) <= 1000 + 4 * len(wires)
        assert_apart(boxes_of(graph, placed))
        for wire, route in zip(wires, placed.routes, strict=True):
            (x, y), (u, v) = placed.centres[wire.source], placed.centres[wire.target]
            assert (route[0][1], route[-1][1]) == pytest.approx((y + 10, v - 10))
            assert max(abs(route[0][0] - x), abs(route[-1][0] - u)) <= 15 - CORNER + 1e-6


def test_empty_graph():
    empty = place(Graph(items=(), wires=(), gap=GAP, rank_gap=GAP))
    assert SimpleNamespace(width=empty.width, height=empty.height) == SimpleNamespace(width=0, height=0)
