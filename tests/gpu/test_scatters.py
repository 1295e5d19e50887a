"""Writes at positions on a GPU: as close to float64 as torch, on any stream, and in a captured graph."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from needs import needs

torch = needs("torch")
bridge = importlib.import_module("fuser_lab.torch")
F = torch.nn.functional
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

Case = tuple[Callable[..., Any], Callable[[Any], tuple[Any, ...]]]


def ints(least: int, most: int, *shape: int) -> Any:
    return torch.randint(least, most, shape, device="cuda")


def floats(dtype: Any, *shape: int) -> Any:
    return torch.randn(shape, device="cuda").to(dtype)


def put(x: Any, indices: list[Any], values: Any) -> Any:
    return torch.ops.aten.index_put(x, indices, values, True)


def rows(gradient: Any, places: Any, most: int, padding: int = -1) -> Any:
    return torch.ops.aten.embedding_dense_backward(gradient, places, most, padding, False)


CASES: dict[str, Case] = {
    "257 elements at positions of two axes": (
        lambda i, v: put(v.new_zeros(257), [i], v * 2), lambda d: (ints(-257, 257, 1000, 1003), floats(d, 1000, 1003))),
    "257 elements at one position": (
        lambda i, v: put(v.new_zeros(257), [i], v), lambda d: (ints(5, 6, 300, 300), floats(d, 300, 300))),
    "elements at transposed positions": (
        lambda x, i, v: put(x, [i.t()], v), lambda d: (floats(d, 257), ints(0, 257, 700, 500), floats(d, 500, 700))),
    "a few elements": (
        lambda i, v: put(v.new_zeros(169, 3), [i], v), lambda d: (ints(0, 169, 2401), floats(d, 2401, 3))),
    "elements at strided positions": (
        lambda i, v: put(v.new_zeros(70_000), [i[:, ::3]], v),
        lambda d: (ints(-70_000, 70_000, 300, 900), floats(d, 300, 300))),
    "rows of 31": (lambda g, i: rows(g, i, 31, 3), lambda d: (floats(d, 4, 5000, 64), ints(0, 31, 4, 5000))),
    "rows of 31, of other lengths": (lambda g, i: rows(g, i, 31), lambda d: (floats(d, 3000, 100), ints(0, 31, 3000))),
    "rows of 5000": (lambda g, i: rows(g, i, 5000), lambda d: (floats(d, 3000, 768), ints(0, 5000, 3000).int())),
    "slices of a transposed tensor": (
        lambda x, i, v: x.t().index_add(0, i, v.t().sin()),
        lambda d: (floats(d, 64, 500), ints(0, 500, 3000), floats(d, 64, 3000))),
    "elements along an axis": (
        lambda x, i, v: x.scatter_add(1, i, v),
        lambda d: (floats(d, 64, 50), ints(0, 50, 64, 3000), floats(d, 64, 3000))),
    "products of rows": (
        lambda x, i, j, w: x.index_add(0, j, x[i] * w),
        lambda d: (floats(d, 5000, 128), ints(0, 5000, 30_000), ints(0, 5000, 30_000), floats(d, 30_000, 128))),
    "sums of rows": (
        lambda x, j, w: x.index_add(0, j, (w * w).sum(1)),
        lambda d: (floats(d, 90_000), ints(0, 90_000, 30_000), floats(d, 30_000, 96))),
    "no elements": (lambda i, v: put(v.new_zeros(257), [i], v), lambda d: (ints(0, 257, 0), floats(d, 0))),
}


def compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="fuser_lab", fullgraph=True, dynamic=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_additions_are_as_close_to_float64_as_those_of_torch(name: str, dtype: str) -> None:
    function, make = CASES[name]
    torch.manual_seed(0)
    inputs = make(getattr(torch, dtype))
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    exact, theirs = function(*wide), function(*inputs)
    # The absolute value of a position may be out of range, and torch's kernels stop the process's device for that.
    positive = [x.abs() if x.is_floating_point() else x for x in wide]
    scale = function(*positive).max() if wide[-1].numel() else 1.0
    run = compiled(function)
    for _ in range(3):
        ours = run(*inputs)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        bound = 2 * float((theirs - exact).abs().max()) + 2 * torch.finfo(ours.dtype).eps * float(scale)
        assert float((ours - exact).abs().max()) <= bound
    (graph,) = bridge.last().graphs
    assert len(graph.run._adds.of) == (name != "no elements")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_sums_of_integers_are_exact(dtype: Any) -> None:
    inputs = ints(-9, 9, 50).to(dtype), ints(0, 50, 40_000), ints(-99, 99, 40_000).to(dtype)

    def function(x: Any, i: Any, v: Any) -> Any:
        return x.scatter_add(0, i, v)

    run = compiled(function)
    for _ in range(3):
        assert torch.equal(run(*inputs), function(*inputs))


def test_histograms_of_rows_are_exact() -> None:
    places = ints(0, 256, 288, 50_000).to(torch.uint8)

    def function(x: Any) -> Any:
        return torch.zeros(288, 256, dtype=torch.int64, device=x.device).scatter_add(
            1, x.long(), torch.ones_like(x, dtype=torch.int64))

    run = compiled(function)
    for _ in range(3):
        assert torch.equal(run(places), function(places))
    (call,) = bridge.last().graphs[0].run._adds.of.values()
    assert call.scatter.source == 1


@pytest.mark.parametrize("rows", [300, 70_000])
def test_elements_at_positions_are_replaced(rows: int) -> None:
    order, values = torch.randperm(rows, device="cuda"), floats(torch.bfloat16, rows, 8)

    def function(order: Any, values: Any) -> tuple[Any, ...]:
        places = torch.empty_like(order)
        places[order] = torch.arange(rows, device="cuda")
        written = torch.ops.aten.index_put(values, [order[: rows // 2]], values[: rows // 2].sin())
        return places, written, torch.zeros(rows, dtype=torch.bool, device="cuda").scatter(0, order[:99], value=True)

    run = compiled(function)
    for _ in range(3):
        torch.testing.assert_close(run(order, values), function(order, values))
    assert len(bridge.last().graphs[0].run._adds.of) == 3


def test_positions_out_of_range_add_nothing() -> None:
    places, values = ints(0, 257, 70_000), floats(torch.float32, 70_000)
    run = compiled(lambda i, v: put(v.new_zeros(257), [i], v))
    run(places, values)
    (call,) = bridge.last().graphs[0].run._adds.of.values()
    assert call._launch is not None, "torch's kernel, which stops the process's device, would get the positions"
    places[-4:] = places.new_tensor([257, -258, 1 << 40, -(1 << 40)])
    expected = put(values.new_zeros(257), [places[:-4]], values[:-4])
    for _ in range(3):
        torch.testing.assert_close(run(places, values), expected, rtol=1e-4, atol=1e-4)


def test_gradients_of_look_ups_run_on_the_current_stream_and_in_a_captured_graph() -> None:
    table, words = floats(torch.float32, 257).requires_grad_(), floats(torch.bfloat16, 5000, 64).requires_grad_()
    x, places, tokens = floats(torch.float32, 300, 64), ints(-257, 257, 300, 64), ints(0, 5000, 300)

    def function(table: Any, words: Any, x: Any, places: Any, tokens: Any) -> Any:
        return (F.gelu(x + table[places]) * F.embedding(tokens, words)).sum()

    run = compiled(function)

    def step(called: Any) -> tuple[Any, ...]:
        return torch.autograd.grad(called(table, words, x, places, tokens), (table, words))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.testing.assert_close(step(run), step(function), rtol=2e-2, atol=2e-2)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step(run)
    with torch.no_grad():
        x.mul_(2)
        table.mul_(0.5)
    graph.replay()
    torch.testing.assert_close(results, step(function), rtol=2e-2, atol=2e-2)
    calls = [call for graph in bridge.last().graphs for call in graph.run._adds.of.values()]
    assert sorted(call.scatter.op for call in calls) == ["embedding_dense_backward", "index_put"]
