"""Writes at positions that are data by the kernel that computes their source, on a GPU: it stores no source."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import prod

from fuser_lab.bridge.gpu_scatters import Additions
from fuser_lab.bridge.scatters import Scatter
from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Buffer,
    If,
    Let,
    Load,
    Reduce,
    Role,
    Statement,
    Store,
    VectorAdd,
    VectorStore,
    accesses_of,
    map_blocks,
    walk,
)
from fuser_lab.codegen.pipeline import GeneratedKernel, generated_from
from fuser_lab.cost.device import ACCESS_BYTES, Device
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Term, Var, index

_ADDS_VECTORS = (9, 0)  # compute capability of an instruction that adds several floats (PTX ISA, red)


def adding_kernel(
    scatter: Scatter, generated: GeneratedKernel, stored: str, device: Device, *, over_start: bool = False,
) -> GeneratedKernel | None:
    """Return a kernel that writes at positions what another one stores as their source.

    Its last inputs are the other operands of the write, its last output is the result; ``sums``, if separate, is the
    last workspace. ``over_start`` is that of `add_kernel`. None if the kernel reads what it stores, or the write does
    not take each element once, or tables in shared memory save additions.
    """
    kernel, names = generated.kernel_ir, [f"{stored}_x{number}" for number, _ in enumerate(scatter.operands[:-1])]
    made = Additions.of(scatter, device, [*names, stored], f"{stored}_", over_start=over_start)
    size = next(buffer.size for buffer in kernel.outputs if buffer.name == stored)
    steps = [prod(extent for extent, _ in made.loops[place + 1 :]) for place in range(len(made.loops))]
    takes_each = steps == [along[0] for _, along in made.loops] and steps[0] * made.loops[0][0] == size
    accesses = [statement for phase in kernel.phases for statement in walk(phase.body)
                for buffer, _ in accesses_of(statement) if buffer.name == stored]
    are_taken = takes_each and all(isinstance(s, Store | VectorStore) and _may_write(made, s, device) for s in accesses)
    if made.is_alone or made.visits.copies or not are_taken:
        return None
    numbers = count()

    def rewrite(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        new: list[Statement] = []
        for s in body:
            if isinstance(s, Store | VectorStore) and s.buffer.name == stored:
                loads, additions = _in_place_of(made, s, f"{stored}_{next(numbers)}")
                at = _after_names(new, s.position)
                new[at:at] = loads  # with the other loads of the kernel in flight
                new += additions
            else:
                new.append(map_blocks(s, rewrite))
        return tuple(new)

    written = (*made.positions, made.sums)
    phases = tuple(
        replace(phase, body=rewrite(phase.body), buffers=(*(b for b in phase.buffers if b.name != stored), *written))
        if any(buffer.name == stored for buffer in phase.buffers) else phase for phase in kernel.phases
    )
    phases = phases if over_start else (made.fill(), *phases, *made.rounding())
    return generated_from(
        replace(
            kernel, phases=phases, inputs=(*kernel.inputs, *made.inputs[:-1]),
            outputs=(*(b for b in kernel.outputs if b.name != stored), made.result),
            workspace=(*kernel.workspace, *made.workspace), ops=(*kernel.ops, (scatter.op, scatter.op)),
        ),
    )


def _after_names(statements: Sequence[Statement], term: Term) -> int:
    """Return the first place among statements at which the names in a term are defined."""
    names = {part.name for part in term.walk() if isinstance(part, Var)}
    return max((place for place, statement in enumerate(statements, 1) for inner in walk((statement,))
                if isinstance(inner, Let | Reduce) and inner.name in names), default=0)


def _may_write(additions: Additions, store: Store | VectorStore, device: Device) -> bool:
    """Whether writing elements of the source one by one, or vectors of them, takes no more accesses than storing.

    Adjacent elements of one position need an instruction for vectors, unless threads store adjacent elements.
    """
    width, (extent, (_, step, *along)) = store.width if isinstance(store, VectorStore) else 1, additions.loops[-1]
    if width == 1 or any(along):
        return True
    outer = (steps[1] for _, steps in additions.loops[:-1])
    apart = [extent, *outer, *(each.step for each in additions.scatter.positions)]
    adds = additions.sums.dtype is DataType.Float and device.cc >= _ADDS_VECTORS
    return step == 1 and not any(each % width for each in apart) and (adds or additions.scatter.combine is None)


def _in_place_of(
    additions: Additions, store: Store | VectorStore, name: str,
) -> tuple[list[Statement], list[Statement]]:
    """Return the writes of values that a kernel would store in the source, which is dense in the order of loops.

    Before them are the loads of their positions, which only need the position of the store.
    """
    first = Var(DataType.Index, f"{name}_first")
    lets: list[Statement] = [Let(name=first.name, value=store.position)]
    if isinstance(store, Store):
        loads, wraps, _, at, condition = additions.position(first, name)
        return [*lets, *loads], [*wraps, additions.write(additions.sums, at, store.value, condition)]
    made: list[Statement] = []
    words, width = store.words, 1 if any(additions.loops[-1][1][2:]) else store.width
    for start in range(0, store.count, width):
        loads, wraps, _, at, condition = additions.position(first + start, f"{name}_{start}")
        slot = store.slot + start
        value = Load(words.dtype, words, slot)
        lets += loads
        made += wraps
        if width == 1:
            made.append(additions.write(additions.sums, at, value, condition))
        elif additions.scatter.combine is None:
            vector = replace(store, buffer=additions.sums, position=at, slot=slot, count=width)
            made.append(If(condition=condition, then=(vector,)))
        else:
            made += _vector_adds(additions, words, slot, width, at, condition, f"{name}_{start}")
    return lets, made


def _vector_adds(
    additions: Additions, words: Buffer, slot: Term, width: int, at: Term, condition: Term, name: str,
) -> Iterator[Statement]:
    if words.dtype is not additions.sums.dtype:
        wide = Buffer(name=f"{name}_wide", dtype=additions.sums.dtype, size=width, role=Role.WORDS)
        yield Alloc(buffer=wide)
        for k in range(width):
            yield Store(buffer=wide, position=index(k), value=Load(words.dtype, words, slot + k))
        words, slot = wide, index(0)
    count = min(width, ACCESS_BYTES // additions.sums.dtype.itemsize)
    for k in range(0, width, count):
        yield VectorAdd(
            buffer=additions.sums, position=at + k, words=words, slot=slot + k, count=count, condition=condition)
