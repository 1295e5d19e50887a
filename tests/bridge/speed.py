"""``python -m tests.bridge.speed [name ...]`` times memory-bound functions through the bridge, eager and inductor.

Each function is written as a user would write it, on at least 4 M elements, and is compiled by ``torch.compile``; rows
are measured round-robin in one process. Ratios below 1 mean that fuser_lab is faster. On a GPU times are measured by
CUDA events with a cold L2 cache, and the last column is the host time of a call, per segment.

``--set corpus`` takes the functions of tests/corpus/functions.py instead: losses, optimizers, quantization, images and
more, in the sizes of real models (``--small``: in sizes for a laptop), forward, and forward with gradients. ``--set
lookups`` takes those of tests/bridge/lookups.py, which read, write, sort and scan at positions that are data.
"""

import argparse
import functools
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


# The function, the shapes of its inputs, whether gradients are computed as well.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function with a factory of its inputs on a device; ``backward``: whether gradients are computed as well."""

    compute: Callable[..., Any]
    inputs: Callable[[str], list[Any]]
    backward: bool


def memory_bound(dtype: Any) -> dict[str, Case]:
    """The functions of this file, with floats of a dtype."""

    def inputs(shapes: Sequence[Shape], device: str) -> list[Any]:
        return [made(shape, device, dtype) for shape in shapes]

    return {
        name: Case(compute=compute, inputs=functools.partial(inputs, shapes), backward=backward)
        for name, (compute, shapes, backward) in FUNCTIONS.items()
    }


def of_corpus(*, small: bool) -> dict[str, Case]:
    """The functions that the corpus captures, in their own dtypes."""
    from tests.corpus.functions import FUNCTIONS as CAPTURED

    def inputs(function: Any, device: str) -> list[Any]:
        return [filled(x, device) for x in function.inputs(small=small)]

    return {
        function.name + ", backward" * backward: Case(
            compute=function.compute, inputs=functools.partial(inputs, function), backward=backward)
        for function in CAPTURED for backward in (False, True)[: 1 + function.gradient]
    }  # fmt: skip


def of_lookups() -> dict[str, Case]:
    """The functions of tests/bridge/lookups.py."""
    from tests.bridge.lookups import LOOKUPS

    return {
        name: Case(compute=one.compute, inputs=one.inputs, backward=one.backward) for name, one in LOOKUPS.items()
    }


def filled(like: Any, device: str) -> Any:
    """A tensor of the shape and dtype of another: small positive floats, or positions."""
    if like.is_floating_point():
        return torch.rand(like.shape, device=device).to(like.dtype) + 0.01
    return torch.randint(0, 255 if like.dtype is torch.uint8 else 20, like.shape, device=device).to(like.dtype)


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
    """A call of a function, on request with gradients of all floats."""
    if not backward:
        def forward() -> Any:
            with torch.no_grad():
                return function(*inputs)

        return forward
    wanting = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    ones: list[Any] = []

    def step() -> Any:
        results = listed(function(*inputs))
        computed = [x for x in results if x.requires_grad]
        if not ones:
            ones.extend(torch.ones_like(x) for x in computed)
        return [*(x.detach() for x in results), *torch.autograd.grad(computed, wanting, ones, allow_unused=True)]

    return step


def listed(result: Any) -> list[Any]:
    """The tensors of a result, in order."""
    return [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def differs(ours: Any, theirs: Any) -> float:
    """The largest difference of results, relative to the largest element of each."""
    worst = 0.0
    for one, other in zip(listed(ours), listed(theirs), strict=True):
        if other.numel():
            a, b = one.double(), other.double()
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)))
    return worst


def host_seconds(call: Callable[[], Any]) -> float:
    """The host time of a call while the GPU is busy with something else."""
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


def row(name: str, case: Case, device: str, peers: Sequence[str], seconds: float, strategy: str) -> dict[str, Any]:
    """Medians in milliseconds and their ratios, for one function."""
    import fuser_lab.torch as bridge

    function, backward = case.compute, case.backward
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = case.inputs(device)
    backends = {"fuser_lab": "fuser_lab", **{peer: peer for peer in peers}}
    calls = {}
    for peer, backend in backends.items():
        options = {"strategy": strategy} if peer == "fuser_lab" else None
        called = function
        if peer != "eager":
            called = torch.compile(function, backend=backend, dynamic=False, options=options)
        calls[peer] = stepped(called, inputs, backward=backward)
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


def compiled_ahead(names: Sequence[str], processes: int) -> None:
    """Compile functions in several processes, to fill the disk caches of this package and of torch."""
    given = iter(sys.argv[1:])
    options = [word for word in given if word not in names and not (word in {"--processes", "--json"} and next(given))]
    started = [
        subprocess.Popen([sys.executable, "-m", "tests.bridge.speed", *names[first::processes], *options, "--exact",
                          "--seconds", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for first in range(processes) if names[first::processes]
    ]  # fmt: skip
    for process in started:
        process.wait()


def chosen_cases(options: Any) -> Mapping[str, Case]:
    """The cases of the set with these names, or whose names contain one of them."""
    dtype = getattr(torch, options.dtype)
    sets = {"corpus": lambda: of_corpus(small=options.small), "lookups": of_lookups}
    cases = sets.get(options.set, lambda: memory_bound(dtype))()
    if not options.names:
        return cases
    if options.exact:
        return {name: cases[name] for name in options.names}
    return {name: case for name, case in cases.items() if any(part in name for part in options.names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="memory", choices=["memory", "corpus", "lookups"], help="which functions")
    parser.add_argument("--small", action="store_true", help="functions of the corpus in their small sizes")
    parser.add_argument("--exact", action="store_true", help="names are whole ones")
    parser.add_argument("--processes", type=int, default=0, help="processes that compile before the measurements")
    parser.add_argument("names", nargs="*", help="names of functions, or parts of names; all by default")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--peers", default="eager,inductor", help="eager, or backends of torch.compile")
    parser.add_argument("--strategy", default="bottom_up", help="of fuser_lab")
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
    cases = chosen_cases(chosen)
    if chosen.processes:
        compiled_ahead(list(cases), chosen.processes)
    for name, case in cases.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                one = row(name, case, chosen.device, peers, chosen.seconds, chosen.strategy)
            except Exception as error:  # noqa: BLE001 - the others are measured, and the table says what failed
                print(f"| {name} | failed: {type(error).__name__}: {' '.join(str(error).split())[:200]} |", flush=True)
                continue
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
