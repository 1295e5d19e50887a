"""Row and column reductions in one pass on the CPU, as in backward passes of norms, reading each input once.

Rows are cut into bands. A core iterates over the rows of a band and also adds them to the sums of all columns, which
stay in its cache. The result of a band is one part of each column's sum, and a second phase, a separate fusion, adds up
the parts. The number of bands depends only on the shape, so that results do not depend on the number of threads.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from fuser_lab.codegen.column_sums import column_index, rows_each
from fuser_lab.codegen.cpu_common import chunk
from fuser_lab.codegen.cpu_rows import RowMemory, RowPlan, allocate_saved, write_row
from fuser_lab.codegen.index_math import substitute
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Launch, Load, Phase, Role, Store
from fuser_lab.codegen.nest_writing import PhaseCode, folds_of, written_phase
from fuser_lab.ir import Expr
from fuser_lab.ir.transform import ParallelType


def write_rows_with_column_sums(plan: RowPlan) -> Iterator[Phase]:
    """Yield the phase that iterates over the rows and stores the parts of column sums."""
    yield written_phase(plan.nest, "_rows", partial(_rows, plan))


def _rows(plan: RowPlan, code: PhaseCode) -> Launch:
    values, nest, space = code.values, code.nest, plan.nest.facts.space
    each = rows_each(plan.nest.choice.schedule, space.rows)
    with ExitStack() as stack:
        band = stack.enter_context(values.loop("band", -(-space.rows // each), plan.outer, pinned=True))
        memory = RowMemory(saved=allocate_saved(plan, values, space.depth))
        folds = folds_of(plan.nest.facts.column_sums)
        sums: dict[Expr, Buffer] = {}
        for fold in folds:
            sums[fold.expr] = Buffer(
                name=f"{fold.expr.name}_sums", dtype=fold.identity.dtype, size=space.depth, role=Role.SCRATCH,
            )
            values.emit(Alloc(buffer=sums[fold.expr], origin=fold.expr.name))
        with values.loop("c", space.depth, ParallelType.vectorize) as c:
            for fold in folds:
                values.emit(Store(buffer=sums[fold.expr], position=c, value=fold.identity, origin=fold.expr.name))
        start, stop = chunk(values, band, each, space.rows, guarded=True)
        with values.loop("row", stop, ParallelType.serial, start=start, largest=space.rows, pinned=True) as row:
            write_row(plan, code, row, memory, sums)
        with values.loop("c", space.depth, ParallelType.vectorize) as c:
            here = code.flat(nest.reduced, c)
            for expr, buffer in sums.items():
                column = tuple(substitute(i, here) for i in column_index(nest, expr))
                part = plan.nest.column_parts[expr]
                position = values.simplify(part.layout.position((band, *values.simplified(column))))
                values.emit(Store(
                    buffer=part.buffer, position=position, value=Load(buffer.dtype, buffer, c), origin=expr.name,
                ))
    return Launch()
