"""The switches of the explorer: strategies, and the meaning of annotations, as JSON-ready data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fuser_lab_widgets.session import MINE, TOP_DOWN, TOP_DOWN_ONLY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fuser_lab.search.presegmentation import Alternative
    from fuser_lab_widgets.session import Session

Group = list[Any]

_READINGS: Final = {
    "hint": "As in nvFuser: a segment may end there, and another path around it may still be merged",
    "cut": "No segment contains ops both before and after it, on any path",
    "ignore": "A plain copy",
}
_STEPS: Final = {
    "whole_fusion": ("whole fusion first", "First try the whole fusion as one kernel"),
    "cut_reshape_inputs": ("at reshapes", "Pieces end at the inputs of reshapes"),
    "cut_resize_inputs": ("at resizes", "Pieces end at the inputs of slice, pad and cat"),
}
_WITHOUT_WHOLE: Final = frozenset({"saving", "optimal", "unfused"})


def words(strategy: str) -> str:
    """Return the name of a strategy as text."""
    return strategy.replace("_", "-")


def settings_text(switches: Mapping[str, Any]) -> str:
    """Return the settings of switches as part of a sentence."""
    settings = []
    for name, value in switches.items():
        text = {"whole_fusion": "the attempt on the whole fusion", "segment_set": "segment_set"}.get(name, "")
        text = text or f"cuts {_STEPS[name][0]}"
        settings.append(f"{text} as {value}" if name == "segment_set" else f"{text} {'on' if value else 'off'}")
    return ", ".join(settings)


def controls(session: Session, searching: str, mention: Alternative | None = None) -> list[Group]:
    """Return the groups of switches: name, the text before it, and buttons.

    A button has its key, label, whether it is on and enabled, its explanation, and the event that it sends.
    """
    state = session.state
    shown = MINE if state.edits else state.strategy
    strategies = [*session.strategies, *([MINE] if session.mine is not None else [])]
    groups: list[Group] = [
        ["Strategy", "", [
            [s, words(s), s == shown, s != searching, "", {"type": "strategy", "strategy": s}] for s in strategies
        ]],
    ]
    if not state.switches:
        return groups
    on = dict(state.switches)
    groups.append(["Meaning of segment_set", "segment_set is a", [
        [f"reading-{value}", value, on["segment_set"] == value, True, about, _event(segment_set=value)]
        for value, about in _READINGS.items()
    ]])
    steps = []
    for name, (text, about) in _STEPS.items():
        taken = state.strategy == TOP_DOWN if name in TOP_DOWN_ONLY else state.strategy not in _WITHOUT_WHOLE
        untaken = "only top-down does" if name in TOP_DOWN_ONLY else "this strategy does not have this step"
        title = about if taken else f"{about}; {untaken}"
        steps.append([name, text, bool(on[name]) and taken, taken, title, _event(**{name: not on[name]})])
    groups.append(["Attempt on the whole fusion", "", steps[:1]])
    groups.append(["Cuts without annotations", "top-down cuts", steps[1:]])
    if mention is not None:
        title = "Show this plan, which moves fewer bytes than the current one"
        button = ["alternative", str(mention), False, True, title, {"type": "alternative"}]
        groups.append(["A cheaper plan", "", [button]])
    return groups


def _event(**switches: Any) -> dict[str, Any]:
    return {"type": "switches", "switches": switches}
