"""Where everything in a view model goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fuser_lab.report.dot import GraphvizError, lay_out_with_dot
from fuser_lab.report.layered import lay_out_in_layers

if TYPE_CHECKING:
    from fuser_lab.report.geometry import Layout
    from fuser_lab.report.view_model import ViewModel

_MOST_FOR_GRAPHVIZ: Final = 100  # nodes


def lay_out(view: ViewModel) -> Layout:
    """Return the coordinates of everything in ``view``: by Graphviz if it is there and the fusion is small.

    Graphviz's time has no useful bound (a chain of 360 operations that all read one tensor kept it busy for more than
    ten minutes), so that large fusions are laid out in layers, as all are where there is no Graphviz.
    """
    if view.compact or len(view.nodes) > _MOST_FOR_GRAPHVIZ:
        return lay_out_in_layers(view)
    try:
        return lay_out_with_dot(view)
    except GraphvizError:
        return lay_out_in_layers(view)
