"""Functions and modules as users of torch write them, with small inputs, which no other list of the tests contains."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional
nn = torch.nn


@dataclass(frozen=True, kw_only=True)
class User:
    """A call of a user: what is captured, and with which arguments; ``names`` are variables around the call."""

    model: Any
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)


USERS: dict[str, Callable[[], User]] = {}


def user(make: Callable[[], Any]) -> Callable[[], Any]:
    """Add a call to the list; the function returns the model, or the model and its arguments, or a `User`."""
    def made() -> User:
        torch.manual_seed(0)
        made = make()
        if isinstance(made, tuple):
            return User(model=made[0], inputs=made[1:])
        return made if isinstance(made, User) else User(model=made, inputs=())

    USERS[make.__name__] = made
    return made


class Block(nn.Module):
    """A transformer block before whose parts a norm is."""

    def __init__(self, width=32, heads=4, *, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


@user
def transformer_block():
    return Block(), torch.randn(2, 16, 32)


@user
def gpt2_with_words_as_a_keyword():
    import transformers

    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=101, n_positions=32, use_cache=False)
    words = torch.randint(0, 101, (2, 16))
    return User(model=transformers.GPT2LMHeadModel(config), inputs=(), keywords={"input_ids": words, "labels": words})


@user
def llama_whose_output_is_a_dict():
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=101, use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).eval(), torch.randint(0, 101, (2, 16))


class Residual(nn.Module):
    """Two convolutions with batch norms, around which the input is added."""

    def __init__(self, channels=8):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(x + self.bn2(self.conv2(y)))


@user
def residual_block_in_training():
    return Residual(), torch.randn(2, 8, 12, 12)


@user
def residual_block_with_channels_last():
    return Residual().eval(), torch.randn(2, 8, 12, 12).to(memory_format=torch.channels_last)


@user
def gru_cell_over_time():
    cell = nn.GRUCell(8, 16)

    def unrolled(steps, state):
        for x in steps:
            state = cell(x, state)
        return state

    return unrolled, list(torch.randn(3, 4, 8)), torch.zeros(4, 16)


@user
def lstm_layer():
    return nn.LSTM(8, 16, batch_first=True), torch.randn(2, 5, 8)


@user
def focal_loss():
    def loss(logits, targets, *, gamma=2.0):
        log_p = F.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)
        return -((1 - log_p.exp()) ** gamma * log_p).mean()

    return User(model=loss, inputs=(torch.randn(16, 10), torch.randint(0, 10, (16,))), keywords={"gamma": 1.5})


@user
def info_nce_loss():
    def loss(a, b):
        scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() / 0.07
        return F.cross_entropy(scores, torch.arange(len(a)))

    return loss, torch.randn(16, 24), torch.randn(16, 24)


@user
def adamw_by_hand():
    def step(p, g, m, v, t: int):
        m = m.lerp(g, 0.1)
        v = v * 0.999 + 0.001 * g * g
        return p * 0.999 - 1e-3 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8), m, v

    return step, *torch.randn(3, 64), torch.rand(64), 3


@user
def step_of_an_optimizer():
    parameters = [nn.Parameter(torch.randn(16)) for _ in range(3)]
    for p in parameters:
        p.grad = torch.randn(16)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9).step


@user
def top_p_sampler():
    def keep(logits, p: float):
        ranked, order = torch.sort(logits, descending=True)
        shares = torch.softmax(ranked, -1)
        dropped = shares.cumsum(-1) - shares > p
        return logits.masked_fill(dropped.scatter(1, order, dropped), float("-inf"))

    return keep, torch.randn(4, 50), 0.9


@user
def sampler_that_draws():
    def draw(logits, temperature):
        noise = -torch.log(-torch.log(torch.rand_like(logits)))
        return (logits / temperature + noise).argmax(-1)

    return draw, torch.randn(4, 50), torch.tensor(0.7)


@user
def branch_on_a_value():
    def step(x):
        y = torch.tanh(x) * 2
        if y.sum() > 0:
            return y.softmax(-1)
        return y.relu() + 1

    return step, torch.randn(8, 16)


@user
def graph_break_in_the_middle():
    def step(x):
        y = (x * 2).relu()
        scale = y.max().item()
        return (y / (scale + 1)).sigmoid() * y

    return step, torch.randn(8, 16)


@user
def prints_between_ops():
    def step(x):
        y = torch.nn.functional.silu(x) * x
        print("computed", y.shape)
        return y.softmax(-1)

    return step, torch.randn(8, 16)


@user
def numpy_inside():
    def step(x):
        weights = np.hanning(x.shape[-1]).astype(np.float32)
        return (x * torch.from_numpy(weights)).log1p().sum(-1)

    return step, torch.rand(8, 16)


class Averaged(nn.Module):
    """A layer that counts its calls, and keeps a moving average in buffers."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return (x - self.mean) / x.std(0)


@user
def module_with_buffers():
    return Averaged(16), torch.randn(8, 16)


@user
def outputs_in_a_dict_and_a_tuple():
    def heads(x):
        y = F.gelu(x)
        return {"logits": y * 2, "extra": (y.mean(-1), [y.amax(-1)])}

    return heads, torch.randn(8, 16)


@user
def masked_attention_with_keywords():
    def attend(query, key, value, *, mask=None, scale: float = 1.0):
        scores = query @ key.transpose(-1, -2) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ value

    q, k, v = torch.randn(3, 2, 8, 4)
    return User(
        model=attend, inputs=(q,), keywords={
            "key": k, "value": v, "mask": torch.ones(8, 8, dtype=torch.bool).tril(), "scale": 0.5,
        },
    )


@user
def keyword_with_the_name_of_an_option():
    def scaled(x, target, options=None):
        return (x.sigmoid() - target).square() * (1 if options is None else options["weight"])

    return User(
        model=scaled, inputs=(torch.randn(8, 16),), keywords={"target": torch.rand(8, 16), "options": {"weight": 2.0}},
    )


@user
def list_of_tensors():
    def mean(parts):
        return torch.stack([p.tanh() for p in parts]).mean(0)

    return mean, [torch.randn(8, 16) for _ in range(3)]


@user
def dict_of_tensors():
    def total(batch):
        return (batch["image"].relu() * batch["weight"]).sum(-1)

    return total, {"image": torch.randn(8, 16), "weight": torch.rand(16)}


@user
def integers_and_booleans():
    def hashes(keys, valid):
        mixed = (keys * 40503 ^ (keys >> 7)) & 0xFFFF
        return torch.where(valid, mixed % 1021, -1), valid.sum()

    return hashes, torch.randint(0, 10_000, (64,)), torch.rand(64) > 0.3


@user
def inputs_that_are_not_contiguous():
    def gate(x, y):
        return F.silu(x) * y

    both = torch.randn(16, 32)
    return gate, both.t()[::2], torch.randn(32, 16).expand(2, 32, 16)[1, ::2]


@user
def half_precision():
    return nn.Sequential(nn.LayerNorm(32), nn.SiLU(), nn.Softmax(-1)).half(), torch.randn(8, 32).half()


@user
def bfloat16_with_autocast():
    block = Block()

    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            return block(x).float().mean()

    return step, torch.randn(2, 16, 32)


@user
def batch_without_rows():
    return nn.Sequential(nn.LayerNorm(32), nn.GELU()), torch.randn(0, 32)


@user
def already_compiled():
    return torch.compile(Block(causal=False), backend="eager"), torch.randn(2, 16, 32)


@user
def already_exported():
    block = nn.Sequential(nn.LayerNorm(32), nn.GELU())
    return torch.export.export(block, (torch.randn(8, 32),))


@user
def traced_by_jit():
    x = torch.randn(8, 32)
    return torch.jit.trace(nn.Sequential(nn.LayerNorm(32), nn.GELU()), x), x


@user
def partial_of_a_function():
    return functools.partial(F.layer_norm, normalized_shape=(32,), eps=1e-3), torch.randn(8, 32)


@user
def method_of_a_module():
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(16)

        def encode(self, x):
            return self.norm(x).tanh() * 3

    return Coder().encode, torch.randn(8, 16)


@user
def a_lambda():
    return lambda x, y: torch.logaddexp(x, y).exp() - 1, torch.randn(8, 16), torch.randn(16)


@user
def an_object_that_is_called():
    class Normalize:
        def __init__(self, mean, std):
            self.mean, self.std = mean, std

        def __call__(self, image):
            return (image.float() / 255 - self.mean) / self.std

    return Normalize(0.5, 0.2), torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)


@user
def a_class_instead_of_a_module():
    class Small(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)

        def forward(self, x):
            return self.norm(x).relu()

    return User(model=Small, inputs=(torch.randn(4, 16),), names={"Small": Small, "width": 16})


@user
def an_input_that_requires_a_gradient():
    return Block(), torch.randn(2, 16, 32, requires_grad=True)


@user
def complex_rotation():
    def rotate(x, angles):
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2) * 0.5

    return rotate, torch.randn(2, 8, 16), torch.rand(8, 8)


@user
def experts_chosen_by_topk():
    def route(x, gate):
        shares, chosen = torch.topk((x @ gate).softmax(-1), 2)
        return shares / shares.sum(-1, keepdim=True), chosen

    return route, torch.randn(16, 8), torch.randn(8, 4)


@user
def model_on_the_meta_device():
    with torch.device("meta"):
        return Block(256, 8), torch.empty(4, 512, 256)


@user
def sparse_input():
    return (lambda x: x.relu() * 2), torch.eye(8).to_sparse()


@user
def nothing_to_capture():
    return (lambda x: np.asarray([1.0, 2.0]).sum()), 3


@user
def without_an_argument_that_it_needs():
    names = {"input1": torch.randn(3, 4), "input2": torch.randn(3, 5)}
    return User(model=nn.Bilinear(4, 5, 6), inputs=(torch.randn(3, 4),), names=names)


@user
def shapes_that_do_not_fit():
    return nn.Linear(32, 8), torch.randn(4, 31)


@user
def function_of_jax():
    import jax.numpy as jnp

    def gelu(x):
        return x * 0.5 * (1 + jnp.tanh(0.79788456 * (x + 0.044715 * x**3)))

    return gelu, jnp.ones((8, 16))
