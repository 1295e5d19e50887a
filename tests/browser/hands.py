"""Random clicks and keys on what an explorer's page shows at that moment, and traits set as linked widgets set them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from browser.stage import Stage

# A selector of what may be clicked, and how often it is chosen.
_CLICKS: Final = {
    "edge": (".fl-inside .fl-hit, .fl-boundary .fl-hit", 4),
    "look": (".fl-edge .fl-hit", 2),
    "op": (".fl-node", 2),
    "segment": (".fl-head", 1),
    "button": (".fx-inspector button", 6),
    "lift": (".fx-lift", 2),
    "strategy": ("[aria-label=Strategy] :is(button, option):enabled", 3),
    "switch": ("[data-when] button:enabled", 2),
    "history": (".fx-tools > .fx-group button:enabled", 2),
    "menu": (".fx-tools > [aria-haspopup]", 3),
    "detail": ("[aria-label='What is drawn'] button", 2),
    "fold": (".fl-node .fl-shape, .fl-head .fl-band", 2),
    "mode": ("[aria-label='What a click on an edge does'] button", 1),
    "tab": (".fx-tab", 2),
    "in a tab": (".fx-panel :is(button:enabled, [data-id], summary, [data-name], option:enabled)", 4),
    "decisions": (".fx-log :is(button, summary, input[type=checkbox], option)", 2),
    "status": (".fx-status button", 1),
    "run": (".fx-tools .fx-primary", 1),
    "hover": (".fl-edge .fl-hit", 2),
}
_KEYS: Final = ("u", "U", "j", "k", "Escape", "c", "g", "s", "x", "o", "h", "y", "d", "i", "p", "n", "0", "+")
_OFTEN: Final = 6  # how often a key is chosen
_UNTRIED: Final = ("Profile this plan", "PTX", "Full", "Side by side")  # need a device, a screen or a compiler
_SEARCHED: Final = ("sum", "T3", "")
_ACT: Final = (Path(__file__).parent / "act.js").read_text(encoding="utf-8")


class Hands:
    """Random clicks, keys and settings of traits.

    ``done`` lists what was done; ``clicked`` says whether the last one was a click, and ``offered`` whether it was a
    click on an enabled control; ``said`` is the number of the status before it.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.page, self.random = stage, stage.page, random.Random(seed)
        self.done: list[str] = []
        self.clicked = self.offered = False
        self.said = 0

    def act(self) -> None:
        """Do one thing; what the page does not show at the moment is not done."""
        kinds = [kind for kind, (_, often) in _CLICKS.items() for _ in range(often)]
        kind = self.random.choice([*kinds, *["key"] * _OFTEN, "search", "colour", "trait"])
        on: object = None
        self.said = self.stage.explorer.status["n"]
        self.offered, self.clicked = False, kind in _CLICKS
        if kind == "key":
            on = self.random.choice(_KEYS)
            self.page.evaluate("() => document.querySelector('.fl-explorer').focus({ preventScroll: true })")
            self.page.keyboard.press(on)
        elif kind == "search":
            on = self.random.choice(_SEARCHED)
            self.page.get_by_label("Search the graph").fill(on)
        elif kind == "colour":
            on = self.random.randrange(4)
            self.page.get_by_label("Colour").select_option(index=on, force=True)  # shown or not
        elif kind == "trait":
            on = self._set()
        else:
            found = self.page.evaluate(_ACT, [_CLICKS[kind][0], self.random.randrange(1000), kind, _UNTRIED])
            on, self.offered = found or (None, False)
        self.done.append(f"{kind}: {on}")

    def _set(self) -> str:
        """Set a trait of the explorer, and return its name and value."""
        explorer = self.stage.explorer
        view = explorer._page.view
        places = [*(f"S{s.index}" for s in view.segments), *(n.tensor for n in view.nodes if n.kind == "op")]
        values: dict[str, list[Any]] = {
            "strategy": [*explorer._session.strategies],
            "reading": ["hint", "cut", "ignore"],
            "whole_fusion": [True, False],
            "selection": ["", *places],
            "plan": [explorer._session.baseline],
        }
        name = self.random.choice([*values])
        value = self.random.choice(values[name])
        setattr(explorer, name, value)
        return f"{name} = {value}"
