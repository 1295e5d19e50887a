"""Whether top-down presegmentation moves fewer bytes than a plan: the open question of NVIDIA/Fuser issue #2224."""

from dataclasses import dataclass
from typing import Any

from fuser_lab.ir import Fusion, OpKind
from fuser_lab.plan import Plan

# The edges at which top-down cuts, by name.
CUTS: dict[str, dict[str, bool]] = {
    "reshape cuts": {"cut_reshape_inputs": True},
    "resize cuts": {"cut_resize_inputs": True},
    "reshape and resize cuts": {"cut_reshape_inputs": True, "cut_resize_inputs": True},
}
_KINDS = {"cut_reshape_inputs": OpKind.RESHAPE, "cut_resize_inputs": OpKind.RESIZE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A top-down plan of the same definition, its options, and its bytes as a fraction of the given plan's."""

    plan: Plan
    switches: tuple[tuple[str, bool], ...]
    share: float
    cuts: str

    def __str__(self) -> str:
        """Return it as ``top-down with reshape cuts: 22 % fewer bytes``."""
        word = "fewer" if self.share < 1 else "more"
        change = f"{100 * abs(1 - self.share):.0f} % {word} bytes" if self.share != 1 else "as many bytes"
        return f"top-down with {self.cuts}: {change}"


def bytes_moved(plan: Plan) -> int:
    """Return the bytes that all segments of a plan read and write."""
    return sum(segment.bytes for segment in plan.segments)


def alternatives(plan: Plan) -> tuple[Alternative, ...]:
    """Return the top-down plans for each kind of cut that applies to the fusion, fewest bytes first.

    Empty if none applies.
    """
    before = bytes_moved(plan)
    plans = []
    for cuts, switches in CUTS.items():
        if all(_has(plan.fusion, _KINDS[name]) for name in switches):
            other = plan.resegmented("top_down", **_all_of(switches))
            share = bytes_moved(other) / before if before else 1.0
            plans.append(Alternative(plan=other, switches=tuple(switches.items()), share=share, cuts=cuts))
    return tuple(sorted(plans, key=lambda alternative: alternative.share))


def cheapest(plan: Plan) -> Alternative | None:
    """Return the top-down plan that moves the fewest bytes; None if none moves fewer than the given plan."""
    plans = alternatives(plan)
    return plans[0] if plans and plans[0].share < 1 else None


def _all_of(switches: dict[str, bool]) -> dict[str, Any]:
    return {name: switches.get(name, False) for name in _KINDS}


def _has(fusion: Fusion, kind: OpKind) -> bool:
    """Whether an op of this kind reads the result of another op."""
    return any(
        expr.kind is kind and any(tensor in fusion.producers for tensor in expr.tensor_inputs)
        for expr in fusion.tensor_exprs
    )
