"""The page of all ops is correct, and docs/ops.md is that page."""

import json

import pytest

from fuser_lab.cli import commands as cli
from fuser_lab.errors import UnsupportedError
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.report import op_page
from fuser_lab.report.op_page import FAMILIES, op_rows, unsupported_rows
from tests.pages import ops
from tests.unit.builders import record


@pytest.fixture(scope="module")
def found():
    """All rows, computed once, which takes seconds."""
    return op_rows()


@pytest.fixture(autouse=True)
def _found_once(found, monkeypatch):
    monkeypatch.setattr(op_page, "op_rows", lambda: found)


@pytest.fixture(scope="module")
def rows(found):
    return {row.name: row for row in found}


def test_the_page_is_not_stale(repository):
    wanted = ops.page()
    assert (repository / "docs" / "ops.md").read_text(encoding="utf-8") == wanted, (
        f"docs/ops.md is stale: {ops.COMMAND}"
    )


def test_every_op_is_on_it(rows):
    assert set(rows) == {*OPS, *COMPOSITES}
    assert {row.family for row in rows.values()} <= {title for title, _ in FAMILIES}
    for row in rows.values():
        assert row.doc.endswith(".")
        assert row.dtypes, f"{row.name} has no samples"


def test_what_it_says_of_some(rows):
    assert rows["add"].signature == "add(lhs, rhs, /)"
    assert rows["add"].kernels == {"cpu": "kernel", "cuda": "kernel"}
    assert ("Half, Half", "Float") in rows["add"].dtypes
    assert rows["sum"].family == "Reductions"
    assert rows["matmul"].kernels == {"cpu": "library", "cuda": "library"}
    assert rows["permute"].kernels["cpu"] == "kernel"
    assert rows["var"].family == "Written with other ops"


def test_kernels_are_generated_or_said_not_to_be(rows):
    for row in rows.values():
        assert set(row.kernels) == {"cpu", "cuda"}
        if row.family == "Pointwise":
            assert set(row.kernels.values()) == {"kernel"}, row


def test_what_is_not_supported_is_refused_by_that_name():
    missing = unsupported_rows()
    assert missing
    for name, reason in missing:
        assert name not in OPS
        assert name not in COMPOSITES
        assert reason
        with pytest.raises(UnsupportedError, match=name):
            record(lambda fd, name=name: getattr(fd.ops, name)())


def test_the_command_prints_it(capsys):
    assert cli.main(["ops", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in data["ops"]} == {*OPS, *COMPOSITES}
    assert cli.main(["ops"]) == 0
    assert "add(lhs, rhs, /)" in capsys.readouterr().out
