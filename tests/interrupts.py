"""Ctrl-C at random moments of sessions that import, compile and run: right answers afterwards, and no other exception.

``python -m tests.interrupts --count 200`` prints how many interrupts were sent, where they were raised, and what
failed. Each session is a separate process with an empty cache, so that imports and first compilations are interrupted
too.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EACH = 10  # interrupts per session


@dataclass(frozen=True, slots=True)
class Outcome:
    """Interrupts sent, those sent while something ran, those raised as KeyboardInterrupt, and failures.

    ``dropped`` counts those that hit a finalizer or a callback, whose exceptions Python prints and drops.
    """

    sent: int
    working: int
    raised: int
    dropped: int
    failures: tuple[str, ...]


def compute(number: int) -> None:
    """Compile and run a definition that is unique to the number, and compare its result with NumPy's."""
    import fuser_lab as fl

    factor, size = 1 + number / 64, 16 + number
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=fl.DataType.Float)
        y = fd.ops.exp(fd.ops.mul(x, fd.define_scalar(factor)))
        fd.add_output(fd.ops.div(y, fd.ops.sum(y, [1], keepdim=True)) if number % 2 else fd.ops.sum(y, [1]))
    array = np.linspace(-1, 1, 8 * size, dtype=np.float32).reshape(8, size)
    (got,) = fd.execute([array])
    wanted = np.exp(array * np.float32(factor), dtype=np.float64)
    sums = wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(got, wanted / sums if number % 2 else sums[:, 0], rtol=1e-5)


def session(seed: int, count: int) -> Outcome:
    """Interrupt this process at random moments of its work, then compute everything again, uninterrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start with SIGINT ignored
    chance = random.Random(seed)
    failures: list[str] = []
    tally: Counter[str] = Counter()
    printed = sys.unraisablehook

    def unraisable(dropped: Any) -> None:
        tally["dropped"] += dropped.exc_type is KeyboardInterrupt
        printed(dropped)

    sys.unraisablehook = unraisable
    lasted = 2.0  # seconds per computation; the first one includes imports

    def interrupt(finished: threading.Event) -> None:
        tally["working"] += not finished.is_set()
        os.kill(os.getpid(), signal.SIGINT)

    for number in range(count):
        finished = threading.Event()
        timer = threading.Timer(chance.uniform(0, lasted), interrupt, (finished,))
        try:
            timer.start()
            begin = time.perf_counter()
            try:
                compute(seed * count + number)
            except Exception as error:  # noqa: BLE001 - reported unchanged
                failures.append(f"interrupted: {type(error).__name__}: {error}")
            else:
                lasted = min(lasted, 1.2 * (time.perf_counter() - begin))
            finished.set()
            timer.join()
            time.sleep(1)  # the signal has been sent
        except KeyboardInterrupt:
            tally["raised"] += 1
        timer.join()
    for number in range(count):
        try:
            compute(seed * count + number)
        except Exception as error:  # noqa: BLE001
            failures.append(f"afterwards: {type(error).__name__}: {error}")
    return Outcome(count, tally["working"], tally["raised"], tally["dropped"], tuple(failures))


def in_a_process(seed: int, count: int) -> Outcome:
    """Return the results of a session in a separate process."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "tests.interrupts", "--session", str(seed), "--count", str(count)],
            env={**os.environ, "FUSER_LAB_CACHE": cache}, cwd=Path(__file__).parents[1], text=True,
            capture_output=True, check=False, timeout=60 + 30 * count,
        )
    if done.returncode:
        told = (done.stderr.strip() or "nothing said").splitlines()[-1]
        return Outcome(count, 0, 0, 0, (f"session {seed} ended with status {done.returncode}: {told}",))
    told = json.loads(done.stdout.splitlines()[-1])
    return Outcome(**{**told, "failures": tuple(told["failures"])})


def main() -> int:
    """Run sessions and print their results; the exit status is 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="interrupts in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--session", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.session is not None:
        found = session(asked.session, asked.count)
        print(json.dumps({name: getattr(found, name) for name in Outcome.__slots__}))
        return 0
    outcomes = []
    while (sent := sum(x.sent for x in outcomes)) < asked.count:
        outcomes.append(in_a_process(asked.seed + len(outcomes), min(EACH, asked.count - sent)))
    failures = [failure for x in outcomes for failure in x.failures]
    print(
        f"{sum(x.sent for x in outcomes)} interrupts in {len(outcomes)} sessions, "
        f"{sum(x.working for x in outcomes)} while something ran, "
        f"{sum(x.raised for x in outcomes)} raised as KeyboardInterrupt, "
        f"{sum(x.dropped for x in outcomes)} fell into a finalizer or a callback, {len(failures)} failures",
        *failures, sep="\n",
    )
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
