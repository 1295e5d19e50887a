"""Writes at positions as kernels on a GPU: values in lock step, tables in shared memory, and calls in a graph."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from needs import needs
from stand_in_gpu import Launched, StandIn, stand_in_gpu

from fuser_lab.bridge import add_calls, host_scatters, scatters
from fuser_lab.bridge.gpu_scatters import add_kernel
from fuser_lab.bridge.partition import ADDED
from fuser_lab.bridge.scatters import scatter_of
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import Alloc, Barrier, map_blocks, walk
from fuser_lab.cost.device import H200, KIB
from fuser_lab.errors import CompilationError, RegionWarning
from fuser_lab.runtime.arrays import storage_dtype

torch = needs("torch")
bridge = importlib.import_module("fuser_lab.torch")
SMALL = replace(H200, sms=2, shared_per_sm=34 * KIB, shared_per_block=16 * KIB)  # for two blocks at a time


def ints(least: int, most: int, *shape: int) -> Any:
    return torch.randint(least, most, shape)


def floats(*shape: int) -> Any:
    return torch.randn(shape)


def put(x: Any, indices: list[Any], values: Any, *, accumulate: bool = True) -> Any:
    return torch.ops.aten.index_put(x, indices, values, accumulate)


def rows(gradient: Any, places: Any, most: int, padding: int = -1) -> Any:
    return torch.ops.aten.embedding_dense_backward(gradient, places, most, padding, False)


# The function, its inputs, the launches, and the size of the table of a block beside that of the target, 0 for none.
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], list[str], float]] = {
    "a few elements": (
        lambda i, v: put(v.new_zeros(257), [i], v), lambda: (ints(-257, 257, 60, 61), floats(60, 61)), ["add"], 8),
    "many elements": (
        lambda i, v: put(v.new_zeros(257), [i], v), lambda: (ints(-257, 257, 70, 301), floats(70, 301)),
        ["fill", "add"], 8),
    "elements at transposed positions": (
        lambda x, i, v: put(x, [i.t()], v),
        lambda: (floats(169).bfloat16(), ints(0, 169, 150, 200), floats(200, 1).bfloat16()),
        ["fill", "add", "round"], 16),
    "rows of a small table": (
        lambda g, i: rows(g, i, 31, 3), lambda: (floats(500, 64), ints(0, 31, 500)), ["fill", "add"], 2),
    "a few rows of half precision": (
        lambda g, i: rows(g, i, 31), lambda: (floats(4, 10, 64).half(), ints(0, 31, 4, 10).int()), ["add"], 1),
    "rows of a large table": (
        lambda g, i: rows(g, i, 500), lambda: (floats(300, 96).bfloat16(), ints(0, 500, 300)),
        ["fill", "add", "round"], 0),
    "slices of a transposed tensor": (
        lambda x, i, v: x.t().index_add(0, i, v),
        lambda: (floats(40, 70).double(), ints(0, 70, 190), floats(40, 190).double().t()), ["fill", "add"], 0),
    "integers along an axis": (
        lambda x, i, v: x.scatter_add(1, i, v), lambda: (ints(0, 9, 4, 7), ints(0, 7, 4, 3000), ints(0, 9, 4, 3000)),
        ["fill", "add"], 64),
    "a histogram of each row": (
        lambda i: torch.zeros(6, 700, dtype=torch.int64).scatter_add(1, i, torch.ones_like(i)),
        lambda: (ints(0, 700, 6, 9001),), ["fill", "add"], 2 / 6),
    "a histogram of bytes of each row": (
        lambda i: torch.zeros(6, 250, dtype=torch.int32).scatter_add(
            1, i.long().view(6, -1), torch.ones(6, 9001, dtype=torch.int32)),
        lambda: (ints(0, 250, 6, 9001, 1).byte(),), ["fill", "add"], 2),
    "rows at narrow positions": (
        lambda x, i, v: put(x, [i.long().t()], v), lambda: (floats(90, 100), ints(-90, 90, 7, 10).char(), floats(100)),
        ["fill", "add"], 0),
    "slices of each row": (
        lambda x, i, v: x.scatter_add(1, i, v),
        lambda: (floats(5, 300, 6).half(), ints(0, 300, 5, 1000, 6), floats(5, 1000, 6).half()),
        ["fill", "add", "round"], 1 / 5),
    "two indices with an axis between them": (
        lambda x, i, j, v: put(x, [i, None, j], v),
        lambda: (floats(7, 5, 6), ints(-7, 7, 9), ints(-6, 6, 9), floats(9, 1)), ["add"], 1),
    "a few elements that are replaced": (
        lambda x, i, v: x.scatter(0, i, v),
        lambda: (ints(0, 9, 400).int(), torch.randperm(400)[:300], ints(0, 9, 300).int()), ["add"], 0),
    "rows that are replaced": (
        lambda x, i, v: put(x, [i], v, accumulate=False),
        lambda: (floats(90, 100).bfloat16(), torch.randperm(90)[:70] - 45, floats(70, 100).bfloat16()),
        ["fill", "add"], 0),
    "truth values that are replaced by one": (
        lambda x, i: x.scatter(1, i, value=True),
        lambda: (floats(3, 4000) > 1, torch.stack([torch.randperm(4000)[:999] for _ in range(3)])),
        ["fill", "add"], 0),
}


class Values(torch.fx.Interpreter):
    """A run of a graph that keeps the value of each node."""

    def run_node(self, n: Any) -> Any:
        """Return the value of a node."""
        self.values = getattr(self, "values", {})
        self.values[n] = super().run_node(n)
        return self.values[n]


def words(x: Any) -> Any:
    """The memory of a tensor as kernels read it."""
    flat = x.as_strided((1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)),), (1,)).clone()
    return flat.view(torch.int16).numpy().view(np.uint16) if x.dtype.itemsize == 2 else flat.numpy()


@pytest.mark.parametrize("name", CASES)
def test_kernels_add_as_torch_does_in_float64(name: str) -> None:
    """A position that is out of range adds nothing."""
    function, make, launches, ratio = CASES[name]
    torch.manual_seed(0)
    inputs = make()
    module = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx(
        function, tracing_mode="fake")(*inputs)
    scatters.read_narrow_positions(module.graph)
    module.recompile()
    ((node, scatter),) = [(node, found) for node in module.graph.nodes if (found := scatter_of(node)) is not None]
    kernel = add_kernel(scatter, SMALL).kernel_ir
    (result,) = kernel.outputs
    assert [phase.name.removeprefix(f"{scatter.op}_") for phase in kernel.phases] == launches
    tables = [s.buffer for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Alloc)]
    assert [table.size / result.size for table in tables] == [ratio] * (ratio > 0)

    run = Values(module)
    run.run(*inputs)
    memory = {
        buffer.name: words(run.values[read]) for buffer, read in zip(kernel.inputs, scatter.operands, strict=True)
    }
    memory["result"] = np.full(result.size, 99, storage_dtype(result.dtype))

    def evaluated() -> Any:
        evaluate_kernel(kernel, memory)
        flat = memory["result"].view(np.int16) if result.dtype.itemsize == 2 else memory["result"]
        return torch.from_numpy(flat.copy()).view(run.values[node].dtype).as_strided(
            scatter.target.shape, scatter.target.strides)

    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    largest = function(*[x.abs() if x.is_floating_point() else x for x in wide]).double().abs().max()
    precision = 2e-6 if result.dtype.itemsize > 2 else 4e-3
    assert (evaluated().double() - function(*wide).double()).abs().max() <= precision * largest
    for buffer, read in zip(kernel.inputs, scatter.operands, strict=True):
        if read is scatter.positions[0].node:
            memory[buffer.name][:] = scatter.positions[0].size
    start = run.values[scatter.start] if scatter.start in run.values else torch.zeros_like(run.values[node])
    assert torch.equal(evaluated(), start)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_barrier_before_or_after_additions_in_shared_memory_is_an_error(missing: int) -> None:
    function, make, *_ = CASES["a few elements"]
    inputs = make()
    module = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx(function)(*inputs)
    (scatter,) = filter(None, map(scatter_of, module.graph.nodes))
    kernel = add_kernel(scatter, SMALL).kernel_ir
    (phase,), barriers = kernel.phases, iter(range(2))

    def without(body: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            map_blocks(s, without) for s in body if not isinstance(s, Barrier) or next(barriers) != missing)

    kernel = replace(kernel, phases=(replace(phase, body=without(phase.body)),))
    zeros = np.zeros(257, np.float32)
    memory = {"x0": zeros, "x1": words(inputs[0]), "x2": words(inputs[1]), "result": zeros.copy()}
    with pytest.raises(IndexError, match="without a barrier"):
        evaluate_kernel(kernel, memory)


@contextmanager
def as_on_a_gpu() -> Iterator[Launched]:
    """Let additions on the CPU run by the kernels of a GPU, on the stand-in."""
    with (
        stand_in_gpu() as launched, mock.patch.object(add_calls, "has_own_memory", return_value=True),
        mock.patch.object(host_scatters, "is_on_host", return_value=False),
        mock.patch.object(scatters, "has_own_memory", return_value=True),
        mock.patch.object(add_calls, "_memory", return_value=StandIn(launched)),
    ):
        yield launched


def bias(x: Any, table: Any, places: Any) -> Any:
    return (x + table[places]).sin()


def stepped(function: Callable[..., Any], x: Any, table: Any, places: Any) -> list[Any]:
    """The result and the gradients of a function."""
    given = [x.detach().requires_grad_(), table.detach().requires_grad_()]
    result = function(*given, places)
    return [result.detach(), *torch.autograd.grad(result.sum(), given)]


def test_the_gradient_of_a_look_up_is_a_kernel_on_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    values = floats(40, 70), floats(257), ints(-257, 257, 40, 70)
    with as_on_a_gpu() as launched:
        compiled = torch.compile(bias, backend="fuser_lab", fullgraph=True)
        for stream in (7, 7, 7, 8, 8):  # through the FX module first, then by a function for each stream
            monkeypatch.setattr(StandIn, "stream", stream)
            before = len(launched.phases)
            torch.testing.assert_close(stepped(compiled, *values), stepped(bias, *values))
            assert "index_put_add" in [phase.name for phase in launched.phases[before:]]
    _, backward = bridge.last().graphs
    assert len(backward.run._frames) == 2
    assert {left.op: left.reason for left in backward.left}["aten.index_put.default"] == ADDED


def test_timed_runs_of_a_graph_add_by_the_kernel() -> None:
    torch._dynamo.reset()
    with as_on_a_gpu() as launched:
        x, table, places = floats(70, 301).bfloat16(), floats(257).bfloat16(), ints(-257, 257, 70, 301)
        compiled = torch.compile(bias, backend="fuser_lab", fullgraph=True)
        stepped(compiled, x, table, places)
        _, backward = bridge.last().graphs
        units: list[Any] = []
        backward.run.around = lambda unit: units.append(unit) or mock.MagicMock()
        before = len(launched.phases)
        *_, sums = stepped(compiled, x, table, places)
        *_, exact = stepped(bias, x.double(), table.double(), places)
        assert (sums.double() - exact).abs().max() <= 0.02 * exact.abs().max()
        names = [phase.name for phase in launched.phases[before:]]
        assert [name for name in names if "index_put" in name] == ["index_put_fill", "index_put_add", "index_put_round"]
    assert not [unit for unit in units if getattr(unit, "name", "").startswith("full")]


def test_counts_read_no_ones() -> None:
    torch._dynamo.reset()

    def function(places: Any) -> Any:
        places = places.long()
        return places.new_zeros(4, 30).scatter_add(1, places, torch.ones_like(places)) * 2

    places = ints(0, 30, 4, 500).to(torch.uint8)
    with as_on_a_gpu():
        compiled = torch.compile(function, backend="fuser_lab", fullgraph=True)
        for _ in range(3):
            assert torch.equal(compiled(places), function(places))
    (graph,) = bridge.last().graphs
    (call,) = graph.run._adds.of.values()
    assert (call.scatter.source, call.scatter.start) == (1, 0)
    assert [node.meta["val"].dtype for node in call.scatter.operands] == [torch.uint8], "positions are not cast"
    assert len(graph.run._adds.filled) == 3  # zeros, one, and the expanded one


ROWS, EDGES = 401, 301
# What is written at positions i and j of the rows of x, with weights w, their width, and whether the region writes it.
WRITTEN_BY_REGIONS: dict[str, tuple[Callable[..., Any], int, bool]] = {
    "products of rows": (lambda x, w, i, j: torch.zeros_like(x).index_add(0, j, x[i] * w), 64, True),
    "heads of rows": (lambda x, w, i, j: put(x.view(-1, 4, 16), [j], (x[i] * w).view(-1, 4, 16)), 64, True),
    "sums of rows": (lambda x, w, i, j: x.new_zeros(90000).index_add(0, j, (x[i] * w).sum(1)), 64, True),
    "an expanded position": (lambda x, w, i, j: x.scatter_add(0, j[:, None].expand(-1, 64), x[i] * w), 64, True),
    "a position of each element": (
        lambda x, w, i, j: x.view(-1).scatter_add(0, j.repeat_interleave(64), (x[i] * w).view(-1)), 64, True),
    "rows that are replaced": (lambda x, w, i, j: put(x, [i], x[i] * w, accumulate=False), 64, True),
    "rows of no whole vectors": (lambda x, w, i, j: torch.zeros_like(x).index_add(0, j, x[i] * w), 63, False),
    "products that are returned": (lambda x, w, i, j: (p := x[i] * w, x.index_add(0, j, p)), 64, False),
    "a part of the products": (lambda x, w, i, j: x.scatter_add(0, j[:99, None].expand(-1, 64), x[i] * w), 64, False),
    "positions of the same region": (lambda x, w, i, j: x.index_add(0, (x[i] * w).argmax(1), x[i] * w), 64, False),
}


@pytest.mark.parametrize(("name", "dtype"), [
    *((name, "float32") for name in WRITTEN_BY_REGIONS),
    ("products of rows", "bfloat16"), ("products of rows", "float64"),
])
def test_a_region_writes_at_positions_what_only_a_scatter_reads(name: str, dtype: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    function, width, is_written = WRITTEN_BY_REGIONS[name]
    x, w = (floats(n, width).to(getattr(torch, dtype)) for n in (ROWS, EDGES))
    values = x, w, torch.randperm(ROWS)[:EDGES], ints(0, ROWS, EDGES)
    with as_on_a_gpu() as launched, torch.no_grad():
        compiled = torch.compile(function, backend="fuser_lab", fullgraph=True)
        for _ in range(3):
            before = len(launched.phases)
            results = compiled(*values)
    names = [phase.name.rpartition("_")[2] for phase in launched.phases[before:]]
    assert "fill" in names
    assert ("add" in names) is not (is_written and dtype != "float64")
    exact = function(*[v.double() if v.is_floating_point() else v for v in values])
    tolerance = {"bfloat16": 0.04}.get(dtype, 1e-5)
    torch.testing.assert_close(results, exact, rtol=tolerance, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize("width", [64, 63])  # the region writes at positions, or kernels of their own do
def test_gradients_of_both_ends_of_edges_are_added_in_one_memory(width: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)

    def ends(x: Any, w: Any, i: Any) -> Any:
        return (x[i[0]] * x[i[1]] * w).sin()

    values = floats(ROWS, width), floats(EDGES, width), ints(0, ROWS, 2, EDGES)
    with as_on_a_gpu() as launched:
        compiled = torch.compile(ends, backend="fuser_lab", fullgraph=True)
        for _ in range(3):
            before = len(launched.phases)
            torch.testing.assert_close(stepped(compiled, *values), stepped(ends, *values))
    names = [phase.name for phase in launched.phases[before:] if "index_put" in phase.name]
    assert names == ["index_put_fill", *["index_put_add"] * (2 if width == 63 else 0)]


@pytest.mark.parametrize("why", ["deterministic", "dtype", "largest", "option", "compiler"])
def test_torch_runs_what_kernels_do_not_add(why: str) -> None:
    torch._dynamo.reset()
    values = floats(9, 5), ints(0, 9, 30), floats(30, 5)
    if why == "dtype":
        values = values[0].to(torch.complex64), values[1], values[2].to(torch.complex64)

    def function(x: Any, i: Any, v: Any) -> Any:
        if why == "largest":
            return x.scatter_reduce(0, i[:, None].expand(-1, 5), v, "amax")
        return put(x, [i], v)

    options = {"left_to_torch": ["aten.index_put"]} if why == "option" else {}
    compiled = torch.compile(function, backend="fuser_lab", fullgraph=True, options=options)
    torch.use_deterministic_algorithms(why == "deterministic")
    try:
        with as_on_a_gpu() as launched:
            if why == "compiler":
                error = mock.patch.object(StandIn, "calls", side_effect=CompilationError("refused"))
                with error, pytest.warns(RegionWarning, match="refused"):
                    torch.testing.assert_close(compiled(*values), function(*values))
            torch.testing.assert_close(compiled(*values), function(*values))
        assert not launched.phases
    finally:
        torch.use_deterministic_algorithms(mode=False)
    (graph,) = bridge.last().graphs
    (row,) = [row for row in bridge.last().left_to_torch if "index_put" in row.op or "scatter" in row.op]
    assert "without torch.use_deterministic_algorithms" in row.takes or why != "deterministic"
    (reason,) = [left.reason for left in graph.left if left.op == row.op]
    said = {"deterministic": "use_deterministic_algorithms is on", "dtype": "complex64", "largest": "only add",
            "option": "option left_to_torch", "compiler": ADDED}
    assert said[why] in reason
