"""Rewrites of writes to parts of tensors, as functionalization leaves them."""

from collections import Counter

import pytest
from needs import needs

from fuser_lab.bridge.traced import target_of
from fuser_lab.bridge.written_parts import shorten_writes

torch = needs("torch")


def shortened(function, x):
    """The op counts of a functionalized graph with short writes; its values and their memory must not change."""
    from torch.fx.experimental.proxy_tensor import make_fx

    gm = make_fx(torch.func.functionalize(lambda x: [*function(x)]), tracing_mode="fake")(x)
    expected = gm(x)
    shorten_writes(gm.graph)
    gm.graph.lint()
    gm.recompile()
    for ours, theirs in zip(gm(x), expected, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
    return Counter(target_of(node).split(".")[1] for node in gm.graph.nodes if node.op == "call_function")


@pytest.fixture
def x():
    return torch.randn(6, 8, 9, generator=torch.Generator().manual_seed(1))


def test_what_was_written_is_read_where_it_was_computed(x) -> None:
    def lifted(x):
        y = x.clone()
        even, odd = y[:, 0::2], y[:, 1::2]
        odd -= even.sin()
        even += odd.cos()
        return even * 2, odd[:, 1:3] * 2, odd[:, 2] * 3

    ops = shortened(lifted, x)
    assert ops["slice_scatter"] == 0
    assert ops["clone"] == ops["sub"] == ops["sin"] == ops["cos"] == 1


def test_a_part_that_is_a_result_or_has_other_elements_is_read_from_the_tensor(x) -> None:
    def kept(x):
        y = x.clone()
        y[1:4] = 0.5
        z = y.clone()
        z[:, 2] = y[:, 1]
        return y[1:3], y[2:6].exp(), z[:, 1:4].exp(), z[:, 2:3].exp()

    ops = shortened(kept, x)
    assert (ops["slice_scatter"], ops["select_scatter"]) == (1, 1)


@pytest.mark.parametrize("transposed", [False, True])
def test_writes_to_parts_of_parts_are_choices(transposed: bool, x) -> None:
    def nested(x):
        y = x.clone()
        y[0::2, 1::2] = x[0::2, 0::2]
        y[1::3, 2:6:3, 5] = 1.5
        y[1:][::2, 4:, 2:7].mul_(3.0)
        y[5, ..., 3:8:2] = x[0, 0, 0]
        return [y, y * 2]

    ops = shortened(nested, x.transpose(0, 2).contiguous().transpose(0, 2) if transposed else x)
    assert (ops["where"], ops["slice_scatter"], ops["select_scatter"]) == (4, 0, 0)


def test_writes_to_adjacent_elements_stay(x) -> None:
    def inside(x):
        y = torch.zeros_like(x)
        y[:, 1:-1, 1:-1] = x[:, 1:-1, 1:-1]
        return [y]

    assert shortened(inside, x)["slice_scatter"] == 2
