"""Kernels that read at positions that are data: compiled and in lock step, inside the operand whatever they load."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from unit.codegen.test_kernels_in_lock_step import run

from fuser_lab.codegen.generate import generate
from fuser_lab.codegen.kernel_ir import If, Load, terms_of, walk
from fuser_lab.codegen.lower import lower
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.concretize import concretize
from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.executor import prepare

TARGETS = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """A kernel over one table and one index; ``size`` is that of the indexed axis."""

    name: str
    record: Callable[..., Any]
    table: tuple[int, ...]
    index: tuple[int, ...]
    size: int
    scheduler: S = S.POINTWISE
    dtype: D = D.Float
    integer: D = D.Int

    def fusion(self) -> Any:
        return build(self.record, [self.table, self.index], [self.dtype, self.integer])

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        places = np.random.default_rng(seed).integers(0, self.size, self.index)
        return [numbers(self.table, self.dtype, seed), places.astype(self.integer.numpy)]


def _cross_entropy(fd: Any, x: Any, labels: Any) -> Any:
    shifted = fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True))
    total = fd.ops.log(fd.ops.sum(fd.ops.exp(shifted), [1], keepdim=True))
    return fd.ops.take_along_axis(fd.ops.sub(total, shifted), labels, 1), fd.ops.exp(fd.ops.sub(shifted, total))


def _twice(fd: Any, x: Any, index: Any) -> Any:
    first = fd.ops.index_select(x, index, 0)
    return fd.ops.add(fd.ops.relu(first), 1.0), fd.ops.index_select(fd.ops.neg(x), index, 0)


def _chained(fd: Any, x: Any, index: Any) -> Any:
    return fd.ops.index_select(x, fd.ops.index_select(index, fd.ops.relu(index), 0), 1)


LOOKUPS = (
    Lookup(name="rows", record=lambda fd, x, i: fd.ops.exp(fd.ops.index_select(x, i, 0)),
           table=(40, 33), index=(57,), size=40),
    Lookup(name="many rows", record=lambda fd, x, i: fd.ops.index_select(x, i, 0),
           table=(300, 256), index=(1000,), size=300, dtype=D.BFloat16, integer=D.Int32),
    Lookup(name="columns", record=lambda fd, x, i: fd.ops.index_select(x, i, 1),
           table=(300, 50), index=(600,), size=50, dtype=D.Half),
    Lookup(name="one row", record=lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 0)),
           table=(9, 33), index=(), size=9),
    Lookup(name="middle", record=lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 1)),
           table=(4, 7, 5), index=(11,), size=7, dtype=D.Double),
    Lookup(name="along the last axis", record=lambda fd, x, i: fd.ops.neg(fd.ops.take_along_axis(x, i, 1)),
           table=(40, 33), index=(40, 9), size=33),
    Lookup(name="along the first axis", record=lambda fd, x, i: fd.ops.mul(fd.ops.take_along_axis(x, i, 0), 2.0),
           table=(40, 33), index=(80, 33), size=40, dtype=D.ComplexFloat),
    Lookup(name="broadcast index", record=lambda fd, x, i: fd.ops.take_along_axis(x, i, 1),
           table=(40, 33), index=(1, 50), size=33, dtype=D.Int32),
    Lookup(name="broadcast table", record=lambda fd, x, i: fd.ops.take_along_axis(x, i, 1),
           table=(1, 33), index=(40, 50), size=33, dtype=D.Bool),
    Lookup(name="gather", record=lambda fd, x, i: fd.ops.gather(x, i, 0),
           table=(40, 33), index=(7, 20), size=40, dtype=D.UInt64),
    Lookup(name="transposed", record=lambda fd, x, i: fd.ops.permute(fd.ops.index_select(x, i, 0), [1, 0]),
           table=(40, 33), index=(57,), size=40),
    Lookup(name="reshaped", record=lambda fd, x, i: fd.ops.reshape(fd.ops.index_select(x, i, 0), [-1]),
           table=(40, 32), index=(57,), size=40),
    Lookup(name="twice", record=_twice, table=(40, 33), index=(57,), size=40),
    Lookup(name="positions from positions", record=_chained, table=(40, 33), index=(33,), size=33),
    Lookup(name="sum of rows", record=lambda fd, x, i: fd.ops.sum(fd.ops.index_select(x, i, 0), [1]),
           table=(9, 70), index=(11,), size=9, scheduler=S.REDUCTION),
    Lookup(name="sum over rows", record=lambda fd, x, i: fd.ops.sum(fd.ops.index_select(x, i, 0), [0]),
           table=(9, 11), index=(70,), size=9, scheduler=S.REDUCTION),
    Lookup(name="sum of lookups", record=lambda fd, x, i: fd.ops.sum(fd.ops.take_along_axis(x, i, 1), [1]),
           table=(6, 33), index=(6, 70), size=33, scheduler=S.REDUCTION),
    Lookup(name="cross entropy", record=_cross_entropy, table=(5, 70), index=(5, 1), size=70,
           scheduler=S.INNER_PERSISTENT),
)
by_lookup = pytest.mark.parametrize("lookup", LOOKUPS, ids=lambda x: x.name)


@by_lookup
def test_compiled(lookup: Lookup) -> None:
    fusion, inputs = lookup.fusion(), lookup.inputs()
    plan = prepare(fusion, [(fusion, lookup.scheduler)], allow_fallback=False)
    for got, wanted, tv in zip(plan.run(inputs), evaluate(fusion, inputs), fusion.outputs, strict=True):
        close(got, wanted, tv.dtype)


@by_lookup
@pytest.mark.parametrize("target", TARGETS)
def test_in_lock_step(lookup: Lookup, target: str) -> None:
    fusion, inputs = lookup.fusion(), lookup.inputs()
    _, got = run(fusion, lookup.scheduler, target, inputs)
    for a, b, tv in zip(got, evaluate(fusion, inputs), fusion.outputs, strict=True):
        close(a, b, tv.dtype)


BAD = (-1, 1 << 30)


@by_lookup
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bad", BAD)
def test_nothing_outside_is_read(lookup: Lookup, target: str, bad: int) -> None:
    """The lock-step evaluation raises where a thread leaves a buffer; a position outside gives 0."""
    fusion, inputs = lookup.fusion(), lookup.inputs()
    places = inputs[1].reshape(-1)
    places[::3] = bad
    _, got = run(fusion, lookup.scheduler, target, inputs)
    if lookup.name == "along the last axis":
        assert (got[0][inputs[1] == bad] == 0).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("where", [-1, 0, 4, 5, 1 << 40, -(1 << 62)])
def test_select_by_a_scalar_input(target: str, where: int) -> None:
    with FusionBuilder() as fd:
        x, i = fd.define_tensor([3, 5, 4], contiguity=True), fd.define_scalar(None, D.Int)
        fd.add_output(fd.ops.neg(fd.ops.select(x, fd.ops.add(i, 0), 1)))
    fusion = concretize(fd.fusion, {"T0": (3, 5, 4)}, {})
    data = numbers((3, 5, 4), D.Float)
    kernel = lower(fusion, S.POINTWISE, target, "kernel", {})
    from fuser_lab.codegen.kernel_eval import evaluate_kernel

    memory = {"T0": data.reshape(-1), fusion.outputs[0].name: np.ones(12, np.float32)}
    memory[next(v.name for v in fusion.inputs if v.name != "T0")] = where
    evaluate_kernel(kernel, memory)
    want = -data[:, where] if 0 <= where < 5 else np.zeros((3, 4), np.float32)
    np.testing.assert_array_equal(memory[fusion.outputs[0].name].reshape(3, 4), want)


def test_computed_positions_outside_give_zero_in_compiled_kernels() -> None:
    def record(fd: Any, x: Any, i: Any) -> Any:
        return fd.ops.index_select(x, fd.ops.mul(i, 1000), 0)

    fusion = build(record, [(8, 16), (6,)], [D.Float, D.Int])
    x, i = numbers((8, 16), D.Float), np.array([0, 1, -1, 0, 1 << 40, -(1 << 50)])
    (got,) = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x, i])
    np.testing.assert_array_equal(got, np.where((i == 0)[:, None], x[0], 0))


def test_constant_positions_need_no_condition() -> None:
    def record(fd: Any, x: Any) -> Any:
        two = fd.define_scalar(2, D.Int)
        return fd.ops.index_select(fd.ops.select(x, two, 0), fd.ops.full([4], two, D.Int), 0)

    fusion = build(record, [(3, 5)], D.Float)
    for target in TARGETS:
        kernel = lower(fusion, S.POINTWISE, target, "kernel", {})
        conditions = [s for phase in kernel.phases for s in walk(phase.body) if isinstance(s, If)]
        assert len(conditions) == (target == "cuda")  # the thread's own index
    x = numbers((3, 5), D.Float)
    (got,) = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x])
    np.testing.assert_array_equal(got, np.full(4, x[2, 2]))


def test_a_position_is_loaded_once_and_named() -> None:
    lookup = next(x for x in LOOKUPS if x.name == "rows")
    source = generate(lookup.fusion(), S.POINTWISE, "cpu").source
    assert "t1_at = t1" in source
    assert "if (t1_at >= 0) & (t1_at < 40):" in source
    for target in TARGETS:
        kernel = lower(_pair(), S.POINTWISE, target, "kernel", {})
        loads = [
            t.buffer.name for phase in kernel.phases for s in walk(phase.body) for root in terms_of(s)
            for t in root.walk() if isinstance(t, Load)
        ]
        assert loads.count("T1") == 1


def _pair() -> Any:
    def record(fd: Any, x: Any, i: Any) -> Any:
        return fd.ops.mul(fd.ops.take_along_axis(x, i, 1), fd.ops.take_along_axis(x, i, 1))

    return build(record, [(4, 9), (4, 3)], [D.Float, D.Int])


@pytest.mark.parametrize("dtype", [D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.UInt64, D.Bool,
                                   D.ComplexFloat, D.ComplexDouble], ids=lambda d: d.name)
def test_every_dtype(dtype: D) -> None:
    def record(fd: Any, x: Any, i: Any) -> Any:
        return fd.ops.index_select(x, i, 1), fd.ops.take_along_axis(x, fd.ops.broadcast(i, [True, False]), 1)

    fusion = build(record, [(5, 9), (12,)], [dtype, D.Int])
    inputs = [numbers((5, 9), dtype), np.random.default_rng(3).integers(0, 9, 12)]
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    for got, wanted in zip(plan.run(inputs), evaluate(fusion, inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_tables_and_positions_in_any_layout() -> None:
    lookup = next(x for x in LOOKUPS if x.name == "along the last axis")
    fusion, (x, i) = lookup.fusion(), lookup.inputs()
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    for table in (np.asfortranarray(x), x[::-1], np.repeat(x, 2, 1)[:, ::2], np.broadcast_to(x[:1], x.shape)):
        for places in (np.asfortranarray(i), i[:, ::-1], np.broadcast_to(i[:, :1], i.shape)):
            want = evaluate(fusion, [table, places])
            np.testing.assert_array_equal(plan.run([table, places])[0], want[0])
            for target in TARGETS:
                np.testing.assert_array_equal(run(fusion, S.POINTWISE, target, [table, places])[1][0], want[0])
