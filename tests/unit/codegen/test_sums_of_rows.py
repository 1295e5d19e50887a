"""Reductions along more axes than others: the nest of the others computes partial results, and reads the input once."""

from typing import Any

import pytest
from backend.fusions import D, S, build, numbers
from unit.codegen.test_gpu_reductions import check, inputs_read

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.codegen.decompose import with_sums_of_rows


def ranks(fd: Any, x: Any) -> Any:
    """A matrix, maxima of its rows, and the sum of all elements."""
    y = fd.ops.cast(x, dtype=D.Float)
    return fd.ops.cast(fd.ops.relu(y), dtype=x.dtype), fd.ops.max(y, [1]), fd.ops.sum(fd.ops.mul(y, y), [0, 1])


def kept_axes(fd: Any, x: Any) -> Any:
    """Sums over one axis and over three of four, with and without keeping the reduced axes."""
    return fd.ops.sum(x, [3]), fd.ops.sum(x, [0, 2, 3], keepdim=True), fd.ops.max(x, [0, 1, 2, 3])


def scaled(fd: Any, x: Any) -> Any:
    """A result per row and one that depends on the sum of all elements."""
    total = fd.ops.sum(x, [0, 1])
    return fd.ops.max(x, [1]), fd.ops.mul(total, 2.0), fd.ops.rsqrt(fd.ops.abs(total))


def loss(fd: Any, x: Any, y: Any) -> Any:
    """The sum of all squared differences from a softmax of rows."""
    shifted = fd.ops.exp(fd.ops.sub(x, fd.ops.broadcast(fd.ops.max(x, [1]), [False, True])))
    chosen = fd.ops.div(shifted, fd.ops.broadcast(fd.ops.sum(shifted, [1]), [False, True]))
    difference = fd.ops.sub(chosen, y)
    return fd.ops.mul(fd.ops.sum(fd.ops.mul(difference, difference), [0, 1]), 0.5)


def losses(fd: Any, x: Any, y: Any) -> Any:
    """The same, and the largest element of each row."""
    return loss(fd, x, y), fd.ops.max(x, [1])


@pytest.mark.parametrize("record", [loss, losses])
def test_sums_of_what_depends_on_the_results_of_rows_add_up_those_of_rows(record: Any) -> None:
    shape = (40, 300)
    kernel = check(build(record, [shape, shape], D.Float), S.REDUCTION, [numbers(shape, D.Float, n) for n in (0, 1)])
    rows, *rest = kernel.phases
    assert {"T0", "T1"} <= {buffer.name for buffer in rows.buffers}
    assert all({"T0", "T1"}.isdisjoint(buffer.name for buffer in phase.buffers) for phase in rest)


@pytest.mark.parametrize("shape", [(13, 9), (17, 1021), (300, 1000), (40, 4096)])
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_a_matrix_is_read_once_for_its_rows_and_for_all_of_it(shape: tuple[int, int], dtype: D) -> None:
    kernel = check(build(ranks, [shape], dtype), S.REDUCTION, [numbers(shape, dtype)])
    phases = [phase for phase in kernel.phases if any(b.name == "T0" for b in phase.buffers)]
    assert len(phases) == 1
    assert set(inputs_read(kernel)) == {"T0"}


@pytest.mark.parametrize(("record", "shape"), [(kept_axes, (3, 4, 6, 40)), (scaled, (50, 130))])
def test_values_and_shapes_are_the_same(record: Any, shape: tuple[int, ...]) -> None:
    check(build(record, [shape], D.Float), S.REDUCTION, [numbers(shape, D.Float)])


def test_reductions_along_the_same_or_other_axes_stay() -> None:
    def record(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.sum(x, [1]), fd.ops.max(x, [1]), fd.ops.sum(x, [0]), fd.ops.sum(y, [0, 1])

    fusion = build(record, [(5, 8), (8, 5)], D.Float)
    assert with_sums_of_rows(fusion) is fusion


def test_fastest_makes_one_kernel_of_results_of_three_ranks() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[16384, 8192], contiguity=True, dtype=D.BFloat16)
        for output in ranks(fd, x):
            fd.add_output(output)
    (segment,) = fl.segment(fd, strategy="fastest").segments
    assert segment.beyond
