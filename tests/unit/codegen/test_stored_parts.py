"""Kernels that store concatenations part by part, in lock step and on the CPU."""

from typing import Any

import pytest
from backend.fusions import D, S, build, numbers
from unit.codegen.test_gpu_reductions import check

from fuser_lab.codegen.kernel_ir import Kernel, Store, VectorStore, every_term, walk
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply


def functions_of(kernel: Kernel) -> int:
    statements = [s for phase in kernel.phases for s in walk(phase.body)]
    return sum(isinstance(t, Apply) and t.fn in {"exp", "sin"} for s in statements for t in every_term(s))


def steps(fd: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The states of a recurrence, each joined with its gate, as steps of one tensor; and the last state."""
    joined = []
    for _ in range(3):
        gate = fd.ops.sin(y)
        y = fd.ops.add(fd.ops.mul(gate, y), x)
        pair = fd.ops.cast(fd.ops.cat([y, gate], 1), D.Half)
        joined.append(fd.ops.broadcast(pair, [False, True, False]))
    return fd.ops.cat(joined, 1), y


@pytest.mark.parametrize("shape", [(6, 8), (5, 31), (300, 64)], ids=str)
def test_a_recurrence_computes_each_step_once(shape: tuple[int, int]) -> None:
    inputs = [numbers(shape, D.Float), numbers(shape, D.Float)]
    kernel = check(build(steps, [shape, shape], D.Float), S.RESIZE, inputs)
    assert len(kernel.phases) == 1
    assert functions_of(kernel) == 3
    stores = {s.buffer.name for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Store | VectorStore)}
    assert len([name for name in stores if name in {buffer.name for buffer in kernel.outputs}]) <= 2


def test_operands_that_share_nothing_are_branches_of_a_nest_over_the_whole() -> None:
    def apart(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.cat([fd.ops.sin(x), fd.ops.exp(y)], 0)

    inputs = [numbers((6, 8), D.Float), numbers((6, 8), D.Float)]
    kernel = check(build(apart, [x.shape for x in inputs], D.Float), S.RESIZE, inputs)
    assert kernel.nests[0].space.rows == 96


@pytest.mark.parametrize("dtype", [D.Float, D.Half], ids=lambda d: d.name)
def test_parts_of_different_sizes_and_repeated_parts_are_right(dtype: DataType) -> None:
    def mixed(fd: Any, x: Any) -> tuple[Any, ...]:
        y = fd.ops.exp(x)
        first = fd.ops.slice(y, [0, 0], [6, 3])
        return fd.ops.cat([y, first, fd.ops.neg(y)], 1), fd.ops.cat([y, y, fd.ops.sin(y)], 0), y

    inputs = [numbers((6, 8), dtype)]
    check(build(mixed, [(6, 8)], dtype), S.RESIZE, inputs)
