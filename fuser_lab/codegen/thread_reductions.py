"""Reductions over the threads of one direction of a block, for schedules by hand.

The threads of whole warps, and those of a power of two within a warp, exchange registers (`Reduce`). Others combine
their values in shared memory by a tree: its lower half adds the upper half's, until one thread has the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Barrier, Buffer, If, Load, Reduce, Role, Scope, Statement, Store
from fuser_lab.codegen.scheduled_loops import Ranges
from fuser_lab.codegen.scheduled_memory import Memory, assignment
from fuser_lab.cost.device import WARP
from fuser_lab.ir import Expr
from fuser_lab.ir.term import Apply, Term, Var, apply, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops.registry import Combine


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A direction of a block: its parallel type, its number of threads, and the variable of a thread's number."""

    kind: ParallelType
    threads: int
    number: Var


def over_threads(
    expr: Expr, combine: Combine, total: Term, among: Sequence[Direction], block: Sequence[Direction],
    memory: Memory, ranges: Ranges, *, name: str, repeated: bool,
) -> list[Statement]:
    """Return the statements after which every thread has the combined values of the threads of some directions.

    ``total`` is the location of a thread's value, ``block`` all directions of the block in x, y, z; ``name`` is an
    unused variable, and ``repeated`` whether the thread runs the statements several times.
    """
    statements: list[Statement] = []
    for direction in among:
        scope = _scope(direction, block)
        if scope is None:
            statements += _tree(expr, combine, total, direction, block, memory, ranges)
            continue
        dtype = expr.out.dtype.compute
        statements.append(
            Reduce(
                name=name, fn=combine.fn, value=total, identity=combine.identity(expr.out.dtype), scope=scope,
                origin=expr.name, note=f"{expr.name} over the {direction.threads} threads of {direction.kind.value}",
            ),
        )
        statements.append(assignment(total, Var(dtype, name), expr, "", update=True))
        if scope is Scope.BLOCK and repeated:
            # The next iteration writes to the memory through which the warps exchange their results.
            statements.append(Barrier(origin=expr.name))
    return statements


def _scope(direction: Direction, block: Sequence[Direction]) -> Scope | None:
    """Return the scope of a `Reduce` over the threads of one direction; None if only a tree combines them."""
    count = direction.threads
    if direction.kind is not ParallelType.block_x:
        return None
    if count <= WARP:
        return Scope.WARP if count & (count - 1) == 0 else None
    alone = all(other.threads == 1 for other in block if other is not direction)
    return Scope.BLOCK if alone and count % WARP == 0 else None


def _tree(
    expr: Expr, combine: Combine, total: Term, direction: Direction, block: Sequence[Direction], memory: Memory,
    ranges: Ranges,
) -> list[Statement]:
    """Return the tree that combines the values of the threads along one direction, through shared memory."""
    dtype = expr.out.dtype.compute
    size = prod(other.threads for other in block)
    tree = memory.used(Buffer(name=f"{expr.name}_threads", dtype=dtype, size=size, role=Role.SHARED))
    count, step, distance, place = direction.threads, 1, 1, index(0)
    for other in block:
        if other is direction:
            distance = step
        if other.threads > 1:
            place = place + other.number * step
        step *= other.threads
    place = simplify(place, ranges)
    note = f"{expr.name} over the {count} threads of {direction.kind.value}, halving their number each time"
    statements: list[Statement] = [Store(buffer=tree, position=place, value=total, origin=expr.name, note=note)]
    half = 1 << (count - 1).bit_length()
    while half > 1:
        half //= 2
        other_place = simplify(place + index(half * distance), ranges)
        sums = Apply(dtype, combine.fn, (Load(dtype, tree, place), Load(dtype, tree, other_place)))
        store = Store(buffer=tree, position=place, value=sums, origin=expr.name)
        statements += [
            Barrier(origin=expr.name),
            If(condition=apply("lt", direction.number, min(half, count - half)), origin=expr.name, then=(store,)),
        ]
    first = simplify(place - direction.number * distance, ranges)
    return [
        *statements,
        Barrier(origin=expr.name),
        assignment(total, Load(dtype, tree, first), expr, "", update=True),
        Barrier(origin=expr.name),
    ]
