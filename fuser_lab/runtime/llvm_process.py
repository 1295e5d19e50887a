"""LLVM in a separate process, so that a module it cannot bear costs time and speed, never the user's process.

Released builds of llvmlite have LLVM's assertions in them. One that fails ends the process: known is one of the loop
vectorizer (LLVM 22), whose two cost models may choose different widths for constant trip counts. `LlvmProcess` hands
modules to `fuser_lab.runtime.llvm_worker`, and when the worker ends, hands the module to a fresh one with less
optimization.
"""

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fuser_lab.errors import warn
from fuser_lab.runtime import llvm_worker

_MOST_MODULES = 100  # of a worker, before a fresh one takes its place: LLVM's passes leave up to 1 MB for each
_STARTS = 3  # of a worker that ends itself because it was not asked, just when it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What LLVM does with a module: speed level 0 to 3, and what it vectorizes, in each of Numba's two runs.

    ``rolled`` keeps loops from being unrolled before they are vectorized; a third run unrolls them.
    """

    cheap: tuple[int, bool, bool]
    full: tuple[int, bool, bool]
    rolled: bool = False

    def safer(self) -> "tuple[Pipeline, ...]":
        """Return the pipelines to try when LLVM fails with this one: scalar loops, then hardly any optimization."""
        scalar = Pipeline(cheap=(self.cheap[0], False, False), full=(self.full[0], False, False))
        return scalar, Pipeline(cheap=(0, False, False), full=(0, False, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A module as bitcode and how to compile it; see `llvm_worker.compiled`."""

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
    """A module that LLVM refuses, or fails with."""


class WorkerEndedError(LlvmError):
    """The worker ended while it compiled."""


def worker_command(options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a worker, with options of LLVM itself."""
    found = find_spec("llvmlite")
    assert found is not None
    assert found.origin is not None
    # Neither the user's modules nor what the environment runs at start: they cost more than llvmlite does.
    return [sys.executable, "-I", "-S", llvm_worker.__file__, str(Path(found.origin).parents[1]), *options]


class LlvmProcess:
    """A worker process, started when it is needed and again when it has ended; any number of threads may ask."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._answered = 0  # modules, by the worker
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def start(self) -> None:
        """Start the worker if there is none, and return before it is ready.

        Raises
        ------
        OSError
            If the system lets this process start no other.
        """
        with self._lock:
            self._running()

    def compile(self, request: Request) -> Compiled:
        """Return a compiled module; with a warning where LLVM could not optimize it as it was asked to.

        Where this process may start no other, LLVM runs in it and vectorizes no loops.

        Raises
        ------
        LlvmError
            If LLVM refuses the module, or fails however little it optimizes.
        """
        try:
            self.start()
        except OSError:
            head = _head(request, request.pipeline.safer()[0])
            bitcode, machine_code = llvm_worker.compiled(request.bitcode, head)
            return Compiled(bitcode=bitcode, machine_code=machine_code)
        for pipeline in (request.pipeline, *request.pipeline.safer()):
            try:
                compiled = self.attempt(request, pipeline)
            except WorkerEndedError:
                continue
            if pipeline != request.pipeline:
                msg = (
                    f"LLVM fails with {request.name} as it would optimize it; it is compiled without vectorized loops, "
                    "and slower than others."
                )
                warn(msg, RuntimeWarning)
            return compiled
        msg = f"LLVM fails with {request.name} at every optimization level."
        raise LlvmError(msg)

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
            found, parts = self._asked(_head(request, chosen), request.bitcode)
        if found["error"] is not None:
            msg = f"LLVM refuses {request.name}: {found['error']}"
            raise LlvmError(msg)
        return Compiled(bitcode=parts[0], machine_code=parts[1])

    def close(self) -> None:
        """End the worker, if there is one."""
        with self._lock:
            self._end()

    def _asked(self, head: dict[str, Any], bitcode: bytes) -> tuple[dict[str, Any], list[bytes]]:
        for _ in range(_STARTS):
            worker = self._running()
            assert worker.stdin is not None
            assert worker.stdout is not None
            try:
                with contextlib.suppress(BrokenPipeError, ConnectionError):
                    llvm_worker.send(worker.stdin, head, bitcode)
                answer = llvm_worker.receive(worker.stdout)
            except BaseException:
                # An answer that nobody reads would be taken for that to the next request.
                self._end(wait=0)
                raise
            if answer is not None:
                self._answered += 1
                if self._answered >= _MOST_MODULES:
                    self._end()
                return answer
            if self._end() != 0:
                break
        msg = "the process that LLVM runs in ended."
        raise WorkerEndedError(msg)

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._worker is not None and self._worker.poll() is not None:
            self._end()
        if self._worker is None:
            # Ctrl-C goes to all processes of a terminal's group: not to this one, in a separate session.
            self._worker = subprocess.Popen(  # noqa: S603 - this program, with arguments of our own
                self._command or worker_command(_options()), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )
        return self._worker

    def _end(self, wait: float = 1) -> int | None:
        """Forget the worker and return its exit status; None if it has to be stopped, after seconds to wait."""
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

    def _forked(self) -> None:
        """Leave the worker to the process that this one is a copy of."""
        self._lock = threading.Lock()
        if self._worker is not None:
            self._worker.returncode = 0  # so that it is not waited for
            self._worker, self._answered = None, 0


def _head(request: Request, pipeline: Pipeline) -> dict[str, Any]:
    """Return the head of the message that asks for a request."""
    return {
        "layout": request.layout, "machine": request.machine, "steps": [pipeline.cheap, pipeline.full],
        "rolled": pipeline.rolled, "refprune": request.refprune,
    }


def _options() -> tuple[str, ...]:
    """Return the options of LLVM that Numba has set in this process."""
    from numba.core import config

    return ("-vector-library=SVML",) if getattr(config, "USING_SVML", False) else ()


LLVM = LlvmProcess()
