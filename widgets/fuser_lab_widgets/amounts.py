"""Times of plans for comparison: predicted for the target, by bytes on the device that ran, and measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fuser_lab.cost.kernel_time import Prediction
from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.cost.traffic import CostModel
from fuser_lab.report.timing_table import ratio_label, timing_table
from fuser_lab.report.units import bytes_label, seconds_label
from fuser_lab.report.view_model import Header

_CPU: Final = "CPU"


def place(device: str) -> str:
    """Return the device of a row of timings as the explorer names it."""
    return f"this {_CPU}" if device.startswith(_CPU) else device


def outcome(totals: Sequence[TimingRow]) -> str:
    """Return which plan of a run is the fastest, and by how much it differs from the first, as a sentence."""
    timed = [row for row in totals if row.median > 0]
    if not timed:
        return "no plan was measured."
    first = timed[0]
    subject = timed[-1] if len(timed) < 3 else min(timed, key=lambda row: row.median)
    among = f", the fastest of {len(timed)} plans," if len(timed) > 2 else ""
    head = f"{subject.plan}{among} takes {seconds_label(subject.median)}"
    how = f"on {place(first.device)}"
    if subject is first:
        return f"{head} (median {how})."
    ratio = subject.median / first.median
    base = f"{seconds_label(first.median)} (medians {how})."
    if subject.ties_with(first):
        return f"{head}, a tie within the spread with {first.plan}, which takes {base}"
    return f"{head}, {100 * abs(1 - ratio):.0f} % {'less' if ratio < 1 else 'more'} than {first.plan} with {base}"


def by_bytes(header: Header, model: CostModel) -> float:
    """Return the seconds that a plan takes on a device by its bytes at the bandwidth, and its launches."""
    return header.bytes_moved / model.bandwidth + header.segments * model.launch


def ratio_heading(base: str) -> str:
    """Return the heading of ratios to the time of a plan."""
    return f"ratio to {base}"


def times_table(timings: Timings) -> dict[str, Any]:
    """Return the table of measured times for the page; the heading of the ratios names the plan that they are of."""
    data: dict[str, Any] = timing_table(timings).to_dict()
    base = next((row.plan for row in timings.rows if row.segment is None), "")
    headings = [ratio_heading(base) if name == "ratio" and base else name for name in data["columns"]]
    return data | {"columns": headings}


def target_name(plan: Any) -> str:
    """Return the name of the device that a plan's times are predicted for; empty for a plan without one."""
    return str(plan.target) if hasattr(plan, "predicted_time") else ""


def model_text(model: CostModel) -> str:
    """Return what a device's time by bytes assumes."""
    rate = f"{model.bandwidth / 1e9:.0f} GB/s{f' ({model.note})' if model.note else ''}"
    return f"{model.device}: bytes at {rate}, and {seconds_label(model.launch)} for each launch"


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Predicted times of plans, a cost model of the device that ran, measurements of whole plans, and their conditions.

    ``target`` is the device that times are predicted for, empty if there is none; ``plans`` are by their hash, which
    measurements (``measured``) and certificates are by, too. ``base`` is the hash of the plan that ratios are relative
    to, the first one of the last run. ``peers`` are the rows of peers. ``note`` says how the times were measured, and
    ``doubts`` why their differences may be chance.
    """

    target: str = ""
    plans: Mapping[str, Any] = field(default_factory=dict)
    machine: CostModel | None = None
    measured: Mapping[str, TimingRow] = field(default_factory=dict)
    base: str = ""
    peers: Sequence[TimingRow] = ()
    note: str = ""
    doubts: Sequence[str] = ()
    certificates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def others(self) -> list[CostModel]:
        """The model of the device that ran, unless that is the target."""
        return [] if self.machine is None or self.machine.device == self.target else [self.machine]

    def predict(self, header: Header) -> Prediction | None:
        """Return the predicted time of a plan, None for one that is not there."""
        plan = self.plans.get(header.hash) if self.target else None
        return None if plan is None else plan.predicted_time()

    def facts(self, header: Header) -> list[list[str]]:
        """Return the times of a plan as numbers of the header: value, name, and meaning."""
        prediction = self.predict(header)
        at_target = [] if prediction is None else [
            [seconds_label(prediction.seconds), f"predicted ({self.target})", f"kernels as scheduled: {prediction}"],
        ]
        return at_target + [
            [seconds_label(by_bytes(header, model)), f"by bytes ({model.device})", model_text(model)]
            for model in self.others
        ]

    @property
    def medians(self) -> dict[str, list[str]]:
        """The median of each timed plan, by its hash, as a number of the header."""
        about = "median of the whole plan; see Timings"
        return {
            plan: [seconds_label(row.median), f"measured ({place(row.device)})", about]
            for plan, row in self.measured.items() if row.median > 0
        }

    def with_ratios(self, hashes: Sequence[str]) -> "Amounts":
        """Return the amounts with measurements of these plans as ratios to the base."""
        timed = [key for key in hashes if key in self.measured and self.measured[key].median > 0]
        base = [self.measured[self.base]] if self.base in self.measured else []
        rows = Timings(rows=(*base, *(self.measured[key] for key in timed), *self.peers)).compared().rows[len(base) :]
        return replace(
            self, measured={**self.measured, **dict(zip(timed, rows, strict=False))}, peers=rows[len(timed) :],
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of the times."""
        rows = [*self.measured.values(), *self.peers]
        devices = dict.fromkeys(place(row.device) for row in rows if row.device)
        name = f"measured ({' / '.join(devices)})" if devices else "measured"
        at_target = [f"predicted ({self.target})"] if self.target else []
        by_models = (f"by bytes ({model.device})" for model in self.others)
        ratio = ratio_heading(self.measured[self.base].plan) if self.base in self.measured else "ratio"
        return (*([name, "± IQR", ratio] if rows else []), *at_target, *by_models)

    def cells(self, header: Header) -> tuple[str, ...]:
        """Return the cells of a plan's times."""
        prediction = self.predict(header)
        at_target = [("" if prediction is None else seconds_label(prediction.seconds))] if self.target else []
        times = [seconds_label(by_bytes(header, model)) for model in self.others]
        return (*self._measured_cells(self.measured.get(header.hash)), *at_target, *times)

    def peer_cells(self, row: TimingRow) -> tuple[str, ...]:
        """Return the cells of a peer's times."""
        return (*self._measured_cells(row), *([""] if self.target else []), *("" for _ in self.others))

    def _measured_cells(self, row: TimingRow | None) -> tuple[str, ...]:
        if not (self.measured or self.peers):
            return ()
        if row is None or math.isnan(row.median):
            return ("not yet" if row is None else row.note or "not measured"), "", ""
        spread = f"{100 * row.iqr / row.median:.0f} %" if row.median else "0 %"
        return seconds_label(row.median), spread, ratio_label(row)

    def sentences(self, plans: Sequence[tuple[str, Header]]) -> list[str]:
        """Return notes on the numbers: the assumptions of predictions, the conditions of measurements, and proofs."""
        notes = [f"Predicted for {self.target} is the time of the kernels as scheduled."] if self.target else []
        notes += [f"By bytes: {model_text(model)}; arithmetic is not counted." for model in self.others]
        notes += [self.note] if self.note else []
        return notes + [text for words, header in plans if (text := self._proof_text(words, header, plans))]

    def _proof_text(self, words: str, header: Header, plans: Sequence[tuple[str, Header]]) -> str:
        """Return what a certificate says about a plan, and the plans that move as many bytes."""
        said = self.certificates.get(header.hash, {})
        if not said.get("costs"):
            return ""
        (cost, _), (bound, _), *cheaper = said["costs"]
        head = f"{words[:1].upper()}{words[1:]} is {said['status']}."
        if cheaper:
            head += f" A plan that costs {cheaper[0][0]} is known."
        elif cost != bound:
            head += (
                f" It costs {cost}; no plan costs less than {bound}. The search found no plan between the two, and no "
                "proof that there is none."
            )
        same = [
            label for label, other in plans if other.hash != header.hash and other.bytes_moved == header.bytes_moved
        ]
        if same:
            head += f" It moves as many bytes as {same[0]} ({bytes_label(header.bytes_moved)})."
        return head
