"""Plan: a fusion cut into segments, which can be edited, explained, drawn and run."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuser_lab import targets
from fuser_lab.annotating import WAYS, Told, to_annotations
from fuser_lab.arguments import (
    ANYTHING,
    FLAG,
    FUNCTION,
    PATH,
    TEXT,
    instance,
    listed,
    named,
    number,
    one_of,
    optional,
    takes,
    whole,
)
from fuser_lab.cost.times import TimeBound, time_bound
from fuser_lab.cost.traffic import model_of
from fuser_lab.cost.verdict import SchedulerType, Verdict
from fuser_lab.definition.binding import Described, bind
from fuser_lab.dtypes import DataType
from fuser_lab.errors import (
    ArgumentTypeError,
    CodegenError,
    FuserLabError,
    IllegalEdit,
    InputError,
    ScheduleError,
    SegmentationError,
)
from fuser_lab.events import DecisionLog, Kind
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.transform import Transform
from fuser_lab.passes import PASSES, Annotation, Pass, annotations_of, with_segment_set, without_segment_set
from fuser_lab.plan_code import FORMS, Edit, PlanCode
from fuser_lab.report import certificates, html, save, svg, text
from fuser_lab.report.fusions import fusion_view
from fuser_lab.report.pass_diffs import PassDiffs, pass_diffs
from fuser_lab.report.units import tensor_bytes
from fuser_lab.schedule.parameters import LoopChange, NestChoice, checked
from fuser_lab.schedule.registry import SCHEDULERS, SchedulerRegistry
from fuser_lab.segment_definitions import SegmentDefinitions
from fuser_lab.segmentation import (
    Certificate,
    SegmentedFusion,
    SegmentedGroup,
    SegmenterOptions,
    Strategy,
    Why,
    certify,
    edits,
    rewritings,
    why,
)
from fuser_lab.segmentation.fastest import predicted, time_model_of
from fuser_lab.segmentation.layouts import Layouts, layouts_of, negotiate
from fuser_lab.segmentation.lifting import Lifting
from fuser_lab.segmentation.narrowing import narrow
from fuser_lab.segmentation.origins import origins, source_lines, with_sources
from fuser_lab.segmentation.previews import EditPreview, Previews
from fuser_lab.segmentation.privatization import without
from fuser_lab.segmentation.rewritings import Rewritten

if TYPE_CHECKING:
    from fuser_lab.codegen.generate import GeneratedKernel
    from fuser_lab.codegen.kernel_steps import KernelSteps
    from fuser_lab.codegen.varying import SharedKernels
    from fuser_lab.definition.cache import FusionCache
    from fuser_lab.runtime.executor import PreparedPlan
    from fuser_lab.runtime.facts import LaunchFacts
    from fuser_lab.segment_schedules import Given, SegmentSchedule

_KERNELS_FOR = " or ".join(map(repr, targets.names()))
_TARGET = TEXT.but(lambda name: name in targets.names(), _KERNELS_FOR).worded(_KERNELS_FOR)
_DEVICES = ", ".join(targets.target_of(name).accepted for name in targets.names())
_RUNS_ON = TEXT.but(lambda name: targets.find(name) is not None, _DEVICES).worded(_DEVICES)
_SEGMENT = whole(accepted="the number of a segment")
TENSOR = TEXT.worded("a tensor's name")
_SEGMENTS = optional((_SEGMENT | listed(_SEGMENT, "a list of numbers of segments")).worded(
    "the number of a segment or a list of such numbers",
))
_TENSOR_OR_SEGMENT = (TEXT | whole()).worded("a tensor's name or a segment's number")
READERS = optional((TEXT | listed(TEXT, "a list of tensors' names")).worded("a reader's name or a list of such names"))
_PLACE = "a tensor's name, or the pair of a tensor and its reader"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentChange:
    """Parameters set by hand for a segment, found by the names of its expressions so that other edits keep them."""

    exprs: tuple[str, ...]
    change: LoopChange


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTransforms:
    """Transforms given by hand for a segment, found by the names of its expressions so that other edits keep them."""

    exprs: tuple[str, ...]
    transforms: tuple[Transform, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCertificate(Certificate):
    """A certificate that a notebook shows with tables."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return text and static HTML."""
        return {"text/plain": str(self), "text/html": certificates.certificate_html(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment of a plan, which becomes one kernel.

    ``bytes_in`` and ``bytes_out`` count each tensor once; ``bytes_crossing`` is the part of both that passes between
    segments.
    """

    index: int
    plan: "Plan"

    @property
    def group(self) -> SegmentedGroup:
        """The expressions with the schedulers' answer."""
        return self.plan.segmented.groups[self.index]

    @property
    def scheduler(self) -> SchedulerType | None:
        """The scheduler that accepts the segment, or None."""
        return self.group.scheduler

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The answer of each scheduler, in the order in which they were asked."""
        return self.group.verdicts

    @property
    def beyond(self) -> tuple[str, ...]:
        """Codes of nvFuser's rules that the segment breaks, where an open scheduler accepted it (`OPEN_SCHEDULERS`)."""
        return tuple(code.value for verdict in self.verdicts[-1:] for code in verdict.beyond)

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """Expressions in topological order, recomputed ones included."""
        return self.group.exprs

    @property
    def inputs(self) -> tuple[TensorView, ...]:
        """Tensors read from memory."""
        return self.group.tensor_inputs

    @property
    def outputs(self) -> tuple[TensorView, ...]:
        """Tensors written to memory."""
        return self.group.outputs

    @property
    def fusion(self) -> Fusion:
        """The segment as a separate fusion."""
        return self.group.candidate.narrowed

    @property
    def bytes_in(self) -> int:
        """Bytes read."""
        return sum(map(tensor_bytes, self.inputs))

    @property
    def bytes_out(self) -> int:
        """Bytes written."""
        return sum(map(tensor_bytes, self.outputs))

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_in + self.bytes_out

    @property
    def bytes_crossing(self) -> int:
        """Bytes read from and written for other segments."""
        crossing = self.plan.segmented.crossing_names
        return sum(tensor_bytes(tv) for tv in (*self.inputs, *self.outputs) if tv.name in crossing)

    @takes(target=_TARGET)
    def source(self, target: str = "cpu") -> str:
        """Return the generated kernel as a Python file; comments hold the user's lines if they are known.

        Parameters
        ----------
        target
            ``"cpu"`` or ``"cuda"``; generating CUDA source needs no GPU.

        Raises
        ------
        CodegenError
            If the segment has no kernel: no scheduler accepts it, or the array library evaluates it.
        """
        return with_sources(self.kernel(target).source, dict(self.plan.sources))

    @takes(target=_TARGET)
    def kernel(self, target: str = "cpu") -> "GeneratedKernel":
        """Return the generated kernel: its source, its Kernel IR and the expression of each line.

        Raises
        ------
        CodegenError
            If the segment has no kernel: no scheduler accepts it, or the array library evaluates it.
        """
        return self._kernel(self.fusion, target, changes=self.changes)

    def _kernel(self, fusion: Fusion, target: str, changes: tuple[LoopChange, ...] = ()) -> "GeneratedKernel":
        """Return the kernel of the segment's ops, for its own sizes or others."""
        from fuser_lab.codegen.generate import generate

        if self.scheduler is None:
            msg = f"segment {self.index} has no kernel: no scheduler accepts it; {self.group.answer.text}."
            raise CodegenError(msg)
        if not self.transforms:
            return generate(fusion, self.scheduler, target, changes=changes, device=self.plan.oracle.device)
        if not targets.target_of(target).has_blocks:
            msg = (
                f"segment {self.index} has no kernel for {target!r}: its transforms are lowered for GPUs, and the CPU "
                "runs that kernel in lock step; see source('cuda')."
            )
            raise CodegenError(msg)
        from fuser_lab.segment_schedules import scheduled_kernel

        return scheduled_kernel(fusion, self.transforms)

    @takes(target=_TARGET)
    def steps(self, target: str = "cpu") -> "KernelSteps":
        """Return what the kernel reads and writes step by step, as the evaluator in lock step runs it.

        A segment with a tensor of more than 256 elements is shown with smaller extents; ``shrunk`` lists them.

        Parameters
        ----------
        target
            ``"cpu"`` or ``"cuda"``; no GPU is needed.

        Raises
        ------
        CodegenError
            If the segment has no kernel.
        UnsupportedError
            If no smaller extents fit the ops, or the kernel takes too many steps.
        """
        from fuser_lab.analysis.smaller import smaller
        from fuser_lab.codegen.kernel_steps import MOST_ELEMENTS, kernel_steps

        generated = self.kernel(target)
        fusion, shrunk = smaller(self.fusion, MOST_ELEMENTS)
        if shrunk:
            generated = self._kernel(fusion, target)
        return kernel_steps(generated, fusion, shrunk)

    @property
    def changes(self) -> tuple[LoopChange, ...]:
        """Parameters set by hand; see `Plan.with_params`."""
        own = _expr_names(self.exprs)
        return tuple(given.change for given in self.plan.given if given.exprs == own)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms given by `Plan.with_schedule`; empty if the kernel is the automatic one."""
        own = _expr_names(self.exprs)
        return next((given.transforms for given in self.plan.schedules if given.exprs == own), ())

    @property
    def schedule(self) -> "SegmentSchedule":
        """The schedule as transforms: the one given by `Plan.with_schedule`, or what the scheduler proposes.

        A proposal has the parameters of the automatic CUDA kernel, given ones included, as far as transforms express
        them; ``reasons`` says why they were chosen and what is left out. ``print(plan.segments[0].schedule)`` writes
        Python that `Plan.with_schedule` accepts.

        Raises
        ------
        UnsupportedError
            If transforms cannot express a schedule of this segment; the sentence says what they lack.
        CodegenError
            If the segment has no kernel.
        """
        from fuser_lab.segment_schedules import kept, proposed

        if self.transforms:
            return kept(self.fusion, self.transforms)
        nests = self.kernel("cuda").kernel_ir.nests
        assert self.scheduler is not None
        return proposed(self.fusion, self.scheduler, nests, self.plan.fusion.tensors)

    @takes(target=_TARGET)
    def params(self, target: str = "cuda") -> tuple[NestChoice, ...]:
        """Return the parameters of the kernel with their reasons, one printable entry per loop nest.

        Parameters
        ----------
        target
            ``"cpu"`` or ``"cuda"``; no GPU is needed.

        Raises
        ------
        CodegenError
            If the segment has no kernel.
        """
        return self.kernel(target).kernel_ir.nests

    def launches(self) -> "tuple[LaunchFacts, ...]":
        """Return each launch of the CUDA kernel on the plan's target: PTX, machine code, registers, occupancy.

        Raises
        ------
        CodegenError
            If the segment has no kernel.
        CompilationError
            If a compiler refuses it.
        UnsupportedError
            If it has to be compiled and numba-cuda is not installed.
        """
        from fuser_lab.runtime.facts import launch_facts

        return launch_facts(self.kernel("cuda"), self.plan.oracle.device)

    def __repr__(self) -> str:
        """Return one line."""
        name = self.scheduler.value if self.scheduler else "no scheduler"
        ops = ", ".join(expr.op.name for expr in self.exprs)
        return f"<Segment {self.index}: {name} of {ops}>"

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the segment as .svg, .png, .html, .json, .dot, .mmd, .csv, .txt or .py, which is its CPU kernel.

        Raises
        ------
        CodegenError
            If a kernel is requested and the segment has none.
        InputError
            If the extension is none of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        title = f"segment {self.index} of {self.plan.name}"
        writers = save.graph_writers(fusion_view(self.fusion, title=title)) | {
            ".html": lambda: html.document(title, self._repr_html_()),
            ".py": self.source,
        }
        return save.save("a segment", path, writers)

    def _repr_html_(self) -> str:
        """Return the segment as static HTML."""
        try:
            source = self.source()
        except CodegenError as error:
            source = str(error)
        return html.segment_html(self.plan, self.index, source)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the segment for a notebook: text, HTML and its picture."""
        view = fusion_view(self.fusion, title=f"segment {self.index} of {self.plan.name}")
        return {"text/plain": repr(self), "text/html": self._repr_html_(), "image/svg+xml": svg.view_svg(view)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A fusion cut into segments. Immutable: every edit returns a new plan; keeping the old one is the undo.

    Plans are equal, and have the same ``hash``, if their fusion, partition, schedulers, order, options and target are.
    ``sources`` pairs names of tensors with their lines in the user's code (`fuser_lab.from_torch`).
    """

    name: str
    strategy: str
    segmented: SegmentedFusion
    definition: Fusion
    inputs: tuple[Described, ...]
    options: SegmenterOptions
    oracle: SchedulerRegistry
    decisions: DecisionLog
    segmenter: Callable[..., "Plan"]  # what made it from the definition, and makes plans like it
    edits: tuple[Edit, ...] = ()
    given: tuple[SegmentChange, ...] = ()
    schedules: tuple[SegmentTransforms, ...] = ()
    agreed: Layouts | None = None
    passes: tuple[Pass, ...] = PASSES
    method: Strategy = "bottom_up"
    sources: tuple[tuple[str, str], ...] = ()
    _cache: dict[str, "PreparedPlan"] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def fusion(self) -> Fusion:
        """The fusion with all sizes known."""
        return self.segmented.fusion

    @property
    def target(self) -> str:
        """Name of the device whose limits decided the cuts."""
        return self.oracle.device.name

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Segments in run order."""
        return tuple(Segment(index=index, plan=self) for index in range(len(self.segmented.groups)))

    @property
    def bytes_crossing(self) -> int:
        """Bytes of the tensors that pass between segments, each counted once."""
        return sum(tv.nbytes for tv in self.segmented.crossing)

    @cached_property
    def hash(self) -> str:
        """Content hash: the same cut made in the widget, in Python or by `to_python` has the same hash."""
        options = sorted((name, repr(getattr(self.options, name))) for name in self.options.__dataclass_fields__)
        described: tuple[object, ...] = (self.segmented.key, tuple(options), self.oracle.device)
        if self.oracle.schedulers != SCHEDULERS:
            described = (*described, self.oracle.schedulers)
        here = {_expr_names(segment.exprs) for segment in self.segments} if self.given else set()
        given = sorted(repr(one) for one in self.given if one.exprs in here)
        if given:
            described = (*described, tuple(given))
        scheduled = [segment for segment in self.segments if segment.transforms] if self.schedules else []
        if scheduled:
            from fuser_lab.segment_schedules import content

            described = (*described, tuple((one.index, content(one.fusion, one.transforms)) for one in scheduled))
        return sha256(repr(described).encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return self.hash == other.hash if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        """Hash by content."""
        return hash(self.hash)

    @takes(where=(TENSOR | listed(TEXT, _PLACE, least=2, most=2)).worded(_PLACE))
    def cut(self, where: str | tuple[str, str]) -> "Plan":
        """Return the plan with the segment that computes a tensor cut after it, as if by a ``segment_set``.

        The tensors that then pass between segments keep their own dtype: the option ``io_to_lower_precision`` applies
        to the segmenter's cuts, not to edits, so cutting after a cast back to Float moves twice the bytes.

        Parameters
        ----------
        where
            Name of the tensor (``"T7"``), or the tensor and the one reader before which to cut (``("T7", "T9")``).

        Raises
        ------
        IllegalEdit
            If there is nothing to cut there; the message says why.
        """
        tensor, consumer = (where, None) if isinstance(where, str) else where
        self._check_kept(IllegalEdit, tensor, consumer)
        with self._with_source_lines():
            changed = edits.cut(self.segmented, tensor, consumer, self.oracle)
        return self._edited(changed, ("cut", (tensor,) if consumer is None else (tensor, consumer)))

    @takes(tensor=TENSOR, readers=READERS)
    def annotate(self, tensor: str, readers: str | Sequence[str] | None = None) -> "Plan":
        """Return the plan of the definition with a ``segment_set`` between a tensor and its readers.

        The definition is segmented again, by the plan's strategy and options: this is what nvFuser would do, whereas
        `cut` overrules the segmenter. Earlier edits of the partition (`cut`, `glue`, `move`, `with_params`) are not
        repeated. All other tensors keep their names; the new one is called ``T2_hint``.

        Parameters
        ----------
        tensor
            Name of an input or a result of the definition, such as ``"T2"``.
        readers
            Names of the results of these readers, such as ``["T4", "T5"]``; all readers by default.

        Raises
        ------
        IllegalEdit
            If the definition has no such tensor, a reader does not read it, or the plan's strategy is a function that
            does not cut the new definition.
        """
        self._check_recorded(tensor)
        return self._annotated(with_segment_set(self.definition, tensor, readers))

    @takes(tensor=TENSOR, readers=READERS)
    def without_annotation(self, tensor: str, readers: str | Sequence[str] | None = None) -> "Plan":
        """Return the plan of the definition in which readers of a tensor's ``segment_set`` read the tensor itself.

        The definition is segmented again, as by `annotate`.

        Parameters
        ----------
        tensor
            Name of the tensor that is copied, or of the result of ``segment_set``.
        readers
            Names of the results of these readers; all by default.

        Raises
        ------
        IllegalEdit
            If the definition has no such ``segment_set``; those created by passes do not count.
        """
        self._check_recorded(tensor)
        return self._annotated(without_segment_set(self.definition, tensor, readers))

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """Every ``segment_set`` of the definition."""
        return annotations_of(self.definition)

    @takes(
        strategy=optional(one_of("bottom_up", "top_down")), segment_set=optional(one_of("hint", "cut")),
        tries=whole(1),
    )
    def to_annotations(
        self, *, strategy: str | None = None, segment_set: str | None = None, tries: int = 200,
    ) -> "Told[Plan]":
        """Return the smallest set of ``segment_set`` from which bottom-up or top-down makes this partition.

        A partition found by editing, or by the strategy "optimal", can thus be passed to a segmenter:
        ``.plan.to_python()`` is the annotated definition. nvFuser today goes bottom-up and reads hints. The partition
        is compared as sets of expressions, ignoring ``segment_set``; annotations already in the definition count like
        all others. Among sets of equal size, one that works in nvFuser's own segmenter is preferred. If no set is
        found, the result is false and holds the reasons.

        Parameters
        ----------
        strategy, segment_set
            Consider only this strategy, or this reading: ``"bottom_up"`` and ``"hint"`` for nvFuser as it is today.
        tries
            Approximate number of sets to segment; reducing the last set takes a few more.
        """
        ways = [
            way for way in WAYS if strategy in {None, way.strategy} and segment_set in {None, way.reading.value}
        ]
        return to_annotations(self, tries, ways)

    @takes(strategy=optional(TEXT.worded("a strategy's name") | FUNCTION.worded("a function of fusion and oracle")))
    def resegmented(self, strategy: Strategy | None = None, **switches: Any) -> "Plan":
        """Return the plan of the same definition, with its annotations, by another strategy or with other options.

        Parameters
        ----------
        strategy
            As for `fuser_lab.segment`; the plan's own by default.
        **switches
            Fields of `SegmenterOptions` by name, such as ``segment_set="cut"`` or ``cut_reshape_inputs=True``; all
            others are unchanged, except that switches which the strategy does not accept are off.

        Raises
        ------
        ArgumentTypeError
            If an option is unknown.
        InputError
            If the strategy is unknown, or does not accept a switch.
        """
        unknown = sorted(switches.keys() - SegmenterOptions.__dataclass_fields__.keys())
        if unknown:
            names = ", ".join(SegmenterOptions.__dataclass_fields__)
            msg = f"resegmented: there is no option {unknown[0]!r}; choose from {names}."
            raise ArgumentTypeError(msg)
        chosen = self.method if strategy is None else strategy
        return self.segmented_anew(self.definition, chosen, replace(self.options.for_strategy(chosen), **switches))

    def _annotated(self, definition: Fusion) -> "Plan":
        name = self.name if self.name.endswith("*") else f"{self.name}*"
        try:
            return self.segmented_anew(definition, self.method, self.options).renamed(name)
        except InputError as error:
            if isinstance(self.method, str):
                raise
            msg = (
                f"the strategy {self.strategy!r} is a function that does not cut the definition with this change "
                f"({str(error).rstrip('.')}); select another one first, for example with resegmented('bottom_up')."
            )
            raise IllegalEdit(msg) from None

    def segmented_anew(self, definition: Fusion, strategy: Strategy, options: SegmenterOptions) -> "Plan":
        """Return the plan of another definition of the same inputs, for the same target, schedulers and passes."""
        made = self.segmenter(
            definition, list(self.inputs), strategy=strategy, target=self.oracle.device, options=options,
            schedulers=self.oracle.schedulers, passes=self.passes,
        )
        return replace(made, sources=self.sources)

    def _check_recorded(self, tensor: str) -> None:
        """Raise for a tensor created by passes or the segmenter: annotations refer to the definition."""
        if tensor in self.fusion.tensors and tensor not in self.definition.tensors:
            maker = self._origins.get(tensor, "the segmenter")
            msg = (
                f"{tensor} is created by {maker} and is not in the definition; annotations refer to the definition's "
                "tensors: "
                f"{named(self.definition.tensors)}."
            )
            raise IllegalEdit(msg)

    @takes(a=_SEGMENT, b=_SEGMENT)
    def glue(self, a: int, b: int) -> "Plan":
        """Return the plan with two segments merged into one.

        It may overrule a ``segment_set`` that is read as a hint, but not one with ``segment_set="cut"``.

        Raises
        ------
        IllegalEdit
            If that would create a cycle or cross a cut, or no scheduler accepts both; the message says which and why.
        """
        with self._with_source_lines():
            changed = edits.glue(self.segmented, a, b, self.oracle, self.options.segment_set)
        return self._edited(changed, ("glue", (a, b)))

    @takes(tensor=TENSOR, segment=_SEGMENT)
    def move(self, tensor: str, segment: int) -> "Plan":
        """Return the plan with the expression that computes a tensor moved to another segment.

        Raises
        ------
        IllegalEdit
            If the plan would be illegal; the message says why.
        """
        self._check_kept(IllegalEdit, tensor)
        with self._with_source_lines():
            changed = edits.move(self.segmented, tensor, segment, self.oracle, self.options.segment_set)
        return self._edited(changed, ("move", (tensor, segment)))

    @takes(tensor=TENSOR, segments=_SEGMENTS, reductions=FLAG)
    def recompute(
        self, tensor: str, segments: int | Sequence[int] | None = None, *, reductions: bool = False,
    ) -> "Plan":
        """Return the plan in which segments that read a tensor from memory compute it again for themselves.

        Its producers are copied into these segments, back to inputs of the fusion and to tensors that some segment
        stores; where nothing else needs the originals, the first of these segments takes them over. Values do not
        change. The last attempts of ``decisions`` hold the copies, with the bytes saved and the operations added.
        `to_annotations` writes the copies into the definition, so that nvFuser computes them too.

        Parameters
        ----------
        tensor
            Name of a tensor that passes between segments.
        segments
            Numbers of segments that read it; all by default.
        reductions
            Whether reductions may be computed again.

        Raises
        ------
        IllegalEdit
            If the tensor does not pass between segments; if it depends on random numbers, a library's result or a
            reduction computed in its segment; or if no scheduler accepts a segment with the copies.
        """
        self._check_kept(IllegalEdit, tensor)
        chosen = () if segments is None else (segments,) if isinstance(segments, int) else tuple(segments)
        with self._with_source_lines():
            done = rewritings.recompute(
                self.segmented, tensor, self.oracle, chosen, reductions=reductions,
                taken=rewritings.copied_names(self.decisions),
            )
        told = [f"segments={list(chosen)}"] if chosen else []
        told += ["reductions=True"] if reductions else []
        return self._rewritten(done, ("recompute", (tensor, *told)))

    @takes(tensor=TENSOR, dtype=optional(instance(DataType, accepted="a DataType")))
    def narrow(self, tensor: str, dtype: DataType | None = None) -> "Plan":
        """Return the plan in which a tensor passes between segments in fewer bytes, cast before the store and after it.

        Values change, unless the tensor has only values of the narrow dtype. The last attempt of ``decisions`` states
        the error: the bound of the rounding of one element, and the largest difference of an output on random inputs,
        measured by the reference evaluation if all tensors have at most 4,194,304 elements together.

        Parameters
        ----------
        tensor
            Name of a tensor of Float or Double that passes between segments.
        dtype
            ``DataType.BFloat16``, ``DataType.Half`` or, for a Double, ``DataType.Float``; by default the type of 16
            bits from which an operand of the tensor was widened.

        Raises
        ------
        IllegalEdit
            If the tensor does not pass between segments, was not widened from 16 bits and no dtype is given, or must be
            stored as it is, as outputs and operands of a library must; or if no scheduler accepts a segment with the
            casts.
        """
        self._check_kept(IllegalEdit, tensor)
        with self._with_source_lines():
            done = narrow(self.segmented, tensor, dtype, self.oracle, self.inputs)
        return self._rewritten(done, ("narrow", (tensor, *((repr(dtype),) if dtype is not None else ()))))

    def _rewritten(self, done: Rewritten, edit: Edit) -> "Plan":
        """Return the plan after an edit that rewrites the fusion, with its attempts at the end of a new log."""
        log = self.decisions
        decisions = type(log)((*log, *done.attempts), log.passes, log.layouts)
        return replace(self._edited(done.segmented, edit), decisions=decisions)

    @takes(segment=_SEGMENT, target=_TARGET, nest=whole(accepted="the number of a nest of loops"))
    def with_params(
        self, segment: int, *, target: str = "cuda", nest: int = 0, **values: int | bool | tuple[int, int],
    ) -> "Plan":
        """Return the plan with parameters of a segment's kernel set by hand; the others stay as chosen.

        Parameters
        ----------
        segment
            Number of the segment.
        target
            ``"cuda"`` or ``"cpu"``: the target of the kernel.
        nest
            Which of the kernel's loop nests, if it has several; see `Segment.params`.
        **values
            Parameters by name, such as ``threads=256`` or ``threads=(32, 8)``, ``unroll``, ``vector``, ``split``,
            ``persistent``, ``blocks``, ``resident``, ``tile``, ``shared``, ``constants``; on the CPU ``grain``,
            ``tile``, ``split``, ``partial``, ``parallel``. Without any, the nest reverts to the
            heuristics' choice.

        Raises
        ------
        ScheduleError
            If a value is illegal for the kernel; the message lists the legal ones.
        ArgumentTypeError
            If a name is not a parameter, or a value has the wrong type.
        CodegenError
            If the segment has no kernel.
        """
        if not 0 <= segment < len(self.segments):
            msg = f"with_params: segment must be from 0 to {len(self.segments) - 1}, given {segment}."
            raise InputError(msg)
        if self.segments[segment].transforms:
            msg = (
                f"with_params: segment {segment} has a schedule given by with_schedule, which has no parameters; "
                f"change its transforms, or return to the automatic kernel with with_schedule({segment}, None)."
            )
            raise ScheduleError(msg)
        found = checked(values)
        exprs = _expr_names(self.segments[segment].exprs)
        kept = tuple(
            one for one in self.given
            if (one.exprs, one.change.target, one.change.nest) != (exprs, target, nest)
        )
        change = LoopChange(target=target, nest=nest, values=found)
        added = (SegmentChange(exprs=exprs, change=change),) if found else ()
        shown = [f"target={target!r}", *((f"nest={nest}",) if nest else ()), *(f"{name}={v!r}" for name, v in found)]
        name = self.name if self.name.endswith("*") else f"{self.name}*"
        changed = replace(
            self, name=name, edits=(*self.edits, ("with_params", (segment, ", ".join(shown)))), given=kept + added,
            _cache={}, _lock=threading.Lock(),
        )
        changed.segments[segment].kernel(target)  # raises if a value is illegal
        return changed

    @takes(segment=_SEGMENT)
    def with_schedule(self, segment: int, schedule: "Given | None") -> "Plan":
        """Return the plan in which a segment's kernel follows a schedule by hand.

        On a GPU the kernel of the transforms runs; on the CPU the same kernel is evaluated in lock step, for its
        values, and its time says nothing about speed. The other segments run as before. Parameters given by
        `with_params` stay with the automatic kernel, to which ``with_schedule(segment, None)`` returns.

        Parameters
        ----------
        segment
            Number of the segment.
        schedule
            The text that ``print(plan.segments[segment].schedule)`` writes, edited or not (it is parsed, never
            executed); a `SegmentSchedule`; a list of its transforms; or a function that is called with a
            definition ``fd`` of the segment and schedules it by hand through ``fd.sched``. None for the automatic
            kernel.

        Raises
        ------
        ScheduleError
            If a transform is illegal, or the schedule cannot be followed for the segment's sizes.
        UnsupportedError
            If the schedule needs what no kernel here has.
        CodegenError
            If the segment has no kernel.
        InputError
            If there is no such segment.
        """
        if not 0 <= segment < len(self.segments):
            msg = f"with_schedule: segment must be from 0 to {len(self.segments) - 1}, given {segment}."
            raise InputError(msg)
        from fuser_lab.segment_schedules import given_schedule

        one = self.segments[segment]
        one.kernel("cuda")  # raises if the segment has none
        exprs = _expr_names(one.exprs)
        schedules = tuple(known for known in self.schedules if known.exprs != exprs)
        text = ""
        if schedule is not None:
            found = given_schedule(one.fusion, schedule, self.fusion.tensors)
            text = found.to_python()
            schedules = (*schedules, SegmentTransforms(exprs=exprs, transforms=found.transforms))
        name = self.name if self.name.endswith("*") else f"{self.name}*"
        return replace(
            self, name=name, edits=(*self.edits, ("with_schedule", (segment, text))), schedules=schedules, _cache={},
            _lock=threading.Lock(),
        )

    @takes(where=(TENSOR | listed(TEXT, _PLACE, least=2, most=2)).worded(_PLACE))
    def preview_cut(self, where: str | tuple[str, str]) -> EditPreview:
        """Return what `cut` would give, without making the plan: segments, bytes, predicted time, and why.

        A refused edit gives a preview with the reason; nothing is raised.

        Parameters
        ----------
        where
            As for `cut`.
        """
        tensor, consumer = (where, None) if isinstance(where, str) else where
        return self._previews.cut(tensor, consumer)

    @takes(a=_SEGMENT, b=_SEGMENT)
    def preview_glue(self, a: int, b: int) -> EditPreview:
        """Return what `glue` would give, or why it is refused, without making the plan."""
        return self._previews.glue(a, b)

    @takes(tensor=TENSOR, segment=_SEGMENT)
    def preview_move(self, tensor: str, segment: int) -> EditPreview:
        """Return what `move` would give, or why it is refused, without making the plan."""
        return self._previews.move(tensor, segment)

    @takes(most=whole(1), seconds=number(0))
    def best_edits(self, most: int = 5, *, seconds: float = 10.0) -> tuple[EditPreview, ...]:
        """Return the legal glues and moves that save predicted time, best first.

        `with_edit` applies one of them. Cuts are not among them: under the cost model, which charges bytes and
        launches, a cut alone saves nothing.

        Parameters
        ----------
        most
            Maximum number of edits.
        seconds
            Time after which no further edits are examined.
        """
        return self._previews.best(most, seconds)

    @takes(preview=instance(EditPreview))
    def with_edit(self, preview: EditPreview) -> "Plan":
        """Return the plan with a previewed edit applied, as by `cut`, `glue` or `move`.

        Raises
        ------
        IllegalEdit
            If the edit is not legal in this plan.
        """
        kind, arguments = preview.edit
        if kind == "cut":
            return self.cut(arguments[0] if len(arguments) == 1 else arguments)  # type: ignore[arg-type]
        return self.glue(*arguments) if kind == "glue" else self.move(*arguments)  # type: ignore[arg-type]

    @cached_property
    def _previews(self) -> Previews:
        return Previews(self.segmented, self.oracle, model_of(self.oracle), self.options.segment_set)

    @contextmanager
    def _with_source_lines(self) -> Iterator[None]:
        """Add the user's lines of the tensors that a refusal names."""
        try:
            yield
        except FuserLabError as error:
            told = source_lines([str(error)], dict(self.sources))
            if told:
                error.args = ("\n".join((str(error), *told)), *error.args[1:])
            raise

    def _edited(self, segmented: SegmentedFusion, edit: Edit) -> "Plan":
        agreed = None
        if self.options.layout_mode == "negotiate":
            segmented, agreed = negotiate(segmented, self.oracle)
        name = self.name if self.name.endswith("*") else f"{self.name}*"
        return replace(
            self, name=name, segmented=segmented, edits=(*self.edits, edit), agreed=agreed, _cache={},
            _lock=threading.Lock(),
        )

    @takes(name=TEXT)
    def renamed(self, name: str) -> "Plan":
        """Return the plan under another name, as tables and tabs show it."""
        return replace(self, name=name)

    @takes(a=_TENSOR_OR_SEGMENT, b=_TENSOR_OR_SEGMENT)
    def why(self, a: str | int, b: str | int) -> Why:
        """Return why two tensors (or segments, by number) are together or separate: what decided it, and the numbers.

        Raises
        ------
        InputError
            If a name or number is unknown, or names a fusion input.
        """
        self._check_kept(InputError, a, b)
        return self._why(a, b)

    def _check_kept(self, kind: type[FuserLabError], *names: object) -> None:
        """Raise for names that were defined but are not in the segmented fusion."""
        last = max(map(_place_of, self.definition.tensors), default=0)
        for name in names:
            if not isinstance(name, str) or name in self.fusion.tensors:
                continue
            there = named(self.fusion.tensors)
            if name in self.definition.tensors:
                changed = ", ".join(one.name for one in self.decisions.passes if one.before != one.after)
                msg = (
                    f"{name} is not in the segmented fusion: presegmentation passes removed it (passes that changed "
                    f"the fusion: {changed or 'none'}); choose from {there}."
                )
                raise kind(msg)
            if 0 <= _place_of(name) < last:
                msg = f"{name} is not in the fusion, because no output depends on it; choose from {there}."
                raise kind(msg)

    def _why(self, a: str | int, b: str | int) -> Why:
        found = why(self.segmented, a, b, self.decisions, self.oracle, self.options.segment_set)
        return found.with_origins(self._origins).with_sources(dict(self.sources))

    @cached_property
    def _origins(self) -> dict[str, str]:
        bound = bind(self.definition, self.inputs).fusion
        return origins(bound, self.fusion, self.options, self.decisions, self.passes)

    def boundaries(self) -> tuple[Why, ...]:
        """Return, for each pair of segments between which a tensor passes, why they are separate."""
        after = self.segmented.successors
        pairs = sorted((a, b) for a, targets in enumerate(after) for b in targets)
        return tuple(self._why(a, b) for a, b in pairs)

    def pass_diffs(self) -> PassDiffs:
        """Return the steps that changed the fusion before it was cut, each with the ops that it replaced.

        The steps are the preparation for known sizes, the pre-segmentation passes, and rewrites by the segmenter. A
        notebook shows each as two graphs side by side.
        """
        return pass_diffs(self)

    @property
    def lifting(self) -> Lifting:
        """The derivation of the segments from the definition with its symbolic sizes."""
        return Lifting(
            definition=self.definition, bound=bind(self.definition, self.inputs).fusion, segmented=self.segmented,
            passes=self.passes, options=self.options, attempts=tuple(self.decisions),
        )

    def definitions(self, cache: "FusionCache[Any] | None" = None) -> SegmentDefinitions:
        """Return the segments as definitions, one each, with their index maps and the code that runs them together.

        Each can be printed, run, scheduled by hand and segmented again. They include the plan's edits, replicas and
        layouts, but not parameters set by `with_params` or kernels, because a definition is scheduled when it runs.
        Numbers are those of the plan's definition written with one call per expression; for the numbers of your
        definition use its ``segment(plan=plan)``.

        Parameters
        ----------
        cache
            Cache in which equal definitions are looked up and stored; none by default.
        """
        return SegmentDefinitions(self, cache)

    def layouts(self) -> Layouts:
        """Return the memory layout of each tensor that a segment writes: preferences, what decided, and costs."""
        return self.agreed or self._layouts

    @cached_property
    def _layouts(self) -> Layouts:
        return layouts_of(self.segmented, self.options.layout_mode)

    @takes(states=optional(whole(0)), seconds=optional(number(0)))
    def certificate(self, *, states: int | None = None, seconds: float | None = None) -> ShownCertificate:
        """Return the plan's cost in bytes and launches, a lower bound for every plan, and the reasons.

        If a cheaper plan is found, the certificate says what it does better and why this plan does not.

        Parameters
        ----------
        states, seconds
            Limits of the search if simple reasons do not prove the plan optimal; either ends the search. The defaults
            are those of the options (``search_states``, ``search_seconds``).
        """
        options = replace(
            self.options,
            search_states=self.options.search_states if states is None else states,
            search_seconds=self.options.search_seconds if seconds is None else seconds,
        )
        certificate = certify(self.segmented, self.oracle, options, log=self.decisions)
        told = {field.name: getattr(certificate, field.name) for field in fields(certificate)}
        return ShownCertificate(**told | {"made": tuple(self._origins.items())})

    def time_bound(self) -> TimeBound:
        """Return the plan's predicted time beside a time that no plan is predicted to go below, and its assumptions.

        Each kernel takes a launch and the longer of its bytes at the target's bandwidth and its arithmetic at the
        target's rates, both from the data sheet. The bound holds for any cut, with or without recomputation.
        """
        model = time_model_of(self.oracle)
        once = without(self.fusion, self.segmented.replicas)
        return time_bound(once, model, predicted(self.segmented, model))

    @takes(
        inputs=listed(ANYTHING, "a list of arrays and numbers"), out=optional(listed(ANYTHING, "a list of arrays")),
    )
    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Return the outputs for inputs of the plan's sizes, as arrays of the inputs' library.

        Parameters
        ----------
        inputs
            One array or number per fusion input.
        out
            Arrays to which the outputs are written instead of new ones.

        Raises
        ------
        InputError
            If the inputs do not fit.
        SegmentationError
            If no scheduler accepts some segment.
        """
        from fuser_lab.runtime.arrays import describe
        from fuser_lab.runtime.binding import device_of

        return self.prepared(device_of([describe(value) for value in inputs])).run(inputs, out)

    @takes(target=_RUNS_ON, evaluate_refused=FLAG)
    def prepared(self, target: str = "cpu", *, evaluate_refused: bool = False) -> "PreparedPlan":
        """Return the plan compiled for a target; it is compiled once and kept.

        Parameters
        ----------
        target
            ``"cpu"``, ``"cuda"`` for torch's current device, or a device such as ``"cuda:1"``.
        evaluate_refused
            Whether the array library evaluates a segment whose kernel a compiler refuses; otherwise a CompilationError
            names the file in which the kernel's source is kept.

        Raises
        ------
        SegmentationError
            If no scheduler accepts some segment.
        """
        return self.prepared_beside(None, target, evaluate_refused=evaluate_refused)

    def prepared_beside(
        self, shared: "SharedKernels | None", target: str, *, evaluate_refused: bool,
    ) -> "PreparedPlan":
        """Return the plan as `prepared` does, its kernels shared with those of the same program at other sizes."""
        from fuser_lab.runtime.executor import prepare

        segments: list[tuple[Fusion, SchedulerType]] = []
        for segment in self.segments:
            if segment.scheduler is None:
                msg = (
                    f"the plan cannot run: no scheduler accepts segment {segment.index} "
                    f"({', '.join(e.name for e in segment.exprs)}); {segment.group.answer.text}."
                )
                raise SegmentationError(msg)
            segments.append((segment.fusion, segment.scheduler))
        current = targets.target_of(target).current
        if current is not None and ":" not in target:
            target = current()()
        with self._lock:
            key = f"{target} {evaluate_refused}{'' if shared is None else ' shared'}"
            if key not in self._cache:
                self._cache[key] = prepare(
                    self.fusion, segments, target, evaluate_refused=evaluate_refused, compile_now=False,
                    changes={segment.index: segment.changes for segment in self.segments}, shared=shared,
                    schedules={s.index: s.transforms for s in self.segments if s.transforms},
                )
            return self._cache[key]

    @takes(form=one_of(*FORMS))
    def to_python(self, form: str = "fuser_lab") -> str:
        """Return code that recreates this plan, with the same hash.

        User-defined schedulers and passes cannot be written as code: the code takes them from variables ``schedulers``
        and ``passes``, and a comment lists what these must contain.

        Parameters
        ----------
        form
            ``"fuser_lab"``, or a script for nvFuser: ``"nvfuser_direct"`` for its direct bindings, ``"nvfuser"`` for
            the frontend that preceded them. Such a script contains the definition, including ``segment_set``, and
            inputs; a comment lists strategy, options and edits of the partition, which nvFuser does not accept. Read
            by `fuser_lab.load_repro` and segmented with these, it gives a plan with the same hash.

        Raises
        ------
        UnsupportedError
            If a script for nvFuser is requested and an input has negative strides, which torch does not support.
        """
        returned = next((one.subjects for one in self.decisions if one.kind is Kind.PARTITION), ())
        return PlanCode(
            definition=self.definition, inputs=self.inputs, strategy=self.strategy, options=self.options,
            oracle=self.oracle, passes=self.passes, edits=self.edits, returned=returned,
            segments=tuple(tuple(e.name for e in s.exprs if e.tensor_outputs) for s in self.segments),
        ).text(form)

    def to_dump(self) -> str:
        """Return the plan as nvFuser prints a segmented fusion (``NVFUSER_DUMP=segmented_fusion``).

        `fuser_lab.load_dump` reads it: the fusion after the passes with known sizes, and the same segments. Comments
        hold what nvFuser's format cannot express, such as the layouts of inputs.
        """
        from fuser_lab.report.dump_text import dump_text

        return dump_text(self.segmented, self.definition)

    def show(self) -> None:
        """Show the static picture and tables in a notebook, or print the text elsewhere."""
        try:
            from IPython import get_ipython
            from IPython.display import publish_display_data
        except ImportError:
            print(self)  # noqa: T201
            return
        if get_ipython() is None:
            print(self)  # noqa: T201
        else:
            publish_display_data(self._repr_mimebundle_())

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the plan as .svg, .png, .html, .json, .dot, .mmd, .csv, .txt or .py (by extension); return the path.

        Raises
        ------
        InputError
            If the extension is none of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        return save.save_plan(self, path)

    def __str__(self) -> str:
        """Return the headline and the segment table."""
        return text.plan_text(self)

    def __repr__(self) -> str:
        """Return the text; a notebook shows the picture."""
        return text.plan_text(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return text and static HTML, and the picture as SVG for what does not show HTML."""
        return {"text/plain": str(self), "text/html": html.plan_html(self), "image/svg+xml": svg.plan_svg(self)}


def _place_of(name: str) -> int:
    """Return the number of the tensor that a name such as ``T3`` denotes; -1 for other names."""
    return int(name[1:]) if name[:1] == "T" and name[1:].isdecimal() else -1


def _expr_names(exprs: Sequence[Expr]) -> tuple[str, ...]:
    return tuple(sorted(expr.name for expr in exprs))


__all__ = ["IllegalEdit", "Plan", "Segment"]
