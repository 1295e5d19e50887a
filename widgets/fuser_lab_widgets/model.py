"""The explorer of a captured model: its map by modules, the cost of the cuts, and the explorer of an open region."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.process.forks import renew_in_forks
from fuser_lab.report.module_map import CallGraph, ModuleBox, depth_for, module_boxes
from fuser_lab.report.module_picture import map_svg
from fuser_lab_widgets import assets, messages, model_panels
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.explorer import Explorer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fuser_lab.bridge.captured import Captured
    from fuser_lab.bridge.costs import ModelCosts
    from fuser_lab.bridge.step_costs import StepCosts
    from fuser_lab_widgets.messages import Message

_FIRST_BOXES = 16  # maximum number of initial boxes of a map


class ModelMap(anywidget.AnyWidget):
    """The map of a model: boxes by module path, which open and close, and details of the selected one."""

    _esm = assets.map_script()
    _css = assets.map_style()

    view = traitlets.Dict().tag(sync=True)

    def __init__(self, model: Captured, headline: str, open_region: Callable[[int, int, str], None]) -> None:
        super().__init__()
        self._layout = self.layout
        self._model, self._headline, self._open_region = model, headline, open_region
        self._maps = model.maps()
        self._chosen = 0
        self._opened = [_opened_to(m.graph, depth_for(m.graph, _FIRST_BOXES), folded=True) for m in self._maps]
        self._folded = True
        self._selected = ""
        self._status = ""
        self._finder, self._step_finder = Background(), Background()
        self._asked = self._step_asked = False
        self._costs: ModelCosts | None = None
        self._step = model.latest_step
        self._problem = self._step_problem = ""
        # A thread that computes costs also draws; the last one to draw has all data.
        self._lock = renew_in_forks(threading.RLock())
        self.on_msg(self._received)
        self._draw()

    @property
    def whole(self) -> ModuleBox:
        """The graph that is shown, as an open box."""
        graph = self._maps[self._chosen].graph
        return module_boxes(graph, opened=self._opened[self._chosen], folded=self._folded)

    def boxes(self) -> dict[str, ModuleBox]:
        """Return the boxes that are drawn, by id."""
        return {box.id: box for box in self.whole.each()}

    def press(self, box: str) -> None:
        """Select a box, as a click does; a module also opens or closes."""
        with self._lock:
            pressed = self.boxes().get(box)
            if pressed is None:
                return
            if pressed.kind == "module" and pressed.id:
                self._opened[self._chosen] ^= {pressed.id}
            self._selected = pressed.id
            self._draw()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the costs are computed."""
        self._finder.wait(timeout)
        self._step_finder.wait(timeout)

    def close(self) -> None:
        """End the computation of costs, and free the map and its layout."""
        self._finder.close()
        self._step_finder.close()
        super().close()
        self._layout.close()

    def say(self, status: str) -> None:
        """Show a sentence in the status line."""
        with self._lock:
            self._status = status
            self._draw()

    def _draw(self) -> None:
        shown_map, whole = self._maps[self._chosen], self.whole
        boxes = {box.id: box for box in whole.each()}
        self._selected = self._selected if self._selected in boxes else ""
        titles = [each.graph.title for each in self._maps]
        self.view = {
            "bar": model_panels.bar(
                titles, self._chosen, self._headline, folded=self._folded, costs=self._asked, step=self._step_asked,
            ),
            "picture": map_svg([whole], style=False),
            "side": model_panels.side(shown_map, boxes[self._selected], self._chosen, self._step),
            "below": (
                model_panels.step(self._step, self._step_problem, asked=self._step_asked)
                + model_panels.costs(self._costs, self._problem, asked=self._asked)
            ),
            "selected": self._selected,
            "status": self._status,
        }

    def _received(self, _widget: Any, event: object, _buffers: Any) -> None:
        acts: dict[str, Callable[[Message], None]] = {
            "box": lambda e: self.press(e["id"]), "out": self._out, "graph": self._graph, "depth": self._depth,
            "fold": self._fold, "costs": self._cost, "step": self._table,
            "region": self._region,
            "open": lambda e: self._open_region(e["graph"], e["region"], e.get("tensor", "")),
        }
        with self._lock:
            try:
                message = messages.read(event, messages.MAP)
                acts[message["type"]](message)
            except FuserLabError as error:
                self.say(str(error))
            except Exception as error:  # noqa: BLE001 - an error in a callback would vanish; the user has to see it
                self.say(f"{type(error).__name__}: {error}")

    def _out(self, event: Message) -> None:
        """Close the module around a box, and select it."""
        around = [box for box in self.whole.each() if box.inside and any(b.id == event["id"] for b in box.inside.boxes)]
        self._selected = around[0].id if around else ""
        self._opened[self._chosen].discard(self._selected)
        self._draw()

    def _graph(self, event: Message) -> None:
        self._chosen = min(event["n"], len(self._maps) - 1)
        self._draw()

    def _depth(self, event: Message) -> None:
        graph = self._maps[self._chosen].graph
        self._opened[self._chosen] = _opened_to(graph, event["n"], folded=self._folded)
        self._draw()

    def _fold(self, _: Message) -> None:
        self._folded = not self._folded
        self._draw()

    def _cost(self, _: Message) -> None:
        self._asked = not self._asked
        if self._asked and self._costs is None:
            self._finder.start(self._model.costs, self._found)
        self._draw()

    def _found(self, costs: ModelCosts | None, problem: str) -> None:
        with self._lock:
            self._costs, self._problem = costs, problem
            self._draw()

    def _table(self, _: Message) -> None:
        self._step_asked = not self._step_asked
        if self._step_asked and self._step is None:
            self._step_finder.start(self._model.step, self._show_step)
        self._draw()

    def _show_step(self, step: StepCosts | None, problem: str) -> None:
        with self._lock:
            self._step, self._step_problem = step, problem
            self._draw()

    def _region(self, event: Message) -> None:
        kinds = [graph.kind for graph in self._model.graphs]
        if event["kind"] not in kinds:
            msg = f"The model has no graph {event['kind']!r}."
            raise InputError(msg)
        self._open_region(kinds.index(event["kind"]), event["region"], "")


def _opened_to(graph: CallGraph, depth: int, *, folded: bool) -> set[str]:
    """Return the ids of the modules that are open to a depth."""
    whole = module_boxes(graph, depth=depth, folded=folded)
    return {box.id for box in whole.each() if box.inside and box.id}


class ModelExplorer(ipywidgets.VBox):
    """A box with the map of a model, and below it the explorer of the region that is open.

    Attributes
    ----------
    map
        The map.
    explorer
        The explorer of the region that is open, or None.
    """

    def __init__(self, model: Captured, headline: str, *, strategies: Sequence[str]) -> None:
        self._model, self._strategies = model, tuple(strategies)
        self.explorer: Explorer | None = None
        self.map = ModelMap(model, headline, self.show_region)
        super().__init__([self.map])
        self._layout = self.layout

    def close(self) -> None:
        """Free the map, the open explorer, and the box with its layout."""
        for widget in (self.map, self.explorer):
            if widget is not None:
                widget.close()
        super().close()
        self._layout.close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return the live view, with the picture and the text of the map for frontends without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if isinstance(bundle, dict):
            bundle |= {"text/plain": repr(self._model), "text/html": self._model._repr_html_()}
        return bundle

    def show_region(self, graph: int, region: int, tensor: str = "") -> None:
        """Show the explorer of a region, optionally with a tensor selected.

        Parameters
        ----------
        graph, region
            Number of the graph, and of the region in it.
        tensor
            Name of a tensor of the region's definition.

        Raises
        ------
        InputError
            If the graph or region does not exist.
        """
        graphs = self._model.graphs
        if not 0 <= graph < len(graphs) or not 0 <= region < len(graphs[graph].regions):
            msg = f"show_region: graph {graph} has no region {region}; see captured.graphs."
            raise InputError(msg)
        shown_region = graphs[graph].regions[region]
        plan, kind = shown_region.plan, graphs[graph].kind
        if self.explorer is None or self.explorer.plan.sources != plan.sources or self.explorer.plan != plan:
            modules = ", ".join(shown_region.modules[:2]) + (", …" if len(shown_region.modules) > 2 else "")
            title = f"{kind} region {region}" + (f" of {modules}" if modules else "")
            if self.explorer is not None:
                self.explorer.close()
            self.explorer = Explorer(plan, list(plan.inputs), strategies=self._strategies, title=title)
            self.children = (self.map, self.explorer)
        if tensor in plan.fusion.tensors:
            self.explorer.selection = tensor
        self.map.say(f"Region {region} of the {kind} graph is open below" + (f", at {tensor}." if tensor else "."))
