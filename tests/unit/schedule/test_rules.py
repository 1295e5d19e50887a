"""Both sides of every rule, and small fusions that produce reasons, whose sentences are readable."""

import string

import pytest
from unit.schedule.asking import ask, codes, fusion_of, tensor

from fuser_lab.cost.reasons import OURS, ReasonCode
from fuser_lab.cost.verdict import SchedulerType as Type
from fuser_lab.dtypes import DataType
from fuser_lab.passes import MarkAliases
from fuser_lab.schedule.registry import SCHEDULERS, SchedulerRegistry
from fuser_lab.segmentation.oracle import Candidate
from tests.pages.agreement import RULES as FOLLOWED
from tests.pages.agreement import name_of
from tests.pages.sides import SIDES, is_in_log, verdict_of

RULES = {}


def rule(scheduler, code):
    def add(body):
        RULES[f"{body.__name__}-{scheduler.value}"] = (body, scheduler, code)
        return body

    return add


@rule(Type.POINTWISE, "has_reduction")
def reduced(fd):
    x = tensor(fd, 8, 16)
    fd.add_output(fd.ops.div(x, fd.ops.sum(x, dims=[0], keepdim=True)))


@rule(Type.REDUCTION, "pattern_mismatch")
def both_ways(fd):
    x = tensor(fd, 8, 16)
    fd.add_output(fd.ops.sum(x, dims=[0]))
    fd.add_output(fd.ops.sum(x, dims=[1]))


@rule(Type.REDUCTION, "expanded_after_reduction")
def repeated_sums(fd):
    fd.add_output(fd.ops.expand(fd.ops.sum(tensor(fd, 8, 16), dims=[1], keepdim=True), [8, 5]))


@rule(Type.REDUCTION, "reshape_mixes")
def split_and_merged(fd):
    x = fd.ops.reshape(fd.ops.neg(tensor(fd, 8, 4)), new_shape=[4, 8])
    fd.add_output(fd.ops.sum(x, dims=[1]))


@rule(Type.REDUCTION, "reshape_mixes")
def kept_on_both_sides(fd):
    """Axes around the reduced one, which its loops merge separately, are made of one."""
    x = fd.ops.broadcast(fd.ops.reshape(fd.ops.neg(tensor(fd, 2, 12)), new_shape=[4, 6]), [False, True, False])
    fd.add_output(fd.ops.sum(fd.ops.mul(x, tensor(fd, 4, 8, 6)), dims=[1]))


@rule(Type.TRANSPOSE, "transposed_in_tiles")
def transposed_large(fd):
    fd.add_output(fd.ops.neg(fd.ops.permute(tensor(fd, 512, 512), dims=[1, 0])))


@rule(Type.TRANSPOSE, "transposed_in_tiles")
def wide_reshaped(fd):
    x = fd.ops.reshape(tensor(fd, 64 * 512, 64), new_shape=[64, 512, 64])
    fd.add_output(fd.ops.neg(fd.ops.permute(x, dims=[2, 1, 0])))


@rule(Type.TRANSPOSE, "one_innermost_axis")
def innermost_axis_merged_as_the_outer_part(fd):
    x = fd.ops.permute(tensor(fd, 64, 512, 64), dims=[2, 1, 0])
    fd.add_output(fd.ops.neg(fd.ops.reshape(x, new_shape=[64 * 512, 64])))


@rule(Type.TRANSPOSE, "one_innermost_axis")
def factors_per_row_are_the_second_group(fd):
    x = fd.ops.add(tensor(fd, 512, 8, 64), fd.ops.permute(tensor(fd, 512, 64, 8), dims=[0, 2, 1]))
    fd.add_output(fd.ops.mul(fd.ops.mul(x, tensor(fd, 512, 1, 1)), tensor(fd, 512, 1, 1)))


@rule(Type.TRANSPOSE, "one_innermost_axis")
def scalar_tensor_beside_a_transpose(fd):
    x = fd.ops.add(tensor(fd, 512, 512), fd.ops.permute(tensor(fd, 512, 512), dims=[1, 0]))
    fd.add_output(fd.ops.mul(x, tensor(fd)))


@rule(Type.TRANSPOSE, "one_innermost_axis")
def gather_beside_a_transpose(fd):
    x = fd.ops.take_along_axis(tensor(fd, 1024, 512), tensor(fd, 512, 512, dtype=DataType.Int), 0)
    fd.add_output(fd.ops.add(x, fd.ops.permute(tensor(fd, 512, 512), dims=[1, 0])))


@rule(Type.TRANSPOSE, "transposed_in_tiles")
def selected_rows_beside_a_transpose(fd):
    x = fd.ops.index_select(tensor(fd, 1024, 512), tensor(fd, 512, dtype=DataType.Int), 0)
    fd.add_output(fd.ops.add(x, fd.ops.permute(tensor(fd, 512, 512), dims=[1, 0])))


@rule(Type.TRANSPOSE, "transposed_in_tiles")
def one_element_beside_a_transpose(fd):
    x = fd.ops.add(tensor(fd, 512, 512), fd.ops.permute(tensor(fd, 512, 512), dims=[1, 0]))
    fd.add_output(fd.ops.mul(x, tensor(fd, 1, 512)))


def column_norm(rows, columns, op="sum", dtype=DataType.Float):
    def body(fd):
        x = tensor(fd, rows, columns, dtype=dtype)
        if op == "welford":
            total = fd.ops.var_mean(x, dims=[0], correction=0, keepdim=True)[1]
        else:
            total = fd.ops.sum(x, dims=[0], keepdim=True)
        fd.add_output(fd.ops.sub(x, total))

    return body


rule(Type.OUTER_PERSISTENT, "columns_fit")(reduced)


@rule(Type.OUTER_PERSISTENT, "columns_across_blocks")
def tall_statistics(fd):
    column_norm(8192, 512, "welford")(fd)


@rule(Type.OUTER_PERSISTENT, "columns_across_blocks")
def many_inputs_with_wide_accesses(fd):
    x = tensor(fd, 8192, 512)
    normed = fd.ops.sub(x, fd.ops.var_mean(x, dims=[0], correction=0, keepdim=True)[1])
    for _ in range(16):
        normed = fd.ops.add(normed, tensor(fd, 512))
    fd.add_output(normed)


@rule(Type.OUTER_PERSISTENT, "broadcast_elsewhere")
def columns_widened_elsewhere(fd):
    x = tensor(fd, 8, 16)
    fd.add_output(fd.ops.div(x, fd.ops.broadcast(fd.ops.sum(x, dims=[0]), is_broadcast_dim=[True, False])))
    fd.add_output(fd.ops.mul(fd.ops.neg(fd.ops.broadcast(fd.ops.sum(x, dims=[0]), is_broadcast_dim=[True, False])),
                             tensor(fd, 5, 16)))


def rows_and_columns(rows, width, dtype=DataType.Float, later=None):
    """A row norm of x, and the column sums of x, with what ``later`` adds."""

    def body(fd):
        x = tensor(fd, rows, width, dtype=dtype)
        total = fd.ops.sum(x, dims=[1], keepdim=True)
        normed = fd.ops.div(x, total)
        columns = fd.ops.sum(x, dims=[0])
        fd.add_output(normed)
        fd.add_output(columns if later is None else later(fd, x, normed, columns))

    return body


@rule(Type.INNER_OUTER_PERSISTENT, "rows_and_sums_fit")
def norm_and_sums_of_what_is_normed(fd):
    rows_and_columns(64, 32, later=lambda fd, x, normed, columns: fd.ops.sum(normed, dims=[0]))(fd)


@rule(Type.INNER_OUTER_PERSISTENT, "connected_besides")
def several_results_of_a_column(fd):
    x = tensor(fd, 64, 32)
    fd.add_output(fd.ops.div(x, fd.ops.sum(x, dims=[1], keepdim=True)))
    for value in fd.ops.var_mean(x, dims=[0]):
        fd.add_output(value)


@rule(Type.INNER_OUTER_PERSISTENT, "rows_and_sums_fit")
def several_results_of_a_row(fd):
    x = tensor(fd, 64, 32)
    _, mean = fd.ops.var_mean(x, dims=[1], keepdim=True)
    fd.add_output(fd.ops.sub(x, mean))
    fd.add_output(fd.ops.sum(fd.ops.sub(x, mean), dims=[0]))


@rule(Type.INNER_OUTER_PERSISTENT, "rows_and_sums_fit")
def narrower_rows_and_sums(fd):
    rows_and_columns(2048, 32768)(fd)


@rule(Type.INNER_OUTER_PERSISTENT, "broadcast_elsewhere")
def rows_widened_elsewhere_behind_a_reshape(fd):
    x = tensor(fd, 3, 31)
    normed = fd.ops.sub(x, fd.ops.sum(x, dims=[1], keepdim=True))
    square = fd.ops.sum(fd.ops.mul(normed, normed), dims=[1])
    fd.add_output(fd.ops.mul(fd.ops.reshape(square, [3, 1]), tensor(fd, 93)))
    fd.add_output(fd.ops.sum(x, dims=[0]))


@rule(Type.POINTWISE, "index_input")
@rule(Type.TRANSPOSE, "index_input")
def looked_up_on_the_way(fd):
    fd.add_output(fd.ops.index_select(fd.ops.neg(tensor(fd, 8, 16)), tensor(fd, 5, dtype=DataType.Int), 0))


@rule(Type.NO_OP, "index_input")
def one_element_on_the_way(fd):
    one = fd.ops.select(fd.ops.add(tensor(fd, 8), tensor(fd, 8)), fd.define_scalar(3, DataType.Int), 0)
    fd.add_output(fd.ops.neg(one))


@rule(Type.INNER_PERSISTENT, "buffer_fits")
def one_of_each_column_normalized(fd):
    row = fd.ops.take_along_axis(tensor(fd, 8, 16), tensor(fd, 1, 16, dtype=DataType.Int), 0)
    fd.add_output(fd.ops.div(row, fd.ops.sum(row, dims=[1], keepdim=True)))


@rule(Type.MATMUL, "no_matmul")
@rule(Type.GREEDY, "no_greedy_op")
@rule(Type.NO_OP, "concrete_output")
@rule(Type.EXPR_EVAL, "not_views")
def no_product(fd):
    both_ways(fd)





@pytest.mark.parametrize(
    "sides",
    [
        pytest.param(sides, id=f"{name.rpartition('.')[2]}-{sides.code.value if sides.code else sides.phase}-{number}")
        for name, several in SIDES.items() for number, sides in enumerate(several)
    ],
)
def test_a_rule_refuses_one_definition_and_not_its_twin(sides):
    if sides.scheduler is None:
        assert is_in_log(sides, refused=True)
        assert not is_in_log(sides, refused=False)
        return
    refusal, verdict = (verdict_of(sides, refused=refused) for refused in (True, False))
    assert not refusal.accepted
    assert refusal.code == sides.code.value, refusal.text
    if sides.later is None:
        assert verdict.accepted, verdict.text
    else:
        assert verdict.code == sides.later.value, verdict.text
    if sides.refused.isdigit() and sides.accepted.isdigit():
        assert abs(int(sides.refused) - int(sides.accepted)) == 1


def test_every_rule_has_a_definition_on_either_side():
    asserted = {(name, sides.code) for name, several in SIDES.items() for sides in several}
    declared = {(name_of(rule), code) for rule in FOLLOWED for code in rule.reasons or (None,)}
    assert declared == asserted


def test_every_reason_of_nvfuser_names_its_lines():
    declared = {code for rule in FOLLOWED for code in rule.reasons}
    assert declared == set(ReasonCode) - OURS
    assert all(0 < first <= last for first, last in (rule.lines for rule in FOLLOWED))


@pytest.mark.parametrize("name", sorted(RULES))
def test_rule(name):
    body, scheduler, code = RULES[name]
    answer = ask(fusion_of(body))
    verdict = next((v for v in answer.verdicts if v.scheduler is scheduler), None)
    assert verdict is not None, answer.text
    assert verdict.code == code, verdict.text
    assert not set("{}") & set(verdict.text)


def test_every_sentence_names_its_parameters_and_no_code_lacks_one():
    for code in ReasonCode:
        assert code.text
        assert ReasonCode(code.value) is code
        fields = [field for _, field, _, _ in string.Formatter().parse(code.text) if field is not None]
        assert all(field.isidentifier() for field in fields)


def test_sums_of_equal_sizes_are_refused_for_what_tells_their_axes_apart():
    def sums(*others):
        def body(fd):
            x, y = tensor(fd, 8, 8), tensor(fd, 8, 8)
            first = fd.ops.sum(x, dims=[1])
            fd.add_output(first)
            column = fd.ops.broadcast(first, [False, True])
            operands = {"x": x, "y": fd.ops.mul(y, column), "turned": fd.ops.permute(x, dims=[1, 0])}
            for name, *axes in others:
                fd.add_output(fd.ops.sum(operands[name], dims=axes))

        texts = [v.text for v in ask(fusion_of(body)).verdicts if v.code == "pattern_mismatch"]
        return {text.partition("all reductions of a kernel reduce the same axes")[2] for text in texts}

    assert sums(("x", 0)) == {", but T2 reduces [1] of 2 axes and T6 reduces [0] of 2 axes"}
    assert sums(("y", 1)) == {
        ", which equal sizes do not prove: no op of the candidate relates all axes of T2 to those of T6",
    }
    assert sums(("turned", 0)) == {" in the same order"}
    assert sums(("x", 0, 1)) == {""}


def chosen(body, names=None):
    return ask(fusion_of(body), names).chosen


def test_views_are_evaluated_where_their_layout_is_settled():
    def body(fd):
        x = fd.ops.permute(tensor(fd, 2, 3, 4), dims=[1, 0, 2])
        x = fd.ops.slice(x, start_indices=[0, 0, 1], end_indices=[3, 2, 3])
        fd.add_output(fd.ops.segment_set(fd.ops.broadcast(x, is_broadcast_dim=[True, False, False, False])))

    fusion = fusion_of(body)
    assert ask(fusion).chosen is Type.RESIZE
    assert ask(MarkAliases().run(fusion)).chosen is Type.EXPR_EVAL


def test_a_reshape_that_moves_elements_is_pointwise():
    def body(fd):
        fd.add_output(fd.ops.reshape(fd.ops.permute(tensor(fd, 2, 3), dims=[1, 0]), new_shape=[6]))

    assert chosen(body) is Type.POINTWISE


def test_one_element_of_an_axis_needs_no_loop_over_it():
    def body(fd):
        x = fd.ops.slice(tensor(fd, 4, 3, 8), start_indices=[0, 1, 0], end_indices=[4, 2, 8])
        fd.add_output(fd.ops.neg(fd.ops.reshape(x, new_shape=[4, 8])))

    assert chosen(body) is Type.POINTWISE


def test_no_loop_runs_over_an_axis_that_is_looked_up():
    def rows(fd):
        fd.add_output(fd.ops.exp(fd.ops.index_select(tensor(fd, 80, 16), tensor(fd, 5, dtype=DataType.Int), 0)))

    def one(fd):
        fd.add_output(fd.ops.exp(fd.ops.select(tensor(fd, 8, 16, 4), fd.define_scalar(3, DataType.Int), 1)))

    def along(fd):
        picked = fd.ops.take_along_axis(tensor(fd, 8, 16), tensor(fd, 8, 1, dtype=DataType.Int), 1)
        fd.add_output(fd.ops.mul(picked, tensor(fd, 8, 1)))

    def summed(fd):
        picked = fd.ops.take_along_axis(tensor(fd, 8, 16), tensor(fd, 8, 40, dtype=DataType.Int), 1)
        fd.add_output(fd.ops.sum(picked, dims=[1]))

    assert [chosen(body) for body in (rows, one, along)] == [Type.POINTWISE] * 3
    assert chosen(summed) is Type.REDUCTION


@pytest.mark.parametrize("op", ["gather", "embedding_fwd", "scatter", "cumsum", "argsort", "topk"])
def test_what_no_kernel_holds_is_a_library_call(op):
    def body(fd):
        x, places = tensor(fd, 8, 16), tensor(fd, 8, 4, dtype=DataType.Int)
        results = {
            "gather": lambda: fd.ops.gather(x, places, 1),
            "embedding_fwd": lambda: fd.ops.embedding_fwd(places, x),
            "scatter": lambda: fd.ops.scatter(x, places, x, 1),
            "cumsum": lambda: fd.ops.cumsum(x, 1),
            "argsort": lambda: fd.ops.argsort(x, 1),
            "topk": lambda: fd.ops.topk(x, fd.define_scalar(3, DataType.Int))[0],
        }[op]()
        fd.add_output(results)

    answer = ask(fusion_of(body))
    assert answer.chosen is Type.EXPR_EVAL
    assert answer.verdicts[-1].code == "library_call"


def test_memory_promotion_is_for_take_along_axis():
    def along(fd):
        x = fd.ops.neg(fd.ops.add(tensor(fd, 8, 16), tensor(fd, 8, 16)))
        fd.add_output(fd.ops.take_along_axis(x, tensor(fd, 8, 4, dtype=DataType.Int), 1))

    registry = SchedulerRegistry(memory_promotion=True)
    assert ask(fusion_of(along)).chosen is None
    assert ask(fusion_of(along), None, registry).chosen is Type.POINTWISE
    assert ask(fusion_of(looked_up_on_the_way), None, registry).chosen is None


def test_a_scale_per_row_is_a_transpose_for_resize_only():
    def body(fd):
        x = fd.ops.slice(fd.ops.neg(tensor(fd, 16, 8)), start_indices=[0, 2], end_indices=[16, 6])
        fd.add_output(fd.ops.mul(x, fd.ops.mul(tensor(fd, 16, 1), fd.ops.broadcast(tensor(fd, 16), [False, True]))))

    answer = codes(ask(fusion_of(body)))
    assert (answer[Type.RESIZE], answer[Type.TRANSPOSE]) == ("transpose_like", "index_input")


def test_a_product_alone_is_a_library_call():
    answer = ask(fusion_of(lambda fd: fd.add_output(fd.ops.matmul(tensor(fd, 8, 4), tensor(fd, 4, 6)))))
    assert answer.chosen is Type.EXPR_EVAL
    assert answer.verdicts[-1].code == "library_call"


def test_what_nothing_takes_is_evaluated_alone():
    def body(fd):
        x = tensor(fd, 64, 64)
        fd.add_output(fd.ops.add(x, fd.ops.permute(x, dims=[1, 0])))

    fusion = fusion_of(body)
    registry = SchedulerRegistry(disabled=frozenset({Type.POINTWISE}))
    answer = ask(fusion, [fusion.exprs[-1].name], registry)
    assert answer.chosen is Type.EXPR_EVAL
    assert answer.verdicts[-1].code == "evaluated_alone"


def test_outer_reductions_may_read_vectors_afterwards():
    def body(fd):
        fd.add_output(fd.ops.add(fd.ops.sum(tensor(fd, 64, 16), dims=[0]), tensor(fd, 16)))

    assert chosen(body) is Type.REDUCTION


def test_several_reductions_of_one_kind_share_a_kernel():
    def body(fd):
        x = tensor(fd, 64, 16)
        fd.add_output(fd.ops.sum(x, dims=[1]))
        fd.add_output(fd.ops.max(fd.ops.neg(x), dims=[1]))

    assert chosen(body) is Type.REDUCTION


def test_tensors_without_elements():
    def empty(fd):
        fd.add_output(fd.ops.add(tensor(fd, 0, 5), 1.0))

    def kept_rows(fd):
        fd.add_output(fd.ops.neg(fd.ops.sum(tensor(fd, 5, 0), dims=[1])))

    def softmax(fd):
        x = tensor(fd, 5, 0)
        fd.add_output(fd.ops.div(x, fd.ops.sum(x, dims=[1], keepdim=True)))

    def reshaped(fd):
        x = fd.ops.reshape(tensor(fd, 0, 6), new_shape=[2, 0, 3])
        fd.add_output(fd.ops.neg(fd.ops.sum(x, dims=[1])))

    assert chosen(empty) is Type.NO_OP
    assert chosen(kept_rows) is Type.POINTWISE  # an empty sum is a full
    assert chosen(softmax) is Type.NO_OP
    fusion = fusion_of(reshaped)
    assert all(ask(fusion, [expr.name]).chosen is not None for expr in fusion.exprs)


def test_scalars_are_no_op_and_inputs_are_evaluated():
    assert chosen(lambda fd: fd.add_output(fd.ops.add(tensor(fd), tensor(fd)))) is Type.NO_OP
    fusion = fusion_of(lambda fd: fd.add_output(tensor(fd, 4)))
    assert SchedulerRegistry().ask(Candidate(fusion, (), (), ())).chosen is Type.EXPR_EVAL


def test_answers_are_remembered():
    registry = SchedulerRegistry()
    fusion = fusion_of(both_ways)
    assert ask(fusion, None, registry) is ask(fusion, None, registry)


def test_old_fusions_are_forgotten():
    registry = SchedulerRegistry()
    for _ in range(20):
        ask(fusion_of(both_ways), None, registry)
    assert len(registry._memos) <= 8


def test_codes_are_in_nvfusers_order():
    assert list(codes(ask(fusion_of(both_ways)))) == [scheduler.type for scheduler in SCHEDULERS]
