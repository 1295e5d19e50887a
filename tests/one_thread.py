"""A Python as a browser has it, in a child process: one thread, no processes, no Numba, SciPy or pandas.

``python -m tests.one_thread FILE...`` runs the scripts, and prints what fails.
"""

import importlib.metadata
import os
import runpy
import subprocess
import sys
import threading
import traceback
from typing import Any, NoReturn

MISSING = ("numba", "llvmlite", "numba_cuda", "scipy", "pandas", "torch", "jax")


def restrict() -> None:
    """Take threads, processes and packages away from this process."""

    def no_thread(*_arguments: object, **_options: object) -> NoReturn:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    def no_process(*_arguments: object, **_options: object) -> NoReturn:
        msg = "emscripten does not support processes."
        raise OSError(msg)

    version = importlib.metadata.version

    def version_of(name: str) -> str:
        if name in MISSING:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    threading.Thread.start = no_thread  # type: ignore[method-assign]
    subprocess.Popen.__init__ = no_process  # type: ignore[method-assign]
    os.fork = no_process
    importlib.metadata.version = version_of
    absent: dict[str, Any] = dict.fromkeys(MISSING)
    sys.modules.update(absent)


def main(paths: list[str]) -> int:
    """Run scripts in the restricted process; return how many fail."""
    restrict()
    failed = 0
    for path in paths:
        try:
            runpy.run_path(path, run_name="__main__")
        except Exception:  # noqa: BLE001 - each failure is printed
            traceback.print_exc()
            sys.stderr.write(f"{path} fails.\n")
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
