"""Functions and models of PyTorch on a GPU: values, gradients, dropout's generator, streams and layouts."""

import importlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from bridge.models import OWN, error, trained
from needs import needs

from fuser_lab.errors import RegionWarning

torch = needs("torch")
F = torch.nn.functional
bridge = importlib.import_module("fuser_lab.torch")
# Importing Inductor warns about TorchScript in some versions of torch.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        yield


def rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    place = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
    angle = place[:, None] * 10000 ** (-torch.arange(half, device=x.device) / half)
    sine, cosine = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda x: F.softmax(x, -1), ((64, 1000),)),
    "softmax of columns": (lambda x: F.softmax(x, 0), ((300, 70),)),
    "layer norm and gelu": (lambda x, w, b: F.gelu(F.layer_norm(x, (768,), w, b)), ((65, 768), (768,), (768,))),
    "group norm and silu": (lambda x: F.silu(F.group_norm(x, 4)), ((3, 16, 9, 7),)),
    "batch norm": (lambda x: F.relu(F.batch_norm(x, None, None, training=True)), ((5, 6, 8, 8),)),
    "rotary": (rotated, ((2, 4, 33, 64),)),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.arange(37, device=x.device) % 101), ((37, 101),)),
    "transposed sum": (lambda x: x + x.T, ((130, 130),)),
    "product": (lambda x, y: torch.tanh(x @ y).sum(0), ((33, 20), (20, 45))),
    "swiglu": (lambda x: F.silu(x[:, :50]) * x[:, 50:], ((77, 100),)),
    "in place": (lambda x: (x * 2).add_(1).mul_(x).cumsum(-1), ((9, 31),)),
    "channels last": (lambda x: (x.to(memory_format=torch.channels_last) * 2).relu(), ((2, 8, 5, 5),)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients(name: str, dtype: Any) -> None:
    function, shapes = FUNCTIONS[name]
    inputs = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found = []
    for run, given in ((function, exact), (function, inputs), (torch.compile(function, backend="fuser_lab"), inputs)):
        y = run(*given)
        weight = torch.linspace(-1, 1, y.numel(), device="cuda", dtype=y.dtype).reshape(y.shape)
        found.append([y.detach(), *torch.autograd.grad((y * weight).sum(), given)])
    assert found[2][0].stride() == found[1][0].stride()
    for truth, eager, ours in zip(*found, strict=True):
        assert ours.dtype == dtype
        scale = max(float(truth.abs().max()), 1e-3)
        bound = 3 * float((eager - truth).abs().max()) / scale + (1e-5 if dtype is torch.float32 else 1e-2)
        assert float((ours - truth).abs().max()) / scale <= bound


def test_dropout_draws_the_numbers_of_eager() -> None:
    def function(x: Any) -> Any:
        return F.dropout(F.gelu(F.dropout(x, 0.3)), 0.2) + torch.rand_like(x)

    x = torch.randn(129, 257, device="cuda", requires_grad=True)
    found = []
    for run in (function, torch.compile(function, backend="fuser_lab")):
        torch.manual_seed(7)
        y = run(x)
        found.append((y.detach(), *torch.autograd.grad(y.square().sum(), x), torch.cuda.get_rng_state()))
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OWN)
def test_models_train_as_in_eager(name: str) -> None:
    model, given = OWN[name]()
    model, given = model.cuda().train(), given.cuda()
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        losses, gradients, _ = trained(model, model, given, steps=2)
        model.load_state_dict(kept)
        ours, our_gradients, _ = trained(model, torch.compile(model, backend="fuser_lab"), given, steps=2)
    assert error(ours, losses) < 1e-5
    assert error(our_gradients, gradients) < 5e-5
    assert not any(region.failed for region in bridge.last().regions)


def test_regions_launch_on_the_current_stream() -> None:
    function = torch.compile(lambda x: F.softmax(x * 2, -1), backend="fuser_lab")
    x = torch.randn(4096, 4096, device="cuda")
    function(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            y = torch.empty_like(x)
            torch.cuda._sleep(2_000_000)
            y.copy_(x).mul_(0.5)
            ours = function(y)
        stream.synchronize()
        torch.testing.assert_close(ours, F.softmax(x, -1))


def test_a_model_is_captured_from_a_gpu() -> None:
    import fuser_lab as fl

    model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Softmax(-1)).cuda()
    x = torch.randn(32, 64, device="cuda", requires_grad=True)
    found = fl.from_torch(model, x, backward=True)
    found.check(x)
    torch.testing.assert_close(found.run(x), model(x))


def test_inputs_on_two_devices() -> None:
    function = torch.compile(lambda x, s: torch.relu(x * s) + 1, backend="fuser_lab")
    x, s = torch.randn(50, 60, device="cuda"), torch.tensor(1.5)
    torch.testing.assert_close(function(x, s), torch.relu(x * s) + 1)


def test_a_number_in_host_memory_is_copied_and_the_rest_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    function = torch.compile(lambda x, factor: torch.sin(x) * factor + 1, backend="fuser_lab")
    x = torch.randn(64, 33, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            function(x, torch.tensor(2.0))
        slow = "fuser_lab.runtime.plan.executor.PreparedPlan._run"
        monkeypatch.setattr(slow, lambda *_: pytest.fail("the slow path"))
        found = function(x, torch.tensor(-3.0))
    torch.testing.assert_close(found, torch.sin(x) * -3 + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_compared_and_roots_are_rounded_as_in_eager(dtype: Any) -> None:
    count, far = 1 << 20, 40 if dtype is torch.float32 else 400
    powers = torch.randint(-far, far, (2, count), device="cuda")
    x, y = torch.randn(2, count, device="cuda", dtype=dtype).ldexp(powers.to(dtype))
    special = torch.tensor([0.0, -0.0, 1.0, -3.0, math.inf, -math.inf, math.nan, 7.0], device="cuda", dtype=dtype)
    x = torch.cat([x, special.repeat(8), 3 * torch.arange(1.0, 4097.0, device="cuda", dtype=dtype)])
    y = torch.cat([y, special.repeat_interleave(8), torch.arange(1.0, 4097.0, device="cuda", dtype=dtype)])

    def function(x: Any, y: Any, power: Any) -> Any:
        quotient = x / y
        return quotient, quotient > 0.5, x.sqrt(), x.exp() == power

    operands = x, y, x.exp()
    results, expected = torch.compile(function, backend="fuser_lab")(*operands), function(*operands)
    for result, of_eager in zip(results, expected, strict=True):
        torch.testing.assert_close(result, of_eager, rtol=0, atol=0, equal_nan=True)
        zeros = of_eager == 0
        assert torch.equal(result[zeros].signbit(), of_eager[zeros].signbit())
