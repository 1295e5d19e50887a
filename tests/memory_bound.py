"""Memory of a session that computes many different definitions: ``python -m tests.memory_bound --definitions 2000``.

Prints the growth of the resident memory of the process and of the processes that it has started, and fails if it
exceeds ``--most`` MB. This program keeps no definition; with ``--hold`` it keeps all of them, with their plans and
kernels.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab.runtime import cpu_kernels

MB = 1 << 20


def resident() -> int:
    """Return the resident bytes of this process and of those that it started; Linux only."""
    page, parents, own = os.sysconf("SC_PAGE_SIZE"), {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            own[int(place.name)] = int((place / "statm").read_text().split()[1]) * page
        except OSError:  # it has ended
            continue
    return sum(size for number, size in own.items() if os.getpid() in {number, parents[number]})


def compute(number: int) -> Any:
    """Return a definition that is unique to the number, computed and compared with NumPy."""
    factor, size = 1 + number / 4096, 33 + number % 1021
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=fl.DataType.Float)
        y = fd.ops.mul(x, fd.define_scalar(factor))
        fd.add_output(fd.ops.sum(y, [1]) if number % 3 else fd.ops.neg(y))
    array = np.linspace(0, 1, 4 * size, dtype=np.float32).reshape(4, size)
    (got,) = fd.execute([array])
    wanted = array.astype(np.float64) * np.float32(factor)
    np.testing.assert_allclose(got, wanted.sum(1) if number % 3 else -wanted, rtol=1e-5)
    return fd


def grown(definitions: int, *, hold: bool = False, every: int = 0) -> int:
    """Return the largest growth of memory in bytes while definitions were computed."""
    start, most, held, begin = resident(), 0, [], time.perf_counter()
    for number in range(definitions):
        found = compute(number)
        if hold:
            held.append(found)
        if number % max(every, 20) == 0 or number == definitions - 1:
            most = max(most, resident() - start)
        if every and (number + 1) % every == 0:
            over, kernels = (resident() - start) / MB, len(cpu_kernels._LOADED)
            seconds = time.perf_counter() - begin
            print(f"{number + 1} definitions, {seconds:.0f} s: {over:.0f} MB over the start, {kernels} kernels kept")
            sys.stdout.flush()
    return most


def main() -> int:
    """Compute definitions, print the memory used, and return 0 if it stays within the bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory_bound", description=__doc__)
    parser.add_argument("--definitions", type=int, default=2000)
    parser.add_argument("--most", type=int, default=500, help="MB over the start")
    parser.add_argument("--hold", action="store_true", help="keep all definitions")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FUSER_LAB_CACHE"] = cache
        most = grown(asked.definitions, hold=asked.hold, every=max(asked.definitions // 10, 1)) / MB
    print(f"{asked.definitions} definitions: at most {most:.0f} MB over the start; the limit is {asked.most} MB")
    return most > asked.most


if __name__ == "__main__":
    sys.exit(main())
