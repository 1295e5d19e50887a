"""Matrix products with padded sizes: the same results and gradients, and pads that are shared."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fuser_lab.bridge import capture, padded_products
from tests.needs import needs

torch = needs("torch")

ALIGNED = 8  # elements of 16 bits in 16 bytes


def products(model: Any, *inputs: Any, backward: bool = False) -> list[list[tuple[int, ...]]]:
    """The sizes of the operands of each product in the captured graphs."""
    import fuser_lab as fl

    graphs = fl.from_torch(model, *inputs, backward=backward).graphs
    return [
        [tuple(operand.meta["val"].shape) for operand in node.args]
        for graph in graphs for node in graph.traced.nodes
        if str(node.target) in {"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}
    ]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad every product with an unaligned size, as a GPU's times would say."""
    def pad(gm: Any, **options: Any) -> None:
        padded_products.pad_products(gm, lambda *_: True, **options)

    monkeypatch.setattr(capture, "pad_products", pad)
    monkeypatch.setattr(padded_products, "_LEAST_INTENSITY", 0)


def logits(x: Any, words: Any) -> Any:
    return torch.log_softmax((x @ words.t()).float() * 0.5, -1)


def biased(x: Any, w: Any, bias: Any) -> Any:
    return torch.relu(torch.addmm(bias, x, w))


def batched(x: Any, y: Any) -> Any:
    return torch.bmm(x, y).tanh()


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "logits": (logits, [(24, 16), (37, 16)]),
    "all sizes odd": (logits, [(21, 13), (37, 13)]),
    "bias": (biased, [(24, 16), (16, 27), (27,)]),
    "batch": (batched, [(3, 10, 9), (3, 9, 11)]),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_and_gradients_are_those_of_the_product(name: str, dtype: str) -> None:
    function, shapes = CASES[name]
    inputs = [torch.randn(shape, dtype=getattr(torch, dtype), requires_grad=True) for shape in shapes]

    def run(call: Callable[..., Any]) -> list[Any]:
        result = call(*inputs)
        return [result, *torch.autograd.grad(result.float().sum(), inputs)]

    torch._dynamo.reset()
    compiled = run(torch.compile(function, backend="fuser_lab"))
    for value, expected in zip(compiled, run(function), strict=True):
        assert value.shape == expected.shape
        assert value.stride() == expected.stride()
        torch.testing.assert_close(value, expected, rtol=2e-2, atol=2e-2)
    captured = products(function, *inputs, backward=True)
    sizes = [size for operands in captured for shape in operands for size in shape[-2:]]
    assert sizes
    if name != "batch":
        assert 37 not in sizes
        assert 27 not in sizes


@pytest.mark.usefixtures("always")
def test_a_gradient_that_two_products_read_is_padded_once() -> None:
    import fuser_lab as fl

    inputs = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((24, 16), (37, 16))]
    backward = fl.from_torch(logits, *inputs, backward=True).graphs[1]
    pads = backward.traced.find_nodes(op="call_function", target=torch.ops.aten.constant_pad_nd.default)
    products = backward.traced.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    assert len(products) == 2
    assert len({node.args[0] for node in pads}) == len(pads)


@pytest.mark.parametrize(("dtype", "shapes"), [
    ("float32", [(512, 512), (511, 512)]), ("bfloat16", [(512, 512), (512, 512)]), ("bfloat16", [(4, 512), (511, 512)]),
    ("bfloat16", [(0, 512), (511, 512)]),
], ids=["four bytes", "aligned", "memory-bound", "empty"])
def test_other_products_stay(dtype: str, shapes: Sequence[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def pad(gm: Any, **options: Any) -> None:
        padded_products.pad_products(gm, lambda *question: bool(asked.append(question)), **options)

    monkeypatch.setattr(capture, "pad_products", pad)
    x, words = (torch.randn(shape, dtype=getattr(torch, dtype)) for shape in shapes)
    assert products(lambda x, words: (x @ words.t()).relu(), x, words) in ([], [[tuple(x.shape), (512, shapes[1][0])]])
    assert not asked


def test_answers_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    measured: list[str] = []

    def measure(answer: bool) -> Callable[[], bool]:
        return lambda: measured.append("measured") or answer  # type: ignore[func-returns-value]

    for timed in (padded_products.TimedProducts(), padded_products.TimedProducts()):  # as two processes
        for _ in range(2):
            assert timed.answer("a product", measure(True))
            assert not timed.answer("another", measure(False))
    assert len(measured) == 2


def test_nothing_is_measured_without_a_gpu() -> None:
    x, words = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((512, 512), (511, 512)))
    assert products(lambda x, words: (x @ words.t()).relu(), x, words) == [[(512, 512), (512, 511)]]


def plain(x: Any, w: Any) -> Any:
    return x @ w


def scaled(x: Any, w: Any) -> Any:
    return torch.exp((x @ w).float() * 0.1).sum(-1)


def flat(x: Any, w: Any) -> Any:
    return (x @ w).view(-1).float().exp()


def with_a_part(x: Any, w: Any) -> Any:
    y = x @ w
    return y, y[:, 1:]


# Whether the result, and what is saved for its gradient, is a slice of the padded product; otherwise it is a copy.
SLICED = {plain: True, scaled: True, flat: False, with_a_part: False}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("function", "training"), [(plain, False), *((function, True) for function in SLICED)])
def test_a_product_is_copied_only_for_dense_rows(function: Callable[..., Any], training: bool) -> None:
    import fuser_lab.torch as bridge

    inputs = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=training) for shape in ((24, 16), (16, 37))]

    def run(call: Callable[..., Any]) -> list[Any]:
        results = call(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        gradients = torch.autograd.grad(sum(x.float().sum() for x in results), inputs) if training else ()
        return [*results, *gradients]

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="fuser_lab")
    for _ in range(3):  # through the FX module, then through the generated function
        made = run(compiled)
        for value, expected in zip(made, run(function), strict=True):
            torch.testing.assert_close(value, expected, rtol=2e-2, atol=2e-2)
    if function is plain:
        assert made[0].stride() == (40, 1)
        assert not made[0]._is_view()
    forward, *_ = bridge.last().graphs
    copies = forward.traced.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert bool(copies) is not SLICED[function]
    assert not SLICED[function] or not any(region._apart for region in bridge.last().regions)


def test_a_diagonal_that_is_saved_for_the_gradient_is_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser_lab.bridge import row_gaps
    from fuser_lab.torch import last

    monkeypatch.setattr(row_gaps, "has_own_memory", lambda device: True)

    def loss(x: Any) -> Any:
        d = x.diagonal()
        return (d[:, None] * x).exp().sum(), d

    x = torch.randn(24, 24, requires_grad=True)
    expected, view = loss(x)
    (gradient,) = torch.autograd.grad(expected, x)
    found, result = torch.compile(loss, backend="fuser_lab")(x)
    assert result.stride() == view.stride()
    torch.testing.assert_close(torch.autograd.grad(found, x)[0], gradient)
    (backward,) = (graph for graph in last().graphs if graph.kind == "backward")
    assert max(max(spec.strides, default=0) for region in backward.regions for spec in region.specs) <= 24
