"""Explanations of a plan: why it is cut, what it costs, and the plan as code."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from fuser_lab.arguments import having, listing, number, one_of, optional, short_text, takes, whole
from fuser_lab.cost.kernel_time import Prediction
from fuser_lab.cost.predicted_times import TimeBound, time_bound
from fuser_lab.definition.binding import bind
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.ir.tensor_names import name_of, names_by_tensor, tensor_called
from fuser_lab.plan.accepted import TENSOR, TENSOR_OR_SEGMENT
from fuser_lab.plan.base import PlanBase
from fuser_lab.plan.code import FORMS, PlanCode
from fuser_lab.plan.definitions import SegmentDefinitions
from fuser_lab.report import certificates
from fuser_lab.report.pass_diffs import PassDiffs, pass_diffs
from fuser_lab.report.shown import Shown
from fuser_lab.segmentation import Certificate, Why, certify, why
from fuser_lab.segmentation.events import Kind
from fuser_lab.segmentation.layouts import Layouts, layouts_of
from fuser_lab.segmentation.lifting import Lifting
from fuser_lab.segmentation.origins import origins
from fuser_lab.segmentation.privatization import without
from fuser_lab.segmentation.timed_plan import predict_seconds, time_model_of

if TYPE_CHECKING:
    from fuser_lab.definition.cache import FusionCache
    from fuser_lab.plan.changes import PlanChange

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownCertificate(Shown, Certificate):
    """A certificate that a notebook shows with tables."""

    def _repr_html_(self) -> str:
        """Return static HTML."""
        return certificates.certificate_html(self)


class ExplainedPlan(PlanBase):
    """A plan that explains its cuts and its cost, and can be written as code."""

    @takes(a=TENSOR_OR_SEGMENT, b=TENSOR_OR_SEGMENT)
    def why(self, a: str | int, b: str | int) -> Why:
        """Return why two tensors (or segments, by number) are together or separate: what decided it, and the numbers.

        Raises
        ------
        InputError
            If a name or number is unknown, or names a fusion input.
        """
        a, b = self._fusion_name(a, InputError), self._fusion_name(b, InputError)
        self._check_kept(InputError, a, b)
        return self._why(a, b)

    @takes(tensor=TENSOR)
    def name_of(self, tensor: str) -> str:
        """Return what a tensor is called in pictures and sentences: the user's variable, else the op that computes it.

        Variables are those of the definition's code, a pasted script or a captured function; ``names`` lists all.
        Names never change a plan. ``""`` is returned for an input that no variable names.

        Raises
        ------
        InputError
            If the plan has no such tensor.
        """
        self._check_kept(InputError, tensor)
        if tensor not in self.fusion.tensors:
            there = listing(self.fusion.tensors)
            raise InputError(f"name_of: the fusion has no tensor called {short_text(tensor)}; it has {there}.")
        return name_of(tensor, self.fusion, names_by_tensor(self.names))

    def _fusion_name(self, name: T, kind: type[FuserLabError]) -> T | str:
        """Return the fusion's name of a tensor given by that name or by the user's name; other values unchanged."""
        if not isinstance(name, str):
            return name
        return tensor_called(name, {**self.definition.tensors, **self.fusion.tensors}, self.names, kind)

    def _check_kept(self, kind: type[FuserLabError], *names: object) -> None:
        """Raise for names that were defined but are not in the segmented fusion."""
        for name in names:
            if not isinstance(name, str) or name in self.fusion.tensors:
                continue
            there = listing(self.fusion.tensors)
            if name in self.definition.tensors:
                changed = ", ".join(p.name for p in self.decisions.passes if p.before != p.after)
                raise kind(
                    f"{name} is not in the segmented fusion: presegmentation passes removed it (passes that changed "
                    f"the fusion: {changed or 'none'}); choose from {there}."
                )
            if 0 <= _place_of(name) < max(map(_place_of, self.definition.tensors), default=0):
                raise kind(f"{name} is not in the fusion, because no output depends on it; choose from {there}.")

    def _why(self, a: str | int, b: str | int) -> Why:
        explanation = why(self.segmented, a, b, self.decisions, self.oracle, self.options.segment_set)
        explained = explanation.with_origins(self._origins).with_sources(dict(self.sources))
        return replace(explained, called=self.names)

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
        """Return the segments as definitions, one per segment, with index maps and the code that runs them in order.

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
        from fuser_lab.plan.clock import clock_of

        certificate = certify(self.segmented, self.oracle, options, log=self.decisions, idle=clock_of(self).idle)
        values = {field.name: getattr(certificate, field.name) for field in fields(certificate)}
        return ShownCertificate(**values | {"made": tuple(self._origins.items())})

    def time_bound(self) -> TimeBound:
        """Return the plan's time by bytes and arithmetic, a lower bound on that of any plan, and its assumptions.

        A kernel's time is a launch plus the longer of its bytes at the target's bandwidth and its arithmetic at the
        target's rates, both from the data sheet. The bound holds for any cut, with or without recomputation. How
        kernels are scheduled does not count; it does in `predicted_time`.
        """
        model = time_model_of(self.oracle)
        once = without(self.fusion, self.segmented.replicas)
        return time_bound(once, model, predict_seconds(self.segmented, model, self.idle))

    @takes(before=having("segmented", "predicted_time", accepted="a plan, as fl.segment returns it"))
    def change_from(self, before: "ExplainedPlan") -> "PlanChange":
        """Return what is different from an earlier plan of the same definition, as one sentence when printed.

        It says which ops moved between which segments and why, which are new or gone, and the change of segments, bytes
        and predicted time; `fuser_lab.diff` has all differences as a table.
        """
        from fuser_lab.plan.changes import plan_change

        return plan_change(before, self)

    def predicted_time(self) -> Prediction:
        """Return the predicted time of the plan's kernels run one after another on its target, with an interval.

        Unlike `time_bound`, it depends on how each kernel is scheduled; see `Segment.predicted_time`. It is not the sum
        of the times of the kernels in isolation: on a GPU launches overlap, and a kernel may find data of earlier
        kernels in the caches; see `fuser_lab.cost.plan_time` and, for this CPU, `fuser_lab.cost.host_plan`. The
        interval is the sum of the kernels' intervals, which assumes fully correlated errors. The kernels of a fusion
        with more than 2,000 expressions are not lowered: their times are those of their bytes and arithmetic.
        """
        return self._predicted_time

    @cached_property
    def _predicted_time(self) -> Prediction:
        from fuser_lab.plan.clock import clock_of

        return clock_of(self).predict(self.segmented)

    @cached_property
    def is_slow_to_predict(self) -> bool:
        """Whether `predicted_time` takes more than about a second: kernels with many dependent reductions are long."""
        from fuser_lab.plan.clock import is_slow

        return is_slow(self.segmented)

    @cached_property
    def segment_times(self) -> tuple[Prediction, ...]:
        """The predicted time of each segment in the plan, of which `predicted_time` is the sum."""
        from fuser_lab.plan.clock import clock_of

        return clock_of(self).parts(self.segmented)

    @takes(form=one_of(*FORMS))
    def to_python(self, form: str = "fuser_lab") -> str:
        """Return code that recreates this plan, with the same hash.

        User-defined schedulers and passes cannot be written as code: the code reads them from variables ``schedulers``
        and ``passes``, and a comment lists what these must contain.

        Parameters
        ----------
        form
            ``"fuser_lab"``, or a script for nvFuser: ``"nvfuser_direct"`` for its direct bindings, ``"nvfuser"`` for
            the frontend that preceded them. Such a script contains the definition, including ``segment_set``, and
            inputs; a comment lists strategy, options and edits of the partition, which nvFuser does not accept. Loaded
            with `fuser_lab.load_repro` and segmented with these, it gives a plan with the same hash.

        Raises
        ------
        UnsupportedError
            If a script for nvFuser is requested and an input has negative strides, which torch does not support.
        """
        returned = next((attempt.subjects for attempt in self.decisions if attempt.kind is Kind.PARTITION), ())
        return PlanCode(
            definition=self.definition, inputs=self.inputs, strategy=self.strategy, options=self.options,
            oracle=self.oracle, passes=self.passes, edits=self.edits, returned=returned,
            segments=tuple(tuple(e.name for e in s.exprs if e.tensor_outputs) for s in self.segments),
        ).text(form)

    @takes(form=one_of("math", "print"))
    def to_dump(self, form: str = "math") -> str:
        """Return the plan as nvFuser prints a segmented fusion (``NVFUSER_DUMP=segmented_fusion``).

        `fuser_lab.load_dump` reads it: the fusion after the passes with known sizes, and the same segments. Comments
        hold what nvFuser's format cannot express, such as the layouts of inputs.

        Parameters
        ----------
        form
            ``"math"`` as nvFuser printed until February 2026, or ``"print"`` as it has since, with the domains of every
            tensor.
        """
        from fuser_lab.report.dump_text import dump_text

        return dump_text(self.segmented, self.definition, form)


def _place_of(name: str) -> int:
    """Return the number in a tensor's name such as ``T3``; -1 for other names."""
    return int(name[1:]) if name[:1] == "T" and name[1:].isdecimal() else -1
