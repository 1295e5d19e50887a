"""The facts about one nest of loops by which its schedule is chosen: its axes, passes and accesses to memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from fuser_lab.codegen.index_math import Ranges, linear
from fuser_lab.codegen.kernel_ir import Buffer, Statement
from fuser_lab.codegen.layout import Layout
from fuser_lab.codegen.nests import Axis, Nest, at_one_point, even_run, fastest_is_reduced, trial
from fuser_lab.codegen.values import level_of
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.ir.term import Term, Var
from fuser_lab.schedule.state import Space


@dataclass(frozen=True, kw_only=True, eq=False)
class NestFacts:
    """A nest with the memory of its tensors, and the facts that follow from both, whatever loops are chosen.

    Attributes
    ----------
    fusion
        The ops that the nest computes.
    nest
        The nest.
    buffers, layouts
        The memory of inputs and outputs, by name, and the positions of tensors in it.
    device
        The GPU for which loops are chosen.
    column_sums
        Sums over rows to which the nest adds each of its rows, besides the reductions along rows.
    """

    fusion: Fusion
    nest: Nest
    buffers: Mapping[str, Buffer]
    layouts: Mapping[TensorView, Layout]
    device: Device = DEFAULT
    column_sums: tuple[Expr, ...] = ()
    # What each pass needs, once `persistence` has computed it.
    needs: dict[tuple[object, ...], frozenset[TensorView]] = field(init=False, default_factory=dict, repr=False)

    @cached_property
    def levels(self) -> Mapping[Val, int]:
        """How many reductions precede each value, one after another."""
        return level_of(self.fusion)

    @cached_property
    def passes(self) -> int:
        """How often the points of the nest are visited, because values depend on complete reductions."""
        folds = [self.levels.get(expr.inputs[0], 0) + 1 for expr in self.nest.reductions]
        stores = [self.levels.get(tv, 0) + 1 for tv in self.nest.full]
        return max([*folds, *stores], default=1)

    @cached_property
    def kept_run(self) -> tuple[Axis, ...]:
        """The innermost kept axes that can be one loop, because every access has one stride along them."""
        return self._run_of(self.nest.kept)

    @property
    def kept_outer(self) -> tuple[Axis, ...]:
        """The other kept axes."""
        return self.nest.kept[: len(self.nest.kept) - len(self.kept_run)]

    @cached_property
    def reduced_run(self) -> tuple[Axis, ...]:
        """The innermost reduced axes that can be one loop."""
        return self._run_of(self.nest.reduced)

    @property
    def reduced_outer(self) -> tuple[Axis, ...]:
        """The other reduced axes."""
        return self.nest.reduced[: len(self.nest.reduced) - len(self.reduced_run)]

    def _run_of(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        count = even_run(self.fusion, self.nest, self.buffers, self.layouts, axes)
        return axes[len(axes) - count :]

    @cached_property
    def inner_reduced(self) -> bool:
        """Whether loops are over rows, whose reduced elements are contiguous in memory."""
        return not self.has_windows and fastest_is_reduced(
            self.fusion, self.nest, self.buffers, self.layouts, self._reads,
        )

    @property
    def has_windows(self) -> bool:
        """Whether a thread or vector lane reduces whole windows, as of a pool, although these are contiguous."""
        raise NotImplementedError

    @property
    def _reads(self) -> int:
        """How often each element of a row is read from memory."""
        raise NotImplementedError

    @property
    def space(self) -> Space:
        """The properties by which loops are chosen."""
        raise NotImplementedError

    def _extents(self) -> Space:
        """Return the space of the nest without properties that differ between targets."""
        nest = self.nest
        return Space(
            kept=tuple(axis.extent for axis in nest.kept),
            reduced=tuple(axis.extent for axis in nest.reduced),
            kept_run=extent_of(self.kept_run),
            reduced_run=extent_of(self.reduced_run),
            inner_reduced=self.inner_reduced,
            reduces_outermost=nest.reduces_outermost,
            passes=self.passes,
            reduces=bool(nest.reductions),
            scans=len(nest.scans),
            device=self.device,
            column_sums=tuple(expr.out.dtype.compute.itemsize for expr in self.column_sums),
        )

    def steps(self, tensor: TensorView) -> dict[str, int] | None:
        """Return a tensor's strides along the nest's axes; None if an access has no single stride along each."""
        form = linear(self.layouts[tensor].position(self.nest.index[tensor]), self.ranges())
        if not all(isinstance(atom, Var) for atom, _ in form.parts):
            return None
        return {atom.name: step for atom, step in form.parts if isinstance(atom, Var)}

    def trial(self, places: Mapping[str, Term], ranges: Ranges) -> tuple[Statement, ...]:
        """Return the statements of the nest at one point, without loops, to inspect its accesses."""
        return trial(self.fusion, self.nest, self.buffers, self.layouts, places, ranges)

    def at_one_point(self) -> tuple[Statement, ...]:
        """Return the statements of the nest at one point, whose indices are the axis variables."""
        return at_one_point(self.fusion, self.nest, self.buffers, self.layouts)

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the smallest and the largest value of each axis."""
        return {axis.name: (0, max(axis.extent - 1, 0)) for axis in self.nest.axes}


def extent_of(axes: Sequence[Axis]) -> int:
    """Return the number of points of some axes."""
    return prod(axis.extent for axis in axes)
