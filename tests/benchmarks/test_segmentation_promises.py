"""Promised times and growth of the segmenter; ``python -m tests.benchmarks.segmentation`` prints the table."""

import math

import pytest
from machine import allowed

import fuser_lab as fl
from tests.benchmarks.segmentation import FAMILIES, logging_share, peak_megabytes, processor_seconds

pytestmark = pytest.mark.benchmark
ROOM = 2  # other work on the same cores makes processor time longer as well

PROMISED = [(f, size) for f in FAMILIES for size in f.promised if size <= 1000]


@pytest.mark.parametrize(("family", "size"), PROMISED, ids=[f"{f.name}, {size}" for f, size in PROMISED])
def test_times_that_are_promised(family, size):
    fd = family.make(size)
    took = processor_seconds(lambda: fl.segment(fd, options=family.options), 0.5)
    print(f"{family.name}, {size} ops: {1e3 * took:.0f} ms")
    assert took < allowed(ROOM * family.promised[size])


def test_time_for_layers_grows_in_proportion():
    family = next(f for f in FAMILIES if f.name == "transformer layers")
    found = []
    for size in (284, 2000):
        fd = family.make(size)
        found.append((len(fd.fusion.exprs), processor_seconds(lambda fd=fd: fl.segment(fd), 3.0)))
    (small, quick), (large, slow) = found
    exponent = math.log(slow / quick) / math.log(large / small)
    print(f"exponent {exponent:.2f}")
    assert exponent < 1.4


def test_the_log_costs_little_and_memory_stays_small():
    share = logging_share(300)
    print(f"the log costs {100 * share:.0f} %; {peak_megabytes():.0f} MB")
    assert share < 0.3
    assert peak_megabytes() < 2048
