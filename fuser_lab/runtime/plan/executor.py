"""A prepared plan: compiled segments and planned buffers, which any thread can run any number of times."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.errors import FuserLabError, InputError, OutOfMemoryError, PositionError, UnsupportedError
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.passes import offsets_drawn
from fuser_lab.runtime.arrays import is_torch
from fuser_lab.runtime.binding import check_outs
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.gpu.ready import DirectRun
from fuser_lab.runtime.interrupts import import_whole
from fuser_lab.runtime.missed_positions import missed_position
from fuser_lab.runtime.plan.capture import CapturedPlan
from fuser_lab.runtime.plan.memory import Call, Memory
from fuser_lab.runtime.plan.parts import parts_of
from fuser_lab.runtime.plan.repeats import ready_runs_of, repeatable_run
from fuser_lab.runtime.plan.run_memory import RunMemory, is_exhausted
from fuser_lab.runtime.plan.steps import BoundRun, CancelFlag, Cancelled, Step
from fuser_lab.runtime.plan.variants import NestedRun, Variant, Variants
from fuser_lab.targets import CPU, Later, find, names, target_of


class PreparedPlan:
    """A concretized fusion, cut into segments, compiled for one target."""

    def __init__(
        self, fusion: Fusion, requests: Sequence[KernelRequest], memory: Memory, *, allow_fallback: bool,
        evaluate_refused: bool = False, keeps_kernels: bool = False,
    ) -> None:
        self.fusion = fusion
        self.segments = tuple((request.fusion, request.scheduler) for request in requests)
        self.memory = memory
        self.target = memory.target
        self._parts = parts_of(fusion, self.segments)
        self._variants = Variants(
            self._parts, requests, memory, self._nested_run, allow_fallback=allow_fallback,
            evaluate_refused=evaluate_refused, keeps_kernels=keeps_kernels,
        )
        self._run_memory = RunMemory(self._parts, memory, self._release, keeps_layouts=any(r.loops for r in requests))
        self._ready = ready_runs_of(self._parts, memory)

    def __repr__(self) -> str:
        """Return the target, and how each segment runs."""
        runs = ", ".join(scheduler.value if scheduler else "evaluated" for _, scheduler in self.segments)
        count = len(self.segments)
        return f"PreparedPlan({self.target}, {count} segment{'s' if count != 1 else ''}: {runs})"

    # Kernels

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: compiled kernels can be neither."""
        msg = "prepared: a compiled plan cannot be copied or pickled; copy or pickle the plan, and call prepared again."
        raise UnsupportedError(msg)

    def prepare(self, inputs: Sequence[Any] | None = None) -> None:
        """Compile for dense inputs, or for the strides of given inputs, before the first run."""
        self._variant(inputs)

    def steps(self, inputs: Sequence[Any] | None = None) -> tuple[Step, ...]:
        """Return the segments with their kernels, for dense inputs or for the strides of given inputs."""
        return self._variant(inputs).steps

    @property
    def storage_bytes(self) -> int:
        """Bytes allocated for intermediates and workspaces of one run with dense inputs."""
        return self._variant().storage.nbytes

    @property
    def output_strides(self) -> tuple[tuple[int, ...], ...]:
        """The strides, in elements, of new output arrays; views of inputs may have others."""
        return tuple(slot.dense for slot in self._parts.returned)

    def generated(self, strides: Sequence[tuple[int, ...]]) -> tuple[GeneratedKernel, ...]:
        """Return the kernels for aligned inputs of these strides, which a later run of such inputs compiles.

        None if they are already compiled.
        """
        return self._variants.generated(strides)

    def _variant(self, inputs: Sequence[Any] | None = None) -> Variant:
        if inputs is None:
            return self._variants.of(self._variants.dense)
        return self._variants.of(self._run_memory.layouts(self._run_memory.imported(inputs)))

    # Running

    @property
    def repeat(self) -> "Callable[[Sequence[Any], Sequence[Any] | None], list[Any] | None] | None":
        """A function that repeats a previous run for new inputs and ``out``, or returns None if no run matches.

        None if no run of the plan can be repeated.
        """
        return None if self._ready is None else self._ready.started

    def taken_run(self) -> DirectRun | None:
        """Take a stored run that only needs new addresses; None if there is none."""
        return None if self._ready is None else self._ready.taken()

    def run(
        self, inputs: Sequence[Any], out: Sequence[Any] | None = None, cancel: CancelFlag | None = None,
    ) -> list[Any]:
        """Return the outputs for given inputs, as arrays of the inputs' library.

        Outputs that are views of inputs share the memory of the given NumPy or torch arrays; an output that is written
        over an input is that input's array.

        Parameters
        ----------
        inputs
            One array or number per fusion input.
        out
            Arrays to write the outputs to, instead of new ones; they are returned. They may share memory with inputs,
            which are read first, but not with each other. An entry may be None, which returns the output as without
            ``out``.
        cancel
            Checked between segments.

        Raises
        ------
        InputError
            If inputs or ``out`` do not fit the fusion.
        OutOfMemoryError
            If there is not enough memory for some tensor; all memory of the run is freed.
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
        run_memory = self._run_memory
        arrays = run_memory.imported(inputs)
        variant = self._variants.of(run_memory.layouts(arrays), run_memory.result_layouts(out, arrays))
        env = run_memory.environment(variant)
        again, has_storage = None, True
        try:
            outputs, finish = run_memory.filled(env, variant, inputs, arrays, out)
            for step, calls in zip(variant.steps, variant.calls, strict=True):
                if cancel is not None and cancel.is_set():
                    raise Cancelled
                self._call(step, calls, env)
            finish()
            if self._ready is not None:
                again = repeatable_run(self._ready, self._parts, self.memory, variant, env, inputs, outputs)
        except OutOfMemoryError:
            env.clear()
            has_storage = False
            raise
        except PositionError:
            raise missed_position(self.fusion, inputs) from None
        finally:
            run_memory.without_callers(env, variant)
            if again is not None and self._ready is not None:
                self._ready.keep(again)
            elif has_storage:
                variant.idle.append(env)
        return outputs

    def bind(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> BoundRun:
        """Return the plan bound to inputs and outputs, with separate storage, to run segment by segment."""
        with self.memory.active(inputs):
            arrays = self._run_memory.imported(inputs)
            layouts = self._run_memory.layouts(arrays), self._run_memory.result_layouts(out, arrays)
            variant = self._variants.of(*layouts)
            env = self._run_memory.environment(variant)
            outputs, finish = self._run_memory.filled(env, variant, inputs, arrays, out)
            steps = tuple(
                functools.partial(self._call, step, (_without(self.memory.bound(calls, env)),), env)
                for step, calls in zip(variant.steps, variant.calls, strict=True)
            )
        return BoundRun(steps=steps, outputs=outputs, finish=finish)

    def captured(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> CapturedPlan:
        """Return the plan as one CUDA graph over these inputs and outputs; a replay costs the host almost nothing.

        Parameters
        ----------
        inputs
            Torch tensors on the GPU, and numbers. The graph reads the tensors in place, and the numbers are fixed.
        out
            Tensors to write the outputs to, instead of new ones.

        Raises
        ------
        UnsupportedError
            If the plan does not run on a GPU, draws random numbers (a graph would repeat them), or contains something
            that CUDA cannot capture.
        """
        if target_of(self.target).on_host:
            self.memory.capture(lambda: None)
        if offsets_drawn(self.fusion, len(inputs)):
            msg = "the plan draws random numbers, and a graph would draw the same ones in each replay; pass the seeds."
            raise UnsupportedError(msg)
        for value, argument in zip(self.fusion.inputs, inputs, strict=False):
            if isinstance(value, TensorView) and not (is_torch(argument) and argument.is_cuda):
                msg = f"captured: {value.name} must be a torch tensor on the GPU, given {type(argument).__name__}."
                raise InputError(msg)
        if self.fusion.aliases:
            raise UnsupportedError(
                "the plan writes over its inputs, and capturing would do so before the first replay; call run instead.",
            )
        outputs = self.run(inputs, out)  # compiles and checks, so that errors appear before the capture
        results = outputs if out is not None else self.reusable(outputs)
        bound = self.bind(inputs, results)

        def start() -> None:
            for step in bound.steps:
                step()
            bound.finish()

        try:
            replay = self.memory.capture(start)
        except FuserLabError:
            raise
        except Exception as error:
            evaluated = [s.evaluated_because for s in self.steps(inputs) if s.runs and s.generated is None]
            why = f"the array library evaluates a segment ({evaluated[0]})" if evaluated else str(error).split("\n")[0]
            raise UnsupportedError(f"the plan cannot be captured as a CUDA graph: {why}.") from error
        kernels = [s.generated.kernel_ir for s in self.steps(inputs) if s.runs and s.generated is not None]
        return CapturedPlan(
            inputs=tuple(inputs), outputs=bound.outputs, launches=sum(len(kernel.phases) for kernel in kernels),
            replay=replay, bound=bound,
        )

    def reusable(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a run that can be passed as ``out`` to the next.

        An entry is None for outputs in the memory of inputs and for read-only arrays such as JAX's.
        """
        check_outs(self._parts.returned, outputs)
        writable = self.memory.is_writable
        return [
            array if origin is None and writable(array) else None
            for origin, array in zip(self._parts.returned_from, outputs, strict=True)
        ]

    def _call(self, step: Step, calls: tuple[Call, ...], env: Environment) -> None:
        try:
            for call in calls:
                call(env)
        except Exception as error:
            if not is_exhausted(error):
                raise
        else:
            return
        raise self._run_memory.exhausted(max(step.fusion.tensors.values(), key=lambda tv: tv.nbytes))

    def _nested_run(self, fusion: Fusion, requests: Sequence[KernelRequest]) -> NestedRun:
        """Return a function that runs a segment of this plan that is cut into smaller segments."""
        return PreparedPlan(fusion, requests, self.memory, allow_fallback=True, evaluate_refused=True).run

    def _release(self) -> None:
        """Free everything that is kept for later runs."""
        self._variants.release()
        if self._ready is not None:
            self._ready.clear()


def _without(start: Callable[[], None]) -> Call:
    """Wrap a call whose arguments are in place as a call that takes an environment."""
    return lambda _: start()


def prepare(
    fusion: Fusion, requests: Sequence[KernelRequest], target: str = CPU.name, *, allow_fallback: bool = True,
    evaluate_refused: bool = False, compile_now: bool = True, keeps_kernels: bool = False,
) -> PreparedPlan:
    """Return a plan that is ready to run.

    Parameters
    ----------
    fusion
        The whole fusion, concretized.
    requests
        What is asked for each segment, in run order; values keep the fusion's names, and the target, the device and the
        memory of inputs are those of a run. A segment whose scheduler is None is evaluated, because no scheduler
        accepts it. On the CPU, the CUDA kernel of a segment with loops set by hand is evaluated in lock step.
    target
        ``"cpu"``, ``"cuda"`` for torch's current device, or a device such as ``"cuda:1"``.
    allow_fallback
        Whether the array library evaluates a segment that has no kernel; an EvaluationWarning and the step then say
        why.
    evaluate_refused
        Whether this also holds for a segment whose kernel a compiler refuses; otherwise a CompilationError is raised.
    compile_now
        Whether kernels for dense inputs are compiled now rather than at the first run.
    keeps_kernels
        Whether the source of kernels is kept on disk, as machine code is.

    Raises
    ------
    UnsupportedError
        If the target is unknown, or has no device.
    """
    plan = PreparedPlan(
        fusion, requests, _memory(target), allow_fallback=allow_fallback, evaluate_refused=evaluate_refused,
        keeps_kernels=keeps_kernels,
    )
    if compile_now:
        plan.prepare()
    return plan


def _memory(device: str) -> Memory:
    target = find(device)
    if target is None:
        raise UnsupportedError(f"unknown target {device!r}; choose from {', '.join(map(repr, names()))}.")
    if target.on_host and isinstance(target.memory, Later):
        import_whole(target.memory.module)
    memory: Memory = target.memory()(target.number(device))
    return memory
