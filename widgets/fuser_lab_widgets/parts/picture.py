"""The picture of the plan on show: its level of detail, what is unfolded in it, and its colours."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from fuser_lab.errors import FuserLabError
from fuser_lab.process.forks import renew_in_forks
from fuser_lab.report.diff import PlanDiff
from fuser_lab.report.repeats import blocks
from fuser_lab_widgets import scenes, unfolding
from fuser_lab_widgets.amounts import Amounts
from fuser_lab_widgets.background import PAUSE, Background
from fuser_lab_widgets.canvas import Canvas
from fuser_lab_widgets.heat import heat
from fuser_lab_widgets.messages import Message
from fuser_lab_widgets.parts.page import Handlers, Page
from fuser_lab_widgets.parts.selection import Selection

_DETAILS: Final[dict[scenes.Detail, str]] = {
    "ops": "One box per op.",
    "segments": "One box per segment.",
    "blocks": "One box for each run of repeated segments, and for each other segment.",
    "modules": "One box per module in each segment; open one in the inspector.",
}


class Picture:
    """The picture of the plan on show, and what is unfolded in it."""

    def __init__(self, page: Page, selection: Selection) -> None:
        self._page, self._selection = page, selection
        self._detail: scenes.Detail | None = None  # None: depends on the size of the fusion
        self.opened: frozenset[str] = frozenset()  # the tensors of ops in unfolded segments
        self.unfolded: frozenset[str] = frozenset()  # and in unfolded blocks
        self.modules: frozenset[str] = frozenset()  # paths of those that are open
        self.pieces = scenes.Pieces()  # those that were sent
        self._canvas = Canvas()
        self._chunks = 0, 0  # the first chunk of pieces that the page has, and the first that it lacks
        self.background = Background(pause=PAUSE)
        self._predicting = renew_in_forks(threading.Lock())
        self._heated: tuple[Any, Any] = (None, None)  # the plan and the rows of the colourings
        self.handlers: Handlers = {"detail": self._choose_detail, "open": self._open}

    def _choose_detail(self, event: Message) -> None:
        self._detail = detail = cast("scenes.Detail", event["detail"])
        self.opened, self.modules = frozenset(), frozenset()
        self._drawn_again()
        if not event.get("quiet"):
            self._page.say(_DETAILS[detail])

    def _open(self, event: Message) -> None:
        """Expand one segment, block or module among the others, or collapse it again."""
        view = self._page.view
        if "module" in event:
            path = event["module"]
            closed = frozenset(name for name in self.modules if name == path or name.startswith(f"{path}."))
            self.modules = self.modules - closed if path in self.modules else self.modules | {path}
            self._detail = "modules"
        elif "block" in event:
            block = next((each for each in blocks(view) if each.id == event["block"]), None)
            if block is None:
                raise FuserLabError("The current plan no longer has this block.")
            self.unfolded = unfolding.toggle_ops(view, self.unfolded, range(block.first, block.last + 1))
            self._detail = "blocks"
        else:
            self.opened = unfolding.toggle_ops(view, self.opened, [event["segment"]])
            self._detail = "blocks" if self._page.widget.scene["detail"] == "blocks" else "segments"
        self._drawn_again()

    def _drawn_again(self) -> None:
        self._page.draw()
        self._selection.again()  # because an action folds what another one has unfolded

    def draw(self, difference: PlanDiff | None) -> None:
        """Send the picture, the only thing that depends on the level of detail."""
        page = self._page
        view = page.view
        with page.widget.hold_sync():
            detail = self._detail or scenes.first_detail(view)
            family = detail, page.session.state.origin.hash
            if self.pieces.stock.is_full:
                self.pieces = scenes.Pieces(self.pieces.stock.end)
            unfolded = unfolding.blocks_of(view, self.unfolded)
            drawn = scenes.scene(
                view, self.pieces, detail=detail, opened=unfolding.segments_of(view, self.opened),
                unfolded=unfolded, modules=self.modules, place=lambda v: self._canvas.lay_out(v, family),
            )
            if difference is not None:
                drawn["marks"] = scenes.marks(view, difference)
            page.widget.scene = {**drawn, "plan": page.number, "rev": int(page.widget.scene.get("rev", 0)) + 1}
            are_folded = drawn["detail"] in {"modules", "blocks"}
            self._selection.folds = {*self.modules, *unfolded} if are_folded else None

    def colour(
        self, amounts: Amounts, rows: Sequence[Any], *, running: bool, follow: Callable[[], None],
    ) -> None:
        """Send times and colourings, unless they are those of this plan and, once a run has ended, these rows.

        Predicted times that take longer than the picture itself, as those of the first picture, follow once it is
        painted, those of one plan at a time; after those that take seconds, ``follow`` is called.
        """
        page = self._page
        plan, timed = page.plan, self._heated[1] if running else rows
        if plan is self._heated[0] and timed is self._heated[1]:
            return
        self._heated, number, view = (plan, timed), page.number, page.view
        is_slow = getattr(plan, "is_slow_to_predict", False)
        at_once = page.widget.heat and not is_slow and not self.background.busy
        self.background.cancel()

        def find() -> dict[str, Any] | None:
            with self._predicting:
                if page.number != number:
                    return None
                return {"plan": number, "times": amounts.facts(view.header), **heat(plan, view, rows)}

        def tell(colours: dict[str, Any] | None, _problem: str) -> None:
            with page.sending():
                if colours is not None and page.number == number:
                    page.widget.heat = colours
                    if is_slow:
                        follow()

        if at_once or not hasattr(plan, "predicted_time"):
            tell(find(), "")
        else:
            self.background.start(find, tell)

    def prepare(self) -> None:
        """Prepare the layout that follows the one on show."""
        self._canvas.prepare()

    def chunks(self, *, everything: bool) -> dict[str, Any]:
        """Return the chunks of pieces that the page does not have yet, or all; None for those of an earlier stock."""
        stock = self.pieces.stock
        first, lacks = (stock.first, stock.first) if everything else self._chunks
        self._chunks = stock.first, stock.end
        return {f"chunk{n}": None for n in range(first, stock.first)} | {
            f"chunk{n}": stock.chunks[n - stock.first] for n in range(max(lacks, stock.first), stock.end)
        }
