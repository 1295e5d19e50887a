"""Passes over Kernel IR on statements written by hand: the text before, the text after, and the same results."""

import numpy as np
import pytest

from fuser_lab.codegen import cpu_functions, long_loops
from fuser_lab.codegen.kernel_ir import If, Let, Load, Store
from fuser_lab.codegen.kernel_passes import KERNEL_PASSES
from fuser_lab.ir.term import Const, Var, apply
from fuser_lab.ir.transform import ParallelType
from tests.unit.codegen.kernel_text import texts_of
from tests.unit.codegen.test_vectorize import T0, T1, F, I, c, copying, loop, results, v

COPYING = loop(v, 4, ParallelType.vectorize, *copying(c * 4 + v, c * 4 + v, T1, T0))
COPIES = (loop(c, 16, ParallelType.block_x, COPYING),)
CHAIN = (loop(
    c, 64, ParallelType.serial,
    Let(name="t0", value=Load(F, T0, c)),
    Let(name="t1", value=apply("mul", Var(F, "t0"), 0.5)),
    Let(name="t2", value=apply("add", Var(F, "t1"), Var(F, "t0"))),
    Store(buffer=T1, position=c, value=apply("mul", Var(F, "t2"), 0.5)),
),)
CHAIN_TEXT = """
for c in range(64):
    t0 = T0[c]
    t1 = t0 * float32(0.5)
    t2 = t1 + t0
    T1[c] = t2 * float32(0.5)
"""
SIDES = (loop(
    c, 16, ParallelType.block_x,
    If(
        condition=apply("lt", c, 4), then=(Let(name="t0", value=Load(F, T0, c)), Let(name="t2", value=Var(F, "t0"))),
        otherwise=(Let(name="t2", value=Load(F, T0, c)),),
    ),
    If(
        condition=apply("lt", c, 8), then=(Let(name="t3", value=Load(F, T0, c)),),
        otherwise=(Let(name="t3", value=apply("neg", Load(F, T0, c))),),
    ),
    Store(buffer=T1, position=c, value=apply("mul", Var(F, "t2"), Var(F, "t3"))),
),)
LOGISTIC = (loop(
    c, 64, ParallelType.block_x,
    Let(name="t0", value=Load(F, T0, c)),
    Let(name="t1", value=1.0 / (1.0 + apply("exp", apply("neg", Var(F, "t0"))))),
    Store(buffer=T1, position=c, value=Var(F, "t1")),
),)
AT = Var(I, "at")
LOOKED_UP = (loop(
    c, 64, ParallelType.block_x,
    Let(name="at", value=apply("cast", Load(F, T0, c) * 32.0, dtype=I)),
    If(
        condition=apply("and", apply("ge", AT, 0), apply("lt", AT, 64)),
        then=(Let(name="t0", value=Load(F, T0, AT)), Let(name="t1", value=Var(F, "t0"))),
        otherwise=(Let(name="t1", value=Const(F, 0.0)),),
    ),
    Store(buffer=T1, position=c, value=Var(F, "t1")),
),)
TEXTS = {
    "cheaper_values": ("cuda", LOGISTIC, """
c = index32(cuda.threadIdx.x)
t0 = T0[c]
t1 = float32(1.0) / (float32(1.0) + fast_exp(-t0))
T1[c] = t1
""", """
c = index32(cuda.threadIdx.x)
t0 = T0[c]
t1 = fast_sigmoid(t0)
T1[c] = t1
"""),
    "vector_accesses": ("cuda", COPIES, """
c = index32(cuda.threadIdx.x)
for v in unrolled(4):
    t0 = T0[c * 4 + v]
    T1[c * 4 + v] = t0 * float32(2.0)
""", """
c = index32(cuda.threadIdx.x)
T0_v = cuda.local.array(4, float32)
T1_v = cuda.local.array(4, float32)
load_vector(T0, c * 4, T0_v, 0, 4, 4)
for v in unrolled(4):
    t0 = T0_v[v]
    T1_v[v] = t0 * float32(2.0)
store_vector(T1, c * 4, T1_v, 0, 4, 4)
"""),
    "equal_branches": ("cuda", SIDES, """
c = index32(cuda.threadIdx.x)
if c < 4:
    t0 = T0[c]
    t2 = t0
else:
    t2 = T0[c]
if c < 8:
    t3 = T0[c]
else:
    t3 = -T0[c]
T1[c] = t2 * t3
""", """
c = index32(cuda.threadIdx.x)
t2 = T0[c]
if c < 8:
    t3 = T0[c]
else:
    t3 = -T0[c]
T1[c] = t2 * t3
"""),
    "unconditional_loads": ("cuda", LOOKED_UP, """
c = index32(cuda.threadIdx.x)
at = float_to_int64(T0[c] * float32(32.0))
if (at >= 0) & (at < 64):
    t0 = T0[at]
    t1 = t0
else:
    t1 = float32(0.0)
T1[c] = t1
""", """
c = index32(cuda.threadIdx.x)
at = float_to_int64(T0[c] * float32(32.0))
t0 = T0[where((at >= 0) & (at < 64), at, 0)]
t1 = where((at >= 0) & (at < 64), t0, float32(0.0))
T1[c] = t1
"""),
    "divided_loops": ("cpu", CHAIN, CHAIN_TEXT, """
for c_block in range(4):
    kept = scratch(16, float32)
    c_first = c_block * 16
    c_last = min(c_first + 16, 64)
    for c in range(c_first, c_last):
        t0 = T0[uintp(c)]
    for c_1 in range(c_first, c_last):
        t0_1 = T0[uintp(c_1)]
        t1 = t0_1 * float32(0.5)
        t2 = t1 + t0_1
        kept[uintp(c_1 - c_first)] = t2
    for c_2 in range(c_first, c_last):
        t2_1 = kept[uintp(c_2 - c_first)]
        T1[uintp(c_2)] = t2_1 * float32(0.5)
"""),
    "named_constants": ("cpu", CHAIN, CHAIN_TEXT, """
c0 = float32(0.5)
for c in range(64):
    t0 = T0[c]
    t1 = t0 * c0
    t2 = t1 + t0
    T1[c] = t2 * c0
"""),
}  # fmt: skip


def test_every_pass_has_texts() -> None:
    assert list(TEXTS) == [step.name for step in KERNEL_PASSES]


@pytest.mark.parametrize("name", TEXTS)
def test_a_pass_rewrites_statements_and_keeps_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, limit, value in (
        (long_loops, "LONG", 3), (long_loops, "PART", 4), (long_loops, "ROUNDS", 16),
        (cpu_functions, "MOST_UNNAMED", 0),
    ):
        monkeypatch.setattr(module, limit, value)  # limits that make the short statements above long
    target, body, before, after = TEXTS[name]
    assert texts_of(name, body, target) == (before.lstrip("\n"), after.lstrip("\n"))
    changed = next(step.run for step in KERNEL_PASSES if step.name == name)(body)
    x = np.linspace(-2, 2, 64, dtype=np.float32)
    np.testing.assert_allclose(results(changed, x, 64), results(body, x, 64), rtol=1e-6)
