"""The interface between a prepared plan and the memory of its data, on the CPU or on a GPU."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from fuser_lab.codegen.kernel_ir import Layout
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.cost.device import Device
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.runtime.binding import Slot
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.gpu.ready import ReadyRuns
from fuser_lab.runtime.waiting import Capability

if TYPE_CHECKING:
    from fuser_lab.runtime.cpu.host_ready import HostRuns
    from fuser_lab.runtime.gpu.driver import Launch

Call = Callable[[Environment], None]


class Memory(Protocol):
    """The memory that holds a plan's data: `HostMemory` or `DeviceMemory`."""

    target: str

    @property
    def gpu(self) -> Device:
        """The GPU whose limits kernels respect; unused on the CPU."""

    def import_input(self, value: Any, tensor: TensorView) -> Any:
        """Return an input as an array in this memory, without copying if it already is."""

    def is_native(self, value: Any) -> bool:
        """Whether kernels can write to an array of the caller."""

    def is_writable(self, array: Any) -> bool:
        """Whether an array, imported or from the caller, may be written to."""

    def element_strides(self, array: Any) -> tuple[int, ...]:
        """Return strides in elements."""

    def alignment(self, array: Any) -> int:
        """Return the alignment in bytes, at most `ALIGNED`, of the address of the first element."""

    def flat(self, array: Any, dtype: DataType, layout: Layout) -> Any:
        """Return the memory of an array as a kernel argument."""

    def block(self, nbytes: int) -> Any:
        """Return uninitialized memory."""

    def typed(self, block: Any, dtype: DataType, size: int) -> Any:
        """Return the beginning of a block as stored elements of a dtype."""

    def fresh(self, dtype: DataType, size: int) -> Any:
        """Return new memory for an output."""

    def logical(self, flat: Any, tensor: TensorView) -> Any:
        """Return dense memory as an array of a tensor's shape and dtype."""

    def export(self, array: Any, kind: str, like: Any) -> Any:
        """Return an output as an array of the inputs' library."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy elements."""

    def calls(self, generated: GeneratedKernel) -> Sequence[Call]:
        """Return the compiled phases of a kernel."""

    def capability(self) -> Capability:
        """Return the compute capability that kernels are compiled for; None for the CPU."""

    def active(self, values: Sequence[Any]) -> AbstractContextManager[object]:
        """Return a context that sends work to this memory's device, in the order of the values' library."""

    def queue(self) -> int:
        """Return the queue that orders the work of a run; runs on different queues may overlap in time."""

    def bound(self, calls: Sequence[Call], env: Environment) -> Callable[[], None]:
        """Return the calls with their arguments in place."""

    def ready_runs(self, outputs: Sequence[Slot]) -> "ReadyRuns | HostRuns | None":
        """Return a store of runs that may be repeated with other arrays; None if that saves nothing."""

    def launches(
        self, calls: Sequence[Call], env: Environment, shared: dict[str, tuple[Any, ...]] | None = None,
    ) -> "Sequence[Launch] | None":
        """Return the launches of calls with their arguments in place; None unless all calls are launches.

        ``shared`` holds words of launches by name; those that are missing are added.
        """

    def capture(self, start: Callable[[], None]) -> Callable[[], None]:
        """Return a function that replays everything that the given function launches."""

    def free_bytes(self) -> int | None:
        """Return the free memory in bytes; None if unknown."""

    def synchronize(self) -> None:
        """Wait until all started work has completed."""

    def label(self) -> str:
        """Return the device's name for tables."""
