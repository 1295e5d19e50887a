"""Coverage of segment schedules, by scheduler: ``python -m tests.schedule_coverage --sample 60``.

For each segment of the examples and of a sample of the corpus, its schedule is passed to the plan again: the kernels
must be the same on both targets. Then numbers of the schedule are changed, one at a time: the kernel must be the one
that `with_params` makes with that number. Finally, loops are lowered one by one, as if no scheduler had written them,
run in lock step at smaller extents, and compared with the reference evaluation of the segment.
"""

import argparse
import contextlib
import random
import re
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
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.definition.scheduling import RULES
from fuser_lab.errors import ScheduleError, UnsupportedError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.ir.replay import replay
from fuser_lab.plan import Plan, Segment
from fuser_lab.report.tables import Table, table_text
from fuser_lab.runtime.plan.by_hand import ScheduledKernel

SEED = 7
Key = tuple[str, str]
_NUMBER = re.compile(r"(factor|[a-z]+)=(\d+)(?=[,)])")
_MEANING = re.compile(r"# (vector|threads of a block, in x|threads of a block, in y|unroll|split)")
_MOST_ELEMENTS = 4096  # elements of a segment's largest tensor; extents are reduced to that
_TOLERANCE = 2e-2  # relative to the largest value: dtypes round, and orders of summation differ


@dataclass(slots=True)
class Coverage:
    """Numbers of segments by source and scheduler, and the failures."""

    segments: Counter[Key] = field(default_factory=Counter)
    loops: Counter[Key] = field(default_factory=Counter)
    templates: Counter[Key] = field(default_factory=Counter)
    same: Counter[Key] = field(default_factory=Counter)
    edits: Counter[Key] = field(default_factory=Counter)
    edited: Counter[Key] = field(default_factory=Counter)
    lowered: Counter[Key] = field(default_factory=Counter)
    right: Counter[Key] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def table(self) -> Table:
        """Return the counts as a table."""
        counts = (
            self.segments, self.loops, self.templates, self.same, self.edits, self.edited, self.lowered, self.right,
        )
        rows = [(*key, *(str(count[key]) for count in counts)) for key in sorted(self.segments)]
        total = (str(sum(count.values())) for count in counts)
        return Table(
            columns=(
                "source", "scheduler", "segments", "as loops", "as templates", "same kernels", "numbers changed",
                "as with_params", "lowered loop by loop", "right values",
            ),
            rows=(*rows, ("all", "", *total)),
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
        # Expanded axes contain one element, which is read repeatedly.
        shape = [1 if axis.is_broadcast else size for axis, size in zip(value.domain.axes, value.shape, strict=True)]
        is_whole = not (value.dtype.is_float or value.dtype.is_complex)
        numbers = rng.integers(0, 2, shape) if is_whole else 0.1 + 0.9 * rng.random(shape)
        found.append(np.broadcast_to(numbers.astype(value.dtype.numpy), value.shape))
    return found


def has_right_values(segment: Segment) -> bool | None:
    """Whether the schedule of a segment gives the reference's values; None if its ops allow no smaller sizes."""
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


def gives_itself(plan: Plan, segment: Segment) -> bool:
    """Whether the plan with a segment's own schedule is the original plan, with the same kernels on both targets."""
    found = [
        plan.with_schedule(segment.index, str(schedule))
        for schedule in (segment.schedule, segment.schedule_for("cuda"), segment.schedule_for("cpu"))
    ]
    return all(
        one.hash == plan.hash and one.segments[segment.index].source(target) == segment.source(target)
        for one in found for target in ("cpu", "cuda")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberChange:
    """A schedule with one changed number, and the same change as a parameter."""

    text: str
    target: str
    nest: int
    values: dict[str, Any]


def number_changes(segment: Segment, target: str) -> Iterator[NumberChange]:
    """Yield the schedule of a segment with each of its numbers doubled and halved."""
    lines = str(segment.schedule_for(target)).splitlines()
    nests = segment.params(target)
    for place, line in enumerate(lines):
        said = _MEANING.search(line)
        if line.startswith("#") or (said is None and "fd.sched.on_" not in line):
            continue
        nest = 0 if said is not None else int(line.partition("nest=")[2].partition(",")[0].rstrip(")"))
        for number in _NUMBER.finditer(line):
            name, value = number.group(1), int(number.group(2))
            if name == "nest" or (said is not None and name != "factor"):
                continue
            x, y = nests[nest].schedule.threads
            for other in {2 * value, value // 2} - {0, value}:
                changed = f"{line[: number.start(2)]}{other}{line[number.end(2) :]}"
                text = "\n".join([*lines[:place], changed, *lines[place + 1 :]])
                word = name if said is None else said.group(1)
                threads = {"threads of a block, in x": (other, y), "threads of a block, in y": (x, other)}
                values = {"threads": threads[word]} if word in threads else {word: other}
                yield NumberChange(text=text, target=target, nest=nest, values=values)


def agrees(plan: Plan, segment: Segment, change: NumberChange) -> bool:
    """Whether a changed number acts as a parameter: the same kernel, both refused, or left to the general lowering."""
    index, wanted, got = segment.index, None, None
    with contextlib.suppress(ScheduleError):
        wanted = plan.with_params(index, target=change.target, nest=change.nest, **change.values)
    with contextlib.suppress(ScheduleError, UnsupportedError):
        got = plan.with_schedule(index, change.text)
    if wanted is None:
        return got is None or bool(got.segments[index].loops)
    if got is None or got.hash != wanted.hash:
        return False
    return got.segments[index].source(change.target) == wanted.segments[index].source(change.target)


def measure(found: Iterator[tuple[str, str, Plan]], *, run: bool = True, changes: int | None = None) -> Coverage:
    """Return the coverage of the segments that have kernels, with a maximum number of changes per segment."""
    coverage, rng = Coverage(), random.Random(SEED)
    for source, name, plan in found:
        for segment in plan.segments:
            if segment.scheduler is None or evaluated_because(segment.fusion, segment.scheduler):
                continue
            key, where = (source, segment.scheduler.value), f"{name}, segment {segment.index}"
            coverage.segments[key] += 1
            is_template = any(one.kind == "on_blocks" for one in segment.schedule.transforms)
            (coverage.templates if is_template else coverage.loops)[key] += 1
            if gives_itself(plan, segment):
                coverage.same[key] += 1
            else:
                coverage.wrong.append(f"{where}: not the same kernels")
            known = [*number_changes(segment, "cuda"), *number_changes(segment, "cpu")]
            for change in known if changes is None else rng.sample(known, min(changes, len(known))):
                coverage.edits[key] += 1
                if agrees(plan, segment, change):
                    coverage.edited[key] += 1
                else:
                    coverage.wrong.append(f"{where}: {change.target}, nest {change.nest}, {change.values}")
            right = has_right_values(segment) if run and not is_template else None
            if right is not None:
                coverage.lowered[key] += 1
                coverage.right[key] += right
                coverage.wrong += [] if right else [f"{where}: wrong values"]
    return coverage


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and the failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=60, help="entries of the corpus")
    parser.add_argument("--changes", type=int, default=4, help="maximum of changed numbers per segment")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    coverage = measure(plans(given.sample), changes=given.changes)
    print(table_text(coverage.table()))
    print("wrong:", *(coverage.wrong or ["nothing"]), sep="\n  ")


if __name__ == "__main__":
    main()
