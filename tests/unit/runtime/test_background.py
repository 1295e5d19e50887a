"""Kernels compiled in the background: the work of processes, and kernels that the main process compiles itself."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuser_lab.runtime.plan import ahead, background
from fuser_lab.runtime.plan.background import Background

CC = 9, 0


def kernels(*sources: str) -> list[Any]:
    phases = SimpleNamespace(phases=(1,))
    return [(SimpleNamespace(source=source, kernel_ir=phases), CC) for source in sources]


class Process:
    """A process that compiles a kernel whenever it is allowed to, and ends after ``lasts`` of them."""

    def __init__(self) -> None:
        self.let, self.taken = threading.Semaphore(0), threading.Semaphore(0)
        self.asked: list[str] = []
        self.lasts = 100

    @contextlib.contextmanager
    def started(self, count: int) -> Iterator[list[Any]]:
        assert count == 1
        yield [self]

    def answer(self, process: Any, kernel: Any, cc: Any) -> bool:
        assert process is self
        assert cc == CC
        self.asked.append(kernel.source)
        self.taken.release()
        assert self.let.acquire(timeout=60)
        return len(self.asked) < self.lasts


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Process:
    made = Process()
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(background, "processors", lambda: 2)
    monkeypatch.setattr(ahead, "processes", made.started)
    monkeypatch.setattr(ahead, "ask", made.answer)
    monkeypatch.setattr(ahead, "is_compiled", lambda kernel, cc: False)
    monkeypatch.setattr(background, "IDLE_SECONDS", 0.01)
    return made


def ended(waiting: Background) -> None:
    for thread in threading.enumerate():
        if thread.name == "kernels in the background":
            thread.join(60)
    assert not waiting._workers


def test_a_process_takes_from_the_end_of_the_first_group(process: Process) -> None:
    waiting = Background()
    waiting.add(kernels("a", "b", "c", "d"))
    assert process.taken.acquire(timeout=60)
    waiting.add(kernels("e", "f", "d"))
    waiting.claim("b")
    process.let.release(100)
    ended(waiting)
    assert process.asked == ["d", "c", "a", "f", "e"]
    assert "a" not in waiting


def test_what_a_process_compiles_is_waited_for(process: Process) -> None:
    waiting = Background()
    waiting.add(kernels("a", "b", "c", "d"))
    assert process.taken.acquire(timeout=60)
    claiming = threading.Thread(target=waiting.claim, args=("d",))
    claiming.start()
    claiming.join(0.05)
    assert claiming.is_alive()
    assert "d" in waiting
    process.let.release(100)
    claiming.join(60)
    assert not claiming.is_alive()
    ended(waiting)


def test_nothing_waits_for_a_process_that_has_ended(process: Process) -> None:
    process.lasts = 2
    waiting = Background()
    process.let.release(100)
    waiting.add(kernels("a", "b", "c", "d"))
    ended(waiting)
    waiting.claim("a")
    assert process.asked == ["d", "c"]
    assert "a" not in waiting


def test_a_process_begins_while_other_kernels_are_generated(process: Process) -> None:
    def generated() -> Iterator[Any]:
        yield from kernels("a", "b", "c", "d")
        assert process.taken.acquire(timeout=60)
        process.let.release(100)
        while "a" in waiting:  # then the group is empty, and is dropped
            process.taken.acquire(timeout=60)
        yield from kernels("e", "f")

    waiting = Background()
    waiting.add(generated())
    ended(waiting)
    assert process.asked[:4] == ["d", "c", "b", "a"]
    assert {*process.asked} <= {*"abcdef"}


@pytest.mark.parametrize(("sources", "processors"), [("abc", 2), ("abcdef", 1)])
def test_few_kernels_or_one_processor_start_nothing(
    sources: str, processors: int, process: Process, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "processors", lambda: processors)
    waiting = Background()
    waiting.add(kernels(*sources))
    ended(waiting)
    assert not process.asked
    waiting.claim("a")
