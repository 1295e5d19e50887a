"""The explorer of a captured model: its map, a list of regions, and the explorer of the region that is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import ipywidgets

from fuser_lab_widgets.explorer import Explorer


class RegionLike(Protocol):
    """What the list shows of a region."""

    @property
    def plan(self) -> Any:
        """Its plan."""


class ModelLike(Protocol):
    """What is shown of a captured model."""

    @property
    def regions(self) -> Sequence[Any]:
        """All regions."""

    def _repr_html_(self) -> str:
        """Return the map."""


class ModelExplorer(ipywidgets.VBox):
    """A box with the map of a model, the list of its regions, and the explorer of one.

    Equal regions stand in the list once, with their number. ``choice`` is the list, and ``explorer`` what is open.
    """

    def __init__(self, model: ModelLike, rows: Sequence[tuple[str, RegionLike]], *, strategies: Sequence[str]) -> None:
        self._strategies = tuple(strategies)
        self._regions = [region for _, region in rows]
        self.choice = ipywidgets.Select(
            options=[(label, place) for place, (label, _) in enumerate(rows)], value=None, rows=min(12, len(rows)),
            description="Region", layout=ipywidgets.Layout(width="100%"),
        )
        self.choice.observe(self._open, names="value")
        self.explorer: Explorer | None = None
        head = ipywidgets.HTML(
            f"<details><summary>Map of the model</summary>{model._repr_html_()}</details>",
        )
        super().__init__([head, self.choice])

    def _open(self, change: Any) -> None:
        """Show the explorer of the region that was chosen."""
        if change["new"] is None:
            return
        region = self._regions[change["new"]]
        label = self.choice.options[change["new"]][0]
        if self.explorer is not None:
            self.explorer.close()
        self.explorer = Explorer(region.plan, list(region.plan.inputs), strategies=self._strategies, title=label)
        self.children = (*self.children[:2], self.explorer)
