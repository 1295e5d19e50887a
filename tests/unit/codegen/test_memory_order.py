"""The order of a reduction's loops, where positions of elements are data."""

from typing import Any

import pytest
from backend.fusions import D, S, build

from fuser_lab.codegen.index_math import access_of
from fuser_lab.codegen.kernel_ir import Load, Loop, every_term, walk
from fuser_lab.ir.term import Apply, Term
from tests.kernels import generate


def inside_bounds(position: Term) -> Term:
    """A position where it is in the table."""
    return position.args[1] if isinstance(position, Apply) and position.fn == "select" else position


@pytest.mark.parametrize("dims", [[0], [1], [0, 1]], ids=str)
def test_rows_at_positions_that_are_data_are_read_along_memory(dims: list[int]) -> None:
    def looked_up(fd: Any, table: Any, i: Any) -> Any:
        return fd.ops.sum(fd.ops.sin(fd.ops.index_select(table, i, 0)), dims)

    fusion = build(looked_up, [(300, 64), (500,)], [D.Float, D.Int])
    kernel = generate(fusion, S.REDUCTION, "cpu").kernel_ir
    loops = [
        loop for phase in kernel.phases for loop in walk(phase.body) if isinstance(loop, Loop)
        and not any(isinstance(inside, Loop) for inside in walk(loop.body))
    ]
    steps = [
        access_of(term.buffer, inside_bounds(term.position), loop.var).step
        for loop in loops for statement in walk(loop.body) for whole in every_term(statement) for term in whole.walk()
        if isinstance(term, Load) and term.buffer.name == "T0"
    ]
    assert steps
    assert set(steps) == {1}, steps
