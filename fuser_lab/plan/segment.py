"""One segment of a plan: its inputs and outputs, its kernel, parameters and schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuser_lab import targets
from fuser_lab.arguments import PATH, takes, whole
from fuser_lab.cost.kernel_time import Prediction
from fuser_lab.cost.verdict import SchedulerType, Verdict
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.transform import Transform
from fuser_lab.plan.accepted import TARGET
from fuser_lab.plan.segment_edit import SegmentEdit, SegmentsPlan
from fuser_lab.report import html, save, svg
from fuser_lab.report.fusions import fusion_view
from fuser_lab.report.shown import Shown
from fuser_lab.report.units import tensor_bytes
from fuser_lab.schedule.parameters import LoopChange, NestChoice
from fuser_lab.segmentation import SegmentedGroup
from fuser_lab.segmentation.origins import with_sources

if TYPE_CHECKING:
    from fuser_lab.codegen.kernel_plan import KernelPlan
    from fuser_lab.codegen.kernel_steps import KernelSteps
    from fuser_lab.codegen.pipeline import GeneratedKernel
    from fuser_lab.codegen.request import KernelRequest
    from fuser_lab.plan.clock import Features
    from fuser_lab.plan.ranking import Candidates
    from fuser_lab.plan.schedules import SegmentSchedule
    from fuser_lab.runtime.gpu.facts import LaunchFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Shown):
    """One segment of a plan, which becomes one kernel.

    ``bytes_in`` and ``bytes_out`` count each element once, and 0 for views; ``bytes_crossing`` has the tensors of both
    that pass between segments, directly or as a view.
    """

    index: int
    plan: "SegmentsPlan"
    _planned: "dict[str, KernelPlan]" = field(init=False, default_factory=dict, repr=False, compare=False)  # by target

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
        """Codes of nvFuser's rules that the segment breaks, if an open scheduler accepted it (`OPEN_SCHEDULERS`)."""
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
        """Bytes read, each element once; of the table of a look-up, at most an element for each of its results."""
        return 0 if self.is_view else self.group.traffic.read

    @property
    def bytes_out(self) -> int:
        """Bytes written."""
        return 0 if self.is_view else self.group.traffic.written

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_in + self.bytes_out

    @property
    def is_view(self) -> bool:
        """Whether it only makes views, or results in the memory of other tensors: then nothing is launched or moved."""
        return self.index in self.plan.idle

    @property
    def bytes_crossing(self) -> int:
        """Bytes read from and written for other segments."""
        if self.is_view:
            return 0
        passed, bases, group = self.plan.crossing_bytes, self.plan.bases, self.group
        tensors = (*group.tensor_inputs, *group.outputs)
        return sum([tensor_bytes(tv) for tv in tensors if passed.get(bases.get(tv.name, tv.name), 0)])

    @takes(target=TARGET)
    def source(self, target: str = targets.CPU.name) -> str:
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

    @takes(target=TARGET)
    def kernel(self, target: str = targets.CPU.name) -> "GeneratedKernel":
        """Return the generated kernel: its source, its Kernel IR and the expression of each line.

        Raises
        ------
        CodegenError
            If the segment has no kernel: no scheduler accepts it, or the array library evaluates it.
        """
        from fuser_lab.codegen.pipeline import generate

        return generate(self._request(target), self._kernel_plan(target))

    def predicted_time(self) -> Prediction:
        """Return the predicted time of the segment's kernel in isolation on the plan's target, with its interval.

        The time is that of the kernel as scheduled: on a GPU with cold caches (`fuser_lab.cost.kernel_time`), on this
        CPU with what the kernel's previous run has left in them (`fuser_lab.cost.host_time`). For a segment that the
        array library evaluates, it is a launch plus the longer of bytes and arithmetic; a GPU's rates are those of its
        data sheet. A segment of views takes no time if nothing has to be copied; kernels read such a view in the memory
        of its base.
        """
        from fuser_lab.plan.clock import clock_of

        return clock_of(self.plan).alone(self.plan.segmented, self.index)

    @property
    def features(self) -> "Features | Prediction":
        """The features of the segment's kernel on the plan's target, or the predicted time if there is no kernel."""
        from fuser_lab.plan.clock import clock_of

        return clock_of(self.plan).features(self.plan.segmented, self.index)

    def _request(self, target: str) -> "KernelRequest":
        """Return the request for the segment's kernel."""
        from fuser_lab.plan.requests import request_of

        if self.scheduler is None:
            msg = f"segment {self.index} has no kernel: no scheduler accepts it; {self.group.answer.text}."
            raise CodegenError(msg)
        if self.loops and not targets.target_of(target).has_blocks:
            raise CodegenError(
                f"segment {self.index} has no kernel for {target!r}: it is lowered for GPUs, and the CPU evaluates "
                f"that kernel in lock step; see source({targets.with_blocks().name!r})."
            )
        return request_of(self, target)

    def _kernel_plan(self, target: str) -> "KernelPlan | None":
        """Return the plan of the segment's kernel, which is made once; None if loops are lowered one by one."""
        from fuser_lab.codegen.pipeline import plan_kernel

        request = self._request(target)
        if request.loops:
            return None
        if target not in self._planned:
            self._planned[target] = plan_kernel(request)
        return self._planned[target]

    @takes(target=TARGET)
    def steps(self, target: str = targets.CPU.name) -> "KernelSteps":
        """Return what the kernel reads and writes in each step of its evaluation in lock step.

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
        from fuser_lab.codegen.pipeline import generate

        generated = self.kernel(target)
        fusion, shrunk = smaller(self.fusion, MOST_ELEMENTS)
        if shrunk:
            generated = generate(replace(self._request(target), fusion=fusion, changes=()))
        return kernel_steps(generated, fusion, shrunk)

    @property
    def edit(self) -> SegmentEdit | None:
        """The schedule set by hand, or None for the heuristics' schedule."""
        names = expr_names(self.exprs)
        return next((edit for edit in self.plan.schedules if edit.exprs == names), None)

    @property
    def changes(self) -> tuple[LoopChange, ...]:
        """Parameters set by hand; see `Plan.with_params`."""
        return () if self.edit is None else self.edit.changes

    @property
    def loops(self) -> tuple[Transform, ...]:
        """The schedule set by hand if it is lowered loop by loop: if it is not one that the scheduler writes."""
        return () if self.edit is None else self.edit.loops

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The schedule set by hand, as transforms; empty for the heuristics' schedule."""
        return () if self.edit is None else self.schedule.transforms

    @property
    def schedule(self) -> "SegmentSchedule":
        """The schedule that runs, as transforms, with the reasons for its parameters.

        It is that of the CUDA kernel; parameters set by hand for other targets follow as templates. What
        ``print(plan.segments[0].schedule)`` writes is accepted by `Plan.with_schedule`, edited or not.

        Raises
        ------
        CodegenError
            If the segment has no kernel.
        """
        from fuser_lab.plan.schedules import running

        return running(self)

    @takes(target=TARGET)
    def schedule_for(self, target: str) -> "SegmentSchedule":
        """Return the schedule of the kernel for a target; for the CPU, templates of loops with their parameters.

        Parameters
        ----------
        target
            ``"cpu"`` or ``"cuda"``; no GPU is needed.

        Raises
        ------
        CodegenError
            If the segment has no kernel for the target.
        """
        from fuser_lab.plan.schedules import running

        return running(self, target)

    @takes(target=TARGET)
    def params(self, target: str = targets.CUDA.name) -> tuple[NestChoice, ...]:
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
        plan = self._kernel_plan(target)
        if plan is None or self.scheduler is SchedulerType.GREEDY:
            # Whether a Greedy segment has a kernel is known when it is written.
            return self.kernel(target).kernel_ir.nests
        return plan.choices

    @takes(target=TARGET, nest=whole(0))
    def candidates(self, target: str = targets.CUDA.name, *, nest: int = 0) -> "Candidates":
        """Return the parameters that `fuser_lab.tune` would try for a nest of loops, predicted fastest first.

        The heuristics' choice is in the same table. Candidates are lowered, not compiled: a second for thirty of them.
        The kernel remains as the heuristics choose.

        Parameters
        ----------
        target
            ``"cuda"`` or ``"cpu"``; no GPU is needed. Times are predicted as in `predicted_time` if this is the target
            of the plan's device.
        nest
            Which of the kernel's nests, if it has several; see `params`.

        Raises
        ------
        CodegenError
            If the segment has no kernel.
        InputError
            If the kernel has no such nest.
        """
        from fuser_lab.plan.ranking import candidates_of

        return candidates_of(self, target, nest)

    def launches(self) -> "tuple[LaunchFacts, ...]":
        """Return each launch of the CUDA kernel on the plan's target: PTX, machine code, registers, occupancy.

        Raises
        ------
        CodegenError
            If the segment has no kernel.
        CompilationError
            If a compiler refuses it.
        UnsupportedError
            If it has to be compiled and the compiler that the source is for is not installed.
        """
        from fuser_lab.runtime.gpu.facts import launch_facts

        return launch_facts(self.kernel(targets.CUDA.name), self.plan.oracle.device)

    def __repr__(self) -> str:
        """Return a one-line description."""
        name = self.scheduler.value if self.scheduler else "no scheduler"
        ops = ", ".join(expr.op.name for expr in self.exprs) or "nothing"
        return f"<Segment {self.index}: {name} of {ops}>"

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the segment as .svg, .png, .html, .json, .dot, .mmd, .csv, .txt or .py, which contains its CPU kernel.

        Raises
        ------
        CodegenError
            If a kernel is requested and the segment has none.
        InputError
            If the extension is not one of these.
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

    def _picture(self) -> str:
        """Return the picture of its expressions."""
        return svg.view_svg(fusion_view(self.fusion, title=f"segment {self.index} of {self.plan.name}"))


def expr_names(exprs: Sequence[Expr]) -> tuple[str, ...]:
    """Return the sorted names of expressions, which identify a segment after other edits."""
    return tuple(sorted(expr.name for expr in exprs))
