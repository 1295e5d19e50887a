"""LLVM in a separate process, so that a module that crashes it costs time and speed, but not the user's process.

Released builds of llvmlite are compiled with LLVM's assertions, and one that fails ends the process. A known case is
the loop vectorizer of LLVM 22, whose two cost models may choose different widths for constant trip counts.
`LlvmProcess` passes modules to `fuser_lab.runtime.cpu.llvm_worker`, and if the worker ends, passes the module to a new
one with less optimization.
"""

import atexit
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fuser_lab.errors import warn
from fuser_lab.process.forks import after_fork, fork_waits_for, new_lock
from fuser_lab.runtime.cpu import llvm_worker

_MOST_MODULES = 100  # per worker, before a new one replaces it: LLVM's passes leak up to 1 MB per module
_STARTS = 3  # attempts, because an idle worker may end itself just as a request arrives


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The passes of LLVM: speed level 0 to 3, and what is vectorized, in each of Numba's two runs over a module.

    ``rolled`` prevents loops from being unrolled before they are vectorized; a third run unrolls them.
    """

    cheap: tuple[int, bool, bool]
    full: tuple[int, bool, bool]
    rolled: bool = False

    def safer(self) -> "tuple[Pipeline, ...]":
        """Return the pipelines to try if LLVM fails with this one: scalar loops, then minimal optimization."""
        scalar = Pipeline(cheap=(self.cheap[0], False, False), full=(self.full[0], False, False))
        return scalar, Pipeline(cheap=(0, False, False), full=(0, False, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A module as bitcode, and how to compile it; see `llvm_worker.compile_module`."""

    name: str
    bitcode: bytes
    layout: str
    machine: dict[str, Any]
    pipeline: Pipeline
    refprune: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A module after all passes, as bitcode, and its machine code as an object file."""

    bitcode: bytes
    machine_code: bytes


class LlvmError(RuntimeError):
    """LLVM refuses a module, or fails with it."""


class WorkerEndedError(LlvmError):
    """The worker ended during a compilation."""


def worker_command(options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a worker, with options of LLVM itself."""
    package = find_spec("llvmlite")
    assert package is not None
    assert package.origin is not None
    # Load neither the user's modules nor startup code of the environment, which take longer than llvmlite.
    return [sys.executable, "-I", "-S", llvm_worker.__file__, str(Path(package.origin).parents[1]), *options]


class LlvmProcess:
    """A worker process that is started when needed and restarted after it ended; safe for any number of threads."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = command
        self._lock = new_lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._answered = 0  # modules, by the current worker
        atexit.register(self.close)
        # A request that is copied half-way would be sent twice, because a pipe's buffer is written when it is closed.
        fork_waits_for(self._lock)
        after_fork(self._after_fork)

    def start(self) -> None:
        """Start the worker if there is none; return before it is ready.

        Raises
        ------
        OSError
            If the system does not let this process start another one.
        """
        with self._lock:
            self._running()

    def compile(self, request: Request) -> Compiled:
        """Return a compiled module; warn if LLVM could not optimize it as requested.

        If this process cannot start another one, LLVM runs in this process and does not vectorize loops.

        Raises
        ------
        LlvmError
            If LLVM refuses the module, or fails at every optimization level.
        """
        try:
            self.start()
        except OSError:
            head = _head(request, request.pipeline.safer()[0])
            bitcode, machine_code = llvm_worker.compile_module(request.bitcode, head)
            return Compiled(bitcode=bitcode, machine_code=machine_code)
        for pipeline in (request.pipeline, *request.pipeline.safer()):
            try:
                compiled = self.attempt(request, pipeline)
            except WorkerEndedError:
                continue
            if pipeline != request.pipeline:
                msg = (
                    f"LLVM fails to optimize {request.name}; it is compiled without vectorized loops, "
                    "so it runs more slowly."
                )
                warn(msg, RuntimeWarning)
            return compiled
        raise LlvmError(f"LLVM fails to compile {request.name} at every optimization level.")

    def attempt(self, request: Request, pipeline: Pipeline | None = None) -> Compiled:
        """Return a compiled module.

        Raises
        ------
        WorkerEndedError
            If LLVM ended the worker.
        LlvmError
            If LLVM refuses the module.
        """
        chosen = pipeline or request.pipeline
        with self._lock:
            answer, parts = self._ask(_head(request, chosen), request.bitcode)
        if answer["error"] is not None:
            raise LlvmError(f"LLVM refuses {request.name}: {answer['error']}")
        return Compiled(bitcode=parts[0], machine_code=parts[1])

    def close(self) -> None:
        """End the worker, if there is one."""
        with self._lock:
            self._end()

    def _ask(self, head: dict[str, Any], bitcode: bytes) -> tuple[dict[str, Any], list[bytes]]:
        for _ in range(_STARTS):
            worker = self._running()
            assert worker.stdin is not None
            assert worker.stdout is not None
            try:
                with contextlib.suppress(BrokenPipeError, ConnectionError):
                    llvm_worker.send(worker.stdin, head, bitcode)
                answer = llvm_worker.receive(worker.stdout)
            except BaseException:
                # An unread answer would be mistaken for the answer to the next request.
                self._end(wait=0)
                raise
            if answer is not None:
                self._answered += 1
                if self._answered >= _MOST_MODULES:
                    self._end()
                return answer
            if self._end() != 0:
                break
        raise WorkerEndedError("the LLVM worker process ended.")

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._worker is not None and self._worker.poll() is not None:
            self._end()
        if self._worker is None:
            # Ctrl-C goes to all processes of the terminal's group; a separate session excludes this one.
            self._worker = subprocess.Popen(  # noqa: S603 - this program, with arguments of our own
                self._command or worker_command(_options()), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )
        return self._worker

    def _end(self, wait: float = 1) -> int | None:
        """Drop the worker and return its exit status; None if it had to be stopped after waiting for ``seconds``."""
        worker, self._worker, self._answered = self._worker, None, 0
        if worker is None:
            return None
        assert worker.stdin is not None
        assert worker.stdout is not None
        with contextlib.suppress(OSError):
            worker.stdin.close()
        worker.stdout.close()
        try:
            return worker.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
            return None

    def _after_fork(self) -> None:
        """Leave the worker to the parent of this forked process."""
        if self._worker is not None:
            self._worker.returncode = 0  # so that it is not waited for
            self._worker, self._answered = None, 0


def _head(request: Request, pipeline: Pipeline) -> dict[str, Any]:
    """Return the header of the message for a request."""
    return {
        "layout": request.layout, "machine": request.machine, "steps": [pipeline.cheap, pipeline.full],
        "rolled": pipeline.rolled, "refprune": request.refprune,
    }


def _options() -> tuple[str, ...]:
    """Return the options of LLVM that Numba has set in this process."""
    from numba.core import config

    return ("-vector-library=SVML",) if getattr(config, "USING_SVML", False) else ()


LLVM = LlvmProcess()
