"""``python -m tests.bridge.speed [name ...]`` times memory-bound functions through the bridge, eager and inductor.

Each function is written as a user would, on 4 M elements or more, and is compiled by ``torch.compile``; rows take turns
in one process. Ratios below 1 mean that fuser_lab is faster. On a GPU times are those of CUDA events with a cold
second-level cache, and the last column is the host's time for a call, per segment.
"""

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuser_lab.runtime.clocks import DeviceClock, HostClock, Turns
from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional


def rms_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def rotary(q: Any, cos: Any, sin: Any) -> Any:
    half = q.shape[-1] // 2
    turned = torch.cat([-q[..., half:], q[..., :half]], -1)
    return q * cos + turned * sin


def masked_softmax(scores: Any, mask: Any) -> Any:
    return torch.softmax(scores.masked_fill(mask, float("-inf")), -1)


def adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p * (1 - 1e-5) - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def bias_dropout_residual(x: Any, bias: Any, mask: Any, residual: Any) -> Any:
    return residual + (x + bias) * mask * (1 / 0.9)


# The function, the shapes of its inputs, whether gradients are taken as well.
Shape = tuple[int, ...] | str
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Shape, ...], bool]] = {
    "softmax": (lambda x: torch.softmax(x, -1), ((4096, 1024),), False),
    "softmax, backward": (lambda x: torch.softmax(x, -1), ((4096, 1024),), True),
    "masked softmax": (masked_softmax, ((8, 8, 256, 256), "mask 256 256"), False),
    "log softmax": (lambda x: torch.log_softmax(x, -1), ((512, 8192),), False),
    "cross entropy": (F.cross_entropy, ((512, 8192), "index 512 8192"), False),
    "cross entropy, backward": (F.cross_entropy, ((512, 8192), "index 512 8192"), True),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (1024,), w, b), ((4096, 1024), (1024,), (1024,)), False),
    "layer norm, backward": (lambda x, w, b: F.layer_norm(x, (1024,), w, b), ((4096, 1024), (1024,), (1024,)), True),
    "rms norm": (rms_norm, ((4096, 1024), (1024,)), False),
    "rms norm, backward": (rms_norm, ((4096, 1024), (1024,)), True),
    "bias and gelu": (lambda x, b: F.gelu(x + b), ((4096, 1024), (1024,)), False),
    "bias and gelu, backward": (lambda x, b: F.gelu(x + b), ((4096, 1024), (1024,)), True),
    "swiglu": (lambda gate, up: F.silu(gate) * up, ((2048, 2048), (2048, 2048)), False),
    "swiglu, backward": (lambda gate, up: F.silu(gate) * up, ((2048, 2048), (2048, 2048)), True),
    "rotary": (rotary, ((4, 16, 1024, 64), (1024, 64), (1024, 64)), False),
    "bias, dropout's mask, residual": (
        bias_dropout_residual, ((4096, 1024), (1024,), "mask 4096 1024", (4096, 1024)), False),
    "group norm and silu": (lambda x: F.silu(F.group_norm(x, 32)), ((4, 256, 64, 64),), False),
    "batch norm in training, relu": (
        lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)),
        ((16, 64, 64, 64), (64,), (64,)), False),
    "sum of columns": (lambda x: (x * 2).sum(0), ((4096, 1024),), False),
    "sum of all": (lambda x: x.square().sum(), ((4096, 1024),), False),
    "transpose and add": (lambda x, y: x.t() + y, ((2048, 2048), (2048, 2048)), False),
    "heads to rows": (lambda x: x.transpose(1, 2).reshape(4, 1024, 1024) * 2, ((4, 16, 1024, 64),), False),
    "embedding and position": (lambda i, w, p: F.embedding(i, w) + p, ("index 4x1024 8192", (8192, 1024), (1024, 1024)),
                               False),
    "AdamW": (adamw, (*((4096, 1024),) * 3, "square 4096 1024"), False),
}  # fmt: skip


def made(shape: Shape, device: str, dtype: Any) -> Any:
    """An input: floats of a shape, squares of them, a mask, or positions on an axis."""
    if not isinstance(shape, str):
        return torch.randn(shape, device=device, dtype=dtype)
    kind, *numbers = shape.split()
    if kind == "square":
        return torch.randn(*map(int, numbers), device=device, dtype=dtype).square()
    if kind == "mask":
        return torch.rand(*map(int, numbers), device=device) < 0.1
    return torch.randint(0, int(numbers[1]), tuple(map(int, numbers[0].split("x"))), device=device)


def stepped(function: Callable[..., Any], inputs: Sequence[Any], *, backward: bool) -> Callable[[], Any]:
    """A call of a function, with gradients of all floats if they are wanted."""
    if not backward:
        def forward() -> Any:
            with torch.no_grad():
                return function(*inputs)

        return forward
    wanting = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    ones: list[Any] = []

    def step() -> Any:
        result = function(*inputs)
        if not ones:
            ones.append(torch.ones_like(result))
        return (result.detach(), *torch.autograd.grad(result, wanting, ones[0]))

    return step


def differs(ours: Any, theirs: Any) -> float:
    """The largest difference of results, relative to the largest element of each."""
    pairs = zip(ours if isinstance(ours, tuple) else (ours,), theirs if isinstance(theirs, tuple) else (theirs,),
                strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in pairs)


def host_seconds(call: Callable[[], Any]) -> float:
    """What a call costs the host while the GPU is busy with something else."""
    found = []
    for _ in range(20):
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        began = time.perf_counter()
        for _ in range(5):
            call()
        found.append((time.perf_counter() - began) / 5)
    torch.cuda.synchronize()
    return statistics.median(found)


def row(name: str, device: str, dtype: Any, peers: Sequence[str], seconds: float) -> dict[str, Any]:
    """Medians in milliseconds and their ratios, for one function."""
    import fuser_lab.torch as bridge

    function, shapes, backward = FUNCTIONS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = [made(shape, device, dtype) for shape in shapes]
    backends = {"fuser_lab": "fuser_lab", **{peer: peer for peer in peers}}
    calls = {
        peer: stepped(function if peer == "eager" else torch.compile(function, backend=backend, dynamic=False), inputs,
                      backward=backward)
        for peer, backend in backends.items()
    }  # fmt: skip
    expected = stepped(function, inputs, backward=backward)()
    wrong = differs(calls["fuser_lab"](), expected)
    found = bridge.last()
    assert found is not None
    clock = HostClock() if device == "cpu" else DeviceClock()
    turns = Turns(seconds)
    numbers = {peer: turns.add(clock.measured(call)) for peer, call in calls.items()}
    for _ in turns.rounds():
        pass
    medians = {peer: turns.sample(number).quartiles()[1] for peer, number in numbers.items()}
    segments = sum(sum(s.runs for s in r._prepared.steps()) for r in found.regions if r._prepared is not None)
    host = host_seconds(calls["fuser_lab"]) / max(segments, 1) * 1e6 if device == "cuda" and not backward else math.nan
    return {
        "function": name, "segments": segments, "error": wrong, "host us a segment": host,
        "failed": [r.failed for r in found.regions if r.failed], "ms": {p: m * 1e3 for p, m in medians.items()},
        "ratio": {p: medians["fuser_lab"] / medians[p] for p in peers},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of functions, or parts of them; all if left out")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--peers", default="eager,inductor", help="eager, or backends of torch.compile")
    parser.add_argument("--seconds", type=float, default=1.0, help="to spend on each row")
    parser.add_argument("--threads", type=int, default=0, help="of torch and of kernels on the CPU")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    chosen = parser.parse_args()
    if chosen.threads:
        import numba

        torch.set_num_threads(chosen.threads)
        numba.set_num_threads(chosen.threads)
    peers = chosen.peers.split(",")
    print("| function | segments | fuser_lab ms | " + " | ".join(f"{p} ms | / {p}" for p in peers), end=" | error |")
    print(" host us a segment |" if chosen.device == "cuda" else "")
    print("|---" * (4 + 2 * len(peers) + (chosen.device == "cuda")) + "|")
    rows = []
    for name in FUNCTIONS:
        if chosen.names and not any(part in name for part in chosen.names):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = row(name, chosen.device, getattr(torch, chosen.dtype), peers, chosen.seconds)
        rows.append(one)
        cells = " | ".join(f"{one['ms'][p]:.3f} | {one['ratio'][p]:.2f}" for p in peers)
        told = f"| {name} | {one['segments']} | {one['ms']['fuser_lab']:.3f} | {cells} | {one['error']:.0e} |"
        print(told + (f" {one['host us a segment']:.1f} |" if chosen.device == "cuda" else ""), flush=True)
        for why in one["failed"]:
            print(f"  failed: {why}")
    for peer in peers if rows else ():
        mean = math.exp(statistics.fmean(math.log(one["ratio"][peer]) for one in rows))
        print(f"geometric mean of {len(rows)} ratios to {peer}: {mean:.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
