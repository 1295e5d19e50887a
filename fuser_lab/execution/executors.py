"""Executors of a fusion: plans, looked up by the inputs that they were made for, and whole fusions as one kernel."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fuser_lab.arguments import FLAG, TEXT, brief, list_of, short_text, takes, whole
from fuser_lab.codegen.pipeline import generate_scheduled
from fuser_lab.codegen.varying import SharedKernels
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import Described, bind, default_inputs
from fuser_lab.definition.scheduling import RULES, HandSchedule, scheduled_text
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import (
    CodegenError,
    DefinitionError,
    InputError,
    StateError,
    UnsupportedError,
)
from fuser_lab.execution.profiling import as_user, measured_kernel, measured_run, receiver
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.printer import math_text
from fuser_lab.ir.replay import replay
from fuser_lab.ir.transform import ScheduledFusion, Transform
from fuser_lab.plan import Plan, Segment
from fuser_lab.plan.kept_results import tuned_state
from fuser_lab.plan.planning import definition_of, described_input, flatten, segment
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.arrays import describe
from fuser_lab.runtime.binding import device_of
from fuser_lab.runtime.cuda_compilers import function_sources
from fuser_lab.runtime.plan.by_hand import ScheduledKernel
from fuser_lab.runtime.plan.generator import with_seeds
from fuser_lab.segmentation import SegmenterOptions
from fuser_lab.targets import CUDA, has_own_memory, target_of

_KEPT_PLANS = 64  # plans that are cached, by descriptions of inputs

ENABLE_OPTIONS = frozenset(
    {
        "fast_math", "fuse_matmul", "fuse_multiple_matmuls", "greedy_scheduler", "host_ir_lowering", "id_model",
        "id_model_extra_validation", "infer_contiguity", "insert_resharding_after", "io_to_lower_precision",
        "kernel_db", "kernel_debug", "kernel_lineinfo", "kernel_profile", "linear_decomposition", "memory_promotion",
        "parallel_serde", "reuse_zeroed_memory", "static_fusion_count", "tma_inner_persistent", "tma_pointwise",
        "tma_reduction", "tma_transpose", "wait_debugger", "warn_register_spill", "ws_normalization",
    },
)
DISABLE_OPTIONS = frozenset(
    {
        "compile_to_sass", "contig_indexing", "expr_simplify", "fallback", "fma", "greedy_scheduler",
        "grouped_grid_welford_outer_opt", "id_model", "index_hoist", "infer_contiguity", "insert_resharding_after",
        "kernel_reuse", "magic_zero", "matmul_expr_eval", "multidevice", "nvrtc_caching", "nvtx", "parallel_compile",
        "parallel_serde", "predicate_elimination", "python_inline_definitions", "resize_scheduler",
        "reuse_mismatched_type_registers", "transpose_scheduler", "var_name_remapping", "welford_vectorization",
    },
)
# The other options switch parts of nvFuser that fuser_lab does not have; they are accepted and have no effect.
_DISABLES = {
    "resize_scheduler": SchedulerType.RESIZE,
    "transpose_scheduler": SchedulerType.TRANSPOSE,
    "greedy_scheduler": SchedulerType.GREEDY,
}

_NAMES = list_of(TEXT, "a list of names", lazy=True)
_DEVICE = (whole() | TEXT).worded("a number, a name or a torch.device")


def options_of(enable: object, disable: object) -> SegmenterOptions:
    """Return the segmenter's options for names of nvFuser's options.

    Raises
    ------
    DefinitionError
        If nvFuser has no such option.
    ArgumentTypeError
        If they are not lists of names.
    """
    on = _options("_enable_options", enable, ENABLE_OPTIONS)
    off = {_DISABLES[name] for name in _options("_disable_options", disable, DISABLE_OPTIONS) if name in _DISABLES}
    return SegmenterOptions(
        disabled_schedulers=frozenset(scheduler.value for scheduler in off), memory_promotion="memory_promotion" in on,
        fuse_matmul="fuse_matmul" in on,
    )


def _options(argument: str, options: object, names: frozenset[str]) -> tuple[str, ...]:
    chosen = tuple(_NAMES.of(options, "execute", argument))
    for name in chosen:
        if name not in names:
            choices = ", ".join(sorted(names))
            msg = f"execute: {argument} names {short_text(name)}, which is not an option; choose from {choices}."
            raise DefinitionError(msg)
    return chosen


def device_name(device: object) -> str | None:
    """Return the name, such as ``cuda:0``, of a device given by number, by name or as a torch.device.

    Raises
    ------
    ArgumentTypeError
        If it is not a number, a name or a torch.device.
    """
    if device is None:
        return None
    if type(device).__name__ == "device":
        return str(device)
    device_id: str | int = _DEVICE.of(device, "", "device")
    return device_id if isinstance(device_id, str) else f"cuda:{device_id}"


def _check_device(device: str | None, described: Sequence[Described]) -> None:
    on = {d.device for d in described if isinstance(d, TensorSpec)}
    if device is None or not on or any(name == device or name.partition(":")[0] == device for name in on):
        return
    raise InputError(f"execute: device is {brief(device, 60)}, but the inputs are on {', '.join(sorted(on))}.")


class FusionExecutorCache:
    """A fusion with its plans: one for each combination of the inputs' shapes, dtypes, strides and device.

    The 64 most recent plans are kept. On the CPU, plans for different sizes share kernels: the first size along an axis
    has kernels of its own, and the next ones have kernels that take all numbers that differ as arguments.

    Parameters
    ----------
    fusion
        A definition or a fusion; it is copied, so later changes have no effect.
    fusion_id
        Number in profiles.
    auto_schedule
        Must be True; user-defined schedules are not supported here.
    """

    @takes("FusionExecutorCache", fusion_id=whole(), auto_schedule=FLAG)
    def __init__(self, fusion: object, fusion_id: int = 0, auto_schedule: bool = True) -> None:
        if not auto_schedule:
            msg = "FusionExecutorCache: auto_schedule=False (a user-defined schedule) is not supported."
            raise UnsupportedError(msg)
        self.definition = definition_of(fusion)
        self._id = fusion_id
        self._shared = None if self.definition.is_concrete else SharedKernels(keeps_first=True)
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._ran: OrderedDict[Any, None] = OrderedDict()
        self._recent: Plan | None = None
        self._lock = new_lock()

    def execute(
        self, inputs: Iterable[Any], *, device: object = None, _enable_options: Iterable[str] = (),
        _disable_options: Iterable[str] = (),
    ) -> list[Any]:
        """Return the outputs; see `fuser_lab.FusionDefinition.execute`."""
        flat = flatten(inputs)
        options = options_of(_enable_options, _disable_options)
        described = tuple(describe(value) for value in flat)
        name = device_name(device)
        _check_device(name, described)
        plan = self._plan(flat, described, options)
        outputs = run_plan(plan, flat, described, name, self._id, self.like(flat, name))
        with self._lock:
            self._recent = plan
            self._ran[self._key(described)] = None
            if len(self._ran) > _KEPT_PLANS:
                self._ran.popitem(last=False)
        return outputs

    def like(self, flat: Sequence[Any], device: str | None = None) -> tuple[Any, ...]:
        """Return an array whose library creates outputs and random numbers when no input is an array.

        None selects NumPy.
        """
        return ()

    def plan_for(self, inputs: Iterable[Any]) -> Plan:
        """Return the plan that `execute` runs for these inputs."""
        flat = flatten(inputs)
        return self._plan(flat, tuple(described_input(value) for value in flat), SegmenterOptions())

    def _plan(self, flat: Sequence[Any], described: Sequence[Described], options: SegmenterOptions) -> Plan:
        key = (self._key(described), options, tuned_state())
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        plan = replace(segment(self.definition, flat, options=options), shared=self._shared)
        with self._lock:
            self._plans[key] = plan
            if len(self._plans) > _KEPT_PLANS:
                self._plans.popitem(last=False)
        return plan

    def _key(self, described: Sequence[Described]) -> tuple[object, ...]:
        values = self.definition.inputs
        if len(values) != len(described):
            return tuple(described)
        # Values of scalars matter only if a size or another attribute depends on one.
        deciding = self.definition.deciding_scalars
        return tuple(
            d if isinstance(d, TensorSpec) or v.name in deciding else type(d)
            for v, d in zip(values, described, strict=True)
        )

    def is_compiled(self, inputs: Iterable[Any], device: object = 0) -> bool:
        """Whether inputs with these shapes, dtypes, strides and device have run."""
        described = tuple(describe(value) for value in flatten(inputs))
        with self._lock:
            return self._key(described) in self._ran

    def fusion(self) -> Any:
        """Return the fusion."""
        return self.definition

    @takes(intrinsic_code=FLAG)
    def get_cuda_kernel(self, inputs: Iterable[Any], intrinsic_code: bool = False, device: object = 0) -> str:
        """Return the generated CUDA kernels of all segments as Python for Numba; no GPU is needed.

        Parameters
        ----------
        inputs
            One array or number per fusion input.
        intrinsic_code
            Whether to include the functions that kernels call, before the kernels.
        device
            Accepted as in nvFuser; the same kernels run on any device.
        """
        source = cuda_source(self.plan_for(inputs))
        if not intrinsic_code:
            return source
        called = "\n".join(f"# {file}\n{text}" for file, text in function_sources().items())
        return f"{called}\n{source}"

    @takes(tensor_transforms=FLAG)
    def get_scheduled_ir(
        self, inputs: Iterable[Any], tensor_transforms: bool = False, device: object = 0,
    ) -> str:
        """Return the segments as IR text, each with its scheduler.

        ``tensor_transforms`` adds each tensor's domains and the transforms between them.
        """
        return scheduled_ir(self.plan_for(inputs), tensor_transforms=tensor_transforms)

    @takes(tensor_transforms=FLAG)
    def get_most_recent_scheduled_ir(self, tensor_transforms: bool = False) -> str:
        """Return `get_scheduled_ir` of the last run.

        Raises
        ------
        StateError
            If nothing has run.
        """
        if self._recent is None:
            raise StateError("get_most_recent_scheduled_ir: nothing has run yet; call execute first.")
        return scheduled_ir(self._recent, tensor_transforms=tensor_transforms)

    def get_output_shardings(self) -> list[object]:
        """Return an empty list: fuser_lab does not distribute tensors over devices."""
        return []


def run_plan(
    plan: Plan, flat: Sequence[Any], described: Sequence[Described], device: str | None = None, fusion_id: int = 0,
    like: Sequence[Any] = (),
) -> list[Any]:
    """Return a plan's outputs, and pass a profile to this thread's receiver, if there is one.

    If no input is an array, ``device`` decides where the plan runs: on the CPU, unless it names a GPU.
    """
    arrays = [d for d in described if isinstance(d, TensorSpec)]
    target = device_of(described)
    if not arrays and has_own_memory(device or ""):
        target = target_of(str(device)).name
    flat = with_seeds(plan.fusion, flat, like=like)
    receive = receiver()
    if receive is None:
        return plan.prepare(target).run(flat)
    outputs, profile = measured_run(plan, target, flat, fusion_id=fusion_id)
    receive(profile)
    return outputs


def cuda_source(plan: Plan) -> str:
    """Return the CUDA kernels of a plan, with a comment for each segment that has none."""
    return "\n".join(_segment_source(part) for part in plan.segments)


def _segment_source(part: Segment) -> str:
    try:
        return part.source(CUDA.name)
    except CodegenError as error:
        return f"# segment {part.index}: {error}\n"


def scheduled_ir(plan: Plan, *, tensor_transforms: bool = False) -> str:
    """Return each segment of a plan as IR text under a line with its number and scheduler."""
    blocks: list[str] = []
    for part in plan.segments:
        name = part.scheduler.value if part.scheduler is not None else "none"
        blocks.append(f"Segment {part.index}: {name}\n{math_text(part.fusion)}")
        if tensor_transforms:
            blocks += [_transforms(tv) for tv in part.fusion.tensors.values()]
    return "\n".join(blocks)


def _transforms(tensor: TensorView) -> str:
    domain = tensor.domain
    axes = domain.axes
    lines = [str(tensor), f" logical domain : ({_list_text(domain.logical)})"]
    if domain.root is not None:
        lines.append(f" root domain : ({_list_text(domain.root)})")
    if domain.allocation is not None:
        lines.append(f" allocation domain : ({_list_text(tuple(axes[i] for i in domain.allocation))})")
    if domain.contiguity is not None:
        words = {True: "t", False: "f", None: "n"}
        lines.append(f" contiguity: {' '.join(words[flag] for flag in domain.contiguity)}")
    lines += [f"  {transform}" for transform in domain.transforms]
    return "\n".join([*lines, f" loop domain : ({_list_text(domain.logical)})", ""])


def _list_text(axes: Sequence[object]) -> str:
    return ", ".join(map(str, axes))


class KernelExecutor:
    """A fusion as one kernel, with its manual schedule or the schedule of a scheduler that accepts all of it.

    It is compiled once and can run any number of times. A kernel scheduled by hand also runs on the CPU to compute its
    values: the threads of the CUDA kernel are evaluated in lock step (`fuser_lab.runtime.plan.by_hand`).
    """

    def __init__(self, fusion_id: int = 0, concrete_id: int = 0, runtime_id: int = 0, group_id: int = 0) -> None:
        self._id = fusion_id
        self._plan: Plan | None = None
        self._scheduled: ScheduledFusion | None = None
        self._definition: Fusion | None = None
        self._kernels: dict[tuple[object, ...], ScheduledKernel] = {}
        self.transforms: tuple[Transform, ...] = ()

    def compile(
        self, fusion: object, args: Iterable[Any] = (), launch_constraints: object = None,
        compile_params: object = None, scheduler_type: SchedulerType | None = None,
    ) -> None:
        """Plan a fusion as one kernel.

        Parameters
        ----------
        fusion
            A definition or a fusion; transforms recorded on it are applied.
        args
            Inputs that determine sizes and strides; optional if the definition fixes them.
        launch_constraints, compile_params
            Must be None: fuser_lab chooses the launch.
        scheduler_type
            The scheduler to use; by default the first that accepts the fusion.

        Raises
        ------
        UnsupportedError
            If no scheduler accepts the whole fusion; the message has the reasons.
        ScheduleError
            If the transforms cannot be applied for inputs of these sizes.
        """
        self._own_launches("compile", launch_constraints, compile_params)
        definition = definition_of(fusion)
        flat = flatten(args)
        hand = getattr(fusion, "hand", None)
        if isinstance(hand, HandSchedule) and hand.transforms:
            self._compile_scheduled(definition, hand, flat)
            return
        others = () if scheduler_type is None else tuple(s.value for s in SchedulerType if s is not scheduler_type)
        plan = segment(
            definition, flat if flat or not definition.inputs else None, strategy=_whole,
            options=SegmenterOptions(disabled_schedulers=frozenset(others), forward_inputs=False),
        )
        if len(plan.segments) != 1 or plan.segments[0].scheduler is None:
            said = plan.segments[0].group.answer.text if plan.segments else "there is nothing to compute"
            raise UnsupportedError(f"KernelExecutor: the fusion cannot be one kernel: {said}.")
        self._plan = plan

    def _compile_scheduled(self, definition: Fusion, hand: HandSchedule, flat: Sequence[Any]) -> None:
        has_inputs = bool(flat) or not definition.inputs
        described = tuple(described_input(value) for value in flat) if has_inputs else default_inputs(definition)
        self._definition, self.transforms, self._kernels = definition, hand.transforms, {}
        self._scheduled = replay(bind(definition, described).fusion, hand.transforms, RULES)
        # Raise now, not when the kernel runs, if the inputs do not fit.
        generate_scheduled(self._scheduled)

    def _kernel(self, flat: Sequence[Any]) -> ScheduledKernel:
        """Return the kernel for inputs of these sizes on their device."""
        described = tuple(describe(value) for value in flat)
        target = target_of(device_of(described)).name
        assert self._definition is not None
        deciding = self._definition.deciding_scalars
        inputs = self._definition.inputs
        key = (target, *(
            d.shape if isinstance(d, TensorSpec) else d if i < len(inputs) and inputs[i].name in deciding else None
            for i, d in enumerate(described)
        ))
        if key not in self._kernels:
            scheduled = replay(bind(self._definition, described).fusion, self.transforms, RULES)
            self._kernels[key] = ScheduledKernel(scheduled, target)
        return self._kernels[key]

    @takes(tensor_transforms=FLAG)
    def get_scheduled_ir(self, tensor_transforms: bool = False) -> str:
        """Return the compiled fusion as IR text, with loops, parallel types, memory types and compute-at positions.

        Raises
        ------
        StateError
            If no kernel scheduled by hand has been compiled.
        """
        return scheduled_text(self._by_hand("get_scheduled_ir"), tensor_transforms=tensor_transforms)

    def get_cuda_kernel(self) -> str:
        """Return the CUDA kernel of the manual schedule; raise StateError if none has been compiled."""
        return generate_scheduled(self._by_hand("get_cuda_kernel")).source

    def _by_hand(self, method: str) -> ScheduledFusion:
        if self._scheduled is None:
            raise StateError(f"KernelExecutor.{method}: no kernel scheduled by hand has been compiled.")
        return self._scheduled

    def run(self, args: Iterable[Any], launch_constraints: object = None, compile_params: object = None) -> list[Any]:
        """Return the outputs for inputs of the sizes that the kernel was compiled for.

        Raises
        ------
        StateError
            If nothing was compiled.
        """
        self._own_launches("run", launch_constraints, compile_params)
        flat = flatten(args)
        if self._scheduled is not None:
            kernel, receive = self._kernel(flat), receiver()
            if receive is None:
                return kernel.run(flat)
            outputs, profile = measured_kernel(kernel, flat, fusion_id=self._id)
            receive(profile)
            return outputs
        if self._plan is None:
            raise StateError("KernelExecutor.run: nothing has been compiled; call compile first.")
        with as_user():
            return run_plan(self._plan, flat, [describe(value) for value in flat], None, self._id)

    def is_compiled(self) -> bool:
        """Whether `compile` has succeeded."""
        return self._plan is not None or self._scheduled is not None

    def is_programmatic_dependent_launch_enabled(self) -> bool:
        """Return False: each launch waits for the one before it."""
        return False

    @staticmethod
    def _own_launches(method: str, launch_constraints: object, compile_params: object) -> None:
        if launch_constraints is not None or compile_params is not None:
            raise UnsupportedError(f"KernelExecutor.{method}: launch_constraints and compile_params are not supported.")


def _whole(fusion: Fusion, oracle: object) -> list[list[Expr]]:
    return [list(fusion.tensor_exprs)]
