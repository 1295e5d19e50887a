"""A target: everything that differs between CPUs, GPUs and other devices that run kernels, as one record."""

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fuser_lab.errors import DefinitionError

_MOST_DIGITS = 4  # of a device's number


class Form(Enum):
    """How the iterations of a kernel's loops are distributed; schedules and lowering depend only on this."""

    CORES = "loops over cores"
    BLOCKS = "grids of blocks of threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Loads a name of a module when called: parts of a target are above its record, and some of them need Numba."""

    module: str
    name: str

    def __call__(self) -> Any:
        """Return the object with the name."""
        return getattr(importlib.import_module(self.module), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The machine code of a target's kernels as text, which needs no device.

    Parameters
    ----------
    name
        What texts call the language.
    listing
        Loads a function that compiles a generated kernel and returns a text for each phase; lines such as
        ``.loc 1 17`` say which line of the source follows.
    """

    name: str
    listing: Callable[[], Callable[[Any], Sequence[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device type that runs kernels.

    Parameters
    ----------
    name
        Name in calls, as in ``plan.prepare("cuda")``. If its data is not in host memory, torch's type of device too.
    form
        How loops are distributed.
    on_host
        Whether its data is in host memory.
    emitter
        Loads the class that prints Kernel IR (`fuser_lab.codegen.emitter.Emitter`).
    memory
        Loads a function that returns the memory of a device by number, None for the current one
        (`fuser_lab.runtime.plan.memory.Memory`); the memory compiles and launches kernels.
    clock
        Loads the class of the clock that times its kernels (`fuser_lab.runtime.clocks`).
    label
        What texts call its kernels; the name if it is empty.
    current
        Loads a function that returns the name of the current device, such as ``"cuda:0"``; None for a target that
        has one device without a number.
    device
        Loads a function that describes the current device (`fuser_lab.cost.device.Device`); None for a target whose
        rates are measured instead.
    assembly
        The machine code of its kernels as text; None if it is not shown.

    Raises
    ------
    DefinitionError
        If the name is not a lower-case word.
    """

    name: str
    form: Form
    on_host: bool
    emitter: Callable[[], Any]
    memory: Callable[[], Callable[[int | None], Any]]
    clock: Callable[[], Callable[[], Any]]
    label: str = ""
    current: Callable[[], Callable[[], str]] | None = None
    device: Callable[[], Callable[[], Any]] | None = None
    assembly: Assembly | None = None

    def __post_init__(self) -> None:
        """Check the name, and fill in the label."""
        if re.fullmatch("[a-z][a-z0-9_]*", self.name) is None:
            raise DefinitionError(f"Target: name is {self.name!r}; it must be a lower-case word.")
        object.__setattr__(self, "label", self.label or self.name)

    @property
    def has_blocks(self) -> bool:
        """Whether kernels are grids of blocks of threads."""
        return self.form is Form.BLOCKS

    @property
    def is_numbered(self) -> bool:
        """Whether it has several devices, each with a number."""
        return self.current is not None

    @property
    def accepted(self) -> str:
        """The names of its devices, as messages list them."""
        return f"{self.name!r} or a device as '{self.name}:1'" if self.is_numbered else repr(self.name)

    def number(self, device: str) -> int | None:
        """Return the number in a device's name, None if it has none.

        Raises
        ------
        ValueError
            If the name is not that of a device of this target.
        """
        kind, colon, number = device.partition(":")
        is_number = self.is_numbered and number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
        if kind != self.name or (colon and not is_number):
            raise ValueError(f"{device!r} is not a device of target {self.name!r}")
        return int(number) if number else None
