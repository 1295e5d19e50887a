"""Other parameters of a segment's kernel, in the order of the predicted times of their kernels."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.codegen.pipeline import lower
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.errors import CodegenError, InputError, ScheduleError
from fuser_lab.plan.clock import features_of, prediction_of
from fuser_lab.plan.requests import request_of
from fuser_lab.plan.segment_edit import ScheduledSegment
from fuser_lab.report import html
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import seconds_label
from fuser_lab.schedule.parameter_values import Values
from fuser_lab.schedule.parameters import LoopChange, NestChoice
from fuser_lab.schedule.suggestions import suggestions
from fuser_lab.targets import target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """Parameters of a nest, and the predicted ratio of their kernel's time to the running kernel's; NaN if unknown."""

    values: Values
    ratio: float = math.nan

    @property
    def text(self) -> str:
        """The values as text."""
        return ", ".join(f"{name}={value}" for name, value in self.values) or "as it runs"

    @property
    def ratio_text(self) -> str:
        """The ratio as text; empty if unknown."""
        return "" if math.isnan(self.ratio) else f"{self.ratio:.2f}"


@dataclass(frozen=True, kw_only=True)
class Candidates(Shown):
    """The parameters that `fl.tune` tries for a nest of a segment's kernel, predicted fastest first.

    ``seconds`` is the predicted time of the kernel as it runs, NaN if the device has no model of its time; ``source``
    says where the model's rates come from.
    """

    nest: NestChoice
    seconds: float
    source: str
    ranked: tuple[RankedCandidate, ...]

    def table(self) -> Table:
        """Return one row per candidate and one for the kernel as it runs, by predicted time."""
        runs = RankedCandidate(values=tuple(self.nest.values.items()), ratio=1.0)
        order = sorted((runs, *self.ranked), key=lambda row: (math.isnan(row.ratio), row.ratio))
        seconds = [self.seconds * row.ratio for row in order]
        rows = tuple(
            (row.text, "" if math.isnan(time) else seconds_label(time), row.ratio_text, "runs" if row is runs else "")
            for row, time in zip(order, seconds, strict=True)
        )
        return Table(
            columns=("parameters", "predicted", "ratio", "note"), rows=rows, numeric=frozenset({"predicted", "ratio"}),
            strong=frozenset({order.index(runs)}),
        )

    def __repr__(self) -> str:
        """Return the table as text."""
        return f"{table_text(self.table())}\n{self.note}"

    def _repr_html_(self) -> str:
        """Return the table as HTML."""
        return html.table_html(self.table(), note=self.note)

    @property
    def note(self) -> str:
        """The source of the predictions, and the order in which `fl.tune` measures."""
        if math.isnan(self.seconds):
            return "The plan's device has no model of these kernels' times; fl.tune measures them in this order."
        return f"Times are predicted by rates from {self.source}; fl.tune measures the candidates in this order."


def rank_candidates(
    request: KernelRequest, nest: int, candidates: Sequence[Values], tried: Iterable[Values] = (),
) -> Candidates:
    """Return the candidates of a nest that are different kernels, predicted fastest first; nothing is compiled.

    Values that give the kernel that runs, the kernel of another candidate, or none are left out. Candidates keep their
    order if the device has no model of their time.

    Parameters
    ----------
    request
        The kernel that runs.
    nest
        Number of the nest.
    candidates
        Values of this nest, in place of those set by hand.
    tried
        Values that give kernels which are left out as well.
    """
    device = request.device
    is_predicted = target_of(request.target).has_blocks == (device.host is None)
    others = [change for change in request.changes if (change.target, change.nest) != (request.target, nest)]

    def kernels(several: Iterable[Values]) -> Iterator[tuple[Values, Kernel]]:
        for values in several:
            change = LoopChange(target=request.target, nest=nest, values=values)
            with contextlib.suppress(CodegenError, ScheduleError):
                yield values, lower(replace(request, changes=[*others, change] if values else others))

    running = lower(request)
    seconds, source = math.nan, ""
    if is_predicted:
        prediction = prediction_of(features_of(request.fusion, running, device), device)
        seconds, source = prediction.seconds, prediction.source
    codes, rows = {_code(running), *(_code(kernel) for _, kernel in kernels(tried))}, list[RankedCandidate]()
    for values, kernel in kernels(candidates):
        if (code := _code(kernel)) in codes:
            continue
        codes.add(code)
        ratio = math.nan
        if is_predicted:
            ratio = prediction_of(features_of(request.fusion, kernel, device), device).seconds / seconds
        rows.append(RankedCandidate(values=values, ratio=ratio))
    if is_predicted:
        rows.sort(key=lambda row: row.ratio)
    return Candidates(nest=running.nests[nest], seconds=seconds, source=source, ranked=tuple(rows))


def _code(kernel: Kernel) -> object:
    """Return the part of a kernel that it executes, which is equal for parameters that make no difference."""
    return tuple((phase.buffers, phase.body, phase.launch, phase.sizes) for phase in kernel.phases)


def candidates_of(segment: ScheduledSegment, target: str, nest: int) -> Candidates:
    """Return the candidates of a nest of a segment's kernel for a target.

    Raises
    ------
    InputError
        If the kernel has no such nest.
    CodegenError
        If the segment has no kernel.
    """
    nests = segment.params(target)
    if nest not in range(len(nests)):
        has = f"from 0 to {len(nests) - 1}" if nests else "none, because the schedule set by hand has no parameters"
        raise InputError(f"candidates: nest must be {has}; given {nest}.")
    by_hand = next((change.values for change in segment.changes if (change.target, change.nest) == (target, nest)), ())
    values = [tuple(sorted({**dict(by_hand), **dict(other)}.items())) for other in suggestions(nests[nest])]
    return rank_candidates(request_of(segment, target), nest, values)
