"""Reads and writes at positions given as data, against torch; positions outside; the option memory_promotion."""

import numpy as np
import pytest
from needs import needs

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType, from_numpy
from fuser_lab.errors import ArgumentTypeError, DefinitionError, InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.ops import OPS
from fuser_lab.ops.positions import checked_positions_torch
from fuser_lab.segmentation import SegmenterOptions
from tests.unit.builders import apply, describe

torch = needs("torch")

D = DataType
FLOATS = ("Double", "Float", "Half", "BFloat16")
DTYPES = (*FLOATS, "Int", "Int32", "Bool", "ComplexFloat")


def data(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if D[dtype] is D.Bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    return (rng.standard_normal(shape) * 9).astype(D[dtype].numpy)


def as_torch(x):
    x = np.asarray(x)
    if x.dtype == D.BFloat16.numpy:
        return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def positions(shape, size, seed=1, dtype=np.int64):
    return np.random.default_rng(seed).integers(0, size, shape).astype(dtype)


def same(got, wanted):
    """Equal in shape, dtype and bits."""
    assert tuple(got.shape) == tuple(wanted.shape)
    other = as_torch(np.ascontiguousarray(got)).reshape(wanted.shape)
    assert other.dtype == wanted.dtype
    assert torch.equal(other, wanted)


def run(body, *arrays):
    """The outputs of the definition that ``body(fd, *tensors)`` records with symbolic sizes."""
    with FusionBuilder() as fd:
        tensors = [
            fd.define_tensor(shape=[-1 if n != 1 else 1 for n in x.shape], dtype=from_numpy(x.dtype))
            if isinstance(x, np.ndarray) else fd.define_scalar(None, D.Int) for x in arrays
        ]
        result = body(fd, *tensors)
        for out in result if isinstance(result, tuple) else (result,):
            fd.add_output(out)
    return evaluate(bind(fd.fusion, [describe(x) for x in arrays]).fusion, list(arrays))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
class TestValues:
    """Every dtype is moved unchanged."""

    def test_select(self, dtype, dim):
        x = data((3, 4, 5), dtype)
        (got,) = run(lambda fd, a, i: fd.ops.select(a, i, dim), x, 2)
        same(got, as_torch(x).select(dim, 2))

    @pytest.mark.parametrize("integer", [np.int64, np.int32])
    def test_index_select(self, dtype, dim, integer):
        x = data((3, 4, 5), dtype)
        for shape in ((7,), (1,), (0,), ()):
            index = positions(shape, 3, dtype=integer)
            same(apply("index_select", x, np.asarray(index), dim), as_torch(x).index_select(dim, as_torch(index)))

    def test_gather(self, dtype, dim):
        x = data((3, 4, 5), dtype)
        for shape in ((3, 4, 5), (2, 1, 5), (1, 4, 1), (0, 2, 3)):
            index = positions(shape, x.shape[dim])
            same(apply("gather", x, index, dim), torch.gather(as_torch(x), dim, as_torch(index)))

    def test_take_along_axis(self, dtype, dim):
        x = data((3, 4, 5), dtype)
        for short in (1, 7, 0):
            shape = [3, 4, 5]
            shape[dim] = short
            index = positions(shape, x.shape[dim])
            same(apply("take_along_axis", x, index, dim), torch.take_along_dim(as_torch(x), as_torch(index), dim))
        index = positions([1 if n != dim % 3 else 6 for n in range(3)], x.shape[dim])
        same(apply("take_along_axis", x, index, dim), torch.take_along_dim(as_torch(x), as_torch(index), dim))

    def test_scatter(self, dtype, dim):
        x, source = data((3, 4, 5), dtype), data((3, 4, 5), dtype, 5)
        # Distinct along the axis, because any of several equal positions may win.
        index = np.argsort(np.random.default_rng(2).random(x.shape), axis=dim % 3)[:2, :3, :4]
        want = torch.scatter(as_torch(x), dim, as_torch(index), as_torch(source))
        same(apply("scatter", x, index, source, dim), want)
        value = True if D[dtype] is D.Bool else 2
        (got,) = run(
            lambda fd, a, i: fd.ops.scatter(a, i, fd.define_scalar(value), dim=dim), x, np.ascontiguousarray(index),
        )
        same(got, torch.scatter(as_torch(x), dim, as_torch(index), value))


@pytest.mark.parametrize("dtype", FLOATS)
def test_embedding(dtype):
    table = data((10, 6), dtype)
    for shape in ((4,), (2, 3), (), (0,)):
        index = positions(shape, 10)
        want = torch.nn.functional.embedding(as_torch(index), as_torch(table))
        same(apply("embedding_fwd", np.asarray(index), table), want)


def test_embedding_scales_rows_down_and_leaves_the_table_alone():
    table, index = data((10, 6), "Float"), positions((5,), 10)
    before = table.copy()
    for order in (None, 1.0, 3.0, float("inf")):
        (got,) = run(
            lambda fd, i, w, order=order: fd.ops.embedding_fwd(
                i, w, max_norm=fd.define_scalar(3.0),
                norm_type=None if order is None else fd.define_scalar(order), padding_idx=fd.define_scalar(-1),
            ), index, table,
        )
        want = torch.nn.functional.embedding(
            torch.from_numpy(index), torch.from_numpy(table.copy()), max_norm=3.0, norm_type=order or 2.0,
        )
        np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_array_equal(table, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("diagonal", [-2, 0, 1, 7])
def test_triu(dtype, diagonal):
    for shape in ((4, 5), (2, 5, 3), (1, 3), (3, 1), (0, 3), (2, 3, 4, 4)):
        x = data(shape, dtype)
        same(apply("triu", x, diagonal), torch.triu(as_torch(x), diagonal))


def test_triu_of_a_scalar_input():
    x = data((4, 5), "Float")
    (got,) = run(lambda fd, a, k: fd.ops.triu(a, k), x, -1)
    same(got, torch.triu(as_torch(x), -1))


OUTSIDE = {
    "select": lambda fd, x, i, k: fd.ops.select(x, k, 1),
    "index_select": lambda fd, x, i, k: fd.ops.index_select(x, fd.ops.reshape(i, [-1]), 1),
    "gather": lambda fd, x, i, k: fd.ops.gather(x, i, 1),
    "take_along_axis": lambda fd, x, i, k: fd.ops.take_along_axis(x, i, 1),
    "scatter": lambda fd, x, i, k: fd.ops.scatter(x, i, x, 1),
    "embedding_fwd": lambda fd, x, i, k: fd.ops.embedding_fwd(i, fd.ops.permute(x, [1, 0])),
}


@pytest.mark.parametrize("op", sorted(OUTSIDE))
@pytest.mark.parametrize("bad", [4, -1, 1 << 40])
class TestOutside:
    """A position outside its axis is reported, by whichever code reads it first."""


    def definition(self, op):
        with FusionDefinition() as fd:
            x, i = fd.define_tensor([3, 4], True), fd.define_tensor([3, 2], True, D.Int)
            fd.add_output(fd.ops.neg(OUTSIDE[op](fd, x, i, fd.define_scalar(None, D.Int))))
        return fd

    def inputs(self, bad):
        x, index = data((3, 4), "Float"), np.full((3, 2), 1)
        index[1, 1] = bad
        return [x, index, bad]

    def test_reference(self, op, bad):
        fd, inputs = self.definition(op), self.inputs(bad)
        fusion = bind(fd.fusion, [describe(x) for x in inputs]).fusion
        with pytest.raises(InputError, match=rf"{op}: index has the value {bad}, out of range: .* size 4 \(0 to 3\)"):
            evaluate(fusion, inputs)

    def test_runs(self, op, bad):
        fd, inputs = self.definition(op), self.inputs(bad)
        axis = r"the indexed axis has size 4 \(0 to 3\)"
        wanted = rf"{op}: the index (i )?[Ti]\d has the value {bad}, out of range: {axis}"
        with pytest.raises(InputError, match=wanted):
            fd.execute(inputs)
        with pytest.raises(InputError, match=wanted):
            fd.execute([torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in inputs])
        good = self.inputs(3)
        assert len(fd.execute(good)) == 1

    def test_torch(self, op, bad):
        x, index, number = (torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in self.inputs(bad))
        operands = {
            "select": (x, number), "index_select": (x, index.reshape(-1)), "scatter": (x, index, x),
            "embedding_fwd": (index, x.T),
        }.get(op, (x, index))
        attrs = {"options": ()} if op == "embedding_fwd" else {"dim": 1}
        with pytest.raises(InputError, match=f"{op}: index has the value {bad}, out of range"):
            OPS[op].library(torch, *operands, **attrs)


@pytest.mark.parametrize(("op", "operands"), [
    ("select", lambda x, i, k: (x, k)), ("index_select", lambda x, i, k: (x, i[0])), ("gather", lambda x, i, k: (x, i)),
    ("take_along_axis", lambda x, i, k: (x, i)), ("scatter", lambda x, i, k: (x, i, x)),
])
@pytest.mark.parametrize("dtype", [*DTYPES, "UInt64", "Float8_e4m3fn"])
def test_torch_evaluates_as_numpy(op, operands, dtype):
    """The evaluation of a segment without a kernel, on tensors of torch."""
    x = np.abs(data((3, 4), dtype)) if dtype == "UInt64" else data((3, 4), dtype)
    i = np.array([[0, 2], [1, 0], [2, 2]], np.int32)
    i[:, 1] += i[:, 0] == i[:, 1]
    given = operands(x, i, 2)
    want = OPS[op].reference(*given, dim=1)
    moved = [from_numpy_any(v) for v in given]
    got = OPS[op].library(torch, *moved, dim=1)
    words = np.dtype(f"u{x.itemsize}") if x.dtype.kind != "c" else np.dtype(np.uint64)
    left = got.contiguous().view(getattr(torch, words.name)).numpy() if got.dtype is not torch.bool else got.numpy()
    np.testing.assert_array_equal(left.reshape(want.shape), want.view(words) if want.dtype != np.bool_ else want)


def from_numpy_any(value):
    from fuser_lab.runtime.arrays import from_numpy_as

    return from_numpy_as("torch", value) if isinstance(value, np.ndarray) else value


def test_positions_in_arguments_are_values_of_the_definition():
    with FusionBuilder() as fd:
        x, n = fd.define_tensor([3, 4], True), fd.define_tensor([3, 4], True, D.Int)
        for call in (lambda: fd.ops.select(x, 1.5, 0), lambda: fd.ops.topk(x, 2), lambda: fd.ops.cumsum(x, 0, 1.0),
                     lambda: fd.ops.embedding_fwd(n, x, 1), lambda: fd.ops.scatter(x, n, 1.0, 0)):
            with pytest.raises(ArgumentTypeError, match="must be a scalar of the definition"):
                call()
        with pytest.raises(DefinitionError, match="index_tv must be a 1d or scalar tensor\\."):
            fd.ops.index_select(x, n, 0)


def cross_entropy(fd):
    logits, labels = fd.define_tensor([-1, -1], True), fd.define_tensor([-1], True, D.Int)
    shifted = fd.ops.sub(logits, fd.ops.max(logits, [1], keepdim=True))
    total = fd.ops.log(fd.ops.sum(fd.ops.exp(shifted), [1], keepdim=True))
    picked = fd.ops.take_along_axis(fd.ops.sub(total, shifted), fd.ops.reshape(labels, [16, 1]), dim=1)
    fd.add_output(fd.ops.sum(picked, [0, 1]))


def test_memory_promotion_lets_a_read_join_what_it_reads():
    with FusionDefinition() as fd:
        cross_entropy(fd)
    logits, labels = data((16, 40), "Float"), positions((16,), 40)
    want = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels), reduction="sum")
    for promotion in (False, True):
        plan = segment(fd, [logits, labels], options=SegmenterOptions(memory_promotion=promotion))
        np.testing.assert_allclose(plan.run([logits, labels])[0], want, rtol=1e-5)
        assert len(plan.segments) == 2  # without it, the read joins the sum that follows
        reader = next(s for s in plan.segments if any(e.op.name == "take_along_axis" for e in s.fusion.exprs))
        assert (reader.scheduler.value == "inner_persistent") is promotion


def test_abstract_inputs_of_a_scalar_position():
    with FusionDefinition() as fd:
        k = fd.define_scalar(None, D.Int)
        fd.add_output(fd.ops.select(fd.define_tensor([-1, -1], True), k, 0))
    assert [s.scheduler.value for s in segment(fd, [3, spec((8, 16), "float32")]).segments] == ["pointwise"]


def test_the_range_of_an_expanded_index_is_read_once(monkeypatch):
    read = []
    real = torch.aminmax

    def counted(index):
        read.append(index.numel())
        return real(index)

    monkeypatch.setattr(torch, "aminmax", counted)
    index = torch.tensor([[3], [0], [2]]).expand(3, 1000)
    assert checked_positions_torch(torch, "gather", index, 4) is not None
    with pytest.raises(InputError, match="gather"):
        checked_positions_torch(torch, "gather", index, 3)
    assert read == [3, 3]
