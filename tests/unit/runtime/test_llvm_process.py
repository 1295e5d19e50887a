"""LLVM in a separate process: what happens when that process ends, and that the caller's process never does."""

import os
import pickle
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

llvmlite = pytest.importorskip("llvmlite.binding", reason="LLVM comes with Numba: pip install numba")

from fuser_lab.runtime.cpu import llvm_process, llvm_worker, pipelines  # noqa: E402
from fuser_lab.runtime.cpu.llvm_process import LlvmError, LlvmProcess, Pipeline, Request, worker_command  # noqa: E402

FULL = Pipeline(cheap=(0, False, False), full=(3, True, False))
SCALAR, LITTLE = FULL.safer()

SUM = """
define float @total(ptr %x) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi float [ 0.0, %entry ], [ %more, %loop ]
  %place = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %place
  %more = fadd reassoc float %sum, %value
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, 1024
  br i1 %done, label %end, label %loop
end:
  ret float %more
}
"""

WORKER = """
import os, sys
sys.path.insert(0, {folder!r})
import llvm_worker

{before}
known = llvm_worker.compile_module

def compiled(bitcode, head):
    if {condition}:
        {act}
    return known(bitcode, head)

llvm_worker.compile_module = compiled
llvm_worker.main(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1:])
"""

Start = Callable[..., LlvmProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process whose worker acts under a condition."""
    processes: list[LlvmProcess] = []

    def started(condition: str = "False", act: str = "os.abort()", before: str = "") -> LlvmProcess:
        folder = str(Path(llvm_worker.__file__).parent)
        program = WORKER.format(folder=folder, condition=condition, act=act, before=before)
        processes.append(LlvmProcess([sys.executable, "-I", "-S", "-c", program, worker_command()[-1]]))
        return processes[-1]

    yield started
    for process in processes:
        process.close()


@pytest.fixture(scope="module")
def request_() -> Request:
    llvmlite.initialize_native_target()
    llvmlite.initialize_native_asmprinter()
    module = llvmlite.parse_assembly(SUM)
    module.triple = llvmlite.get_process_triple()
    machine = llvmlite.Target.from_default_triple().create_target_machine()
    return Request(
        name="total", bitcode=module.as_bitcode(), layout=str(machine.target_data), machine={"opt": 3}, pipeline=FULL,
        refprune=0,
    )


def is_vectorized(bitcode: bytes) -> bool:
    return " x float>" in str(llvmlite.parse_bitcode(bitcode))


def test_pipelines_from_fast_to_safe() -> None:
    assert Pipeline(cheap=(0, False, False), full=(3, False, False)) == SCALAR
    assert Pipeline(cheap=(0, False, False), full=(0, False, False)) == LITTLE


STRIDED = """
define void @strided(ptr noalias %x, ptr noalias %out) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %j = mul nuw nsw i64 %i, 100
  %from = getelementptr float, ptr %x, i64 %j
  %a = load float, ptr %from
  %b = fmul float %a, 2.0
  %to = getelementptr float, ptr %out, i64 %i
  store float %b, ptr %to
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, 65536
  br i1 %done, label %end, label %loop
end:
  ret void
}
"""


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="compiles for AMD processors")
def test_processors_by_amd_load_one_by_one_what_lies_apart(start: Start, request_: Request) -> None:
    assert pipelines.features_of("skylake-avx512", "+avx2") == "+avx2"
    module = llvmlite.parse_assembly(STRIDED)
    module.triple = llvmlite.get_process_triple()
    asked = replace(request_, name="strided", bitcode=module.as_bitcode())
    gathers = []
    for features in ("", pipelines.features_of("znver4", "")):
        machine = {**request_.machine, "cpu": "znver4", "features": features}
        result = start().compile(replace(asked, machine=machine))
        gathers.append("masked.gather" in str(llvmlite.parse_bitcode(result.bitcode)))
    assert gathers == [True, False]


def test_a_loop_is_vectorized(start: Start, request_: Request) -> None:
    result = start().compile(request_)
    assert is_vectorized(result.bitcode)
    assert llvmlite.ObjectFileRef.from_data(result.machine_code).sections()


def test_what_llvm_fails_with_is_compiled_without_vectors(start: Start, request_: Request) -> None:
    process = start("head['steps'][1][1]")
    with pytest.warns(RuntimeWarning, match="LLVM fails to optimize total"):
        result = process.compile(request_)
    assert not is_vectorized(result.bitcode)
    assert llvmlite.ObjectFileRef.from_data(result.machine_code).sections()


def test_what_llvm_fails_with_even_so_is_hardly_optimized(start: Start, request_: Request) -> None:
    process = start("head['steps'][1][0]", "os.kill(os.getpid(), 9)")
    with pytest.warns(RuntimeWarning, match="more slowly"):
        result = process.compile(request_)
    assert not is_vectorized(result.bitcode)


def test_a_module_that_llvm_always_fails_with_is_an_error(start: Start, request_: Request) -> None:
    with pytest.raises(LlvmError, match="LLVM fails to compile total at every optimization level"):
        start("True").compile(request_)


def test_a_module_that_llvm_refuses_is_an_error_and_the_next_compiles(start: Start, request_: Request) -> None:
    process = start("bitcode == b'none'", "raise RuntimeError('no bitcode')")
    broken = Request(
        name="broken", bitcode=b"none", layout="", machine={"opt": 3}, pipeline=FULL, refprune=0,
    )
    with pytest.raises(LlvmError, match="LLVM refuses broken: no bitcode"):
        process.compile(broken)
    assert is_vectorized(process.compile(request_).bitcode)


def test_a_worker_that_ended_itself_is_started_again(
    start: Start, request_: Request, monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = start(before="llvm_worker.IDLE = 0.1")
    process.compile(request_)
    first = process._worker
    assert first is not None
    assert first.wait(10) == 0
    # It may end in the moment between looking and asking.
    monkeypatch.setattr(first, "poll", lambda: None)
    assert is_vectorized(process.compile(request_).bitcode)
    assert process._worker is not first


def test_a_worker_that_has_compiled_many_modules_makes_room(
    start: Start, request_: Request, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llvm_process, "_MOST_MODULES", 2)
    process = start()
    workers = []
    for _ in range(4):
        assert is_vectorized(process.compile(request_).bitcode)
        workers.append(process._worker)
    assert [worker is None for worker in workers] == [False, True, False, True]


def test_without_processes_nothing_is_vectorized(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(llvm_process.subprocess, "Popen", refused)
    result = LlvmProcess().compile(request_)
    assert not is_vectorized(result.bitcode)
    assert result.machine_code


def test_a_function_that_llvm_fails_with_computes_the_same(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "LLVM", start("head['steps'][1][1]"))
    with pytest.warns(RuntimeWarning, match="LLVM fails to optimize .*total"):

        @pipelines.njit("float32(float32[::1])", fastmath={"reassoc"})
        def total(x: np.ndarray) -> float:
            found = np.float32(0)
            for value in x:
                found += value
            return found

    assert total(np.arange(1000, dtype=np.float32)) == 499500


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_starts_a_worker_of_its_own(request_: Request) -> None:
    # In a separate process: libraries with threads that other tests imported, such as JAX, warn about forks.
    program = """
import os, pickle, sys
import llvmlite.binding as llvmlite
from fuser_lab.runtime.cpu.llvm_process import LLVM

def ended():
    return 0 if " x float>" in str(llvmlite.parse_bitcode(LLVM.compile(request).bitcode)) else 1

request = pickle.load(sys.stdin.buffer)
first = ended()
child = os.fork()
if not child:
    try:
        os._exit(ended())
    finally:
        os._exit(2)
print(first, os.waitpid(child, 0)[1], ended())
"""
    asked = pickle.dumps(request_)
    done = subprocess.run([sys.executable, "-c", program], input=asked, capture_output=True, check=True)
    assert done.stdout.split() == [b"0", b"0", b"0"]


def test_an_unused_worker_is_gone_when_its_process_has_ended() -> None:
    program = (
        "from fuser_lab.runtime.cpu.llvm_process import LLVM\n"
        "LLVM.start()\n"
        "print(LLVM._worker.pid)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert not done.stderr
    assert not Path(f"/proc/{done.stdout.strip()}").exists()


def test_a_worker_is_replaced_before_it_has_grown(
    start: Start, request_: Request, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llvm_process, "_MOST_MODULES", 2)
    process = start()
    process.compile(request_)
    first = process._worker
    process.compile(request_)
    assert first is not None
    assert first.poll() == 0, "it ended without a signal"
    process.compile(request_)
    assert process._worker is not first
