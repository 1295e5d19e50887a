"""The explorer of a captured model: its map by modules, the cost of the cuts, and the explorer of an open region."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fuser_lab.errors import InputError
from fuser_lab.report.module_map import CallGraph, ModuleBox, depth_for, module_boxes
from fuser_lab.report.module_picture import map_svg
from fuser_lab_widgets import messages, model_panels
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.explorer import Explorer
from fuser_lab_widgets.maps import Map, MapExplorer
from fuser_lab_widgets.messages import Form, Message

if TYPE_CHECKING:
    from fuser_lab.bridge.captured import Captured
    from fuser_lab.bridge.costs import ModelCosts
    from fuser_lab.bridge.step_costs import StepCosts

_FIRST_BOXES: Final = 16  # maximum number of initial boxes of a map
_DEEPEST: Final = 99  # levels of modules: more than any model has


class ModelMap(Map):
    """The map of a model: boxes by module path, which open and close, and details of the selected one."""

    FORMS: ClassVar[Mapping[str, Form]] = messages.MAP

    def __init__(self, model: "Captured", headline: str, open_region: Callable[[int, int, str], None]) -> None:
        self._finder, self._step_finder = Background(), Background()
        super().__init__((self._finder, self._step_finder), {
            "out": self._out, "graph": self._graph, "depth": self._depth, "fold": self._fold, "costs": self._cost,
            "step": self._table, "open": lambda e: open_region(e["graph"], e["region"], e.get("tensor", "")),
        })
        self._model, self._headline = model, headline
        self._maps = model.maps()
        self._chosen = 0
        self._opened = [_opened_to(m.graph, depth_for(m.graph, _FIRST_BOXES), folded=True) for m in self._maps]
        self._folded = True
        self._panel = ""  # below the map: "step", "costs" or nothing
        self._costs: ModelCosts | None = None
        self._step = model.latest_step
        self._problem = self._step_problem = ""
        self.draw()

    @property
    def whole(self) -> ModuleBox:
        """The graph that is shown, as an open box."""
        graph = self._maps[self._chosen].graph
        return module_boxes(graph, opened=self._opened[self._chosen], folded=self._folded)

    def boxes(self) -> dict[str, ModuleBox]:
        """Return the boxes that are drawn, by id."""
        return {box.id: box for box in self.whole.each()}

    def boxes_to_find(self) -> list[ModuleBox]:
        """Return all boxes of the graph, each module once and open."""
        return module_boxes(self._maps[self._chosen].graph, depth=_DEEPEST, folded=False).each()

    def press(self, box: str) -> None:
        """Select a box, as a click does; a module also opens or closes."""
        with self._lock:
            pressed = self.boxes().get(box)
            if pressed is None:
                return
            if pressed.kind == "module" and pressed.id:
                self._opened[self._chosen] ^= {pressed.id}
            self._selected = pressed.id
            self.draw()

    def reveal(self, box: str) -> None:
        """Select a box, and open the modules that it is in; if it is one of several equal ones, show each of them."""
        around = {
            outer.id for outer in self.boxes_to_find()
            if outer.id and outer.id != box and any(inner.id == box for inner in outer.each())
        }
        self._opened[self._chosen] |= around
        self._folded = self._folded and box in self.boxes()
        self._selected = box
        self.draw()

    def draw(self) -> None:
        """Send the picture and its panels."""
        shown_map, whole = self._maps[self._chosen], self.whole
        boxes = {box.id: box for box in whole.each()}
        self._selected = self._selected if self._selected in boxes else ""
        titles = [each.graph.title for each in self._maps]
        self.view = {
            "bar": model_panels.bar(
                titles, self._chosen, self._headline, folded=self._folded, panel=self._panel,
            ),
            "picture": map_svg([whole], style=False),
            "side": model_panels.side(shown_map, boxes[self._selected], self._chosen, self._step),
            "below": (
                model_panels.step(self._step, self._step_problem, asked=self._panel == "step")
                + model_panels.costs(self._costs, self._problem, asked=self._panel == "costs")
            ),
            "selected": self._selected,
            "status": self._status or model_panels.HINT,
        }

    def _out(self, event: Message) -> None:
        """Close the module around a box, and select it."""
        around = [box for box in self.whole.each() if box.inside and any(b.id == event["id"] for b in box.inside.boxes)]
        self._selected = around[0].id if around else ""
        self._opened[self._chosen].discard(self._selected)
        self.draw()

    def _graph(self, event: Message) -> None:
        self._chosen = min(event["n"], len(self._maps) - 1)
        self.draw()

    def _depth(self, event: Message) -> None:
        graph = self._maps[self._chosen].graph
        self._opened[self._chosen] = _opened_to(graph, event["n"], folded=self._folded)
        self.draw()

    def _fold(self, _: Message) -> None:
        self._folded = not self._folded
        self.draw()

    def _cost(self, _: Message) -> None:
        self._panel = "" if self._panel == "costs" else "costs"
        if self._panel and self._costs is None:
            self._finder.start(self._model.costs, self._find)
        self.draw()

    def _find(self, costs: "ModelCosts | None", problem: str) -> None:
        with self._lock:
            self._costs, self._problem = costs, problem
            self.draw()

    def _table(self, _: Message) -> None:
        self._panel = "" if self._panel == "step" else "step"
        if self._panel and self._step is None:
            self._step_finder.start(self._model.step, self._show_step)
        self.draw()

    def _show_step(self, step: "StepCosts | None", problem: str) -> None:
        with self._lock:
            self._step, self._step_problem = step, problem
            self.draw()


def _opened_to(graph: CallGraph, depth: int, *, folded: bool) -> set[str]:
    """Return the ids of the modules that are open to a depth."""
    whole = module_boxes(graph, depth=depth, folded=folded)
    return {box.id for box in whole.each() if box.inside and box.id}


class ModelExplorer(MapExplorer):
    """The map of a model, and the explorer of the region that is open."""

    def __init__(self, model: "Captured", headline: str, *, strategies: Sequence[str]) -> None:
        self._model, self._strategies = model, tuple(strategies)
        super().__init__(ModelMap(model, headline, self.show_region))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self._bundle(super()._repr_mimebundle_(**kwargs), repr(self._model), self._model._repr_html_())

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
            raise InputError(f"show_region: graph {graph} has no region {region}; see captured.graphs.")
        shown_region = graphs[graph].regions[region]
        plan, kind = shown_region.plan, graphs[graph].kind
        if self.explorer is None or self.explorer.plan.sources != plan.sources or self.explorer.plan != plan:
            places = ", ".join(shown_region.places[:2]) + (", …" if len(shown_region.places) > 2 else "")
            title = f"{kind} region {region}" + (f" of {places}" if places else "")
            self.show_explorer(Explorer(plan, list(plan.inputs), strategies=self._strategies, title=title))
        if tensor in plan.fusion.tensors and self.explorer is not None:
            self.explorer.selection = tensor
        self.map.say(f"Region {region} of the {kind} graph is open" + (f", at {tensor}." if tensor else "."))
