"""Promises about new batch sizes; all definitions: ``python -m tests.benchmarks.new_sizes``."""

import statistics

import pytest
from machine import allowed

from tests.benchmarks.new_sizes import DEFINITIONS, PROMISED, measured

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("definition", DEFINITIONS[:2], ids=lambda d: d.name)
def test_a_new_batch_size_costs_50_ms_more_than_a_known_one(definition):
    cost = measured(definition, "cpu")
    print(f"{definition.name}: {1e3 * statistics.median(cost.beyond):.1f} ms beyond a known size")
    assert statistics.median(cost.beyond) < allowed(PROMISED)
