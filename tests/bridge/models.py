"""``python -m tests.bridge.models [name ...]`` trains models through the bridge and in eager mode, and prints a table.

Models are tiny and have random weights. Those of ``transformers`` need it to be installed. Errors are the
largest absolute difference over max(|reference|, 1e-3), tensor by tensor.
"""

import argparse
import copy
import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tests.bridge import more_models
from tests.bridge.samples import by_reference
from tests.needs import needs

torch = needs("torch")
nn, F = torch.nn, torch.nn.functional

WIDTH, HEADS, ROWS, LENGTH, WORDS = 32, 4, 2, 12, 50


class Attention(nn.Module):
    def __init__(self, *, causal: bool, rotary: bool = False, biased: bool = False, fused: bool = True):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.causal, self.rotary, self.fused = causal, rotary, fused
        self.bias = nn.Embedding(2 * LENGTH, HEADS) if biased else None

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(width, 2))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            if self.bias is not None:
                place = torch.arange(length, device=x.device)
                scores = scores + self.bias(place[:, None] - place[None, :] + LENGTH).permute(2, 0, 1)
            if self.causal:
                later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(later, float("-inf"))
            y = F.softmax(scores.float(), -1).type_as(scores) @ v
        return self.out(y.transpose(1, 2).reshape(rows, length, width))


def rotated(x):
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half, device=x.device).float() / half)
    angle = torch.arange(x.shape[-2], device=x.device).float()[:, None] * speed
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    return (x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin).type_as(x)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class Block(nn.Module):
    """Norm, token mixing, norm, channel mixing, each with a residual connection."""

    def __init__(self, mix, channels, norm, dropout=0.0):
        super().__init__()
        self.norm1, self.mix, self.norm2, self.channels = norm(), mix, norm(), channels
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.mix(self.norm1(x)))
        return x + self.dropout(self.channels(self.norm2(x)))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Text(nn.Module):
    """Embedded tokens through blocks to the loss of the next token."""

    def __init__(self, *blocks, norm=None, dropout=0.0, places=True):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH) if places else None
        self.dropout, self.blocks = nn.Dropout(dropout), nn.ModuleList(blocks)
        self.norm = norm() if norm else nn.LayerNorm(WIDTH)

    def forward(self, words):
        x = self.words(words)
        if self.places is not None:
            x = x + self.places(torch.arange(words.shape[1], device=words.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits[:, :-1].reshape(-1, WORDS).float(), words[:, 1:].reshape(-1))


class Regression(nn.Module):
    """Some layers, and a loss of their result."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return torch.sigmoid(self.layers(x)).mean()


class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + x)


class Transposed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Selective(nn.Module):
    """A block like Mamba's: a causal convolution, a state per channel that is carried from token to token, a gate."""

    def __init__(self, states=4):
        super().__init__()
        self.norm, self.inward = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2)
        self.pick, self.speed = nn.Linear(WIDTH, 2 * states), nn.Linear(WIDTH, WIDTH)
        self.decay, self.skip = nn.Parameter(torch.rand(WIDTH, states)), nn.Parameter(torch.ones(WIDTH))
        self.outward = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y, gate = self.inward(self.norm(x)).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        read, write = self.pick(y).chunk(2, -1)
        step = F.softplus(self.speed(y))
        state, found = 0, []
        for place in range(x.shape[1]):
            here = step[:, place, :, None]
            state = torch.exp(-here * self.decay.exp()) * state + here * write[:, place, None] * y[:, place, :, None]
            found.append((state * read[:, place, None]).sum(-1))
        return x + self.outward((torch.stack(found, 1) + y * self.skip) * F.silu(gate))


def _words():
    return torch.randint(0, WORDS, (ROWS, LENGTH))


def _gelu():
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))


def _norm():
    return nn.LayerNorm(WIDTH)


def _gpt():
    return Text(*(Block(Attention(causal=True), _gelu(), _norm, 0.1) for _ in range(2)), dropout=0.1), _words()


def _llama():
    blocks = (Block(Attention(causal=True, rotary=True, fused=False), SwiGLU(), RMSNorm) for _ in range(2))
    return Text(*blocks, norm=RMSNorm, places=False), _words()


def _t5():
    blocks = (Block(Attention(causal=False, biased=True, fused=False), _gelu(), RMSNorm, 0.1) for _ in range(2))
    return Text(*blocks, norm=RMSNorm, places=False), _words()


def _encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.1, batch_first=True)
    return Regression(layer), torch.randn(ROWS, LENGTH, WIDTH)


def _mixer():
    tokens = Transposed(nn.Sequential(nn.Linear(LENGTH, 24), nn.GELU(), nn.Linear(24, LENGTH)))
    return Regression(Block(tokens, _gelu(), _norm)), torch.randn(ROWS, LENGTH, WIDTH)


OWN: dict[str, Callable[[], tuple[Any, Any]]] = {
    "nanoGPT": _gpt,
    "Llama-like": _llama,
    "T5-like encoder": _t5,
    "ViT-like": lambda: (Regression(nn.Conv2d(3, WIDTH, 4, stride=4), nn.Flatten(2), Transposed(nn.Identity()),
                                    *(Transposed(Block(Attention(causal=False), _gelu(), _norm)) for _ in range(2))),
                         torch.randn(ROWS, 3, 12, 12)),
    "TransformerEncoderLayer": _encoder,
    "MLP-Mixer": _mixer,
    "ResNet block": lambda: (Regression(ResidualBlock(), ResidualBlock()), torch.randn(4, 8, 10, 10)),
    "Mamba-like": lambda: (Regression(Selective(), Selective()), torch.randn(ROWS, 6, WIDTH)),
}  # fmt: skip


class Loss(nn.Module):
    """A model of ``transformers`` that returns its loss."""

    def __init__(self, model, **more):
        super().__init__()
        self.model, self.more = model, more

    def forward(self, given):
        if given.is_floating_point():
            return torch.sigmoid(self.model(given).last_hidden_state).mean()
        return self.model(input_ids=given, labels=given, **self.more).loss


def of_transformers() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """Well-known models, from configurations alone."""
    if importlib.util.find_spec("transformers") is None:
        return
    import transformers as t

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": WORDS}
    wide = {**small, "intermediate_size": 64, "max_position_embeddings": 64}
    grouped = {**wide, "num_key_value_heads": 2}

    def text(model: Any, config: Any, **more: Any) -> Callable[[], tuple[Any, Any]]:
        return lambda: (Loss(model(config), **more), _words())

    yield "GPT-2", text(t.GPT2LMHeadModel, t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=WORDS,
                                                        n_positions=64, bos_token_id=0, eos_token_id=0))
    yield "Llama", text(t.LlamaForCausalLM, t.LlamaConfig(**grouped))
    yield "Qwen2", text(t.Qwen2ForCausalLM, t.Qwen2Config(**grouped))
    yield "Gemma", text(t.GemmaForCausalLM, t.GemmaConfig(**grouped, head_dim=8))
    yield "BERT", text(t.BertForMaskedLM, t.BertConfig(**wide))
    yield "T5", text(t.T5ForConditionalGeneration, t.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=WORDS, decoder_start_token_id=0))
    yield "ViT", lambda: (Loss(t.ViTModel(t.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=12, patch_size=4,
    ))), torch.randn(ROWS, 3, 12, 12))
    yield "Mixtral", text(t.MixtralForCausalLM, t.MixtralConfig(**grouped, num_local_experts=4))
    yield "Mamba", lambda: (Loss(t.MambaForCausalLM(t.MambaConfig(
        hidden_size=32, num_hidden_layers=2, vocab_size=WORDS, state_size=4, use_mambapy=False,
    ))), torch.randint(0, WORDS, (ROWS, 6)))


def trained(model: Any, run: Callable[[Any], Any], given: Any, steps: int = 3) -> tuple[list[Any], list[Any], float]:
    """Losses, gradients of the first step, and the seconds of the last of several steps of AdamW."""
    torch.manual_seed(1)
    given = given if isinstance(given, tuple) else (given,)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, gradients, seconds = [], [], 0.0
    for number in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = run(*given)
        loss.backward()
        losses.append(loss.detach())
        if not number:
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        seconds = time.perf_counter() - began
    return losses, gradients, seconds


def error(ours: list[Any], theirs: list[Any]) -> float:
    """The largest error of some tensors, each relative to its own largest element."""
    return max(
        float((a - b).abs().max() / max(float(b.abs().max()), 1e-3)) for a, b in zip(ours, theirs, strict=True)
    )


def _in_dtype(given: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    return tuple(x.to(dtype) if dtype is not None and x.is_floating_point() else x for x in given)


def row(name: str, make: Callable[[], tuple[Any, Any]], dtype: Any = None) -> dict[str, Any]:
    """One line of the table."""
    import fuser_lab.torch as bridge

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = make()
    given = _in_dtype(given if isinstance(given, tuple) else (given,), dtype)
    model = model.to(dtype)
    model.train()
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    wider = torch.float64 if dtype is None else torch.float32
    wide = copy.deepcopy(model).to(wider)
    losses, gradients, eager = trained(model, model, given)
    model.load_state_dict(kept)
    before = bridge.last()
    compiled = torch.compile(model, backend="fuser_lab", options={"precision": "eager"})
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.manual_seed(1)
        compiled(*given).backward()
        first = time.perf_counter() - began
        for p in model.parameters():
            p.grad = None
        model.load_state_dict(kept)
        our_losses, our_gradients, seconds = trained(model, compiled, given)
    found = bridge.last()
    assert before is None or found.graphs != before.graphs, "torch captured nothing"
    near, exact = error(our_gradients, gradients), None
    if dtype is not None or near > 5e-6:
        torch.set_default_dtype(wider)  # the dtype of models' constants, such as the minimum in a mask
        try:
            reference = trained(wide, wide, _in_dtype(given, wider), steps=1)[1]
        finally:
            torch.set_default_dtype(torch.float32)
        exact = error(our_gradients, reference), error(gradients, reference)
    failed = [str(w.message) for w in warned if "torch runs region" in str(w.message)]
    shares = found.shares
    return {
        "model": name, "graphs": len(found.graphs), "regions": len(found.regions),
        "different": len({region.signature for region in found.regions}),
        "segments": sum(len(region.plan.segments) for region in found.regions if not region.failed),
        "in regions": shares.in_regions, "others": shares.others, "share": shares.fused,
        "forward error": error(our_losses, losses), "gradient error": near, "to exact": exact,
        "eager ms": eager * 1e3, "ours ms": seconds * 1e3, "first step s": first, "failed": failed,
        "left": [str(line) for line in found.left_to_torch if not line.is_free],
    }


HEAD = (
    "| model | regions (distinct) | segments | ops in regions | left, without kernels of their own | share | "
    "forward error | gradient error | eager / ours ms | first step s |"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of models; all by default")
    parser.add_argument("--more", action="store_true", help="the models of more_models.py")
    parser.add_argument("--reference", action="store_true", help="regions by the NumPy reference, without kernels")
    parser.add_argument("--left", action="store_true", help="list what is left to torch, with reasons")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.reference:
        from fuser_lab.bridge.torch_region import TorchRegion

        TorchRegion._run = by_reference
    models = {**OWN, **dict(of_transformers())}
    if chosen.more:
        models = {**more_models.OWN, **dict(more_models.of_transformers())}
    print(HEAD)
    print("|---" * 10 + "|")
    for name, make in models.items():
        if chosen.names and name not in chosen.names:
            continue
        try:
            one = row(name, make, None if chosen.dtype == "float32" else getattr(torch, chosen.dtype))
        except AssertionError as error:
            print(f"| {name} | {error} |")
            continue
        print(
            f"| {one['model']} | {one['regions']} ({one['different']}) | {one['segments']} | {one['in regions']} "
            f"| {one['others']} | {one['share']:.1%} | {one['forward error']:.0e} | {one['gradient error']:.0e} "
            f"| {one['eager ms']:.0f} / {one['ours ms']:.0f} | {one['first step s']:.1f} |", flush=True,
        )
        if one["to exact"]:
            wider = "float64" if chosen.dtype == "float32" else "float32"
            print(f"  gradient error to {wider}: {{:.0e}}, eager's: {{:.0e}}".format(*one["to exact"]), flush=True)
        for failed in one["failed"]:
            print(f"  failed: {failed}")
        if chosen.left:
            for line in one["left"]:
                print(f"  left: {line[:160]}")


if __name__ == "__main__":
    main()
