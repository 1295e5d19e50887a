"""Threads of CPU kernels: processes that fork, torch imported first, the number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP, and fork, as on Linux")

PROGRAM = """
import json, os, sys, threading
{first}
import numpy as np
from backend.fusions import D, S, build
from tests.kernels import prepare
fusion = build(lambda fd, x: fd.ops.sum(fd.ops.exp(x), [1]), [(700, 300)], D.Float)
plan = prepare(fusion, [(fusion, S.REDUCTION)], allow_fallback=False)
x = np.zeros((700, 300), np.float32)

def right():
    (got,) = plan.run([x])
    return bool((got == 300).all())

def say(**what):
    names = [thread.name for thread in threading.enumerate()]
    print(json.dumps(what | {{"threads": names, "label": plan.memory.label()}}), flush=True)

{then}
"""
IDLE = "OpenMP of fuser_lab, idle"  # the name of a thread
FORK = """
{before}
if not (child := os.fork()):
    found = [right()]
    thread = threading.Thread(target=lambda: found.append(right()))
    thread.start()
    thread.join()
    if not (grandchild := os.fork()):
        found.append(right())
        say(found=found)
        os._exit(0)
    os._exit(os.waitpid(grandchild, 0)[1])
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert right()
"""


def said(cache: Path, then: str, *, first: str = "", **environment: str) -> dict[str, object]:
    """Run a program in a separate process; return its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "NUMBA_NUM"))}
    path = ":".join(p for p in sys.path if p)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first, then=then)], text=True, capture_output=True, timeout=120,
        env={**kept, "PYTHONPATH": path, "FUSER_LAB_CACHE": str(cache), **environment}, check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("before", ["assert right()", "plan.prepare()"])
def test_a_process_forked_from_one_with_threads_runs_without(cache: Path, before: str) -> None:
    found = said(cache, FORK.format(before=before))
    assert found["found"] == [True, True, True]
    assert found["label"] == "CPU (1 thread)"


def test_threads_sleep_also_where_torch_came_first(cache: Path) -> None:
    needs("torch")
    then = "say(right=right())"
    several = len(os.sched_getaffinity(0)) > 1
    found = said(cache, then, first="import torch")
    assert found["right"]
    assert (IDLE in found["threads"]) == several  # type: ignore[operator]
    found = said(cache, then, first="import torch", OMP_WAIT_POLICY="active")
    assert IDLE not in found["threads"]  # type: ignore[operator]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "NUMBA_NUM_THREADS"])
def test_the_number_of_threads_is_as_asked_for(cache: Path, name: str) -> None:
    found = said(cache, "say(right=right())", **{name: "1"})
    assert found["right"]
    assert found["label"] == "CPU (1 thread)"


def test_numbas_own_variable_comes_first(cache: Path) -> None:
    count = os.cpu_count() or 1
    found = said(cache, "say(right=right())", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS=str(count))
    assert found["label"] == f"CPU ({count} thread{'s' if count != 1 else ''})"
    assert IDLE not in found["threads"]  # type: ignore[operator] - torch did not come first


TORCH_FIRST = """
import torch
torch.set_num_threads(1)
torch.get_num_threads()  # the first call in a thread sets the number of OpenMP
from fuser_lab.runtime.numba_compat import cpu_threads
print(cpu_threads(), torch.get_num_threads())
"""


def test_torch_keeps_its_number_of_threads() -> None:
    needs("torch")
    ran = subprocess.run(
        [sys.executable, "-c", TORCH_FIRST], text=True, capture_output=True, timeout=120, check=True,
        env={**os.environ, "NUMBA_NUM_THREADS": "2", "PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert ran.stdout == "2 1\n"
