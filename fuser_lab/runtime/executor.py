"""A prepared plan: segments compiled, buffers planned, ready to run any number of times from any thread."""

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser_lab.codegen.decompose import decompose
from fuser_lab.codegen.generate import EVALUATED, GeneratedKernel, generate
from fuser_lab.codegen.kernel_ir import ALIGNED
from fuser_lab.codegen.layout import Layout, layout_of
from fuser_lab.codegen.varying import SharedKernels
from fuser_lab.cost.amounts import bytes_label
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import check_count
from fuser_lab.definition.scheduling import RULES
from fuser_lab.dtypes import DataType
from fuser_lab.errors import (
    CodegenError,
    CompilationError,
    EvaluationWarning,
    InputError,
    OutOfMemoryError,
    UnsupportedError,
    warn,
)
from fuser_lab.ir import Fusion, Scalar, TensorView
from fuser_lab.ir.replay import replay
from fuser_lab.ir.transform import Transform
from fuser_lab.passes import offsets_of
from fuser_lab.runtime.ahead import CompileProgress, compile_ahead
from fuser_lab.runtime.arrays import is_torch, may_overlap, shared_with_torch
from fuser_lab.runtime.binding import (
    Slot,
    check_apart,
    check_outs,
    check_places,
    check_writable,
    checked_array,
    checked_scalar,
    itself,
    library_of,
    places_of,
    slot_of,
)
from fuser_lab.runtime.by_hand import generate_scheduled, in_lock_step
from fuser_lab.runtime.capture import CapturedPlan, captured
from fuser_lab.runtime.driver import Launches
from fuser_lab.runtime.evaluate import Origin, evaluate_segment, origins_of, seen
from fuser_lab.runtime.generator import with_seeds
from fuser_lab.runtime.interrupts import import_whole
from fuser_lab.runtime.lending import View, loans_of, shares_of, views_of
from fuser_lab.runtime.memory import Call, Environment, Memory
from fuser_lab.runtime.ready import ReadyRun, ReadyRuns, takes
from fuser_lab.runtime.steps import BoundRun, CancelFlag, Cancelled, Segment, Step
from fuser_lab.runtime.storage import Lifetime, StoragePlan, plan_storage
from fuser_lab.schedule.parameters import LoopChange
from fuser_lab.targets import Later, find, names, target_of

if TYPE_CHECKING:
    from fuser_lab.runtime.host_ready import HostRun, HostRuns

Strides = tuple[tuple[tuple[int, ...], int], ...]  # per tensor, with the alignment of its memory in bytes

KEPT_VARIANTS = 32  # compiled stride patterns per plan, the least recently used go
_KEPT_NAMES = 8 * KEPT_VARIANTS  # strides as given that are known to belong to one of them
_KEPT_IDLE = 2  # environments with storage, per variant
_NO_MEMORY = ("can't allocate memory", "out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED")
_LIBRARY = "the library"  # that results are made with
_QUEUE = "the queue"  # what an environment's storage was last used on
_MOST_BYTES = (1 << 63) - (1 << 12)  # that anyone can ask for, with what alignment adds


@dataclass(slots=True, kw_only=True)
class _Variant:
    """Everything that depends on the strides of the inputs."""

    steps: tuple[Step, ...]
    calls: tuple[tuple[Call, ...], ...]
    layouts: Mapping[str, Layout]
    views: tuple[View, ...]
    storage: StoragePlan
    sizes: Mapping[str, tuple[DataType, int]]  # of values kept in storage
    idle: "deque[Environment]" = field(default_factory=lambda: deque(maxlen=_KEPT_IDLE))
    used: int = 0  # when last, as counted by the plan


class PreparedPlan:
    """A concretized fusion, cut into segments, compiled for one target."""

    def __init__(
        self, fusion: Fusion, segments: Sequence[Segment], memory: Memory, *, allow_fallback: bool,
        evaluate_refused: bool = False, changes: Mapping[int, Sequence[LoopChange]] | None = None,
        schedules: Mapping[int, Sequence[Transform]] | None = None, shared: SharedKernels | None = None,
    ) -> None:
        self.fusion = fusion
        self.segments = tuple(segments)
        self.memory = memory
        self.target = memory.target
        self._on_host = target_of(memory.target).on_host
        self._allow_fallback, self._evaluate_refused = allow_fallback, evaluate_refused
        self._changes, self._schedules, self._shared = changes or {}, schedules or {}, shared
        self.compile_progress: CompileProgress | bool | None = None  # None: a bar in a terminal or notebook
        self._variants: dict[Strides, _Variant] = {}
        self._generated: dict[Strides, tuple[Step, ...]] = {}  # of variants that are compiled at their first run
        self._seen: dict[Strides, _Variant] = {}  # by strides as given, before they are normalized
        self._lock = threading.Lock()
        self._clock = itertools.count()
        self._draws = offsets_of(fusion) > 0
        self._inputs = tuple(slot_of(v) if isinstance(v, TensorView) else v for v in fusion.inputs)
        self._tensors = tuple(slot for slot in self._inputs if isinstance(slot, Slot))
        self._outputs = tuple(slot_of(tv) for tv in fusion.outputs)
        self._returned = tuple(slot for slot in self._outputs if slot.tensor not in fusion.hidden)
        self._slots = {slot.name: slot for slot in self._outputs}
        self._origins = origins_of(fusion)
        self._from = tuple(self._origins.get(slot.tensor) for slot in self._returned)
        self._needed, self._live = self._wanted()
        written = {tv.name for number in self._live for tv in self.segments[number][0].outputs}
        self._computed = tuple(
            slot for slot in self._outputs if slot.name in self._needed | written and slot.tensor not in fusion.inputs
        )
        self._places = places_of(fusion)
        self._borrowed = {name for slot in (*self._tensors, *self._outputs) for name in (slot.name, slot.array)}
        own = [slot.tensor for slot in self._computed if slot.tensor not in self._origins]
        self._loans = loans_of(self.segments, own, self._borrowed)
        self._live -= {loan.segment for loan in self._loans}
        for loan in self._loans:
            self._borrowed |= {loan.intermediate.name, f"{loan.intermediate.name} array"}
        shares = shares_of(self.segments, self._borrowed)
        self._owner = {share.name: share.owner for share in shares}
        self._live -= {share.segment for share in shares}
        self._ready = self._ready_runs()

    def __repr__(self) -> str:
        """Return the target, and who runs the segments."""
        runs = ", ".join(scheduler.value if scheduler else "evaluated" for _, scheduler in self.segments)
        count = len(self.segments)
        return f"PreparedPlan({self.target}, {count} segment{'s' if count != 1 else ''}: {runs})"

    # What a plan is made of

    def _wanted(self) -> tuple[frozenset[str], frozenset[int]]:
        """Return the names of tensors that have to be computed, and the numbers of the segments that run for them.

        Results that are views of inputs are none of them: what leads only to such results needs no segment.
        """
        needed = {tv.name for tv in self.fusion.outputs if not self._is_seen(tv)}
        needed.update(tv.name for tv, _ in self.fusion.aliases)
        live: set[int] = set()
        for number, (segment, _) in reversed(list(enumerate(self.segments))):
            if not needed.isdisjoint(tv.name for tv in segment.outputs):
                live.add(number)
                needed.update(tv.name for tv in segment.tensor_inputs)
        return frozenset(needed), frozenset(live)

    def _is_seen(self, tensor: TensorView) -> bool:
        """Whether a result is seen in the memory of another tensor, so that nothing has to compute it."""
        origin = self._origins.get(tensor)
        return origin is not None and (bool(origin.exprs) or origin.base is not tensor)

    def _ready_runs(self) -> "ReadyRuns | HostRuns | None":
        """Return where runs are kept that are repeated with other arrays; None if a run is more than its calls.

        Each result has to be computed into a separate array, or on the CPU be seen in an input.
        """
        views = [origin for origin in self._from if origin is not None]
        returned = {slot.name for slot in self._returned}
        seen_ones = {slot.name for slot, origin in zip(self._returned, self._from, strict=True) if origin is not None}
        # A segment may compute what is seen in an input as well, for other segments to read.
        exact = {slot.name for slot in self._computed} - seen_ones == returned - seen_ones
        distinct = len(returned) == len(self._returned) and exact
        if not distinct or self.fusion.aliases or self._draws or not takes(self.fusion.inputs):
            return None
        if not self._on_host:
            # Positions in a tensor are not looked at on a GPU; those that are numbers are.
            numbers = any(isinstance(self.fusion.inputs[place.number], Scalar) for place in self._places)
            return None if views or numbers else self.memory.ready_runs(self._returned)
        if any(origin.updated or origin.overwritten for origin in views):
            return None
        check = (lambda inputs: check_places(self._places, inputs, inputs)) if self._places else None
        return self.memory.ready_runs(self._returned, check)

    def prepare(self, inputs: Sequence[Any] | None = None) -> None:
        """Compile for dense inputs, or for the strides of given ones, before the first run."""
        self._variant(self._dense if inputs is None else self._strides(self._imported(inputs)))

    def steps(self, inputs: Sequence[Any] | None = None) -> tuple[Step, ...]:
        """Return the segments with their kernels, for dense inputs or for the strides of given ones."""
        return self._variant(self._dense if inputs is None else self._strides(self._imported(inputs))).steps

    @property
    def storage_bytes(self) -> int:
        """Bytes allocated for intermediates and workspaces of one run with dense inputs."""
        return self._variant(self._dense).storage.nbytes

    @property
    def _dense(self) -> Strides:
        return tuple((slot.dense, ALIGNED) for slot in self._tensors)

    def _strides(self, arrays: Sequence[Any]) -> Strides:
        given = zip(self._inputs, arrays, strict=True)
        memory = self.memory
        return tuple(
            (memory.element_strides(array), memory.alignment(array)) for slot, array in given if isinstance(slot, Slot)
        )

    def _variant(self, given: Strides) -> _Variant:
        found = self._seen.get(given)
        if found is not None:
            found.used = next(self._clock)
            return found
        key = tuple(
            (slot.normal(strides), alignment) for slot, (strides, alignment) in zip(self._tensors, given, strict=True)
        )
        with self._lock:
            found = self._variants.get(key)
            if found is None:
                found = self._variants[key] = self._compiled(key)
            found.used = next(self._clock)
            if len(self._variants) > KEPT_VARIANTS:
                oldest = min(self._variants, key=lambda k: self._variants[k].used)
                gone = self._variants.pop(oldest)
                # Readers take no lock: they see the old names or the new ones.
                self._seen = {strides: variant for strides, variant in self._seen.items() if variant is not gone}
            if len(self._seen) >= _KEPT_NAMES:
                self._seen = {}
            self._seen[given] = found
            return found

    def generated(self, strides: Sequence[tuple[int, ...]]) -> tuple[GeneratedKernel, ...]:
        """Return the kernels for aligned inputs of these strides; a later run of such inputs compiles the same ones.

        They are none if they have been compiled.
        """
        key = tuple((slot.normal(given), ALIGNED) for slot, given in zip(self._tensors, strides, strict=True))
        with self._lock:
            if key in self._variants:
                return ()
            if key not in self._generated:
                self._generated[key] = self._steps(key)
            return _kernels_of(self._generated[key])

    def _steps(self, key: Strides) -> tuple[Step, ...]:
        strides = {slot.name: given for slot, (given, _) in zip(self._tensors, key, strict=True)}
        alignment = {slot.name: given for slot, (_, given) in zip(self._tensors, key, strict=True)}
        views = self._views(key)
        live = self._live - {view.segment for view in views}
        known: dict[str, tuple[int, ...] | Layout] = {**strides, **{view.name: view.layout for view in views}}
        return tuple(
            replace(self._step(number, segment, scheduler, known, alignment), runs=number in live)
            for number, (segment, scheduler) in enumerate(self.segments)
        )

    def _layouts(self, key: Strides) -> dict[str, Layout]:
        return {slot.name: layout_of(slot.tensor, given) for slot, (given, _) in zip(self._tensors, key, strict=True)}

    def _compiled(self, key: Strides) -> _Variant:
        views = self._views(key)
        steps = self._generated.pop(key, None) or self._steps(key)
        sizes: dict[str, tuple[DataType, int]] = {}
        compile_ahead(_kernels_of(steps), self.memory.capability(), self.compile_progress)
        steps, calls = self._ready_calls(steps)
        return _Variant(
            steps=steps,
            calls=calls,
            layouts=self._layouts(key),
            views=views,
            storage=self._storage(steps, sizes, {view.name for view in views}),
            sizes=sizes,
        )

    def _step(
        self, number: int, segment: Fusion, scheduler: SchedulerType | None,
        strides: Mapping[str, tuple[int, ...] | Layout], alignment: Mapping[str, int],
    ) -> Step:
        if scheduler is None or scheduler in EVALUATED:
            reason = scheduler.value if scheduler else "no scheduler accepts it"
            return Step(fusion=segment, scheduler=scheduler, generated=None, evaluated_because=reason)
        here = {tv.name: strides[tv.name] for tv in segment.tensor_inputs if tv.name in strides}
        if number in self._schedules:
            layouts = tuple(
                (layout_of(tv, here.get(tv.name)), alignment.get(tv.name, ALIGNED)) for tv in segment.tensor_inputs
            )
            scheduled = replay(decompose(segment), self._schedules[number], RULES)
            kernel = generate_scheduled(scheduled, layouts=layouts, outputs=segment.outputs)
            return Step(fusion=segment, scheduler=scheduler, generated=kernel, in_lock_step=self._on_host)
        try:
            kernel = generate(
                segment, scheduler, self.target, strides=here, alignment=alignment,
                changes=self._changes.get(number, ()), device=self.memory.gpu, shared=self._shared,
            )
        except CodegenError as error:
            if not self._allow_fallback:
                raise
            made = ", ".join(tv.name for tv in segment.outputs)
            msg = f"the segment of {made} has no {self.target} kernel, the array library evaluates it: {error}"
            warn(msg, EvaluationWarning)
            return Step(fusion=segment, scheduler=scheduler, generated=None, evaluated_because=str(error))
        return Step(fusion=segment, scheduler=scheduler, generated=kernel)

    def _ready_calls(self, steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[tuple[Call, ...], ...]]:
        """Return the steps with what runs them; what a compiler refuses is evaluated if the caller allowed it."""
        found: list[tuple[Step, tuple[Call, ...]]] = []
        for step in steps:
            if not step.runs:
                found.append((step, ()))
                continue
            if step.generated is not None and step.in_lock_step:
                found.append((step, (in_lock_step(step.generated),)))
                continue
            if step.generated is not None:
                try:
                    found.append((step, tuple(self.memory.calls(step.generated))))
                    continue
                except CompilationError as error:
                    if not self._evaluate_refused:
                        raise
                    warn(f"{error} The array library evaluates the segment.", EvaluationWarning)
                    step = replace(step, generated=None, evaluated_because=str(error))  # noqa: PLW2901
            found.append((step, (self._evaluation(step.fusion),)))
        return tuple(step for step, _ in found), tuple(calls for _, calls in found)

    def _evaluation(self, segment: Fusion) -> Call:
        inputs = [(v.name, f"{v.name} array" if isinstance(v, TensorView) else v.name) for v in segment.inputs]
        by_torch = self._on_host and _is_faster_by_torch(segment)
        targets = [tv.name for tv in segment.outputs if tv.name in self._needed and tv not in segment.inputs]

        def call(env: Environment) -> None:
            values = {name: env[place] for name, place in inputs}
            if by_torch and env[_LIBRARY] == "torch":
                values = shared_with_torch(values)
            results = evaluate_segment(segment, values)
            for name in targets:
                self.memory.copy(env[f"{name} array"], results[name])

        return call

    def _views(self, key: Strides) -> tuple[View, ...]:
        """Return the intermediates that kernels read in the memory of inputs, on the CPU.

        CUDA kernels may rely on alignments that such a view breaks.
        """
        return views_of(self.segments, self._layouts(key), self._borrowed) if self.target == "cpu" else ()

    def _storage(
        self, steps: Sequence[Step], sizes: dict[str, tuple[DataType, int]], seen_ones: Collection[str],
    ) -> StoragePlan:
        """Plan the memory of intermediates and workspaces; fill in their dtypes and sizes."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, step in enumerate(steps):
            if not step.runs:
                continue
            for tensor in (*step.fusion.tensor_inputs, *step.fusion.outputs):
                if tensor.name not in self._borrowed and tensor.name not in seen_ones:
                    owner = self._owner.get(tensor.name, tensor.name)
                    first.setdefault(owner, number)
                    last[owner] = number
                    sizes[owner] = (tensor.dtype, layout_of(tensor).size)
            for buffer in step.generated.kernel_ir.workspace if step.generated else ():
                first[buffer.name] = last[buffer.name] = number
                sizes[buffer.name] = (buffer.dtype, max(buffer.size, sizes.get(buffer.name, (buffer.dtype, 0))[1]))
        planned = plan_storage(
            [
                Lifetime(name=name, nbytes=max(size, 1) * dtype.itemsize, first=first[name], last=last[name])
                for name, (dtype, size) in sizes.items()
            ],
        )
        sharing = {name: owner for name, owner in self._owner.items() if owner in sizes}
        sizes.update((name, sizes[owner]) for name, owner in sharing.items())
        block_of = {**planned.block_of, **{name: planned.block_of[owner] for name, owner in sharing.items()}}
        return replace(planned, block_of=block_of)

    @property
    def output_strides(self) -> tuple[tuple[int, ...], ...]:
        """The strides, in elements, of arrays that are made for outputs; views of inputs may lie otherwise."""
        return tuple(slot.dense for slot in self._returned)

    # Running

    @property
    def repeat(self) -> "Callable[[Sequence[Any], Sequence[Any] | None], list[Any] | None] | None":
        """What returns the outputs for inputs and ``out`` of a run like one before, or None if none is alike.

        None where no run of the plan is repeated.
        """
        return None if self._ready is None else self._ready.started

    def taken_run(self) -> "HostRun | None":
        """Take away a kept run on the CPU that needs no more than addresses in place, None if there is none."""
        return None if self._ready is None else self._ready.taken()

    def run(
        self, inputs: Sequence[Any], out: Sequence[Any] | None = None, cancel: CancelFlag | None = None,
    ) -> list[Any]:
        """Return the outputs for given inputs, as arrays of the inputs' library.

        Outputs that are views of inputs lie in the memory of the arrays given, NumPy's and torch's; one that is
        written over an input is that input's array.

        Parameters
        ----------
        inputs
            One array or number per fusion input.
        out
            Arrays to write the outputs to, instead of new ones; they are returned. They may share memory with inputs,
            which are read first, but not with each other. None stands for what is returned without ``out``.
        cancel
            Looked at between segments.

        Raises
        ------
        InputError
            If inputs or ``out`` do not fit the fusion.
        OutOfMemoryError
            If there is not enough memory for some tensor; all that the run had of it is given back.
        Cancelled
            If ``cancel`` was set.
        """
        if self._ready is not None and cancel is None:
            outputs = self._ready.started(inputs, out)
            if outputs is not None:
                return outputs
        with self.memory.active(inputs):
            return self._run(inputs, out, cancel)

    def _run(self, inputs: Sequence[Any], out: Sequence[Any] | None, cancel: CancelFlag | None) -> list[Any]:
        arrays = self._imported(inputs)
        variant = self._variant(self._strides(arrays))
        env = self._environment(variant)
        again = None
        try:
            outputs, finish = self._filled(env, variant, inputs, arrays, out)
            for step, calls in zip(variant.steps, variant.calls, strict=True):
                if cancel is not None and cancel.is_set():
                    raise Cancelled
                self._call(step, calls, env)
            finish()
            again = self._ready_run(self._ready, variant, env, inputs, outputs) if self._ready is not None else None
        except OutOfMemoryError:
            env.clear()
            raise
        finally:
            # The caller's arrays are let go of; the storage is there for the next run.
            for name in (*self._borrowed, *(k for view in variant.views for k in (view.name, f"{view.name} array"))):
                env.pop(name, None)
            if again is not None and self._ready is not None:
                self._ready.keep(again)
            elif env:
                variant.idle.append(env)
        return outputs

    def _ready_run(
        self, ready: "ReadyRuns | HostRuns", variant: _Variant, env: Environment, inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> "ReadyRun | HostRun | None":
        """Return a run to be repeated, or None if it was more than launches that wrote into the outputs."""
        lent: dict[str, list[str]] = {loan.result.name: [loan.intermediate.name] for loan in self._loans}
        for view in variant.views:
            lent.setdefault(view.base, []).append(view.name)
        if any(step.runs and step.generated is None and _reads(step, variant.views) for step in variant.steps):
            return None  # arrays of views begin elsewhere than their bases
        if not isinstance(ready, ReadyRuns):
            calls = [call for calls in variant.calls for call in calls]
            return ready.again(calls, env, self._inputs, self._returned, self._from, inputs, outputs, lent)
        values = [*inputs, *outputs]
        names = [slot.name for slot in (*self._inputs, *self._returned)]
        for value, slot in zip(values, (*self._inputs, *self._returned), strict=True):
            known = type(value) in ready.kinds
            if isinstance(slot, Slot) and not (known and env[slot.name].data_ptr() == value.data_ptr()):
                return None
        launches = self.memory.launches([call for calls in variant.calls for call in calls], env)
        if launches is None:
            return None
        storage = {name: value for name, value in env.items() if name not in self._borrowed}
        words = [
            tuple(word for launch in launches for user in users for word in launch.words.get(user, ()))
            for users in ({name, *lent.get(name, ())} for name in names)
        ]
        row = (Launches(launches),)
        run = ReadyRun(ready.kinds, self.memory.queue(), inputs, outputs, words, row, storage)
        return run if run.is_sound(values) else None

    def bind(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> BoundRun:
        """Return the plan bound to inputs and outputs, to run segment by segment; it keeps storage of its own."""
        with self.memory.active(inputs):
            arrays = self._imported(inputs)
            variant = self._variant(self._strides(arrays))
            env = self._environment(variant)
            outputs, finish = self._filled(env, variant, inputs, arrays, out)
            steps = tuple(
                functools.partial(self._call, step, (_without(self.memory.bound(calls, env)),), env)
                for step, calls in zip(variant.steps, variant.calls, strict=True)
            )
        return BoundRun(steps=steps, outputs=outputs, finish=finish)

    def captured(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> CapturedPlan:
        """Return the plan as one CUDA graph over these inputs and outputs: replayed, it costs the host next to nothing.

        Parameters
        ----------
        inputs
            Torch tensors on the GPU, and numbers. The graph reads the tensors where they lie, and keeps the numbers.
        out
            Tensors to write the outputs to, instead of new ones.

        Raises
        ------
        UnsupportedError
            If the plan does not run on a GPU, draws random numbers (a graph would draw the same ones again), or holds
            something that CUDA cannot capture.
        """
        return captured(self, inputs, out)

    def reusable(self, outputs: Sequence[Any]) -> list[Any]:
        """Return outputs of a run to give as ``out`` to the next.

        There is None for those that lie in the memory of inputs and for arrays that cannot be written to, as JAX's.
        """
        check_outs(self._returned, outputs)
        writable = self.memory.is_writable
        return [
            array if origin is None and writable(array) else None
            for origin, array in zip(self._from, outputs, strict=True)
        ]

    def _call(self, step: Step, calls: tuple[Call, ...], env: Environment) -> None:
        try:
            for call in calls:
                call(env)
        except Exception as error:
            if not _is_exhausted(error):
                raise
        else:
            return
        raise self._exhausted(max(step.fusion.tensors.values(), key=lambda tv: tv.nbytes))

    def _allocated(self, tensor: TensorView, make: Callable[[], Any], nbytes: int | None = None) -> Any:
        """Return new memory, or raise OutOfMemoryError that names the tensor it was for."""
        if nbytes is None or nbytes <= _MOST_BYTES:
            try:
                return make()
            except Exception as error:
                if not _is_exhausted(error):
                    raise
        raise self._exhausted(tensor, nbytes)

    def _exhausted(self, tensor: TensorView, nbytes: int | None = None) -> OutOfMemoryError:
        """Return the error for exhausted memory, after releasing storage kept for other runs."""
        for variant in list(self._variants.values()):
            variant.idle.clear()
        if self._ready is not None:
            self._ready.clear()
        free = self.memory.free_bytes()
        where = "host" if self._on_host else self.memory.label()
        needed = tensor.nbytes if nbytes is None else nbytes
        amounts = bytes_label(needed) if free is None else f"{bytes_label(needed)} of {bytes_label(free)}"
        return OutOfMemoryError(
            f"not enough {where} memory for {tensor.name}, {tensor.dtype.ir_name} "
            f"{list(tensor.shape)}: {needed} bytes are needed{'' if free is None else f', {free} are free'} "
            f"({amounts}).",
        )

    def _fresh(self, slot: Slot) -> tuple[Any, Any]:
        """Return new memory for an output, and the same as an array."""
        tensor = slot.tensor
        make = functools.partial(self.memory.fresh, tensor.dtype, slot.layout.size)
        flat = self._allocated(tensor, make, slot.nbytes)
        return flat, self.memory.logical(flat, tensor)

    def _imported(self, inputs: Sequence[Any]) -> list[Any]:
        """Return inputs as arrays of the memory and as Python numbers, checked against the fusion."""
        inputs = with_seeds(self.fusion, inputs) if self._draws else inputs
        check_count(self.fusion.inputs, inputs)
        load = self.memory.import_input
        try:
            imported = [
                load(checked_array(number, slot, value), slot.tensor) if isinstance(slot, Slot)
                else checked_scalar(number, slot, value)
                for number, (slot, value) in enumerate(zip(self._inputs, inputs, strict=True))
            ]
        except Exception as error:
            if not _is_exhausted(error):
                raise
        else:
            check_places(self._places, inputs, imported)
            return imported
        raise self._exhausted(max(self.fusion.tensor_inputs, key=lambda tv: tv.nbytes))

    def _environment(self, variant: _Variant) -> Environment:
        """Return an environment with storage: an idle one, or a new one."""
        queue = self.memory.queue()
        for _ in range(len(variant.idle)):
            try:
                idle = variant.idle.pop()
            except IndexError:  # another thread was faster
                break
            if idle.get(_QUEUE, queue) == queue:
                return idle
            # A run on another stream may still be using it.
            variant.idle.appendleft(idle)
        blocks: list[Any] = []
        for number, nbytes in enumerate(variant.storage.blocks):
            try:
                blocks.append(self._allocated(
                    self._largest_in(variant, number), functools.partial(self.memory.block, nbytes), nbytes,
                ))
            except OutOfMemoryError:
                # Whoever keeps the error keeps this frame.
                blocks.clear()
                raise
        env: Environment = {_QUEUE: queue}
        for name, (dtype, size) in variant.sizes.items():
            env[name] = self.memory.typed(blocks[variant.storage.block_of[name]], dtype, size)
            if name in self.fusion.tensors:
                env[f"{name} array"] = self.memory.logical(env[name], self.fusion.tensors[name])
        return env

    def _largest_in(self, variant: _Variant, block: int) -> TensorView:
        """Return the largest tensor that lies in a block; workspaces are named after the output of their kernel."""
        names = [name for name in variant.sizes if variant.storage.block_of[name] == block]
        found = [tv for name in names if (tv := self.fusion.tensors.get(name)) is not None]
        return max(found or self.fusion.outputs, key=lambda tv: tv.nbytes)

    def _filled(
        self, env: Environment, variant: _Variant, inputs: Sequence[Any], arrays: Sequence[Any],
        out: Sequence[Any] | None,
    ) -> tuple[list[Any], Callable[[], None]]:
        """Put inputs and outputs into an environment; return the outputs and what is left to do after the run."""
        memory = self.memory
        env[_LIBRARY] = library_of(inputs)[0]
        for slot, array in zip(self._inputs, arrays, strict=True):
            env[slot.name] = array
            if isinstance(slot, Slot):
                env[slot.array] = array
                env[slot.name] = memory.flat(array, slot.tensor.dtype, variant.layouts[slot.name])
        for view in variant.views:
            env[view.name] = env[view.base]
            env[f"{view.name} array"] = seen(env[f"{view.base} array"], view.exprs, env)
        copies: list[tuple[Any, Slot]] = []
        written: dict[str, Any] = {}
        over: list[tuple[Any, TensorView]] = []
        for tensor, source in self.fusion.aliases:
            written[source.name] = self._overwritten(source, inputs, arrays)
            over.append((written[source.name], tensor))
        outputs: list[Any] = [None] * len(self._returned)
        if out is not None:
            check_outs(self._returned, out)
            outputs = list(out)
            given = [(slot, array) for slot, array in zip(self._returned, out, strict=True) if array is not None]
            written.update((f"out for {slot.name}", array) for slot, array in given)
            read = [array for slot, array in zip(self._inputs, arrays, strict=True) if isinstance(slot, Slot)]
            for slot, array in given:
                self._place(env, slot, array, read, copies)
        check_apart(written)
        for slot in self._computed:
            if slot.name not in env:
                env[slot.name], env[slot.array] = self._fresh(slot)
        for loan in self._loans:
            name = loan.intermediate.name
            env[name] = env[loan.result.name]
            env[f"{name} array"] = memory.logical(env[name], loan.intermediate)
        left = [place for place, array in enumerate(outputs) if array is None]

        def finish() -> None:
            kind, like = library_of(inputs) if left else ("", None)
            later: list[tuple[int, Slot, Origin]] = []
            for place in left:
                slot, origin = self._returned[place], self._from[place]
                if origin is None:
                    outputs[place] = memory.export(env[slot.array], kind, like)
                elif origin.updated:
                    later.append((place, slot, origin))
                else:
                    own = None if origin.overwritten else itself(inputs[origin.number], kind, like)
                    outputs[place] = self._view(env, slot, origin, own, arrays[origin.number], kind, like)
            # Everything is read before anything is overwritten.
            sources = [
                *((target, self._result(env, slot)) for target, slot in copies),
                *((target, self._written(env, tensor)) for target, tensor in over),
            ]
            for target, array in sources:
                memory.copy(target, array)
            for place, slot, origin in later:
                own = itself(inputs[origin.number], kind, like)
                outputs[place] = self._view(env, slot, origin, own, env[f"{origin.base.name} array"], kind, like)

        return outputs, finish

    def _view(
        self, env: Environment, slot: Slot, origin: Origin, own: Any, array: Any, kind: str, like: Any,
    ) -> Any:
        """Return a result as it is seen in the caller's own array, or a copy of what is seen in another one."""
        if own is not None:
            # Where strides of the array given make a reshape copy, it needs memory.
            return self._allocated(slot.tensor, functools.partial(seen, own, origin.exprs, env))
        return self.memory.export(self._copied(slot, seen(array, origin.exprs, env)), kind, like)

    def _copied(self, slot: Slot, array: Any) -> Any:
        _, target = self._fresh(slot)
        self.memory.copy(target, array)
        return target

    def _place(
        self, env: Environment, slot: Slot, given: Any, read: Sequence[Any], copies: list[tuple[Any, Slot]],
    ) -> None:
        """Let kernels write into an array of the caller, or note a copy where that cannot be.

        It cannot where no kernel computes it, where layout, place or alignment forbid it, or where kernels may read an
        input from the same memory.
        """
        memory, tensor = self.memory, slot.tensor
        if not memory.is_writable(given):
            msg = f"out for {tensor.name}, of type {type(given).__name__}, cannot be written to."
            raise InputError(msg)
        if not memory.is_native(given) or self._is_seen(tensor):
            copies.append((given, slot))
            return
        array = memory.import_input(given, tensor)
        strides = slot.normal(memory.element_strides(array))
        fits = strides == slot.dense and memory.alignment(array) == ALIGNED
        if slot.name in env or not fits or any(may_overlap(array, x) for x in read):
            copies.append((array, slot))
            return
        env[slot.name], env[slot.array] = memory.flat(array, tensor.dtype, slot.layout), array

    def _result(self, env: Environment, slot: Slot) -> Any:
        """Return what a run computed; what is seen in the memory of another tensor is copied."""
        origin = self._origins.get(slot.tensor)
        if origin is None or not self._is_seen(slot.tensor):
            return self._written(env, slot.tensor)
        return self._copied(slot, seen(env[f"{origin.base.name} array"], origin.exprs, env))

    def _written(self, env: Environment, tensor: TensorView) -> Any:
        """Return what is written over an input; an input is copied, since it may be overwritten itself."""
        array = env[f"{tensor.name} array"]
        return self._copied(self._slots[tensor.name], array) if tensor in self.fusion.inputs else array

    def _overwritten(self, source: TensorView, inputs: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """Return the array that is written to for an input: the caller's own where what is computed with is a copy."""
        number = self.fusion.inputs.index(source)
        array, given = arrays[number], inputs[number]
        check_writable(source.name, given)
        if (is_torch(given) or isinstance(given, np.ndarray)) and not may_overlap(array, given):
            array = given
        return array


def _kernels_of(steps: Sequence[Step]) -> tuple[GeneratedKernel, ...]:
    return tuple(
        step.generated for step in steps if step.runs and step.generated is not None and not step.in_lock_step
    )


def _without(start: Callable[[], None]) -> Call:
    """Return a call whose arguments are in place as one that is given an environment."""
    return lambda _: start()


_FASTER_BY_TORCH = frozenset({"matmul", "linear", "gather", "take_along_axis"})
_FASTER_IF_WIDE = frozenset({"scatter_add", "cumsum", "cumprod", "cummin", "cummax"})


def _is_faster_by_torch(segment: Fusion) -> bool:
    """Whether torch takes a fraction of NumPy's time for a segment on the CPU, and rounds no worse.

    NumPy multiplies floats of 16 bits as Float, looks up and adds at positions one by one, and does not vectorize
    running sums. Torch adds floats of 16 bits without a wider sum.
    """
    ops = {expr.op.name for expr in segment.exprs}
    tensors = segment.tensors.values()
    if any(tv.dtype.is_float8 for tv in tensors):
        return False
    narrow = any(tv.dtype.is_reduced_float for tv in tensors)
    return not ops.isdisjoint(_FASTER_BY_TORCH) or (not narrow and not ops.isdisjoint(_FASTER_IF_WIDE))


def _reads(step: Step, views: Sequence[View]) -> bool:
    return not {tv.name for tv in step.fusion.tensor_inputs}.isdisjoint(view.name for view in views)


def _is_exhausted(error: Exception) -> bool:
    """Whether NumPy, torch, CuPy or the CUDA driver say that there is no more memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def prepare(
    fusion: Fusion, segments: Sequence[Segment], target: str = "cpu", *, allow_fallback: bool = True,
    evaluate_refused: bool = False, compile_now: bool = True,
    changes: Mapping[int, Sequence[LoopChange]] | None = None,
    schedules: Mapping[int, Sequence[Transform]] | None = None, shared: SharedKernels | None = None,
) -> PreparedPlan:
    """Return a plan that is ready to run.

    Parameters
    ----------
    fusion
        The whole fusion, concretized.
    segments
        Segment fusions with their schedulers, in run order; values keep the fusion's names. None as scheduler means
        that no scheduler accepts it: it is evaluated.
    target
        ``"cpu"``, ``"cuda"`` for torch's current device, or a device as ``"cuda:1"``.
    allow_fallback
        Whether a segment that no kernel computes is evaluated by the array library; an EvaluationWarning and its step
        then say why.
    evaluate_refused
        Whether that holds for a segment whose kernel a compiler refuses as well; else a CompilationError is raised.
    compile_now
        Whether kernels for dense inputs are compiled here rather than at the first run.
    changes
        Parameters of kernels given by hand, by the number of the segment.
    schedules
        Transforms given by hand, by the number of the segment. On the CPU the CUDA kernel of such a segment runs in
        lock step.
    shared
        The kernels of the same program at other sizes, with which it is to share compiled code.

    Raises
    ------
    UnsupportedError
        If there is no such target, or no device for it.
    """
    plan = PreparedPlan(
        fusion, segments, _memory(target), allow_fallback=allow_fallback, evaluate_refused=evaluate_refused,
        changes=changes, schedules=schedules, shared=shared,
    )
    if compile_now:
        plan.prepare()
    return plan


def _memory(device: str) -> Memory:
    target = find(device)
    if target is None:
        msg = f"target is {device!r}; plans run on {' and '.join(names())}."
        raise UnsupportedError(msg)
    if target.on_host and isinstance(target.memory, Later):
        import_whole(target.memory.module)
    memory: Memory = target.memory()(target.number(device))
    return memory
