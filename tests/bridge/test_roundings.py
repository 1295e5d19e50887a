"""What roundings explain: results of another order of rounding are accepted, other values are not."""

import math

import pytest
from needs import needs

torch = needs("torch")

from fuser_lab.bridge.roundings import rounding_errors  # noqa: E402 - after torch is known to be there


def judged(function, inputs, change):
    """The distance of a function's results, changed a little, from its own."""
    graph = torch.fx.symbolic_trace(function)
    expected = graph(*inputs)
    return rounding_errors(graph, inputs, [change(x) for x in expected], expected)


def cancelling(x):
    return ((x + 1e6) - 1e6,)


def whole(x):
    return ((x * 1.1).round().to(torch.uint8),)


def test_a_cancelled_sum_may_be_as_far_as_its_roundings():
    x = torch.rand(1000)
    assert judged(cancelling, [x], lambda y: y + 0.06) <= 1  # a unit in the last place of a million
    assert judged(cancelling, [x], lambda y: y + 5.0) > 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1.001])
def test_results_without_cancellation_have_to_be_close(wrong):
    x = torch.rand(100, dtype=torch.float64) + 1
    assert judged(lambda x: (x.exp(),), [x], lambda y: y * (1 + 4e-16)) <= 1
    assert judged(lambda x: (x.exp(),), [x], lambda y: y * wrong) > 1


def test_a_rounded_number_may_differ_where_it_is_half_way():
    x = torch.tensor([2.5 / 1.1, 2.0])
    half, below = (torch.tensor(numbers, dtype=torch.uint8) for numbers in ([2, 2], [3, 2]))
    assert max(judged(whole, [x], lambda _: half), judged(whole, [x], lambda _: below)) <= 1
    assert judged(whole, [x], lambda y: y + torch.tensor([0, 1], dtype=torch.uint8)) > 1


def test_another_dtype_is_wrong():
    x = torch.rand(4)
    assert judged(lambda x: (x * 2,), [x], lambda y: y.double()) == math.inf
