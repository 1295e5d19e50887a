"""Kernels compiled in parallel: all of them on disk, errors raised by the caller, interrupts end everything."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backend.fusions import D, S, build

from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.runtime.cpu_kernels import is_compiled
from fuser_lab.runtime.plan import ahead
from tests.kernels import generate


def kernels(count: int, size: int) -> list[GeneratedKernel]:
    """Kernels that are unique to a test."""
    return [
        generate(build(lambda fd, x, n=n: fd.ops.mul(x, size + n / 1024), [(size,)], D.Float), S.POINTWISE)
        for n in range(count)
    ]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))


def test_processes_leave_what_they_compile_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    some = kernels(6, 731)
    here: list[str] = []
    real = ahead.compile_kernel

    def waiting(kernel: GeneratedKernel, cc: Any) -> None:
        here.append(kernel.source)
        if len(here) == 1:
            others.wait(60)
        real(kernel, cc)

    others = threading.Event()
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 3:
            others.set()

    monkeypatch.setattr(ahead, "compile_kernel", waiting)
    monkeypatch.setattr(ahead, "processors", lambda: 2)
    ahead.compile_ahead(some, None, progress)
    assert all(is_compiled(kernel.source) for kernel in some)
    assert len(here) < len(some), "other processes have compiled some"
    assert seen == [(n, 6) for n in range(1, 7)]
    seen.clear()
    ahead.compile_ahead(some, None, progress)
    assert not seen, "everything is cached"


def test_few_kernels_are_not_worth_it() -> None:
    some = kernels(ahead.SHARED_FROM - 1, 733)
    ahead.compile_ahead(some, None, lambda *_: pytest.fail("nothing is compiled ahead"))
    assert not any(is_compiled(kernel.source) for kernel in some)


class Broken:
    """A process that ends without a result."""

    def __init__(self) -> None:
        self.stdin = self.stdout = self

    def write(self, _: bytes) -> None:
        raise BrokenPipeError

    def flush(self) -> None: ...


def test_a_process_that_ends_gives_its_kernel_back(monkeypatch: pytest.MonkeyPatch) -> None:
    some, here = kernels(5, 737), []

    def processes(_: int) -> Any:
        from contextlib import nullcontext

        return nullcontext([Broken(), Broken()])

    monkeypatch.setattr(ahead, "processes", processes)
    monkeypatch.setattr(ahead, "compile_kernel", lambda kernel, _: here.append(kernel.source))
    ahead.compile_ahead(some, None, progress=False)
    # A kernel returned after this process has looked is compiled when it is needed.
    assert set(here) <= {kernel.source for kernel in some}
    assert len(here) >= len(some) - 2


def test_an_interrupt_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    real = ahead.processes

    def watched(count: int) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def opened() -> Iterator[Any]:
            with real(count) as processes:
                started.extend(processes)
                yield processes

        return opened()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ahead, "processes", watched)
    monkeypatch.setattr(ahead, "processors", lambda: 3)
    monkeypatch.setattr(ahead, "compile_kernel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ahead.compile_ahead(kernels(8, 739), None, progress=False)
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_worker_answers_each_kernel_and_survives_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import base64
    import pickle

    good, bad = kernels(2, 741)

    def compiled(kernel: GeneratedKernel, _: Any) -> None:
        if kernel.source == bad.source:
            raise RuntimeError

    monkeypatch.setattr(ahead, "compile_kernel", compiled)
    lines = [base64.b64encode(pickle.dumps((kernel, None))) + b"\n" for kernel in (bad, good)]
    answers: list[bytes] = []
    ahead.main(iter(lines), answers.append)
    assert answers == [b"refused\n", b"compiled\n"]
