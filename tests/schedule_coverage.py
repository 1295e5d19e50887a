"""How many segments have a schedule as transforms, by scheduler: ``python -m tests.schedule_coverage --sample 60``.

Each segment of the examples and of a sample of the corpus is asked for its schedule. The same transforms, for smaller
extents, run in lock step, and the results are compared with the reference evaluation of the segment.
"""

import argparse
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab import examples
from fuser_lab.analysis.smaller import smaller
from fuser_lab.codegen.decompose import decompose
from fuser_lab.codegen.generate import evaluated_because
from fuser_lab.definition.scheduling import RULES
from fuser_lab.errors import FuserLabError, ScheduleError, UnsupportedError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.ir.replay import replay
from fuser_lab.plan import Plan, Segment
from fuser_lab.report.tables import Table, table_text
from fuser_lab.runtime.by_hand import ScheduledKernel

SEED = 7
_MOST_ELEMENTS = 4096  # of a segment's largest tensor; extents shrink to that
_TOLERANCE = 2e-2  # relative to the largest value: low-precision dtypes round, and reductions are summed otherwise


@dataclass(slots=True)
class Coverage:
    """Numbers of segments by source and scheduler, and the sentences of those without a schedule."""

    segments: Counter[tuple[str, str]] = field(default_factory=Counter)
    lowered: Counter[tuple[str, str]] = field(default_factory=Counter)
    right: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unchecked: int = 0

    def table(self) -> Table:
        """Return the numbers as a table."""
        rows = [
            (*key, str(count), str(self.lowered[key]), str(self.right[key]))
            for key, count in sorted(self.segments.items())
        ]
        total = (sum(c.values()) for c in (self.segments, self.lowered, self.right))
        return Table(
            columns=("source", "scheduler", "segments", "with a schedule", "right values"),
            rows=(*rows, ("all", "", *map(str, total))),
        )


def plans(sample: int) -> Iterator[tuple[str, str, Plan]]:
    """Yield source, name and bottom-up plan of each example and of a sample of the corpus."""
    for name in examples.names():
        example = examples.get(name)
        with fl.FusionDefinition() as fd:
            example.define(fd, "small")
        yield "examples", name, fl.segment(fd, example.specs("small"))
    small = [entry for entry in fl.corpus() if entry.small_script]
    random.Random(SEED).shuffle(small)
    for entry in small[:sample]:
        fd, inputs = entry.load(small=True)
        yield "corpus", entry.name, fl.segment(fd, inputs)


def inputs_of(fusion: Fusion, seed: int = 0) -> list[Any]:
    """Return inputs of a segment: positive numbers below 1, integers that are positions in any axis longer than 1."""
    rng = np.random.default_rng(seed)
    found: list[Any] = []
    for value in fusion.inputs:
        if not isinstance(value, TensorView):
            found.append(2 if value.dtype.is_integral else 0.5)
            continue
        # Expanded axes hold one element, read again and again.
        shape = [1 if axis.is_broadcast else size for axis, size in zip(value.domain.axes, value.shape, strict=True)]
        is_whole = not (value.dtype.is_float or value.dtype.is_complex)
        numbers = rng.integers(0, 2, shape) if is_whole else 0.1 + 0.9 * rng.random(shape)
        found.append(np.broadcast_to(numbers.astype(value.dtype.numpy), value.shape))
    return found


def has_right_values(segment: Segment) -> bool | None:
    """Whether the schedule of a segment gives the values of the reference; None if no smaller sizes fit its ops."""
    schedule = segment.schedule
    try:
        fusion, _ = smaller(segment.fusion, _MOST_ELEMENTS)
        scheduled = replay(decompose(fusion), schedule.transforms, RULES)
        kernel = ScheduledKernel(scheduled, "cpu")
    except (UnsupportedError, ScheduleError):
        return None
    inputs = inputs_of(fusion)
    wanted = evaluate(fusion, inputs, exact=False)
    got = kernel.run(inputs)
    return all(_agree(g, w) for g, w in zip(got, wanted, strict=True))


def _agree(got: Any, wanted: Any) -> bool:
    got, wanted = np.asarray(got).astype(np.complex128), np.asarray(wanted).astype(np.complex128)
    finite = np.isfinite(wanted)
    largest = max(float(np.abs(wanted[finite]).max(initial=0)), 1e-6)
    same = np.array_equal(np.isfinite(got), finite)
    return same and bool((np.abs(got[finite] - wanted[finite]) <= _TOLERANCE * largest).all())


def measure(found: Iterator[tuple[str, str, Plan]], *, run: bool = True) -> Coverage:
    """Return the coverage of the segments that have kernels."""
    coverage = Coverage()
    for source, name, plan in found:
        for segment in plan.segments:
            if segment.scheduler is None or evaluated_because(segment.fusion, segment.scheduler):
                continue
            key = (source, segment.scheduler.value)
            coverage.segments[key] += 1
            try:
                _ = segment.schedule
            except FuserLabError as error:
                coverage.refused.append((f"{name}, segment {segment.index}", str(error)))
                continue
            coverage.lowered[key] += 1
            right = has_right_values(segment) if run else None
            if right is None:
                coverage.unchecked += 1
            elif right:
                coverage.right[key] += 1
            else:
                coverage.wrong.append(f"{name}, segment {segment.index}")
    return coverage


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and why the others have no schedule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=60, help="entries of the corpus")
    parser.add_argument("--why", action="store_true", help="print why the others have none")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    coverage = measure(plans(given.sample))
    print(table_text(coverage.table()))
    print(f"not checked, because no smaller extents fit the ops: {coverage.unchecked}")
    print(f"wrong values: {', '.join(coverage.wrong) or 'none'}")
    for where, why in coverage.refused if given.why else ():
        print(f"{where}: {why}")


if __name__ == "__main__":
    main()
