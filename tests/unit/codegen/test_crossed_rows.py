"""GPU kernels of rows with tensors in which elements of several rows are adjacent, in lock step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from backend.reductions import backward
from unit.codegen.test_gpu_reductions import check

from fuser_lab.codegen import gpu_backward
from fuser_lab.codegen.kernel_ir import Buffer, Kernel, Load, Role, every_term, walk
from fuser_lab.codegen.kernel_profile import kernel_features
from fuser_lab.cost.device import H200, SECTOR_BYTES
from fuser_lab.cost.kernel_time import kernel_model
from fuser_lab.dtypes import DataType
from tests.kernels import lower


def added(fd: Any, x: Any, y: Any) -> Any:
    """A softmax of a sum."""
    both = fd.ops.add(x, y)
    e = fd.ops.exp(fd.ops.sub(both, fd.ops.max(both, [1], keepdim=True)))
    return fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True))


def loaded(kernel: Kernel, name: str) -> list[Buffer]:
    """The buffers of a tensor's elements outside of registers, once for each read."""
    terms = (term for phase in kernel.phases for s in walk(phase.body) for term in every_term(s))
    loads = [term.buffer for term in terms if isinstance(term, Load) and term.buffer.role in {Role.INPUT, Role.SHARED}]
    return [buffer for buffer in loads if buffer.name.split("_")[0] == name]


@pytest.mark.parametrize("shape", [(19, 200), (33, 250), (21, 512), (17, 131)], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Double], ids=lambda d: d.name)
def test_rows_read_whole_sectors(shape: tuple[int, int], dtype: DataType) -> None:
    x, y = numbers(shape, dtype), numbers(shape, dtype)
    kernel = check(build(added, [shape, shape], dtype), S.INNER_PERSISTENT, [np.asfortranarray(x), y])
    (nest,) = kernel.nests
    assert nest.schedule.staged
    assert nest.schedule.threads[1] * dtype.itemsize % SECTOR_BYTES == 0
    assert len([buffer for buffer in loaded(kernel, "T0") if buffer.role is Role.INPUT]) == 1


@pytest.mark.parametrize("dim", [0, 1])
def test_only_rows_that_a_block_has_are_copied(dim: int) -> None:
    def differences(fd: Any, x: Any) -> Any:
        at = fd.ops.fmod(fd.ops.add(fd.ops.iota(x.size(dim), 0, 1), x.size(dim) - 1), x.size(dim))
        less = fd.ops.sub(x, fd.ops.index_select(x, at, dim))
        return fd.ops.mul(less, fd.ops.rsqrt(fd.ops.sum(fd.ops.mul(less, less), [1], keepdim=True)))

    x = numbers((40, 160), D.Float)
    kernel = check(build(differences, [x.shape], D.Float), S.INNER_PERSISTENT, [np.asfortranarray(x)])
    assert kernel.nests[0].schedule.staged == (dim == 1)


@pytest.mark.parametrize("shape", [(70, 128), (50, 131), (45, 256)], ids=str)
def test_rows_with_column_sums_read_whole_sectors(shape: tuple[int, int]) -> None:
    inputs = [numbers(s, D.Float) for s in (shape, shape, (1, shape[1]), (shape[0], 1))]
    inputs[1] = np.asfortranarray(inputs[1])
    fusion = build(backward, [x.shape for x in inputs], D.Float)
    kernel = check(fusion, S.INNER_OUTER_PERSISTENT, inputs)
    (nest, *_) = kernel.nests
    assert nest.schedule.staged
    assert nest.schedule.threads[1] * D.Float.itemsize % SECTOR_BYTES == 0


@pytest.mark.parametrize("shape", [(70, 128), (50, 131), (45, 300)], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_results_are_written_in_whole_sectors(shape: tuple[int, int], dtype: DataType) -> None:
    def transposed(fd: Any, x: Any) -> Any:
        wide = fd.ops.cast(x, D.Float)
        norm = fd.ops.mul(wide, fd.ops.rsqrt(fd.ops.sum(fd.ops.mul(wide, wide), [1], keepdim=True)))
        return fd.ops.cast(norm, x.dtype), fd.ops.permute(fd.ops.cast(fd.ops.neg(norm), x.dtype), [1, 0])

    kernel = check(build(transposed, [shape], dtype), S.INNER_PERSISTENT, [numbers(shape, dtype)])
    (nest,) = kernel.nests
    assert nest.schedule.staged
    assert nest.schedule.threads[1] * dtype.itemsize % SECTOR_BYTES == 0


def test_results_of_rows_with_column_sums_are_written_in_whole_sectors() -> None:
    def record(fd: Any, *given: Any) -> Any:
        rows, *columns = backward(fd, *given)
        return fd.ops.permute(rows, [1, 0]), *columns

    inputs = [numbers(s, D.Float) for s in ((45, 256), (45, 256), (1, 256), (45, 1))]
    kernel = check(build(record, [x.shape for x in inputs], D.Float), S.INNER_OUTER_PERSISTENT, inputs)
    assert kernel.nests[0].schedule.staged


def test_blocks_share_sectors_of_rows_that_are_too_long_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (83, 1000)
    inputs = [numbers(s, D.Float) for s in (shape, shape, (1, shape[1]), (shape[0], 1))]
    inputs[1] = np.asfortranarray(inputs[1])
    one = replace(H200, name="one", sms=1)
    kernel = check(
        build(backward, [x.shape for x in inputs], D.Float), S.INNER_OUTER_PERSISTENT, inputs, device=one,
    )
    nest, blocks = kernel.nests[0], kernel.phases[0].launch.blocks
    assert not nest.schedule.staged
    assert blocks < shape[0], "each block has several rows"

    shapes = [(1 << 14, 1000), (1 << 14, 1000), (1, 1000), (1 << 14, 1)]
    fusion, strides = build(backward, shapes, D.Float), {"T1": (1, 1 << 14)}
    together = kernel_features(fusion, lower(fusion, S.INNER_OUTER_PERSISTENT, "cuda", "kernel", strides))
    plan = gpu_backward.BackwardPlan
    monkeypatch.setattr(gpu_backward, "BackwardPlan", lambda **given: replace(plan(**given), apart=given["height"]))
    alone = kernel_features(fusion, lower(fusion, S.INNER_OUTER_PERSISTENT, "cuda", "kernel", strides))
    sectors = 32 << 14
    assert together.again == 0
    assert 0.7 * 1000 * sectors < alone.again <= 1000 * sectors, "a block returns to most sectors in its next round"
    assert 1000 * 32 < alone.between < 1.5 * 1000 * 32
    model = kernel_model(H200)
    in_cache = replace(alone, between=alone.between / 1000)
    assert model.seconds(in_cache) == pytest.approx(model.seconds(together), rel=0.05)
    assert model.seconds(alone) > 2 * model.seconds(in_cache)
