"""Functions with what plans of torch.compile meet beside plain fusions: writes in place, views, casts, random numbers,
look-ups, libraries, graph breaks, losses with gradients, lists of tensors, and sizes that are symbols."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional


@dataclass(frozen=True)
class Program:
    """A function with a maker of its inputs; with ``backward`` its gradients are computed as well."""

    function: Callable[..., Any]
    inputs: Callable[[], list[Any]]
    backward: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


def _tensors(*shapes: Any) -> Callable[[], list[Any]]:
    def made() -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        return [
            torch.randint(0, 7, shape[1:], generator=generator) if shape[0] == "ints"
            else torch.randn(shape, generator=generator) for shape in shapes
        ]

    return made


def _leaves(*shapes: Any) -> Callable[[], list[Any]]:
    plain = _tensors(*shapes)
    return lambda: [x.requires_grad_(x.is_floating_point()) for x in plain()]


def _cast(dtype: Any, *shapes: Any) -> Callable[[], list[Any]]:
    plain = _tensors(*shapes)
    return lambda: [x.to(dtype) if x.is_floating_point() else x for x in plain()]


def _attention(x: Any, w: Any) -> Any:
    q, k, v = (x @ w).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * 8**-0.5
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return (scores.masked_fill(~causal, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(2)


def _online_softmax(x: Any) -> Any:
    top = x.amax(-1, keepdim=True)
    e = (x - top).exp()
    return e / e.sum(-1, keepdim=True), top.squeeze(-1) + e.sum(-1).log()


def _entropy(x: Any) -> Any:
    p = x.softmax(-1)
    return -(p * x.log_softmax(-1)).sum(-1).mean()


def _index_put(x: Any, i: Any, v: Any) -> Any:
    y = x.clone()
    y[i] = v
    y.index_put_((i,), v.exp(), accumulate=True)
    return y.sum(0), y


def _scatter_gather(x: Any, i: Any) -> Any:
    y = torch.zeros_like(x).scatter_reduce(1, i, x.sin(), "amax", include_self=False)
    return y.gather(1, i) + x.gather(1, i.flip(1))


def _conv_bn(x: Any, w: Any, m: Any, v: Any, g: Any, b: Any) -> Any:
    return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), m, v.abs(), g, b)).mean((2, 3))


def _conv_bn_training(x: Any, w: Any, g: Any, b: Any) -> Any:
    m, v = torch.zeros(4), torch.ones(4)
    y = F.batch_norm(F.conv2d(x, w, padding=1), m, v, g, b, training=True)
    return F.gelu(y).sum(), m, v


def _mutation(x: Any, y: Any) -> Any:
    x.mul_(2).add_(y)
    z = x.exp()
    y.copy_(z.sum(0, keepdim=True).expand_as(y))
    return z, x[::2]


def _slices(x: Any) -> Any:
    y = x.sin()
    y[:, 1:5] = 0
    y[2:4].mul_(3)
    return y[:, ::2].contiguous() + y[:, 1::2], y.view(-1).cumsum(0)


def _rope(q: Any, k: Any) -> Any:
    half = q.shape[-1] // 2
    angles = torch.arange(q.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)

    def turned(x: Any) -> Any:
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    return turned(q) @ turned(k).mT


def _dropout(x: Any, y: Any) -> Any:
    return F.dropout(F.gelu(x), 0.3, training=True) + y, torch.rand_like(x).sum(-1)


def _quantized(x: Any) -> Any:
    scale = x.abs().amax(-1, keepdim=True) / 127
    q = (x / scale).round().clamp(-128, 127).to(torch.int8)
    return q, q.float() * scale - x, scale


def _int_matmul(a: Any, b: Any) -> Any:
    return torch._int_mm(a, b).float() * 0.1


def _mixed(x: Any) -> Any:
    y = x.double()
    return (y - y.mean()).square().sum().float(), x.half() + 1, x.bfloat16().cumsum(0)


def _axes(x: Any) -> Any:
    return x.sum((0, 2)), x.amax(1), x.mean((1, 2)), x.prod(-1), x.logsumexp(0), x.var((0, 1)), x.any(), x.argmin(1)


def _foreach(p: Any, q: Any, g: Any, h: Any) -> Any:
    ps, gs = [p, q], [g, h]
    torch._foreach_mul_(ps, 0.9)
    torch._foreach_add_(ps, gs, alpha=-0.1)
    norms = torch._foreach_norm(gs)
    return *torch._foreach_sqrt(torch._foreach_abs(ps)), torch.stack(norms)


def _sgd_step(x: Any, w: Any, b: Any) -> Any:
    w = w.detach().requires_grad_()
    b = b.detach().requires_grad_()
    loss = F.mse_loss(torch.tanh(x @ w + b), x)
    gw, gb = torch.autograd.grad(loss, (w, b))
    return w - 0.1 * gw, b - 0.1 * gb, loss


def _sorted(x: Any) -> Any:
    values, places = x.sort(-1, descending=True)
    top, where = x.topk(4, 0)
    return values.cumsum(-1), places.float().mean(), top.exp(), where + 1, torch.unique_consecutive(values[0] > 0)


def _complex(x: Any) -> Any:
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(z * torch.polar(torch.ones(()), torch.tensor(0.3))).flatten(-2)
    return turned.sin() + x, turned.sum(-1)


def _spectrum(x: Any) -> Any:
    return torch.fft.rfft(x.sin()).abs().log1p().sum(-1)


def _broken(x: Any) -> Any:
    y = x.sin().softmax(-1)
    torch._dynamo.graph_break()
    z = y.cos() @ x
    torch._dynamo.graph_break()
    return z.sum(0) + y.mean()


def _printed(x: Any) -> Any:
    y = (x * 2).sum(-1)
    scale = y.sum().item()
    return y.exp() / scale


def _experts(x: Any, gate: Any, up: Any, down: Any) -> Any:
    weights, chosen = (x @ gate).softmax(-1).topk(2)
    hidden = F.silu(torch.einsum("td,edh->teh", x, up))
    each = torch.einsum("teh,ehd->ted", hidden, down)
    picked = each.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))
    return (picked * (weights / weights.sum(-1, keepdim=True))[..., None]).sum(1)


def _contrastive(a: Any, b: Any) -> Any:
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = a @ b.t() * 10
    target = torch.arange(a.shape[0])
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def _scan(x: Any, d: Any) -> Any:
    state, states = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = state * d.sigmoid() + x[:, step]
        states.append(state)
    return torch.stack(states, 1).tanh().sum(-1)


def _window(x: Any) -> Any:
    windows = x.unfold(-1, 4, 2)
    return windows.mean(-1), windows.amax(-1) - x[..., : windows.shape[-2]]


def _interpolated(x: Any) -> Any:
    return F.interpolate(x.sin(), scale_factor=2, mode="bilinear") + 1, F.adaptive_avg_pool2d(x.exp(), 2)


def _embedding_bag(i: Any, w: Any) -> Any:
    e = F.embedding(i, w)
    return F.layer_norm(e.mean(1), (e.shape[-1],)), e.amax(1)


def _huber(x: Any, y: Any) -> Any:
    return F.huber_loss(x.tanh(), y) + F.binary_cross_entropy_with_logits(x, y.sigmoid())


def _cumulative(x: Any) -> Any:
    return x.cumsum(-1) / x.exp().cumsum(-1), x.sigmoid().cumprod(0).log(), x.cummax(-1).values, x.logcumsumexp(-1)


def _lists(x: Any, y: Any) -> Any:
    parts = x.split([3, 5, 8], -1)
    cat = torch.cat([p.sin() for p in parts[::-1]] + [y], -1)
    return torch.stack([cat, cat.flip(-1)]).sum(0), torch.hstack([x, y]).t().contiguous()


def _bits(i: Any, j: Any) -> Any:
    return (i << 1) ^ (j & 3), (i // (j + 1)).sum(0), i.bincount(minlength=8) if i.ndim == 1 else i % (j + 1)


def _checked(x: Any) -> Any:
    return torch.where(x.isnan() | (x > 2), torch.zeros_like(x), x).nonzero().float().sum(0)


def _vit_patch(x: Any, w: Any, c: Any) -> Any:
    patches = F.conv2d(x, w, stride=4).flatten(2).transpose(1, 2)
    return F.layer_norm(torch.cat([c.expand(x.shape[0], -1, -1), patches], 1), (w.shape[0],))


def _llm_loss(h: Any, w: Any, t: Any) -> Any:
    return F.cross_entropy((h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)) @ w, t, label_smoothing=0.1)


def _ragged(x: Any, n: Any) -> Any:
    mask = torch.arange(x.shape[1]) < n[:, None]
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


MATRIX = (16, 16)
PROGRAMS: dict[str, Program] = {
    "causal attention": Program(_attention, _tensors((2, 8, 16), (16, 48))),
    "causal attention, gradients": Program(_attention, _leaves((2, 8, 16), (16, 48)), backward=True),
    "softmax with its logarithm": Program(_online_softmax, _tensors(MATRIX)),
    "entropy, gradients": Program(_entropy, _leaves(MATRIX), backward=True),
    "index_put": Program(_index_put, _tensors((16, 8), ("ints", 5), (5, 8))),
    "scatter and gather": Program(_scatter_gather, _tensors((8, 7), ("ints", 8, 7))),
    "convolution and batch norm": Program(_conv_bn, _tensors((2, 3, 8, 8), (4, 3, 3, 3), (4,), (4,), (4,), (4,))),
    "convolution and batch norm, gradients": Program(
        _conv_bn_training, _leaves((2, 3, 8, 8), (4, 3, 3, 3), (4,), (4,)), backward=True),
    "arguments written in place": Program(_mutation, _tensors(MATRIX, MATRIX)),
    "slices written in place": Program(_slices, _tensors(MATRIX)),
    "rotary products": Program(_rope, _tensors((2, 8, 16), (2, 8, 16))),
    "dropout and random numbers": Program(_dropout, _tensors(MATRIX, MATRIX)),
    "dropout, gradients": Program(
        lambda x, y: F.dropout(x.exp(), 0.5).sum(-1) * y.sum(), _leaves(MATRIX, MATRIX), backward=True),
    "int8 quantization": Program(_quantized, _tensors(MATRIX)),
    "product of int8": Program(
        _int_matmul, lambda: [torch.ones(32, 32, dtype=torch.int8), torch.ones(32, 32, dtype=torch.int8)]),
    "mixed precision": Program(_mixed, _tensors(MATRIX)),
    "bfloat16 layer norm, gradients": Program(
        lambda x: F.layer_norm(x, (16,)).square().mean(),
        lambda: [torch.randn(8, 16).bfloat16().requires_grad_()], backward=True),
    "float64 norm": Program(lambda x: x / x.norm(dim=-1, keepdim=True), _cast(torch.float64, MATRIX)),
    "reductions over axes": Program(_axes, _tensors((4, 6, 8))),
    "lists of tensors": Program(_foreach, _tensors(MATRIX, (8,), MATRIX, (8,))),
    "a step of SGD": Program(_sgd_step, _tensors(MATRIX, MATRIX, (16,)), backward=True),
    "sorts": Program(_sorted, _tensors(MATRIX)),
    "complex views": Program(_complex, _tensors(MATRIX)),
    "spectrum": Program(_spectrum, _tensors(MATRIX)),
    "dynamic softmax": Program(
        lambda x, y: x.softmax(-1) @ y + x.mean(), _tensors((8, 16), (16, 4)), options={"dynamic": True}),
    "dynamic sums": Program(
        lambda x: (x.sum(0), x.exp().sum(1), x.reshape(-1).sum()), _tensors((8, 16)), options={"dynamic": True}),
    "dynamic layer norm, gradients": Program(
        lambda x: F.layer_norm(x, x.shape[-1:]).exp().mean(), _leaves(MATRIX), backward=True,
        options={"dynamic": True}),
    "graph breaks": Program(_broken, _tensors(MATRIX)),
    "a number read in between": Program(_printed, _tensors(MATRIX)),
    "experts by top-k": Program(_experts, _tensors((8, 16), (16, 4), (4, 16, 8), (4, 8, 16))),
    "experts, gradients": Program(_experts, _leaves((8, 16), (16, 4), (4, 16, 8), (4, 8, 16)), backward=True),
    "contrastive loss, gradients": Program(_contrastive, _leaves(MATRIX, MATRIX), backward=True),
    "scan by a loop": Program(_scan, _tensors((4, 6, 8), (8,))),
    "windows": Program(_window, _tensors((4, 16))),
    "resized images": Program(_interpolated, _tensors((2, 3, 8, 8))),
    "bag of embeddings": Program(_embedding_bag, _tensors(("ints", 4, 5), (8, 16))),
    "two losses, gradients": Program(_huber, _leaves(MATRIX, MATRIX), backward=True),
    "cumulative": Program(_cumulative, _tensors(MATRIX)),
    "cat, stack, split": Program(_lists, _tensors(MATRIX, (16, 4))),
    "bits of integers": Program(_bits, _tensors(("ints", 16), ("ints", 16))),
    "places that are data": Program(_checked, _tensors(MATRIX)),
    "patches": Program(_vit_patch, _tensors((2, 3, 8, 8), (16, 3, 4, 4), (1, 1, 16))),
    "loss of a language model, gradients": Program(_llm_loss, _leaves((8, 16), (16, 7), ("ints", 8)), backward=True),
    "means of ragged rows": Program(_ragged, _tensors((4, 6, 8), ("ints", 4))),
    "without search for templates": Program(
        lambda x, y: (x @ y).relu().sum(-1), _tensors(MATRIX, MATRIX), options={"options": {"max_autotune": False}}),
}
