"""Promoted extremes, delayed repeats and accumulating scatters: where each pass acts, and every reason not to."""

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import FusionDefinition, SegmenterOptions
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.passes import PRESEGMENTATION
from tests.agreement import lock_step
from tests.unit.builders import record

PASSES = {p.name: p for p in PRESEGMENTATION.passes}
BF16, FLOAT, DOUBLE, INT, INT32, BOOL = (
    DataType.BFloat16, DataType.Float, DataType.Double, DataType.Int, DataType.Int32, DataType.Bool,
)


def names(fusion):
    return [e.op.name for e in fusion.exprs]


def agree(fusion, changed, inputs):
    for a, b in zip(evaluate(fusion, inputs), evaluate(changed, inputs), strict=True):
        np.testing.assert_array_equal(*(v.astype(np.float64) if v.dtype.kind == "V" else v for v in (a, b)))


def after(name, body):
    fusion = record(body)
    return fusion, PASSES[name].run(fusion)


def untouched(name, body):
    fusion = record(body)
    return PASSES[name].run(fusion) is fusion


# fmin_fmax_promotion


def with_nan(shape=(5, 6), dtype=np.float32):
    """Return rows without NaN, with one, with only NaN, and with infinities as well."""
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    x[1, 2] = np.nan
    x[2] = np.nan
    x[3, 0], x[3, 4] = np.inf, np.nan
    x[4, 1] = -np.inf
    return x


def softmax(fd, x, extreme="max", dims=(1,), keep=True):
    most = getattr(fd.ops, extreme)(x, list(dims), keepdim=keep)
    exp = fd.ops.exp(fd.ops.sub(x, most))
    return fd.ops.truediv(exp, fd.ops.sum(exp, list(dims), keepdim=keep))


@pytest.mark.parametrize(("extreme", "promoted"), [("max", "fmax"), ("min", "fmin")])
@pytest.mark.parametrize("dims", [(1,), (0,), (0, 1)])
def test_the_extreme_of_a_softmax_is_promoted(extreme, promoted, dims):
    fusion, changed = after(
        "fmin_fmax_promotion",
        lambda fd: fd.add_output(softmax(fd, fd.define_tensor([5, 6]), extreme, dims)),
    )
    assert promoted in names(changed)
    assert extreme not in names(changed)
    agree(fusion, changed, [with_nan()])


def test_casts_on_the_way_are_seen_through():
    def body(fd):
        x = fd.define_tensor([5, 6], dtype=BF16)
        wide, again = fd.ops.cast(x, FLOAT), fd.ops.cast(x, FLOAT)
        most = fd.ops.max(fd.ops.neg(wide), [1], keepdim=True)
        exp = fd.ops.exp(fd.ops.add(again, most))
        fd.add_output(fd.ops.cast(fd.ops.truediv(exp, fd.ops.sum(exp, [1], keepdim=True)), BF16))

    fusion, changed = after("fmin_fmax_promotion", body)
    assert "fmax" in names(changed)
    agree(fusion, changed, [with_nan().astype(BF16.numpy)])


def test_the_logarithm_of_a_sum_of_exponentials_is_promoted():
    def body(fd):
        x = fd.define_tensor([5, 6])
        most = fd.ops.max(x, [1])
        exp = fd.ops.exp(fd.ops.sub(x, fd.ops.broadcast(most, [False, True])))
        fd.add_output(fd.ops.add(fd.ops.log(fd.ops.sum(exp, [1])), most))

    fusion, changed = after("fmin_fmax_promotion", body)
    assert "fmax" in names(changed)
    agree(fusion, changed, [with_nan()])


def test_an_earlier_sum_of_the_rows_serves_too():
    def body(fd):
        x = fd.define_tensor([5, 6])
        fd.add_output(fd.ops.sub(fd.ops.sum(fd.ops.exp(x), [1]), fd.ops.max(x, [1])))

    fusion, changed = after("fmin_fmax_promotion", body)
    assert "fmax" in names(changed)
    agree(fusion, changed, [with_nan()])


def refusals():
    """Return fusions in which a maximum is not promoted, by name."""
    def shown(fd, x):
        most = fd.ops.max(x, [1], keepdim=True)
        fd.add_output(most)
        fd.add_output(fd.ops.sum(fd.ops.sub(x, most), [1]))

    def difference_shown(fd, x):
        most = fd.ops.max(x, [1], keepdim=True)
        moved = fd.ops.sub(x, most)
        fd.add_output(moved)
        fd.add_output(fd.ops.sum(moved, [1]))

    def no_sum(fd, x):
        fd.add_output(fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True))))

    def sum_of_other_axes(fd, x):
        fd.add_output(fd.ops.sum(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)), [0]))

    def hidden_by_where(fd, x):
        moved = fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True))
        fd.add_output(fd.ops.sum(fd.ops.where(fd.ops.isnan(moved), 0.0, moved), [1]))

    def compared(fd, x):
        most = fd.ops.max(x, [1], keepdim=True)
        fd.add_output(fd.ops.sum(fd.ops.cast(fd.ops.eq(x, most), FLOAT), [1]))

    def sum_of_something_else(fd, x):
        other = fd.ops.exp(fd.define_tensor([5, 6]))
        most = fd.ops.max(x, [1], keepdim=True)
        fd.add_output(fd.ops.truediv(fd.ops.sub(other, most), fd.ops.sum(other, [1], keepdim=True)))

    def power_of_zero(fd, x):
        moved = fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True))
        fd.add_output(fd.ops.sum(fd.ops.pow(moved, 0.0), [1]))

    def another_reduction(fd, x):
        moved = fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True))
        fd.add_output(fd.ops.prod(moved, [1]))

    def lost_before(fd, x):
        clean = fd.ops.where(fd.ops.isnan(x), 0.0, x)
        moved = fd.ops.sub(clean, fd.ops.max(x, [1], keepdim=True))
        fd.add_output(fd.ops.sum(moved, [1]))

    def turned(fd, x):
        moved = fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True))
        fd.add_output(fd.ops.sum(fd.ops.permute(moved, [1, 0]), [0]))

    return list(locals().values())


@pytest.mark.parametrize("body", refusals(), ids=lambda body: body.__name__)
def test_an_extreme_stays_where_nothing_repairs_nan(body):
    assert untouched("fmin_fmax_promotion", lambda fd: body(fd, fd.define_tensor([5, 6])))


def test_extremes_of_integers_stay():
    def body(fd):
        x = fd.define_tensor([5, 6], dtype=INT)
        fd.add_output(fd.ops.sum(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)), [1]))

    assert untouched("fmin_fmax_promotion", body)


@pytest.mark.parametrize(("dtype", "name"), [(FLOAT, "float32"), (DOUBLE, "float64")])
@pytest.mark.parametrize("extreme", ["max", "min"])
def test_kernels_pass_over_nan(dtype, name, extreme):
    with FusionDefinition() as fd:
        fd.add_output(softmax(fd, fd.define_tensor([5, 6], True, dtype), extreme))
    x = with_nan(dtype=name)
    plan = fl.segment(fd, [x])
    assert f"f{extreme}" in names(plan.fusion)
    assert f"f{extreme}(" in plan.segments[0].source("cpu")
    assert f"libdevice.f{extreme}" in plan.segments[0].source("cuda")
    (found,) = plan.run([x])
    with np.errstate(invalid="ignore"):
        exp = np.exp(x - getattr(np, extreme)(x, 1, keepdims=True))
    np.testing.assert_allclose(found, exp / exp.sum(1, keepdims=True), rtol=1e-5)
    assert np.isnan(found[[1, 2, 3]]).all()
    kept = fl.segment(fd, [x], options=SegmenterOptions.from_nvfuser(disable_preseg=["FMinFMaxPromotionPass"]))
    assert extreme in names(kept.fusion)
    np.testing.assert_array_equal(kept.run([x])[0], found)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("dims", [(0,), (1,)])
def test_kernels_in_lock_step_pass_over_nan(target, dims):
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 6], True)
        fd.add_output(softmax(fd, x, "max", dims))
        fd.add_output(softmax(fd, x, "min", dims))
    plan = fl.segment(fd, [with_nan()])
    assert {"fmax", "fmin"} <= set(names(plan.fusion))
    for found, wanted in zip(lock_step(plan, [with_nan()], target), fd.reference([with_nan()]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


# move_repeat_forward


def repeated(fd, x, times=3, axis=0):
    return fd.ops.cat([x] * times, axis)


def both(body):
    """Run the pass that creates repeats, then the one that moves them."""
    fusion = PASSES["translate_repeat_to_expand"].run(record(body))
    return fusion, PASSES["move_repeat_forward"].run(fusion)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_repeat_moves_to_the_end_of_a_chain(axis):
    def body(fd):
        x = fd.define_tensor([4, 6])
        value = fd.ops.mul(fd.ops.exp(repeated(fd, x, 3, axis)), 2.0)
        fd.add_output(fd.ops.cast(fd.ops.mul(value, value), BF16))

    fusion, changed = both(body)
    assert names(changed)[-3:] == ["broadcast", "expand", "reshape"]
    assert {e.out.shape for e in changed.exprs[:-3]} == {(4, 6)}
    agree(fusion, changed, [np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)])


def test_each_element_repeated_moves_too():
    def body(fd):
        x = fd.define_tensor([4, 6])
        wide = fd.ops.expand(fd.ops.broadcast(x, [False, False, True]), [4, 6, 2])
        fd.add_output(fd.ops.exp(fd.ops.reshape(wide, [4, 12])))

    fusion, changed = after("move_repeat_forward", body)
    assert names(changed) == ["exp", "broadcast", "expand", "reshape"]
    agree(fusion, changed, [np.arange(24, dtype=np.float32).reshape(4, 6)])


def test_a_repeat_stops_at_what_it_cannot_pass():
    def body(fd):
        x, y = fd.define_tensor([4, 6]), fd.define_tensor([12, 6])
        fd.add_output(fd.ops.add(fd.ops.exp(repeated(fd, x)), y))

    fusion, changed = both(body)
    assert names(changed) == ["exp", "broadcast", "expand", "reshape", "add"]
    rng = np.random.default_rng(0)
    agree(fusion, changed, [rng.normal(size=s).astype(np.float32) for s in ((4, 6), (12, 6))])


def fixed_repeats():
    """Return fusions in which a repeat is not moved, by name."""
    def shown(fd, x):
        value = repeated(fd, x)
        fd.add_output(value)
        fd.add_output(fd.ops.exp(value))

    def read_twice(fd, x):
        value = repeated(fd, x)
        fd.add_output(fd.ops.exp(value))
        fd.add_output(fd.ops.neg(value))

    def read_with_another(fd, x):
        fd.add_output(fd.ops.add(repeated(fd, x), fd.define_tensor([12, 6])))

    def reduced(fd, x):
        fd.add_output(fd.ops.sum(repeated(fd, x), [0]))

    def hinted(fd, x):
        fd.add_output(fd.ops.exp(fd.ops.segment_set(repeated(fd, x))))

    def expanded_form_shown(fd, x):
        wide = fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [3, 4, 6])
        fd.add_output(wide)
        fd.add_output(fd.ops.exp(fd.ops.reshape(wide, [12, 6])))

    def no_repeat(fd, x):
        wide = fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [3, 4, 6])
        fd.add_output(fd.ops.exp(fd.ops.reshape(wide, [3, 24])))

    def random_behind(fd, x):
        fd.add_output(fd.ops.reshape(repeated(fd, x), [72]))

    return list(locals().values())


@pytest.mark.parametrize("body", fixed_repeats(), ids=lambda body: body.__name__)
def test_a_repeat_stays(body):
    fusion, changed = both(lambda fd: body(fd, fd.define_tensor([4, 6])))
    assert changed is fusion


def test_less_is_computed_and_as_much_is_moved():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], True)
        fd.add_output(fd.ops.exp(fd.ops.cat([x, x], 0)))
    given = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    plan = fl.segment(fd, [given])
    assert next(e for e in plan.fusion.exprs if e.op.name == "exp").out.shape == (4, 6)
    np.testing.assert_allclose(plan.run([given])[0], np.exp(np.concatenate([given, given])), rtol=1e-6)
    off = fl.segment(fd, [given], options=SegmenterOptions.from_nvfuser(disable_preseg=["MoveRepeatForwardPass"]))
    assert next(e for e in off.fusion.exprs if e.op.name == "exp").out.shape == (8, 6)
    assert len(off.segments) == len(plan.segments)


# translate_scatter_accumulate


def counted(fd, *, dtype=INT, source=None, shape=(100, 1), fill=0, dims=(0,), dim=1, again=False, shown=False):
    """Accumulate scattered values into rows of 8."""
    index = fd.define_tensor(list(shape), dtype=INT)
    zeros = fd.ops.full([100, 8] if dim == 1 else [8, 100], fill, dtype)
    value = fd.define_scalar(1, dtype) if source is None else source(fd)
    chosen = fd.ops.scatter(zeros, index, value, dim)
    if shown:
        fd.add_output(chosen)
    if again:
        fd.add_output(fd.ops.neg(chosen))
    fd.add_output(fd.ops.sum(chosen, list(dims)))


INDEX = np.random.default_rng(0).integers(0, 8, (100, 1))


@pytest.mark.parametrize("dtype", [INT, INT32])
def test_counts_are_added_up(dtype):
    fusion, changed = after("translate_scatter_accumulate", lambda fd: counted(fd, dtype=dtype))
    assert "scatter_add" in names(changed)
    assert "sum" not in names(changed)
    agree(fusion, changed, [INDEX])
    np.testing.assert_array_equal(evaluate(changed, [INDEX])[0], np.bincount(INDEX[:, 0], minlength=8))


def test_counted_flags_stay():
    def body(fd):
        index = fd.define_tensor([100, 1], dtype=INT)
        chosen = fd.ops.scatter(fd.ops.full([100, 8], False, BOOL), index, fd.define_scalar(True, BOOL), 1)
        fd.add_output(fd.ops.sum(chosen, [0]))

    assert untouched("translate_scatter_accumulate", body)


def test_zeros_that_two_scatters_read_stay():
    def body(fd):
        zeros = fd.ops.full([100, 8], 0, INT)
        for _ in range(2):
            index = fd.define_tensor([100, 1], dtype=INT)
            fd.add_output(fd.ops.sum(fd.ops.scatter(zeros, index, fd.define_scalar(1, INT), 1), [0]))

    assert untouched("translate_scatter_accumulate", body)


@pytest.mark.parametrize("dim", [0, 1])
def test_weights_along_any_axis_are_added_up(dim):
    shape = (100, 1) if dim == 1 else (1, 100)

    def body(fd):
        counted(
            fd, shape=shape, dims=(1 - dim,), dim=dim, source=lambda fd: fd.define_tensor(list(shape), dtype=INT),
        )

    fusion, changed = after("translate_scatter_accumulate", body)
    assert "scatter_add" in names(changed)
    weights = np.random.default_rng(1).integers(-(2**62), 2**62, shape)  # sums wrap around
    agree(fusion, changed, [INDEX.reshape(shape), weights])


def test_fewer_rows_than_zeros():
    def body(fd):
        index = fd.define_tensor([3, 1], dtype=INT)
        value = fd.define_tensor([3, 1], dtype=INT)
        fd.add_output(fd.ops.sum(fd.ops.scatter(fd.ops.full([5, 8], 0, INT), index, value, 1), [0]))

    fusion, changed = after("translate_scatter_accumulate", body)
    assert "scatter_add" in names(changed)
    rng = np.random.default_rng(2)
    agree(fusion, changed, [rng.integers(0, 8, (3, 1)), rng.integers(-9, 9, (3, 1))])


def test_a_scatter_with_three_axes_stays():
    def body(fd):
        index, value = (fd.define_tensor([5, 1, 4], dtype=INT) for _ in range(2))
        zeros = fd.ops.full([5, 8, 4], 0, INT)
        fd.add_output(fd.ops.sum(fd.ops.scatter(zeros, index, value, 1), [0, 2]))

    assert untouched("translate_scatter_accumulate", body)


@pytest.mark.parametrize(
    "given",
    [
        {"shape": (100, 2)},  # two elements of a row may have one position, and one would be lost
        {"fill": 1},
        {"dtype": FLOAT},
        {"dims": (1,)},
        {"dims": (0, 1)},
        {"again": True},
        {"shown": True},
        {"source": lambda fd: fd.define_tensor([100, 3], dtype=INT)},
        {"source": lambda fd: fd.define_scalar(None, INT)},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_scatter_stays(given):
    assert untouched("translate_scatter_accumulate", lambda fd: counted(fd, **given))


def test_a_scatter_into_what_was_computed_stays():
    def body(fd):
        x, index = fd.define_tensor([100, 8], dtype=INT), fd.define_tensor([100, 1], dtype=INT)
        fd.add_output(fd.ops.sum(fd.ops.scatter(fd.ops.neg(x), index, fd.define_scalar(1, INT), 1), [0]))

    assert untouched("translate_scatter_accumulate", body)


def test_a_plan_counts_and_refuses_places_that_are_none():
    torch = needs("torch")
    with FusionDefinition() as fd:
        counted(fd)
    plan = fl.segment(fd)
    assert "scatter_add" in names(plan.fusion)
    wanted = np.bincount(INDEX[:, 0], minlength=8)
    np.testing.assert_array_equal(plan.run([INDEX])[0], wanted)
    np.testing.assert_array_equal(plan.run([torch.from_numpy(INDEX)])[0].numpy(), wanted)
    for bad in (8, -1):
        wrong = INDEX.copy()
        wrong[7] = bad
        for given in (wrong, torch.from_numpy(wrong)):
            with pytest.raises(InputError, match=f"has the value {bad}, out of range"):
                plan.run([given])
    off = fl.segment(fd, options=SegmenterOptions.from_nvfuser(disable_preseg=["TranslateScatterAccumulatePass"]))
    assert "scatter" in names(off.fusion)


def test_ops_that_only_passes_make_have_no_name():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        for name in ("fmax", "fmin"):
            with pytest.raises(AttributeError, match=f"fd.ops has no op {name}"):
                getattr(fd.ops, name)
            assert name not in dir(fd.ops)
        fd.add_output(x)
