"""Schedulers that accept matrix products, sorts, scans and scatters with other ops, and final refusals of these."""

import pytest
from unit.schedule.asking import ask, codes, fusion_of, tensor

import fuser_lab as fl
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.cost.device import A100, H200, Device
from fuser_lab.cost.verdict import SchedulerType as Type
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.schedule.registry import SchedulerRegistry
from tests.kernels import generate

HALF, WHOLE = DataType.Half, DataType.Int
V100 = Device(
    name="V100", cc=(7, 0), sms=80, shared_per_sm=96 * 1024, shared_per_block=96 * 1024, l2=6 * 10**6, bandwidth=900,
    fp32=15.7, bf16=0,
)


def fused(body, device=H200):
    return ask(fusion_of(body), registry=SchedulerRegistry(device, fuse_matmul=True))


def product(fd, left=(16, 8), right=(8, 32), dtype=HALF):
    return fd.ops.matmul(tensor(fd, *left, dtype=dtype), tensor(fd, *right, dtype=dtype))


def sine(fd):
    fd.add_output(fd.ops.cast(fd.ops.sin(product(fd)), HALF))


def with_bias(fd):
    out = fd.ops.linear(tensor(fd, 16, 8, dtype=HALF), tensor(fd, 32, 8, dtype=HALF), tensor(fd, 32, dtype=HALF))
    fd.add_output(fd.ops.mul(fd.ops.relu(out), tensor(fd, 16, 32, dtype=HALF)))


def transposed_operand(fd):
    turned = fd.ops.permute(tensor(fd, 8, 16, dtype=HALF), dims=[1, 0])
    fd.add_output(fd.ops.neg(fd.ops.matmul(turned, tensor(fd, 8, 32, dtype=HALF))))


def computed_operand(fd):
    fd.add_output(fd.ops.matmul(fd.ops.cast(tensor(fd, 16, 8), HALF), tensor(fd, 8, 32, dtype=HALF)))


@pytest.mark.parametrize("body", [sine, with_bias, transposed_operand])
def test_products_and_what_follows_are_one_matmul(body):
    answer = fused(body)
    assert answer.chosen is Type.MATMUL
    assert answer.verdicts[-1].code == "matmul_fused"


def test_without_the_option_products_stay_alone():
    assert codes(ask(fusion_of(sine)))[Type.MATMUL] == "matmul_off"


def test_operands_may_be_computed_before_hopper_only():
    assert codes(fused(computed_operand))[Type.MATMUL] == "matmul_prologue"
    assert fused(computed_operand, A100).chosen is Type.MATMUL


def several(fd):
    fd.add_output(fd.ops.matmul(product(fd), tensor(fd, 32, 4, dtype=HALF)))


def of_a_vector(fd):
    fd.add_output(fd.ops.neg(product(fd, right=(8,))))


def of_more_axes(fd):
    fd.add_output(fd.ops.neg(product(fd, right=(3, 8, 32))))


def of_itself(fd):
    x = tensor(fd, 16, 16, dtype=HALF)
    fd.add_output(fd.ops.neg(fd.ops.matmul(x, x)))


def columns_stored(fd):
    fd.add_output(fd.ops.neg(product(fd)), stride_order=[0, 1])


def of_floats(fd):
    fd.add_output(fd.ops.neg(product(fd, dtype=DataType.Float)))


def summed_after(fd):
    fd.add_output(fd.ops.sum(product(fd), dims=[1]))


def sliced_after(fd):
    fd.add_output(fd.ops.slice(product(fd), [0, 0], [4, 4]))


def sorted_after(fd):
    fd.add_output(fd.ops.argsort(product(fd), 1))


def grouped(fd):
    out = fd.ops.grouped_mm(
        tensor(fd, 12, 8, dtype=DataType.BFloat16), tensor(fd, 2, 8, 4, dtype=DataType.BFloat16),
        tensor(fd, 2, dtype=DataType.Int32),
    )
    fd.add_output(fd.ops.neg(out[0] if isinstance(out, tuple) else out))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (several, "several_matmuls"), (of_a_vector, "matmul_vector"), (of_floats, "matmul_dtype"),
        (of_more_axes, "matmul_batch"), (of_itself, "matmul_one_input"), (columns_stored, "matmul_layout"),
        (summed_after, "matmul_epilogue"), (sliced_after, "matmul_epilogue"), (sorted_after, "evaluated_only"),
        (grouped, "other_matmul"),
    ],
)
def test_products_that_no_kernel_takes(body, code):
    answer = fused(body)
    assert codes(answer)[Type.MATMUL] == code
    assert not set("{}") & set(answer.text)


def test_old_devices_fuse_no_products():
    assert codes(fused(sine, V100))[Type.MATMUL] == "matmul_old_device"
    huge = fused(lambda fd: fd.add_output(fd.ops.neg(product(fd, (4, 1 << 31), (1 << 31, 2)))))
    assert codes(huge)[Type.MATMUL] == "matmul_too_large"


def rows_sorted(extent, dtype=DataType.Float, op="argsort"):
    def body(fd):
        x = fd.ops.neg(tensor(fd, 4, extent, dtype=dtype))
        out = fd.ops.argsort(x, 1) if op == "argsort" else getattr(fd.ops, op)(x, 1)
        fd.add_output(fd.ops.add(out, 1))

    return body


def scan_then_sort(fd):
    sums = fd.ops.cumsum(fd.ops.neg(tensor(fd, 4, 64)), 1)
    fd.add_output(fd.ops.add(fd.ops.argsort(sums, 1), 1))


def scan_padded(fd):
    fd.add_output(fd.ops.cumsum(fd.ops.pad(tensor(fd, 4, 64), [0, 3]), 1))


def scattered(fd):
    out = fd.ops.scatter(fd.ops.neg(tensor(fd, 4, 64)), tensor(fd, 4, 8, dtype=WHOLE), tensor(fd, 4, 8), 1)
    fd.add_output(fd.ops.neg(out))


def sums_padded(fd):
    fd.add_output(fd.ops.pad(fd.ops.cumsum(tensor(fd, 4, 64), 1), [0, 3]))


def sums_repeated(fd):
    sums = fd.ops.broadcast_in_dim(fd.ops.cumsum(tensor(fd, 4, 64), 1), [4, 64, 1], [0, 1])
    fd.add_output(fd.ops.add(sums, tensor(fd, 4, 64, 3)))


@pytest.mark.parametrize(
    "body", [rows_sorted(64), rows_sorted(6144), scan_then_sort, scattered, sums_padded, sums_repeated],
)
def test_sorts_with_pointwise_ops_are_greedy(body):
    fusion = fusion_of(body)
    answer = ask(fusion)
    assert answer.chosen is Type.GREEDY
    assert "for each; the array library evaluates it" in answer.verdicts[-1].text
    assert evaluated_because(fusion, Type.GREEDY) == "greedy"
    with pytest.raises(CodegenError):
        generate(fusion, Type.GREEDY)


@pytest.mark.parametrize("body", [scan_padded, rows_sorted(64, op="cumsum")])
def test_scans_that_line_up_with_outputs_are_one_kernel(body):
    fusion = fusion_of(body)
    answer = ask(fusion)
    assert answer.chosen is Type.GREEDY
    assert "for each; one kernel computes it" in answer.verdicts[-1].text
    assert not evaluated_because(fusion, Type.GREEDY)
    assert len(generate(fusion, Type.GREEDY).kernel_ir.phases) == 1


def scan_and_sum(fd):
    fd.add_output(fd.ops.sum(fd.ops.cumsum(tensor(fd, 4, 64), 1), dims=[0]))


def scan_of_a_slice(fd):
    fd.add_output(fd.ops.cumsum(fd.ops.slice(tensor(fd, 4, 64), [0, 0], [4, 8]), 1))


def along_both_axes(fd):
    fd.add_output(fd.ops.cumsum(fd.ops.cumsum(tensor(fd, 4, 64), 1), 0))


def too_few_places(fd):
    out = fd.ops.scatter(fd.ops.neg(tensor(fd, 4, 64)), tensor(fd, 2, 8, dtype=WHOLE), tensor(fd, 2, 8), 1)
    fd.add_output(fd.ops.neg(out))


def scattered_and_kept(fd):
    x = fd.ops.neg(tensor(fd, 4, 64))
    out = fd.ops.scatter(x, tensor(fd, 4, 8, dtype=WHOLE), tensor(fd, 4, 8), 1)
    fd.add_output(fd.ops.add(out, x))


def row_padded_to(extent):
    def body(fd):
        fd.add_output(fd.ops.cumsum(fd.ops.pad(tensor(fd, 4, 64), [0, extent - 64]), 1))

    return body


def scattered_into(extent, places):
    def body(fd):
        x = fd.ops.neg(tensor(fd, 4, extent))
        out = fd.ops.scatter(x, tensor(fd, 4, places, dtype=WHOLE), tensor(fd, 4, places), 1)
        fd.add_output(fd.ops.neg(out))

    return body


def sorted_twice(first, second, dtype=HALF):
    """A sort of Float and one of another dtype, whose storage is added unless both are of one variant."""

    def body(fd):
        column = fd.ops.broadcast(tensor(fd, 4), [False, True])
        for extent, key in ((first, DataType.Float), (second, dtype)):
            keys = fd.ops.cast(fd.ops.add(tensor(fd, 4, extent), column), key)
            fd.add_output(fd.ops.add(fd.ops.argsort(keys, 1), 1))

    return body


def nothing_sorted(fd):
    fd.add_output(fd.ops.sum(tensor(fd, 8, 16), dims=[0]))
    fd.add_output(fd.ops.neg(tensor(fd, 7)))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (scan_and_sum, "greedy_foreign_op"), (scan_of_a_slice, "greedy_foreign_op"),
        (along_both_axes, "greedy_other_axes"), (too_few_places, "scatter_inexact"),
        (scattered_and_kept, "scatter_shared"), (rows_sorted(22529), "greedy_registers"),
        (rows_sorted(6145), "greedy_shared_memory"), (rows_sorted(22528), "greedy_shared_memory"),
        (rows_sorted(45056, op="cumsum"), "greedy_block"), (rows_sorted(45057, op="cumsum"), "greedy_registers"),
        (rows_sorted(22528, DataType.Double, "cumsum"), "greedy_block"),
        (rows_sorted(22529, DataType.Double, "cumsum"), "greedy_registers"),
        (row_padded_to(1024), "greedy_block"), (row_padded_to(1025), "greedy_long_pad"),
        (scattered_into(45056, 8), "greedy_block"), (scattered_into(45057, 8), "greedy_registers"),
        (scattered_into(8, 14336), "greedy_block"), (scattered_into(8, 15361), "greedy_registers"),
        (sorted_twice(64, 64), "greedy_block"), (sorted_twice(640, 640), "greedy_block"),
        (sorted_twice(6144, 6144, DataType.Float), "greedy_block"),
        (sorted_twice(6144, 6144), "greedy_shared_memory"),
        (sorted_twice(640, 1024), "greedy_shared_memory"),
        (rows_sorted(32768, DataType.Bool, "cumsum"), "greedy_block"),
        (nothing_sorted, "not_connected"),
    ],
)
def test_what_greedy_says(body, code):
    answer = ask(fusion_of(body))
    assert codes(answer)[Type.GREEDY] == code
    assert not set("{}") & set(answer.verdicts[-1].text)


def test_rows_longer_than_shared_memory():
    small = Device(
        name="small", cc=(9, 0), sms=8, shared_per_sm=32 * 1024, shared_per_block=16 * 1024, l2=10**6, bandwidth=100,
        fp32=1, bf16=2,
    )
    answer = ask(fusion_of(rows_sorted(4096)), registry=SchedulerRegistry(small))
    assert codes(answer)[Type.GREEDY] == "greedy_shared_memory"
    assert ask(fusion_of(rows_sorted(4096))).chosen is Type.GREEDY


@pytest.mark.parametrize(
    ("declared", "other", "code"),
    [
        ([-1, 64], None, "greedy_block"), ([4, -1], None, "greedy_symbolic"), ([-1, -1], None, "greedy_symbolic"),
        ([-1, -1], [-1, 64], "greedy_block"), ([-1, -1], [64], "greedy_block"), ([-1, -1], [-1, -1], "greedy_symbolic"),
    ],
)
@pytest.mark.parametrize("op", ["cumsum", "argsort", "topk"])
def test_sorts_and_scans_need_a_constant_size(declared, other, code, op):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=declared, contiguity=[True] * len(declared), dtype=DataType.Float)
        given = [fl.spec((4, 64))]
        if other is not None:
            y = fd.define_tensor(shape=other, contiguity=[True] * len(other), dtype=DataType.Float)
            given.append(fl.spec((4, 64)[-len(other):]))
            x = fd.ops.add(x, fd.ops.broadcast(y, [True, False]) if len(other) == 1 else y)
        out = fd.ops.topk(x, fd.define_scalar(64, WHOLE), 1)[1] if op == "topk" else getattr(fd.ops, op)(x, 1)
        fd.add_output(fd.ops.add(out, 1))
    plan = fl.segment(fd, given)
    if op == "topk":
        code = "greedy_block"  # its result has k elements
    assert (code == "greedy_block") == ([segment.scheduler for segment in plan.segments] == [Type.GREEDY])
    expected = f"{op} runs along axis 1, which has 64 elements here, but the definition leaves its size open"
    assert (code == "greedy_symbolic") == any(expected in attempt.text for attempt in plan.decisions)


def test_a_squeeze_that_given_sizes_add_keeps_its_axes_constant():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 2, 8, 1], contiguity=[True, True, True, None])
        other = fd.define_tensor(shape=[-1], contiguity=[True])
        fd.add_output(fd.ops.cumsum(fd.ops.reshape(x, [128]), 0))
        fd.add_output(fd.ops.neg(other))
    plan = fl.segment(fd, [fl.spec((8, 2, 8, 1)), fl.spec((5,))])
    scans = [part for part in plan.segments if any(e.op.name == "cumsum" for e in part.fusion.exprs)]
    assert [part.scheduler for part in scans] == [Type.GREEDY]


def test_a_tensor_without_axes_is_a_row_of_one_element():
    def sorted_alone(fd):
        x = fd.ops.neg(fd.define_tensor([], dtype=DataType.Float))
        fd.add_output(fd.ops.add(fd.ops.argsort(x, 0), 1))

    assert ask(fusion_of(sorted_alone)).chosen is Type.GREEDY


def final(answer):
    return answer.chosen is None and all(verdict.monotone for verdict in answer.verdicts)


def test_sorts_are_refused_for_good_only_where_greedy_promises_it():
    assert final(ask(fusion_of(scan_and_sum)))
    assert final(ask(fusion_of(too_few_places)))
    assert final(ask(fusion_of(rows_sorted(22529))))
    # A longer row may need less storage: whole warps rank digits in less.
    assert not final(ask(fusion_of(rows_sorted(6145))))
    # Two scans along different axes may be joined by an op that merges these axes.
    assert not final(ask(fusion_of(along_both_axes)))
    off = SchedulerRegistry(disabled=frozenset({Type.GREEDY}))
    assert final(ask(fusion_of(scan_then_sort), registry=off))


def test_products_are_refused_for_good_unless_they_may_be_fused():
    assert final(ask(fusion_of(sine)))
    assert final(fused(several))
    assert not final(fused(summed_after))


def test_a_larger_set_may_be_accepted_where_a_smaller_one_is_not():
    # Without the scan, the sort's operand and the first input share nothing.
    def body(fd):
        x, y = tensor(fd, 4, 64), tensor(fd, 4, 64)
        fd.add_output(fd.ops.add(fd.ops.argsort(x, 1), 1))
        fd.add_output(fd.ops.cumsum(y, 1))
        fd.add_output(fd.ops.add(fd.ops.neg(x), y))

    fusion = fusion_of(body)
    *rest, negated, joined = [expr.name for expr in fusion.exprs]
    small = ask(fusion, rest)
    assert small.chosen is None
    assert not final(small)
    assert ask(fusion, [*rest, negated, joined]).chosen is Type.GREEDY
