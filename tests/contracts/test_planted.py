"""A share of the planted regressions and harmless edits that ``python -m tests.contracts`` counts."""

import datetime as dt

import pytest

from tests.contracts.planted import harmless_results, planted_results, without_kernels
from tests.contracts.programs import PLANTED, PROGRAMS
from tests.needs import needs

# Another share of the cases every day.
TODAY = dt.datetime.now(tz=dt.UTC).timetuple().tm_yday


@pytest.fixture(scope="module", autouse=True)
def _scheduled():
    needs("torch")
    with without_kernels():
        yield


def test_there_are_thirty_regressions_in_ten_programs():
    assert len(PLANTED) == 30
    assert {planted.program for planted in PLANTED} == set(PROGRAMS)
    assert len(PROGRAMS) == 10


def test_planted_regressions_are_found_and_the_culprit_is_named_first(tmp_path):
    for result in planted_results(tmp_path, slice(TODAY % 15, None, 15)):
        assert result.is_reported, f"{result.name}\n{result.comparison}"
        assert result.names_culprit, f"{result.name}\n{result.comparison}"


def test_harmless_edits_are_not_reported(tmp_path):
    name = list(PROGRAMS)[TODAY % len(PROGRAMS)]
    for result in harmless_results(tmp_path, 3, first=3 * TODAY, only=name):
        assert not result.comparison, f"{result.name}\n{result.comparison}"
