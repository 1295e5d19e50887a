"""A fusion whose kernels take seconds to lower: the picture and all answers come at once, predicted times later."""

import threading
import time

import pytest
from machine import allowed
from unit.widgets.events import send

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import CodegenError
from fuser_lab.plan import clock

SUMS = 40  # after one another, each of which computes everything before it again


def sums_of_rows():
    with FusionDefinition() as fd:
        x = fd.define_tensor([2048, 1024], contiguity=True, dtype=DataType.Float)
        for _ in range(SUMS):
            x = fd.ops.sub(x, fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True]))
            for _ in range(7):
                x = fd.ops.relu(x)
        fd.add_output(x)
    return fl.segment(fd)


@pytest.fixture
def gate(monkeypatch):
    """An event for which all kernels wait before they are lowered, which never happens in the thread of the kernel."""
    opened = threading.Event()

    def wait(request):
        assert threading.current_thread() is not threading.main_thread(), "the interface waits for a price"
        opened.wait(60)
        msg = "not lowered, which would take seconds."
        raise CodegenError(msg)

    clock._lower.cache_clear()
    monkeypatch.setattr(clock, "lower", wait)
    yield opened
    opened.set()
    clock._lower.cache_clear()


def test_nothing_that_a_user_does_waits_for_the_predicted_time_of_long_kernels(gate):
    plan = sums_of_rows()
    assert plan.is_slow_to_predict
    begun = time.process_time()
    explorer = fl.explore(plan)
    send(explorer, "detail", detail="ops")
    edges = [edge for edge in explorer._page.view.edges if edge.kind == "inside"]
    send(explorer, "select", id=edges[50].id)
    send(explorer, "select", id=edges[50].target)
    send(explorer, "preview", id=edges[50].id)
    cut = send(explorer, "cut", id=edges[-20].id)
    assert "1 → 2 segments" in cut
    assert "predicted" not in cut
    assert send(explorer, "undo").startswith("Undid cut")
    send(explorer, "panel", name="edits")
    assert "not ranked" in explorer.panels["edits"]["html"]
    send(explorer, "panel", name="time_line")
    assert time.process_time() - begun < allowed(3.0)
    assert "Predicting" in explorer.panels["time_line"]["html"]
    assert not explorer.heat
    gate.set()
    explorer.wait(60)
    assert explorer.heat["times"][0][1] == "predicted (H200)"
    assert "time_line" not in explorer.panels, "the page asks for it again"
    send(explorer, "panel", name="time_line")
    assert "Predicting" not in explorer.panels["time_line"]["html"]
    explorer.close()


def test_kernels_without_dependent_reductions_are_not_slow_to_predict():
    for name in ("llama3_rope_backward", "layer_norm_backward"):
        assert not fl.segment(*fl.example(name)).is_slow_to_predict
