"""Row and column reductions in one pass on the CPU, as in backward passes of norms, reading each input once.

Rows are cut into bands. A core iterates over the rows of a band and also adds them to the sums of all columns, which
stay in its cache. The result of a band is one part of each column's sum, and a second phase, a separate fusion, adds up
the parts. The number of bands depends only on the shape, so that results do not depend on the number of threads.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from fuser_lab.codegen.cpu_loops import CpuNest
from fuser_lab.codegen.gpu_backward import Backward, column_index
from fuser_lab.codegen.index_math import simplify, substitute
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Launch, Load, Phase, Role, Store
from fuser_lab.codegen.layout import Layout
from fuser_lab.codegen.nest_lowering import Fold, Places, WithGivenNamed
from fuser_lab.codegen.nests import Nest
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.ir import Expr, TensorView
from fuser_lab.ir.term import Term
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.loops import CPU_SPLIT, CPU_SUMS_BYTES, PARTIAL_ROWS
from fuser_lab.schedule.parameters import BANDS_NAMES
from fuser_lab.schedule.state import Style


class CpuBackward(CpuNest):
    """Writes the phase that iterates over the rows."""

    def __init__(
        self, cut: Backward, nest: Nest, buffers: Mapping[str, Buffer], layouts: Mapping[TensorView, Layout],
        target: str, name: str, device: Device = DEFAULT,
    ) -> None:
        self._cut = cut
        self._running: dict[Expr, Buffer] = {}
        super().__init__(cut.rows, nest, buffers, layouts, target, name, device=device)
        # Rows of a band: few enough for accurate sums and to occupy all cores.
        least = CPU_SPLIT if self.schedule.parallel else 1
        self.schedule = replace(self.schedule, grain=max(min(PARTIAL_ROWS, -(-self.space.rows // least)), 1))

    def apply_given(self, with_given: WithGivenNamed) -> None:
        """Apply the parameters set by hand."""
        self.schedule = with_given(self.space, self.schedule, BANDS_NAMES)

    @property
    def fits(self) -> bool:
        """Whether rows are contiguous in memory, and the sums of all columns fit in a core's cache."""
        nbytes = sum(fold.identity.dtype.itemsize for fold in self._made_folds(self._cut.columns)) * self.space.depth
        whole = self.schedule.style is Style.ROWS and self.space.inner_reduced and self.schedule.split == 1
        return whole and nbytes <= CPU_SUMS_BYTES

    @property
    def refusal(self) -> str:
        """Why rows and column sums are not computed in one pass because the sums do not fit."""
        return f"the sums of {self.space.depth} columns do not fit in a core's cache, so they read the rows again"

    def _results_read_back(self) -> tuple[TensorView, ...]:
        # Operands of column sums are among the nest's results, but not in memory.
        return tuple(tv for tv in super()._results_read_back() if tv in self._cut.stored)

    @property
    def blocks(self) -> int:
        """The number of bands, which is also the number of parts of each column's sum."""
        return -(-self.space.rows // self.schedule.grain)

    def write(self, parts: Mapping[Expr, Buffer], layouts: Mapping[Expr, Layout]) -> Phase:
        """Return the phase that iterates over the rows and stores the parts of column sums."""
        return self._phase(lambda: self._bands(parts, layouts), "_rows")

    def _bands(self, parts: Mapping[Expr, Buffer], layouts: Mapping[Expr, Layout]) -> Launch:
        values, nest, count = self._values, self._nest, self.space.rows
        with ExitStack() as stack:
            band = stack.enter_context(values.loop("band", self.blocks, self._outer, pinned=True))
            buffers = self._allocate(self.space.depth)
            self._running = {}
            folds = self._made_folds(self._cut.columns)
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
            start, stop = self._chunk(band, self.schedule.grain, count, guarded=True)
            with values.loop("row", stop, ParallelType.serial, start=start, largest=count, pinned=True) as row:
                self._row(row, buffers, self._walk)
            with values.loop("c", self.space.depth, ParallelType.vectorize) as c:
                here = self._flat(nest.reduced, c)
                for expr, buffer in self._running.items():
                    column = (substitute(i, here) for i in column_index(nest, expr))
                    at = layouts[expr].position((band, *values.simplified(tuple(column))))
                    values.emit(Store(
                        buffer=parts[expr], position=simplify(at, values.scope.ranges),
                        value=Load(buffer.dtype, buffer, c), origin=expr.name,
                    ))
        return Launch()

    def _is_stored(self, tensor: TensorView) -> bool:
        return tensor in self._cut.stored

    def _point(
        self, places: Places, folds: Sequence[Fold], stored: Sequence[TensorView],
        kept: Sequence[tuple[TensorView, Buffer]], slot: Term,
    ) -> None:
        super()._point(places, folds, [tv for tv in stored if self._is_stored(tv)], kept, slot)
        for fold in self._made_folds(self._cut.columns):
            operand = fold.expr.tensor_inputs[0]
            if operand in stored:
                buffer = self._running[fold.expr]
                fold.total = Load(buffer.dtype, buffer, slot)
                self._update(fold, self._values.value(operand, self._nest.at(operand, places)))
