"""Independent regions of one program as one launch, as in optimizers, moving averages and gradient clipping.

A launch costs the host and a GPU microseconds, which is more than most parameters of a model take. Regions whose
kernels compute the same ops for tensors of any sizes wait for each other, until something reads a result of one of them
or writes to a tensor; then one launch runs all of them (`fuser_lab.codegen.kernel_list`).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuser_lab.bridge.region import Region
from fuser_lab.bridge.torch_region import TorchRegion
from fuser_lab.bridge.traced import Node, writes
from fuser_lab.codegen.kernel_list import may_be_listed, most_entries
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.codegen.values import call_text
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.errors import FuserLabError, RegionWarning, warn
from fuser_lab.runtime.gpu.ready import DirectKernel, DirectRun, ReadyRun

if TYPE_CHECKING:
    from fuser_lab.runtime.gpu.list_run import ListRun

_SHAPES = re.compile(r"\[[^\]]*\]")  # in the text of an op
# Schedulers whose kernels compute their elements separately; a tensor of one element has the second one.
_SEPARATE = frozenset({SchedulerType.POINTWISE, SchedulerType.NO_OP})

Unit = Any  # a node, a region, or a list of regions


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionList:
    """Regions that one launch computes: their indices in the graph, and why."""

    regions: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRegions:
    """Regions with the launch that runs all of them."""

    regions: tuple[Region, ...]
    run: "ListRun"

    @property
    def summary(self) -> RegionList:
        """The regions as data."""
        kernel = self.run.generated.kernel_ir
        text = "; ".join(text for _, text in kernel.ops)
        why = f"one launch: the regions are independent, and compute the same ops for tensors of any sizes ({text})"
        return RegionList(regions=tuple(region.index for region in self.regions), reason=why)


def gather(
    units: Sequence[Unit], program_of: Callable[[Region], object | None], bases: Callable[[Unit], Collection[Node]],
) -> Iterator[Unit]:
    """Yield the units of a graph in an order of execution, with tuples of independent regions of one program.

    A region moves only to a later place, before anything that reads its results or writes.

    Parameters
    ----------
    units
        Nodes and regions, in an order of execution.
    program_of
        Returns a key that is equal for regions that may be in one list; None for a region that is in no list.
    bases
        Returns the tensors that a unit reads, views of them by their base.
    """
    waiting: dict[object, list[Region]] = {}
    program_by: dict[Node, object] = {}  # the program of a waiting region, by what it computes
    for unit in units:
        is_region = isinstance(unit, Region)
        before = dict.fromkeys(program_by[base] for base in bases(unit) if base in program_by)
        if not is_region and (unit.op == "output" or writes(unit)):
            before = dict.fromkeys(waiting)
        for program in before:
            regions = tuple(waiting.pop(program))
            for node in (node for region in regions for node in (*region.output_nodes, *region.view_nodes)):
                program_by.pop(node)
            yield regions
        program = program_of(unit) if is_region else None
        if program is None:
            yield unit
            continue
        waiting.setdefault(program, []).append(unit)
        program_by.update(dict.fromkeys((*unit.output_nodes, *unit.view_nodes), program))
    yield from map(tuple, waiting.values())


def in_lists(
    units: Sequence[Unit], kernels: Mapping[Region, DirectKernel], bases: Callable[[Unit], Collection[Node]],
) -> list[Unit]:
    """Return the units of `gather`, with `ListedRegions` in place of the regions that one launch runs.

    ``kernels`` are those of the regions that are one launch.
    """
    programs = {region: _program(kernel.generated) for region, kernel in kernels.items()}
    ordered: list[Unit] = []
    for unit in gather(units, programs.get, bases):
        ordered += _lists(unit, kernels) if isinstance(unit, tuple) else (unit,)
    return ordered


def planned_lists(
    units: Sequence[Unit], bases: Callable[[Unit], Collection[Node]],
) -> Iterator[tuple[Region, ...]]:
    """Yield the regions of a graph that one launch on a GPU runs, as their plans say."""
    for unit in gather(units, _planned_program, bases):
        if isinstance(unit, tuple):
            tensors = len(unit[0].input_nodes) + len(unit[0].output_nodes)
            yield from _parts(unit, most_entries(tensors))


def kernels_of(runs: Mapping[Region, DirectRun]) -> dict[Region, DirectKernel]:
    """Return the kernels of the regions that are one launch on a GPU."""
    kernels = {region: run.kernel for region, run in runs.items() if isinstance(run, ReadyRun)}
    return {region: kernel for region, kernel in kernels.items() if kernel is not None}


def _program(generated: GeneratedKernel) -> object | None:
    """Return a key that is equal for kernels that compute the same ops of the same dtypes with blocks of one shape.

    Shapes and axes of ops may differ, because a list may have a function for each of them. None for a kernel that may
    not be in a list.
    """
    if not may_be_listed(generated):
        return None
    (phase,) = generated.kernel_ir.phases
    buffers = tuple((buffer.name, buffer.dtype, buffer.role) for buffer in phase.buffers)
    return _ops(text for _, text in generated.kernel_ir.ops), buffers, phase.launch.threads, generated.compiler


def _planned_program(region: Region) -> object | None:
    """Return the same for the plan of a region."""
    try:
        segments = region.plan.segments
    except FuserLabError:  # it is raised again, and reported, where the region runs
        return None
    if len(segments) != 1 or segments[0].scheduler not in _SEPARATE:
        return None
    fusion = segments[0].fusion
    return _ops(map(call_text, fusion.exprs)), tuple((tv.name, tv.dtype) for tv in (*fusion.inputs, *fusion.outputs))


def _ops(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the text of ops without shapes and axes."""
    return tuple(_SHAPES.sub("", text) for text in texts)


def _parts(regions: Sequence[Region], most: int) -> Iterator[tuple[Region, ...]]:
    """Yield regions in as few parts as possible, of nearly equal lengths."""
    parts = -(-len(regions) // most)
    for part in range(parts):
        start, stop = (len(regions) * number // parts for number in (part, part + 1))
        yield tuple(regions[start:stop])


def _lists(regions: Sequence[Region], kernels: Mapping[Region, DirectKernel]) -> Iterator[Unit]:
    """Yield regions of one program as lists whose arguments a launch can take."""
    from fuser_lab.runtime.gpu.list_run import list_run

    phases = (kernels[region].generated.kernel_ir.phases[0] for region in regions)
    for listed in _parts(regions, min(most_entries(len(phase.buffers), len(phase.sizes)) for phase in phases)):
        if len(listed) == 1 or not isinstance(listed[0], TorchRegion):
            yield from listed
            continue
        memory = listed[0].prepared.memory
        try:
            run = list_run([kernels[region] for region in listed], memory.queue(), memory.calls)
        except FuserLabError as error:
            numbers = ", ".join(str(region.index) for region in listed)
            warn(f"regions {numbers} are launched one by one, because their list does not run: {error}", RegionWarning)
            yield from listed
        else:
            yield ListedRegions(regions=listed, run=run)
