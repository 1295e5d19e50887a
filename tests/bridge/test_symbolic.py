"""Graphs with symbolic sizes are captured once; known kernels serve new sizes, and results are those of eager mode."""

import importlib

import pytest
from needs import needs

from fuser_lab.bridge import capture

torch = needs("torch")
F = torch.nn.functional
bridge = importlib.import_module("fuser_lab.torch")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def kernels(monkeypatch):
    """The keys of kernels that would be compiled; the reference evaluates regions."""
    from bridge.samples import by_reference

    from fuser_lab.runtime.gpu.ptx import kernel_key
    from fuser_lab.runtime.plan.background import IN_BACKGROUND

    found: set[str] = set()
    monkeypatch.setattr("fuser_lab.bridge.torch_region.TorchRegion._run", by_reference)
    monkeypatch.setattr(IN_BACKGROUND, "add", lambda group: found.update(kernel_key(kernel) for kernel, _ in group))
    return found


@pytest.fixture
def by_torch(monkeypatch):
    """Regions run by torch, for tests of sizes, which need no kernel."""
    region = "fuser_lab.bridge.torch_region.TorchRegion."
    monkeypatch.setattr(f"{region}_run", lambda region, inputs: list(region.fallback(*inputs)))
    monkeypatch.setattr(f"{region}kernels", lambda region: ())


class Block(torch.nn.Module):
    """Attention over heads with a causal mask, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.both = torch.nn.LayerNorm(32), torch.nn.Linear(32, 64)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k = (y.view(batch, length, 4, 8).transpose(1, 2) for y in self.both(self.norm(x)).split(32, -1))
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-1, -2)).masked_fill(hidden, -1e9).softmax(-1)
        return x + F.gelu((weights @ k).transpose(1, 2).reshape(batch, length, 32)) / length


def agree(function, run, *inputs):
    """Compare results and gradients of the inputs with eager mode, with equal seeds."""
    found = []
    for one in (function, run):
        given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        torch.manual_seed(1)
        result = one(*given)
        found.append([result, *torch.autograd.grad((result * result).sum(), [x for x in given if x.requires_grad])])
    assert found[1][0].stride() == found[0][0].stride()
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_arguments_are_given_up_while_a_graph_runs(by_torch, monkeypatch):
    kept, run_boxed = [], capture._Sizes.run

    def watched(graph, args):
        results = run_boxed(graph, args)
        kept.append(len(args))
        return results

    monkeypatch.setattr(capture._Sizes, "run", watched)
    run = torch.compile(lambda x: (x.sin() * x).exp(), backend="fuser_lab", dynamic=True)
    for size in (5, 7):
        agree(lambda x: (x.sin() * x).exp(), run, torch.randn(size, 3))
    assert kept == [0] * 4


def test_a_new_size_needs_no_capture_and_no_kernel(kernels):
    model = Block()
    run = torch.compile(model, backend="fuser_lab", dynamic=True, options={"check": True})
    for batch, length in ((9, 18), (12, 24)):
        agree(model, run, torch.randn(batch, length, 32))
    graphs, known = len(bridge.last().graphs), set(kernels)
    assert graphs == 2
    assert known
    for batch, length in ((9, 21), (11, 18), (10, 31)):
        agree(model, run, torch.randn(batch, length, 32))
    assert (len(bridge.last().graphs), kernels) == (graphs, known)
    assert not any(region.failed for region in bridge.last().regions)


FUNCTIONS = {
    "arange, full and expand": lambda x: x + torch.arange(x.shape[1]) * torch.full((x.shape[0], 1), 2.0).expand_as(x),
    "parts": lambda x: torch.cat([x[:, ::2], x[:, 1::2] * 2], 1) - x[x.shape[0] // 2 :].sum(0) / x.shape[0],
    "splits": lambda x: torch.cat([y.sin() for y in x.split(3)]) + x.unbind(1)[0][:, None],
    "other shapes": lambda x: (x.reshape(-1, 2).exp().reshape(x.shape[1], -1).t().reshape(-1) * x.numel()).view_as(x),
    "padding": lambda x: F.pad(x, (0, 3 - x.shape[1] % 3)).cos()[:, : x.shape[1]] + x.roll(1, 0).flip(1),
    "dropout": lambda x: F.dropout(x.sin(), 0.3) + F.dropout(x.t(), 0.5).t(),
    "strides": lambda x: torch.as_strided(x.sin(), (x.shape[1], x.shape[0]), (1, x.shape[1])).exp() * x.t(),
    "where few are left": lambda x: x[2:].sum() + x[:, x.shape[1] - 2 :].amax() + x[1:1].sum() + x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_of_views_and_factories_are_those_of_the_call(by_torch, name):
    run = torch.compile(FUNCTIONS[name], backend="fuser_lab", dynamic=True)
    for rows, columns in ((4, 6), (3, 8), (12, 4), (5, 2)):
        agree(FUNCTIONS[name], run, torch.randn(rows, columns))


def test_sizes_0_and_1_have_graphs_of_their_own(by_torch):
    run = torch.compile(lambda x: F.softmax(x * x.shape[0], -1).sum(0), backend="fuser_lab", dynamic=True)
    for shape in ((4, 6), (0, 6), (1, 6), (4, 1), (1, 1), (3, 5), (4, 0)):
        agree(lambda x: F.softmax(x * x.shape[0], -1).sum(0), run, torch.randn(shape))


def test_the_second_shape_makes_a_size_symbolic_and_the_third_is_known():
    run = torch.compile(lambda x: torch.sin(x) * x.shape[0], backend="fuser_lab")
    captured = []
    for rows in (3, 4, 5, 6):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(run(x), torch.sin(x) * rows)
        captured += bridge.last().graphs
    assert len(captured) == 4
    assert captured[0] is not captured[1]
    assert captured[1] is captured[2] is captured[3]


@pytest.mark.parametrize("view", [
    lambda base, n: base[3:n], lambda base, n: base[:, : n - 3],
    lambda base, n: base.view(-1)[16 : 16 + 8 * n].view(n, 8),
], ids=["rows", "columns", "flat"])  # fmt: skip
def test_an_argument_may_be_a_view_of_memory_whose_size_no_argument_has(by_torch, view):
    run = torch.compile(lambda x: (x * 2).sigmoid() + 1, backend="fuser_lab", dynamic=True)
    for n in (5, 7, 9):
        x = view(torch.randn(20 + n, 8), n)
        torch.testing.assert_close(run(x), (x * 2).sigmoid() + 1)
    found = bridge.last()
    assert found.regions
    assert "symbols" not in str(found.left_to_torch)
