"""Files that a run skips: those whose tests have all passed before, and those without the requested marker."""

from pathlib import Path
from types import SimpleNamespace

import pytest


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


def test_a_file_without_the_marker_asked_for_is_left_out(ignores):
    assert ignores("def test_one", markexpr="benchmark")
    assert not ignores("@pytest.mark.benchmark", markexpr="benchmark")
    assert not ignores("def test_one", markexpr="not (benchmark or matrix)")
