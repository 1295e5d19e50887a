"""Kernels that read at positions given as data: compiled and in lock step, always inside the operand."""

import re
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from backend.lookups import LOOKUPS, Lookup
from unit.codegen.test_kernels_in_lock_step import run

from fuser_lab.codegen.kernel_ir import If, Load, VectorLoad, terms_of, walk
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.concretize import concretize
from fuser_lab.errors import PositionError
from fuser_lab.interpreter import evaluate
from tests.kernels import generate, lower, prepare

TARGETS = ("cpu", "cuda")
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


@pytest.mark.sampled(5)
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


@pytest.mark.parametrize("bad", [8000, -1000, 1000 << 40, -(1000 << 50)])
def test_compiled_kernels_refuse_computed_positions_outside(bad: int) -> None:
    def record(fd: Any, x: Any, i: Any) -> Any:
        return fd.ops.index_select(x, fd.ops.mul(i, 1000), 0)

    fusion = build(record, [(8, 16), (6,)], [D.Float, D.Int])
    x, i = numbers((8, 16), D.Float), np.zeros(6, int)
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    for place in (0, 3, 5, None):
        i[:] = 0
        if place is None:
            np.testing.assert_array_equal(plan.run([x, i])[0], x[i])
            continue
        i[place] = bad // 1000
        with pytest.raises(PositionError, match=rf"the index T2 has the value {bad}, out of range: .* size 8"):
            plan.run([x, i])


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
    assert re.search(r"where\(\(t1_at >= 0\) & \(t1_at < n\d\), ", source), "the table's length is an argument"
    for target in TARGETS:
        kernel = lower(_pair(), S.POINTWISE, target, "kernel", {})
        loads = [
            t.buffer.name for phase in kernel.phases for s in walk(phase.body)
            for t in ((s,) if isinstance(s, VectorLoad) else (t for root in terms_of(s) for t in root.walk()))
            if isinstance(t, Load | VectorLoad)
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
