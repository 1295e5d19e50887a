"""Proposed layouts against the answers of nvFuser's test_allocation_order_inference.cpp, and what differs on purpose.

Orders are positions of axes, slowest in memory first.
"""

import pytest

from fuser_lab.analysis.layout import is_row_major, propose_orders, with_order
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.ir import allocation_of, stride_order_of
from fuser_lab.passes import AllocationDomain
from tests.unit.builders import record


def ranks(memory):
    return [len(memory) - 1 - memory.index(axis) for axis in range(len(memory))]


def proposal(body, name=None, **options):
    fusion = record(body)
    target = fusion.tensors[name] if name else fusion.outputs[-1]
    return propose_orders(fusion, [target], **options).get(target)


def proposed(body, name=None, **options):
    return proposal(body, name, **options).order


def test_ranks_and_positions_are_inverse():
    assert allocation_of([3, 0, 2, 1]) == (0, 2, 3, 1), "channels last"
    assert allocation_of([3, 2, 1, 0]) == (0, 1, 2, 3)
    assert stride_order_of((0, 2, 3, 1)) == (3, 0, 2, 1)
    assert stride_order_of(allocation_of([1, 3, 0, 2])) == (1, 3, 0, 2)
    assert stride_order_of(()) == ()


def test_channels_last_through_a_relu():
    def body(fd):
        fd.add_output(fd.ops.relu(fd.define_tensor([2, 3, 4, 5], stride_order=ranks([0, 2, 3, 1]))))

    hint = proposal(body)
    assert (hint.order, hint.origin, hint.strength) == ((0, 2, 3, 1), "T0", 4)


def test_channels_last_with_new_axes():
    def body(fd):
        x = fd.define_tensor([2, 3, 4, 5], stride_order=ranks([0, 2, 3, 1]))
        fd.add_output(fd.ops.broadcast(x, [c == "T" for c in "TFFTFTFT"]))

    assert proposed(body) == (0, 3, 5, 7, 1, 4, 6, 2)


def test_the_input_with_all_axes_decides():
    def body(fd):
        few = fd.define_tensor([2, 1, 1, 5], stride_order=ranks([0, 2, 1, 3]))
        every = fd.define_tensor([2, 3, 4, 5], stride_order=ranks([1, 0, 2, 3]))
        fd.add_output(fd.ops.add(few, every))

    assert proposed(body) == (1, 0, 2, 3)


def test_an_axis_that_the_reference_lacks_comes_first():
    def body(fd):
        most = fd.define_tensor([1, 3, 4, 5], stride_order=ranks([3, 2, 0, 1]))
        fd.add_output(fd.ops.add(most, fd.define_tensor([7, 1, 1, 1])))

    assert proposed(body) == (0, 3, 2, 1)


@pytest.mark.parametrize("past", [False, True])
def test_sums_keep_the_order_of_what_is_left(past):
    def body(fd, times):
        x = fd.define_tensor([2, 3, 4, 5], stride_order=ranks([1, 2, 3, 0]))
        for _ in range(times):
            x = fd.ops.sum(x, [1])
        fd.add_output(x)

    # With the reduced axes in place these are nvFuser's 2, 1, 3, 0 and 2, 1, 0.
    assert proposed(lambda fd: body(fd, 1), past_reductions=past) == (1, 2, 0)
    assert proposed(lambda fd: body(fd, 2), past_reductions=past) == (1, 0)


def test_inputs_that_lie_differently_decide_nothing_until_a_larger_one_does():
    def two(fd):
        x = fd.define_tensor([4, 5], stride_order=[0, 1])
        return fd.ops.add(x, fd.define_tensor([4, 5]))

    def three(fd):
        wide = fd.define_tensor([3, 4, 5], stride_order=ranks([2, 0, 1]))
        fd.add_output(fd.ops.add(fd.ops.broadcast(two(fd), [True, False, False]), wide))

    assert proposal(lambda fd: fd.add_output(two(fd))) is None
    assert proposed(three) == (2, 0, 1)


def test_only_the_innermost_run_is_followed():
    def body(fd):
        x = fd.define_tensor([2, 3, 4], stride_order=ranks([2, 0, 1]))
        fd.add_output(fd.ops.reshape(x, [6, 4]))

    hint = proposal(body)
    assert (hint.order, hint.strength) == ((0, 1), 0), "the merged axis is not an axis of the input"


def linear(fd):
    x, weight = fd.define_tensor([6, 2, 4]), fd.define_tensor([8, 4])
    fd.add_output(fd.ops.linear(x, weight))


def test_a_linear_is_proposed_as_the_library_gives_it():
    hint = proposal(linear)
    assert (hint.order, hint.origin, hint.strength) == ((0, 1, 2), "T0", 0)
    assert proposed(linear, past_reductions=True) == (2, 0, 1), "n, b, m as nvFuser proposed: issue #2354"


def test_a_product_written_with_a_sum_too():
    def body(fd):
        x = fd.ops.broadcast(fd.define_tensor([6, 2, 4]), [False, False, True, False])
        weight = fd.ops.broadcast(fd.define_tensor([8, 4]), [True, True, False, False])
        fd.add_output(fd.ops.sum(fd.ops.mul(x, weight), [3]))

    assert proposed(body) == (0, 1, 2)
    assert proposed(body, past_reductions=True) == (2, 0, 1)
    placed = AllocationDomain(past_reductions=True).run(record(body)).outputs[0]
    assert placed.domain.allocation == (2, 0, 1)
    fusion = record(body)
    assert AllocationDomain().run(fusion) is fusion


def test_the_result_of_an_attention_lies_like_its_query():
    def body(fd):
        shape = [2, 3, 16, 8]
        query = fd.define_tensor(shape, dtype=DataType.BFloat16, stride_order=ranks([0, 2, 1, 3]))
        key, value = (fd.define_tensor(shape, dtype=DataType.BFloat16) for _ in range(2))
        out, *_ = fd.ops.sdpfa_fwd(query, key, value)
        fd.add_output(out)

    hint = proposal(body)
    assert (hint.order, hint.origin) == ((0, 2, 1, 3), "T0")


def test_a_tensor_with_one_axis_twice_gets_no_proposal():
    def body(fd):
        x = fd.define_tensor([4, 4], stride_order=[0, 1])
        fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))

    assert proposal(body) is None


def test_hints_and_requirements_are_apart():
    def body(fd):
        x = fd.define_tensor([2, 3, 4], stride_order=ranks([2, 0, 1]))
        fd.add_output(fd.ops.relu(x))
        wanted = fd.ops.exp(x)
        fd.add_output(wanted)
        fd.set_output_stride_order(wanted, [2, 1, 0])
        fd.add_output(fd.ops.neg(x), stride_order=[0, 2, 1])

    fusion = AllocationDomain().run(record(body))
    hinted, wanted, copied = fusion.outputs
    assert fusion.required_order(hinted) is None
    assert fusion.hint_order(hinted).order == hinted.domain.allocation_order == (2, 0, 1)
    assert fusion.hint_order(wanted) is None
    assert fusion.required_order(wanted) == wanted.domain.allocation_order == (0, 1, 2)
    assert fusion.required_order(copied) == copied.domain.allocation_order == (1, 2, 0)
    assert fusion.required_order(fusion.inputs[0]) == (2, 0, 1)
    for tensor in fusion.tensors.values():
        assert fusion.required_order(tensor.name) == fusion.required_order(tensor)
        assert fusion.hint_order(tensor.name) == fusion.hint_order(tensor)
    for ask, given in ((fusion.required_order, "T99"), (fusion.hint_order, 3)):
        with pytest.raises(InputError, match=f"^{ask.__name__}: {given!r} is not a tensor of the fusion; .* are T0"):
            ask(given)
    assert [fusion.get_output_stride_order(tv) for tv in fusion.outputs] == [None, (2, 1, 0), (0, 2, 1)]


def test_every_result_gets_a_proposal_if_asked():
    def body(fd):
        x = fd.define_tensor([2, 3, 4], stride_order=ranks([2, 0, 1]))
        fd.add_output(fd.ops.relu(fd.ops.exp(x)))

    outputs, every = (AllocationDomain(every_tensor=flag).run(record(body)) for flag in (False, True))
    assert outputs.tensors["T1"].domain.allocation is None
    assert every.tensors["T1"].domain.allocation == (2, 0, 1)
    assert AllocationDomain(every_tensor=True).run(every) is every


def test_row_major_wherever_axes_of_size_one_lie():
    def body(fd):
        fd.add_output(fd.ops.relu(fd.define_tensor([2, 1, 4])))

    (tensor,) = record(body).outputs
    assert is_row_major(tensor, (1, 0, 2))
    assert not is_row_major(tensor, (2, 1, 0))
    assert with_order(tensor, (0, 1, 2)) is tensor
    assert with_order(tensor, (2, 1, 0)).domain.allocation == (2, 1, 0)
    assert with_order(with_order(tensor, (2, 1, 0)), None).domain.allocation is None
