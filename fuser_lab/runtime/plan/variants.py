"""The kernels and the storage of a prepared plan, for each set of layouts of its inputs and of arrays for results."""

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuser_lab.codegen.kernel_ir import ALIGNED, Layout, layout_of
from fuser_lab.codegen.pipeline import GeneratedKernel, evaluated_because, generate
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.cost.device import Device
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError, CompilationError, EvaluationWarning, MissingCompilerError, warn
from fuser_lab.ir import Fusion, OpKind, TensorView
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.arrays import shared_with_torch
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.evaluate import evaluate_segment
from fuser_lab.runtime.object_files import read_or_make
from fuser_lab.runtime.plan.ahead import compile_ahead
from fuser_lab.runtime.plan.aliased_buffers import StoredView
from fuser_lab.runtime.plan.by_hand import in_lock_step
from fuser_lab.runtime.plan.memory import Call, Memory
from fuser_lab.runtime.plan.parts import PlanParts
from fuser_lab.runtime.plan.steps import Step
from fuser_lab.runtime.plan.storage import Lifetime, StoragePlan, plan_storage
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import segment as segment_fusion
from fuser_lab.targets import target_of, with_blocks
from fuser_lab.targets.cuda_compiler import chosen_compiler

# For each tensor input: strides in elements, and the alignment of its memory in bytes.
InputLayouts = tuple[tuple[tuple[int, ...], int], ...]
# Results that kernels write in another layout than that of new arrays: name and strides in elements.
ResultLayouts = tuple[tuple[str, tuple[int, ...]], ...]
Key = tuple[InputLayouts, ResultLayouts]

KEPT_VARIANTS = 32  # compiled layouts per plan; the least recently used is evicted
_KEPT_NAMES = 8 * KEPT_VARIANTS  # given layouts that are known to belong to one of them
_KEPT_IDLE = 2  # idle environments with storage, per variant


NestedRun = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]  # runs a separate plan on inputs, into outputs
Nested = Callable[[Fusion, Sequence[KernelRequest]], NestedRun]


@dataclass(slots=True, kw_only=True)
class Variant:
    """Everything that depends on the layouts of the inputs, and of arrays given for results."""

    steps: tuple[Step, ...]
    calls: tuple[tuple[Call, ...], ...]
    layouts: Mapping[str, Layout]  # of inputs, and of results that are not written as in new arrays
    results: ResultLayouts
    views: tuple[StoredView, ...]
    storage: StoragePlan
    sizes: Mapping[str, tuple[DataType, int]]  # of values in storage
    idle: "deque[Environment]" = field(default_factory=lambda: deque(maxlen=_KEPT_IDLE))
    used: int = 0  # time of the last use, on the plan's counter


class Variants:
    """The variants of a plan, compiled when first used; the least recently used is evicted.

    ``nested`` prepares a segment as a separate plan on the same device; `fuser_lab.runtime.plan.executor.prepare`
    describes the other options.
    """

    def __init__(
        self, parts: PlanParts, requests: Sequence[KernelRequest], memory: Memory, nested: Nested, *,
        allow_fallback: bool, evaluate_refused: bool, keeps_kernels: bool,
    ) -> None:
        self._parts, self._requests, self._memory, self._nested = parts, requests, memory, nested
        self._generate = kept_kernel if keeps_kernels else generate
        self._allow_fallback, self._evaluate_refused = allow_fallback, evaluate_refused
        target = target_of(memory.target)
        self._on_host = target.on_host
        # Loops over blocks and threads: the CPU evaluates the GPU kernel in lock step.
        self._lowers_loops = target if target.has_blocks else with_blocks()
        self.kept: dict[Key, Variant] = {}
        self.known: dict[Key, Variant] = {}  # by given layouts, before they are normalized
        self._generated: dict[Key, tuple[Step, ...]] = {}  # of variants compiled at their first run
        self._lock = new_lock()
        self._clock = itertools.count()

    @property
    def dense(self) -> InputLayouts:
        """The layouts of dense, aligned inputs."""
        return tuple((slot.dense, ALIGNED) for slot in self._parts.tensors)

    def of(self, layouts: InputLayouts, results: ResultLayouts = ()) -> Variant:
        """Return the variant for inputs and results with these layouts."""
        latest = self.known.get((layouts, results))
        if latest is not None:
            latest.used = next(self._clock)
            return latest
        inputs = tuple(
            (slot.normal(strides), alignment)
            for slot, (strides, alignment) in zip(self._parts.tensors, layouts, strict=True)
        )
        key = inputs, results
        with self._lock:
            latest = self.kept.get(key)
            if latest is None:
                latest = self.kept[key] = self._compile(key)
            latest.used = next(self._clock)
            if len(self.kept) > KEPT_VARIANTS:
                oldest = min(self.kept, key=lambda k: self.kept[k].used)
                gone = self.kept.pop(oldest)
                # Readers do not lock: they see either the old mapping or the new one.
                self.known = {strides: variant for strides, variant in self.known.items() if variant is not gone}
            if len(self.known) >= _KEPT_NAMES:
                self.known = {}
            self.known[layouts, results] = latest
            return latest

    def generated(self, strides: Sequence[tuple[int, ...]]) -> tuple[GeneratedKernel, ...]:
        """Return the kernels to compile for aligned inputs of these strides; None if they have been compiled."""
        inputs = tuple((slot.normal(each), ALIGNED) for slot, each in zip(self._parts.tensors, strides, strict=True))
        key: Key = inputs, ()
        with self._lock:
            if key in self.kept:
                return ()
            if key not in self._generated:
                self._generated[key] = self._steps(key)
            return _kernels_of(self._generated[key])

    def release(self) -> None:
        """Free storage kept for later runs."""
        for variant in list(self.kept.values()):
            variant.idle.clear()

    def _compile(self, key: Key) -> Variant:
        views = self._parts.views(self._layouts(key))
        steps = self._generated.pop(key, None) or self._steps(key)
        compile_ahead(_kernels_of(steps), self._memory.capability())
        steps, calls = self._ready_calls(steps)
        storage, sizes = _storage_of(self._parts, steps, {view.name: view.base for view in views})
        return Variant(
            steps=steps, calls=calls, layouts=self._layouts(key), results=key[1], views=views, storage=storage,
            sizes=sizes,
        )

    def _layouts(self, key: Key) -> dict[str, Layout]:
        """Return the layouts of inputs, and of results that are not written as in new arrays."""
        inputs, results = key
        tensors = zip(self._parts.tensors, inputs, strict=True)
        layouts = {slot.name: layout_of(slot.tensor, input_strides) for slot, (input_strides, _) in tensors}
        return layouts | {name: layout_of(self._parts.outputs[name].tensor, strides) for name, strides in results}

    def _steps(self, key: Key) -> tuple[Step, ...]:
        tensors, (inputs, results) = self._parts.tensors, key
        strides = {slot.name: input_strides for slot, (input_strides, _) in zip(tensors, inputs, strict=True)}
        alignment = {slot.name: input_alignment for slot, (_, input_alignment) in zip(tensors, inputs, strict=True)}
        views = self._parts.views(self._layouts(key))
        live = self._parts.live - {view.segment for view in views}
        layouts: dict[str, tuple[int, ...] | Layout] = {
            **strides, **dict(results), **{view.name: view.layout for view in views},
        }
        # Kernels get the address of the base; the offset of the view is part of its layout.
        alignment.update((view.name, alignment.get(view.base, ALIGNED)) for view in views)
        return tuple(
            replace(self._step(request, layouts, alignment), runs=number in live)
            for number, request in enumerate(self._requests)
        )

    def _step(
        self, request: KernelRequest, strides: Mapping[str, tuple[int, ...] | Layout], alignment: Mapping[str, int],
    ) -> Step:
        segment, scheduler, memory = request.fusion, request.scheduler, self._memory
        tensors = (*segment.tensor_inputs, *segment.outputs)
        request = replace(
            request, target=memory.target, device=memory.gpu, alignment=alignment,
            strides={tv.name: strides[tv.name] for tv in tensors if tv.name in strides},
        )
        reason = evaluated_because(segment, scheduler)
        # On a GPU, evaluating single elements would copy them to the host, wait for it, and prevent a CUDA graph. On
        # the CPU it takes 40 us for three ops, and a kernel 3. Compiling it takes 100 ms, but once: machine code stays
        # on disk, and programs with such segments (counters, factors, losses) run them at every step.
        is_single = scheduler is SchedulerType.NO_OP and _computes(segment)
        if scheduler is None or (reason and not is_single):
            return Step(request=request, generated=None, evaluated_because=reason)
        if request.loops:
            kernel = self._generate(replace(request, target=self._lowers_loops.name))
            return Step(request=request, generated=kernel, in_lock_step=self._lowers_loops.name != memory.target)
        try:
            kernel = self._generate(replace(request, scheduler=SchedulerType.POINTWISE) if is_single else request)
        except CodegenError as error:
            if is_single:
                return Step(request=request, generated=None, evaluated_because=reason)
            if not self._allow_fallback:
                raise
            made = ", ".join(tv.name for tv in segment.outputs)
            msg = f"the segment of {made} has no {memory.target} kernel, so the array library evaluates it: {error}"
            warn(msg, EvaluationWarning)
            return Step(request=request, generated=None, evaluated_because=str(error))
        return Step(request=request, generated=kernel)

    def _ready_calls(self, steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[tuple[Call, ...], ...]]:
        """Return the steps with their calls; a kernel that a compiler refuses is evaluated if the options allow it."""
        ready: list[tuple[Step, tuple[Call, ...]]] = []
        for step in steps:
            if not step.runs:
                ready.append((step, ()))
                continue
            if step.generated is not None and step.in_lock_step:
                ready.append((step, (in_lock_step(step.generated),)))
                continue
            if step.generated is not None:
                try:
                    ready.append((step, tuple(self._memory.calls(step.generated))))
                    continue
                except CompilationError as error:
                    may_evaluate = self._evaluate_refused or step.scheduler is SchedulerType.NO_OP
                    if not may_evaluate and not (self._allow_fallback and isinstance(error, MissingCompilerError)):
                        raise
                    warn(f"{error} The array library evaluates the segment.", EvaluationWarning)
                    step = replace(step, generated=None, evaluated_because=str(error))  # noqa: PLW2901
            ready.append((step, (self._evaluation(step),)))
        return tuple(step for step, _ in ready), tuple(calls for _, calls in ready)

    def _evaluation(self, step: Step) -> Call:
        segment, memory, needed = step.fusion, self._memory, self._parts.needed
        if step.scheduler is SchedulerType.GREEDY and not self._on_host:
            return self._in_parts(segment)
        tensors = [v.name for v in segment.inputs if isinstance(v, TensorView)]
        scalars = [v.name for v in segment.inputs if not isinstance(v, TensorView)]
        on_host = self._on_host
        by_torch = on_host and _is_faster_by_torch(segment)
        targets = [tv.name for tv in segment.outputs if tv.name in needed and tv not in segment.inputs]

        def call(env: Environment) -> None:
            values = {name: env.arrays[name] for name in tensors} | {name: env.arguments[name] for name in scalars}
            if by_torch and env.library == "torch":
                values = shared_with_torch(values)
            into = {} if on_host else {name: env.arrays[name] for name in targets}
            results = evaluate_segment(segment, values, into)
            for name in targets:
                if results[name] is not into.get(name):
                    memory.copy(env.arrays[name], results[name])

        return call

    def _in_parts(self, segment: Fusion) -> Call:
        """Return a function that runs a segment op by op with torch, and with kernels for ops that torch lacks."""
        whole, parts = without_greedy(segment, self._memory.gpu)
        run, memory = self._nested(whole, parts), self._memory
        needed = [tv.name if tv.name in self._parts.needed else None for tv in segment.outputs]
        # A run does not write into tensors that have an element at several positions.
        expanded = [layout_of(tv).size < tv.numel for tv in segment.outputs]

        def call(env: Environment) -> None:
            operands = [
                env.arrays[v.name] if isinstance(v, TensorView) else env.arguments[v.name] for v in segment.inputs
            ]
            targets = [None if name is None else env.arrays[name] for name in needed]
            into = [None if shares else target for target, shares in zip(targets, expanded, strict=True)]
            for target, result, shares in zip(targets, run(operands, into), expanded, strict=True):
                if target is not None and shares:
                    memory.copy(target, result)

        return call


def without_greedy(segment: Fusion, device: Device) -> tuple[Fusion, tuple[KernelRequest, ...]]:
    """Return a segment of Greedy, for which there is no kernel, cut into segments without Greedy."""
    oracle = SchedulerRegistry(device, frozenset({SchedulerType.GREEDY}))
    segmented = segment_fusion(segment, oracle)
    return segmented.fusion, tuple(
        KernelRequest(fusion=group.candidate.narrowed, scheduler=group.scheduler) for group in segmented.groups
    )


def kept_kernel(request: KernelRequest) -> GeneratedKernel:
    """Return the kernel of a request, from the disk if another process has generated it."""
    if request.loops or request.propose or request.kept or request.shared:  # no text determines these
        return generate(request)
    fusion = request.fusion
    names = [value.name for value in fusion.inputs], [[v.name for v in (e, *e.outputs)] for e in fusion.exprs]
    key = (request.key, request.function, names, chosen_compiler())
    return read_or_make("sources", repr(key), lambda: generate(request))


def _kernels_of(steps: Sequence[Step]) -> tuple[GeneratedKernel, ...]:
    return tuple(
        step.generated for step in steps if step.runs and step.generated is not None and not step.in_lock_step
    )


def _computes(segment: Fusion) -> bool:
    """Whether a segment has elements and does more than view them, such as fill a tensor with a number."""
    computed = (OpKind.POINTWISE, OpKind.FACTORY)
    return any(expr.kind in computed for expr in segment.exprs) and all(tv.numel for tv in segment.outputs)


def _storage_of(
    parts: PlanParts, steps: Sequence[Step], seen: Mapping[str, str],
) -> tuple[StoragePlan, Mapping[str, tuple[DataType, int]]]:
    """Return the memory of intermediates and workspaces, and their dtypes and sizes in elements.

    Parameters
    ----------
    parts, steps
        The plan, and its steps.
    seen
        For each intermediate that kernels read in the memory of another tensor, that tensor.
    """
    sizes: dict[str, tuple[DataType, int]] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        if not step.runs:
            continue
        for tensor in (*step.fusion.tensor_inputs, *step.fusion.outputs):
            home = seen.get(tensor.name, tensor.name)
            if home not in parts.unstored:
                owner = parts.owners.get(home, home)
                first.setdefault(owner, number)
                last[owner] = number
                sizes.setdefault(owner, (tensor.dtype, layout_of(tensor).size))
        for buffer in step.generated.kernel_ir.workspace if step.generated else ():
            first[buffer.name] = last[buffer.name] = number
            sizes[buffer.name] = (buffer.dtype, max(buffer.size, sizes.get(buffer.name, (buffer.dtype, 0))[1]))
    planned = plan_storage(
        [
            Lifetime(name=name, nbytes=max(size, 1) * dtype.itemsize, first=first[name], last=last[name])
            for name, (dtype, size) in sizes.items()
        ],
    )
    sharing = {name: owner for name, owner in parts.owners.items() if owner in sizes}
    sizes.update((name, sizes[owner]) for name, owner in sharing.items())
    block_of = {**planned.block_of, **{name: planned.block_of[owner] for name, owner in sharing.items()}}
    return replace(planned, block_of=block_of), sizes


_FASTER_BY_TORCH = frozenset({"matmul", "linear", "gather", "take_along_axis"})
_FASTER_IF_WIDE = frozenset({"scatter_add", "cumsum", "cumprod", "cummin", "cummax", "logcumsumexp"})


def _is_faster_by_torch(segment: Fusion) -> bool:
    """Whether torch evaluates a segment on the CPU much faster than NumPy and as accurately.

    NumPy multiplies 16-bit floats as Float, gathers and scatters one element at a time, and does not vectorize running
    sums. Torch adds 16-bit floats without a wider accumulator.
    """
    ops = {expr.op.name for expr in segment.exprs}
    tensors = segment.tensors.values()
    if any(tv.dtype.is_float8 for tv in tensors):
        return False
    narrow = any(tv.dtype.is_reduced_float for tv in tensors)
    return not ops.isdisjoint(_FASTER_BY_TORCH) or (not narrow and not ops.isdisjoint(_FASTER_IF_WIDE))
