"""Running fusions that are scheduled by hand as one kernel: on a GPU, or in lock step in NumPy without one.

On the CPU the same CUDA kernel runs with all threads as arrays (`fuser_lab.codegen.kernel_eval`): blocks, threads,
shared memory and predicates behave as on a GPU. This checks correctness, not speed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import Layout, layout_of
from fuser_lab.codegen.pipeline import GeneratedKernel, Layouts, generate_scheduled
from fuser_lab.definition.binding import check_count
from fuser_lab.ir import TensorView
from fuser_lab.ir.transform import ScheduledFusion
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.binding import Slot, checked_array, checked_scalar, library_of, slot_of
from fuser_lab.runtime.environment import Environment
from fuser_lab.targets import target_of


def in_lock_step(generated: GeneratedKernel) -> Callable[[Environment], None]:
    """Return a function of an environment that evaluates a CUDA kernel on the host, in NumPy."""

    def call(env: Environment) -> None:
        evaluate_kernel(generated.kernel_ir, env.arguments)

    return call


class ScheduledKernel:
    """A scheduled fusion with known extents, ready to run any number of times."""

    def __init__(self, scheduled: ScheduledFusion, target: str) -> None:
        self.scheduled, self.target = scheduled, target
        fusion = scheduled.fusion
        self._inputs = tuple(slot_of(v) if isinstance(v, TensorView) else v for v in fusion.inputs)
        self._outputs = tuple(dict.fromkeys(tv for tv in fusion.outputs if tv not in fusion.inputs))
        self._variants: dict[Layouts, Any] = {}  # the calls
        self._lock = new_lock()
        # Kernels can be generated and read without Numba; memory requires it.
        self._memory = target_of(target).memory()(None)
        # A CPU evaluates the kernel of a GPU in lock step.
        self._lowered_for = target if target_of(target).has_blocks else None
        # Generate the kernel now, so that errors do not appear only when it runs.
        self.generated = generate_scheduled(scheduled, target=self._lowered_for)

    @property
    def device_label(self) -> str:
        """Name of the device that the kernel runs on."""
        label: str = self._memory.label()
        return label

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs as arrays of the inputs' library; outputs written over inputs are the given arrays.

        Raises
        ------
        InputError
            If inputs do not fit.
        """
        memory, fusion = self._memory, self.scheduled.fusion
        check_count(fusion.inputs, inputs)
        env = Environment()
        layouts: list[tuple[tuple[int, ...] | Layout, int]] = []
        for number, (slot, value) in enumerate(zip(self._inputs, inputs, strict=True)):
            if not isinstance(slot, Slot):
                env.arguments[slot.name] = checked_scalar(number, slot, value)
                continue
            array = memory.import_input(checked_array(number, slot, value), slot.tensor)
            strides = slot.normal(memory.element_strides(array))
            layouts.append((strides, memory.alignment(array)))
            env.arguments[slot.name] = memory.flat(array, slot.tensor.dtype, layout_of(slot.tensor, strides))
        arrays: dict[TensorView, Any] = {}
        for tensor in self._outputs:
            env.arguments[tensor.name] = memory.fresh(tensor.dtype, layout_of(tensor).size)
            arrays[tensor] = memory.logical(env.arguments[tensor.name], tensor)
        for call in self._calls(tuple(layouts)):
            call(env)
        return self._results(inputs, arrays)

    def _calls(self, layouts: Layouts) -> Any:
        with self._lock:
            if layouts not in self._variants:
                generated = generate_scheduled(self.scheduled, layouts=layouts, target=self._lowered_for)
                calls = self._memory.calls(generated) if self._lowered_for else (in_lock_step(generated),)
                self._variants[layouts] = calls
            return self._variants[layouts]

    def _results(self, inputs: Sequence[Any], arrays: dict[TensorView, Any]) -> list[Any]:
        fusion = self.scheduled.fusion
        originals = dict(zip(fusion.inputs, inputs, strict=True))
        kind, like = library_of(inputs)
        written: dict[TensorView, Any] = {}
        for output, target in fusion.aliases:
            self._memory.copy(originals[target], arrays.get(output, originals.get(output)))
            written[output] = originals[target]
        returned: list[Any] = []
        for tensor in fusion.outputs:
            if tensor in fusion.hidden:
                continue
            if tensor in written or tensor in originals:
                returned.append(written.get(tensor, originals.get(tensor)))
            else:
                returned.append(self._memory.export(arrays[tensor], kind, like))
        return returned
