"""``python -m tests.benchmarks.drawn --seed N --count 60`` times random workloads beside torch.compile.

Each is drawn by its seed: three to seven pieces of models (norms, softmaxes, gates, look-ups, windows, scans,
rotations, quantisation, losses) one after another, forward or with gradients, of a drawn dtype, size and layout. The
table has a line for each, with the errors of fuser_lab and of inductor (the distance from eager mode in float64); below
it are the geometric mean of inductor's time over fuser_lab's, the share of workloads below 0.9, and the ten slowest
beside inductor with their kernels. ``--index 17`` runs one workload of a seed and prints its kernels' source. Processor
time counts on the CPU, and events on a GPU; both backends take turns.
"""

import argparse
import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser_lab.codegen.pipeline import evaluated_because
from tests.benchmarks.functions import least
from tests.bridge.speed import listed, stepped
from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional


@dataclass(kw_only=True)
class Draw:
    """A workload while it is drawn: its choices, the shape of the value between two pieces, and its inputs."""

    choices: random.Random
    rows: int
    columns: int
    dtype: Any
    device: str
    inputs: list[Any] = field(default_factory=list)

    def tensor(self, *shape: int, scale: float = 1.0, positive: bool = False) -> int:
        """Add an input of random numbers; return its place."""
        values = torch.rand(shape) + 0.1 if positive else torch.randn(shape)
        return self.place((values * scale).to(self.device, self.dtype))

    def indices(self, most: int, *shape: int) -> int:
        """Add an input of indices below a number; return its place."""
        return self.place(torch.randint(0, most, shape).to(self.device))

    def place(self, tensor: Any) -> int:
        """Add an input; return its place."""
        self.inputs.append(tensor)
        return len(self.inputs) - 1


Step = Callable[[Any, Sequence[Any]], Any]  # from a value of rows and columns, and all inputs, to the next value
PIECES: dict[str, Callable[[Draw], Step]] = {}
ENDS: dict[str, Callable[[Draw], Step]] = {}


def piece(make: Callable[[Draw], Step]) -> Callable[[Draw], Step]:
    """Register a piece, which a draw makes a step of."""
    PIECES[make.__name__] = make
    return make


def end(make: Callable[[Draw], Step]) -> Callable[[Draw], Step]:
    """Register a last piece."""
    ENDS[make.__name__] = make
    return make


@piece
def layer_norm(draw: Draw) -> Step:
    w, b, size = draw.tensor(draw.columns), draw.tensor(draw.columns), draw.columns
    return lambda x, given: F.layer_norm(x, (size,), given[w], given[b])


@piece
def rms_norm(draw: Draw) -> Step:
    w, wide = draw.tensor(draw.columns), draw.choices.random() < 0.5

    def step(x: Any, given: Sequence[Any]) -> Any:
        y = x.float() if wide else x
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * given[w]

    return step


@piece
def normalized(draw: Draw) -> Step:
    dim = draw.choices.choice([0, 1])
    return lambda x, given: F.normalize(x, dim=dim)


@piece
def standardized_columns(draw: Draw) -> Step:
    return lambda x, given: (x - x.mean(0)) / (x.std(0) + 1e-3)


@piece
def softmax(draw: Draw) -> Step:
    dim, scale = draw.choices.choice([1, 1, 1, 0]), draw.choices.choice([1.0, 0.125, 2.0])
    return lambda x, given: torch.softmax(x * scale, dim)


@piece
def biased_masked_softmax(draw: Draw) -> Step:
    bias, mask = draw.tensor(draw.columns), draw.place((torch.rand(draw.rows, draw.columns) < 0.3).to(draw.device))
    return lambda x, given: torch.softmax((x + given[bias]).masked_fill(given[mask], -1e4), -1)


@piece
def log_softmax(draw: Draw) -> Step:
    return lambda x, given: F.log_softmax(x, -1)


@piece
def gate(draw: Draw) -> Step:
    other = draw.tensor(draw.rows, draw.columns)
    act = getattr(F, draw.choices.choice(["silu", "gelu", "sigmoid", "mish", "softplus"]))
    return lambda x, given: act(x) * given[other]


@piece
def halves_gate(draw: Draw) -> Step:
    act, other = getattr(F, draw.choices.choice(["silu", "gelu", "relu"])), draw.tensor(draw.rows, draw.columns)

    def step(x: Any, given: Sequence[Any]) -> Any:
        first, second = torch.cat([x, given[other]], -1).chunk(2, -1)
        return act(first) * second

    return step


@piece
def residual(draw: Draw) -> Step:
    other, scale = draw.tensor(draw.rows, draw.columns), draw.tensor(draw.columns)
    return lambda x, given: x * given[scale] + given[other]


@piece
def embedding(draw: Draw) -> Step:
    most = draw.choices.choice([31, 512, 5000])
    table, places = draw.tensor(most, draw.columns), draw.indices(most, draw.rows)
    return lambda x, given: x + F.embedding(given[places], given[table])


@piece
def permuted_rows(draw: Draw) -> Step:
    places = draw.place(torch.randperm(draw.rows).to(draw.device))
    return lambda x, given: x[given[places]]


@piece
def looked_up_bias(draw: Draw) -> Step:
    table, places = draw.tensor(257), draw.indices(257, draw.rows, draw.columns)
    return lambda x, given: x + given[table][given[places]]


@piece
def window(draw: Draw) -> Step:
    size, pool = draw.choices.choice([3, 5, 7]), draw.choices.choice([F.avg_pool1d, F.max_pool1d])
    return lambda x, given: pool(x[None], size, stride=1, padding=size // 2)[0]


@piece
def differences(draw: Draw) -> Step:
    dim = draw.choices.choice([0, 1])
    return lambda x, given: x - torch.roll(x, 1, dim)


@piece
def scan(draw: Draw) -> Step:
    dim = draw.choices.choice([0, 1])
    return lambda x, given: torch.cumsum(x * 0.01, dim)


@piece
def rotation(draw: Draw) -> Step:
    half = draw.columns // 2
    angles, paired = draw.tensor(draw.rows, half), draw.choices.random() < 0.5

    def step(x: Any, given: Sequence[Any]) -> Any:
        cos, sin, inside = given[angles].cos(), given[angles].sin(), x[:, : 2 * half]
        a, b = (inside[:, ::2], inside[:, 1::2]) if paired else inside.chunk(2, -1)
        turned = (a * cos - b * sin, b * cos + a * sin)
        whole = torch.stack(turned, -1).flatten(-2) if paired else torch.cat(turned, -1)
        return torch.cat([whole, x[:, 2 * half :]], -1)

    return step


@piece
def fake_quantized(draw: Draw) -> Step:
    levels, dim = draw.choices.choice([7.0, 127.0]), draw.choices.choice([0, 1])

    def step(x: Any, given: Sequence[Any]) -> Any:
        scale = x.detach().abs().amax(dim, keepdim=True) / levels + 1e-6
        return x + (torch.round(x / scale).clamp(-levels, levels) * scale - x).detach()

    return step


@piece
def clipped_chain(draw: Draw) -> Step:
    names = draw.choices.sample(["tanh", "sin", "atan", "sigmoid", "erf", "expm1", "log1p", "sqrt"], 3)

    def step(x: Any, given: Sequence[Any]) -> Any:
        for name in names:
            x = getattr(torch, name)(x.abs().clamp(max=3.0) if name in {"log1p", "sqrt"} else x.clamp(-3.0, 3.0))
        return x

    return step


@piece
def transposed_sum(draw: Draw) -> Step:
    other = draw.tensor(draw.columns, draw.rows)
    return lambda x, given: x + given[other].t()


@end
def nothing(draw: Draw) -> Step:
    return lambda x, given: x


@end
def cross_entropy(draw: Draw) -> Step:
    targets, smoothing = draw.indices(draw.columns, draw.rows), draw.choices.choice([0.0, 0.1])
    return lambda x, given: F.cross_entropy(x.float(), given[targets], label_smoothing=smoothing)


@end
def huber(draw: Draw) -> Step:
    target = draw.tensor(draw.rows, draw.columns)
    return lambda x, given: F.smooth_l1_loss(x.float(), given[target].float())


@end
def sums(draw: Draw) -> Step:
    dim = draw.choices.choice([0, 1])
    return lambda x, given: (x.sum(dim), x.square().mean())


@end
def row_statistics(draw: Draw) -> Step:
    return lambda x, given: (x.amax(-1), torch.logsumexp(x.float(), -1))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A drawn function, its inputs and a description."""

    function: Callable[..., Any]
    inputs: list[Any]
    backward: bool
    text: str


def workload(seed: int, index: int, device: str, size: int) -> Workload:
    """Return a workload of a seed, of about ``size`` elements."""
    choices = random.Random(f"{seed}/{index}")
    torch.manual_seed(choices.randrange(1 << 30))
    columns = choices.choice([63, 64, 100, 256, 257, 768, 1000, 1024, 1536, 4096, 5003])
    rows = max(size // columns + choices.choice([0, 0, 1, 7]), 2)
    dtypes = [torch.float32] * 3 + [torch.bfloat16] * 3 + [torch.float16, torch.float64]
    draw = Draw(choices=choices, rows=rows, columns=columns, dtype=choices.choice(dtypes), device=device)
    first = draw.tensor(rows, columns)
    layout = choices.choice(["dense", "dense", "dense", "transposed", "padded"])
    if layout == "transposed":
        draw.inputs[first] = draw.inputs[first].t().contiguous().t()
    elif layout == "padded":
        draw.inputs[first] = F.pad(draw.inputs[first], (0, 5))[:, :columns]
    names = choices.sample(sorted(PIECES), choices.randint(3, 7))
    last = choices.choice(sorted(ENDS))
    steps = [PIECES[name](draw) for name in names] + [ENDS[last](draw)]

    def function(*given: Any) -> Any:
        x = given[first]
        for step in steps:
            x = step(x, given)
        return x

    backward = choices.random() < 0.5
    kind = str(draw.dtype).removeprefix("torch.")
    text = f"{' '.join([*names, last])}; {kind}[{rows}, {columns}], {layout}{', with gradients' if backward else ''}"
    return Workload(function=function, inputs=draw.inputs, backward=backward, text=text)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Times in seconds, both backends' errors (`error`), and fuser_lab's kernels."""

    index: int
    text: str
    ours: float
    theirs: float
    errors: tuple[float, float]
    kernels: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """How many times as fast as inductor."""
        return self.theirs / self.ours


def measured(index: int, drawn: Workload, device: str, options: argparse.Namespace) -> Result:
    """Compile a workload with both backends, compare their results and time them in turns."""
    import fuser_lab.torch as bridge

    calls = []
    for backend in ("fuser_lab", "inductor"):
        torch._dynamo.reset()
        chosen = {"strategy": options.strategy} if backend == "fuser_lab" and options.strategy else None
        compiled = torch.compile(drawn.function, backend=backend, dynamic=False, options=chosen)
        inputs = [x.detach() for x in drawn.inputs]
        calls.append(stepped(compiled, inputs, backward=drawn.backward))
    ours = calls[0]()
    exact = stepped(drawn.function, [wide(x) for x in drawn.inputs], backward=drawn.backward)()
    last = bridge.last()
    assert last is not None
    kernels = []
    for place, graph in enumerate(last.graphs):
        for number, segment in ((r.index, segment) for r in graph.regions for segment in r.plan.segments):
            name = segment.scheduler.value if segment.scheduler else "no scheduler"
            kernels.append(f"graph {place}, region {number}, S{segment.index}: {name}, {len(segment.exprs)} ops, "
                           f"{segment.bytes / 1e6:.1f} MB")
            if options.index is not None and not evaluated_because(segment.fusion, segment.scheduler):
                kernels.append(segment.source(options.target))
    errors = error(ours, exact), error(calls[1](), exact)
    times = least(calls, options.rounds) if device == "cpu" else by_events(calls, options.seconds)
    return Result(
        index=index, text=drawn.text, ours=times[0], theirs=times[1], errors=errors, kernels=tuple(kernels),
    )


def wide(x: Any) -> Any:
    """An input in float64 if it is of floats."""
    return x.detach().double() if x.is_floating_point() else x


def error(results: Any, exact: Any) -> float:
    """The largest distance of a result from eager mode's in float64, relative to the norm of that."""
    pairs = zip(listed(results), listed(exact), strict=True)
    return max(float((a.double() - b).norm() / b.norm().clamp(min=1e-30)) for a, b in pairs if a is not None)


def by_events(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """The medians of the calls' times on a GPU, in seconds, between events with a cold cache."""
    from fuser_lab.runtime.clocks import DeviceClock, Turns

    clock, turns = DeviceClock(), Turns(seconds)
    numbers = [turns.add(clock.measured(call)) for call in calls]
    for _ in turns.rounds():
        pass
    return [turns.sample(number).quartiles()[1] for number in numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the number of the first workload")
    parser.add_argument("--index", type=int, help="the only workload to run, whose kernels are printed")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--strategy", default="", help="of fuser_lab; by default the backend's")
    parser.add_argument("--elements", type=int, default=0, help="by default 2**19 on a CPU, 2**24 on a GPU")
    parser.add_argument("--rounds", type=int, default=9, help="calls of each on a CPU")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each workload on a GPU")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    options = parser.parse_args()
    options.target = options.device
    import numba

    torch.set_num_threads(options.threads)
    numba.set_num_threads(options.threads)
    size = options.elements or (1 << 19 if options.device == "cpu" else 1 << 24)
    results: list[Result] = []
    failed = 0
    for index in range(options.first, options.first + options.count) if options.index is None else (options.index,):
        drawn = workload(options.seed, index, options.device, size)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = measured(index, drawn, options.device, options)
        except Exception as error:  # noqa: BLE001 - the others are measured, and the line says what failed
            failed += 1
            said = " ".join(str(error).split())[:150]
            print(f"{index:3d} failed: {type(error).__name__}: {said}: {drawn.text}", flush=True)
            continue
        results.append(result)
        print(f"{index:3d} {result.ratio:5.2f} {result.ours * 1e3:8.2f} ms {result.theirs * 1e3:8.2f} ms "
              f"{result.errors[0]:.0e} {result.errors[1]:.0e} {result.text}", flush=True)
    if not results:
        return
    mean = math.exp(sum(math.log(result.ratio) for result in results) / len(results))
    slow = sum(result.ratio < 0.9 for result in results) / len(results)
    print(f"seed {options.seed}: {mean:.2f} times as fast as inductor, {slow:.0%} below 0.9, {failed} failed")
    for result in sorted(results, key=lambda result: result.ratio)[:10]:
        print(f"{result.ratio:.2f} {result.index} {result.text}")
        print("\n".join(f"    {kernel}" for kernel in result.kernels))


if __name__ == "__main__":
    main()
