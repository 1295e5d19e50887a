"""Parallel compilation of kernels: in this process and in others, which write their results to disk.

Numba compiles one kernel at a time per process. If another process cannot compile a kernel, this process tries again
and reports the failure.
"""

import base64
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime import store
from fuser_lab.runtime.gpu.cubins import is_cached, machine_code_of
from fuser_lab.runtime.interrupts import interrupts_deferred, progress_bar
from fuser_lab.runtime.processors import processors
from fuser_lab.runtime.waiting import WAITING, Capability

SHARED_FROM = 4  # kernels; for fewer, starting a process that imports Numba costs more than it saves
MOST_WORKERS = 8  # processes that compile
EACH = 2  # kernels needed to justify starting a process

CompileProgress = Callable[[int, int], None]


def compile_ahead(
    kernels: Sequence[GeneratedKernel], cc: Capability, progress: CompileProgress | bool | None = None,
) -> None:
    """Compile the kernels that are not on disk yet, if there are enough of them for several processes.

    Without a disk cache, other processes cannot pass on their results, and this does nothing.

    Parameters
    ----------
    kernels
        Generated kernels, all for the CPU or all for one GPU.
    cc
        Compute capability of the GPU; None for the CPU.
    progress
        Called as ``progress(done, total)``; None or True shows a bar in a terminal or notebook, False none.
    """
    if not store.is_usable():
        return
    distinct = {kernel.source: kernel for kernel in kernels if kernel.kernel_ir.phases}.values()
    pending = deque(kernel for kernel in distinct if kernel.source not in WAITING and not is_compiled(kernel, cc))
    if len(pending) < SHARED_FROM:
        return
    workers = min(processors() - 1, len(pending) // EACH, MOST_WORKERS)
    if callable(progress):
        _share(pending, cc, workers, progress)
        return
    bar = progress_bar("compiling", len(pending), hidden=progress is False)

    def show(done: int, _: int) -> None:
        bar.update(done - bar.n)

    with contextlib.closing(bar):
        _share(pending, cc, workers, show)


def is_compiled(kernel: GeneratedKernel, cc: Capability) -> bool:
    """Whether the machine code of a kernel is on disk or loaded, or cannot be made because Numba is missing."""
    if cc is not None:
        return is_cached(kernel, cc)
    try:
        from fuser_lab.runtime.cpu_kernels import is_compiled as has_code
    except ModuleNotFoundError:  # the kernels' memory says so
        return True
    return has_code(kernel.source)


def _share(pending: deque[GeneratedKernel], cc: Capability, workers: int, progress: CompileProgress) -> None:
    """Compile all kernels, from the front in this process and from the back in others; always end the others."""
    total, done, lock = len(pending), [0], new_lock()

    def counted() -> None:
        with lock:
            done[0] += 1
            progress(done[0], total)

    with processes(workers) as others:
        threads = [
            threading.Thread(target=_feed, args=(process, pending, cc, counted), daemon=True) for process in others
        ]
        for thread in threads:
            thread.start()
        for kernel in _take(pending.popleft):
            # Kernels that failed are compiled again when they are needed, which raises the error.
            with interrupts_deferred(), contextlib.suppress(Exception):
                compile_kernel(kernel, cc)
            counted()
        for thread in threads:
            thread.join()


@contextmanager
def processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return a context with as many compiler processes as can be started; they end when it ends."""
    places = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", "fuser_lab.runtime.plan.ahead"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        # If no other process can start, this one compiles everything.
        with contextlib.suppress(OSError):
            while len(started) < count:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)  # noqa: S603
                started.append(process)
        yield started
    finally:
        with interrupts_deferred():
            for process in started:
                process.kill()
                process.communicate()


def _take(take: Callable[[], GeneratedKernel]) -> Iterator[GeneratedKernel]:
    while True:
        try:
            kernel = take()
        except IndexError:
            return
        yield kernel


def _feed(
    process: "subprocess.Popen[bytes]", pending: deque[GeneratedKernel], cc: Capability, counted: Callable[[], None],
) -> None:
    """Feed kernels to a process until none remains or the process has ended."""
    for kernel in _take(pending.pop):
        if not ask(process, kernel, cc):
            pending.append(kernel)
            return
        counted()


def ask(process: "subprocess.Popen[bytes]", kernel: GeneratedKernel, cc: Capability) -> bool:
    """Ask a process to compile a kernel; return whether it answered, even with a failure."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(base64.b64encode(pickle.dumps((kernel, cc))) + b"\n")
        process.stdin.flush()
        return bool(process.stdout.readline())
    except (OSError, ValueError):
        return False


def compile_kernel(kernel: GeneratedKernel, cc: Capability) -> None:
    """Compile a kernel and store it on disk."""
    if cc is None:
        from fuser_lab.runtime.cpu_kernels import functions_of

        functions_of(kernel.source, tuple(phase.name for phase in kernel.kernel_ir.phases))
    else:
        machine_code_of(kernel, cc)


def main(lines: Iterator[bytes], answer: Callable[[bytes], Any]) -> None:
    """Compile incoming kernels, one per line, and answer each with one line."""
    for line in lines:
        kernel, cc = pickle.loads(base64.b64decode(line))  # noqa: S301 - from the process that started this one
        try:
            compile_kernel(kernel, cc)
        except Exception:  # noqa: BLE001 - the process that asked compiles it again and says why
            answer(b"refused\n")
        else:
            answer(b"compiled\n")


if __name__ == "__main__":
    # A terminal sends Ctrl-C to this process as well; its parent ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Compiler output must not be mistaken for answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    main(iter(sys.stdin.buffer.readline, b""), answers.write)
