"""A whole plan as one CUDA graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.errors import InputError
from fuser_lab.runtime.arrays import is_torch
from fuser_lab.runtime.plan.steps import BoundRun


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
