"""PythonProfiler, which measures runs inside its ``with`` block."""

from contextlib import AbstractContextManager
from typing import Self

from fuser_lab.errors import StateError
from fuser_lab.execution.profiling import FusionProfile, receiving


class PythonProfiler:
    """Measures each run of this thread inside its ``with`` block; `profile` is that of the last one.

    Parameters
    ----------
    auto_scheduled
        Accepted for compatibility with nvFuser: runs by ``execute`` and by ``manual_execute`` are both measured.
    """

    def __init__(self, auto_scheduled: bool = True) -> None:
        self.auto_scheduled = auto_scheduled
        self._profile: FusionProfile | None = None
        self._receiving: AbstractContextManager[None] | None = None

    def __enter__(self) -> Self:
        """Begin to measure."""
        if self._receiving is not None:
            raise StateError("PythonProfiler: the profiler is already running.")
        self._receiving = receiving(self._receive)
        self._receiving.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """End measuring."""
        if self._receiving is not None:
            self._receiving.__exit__(None, None, None)
            self._receiving = None

    def _receive(self, profile: FusionProfile) -> None:
        self._profile = profile

    @property
    def profile(self) -> FusionProfile:
        """The last run.

        Raises
        ------
        StateError
            If nothing has run.
        """
        if self._profile is None:
            raise StateError("PythonProfiler: nothing has run inside its `with` block.")
        return self._profile
