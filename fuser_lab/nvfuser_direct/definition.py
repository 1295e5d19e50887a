"""FusionDefinition with nvFuser's members: ops act on the innermost open definition, `fusion` is a separate object.

Everything that runs is `fuser_lab.api.executable.Executable`.
"""

import sys
import traceback
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any, Self

from fuser_lab.api.executable import Executable
from fuser_lab.api.fusion_definition import defined_like, described_array
from fuser_lab.bindings.enums import SchedulerType, own_scheduler
from fuser_lab.cost.verdict import SchedulerType as OwnScheduler
from fuser_lab.definition.scheduling import HandSchedule
from fuser_lab.errors import EmptyDefinitionError, StateError
from fuser_lab.ir import Fusion
from fuser_lab.nvfuser_direct import ops, schedule
from fuser_lab.nvfuser_direct.executors import FusionExecutorCache, torch_like
from fuser_lab.nvfuser_direct.recording import EMPTY, NOTHING, FusionGuard, RecordedFusion, Recorder
from fuser_lab.nvfuser_direct.values import TensorView, Val


class FusionDefinition(Executable):
    """Defines a fusion, and runs it.

    ``with FusionDefinition() as fd:`` makes its fusion the active one. ``repr`` is runnable Python. ``fec`` may be
    set to an executor of an equal fusion (``LRUCache.cache_compile``); ``_fusion`` may then be deleted.
    """

    def __init__(self) -> None:
        self._fusion: RecordedFusion | None = None
        self._guard: FusionGuard | None = None

    def __enter__(self) -> Self:
        """Create a fusion and record into it."""
        if self._recording is not None or self.fec is not None:
            raise StateError("this definition has already been opened; create a new FusionDefinition for a new fusion.")
        self._fusion = RecordedFusion()
        self._guard = FusionGuard(self._fusion)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        """End recording; an exception is printed to stdout, and propagates."""
        if self._guard is not None:
            self._guard.release()
            self._guard = None
        if kind is not None:
            print(f"Exception occurred: {kind} {error}")  # noqa: T201
            traceback.print_tb(trace, file=sys.stdout)

    @property
    def _recording(self) -> RecordedFusion | None:
        """The fusion recorded here; None before ``with`` and once scripts have deleted it."""
        return self.__dict__.get("_fusion")

    @property
    def _recorder(self) -> Recorder:
        fusion = self._recording
        if fusion is None or self._guard is None:
            msg = "inputs and outputs are defined inside `with FusionDefinition() as fd:`, which is not open."
            raise StateError(msg)
        return fusion.recorder

    @property
    def ops(self) -> ModuleType:
        """The module of ops, `fuser_lab.nvfuser_direct.ops`."""
        return ops

    @property
    def sched(self) -> schedule.Sched:
        """The schedule by hand, and queries to schedulers."""
        return schedule.Sched(self.fusion.recorder)

    @property
    def hand(self) -> HandSchedule | None:
        """The schedule by hand; None once the executor's copy of the fusion runs."""
        recorded = self._recording
        return None if recorded is None else recorded.hand

    @property
    def fusion(self) -> RecordedFusion:
        """The fusion; the executor's copy once there is one."""
        if isinstance(self.fec, FusionExecutorCache):
            return self.fec.fusion()
        if self._recording is None:
            raise EmptyDefinitionError(NOTHING)
        return self._recording

    @property
    def recorded_fusion(self) -> Fusion:
        """The recorded fusion, as the rest of the package knows it."""
        # In this order, because others may read them while one thread adopts an executor.
        recorded = self._recording
        if recorded is not None:
            return recorded.definition
        if self.fec is not None:
            return self.fec.definition
        raise EmptyDefinitionError(NOTHING)

    definition = recorded_fusion

    def _executor_cache(self) -> FusionExecutorCache:
        if not isinstance(self.fec, FusionExecutorCache):
            self.adopt(FusionExecutorCache(self.recorded_fusion))
        assert isinstance(self.fec, FusionExecutorCache)
        return self.fec

    def adopt(self, executor: FusionExecutorCache) -> None:
        """Run through an executor from now on, whose copy of the fusion replaces the one recorded here."""
        self.fec = executor
        self.__dict__.pop("_fusion", None)

    def _like(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        return torch_like(flat)

    def _manual_scheduler(self, heuristic_params: object) -> OwnScheduler | None:
        if isinstance(heuristic_params, SchedulerType):
            return own_scheduler(heuristic_params)
        fusion = self._recording
        marked = None if fusion is None else fusion.scheduler
        return super()._manual_scheduler(marked if heuristic_params is None else heuristic_params)

    def validate_definition(self) -> tuple[bool, str]:
        """Return whether there is something to run, and otherwise a sentence that says what is missing."""
        if self.fec is None and self._recording is None:
            return False, NOTHING
        if self.fec is None and self._recording is not None and not self._recording.vals():
            return False, EMPTY
        return super().validate_definition()

    def define_tensor(self, *args: Any, **kwargs: Any) -> TensorView:
        """Add a tensor input.

        The forms are ``(shape, contiguity=False, dtype=DataType.Float, is_cpu=False, stride_order=[])`` and
        ``(sizes, strides, dtype=DataType.Float, static_sizes=False, is_cpu=False)``.
        """
        return self._recorder.tensor_input(*args, **kwargs)

    def define_scalar(self, *args: Any, **kwargs: Any) -> Val:
        """Add a scalar input, or return a constant: ``(dtype=DataType.Double)`` or ``(value, dtype=None)``."""
        return self._recorder.scalar_value(*args, **kwargs)

    def define_vector(self, size: int) -> list[Val]:
        """Add ``size`` integer scalar inputs."""
        recorder = self._recorder
        return [recorder.wrap(handle.val) for handle in recorder.define_vector(size)]

    def from_pytorch(self, tensor: Any, static_sizes: bool = False) -> TensorView:
        """Add a tensor input like a torch tensor, on the CPU or a GPU."""
        handle: TensorView = self._recorder.wrap(
            defined_like(self._recorder, described_array(tensor), static_sizes).val,
        )
        return handle

    from_array = from_pytorch

    def add_output(self, output: Any, alias_input: Any = None, **kwargs: Any) -> None:
        """Make a tensor a result, or write it over an input in place."""
        self._recorder.add_output(output, alias_input, **kwargs)

    def print_math(self, from_outputs_only: bool = True) -> None:
        """Print the fusion as IR text."""
        self.fusion.print_math(from_outputs_only)
