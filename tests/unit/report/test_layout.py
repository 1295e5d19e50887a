import itertools
import shutil
import threading
import time

import pytest

from fuser_lab.report import dot
from fuser_lab.report.dot import GraphvizError, lay_out_with_dot, to_dot
from fuser_lab.report.layered import lay_out_in_layers
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


@pytest.mark.parametrize("engine", [lay_out_with_dot, lay_out_in_layers])
@pytest.mark.parametrize("name", ["sum_broadcast_add", "rope_like"])
def test_boxes_hold_their_ops_and_nothing_overlaps(stubs, name, engine):
    view = view_plan(getattr(stubs, name)())
    drawn = engine(view)
    for node in view.nodes:
        for index, box in drawn.segments.items():
            assert inside(drawn.nodes[node.id], box) is (node.segment == index)
    assert all(apart(a, b) for a, b in itertools.combinations(drawn.nodes.values(), 2))
    assert all(apart(a, b) for a, b in itertools.combinations(drawn.segments.values(), 2))


@pytest.mark.parametrize("engine", [lay_out_with_dot, lay_out_in_layers])
def test_every_edge_is_a_chain_of_bezier_curves(stubs, engine):
    view = view_plan(stubs.rope_like())
    drawn = engine(view)
    assert all(len(drawn.edges[e.id].points) % 3 == 1 for e in view.edges)
    assert all((drawn.edges[e.id].label is not None) is e.labelled for e in view.edges)


def test_no_program_is_needed(stubs, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert lay_out(view_plan(stubs.sum_broadcast_add())).width > 0


def test_without_any_graphviz_the_layers_stand_in(stubs, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    view = view_plan(stubs.sum_broadcast_add())
    with pytest.raises(GraphvizError, match="install the Python package pygraphviz"):
        lay_out_with_dot(view)
    assert lay_out(view) == lay_out_in_layers(view)


def test_no_name_of_the_user_reaches_dot(stubs):
    hostile = 'T"]; evil [label="'
    plan = stubs.sum_broadcast_add((hostile, "T1", "T2", "T3", "T4"))
    assert "evil" not in to_dot(view_plan(plan))
    assert lay_out(view_plan(plan)).nodes


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
        start = time.perf_counter()
        lay_out(view)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < most


def test_the_program_draws_as_the_library_does(stubs, monkeypatch):
    if shutil.which("dot") is None:
        import pygraphviz

        def run(source):
            return pygraphviz.AGraph(string=source).draw(format="json", prog="dot")

        monkeypatch.setattr(dot, "_run_program", run)
    monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
    assert lay_out_with_dot(view_plan(stubs.sum_broadcast_add())).nodes
