"""Each pass on small fusions: the lines before and after, and what it must not change."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fuser_lab as fl
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.interpreter import evaluate
from fuser_lab.passes import PRESEGMENTATION, text_digest
from tests.pages.passes import example_of, fusion_lines
from tests.unit.builders import record

PASSES = {p.name: p for p in PRESEGMENTATION.passes}
BF16, FLOAT, INT = DataType.BFloat16, DataType.Float, DataType.Int


def after(name, body):
    """Run a pass alone; the meaning must not change."""
    fusion = record(body)
    changed = PASSES[name].run(fusion)
    same_meaning(fusion, changed, name)
    return changed


SPECIAL = (np.nan, np.inf, -np.inf, -0.0)


def same_meaning(fusion, changed, name="a pass"):
    """Results are equal for finite inputs, and if some elements are NaN, infinite or -0.0."""
    rng = np.random.default_rng(0)
    inputs = [
        (rng.integers(0, 2, v.shape) if v.dtype.is_integral else rng.normal(size=v.shape)).astype(v.dtype.numpy)
        for v in fusion.inputs
    ]
    kinds = {"finite inputs": inputs, "inputs with NaN, infinities and -0.0": [with_special(rng, x) for x in inputs]}
    for kind, values in kinds.items():
        for number, (a, b) in enumerate(zip(evaluate(fusion, values), evaluate(changed, values), strict=True)):
            np.testing.assert_array_equal(comparable(b), comparable(a), err_msg=(
                f"{name} changes output {number} for {kind}; the pass must leave such a fusion as it is.\n"
                f"before:\n{lines_of(fusion)}\nafter:\n{lines_of(changed)}"
            ))


def comparable(x):
    """The same numbers in a dtype whose NaNs are equal for NumPy's tests."""
    return x if x.dtype.isbuiltin == 1 else x.astype(np.float64)


def with_special(rng, x):
    if x.dtype.kind in "biu" or not x.size:
        return x
    special = x.copy()
    places = rng.choice(x.size, min(len(SPECIAL), x.size), replace=False)
    special.flat[places] = SPECIAL[: len(places)]
    return special


def lines_of(fusion):
    return "\n".join(f"  {line}" for line in fusion_lines(fusion))


def untouched(name, body):
    fusion = record(body)
    return PASSES[name].run(fusion) is fusion


def ops(fusion):
    return [f"{e.name} {e.op.name}" for e in fusion.exprs]


@pytest.mark.parametrize("step", PASSES.values(), ids=list(PASSES))
def test_every_pass_has_an_example_and_changes_it(step):
    fusion = example_of(step)
    changed = step.run(fusion)
    assert changed is not fusion, f"{step.name} does not change its example"
    assert step.run(changed) is changed, f"{step.name} changes its own result"
    if not step.adds_scalars:
        same_meaning(fusion, changed, step.name)


OTHER_DTYPES = (
    DataType.Double, DataType.Half, DataType.Int, DataType.Int32, DataType.Char, DataType.UInt64, DataType.Bool,
    DataType.ComplexFloat,
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("step", [p for p in PASSES.values() if not p.adds_scalars], ids=lambda step: step.name)
def test_a_pass_keeps_the_meaning_of_its_example_in_every_dtype(step):
    recorded = 0
    for dtype in OTHER_DTYPES:
        try:
            fusion = example_of(step, dtype)
        except DefinitionError:
            continue
        recorded += 1
        same_meaning(fusion, step.run(fusion), f"{step.name}, on its example in {dtype.name},")
    assert recorded


# remove_empty


def test_reductions_and_pads_of_nothing_are_constants():
    def body(fd):
        x = fd.define_tensor([0, 4])
        fd.add_output(fd.ops.prod(fd.ops.exp(x), [0]))
        fd.add_output(fd.ops.pad(x, [0, 0, 1, 2], 7.0))

    changed = after("remove_empty", body)
    assert [e.op.name for e in changed.exprs] == ["full", "full"]
    assert [e.inputs[0].value for e in changed.exprs] == [1.0, 7.0]


def test_an_empty_part_of_three_goes():
    def body(fd):
        x, nothing = fd.define_tensor([2, 4]), fd.define_tensor([0, 4])
        fd.add_output(fd.ops.cat([x, fd.ops.exp(nothing), fd.ops.neg(x)]))

    changed = after("remove_empty", body)
    assert [e.op.name for e in changed.exprs] == ["neg", "pad", "pad", "cat"]


def test_an_empty_output_is_a_constant_of_its_shape():
    changed = after("remove_empty", lambda fd: fd.add_output(fd.ops.exp(fd.define_tensor([3, 0, 1], dtype=BF16))))
    assert [line.rpartition("  ")[2] for line in fusion_lines(changed)][1] == "Float [3, 0, 1]"
    assert changed.exprs[0].op.name == "full"


# translate_no_reduction_matmul


@pytest.mark.parametrize(
    ("left", "right"),
    [([8, 1], [1, 16]), ([1], [1, 16]), ([8, 1], [1]), ([1], [1]), ([2, 8, 1], [1, 16]), ([3, 1, 8, 1], [5, 1, 4]),
     ([8, 1], [5, 1, 1]), ([1, 1], [1, 1])],
)
@pytest.mark.parametrize("dtype", [FLOAT, BF16, DataType.Double])
def test_products_that_sum_nothing(left, right, dtype):
    def body(fd):
        a, b = fd.define_tensor(left, dtype=dtype), fd.define_tensor(right, dtype=dtype)
        fd.add_output(fd.ops.exp(fd.ops.matmul(a, b)))

    changed = after("translate_no_reduction_matmul", body)
    assert "matmul" not in {e.op.name for e in changed.exprs}
    assert "T2" in changed.tensors


def test_products_that_sum_stay():
    def body(fd):
        fd.add_output(fd.ops.matmul(fd.define_tensor([8, 2]), fd.define_tensor([2, 16])))

    assert untouched("translate_no_reduction_matmul", body)


# translate_repeat_to_expand


def test_a_tensor_joined_with_another_stays():
    def body(fd):
        x, y = fd.define_tensor([2, 3]), fd.define_tensor([2, 3])
        fd.add_output(fd.ops.cat([x, y, x]))

    assert untouched("translate_repeat_to_expand", body)


def test_a_repeated_axis_of_size_one_stays():
    assert untouched("translate_repeat_to_expand", lambda fd: fd.add_output(fd.ops.cat([fd.define_tensor([1, 3])] * 2)))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_repeating_along_any_axis(dim):
    def body(fd):
        x = fd.ops.sin(fd.define_tensor([2, 3, 4]))
        fd.add_output(fd.ops.cos(fd.ops.cat([x, x], dim)))

    assert ops(after("translate_repeat_to_expand", body))[-2:] == ["T4 reshape", "T5 cos"]


# consecutive_casts


def test_a_narrowing_cast_moves_above_views_that_nothing_else_reads():
    def body(fd):
        x = fd.ops.sum(fd.define_tensor([4, 1, 6, 5]), [3])
        x = fd.ops.set(fd.ops.reshape(fd.ops.squeeze(x, [1]), [24]))
        fd.add_output(fd.ops.cast(x, BF16))

    changed = after("consecutive_casts", body)
    assert ops(changed) == ["T1 sum", "T5_early cast", "T2 squeeze", "T3 reshape", "T5 set"]


def test_a_cast_stays_below_a_view_that_is_read_elsewhere_or_is_an_output():
    def body(fd, *, output):
        x = fd.ops.reshape(fd.ops.exp(fd.define_tensor([4, 6])), [24])
        fd.add_output(fd.ops.cast(x, BF16))
        fd.add_output(x if output else fd.ops.neg(x))

    assert untouched("consecutive_casts", lambda fd: body(fd, output=True))
    assert untouched("consecutive_casts", lambda fd: body(fd, output=False))


def test_a_widening_cast_does_not_move():
    def body(fd):
        x = fd.ops.set(fd.define_tensor([24], dtype=BF16))
        fd.add_output(fd.ops.cast(fd.ops.reshape(x, [4, 6]), FLOAT))

    assert untouched("consecutive_casts", body)


def test_long_chains_of_views_take_no_time():
    def body(fd):
        x = fd.define_tensor([6])
        for _ in range(2000):
            x = fd.ops.set(x)
        fd.add_output(fd.ops.cast(x, BF16))

    changed = PASSES["consecutive_casts"].run(record(body))
    assert changed.exprs[0].op.name == "cast"


# move_split_cat


def split_and_joined(*, order=(0, 1), end=6, output=True):
    def body(fd):
        x = fd.ops.sin(fd.define_tensor([4, 6]))
        parts = [fd.ops.slice(x, [0, 0], [4, 2]), fd.ops.slice(x, [0, 2], [4, end])]
        joined = fd.ops.cat([parts[i] for i in order], 1)
        fd.add_output(joined if output else fd.ops.cos(joined))

    return body


def test_what_was_taken_apart_is_the_tensor():
    assert ops(after("move_split_cat", split_and_joined())) == ["T1 sin", "T6 set"]
    assert ops(after("move_split_cat", split_and_joined(output=False))) == ["T1 sin", "T6 set", "T7 cos"]


@pytest.mark.parametrize("given_", [{"order": (1, 0)}, {"end": 5}, {"order": (0, 0)}, {"order": (0,)}])
def test_what_is_joined_otherwise_stays(given_):
    assert untouched("move_split_cat", split_and_joined(**given_))


def reshaped_and_joined(shape, cuts, axis, views, joined):
    """Return a definition that cuts a tensor, applies views to each part, and joins the parts."""
    def body(fd):
        x = fd.define_tensor(list(shape))
        parts = []
        for place, (start, end) in enumerate(pairwise(cuts)):
            starts, ends = [0] * len(shape), list(shape)
            starts[axis], ends[axis] = start, end
            part = fd.ops.slice(x, starts, ends)
            for op, arguments in views:
                more = (arguments[place],) if op == "reshape" else (arguments,) if arguments else ()
                part = getattr(fd.ops, op)(part, *more)
            parts.append(part)
        fd.add_output(fd.ops.neg(fd.ops.cat(parts, joined)))

    return body


@pytest.mark.parametrize(
    ("body", "left"),
    [  # the first four as in nvFuser's tests of the pass (tests/cpp/test_move_split_cat.cpp:357-520)
        (
            reshaped_and_joined((4, 10), (0, 2, 5, 10), 1, [("reshape", [(2, 2, n) for n in (2, 3, 5)])], 2),
            ["reshape", "set"],
        ),
        (
            reshaped_and_joined(
                (6, 10), (0, 2, 5, 10), 1,
                [("reshape", [(2, 3, n) for n in (2, 3, 5)]), ("permute", (1, 0, 2))], 2,
            ),
            ["reshape", "permute", "set"],
        ),
        (
            reshaped_and_joined(
                (2, 9, 5, 4), (0, 3, 6, 9), 1, [("permute", (0, 2, 1, 3)), ("reshape", [(2, 5, 12)] * 3)], 2,
            ),
            ["permute", "reshape", "set"],
        ),
        (reshaped_and_joined((6, 4), (0, 3, 6), 0, [("reshape", [(12,)] * 2)], 0), ["reshape", "set"]),
        (reshaped_and_joined((6, 4), (0, 2, 6), 0, [("reshape", [(8,), (16,)])], 0), ["reshape", "set"]),
        (reshaped_and_joined((4, 6), (0, 2, 6), 1, [("set", ())], 1), ["set", "set"]),
    ],
    ids=["axes before", "and permuted", "merged inside", "outermost", "unequal parts", "copies"],
)
def test_views_between_slices_and_cat_are_applied_once(body, left):
    assert [e.op.name for e in after("move_split_cat", body).exprs] == [*left, "neg"]


@pytest.mark.parametrize(
    "body",
    [  # the first two as in nvFuser's tests of the pass (tests/cpp/test_move_split_cat.cpp:300-515)
        reshaped_and_joined((4, 6), (0, 2, 4), 0, [("reshape", [(4, 3)] * 2)], 0),
        reshaped_and_joined((6, 4), (0, 3, 6), 0, [("reshape", [(6, 2)] * 2)], 1),
        reshaped_and_joined((4, 6), (0, 3, 6), 1, [("reshape", [(12,)] * 2)], 0),
        reshaped_and_joined((4, 12), (0, 6, 12), 1, [("reshape", [(4, 2, 3)] * 2)], 2),
        reshaped_and_joined((4, 12), (0, 6, 12), 1, [("reshape", [(4, 2, 3)] * 2)], 1),
        reshaped_and_joined((4, 6), (0, 3, 6), 1, [("neg", ())], 1),
    ],
    ids=["split after merge", "other axis", "merged outside", "inner part", "outer part", "computed"],
)
def test_views_that_change_the_joined_axis_stay(body):
    assert untouched("move_split_cat", body)


def test_slices_along_another_axis_stay():
    def body(fd):
        x = fd.define_tensor([4, 4])
        fd.add_output(fd.ops.cat([fd.ops.slice(x, [0, 0], [2, 4]), fd.ops.slice(x, [2, 0], [4, 4])], 1))

    assert untouched("move_split_cat", body)


# move_pad


def padded(op, *, fill="", shapes=((4, 6), (4, 6)), widths=(1, 1)):
    def body(fd):
        operands = [fd.define_tensor(list(shape)) for shape in shapes]
        value = getattr(fd.ops, op)(*operands)
        fd.add_output(fd.ops.pad(value, list(widths), *([fill] if fill != "" else [])))

    return body


def doubled(fd):
    fd.add_output(fd.ops.pad(fd.ops.mul(fd.define_tensor([4, 6]), 2.0), [1, 1]))


@pytest.mark.parametrize("op", ["neg", "relu", "sin"])
def test_a_pad_moves_above_functions_that_keep_zeros(op):
    assert [e.op.name for e in after("move_pad", padded(op, shapes=((4, 6),))).exprs] == ["pad", op]


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_a_pad_moves_above_what_keeps_zeros(op):
    changed = after("move_pad", padded(op))
    assert [e.op.name for e in changed.exprs] == ["pad", "pad", op]


@pytest.mark.parametrize(
    "body",
    [padded("div"), padded("signbit", shapes=((4, 6),)), padded("cos", shapes=((4, 6),)), padded("add", fill=1.0),
     padded("add", fill=-0.0), padded("add", widths=(1, -1)), padded("add", shapes=((4, 6), (4, 1))), doubled],
    ids=["div", "signbit", "cos", "ones", "negative zeros", "cut", "broadcast", "number"],
)
def test_a_pad_stays(body):
    assert untouched("move_pad", body)


def test_a_pad_moves_along_an_axis_that_is_not_broadcast():
    changed = after("move_pad", padded("mul", shapes=((4, 6), (1, 6))))
    assert [e.op.name for e in changed.exprs] == ["pad", "pad", "mul"]


@pytest.mark.parametrize("ends", [False, True])
def test_a_pad_passes_what_is_read_twice_after_both_readers(ends):
    def body(fd):
        x = fd.ops.relu(fd.define_tensor([4, 6]))
        if ends:
            fd.add_output(fd.ops.exp(x))
        fd.add_output(fd.ops.pad(fd.ops.add(fd.ops.sin(x), fd.ops.tanh(x)), [1, 1]))

    changed = [e.op.name for e in after("move_pad", body).exprs]
    assert changed == (["relu", "exp", "pad", "sin", "tanh", "add"] if ends else ["pad", "relu", "sin", "tanh", "add"])


@pytest.mark.parametrize("op", ["gt", "lt", "ne", "maximum", "minimum"])
def test_a_pad_moves_above_comparisons_that_zeros_do_not_fulfil(op):
    assert [e.op.name for e in after("move_pad", padded(op)).exprs] == ["pad", "pad", op]


@pytest.mark.parametrize("op", ["eq", "le", "ge"])
def test_a_pad_stays_behind_comparisons_that_zeros_fulfil(op):
    assert untouched("move_pad", padded(op))


def test_a_cat_of_flags_is_their_disjunction():
    def body(fd):
        x, y, z = (fd.define_tensor([n, 4], dtype=DataType.Bool) for n in (2, 2, 3))
        fd.add_output(fd.ops.cat([fd.ops.logical_and(x, y), z], 0))

    assert [e.op.name for e in after("move_pad", body).exprs] == ["pad", "pad", "logical_and", "pad", "logical_or"]


def test_a_cat_one_of_whose_pads_moves_is_a_sum():
    def body(fd):
        x, y, z = (fd.define_tensor([n, 4]) for n in (2, 3, 5))
        fd.add_output(fd.ops.cat([fd.ops.relu(x), y, z], 0))

    changed = after("move_pad", body)
    assert [e.op.name for e in changed.exprs] == ["pad", "relu", "pad", "pad", "add", "add"]
    assert "cat" in [e.op.name for e in record(body).exprs]


@pytest.mark.parametrize("kept", ["operands", "pads", "values"])
def test_a_cat_stays(kept):
    def body(fd):
        x, y = fd.define_tensor([2, 4]), fd.define_tensor([3, 4])
        moved = {"operands": x, "pads": fd.ops.cos(x), "values": fd.ops.relu(x)}[kept]
        if kept == "values":
            fd.add_output(moved)
        fd.add_output(fd.ops.cat([moved, y], 0))

    assert untouched("move_pad", body)


def test_pads_move_only_where_the_resize_scheduler_is_off():
    fusion = record(padded("add"))
    assert PRESEGMENTATION.run(fusion) is fusion
    assert PRESEGMENTATION.run(fusion, without_schedulers=["resize"]) is not fusion


# remove_broadcast_squeeze


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.data())
def test_what_is_left_of_broadcast_and_squeeze(flags, data):
    kept = flags.count(False)
    shape = [data.draw(st.sampled_from([1, 3])) for _ in range(kept)]
    sizes = iter(shape)
    wide = [1 if flag else next(sizes) for flag in flags]
    dims = data.draw(st.lists(st.sampled_from([i for i, n in enumerate(wide) if n == 1] or [-1]), unique=True))
    dims = [d for d in dims if d >= 0]

    def body(fd):
        x = fd.ops.sin(fd.define_tensor(shape))
        fd.add_output(fd.ops.cos(fd.ops.squeeze(fd.ops.broadcast(x, flags), dims)))

    changed = after("remove_broadcast_squeeze", body)
    left = [e.op.name for e in changed.exprs if e.op.name in {"broadcast", "squeeze"}]
    new = {i for i, flag in enumerate(flags) if flag}
    if new and dims:
        needed = [bool(new - set(dims)), bool(set(dims) - new)]
        assert len(left) == sum(needed)


# segment_inplace_update


def test_an_update_away_from_broadcasts_stays():
    def body(fd):
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.add(x, x), x)

    assert untouched("segment_inplace_update", body)


def test_a_broadcast_behind_the_overwritten_input_counts():
    def body(fd):
        x = fd.define_tensor([4])
        fd.add_output(fd.ops.broadcast(x, [False, True]))
        fd.add_output(fd.ops.neg(x), x)

    changed = after("segment_inplace_update", body)
    assert ops(changed) == ["T1 broadcast", "T2 neg", "T2_hint segment_set", "T2_copy set"]
    assert [(a.name, b.name) for a, b in changed.aliases] == [("T2_copy", "T0")]
    assert {tv.name for tv in changed.hidden} == {"T2_copy"}


# move_gather


def test_a_lookup_moves_above_a_squeeze():
    def body(fd):
        x = fd.define_tensor([4, 1, 9])
        index = fd.define_tensor([4, 2], dtype=INT)
        fd.add_output(fd.ops.take_along_axis(fd.ops.squeeze(fd.ops.cast(x, BF16), [1]), index, 1))

    changed = after("move_gather", body)
    assert ops(changed) == ["T4_index broadcast", "T4_taken take_along_axis", "T2 cast", "T4 squeeze"]


@pytest.mark.parametrize("why", ["read elsewhere", "an output", "two lookups", "two operands", "index made of it"])
def test_a_lookup_stays(why):
    def body(fd):
        x = fd.define_tensor([4, 9])
        index = fd.define_tensor([4, 2], dtype=INT)
        table = fd.ops.exp(x) if why != "two operands" else fd.ops.mul(x, x)
        if why == "index made of it":
            table = fd.ops.cast(table, INT)
            index = table
            table = fd.ops.set(table)
        fd.add_output(fd.ops.take_along_axis(table, index, 1))
        if why == "read elsewhere":
            fd.add_output(fd.ops.neg(table))
        if why == "an output":
            fd.add_output(table)
        if why == "two lookups":
            fd.add_output(fd.ops.take_along_axis(fd.ops.neg(x), index, 1))

    assert PASSES["move_gather"].run(fusion := record(body)) is fusion


# mark_aliases_prepare


def test_a_view_that_feeds_arithmetic_stays_with_it():
    def body(fd):
        x = fd.ops.permute(fd.define_tensor([2, 3]), [1, 0])
        fd.add_output(fd.ops.exp(x))

    changed = after("mark_aliases_prepare", body)
    assert ops(changed) == ["T1 permute", "T2 exp"]
    assert [expr.out.domain.allocation for expr in changed.exprs] == [(1, 0), None]


def test_an_output_that_is_viewed_is_written_once():
    def body(fd):
        x = fd.define_tensor([2, 3])
        y = fd.ops.add(x, x)
        fd.add_output(y)
        fd.add_output(fd.ops.permute(y, [1, 0]))
        fd.add_output(fd.ops.exp(y))

    changed = after("mark_aliases_prepare", body)
    assert ops(changed) == ["T1_computed add", "T1 segment_set", "T2 permute", "T3 exp"]
    assert [tv.name for tv in changed.outputs] == ["T1", "T2", "T3"]
    assert changed.exprs[-1].inputs[0].name == "T1_computed"
    assert changed.tensors["T2"].domain.allocation == (1, 0)


def test_a_permutation_with_a_layout_of_its_own_keeps_it():
    def body(fd):
        y = fd.ops.permute(fd.ops.exp(fd.define_tensor([2, 3])), [1, 0])
        fd.add_output(y, stride_order=[1, 0])

    changed = PASSES["mark_aliases_prepare"].run(record(body))
    assert changed.outputs[0].domain.allocation == (0, 1)


def test_views_of_inputs_alone_get_no_hint():
    def body(fd):
        x = fd.define_tensor([2, 3], contiguity=True)
        fd.add_output(fd.ops.reshape(x, [6]))
        fd.add_output(fd.ops.broadcast(x, [True, False, False]))

    assert untouched("mark_aliases_prepare", body)


def test_the_update_of_an_input_is_no_view():
    def body(fd):
        x, y = fd.define_tensor([2, 3]), fd.define_tensor([3, 2])
        fd.add_output(fd.ops.permute(fd.ops.exp(x), [1, 0]), y)

    assert untouched("mark_aliases_prepare", body)


# allocation_domain: known answers of nvFuser's own tests, as positions of axes, slowest in memory first


def order_of(body):
    changed = PASSES["allocation_domain"].run(record(body))
    (out,) = changed.outputs
    axes = out.domain.axes
    return [place for place in out.domain.allocation_order if not axes[place].is_broadcast]


def ranks(memory):
    """Return the stride_order of a memory order."""
    return [len(memory) - 1 - memory.index(axis) for axis in range(len(memory))]


def test_channels_last_stays_channels_last():
    def body(fd):
        fd.add_output(fd.ops.relu(fd.define_tensor([2, 3, 4, 5], stride_order=ranks([0, 2, 3, 1]))))

    assert order_of(body) == [0, 2, 3, 1]


def test_new_axes_of_size_one_lie_anywhere():
    def body(fd):
        x = fd.define_tensor([2, 3, 4, 5], stride_order=ranks([0, 2, 3, 1]))
        fd.add_output(fd.ops.relu(fd.ops.broadcast(x, [c == "T" for c in "TFFTFTFT"])))

    changed = PASSES["allocation_domain"].run(record(body))
    assert list(changed.outputs[0].domain.allocation) == [0, 3, 5, 7, 1, 4, 6, 2]


def test_the_input_with_the_most_axes_decides():
    def body(fd):
        few = fd.define_tensor([2, 1, 1, 5], stride_order=ranks([0, 2, 1, 3]))
        all_ = fd.define_tensor([2, 3, 4, 5], stride_order=ranks([1, 0, 2, 3]))
        fd.add_output(fd.ops.add(few, all_))

    assert order_of(body) == [1, 0, 2, 3]


def test_a_sum_keeps_the_order_of_what_is_left():
    def body(fd, *, times):
        x = fd.define_tensor([2, 3, 4, 5], stride_order=ranks([1, 2, 3, 0]))
        for _ in range(times):
            x = fd.ops.sum(x, [1])
        fd.add_output(x)

    assert order_of(lambda fd: body(fd, times=1)) == [1, 2, 0]
    assert order_of(lambda fd: body(fd, times=2)) == [1, 0]


def test_inputs_that_disagree_decide_nothing():
    def body(fd):
        a = fd.define_tensor([2, 3], stride_order=[0, 1])
        fd.add_output(fd.ops.add(a, fd.define_tensor([2, 3])))

    assert untouched("allocation_domain", body)


def test_layouts_that_are_asked_for_stay():
    def body(fd):
        x = fd.define_tensor([2, 3], stride_order=[0, 1])
        fd.add_output(fd.ops.relu(x), stride_order=[1, 0])

    assert untouched("allocation_domain", body)


def test_products_lie_as_the_library_leaves_them():
    def body(fd):
        a = fd.define_tensor([2, 3, 4], stride_order=ranks([2, 0, 1]))
        fd.add_output(fd.ops.linear(a, fd.define_tensor([5, 4])))

    assert untouched("allocation_domain", body)


def test_runs_give_the_layouts():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=True, stride_order=[1, 0, 2])
        fd.add_output(fd.ops.relu(x))
    x = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32).transpose(1, 2, 0)
    (out,) = fd.execute([x])
    assert out.strides != np.ascontiguousarray(out).strides or x.strides == np.ascontiguousarray(x).strides
    np.testing.assert_array_equal(out, np.maximum(x, 0))


# all of them


def test_new_names_do_not_collide():
    def body(fd):
        x = fd.define_tensor([2, 3])
        y = fd.ops.mul(x, x)
        fd.add_output(fd.ops.permute(y, [1, 0]))

    fusion = PASSES["mark_aliases_prepare"].run(record(body))
    assert PASSES["mark_aliases_prepare"].run(fusion) is fusion
    assert len(fusion.tensors) == len(set(fusion.tensors))


def test_plans_of_rewritten_fusions_are_made_again_by_their_code():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        y = fd.ops.mul(x, x)
        fd.add_output(fd.ops.permute(fd.ops.sum(y, [1], keepdim=True), [1, 0]))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [[e.name] for e in fusion.tensor_exprs])
    names = {}
    exec(plan.to_python(), names)
    assert names["plan"] == plan


def test_the_log_says_which_passes_changed_something():
    log = fl.DecisionLog()
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        fd.add_output(fd.ops.permute(fd.ops.mul(x, x), [1, 0]))
    plan = fl.segment(fd, log=log)
    (applied,) = log.passes
    assert applied.name == "mark_aliases_prepare"
    assert applied.seconds > 0
    assert applied.after == text_digest(plan.fusion) != applied.before
    again = fl.DecisionLog.from_json(log.to_json())
    assert again == log
    assert again.passes[0].seconds == applied.seconds
    assert "pass mark_aliases_prepare" in str(log)
