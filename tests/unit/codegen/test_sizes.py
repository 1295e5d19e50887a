"""Sizes as arguments: few kernels serve many sizes, each is right for all of them, and arguments are listed."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from backend.reductions import softmax, totals
from hypothesis import given
from hypothesis import strategies as st
from thorough import tries

import fuser_lab as fl
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import Kernel, Loop, Phase, layout_of, walk
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import Apply, Const, Var
from fuser_lab.runtime.arrays import flat_view, storage_dtype
from fuser_lab.runtime.gpu.ptx import kernel_key
from tests.kernels import generate, lower

TARGETS = ("cpu", "cuda")


def mean_norm(fd: Any, x: Any, w: Any) -> Any:
    """A norm of rows with a weight."""
    ops = fd.ops
    mean = ops.broadcast(ops.mean(ops.mul(x, x), [1]), [False, True])
    return ops.mul(ops.mul(x, ops.rsqrt(ops.add(mean, 1e-5))), ops.broadcast(w, [True, False]))


def batch_mean(fd: Any, x: Any) -> Any:
    """Rows minus the mean over all rows."""
    return fd.ops.sub(x, fd.ops.broadcast(fd.ops.mean(x, [0]), [True, False]))


def column_softmax(fd: Any, x: Any) -> Any:
    return fd.ops.softmax(x, 0)


def batch_statistics(fd: Any, x: Any) -> Any:
    """Elements minus the mean of their channel over the batch and the positions."""
    return fd.ops.sub(x, fd.ops.broadcast(fd.ops.mean(x, [0, 2]), [True, False, True]))


def joined(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.relu(fd.ops.cat([x, fd.ops.neg(y), x], 0))


Shapes = Callable[[int], list[tuple[int, ...]]]
# Computation, scheduler, shapes; maximum of kernels for forty sizes, on the CPU and on a GPU. On the CPU, each number
# of rows up to 16 has a separate kernel that sums columns in registers.
CASES: dict[str, tuple[Any, S, Shapes, int, int]] = {
    "softmax": (softmax, S.INNER_PERSISTENT, lambda n: [(n, 40)], 5, 4),
    "norm": (mean_norm, S.INNER_PERSISTENT, lambda n: [(n, 96), (96,)], 6, 4),
    "row sums": (totals(1), S.REDUCTION, lambda n: [(n, 24)], 5, 4),
    "column softmax": (column_softmax, S.OUTER_PERSISTENT, lambda n: [(n, 48)], 5, 12),
    "column sums": (totals(0), S.REDUCTION, lambda n: [(n, 48)], 20, 12),
    "sum of all": (totals(0, 1), S.REDUCTION, lambda n: [(n, 40)], 5, 20),
    "bias": (lambda fd, x, b: fd.ops.relu(fd.ops.add(x, b)), S.POINTWISE, lambda n: [(n, 24), (24,)], 4, 4),
    "elements": (lambda fd, x, y: fd.ops.add(x, y), S.POINTWISE, lambda n: [(n,), (n,)], 3, 10),
    "batch statistics": (batch_statistics, S.INNER_PERSISTENT, lambda n: [(n, 3, 49)], 8, 20),
    "sums apart": (totals(0, 2), S.REDUCTION, lambda n: [(n, 5, 3, 48)], 12, 12),
    "joined": (joined, S.RESIZE, lambda n: [(n, 48), (2 * n, 48)], 8, 8),
    "planes": (lambda fd, x: fd.ops.neg(fd.ops.permute(x, [0, 2, 1])), S.TRANSPOSE, lambda n: [(n, 9, 20)], 4, 4),
}
SIZES = [*range(1, 18), *(n * n + n // 3 for n in range(5, 84, 8)), 40_000, 65_536, 99_991]


def fusion_of(name: str, size: int, dtype: DataType = D.Float) -> tuple[Fusion, S]:
    record, scheduler, shapes, *_ = CASES[name]
    return build(record, shapes(size), dtype), scheduler


@pytest.mark.sampled(5)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_many_sizes_leave_few_kernels(name: str, target: str) -> None:
    keys = {kernel_key(generate(*fusion_of(name, size), target)) for size in SIZES}
    assert len(keys) <= CASES[name][3 + TARGETS.index(target)]


@pytest.mark.matrix
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*CASES])
def test_five_hundred_sizes_leave_at_most_twenty_kernels(name: str, target: str) -> None:
    sizes = [*range(1, 251), *(int(251 * 1.02**n) for n in range(250))]
    # Rows of 49 to 1.7 million elements are in registers, in shared memory, in clusters, and in parts.
    most = 24 if name == "batch statistics" else 20
    assert len({kernel_key(generate(*fusion_of(name, size), target)) for size in sizes}) <= most


def computed(kernel: Kernel, fusion: Fusion, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a kernel in lock step; each element is written once."""
    memory: dict[str, Any] = {}
    for tv, x in zip(fusion.tensor_inputs, inputs, strict=True):
        memory[tv.name] = flat_view(x, tv.dtype, layout_of(tv).size, 0)
    for tv in fusion.outputs:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    assert all((writes[tv.name] == 1).all() for tv in fusion.outputs)
    return [memory[tv.name].reshape(tv.shape) for tv in fusion.outputs]


@given(
    name=st.sampled_from([name for name in CASES if name not in {"elements", "planes"}]),
    target=st.sampled_from(TARGETS),
    size=st.one_of(st.integers(0, 40), st.integers(41, 700), st.sampled_from([64, 127, 257, 512, 1031])),
)
@tries(40)
def test_kernels_are_right_for_sizes_of_every_kind(name: str, target: str, size: int) -> None:
    fusion, scheduler = fusion_of(name, size)
    inputs = [numbers(shape, D.Float, n) for n, shape in enumerate(CASES[name][2](size))]
    kernel = lower(fusion, scheduler, target, "kernel", {})
    for tv, got, right in zip(
        fusion.outputs, computed(kernel, fusion, inputs), evaluate(fusion, inputs, exact=False), strict=True,
    ):
        close(got, np.asarray(right).astype(tv.dtype.numpy), tv.dtype)


def text(phase: Phase) -> str:
    """The content of a phase, except the number of blocks and the sizes of what the caller allocates."""
    given_by_callers = r"size=\d+, role=<Role.(?:INPUT|OUTPUT|WORKSPACE)|value=\d+\), parallel=<ParallelType.grid_x"
    return re.sub(given_by_callers, "", repr(phase.body))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "one", "other"), [
    ("softmax", 5001, 77_777), ("norm", 2003, 5005), ("column sums", 301, 333), ("sum of all", 5001, 5003),
    ("bias", 1001, 2003), ("elements", 70_001, 80_001),
])
def test_kernels_of_one_key_differ_in_their_arguments_only(name: str, one: int, other: int, target: str) -> None:
    a, b = (generate(*fusion_of(name, size), target) for size in (one, other))
    assert kernel_key(a) == kernel_key(b)
    different = False
    for p, q in zip(a.kernel_ir.phases, b.kernel_ir.phases, strict=True):
        assert text(p) == text(q)
        assert [s.name for s in p.sizes] == [s.name for s in q.sizes]
        different |= p.sizes != q.sizes
    assert different, "the kernel receives the sizes"


@pytest.mark.parametrize("target", TARGETS)
def test_inner_sizes_are_part_of_the_kernel(target: str) -> None:
    narrow, wide = (generate(build(softmax, [(999, n)], D.Float), S.INNER_PERSISTENT, target) for n in (96, 100))
    assert kernel_key(narrow) != kernel_key(wide)
    assert "96" in narrow.source
    assert not [size for phase in narrow.kernel_ir.phases for size in phase.sizes if size.value == 96]


def test_windows_are_part_of_the_kernel() -> None:
    fusion = build(lambda fd, x: fd.ops.max(fd.ops.reshape(x, [4096, 2, 64, 2]), [1, 3]), [(8192, 128)], D.Float)
    kernel = generate(fusion, S.REDUCTION, "cpu").kernel_ir
    loops = [s for s in walk(kernel.phases[0].body) if isinstance(s, Loop)]
    assert isinstance(loops[-1].stop, Const)
    assert loops[-1].stop.value == 4


def test_the_source_tells_which_sizes_are_arguments() -> None:
    generated = generate(build(softmax, [(4099, 1000)], D.Float), S.INNER_PERSISTENT, "cuda")
    (phase,) = generated.kernel_ir.phases
    assert [size.value for size in phase.sizes] == [4099]
    assert "are arguments of the kernel (all others are constants): n0 = 4099." in generated.source
    assert "if row < n0:" in generated.source


def test_a_plan_may_ask_for_kernels_of_its_sizes_only() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=fl.DataType.Float)
        fd.add_output(fd.ops.softmax(x, -1))
    plan = fl.segment(fd, [fl.spec((4099, 100), "float32")])
    for target in TARGETS:
        given_by_hand = plan.with_params(0, target=target, specialized=True)
        assert "n0" in plan.segments[0].source(target)
        assert "n0" not in given_by_hand.segments[0].source(target)
        (nest,) = given_by_hand.segments[0].params(target)
        assert nest.values["specialized"] is True
        assert not plan.segments[0].params(target)[0].values["specialized"]


def test_columns_traversed_several_times_have_arguments_for_their_rows_only() -> None:
    kernel = lower(build(batch_mean, [(200, 600)], D.Float), S.OUTER_PERSISTENT, "cpu", "kernel", {})
    (phase,) = kernel.phases
    loops = [s for s in walk(phase.body) if isinstance(s, Loop)]
    innermost = [loop for loop in loops if not any(isinstance(s, Loop) for s in walk(loop.body))]
    sizes = {size.name for size in phase.sizes}
    over_columns = {part.name for loop in innermost for part in loop.stop.walk() if isinstance(part, Var)}
    assert len(innermost) > 2
    assert not over_columns & sizes
    assert 200 in {size.value for size in phase.sizes}
    # A loop over rows has an iteration, whatever its argument: LLVM reloads constants in a loop that may have none.
    over_rows = [loop.stop for loop in loops if loop not in innermost]
    assert any(isinstance(stop, Apply) and stop.fn == "max" for stop in over_rows)


@pytest.mark.parametrize("specialized", [None, False, True])
def test_schedules_by_hand_share_kernels_unless_they_ask_for_constants(specialized: bool | None) -> None:
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor(shape=[-1, 24], contiguity=True, dtype=D.Float)))

    def schedule(segment: Any) -> None:
        segment.sched.schedule(S.POINTWISE)
        if specialized is not None:
            segment.sched.specialize(specialized)

    texts = set()
    for rows in (31, 33, 101, 1001, 2003):
        inputs = [np.linspace(-1, 1, rows * 24, dtype=np.float32).reshape(rows, 24)]
        plan = fl.segment(fd, inputs).with_schedule(0, schedule)
        (segment,) = plan.segments
        assert segment.loops
        texts.add("\n".join(line for line in segment.source("cuda").splitlines() if not line.startswith("#")))
        np.testing.assert_allclose(*plan.prepare("cpu").run(inputs), *fd.reference(inputs), rtol=1e-5)
    assert len(texts) == (5 if specialized else 1)


def test_loops_by_hand_keep_the_factors_of_their_splits_as_constants() -> None:
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor(shape=[-1], contiguity=False, dtype=D.Float)))

    def schedule(segment: Any) -> None:
        out = segment.sched.tensor("T1")
        out.split(0, 4)
        out.split(0, 96)
        out.parallelize(0, fl.ParallelType.grid_x)
        out.parallelize(1, fl.ParallelType.block_x)

    (segment,) = fl.segment(fd, [fl.spec((5001,), "float32")]).with_schedule(0, schedule).segments
    source = segment.source("cuda")
    assert "for i0 in range(4):" in source
    assert "# Sizes that are arguments of the kernel" in source
