"""Independent regions of one program are one launch on a GPU; a stand-in evaluates the kernels in lock step."""

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from needs import needs
from profiled import events_of
from stand_in_gpu import Launched, stand_in_gpu

from fuser_lab.bridge.op_costs import region_cost
from fuser_lab.codegen.kernel_list import MOST_ARGUMENTS, ListPhase, list_kernel
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.cost.device import DEFAULT
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.errors import CompilationError, RegionWarning

torch = needs("torch")

bridge = importlib.import_module("fuser_lab.torch")

# Sizes whose kernels take 4, 2 and 1 elements at a time, with one block and several.
SIZES = [(64, 17), (64,), (33, 16), (6, 64), (6,), (7,), (1,), (301,)]


def tensors(sizes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [torch.randn(size) for size in sizes]


def averages(old: list[Any], new: list[Any]) -> list[Any]:
    return [a * 0.75 + b * 0.25 for a, b in zip(old, new, strict=True)]


def warm(function: Callable[..., Any], *inputs: Any, runs: int = 3) -> tuple[Any, Launched, int]:
    """Return the results of the last of some runs, the launches of all, and their number before the last."""
    torch._dynamo.reset()
    with stand_in_gpu() as launched, torch.no_grad():
        compiled = torch.compile(function, backend="fuser_lab", fullgraph=True)
        for _ in range(runs):
            before = len(launched.phases)
            results = compiled(*inputs)
    return results, launched, before


def lists() -> tuple[Any, ...]:
    (graph,) = bridge.last().graphs
    return tuple(graph.lists)


def test_averages_of_48_tensors_of_many_sizes_are_one_launch() -> None:
    old, new = tensors(SIZES * 6), tensors(SIZES * 6)
    results, launched, before = warm(averages, old, new)
    assert len(bridge.last().regions) == 48
    (phase,) = launched.phases[before:]
    assert isinstance(phase, ListPhase)
    assert len(phase.entries) == 48
    for result, expected in zip(results, averages(old, new), strict=True):
        assert torch.equal(result, expected)
    (listed,) = lists()
    assert listed.regions == tuple(range(48))
    assert "independent" in listed.reason
    assert "mul(T0, float(0.75))" in listed.reason


def adamw(parameters: list[Any], gradients: list[Any], means: list[Any], squares: list[Any], rate: Any) -> list[Any]:
    results = []
    for p, g, m, v in zip(parameters, gradients, means, squares, strict=True):
        mean = m * 0.9 + g * 0.1
        square = v * 0.999 + g * g * 0.001
        results.append((p * (1 - 0.01 * rate) - rate * (mean / 0.1) / ((square / 0.001).sqrt() + 1e-8), mean, square))
    return results


def test_a_step_of_adamw_over_12_parameters_is_one_launch() -> None:
    sizes = [(48, 16), (48,), (16, 48), (16,)] * 3
    values = [tensors(sizes) for _ in range(3)], [x.square() for x in tensors(sizes)]
    results, launched, before = warm(adamw, *values[0], values[1], torch.tensor(0.01))
    assert [isinstance(phase, ListPhase) for phase in launched.phases[before:]].count(True) == 1
    assert len(launched.phases) - before <= 2  # what all updates share may be another one
    torch.testing.assert_close(results, adamw(*values[0], values[1], torch.tensor(0.01)))


def test_a_region_that_reads_a_result_of_another_one_is_not_in_its_list() -> None:
    def chain(x: Any, y: Any, w: Any) -> tuple[Any, ...]:
        first = torch.cumsum(x * 2 + 1, 0)
        second = torch.cumsum(torch.sort(first)[0] * 2 + 1, 0)
        return first, second, y * 2 + 1, w * 2 + 1

    values = tensors([(40,), (24,), (8,)])
    results, _, _ = warm(chain, *values)
    torch.testing.assert_close(results, chain(*values))
    assert lists()
    regions = {region.index: region for region in bridge.last().regions}
    for listed in lists():
        inside = [regions[number] for number in listed.regions]
        made = {node for region in inside for node in region.output_nodes}
        assert not any(node in made for region in inside for node in region.input_nodes)


def test_a_chain_of_equal_programs_is_one_launch_each() -> None:
    def chain(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = (x * 0.5 + 1) @ w
        return x

    values = tensors([(8, 8), (8, 8)])
    results, launched, before = warm(chain, *values)
    assert len(launched.phases) - before == 3
    assert lists() == ()
    torch.testing.assert_close(results, chain(*values))


def test_what_writes_to_tensors_stays_after_and_before_their_readers() -> None:
    def update(old: list[Any], new: list[Any]) -> list[Any]:
        sums = []
        for a, b in zip(old, new, strict=True):
            a.mul_(0.75).add_(b * 0.25)
            sums.append(a * 2 - b)
        return sums

    old, new = tensors(SIZES), tensors(SIZES)
    expected_old = [x.clone() for x in old]
    for _ in range(3):
        expected = update(expected_old, new)
    results, launched, before = warm(update, old, new)
    assert len(launched.phases) - before == 1
    for result, right in zip((*results, *old), (*expected, *expected_old), strict=True):
        assert torch.equal(result, right)


def test_views_of_results_and_slices_of_inputs_in_a_list() -> None:
    def function(x: Any, y: Any, z: Any) -> tuple[Any, ...]:
        parts = [part * 0.5 + 1 for part in (x[1:], y, z)]
        return (*(part.view(4, -1) for part in parts), torch.sort(parts[0], 0)[0])

    values = tensors([(49, 8), (32, 4), (16,)])
    results, launched, before = warm(function, *values)
    (phase,) = launched.phases[before:]
    assert isinstance(phase, ListPhase)
    assert len(phase.entries) == 3
    for result, expected in zip(results, function(*values), strict=True):
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()


def test_a_list_longer_than_the_arguments_of_a_launch_is_split_into_equal_parts() -> None:
    sizes = [(n % 7 + 1,) for n in range(227)]
    old, new = tensors(sizes), tensors(sizes)
    results, launched, before = warm(averages, old, new, runs=2)
    phases = launched.phases[before:]
    assert len(phases) == 3
    assert sum(len(phase.entries) for phase in phases) == 227
    assert max(len(phase.entries) for phase in phases) - min(len(phase.entries) for phase in phases) <= 1
    for phase in phases:
        assert sum(8 for _ in phase.buffers) + sum(size.dtype.itemsize for size in phase.sizes) <= MOST_ARGUMENTS
    for result, expected in zip(results, averages(old, new), strict=True):
        assert torch.equal(result, expected)


def test_a_list_that_the_compiler_refuses_is_launched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        msg = "the kernel does not compile."
        raise CompilationError(msg)

    monkeypatch.setattr("fuser_lab.runtime.gpu.list_run.list_kernel", refuse)
    old, new = tensors(SIZES), tensors(SIZES)
    with pytest.warns(RegionWarning, match="regions 0, 1, 2, .* are launched one by one"):
        results, launched, before = warm(averages, old, new)
    assert len(launched.phases) - before == len(SIZES)
    assert lists() == ()
    torch.testing.assert_close(results, averages(old, new))


def test_the_predicted_time_of_a_step_counts_one_launch_for_a_list() -> None:
    launch = TimeModel.of(DEFAULT).launch

    def seconds(function: Callable[..., Any], *inputs: Any) -> float:
        captured = bridge.from_torch(function, *inputs)
        alone = math.fsum(region_cost(region, DEFAULT).predicted for region in captured.regions)
        return float(alone - captured.step().step)

    old, new = tensors(SIZES), tensors(SIZES)
    assert seconds(averages, old, new) == pytest.approx((len(SIZES) - 1) * launch)
    assert seconds(lambda x, w: ((x * 0.5) @ w * 0.5) @ w, *tensors([(8, 8), (8, 8)])) <= 0


def kernels_of(function: Callable[..., Any], *inputs: Any) -> list[GeneratedKernel]:
    warm(function, *inputs, runs=1)
    return [region.prepared.steps()[0].generated for region in bridge.last().regions]


def test_each_block_of_a_list_runs_one_block_of_one_entry() -> None:
    kernels = kernels_of(averages, tensors(SIZES), tensors(SIZES))
    generated, order = list_kernel(kernels)
    (phase,) = generated.kernel_ir.phases
    assert isinstance(phase, ListPhase)
    assert sorted(order) == list(range(len(SIZES)))
    calls: list[tuple[Any, ...]] = []
    names: dict[str, Any] = {
        "index32": int, "cuda": SimpleNamespace(jit=lambda **_: lambda _: lambda *args: calls.append(args)),
    }
    source = generated.source
    exec(source[source.index("@cuda.jit"):], names)
    numbers = {size.name: size.value for size in phase.sizes}
    arguments = [*(buffer.name for buffer in phase.buffers), *numbers.values()]
    for block in range(phase.launch.blocks):
        names["cuda"].blockIdx = SimpleNamespace(x=block)
        names[phase.name](*arguments)
    expected = [
        (*(phase.listed(buffer.name, n) for buffer in entry.buffers), *(size.value for size in entry.sizes), block)
        for n, entry in enumerate(phase.entries) for block in range(entry.launch.blocks)
    ]
    assert calls == expected
    assert sum(phase.launch.blocks for phase in phase.entries) == len(calls)


def test_runs_with_intermediates_in_memory_are_in_no_list() -> None:
    def sums(values: list[Any]) -> list[Any]:
        return [(x * 0.5).sum() for x in values]

    values = [torch.randn(40_000), torch.randn(48_000)]
    results, _, _ = warm(sums, values)
    torch.testing.assert_close(results, sums(values), rtol=1e-4, atol=1e-3)
    assert lists() == ()
    runs = [region.prepared.taken_run() for region in bridge.last().regions]
    assert [run.kernel for run in runs if run is not None] == [None] * sum(run is not None for run in runs)


# Writes over arguments


def copies_of(call: Callable[[], Any]) -> int:
    """Return how often torch copies in a call: a tensor, or several at once, which on the CPU are copied one by one."""
    names = [event.name for event in events_of(call, "CPU")]
    return names.count("aten::_foreach_copy_") or names.count("aten::copy_")


def adam_in_place(parameters: list[Any], gradients: list[Any], means: list[Any], squares: list[Any]) -> None:
    for p, g, m, v in zip(parameters, gradients, means, squares, strict=True):
        m.mul_(0.9).add_(g * 0.1)
        v.mul_(0.999).add_(g * g * 0.001)
        p.sub_(m / (v.sqrt() + 1e-8) * 1e-3)


def swapped(x: Any, y: Any) -> None:
    twice = x * 2
    x.copy_(y * 3)
    y.copy_(twice)


def returned(x: Any) -> Any:
    x.mul_(2)
    return x, x.view(-1), x * 3


def read_by_others(x: Any, y: Any, z: Any) -> Any:
    before = x @ z * 2
    x.mul_(0.5)
    y.add_(x)
    return before, x @ z + y, z * 0.5


def read_later(x: Any, y: Any) -> Any:
    late = torch.sigmoid(x * 0.5 @ y) @ x
    x.mul_(0.5)
    return late, x @ y


def written(update: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that updates its arguments and returns nothing."""

    def function(*arguments: Any) -> None:
        update(*arguments)

    return function


# Functions, the sizes of their arguments, and the copies of a call.
IN_PLACE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "one": (written(lambda x: x.mul_(0.5).add_(1)), [(6, 8)], 0),
    "of nothing": (written(lambda x, y: torch.mul(y, 2, out=x)), [(6, 8), (6, 8)], 0),
    "of another argument": (written(lambda x, y: x.copy_(y * 2)), [(6, 8), (6, 8)], 0),
    "of neighbours": (written(lambda x: x.add_(x.flip(0))), [(6, 8)], 1),
    "of a transposed view": (written(lambda x: x.copy_(x * x.t())), [(8, 8)], 1),
    "of all elements": (written(lambda x: x.sub_(x.mean())), [(6, 8)], 1),
    "of shifted elements": (written(lambda x: x.copy_(torch.nn.functional.pad(x[1:] * 2, (0, 0, 0, 1)))), [(6, 8)], 1),
    "of one element": (written(lambda x: x.copy_(x * x[0, 0])), [(6, 8)], 1),
    "of two arguments": (swapped, [(6, 8), (6, 8)], 1),
    "of a result": (returned, [(6, 8)], 1),
    "read by others": (read_by_others, [(8, 8)] * 3, 0),
    "read later": (read_later, [(8, 8)] * 2, 1),
}


# Copies of a call on the CPU, where kernels of their own compute what is one launch on a GPU.
IN_PLACE_ON_A_CPU = {"one": 0, "of shifted elements": 1, "of all elements": 1, "of two arguments": 1}


@pytest.mark.parametrize(
    ("name", "processor", "copies"),
    [*((name, stand_in_gpu, copies) for name, (_, _, copies) in IN_PLACE.items()),
     *((name, contextlib.nullcontext, copies) for name, copies in IN_PLACE_ON_A_CPU.items())],
)
def test_a_result_is_computed_in_the_memory_of_the_argument_that_it_overwrites(
    name: str, processor: Callable[[], Any], copies: int,
) -> None:
    function, sizes, _ = IN_PLACE[name]
    arguments = tensors(sizes)
    expected = [x.clone() for x in arguments]
    torch._dynamo.reset()
    with processor(), torch.no_grad():
        compiled = torch.compile(function, backend="fuser_lab", fullgraph=True)
        for _ in range(3):
            results = compiled(*arguments)
            torch.testing.assert_close(results, function(*expected))
            torch.testing.assert_close(arguments, expected)
        assert copies_of(lambda: compiled(*arguments)) == copies


def test_a_step_of_adam_in_place_is_one_launch_without_new_memory() -> None:
    sizes = [(48, 16), (48,), (16, 48), (7,)] * 3
    values = [[x.square() for x in tensors(sizes)] for _ in range(4)]
    expected = [[x.clone() for x in group] for group in values]
    for _ in range(3):
        adam_in_place(*expected)
    _, launched, before = warm(adam_in_place, *values)
    (phase,) = launched.phases[before:]
    assert isinstance(phase, ListPhase)
    torch.testing.assert_close(values, expected)
    addresses = [x.data_ptr() for group in values for x in group]
    (graph,) = bridge.last().graphs
    assert "empty_strided" not in str(graph.run._frames)
    assert addresses == [x.data_ptr() for group in values for x in group]


def test_an_argument_whose_address_is_not_aligned_takes_another_way() -> None:
    torch._dynamo.reset()
    with stand_in_gpu(), torch.no_grad():
        compiled = torch.compile(written(lambda x, y: torch.mul(y, 2, out=x)), backend="fuser_lab", fullgraph=True)
        for start in (0, 0, 0, 1, 2, 0):
            x, y = torch.zeros(40)[start:start + 32], torch.randn(32)
            compiled(x, y)
            assert torch.equal(x, y * 2)
