"""The switches of the explorer: strategies, and the meaning of annotations, as JSON-ready data."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fuser_lab_widgets.session import MINE, TOP_DOWN, Session

if TYPE_CHECKING:
    from fuser_lab.search.presegmentation import Alternative

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


def controls(session: Session, searching: str, mention: "Alternative | None" = None) -> list[Group]:
    """Return the groups of switches: name, the text before it, buttons, and when the group is shown.

    A button has its key, label, whether it is on and enabled, its explanation, and the event that it sends. A group is
    ``"always"`` shown, in the ``"menu"``, or beside the status line: with the strategy that has it, or (``"marks"``)
    while a click inserts ``segment_set`` or the definition has one.
    """
    state = session.state
    shown = MINE if state.edits else state.strategy
    strategies = [*session.strategies, *([MINE] if session.mine is not None else [])]
    groups: list[Group] = [
        ["Strategy", "", [
            [s, words(s), s == shown, s != searching, "", {"type": "strategy", "strategy": s}] for s in strategies
        ], "always"],
    ]
    if not state.switches:
        return groups
    on = dict(state.switches)
    groups.append(["Meaning of segment_set", "segment_set is a", [
        [f"reading-{value}", value, on["segment_set"] == value, True, about, _event(segment_set=value)]
        for value, about in _READINGS.items()
    ], "marks"])
    whole, *cuts = (
        [name, text, bool(on[name]), True, about, _event(**{name: not on[name]})]
        for name, (text, about) in _STEPS.items()
    )
    if state.strategy not in _WITHOUT_WHOLE:
        groups.append(["Attempt on the whole fusion", "", [whole], "menu"])
    if state.strategy == TOP_DOWN:
        groups.append(["Cuts without annotations", "top-down cuts", cuts, "strategy"])
    if mention is not None:
        title = "Show this plan, which moves fewer bytes than the current one"
        button = ["alternative", str(mention), False, True, title, {"type": "alternative"}]
        groups.append(["A cheaper plan", "", [button], "strategy"])
    return groups


def _event(**switches: Any) -> dict[str, Any]:
    return {"type": "switches", "switches": switches}
