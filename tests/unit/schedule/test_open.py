"""Open schedulers accept what nvFuser refuses and one of our kernels computes, and name the rules that it breaks."""

from dataclasses import replace

import numpy as np
import pytest
from thorough import share

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.codegen.one_kernel import bytes_moved, with_lifted
from fuser_lab.codegen.pipeline import MovesMore, lower_within
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.cost.device import H200
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.errors import CodegenError, InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.report.explain import explain_data, explain_text
from fuser_lab.schedule.open import LIFTABLE
from fuser_lab.schedule.sets import SchedulerSet, register
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.oracle import candidate
from tests.agreement import lock_step
from tests.benchmarks.optimal import irregular
from tests.fuzz.check import Checked
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import generate
from tests.kernels import lower
from tests.unit.test_plan import made_by

TARGETS = ("cpu", "cuda")


def tensor(fd, *shape, dtype=DataType.Float):
    return fd.define_tensor(list(shape), contiguity=[None if n == 1 else True for n in shape], dtype=dtype)


def normalized(ops, x, axis, extent):
    centered = ops.sub(x, ops.mul(ops.sum(x, dims=[axis], keepdim=True), 1 / extent))
    square = ops.mul(ops.sum(ops.mul(centered, centered), dims=[axis], keepdim=True), 1 / extent)
    return ops.mul(centered, ops.rsqrt(ops.add(square, 1e-5)))


def norm_with_rope(fd, ops):
    x, cos, sin = (tensor(fd, 6, 32) for _ in range(3))
    y = normalized(ops, x, 1, 32)
    left, right = ops.slice(y, [0, 0], [6, 16]), ops.slice(y, [0, 16], [6, 32])
    turned = ops.cat([ops.neg(right), left], 1)
    fd.add_output(ops.add(ops.mul(y, cos), ops.mul(turned, sin)))


def group_norm(fd, ops):
    x, weight, bias = tensor(fd, 2, 8, 3, 5), tensor(fd, 8), tensor(fd, 8)
    y = ops.reshape(normalized(ops, ops.reshape(x, [2, 4, 30]), 2, 30), [2, 8, 3, 5])
    shaped = [ops.broadcast_in_dim(one, [2, 8, 3, 5], [1]) for one in (weight, bias)]
    z = ops.add(ops.mul(y, shaped[0]), shaped[1])
    fd.add_output(ops.mul(z, ops.sigmoid(z)))


def cross_entropy(fd, ops):
    x, label = tensor(fd, 7, 24), tensor(fd, 7, 1, dtype=DataType.Int)
    scaled = ops.mul(x, 0.5)
    most = ops.max(scaled, dims=[1], keepdim=True)
    total = ops.log(ops.sum(ops.exp(ops.sub(scaled, most)), dims=[1], keepdim=True))
    fd.add_output(ops.sub(ops.add(total, most), ops.take_along_axis(scaled, label, 1)))


def rows_gathered(fd, ops):
    x, index = tensor(fd, 9, 16), tensor(fd, 5, dtype=DataType.Int)
    fd.add_output(ops.sum(ops.exp(ops.index_select(ops.neg(x), index, 0)), dims=[1]))


def gathered_elements(fd, ops):
    x, index = tensor(fd, 9, 16), tensor(fd, 9, 4, dtype=DataType.Int)
    fd.add_output(ops.neg(ops.gather(ops.exp(x), index, 1)))


def sums_over_both_axes(fd, ops):
    fd.add_output(ops.sum(ops.exp(ops.sum(tensor(fd, 40, 24), dims=[1])), dims=[0]))


def sums_of_both_kinds(fd, ops):
    x = tensor(fd, 600, 40)
    fd.add_output(ops.sum(x, dims=[1]))
    fd.add_output(ops.sum(x, dims=[0]))


def moments_of_both_kinds(fd, ops):
    x, y = tensor(fd, 600, 24), tensor(fd, 600, 24)
    product = ops.mul(x, ops.exp(y))
    fd.add_output(ops.max(product, dims=[1]))
    fd.add_output(ops.neg(ops.sum(product, dims=[0])))
    fd.add_output(ops.sum(ops.mul(x, x), dims=[0]))


def slice_of_totals(fd, ops):
    fd.add_output(ops.neg(ops.slice(ops.sum(tensor(fd, 40, 24), dims=[1]), [3], [40])))


# Definitions, and the rules that nvFuser would have to lift for one kernel.
OPEN = {
    norm_with_rope: {"index_input"}, group_norm: {"reshape_mixes"}, cross_entropy: {"index_input"},
    rows_gathered: {"index_input"}, gathered_elements: {"evaluated_only", "index_input", "input_not_covered"},
    sums_over_both_axes: {"pattern_mismatch"}, slice_of_totals: {"index_input"},
}


def defined(body):
    with FusionDefinition() as fd:
        body(fd, fd.ops)
    return fd


def arrays(fd):
    rng = np.random.default_rng(7)
    return [
        rng.integers(0, 5, t.shape) if t.dtype is DataType.Int else rng.standard_normal(t.shape).astype(np.float32)
        for t in fd.fusion.tensor_inputs
    ]


def softmax_of_columns(fd, ops):
    e = ops.exp(tensor(fd, 4096, 1024))
    fd.add_output(ops.div(e, ops.sum(e, dims=[0], keepdim=True)))


@pytest.mark.parametrize(("strategy", "options"), [
    ("bottom_up", None), ("fastest", fl.SegmenterOptions(search_calls=0)),  # a search without time
])
@pytest.mark.parametrize(("op", "rows"), [("gather", 9), ("gather", 5), ("take_along_axis", 9)])
def test_a_gather_alone_is_a_kernel_where_rules_are_lifted(op, rows, strategy, options):
    with FusionDefinition() as fd:
        x, index = tensor(fd, 9, 16), tensor(fd, rows, 4, dtype=DataType.Int)
        fd.add_output(getattr(fd.ops, op)(x, index, 1))
    given = arrays(fd)
    (closed,) = fl.segment(fd, given, strategy=strategy, schedulers=fl.SCHEDULERS).segments
    assert closed.scheduler is SchedulerType.EXPR_EVAL
    plan = fl.segment(fd, given, strategy=strategy, schedulers=fl.OPEN_SCHEDULERS, options=options)
    assert [part.scheduler for part in plan.segments if part.exprs[0].op.name == op] == [SchedulerType.POINTWISE]
    for target in TARGETS:
        np.testing.assert_array_equal(lock_step(plan, given, target)[0], evaluate(plan.fusion, given)[0])


@pytest.mark.parametrize("body", OPEN, ids=lambda body: body.__name__)
def test_one_kernel_where_nvfuser_makes_several(body):
    fd = defined(body)
    given = arrays(fd)
    assert len(fl.segment(fd, given).segments) > 1
    plan = fl.segment(fd, given, schedulers=fl.OPEN_SCHEDULERS)
    (segment,) = plan.segments
    assert set(segment.beyond) == OPEN[body]
    wanted = evaluate(plan.fusion, given)
    for target in TARGETS:
        for got, right in zip(lock_step(plan, given, target), wanted, strict=True):
            np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-5)


FEW = replace(H200, name="two multiprocessors", sms=2)  # few blocks, which write few partial column sums


@pytest.mark.parametrize("body", [sums_of_both_kinds, moments_of_both_kinds], ids=lambda body: body.__name__)
def test_rows_and_columns_are_one_walk_though_no_row_is_kept(body):
    fd = defined(body)
    given = arrays(fd)
    for asked, accepted in ((fl.SCHEDULERS, False), (fl.OPEN_SCHEDULERS, True)):
        plan = fl.segment(fd, given, strategy=together, schedulers=asked, target=FEW)
        assert (plan.segments[0].scheduler is SchedulerType.INNER_OUTER_PERSISTENT) == accepted
    assert plan.segments[0].beyond == ("no_persistent_buffer",)
    assert fl.segment(fd, given, strategy=together, schedulers=fl.OPEN_SCHEDULERS).segments[0].scheduler is None
    for target in TARGETS:
        for got, right in zip(lock_step(plan, given, target), evaluate(plan.fusion, given), strict=True):
            np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-4)


def together(fusion, oracle):
    """All expressions as one segment."""
    return [[expr.name for expr in fusion.tensor_exprs]]


def test_the_fastest_plan_reads_rows_and_columns_once():
    with FusionDefinition() as fd:
        x = tensor(fd, 16384, 8192, dtype=DataType.BFloat16)
        wide = fd.ops.cast(x, dtype=DataType.Float)
        for dim in (0, 1):
            fd.add_output(fd.ops.sum(wide, dims=[dim]))
    plan = fl.segment(fd, strategy="fastest")
    assert [segment.scheduler for segment in plan.segments] == [SchedulerType.INNER_OUTER_PERSISTENT]
    assert plan.predicted_time().seconds < 0.85 * fl.segment(fd).predicted_time().seconds


def test_random_fusions_have_right_kernels():
    found = 0
    for index in range(share(400)):
        checked = Checked(generate(Seeded(9, index), 8))
        plan = fl.segment(checked.fd, list(checked.inputs), schedulers=fl.OPEN_SCHEDULERS)
        if any(segment.beyond for segment in plan.segments):
            found += 1
            for target in TARGETS:
                checked._compare(lock_step(plan, checked.inputs, target), checked.wanted, f"open kernels on {target}")
    assert found


def test_what_nvfuser_accepts_is_unchanged():
    kept = 0
    for name in fl.examples.names():
        fd, inputs = fl.example(name, "full")
        plan = fl.segment(fd, inputs)
        if len(plan.segments) == 1:
            kept += 1
            assert fl.segment(fd, inputs, schedulers=fl.OPEN_SCHEDULERS).segmented.key == plan.segmented.key
    assert kept


def test_phases_that_read_an_input_again_are_not_one_kernel():
    plan = fl.segment(defined(softmax_of_columns), schedulers=fl.OPEN_SCHEDULERS)
    (why,) = plan.boundaries()
    assert "read_again" in {v.code for v in why.verdicts}
    assert not any(s.beyond for s in plan.segments)


def test_a_kernel_that_would_move_too_much_is_known_before_it_is_written():
    """The verdicts equal those of complete lowering, although most kernels are not lowered completely."""
    asked = ended = 0
    for seed, body in enumerate((softmax_of_columns, norm_with_rope, None, None)):
        fd = irregular(seed, 9, 256, 128) if body is None else defined(body)
        fusion = fl.segment(fd).fusion
        for first in range(0, len(fusion.tensor_exprs), 2):
            group = candidate(fusion, fusion.tensor_exprs[first:]).narrowed
            try:
                whole = bytes_moved(lower(group, SchedulerType.REDUCTION, "cuda", "k", {}))
            except CodegenError:
                continue
            least = sum(tv.nbytes for tv in (*group.tensor_inputs, *group.outputs))
            for most in (least, least + least // 8, whole):
                asked += 1
                request = KernelRequest(fusion=group, scheduler=SchedulerType.REDUCTION, target="cuda")
                kernel = lower_within(request, most)
                if isinstance(kernel, MovesMore):
                    ended += 1
                    assert most < kernel.moved <= whole
                else:
                    assert bytes_moved(kernel) == whole
    assert 0 < ended < asked


def test_only_the_rules_that_are_lifted_are_broken():
    fd = defined(norm_with_rope)
    assert len(fl.segment(fd, schedulers=with_lifted(ReasonCode.RESHAPE_MIXES)).segments) == 2
    assert len(fl.segment(fd, schedulers=with_lifted(ReasonCode.INDEX_INPUT)).segments) == 1


def test_a_plan_without_a_rule_is_written_as_code():
    plan = fl.segment(defined(norm_with_rope), schedulers=fl.without_rules("index_input"))
    assert len(plan.segments) == 1
    assert "schedulers=fl.without_rules('index_input')" in plan.to_python()
    assert made_by(plan.to_python()) == plan
    both = fl.without_rules("reshape_mixes", "index_input")
    assert both == fl.without_rules("index_input", "reshape_mixes") == with_lifted(
        *(code for code in LIFTABLE if code.value in {"index_input", "reshape_mixes"}),
    )
    assert fl.without_rules(*(code.value for code in LIFTABLE)) == tuple(fl.OPEN_SCHEDULERS)
    for wrong, said in ((("cycle",), "the rule 'cycle' cannot be lifted; choose"), ((), "no rule is given")):
        with pytest.raises(InputError, match=said):
            fl.without_rules(*wrong)


def test_acceptances_name_their_rules_wherever_a_plan_goes():
    fd = defined(norm_with_rope)
    plan = fl.segment(fd, schedulers=fl.OPEN_SCHEDULERS)
    (whole,) = [a for a in plan.decisions if a.accepted]
    assert whole.text == "accepted as inner_persistent, beyond nvFuser's rules index_input"
    read = DecisionLog.from_json(plan.decisions.to_json())
    assert list(read) == list(plan.decisions)
    assert [a.verdicts[-1].beyond for a in read if a.accepted] == [("index_input",)]
    assert "S0 goes beyond nvFuser's rules index_input" in explain_text(plan)
    data = explain_data(plan)
    assert data["segments"][0]["beyond"] == ["index_input"]
    assert data["log"]["attempts"][-1]["verdicts"][-1]["beyond"] == ["index_input"]
    assert "schedulers=fl.OPEN_SCHEDULERS" in plan.to_python("nvfuser_direct").splitlines()[0]
    names = {}
    exec(plan.to_python(), names)
    assert names["plan"].hash == plan.hash != fl.segment(fd).hash


def test_a_set_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register(SchedulerSet("OPEN_SCHEDULERS", ()))
    with pytest.raises(ValueError, match="registered already"):
        register(SchedulerSet("OTHERS", fl.OPEN_SCHEDULERS.schedulers))


def sums_of_a_row_and_its_repetitions(fd, ops):
    """Its outputs are two reductions that no nest of loops has in common, and their operand."""
    row, x = tensor(fd, 16), tensor(fd, 8, 5, 16)
    repeated = ops.expand(ops.broadcast(ops.exp(row), [True, True, False]), [8, 5, 16])
    for out in (repeated, ops.sum(repeated, [2]), ops.sum(ops.mul(repeated, x), [2])):
        fd.add_output(out)


def test_a_segment_that_cannot_be_divided_any_further_is_refused():
    fd = defined(sums_of_a_row_and_its_repetitions)
    plan = fl.segment(fd, strategy="fastest")
    assert len(plan.segments) > 1
    given = arrays(fd)
    for a, b in zip(evaluate(plan.fusion, given), plan.run(given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
