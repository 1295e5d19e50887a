"""The memory that the kernels of one run use."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Environment:
    """The memory of one run, by the names of tensors, buffers and scalars.

    ``arguments`` holds the kernels' arguments: flat memory, and scalars as Python numbers. ``arrays`` holds the same
    tensors in their shapes, for the array library. ``queue`` orders the work of a run (`Memory.queue`), and ``library``
    allocates its results.
    """

    queue: int = 0
    library: str = "numpy"
    arguments: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> "Environment":
        """Return an environment of the same memory, which keeps it alive."""
        return Environment(
            queue=self.queue, library=self.library, arguments=dict(self.arguments), arrays=dict(self.arrays),
        )

    def put(self, name: str, flat: Any, array: Any) -> None:
        """Put the memory of a tensor under its name."""
        self.arguments[name], self.arrays[name] = flat, array

    def drop(self, name: str) -> None:
        """Drop the memory under a name, if any."""
        self.arguments.pop(name, None)
        self.arrays.pop(name, None)

    def clear(self) -> None:
        """Drop all memory."""
        self.arguments.clear()
        self.arrays.clear()
