"""Edits of a plan: its partition, its annotations, its kernels' parameters and schedules; and their previews."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from fuser_lab.arguments import FLAG, FUNCTION, TEXT, instance, listing, number, one_of, optional, takes, whole
from fuser_lab.cost.traffic import model_of
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, FuserLabError, IllegalEdit, InputError, ScheduleError
from fuser_lab.ir import Fusion
from fuser_lab.ir.transform import Transform
from fuser_lab.passes import Annotation, annotations_of, with_segment_set, without_segment_set
from fuser_lab.plan.accepted import PLACE, READERS, SEGMENT, SEGMENTS, TARGET, TENSOR
from fuser_lab.plan.advice import Advice, advice
from fuser_lab.plan.annotating import WAYS, AnnotationResult, to_annotations
from fuser_lab.plan.code import Edit
from fuser_lab.plan.explained import ExplainedPlan
from fuser_lab.plan.segment import expr_names
from fuser_lab.plan.segment_edit import SegmentEdit
from fuser_lab.process.forks import new_lock
from fuser_lab.schedule.parameter_values import Values, check_values
from fuser_lab.schedule.parameters import LoopChange
from fuser_lab.schedule.templates import needed_values
from fuser_lab.segmentation import SegmentedFusion, SegmenterOptions, Strategy, edits, rewritings
from fuser_lab.segmentation.layouts import negotiate
from fuser_lab.segmentation.narrowing import narrow
from fuser_lab.segmentation.origins import source_lines
from fuser_lab.segmentation.previews import Amount, EditPreview, Previews
from fuser_lab.segmentation.rewritings import Rewritten
from fuser_lab.targets import CUDA, with_blocks

if TYPE_CHECKING:
    from fuser_lab.plan.schedules import Given


_QUICK = ("bottom_up", "top_down")  # strategies that segment again in a moment, and read a segment_set


class EditablePlan(ExplainedPlan):
    """A plan whose edits return new plans."""

    @takes(where=PLACE)
    def cut(self, where: str | tuple[str, str]) -> Self:
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
        tensor, consumer = self._place(where)
        self._check_kept(IllegalEdit, tensor, consumer)
        with self._with_source_lines():
            changed = edits.cut(self.segmented, tensor, consumer, self.oracle)
        return self._edit(changed, ("cut", (tensor,) if consumer is None else (tensor, consumer)))

    @takes(tensor=TENSOR, readers=READERS)
    def annotate(self, tensor: str, readers: str | Sequence[str] | None = None) -> Self:
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
        tensor, readers = self._recorded_names(tensor, readers)
        return self._annotate(with_segment_set(self.definition, tensor, readers))

    @takes(tensor=TENSOR, readers=READERS)
    def without_annotation(self, tensor: str, readers: str | Sequence[str] | None = None) -> Self:
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
        tensor, readers = self._recorded_names(tensor, readers)
        return self._annotate(without_segment_set(self.definition, tensor, readers))

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
    ) -> AnnotationResult[Self]:
        """Return the smallest set of ``segment_set`` from which bottom-up or top-down makes this partition.

        A partition found by editing, or by the strategy "optimal", can thus be passed to a segmenter:
        ``.plan.to_python()`` is the annotated definition. nvFuser currently works bottom-up and reads hints. The
        partition is compared as sets of expressions, ignoring ``segment_set``; annotations already in the definition
        count like all others. Among sets of equal size, one that works in nvFuser's own segmenter is preferred. If no
        set is found, the result is false and holds the reasons.

        Parameters
        ----------
        strategy, segment_set
            Consider only this strategy or reading; ``"bottom_up"`` and ``"hint"`` for nvFuser as it is today.
        tries
            Approximate number of sets to segment; reducing the last set takes a few more.
        """
        ways = [
            way for way in WAYS if strategy in {None, way.strategy} and segment_set in {None, way.reading.value}
        ]
        return to_annotations(self, tries, ways)

    @takes(strategy=optional(TEXT.worded("a strategy's name") | FUNCTION.worded("a function of fusion and oracle")))
    def resegmented(self, strategy: Strategy | None = None, **switches: Any) -> Self:
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
            raise ArgumentTypeError(f"resegmented: unknown option {unknown[0]!r}; choose from {names}.")
        chosen = self.method if strategy is None else strategy
        return self.planned_for(self.definition, chosen, replace(self.options.for_strategy(chosen), **switches))

    def _annotate(self, definition: Fusion) -> Self:
        name = self.name if self.name.endswith("*") else f"{self.name}*"
        try:
            return self.planned_for(definition, self.method, self.options).renamed(name)
        except InputError as error:
            if isinstance(self.method, str):
                raise
            raise IllegalEdit(
                f"the strategy {self.strategy!r} is a function that does not cut the definition with this change "
                f"({str(error).rstrip('.')}); select another one first, for example with resegmented('bottom_up')."
            ) from None

    def _place(self, where: str | Sequence[str]) -> tuple[str, str | None]:
        """Return the names in the fusion of a tensor, and of the reader that is given with it."""
        tensor, consumer = (where, None) if isinstance(where, str) else where
        return self._fusion_name(tensor, IllegalEdit), self._fusion_name(consumer, IllegalEdit)

    def _recorded_names(
        self, tensor: str, readers: str | Sequence[str] | None,
    ) -> tuple[str, str | Sequence[str] | None]:
        """Return the names of a tensor and its readers; raise for a tensor created by passes or the segmenter."""
        tensor = self._fusion_name(tensor, IllegalEdit)
        if readers is not None:
            names = (readers,) if isinstance(readers, str) else readers
            readers = [self._fusion_name(reader, IllegalEdit) for reader in names]
        self._check_recorded(tensor)
        return tensor, readers

    def _check_recorded(self, tensor: str) -> None:
        """Raise for a tensor created by passes or the segmenter: annotations refer to the definition."""
        if tensor in self.fusion.tensors and tensor not in self.definition.tensors:
            maker = self._origins.get(tensor, "the segmenter")
            raise IllegalEdit(
                f"{tensor} is created by {maker} and is not in the definition; annotations refer to the definition's "
                "tensors: "
                f"{listing(self.definition.tensors)}."
            )

    @takes(a=SEGMENT, b=SEGMENT)
    def glue(self, a: int, b: int) -> Self:
        """Return the plan with two segments merged into one.

        It may overrule a ``segment_set`` that is read as a hint, but not one with ``segment_set="cut"``.

        Raises
        ------
        IllegalEdit
            If that would create a cycle or cross a cut, or no scheduler accepts both; the message says which and why.
        """
        with self._with_source_lines():
            changed = edits.glue(self.segmented, a, b, self.oracle, self.options.segment_set)
        return self._edit(changed, ("glue", (a, b)))

    @takes(tensor=TENSOR, segment=SEGMENT)
    def move(self, tensor: str, segment: int) -> Self:
        """Return the plan with the expression that computes a tensor moved to another segment.

        Raises
        ------
        IllegalEdit
            If the plan would be illegal; the message says why.
        """
        tensor = self._fusion_name(tensor, IllegalEdit)
        self._check_kept(IllegalEdit, tensor)
        with self._with_source_lines():
            changed = edits.move(self.segmented, tensor, segment, self.oracle, self.options.segment_set)
        return self._edit(changed, ("move", (tensor, segment)))

    @takes(tensor=TENSOR, segments=SEGMENTS, reductions=FLAG)
    def recompute(
        self, tensor: str, segments: int | Sequence[int] | None = None, *, reductions: bool = False,
    ) -> Self:
        """Return the plan in which segments that read a tensor from memory compute it again for themselves.

        Its producers are copied into these segments, back to inputs of the fusion and to tensors that some segment
        stores; if nothing else needs the originals, they move to the first of these segments. Values do not change. The
        last attempts of ``decisions`` hold the copies, with the bytes saved and the operations added. `to_annotations`
        writes the copies into the definition, so that nvFuser computes them too.

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
            If the tensor does not pass between segments; if it depends on random numbers, on a result of a library, or
            on a reduction computed in its segment; or if no scheduler accepts a segment with the copies.
        """
        tensor = self._fusion_name(tensor, IllegalEdit)
        self._check_kept(IllegalEdit, tensor)
        chosen = () if segments is None else (segments,) if isinstance(segments, int) else tuple(segments)
        with self._with_source_lines():
            done = rewritings.recompute(
                self.segmented, tensor, self.oracle, chosen, reductions=reductions,
                taken=rewritings.copied_names(self.decisions),
            )
        options = [f"segments={list(chosen)}"] if chosen else []
        options += ["reductions=True"] if reductions else []
        return self._rewritten(done, ("recompute", (tensor, *options)))

    @takes(tensor=TENSOR, dtype=optional(instance(DataType, accepted="a DataType")))
    def narrow(self, tensor: str, dtype: DataType | None = None) -> Self:
        """Return the plan in which a tensor is cast to a narrower dtype to pass between segments in fewer bytes.

        Values change, unless the tensor has only values of the narrow dtype. The last attempt of ``decisions`` states
        the error: the bound of the rounding of one element, and the largest difference of an output on random inputs,
        measured by the reference evaluation if all tensors have at most 4,194,304 elements together.

        Parameters
        ----------
        tensor
            Name of a tensor of Float or Double that passes between segments.
        dtype
            ``DataType.BFloat16``, ``DataType.Half`` or, for a Double, ``DataType.Float``; by default the 16-bit type
            from which an operand of the tensor was widened.

        Raises
        ------
        IllegalEdit
            If the tensor does not pass between segments; if it was not widened from 16 bits and no dtype is given; if
            its dtype is fixed, as for outputs and operands of a library; or if no scheduler accepts a segment with the
            casts.
        """
        tensor = self._fusion_name(tensor, IllegalEdit)
        self._check_kept(IllegalEdit, tensor)
        with self._with_source_lines():
            done = narrow(self.segmented, tensor, dtype, self.oracle, self.inputs)
        return self._rewritten(done, ("narrow", (tensor, *((repr(dtype),) if dtype is not None else ()))))

    def _rewritten(self, done: Rewritten, edit: Edit) -> Self:
        """Return the plan after an edit that rewrites the fusion, with its attempts at the end of a new log."""
        log = self.decisions
        decisions = type(log)((*log, *done.attempts), log.passes, log.layouts)
        return replace(self._edit(done.segmented, edit), decisions=decisions)

    @takes(segment=SEGMENT, target=TARGET, nest=whole(accepted="the number of a nest of loops"))
    def with_params(
        self, segment: int, *, target: str = CUDA.name, nest: int = 0, **values: int | bool | tuple[int, int],
    ) -> Self:
        """Return the plan with parameters of a segment's kernel set by hand; the others keep the heuristics' choice.

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
            raise InputError(f"with_params: segment must be from 0 to {len(self.segments) - 1}, given {segment}.")
        edited = self.segments[segment]
        if edited.loops:
            raise ScheduleError(
                f"with_params: segment {segment} has a schedule from with_schedule that is not a scheduler's, so it "
                f"has no parameters; change its transforms, or return to the automatic kernel with "
                f"with_schedule({segment}, None)."
            )
        parameters = check_values(values)
        others = tuple(change for change in edited.changes if (change.target, change.nest) != (target, nest))
        shown = [f"target={target!r}", *((f"nest={nest}",) if nest else ()), *(f"{n}={v!r}" for n, v in parameters)]
        edit: Edit = ("with_params", (segment, ", ".join(shown)))

        def changes(values: Values) -> tuple[LoopChange, ...]:
            return (*others, LoopChange(target=target, nest=nest, values=values)) if values else others

        plan = self._with_schedule_of(segment, edit, changes=changes(parameters))
        nests = plan.segments[segment].params(target)  # raises if a value is illegal
        # Values that the heuristics also choose do not count as set by hand, so that equal schedules have equal hashes.
        least = needed_values(nests[nest], parameters) if parameters else ()
        return plan if least == parameters else self._with_schedule_of(segment, edit, changes=changes(least))

    def _with_schedule_of(
        self, segment: int, edit: Edit, *, changes: Sequence[LoopChange] = (), loops: Sequence[Transform] = (),
    ) -> Self:
        """Return the plan with another schedule of a segment; that of the heuristics without parameters and loops."""
        exprs = expr_names(self.segments[segment].exprs)
        others = tuple(schedule for schedule in self.schedules if schedule.exprs != exprs)
        ordered = tuple(sorted(changes, key=lambda change: (change.target, change.nest)))
        added = (SegmentEdit(exprs=exprs, changes=ordered, loops=tuple(loops)),) if ordered or loops else ()
        name = self.name if self.name.endswith("*") else f"{self.name}*"
        return replace(
            self, name=name, edits=(*self.edits, edit), schedules=(*others, *added), _cache={}, _lock=new_lock(),
        )

    @takes(segment=SEGMENT)
    def with_schedule(self, segment: int, schedule: "Given | None") -> Self:
        """Return the plan in which a segment's kernels follow a schedule.

        A schedule that differs from the scheduler's only in numbers runs as the scheduler's kernel with these numbers,
        as with `with_params`. Any other schedule is lowered loop by loop to a CUDA kernel; on the CPU that kernel is
        evaluated in lock step to compute its values, so its time there says nothing about speed. A schedule without
        transforms for a target does not change that target's kernel.

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
            If a transform is illegal, or the schedule cannot be lowered for the segment's sizes.
        UnsupportedError
            If the schedule needs a feature that kernels do not support.
        CodegenError
            If the segment has no kernel.
        InputError
            If the segment does not exist.
        """
        if not 0 <= segment < len(self.segments):
            raise InputError(f"with_schedule: segment must be from 0 to {len(self.segments) - 1}, given {segment}.")
        from fuser_lab.plan.schedules import given_schedule

        chosen = self.segments[segment]
        chosen.kernel(with_blocks().name)  # raises if the segment has none
        if schedule is None:
            return self._with_schedule_of(segment, ("with_schedule", (segment, "")))
        schedule_given = given_schedule(chosen, schedule)
        edit: Edit = ("with_schedule", (segment, schedule_given.text))
        reading = schedule_given.reading
        others = tuple(change for change in chosen.changes if change.target not in reading.targets)
        if reading.loops:
            return self._with_schedule_of(segment, edit, loops=reading.loops)
        plan = self._with_schedule_of(segment, edit, changes=(*others, *reading.changes))
        for target in reading.targets:
            plan.segments[segment].kernel(target)  # raises if values are illegal together
        return plan

    @takes(where=PLACE)
    def preview_cut(self, where: str | tuple[str, str]) -> EditPreview:
        """Return the effect of `cut` without making the plan: segments, bytes, predicted time, and the reason.

        A refused edit gives a preview with the reason instead of an exception.

        Parameters
        ----------
        where
            As for `cut`.
        """
        return self._previews.cut(*self._place(where))

    @takes(a=SEGMENT, b=SEGMENT)
    def preview_glue(self, a: int, b: int) -> EditPreview:
        """Return the effect of `glue`, or why it is refused, without making the plan."""
        return self._previews.glue(a, b)

    @takes(tensor=TENSOR, segment=SEGMENT)
    def preview_move(self, tensor: str, segment: int) -> EditPreview:
        """Return the effect of `move`, or why it is refused, without making the plan."""
        return self._previews.move(self._fusion_name(tensor, IllegalEdit), segment)

    @takes(most=whole(1), seconds=number(0))
    def best_edits(self, most: int = 5, *, seconds: float = 10.0) -> tuple[EditPreview, ...]:
        """Return the legal cuts, glues, moves and ``segment_set`` that save predicted time, best first.

        `with_edit` applies one of them. Times are those of `predicted_time`. A ``segment_set`` is examined where the
        plan is that of a strategy without later edits, which it would drop.

        Parameters
        ----------
        most
            Maximum number of edits.
        seconds
            Time after which no further edits are examined.
        """
        return self._previews.best(seconds)[:most]

    @takes(seconds=number(0))
    def advice(self, *, seconds: float = 10.0) -> Advice:
        """Return the first of `best_edits` as one sentence with the reason, or the time by bytes beside its bound.

        The edit is checked by making it: its gain is the difference of the `predicted_time` of both plans, so an edit
        that the model calls slower is never recommended. ``with_edit(advice.edit)`` makes it.

        Parameters
        ----------
        seconds
            Time after which no further edits are examined; 0 for those that were previewed before.
        """
        return advice(self, self._previews.best(seconds) if seconds else self._previews.gains())

    @takes(preview=instance(EditPreview))
    def with_edit(self, preview: EditPreview) -> Self:
        """Return the plan with a previewed edit applied, as with `cut`, `glue`, `move` or `annotate`.

        Raises
        ------
        IllegalEdit
            If the edit is not legal in this plan.
        """
        kind, arguments = preview.edit
        if kind == "cut":
            return self.cut(arguments[0] if len(arguments) == 1 else arguments)  # type: ignore[arg-type]
        if kind == "annotate":
            return self.annotate(str(arguments[0]))
        return self.glue(*arguments) if kind == "glue" else self.move(*arguments)  # type: ignore[arg-type]

    @cached_property
    def _previews(self) -> Previews:
        from fuser_lab.plan.clock import clock_of

        clock = clock_of(self)

        def amount(segmented: SegmentedFusion) -> Amount:
            is_edited = segmented is not self.segmented and self.options.layout_mode == "negotiate"
            return clock.amount(negotiate(segmented, self.oracle)[0] if is_edited else segmented)

        def annotated(tensor: str) -> SegmentedFusion:
            return self.annotate(tensor).segmented

        return Previews(
            self.segmented, self.oracle, model_of(self.oracle), amount, self.options.segment_set, annotated,
            self._marked_places() if self.method in _QUICK and not self.edits else (),
        )

    def _marked_places(self) -> tuple[str, ...]:
        """Return the tensors of the definition that ops read, the largest first."""
        definition = self.definition
        sizes = {tensor.name: tensor.nbytes for tensor in self.fusion.tensors.values()}
        names = [
            tensor.name for tensor in definition.tensors.values() if tensor.name in sizes
            and any(user.op.name != "segment_set" for user in definition.users.get(tensor, ()))
        ]
        return tuple(sorted(names, key=lambda name: -sizes[name]))

    @contextmanager
    def _with_source_lines(self) -> Iterator[None]:
        """Add the user's source lines of the tensors that a refusal names."""
        try:
            yield
        except FuserLabError as error:
            lines = source_lines([str(error)], dict(self.sources))
            if lines:
                error.args = ("\n".join((str(error), *lines)), *error.args[1:])
            raise

    def _edit(self, segmented: SegmentedFusion, edit: Edit) -> Self:
        agreed = None
        if self.options.layout_mode == "negotiate":
            segmented, agreed = negotiate(segmented, self.oracle)
        name = self.name if self.name.endswith("*") else f"{self.name}*"
        changed = replace(
            self, name=name, segmented=segmented, edits=(*self.edits, edit), agreed=agreed, _cache={},
            _lock=new_lock(),
        )
        if "_origins" in vars(self) and changed.fusion is self.fusion:
            vars(changed)["_origins"] = self._origins  # an edit of the partition does not rename tensors
        return changed
