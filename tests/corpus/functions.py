"""Functions of tensors that programs fuse, in the sizes of real models: losses, steps of optimizers, rounding, masks.

Each takes tensors of the given shapes; the small form has the second shapes. A dtype may follow a shape after a colon
(``"4096,1024:int64"``); the default is Float.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function with the shapes of its inputs; ``gradient`` says whether it is captured with its backward."""

    name: str
    compute: Callable[..., Any]
    real: str
    small: str
    gradient: bool = True

    def inputs(self, *, small: bool) -> tuple[Any, ...]:
        """Return tensors on the current device."""
        return tuple(map(self._tensor, (self.small if small else self.real).split()))

    def _tensor(self, text: str) -> Any:
        shape, _, dtype = text.partition(":")
        made = torch.zeros(*map(int, shape.split(",")), dtype=getattr(torch, dtype or "float32"))
        return made.requires_grad_(self.gradient and made.is_floating_point())


def _label_smoothing(x: Any, target: Any) -> Any:
    return F.cross_entropy(x, target, label_smoothing=0.1)


def _z_loss(x: Any, target: Any) -> Any:
    return F.cross_entropy(x.float(), target) + 1e-4 * torch.logsumexp(x.float(), -1).square().mean()


def _distillation(student: Any, teacher: Any) -> Any:
    return F.kl_div(F.log_softmax(student / 2, -1), F.log_softmax(teacher / 2, -1), log_target=True, reduction="sum")


def _contrastive(a: Any, b: Any) -> Any:
    return (F.normalize(a, dim=-1) * F.normalize(b, dim=-1)).sum(-1)


def _focal(x: Any, y: Any) -> Any:
    p = torch.sigmoid(x)
    apart = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    return (apart * ((1 - (p * y + (1 - p) * (1 - y))) ** 2) * (0.25 * y + 0.75 * (1 - y))).mean()


def _dice(x: Any, y: Any) -> Any:
    p = torch.sigmoid(x)
    return (1 - (2 * (p * y).sum((2, 3)) + 1) / (p.sum((2, 3)) + y.sum((2, 3)) + 1)).mean()


def _boxes(a: Any, b: Any) -> Any:
    near = torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])
    common = near.clamp(min=0).prod(-1)
    area = (a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1) - common
    return (1 - common / (area + 1e-7)).mean()


def _ppo(new: Any, old: Any, gain: Any, value: Any, reward: Any) -> Any:
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    ratio = torch.exp(new - old)
    clipped = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    return clipped + 0.5 * (value - reward).square().mean()


def _dpo(chosen: Any, refused: Any, old_chosen: Any, old_refused: Any) -> Any:
    return -F.logsigmoid(0.1 * ((chosen - old_chosen).sum(-1) - (refused - old_refused).sum(-1))).mean()


def _log_probabilities(x: Any, words: Any) -> Any:
    return torch.log_softmax(x.float(), -1).gather(-1, words[..., None])[..., 0]


def _adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p * (1 - 1e-5) - 1e-3 * (m / 0.1) / (torch.sqrt(v / 0.001) + 1e-8), m, v


def _adamw_mixed(p: Any, g: Any, m: Any, v: Any) -> Any:
    p, m, v = _adamw(p, g.float(), m, v)
    return p, p.bfloat16(), m, v


def _adafactor(p: Any, g: Any, row: Any, column: Any) -> Any:
    square = g * g + 1e-30
    row, column = 0.9 * row + 0.1 * square.mean(-1), 0.9 * column + 0.1 * square.mean(-2)
    step = g * torch.rsqrt(row / row.mean())[:, None] * torch.rsqrt(column)[None]
    return p - 1e-2 * step / torch.clamp(step.square().mean().sqrt(), min=1.0), row, column


def _lion(p: Any, g: Any, m: Any) -> Any:
    return p * (1 - 1e-4) - 1e-4 * torch.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g


def _lamb(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = m / (v.sqrt() + 1e-6) + 0.01 * p
    return p - 1e-3 * p.norm() / step.norm() * step, m, v


def _momentum(p: Any, g: Any, m: Any) -> Any:
    m = 0.9 * m + g + 1e-4 * p
    return p - 0.1 * (g + 0.9 * m), m


def _clipped(a: Any, b: Any) -> Any:
    share = torch.clamp(1.0 / (torch.sqrt(a.square().sum() + b.square().sum()) + 1e-6), max=1.0)
    return a * share, b * share


def _int8_rows(x: Any) -> Any:
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() / scale).clamp(-128, 127).to(torch.int8), scale


def _int8_back(x: Any, rows: Any, columns: Any) -> Any:
    return (x.float() * rows * columns).bfloat16()


def _fp8_tensor(x: Any) -> Any:
    scale = 448.0 / x.float().abs().amax()
    return (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn), 1 / scale


def _fp8_blocks(x: Any) -> Any:
    wide = x.float().unflatten(-1, (-1, 128))
    scale = wide.abs().amax(-1, keepdim=True) / 448
    return (wide / scale).to(torch.float8_e4m3fn).flatten(-2), scale[..., 0]


def _rms_int8(x: Any, weight: Any) -> Any:
    wide = x.float()
    return _int8_rows(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight)


def _dropout_add_norm(x: Any, kept: Any, bias: Any, weight: Any) -> Any:
    y = F.dropout(x + bias, 0.1) + kept
    return F.layer_norm(y, y.shape[-1:], weight), y


def _rotary(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    def rotated(x: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    return rotated(q), rotated(k)


def _rotary_pairs(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _swiglu(x: Any) -> Any:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _geglu(x: Any, bias: Any) -> Any:
    gate, up = (x + bias).chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


def _masked_softmax(x: Any) -> Any:
    later = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return F.softmax((x / math.sqrt(128)).masked_fill(later, float("-inf")).float(), -1).to(x.dtype)


def _capped_softmax(x: Any) -> Any:
    return F.softmax((50 * torch.tanh(x.float() / 50)), -1).to(x.dtype)


def _alibi(x: Any, slope: Any) -> Any:
    place = torch.arange(x.shape[-1], device=x.device)
    return F.softmax(x.float() - slope[:, None, None] * (place[:, None] - place[None]).abs(), -1)


def _routed(x: Any) -> Any:
    shares = F.softmax(x.float(), -1)
    best, chosen = shares.topk(2, -1)
    load = F.one_hot(chosen, x.shape[-1]).float().mean((0, 1))
    return best / best.sum(-1, keepdim=True), (load * shares.mean(0)).sum() * x.shape[-1]


def _sampled(x: Any) -> Any:
    ordered, places = torch.sort(F.softmax(x.float() / 0.7, -1), descending=True)
    kept = ordered.masked_fill(ordered.cumsum(-1) - ordered > 0.9, 0)
    return kept / kept.sum(-1, keepdim=True), places


def _linear_attention(q: Any, k: Any, v: Any) -> Any:
    return (F.elu(q) + 1) * ((F.elu(k) + 1) * v).cumsum(1) / ((F.elu(k) + 1).cumsum(1) + 1e-6)


def _standardized_weight(x: Any, scale: Any) -> Any:
    spread, mean = torch.var_mean(x, (1, 2, 3), keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(spread + 1e-6) * scale[:, None, None, None]


def _weight_norm(v: Any, g: Any) -> Any:
    return v * (g / v.norm(dim=1, keepdim=True))


def _batch_norm(x: Any, weight: Any, bias: Any) -> Any:
    return F.relu(F.batch_norm(x, None, None, weight, bias, training=True))


def _instance_norm(x: Any, weight: Any, bias: Any) -> Any:
    return F.leaky_relu(F.instance_norm(x, weight=weight, bias=bias), 0.2)


def _group_norm(x: Any, weight: Any, bias: Any) -> Any:
    return F.silu(F.group_norm(x, 32, weight, bias))


def _squeeze_excite(x: Any, share: Any) -> Any:
    return x * torch.sigmoid(share)[:, :, None, None] + x.mean((2, 3), keepdim=True)


def _layer_scale(x: Any, y: Any, scale: Any) -> Any:
    return x + scale[:, None, None] * y.permute(0, 3, 1, 2)


def _normalized_image(x: Any, mean: Any, spread: Any) -> Any:
    return ((x.permute(0, 3, 1, 2).float() / 255) - mean[:, None, None]) / spread[:, None, None]


def _grey(x: Any) -> Any:
    y = (0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]).clamp(0, 1)
    return torch.where(y <= 0.04045, y / 12.92, ((y + 0.055) / 1.055) ** 2.4)


def _total_variation(x: Any) -> Any:
    return (x[:, :, 1:] - x[:, :, :-1]).abs().mean() + (x[:, :, :, 1:] - x[:, :, :, :-1]).abs().mean()


def _waves(steps: Any) -> Any:
    speed = torch.exp(-torch.arange(512, device=steps.device) * (9.2 / 512))
    angle = steps[:, None].float() * speed[None]
    return torch.cat([angle.sin(), angle.cos()], -1)


def _log_mel(x: Any) -> Any:
    y = torch.clamp(x, min=1e-10).log10()
    return (torch.maximum(y, y.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


def _variational(mean: Any, spread: Any) -> Any:
    drawn = mean + torch.randn_like(spread) * torch.exp(0.5 * spread)
    return drawn, -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1).mean()


def _lstm_cell(gates: Any, cell: Any) -> Any:
    i, f, g, o = gates.chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru_cell(x: Any, h: Any, old: Any) -> Any:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    new, z = torch.tanh(xn + torch.sigmoid(xr + hr) * hn), torch.sigmoid(xz + hz)
    return (1 - z) * new + z * old


def _scan_inputs(x: Any, delta: Any, a: Any, b: Any) -> Any:
    step = F.softplus(delta)[..., None]
    return torch.exp(step * -torch.exp(a)), step * b[..., None, :] * x[..., None]


def _diffusion_step(x: Any, noise: Any, free: Any, drawn: Any) -> Any:
    guided = free + 7.5 * (noise - free)
    start = ((x - 0.6 * guided) / 0.8).clamp(-1, 1)
    return 0.85 * start + 0.5 * guided + 0.1 * drawn


def _cosine_rows(x: Any, y: Any) -> Any:
    return F.cosine_similarity(x, y, dim=-1)


def _statistics(x: Any) -> Any:
    spread, mean = torch.var_mean(x, 0)
    return mean, spread, x.amin(0), x.amax(0), ((x - mean) / (spread + 1e-6).sqrt()).pow(3).mean(0)


def _average(p: Any, kept: Any) -> Any:
    return torch.lerp(kept, p, 0.001), (p - kept).abs().amax()


def _bias_gelu(x: Any, bias: Any) -> Any:
    return F.gelu(x + bias)


def _relu_squared(x: Any) -> Any:
    return F.relu(x).square()


def _query_norm(q: Any, weight: Any) -> Any:
    heads = q.unflatten(-1, (32, 128)).transpose(1, 2).float()
    return (heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1e-6)).to(q.dtype) * weight


def _patches(x: Any) -> Any:
    rows, channels, side, _ = x.shape
    cut = x.reshape(rows, channels, side // 16, 16, side // 16, 16).permute(0, 2, 4, 1, 3, 5)
    return cut.reshape(rows, (side // 16) ** 2, -1) * 2 - 1


def _windows(x: Any, bias: Any) -> Any:
    rows, side, _, width = x.shape
    cut = torch.roll(x, (-3, -3), (1, 2)).reshape(rows, side // 7, 7, side // 7, 7, width).permute(0, 1, 3, 2, 4, 5)
    return cut.reshape(-1, 49, width) + bias


_WIDE, _WIDE_SMALL = "8192,4096:bfloat16", "512,4096:bfloat16"
_SCORES, _SCORES_SMALL = "1,32,2048,2048:bfloat16", "1,32,256,256:bfloat16"
_PARAMETER, _PARAMETER_SMALL = "14336,4096", "1024,1024"
_PICTURE, _PICTURE_SMALL = "32,256,56,56", "2,256,56,56"


def _of(name: str, compute: Callable[..., Any], real: str, small: str, *, gradient: bool = True) -> Function:
    return Function(name=name, compute=compute, real=real, small=small, gradient=gradient)


def _step(name: str, compute: Callable[..., Any], count: int) -> Function:
    """Return a step of an optimizer: ``count`` tensors of a parameter's shape, and no gradient."""
    return _of(name, compute, " ".join([_PARAMETER] * count), " ".join([_PARAMETER_SMALL] * count), gradient=False)


FUNCTIONS: tuple[Function, ...] = (
    _of("cross entropy with label smoothing", _label_smoothing, "8192,50257 8192:int64", "256,50257 256:int64"),
    _of("cross entropy with z-loss", _z_loss, "4096,128256:bfloat16 4096:int64", "64,128256:bfloat16 64:int64"),
    _of("distillation", _distillation, "4096,32000 4096,32000", "256,32000 256,32000"),
    _of("cosine of normalized rows", _contrastive, "32768,768 32768,768", "1024,768 1024,768"),
    _of("focal loss", _focal, "8,80,100,152 8,80,100,152", "1,80,100,152 1,80,100,152"),
    _of("dice loss", _dice, "16,21,512,512 16,21,512,512", "1,21,256,256 1,21,256,256"),
    _of("loss of boxes", _boxes, "65536,4 65536,4", "8192,4 8192,4"),
    _of("PPO", _ppo, " ".join(["1048576"] * 5), " ".join(["65536"] * 5)),
    _of("DPO", _dpo, " ".join(["64,2048"] * 4), " ".join(["16,2048"] * 4)),
    _of("log probabilities of words", _log_probabilities, "8,1024,50257 8,1024:int64", "1,128,50257 1,128:int64"),
    _step("AdamW", _adamw, 4),
    _of("AdamW with bfloat16 gradients", _adamw_mixed, "14336,4096 14336,4096:bfloat16 14336,4096 14336,4096",
        "1024,1024 1024,1024:bfloat16 1024,1024 1024,1024", gradient=False),
    _of("Adafactor", _adafactor, "14336,4096 14336,4096 14336 4096", "1024,1024 1024,1024 1024 1024", gradient=False),
    _step("Lion", _lion, 3),
    _step("LAMB", _lamb, 4),
    _step("momentum", _momentum, 3),
    _step("gradients clipped by norm", _clipped, 2),
    _step("exponential average of weights", _average, 2),
    _of("rows to int8", _int8_rows, _WIDE, _WIDE_SMALL, gradient=False),
    _of("int32 products to bfloat16", _int8_back, "8192,4096:int32 8192,1 4096", "512,4096:int32 512,1 4096",
        gradient=False),
    _of("tensor to fp8", _fp8_tensor, _WIDE, _WIDE_SMALL, gradient=False),
    _of("blocks of 128 to fp8", _fp8_blocks, _WIDE, _WIDE_SMALL, gradient=False),
    _of("RMS norm to int8", _rms_int8, f"{_WIDE} 4096", f"{_WIDE_SMALL} 4096", gradient=False),
    _of("bias, dropout, residual, layer norm", _dropout_add_norm, "16384,1024 16384,1024 1024 1024",
        "1024,1024 1024,1024 1024 1024"),
    _of("rotary, halves", _rotary, "4,32,2048,128 4,8,2048,128 2048,128 2048,128",
        "1,32,256,128 1,8,256,128 256,128 256,128"),
    _of("rotary, pairs", _rotary_pairs, "4,32,2048,128 2048,64 2048,64", "1,32,256,128 256,64 256,64"),
    _of("SwiGLU of one product", _swiglu, "8192,28672:bfloat16", "256,28672:bfloat16"),
    _of("GeGLU with bias", _geglu, "8192,8192:bfloat16 8192:bfloat16", "512,8192:bfloat16 8192:bfloat16"),
    _of("causal softmax", _masked_softmax, _SCORES, _SCORES_SMALL),
    _of("capped softmax", _capped_softmax, _SCORES, _SCORES_SMALL),
    _of("ALiBi softmax", _alibi, f"{_SCORES} 32", f"{_SCORES_SMALL} 32"),
    _of("routing to two of 64 experts", _routed, "16384,64", "2048,64"),
    _of("sampling by top-p", _sampled, "64,32000", "8,32000", gradient=False),
    _of("linear attention", _linear_attention, "8,2048,1024 8,2048,1024 8,2048,1024", "1,512,512 1,512,512 1,512,512"),
    _of("standardized weights", _standardized_weight, "1024,512,3,3 1024", "256,128,3,3 256"),
    _of("weight norm", _weight_norm, "4096,4096 4096,1", "1024,1024 1024,1"),
    _of("batch norm and ReLU", _batch_norm, f"{_PICTURE} 256 256", f"{_PICTURE_SMALL} 256 256"),
    _of("instance norm and leaky ReLU", _instance_norm, f"{_PICTURE} 256 256", f"{_PICTURE_SMALL} 256 256"),
    _of("group norm and SiLU", _group_norm, f"{_PICTURE} 256 256", f"{_PICTURE_SMALL} 256 256"),
    _of("squeeze and excite", _squeeze_excite, f"{_PICTURE} 32,256", f"{_PICTURE_SMALL} 2,256"),
    _of("layer scale of channels last", _layer_scale, f"{_PICTURE} 32,56,56,256 256",
        f"{_PICTURE_SMALL} 2,56,56,256 256"),
    _of("images from bytes", _normalized_image, "64,224,224,3:uint8 3 3", "4,224,224,3:uint8 3 3", gradient=False),
    _of("grey of linear light", _grey, "64,3,512,512", "2,3,512,512"),
    _of("total variation", _total_variation, "16,3,512,512", "1,3,512,512"),
    _of("embedding of time steps", _waves, "4096:int64", "1024:int64", gradient=False),
    _of("logarithm of a mel spectrum", _log_mel, "16,80,3000", "2,80,3000", gradient=False),
    _of("variational sample", _variational, "8192,512 8192,512", "1024,512 1024,512"),
    _of("LSTM cell", _lstm_cell, "512,4096 512,1024", "64,4096 64,1024"),
    _of("GRU cell", _gru_cell, "512,3072 512,3072 512,1024", "64,3072 64,3072 64,1024"),
    _of("inputs of a selective scan", _scan_inputs, "4,1024,2048 4,1024,2048 2048,16 4,1024,16",
        "1,64,2048 1,64,2048 2048,16 1,64,16"),
    _of("guided step of diffusion", _diffusion_step, " ".join(["32,4,64,64"] * 4), " ".join(["2,4,64,64"] * 4),
        gradient=False),
    _of("cosine similarity", _cosine_rows, "65536,1024 65536,1024", "2048,1024 2048,1024"),
    _of("moments of columns", _statistics, "65536,512", "4096,512", gradient=False),
    _of("bias and GELU", _bias_gelu, "8192,16384:bfloat16 16384:bfloat16", "256,16384:bfloat16 16384:bfloat16"),
    _of("squared ReLU", _relu_squared, "8192,16384:bfloat16", "256,16384:bfloat16"),
    _of("RMS norm of each head", _query_norm, "4,2048,4096:bfloat16 128:bfloat16",
        "1,256,4096:bfloat16 128:bfloat16"),
    _of("images to patches", _patches, "32,3,224,224", "2,3,224,224"),
    _of("shifted windows", _windows, "16,56,56,96 49,96", "1,56,56,96 49,96"),
)
