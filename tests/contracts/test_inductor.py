"""Contracts on what torch.compile fuses; kernels are scheduled, not compiled."""

import pytest

import fuser_lab as fl
from fuser_lab.errors import ArgumentTypeError, InputError
from tests.contracts.planted import without_kernels
from tests.needs import needs


@pytest.fixture(scope="module")
def torch():
    module = needs("torch")
    with without_kernels():
        yield module


@pytest.fixture(scope="module")
def block(torch):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(16)
            self.up = torch.nn.Linear(16, 32)

        def forward(self, x):
            return torch.nn.functional.gelu(self.up(self.norm(x))).sum(0)

    return Block()


def test_the_error_of_one_kernel_has_a_smaller_function_that_still_parts(torch):
    def step(x, w):
        h = torch.softmax(x, -1)
        return (h * w).sum(0)

    inputs = torch.zeros(16, 32), torch.zeros(32)
    with pytest.raises(fl.FusionContractError) as raised:
        fl.one_kernel(step, *inputs, shrink_seconds=2)
    text = str(raised.value)
    assert "step is 2 kernels under inductor on cpu, and the contract allows 1." in text
    assert "parted: softmax.amax (test_inductor.py:" in text
    assert "[inductor]" in text
    assert "next: let both go over the common tensors in one order" in text
    names = {}
    exec(raised.value.script.replace("print(", "found = ("), names)
    assert len(names["found"].plans[0].segments) > 1
    assert len(raised.value.plans[0].fusions) == 1


def test_ops_are_selected_by_module_op_and_line(torch, block):
    x = torch.zeros(8, 16)
    partition = fl.same_kernel(block, x, ops=["norm", "norm/layer_norm.rsqrt"], shrink_seconds=0)
    assert partition.parameters == {"f32": 4}
    assert partition.inputs == ("f32[8,16]",)
    assert fl.same_kernel(block, x, ops=["gelu", "sum"]).kernels == 3
    with pytest.raises(fl.FusionContractError, match="the library's op outside of the function under contract"):
        fl.same_kernel(block, x, ops=["norm", "addmm"], shrink_seconds=0)
    with pytest.raises(InputError, match="selects no op"):
        fl.same_kernel(block, x, ops=["down"])


def test_limits_on_kernels_and_bytes(torch, block):
    x = torch.zeros(8, 16)
    assert fl.at_most(block, x, kernels=3, bytes_over_bound=1.5).kernels == 3
    with pytest.raises(fl.FusionContractError, match="and the contract allows 2"):
        fl.at_most(block, x, kernels=2, shrink_seconds=0)


def test_what_is_no_function_and_what_is_no_device_are_refused(torch, block):
    with pytest.raises(ArgumentTypeError, match="with compiler='inductor' the subject must be a function or a module"):
        fl.one_kernel("model.py:step")
    with pytest.raises(InputError, match="device 'moon' cannot hold the arguments"):
        fl.one_kernel(block, torch.zeros(8, 16), device="moon")


def test_two_reductions_that_must_not_share_a_kernel_are_told_apart_without_a_count(torch):
    """As pytorch#195564: the number of kernels depends on the device, whether two ops are together does not."""
    def right(x, y):
        return x.sum((0, 2)), y.sum((0, 2))

    def wrong(x, y):
        return x.sum((0, 2)), (x * y).sum((0, 2))

    inputs = torch.zeros(8, 4, 8), torch.zeros(8, 4, 8)
    assert not fl.at_most(right, *inputs, kernels=9).together("sum", "sum#2")
    assert fl.at_most(wrong, *inputs, kernels=9).together("sum", "sum#2")
    for device in ("A100", "H100", "H200"):
        partition = fl.at_most(wrong, *inputs, kernels=9, compiler="nvfuser", device=device)
        assert partition.together("sum", "sum#2")


def test_a_graph_break_is_named_with_its_line(torch):
    def step(x):
        y = x.sin()
        print(y)  # noqa: T201 - what breaks the graph
        return y.cos()

    with pytest.raises(fl.FusionContractError) as raised:
        fl.one_kernel(step, torch.zeros(8), shrink_seconds=0)
    text = str(raised.value)
    assert "graph 0 ends early: " in text
    assert "`print`" in text
    assert "(test_inductor.py:" in text
    assert "next: move what torch cannot capture out of the compiled function" in text


def test_gradients_count_if_they_are_asked_for(torch):
    x = torch.zeros(8, 16, requires_grad=True)
    partition = fl.at_most(lambda x: x.sin().sum(), x, kernels=9, backward=True)
    assert [graph.kind for graph in partition.graphs] == ["forward", "backward"]
    assert "cos" in " ".join(partition.graphs[1].ops)
