"""The table of measured crossovers: each row is used, has a source, and decides as was measured."""

import re
from datetime import date

import pytest

from fuser_lab.cost.crossovers import ROWS, crossover, crossover_ratio
from fuser_lab.schedule.gpu_row_loops import gains_from_copies

_USE = re.compile(r'crossover(?:_ratio)?\("([a-z0-9_.]+)"\)')
UNMEASURED_UNTIL = "2026-11-27"  # later rows name a measurement
_MODULE = re.compile(r"python -m (tests[\w.]+)")


def test_each_row_is_used_and_each_use_has_a_row(repository):
    sources = [path.read_text("utf-8") for path in (repository / "fuser_lab").rglob("*.py")]
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    uses = {name for source in sources for name in _USE.findall(source)}
    assert not set(names) - uses, "no code reads these rows with crossover or crossover_ratio; remove them"
    assert not uses - set(names), "these names have no row in fuser_lab/cost/crossovers.py"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_names_its_unit_and_source(row, repository):
    assert row.value > 0
    assert row.unit
    assert row.decides
    assert date.fromisoformat(row.source.date).year >= 2026
    assert row.source.command
    assert row.source.is_measured == (row.source.command != "not measured alone")
    assert row.source.is_measured or row.source.date <= UNMEASURED_UNTIL, (
        f"{row.name} has no measurement: give its Source the device, the day and the command"
    )
    for module in _MODULE.findall(row.source.command):
        path = repository.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
    for page, section in re.findall(r"(docs/\w+\.md), ([\w ]+)", row.source.command):
        assert f"# {section}\n" in (repository / page).read_text("utf-8")


def test_an_unknown_row_lists_similar_ones():
    with pytest.raises(LookupError, match=r"unknown row 'gpu\.cluster\.busy'; choose from gpu\.clusters\.busy"):
        crossover("gpu.cluster.busy")


def test_a_fraction_is_not_read_as_a_whole_number():
    assert crossover_ratio("gpu.clusters.busy") == 0.9
    with pytest.raises(TypeError, match="'gpu.clusters.busy' holds 0.9, which is not a whole number"):
        crossover("gpu.clusters.busy")


@pytest.mark.parametrize(
    ("depth", "is_faster"),
    [
        (7, True), (33, False), (65, False), (130, True), (250, True), (333, False), (515, False), (769, False),
        (1021, False),
    ],
)
def test_rows_are_copied_where_that_was_faster(depth, is_faster):
    """The lengths of docs/benchmarks.md, Rows of any length."""
    assert gains_from_copies(depth) == is_faster
