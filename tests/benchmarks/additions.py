"""``python -m tests.benchmarks.additions`` times additions at positions on a GPU beside inductor and eager mode.

These are gradients of look-ups, and sums of rows and of elements at positions. The table has a line for each, with the
medians of times between events with a cold cache, and the errors (the distance from eager mode in float64, relative to
the norm of that). A line ends with WRONG if fuser_lab's error is above twice that of eager mode and above ten units in
the last place.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

from tests.benchmarks.drawn import by_events, error, wide
from tests.bridge.speed import stepped
from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], bool]] = {}


def ints(least: int, most: int, *shape: int) -> Any:
    return torch.randint(least, most, shape, device="cuda")


def floats(dtype: Any, *shape: int) -> Any:
    return torch.randn(shape, device="cuda").to(dtype)


def bias(table: Any, x: Any, places: Any) -> Any:
    return torch.sin(x + table[places])


def words(table: Any, x: Any, places: Any) -> Any:
    return torch.sin(x + F.embedding(places, table))


def distances(table: Any, x: Any) -> Any:
    rows = torch.arange(x.shape[0], device=x.device)
    return torch.sin(x + table[(rows[:, None] - rows).clamp(-128, 128) + 128])


def swin(table: Any, scores: Any, places: Any) -> Any:
    return torch.softmax(scores + table[places.view(-1)].view(49, 49, 3).permute(2, 0, 1), -1) * scores


for kind, (least, count, columns) in ((torch.float32, (31, 262144, 64)), (torch.bfloat16, (31, 16384, 1024))):
    label = str(kind).removeprefix("torch.")
    CASES[f"bias of 257, [4096, 4096], {label}"] = (
        bias, lambda kind=kind: (floats(kind, 257), floats(kind, 4096, 4096), ints(0, 257, 4096, 4096)), True)
    for shape in ((least, count, columns), (5000, 16384, 768)):
        CASES[f"embedding [{shape[0]}, {shape[2]}] at {shape[1]}, {label}"] = (
            words, lambda kind=kind, shape=shape: (
                floats(kind, shape[0], shape[2]), floats(kind, *shape[1:]), ints(0, *shape[:2])), True)
CASES["bias by distance of 257, [4096, 4096], float32"] = (
    distances, lambda: (floats(torch.float32, 257), floats(torch.float32, 4096, 4096)), True)
CASES["window bias of [169, 3], [2048, 3, 49, 49], float16"] = (
    swin, lambda: (floats(torch.float16, 169, 3), floats(torch.float16, 2048, 3, 49, 49), ints(0, 169, 49, 49)), True)
CASES["index_add of [16384, 1024] to [4096, 1024], bfloat16"] = (
    lambda x, i, v: x.index_add(0, i, v * 2),
    lambda: (floats(torch.bfloat16, 4096, 1024), ints(0, 4096, 16384), floats(torch.bfloat16, 16384, 1024)), False)
CASES["index_put of [2**22, 2] to [2**19, 2], float32"] = (
    lambda i, v: torch.ops.aten.index_put(v.new_zeros(1 << 19, 2), [i], v * 2, True),
    lambda: (ints(0, 1 << 19, 1 << 22), floats(torch.float32, 1 << 22, 2)), False)


def main() -> None:
    import fuser_lab.torch  # noqa: F401 - registers the backend where no entry point does

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.6, help="for the timing of each case")
    parser.add_argument("--only", default="", help="a part of the names of the cases to run")
    options = parser.parse_args()
    print("inductor / ours | ours ms | inductor ms | eager ms | errors: ours, inductor, eager | case")
    for name, (function, make, backward) in CASES.items():
        if options.only not in name:
            continue
        torch.manual_seed(0)
        inputs = make()
        calls = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for backend in ("fuser_lab", "inductor", "eager"):
                torch._dynamo.reset()
                compiled = torch.compile(function, backend=backend, dynamic=False) if backend != "eager" else function
                calls.append(stepped(compiled, [x.detach() for x in inputs], backward=backward))
            exact = stepped(function, [wide(x) for x in inputs], backward=backward)()
            errors = [error(call(), exact) for call in calls]
        times = by_events(calls, options.seconds)
        precision = torch.finfo(inputs[-1].dtype if inputs[-1].is_floating_point() else inputs[0].dtype).eps
        wrong = " WRONG" if errors[0] > max(2 * errors[2], 10 * precision) else ""
        print(f"{times[1] / times[0]:5.2f} | " + " | ".join(f"{time * 1e3:7.3f}" for time in times)
              + f" | {', '.join(f'{e:.0e}' for e in errors)} | {name}{wrong}", flush=True)


if __name__ == "__main__":
    main()
