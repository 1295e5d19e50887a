"""What a prepared plan asks of the memory that its data is in, on the CPU or on a GPU."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from fuser_lab.codegen.generate import GeneratedKernel
from fuser_lab.codegen.layout import Layout
from fuser_lab.cost.device import Device
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.runtime.ahead import Capability
from fuser_lab.runtime.binding import Slot
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.ready import ReadyRuns

if TYPE_CHECKING:
    from fuser_lab.runtime.driver import Launch
    from fuser_lab.runtime.host_ready import HostRuns

Call = Callable[[Environment], None]


class Memory(Protocol):
    """Where the data of a plan lies: `HostMemory` or `DeviceMemory`."""

    target: str

    @property
    def gpu(self) -> Device:
        """The GPU whose limits kernels keep; on the CPU nobody asks."""

    def import_input(self, value: Any, tensor: TensorView) -> Any:
        """Return an input as an array of this memory, without copying if it lies here."""

    def is_native(self, value: Any) -> bool:
        """Whether kernels can write to an array of the caller."""

    def is_writable(self, array: Any) -> bool:
        """Whether an array, imported or of the caller, may be written to."""

    def element_strides(self, array: Any) -> tuple[int, ...]:
        """Return strides in elements."""

    def alignment(self, array: Any) -> int:
        """Return the number of bytes, at most `ALIGNED`, that the address of the first element is a multiple of."""

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
        """Return a context in which work goes to this memory's device, in the order of the values' library."""

    def queue(self) -> int:
        """Return what orders the work of a run: runs with different ones may overlap in time."""

    def bound(self, calls: Sequence[Call], env: Environment) -> Callable[[], None]:
        """Return the calls with their arguments in place."""

    def ready_runs(
        self, outputs: Sequence[Slot], check: Callable[[Sequence[Any]], None] | None = None,
    ) -> "ReadyRuns | HostRuns | None":
        """Return where runs are kept that may be repeated with other arrays; None if that saves nothing.

        ``check`` raises for inputs whose values do not fit; it is asked only where inputs are in host memory.
        """

    def launches(
        self, calls: Sequence[Call], env: Environment, shared: dict[str, tuple[Any, ...]] | None = None,
    ) -> "Sequence[Launch] | None":
        """Return the launches of calls with their arguments in place; None if some call is not a launch.

        ``shared`` holds words of launches by name; those that are missing are added.
        """

    def capture(self, start: Callable[[], None]) -> Callable[[], None]:
        """Return what replays everything that a function launches."""

    def free_bytes(self) -> int | None:
        """Return how much memory is free, None if that is not known."""

    def synchronize(self) -> None:
        """Wait until everything started has run."""

    def label(self) -> str:
        """Return the device's name for tables."""
