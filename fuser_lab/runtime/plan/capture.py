"""A whole plan as one CUDA graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fuser_lab.errors import FuserLabError, InputError, UnsupportedError
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.passes import offsets_drawn
from fuser_lab.runtime.arrays import is_torch
from fuser_lab.runtime.plan.memory import Memory
from fuser_lab.runtime.plan.steps import BoundRun, Step
from fuser_lab.targets import target_of


class Capturable(Protocol):
    """The part of a prepared plan that capturing needs."""

    fusion: Fusion
    target: str
    memory: Memory

    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Return the outputs for given inputs."""

    def reusable(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a run that can be passed as ``out`` to the next."""

    def bind(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> BoundRun:
        """Return the plan bound to inputs and outputs."""

    def steps(self, inputs: Sequence[Any] | None = None) -> tuple[Step, ...]:
        """Return the segments with their kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPlan:
    """A plan whose launches are one graph; it reads ``inputs`` and writes ``outputs`` in place.

    ``replay`` starts it on torch's current stream and does not wait.
    """

    inputs: tuple[Any, ...]
    outputs: list[Any]
    launches: int
    replay: Callable[[], None]
    bound: BoundRun  # keeps the memory of intermediates alive

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs, always the same tensors, after copying new inputs over the captured ones.

        Raises
        ------
        InputError
            If the inputs are not tensors of the same shapes, or numbers differ from those captured.
        """
        if len(inputs) != len(self.inputs):
            raise InputError(f"the graph was captured with {len(self.inputs)} inputs, given {len(inputs)}.")
        for number, (here, argument) in enumerate(zip(self.inputs, inputs, strict=True)):
            if not is_torch(here):
                if argument != here:
                    msg = f"input {number} was captured as {here!r}, given {argument!r}; capture the plan again."
                    raise InputError(msg)
            elif not is_torch(argument) or argument.shape != here.shape or argument.dtype != here.dtype:
                said = f"{argument.dtype} {list(argument.shape)}" if is_torch(argument) else type(argument).__name__
                raise InputError(f"input {number} was captured as {here.dtype} {list(here.shape)}, given {said}.")
        for here, argument in zip(self.inputs, inputs, strict=True):
            if is_torch(here) and here is not argument:
                here.detach().copy_(argument)
        self.replay()
        return self.outputs


def capture_plan(plan: Capturable, inputs: Sequence[Any], out: Sequence[Any] | None) -> CapturedPlan:
    """Return a prepared plan as a graph; see `PreparedPlan.captured`."""
    if target_of(plan.target).on_host:
        plan.memory.capture(lambda: None)
    if offsets_drawn(plan.fusion, len(inputs)):
        msg = "the plan draws random numbers, and a graph would draw the same ones in each replay; pass the seeds."
        raise UnsupportedError(msg)
    for value, argument in zip(plan.fusion.inputs, inputs, strict=False):
        if isinstance(value, TensorView) and not (is_torch(argument) and argument.is_cuda):
            msg = f"captured: {value.name} must be a torch tensor on the GPU, given {type(argument).__name__}."
            raise InputError(msg)
    if plan.fusion.aliases:
        msg = "the plan writes over its inputs, and capturing would do so before the first replay; call run instead."
        raise UnsupportedError(msg)
    outputs = plan.run(inputs, out)  # compiles and checks, so that errors appear before the capture
    results = outputs if out is not None else plan.reusable(outputs)
    bound = plan.bind(inputs, results)

    def start() -> None:
        for step in bound.steps:
            step()
        bound.finish()

    try:
        replay = plan.memory.capture(start)
    except FuserLabError:
        raise
    except Exception as error:
        evaluated = [s.evaluated_because for s in plan.steps(inputs) if s.runs and s.generated is None]
        why = f"the array library evaluates a segment ({evaluated[0]})" if evaluated else str(error).split("\n")[0]
        raise UnsupportedError(f"the plan cannot be captured as a CUDA graph: {why}.") from error
    launches = sum(len(s.generated.kernel_ir.phases) for s in plan.steps(inputs) if s.runs and s.generated is not None)
    return CapturedPlan(inputs=tuple(inputs), outputs=bound.outputs, launches=launches, replay=replay, bound=bound)
