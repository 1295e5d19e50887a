"""The constants of long phases of CPU kernels have names, and the same values."""

import math
from typing import Any

import numpy as np
import pytest
from backend.fusions import CASES, Case, D, S, build

from fuser_lab.codegen import cpu_functions
from fuser_lab.codegen.cpu_functions import with_named_constants
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.kernel_ir import Let, Load, Loop, Role, Store, walk
from fuser_lab.codegen.kernel_passes import KERNEL_PASSES
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Const, Term, Var, index
from fuser_lab.ir.transform import ParallelType
from tests.kernels import generate, lower
from tests.unit.codegen.test_kernels_in_lock_step import run
from tests.unit.codegen.test_vectorize import buffer, results

F, j = DataType.Float, index_var("j")
SMALL = [case for case in CASES if sum(map(math.prod, case.shapes)) < 1000]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the constants of short phases names."""
    monkeypatch.setattr(cpu_functions, "MOST_UNNAMED", 0)


def body(*values: Term) -> tuple[Let | Loop, ...]:
    """A loop that adds values up in the elements of an array."""
    total: Term = Load(F, buffer("T0", 64), j)
    for value in values:
        total = total + value
    store = Store(buffer=buffer("T1", 64, Role.OUTPUT), position=j, value=total)
    return (Loop(var="j", start=index(0), stop=index(64), parallel=ParallelType.serial, body=(store,)),)


@pytest.mark.usefixtures("few")
def test_equal_constants_share_an_unused_name_and_zeros_of_both_signs_do_not() -> None:
    half, zero, minus = (Const(F, value) for value in (0.5, 0.0, -0.0))
    whole = body(half, half * Var(F, "c0"), zero, minus, Const(DataType.Double, 2.0))
    twice = Loop(var="c1", start=index(0), stop=index(2), parallel=ParallelType.serial, body=whole)
    found = with_named_constants((Let(name="c0", value=Load(F, buffer("T0", 64), index(3))), twice))
    named = {s.name: s.value for s in found[:3] if isinstance(s, Let)}
    assert {name: repr(value.value) for name, value in named.items() if isinstance(value, Const)} == {
        "c2": "0.5", "c3": "0.0", "c4": "-0.0",
    }
    text = str([term for s in walk(found[3:]) for term in [getattr(s, "value", None)] if term is not None])
    assert "Double" in text
    assert "0.5" not in text


def test_short_phases_stay() -> None:
    constants = [Const(F, 1.0 / n) for n in range(1, cpu_functions.MOST_UNNAMED + 1)]
    short = body(*constants)
    assert with_named_constants(short) is short
    longer = with_named_constants(body(*constants, Const(F, 3.0)))
    assert sum(isinstance(s, Let) for s in longer) == cpu_functions.MOST_UNNAMED + 1
    x = np.linspace(-2, 2, 64, dtype=np.float32)
    np.testing.assert_array_equal(results(longer, x, 64), results(body(*constants, Const(F, 3.0)), x, 64))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_kernels_have_the_same_results(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    _, got = run(case.fusion(), case.scheduler, "cpu", case.inputs())
    monkeypatch.setattr(cpu_functions, "MOST_UNNAMED", 1 << 60)
    _, wanted = run(case.fusion(), case.scheduler, "cpu", case.inputs())
    for a, b in zip(got, wanted, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_chain_of_products_has_one_constant() -> None:
    def chain(fd: Any, x: Any) -> Any:
        for _ in range(120):
            x = fd.ops.add(fd.ops.mul(x, 0.5), 1.0)
        return x

    (phase,) = lower(build(chain, [(7, 64)], D.Float), S.POINTWISE, "cpu", "kernel", {}).phases
    assert [s.name for s in phase.body if isinstance(s, Let)] == ["c0", "c1"]
    source = generate(build(chain, [(7, 64)], D.Float), S.POINTWISE, "cuda").source
    assert source.count("float32(0.5)") == 120  # GPUs have instructions for products and bounds that are constants


def test_passes_have_names() -> None:
    names = [one.name for one in KERNEL_PASSES]
    assert len(names) == len(set(names))
    assert names.index("divided_loops") < names.index("named_constants")  # each function names its own constants
