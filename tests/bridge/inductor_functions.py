"""Small functions that torch.compile fuses in many ways, with their arguments by shape."""

from collections.abc import Callable
from typing import Any

from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional


def _norm_mlp(x: Any, w: Any, m: Any) -> Any:
    y = F.rms_norm(x, (x.shape[-1],), w)
    return F.silu(y @ m) + x


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-1, -2) / 8
    return torch.softmax(scores, -1) @ v


def _statistics(x: Any) -> Any:
    return x.amax(-1), x.mean(-1), (x * x).mean(-1), x.std(-1)


def _adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    return p - 0.001 * m / (v.sqrt() + 1e-8), m, v


def _rotation(x: Any, c: Any, s: Any) -> Any:
    a, b = x.chunk(2, -1)
    return x * c + torch.cat([-b, a], -1) * s


def _two_norms(x: Any, w: Any) -> Any:
    y = F.layer_norm(x, (x.shape[-1],), w)
    return F.layer_norm(torch.tanh(y) + x, (x.shape[-1],), w)


def _in_place(x: Any, y: Any) -> Any:
    z = x.sin()
    z.mul_(y).add_(1)
    return z, z.sum(0)


def _long_chain(x: Any) -> Any:
    for _ in range(40):
        x = torch.sin(x) + 0.1
    return x


def _many_sums(x: Any) -> Any:
    return [(x * n).sum(n % 2) for n in range(1, 7)]


SQUARE = ((32, 32),)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "add": (lambda a, b: a + b, (*SQUARE, *SQUARE)),
    "gelu": (F.gelu, SQUARE),
    "softmax": (lambda a: torch.softmax(a, -1), SQUARE),
    "softmax of columns": (lambda a: torch.softmax(a, 0), SQUARE),
    "log softmax": (lambda a: F.log_softmax(a, -1), SQUARE),
    "layer norm": (lambda a, w: F.layer_norm(a, (32,), w), (*SQUARE, (32,))),
    "rms norm and mlp": (_norm_mlp, (*SQUARE, (32,), *SQUARE)),
    "batch norm": (lambda a: F.batch_norm(a, None, None, training=True), ((8, 4, 6, 6),)),
    "group norm": (lambda a: F.group_norm(a, 2), ((4, 8, 6, 6),)),
    "attention": (_attention, ((2, 16, 8), (2, 16, 8), (2, 16, 8))),
    "library attention": (F.scaled_dot_product_attention, ((2, 4, 16, 8), (2, 4, 16, 8), (2, 4, 16, 8))),
    "statistics": (_statistics, SQUARE),
    "adam": (_adam, (*SQUARE, *SQUARE, *SQUARE, *SQUARE)),
    "rotation": (_rotation, ((4, 16, 8), (16, 8), (16, 8))),
    "two norms": (_two_norms, (*SQUARE, (32,))),
    "in place": (_in_place, (*SQUARE, *SQUARE)),
    "long chain": (_long_chain, SQUARE),
    "many sums": (_many_sums, SQUARE),
    "sum of both axes": (lambda a: (a.sum(0), a.sum(1)), SQUARE),
    "sum of a sum": (lambda a: a.sum(0).exp().sum(), SQUARE),
    "transposed sum": (lambda a, b: a.t() + b, ((32, 16), (16, 32))),
    "transposed result": (lambda a: (a.exp().t().contiguous(), a.exp()), SQUARE),
    "product of matrices": (lambda a, b: a @ b, (*SQUARE, *SQUARE)),
    "product and relu": (lambda a, b: F.relu(a @ b) + 1, (*SQUARE, *SQUARE)),
    "two products": (lambda a, b: (F.gelu(a @ b) @ b).sum(-1), (*SQUARE, *SQUARE)),
    "linear": (lambda a, w, b: F.linear(a.sin(), w, b).cos(), (*SQUARE, *SQUARE, (32,))),
    "convolution": (lambda a, w: F.relu(F.conv2d(a, w)), ((2, 3, 8, 8), (4, 3, 3, 3))),
    "pool": (lambda a: F.max_pool2d(a, 2).sum(), ((2, 3, 8, 8),)),
    "average pool": (lambda a: F.avg_pool2d(a.exp(), 2), ((2, 3, 8, 8),)),
    "sort": (lambda a: torch.sort(a.sin(), -1).values + 1, SQUARE),
    "top values": (lambda a: torch.topk(a * 2, 3).values.sum(), SQUARE),
    "cumulative sum": (lambda a: torch.cumsum(a.exp(), -1) * 2, SQUARE),
    "look-up": (lambda a, w: (w[(a.abs() * 3).long().clamp(0, 7)]).sum(-1), (*SQUARE, (8, 4))),
    "cat": (lambda a, b: torch.cat([a.sin(), b.cos()], -1) + 1, (*SQUARE, *SQUARE)),
    "stack and mean": (lambda a, b: torch.stack([a, b]).mean(0), (*SQUARE, *SQUARE)),
    "pad": (lambda a: F.pad(a.sin(), (1, 1)).sum(-1), SQUARE),
    "roll": (lambda a: torch.roll(a, 1, 0) - a, SQUARE),
    "where": (lambda a, b: torch.where(a > 0, a.exp(), b).sum(-1), (*SQUARE, *SQUARE)),
    "variance": (lambda a: (a - a.mean(-1, keepdim=True)) / a.var(-1, keepdim=True).sqrt(), SQUARE),
    "norm of all": (lambda a: a / a.norm(), SQUARE),
    "cross entropy": (lambda a, b: F.cross_entropy(a, b.softmax(-1)), (*SQUARE, *SQUARE)),
    "squared error": (F.mse_loss, (*SQUARE, *SQUARE)),
    "outer sum": (lambda a, b: (a[:, None] * b[None]).sum(1), ((32,), (32,))),
    "different sizes": (lambda a, b: (a.sin(), b.cos()), ((32, 32), (16, 8))),
    "unrelated": (lambda a, b: (a.sin(), b.sin().sum()), (*SQUARE, *SQUARE)),
    "largest place": (lambda a: (a.argmax(-1), a.max()), SQUARE),
    "scatter": (lambda a, b: a.scatter_add(1, (b.abs() * 5).long().clamp(0, 31), b), (*SQUARE, *SQUARE)),
    "reshape and sum": (lambda a: a.exp().reshape(8, 4, 32).sum(1), SQUARE),
    "gated": (lambda a: F.glu(a * 2).sum(0), SQUARE),
    "half precision": (lambda a: torch.softmax(a.bfloat16(), -1).float() * 2, SQUARE),
}


def inputs_of(shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    """Random tensors of these shapes."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


# Well-known models at tiny sizes, with their losses: transformers, convolutions, scans and experts.
MODELS = (
    "GPT-2", "Llama", "BERT", "ViT", "T5", "Mixtral", "Mamba", "DeepSeek", "ConvNeXt", "ResNet block",
    "UNet with time steps", "experts by top-k",
)


def model_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A model of `MODELS` and its inputs."""
    from tests.bridge import models, more_models

    choices = {**models.OWN, **more_models.OWN, **dict(models.of_transformers()), **dict(more_models.of_transformers())}
    torch.manual_seed(0)
    model, inputs = choices[name]()
    return model, inputs if isinstance(inputs, tuple) else (inputs,)
