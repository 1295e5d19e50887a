"""The data of a plan, and the equality of plans."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from fuser_lab.arguments import TEXT, takes
from fuser_lab.cost.traffic import bases_of, one_kernel_traffic
from fuser_lab.definition.binding import Described
from fuser_lab.ir import Expr, Fusion
from fuser_lab.ir.tensor_names import Names
from fuser_lab.passes import PASSES, Pass
from fuser_lab.plan.code import Edit
from fuser_lab.plan.segment import Segment
from fuser_lab.plan.segment_edit import SegmentEdit
from fuser_lab.process.forks import new_lock
from fuser_lab.schedule.base import Scheduler
from fuser_lab.schedule.registry import SCHEDULERS, SchedulerRegistry
from fuser_lab.schedule.templates import content
from fuser_lab.segmentation import SegmentedFusion, SegmenterOptions, Strategy
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.layouts import Layouts

if TYPE_CHECKING:
    from fuser_lab.codegen.varying import SharedKernels
    from fuser_lab.runtime.plan.executor import PreparedPlan


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanBase:
    """The data of a plan; `Plan` states its invariants."""

    name: str
    strategy: str
    segmented: SegmentedFusion
    definition: Fusion
    inputs: tuple[Described, ...]
    options: SegmenterOptions
    oracle: SchedulerRegistry
    decisions: DecisionLog
    segmenter: Callable[..., Any]  # makes a plan of a definition in the same way
    edits: tuple[Edit, ...] = ()
    schedules: tuple[SegmentEdit, ...] = ()
    agreed: Layouts | None = None
    passes: tuple[Pass, ...] = PASSES
    method: Strategy = "bottom_up"
    sources: tuple[tuple[str, str], ...] = ()
    modules: tuple[tuple[str, str], ...] = ()
    names: Names = ()
    shared: "SharedKernels | None" = field(default=None, repr=False)  # with plans of the definition for other sizes
    _cache: dict[str, "PreparedPlan"] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=new_lock, repr=False)

    @classmethod
    def _copy(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], Self], tuple[Mapping[str, Any]]]:
        """Return what copies and pickles are made of; they compile their own kernels."""
        private = ("shared", "_cache", "_lock")
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in private}
        return type(self)._copy, (values,)  # noqa: SLF001 - of the same class

    @property
    def fusion(self) -> Fusion:
        """The fusion with all sizes known."""
        return self.segmented.fusion

    @property
    def target(self) -> str:
        """Name of the device that the plan is for."""
        return self.oracle.device.name

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Segments in run order."""
        return tuple(Segment(index=index, plan=self) for index in range(len(self.segmented.groups)))

    @cached_property
    def idle(self) -> frozenset[int]:
        """Numbers of the segments that launch nothing: they make views, or results in the memory of other tensors."""
        from fuser_lab.plan.clock import given_strides, layouts_and_idle

        return layouts_and_idle(self.segmented, given_strides(self.inputs))[1]

    @property
    def bytes_ideal(self) -> int:
        """Bytes that one kernel for the whole fusion would read and write, each element once; views are free."""
        return one_kernel_traffic(self.fusion, self._views).total

    @property
    def _views(self) -> list[Expr]:
        """The expressions of the segments that launch nothing, in run order."""
        return [expr for number in sorted(self.idle) for expr in self.segmented.groups[number].exprs]

    @cached_property
    def bases(self) -> Mapping[str, str]:
        """The tensor in whose memory each result of the segments that launch nothing is, by name."""
        return {view.name: base.name for view, base in bases_of(self._views).items()}

    @cached_property
    def crossing_bytes(self) -> Mapping[str, int]:
        """Bytes that a kernel writes and another reads, by the name of each tensor that passes between segments.

        A view counts as the memory that it shares: it has 0 bytes of its own, and its readers read its base.
        """
        running = [group for number, group in enumerate(self.segmented.groups) if number not in self.idle]
        written = {tv.name for group in running for tv in group.outputs}
        read = {self.bases.get(tv.name, tv.name) for group in running for tv in group.tensor_inputs}
        passed = written & read
        return {tv.name: tv.nbytes if tv.name in passed else 0 for tv in self.segmented.crossing}

    @property
    def bytes_crossing(self) -> int:
        """Bytes of the tensors that pass between segments, each counted once; views are free."""
        return sum(self.crossing_bytes.values())

    @cached_property
    def hash(self) -> str:
        """Content hash: the same edit made in the explorer, in Python or by `to_python` gives the same hash."""
        options = sorted((name, repr(getattr(self.options, name))) for name in self.options.__dataclass_fields__)
        described: tuple[object, ...] = (self.segmented.key, tuple(options), self.oracle.device)
        if self.oracle.schedulers != SCHEDULERS:
            described = (*described, self.oracle.schedulers)
        edited = [segment for segment in self.segments if segment.edit is not None] if self.schedules else []
        kept = self.oracle.kept
        if kept is not None:
            begun = ((s.index, result) for s in self.segments if s.scheduler is not None
                     for result in kept.of(s.fusion.program, s.scheduler))
            described = (*described, tuple((index, result.key, result.changes) for index, result in begun))
        if edited:
            from fuser_lab.codegen.decompose import decompose

            said = ((s.index, s.changes, content(decompose(s.fusion), s.loops)) for s in edited)
            described = (*described, tuple(said))
        return sha256(repr(described).encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return self.hash == other.hash if isinstance(other, PlanBase) else NotImplemented

    def __hash__(self) -> int:
        """Hash by content."""
        return hash(self.hash)

    def planned_for(
        self, definition: Fusion, strategy: Strategy, options: SegmenterOptions,
        schedulers: Sequence[Scheduler] | None = None,
    ) -> Self:
        """Return the plan of another definition of the same inputs, for the same target and passes.

        ``schedulers=None`` means those of this plan.
        """
        made = self.segmenter(
            definition, list(self.inputs), strategy=strategy, target=self.oracle.device, options=options,
            schedulers=self.oracle.schedulers if schedulers is None else schedulers, passes=self.passes,
            tuned=self.oracle.kept or False,
        )
        again: Self = replace(made, sources=self.sources, modules=self.modules, names=self.names)
        return again

    @takes(name=TEXT)
    def renamed(self, name: str) -> Self:
        """Return the plan under another name, which tables and tabs show."""
        return replace(self, name=name)
