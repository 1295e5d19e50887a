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
from fuser_lab.errors import FuserLabError, RegionWarning, warn
from fuser_lab.runtime.gpu.ready import DirectRun, ReadyRun

if TYPE_CHECKING:
    from fuser_lab.codegen.pipeline import GeneratedKernel
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
    units: Sequence[Unit], runs: Mapping[Region, DirectRun], bases: Callable[[Unit], Collection[Node]],
) -> list[Unit]:
    """Return the units of a graph in an order of execution, with `ListedRegions` in place of the regions of a list.

    A region moves only to a later place, before anything that reads its results or writes.

    Parameters
    ----------
    units
        Nodes and regions, in an order of execution.
    runs
        The runs of regions that are only launches.
    bases
        Returns the tensors that a unit reads, views of them by their base.
    """
    kernels = _kernels(runs)
    ordered: list[Unit] = []
    waiting: dict[object, list[Region]] = {}
    key_of: dict[Node, object] = {}  # of what waiting regions compute

    def run_waiting(key: object) -> None:
        ordered.extend(_lists(waiting.pop(key, []), runs, kernels))

    for unit in units:
        is_region = isinstance(unit, Region)
        before = [key_of[base] for base in bases(unit) if base in key_of]
        if not is_region and (unit.op == "output" or writes(unit)):
            before = list(waiting)
        for key in before:
            run_waiting(key)
        if not is_region or unit not in kernels:
            ordered.append(unit)
            continue
        key = _program(kernels[unit])
        waiting.setdefault(key, []).append(unit)
        key_of.update(dict.fromkeys((*unit.output_nodes, *unit.view_nodes), key))
    for key in list(waiting):
        run_waiting(key)
    return ordered


def _kernels(runs: Mapping[Region, DirectRun]) -> dict[Region, "GeneratedKernel"]:
    """Return the kernels of the regions that may be in a list: those that are one launch on a GPU."""
    if not any(isinstance(run, ReadyRun) for run in runs.values()):
        return {}
    from fuser_lab.runtime.gpu.list_run import listed_kernel

    return {region: kernel for region, run in runs.items() if (kernel := listed_kernel(run)) is not None}


def _program(generated: "GeneratedKernel") -> object:
    """Return a key that is equal for kernels that compute the same ops of the same dtypes with blocks of one shape.

    Shapes and axes of ops may differ, because a list may have a function for each of them.
    """
    (phase,) = generated.kernel_ir.phases
    ops = tuple(_SHAPES.sub("", text) for _, text in generated.kernel_ir.ops)
    buffers = tuple((buffer.name, buffer.dtype, buffer.role) for buffer in phase.buffers)
    return ops, buffers, phase.launch.threads, generated.compiler


def _lists(
    regions: Sequence[Region], runs: Mapping[Region, DirectRun], kernels: Mapping[Region, "GeneratedKernel"],
) -> Iterator[Unit]:
    """Yield regions of one program as lists of nearly equal lengths whose arguments a launch can take."""
    from fuser_lab.codegen.kernel_list import MOST_ARGUMENTS, argument_bytes
    from fuser_lab.runtime.gpu.list_run import list_run

    needed = sum(argument_bytes(kernels[region].kernel_ir.phases[0]) for region in regions)
    parts = -(-needed // MOST_ARGUMENTS)
    for part in range(parts):
        start, stop = (len(regions) * number // parts for number in (part, part + 1))
        listed = regions[start:stop]
        first = listed[0] if listed else None
        if len(listed) < 2 or not isinstance(first, TorchRegion):
            yield from listed
            continue
        try:
            yield ListedRegions(
                regions=tuple(listed), run=list_run([runs[region] for region in listed], first.prepared.memory.calls),
            )
        except FuserLabError as error:
            numbers = ", ".join(str(region.index) for region in listed)
            warn(f"regions {numbers} are launched one by one, because their list does not run: {error}", RegionWarning)
            yield from listed
