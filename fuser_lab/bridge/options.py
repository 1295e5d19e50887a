"""Common options of the bridge: how regions are cut, how large they are, whether they are checked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.arguments import short_text
from fuser_lab.bridge.signature import Cutting
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.plan.planning import segment
from fuser_lab.segmentation import SegmenterOptions

COMMON: Mapping[str, Any] = {
    "strategy": "bottom_up", "target": None, "options": None, "min_region_ops": 1, "max_region_ops": 1024,
    "check": False,
}


def chosen_of(who: str, defaults: Mapping[str, Any], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all options with the given values, or the defaults in ``defaults``; ``who`` begins each message.

    Raises
    ------
    InputError
        If there is no such option, if ``min_region_ops`` exceeds ``max_region_ops``, or if `segment` does not accept
        a strategy, target or options.
    ArgumentTypeError
        If a number of ops is not an int of 1 or more, or ``check`` is not True or False.
    """
    for name in options or {}:
        if name not in defaults:
            advice = "; keyword arguments of the function go into keywords={...}" if who.startswith("from_") else ""
            msg = f"{who}: unknown option {name!r}; choose from {', '.join(defaults)}{advice}."
            raise InputError(msg)
    chosen = {**defaults, **(options or {})}
    for name in ("min_region_ops", "max_region_ops"):
        if type(chosen[name]) is not int or chosen[name] < 1:
            msg = f"{who}: {name} must be an int of 1 or more, given {short_text(chosen[name])}."
            raise ArgumentTypeError(msg)
    if chosen["min_region_ops"] > chosen["max_region_ops"]:
        msg = (
            f"{who}: min_region_ops must not exceed max_region_ops, "
            f"given {chosen['min_region_ops']} and {chosen['max_region_ops']}."
        )
        raise InputError(msg)
    if type(chosen["check"]) is not bool:
        msg = f"{who}: check must be True or False, given {short_text(chosen['check'])}."
        raise ArgumentTypeError(msg)
    _check_cutting(cutting_of(chosen))
    return chosen


def cutting_of(chosen: Mapping[str, Any]) -> Cutting:
    """Return how regions are cut."""
    options = chosen["options"]
    if chosen.get("precision") == "fused" and (options is None or isinstance(options, SegmenterOptions)):
        options = replace(options or SegmenterOptions(), precision="fused")
    return Cutting(strategy=chosen["strategy"], target=chosen["target"], options=options)


def _check_cutting(cutting: Cutting) -> None:
    """Let `segment` refuse invalid values now, because regions are cut only when they first run."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor(shape=[1], contiguity=True)))
    strategy = "bottom_up" if callable(cutting.strategy) else cutting.strategy
    segment(fd, strategy=strategy, target=cutting.target, options=cutting.options)
