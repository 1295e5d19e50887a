"""Regions that write at positions on a GPU what they would store for an op that only does that.

The source of a scatter, such as the product of looked-up rows and weights, is often as large as everything else that
its kernel reads and writes. If nothing else reads it, and the positions exist before the region runs, the kernel that
computes an element also writes it at its position (`fuser_lab.bridge.gpu_scatters_in_regions`), and the source is
never stored. The function of a graph decides so when it is written; graphs that run unit by unit store the source.
"""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.bridge.add_calls import AddCall
from fuser_lab.bridge.gpu_scatters_in_regions import adding_kernel
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.tensor_forms import Form
from fuser_lab.bridge.torch_region import TorchRegion
from fuser_lab.bridge.traced import Node, writes
from fuser_lab.codegen.kernel_ir import Role
from fuser_lab.errors import FuserLabError
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.gpu.driver import Launch, Launches
from fuser_lab.runtime.gpu.ready import Block, DirectRun, ReadyRun

Unit = Any  # a node, or a region


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedStore:
    """A write at positions by a region: its node, and the base of its source, which is not stored.

    ``words`` hold the addresses of the operands but the source, then that of the result; ``sums`` is memory for sums
    that are not the result. The result is in the memory of ``over``, if that is a tensor.
    """

    operands: tuple[Node, ...]
    node: Node
    stored: Node
    words: tuple[Any, ...]
    sums: tuple[Block, ...]
    over: Node | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingRegion:
    """What a region writes at positions, and the call that launches its kernels."""

    stores: tuple[AddedStore, ...]
    call: Callable[[], None]


def adding_regions(
    units: Sequence[Unit], runs: Mapping[Region, DirectRun], adds: Mapping[Node, AddCall],
    forms: Mapping[Node, tuple[Node, Form]],
) -> dict[Region, AddingRegion]:
    """Return the regions of a graph that write at positions what only a scatter would read.

    ``units`` are in the order of execution, ``forms`` the base of each tensor and its form there.
    """
    place: dict[Any, int] = {}
    readers: dict[Node, list[Unit]] = {}
    for number, unit in enumerate(units):
        is_region = isinstance(unit, Region)
        place.update(dict.fromkeys((unit, *unit.output_nodes) if is_region else (unit,), number))
        if not is_region and unit in forms and forms[unit][0] is not unit:
            continue  # a view, of which the readers count
        for base in {forms[node][0] if node in forms else node for node in (
            unit.input_nodes if is_region else unit.all_input_nodes
        )}:
            readers.setdefault(base, []).append(unit)
    adding: dict[Region, AddingRegion] = {}
    for region, run in runs.items():
        if not isinstance(region, TorchRegion) or not isinstance(run, ReadyRun) or not run.launches:
            continue
        stores: list[AddedStore] = []
        launches = run.launches
        only = [(reader, stored) for stored in region.output_nodes for reader, *others in [readers.get(stored, [None])]
                if reader in adds and not others]
        for reader, stored in sorted(only, key=lambda pair: place[pair[0]]):
            call = adds[reader]
            *operands, source = call.scatter.operands
            if source is not call.scatter.source or forms[source][0] is not stored or forms[source][1][2]:
                continue
            between = units[place[region] : place[reader]]
            before = {each.node for each in stores} if call.over_start else set()
            if any(place[forms[node][0]] >= place[region] and node not in before for node in operands) or any(
                    not isinstance(unit, Region) and writes(unit) for unit in between):
                continue
            number = len(region.input_nodes) + region.output_nodes.index(stored)
            words = [id(word) for at, word in run.words if at == number]
            made = _launches_that_write(launches, words, call, region.prepared.memory)
            if made is not None:
                launches, new, sums = made
                over = operands[0] if call.over_start else None
                stores.append(AddedStore(
                    operands=tuple(operands), node=reader, stored=stored, words=new, sums=sums, over=over))
        if stores:
            adding[region] = AddingRegion(
                stores=tuple(stores), call=functools.partial(Launches(launches), run.stream))
    return adding


def _launches_that_write(
    launches: Sequence[Launch], stored: Sequence[int], call: AddCall, memory: Any,
) -> tuple[tuple[Launch, ...], tuple[Any, ...], tuple[Block, ...]] | None:
    """Return launches of which those that store a source write it at positions, the words of new buffers, and sums.

    None if that is not possible. The address of the source is in one of the words whose ids are ``stored``.
    """
    users = {(id(launch.generated), name): launch.generated for launch in launches
             for name, words in launch.words.items() if id(words[0]) in stored}
    if len(users) != 1:
        return None
    (((_, name), generated),) = users.items()
    group = [launch for launch in launches if launch.generated is generated]
    if generated is None or len(group) != len(generated.kernel_ir.phases):
        return None
    kernel = adding_kernel(call.scatter, generated, name, memory.gpu, over_start=call.over_start)
    if kernel is None:
        return None
    try:
        calls = memory.calls(kernel)
    except FuserLabError:  # of a compiler: the source is stored, as it is where this kernel is not tried
        return None
    before, ir = generated.kernel_ir, kernel.kernel_ir
    buffers = (*ir.inputs[len(before.inputs) :], ir.outputs[-1], *ir.workspace[len(before.workspace) :])
    new = {buffer.name: ctypes.c_uint64() for buffer in buffers}
    words: dict[str, tuple[Any, ...]] = {n: tuple(held) for launch in group for n, held in launch.words.items()}
    words |= {name: (word,) for name, word in new.items()}
    sums = tuple(
        Block(nbytes=buffer.nbytes, word=new.pop(buffer.name), new=functools.partial(memory.block, buffer.nbytes))
        for buffer in buffers if buffer.role is Role.WORKSPACE
    )
    first = launches.index(group[0])
    rest = (launch for launch in launches[first:] if launch not in group)
    adding = (each.launch(Environment(), words) for each in calls)
    return (*launches[:first], *adding, *rest), tuple(new.values()), sums
