"""Well-known fusions: the scheduler that accepts each as a whole, and the refusals of the others."""

from dataclasses import replace

import pytest
from unit.schedule.asking import BY_NAME, ask, case_fusion, codes, example, fusion_of, known_cases, tensor

from fuser_lab.cost.device import A100, H200
from fuser_lab.cost.verdict import SchedulerType as Type
from fuser_lab.errors import UnsupportedError
from fuser_lab.schedule.registry import SCHEDULERS, SchedulerRegistry

# Their counts hold only after a rewrite before segmentation, or with one of its options.
OTHERWISE = {
    "copy_input_into_input": Type.EXPR_EVAL,  # a pass inserts the copy
    "repeat_as_cat": Type.RESIZE,  # a pass turns the cat of one tensor with itself into a reshape
    "repeat_two_axes": Type.RESIZE,
    "slices_pointwise_only": Type.RESIZE,  # unless Resize is switched off
}
FORWARD = ("softmax", "layer_norm", "rms_norm", "softmax_backward", "dropout_add_layer_norm")


@pytest.mark.parametrize("name", ["bias_gelu", "silu_mul"])
def test_elementwise_is_pointwise(name):
    assert ask(example(name)).chosen is Type.POINTWISE


@pytest.mark.parametrize("size", ["full", "small"])
@pytest.mark.parametrize("name", FORWARD)
def test_normalizations_keep_their_rows(name, size):
    answer = ask(example(name, size))
    assert answer.chosen is Type.INNER_PERSISTENT
    assert "bytes of each row stay in registers" in answer.verdicts[-1].text


@pytest.mark.parametrize("name", ["layer_norm_backward", "rms_norm_backward"])
def test_backward_of_normalizations_keeps_rows_and_adds_up_columns(name):
    answer = ask(example(name))
    assert codes(answer)[Type.INNER_PERSISTENT] == "reductions_of_both_kinds"
    assert answer.chosen is Type.INNER_OUTER_PERSISTENT
    assert "bytes of column sums stay on chip" in answer.verdicts[-1].text


def test_sum_broadcast_add_is_refused_with_names_and_numbers():
    fusion = example("sum_broadcast_add")
    answer = ask(fusion)
    assert answer.chosen is None
    assert len(answer.verdicts) == len(SCHEDULERS)
    text = {verdict.scheduler: verdict.text for verdict in answer.verdicts}
    assert text[Type.REDUCTION] == (
        "T4 expands T3, a result of the reduction, back to 8192 elements: that needs a second walk along the reduced "
        "axis, and a reduction kernel makes one"
    )
    assert text[Type.POINTWISE] == (
        "T2 is a reduction (sum), and threads of this scheduler do not combine their elements"
    )
    assert text[Type.INNER_PERSISTENT].startswith("made for fusions that need a tensor again after the reduction")
    assert ask(fusion, ["T2", "T3"]).chosen is Type.REDUCTION
    assert ask(fusion, ["T4"]).chosen is Type.POINTWISE


def test_rotated_halves_of_rope_are_a_resize():
    fusion = example("llama3_rope_backward")
    turned = [f"T{number}" for number in range(4, 29)]
    assert ask(fusion, turned).chosen is Type.RESIZE
    without_tables = [f"T{number}" for number in (12, 13, 14, 15, 16, 17, 18, 19, 20, 24, 25, 26, 27, 28)]
    assert ask(fusion, without_tables).chosen is Type.RESIZE


def test_known_one_segment_cases():
    held = []
    for case in known_cases():
        wanted = case["schedulers"] or case["schedulers_derived"]
        if case["segments"] != 1 or case["relation"] != "==" or not wanted:
            continue
        expected = OTHERWISE.get(case["id"], BY_NAME[wanted[0].lower()])
        try:
            fusion = case_fusion(case)
        except UnsupportedError:
            continue
        registry = SchedulerRegistry(fuse_matmul="fuse_matmul" in case["options"].get("enable", ()))
        assert ask(fusion, registry=registry).chosen is expected, case["id"]
        held.append(case["id"])
    assert len(held) >= 26


def test_column_sums_are_a_reduction():
    def body(fd):
        fd.add_output(fd.ops.sum(tensor(fd, 4096, 512), dims=[0]))

    assert ask(fusion_of(body)).chosen is Type.REDUCTION


def test_x_plus_its_transpose_is_refused_for_good():
    def body(fd):
        x = tensor(fd, 64, 64)
        fd.add_output(fd.ops.add(x, fd.ops.permute(x, dims=[1, 0])))

    answer = ask(fusion_of(body))
    assert answer.chosen is None
    assert codes(answer)[Type.POINTWISE] == "self_mapped"
    assert all(verdict.monotone for verdict in answer.verdicts)


def test_rows_that_need_a_cluster_and_rows_that_do_not_fit():
    def norm(width, rows=64):
        def body(fd):
            x = tensor(fd, rows, width)
            total = fd.ops.broadcast(fd.ops.sum(x, dims=[1]), is_broadcast_dim=[False, True])
            fd.add_output(fd.ops.div(x, total))

        return fusion_of(body)

    assert codes(ask(norm(32768)))[Type.INNER_PERSISTENT] == "buffer_fits"
    assert codes(ask(norm(65536)))[Type.INNER_PERSISTENT] == "buffer_needs_cluster"
    assert codes(ask(norm(262144)))[Type.INNER_PERSISTENT] == "buffer_needs_cluster"
    assert codes(ask(norm(524288)))[Type.INNER_PERSISTENT] == "buffer_needs_cluster"
    assert codes(ask(norm(524289)))[Type.INNER_PERSISTENT] == "buffer_too_large"
    # Consumer GPUs launch no clusters of more than the portable size.
    consumer = SchedulerRegistry(replace(H200, cc=(12, 0)))
    assert codes(ask(norm(262144), registry=consumer))[Type.INNER_PERSISTENT] == "buffer_needs_cluster"
    assert codes(ask(norm(262145), registry=consumer))[Type.INNER_PERSISTENT] == "buffer_too_large"
    assert codes(ask(norm(65536), registry=SchedulerRegistry(A100)))[Type.INNER_PERSISTENT] == "buffer_too_large"
    assert codes(ask(norm(8192, rows=H200.sms // 8 - 1)))[Type.INNER_PERSISTENT] == "not_enough_blocks"
    assert ask(norm(8192, rows=H200.sms // 8)).chosen is Type.INNER_PERSISTENT


def test_a_switched_off_scheduler_says_so():
    registry = SchedulerRegistry(disabled=frozenset({Type.POINTWISE}))
    answer = ask(example("silu_mul"), registry=registry)
    assert answer.chosen is None
    assert codes(answer)[Type.POINTWISE] == "disabled"
