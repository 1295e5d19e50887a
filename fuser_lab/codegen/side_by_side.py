"""Independent nests as one launch: each nest has blocks of its own, which run at the same time as those of the others.

    if block < 24:
        ...                         the first nest
    else:
        block_1 = block - 24
        ...                         the second nest

Such a launch takes less time than one for each nest, and no nest waits for the last block of another.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from fuser_lab.codegen.kernel_ir import Block, If, Let, Loop, Phase, rewrite_statements
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Term, Var, apply, index


def side_by_side(phases: Sequence[Phase]) -> Phase:
    """Return one launch for phases of which none reads what another one writes, with blocks of one shape."""
    first = phases[0]
    *starts, blocks = accumulate((phase.launch.blocks for phase in phases), initial=0)
    loops = [_loop_over_blocks(phase) for phase in phases]
    block = Var(DataType.Index, loops[0].var)
    bodies = [loops[0].body]
    for number, (loop, start) in enumerate(zip(loops[1:], starts[1:], strict=True), 1):
        block_var, before = Var(DataType.Index, f"{loop.var}_{number}"), Var(DataType.Index, loop.var)
        body = rewrite_statements(loop.body, partial(_with_name, before, block_var))
        # A maximum says that the number of the block is not negative.
        bodies.append((Let(name=block_var.name, value=apply("max", block - start, index(0))), *body))
    body = bodies.pop()
    for then, start in zip(reversed(bodies), reversed(starts[1:]), strict=True):
        body = (If(condition=apply("lt", block, index(start)), then=then, otherwise=body),)
    return replace(
        first, buffers=tuple(dict.fromkeys(buffer for phase in phases for buffer in phase.buffers)),
        scalars=tuple(dict.fromkeys(scalar for phase in phases for scalar in phase.scalars)),
        body=(replace(loops[0], stop=index(blocks), body=body),), launch=replace(first.launch, blocks=blocks),
    )


def nests_in(phase: Phase) -> tuple[Block, ...]:
    """Return the statements of each nest of a launch."""
    body, nests = phase.body, list[Block]()
    match body:
        case (Loop(var=block, body=body),):
            while True:
                match body:
                    case (If(condition=Apply(_, "lt", (Var(_, name), _)), then=then, otherwise=otherwise),) if (
                        name == block and otherwise
                    ):
                        nests.append(then)
                        body = otherwise
                    case _:
                        break
    return (*nests, body)


def _with_name(before: Var, after: Var, term: Term) -> Term | None:
    return after if term == before else None


def _loop_over_blocks(phase: Phase) -> Loop:
    """Return the loop over the blocks of a phase, which compute its scalars first."""
    *scalars, loop = phase.body
    assert isinstance(loop, Loop)
    return replace(loop, body=(*scalars, *loop.body))
