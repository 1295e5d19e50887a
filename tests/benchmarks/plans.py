"""Plans of the fusions of the corpus, measured beside their predictions, and the figures over all of them.

`tests.benchmarks.plans_on_gpu` and `tests.benchmarks.plans_on_cpu` are the commands. Each fusion is cut by several
strategies, with and without nvFuser's rules, and at random. Processes segment and compile in parallel; one at a time
measures the plans of a fusion alternately. A plan is omitted if something other than a kernel computes one of its
segments.
"""

import argparse
import fcntl
import gzip
import json
import math
import multiprocessing
import os
import queue
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

import numpy as np

import fuser_lab as fl
from fuser_lab.codegen.kernel_profile import kernel_features
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.plan.clock import given_strides, layouts_and_idle, read_layouts
from fuser_lab.runtime.processors import processors
from tests.benchmarks.measure_kernels import brief
from tests.kernels import kernel_of

SAMPLES: Final = 11
OPS: Final = 100  # maximum per fusion
CUTS: Final = 2
LAST: Final = 5.0  # seconds reserved for the end
Row = dict[str, Any]
APART = 1.1  # ratio of two plans' times from which their order counts although their spreads are unknown
WITHIN = 0.2
FEWEST = 3  # plans of a fusion whose ranks are compared
BASE = "bottom_up"
KEPT = "fastest"
WAYS = (
    (BASE, fl.SCHEDULERS), (KEPT, fl.OPEN_SCHEDULERS), (BASE, fl.OPEN_SCHEDULERS), ("optimal", fl.SCHEDULERS),
    ("saving", fl.SCHEDULERS), ("top_down", fl.SCHEDULERS), (KEPT, fl.SCHEDULERS), ("unfused", fl.SCHEDULERS),
)
NAMES = {way: way[0] if way in {WAYS[0], WAYS[1]} else f"{way[0]}{' open' * (way[1] is fl.OPEN_SCHEDULERS)}"
         f"{' closed' * (way[0] == KEPT)}" for way in WAYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A plan with its predicted seconds, and median and quartiles of the measured ones."""

    fusion: str
    plan: str
    predicted: float
    median: float
    low: float
    high: float

    def apart(self, other: "Timed") -> bool:
        """Whether the measured times of two plans differ by more than their spread."""
        return self.high < other.low or other.high < self.low


def running(plan: fl.Plan) -> tuple[int, ...] | None:
    """Return the numbers of the segments that are kernels; None if something else computes a segment."""
    _, idle = layouts_and_idle(plan.segmented, given_strides(plan.inputs))
    found = [segment for segment in plan.segments if segment.index not in idle]
    if any(one.scheduler is None or evaluated_because(one.fusion, one.scheduler) for one in found):
        return None
    return tuple(one.index for one in found)


def plans_of(
    fd: Any, inputs: Sequence[Any], *, target: Any = None, ways: Iterable[Any] = WAYS, cuts: int = 0, kernels: int = 0,
) -> dict[str, fl.Plan]:
    """Return distinct plans whose segments are all kernels, by the way in which each was found.

    A name contains all ways that lead to the plan, as in ``"bottom_up=optimal"``. ``cuts`` are random edits of the
    bottom-up plan; with ``kernels``, plans beyond the first two are omitted once the total number of kernels would be
    larger.
    """
    found: dict[Any, tuple[list[str], fl.Plan]] = {}
    left = kernels or math.inf

    def add(name: str, plan: fl.Plan, needed: bool) -> None:
        nonlocal left
        key = plan.segmented.key
        if key in found:
            found[key][0].append(name)
            return
        ran = running(plan)
        if ran and (needed or len(ran) <= left):
            left -= len(ran)
            found[key] = ([name], plan)

    first: fl.Plan | None = None
    for strategy, schedulers in ways:
        plan = fl.segment(fd, inputs, strategy=strategy, target=target, schedulers=schedulers)
        first = first or plan
        add(NAMES[strategy, schedulers], plan, needed=strategy in {BASE, KEPT})
    for number, plan in enumerate(cut_at_random(first, cuts) if first else ()):
        add(f"cut {number}", plan, needed=False)
    return {"=".join(names): plan for names, plan in found.values()}


def cut_at_random(plan: fl.Plan, count: int) -> Iterator[fl.Plan]:
    """Yield a plan cut at one of its tensors, the same ones in every run."""
    inside = [e.out.name for s in plan.segments for e in s.exprs if e.tensor_outputs and e.out not in s.group.outputs]
    random.Random(crc32(" ".join(inside).encode())).shuffle(inside)
    for name in inside:
        if not count:
            return
        try:
            found = plan.cut(name)
        except fl.FuserLabError:
            continue
        count -= 1
        yield found


def is_way(name: str, way: str) -> bool:
    """Whether a plan's name contains a way."""
    return way in name.split("=")


def by_fusion(rows: Iterable[Timed]) -> dict[str, list[Timed]]:
    """Return the plans of each fusion."""
    found: dict[str, list[Timed]] = {}
    for row in rows:
        found.setdefault(row.fusion, []).append(row)
    return found


def pairs_apart(rows: Iterable[Timed], factor: float = 1.0) -> Iterator[tuple[Timed, Timed]]:
    """Yield pairs of plans of one fusion, the faster one first, that differ by more than their spread."""
    for group in by_fusion(rows).values():
        for one, other in combinations(sorted(group, key=lambda row: row.median), 2):
            if one.apart(other) and other.median >= factor * one.median:
                yield one, other


def ranks(rows: Iterable[Timed], *, tied: bool = False) -> list[float]:
    """Return Spearman's rank correlation of predicted and measured times for each fusion with at least three plans.

    With ``tied``, successive plans whose measured times differ by no more than their spread share a rank, and fusions
    whose plans all have the same rank are omitted.
    """
    from scipy.stats import spearmanr

    found = []
    for group in by_fusion(rows).values():
        ordered = sorted(group, key=lambda row: row.median)
        places, place = [], 0
        for number, row in enumerate(ordered):
            place += number > 0 and (not tied or row.apart(ordered[number - 1]))
            places.append(place)
        guesses = _rounded([row.predicted for row in ordered], places) if tied else [row.predicted for row in ordered]
        if len(ordered) >= FEWEST and len(set(places)) > 1 and len(set(guesses)) > 1:
            found.append(float(spearmanr(guesses, places).statistic))
    return found


def _rounded(guesses: Sequence[float], places: Sequence[int]) -> list[float]:
    """Return the mean prediction of the plans of each rank, because their order was not measured."""
    means = {place: np.mean([g for g, p in zip(guesses, places, strict=True) if p == place]) for place in set(places)}
    return [float(means[place]) for place in places]


def summary(rows: Sequence[Timed]) -> list[str]:
    """Return the figures over all fusions, and each fusion whose fastest plan is slower than the bottom-up one."""
    groups = by_fusion(rows)
    factors = np.array([row.predicted / row.median for row in rows])
    base = [row for row in rows if is_way(row.plan, BASE)]
    of_base = np.array([row.predicted / row.median for row in base])
    apart, wide = list(pairs_apart(rows)), list(pairs_apart(rows, APART))
    plain, tied = ranks(rows), ranks(rows, tied=True)
    typical, mean = np.exp(np.median(np.abs(np.log(factors)))), np.exp(np.mean(np.log(factors)))
    within = f"{_within(factors):.1%} of the plans, {_within(of_base):.1%} of the bottom-up ones"
    lines = [
        f"{len(groups)} fusions, {len(rows)} plans; within 20 %: {within}",
        f"predicted over measured: median factor {typical:.3f}, geometric mean {mean:.3f}",
        "rank correlation of the plans of a fusion, mean and median:",
        f"  {np.mean(plain):.3f}, {np.median(plain):.3f} over {len(plain)} fusions",
        f"  {np.mean(tied):.3f}, {np.median(tied):.3f} over {len(tied)}, plans within the spread have one rank",
        f"in order: {_ordered(apart):.1%} of {len(apart)} pairs that differ by more than the spread",
        f"          {_ordered(wide):.1%} of {len(wide)} that differ by 10 % as well",
    ]
    gains, slower = [], []
    for group in groups.values():
        first = next((row for row in group if is_way(row.plan, BASE)), None)
        kept = next((row for row in group if is_way(row.plan, KEPT)), None)
        if first and kept:
            gains.append(first.median / kept.median)
            if kept.low > first.high:
                slower.append((kept.median / first.median, first, kept))
    if gains:
        lines.append(f"fastest over bottom-up: geometric mean {np.exp(np.mean(np.log(gains))):.3f} over {len(gains)} "
                     f"fusions, slower beyond the spread in {len(slower)}")
    lines += [
        f"  {ratio:.2f} times as long: {first.fusion}, measured {1e6 * first.median:.1f} -> {1e6 * kept.median:.1f} µs,"
        f" predicted {1e6 * first.predicted:.1f} -> {1e6 * kept.predicted:.1f} µs"
        for ratio, first, kept in sorted(slower, key=lambda one: -one[0])
    ]
    return lines


def _within(factors: Any) -> float:
    return float(np.mean(np.abs(factors - 1) <= WITHIN)) if len(factors) else math.nan


def _ordered(pairs: Sequence[tuple[Timed, Timed]]) -> float:
    return float(np.mean([one.predicted < other.predicted for one, other in pairs])) if pairs else math.nan


class Machine(Protocol):
    """A machine for plans: arrays for inputs, compilation, and measurement."""

    target: Any
    name: str
    waits: bool  # whether it measures only after all compilation has ended

    def entries(self, pattern: str) -> list[str]:
        """Return the names of the corpus entries that are small enough."""

    def load(self, name: str) -> tuple[Any, list[Any]]:
        """Return a definition and its described inputs."""

    def compile(self, plan: fl.Plan) -> None:
        """Compile the kernels of a plan, without running anything."""

    def arrays(self, inputs: Sequence[Any]) -> list[Any]:
        """Return arrays that match the descriptions of inputs."""

    def measured(self, plan: fl.Plan, arrays: Sequence[Any]) -> Callable[[], float]:
        """Return the function that measures a plan, in seconds."""

    def parts(self, plan: fl.Plan, arrays: Sequence[Any]) -> list[float]:
        """Return the seconds of each segment that runs, inside runs of the plan."""

    def free(self) -> None:
        """Release memory that another process needs."""


def described(plan: fl.Plan) -> list[Row]:
    """Return the kernels of a plan: their features, and names and bytes of the tensors that they read and write."""
    layouts, idle = layouts_and_idle(plan.segmented, given_strides(plan.inputs))
    base: dict[str, str] = {}
    found = []
    for segment in plan.segments:
        if segment.index in idle:
            for tensor in segment.group.outputs:
                source = next(iter(segment.group.tensor_inputs), tensor).name
                base[tensor.name] = base.get(source, source)
            continue
        kernel = kernel_of(segment, "cuda", strides=read_layouts(segment.inputs, layouts))
        reads, writes = (
            [(base.get(t.name, t.name), t.nbytes) for t in tensors]
            for tensors in (segment.group.tensor_inputs, segment.group.outputs)
        )
        found.append({
            "features": asdict(kernel_features(segment.fusion, kernel.kernel_ir)), "reads": reads, "writes": writes,
        })
    return found


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Return a context in which no other process measures; the system ends it if this process dies."""
    with place.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """State shared by the processes: the entries and how many are taken, results, a lock, and when to stop."""

    order: Sequence[str]
    taken: Any
    results: Any
    place: Path
    compile_until: float
    until: float
    kernels: int
    ways: Sequence[Any]


def work(make: Callable[[], Machine], shared: Shared) -> None:
    """Process one entry after another: compile its plans, and measure them when this process's turn comes."""
    warnings.simplefilter("ignore")
    machine = make()
    waiting: list[Any] = []
    while time.monotonic() < shared.compile_until:
        with shared.taken.get_lock():
            number, shared.taken.value = shared.taken.value, shared.taken.value + 1
        if number >= len(shared.order):
            break
        name, begun = shared.order[number], time.monotonic()
        try:
            fd, inputs = machine.load(name)
            plans = plans_of(
                fd, inputs, target=machine.target, ways=shared.ways, cuts=CUTS, kernels=shared.kernels,
            )
            searched = time.monotonic() - begun
            for plan in plans.values():
                machine.compile(plan)
        except Exception as error:  # noqa: BLE001 - one fusion must not end the run, and its line says why
            shared.results.put((name, [], [brief(error)], ()))
            continue
        waiting.append((name, plans, inputs, (searched, time.monotonic() - begun - searched)))
        if not plans or not machine.waits:
            if not measured_all(machine, waiting, shared):
                break
            waiting.clear()
    if machine.waits:
        time.sleep(max(shared.compile_until - time.monotonic(), 0) + LAST)
    measured_all(machine, waiting, shared)
    shared.results.put(None)


def measured_all(machine: Machine, waiting: Iterable[Any], shared: Shared) -> bool:
    """Measure fusions in sequence; return whether the machine is still usable."""
    for name, plans, inputs, spent in waiting:
        begun = time.monotonic()
        try:
            records = {word: described(plan) for word, plan in plans.items()}
            with alone(shared.place):
                rows, notes = measured(name, plans, inputs, machine, shared.until)
            for row in rows:
                row["kernels"] = records[row["plan"]]
        except Exception as error:  # noqa: BLE001 - as above
            rows, notes = [], [brief(error)]
        shared.results.put((name, rows, notes, (*spent, time.monotonic() - begun)))
        if any("illegal" in note or "CUDA_ERROR" in note for note in notes):
            return False
    return True


def measured(
    name: str, plans: dict[str, fl.Plan], inputs: Sequence[Any], machine: Machine, until: float,
) -> tuple[list[Row], list[str]]:
    """Return the plans of a fusion with their times, measured alternately, and the reasons why others have none."""
    calls: dict[str, Callable[[], float]] = {}
    parts: dict[str, list[float]] = {}
    notes = []
    if time.monotonic() < until:
        arrays = machine.arrays(inputs)
        for word, plan in plans.items():
            try:
                calls[word] = machine.measured(plan, arrays)
                parts[word] = machine.parts(plan, arrays)
            except Exception as error:  # noqa: BLE001 - as above
                notes.append(f"{word}: {brief(error)}")
    samples: dict[str, list[float]] = {word: [] for word in calls}
    for turn in range(SAMPLES):
        for word in calls if turn % 2 else reversed(calls):
            if time.monotonic() < until:
                samples[word].append(calls[word]())
    rows = []
    for word, taken in samples.items():
        if len(taken) >= SAMPLES // 2:
            low, median, high = np.percentile(taken, (25, 50, 75))
            rows.append({
                "fusion": name, "plan": word, "median": float(median), "low": float(low), "high": float(high),
                "predicted": plans[word].predicted_time().seconds, "segments": len(running(plans[word]) or ()),
                "parts": parts[word],
            })
    calls.clear()
    for plan in plans.values():
        plan._cache.clear()
    arrays = None
    machine.free()
    return rows, notes


def in_order(calls: Sequence[Callable[[], float]]) -> list[float]:
    """Return the medians of segments, measured inside runs of their plan."""
    taken = [[call() for call in calls] for _ in range(SAMPLES)]
    return [float(median) for median in np.median(taken, axis=0)]


def timed(rows: Sequence[Row]) -> list[Timed]:
    """Return the measured plans of rows."""
    names = ("fusion", "plan", "predicted", "median", "low", "high")
    return [Timed(**{name: row[name] for name in names}) for row in rows]


def saved(rows: Sequence[Row], place: Path) -> None:
    """Write rows, one per line."""
    with gzip.open(place, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def run(make: Callable[[], Machine], machine: Machine, options: argparse.Namespace, ways: Sequence[Any]) -> None:
    """Measure, print a line per fusion and the figures over all, and write the rows."""
    begun = time.monotonic()
    until = begun + options.seconds - LAST
    context = multiprocessing.get_context("spawn")
    order = machine.entries(options.corpus)
    random.Random(20).shuffle(order)
    shared = Shared(
        order=order, taken=context.Value("l", 0), results=context.Queue(), until=until,
        place=Path(tempfile.gettempdir()) / f"plans.{os.getpid()}.lock",
        compile_until=begun + options.seconds * (options.compiling if machine.waits else 1) - LAST,
        kernels=options.kernels, ways=ways,
    )
    workers = [context.Process(target=work, args=(make, shared), daemon=True) for _ in range(options.processes)]
    for process in workers:
        process.start()
    rows: list[Row] = []
    ended, kept = 0, begun
    while ended < len(workers) and time.monotonic() < until + LAST / 2:
        try:
            found = shared.results.get(timeout=0.5)
        except queue.Empty:
            continue
        if found is None:
            ended += 1
            continue
        name, here, notes, spent = found
        rows += here
        texts = [f"{row['plan']} {1e6 * row['median']:.1f}/{1e6 * row['predicted']:.1f}" for row in here]
        print(f"{name}: {', '.join([*texts, *notes])} [{' '.join(f'{s:.1f}' for s in spent)}]", flush=True)
        if options.out and time.monotonic() - kept > 15:
            saved(rows, options.out)
            kept = time.monotonic()
    print(f"{time.monotonic() - begun:.0f} s on {machine.name}, {shared.taken.value} of {len(order)} entries")
    if options.out:
        saved(rows, options.out)
    print("\n".join(summary(timed(rows))) if rows else "nothing was measured", flush=True)
    for process in workers:
        process.kill()
    os._exit(0)  # queues would wait until their items are read


def parsed(text: str | None, pattern: str) -> argparse.Namespace:
    """Return the options of a command."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default=pattern, metavar="PATTERN")
    parser.add_argument("--seconds", type=float, default=190.0, help="after which the command ends")
    parser.add_argument("--compiling", type=float, default=0.5, help="part of them in which a CPU compiles")
    parser.add_argument("--processes", type=int, default=max(processors() - 1, 1))
    parser.add_argument("--kernels", type=int, default=14, help="of all plans of a fusion, at most")
    parser.add_argument("--out", type=Path, help="file for all rows, gzipped JSON")
    return parser.parse_args()
