"""``python -m tests.benchmarks.functions [--only NAME,...]`` times torch's functions of one and two numbers on the CPU.

Each function is compiled by ``torch.compile`` with fuser_lab and with inductor, for 2.56 M elements of Float and of
Double, and called in turns by one thread. The table shows the least processor time of each, and the ratio: below 1,
fuser_lab is faster. Functions that neither backend computes in kernels of its own take equal times.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.needs import needs

torch = needs("torch")

ELEMENTS = 2_560_000
UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "digamma", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "logit",
    "neg", "nn.functional.elu", "nn.functional.gelu", "nn.functional.hardswish", "nn.functional.leaky_relu",
    "nn.functional.logsigmoid", "nn.functional.mish", "nn.functional.relu", "nn.functional.selu",
    "nn.functional.silu", "nn.functional.softplus", "nn.functional.softsign", "rad2deg", "reciprocal", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinc", "sinh", "special.entr", "special.erfcx", "special.i0",
    "special.log_ndtr", "special.ndtr", "special.ndtri", "sqrt", "square", "tan", "tanh", "trunc",
)
BINARY = (
    "add", "atan2", "copysign", "div", "eq", "floor_divide", "fmax", "fmin", "fmod", "heaviside", "hypot", "ldexp",
    "logaddexp", "logaddexp2", "maximum", "minimum", "mul", "nextafter", "pow", "remainder", "special.xlog1py",
    "sub", "xlogy",
)
# The numbers that a function is applied to; all others take numbers from -3 to 3.
RANGES = {
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), (-0.99, 0.99)), "acosh": (1.0, 9.0),
    **dict.fromkeys(("digamma", "lgamma", "log", "log10", "log2", "rsqrt", "special.entr", "sqrt"), (0.01, 9.0)),
    **dict.fromkeys(("logit", "special.ndtri"), (0.01, 0.99)), "log1p": (-0.9, 9.0),
    **dict.fromkeys(("pow", "special.xlog1py", "xlogy"), (0.1, 3.0)),
}


def named(name: str) -> Callable[..., Any]:
    """A function of torch."""
    function = torch
    for part in name.split("."):
        function = getattr(function, part)
    result: Callable[..., Any] = function
    return result


def least(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The least processor time of each call in seconds; the calls take turns."""
    times = [math.inf] * len(calls)
    for turn in range(rounds + 2):
        for number, call in enumerate(calls):
            began = time.process_time()
            call()
            if turn > 1:
                times[number] = min(times[number], time.process_time() - began)
    return times


def rows(names: Sequence[str], rounds: int, elements: int) -> Iterator[tuple[str, str, float, float, float]]:
    """The name of each function, its dtype, both times in seconds, and the largest relative difference of values."""
    for name in names:
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(0)
            low, high = RANGES.get(name, (-3.0, 3.0))
            count = 2 if name in BINARY else 1
            inputs = [torch.rand(elements, dtype=dtype) * (high - low) + low for _ in range(count)]
            function = named(name)
            calls = []
            for backend in ("fuser_lab", "inductor"):
                torch._dynamo.reset()
                compiled = torch.compile(lambda *xs, function=function: function(*xs), backend=backend, dynamic=False)
                compiled(*inputs)
                calls.append(lambda compiled=compiled, inputs=inputs: compiled(*inputs))
            ours, theirs = (call().double() for call in calls)
            difference = float(((ours - theirs).abs() / theirs.abs().clamp(min=1e-3)).nan_to_num().max())
            yield name, str(dtype).removeprefix("torch."), *least(calls, rounds), difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each")
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    options = parser.parse_args()
    import numba

    torch.set_num_threads(1)
    numba.set_num_threads(1)
    names = options.only.split(",") if options.only else [*UNARY, *BINARY]
    print("| function | dtype | fuser_lab ms | inductor ms | ratio | largest difference |")
    print("|---" * 6 + "|")
    ratios = []
    with torch.no_grad():
        for name, dtype, ours, theirs, difference in rows(names, options.rounds, options.elements):
            ratios.append((ours / theirs, f"{name} {dtype}"))
            print(f"| {name} | {dtype} | {ours * 1e3:.2f} | {theirs * 1e3:.2f} | {ours / theirs:.2f} "
                  f"| {difference:.0e} |", flush=True)
    mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
    above = [f"{label} {ratio:.2f}" for ratio, label in sorted(ratios, reverse=True) if ratio > 1.3]
    print(f"geometric mean {mean:.2f}; {len(above)} of {len(ratios)} above 1.3: {', '.join(above) or 'none'}")


if __name__ == "__main__":
    main()
