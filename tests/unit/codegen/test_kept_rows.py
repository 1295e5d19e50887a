"""Long rows of several passes: values that later passes need are kept, and positions of extremes have 32 bits."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from unit.codegen.test_gpu_memory import ONE_SM, run, schedules

from fuser_lab.analysis.integer_limits import integer_limits
from fuser_lab.codegen.index_math import remainder_form
from fuser_lab.codegen.kernel_ir import Kernel, Let, Reduce, walk
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import Apply, Const, Var

ROWS = 3


def sampled(fd: Any, x: Any, noise: Any, temperature: Any, least: Any) -> Any:
    """The largest of the probabilities over noise that are not far below the largest one, and its position."""
    o, count = fd.ops, x.size(1)
    scaled = o.truediv(o.cast(x, D.Float), temperature)
    power = o.exp(o.sub(scaled, o.max(scaled, [1], keepdim=True)))
    share = o.truediv(power, o.sum(power, [1], keepdim=True))
    far = o.lt(share, o.mul(least, o.max(share, [1], keepdim=True)))
    near = o.where(far, 0.0, share)
    drawn = o.truediv(o.truediv(near, o.sum(near, [1], keepdim=True)), noise)
    best = o.max(drawn, [1], keepdim=True)
    places = o.broadcast(o.iota(count), [True, False])
    return o.min(o.where(o.eq(drawn, best), places, count), [1]), o.max(near, [1])


def kernel_of_samples(length: int, dtype: DataType) -> tuple[Fusion, Kernel]:
    shapes = [(ROWS, length), (ROWS, length), (ROWS, 1), (ROWS, 1)]
    fusion = build(sampled, shapes, [dtype, D.Float, D.Float, D.Float])
    noise = np.random.default_rng(1).random((ROWS, length)).astype(np.float32) + np.float32(0.1)
    columns = [np.linspace(*ends, ROWS, dtype=np.float32)[:, None] for ends in ((0.7, 1.3), (0.01, 0.2))]
    return fusion, run(fusion, S.INNER_PERSISTENT, [numbers((ROWS, length), dtype), noise, *columns], ONE_SM)


@pytest.mark.parametrize(("length", "dtype", "cluster"), [
    (9000, D.BFloat16, 1), (20_001, D.Float, 1), (50_257, D.BFloat16, 2), (32_768, D.BFloat16, 1),
])  # fmt: skip
def test_values_of_a_long_row_are_computed_by_one_pass(length: int, dtype: DataType, cluster: int) -> None:
    fusion, kernel = kernel_of_samples(length, dtype)
    (schedule,), (phase,) = schedules(kernel), kernel.phases
    assert (schedule.cluster, schedule.values) == (cluster, True)
    assert schedule.shared
    divisions = [e.name for e in fusion.exprs if e.op.name == "truediv"]
    lets = Counter(s.origin for s in walk(phase.body) if isinstance(s, Let) and s.origin is not None)
    # The share and what is drawn are computed once at each place of the source where elements of a step are visited.
    assert lets[divisions[1]] == lets[divisions[3]] > 0
    assert lets[divisions[0]] <= 3 * lets[divisions[1]]


def test_a_value_takes_the_place_of_one_that_is_no_longer_read() -> None:
    _, kernel = kernel_of_samples(20_001, D.Float)
    (schedule,), (phase,) = schedules(kernel), kernel.phases
    assert phase.launch.shared == schedule.shared * schedule.threads[0] * schedule.vector * 4


def test_the_position_of_an_extreme_has_32_bits_until_it_is_stored() -> None:
    _, kernel = kernel_of_samples(9000, D.BFloat16)
    (phase,) = kernel.phases
    (least,) = [s for s in walk(phase.body) if isinstance(s, Reduce) and s.fn == "min"]
    assert (least.value.dtype, kernel.outputs[0].dtype) == (D.Int32, D.Int)


@pytest.mark.parametrize(("start", "step", "limits"), [
    (0, 1, (0, 999)), (5, -2, (-1993, 5)), (2**33, 1, (2**33, 2**33 + 999)),
])  # fmt: skip
def test_limits_of_positions(start: int, step: int, limits: tuple[int, int]) -> None:
    def record(fd: Any, x: Any) -> Any:
        places = fd.ops.iota(1000, start, step)
        chosen = fd.ops.where(fd.ops.lt(x, 0.0), fd.ops.broadcast(places, [True, False]), 7)
        return fd.ops.min(chosen, [1]), fd.ops.min(fd.ops.where(fd.ops.lt(x, 0.0), fd.ops.cast(x, D.Int), 7), [1])

    fusion = build(record, [(ROWS, 1000)], D.Float)
    least = [e.tensor_inputs[0] for e in fusion.exprs if e.op.name == "min"]
    assert integer_limits(fusion, least[0]) == (min(7, limits[0]), max(7, limits[1]))
    assert integer_limits(fusion, least[1]) is None  # elements of an input may be anything
    kernel = run(fusion, S.REDUCTION, [numbers((ROWS, 1000), D.Float)], ONE_SM)
    reduced = {s.value.dtype for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Reduce)}
    assert reduced == ({D.Int} if limits[1] > 2**31 else {D.Int, D.Int32})


def test_the_shift_of_a_position_has_no_multiples_of_an_access() -> None:
    row, group = Var(D.Index, "row"), Var(D.Index, "g")
    position = group * 4 - row * 1003 + 9
    short = remainder_form(position, 4)
    assert short == Apply(D.Index, "add", (row, Const(D.Index, 1)))
    assert remainder_form(group * 8, 4) == Const(D.Index, 0)
