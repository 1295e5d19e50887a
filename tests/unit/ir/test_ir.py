"""Invariants of IR objects: for each check, a construction that it refuses."""

import pytest

from fuser_lab.dtypes import DataType
from fuser_lab.errors import VerificationError
from fuser_lab.ir import Expr, Fusion, IterDomain, IterType, Merge, Resize, Scalar, Split, TensorDomain, TensorView
from fuser_lab.ir import term as t
from fuser_lab.ops import OPS
from tests.unit.builders import record


def tensor(name, *sizes, dtype=DataType.Float):
    logical = tuple(IterDomain(id=i, extent=n) for i, n in enumerate(sizes))
    return TensorView(name=name, dtype=dtype, domain=TensorDomain(logical=logical))


def neg(source, result):
    return Expr(op=OPS["neg"], inputs=(source,), outputs=(result,))


def test_axes():
    with pytest.raises(VerificationError, match="extent -1"):
        IterDomain(id=0, extent=-1)
    with pytest.raises(VerificationError, match="broadcast axis 0 has extent 4"):
        IterDomain(id=0, extent=4, kind=IterType.BROADCAST)
    with pytest.raises(VerificationError, match="expanded"):
        IterDomain(id=0, extent=1, expanded=4)


def test_domains():
    axes = (IterDomain(id=0, extent=2), IterDomain(id=1, extent=1, kind=IterType.BROADCAST))
    with pytest.raises(VerificationError, match="not a permutation"):
        TensorDomain(logical=axes, allocation=(0, 0))
    with pytest.raises(VerificationError, match="contiguity has 1 entries"):
        TensorDomain(logical=axes, contiguity=(True,))
    with pytest.raises(VerificationError, match="None exactly on broadcast axes"):
        TensorDomain(logical=axes, contiguity=(True, True))


def test_graphs():
    a, b, c = tensor("T0", 4), tensor("T1", 4), tensor("T2", 4)
    with pytest.raises(VerificationError, match="reads T1, which is neither an input nor produced before"):
        Fusion(inputs=(a,), exprs=(neg(b, c), neg(a, b)), outputs=(c,))
    with pytest.raises(VerificationError, match="produces T1, which already exists"):
        Fusion(inputs=(a,), exprs=(neg(a, b), neg(a, b)), outputs=(b,))
    with pytest.raises(VerificationError, match="output T2 is neither"):
        Fusion(inputs=(a,), exprs=(neg(a, b),), outputs=(c,))
    with pytest.raises(VerificationError, match="appears twice among the inputs"):
        Fusion(inputs=(a, a), exprs=(), outputs=(a,))
    with pytest.raises(VerificationError, match="reads a value called T1 that is not the one produced"):
        Fusion(inputs=(a,), exprs=(neg(a, b), neg(tensor("T1", 5), c)), outputs=(c,))


def reshape_history(old, new):
    def body(fd):
        fd.add_output(fd.ops.reshape(fd.define_tensor(list(old)), new_shape=list(new)))

    return record(body).outputs[0].domain


def test_reshape_keeps_its_history():
    domain = reshape_history((2, 3, 4), (6, 2, 2))
    assert [type(x) for x in domain.transforms] == [Merge, Split]
    domain = reshape_history((4, 6), (2, 12))  # an axis is split as soon as the next size divides it
    assert [type(x) for x in domain.transforms] == [Split, Merge]
    domain = reshape_history((2, 1, 12), (2, 3, 4))
    assert [type(x) for x in domain.transforms] == [Split]
    assert domain.logical[0] is domain.root[0]
    assert reshape_history((4, 1), (1, 4)).transforms == ()


def test_slice_and_pad_are_resizes():
    def body(fd):
        x = fd.define_tensor([8, 6])
        fd.add_output(fd.ops.pad(fd.ops.slice(x, [2, 0], [5, 6]), [1, 2]))

    fusion = record(body)
    first, second = (e.out.domain.transforms for e in fusion.exprs)
    assert isinstance(first[0], Resize)
    assert (first[0].left, first[0].right) == (-2, -3)
    assert (second[0].left, second[0].right) == (1, 2)


def test_scalars_compare_by_value():
    nan = float("nan")
    assert Scalar(name="", dtype=DataType.Double, value=nan) == Scalar(name="", dtype=DataType.Double, value=nan)
    assert Scalar(name="", dtype=DataType.Double, value=1.0) != Scalar(name="", dtype=DataType.Int, value=1)
    assert Scalar(name="", dtype=DataType.Int, value=1) != Scalar(name="", dtype=DataType.Int, value=True)


def test_index_terms_simplify():
    i = t.Var(DataType.Index, "i")
    assert i + 0 is i
    assert i * 1 is i
    assert i * 0 == t.Const(DataType.Index, 0)
    assert (t.index(2) + 3) == t.Const(DataType.Index, 5)
    assert t.apply("floordiv", t.index(7), 2) == t.Const(DataType.Index, 3)
    x = t.Var(DataType.Float, "x")
    assert isinstance(x + 0, t.Apply), "adding 0.0 to a float is not the identity (-0.0)"
    assert (x < 1).dtype is DataType.Bool
    assert t.cast(x, DataType.Float) is x


def test_term_functions_are_a_closed_set():
    with pytest.raises(ValueError, match="not a term function"):
        t.apply("sine", t.index(1))
