"""The data that the source tab receives in addition to plain source, for the page and for reports."""

import re

import pytest
from fuser_lab_widgets import lines
from fuser_lab_widgets.baked import bake
from fuser_lab_widgets.playing import player_html

import fuser_lab as fl


@pytest.fixture(scope="module")
def plan():
    return fl.segment(*fl.example("sum_broadcast_add"))


def test_steps_for_the_page_name_lines_and_elements(plan):
    found = lines.steps(plan.segments[1], "cuda")["steps"]
    texts = [step["text"] for step in found["steps"]]
    assert texts[-1].startswith("writes T4[")
    assert found["html"].count("data-line=") == len(plan.segments[1].steps("cuda").source.rstrip("\n").split("\n"))
    assert {grid[0]: grid[1] for grid in found["grids"]}["T4"] == "output"
    assert "<script" not in player_html(plan.segments[1].steps("cuda"), "<script>x</script>").split("srcdoc")[0]


def test_why_there_are_none_is_a_sentence():
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor([64, 64], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.matmul(x, y))
    (segment,) = fl.segment(fd).segments
    for found in (lines.steps(segment, "cpu"), lines.beside(segment, "cuda")):
        assert found == {"problem": "a segment of expr_eval has no kernel, because the array library evaluates it."}


def test_a_page_holds_linked_lines_of_all_segments_and_steps_of_few(plan):
    (page,) = bake([plan])["plans"]
    assert all(set(views) == {"source", "beside", "steps"} for one in page["sources"] for views in one.values())
    titles = [title for title, _ in page["sources"][0]["cuda"]["beside"]["columns"]]
    assert titles == ["Source", "Schedule"]
    (page,) = bake([plan], followed=1)["plans"]
    assert all(set(views) == {"source", "beside"} for one in page["sources"] for views in one.values())
    (html,) = (html for title, html in page["sources"][0]["cpu"]["beside"]["columns"] if title == "Schedule")
    assert re.search(r'data-links="0\.0-\d+">.*for', html)
