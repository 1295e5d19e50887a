"""Independent nests as one launch: each nest has blocks of its own, which run at the same time as those of the others.

    if any_block < 24:
        block = any_block
        ...                         the first nest
    else:
        block = any_block - 24
        ...                         the second nest

Such a launch takes less time than one for each nest, and no nest waits for the last block of another.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from fuser_lab.codegen.kernel_ir import Block, If, Let, Loop, Phase
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Term, Var, apply, index
from fuser_lab.ir.transform import ParallelType

_ANY = Var(DataType.Index, "any_block")  # the number of a block among those of all nests


def side_by_side(phases: Sequence[Phase]) -> Phase:
    """Return one launch for phases of which none reads what another one writes, with blocks of one shape."""
    first = phases[0]
    *starts, blocks = accumulate((phase.launch.blocks for phase in phases), initial=0)
    body = _of_its_blocks(phases[-1], starts[-1])
    for number in reversed(range(len(phases) - 1)):
        then = _of_its_blocks(phases[number], starts[number])
        body = (If(condition=apply("lt", _ANY, index(starts[number + 1])), then=then, otherwise=body),)
    return replace(
        first, buffers=tuple(dict.fromkeys(buffer for phase in phases for buffer in phase.buffers)),
        scalars=tuple(dict.fromkeys(scalar for phase in phases for scalar in phase.scalars)),
        body=(Loop(var=_ANY.name, start=index(0), stop=index(blocks), parallel=ParallelType.grid_x, body=body),),
        launch=replace(first.launch, blocks=blocks),
    )


def _of_its_blocks(phase: Phase, start: int) -> Block:
    """Return what a block does of a phase whose first block has the number ``start``."""
    (loop,) = phase.body
    assert isinstance(loop, Loop)
    number: Term = apply("max", _ANY - start, index(0)) if start else _ANY  # a number that is known not to be negative
    return (Let(name=loop.var, value=number), *loop.body)
