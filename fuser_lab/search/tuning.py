"""Search of a plan's kernel parameters by measurement: every candidate is checked, all results are shown and kept.

Starting from the heuristics' choice, one or two values are changed at a time, then again around the best candidate.
Candidates that give the same kernel are measured once, and those that are predicted to be the fastest come first. A
candidate is accepted only if it is faster beyond the spread of both measurements, and again when the two are measured
alternately: otherwise candidates measured while the machine happens to be faster would win.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fuser_lab import arguments
from fuser_lab.arguments import FLAG, FUNCTION, instance, list_of, optional, takes, whole
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import CompilationError, InputError, OutOfMemoryError, ScheduleError
from fuser_lab.files.json_text import json_text
from fuser_lab.plan import Plan, Segment
from fuser_lab.plan.kept_results import KeptResults, keep
from fuser_lab.plan.planning import flatten
from fuser_lab.plan.ranking import rank_candidates
from fuser_lab.report import html
from fuser_lab.report.bars import Bar, bars_svg
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import seconds_label
from fuser_lab.runtime import store
from fuser_lab.runtime.arrays import describe
from fuser_lab.runtime.binding import device_of
from fuser_lab.runtime.clocks import Turns
from fuser_lab.runtime.compile import content_key
from fuser_lab.runtime.interrupts import progress_bar
from fuser_lab.runtime.plan.executor import PreparedPlan
from fuser_lab.runtime.plan.generator import with_seeds
from fuser_lab.runtime.plan.timing import distance
from fuser_lab.schedule.parameters import NestChoice
from fuser_lab.schedule.state import Value
from fuser_lab.schedule.suggestions import suggestions
from fuser_lab.schedule.tuned_parameters import KeptResult
from fuser_lab.search.trial_results import kept_result
from fuser_lab.targets import target_of

_FORMAT = 3  # version of stored results
_ROUNDS = 2  # passes over the parameters of the best candidate
_AGAIN = 3  # maximum number of candidates per round that are measured again
_SHOWN = 12  # bars of a segment
_PREDICTED = "predicted ratio"
TuneProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate: parameters of a segment's nest, median and quartiles in seconds; NaN with a note if not measured.

    ``values`` are empty for the given plan. ``confirmed`` says that it was measured again, alternating with the given
    plan, and was faster beyond the spread of both; the numbers are those of the last measurement. ``predicted`` is the
    ratio to the given plan's time that was predicted before, NaN on a CPU whose rates the plan does not have.
    """

    segment: int
    nest: int
    values: tuple[tuple[str, Value], ...]
    median: float = math.nan
    low: float = math.nan
    high: float = math.nan
    note: str = ""
    confirmed: bool = False
    predicted: float = math.nan

    @property
    def text(self) -> str:
        """The values as text."""
        return ", ".join(f"{name}={value}" for name, value in self.values) or "the given plan"

    def beats(self, other: "Trial") -> bool:
        """Whether it is faster beyond the spread of both."""
        return self.high < other.low


@dataclass(frozen=True, kw_only=True)
class Tuning(Shown):
    """The result of a search: ``plan`` has the best parameters, ``trials`` are all candidates.

    ``kept`` are the segments whose trials were read from disk; ``complete`` is False if the search ended early.
    ``found`` are the parameters that were faster than the given ones, as `keep` stores them.
    """

    plan: Plan
    trials: tuple[Trial, ...]
    target: str
    device: str
    kept: frozenset[int]
    complete: bool
    found: tuple[KeptResult, ...] = ()

    def keep(self) -> KeptResults:
        """Store the parameters that were faster, so that new plans may begin with them, and return what was stored.

        They are stored for this device, the segment's ops and the kernel that the heuristics make of them, in place
        of earlier ones; `fuser_lab.use_tuned` says whether new plans use them, and `fuser_lab.kept_results` lists them.
        Nothing is stored for segments whose given parameters were the fastest.

        Raises
        ------
        OSError
            If the cache directory (``FUSER_LAB_CACHE``) cannot be written.
        """
        return keep(self.found)

    @takes(segment=whole(), nest=whole())
    def best(self, segment: int, nest: int = 0) -> Trial | None:
        """Return the trial whose parameters the plan has; None if that nest was not measured."""
        here = [t for t in self.trials if (t.segment, t.nest) == (segment, nest)]
        return _best(here) if any(not math.isnan(t.median) for t in here) else None

    def table(self) -> Table:
        """Return one row per trial, the fastest of each segment first."""
        rows: list[tuple[str, ...]] = []
        strong: set[int] = set()
        for segment, nest in dict.fromkeys((t.segment, t.nest) for t in self.trials):
            here = [t for t in self.trials if (t.segment, t.nest) == (segment, nest)]
            base = next(t for t in here if not t.values)
            best = _best(here)
            for trial in sorted(here, key=lambda t: (math.isnan(t.median), t.median)):
                if trial is best:
                    strong.add(len(rows))
                ratio = "" if math.isnan(trial.median / base.median) else f"{trial.median / base.median:.2f}"
                tie = trial is not base and not trial.beats(base) and not base.beats(trial) and bool(ratio)
                spread = "" if not trial.median > 0 else f"{100 * (trial.high - trial.low) / trial.median:.0f} %"
                rows.append((
                    f"S{segment}", str(nest), trial.text, seconds_label(trial.median), spread,
                    ratio + (" (tie)" if tie else ""), "" if math.isnan(trial.predicted) else f"{trial.predicted:.2f}",
                    "taken" if trial is best else trial.note,
                ))
        columns: tuple[str, ...] = (
            "segment", "nest", "parameters", f"{self.device} median", "± IQR", "ratio", _PREDICTED, "note",
        )
        if all(math.isnan(trial.predicted) for trial in self.trials):
            place = columns.index(_PREDICTED)
            columns, *rows = ((*row[:place], *row[place + 1 :]) for row in (columns, *rows))
        numeric = frozenset({f"{self.device} median", "± IQR", "ratio", _PREDICTED})
        return Table(columns=columns, rows=tuple(rows), numeric=numeric, strong=frozenset(strong))

    @takes(style=FLAG)
    def svg(self, *, style: bool = True) -> str:
        """Return bars: the fastest trials of each segment, and the given plan."""
        bars = []
        for segment, nest in dict.fromkeys((t.segment, t.nest) for t in self.trials):
            here = [t for t in self.trials if (t.segment, t.nest) == (segment, nest) and not math.isnan(t.median)]
            best = _best(here) if here else None
            shown = sorted(here, key=lambda t: t.median)
            shown = [t for t in shown if t in shown[:_SHOWN] or not t.values]
            bars += [
                Bar(
                    label=f"S{segment}: {t.text}", seconds=t.median, low=t.low, high=t.high, hue=segment,
                    strong=t is best, note="taken" if t is best else "",
                )
                for t in shown
            ]
        return bars_svg(bars, f"Kernel parameters, measured on {self.device}", style=style)

    def __repr__(self) -> str:
        """Return the table as text."""
        return f"{table_text(self.table())}\n{self._text()}"

    def _repr_html_(self) -> str:
        """Return the trials as table and bars."""
        return html.table_html(self.table(), note=self._text()) + self.svg()

    def _text(self) -> str:
        from_disk = f" Read from disk for {', '.join(f'S{n}' for n in sorted(self.kept))}." if self.kept else ""
        early = "" if self.complete else " The search ended early."
        return (
            f"Medians on {self.device}. The results of each candidate were compared with those of the given plan; the "
            f"accepted ones were measured again, alternating with it.{from_disk}{early}"
        )


@takes(
    plan=instance(Plan),
    segments=optional(list_of(whole(accepted="the number of a segment"), "a list of numbers of segments", lazy=True)),
    seconds=arguments.number(0),
    candidates=optional(whole(1)),
    again=FLAG,
    progress=(FUNCTION | optional(FLAG)).worded("a function, True, False or None"),
    cancelled=optional(FUNCTION.worded("a function without arguments")),
)
def tune(
    plan: Plan, inputs: Sequence[Any], *, segments: Sequence[int] | None = None, seconds: float = 0.1,
    candidates: int | None = None, again: bool = False, progress: TuneProgress | bool | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Tuning:
    """Return the plan with the fastest parameters found for its kernels, and all measurements.

    Results are stored on disk, by the segment, its inputs' layouts, the device and the compilers' versions, and read
    the next time. Ctrl-C or ``cancelled`` ends the search; the results so far are returned.

    Parameters
    ----------
    plan
        The plan; the search starts from parameters set by hand, if any.
    inputs
        Arrays and numbers; their device decides whether the GPU's or the CPU's kernels are tuned.
    segments
        Numbers of the segments to tune; all by default.
    seconds
        Maximum time to measure each candidate, after warm-up and compilation.
    candidates
        Maximum number of candidates for each nest of loops; all by default. These are the first ones in the order of
        `fuser_lab.plan.Segment.candidates`.
    again
        Whether to measure again what is stored on disk.
    progress
        Called as ``progress(done, total, text)``; None or True shows a bar, False none.
    cancelled
        Called before each candidate; when it returns True, the search ends.

    Raises
    ------
    InputError
        If inputs do not fit or are abstract, or a segment does not exist.
    """
    flat = flatten(inputs)
    if any(isinstance(value, TensorSpec) for value in flat):
        raise InputError("tune: abstract inputs cannot run; give arrays (spec.materialize() makes one).")
    chosen = list(range(len(plan.segments))) if segments is None else list(segments)
    for number in chosen:
        if number not in range(len(plan.segments)):
            raise InputError(f"tune: segments must be from 0 to {len(plan.segments) - 1}, given {number!r}.")
    search = _Search(plan, flat, seconds, candidates, cancelled or (lambda: False))
    if callable(progress):
        return search.run(chosen, again=again, progress=progress)
    bar = progress_bar("tuning", hidden=progress is False)

    def show(done: int, total: int, text: str) -> None:
        bar.total = total
        bar.set_postfix_str(text, refresh=False)
        bar.update(done - bar.n)

    with contextlib.closing(bar):
        return search.run(chosen, again=again, progress=show)


class _Search:
    def __init__(
        self, plan: Plan, inputs: list[Any], seconds: float, most: int | None, cancelled: Callable[[], bool],
    ) -> None:
        self._plan, self._seconds, self._most, self._cancelled = plan, seconds, most, cancelled
        self._target = device_of([describe(value) for value in inputs])
        self._kind = target_of(self._target).name
        self._inputs = with_seeds(plan.fusion, inputs)
        self._trials: list[Trial] = []
        self._done = self._total = 0

    def run(self, segments: Sequence[int], *, again: bool, progress: TuneProgress) -> Tuning:
        prepared = self._plan.prepare(self._target)
        expected = prepared.run(self._inputs)
        device = prepared.memory.label()
        self._clock = target_of(self._kind).clock()()
        plan, complete = self._plan, True
        from_disk: set[int] = set()
        has_blocks = target_of(self._kind).has_blocks
        machine = prepared.memory.gpu if has_blocks else plan.oracle.device
        self._requests = {
            number: replace(step.request, device=machine, shared=None)
            for number, step in enumerate(prepared.steps(self._inputs))
            if step.runs and step.generated and step.scheduler is not None
        }
        open_ = [number for number in segments if number in self._requests]
        for number in open_:
            place = self._place(plan.segments[number], prepared, device)
            trials = None if again else _read(place, number)
            if trials is not None:
                from_disk.add(number)
                self._trials += trials
                plan = self._with_best(plan, number, trials)
                continue
            before = len(self._trials)
            try:
                plan = self._segment(plan, number, expected, progress)
            except _Ended:
                complete = False
                plan = self._with_best(plan, number, self._trials[before:])
                break
            _write(place, self._trials[before:])
        results = (
            kept_result(self._plan, plan, number, self._requests[number], prepared.memory, self._gains(number))
            for number in open_
        )
        return Tuning(
            plan=plan, trials=tuple(self._trials), target=self._target, device=device, kept=frozenset(from_disk),
            complete=complete, found=tuple(result for result in results if result is not None),
        )

    def _gains(self, number: int) -> list[tuple[float, float]]:
        """Return seconds before and after for each nest of a segment with better parameters."""
        gains = []
        for nest in dict.fromkeys(t.nest for t in self._trials if t.segment == number):
            here = [t for t in self._trials if (t.segment, t.nest) == (number, nest)]
            base, best = next(t for t in here if not t.values), _best(here)
            if best is not None and best.values and best.median > 0:
                gains.append((base.median, best.median))
        return gains

    def _with_best(self, plan: Plan, number: int, trials: Sequence[Trial]) -> Plan:
        """Return a plan with the best of measured parameters; stored parameters may have become illegal."""
        for nest in dict.fromkeys(t.nest for t in trials):
            best = _best([t for t in trials if t.nest == nest])
            if best is not None and best.values:
                with contextlib.suppress(ScheduleError):
                    plan = plan.with_params(number, target=self._kind, nest=nest, **dict(best.values))
        return plan

    def _segment(self, plan: Plan, number: int, expected: Sequence[Any], progress: TuneProgress) -> Plan:
        for nest in plan.segments[number].params(self._kind):
            if not nest.names:
                continue
            # The search starts from the plan's parameters.
            base = self._measure(plan, number, nest.number, (), expected)
            self._trials.append(base)
            if math.isnan(base.median):
                continue
            plan = self._nest(plan, number, nest, base, expected, progress)
        return plan

    def _nest(
        self, plan: Plan, number: int, nest: NestChoice, base: Trial, expected: Sequence[Any], progress: TuneProgress,
    ) -> Plan:
        best, tried = base, {_start(plan, number, self._kind, nest.number)}
        start = dict(_start(plan, number, self._kind, nest.number))
        current, left = plan, self._most
        for _ in range(_ROUNDS):
            around = current.segments[number].params(self._kind)[nest.number]
            candidates = [tuple(sorted({**start, **dict(best.values), **dict(v)}.items())) for v in suggestions(around)]
            order = rank_candidates(
                replace(self._requests[number], changes=plan.segments[number].changes), nest.number,
                [values for values in dict.fromkeys(candidates) if values not in tried], tried,
            ).ranked[:left]
            left = None if left is None else left - len(order)
            self._total = self._done + len(order)
            before = best
            first = len(self._trials)
            try:
                for candidate in order:
                    progress(self._done, self._total, f"S{number} {candidate.text}")
                    tried.add(candidate.values)
                    trial = self._measure(plan, number, nest.number, candidate.values, expected)
                    self._trials.append(replace(trial, predicted=candidate.ratio))
                    self._done += 1
            finally:
                # Also if the search has ended: a candidate that is not measured again is not accepted.
                base, best = self._confirm(plan, number, base, best, first, expected)
            progress(self._done, self._total, f"S{number}")
            if best is before:
                break
            current = plan.with_params(number, target=self._kind, nest=nest.number, **dict(best.values))
        return current

    def _measure(
        self, plan: Plan, number: int, nest: int, values: tuple[tuple[str, Value], ...], expected: Sequence[Any],
    ) -> Trial:
        """Return a candidate with its times, after comparing its results with those of the given plan."""
        try:
            if self._cancelled():
                raise _Ended
            call = self._call(plan, number, nest, values, expected)
            if call is None:
                return Trial(segment=number, nest=nest, values=values, note="wrong results, not timed")
            low, median, high = self._clock.sample(call, self._seconds).quartiles()
        except KeyboardInterrupt:
            raise _Ended from None
        except (ScheduleError, CompilationError, OutOfMemoryError, RuntimeError) as error:
            said = str(error).partition("\n")[0]
            return Trial(segment=number, nest=nest, values=values, note=f"not measured: {said}")
        return Trial(segment=number, nest=nest, values=values, median=median, low=low, high=high)

    def _call(
        self, plan: Plan, number: int, nest: int, values: tuple[tuple[str, Value], ...], expected: Sequence[Any],
    ) -> Callable[[], None] | None:
        """Return a function that runs a segment with these parameters, or None if its results are wrong."""
        changed = plan.with_params(number, target=self._kind, nest=nest, **dict(values)) if values else plan
        prepared = changed.prepare(self._target)
        outputs = prepared.run(self._inputs)
        worst = max((distance(got, want) for got, want in zip(outputs, expected, strict=True)), default=0.0)
        if not worst < 1:
            return None
        bound = prepared.bind(self._inputs, prepared.reusable(outputs))
        for step in bound.steps:
            step()
        return bound.steps[number]

    def _confirm(
        self, plan: Plan, number: int, base: Trial, best: Trial, first: int, expected: Sequence[Any],
    ) -> tuple[Trial, Trial]:
        """Return base and best after the fastest trials were measured again, alternating with the base."""
        hopeful = [trial for trial in self._trials[first:] if trial.beats(base) and not trial.median >= best.median]
        for trial in sorted(hopeful, key=lambda t: t.median)[:_AGAIN]:
            again = self._in_turn(plan, number, (base, trial), expected)
            if again is None:
                continue
            better = again[1].beats(again[0])
            note = "" if better else "not faster when measured again, alternating with the given plan"
            trial_again = replace(again[1], confirmed=better, note=note)
            self._trials[self._trials.index(base)], base = again[0], again[0]
            self._trials[self._trials.index(trial)] = trial_again
            if better and not (best.confirmed and trial_again.median >= best.median):
                return base, trial_again
        return base, best

    def _in_turn(self, plan: Plan, number: int, trials: Sequence[Trial], expected: Sequence[Any]) -> list[Trial] | None:
        """Return trials with the times of an alternating measurement; None if one of them fails."""
        turns = Turns(self._seconds)
        try:
            for trial in trials:
                call = self._call(plan, number, trial.nest, trial.values, expected)
                if call is None:
                    return None
                turns.add(self._clock.measured(call))
            for _ in turns.rounds():
                pass
        except KeyboardInterrupt:
            raise _Ended from None
        except (ScheduleError, CompilationError, OutOfMemoryError, RuntimeError):
            return None
        quartiles = [turns.sample(place).quartiles() for place in range(len(trials))]
        return [
            replace(trial, low=low, median=median, high=high)
            for trial, (low, median, high) in zip(trials, quartiles, strict=True)
        ]

    def _place(self, segment: Segment, prepared: PreparedPlan, device: str) -> str:
        """Return the file of a segment's results, named after everything that determines them."""
        fusion = segment.fusion
        tensors = [(tv.name, tv.dtype.name, tv.shape, str(tv.domain)) for tv in fusion.tensors.values()]
        exprs = [(e.op.name, [str(v) for v in e.inputs], [str(v) for v in e.outputs], e.attrs) for e in fusion.exprs]
        specs = [repr(describe(v)) for v in self._inputs if hasattr(v, "dtype")]
        kernel = segment.kernel(self._kind)
        # What the search starts from: not all parameters are constants of the source.
        start = [tuple(nest.values.items()) for nest in kernel.kernel_ir.nests]
        # The key of an empty source contains the compilers' versions.
        content = (
            _FORMAT, self._most, device, self._kind, content_key(""), str(segment.scheduler), segment.changes, tensors,
            exprs, specs, start, content_key(kernel.source),
        )
        return f"tuned/{hashlib.sha256(repr(content).encode()).hexdigest()[:32]}.json"


class _Ended(Exception):  # noqa: N818 - an outcome that the caller asked for
    """Raised to end the search."""


def _start(plan: Plan, number: int, target: str, nest: int) -> tuple[tuple[str, Value], ...]:
    """Return the parameters set by hand for a nest."""
    values = (c.values for c in plan.segments[number].changes if (c.target, c.nest) == (target, nest))
    return next(values, ())


def _best(trials: Sequence[Trial]) -> Trial | None:
    """Return the fastest trial that was confirmed to beat the first one, or the first."""
    base = next((t for t in trials if not t.values), None)
    faster = [t for t in trials if t.confirmed]
    return min(faster, key=lambda t: t.median, default=base)


def _read(place: str, segment: int) -> list[Trial] | None:
    """Return the stored trials of a segment; None if there are none, or they cannot be read."""
    content = store.read(place)
    if content is None:
        return None
    try:
        records = json.loads(content)
        return [
            Trial(
                segment=segment, nest=record["nest"],
                values=tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in record["values"]),
                median=_number(record["median"]), low=_number(record["low"]), high=_number(record["high"]),
                note=record["note"], confirmed=record["confirmed"], predicted=_number(record["predicted"]),
            )
            for record in records
        ]
    except (ValueError, KeyError, TypeError):
        return None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _write(place: str, trials: Sequence[Trial]) -> None:
    """Store trials on disk."""
    store.write(place, json_text([asdict(trial) for trial in trials]).encode())
