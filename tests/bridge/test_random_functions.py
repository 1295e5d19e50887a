"""Random functions of views, writes in place, strides and dropout: through the bridge they give what eager gives.

Regions are evaluated by the NumPy reference, so that no kernel is compiled.
"""

import importlib
import random

import pytest
from bridge.samples import by_reference
from needs import needs

torch = needs("torch")
F = torch.nn.functional
bridge = importlib.import_module("fuser_lab.torch")

UNARY = (torch.sin, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.neg, lambda x: x * 0.5, lambda x: x + 1)
VIEWS = (
    lambda x: x.t(), lambda x: x[:, ::2].repeat(1, 2)[:, : x.shape[1]], lambda x: x.flip(0), lambda x: x.roll(1, 1),
    lambda x: x[1:2].expand(x.shape), lambda x: x.reshape(-1).reshape(x.shape), lambda x: x.contiguous().clone(),
    lambda x: x[torch.tensor([2, 0, 1, 1])], lambda x: torch.as_strided(x.contiguous(), (4, 4), (1, 3)),
    lambda x: torch.diagonal_scatter(x, x[0, 1:], 1), lambda x: x.unfold(0, 2, 1).sum(-1)[[0, 1, 2, 2]],
    lambda x: F.pad(x, (1, -1))[:, :4], lambda x: torch.cat([x[2:], x[:2] * 2]), lambda x: x.double().float(),
)  # fmt: skip
ROWS = (
    lambda x: F.softmax(x, -1), lambda x: x - x.mean(0, keepdim=True), lambda x: x / (1 + x.abs().sum(1, keepdim=True)),
    lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: x.cumsum(0), lambda x: x.amax(1, keepdim=True) + x,
)  # fmt: skip


def written(x, y):
    """A copy of x with y added to a part of it in place, through a view."""
    copy = x.clone()
    copy[1:3].add_(y[1:3])
    copy.t()[0] *= 2
    return copy


def beside(x, y):
    """A part of y written into memory with room after each row, and x added to it."""
    wide = torch.zeros(4, 7)
    wide[:, 1:5] = y
    return wide[:, 1:5] + x


def added(x, y):
    """Rows of y added to rows of x, some of them twice."""
    return x.index_add(0, torch.tensor([1, 1, 3, 0]), y)


JOINED = (
    beside, added, torch.add, torch.mul, torch.maximum, torch.mm, written, lambda x, y: torch.where(x > y, x, y * 2),
)  # fmt: skip


def second(seed):
    """A matrix of 4 x 4 that lies in one of several ways."""
    base = torch.randn(8, 8)
    ways = (base[:4, :4].clone().t(), base[:4, ::2], base[::2, 1:5], base[:1, :4].expand(4, 4), base[:4, :4].clone())
    return ways[seed % len(ways)].detach().requires_grad_()


def dropped(x):
    return F.dropout(x, 0.25)


def program(seed):
    """A function of two square matrices, as a list of ops and of the values that they take."""
    draw, steps = random.Random(seed), []
    for count in range(2, draw.randint(8, 14)):
        kind = draw.choice((UNARY, UNARY, VIEWS, ROWS, JOINED, JOINED, (dropped,)))
        places = [draw.randrange(count) for _ in range(2 if kind is JOINED else 1)]
        steps.append((draw.choice(kind), places))

    def function(x, y):
        values = [x, y]
        for op, places in steps:
            values.append(op(*[values[place] for place in places]))
        return values[-1], values[-2], sum([value.sum() for value in values])

    return function


def agree(seed):
    torch._dynamo.reset()
    function, found = program(seed), []
    compiled = torch.compile(function, backend="fuser_lab")
    # Functions of graphs are written after a first run.
    for run in (function, compiled, compiled):
        torch.manual_seed(seed)
        x, y = torch.randn(4, 4, requires_grad=True), second(seed)
        results = run(x, y)
        gradients = torch.autograd.grad(results[2] + (results[0] * results[1].detach()).sum(), [x, y])
        found.append([*results, *gradients])
    for results in found[1:]:
        for ours, theirs in zip(results, found[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5, msg=lambda m: f"seed {seed}: {m}")
    assert not any(region.failed for region in bridge.last().regions)


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    monkeypatch.setattr("fuser_lab.bridge.torch_region.TorchRegion._run", by_reference)


@pytest.mark.parametrize("seed", range(5))
def test_random_functions(seed):
    agree(seed)


@pytest.mark.matrix
def test_more_random_functions():
    for seed in range(100, 180):
        agree(seed)
