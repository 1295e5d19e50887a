"""Graphs as one function: values, shared memory, and when the slow path is taken."""

import importlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from needs import needs

from fuser_lab.bridge.torch_calls import quick_call

torch = needs("torch")
nn, F = torch.nn, torch.nn.functional
bridge = importlib.import_module("fuser_lab.torch")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def frames():
    """The number of functions of the most recently compiled graphs."""
    return [len(graph.run._frames) for graph in bridge.last().graphs]


class Mixed(nn.Module):
    """Views before and after products, dropout, buffers that are written to, and results that share memory."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(4, 8, bias=False)
        self.register_buffer("seen", torch.zeros(8))
        self.register_buffer("greatest", torch.zeros(8))

    def forward(self, x):
        rows, length, _ = x.shape
        a, b, c = self.first(x).view(rows, length, 3, 4).unbind(2)
        scores = F.dropout(torch.softmax(a @ b.transpose(1, 2) / 2, -1), 0.3)
        y = self.second(F.gelu(scores @ c)) + x
        self.seen.add_(y.detach().mean((0, 1)))
        self.greatest.copy_(torch.maximum(self.greatest, y.detach().amax((0, 1))))
        return y, y.transpose(0, 1), F.dropout(y, 0.5).sum(-1), c


@pytest.fixture(scope="module")
def model():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return Mixed()


def step(model, run, x, seed):
    torch.manual_seed(seed)
    model.seen.zero_()
    model.greatest.zero_()
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    results = run(x)
    sum((result * (1 + place)).sum() for place, result in enumerate(results)).backward()
    return [*results, x.grad, *(p.grad for p in model.parameters()), model.seen.clone(), model.greatest.clone()]


def agree(model, run, x, seed):
    expected, found = step(model, model, x, seed), step(model, run, x, seed)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert found[1].untyped_storage().data_ptr() == found[0].untyped_storage().data_ptr()


def test_steps_through_functions_are_eagers_steps(model):
    run = torch.compile(model, backend="fuser_lab")
    agree(model, run, torch.randn(2, 3, 8), 0)
    assert frames() == [1, 1]
    ((function,),) = bridge.last().graphs[0].run._frames.values()
    assert torch._foreach_copy_ in function.__globals__.values()
    assert not any(target is torch.ops.aten.copy_.default for target in function.__globals__.values())
    for seed in range(3):
        agree(model, run, torch.randn(2, 3, 8), seed)
    assert not any(region.failed for region in bridge.last().regions)
    # A saved tensor has another layout than in the trace.
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.flip(-1).flip(-1).mT.contiguous().mT
                                                  if x.ndim > 1 else x):
        agree(model, run, torch.randn(2, 3, 8), 5)
    # Checked regions take the slow path, and functions are written again afterwards.
    for region in bridge.last().regions:
        region.checked = True
    assert frames() == [0, 0]
    agree(model, run, torch.randn(2, 3, 8), 6)
    assert frames() == [0, 0]
    for region in bridge.last().regions:
        region.checked = False
    agree(model, run, torch.randn(2, 3, 8), 7)
    assert frames() == [1, 1]


def test_threads_have_functions_of_their_own(model):
    run = torch.compile(lambda x: model.second(F.gelu(x)).tanh(), backend="fuser_lab")
    given = [torch.randn(5, 4) for _ in range(40)]
    with torch.no_grad():
        for x in given[:2]:
            run(x)
        expected = [model.second(F.gelu(x)).tanh() for x in given]
        with ThreadPoolExecutor(4) as pool:
            for ours, theirs in zip(pool.map(torch.no_grad()(run), given), expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_write_to_what_is_saved_is_an_error_as_in_eager():
    weight = torch.randn(8, 8, requires_grad=True)
    run = torch.compile(lambda x: (x.view(6, 8) @ weight).sin(), backend="fuser_lab")
    for _ in range(3):
        x = torch.randn(2, 3, 8)
        run(x).sum().backward()
        y = run(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert frames() == [1, 1]


def test_what_torch_gives_otherwise_than_it_traced_is_laid_as_traced():
    @torch.library.custom_op("fuser_lab_tests::doubled_by_columns", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).t().contiguous().t()

    doubled.register_fake(torch.empty_like)
    run = torch.compile(lambda x: doubled(x).tanh() + 1, backend="fuser_lab")
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(run(x), (x * 2).tanh() + 1)
    assert frames() == [1]


def test_torch_chooses_the_traced_overload_when_its_bindings_are_called():
    aten = torch.ops.aten
    x, weight = torch.randn(1, 2, 3, 3), torch.randn(2, 2, 1, 1)
    calls = [
        (aten.convolution.default, (x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
        (aten.addmm.default, (weight[0, 0], x[0, 0], x[0, 1]), {"beta": 2}),
        (aten.topk.default, (x, 2), {}),
        (aten.full.default, ([2, 3], 1), {"dtype": torch.float64, "device": x.device, "pin_memory": False}),
    ]
    for op, args, keywords in calls:
        call = quick_call(op, len(args), frozenset(keywords))
        assert call is not op
        torch.testing.assert_close(call(*args, **keywords), op(*args, **keywords))
    # Another overload might take these arguments, or there is no binding.
    assert quick_call(aten.add.Tensor, 2) is aten.add.Tensor
    assert quick_call(aten.sort.default, 2) is aten.sort.default
    assert quick_call(aten.convolution_backward.default, 11) is aten.convolution_backward.default


def test_kernels_read_the_addresses_of_tensors(monkeypatch):
    """Tensors are arguments of kernels, wherever they begin in their memory, unless the words in them are unknown."""

    def function(x, y):
        return torch.softmax(x * y, -1), (x + 1).sum(0)

    memory = torch.randn(20, 8)
    for can_read in (True, False):
        torch._dynamo.reset()
        if not can_read:
            monkeypatch.setattr("fuser_lab.runtime.cpu.host_ready.can_read_tensors", lambda: False)
        run = torch.compile(function, backend="fuser_lab", dynamic=False)
        for start in (3, 3, 5, 0):
            inputs = memory[start : start + 6], memory[start + 1, 2:3]
            for ours, theirs in zip(run(*inputs), function(*inputs), strict=True):
                torch.testing.assert_close(ours, theirs)
        (frame,) = next(iter(bridge.last().graphs[0].run._frames.values()))
        assert ("data_ptr" in frame.__code__.co_names) is not can_read


def test_a_loss_of_logits_on_a_gpu_saves_the_logits_alone(monkeypatch):
    monkeypatch.setattr("fuser_lab.bridge.capture.has_own_memory", lambda device: True)
    weight, targets = torch.randn(8, 50, dtype=torch.bfloat16, requires_grad=True), torch.arange(12)

    def loss(x):
        return F.cross_entropy((x @ weight).float(), targets)

    saved = []
    x = torch.randn(12, 8, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append((x.nbytes, x.dtype)) or x, lambda x: x):
        found = torch.compile(loss, backend="fuser_lab")(x)
    assert max(saved, key=lambda tensor: tensor[0]) == (12 * 50 * 2, torch.bfloat16)
    gradient, expected = torch.autograd.grad(found, weight), torch.autograd.grad(loss(x), weight)
    torch.testing.assert_close(gradient, expected, rtol=0.02, atol=0.01)


def test_a_detached_result_beside_the_result_keeps_the_gradient(monkeypatch):
    monkeypatch.setattr("fuser_lab.bridge.capture.has_own_memory", lambda device: True)

    def both(x):
        y = torch.log_softmax(x.exp(), -1)
        return y, y.detach(), y.detach() + 1

    x = torch.randn(4, 6, requires_grad=True)
    y, detached, more = torch.compile(both, backend="fuser_lab")(x)
    assert (y.requires_grad, detached.requires_grad, more.requires_grad) == (True, False, False)
    expected = torch.autograd.grad(both(x)[0].sin().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y.sin().sum(), x), expected)
    torch.testing.assert_close((detached, more - 1), (y.detach(), y.detach()))


def test_a_region_of_a_gpu_computes_again_what_another_region_would_store_for_it(monkeypatch):
    monkeypatch.setattr("fuser_lab.bridge.capture.has_own_memory", lambda device: True)

    def chain(x, places, values):
        a = x.abs().clamp(max=3.0)
        b = a.sqrt()
        c = torch.log1p(b)
        added = torch.index_put(c * 2, (places,), values, accumulate=True)  # separates two regions
        return added * a + b / (1 + c)

    x, values, places = torch.randn(512, 600), torch.randn(9, 600), torch.randint(0, 512, (9,))
    found = torch.compile(chain, backend="fuser_lab")(x, places, values)
    torch.testing.assert_close(found, chain(x, places, values))
    first, second = bridge.last().graphs[0].regions
    assert (len(first.output_nodes), len(second.input_nodes)) == (1, 2)
