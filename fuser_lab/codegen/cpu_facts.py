"""The facts about a nest of loops of the CPU."""

from dataclasses import replace
from functools import cached_property

from fuser_lab.codegen.nest_facts import NestFacts, TiledAxes, extent_of, tiles_of
from fuser_lab.codegen.persistence import calls_functions, inputs_needed, is_scalar
from fuser_lab.cost.crossovers import crossover
from fuser_lab.schedule.cpu_loops import PARTIAL_ADDITIONS
from fuser_lab.schedule.state import Space

LANES = 8  # results that a vector of Float has in AVX2, 32 bytes: fewer would leave lanes idle
NARROW = crossover("cpu.windows.narrow")
UNROLLED = crossover("cpu.windows.unrolled")


class CpuFacts(NestFacts):
    """The facts about a nest of loops of the CPU."""

    @property
    def has_windows(self) -> bool:
        """Whether each vector lane reduces one window of a pool."""
        outer, reduced = self.nest.kept, self.nest.reduced
        return (
            self.passes == 1 and not self.nest.scans and bool(outer) and len(reduced) > 1 and outer[-1].extent >= LANES
            and reduced[-1].extent <= NARROW and extent_of(reduced) <= UNROLLED
        )

    @cached_property
    def inner_reduced(self) -> bool:
        """Whether loops are over rows.

        They also are if fewer results are adjacent than a vector has elements, and functions compute what is reduced.
        """
        return super().inner_reduced or (
            not self.has_windows and extent_of(self.kept_run) < LANES <= extent_of(self.reduced_run)
            and any(calls_functions(self, expr.tensor_inputs[0]) for expr in self.nest.reductions)
        )

    @property
    def _reads(self) -> int:
        # A core that reads across rows reads each again in every pass.
        return self.passes

    @cached_property
    def tiled(self) -> TiledAxes | None:
        """The axes of tiles, if some tensors are transposed."""
        return None if self.nest.scans else tiles_of(self)

    @cached_property
    def space(self) -> Space:
        """The properties by which loops are chosen."""
        space, nest, tiled = self._extents(), self.nest, self.tiled
        if self.is_scanned:
            return space
        if nest.reductions and not self.inner_reduced and self.passes > 1:
            first = inputs_needed(self, 0, ())
            space = replace(space, read_bytes=sum(tv.dtype.itemsize for tv in first))
        if self.inner_reduced and space.depth > PARTIAL_ADDITIONS:
            space = replace(space, scalar=is_scalar(self))
        if tiled is None:
            return space
        size = max(tv.dtype.compute.itemsize for tv in (*tiled.inputs, *tiled.outputs))
        return replace(space, transposed=(tiled.across.extent, tiled.along.extent), itemsize=size)
