"""Checks of positions that are data, in kernels of a CPU.

A load at such a position is selected by whether the position is within its axis. The kernel also notes that a position
is not, and at its end it tells the host, which raises an error.

                                                     missed = 0
    for i in range(n):                               for i in range(n):
        t1_at = int64(T1[i])                             t1_at = int64(T1[i])
                                              ->         missed = missed | (0 if (t1_at >= 0) & (t1_at < 64) else 1)
        t0 = T0[t1_at if ... else 0]                     t0 = T0[t1_at if ... else 0]
        ...                                              ...
                                                     if missed != 0:
                                                         note_missed(status)

A loop only combines conditions that it computes anyway, because LLVM does not vectorize a loop with a branch that
stores. Positions whose ranges are known to be within their axes have no conditions, and so no checks.
"""

from collections.abc import Mapping
from dataclasses import replace

from fuser_lab.codegen.kernel_ir import Block, If, Let, Loop, Missed, Statement, map_blocks, walk
from fuser_lab.codegen.rewrites import checked_positions
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var, select
from fuser_lab.ir.transform import ParallelType

EXAMPLE = """
loop(
    c, 64, serial,
    let(at, cast(T0[c], Index)),
    let(t0, T0[select(apply("and", at >= 0, at < 64), at, 0)]),
    store(T1, c, select(apply("and", at >= 0, at < 64), t0, number(0.0))),
)
"""


def with_position_checks(body: Block) -> Block:
    """Return the statements of a phase, which tell the host that a position was outside of its axis."""
    conditions = _conditions(body)
    return _of_one_core(body, "missed", conditions) if conditions else body


def _conditions(body: Block) -> Mapping[str, Term]:
    """Return, for each position, the narrowest condition that it is within an axis."""
    narrowest: dict[str, tuple[float, Term]] = {}
    for name, size, condition in checked_positions(body):
        if isinstance(size, Const) and (name not in narrowest or size.value.real < narrowest[name][0]):
            narrowest[name] = size.value.real, condition
    return {name: condition for name, (_, condition) in narrowest.items()}


def _of_one_core(body: Block, name: str, conditions: Mapping[str, Term]) -> Block:
    """Return what one core runs, with what it finds: the statements of a phase, or an iteration that cores share."""
    missed = Var(DataType.Int, name)
    checked = _block(body, missed, conditions)
    if not any(isinstance(statement, Let) and statement.name == name for statement in walk(checked)):
        return checked
    told = If(condition=Apply(DataType.Bool, "ne", (missed, Const(DataType.Int, 0))), then=(Missed(),))
    return (Let(name=name, value=Const(DataType.Int, 0)), *checked, told)


def _block(body: Block, missed: Var, conditions: Mapping[str, Term]) -> Block:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop) and statement.parallel is ParallelType.grid_x:
            result.append(replace(statement, body=_of_one_core(statement.body, f"{missed.name}_here", conditions)))
            continue
        result.append(map_blocks(statement, lambda inner: _block(inner, missed, conditions)))
        if isinstance(statement, Let) and statement.name in conditions:
            here = select(conditions[statement.name], Const(DataType.Int, 0), Const(DataType.Int, 1))
            result.append(Let(name=missed.name, value=Apply(DataType.Int, "or", (missed, here)), update=True))
    return tuple(result)
