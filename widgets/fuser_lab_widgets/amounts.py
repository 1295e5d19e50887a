"""Costs of plans for comparison: predicted for the target and for the device that ran, and measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fuser_lab.report.units import bytes_label, seconds_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fuser_lab.cost.measured_times import TimingRow
    from fuser_lab.cost.traffic import CostModel
    from fuser_lab.report.view_model import Header

_CPU: Final = "CPU"


def place(device: str) -> str:
    """Return the device of a row of timings as the explorer names it."""
    return f"this {_CPU}" if device.startswith(_CPU) else device


def predicted(header: Header, model: CostModel) -> float:
    """Return the seconds that a cost model predicts for a plan: its bytes at the bandwidth, and its launches."""
    return header.bytes_moved / model.bandwidth + header.segments * model.launch


def target_model(plan: Any) -> CostModel | None:
    """Return the cost model of a plan's target; None for a plan without one."""
    oracle = getattr(plan, "oracle", None)
    if oracle is None:
        return None
    from fuser_lab.cost.traffic import model_of

    return model_of(oracle)


def model_text(model: CostModel) -> str:
    """Return the assumptions of a prediction as text."""
    rate = f"{model.bandwidth / 1e9:.0f} GB/s"
    return f"{model.device}: bytes at {rate}, and {seconds_label(model.launch)} for each launch"


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Cost models of the target and of the device that ran, measurements of whole plans, and their conditions.

    ``measured`` has rows by the plan's hash, ``peers`` the rows of peers, ``certificates`` the certificates by the
    plan's hash.
    """

    target: CostModel | None = None
    machine: CostModel | None = None
    measured: Mapping[str, TimingRow] = field(default_factory=dict)
    peers: Sequence[TimingRow] = ()
    note: str = ""
    certificates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def models(self) -> list[CostModel]:
        """The models without duplicates, because the device that ran may be the target."""
        both = [model for model in (self.target, self.machine) if model is not None]
        return both[:1] if len({model.device for model in both}) == 1 else both

    def facts(self, header: Header) -> list[list[str]]:
        """Return the predicted times of a plan as numbers of the header: value, name, and meaning."""
        return [
            [seconds_label(predicted(header, model)), f"predicted ({model.device})", model_text(model)]
            for model in self.models
        ]

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of the times."""
        rows = [*self.measured.values(), *self.peers]
        devices = dict.fromkeys(place(row.device) for row in rows if row.device)
        headings = [f"measured ({' / '.join(devices)})" if devices else "measured", "± IQR"] if rows else []
        return (*(f"predicted ({model.device})" for model in self.models), *headings)

    def cells(self, header: Header | None) -> tuple[str, ...]:
        """Return the cells of a plan's times; empty ones for a plan that was not made."""
        if header is None:
            return ("",) * len(self.columns)
        times = tuple(seconds_label(predicted(header, model)) for model in self.models)
        return (*times, *self._measured_cells(self.measured.get(header.hash)))

    def peer_cells(self, row: TimingRow) -> tuple[str, ...]:
        """Return the cells of a peer's times."""
        return (*("" for _ in self.models), *self._measured_cells(row))

    def _measured_cells(self, row: TimingRow | None) -> tuple[str, ...]:
        if not (self.measured or self.peers):
            return ()
        if row is None or math.isnan(row.median):
            return ("not yet" if row is None else row.note or "not measured"), ""
        return seconds_label(row.median), f"{100 * row.iqr / row.median:.0f} %" if row.median else "0 %"

    def sentences(self, plans: Sequence[tuple[str, Header]]) -> list[str]:
        """Return notes on the numbers: the assumptions of predictions, the conditions of measurements, and proofs."""
        assumed = "; ".join(map(model_text, self.models))
        notes = [f"Predicted for {assumed}. Arithmetic is not counted."] if assumed else []
        notes += [self.note] if self.note else []
        return notes + [text for words, header in plans if (text := self._proved(words, header, plans))]

    def _proved(self, words: str, header: Header, plans: Sequence[tuple[str, Header]]) -> str:
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
