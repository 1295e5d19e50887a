"""The segments and schedulers that nvFuser's own tests assert."""

import pytest

from tests.nvfuser_assertions.assertion import files

FILES = list(files())
CASES = [case for file in FILES for case in file.cases]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source.rpartition('/')[2]}-{case.name}")
def test_agrees_or_differs_as_documented(case):
    agrees, answer = case.answer()
    assert agrees is (case.differs is None), f"{case.source}: expected {case.expected}, got {answer}"


def test_at_least_98_of_100_assertions_agree():
    lines = {case.source for case in CASES}
    assert len({case.source for case in CASES if case.differs}) <= 0.02 * len(lines)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.file.rpartition("/")[2])
def test_each_line_is_listed_once(file):
    left = [line for lines in file.left.values() for line in lines]
    assert len(left) == len(set(left))
    assert set(left).isdisjoint(case.line for case in file.cases)
