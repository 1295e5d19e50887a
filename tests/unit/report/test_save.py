import json

import pytest

from fuser_lab.errors import InputError
from fuser_lab.report import html
from fuser_lab.report.save import save_plan


@pytest.mark.parametrize(
    ("suffix", "start"),
    [("svg", "<svg"), ("html", "<!DOCTYPE html>"), ("json", '{"version":1'), ("mmd", "flowchart TB"), ("txt", "sum_")],
)
def test_the_extension_says_what_is_written(stubs, tmp_path, suffix, start):
    path = save_plan(stubs.sum_broadcast_add(), tmp_path / f"plan.{suffix}")
    assert path.read_text(encoding="utf-8").startswith(start)


def test_json_is_complete(stubs, tmp_path):
    data = json.loads(save_plan(stubs.sum_broadcast_add(), tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert {"header", "nodes", "edges", "segments", "decisions"} <= set(data)


def test_an_unknown_extension_is_answered_with_the_known_ones(stubs, tmp_path):
    with pytest.raises(InputError, match=r"one of \.svg, \.png, \.dot, \.mmd, \.html"):
        save_plan(stubs.sum_broadcast_add(), tmp_path / "plan.exe")


def test_a_segment_shows_its_expressions_and_its_source(stubs):
    plan = stubs.sum_broadcast_add()
    shown = html.segment_html(plan, 1, plan.segments[1].source("cpu"))
    assert "T4 = add(T3, T1)" in shown
    assert "generated source" in shown
