"""Forty more users: diffusion, audio, graphs, reinforcement learning, optimizers, physics, and calls that go wrong."""

import logging
import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.bridge.users import USERS, User, user
from tests.needs import needs

__all__ = ["USERS"]

torch = needs("torch")
F = torch.nn.functional
nn = torch.nn


class ResnetTime(nn.Module):
    def __init__(self, ch=16, emb=32):
        super().__init__()
        self.norm1 = nn.GroupNorm(4, ch)
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.time = nn.Linear(emb, 2 * ch)
        self.norm2 = nn.GroupNorm(4, ch)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x, temb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(temb))[:, :, None, None].chunk(2, 1)
        h = self.norm2(h) * (1 + scale) + shift
        return x + self.conv2(F.silu(h))


@user
def diffusion_block_with_time():
    return ResnetTime(), torch.randn(2, 16, 8, 8), torch.randn(2, 32)


@user
def sinusoidal_embedding_of_int_steps():
    def embed(t, dim: int = 32, period=10000.0):
        half = dim // 2
        freq = torch.exp(-math.log(period) * torch.arange(half, device=t.device) / half)
        args = t[:, None].float() * freq[None]
        return torch.cat([args.cos(), args.sin()], -1)

    return User(model=embed, inputs=(torch.arange(8),), keywords={"dim": 16})


@user
def ddim_step_with_a_schedule_in_a_dataclass():
    @dataclass
    class Schedule:
        alphas: torch.Tensor
        eta: float = 0.0

    def step(x, eps, schedule, t: int):
        a, b = schedule.alphas[t], schedule.alphas[t - 1]
        x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
        return b.sqrt() * x0.clamp(-1, 1) + (1 - b).sqrt() * eps

    return step, torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), Schedule(torch.linspace(0.99, 0.1, 10)), 4


@user
def convnext_block():
    class B(nn.Module):
        def __init__(self, d=16):
            super().__init__()
            self.dw = nn.Conv2d(d, d, 7, padding=3, groups=d)
            self.norm = nn.LayerNorm(d)
            self.up = nn.Linear(d, 4 * d)
            self.down = nn.Linear(4 * d, d)
            self.gamma = nn.Parameter(torch.ones(d) * 1e-6)

        def forward(self, x):
            y = self.norm(self.dw(x).permute(0, 2, 3, 1))
            y = self.gamma * self.down(F.gelu(self.up(y)))
            return x + y.permute(0, 3, 1, 2)

    return B(), torch.randn(2, 16, 8, 8)


@user
def squeeze_and_excitation_with_drop_path():
    class SE(nn.Module):
        def __init__(self, c=16, p=0.2):
            super().__init__()
            self.a = nn.Conv2d(c, 4, 1)
            self.b = nn.Conv2d(4, c, 1)
            self.p = p

        def forward(self, x):
            w = torch.sigmoid(self.b(F.relu(self.a(x.mean((2, 3), keepdim=True)))))
            y = x * w
            if self.training:
                y = y * (torch.rand(x.shape[0], 1, 1, 1) >= self.p) / (1 - self.p)
            return x + y

    return SE().train(), torch.randn(2, 16, 8, 8)


@user
def mel_spectrogram_of_audio():
    def mel(wave, bank):
        spec = torch.stft(wave, 64, 16, window=torch.hann_window(64), return_complex=True).abs().square()
        return (bank @ spec).clamp_min(1e-10).log10()

    return mel, torch.randn(2, 400), torch.rand(20, 33)


@user
def graph_attention_with_scatter():
    def gat(h, src, dst, a):
        e = F.leaky_relu((h[src] * a).sum(-1) + (h[dst] * a).sum(-1), 0.2).exp()
        z = torch.zeros(h.shape[0]).index_add(0, dst, e)
        return torch.zeros_like(h).index_add(0, dst, (e / z[dst])[:, None] * h[src])

    return gat, torch.randn(10, 8), torch.randint(0, 10, (30,)), torch.randint(0, 10, (30,)), torch.randn(8)


@user
def ppo_loss_with_a_named_tuple():
    class Out(NamedTuple):
        loss: torch.Tensor
        kl: torch.Tensor
        clipped: torch.Tensor

    def loss(logits, old, adv, values, returns, actions, clip=0.2):
        lp = F.log_softmax(logits, -1).gather(1, actions[:, None])[:, 0]
        ratio = (lp - old).exp()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        pg = -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
        return Out(pg + 0.5 * F.mse_loss(values, returns), (old - lp).mean(), ((ratio - 1).abs() > clip).float().mean())

    return (
        loss,
        torch.randn(32, 6),
        torch.randn(32),
        torch.randn(32),
        torch.randn(32),
        torch.randn(32),
        torch.randint(0, 6, (32,)),
    )


@user
def advantages_by_a_python_loop():
    def gae(r, v, done, gamma=0.99, lam=0.95):
        out = torch.zeros_like(r)
        last = torch.zeros(r.shape[1])
        for t in reversed(range(r.shape[0] - 1)):
            delta = r[t] + gamma * v[t + 1] * (1 - done[t]) - v[t]
            last = delta + gamma * lam * (1 - done[t]) * last
            out[t] = last
        return out

    return gae, torch.randn(6, 4), torch.randn(6, 4), (torch.rand(6, 4) > 0.8).float()


@user
def lion_step_in_place():
    @torch.no_grad()
    def lion(p, g, m, lr=1e-4, b1=0.9, b2=0.99, wd=0.1):
        p.mul_(1 - lr * wd)
        p.add_(torch.sign(m * b1 + g * (1 - b1)), alpha=-lr)
        m.mul_(b2).add_(g, alpha=1 - b2)

    return lion, torch.randn(64), torch.randn(64), torch.randn(64)


@user
def adam_whole_step_with_a_closure():
    lin = nn.Linear(8, 4)
    opt = torch.optim.Adam(lin.parameters())
    x = torch.randn(3, 8)

    def train(x):
        opt.zero_grad()
        loss = lin(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return train, x


@user
def model_and_loss_as_a_training_step():
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def step(x, y):
        return F.cross_entropy(net(x), y, label_smoothing=0.1)

    return step, torch.randn(8, 8), torch.randint(0, 3, (8,))


@user
def nucleus_with_a_temperature_of_none():
    def sample(logits, temperature=None, *, top_k: int | None = 5):
        if temperature is not None:
            logits = logits / temperature
        if top_k:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
        return torch.multinomial(logits.softmax(-1), 1)

    return sample, torch.randn(4, 20), None


@user
def heat_equation_in_float64():
    def heat(u, steps: int):
        for _ in range(steps):
            u = u + 0.1 * (
                torch.roll(u, 1, 0) + torch.roll(u, -1, 0) + torch.roll(u, 1, 1) + torch.roll(u, -1, 1) - 4 * u
            )
        return u

    return heat, torch.randn(16, 16, dtype=torch.float64), 3


@user
def lennard_jones_forces_by_autograd():
    def energy(r):
        d = (r[:, None] - r[None]).square().sum(-1) + torch.eye(len(r)) * 1e3
        s = d.reciprocal() ** 3
        return (4 * (s * s - s)).sum() / 2

    return energy, torch.randn(8, 3, requires_grad=True)


@user
def gradient_inside_the_function():
    def force(r):
        return torch.func.grad(lambda x: (x.sin() * x.square()).sum())(r)

    return force, torch.randn(8, 3)


@user
def vmap_over_a_function():
    return torch.vmap(lambda x, y: (x * y).sum().tanh()), torch.randn(8, 16), torch.randn(8, 16)


@user
def lazily_initialised():
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyBatchNorm1d()), torch.randn(4, 6)


@user
def scripted_module():
    class M(nn.Module):
        def forward(self, x):
            return (x.relu() * 2).sigmoid()

    return torch.jit.script(M()), torch.randn(8, 16)


@user
def a_string_selects_the_activation():
    def act(x, kind="gelu"):
        return {"gelu": F.gelu, "silu": F.silu}[kind](x) * 2

    return User(model=act, inputs=(torch.randn(8, 16),), keywords={"kind": "silu"})


@user
def complex_spectral_filter():
    def spectral(x, w):
        return torch.fft.irfft2(torch.fft.rfft2(x) * w, s=x.shape[-2:]).relu()

    return spectral, torch.randn(2, 8, 8), torch.randn(8, 5, dtype=torch.complex64)


@user
def numpy_arguments():
    return (lambda x: np.tanh(x) * 2), np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)


@user
def weight_normed_and_spectral():
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        nn.Tanh(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
    ), torch.randn(4, 8)


@user
def quantized_dynamic():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), {nn.Linear}), torch.randn(
        4, 8
    )


@user
def float8_cast_round_trip():
    return (lambda x: (x / x.abs().amax() * 448).to(torch.float8_e4m3fn).float()), torch.randn(8, 16)


@user
def checkpointed_block():
    from torch.utils.checkpoint import checkpoint

    net = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    return (lambda x: checkpoint(net, x, use_reentrant=False).sum()), torch.randn(4, 8)


@user
def custom_autograd_function():
    class Sq(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x + 1

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    return (lambda x: Sq.apply(x).tanh()), torch.randn(8)


@user
def raises_its_own_error():
    def f(x):
        if x.dim() != 3:
            raise ValueError("expected a batch of images")
        return x.relu()

    return f, torch.randn(4, 4)


@user
def a_typo_in_a_keyword():
    return User(model=nn.GELU(), inputs=(torch.randn(4),), keywords={"aproximate": "tanh"})


@user
def lists_instead_of_tensors():
    return (lambda x: torch.tensor(x).sin() * 2), [1.0, 2.0, 3.0]


@user
def vit_of_transformers():
    import transformers

    c = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=8
    )
    return transformers.ViTModel(c).eval(), torch.randn(1, 3, 16, 16)


@user
def models_in_a_list():
    return [nn.Linear(8, 8), nn.GELU()], torch.randn(4, 8)


@user
def module_list_without_forward():
    return nn.ModuleList([nn.Linear(8, 8), nn.GELU()]), torch.randn(4, 8)


@user
def data_loader_batch_as_a_tuple():
    return nn.Sequential(nn.Linear(8, 8), nn.GELU()), (torch.randn(4, 8), torch.randint(0, 2, (4,)))


@user
def half_on_the_cpu_with_conv():
    return nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()).to(torch.bfloat16), torch.randn(
        2, 4, 16, dtype=torch.bfloat16
    )


@user
def dtype_mismatch():
    return nn.Linear(8, 8).to(torch.bfloat16), torch.randn(2, 8)


@user
def nested_tensor_input():
    return (lambda x: x.relu() * 2), torch.nested.nested_tensor(
        [torch.randn(3, 4), torch.randn(2, 4)], layout=torch.jagged
    )


@user
def unique_and_nonzero():
    return (lambda x: (torch.unique(x.round()).sum(), x[x > 0].exp().sum())), torch.randn(16)


@user
def early_return_without_ops():
    return (lambda x: x), torch.randn(4)


@user
def scan_associative_by_cumsum():
    return (
        (lambda x, a: (x * a.log().cumsum(-1).neg().exp()).cumsum(-1) * a.log().cumsum(-1).exp()),
        torch.randn(4, 16),
        torch.rand(4, 16) * 0.5 + 0.5,
    )


@user
def logging_and_timing_inside():
    def f(x):
        t = time.perf_counter()
        y = x.tanh() * 2
        logging.getLogger("a").info("took %s", time.perf_counter() - t)
        return y

    return f, torch.randn(8)


@user
def assertion_on_values():
    def f(x):
        assert torch.isfinite(x).all(), "not finite"
        return x.exp() * 2

    return f, torch.randn(8)
