"""The exceptions, as a small tree.

The second base of each is the one that users of nvFuser's Python API already catch: ``RuntimeError`` for an illegal
definition or size, ``TypeError`` for a wrong Python type, ``NotImplementedError`` for an empty definition and
``AssertionError`` for misuse of state. `UnsupportedError` deliberately derives from none of them.
"""

import sys
import warnings
from types import FrameType

_LONGEST = 8000  # characters of a text
_PASSED_THROUGH = frozenset({"fuser_lab", "fuser_lab_widgets", "torch", "numba", "functools", "contextlib"})


class FuserLabError(Exception):
    """Base of every error that fuser_lab raises deliberately; messages over 8,000 characters lose their middle."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(_shorten(argument) if isinstance(argument, str) else argument for argument in args))


def _shorten(text: str) -> str:
    left = len(text) - _LONGEST
    if left <= 0:
        return text
    return f"{text[: _LONGEST // 2]}\n... ({left:,} characters are left out here) ...\n{text[-(_LONGEST // 2) :]}"


class DefinitionError(FuserLabError, RuntimeError):
    """An op or a fusion that cannot be defined as written."""


class ArgumentTypeError(FuserLabError, TypeError):
    """An argument of a Python type that the function does not accept."""


class EmptyDefinitionError(FuserLabError, NotImplementedError):
    """An empty fusion, or one without outputs, where a complete one is needed."""


class UnknownNameError(FuserLabError, AttributeError):
    """A name that exists neither in nvFuser nor in fuser_lab."""


class StateError(FuserLabError, AssertionError):
    """A call that is not allowed in the object's current state."""


class ClosedDefinitionError(StateError, RuntimeError):
    """An op outside an open definition; nvFuser, which then has no fusion to record into, raises RuntimeError."""


class InputError(FuserLabError, RuntimeError):
    """Inputs that do not fit the fusion: number, rank, dtype, device, size or kind."""


class PositionError(InputError, IndexError):
    """An index outside of its axis, which torch refuses by an IndexError or by a RuntimeError."""


class UnsupportedDeviceError(InputError, ValueError):
    """An array on a device that no fusion runs on."""


class UnsupportedDtypeError(InputError, KeyError):
    """An array of a dtype that no fusion supports."""

    def __str__(self) -> str:
        """Return the sentence, without the quotes that KeyError adds."""
        return str(self.args[0])


class OutOfMemoryError(FuserLabError, RuntimeError, MemoryError):
    """Not enough memory for a tensor; the message says how much is requested, and where."""


class ValidationError(FuserLabError, RuntimeError, AssertionError):
    """Results that differ from the reference; the message names the worst element."""


class UnsupportedError(FuserLabError):
    """A feature of nvFuser that fuser_lab does not implement."""


class UnsupportedNameError(UnsupportedError, AttributeError):
    """The name of a feature that is not implemented; ``hasattr`` is False for it."""


class VerificationError(FuserLabError, RuntimeError):
    """An IR object that breaks one of its invariants."""


class SegmentationError(FuserLabError, RuntimeError):
    """A fusion that cannot be segmented under the given options."""


class FusionContractError(FuserLabError, AssertionError):
    """Ops that a contract wants in common kernels, and that a compiler parts; the message says which, and why.

    ``partition`` is the `fuser_lab.contracts.partition.Partition`, ``plans`` are the plans behind it, and ``script`` is
    the smallest function that still parts, as Python code; an empty text if there is none.
    """

    def __init__(self, text: str, partition: object = None, plans: tuple[object, ...] = (), script: str = "") -> None:
        super().__init__(text)
        self.partition, self.plans, self.script = partition, plans, script


class IllegalEdit(FuserLabError, RuntimeError):  # noqa: N818 - reads as the sentence that it is
    """An edit, such as a cut or a glue, that would make an illegal plan; the message says why."""


def warn(text: str, category: type[Warning]) -> None:
    """Warn at the user's line that led here: the innermost one outside fuser_lab, torch and Numba."""
    level, frame = 1, sys._getframe()  # noqa: SLF001 - inspect.stack() reads the source of each frame
    while frame.f_back is not None and _is_passed_through(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _is_passed_through(frame: FrameType) -> bool:
    # Code that torch generates belongs to no module.
    module = str(frame.f_globals.get("__name__", "torch"))
    return module.partition(".")[0] in _PASSED_THROUGH


class EvaluationWarning(UserWarning):
    """A segment without the kernel it should have: the array library evaluates it, and the message says why."""


class RegionWarning(UserWarning):
    """A region of a captured model that torch runs itself, or an annotation without effect; the message says why."""


class CacheWarning(UserWarning):
    """A cache directory that others may write to: nothing is read from it or stored in it; the message says why."""


class LedgerWarning(UserWarning):
    """A damaged file of a ledger: its rows, or some of them, are missing from the answer, and the text says why."""


class TuningWarning(UserWarning):
    """Files of kept parameters that are ignored, because they are damaged or of another format; the text says why."""


class SweepWarning(UserWarning):
    """A worker of a cluster that a sweep leaves out; the message says why."""


class ScheduleError(FuserLabError, RuntimeError):
    """An illegal transform of a schedule by hand, or a schedule without a kernel; the message says why."""


class CodegenError(FuserLabError, RuntimeError):
    """A scheduled segment that a target cannot express."""


class CompilationError(FuserLabError, RuntimeError):
    """Generated source that its compiler refuses; the message names the file in which it is kept."""


class MissingCompilerError(CompilationError):
    """A target whose compiler is not installed, so that no segment has a kernel on it."""
