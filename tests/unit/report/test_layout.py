import itertools
import math
import threading
import time

import pytest
from browser.flow import measured
from machine import allowed

import fuser_lab as fl
from fuser_lab.report import measure
from fuser_lab.report.collapse import collapse
from fuser_lab.report.geometry import Box
from fuser_lab.report.layout import PADDING, RIM, lay_out
from fuser_lab.report.view_model import view_plan

ENLARGED = 1.25  # the most that a label is enlarged in a small picture


def inside(box, outer):
    return (
        outer.x <= box.x
        and outer.y <= box.y
        and box.x + box.width <= outer.x + outer.width
        and box.y + box.height <= outer.y + outer.height
    )


def apart(a, b):
    return a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y


@pytest.mark.parametrize("name", ["sum_broadcast_add", "rope_like"])
def test_boxes_hold_their_ops_and_nothing_overlaps(stubs, name):
    view = view_plan(getattr(stubs, name)())
    drawn = lay_out(view)
    for node in view.nodes:
        for index, box in drawn.segments.items():
            assert inside(drawn.nodes[node.id], box) is (node.segment == index)
    assert all(apart(a, b) for a, b in itertools.combinations(drawn.nodes.values(), 2))
    assert all(apart(a, b) for a, b in itertools.combinations(drawn.segments.values(), 2))


def test_every_edge_is_a_chain_of_bezier_curves(stubs):
    view = view_plan(stubs.rope_like())
    drawn = lay_out(view)
    assert all(len(drawn.edges[e.id].points) % 3 == 1 for e in view.edges)
    said = [e.id for e in view.edges if drawn.edges[e.id].label is not None and e.kind == "boundary"]
    assert set(said) >= {e.id for e in view.edges if e.labelled}


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


@pytest.mark.parametrize("whole", [False, True])
def test_no_edge_runs_below_a_box(stubs, whole):
    view = view_plan(stubs.rope_like(12, 6))
    view = collapse(view) if whole else view
    drawn = lay_out(view)
    for edge in view.edges:
        others = [box for name, box in drawn.nodes.items() if name not in {edge.source, edge.target}]
        for n in range(1, 40):
            x, y = at(drawn.edges[edge.id], n / 40)
            assert not any(b.x < x < b.x + b.width and b.y < y < b.y + b.height for b in others), edge.id


@pytest.mark.parametrize("name", ["layer_norm_backward", "llama3_rope_backward", "dropout_add_layer_norm"])
def test_data_flows_down_and_inputs_are_beside_their_first_reader(name):
    view = view_plan(fl.segment(*fl.example(name)))
    drawn = lay_out(view)
    for edge in view.edges:
        ys = [at(drawn.edges[edge.id], n / 30)[1] for n in range(31)]
        assert all(upper <= lower + 1e-6 for upper, lower in itertools.pairwise(ys)), edge.id
    outside = [drawn.nodes[node.id] for node in view.nodes if node.segment is None]
    assert all(apart(one, box) for one in outside for box in drawn.segments.values())
    for node in view.nodes:
        if node.kind == "input":
            below = [drawn.nodes[e.target].y for e in view.edges if e.source == node.id]
            assert min(below) - (drawn.nodes[node.id].y + drawn.nodes[node.id].height) < 80


def test_a_tensor_that_crosses_segments_has_the_shortest_edge_straight_down_beside_the_input_of_its_reader():
    """The first picture that a newcomer sees is about this tensor."""
    view = view_plan(fl.segment(*fl.example("sum_broadcast_add")))
    edges = lay_out(view).edges
    (crossing,) = (edge for edge in view.edges if edge.kind == "boundary")
    assert len({round(x) for x, _ in edges[crossing.id].points}) == 1
    (other,) = (edge for edge in view.edges if edge.target == crossing.target and edge.kind == "input")
    assert len({round(x) for x, _ in edges[other.id].points}) > 1
    lengths = {}
    for edge in view.edges:
        points = [*(at(edges[edge.id], n / 60) for n in range(61)), edges[edge.id].tip]
        lengths[edge.id] = sum(itertools.starmap(math.dist, itertools.pairwise(points)))
    assert lengths.pop(crossing.id) < min(lengths.values())


@pytest.mark.parametrize(("name", "strategy"), [
    ("sum_broadcast_add", "bottom_up"), ("llama3_rope_backward", "bottom_up"), ("rms_norm_backward", "unfused"),
])
def test_headers_and_labels_hide_neither_ops_nor_wires(name, strategy):
    view = view_plan(fl.segment(*fl.example(name), strategy=strategy))
    drawn = lay_out(view)
    hiding = {}  # the boxes of headers and labels, and the tensor that a label names
    for segment in view.segments:
        (width, height), frame = measure.header_size(segment), drawn.segments[segment.index]
        hiding[Box(x=frame.x + PADDING, y=frame.y + RIM, width=width, height=height)] = None
    for edge in view.edges:
        if drawn.edges[edge.id].label is not None:
            (x, y), (width, height) = drawn.edges[edge.id].label, measure.edge_label_size(edge)
            hiding[Box(x=x - width / 2 + 2, y=y - height / 2 + 1, width=width - 4, height=height - 2)] = edge.tensor
    passed = [(edge.tensor, *at(drawn.edges[edge.id], n / 40)) for edge in view.edges for n in range(41)]
    for box, named in hiding.items():
        assert all(apart(box, other) for other in drawn.nodes.values())
        below = {t for t, x, y in passed if box.x < x < box.x + box.width and box.y < y < box.y + box.height}
        assert below <= {named}


def test_wires_of_inputs_and_results_beside_a_segment_cross_no_more_than_they_must():
    regions = {entry.name: entry for entry in fl.corpus(kind="forward")}
    most = {"t5_large/forward/5": 0, "swin_t/forward/45": 1}  # the second has an op that moves to the end of its rank
    for name, crossings in most.items():
        view = view_plan(fl.segment(*regions[name].load()), decisions=False)
        assert measured(view)[0].crossings <= crossings


def test_labels_that_the_explorer_enlarges_do_not_touch_each_other():
    with fl.FusionDefinition() as fd:
        rows = fd.define_tensor([4096, 2048], contiguity=True)
        total_of_squares = fd.ops.sum(rows * rows, dims=[1], keepdim=True)
        largest_of_elements = fd.ops.max(rows, dims=[1], keepdim=True)
        fd.add_output(total_of_squares / largest_of_elements)
    plan = fl.segment(fd, strategy="unfused")
    view = view_plan(plan)
    layout = lay_out(view)
    labels = [
        (x + curve.label[0], y + curve.label[1], measure.edge_label_size(edge)[0])
        for edge in view.edges if edge.labelled and edge.kind == "boundary"
        for (x, y), curve in [layout.wires[edge.id]] if curve.label is not None
    ]
    pairs = [(a, b) for a, b in itertools.combinations(labels, 2) if a[1] == b[1]]
    assert pairs
    for (x, _, width), (other, _, beside) in pairs:
        assert abs(x - other) > ENLARGED * (width + beside) / 2


def test_a_tensor_that_is_read_again_far_below_has_a_stub_there():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], dtype=fl.DataType.Float)
        y = x
        for _ in range(6):
            y = fd.ops.sin(y)
        fd.add_output(fd.ops.add(x, y))
    view = view_plan(fl.segment(fd))
    drawn = lay_out(view)
    (edge,) = (e for e in view.edges if e.kind == "input" and e.target == view.segments[0].nodes[-1])
    curve, reader = drawn.edges[edge.id], drawn.nodes[edge.target]
    assert curve.label is not None
    assert reader.y - curve.points[0][1] < 40


def test_the_layout_after_an_edit_crosses_no_more_than_a_new_one():
    plan = fl.segment(*fl.example("layer_norm_backward"))
    drawn = lay_out(view_plan(plan))
    for edge in [e for e in view_plan(plan).edges if e.kind == "inside"][::3]:
        view = view_plan(plan.cut(edge.tensor))
        after, new = lay_out(view, drawn), lay_out(view)
        assert after.height == pytest.approx(new.height, abs=1)


def test_segments_that_an_edit_does_not_change_keep_their_shape(stubs):
    plan = stubs.rope_like(12, 4)
    view = view_plan(plan)
    before = lay_out(view)
    edited = view_plan(plan.cut(plan.groups[2][len(plan.groups[2]) // 2]))
    after = lay_out(edited, before=before)
    now = {s.nodes: s.index for s in edited.segments}
    same = [(s.index, now[s.nodes]) for s in view.segments if s.nodes in now]
    assert len(same) == 3
    assert all(after.insides[new] is before.insides[old] for old, new in same)
    again = lay_out(view, before=before)
    assert {name: (box.x, box.y) for name, box in again.nodes.items()} == {
        name: (box.x, box.y) for name, box in before.nodes.items()
    }
