"""What a run collects and in which order: files and cases that it skips, and the tests that processes begin with."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from shares import sample, shared_out


@pytest.fixture
def ignores(request, repository, tmp_path):
    conftest = request.config.pluginmanager.get_plugin(str(repository / "tests" / "conftest.py"))

    def ignores(text: str, *outcomes: str, markexpr: str = "") -> bool:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.txt"
        file.write_text("".join(f"{line}\n" for line in outcomes))
        test = tmp_path / "test_some.py"
        test.write_text(text)
        options = {"markexpr": markexpr, "--not-passed-in": file if outcomes else None}
        config = SimpleNamespace(rootpath=Path(tmp_path), getoption=options.__getitem__)
        return bool(conftest.pytest_ignore_collect(test, config))

    return ignores


def test_a_file_is_left_out_when_all_that_it_holds_has_passed(ignores):
    one, two = "test_some.py::test_one[a b]", "test_some.py::test_two"
    assert ignores("def test_one", f"passed {one}", f"passed {two}", "left test_other.py::test_one")
    assert not ignores("def test_one", f"passed {one}", f"left {two}")
    assert not ignores("def test_one", "passed test_other.py::test_one")
    assert not ignores("needs('torch')", f"passed {one}")
    assert not ignores("def test_one")


def test_a_file_without_the_marker_asked_for_is_left_out_and_with_it_is_not(ignores):
    assert ignores("def test_one", markexpr="benchmark")
    assert not ignores("@pytest.mark.benchmark", "passed test_some.py::test_one", markexpr="benchmark")
    assert not ignores("@pytest.mark.benchmark", markexpr="benchmark")
    assert not ignores("def test_one", markexpr="not (benchmark or matrix)")


def test_each_process_begins_with_one_of_the_longest_groups():
    tests = ["u1", "p1", "u2", "n1", "p2", "u3", "u4", "u5", "n2"]
    longest = [lambda test: test[0] == "p", lambda test: test[0] == "n"]
    assert shared_out(tests, longest, 1) == tests
    assert shared_out(tests, longest, 2) == ["p1", "p2", "u1", "u2", "n1", "n2", "u3", "u4", "u5"]
    assert shared_out(tests, longest, 3) == ["p1", "p2", "u1", "n1", "n2", "u2", "u3", "u4", "u5"]


def test_a_group_that_is_larger_than_a_share_takes_room_from_the_next_process():
    tests = ["u1", "p1", "p2", "p3", "p4", "u2"]
    assert shared_out(tests, [lambda test: test[0] == "p"], 2) == ["p1", "p2", "p3", "p4", "u1", "u2"]


def test_a_sample_has_every_value_that_cases_share():
    cases = [frozenset({("dtype", dtype), ("shape", shape)}) for shape in range(4) for dtype in range(3)]
    tried = sample(cases, 6)
    assert {0, 6} <= tried
    assert len(tried) < len(cases)
    assert set().union(*(cases[number] for number in tried)) == set().union(*cases)


def test_a_sample_of_cases_that_share_no_value_is_every_nth():
    assert sample([frozenset({("name", name)}) for name in "abcde"], 2) == {0, 2, 4}
    assert sample([], 3) == set()
