"""Maxima of windows in training steps: offsets in place of indices and operands, and nothing left to torch."""

import pytest
from needs import needs

from fuser_lab.bridge.traced import target_of


@pytest.mark.parametrize(("window", "layout"), [
    ({"kernel_size": (2, 3), "stride": (1, 2), "padding": 1, "dilation": (2, 1), "ceil_mode": True}, "rows"),
    ({"kernel_size": 3, "stride": 2, "padding": 1}, "channels last"),
])
def test_a_training_step_keeps_offsets(window, layout):
    torch = needs("torch")
    import fuser_lab.torch as bridge
    from fuser_lab.bridge.pools import ops_of_offsets

    if ops_of_offsets() is None:
        pytest.skip("this torch has no ops of offsets")

    x = torch.randn(2, 3, 9, 11).round_().nan_to_num_()
    x[0, 0, 4], x[1, 1, :, 5] = float("nan"), -float("inf")
    x = x.to(memory_format=torch.channels_last) if layout == "channels last" else x
    torch._dynamo.reset()

    def trained(function):
        given = x.clone().requires_grad_()
        most, indices = function(given)
        (most * torch.arange(most.shape[-1])).sum().backward()
        return most, indices, given.grad

    def pooled(given):
        return torch.nn.functional.max_pool2d(given * 2, **window, return_indices=True)

    ours, theirs = trained(torch.compile(pooled, backend="fuser_lab")), trained(pooled)
    for result, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True)
        assert result.stride() == expected.stride()
    forward, backward = bridge.last().graphs
    assert not [left.op for graph in (forward, backward) for left in graph.left if "pool" in left.op]
    read = [node.meta["val"] for node in backward.traced.nodes if node.op == "placeholder"]
    assert [tensor.dtype for tensor in read if tensor.shape[-2:] != x.shape[-2:]] == [torch.int8, torch.float32]
    assert not [tensor for tensor in read if tensor.shape == x.shape]
    assert "aten.max_pool2d_with_indices_backward.default" not in map(target_of, backward.traced.nodes)


def test_gradients_of_overlapping_windows_are_in_regions():
    torch = needs("torch")
    import fuser_lab.torch as bridge

    x, taper = torch.randn(2, 3, 6, 20), torch.rand(8)
    torch._dynamo.reset()

    def windows(given):
        columns = torch.nn.functional.unfold(given.sin(), (3, 2), padding=(1, 0), stride=(1, 2))
        return columns.tanh().sum(-1), (given.unfold(-1, 8, 3) * taper).relu()

    def trained(function):
        given = x.clone().requires_grad_()
        return torch.autograd.grad([y.square().sum() for y in function(given)], given)

    torch.testing.assert_close(trained(torch.compile(windows, backend="fuser_lab")), trained(windows))
    _, backward = bridge.last().graphs
    assert {left.op for left in backward.left} <= {"aten.view.default"}, "col2im and unfold_backward are in a region"
