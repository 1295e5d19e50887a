"""The layouts of one explorer's plans: unchanged segments keep their shape, and undo restores the picture."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from fuser_lab.report.geometry import Layout
from fuser_lab.report.layout import lay_out
from fuser_lab.report.parts import Parts
from fuser_lab.report.view_model import ViewModel

_KEPT: Final = 32  # layouts of plans that were shown


class Canvas:
    """The layouts of the plans that were shown."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Layout] = OrderedDict()
        self._last: tuple[Hashable, Layout] | None = None

    def lay_out(self, view: ViewModel, family: Hashable) -> Layout:
        """Return the layout of a view, which follows the previous one if that had the same ``family``."""
        folded = None if isinstance(view.nodes, Parts) else tuple([node.id for node in view.nodes])
        key = family, view.header.hash, folded
        layout = self._known.pop(key, None)
        if layout is None:
            before = self._last[1] if self._last is not None and self._last[0] == family else None
            layout = lay_out(view, before)
        self._known[key] = layout
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        self._last = family, layout
        return layout

    def prepare(self) -> None:
        """Prepare the layout that follows the last one."""
        if self._last is not None:
            self._last[1].memory.prepare()
