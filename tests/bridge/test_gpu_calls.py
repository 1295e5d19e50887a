"""Warm calls of regions on a GPU take the prepared path; a stand-in for the GPU evaluates the kernels in lock step."""

import gc
import importlib
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from needs import needs
from stand_in_gpu import StandIn, stand_in_gpu

from fuser_lab.bridge.flat import FlatGraph
from fuser_lab.runtime.plan.executor import PreparedPlan

torch = needs("torch")

bridge = importlib.import_module("fuser_lab.torch")

Make = Callable[[], tuple[Any, ...]]


def rows(*shape: int) -> Any:
    return torch.randn(shape)


# Functions, and the inputs of successive calls.
CALLS: dict[str, tuple[Callable[..., Any], Make]] = {
    "kernels": (lambda x, y: (x * y).sum(1), lambda: (rows(6, 8), rows(6, 8))),
    "a slice of an input": (
        lambda x: torch.softmax(torch.ops.aten._unsafe_view(x, [4, 6, 6])[:, 1:].clone().view(20, 6), 1),
        lambda: (rows(145)[1:].view(24, 6),),
    ),
    "an address that is not aligned": (lambda x: x * 2 + 1, lambda: (rows(33)[1:],)),
    "a result in the memory of an input": (
        lambda x, y: (torch.cat([x, x[:0]]), x * y), lambda: (rows(4, 8), rows(4, 8)),
    ),
    "a segment of torch's": (lambda x: torch.softmax(x, 1) @ x + x, lambda: (rows(8, 8),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_takes_the_prepared_path(name: str) -> None:
    function, make = CALLS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    with stand_in_gpu() as launched, torch.no_grad():
        compiled = torch.compile(function, backend="fuser_lab", fullgraph=True, options={"matmuls": "record"})
        for _ in range(2):
            compiled(*make())
        count = len(launched.phases)
        compiled(*make())
        per_call = len(launched.phases) - count
        assert per_call
        kept = []
        with mock.patch.object(PreparedPlan, "_run", side_effect=AssertionError("the slow path")):
            for _ in range(2):
                given = make()
                copies = [x.clone() for x in given]
                kept.append((compiled(*given), function(*copies)))
                for x in given:
                    x.zero_()  # no result lies in its memory
        assert len(launched.phases) == count + 3 * per_call
    for got, wanted in kept:
        torch.testing.assert_close(got, wanted)
    regions = bridge.last().regions
    assert not [region.failed for region in regions if region.failed]
    steps = [step for region in regions for step in region.prepared.steps() if step.runs]
    assert any(step.generated is None for step in steps) == (name == "a segment of torch's")


def test_memory_between_kernels_lives_as_long_as_they_need_it() -> None:
    torch._dynamo.reset()
    with stand_in_gpu() as launched, torch.no_grad():
        compiled = torch.compile(lambda x: ((x.sum(0) * x).sum(1), x + 1), backend="fuser_lab", fullgraph=True)
        for _ in range(4):
            x = rows(6, 8)
            torch.testing.assert_close(compiled(x), ((x.sum(0) * x).sum(1), x + 1))
        (region,) = bridge.last().regions
        blocks = region.prepared._variant().storage.blocks
        assert blocks
        assert len(launched.phases) % 4 == 0
        alive = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.untyped_storage().nbytes() in blocks]
        assert not [t for t in alive if t.dtype is torch.uint8]


def test_a_training_step_is_a_function_for_its_stream_and_its_alignments() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Tanh())

    def gradients(function: Callable[..., Any], x: Any) -> list[Any]:
        function(x[1:] * 1.5).square().sum().backward()
        found = [p.grad for p in model.parameters()]
        model.zero_grad()
        return found

    with stand_in_gpu() as launched:
        compiled = torch.compile(model, backend="fuser_lab")
        for _ in range(4):
            gradients(compiled, rows(5, 8))
        count = len(launched.phases)
        x, taken = rows(5, 8), FlatGraph._long_way
        with mock.patch.object(FlatGraph, "_long_way", autospec=True, side_effect=taken) as long_way:
            torch.testing.assert_close(gradients(compiled, x), gradients(model, x))
            assert len(launched.phases) > count
            assert not long_way.called
            # Kernels were compiled for addresses that are multiples of 16.
            y = rows(33)[1:].view(4, 8)
            torch.testing.assert_close(compiled(y), model(y))
            assert long_way.call_count == 1
            z = rows(4, 8)
            with mock.patch.object(StandIn, "stream", 8):
                torch.testing.assert_close(compiled(z), model(z))
            assert long_way.call_count == 2


def test_arguments_are_freed_once_no_region_reads_them() -> None:
    """A mean over rows and columns is kernels with a value between them; a product separates two such regions."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    weight = rows(8, 8)

    def function(x: Any) -> Any:
        x = (x * x.sigmoid().mean((0, 1))) @ weight
        return x * x.sigmoid().mean((0, 1)) * x.mean(1, keepdim=True)

    with stand_in_gpu(), torch.no_grad():
        compiled = torch.compile(function, backend="fuser_lab", options={"strategy": "bottom_up"})
        x = rows(6, 8)
        torch.testing.assert_close(compiled(x), function(x))
        run = bridge.last().graphs[0].run
        run._forget()
        gc.collect()
        gc.disable()  # the arguments are in no cycle
        try:
            freed = weakref.ref(x.untyped_storage())
            compiled(x)
            del x
            assert freed() is None
        finally:
            gc.enable()
        x = rows(6, 8)
        torch.testing.assert_close(compiled(x), function(x))
