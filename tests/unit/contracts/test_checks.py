"""The contracts on definitions: what they return, and what their errors say."""

import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.contracts.call import Call
from fuser_lab.contracts.compiled import compile_call
from fuser_lab.errors import ArgumentTypeError, InputError


@pytest.fixture(scope="module")
def apart():
    """A sum whose result is broadcast and read with another tensor: two kernels for nvFuser."""
    return fl.segment(*fl.example("sum_broadcast_add"))


def test_a_function_in_one_kernel_passes_and_its_partition_is_returned():
    fd, inputs = fl.example("softmax")
    partition = fl.one_kernel(fd, inputs, compiler="nvfuser")
    assert (partition.kernels, partition.bytes_over_bound) == (1, 1)
    assert partition.together("exp", "sum")


def test_the_error_has_the_ops_the_reason_the_costs_and_the_smallest_function(apart):
    with pytest.raises(fl.FusionContractError) as raised:
        fl.one_kernel(apart, compiler="nvfuser")
    text = str(raised.value)
    for part in (
        "2 kernels under nvfuser", "parted: sum | add", "reduction: add expands broadcast, a result of the reduction",
        "costs: 2.05 kB", "the smallest function that still parts has 3 ops of 3", "next: ",
    ):
        assert part in text
    fd, inputs = fl.load_repro(raised.value.script)
    assert len(fl.segment(fd, inputs).segments) == 2
    assert raised.value.partition.kernels == 2
    assert raised.value.plans == (apart,)


def test_a_segment_that_only_makes_views_is_not_a_kernel():
    with FusionDefinition() as fd:
        y = fd.ops.neg(fd.define_tensor([64, 32], contiguity=True))
        fd.add_output(fd.ops.sum(y, [1]))
        fd.add_output(fd.ops.reshape(y, [2048]))
    assert len(fl.segment(fd).segments) == 2
    assert fl.one_kernel(fd, compiler="nvfuser").together("neg", "sum")


def test_without_time_no_smaller_function_is_searched(apart):
    with pytest.raises(fl.FusionContractError) as raised:
        fl.one_kernel(apart, compiler="nvfuser", shrink_seconds=0)
    assert raised.value.script == ""


@pytest.mark.parametrize("ops", [["sum", "add"], ["broadcast", "add"]])
def test_ops_in_two_kernels_break_the_contract(apart, ops):
    with pytest.raises(fl.FusionContractError, match="are not in one kernel"):
        fl.same_kernel(apart, ops=ops, compiler="nvfuser", shrink_seconds=0)


def test_ops_in_one_kernel_keep_the_contract(apart):
    assert fl.same_kernel(apart, ops=["sum", "broadcast"], compiler="nvfuser").kernels == 2


def test_a_text_that_selects_nothing_is_refused_with_the_choices(apart):
    with pytest.raises(InputError, match="'tanh', which selects no op of the function; it has sum, broadcast, add"):
        fl.same_kernel(apart, ops=["sum", "tanh"], compiler="nvfuser")


def test_limits_are_kept_or_exceeded(apart):
    assert fl.at_most(apart, kernels=2, bytes_over_bound=1.01, compiler="nvfuser").kernels == 2
    with pytest.raises(fl.FusionContractError, match="the contract allows 1"):
        fl.at_most(apart, kernels=1, compiler="nvfuser", shrink_seconds=0)
    fd, inputs = fl.example("softmax")
    with pytest.raises(fl.FusionContractError, match="times the least bytes, and the contract allows 1"):
        fl.at_most(fd, inputs, bytes_over_bound=1, compiler="fuser_lab", strategy="unfused", shrink_seconds=0)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda plan: fl.at_most(plan, compiler="nvfuser"), InputError, "give kernels, bytes_over_bound, or both"),
    (lambda plan: fl.one_kernel(plan, compiler="gcc"), InputError, "compiler must be one of 'inductor', 'nvfuser'"),
    (lambda plan: fl.one_kernel(plan, compiler="nvfuser", device="A100"), ArgumentTypeError, "which is cut already"),
    (lambda plan: fl.one_kernel(plan, compiler="nvfuser", backward=True), ArgumentTypeError, "backward is an argument"),
    (lambda plan: fl.one_kernel(plan, compiler="inductor"), Exception, "must be a function or a module|needs torch"),
    (lambda plan: fl.same_kernel(plan, ops="sum", compiler="nvfuser"), ArgumentTypeError, "a list of ops"),
])
def test_refusals(apart, call, error, message):
    with pytest.raises(error, match=message):
        call(apart)


def test_another_device_of_a_family_gives_the_same_partition():
    fd, inputs = fl.example("layer_norm")
    first, second = (
        compile_call(Call(who="lock", function=fd, inputs=(inputs,), compiler="nvfuser", device=device)).partition
        for device in ("H100", "H200")
    )
    assert (first.device, second.device) == ("H100", "H200")
    assert first.graphs == second.graphs


def _rows(order):
    """Two independent chains, recorded in one order or the other."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 128], contiguity=True)
        if order == "ab":
            a = fd.ops.exp(fd.ops.sin(x))
            b = fd.ops.exp(fd.ops.cos(x))
        else:
            b = fd.ops.exp(fd.ops.cos(x))
            a = fd.ops.exp(fd.ops.sin(x))
        fd.add_output(fd.ops.sub(a, b))
    return fd


def test_names_of_ops_do_not_depend_on_the_order_of_independent_lines():
    first, second = (
        compile_call(Call(who="lock", function=_rows(order), compiler="nvfuser")).partition for order in ("ab", "ba")
    )
    assert list(first.graphs[0].ops) == ["sin", "exp", "cos", "exp#2", "sub"]
    assert first.graphs[0].ops == second.graphs[0].ops
