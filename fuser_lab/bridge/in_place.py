"""Results that kernels write over an argument of the graph, in place of a copy at the end, as optimizers do.

A graph without writes computes a result in new memory, and ``copy_`` at its end writes the result over the argument. If
each thread of the kernel reads an element of the argument before it writes the same element of the result, and nothing
else reads the argument later, the result may have the memory of the argument from the beginning.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fuser_lab.bridge.lists import ListedRegions, kernels_of
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.traced import Node, is_write_back
from fuser_lab.codegen.kernel_ir import (
    Load,
    Phase,
    Store,
    VectorLoad,
    VectorStore,
    accesses_of,
    every_term,
    walk,
)
from fuser_lab.codegen.side_by_side import nests_in
from fuser_lab.runtime.cpu.host_ready import HostRun
from fuser_lab.runtime.gpu.ready import DirectRun
from fuser_lab.schedule.state import Style

Unit = Any  # a node, a region, or a list of regions
# The phases that a region runs, each with the names of its buffers by the positions of inputs, then results.
Phases = Sequence[tuple[Phase, Mapping[int, str]]]


def may_overwrite(phase: Phase, source: str, target: str) -> bool:
    """Whether a kernel may have two buffers in one memory: elements of ``source`` are read before they are written.

    Such a kernel computes its elements separately: each element of ``target`` is written once, by one thread. Another
    thread reads no element that this one writes if all reads are at the position of a later write, in the same nest.
    """
    if phase.schedule is None or phase.schedule.style is not Style.ELEMENTS:
        return False
    walked = ((buffer.name for s in walk(nest) for buffer, _ in accesses_of(s)) for nest in nests_in(phase))
    if sum(not {source, target}.isdisjoint(names) for names in walked) > 1:
        return False
    reads: dict[object, int] = {}  # the last statement that reads at a position
    writes: dict[object, int] = {}  # the first one that writes there
    for number, statement in enumerate(walk(phase.body)):
        match statement:
            case VectorLoad(buffer=buffer, position=position, count=count, shifted=shifted) if buffer.name == source:
                if shifted:
                    return False
                reads[position, count] = number
            case VectorStore(buffer=buffer, position=position, count=count) if buffer.name == target:
                writes.setdefault((position, count), number)
            case Store(buffer=buffer, position=position) if buffer.name == target:
                writes.setdefault((position, 1), number)
        for term in every_term(statement):
            if isinstance(term, Load) and term.buffer.name == source:
                reads[term.position, 1] = number
    return all(key in writes and number <= writes[key] for key, number in reads.items())


def _phases_of(runs: Mapping[Region, DirectRun]) -> dict[Region, Phases]:
    """Return the phases of the regions that only run kernels: on a GPU, those that are one launch."""
    phases: dict[Region, Phases] = {
        region: [(phase, kernel.buffers) for phase in kernel.generated.kernel_ir.phases]
        for region, kernel in kernels_of(runs).items()
    }
    return phases | {region: run.phases for region, run in runs.items() if isinstance(run, HostRun)}


class InPlace:
    """The results of a graph's regions that are computed in the memory of an argument.

    ``arguments`` has the argument of each such result, and ``copies`` the calls that are not made.
    """

    def __init__(
        self, units: Sequence[Unit], runs: Mapping[Region, DirectRun], places: Mapping[Node, tuple[Node, int]],
        aligned: Collection[Node],
    ) -> None:
        """Find the results.

        Parameters
        ----------
        units
            Nodes, regions and lists of regions, in the order of execution.
        runs
            The runs of the regions whose results may be in the memory of an argument.
        places
            For each tensor, itself or the tensor of which it is a view, and its first element there.
        aligned
            The graph's arguments whose memory is dense, and aligned as kernels need it.
        """
        self.arguments: dict[Node, Node] = {}
        self.copies: set[Node] = set()
        self._places = places
        kernels, bases = _phases_of(runs), {node: base for node, (base, _) in places.items()}
        readers: dict[Node, list[tuple[int, Unit]]] = {}
        place: dict[Region, int] = {}
        for number, unit in enumerate(units):
            for part in unit.regions if isinstance(unit, ListedRegions) else (unit,):
                if isinstance(part, Region):
                    place[part] = number
                read = part.input_nodes if isinstance(part, Region) else part.all_input_nodes
                for base in {bases.get(node, node) for node in read}:
                    readers.setdefault(base, []).append((number, part))
        makers = {node: region for region in kernels for node in region.output_nodes}
        returned = {base for base, by in readers.items() for _, unit in by if not isinstance(unit, Region)
                    and unit.op == "output"}
        for unit in units:
            if isinstance(unit, Region | ListedRegions) or not is_write_back(unit) or unit.users:
                continue
            argument, result = unit.args[:2]
            region = makers.get(result)
            if region is None or argument not in aligned or result in returned or result in self.arguments:
                continue
            before = all(
                part in {region, unit} or number < place[region] for number, part in readers.get(argument, ())
            )
            if before and argument not in self.arguments.values() and self._fits(region, kernels[region], unit):
                self.arguments[result] = argument
                self.copies.add(unit)

    def over(self, region: Region) -> dict[int, int]:
        """Return the positions of a region's results that are computed over an input, with those of the input."""
        first = len(region.input_nodes)
        return {
            first + place: source for place, node in enumerate(region.output_nodes) if node in self.arguments
            for source in self._sources(region, self.arguments[node])
        }

    def _sources(self, region: Region, argument: Node) -> list[int]:
        """Return the positions of a region's inputs that are in the memory of an argument."""
        return [
            place for place, node in enumerate(region.input_nodes) if self._places.get(node, (node,))[0] is argument
        ]

    def _fits(self, region: Region, phases: Phases, copy: Node) -> bool:
        """Whether a copy's two tensors have one layout, and the kernels may have them in one memory."""
        argument, result = copy.args[:2]
        a, b = argument.meta["val"], result.meta["val"]
        if (a.shape, a.stride(), a.dtype, a.device) != (b.shape, b.stride(), b.dtype, b.device):
            return False
        sources = self._sources(region, argument)
        # Two buffers in one memory have their elements at the same positions, and one replaces the other.
        if len(sources) > 1 or any(self._places[region.input_nodes[place]][1] for place in sources):
            return False
        target, is_written = len(region.input_nodes) + region.output_nodes.index(result), False
        for phase, names in phases:
            read = [names[place] for place in sources if place in names]
            if read and (is_written or (target in names and not may_overwrite(phase, read[0], names[target]))):
                return False
            is_written |= target in names
        return is_written
