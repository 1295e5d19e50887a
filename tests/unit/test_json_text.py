"""All JSON that fuser_lab writes is strict, and written by one module."""

import ast
import base64
import json
import math
import re
import zlib
from pathlib import Path

import pytest

import fuser_lab as fl
from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.files.json_text import json_text
from fuser_lab.report.page import report_page
from fuser_lab.report.view_model import view_plan

# Allowed to write JSON: a message between two processes, one of which may not import fuser_lab.
WRITERS = {"fuser_lab/files/json_text.py", "fuser_lab/runtime/cpu/llvm_worker.py"}
REPOSITORY = Path(__file__).resolve().parents[2]


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_json_does_not_have_is_null():
    data = {"a": (math.nan, math.inf, -math.inf, 0.5), 1: {"b": [math.nan]}, "λ": True}
    assert strict(json_text(data)) == {"a": [None, None, None, 0.5], "1": {"b": [None]}, "λ": True}


def test_no_other_place_writes_json():
    found = set()
    for folder in ("fuser_lab", "widgets"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if "json" in text else ():
                writes = isinstance(node, ast.Attribute) and node.attr in {"dump", "dumps", "JSONEncoder"}
                imports = isinstance(node, ast.ImportFrom) and node.module == "json"
                if (writes and isinstance(node.value, ast.Name) and node.value.id == "json") or imports:
                    found.add(path.relative_to(REPOSITORY).as_posix())
    assert found == WRITERS


@pytest.fixture
def unmeasured():
    row = TimingRow(plan="a", segment=None, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0)
    return fl.Timings(rows=(row,))


def test_times_that_were_not_measured_are_null(unmeasured, tmp_path):
    saved = strict(unmeasured.save(tmp_path / "times.json").read_text(encoding="utf-8"))
    assert saved["rows"][0]["median"] is None
    assert json.dumps(unmeasured.to_json(), allow_nan=False)


def test_a_page_holds_strict_json():
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([4])))
    page = report_page(view_plan(fl.segment(fd)), {"time": math.nan}, script="", style="", title="t")
    packed = max(re.findall(r"[A-Za-z0-9+/=]{20,}", page), key=len)
    assert strict(zlib.decompress(base64.b64decode(packed)).decode()) == {"time": None}
