"""``python -m tests.bridge.random_functions`` creates random torch functions and compares regions with eager mode.

The functions have views, writes in place, strides of several kinds, dropout, integers and casts between dtypes; results
and gradients are compared, and in half of them also each region with torch's results for its inputs (``check=True``).
Regions are evaluated by the NumPy reference; ``--compiled`` runs kernels. If AOTAutograd, which creates the graphs,
itself differs from eager mode, as with `as_strided` of a contiguous tensor, the difference is torch's and counted
separately.
"""

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from fuser_lab.segmentation import SegmenterOptions
from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional

UNARY = (torch.sin, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.neg, lambda x: x * 0.5, lambda x: x + 1)
VIEWS = (
    lambda x: x.t(), lambda x: x[:, ::2].repeat(1, 2)[:, : x.shape[1]], lambda x: x.flip(0), lambda x: x.roll(1, 1),
    lambda x: x[1:2].expand(x.shape), lambda x: x.reshape(-1).reshape(x.shape), lambda x: x.contiguous().clone(),
    lambda x: x[torch.tensor([2, 0, 1, 1])], lambda x: torch.as_strided(x.contiguous(), (4, 4), (1, 3)),
    lambda x: torch.diagonal_scatter(x, x[0, 1:], 1), lambda x: x.unfold(0, 2, 1).sum(-1)[[0, 1, 2, 2]],
    lambda x: F.pad(x, (1, -1))[:, :4], lambda x: torch.cat([x[2:], x[:2] * 2]), lambda x: x.double().float(),
)  # fmt: skip
ROWS = (
    lambda x: F.softmax(x, -1), lambda x: x - x.mean(0, keepdim=True), lambda x: x / (1 + x.abs().sum(1, keepdim=True)),
    lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: x.cumsum(0), lambda x: x.amax(1, keepdim=True) + x,
    lambda x: x.topk(4, 0)[0] + x.median(1, keepdim=True)[0], lambda x: x.sort(1)[0], lambda x: x.cummax(0)[0],
    lambda x: F.max_pool2d(x[None], 3, 1, 1)[0] - F.avg_pool2d(x[None], 2, 2)[0].repeat(2, 2),
)  # fmt: skip
CASTS = (
    lambda x: x.bfloat16(), lambda x: x.half(), lambda x: x.float(), lambda x: x.double(),
    lambda x: x.bfloat16() * 3, lambda x: (x.float() * 0.25).to(x.dtype),
)  # fmt: skip
INTEGERS = (
    lambda k: k.abs() + 1, lambda k: k.cumsum(1).remainder(5), lambda k: k.t() // 2, lambda k: k.int() * 3,
    lambda k: (k > 0).long() + k.argmax(0), lambda k: k.clamp(-1, 2).flip(1), lambda k: k & 3, lambda k: k.short(),
)  # fmt: skip
WITH_INTEGERS = (
    lambda x, k: x * k, lambda x, k: x.masked_fill(k == 1, 0.5), lambda x, k: torch.where(k > 1, x, -x),
    lambda x, k: x.gather(1, k.long().remainder(4)), lambda x, k: x[k[0].long().remainder(4)],
    lambda x, k: x.scatter_add(0, k.long().remainder(4), x), lambda x, k: x / (k.abs() + 1),
    lambda x, k: x.scatter_reduce(1, k.long().remainder(4), x * 2, "amax"),
    lambda x, k: F.embedding(k[1].long() % 4, x),
)  # fmt: skip


def written(x: Any, y: Any) -> Any:
    """A copy of x with y added to a part of it in place, through a view."""
    copy = x.clone()
    copy[1:3].add_(y[1:3])
    copy.t()[0] *= 2
    return copy


def beside(x: Any, y: Any) -> Any:
    """A part of y written into memory with padded rows, and x added to it."""
    wide = torch.zeros(4, 7)
    wide[:, 1:5] = y
    return wide[:, 1:5] + x


def added(x: Any, y: Any) -> Any:
    """Rows of y added to rows of x, some of them twice."""
    return x.index_add(0, torch.tensor([1, 1, 3, 0]), y.to(x.dtype))


JOINED = (
    beside, added, torch.add, torch.mul, torch.maximum, lambda x, y: torch.mm(x, y.to(x.dtype)), written,
    lambda x, y: torch.where(x > y, x, y * 2),
)  # fmt: skip


def second(seed: int) -> Any:
    """A 4 x 4 matrix in one of several layouts."""
    base = torch.randn(8, 8)
    ways = (base[:4, :4].clone().t(), base[:4, ::2], base[::2, 1:5], base[:1, :4].expand(4, 4), base[:4, :4].clone())
    return ways[seed % len(ways)].detach().requires_grad_()


def dropped(x: Any) -> Any:
    return F.dropout(x, 0.25)


def program(seed: int) -> tuple[Callable[..., Any], str]:
    """A function of two square matrices and one of integers, and the ops that it combines."""
    draw, steps = random.Random(seed), []
    mix = draw.choice(("float32", "float32", "integers", "dtypes"))
    kinds = [UNARY, UNARY, VIEWS, ROWS, JOINED, JOINED, (dropped,)]
    kinds += {"float32": [], "integers": [INTEGERS, WITH_INTEGERS, WITH_INTEGERS], "dtypes": [CASTS, CASTS]}[mix]
    floats, whole = [0, 1], [2]
    for count in range(3, draw.randint(9, 15)):
        kind = draw.choice(kinds)
        pools = {JOINED: [floats, floats], INTEGERS: [whole], WITH_INTEGERS: [floats, whole]}.get(kind, [floats])
        steps.append((draw.choice(kind), [draw.choice(pool) for pool in pools]))
        (whole if kind is INTEGERS else floats).append(count)

    def function(x: Any, y: Any, k: Any) -> Any:
        values = [x, y, k]
        for op, places in steps:
            values.append(op(*[values[place] for place in places]))
        last = [values[place].float() for place in floats[-2:]]
        return *last, sum([values[place].float().sum() for place in floats]), values[whole[-1]]

    return function, mix


def inputs_of(seed: int) -> list[Any]:
    """Two square matrices, and one of integers."""
    torch.manual_seed(seed)
    return [torch.randn(4, 4, requires_grad=True), second(seed), torch.randint(-3, 6, (4, 4))]


def outcome(run: Callable[..., Any], seed: int) -> list[Any]:
    """The results of a function and the gradients of its matrices."""
    x, y, k = inputs_of(seed)
    results = run(x, y, k)
    gradients = torch.autograd.grad(results[2] + (results[0] * results[1].detach()).sum(), [x, y])
    return [*results, *gradients]


def difference(ours: list[Any], theirs: list[Any], mix: str) -> str:
    """The difference of outcomes, empty if there is none; dtypes of few bits are compared by region only."""
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        try:
            if mix == "dtypes":
                assert (a.shape, a.dtype) == (b.shape, b.dtype), f"result {place}: {a.dtype} is not {b.dtype}"
            else:
                torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
        except AssertionError as error:
            return f"result {place}: {' '.join(str(error).split())}"
    return ""


def disagreement(seed: int) -> tuple[str, bool]:
    """The difference of a seed's function from eager mode, empty if there is none; and whether it is torch's own."""
    import fuser_lab.torch as bridge

    torch._dynamo.reset()
    function, mix = program(seed)
    eager = outcome(function, seed)
    checked = mix == "dtypes" or seed % 2 == 0
    brief = SegmenterOptions(search_calls=5_000)  # a twentieth of the search of the backend, which takes seconds here
    compiled = torch.compile(function, backend="fuser_lab", options={"check": checked, "options": brief})
    told = ""
    for _ in range(1 if checked else 2):  # functions of graphs are written after a first run
        ours = outcome(compiled, seed)
        told = told or difference(ours, eager, mix)
    failed = next((region.failed for region in bridge.last().regions if region.failed), "")
    told = told or failed
    if not told or failed:
        return told, False
    torch._dynamo.reset()
    return told, not difference(ours, outcome(torch.compile(function, backend="aot_eager"), seed), mix)


def main() -> None:
    from fuser_lab.bridge.torch_region import TorchRegion
    from tests.bridge.samples import by_reference

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--compiled", action="store_true", help="run kernels")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if not chosen.compiled:
        TorchRegion._run = by_reference
    began, wrong, own = time.perf_counter(), 0, 0
    for done, seed in enumerate(range(chosen.seed, chosen.seed + chosen.count)):
        try:
            told, is_torchs = disagreement(seed)
        except Exception as error:  # noqa: BLE001 - one function must not end the run
            told, is_torchs = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}", False
        own += is_torchs
        wrong += bool(told) and not is_torchs
        if told and not is_torchs:
            print(f"seed {seed} ({program(seed)[1]}): {told}", flush=True)
        if done % 100 == 99:
            print(f"{done + 1} functions, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{chosen.count} functions: {wrong} differ from eager; of {own} more, AOTAutograd alone differs as much.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
