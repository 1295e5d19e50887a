"""The growth of segmentation time with size: ``python -m tests.benchmarks.segmentation``.

Several families, measured separately. Times are processor time, the least of several runs, from definition and sizes to
a plan; the last column is the exponent between a size and the previous one (1 is linear).
"""

import argparse
import gc
import math
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import fuser_lab as fl
from fuser_lab.plan.planning import rewrite_fusion
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import SegmenterOptions, segment
from fuser_lab.segmentation.events import DecisionLog
from tests.benchmarks.optimal import irregular, transformer

PIECEMEAL = SegmenterOptions(whole_fusion=False)


def additions(ops: int) -> fl.FusionDefinition:
    """Return a chain of additions (NVIDIA/Fuser issue #1440)."""
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[1024], contiguity=True)
        y = x
        for _ in range(ops):
            y = fd.ops.add(y, x)
        fd.add_output(y)
    return fd


def layers(ops: int) -> fl.FusionDefinition:
    """Return decoder layers of a transformer, with at least ``ops`` ops in total."""
    return transformer(math.ceil(ops / 71))


def irregular_graph(ops: int) -> fl.FusionDefinition:
    """Return a random graph of pointwise ops, reductions along both axes and broadcasts, with many outputs."""
    return irregular(1, ops)


def flat_graph(ops: int) -> fl.FusionDefinition:
    """Return a random graph of additions, sines, transposes and row sums broadcast along columns."""
    rng = random.Random(1)
    with fl.FusionDefinition() as fd:
        values: list[Any] = [fd.define_tensor(shape=[256, 256], contiguity=True) for _ in range(3)]
        unread = {}
        made = 0
        while made < ops:
            a, b, kind = rng.choice(values[-8:]), rng.choice(values), rng.random()
            made += 1 + 2 * (0.8 <= kind < 0.9)
            for read in (a, b) if kind < 0.5 else (a,):
                unread.pop(id(read), None)
            if kind < 0.5:
                values.append(fd.ops.add(a, b))
            elif kind < 0.8:
                values.append(fd.ops.sin(a))
            elif kind < 0.9:
                values.append(fd.ops.broadcast_in_dim(fd.ops.sum(a, dims=[1]), [256, 256], [0]))
            else:
                values.append(fd.ops.permute(a, [1, 0]))
            unread[id(values[-1])] = values[-1]
        for value in unread.values():
            fd.add_output(value)
    return fd


def many_outputs(ops: int) -> fl.FusionDefinition:
    """Return sums of rows and of columns of one computed tensor, each an output of three ops."""
    with fl.FusionDefinition() as fd:
        read = fd.ops.sin(fd.define_tensor(shape=[64, 64], contiguity=True))
        for number in range(ops // 3):
            fd.add_output(fd.ops.sin(fd.ops.sum(fd.ops.mul(read, number + 2.0), dims=[number % 2])))
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Fusions of one kind by size, and the promised seconds at some sizes."""

    name: str
    make: Callable[[int], fl.FusionDefinition]
    sizes: tuple[int, ...]
    options: SegmenterOptions = field(default_factory=SegmenterOptions)
    promised: dict[int, float] = field(default_factory=dict)


FAMILIES = (
    Family(
        name="additions in a chain", make=additions, sizes=(10, 100, 1000, 10_000),
        promised={100: 0.02, 10_000: 10},
    ),
    Family(
        name="the same, merged pair by pair", make=additions, sizes=(10, 100, 1000, 10_000), options=PIECEMEAL,
        promised={10_000: 10},
    ),
    Family(name="transformer layers", make=layers, sizes=(71, 284, 1000, 2000), promised={1000: 1.0}),
    Family(name="random graphs, irregular", make=irregular_graph, sizes=(25, 50, 100, 200), promised={100: 0.15}),
    Family(name="many outputs of one tensor", make=many_outputs, sizes=(75, 300, 1200), promised={1200: 5.0}),
    Family(name="random graphs, flat", make=flat_graph, sizes=(25, 50, 100, 200), promised={100: 0.15}),
)


def processor_seconds(call: Callable[[], object], budget: float = 4.0) -> float:
    """Return the least processor time of several calls: other programs only add to it."""
    found: list[float] = []
    while not found or (sum(found) < budget and len(found) < 9):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def peak_megabytes() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def family_rows(family: Family) -> list[str]:
    """Return the lines of a family."""
    lines, last = [], None
    for size in family.sizes:
        fd = family.make(size)
        plan = fl.segment(fd, options=family.options)
        took = processor_seconds(lambda fd=fd: fl.segment(fd, options=family.options))
        ops = len(plan.fusion.exprs)
        growth = math.log(took / last[1]) / math.log(ops / last[0]) if last else math.nan
        promised = family.promised.get(size)
        verdict = "" if promised is None else f"  {'under' if took < promised else 'NOT UNDER'} {promised:g} s"
        lines.append(
            f"{ops:>7} {len(plan.segments):>8} {len(plan.decisions):>8} {1e3 * took:>10.1f} "
            f"{'' if math.isnan(growth) else f'{growth:.2f}':>8} {peak_megabytes():>7.0f}{verdict}",
        )
        last = (ops, took)
    return lines


def logging_share(ops: int = 1000) -> float:
    """Return the share of the segmenter's time spent on its log, for layers of a transformer."""
    plan = fl.segment(layers(ops))
    options = SegmenterOptions()
    fusion = rewrite_fusion(plan.fusion, options, DecisionLog())

    def seconds(*, log: bool) -> float:
        gc.collect()
        return processor_seconds(
            lambda: segment(fusion, SchedulerRegistry(), options=options, log=DecisionLog() if log else None), 0,
        )

    # Alternately, so that other work on the machine affects both.
    both = [(seconds(log=False), seconds(log=True)) for _ in range(5)]
    silent, told = (min(some) for some in zip(*both, strict=True))
    return told / silent - 1


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.segmentation", description=__doc__)
    parser.parse_args(argv)
    say = sys.stdout.write
    broken = False
    for family in FAMILIES:
        say(f"{family.name}\n{'ops':>7} {'segments':>8} {'attempts':>8} {'ms':>10} {'exponent':>8} {'MB':>7}\n")
        for line in family_rows(family):
            broken |= "NOT UNDER" in line
            say(f"{line}\n")
            sys.stdout.flush()
        say("\n")
    share = logging_share()
    say(f"the log costs {100 * share:.0f} % of the time without one; most memory held: {peak_megabytes():.0f} MB\n")
    return 1 if broken or share > 0.2 or peak_megabytes() > 1024 else 0


if __name__ == "__main__":
    sys.exit(main())
