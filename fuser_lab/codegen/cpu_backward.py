"""Row and column reductions in one pass on the CPU, as in backward passes of norms, reading each input once.

Rows are cut into bands. A core iterates over the rows of a band and also adds them to the sums of all columns, which
stay in its cache. The result of a band is one part of each column's sum, and a second phase, a separate fusion, adds up
the parts. The number of bands depends only on the shape, so that results do not depend on the number of threads.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from fuser_lab.codegen.column_sums import column_index, rows_each
from fuser_lab.codegen.cpu_loops import CpuNest
from fuser_lab.codegen.index_math import simplify, substitute
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Launch, Load, Phase, Role, Store
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nest_lowering import Fold, Places
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term
from fuser_lab.ir.transform import ParallelType


class CpuBackward(CpuNest):
    """Writes the phase that iterates over the rows."""

    def __init__(self, plan: NestPlan) -> None:
        self._columns_of, self._stored, self._column_parts = plan.facts.column_sums, plan.stored, plan.column_parts
        self._running: dict[Expr, Buffer] = {}
        super().__init__(plan)

    def _results_read_back(self) -> tuple[TensorView, ...]:
        # Operands of column sums are among the nest's results, but not in memory.
        return tuple(tv for tv in super()._results_read_back() if tv in self._stored)

    def phases(self) -> Iterator[Phase]:
        """Yield the phase that iterates over the rows and stores the parts of column sums."""
        yield self._phase(self._bands, "_rows")

    def _bands(self) -> Launch:
        values, nest, count = self._values, self._nest, self.space.rows
        each = rows_each(self.schedule, count)
        with ExitStack() as stack:
            band = stack.enter_context(values.loop("band", -(-count // each), self._outer, pinned=True))
            buffers = self._allocate(self.space.depth)
            self._running = {}
            folds = self._folds_of(self._columns_of)
            for fold in folds:
                buffer = Buffer(
                    name=f"{fold.expr.name}_sums", dtype=fold.identity.dtype, size=self.space.depth, role=Role.SCRATCH,
                )
                values.emit(Alloc(buffer=buffer, origin=fold.expr.name))
                self._running[fold.expr] = buffer
            with values.loop("c", self.space.depth, ParallelType.vectorize) as c:
                for fold in folds:
                    values.emit(Store(
                        buffer=self._running[fold.expr], position=c, value=fold.identity, origin=fold.expr.name,
                    ))
            start, stop = self._chunk(band, each, count, guarded=True)
            with values.loop("row", stop, ParallelType.serial, start=start, largest=count, pinned=True) as row:
                self._row(row, buffers, self._walk)
            with values.loop("c", self.space.depth, ParallelType.vectorize) as c:
                here = self._flat(nest.reduced, c)
                for expr, buffer in self._running.items():
                    column = (substitute(i, here) for i in column_index(nest, expr))
                    part = self._column_parts[expr]
                    at = part.layout.position((band, *values.simplified(tuple(column))))
                    values.emit(Store(
                        buffer=part.buffer, position=simplify(at, values.scope.ranges),
                        value=Load(buffer.dtype, buffer, c), origin=expr.name,
                    ))
        return Launch()

    def _is_stored(self, tensor: TensorView) -> bool:
        return tensor in self._stored

    def _point(
        self, places: Places, folds: Sequence[Fold], stored: Sequence[TensorView],
        row_buffers: Sequence[tuple[TensorView, Buffer]], slot: Term,
    ) -> None:
        super()._point(places, folds, [tv for tv in stored if self._is_stored(tv)], row_buffers, slot)
        for fold in self._folds_of(self._columns_of):
            operand = fold.expr.tensor_inputs[0]
            if operand in stored:
                buffer = self._running[fold.expr]
                fold.total = Load(buffer.dtype, buffer, slot)
                self._update(fold, self._values.value(operand, self._nest.at(operand, places)))
