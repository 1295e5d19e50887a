"""Children of forks: locks are free, threads and processes of the parent are left to it, and kernels compile."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from machine import allowed
from needs import needs
from thorough import THOROUGH

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

# Each child ends with its stacks if it hangs. It runs in a separate process: libraries with threads that tests import,
# such as JAX, warn about forks.
PROGRAM = """
import faulthandler, functools, gc, os, sys, threading, time, traceback
from fuser_lab.process import forks

def in_child(check):
    if not (child := os.fork()):
        faulthandler.dump_traceback_later({limit}, exit=True)
        try:
            check()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

def in_child_without_limits(check):
    forks.LONGEST_WAIT = forks.LONGEST_IMPORT = {limit}
    start = time.monotonic()
    in_child(check)
    assert time.monotonic() - start < {limit}

def elsewhere(function):
    reached = threading.Event()
    threading.Thread(target=function, args=(reached,), daemon=True).start()
    assert reached.wait({limit})
"""
FUSION = """
import numpy as np
import fuser_lab as fl
x = np.ones((7, 5), np.float32)

def right(number):
    with fl.FusionDefinition() as fd:
        t = fd.define_tensor(shape=[7, 5], dtype=fl.DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.add(t, number), [1]))
    (out,) = fd.execute([x])
    assert np.allclose(out, 5 * (1 + number)), out
"""


def run(program: str, cache: Path) -> None:
    """Run a program in a new process; fail with its output."""
    text = PROGRAM.format(limit=allowed(60)) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text], text=True, capture_output=True, check=False, timeout=allowed(600),
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), "FUSER_LAB_CACHE": str(cache)},
    )
    assert done.returncode == 0, done.stderr


def test_locks_are_free_and_nobody_waits(tmp_path: Path) -> None:
    run("""
        renew = forks.renew_in_forks
        primitives = [forks.new_lock(), renew(threading.RLock()), renew(threading.Condition())]

        def hold(reached):
            for primitive in primitives:
                primitive.acquire()
            reached.set()
            time.sleep(1000)

        waited_for = forks.renew_in_forks(threading.Condition())

        def wait(reached):
            with waited_for:
                reached.set()
                waited_for.wait()

        def check():
            for primitive in primitives:
                assert primitive.acquire(timeout=1)
            with waited_for:
                threading.Thread(target=lambda: (time.sleep(0.1), waited_for.acquire(), waited_for.notify(1),
                                                 waited_for.release())).start()
                assert waited_for.wait(timeout=10)  # not the thread of the parent, which began to wait earlier

        elsewhere(hold)
        elsewhere(wait)
        in_child(check)
    """, tmp_path)


def test_a_fork_waits_for_what_must_not_be_copied_half_way(tmp_path: Path) -> None:
    run("""
        first, second, whole = threading.RLock(), threading.Lock(), [True]
        forks.fork_waits_for(first)
        forks.fork_waits_for(second)
        stop = threading.Event()

        def work(one, other):
            def loop(reached):
                while not stop.is_set():
                    with one:
                        whole[0] = False
                        with other:  # in both orders
                            reached.set()
                            time.sleep(0.001)
                        whole[0] = True
            return loop

        def check():
            assert whole[0]
            assert first.acquire(timeout=0) and second.acquire(timeout=0)

        elsewhere(work(first, second))
        for _ in range(20):
            in_child(check)
        stop.set()
        with first:  # free in the parent again
            pass

        forks.LONGEST_WAIT = 0.2  # but not for ever
        elsewhere(lambda reached: (second.acquire(), reached.set()))
        in_child(lambda: second.acquire(timeout=0) or os._exit(1))
        first.acquire()  # by the thread that forks, which has it in the child as well
        in_child(lambda: first.release())
        first.release()
    """, tmp_path)


def test_what_only_the_parent_has_is_dropped(tmp_path: Path) -> None:
    run("""
        calls = []

        class Owner:
            def drop(self):
                calls.append(self)

        live, dead = Owner(), Owner()
        forks.after_fork(live.drop)
        forks.after_fork(dead.drop)
        del dead
        gc.collect()
        in_child(lambda: calls == [live] or os._exit(1))
        assert not calls
    """, tmp_path)


def test_a_child_goes_on_where_other_threads_left_caches_and_the_collector(tmp_path: Path) -> None:
    run("""
        from fuser_lab.process import collector
        from fuser_lab.plan import base

        class Slow:
            @functools.cached_property
            def value(self):
                base.reached.set()
                while not base.free:
                    time.sleep(0.01)
                return 1

        base.Slow, base.free, thresholds = Slow, False, gc.get_threshold()

        def pause(reached):
            with collector.collecting_rarely(), collector.collector_paused():
                base.reached = reached
                Slow().value

        def check():
            base.free = True
            assert Slow().value == 1
            assert gc.isenabled()
            assert gc.get_threshold() == thresholds

        elsewhere(pause)
        assert not gc.isenabled()
        in_child(check)
    """, tmp_path)


def test_a_child_imports_what_another_thread_was_importing(tmp_path: Path) -> None:
    run(FUSION + """
        import importlib
        def load(reached):
            reached.set()
            importlib.import_module("numba")
            time.sleep(1000)  # a thread that ends holds a lock of OpenSSL, which a child would wait for

        assert "numba" not in sys.modules
        elsewhere(load)
        while "numba" not in sys.modules:
            time.sleep(0.001)
        in_child_without_limits(lambda: right(0.5))
    """.replace("\n        ", "\n"), tmp_path)


def test_a_fork_waits_once_for_an_import_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent("""
        import threading
        import __main__
        __main__.reached.set()
        threading.Event().wait()
    """), encoding="utf-8")
    run(f"""
        sys.path.insert(0, {str(tmp_path)!r})
        reached, forks.LONGEST_IMPORT = threading.Event(), 0.2
        threading.Thread(target=lambda: __import__("program"), daemon=True).start()
        assert reached.wait({allowed(60)})

        def check():
            import program  # which its parent has half of
            import fractions

        in_child(check)
        in_child_without_limits(check)
    """, tmp_path)


def test_a_fork_waits_for_locks_that_an_awaited_import_registers(tmp_path: Path) -> None:
    (tmp_path / "compiler.py").write_text(textwrap.dedent("""
        import threading, time
        import __main__
        __main__.reached.set()
        time.sleep(0.3)
        lock = threading.Lock()
        __main__.forks.fork_waits_for(lock)
        lock.acquire()  # as a thread does that compiles at once
    """), encoding="utf-8")
    run(f"""
        sys.path.insert(0, {str(tmp_path)!r})
        reached, whole = threading.Event(), [True]

        def compile_kernels():
            whole[0] = False
            import compiler
            time.sleep(0.3)
            whole[0] = True
            compiler.lock.release()

        threading.Thread(target=compile_kernels).start()
        assert reached.wait({allowed(60)})
        in_child(lambda: whole[0] or os._exit(1))
    """, tmp_path)


def test_the_journal_of_a_ledger_stays_with_the_parent(tmp_path: Path) -> None:
    run(f"""
        from fuser_lab.lab.ledger import Ledger
        ledger = Ledger({str(tmp_path / "ledger")!r})
        ledger.append({{"device": "parent"}})
        in_child(lambda: ledger.append({{"device": "child"}}))
        ledger.append({{"device": "parent"}})
        import pathlib
        journals = sorted(len(p.read_text().splitlines()) for p in pathlib.Path(ledger.folder).glob("*.jsonl"))
        assert journals == [1, 2], journals
    """, tmp_path)


def test_children_that_are_forked_during_compilation_compute_plans(tmp_path: Path) -> None:
    run(FUSION + f"""
stop, first = threading.Event(), threading.Event()

def compile_kernels():
    number = 1
    while not stop.is_set():
        right(number)
        first.set()
        number += 1

def compute(fork):
    right(1)  # what the other thread compiled
    if fork % 4 == 0:
        right(-1 - fork)  # what no process compiled

worker = threading.Thread(target=compile_kernels)
worker.start()
assert first.wait({allowed(60)})
try:
    for fork in range({200 if THOROUGH else 8}):
        time.sleep(fork % 7 * 0.005)  # at different moments of a compilation
        in_child(lambda: compute(fork))
finally:
    stop.set()
    worker.join()
""", tmp_path)


@pytest.mark.parametrize("method", [
    "fork", pytest.param("spawn", marks=pytest.mark.matrix), pytest.param("forkserver", marks=pytest.mark.matrix),
])
def test_workers_of_a_data_loader_run_plans(tmp_path: Path, method: str) -> None:
    needs("torch")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(f"""
        import threading
        import time
        import torch
        import fuser_lab as fl
        from fuser_lab.process import forks

        def row(number):
            with fl.FusionDefinition() as fd:
                t = fd.define_tensor(shape=[8], dtype=fl.DataType.Float)
                fd.add_output(fd.ops.mul(fd.ops.exp(t), float(number)))
            return fd.execute([torch.zeros(8)])[0]

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, number):
                return row(number)

        if __name__ == "__main__":
            stop = threading.Event()
            # The first call of a torch op registers a function for the exit of the process. If another thread does so
            # at a fork, glibc's lock of these functions stays locked in the child, and the worker's first call waits.
            torch.set_num_threads(torch.get_num_threads())
            row(99)

            def compile_kernels():
                number = 100
                while not stop.is_set():
                    row(number)
                    number += 1

            worker = threading.Thread(target=compile_kernels)
            worker.start()
            forks.LONGEST_WAIT = forks.LONGEST_IMPORT = {allowed(60)}
            start = time.monotonic()
            try:
                loader = torch.utils.data.DataLoader(
                    Rows(), batch_size=2, num_workers=1, multiprocessing_context={method!r}, timeout={allowed(120)},
                )
                rows = torch.cat(list(loader))
                assert time.monotonic() - start < {allowed(60)}
            finally:
                stop.set()
                worker.join()
            assert torch.equal(rows, torch.arange(6.0)[:, None].expand(6, 8)), rows
    """), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], text=True, capture_output=True, check=False, timeout=allowed(600),
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), "FUSER_LAB_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
