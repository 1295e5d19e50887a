"""The time of an expression that the array library computes on the host: python -m tests.benchmarks.evaluated_ops.

Prints the processor time of each segment without a kernel, per expression, for tensors of a few elements, and the
median: what a call costs beyond its bytes and arithmetic (`fuser_lab.plan.clock.EVALUATED_ON_HOST`).
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import numpy as np

import fuser_lab as fl
from fuser_lab.codegen.kernel_plan import EVALUATED
from fuser_lab.cost.verdict import SchedulerType

SHAPE: Final = (4, 8)
CALLS: Final = 200  # of a segment per sample
SAMPLES: Final = 15  # of which the least counts

Record = Callable[[fl.FusionDefinition, Any, Any], Any]  # of a tensor and of positions along its last axis
PROGRAMS: Final[dict[str, Record]] = {
    "argsort": lambda fd, x, _: fd.ops.argsort(x, 1),
    "topk": lambda fd, x, _: fd.ops.topk(x, fd.define_scalar(3, fl.DataType.Int))[0],
    "gather": lambda fd, x, places: fd.ops.gather(x, places, 1),
    "take_along_axis": lambda fd, x, places: fd.ops.take_along_axis(x, places, 1),
    "scatter": lambda fd, x, places: fd.ops.scatter(x, places, x, 1),
    "strided slice": lambda fd, x, _: fd.ops.slice(x, [0, 0], list(SHAPE), [1, 2]),
    "sorted, then gathered": lambda fd, x, _: fd.ops.gather(x, fd.ops.argsort(x, 1), 1),
    "two gathers": lambda fd, x, places: fd.ops.gather(fd.ops.gather(x, places, 1), places, 1),
}


def segment_times(record: Record) -> list[tuple[int, float]]:
    """Return, for each segment that the library computes, its number of expressions and its processor time."""
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(list(SHAPE), contiguity=True)
        places = fd.define_tensor(list(SHAPE), contiguity=True, dtype=fl.DataType.Int)
        fd.add_output(record(fd, x, places))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(SHAPE, np.float32), rng.integers(0, SHAPE[1], SHAPE)]
    plan = fl.segment(fd, arrays)
    bound = plan.prepare("cpu").bind(arrays)
    pairs = zip(plan.segments, bound.steps, strict=True)
    return [(len(part.exprs), _seconds(step)) for part, step in pairs if _is_evaluated(part)]


def _is_evaluated(part: Any) -> bool:
    return part.scheduler in EVALUATED or part.scheduler is SchedulerType.GREEDY


def _seconds(step: Callable[[], object]) -> float:
    samples = []
    for _ in range(SAMPLES):
        start = time.process_time()
        for _ in range(CALLS):
            step()
        samples.append((time.process_time() - start) / CALLS)
    return min(samples)


def main() -> None:
    """Print a line per program, and the median."""
    each = list[float]()
    for name, record in PROGRAMS.items():
        for count, seconds in segment_times(record):
            each.append(seconds / count)
            print(f"{name:24}{count} expressions{1e6 * each[-1]:8.1f} us each")
    print(f"median{1e6 * median(each):8.1f} us")


if __name__ == "__main__":
    main()
