"""A prepared plan: segments compiled, buffers planned, ready to run any number of times from any thread."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser_lab.codegen.generate import EVALUATED, GeneratedKernel, generate
from fuser_lab.codegen.layout import Layout, dense_strides, layout_of
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import CodegenError, InputError, UnsupportedError
from fuser_lab.ir import Fusion, Scalar, TensorView
from fuser_lab.runtime.arrays import describe, kind_of, output_kind
from fuser_lab.runtime.evaluate import evaluate_segment
from fuser_lab.runtime.storage import Lifetime, StoragePlan, plan_storage

Call = Callable[[Mapping[str, Any]], None]
Segment = tuple[Fusion, SchedulerType]


class Cancelled(Exception):  # noqa: N818 - an outcome that the caller asked for
    """Raised between two segments after `CancelFlag.set`."""


class CancelFlag(threading.Event):
    """Set from another thread to end a run or a measurement at the next segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One segment, ready to run: its kernel, or None where the array library evaluates it, and why."""

    fusion: Fusion
    scheduler: SchedulerType
    generated: GeneratedKernel | None
    evaluated_because: str = ""


@dataclass(slots=True, kw_only=True)
class _Variant:
    """Everything that depends on the strides of the inputs."""

    steps: tuple[Step, ...]
    calls: tuple[tuple[Call, ...], ...]
    layouts: Mapping[str, Layout]
    storage: StoragePlan
    sizes: Mapping[str, tuple[DataType, int]]  # of values kept in storage
    idle: "deque[dict[str, Any]]" = field(default_factory=deque)  # environments with allocated storage


@dataclass(slots=True, kw_only=True)
class BoundRun:
    """A plan bound to inputs and outputs: `steps` may be called one by one, any number of times."""

    steps: tuple[Callable[[], None], ...]
    outputs: list[Any]
    finish: Callable[[], None]


class PreparedPlan:
    """A concretized fusion, cut into segments, compiled for one target."""

    def __init__(self, fusion: Fusion, segments: Sequence[Segment], memory: Any, *, allow_fallback: bool) -> None:
        self.fusion = fusion
        self.segments = tuple(segments)
        self.memory = memory
        self.target: str = memory.target
        self._allow_fallback = allow_fallback
        self._variants: dict[Any, _Variant] = {}
        self._lock = threading.Lock()
        self._inputs = fusion.inputs
        self._tensor_inputs = fusion.tensor_inputs
        self._returned = tuple(tv for tv in fusion.outputs if tv not in fusion.hidden)
        self._sizes = {tv.name: layout_of(tv).size for tv in fusion.tensors.values()}
        self._plain_strides = self._dense_key()

    # What a plan is made of

    def prepare(self, inputs: Sequence[Any] | None = None) -> None:
        """Compile for dense inputs, or for the strides of given ones, before the first run."""
        if inputs is None:
            self._variant(self._plain_strides)
        else:
            self._variant(self._key(self._imported(inputs)))

    def steps(self, inputs: Sequence[Any] | None = None) -> tuple[Step, ...]:
        """Return the segments with their kernels, for dense inputs or for the strides of given ones."""
        key = self._plain_strides if inputs is None else self._key(self._imported(inputs))
        return self._variant(key).steps

    def _dense_key(self) -> tuple[tuple[int, ...], ...]:
        return tuple(dense_strides(tv) for tv in self._tensor_inputs)

    def _key(self, arrays: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        """Return the strides of tensor inputs, those of axes of size 0 and 1 left out."""
        found = []
        for tensor, array in zip(self._inputs, arrays, strict=True):
            if isinstance(tensor, TensorView):
                given = self.memory.element_strides(array)
                dense = dense_strides(tensor)
                if tensor.numel == 0:
                    found.append(dense)
                else:
                    found.append(
                        tuple(d if n == 1 else s for n, s, d in zip(tensor.shape, given, dense, strict=True)),
                    )
        return tuple(found)

    def _variant(self, key: tuple[tuple[int, ...], ...]) -> _Variant:
        found = self._variants.get(key)
        if found is None:
            with self._lock:
                found = self._variants.get(key)
                if found is None:
                    found = self._variants[key] = self._compiled(key)
        return found

    def _compiled(self, key: tuple[tuple[int, ...], ...]) -> _Variant:
        strides = {tv.name: given for tv, given in zip(self._tensor_inputs, key, strict=True)}
        steps = tuple(
            self._step(number, segment, scheduler, strides) for number, (segment, scheduler) in enumerate(self.segments)
        )
        calls = tuple(self._calls(step) for step in steps)
        layouts = {tv.name: layout_of(tv, strides[tv.name]) for tv in self._tensor_inputs}
        sizes: dict[str, tuple[DataType, int]] = {}
        return _Variant(
            steps=steps, calls=calls, layouts=layouts, storage=self._storage(steps, sizes), sizes=sizes,
        )

    def _step(
        self, number: int, segment: Fusion, scheduler: SchedulerType, strides: Mapping[str, tuple[int, ...]],
    ) -> Step:
        if scheduler in EVALUATED:
            return Step(fusion=segment, scheduler=scheduler, generated=None, evaluated_because=scheduler.value)
        here = {tv.name: strides[tv.name] for tv in segment.tensor_inputs if tv.name in strides}
        try:
            kernel = generate(segment, scheduler, self.target, f"segment_{number}", here)
        except CodegenError as error:
            if not self._allow_fallback:
                raise
            return Step(fusion=segment, scheduler=scheduler, generated=None, evaluated_because=str(error))
        return Step(fusion=segment, scheduler=scheduler, generated=kernel)

    def _calls(self, step: Step) -> tuple[Call, ...]:
        if step.generated is not None:
            return tuple(self.memory.calls(step.generated))
        return (self._evaluation(step.fusion),)

    def _evaluation(self, segment: Fusion) -> Call:
        targets = [tv for tv in segment.outputs if tv not in segment.inputs]

        def call(env: Mapping[str, Any]) -> None:
            given = {
                v.name: env[f"{v.name} array"] if isinstance(v, TensorView) else env[v.name] for v in segment.inputs
            }
            results = evaluate_segment(segment, given)
            for tensor in targets:
                self.memory.copy(env[f"{tensor.name} array"], results[tensor.name])

        return call

    def _storage(self, steps: Sequence[Step], sizes: dict[str, tuple[DataType, int]]) -> StoragePlan:
        """Plan the memory of intermediates and workspaces; fill in their dtypes and sizes."""
        outside = {tv.name for tv in (*self._tensor_inputs, *self.fusion.outputs)}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, step in enumerate(steps):
            for tensor in (*step.fusion.tensor_inputs, *step.fusion.outputs):
                if tensor.name not in outside:
                    first.setdefault(tensor.name, number)
                    last[tensor.name] = number
                    sizes[tensor.name] = (tensor.dtype, layout_of(tensor).size)
            for buffer in step.generated.kernel_ir.workspace if step.generated else ():
                first[buffer.name] = last[buffer.name] = number
                sizes[buffer.name] = (buffer.dtype, buffer.size)
        lifetimes = [
            Lifetime(name=name, nbytes=max(sizes[name][1], 1) * sizes[name][0].itemsize, first=first[name], last=last[name])
            for name in first
        ]
        return plan_storage(lifetimes)

    # Running

    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None, cancel: CancelFlag | None = None) -> list[Any]:
        """Return the outputs for given inputs, as arrays of the inputs' library.

        Parameters
        ----------
        inputs
            One array or number per fusion input.
        out
            Arrays to write the outputs to, instead of new ones.
        cancel
            Looked at between segments.

        Raises
        ------
        InputError
            If inputs or ``out`` do not fit the fusion.
        Cancelled
            If ``cancel`` was set.
        """
        arrays = self._imported(inputs)
        variant = self._variant(self._key(arrays))
        env = self._environment(variant)
        try:
            outputs, finish = self._fill(env, variant, inputs, arrays, out)
            for calls in variant.calls:
                if cancel is not None and cancel.is_set():
                    raise Cancelled
                for call in calls:
                    call(env)
            finish()
        finally:
            self._release(variant, env)
        return outputs

    def bind(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> BoundRun:
        """Return the plan bound to inputs and outputs, to run segment by segment; it keeps its own storage."""
        arrays = self._imported(inputs)
        variant = self._variant(self._key(arrays))
        env = self._environment(variant)
        outputs, finish = self._fill(env, variant, inputs, arrays, out)

        def step(calls: tuple[Call, ...]) -> Callable[[], None]:
            def run() -> None:
                for call in calls:
                    call(env)

            return run

        return BoundRun(steps=tuple(step(calls) for calls in variant.calls), outputs=outputs, finish=finish)

    def _imported(self, inputs: Sequence[Any]) -> list[Any]:
        """Return inputs as arrays of the memory and as Python numbers, checked against the fusion."""
        if len(inputs) != len(self._inputs):
            msg = f"the fusion has {len(self._inputs)} inputs, given {len(inputs)}."
            raise InputError(msg)
        return [
            self._imported_tensor(number, tensor, value) if isinstance(tensor, TensorView)
            else _scalar(number, tensor, value)
            for number, (tensor, value) in enumerate(zip(self._inputs, inputs, strict=True))
        ]

    def _imported_tensor(self, number: int, tensor: TensorView, value: Any) -> Any:
        if type(value) is np.ndarray and value.dtype == tensor.dtype.numpy and value.shape == tensor.shape:
            return self.memory.import_input(value, tensor)
        if kind_of(value) == "number" and not isinstance(value, np.generic):
            msg = f"expected input {number}, {tensor}, to be an array but got the scalar {value}."
            raise InputError(msg)
        value = np.asarray(value) if isinstance(value, np.generic) else value
        spec = describe(value)
        if isinstance(spec, bool | int | float | complex):
            msg = f"expected input {number}, {tensor}, to be an array but got the scalar {spec}."
            raise InputError(msg)
        if spec.dtype is not tensor.dtype and {spec.dtype, tensor.dtype} != {DataType.Int, DataType.Index}:
            msg = (
                f"expected input {number}, {tensor}, to be bound to a tensor of dtype {tensor.dtype.ir_name}, "
                f"but got a tensor of dtype {spec.dtype.ir_name}."
            )
            raise InputError(msg)
        if spec.shape != tensor.shape:
            msg = f"input {number}, {tensor.name}, has shape {list(spec.shape)}; this plan is for {list(tensor.shape)}."
            raise InputError(msg)
        return self.memory.import_input(value, tensor)

    def _environment(self, variant: _Variant) -> dict[str, Any]:
        """Return an environment with storage: an idle one, or a new one."""
        try:
            return variant.idle.pop()
        except IndexError:
            pass
        blocks = [self.memory.block(nbytes) for nbytes in variant.storage.blocks]
        env: dict[str, Any] = {}
        for name, (dtype, size) in variant.sizes.items():
            env[name] = self.memory.typed(blocks[variant.storage.block_of[name]], dtype, size)
            if name in self.fusion.tensors:
                env[f"{name} array"] = self.memory.logical(env[name], self.fusion.tensors[name])
        return env

    def _release(self, variant: _Variant, env: dict[str, Any]) -> None:
        """Let go of the caller's arrays and keep the storage for the next run."""
        for tensor in (*self._tensor_inputs, *self.fusion.outputs):
            env.pop(tensor.name, None)
            env.pop(f"{tensor.name} array", None)
        variant.idle.append(env)

    def _fill(
        self, env: dict[str, Any], variant: _Variant, inputs: Sequence[Any], arrays: Sequence[Any],
        out: Sequence[Any] | None,
    ) -> tuple[list[Any], Callable[[], None]]:
        """Put inputs and outputs into an environment; return the outputs and what is left to do after the run."""
        memory, fusion = self.memory, self.fusion
        for tensor, array in zip(self._inputs, arrays, strict=True):
            if isinstance(tensor, TensorView):
                env[f"{tensor.name} array"] = array
                env[tensor.name] = memory.flat(array, tensor.dtype, variant.layouts[tensor.name])
            else:
                env[tensor.name] = array
        copies: list[tuple[Any, str]] = []
        outputs: list[Any] = []
        if out is not None and len(out) != len(self._returned):
            msg = f"the fusion returns {len(self._returned)} outputs, given {len(out)} arrays to write to."
            raise InputError(msg)
        kind, like = ("", None) if out is not None else _library(inputs)
        for tensor in fusion.outputs:
            given = out[len(outputs)] if out is not None and tensor not in fusion.hidden else None
            name = f"{tensor.name} array"
            if tensor in fusion.inputs:
                target = memory.logical(memory.fresh(tensor.dtype, self._sizes[tensor.name]), tensor)
                target = self._given_array(given, tensor) if given is not None else target
                copies.append((target, name))
                outputs.append(given if given is not None else memory.export(target, kind, like))
                continue
            target = None if given is None else self._given_array(given, tensor)
            if target is not None and memory.element_strides(target) == dense_strides(tensor):
                env[tensor.name] = memory.flat(target, tensor.dtype, layout_of(tensor))
                env[name] = target
            else:
                env[tensor.name] = memory.fresh(tensor.dtype, self._sizes[tensor.name])
                env[name] = memory.logical(env[tensor.name], tensor)
                if target is not None:
                    copies.append((target, name))
            if tensor not in fusion.hidden:
                outputs.append(given if given is not None else memory.export(env[name], kind, like))
        for tensor, source in fusion.aliases:
            copies.append((self._writable_input(source, arrays), f"{tensor.name} array"))

        def finish() -> None:
            for target, name in copies:
                memory.copy(target, env[name])

        return outputs, finish

    def _given_array(self, given: Any, tensor: TensorView) -> Any:
        spec = describe(given)
        if isinstance(spec, bool | int | float | complex) or spec.shape != tensor.shape or spec.dtype is not tensor.dtype:
            got = spec if isinstance(spec, bool | int | float | complex) else f"{spec.dtype.ir_name} {list(spec.shape)}"
            msg = f"out for {tensor.name} must be {tensor.dtype.ir_name} {list(tensor.shape)}, given {got}."
            raise InputError(msg)
        array = self.memory.import_input(given, tensor)
        if not self.memory.writable(array, given):
            msg = f"out for {tensor.name} cannot be written to."
            raise InputError(msg)
        return array

    def _writable_input(self, source: TensorView, arrays: Sequence[Any]) -> Any:
        array = arrays[self._inputs.index(source)]
        if not self.memory.writable(array, array):
            msg = f"the fusion writes to its input {source.name} in place, but the array given for it is read-only."
            raise InputError(msg)
        return array


def _library(inputs: Sequence[Any]) -> tuple[str, Any]:
    kind = output_kind(inputs)
    return kind, next((v for v in inputs if kind_of(v) == kind), None)


def _scalar(number: int, scalar: Scalar, value: Any) -> Any:
    """Return a scalar input as a Python number of the scalar's kind."""
    if kind_of(value) != "number":
        spec = describe(value)
        rank = len(spec.shape) if not isinstance(spec, bool | int | float | complex) else 0
        msg = f"expected input {number}, {scalar.name}, to be a scalar but got a tensor of rank {rank}."
        raise InputError(msg)
    kind = scalar.dtype.kind
    given = complex(value)
    if kind is Kind.COMPLEX:
        return given
    if given.imag or (kind is not Kind.FLOAT and isinstance(value, float) and not float(value).is_integer()):
        msg = f"scalar value {value} is not compatible with the expected data type: {scalar.dtype.ir_name}."
        raise InputError(msg)
    if kind is Kind.FLOAT:
        return float(value)
    return bool(value) if kind is Kind.BOOL else int(value)


def prepare(
    fusion: Fusion, segments: Sequence[Segment], target: str = "cpu", *, allow_fallback: bool = True,
    compile_now: bool = True,
) -> PreparedPlan:
    """Return a plan that is ready to run.

    Parameters
    ----------
    fusion
        The whole fusion, concretized.
    segments
        Segment fusions with their schedulers, in run order; values keep the fusion's names.
    target
        ``"cpu"`` or ``"cuda"``.
    allow_fallback
        Whether a segment that no kernel computes is evaluated by the array library; its step then says why.
    compile_now
        Whether kernels for dense inputs are compiled here rather than at the first run.

    Raises
    ------
    UnsupportedError
        If there is no such target, or no device for it.
    """
    plan = PreparedPlan(fusion, segments, _memory(target), allow_fallback=allow_fallback)
    if compile_now:
        plan.prepare()
    return plan


def _memory(target: str) -> Any:
    if target == "cpu":
        from fuser_lab.runtime.host import HostMemory  # noqa: PLC0415

        return HostMemory()
    if target == "cuda":
        from fuser_lab.runtime.device import DeviceMemory  # noqa: PLC0415

        return DeviceMemory()
    msg = f"target is {target!r}; plans run on cpu and cuda."
    raise UnsupportedError(msg)

