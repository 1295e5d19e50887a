"""Values of slow functions that several elements need: chunks of a thread share them, and branches do as well."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.codegen.early_values import with_early_values
from fuser_lab.codegen.kernel_ir import Block, Loop, VectorLoad, walk
from fuser_lab.ir.transform import ParallelType
from tests.kernels import generate
from tests.pages.kernel_passes import NAMES
from tests.unit.codegen.test_kernels_in_lock_step import run


def _power(fd: Any, decay: Any, step: Any) -> Any:
    return fd.ops.sub(1.0, fd.ops.pow(decay, step))


def _difference(fd: Any, decay: Any, step: Any) -> Any:
    return fd.ops.sub(step, decay)


@pytest.mark.parametrize(("scalar", "elements", "unroll"), [
    (_power, 1 << 24, 4), (_difference, 1 << 24, 1), (_power, 1 << 14, 1),
])  # fmt: skip
def test_chunks_per_thread(scalar: Callable[..., Any], elements: int, unroll: int) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
        decay, step = (fd.define_scalar(None, dtype=dtype) for dtype in (DataType.Double, DataType.Int))
        fd.add_output(fd.ops.div(x, scalar(fd, decay, step)))
    (segment,) = fl.segment(fd, [fl.spec((elements,), DataType.Float), 0.9, 7]).segments
    (nest,) = segment.kernel("cuda").kernel_ir.nests
    assert nest.schedule.unroll == unroll
    assert any("share values of functions that take long" in reason for reason in nest.schedule.reasons) == (unroll > 1)


def _channels(function: str) -> Callable[[Any, Any, Any], Any]:
    return lambda fd, x, w: fd.ops.mul(x, fd.ops.broadcast_in_dim(getattr(fd.ops, function)(w), x.shape(), [1]))


@pytest.mark.parametrize(("function", "rows", "channels", "unroll"), [
    ("rsqrt", 1 << 15, 256, 4), ("neg", 1 << 15, 256, 1), ("rsqrt", 1 << 15, 264, 4), ("rsqrt", (1 << 15) + 1, 264, 1),
])  # fmt: skip
def test_channels_are_loaded_once_by_a_thread(function: str, rows: int, channels: int, unroll: int) -> None:
    """The chunks of a thread share channels if they are whole rows apart, as quarters of the odd rows are not."""
    fusion = build(_channels(function), [(rows, channels), (channels,)], [D.Half, D.Half])
    kernel = generate(fusion, S.POINTWISE, "cuda").kernel_ir
    (nest,) = kernel.nests
    assert nest.schedule.unroll == unroll
    loops = [s for s in walk(kernel.phases[0].body) if isinstance(s, Loop) and s.parallel is ParallelType.unroll]
    repeated = [s.buffer.name for loop in loops for s in walk(loop.body) if isinstance(s, VectorLoad)]
    assert repeated == ["T0"] * (unroll > 1)


@pytest.mark.parametrize("rows", [1 << 13, (1 << 13) + 1])
def test_shared_channels_have_the_same_results(rows: int) -> None:
    fusion = build(_channels("rsqrt"), [(rows, 256), (256,)], [D.Float, D.Float])
    inputs = [numbers((rows, 256), D.Float), abs(numbers((256,), D.Float)) + 1]
    _, (got,) = run(fusion, S.POINTWISE, "cuda", inputs)
    close(got, inputs[0] / inputs[1] ** 0.5, D.Float)


def test_halves_of_a_result_are_loaded_from_their_operands() -> None:
    """Both chunks of a thread have one position, each in its operand."""
    shape = (1, 1 << 17)
    fusion = build(lambda fd, x, y: fd.ops.cat([x, y], 0), [shape, shape], [D.Float, D.Float])
    (nest,) = generate(fusion, S.RESIZE, "cuda").kernel_ir.nests
    assert nest.schedule.unroll == 2
    inputs = [numbers(shape, D.Float, seed) for seed in (1, 2)]
    _, (got,) = run(fusion, S.RESIZE, "cuda", inputs)
    close(got, np.concatenate(inputs), D.Float)


def _block(example: str) -> Block:
    return (eval(example, dict(NAMES)),)


@pytest.mark.parametrize(("branch", "after", "moves"), [
    (["let(t0, T0[c])"], ["let(t0, T0[c])"], True),
    (["let(t0, T0[c])"], ["let(t0, T0[v])"], False),  # another element
    (["let(t0, T1[c])"], ["let(t0, T1[c])"], False),  # from memory that the kernel writes
    (["let(t3, T0[v]), let(t0, t3 * t3)"], ["let(t3, T0[c]), let(t0, t3 * t3)"], False),  # of another operand
    (["let(t0, T0[c])"], [], False),  # not needed after the branch
])  # fmt: skip
def test_values_before_branches(branch: Sequence[str], after: Sequence[str], moves: bool) -> None:
    inner = ", ".join(["choose(c < 4, then=[" + ", ".join([*branch, "let(t2, t0)"]) + "])", *after, "store(T1, c, t2)"])
    (loop,) = body = _block(f"loop(c, 16, block_x, {inner})")
    (result,) = with_early_values(body)
    assert (result != loop) == moves
    assert not moves or result.body[0] == loop.body[1]
