"""The user's view of a captured function or model: a map, regions with plans, costs, and execution."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.arguments import FLAG, PATH, TEXT, number, optional, takes, whole
from fuser_lab.bridge.capture import CapturedGraph, GraphBreak
from fuser_lab.bridge.costs import ModelCosts, model_costs
from fuser_lab.bridge.graph_walk import while_set
from fuser_lab.bridge.model_view import Shares, left_rows, model_html, model_text, shares_of
from fuser_lab.bridge.module_files import map_html, map_writers
from fuser_lab.bridge.module_map import ModuleMap, module_maps
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.region_why import RegionWhy, region_why
from fuser_lab.bridge.selection import ACCEPTED
from fuser_lab.bridge.step_costs import PLAN_OF, StepCosts, step_costs
from fuser_lab.bridge.step_timing import MeasuredStep
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import InputError
from fuser_lab.plan import Plan
from fuser_lab.report.save import save

_SELECTION = (TEXT | whole(0)).worded(ACCEPTED)
_ROUNDINGS = {
    "eager": "kernels round values of float16 and bfloat16 after each op.",
    "fused": "kernels round values of float16 and bfloat16 only where they store them.",
}


class Captured(ABC):
    """Graphs that a library captured, with their regions as fusions."""

    library: ClassVar[str]
    made_by: ClassVar[str]  # the function that returns it
    latest_step: StepCosts | None = None  # the last result of `step`, which the map of the explorer shows

    @property
    @abstractmethod
    def graphs(self) -> tuple[CapturedGraph, ...]:
        """The captured graphs, in order."""

    @property
    def graph_breaks(self) -> tuple[GraphBreak, ...]:
        """Where a graph ended early, and why."""
        return ()

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions of all graphs."""
        return tuple(region for graph in self.graphs for region in graph.regions)

    @property
    def shares(self) -> Shares:
        """How many calls are in regions, and how many are not."""
        return shares_of(self.graphs, self.graph_breaks)

    def costs(self) -> ModelCosts:
        """Return the bytes that cuts move between segments: by module, by reason, and the most expensive boundaries."""
        return model_costs(self.graphs)

    @takes(measure=FLAG, seconds=number(0))
    def step(self, *inputs: Any, measure: bool = False, seconds: float = 1.0) -> StepCosts:
        """Return what each region and each op of the library costs: bytes, bound, predicted and measured time, gain.

        Parameters
        ----------
        *inputs
            Arguments of the measured steps; by default those of the capture.
        measure
            Whether the step also runs: timed on the host for a CPU, by events for a GPU. The backward graph runs if it
            was captured.
        seconds
            Maximum time for the measured steps, and again for those in which each unit is timed.
        """
        measured = self.measure_step(inputs or None, seconds) if measure else None
        self.latest_step = step_costs(self.graphs, self.graph_breaks, measured)
        return self.latest_step

    @abstractmethod
    def measure_step(self, inputs: Sequence[Any] | None, seconds: float) -> MeasuredStep:
        """Return measured seconds of a step and of its regions and ops."""

    @property
    def definition(self) -> FusionDefinition:
        """The definition, if the whole is one fusion.

        Raises
        ------
        InputError
            If it has several regions, or its library runs a part of it; the message names the first such op and its
            line.
        """
        return self._only_region().definition

    @property
    def plan(self) -> Plan:
        """The plan, if the whole is one fusion; raises InputError as `definition`."""
        return self._only_region().plan

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Abstract inputs of `definition`."""
        return self._only_region().specs

    def _only_region(self) -> Region:
        computed = next((row for row in left_rows(self.graphs) if not row.is_free), None)
        why = ""
        if self.graph_breaks:
            why = str(self.graph_breaks[0])
        elif computed is not None:
            why = f"{self.library} runs {computed}"
        elif len(self.regions) != 1:
            why = f"it has {len(self.regions)} regions"
        if why:
            plans = f", {PLAN_OF.format(graph=0, region=0)} is one of its plans" if self.regions else ""
            msg = (
                f"{self.made_by}: this is not one fusion: {why}. fl.explain(captured) lists all of it{plans}, and "
                "captured.why(a, b) says what separates two ops."
            )
            raise InputError(msg)
        return self.regions[0]

    @abstractmethod
    def run(self, *inputs: Any, **keywords: Any) -> Any:
        """Return what the function returns, computed by regions and by the library."""

    def check(self, *inputs: Any, **keywords: Any) -> Any:
        """Run, compare each region's results with what the library computes from its inputs, and return the results.

        Raises
        ------
        ValidationError
            If a result is wrong; the message names the region, its line and the worst element.
        """
        with while_set(self.regions, "checked", True):
            return self.run(*inputs, **keywords)

    @takes(a=_SELECTION, b=_SELECTION)
    def why(self, a: str | int, b: str | int) -> RegionWhy:
        """Return why two selections of ops are in one region and segment or not: what is between them, and the rule.

        A selection is a line (``"model.py:12"``, or ``"12"`` if only one file has ops from such a line), a module's
        path or the end of one (``"layers.0.norm"``, ``"layers.*.norm"``), an op (``"aten.mm"``, ``"softmax"``), the
        name of a result in the graph, or a variable in your code. Several words separated by spaces select the ops that
        all of them select; ``"forward"``, ``"graph 1"`` and ``"region 3"`` are such words, too.

        Raises
        ------
        InputError
            If a word selects nothing or several things; the message lists the choices.
        """
        return region_why(self.graphs, self.graph_breaks, str(a), str(b))

    def maps(self) -> tuple[ModuleMap, ...]:
        """Return a map of each graph: its calls by module, and the tensors between them."""
        return module_maps(self.graphs)

    @takes(path=PATH, depth=optional(whole(1)))
    def save(self, path: str | Path, *, depth: int | None = None) -> Path:
        """Write the map of the model as .svg, .png, .html, .json, .csv or .txt (by extension); return the path.

        Parameters
        ----------
        path
            Where to write.
        depth
            Number of open levels of modules; 1 shows the outermost ones. By default, as many as are readable.

        Raises
        ------
        InputError
            If the extension is not one of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        return save("a model", path, map_writers(self, depth))

    def __repr__(self) -> str:
        """Return the map of the model as text, and where its kernels round."""
        text = model_text(self.graphs, self.graph_breaks)
        precisions = {region.signature.cutting.precision for region in self.regions if region.rounds}
        return "\n".join([text, *(f"precision={name!r}: {_ROUNDINGS[name]}" for name in sorted(precisions))])

    def _repr_html_(self) -> str:
        """Return the map of the model as HTML: the picture, and tables of regions and of ops left to the library."""
        return f"{map_html(self.maps())}{self.tables_html()}"

    def tables_html(self) -> str:
        """Return the regions, and the ops left to the library, as HTML tables."""
        return model_html(self.graphs, self.graph_breaks)
