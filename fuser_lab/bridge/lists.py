"""Independent regions of one program as one launch, as in optimizers, moving averages and gradient clipping.

A launch costs the host and a GPU microseconds, which is more than most parameters of a model take. Regions whose
kernels compute the same ops for tensors of any sizes wait for each other, until something reads a result of one of them
or writes to a tensor; then one launch runs all of them (`fuser_lab.codegen.kernel_list`).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuser_lab.bridge.region import Region
from fuser_lab.bridge.torch_region import TorchRegion
from fuser_lab.bridge.traced import Node, writes
from fuser_lab.codegen.kernel_list import MOST_ARGUMENTS, argument_bytes, may_be_listed
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.errors import FuserLabError, RegionWarning, warn
from fuser_lab.runtime.gpu.ready import DirectKernel, DirectRun, ReadyRun

if TYPE_CHECKING:
    from fuser_lab.runtime.gpu.list_run import ListRun

_SHAPES = re.compile(r"\[[^\]]*\]")  # in the text of an op

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


def in_lists(
    units: Sequence[Unit], kernels: Mapping[Region, DirectKernel], bases: Callable[[Unit], Collection[Node]],
) -> list[Unit]:
    """Return the units of a graph in an order of execution, with `ListedRegions` in place of the regions of a list.

    A region moves only to a later place, before anything that reads its results or writes.

    Parameters
    ----------
    units
        Nodes and regions, in an order of execution.
    kernels
        The kernels of the regions that are one launch.
    bases
        Returns the tensors that a unit reads, views of them by their base.
    """
    ordered: list[Unit] = []
    waiting: dict[object, list[Region]] = {}
    key_of: dict[Node, object] = {}  # of what waiting regions compute

    def run_waiting(key: object) -> None:
        ordered.extend(_lists(waiting.pop(key, []), kernels))

    for unit in units:
        is_region = isinstance(unit, Region)
        before = [key_of[base] for base in bases(unit) if base in key_of]
        if not is_region and (unit.op == "output" or writes(unit)):
            before = list(waiting)
        for key in before:
            run_waiting(key)
        if not is_region or unit not in kernels or not may_be_listed(kernels[unit].generated):
            ordered.append(unit)
            continue
        key = _program(kernels[unit].generated)
        waiting.setdefault(key, []).append(unit)
        key_of.update(dict.fromkeys((*unit.output_nodes, *unit.view_nodes), key))
    for key in list(waiting):
        run_waiting(key)
    return ordered


def kernels_of(runs: Mapping[Region, DirectRun]) -> dict[Region, DirectKernel]:
    """Return the kernels of the regions that are one launch on a GPU."""
    kernels = {region: run.kernel for region, run in runs.items() if isinstance(run, ReadyRun)}
    return {region: kernel for region, kernel in kernels.items() if kernel is not None}


def _program(generated: GeneratedKernel) -> object:
    """Return a key that is equal for kernels that compute the same ops of the same dtypes with blocks of one shape.

    Shapes and axes of ops may differ, because a list may have a function for each of them.
    """
    (phase,) = generated.kernel_ir.phases
    ops = tuple(_SHAPES.sub("", text) for _, text in generated.kernel_ir.ops)
    buffers = tuple((buffer.name, buffer.dtype, buffer.role) for buffer in phase.buffers)
    return ops, buffers, phase.launch.threads, generated.compiler


def _lists(regions: Sequence[Region], kernels: Mapping[Region, DirectKernel]) -> Iterator[Unit]:
    """Yield regions of one program as lists of nearly equal lengths whose arguments a launch can take."""
    from fuser_lab.runtime.gpu.list_run import list_run

    needed = sum(argument_bytes(kernels[region].generated.kernel_ir.phases[0]) for region in regions)
    parts = -(-needed // MOST_ARGUMENTS)
    for part in range(parts):
        start, stop = (len(regions) * number // parts for number in (part, part + 1))
        listed = regions[start:stop]
        if len(listed) < 2 or not isinstance(listed[0], TorchRegion):
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
            yield ListedRegions(regions=tuple(listed), run=run)
