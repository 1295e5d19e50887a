import re
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from fuser_lab.report import theme
from fuser_lab.report.svg import edge_width, plan_svg, view_svg
from fuser_lab.report.view_model import view_plan

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ('<script>alert("x")</script>', "T1&T2", "]]>", "\x00T3", 'it\'s "quoted"')


@pytest.fixture(params=["sum_broadcast_add", "rope_like", "refused", "hostile"])
def plan(request, stubs):
    if request.param == "refused":
        return replace(stubs.sum_broadcast_add(), refused=frozenset({0, 1}))
    if request.param == "hostile":
        return replace(stubs.sum_broadcast_add(HOSTILE), name="<img src=x onerror=alert(1)>")
    return getattr(stubs, request.param)()


def test_it_is_well_formed_and_holds_no_script_and_no_link(plan):
    text = plan_svg(plan)
    root = ET.fromstring(text)
    tags = {e.tag.removeprefix(SVG) for e in root.iter()}
    assert not tags & {"script", "image", "use", "a", "foreignObject"}
    assert not [k for e in root.iter() for k in e.attrib if k.startswith("on") or k.endswith("href")]
    assert re.findall(r"https?://[^\"' )]*", text) == ["http://www.w3.org/2000/svg"]
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#{e.get('id')}" for e in root.iter() if e.get("id")}


def test_it_names_itself_and_everything_in_it(plan):
    root = ET.fromstring(plan_svg(plan))
    assert root.get("role") == "graphics-document"
    named = {e.get("id"): e.text for e in root if e.tag in {f"{SVG}title", f"{SVG}desc"}}
    assert all(named.get(i) for i in root.get("aria-labelledby").split())
    for group in root.iter(f"{SVG}g"):
        if group.get("role"):
            assert group.find(f"{SVG}title").text
            assert group.find(f"{SVG}desc").text


def test_every_op_is_drawn_once_for_each_segment_it_is_in(plan):
    view = view_plan(plan)
    root = ET.fromstring(view_svg(view))
    drawn = [g.get("data-id") for g in root.iter(f"{SVG}g") if "fl-node" in g.get("class", "").split()]
    assert sorted(drawn) == sorted(n.id for n in view.nodes)
    edges = [g.get("data-id") for g in root.iter(f"{SVG}g") if "fl-edge" in g.get("class", "").split()]
    assert len(edges) == len(view.edges)


def test_names_are_text(stubs):
    text = plan_svg(stubs.sum_broadcast_add(HOSTILE))
    assert "<script" not in text
    shown = {e.text for e in ET.fromstring(text).iter(f"{SVG}text")}
    assert '<script>alert("x")</script>' in shown


def test_two_drawings_in_a_page_share_no_id(stubs):
    plan = stubs.sum_broadcast_add()
    ids = [set(re.findall(r' id="([^"]*)"', plan_svg(p))) for p in (plan, plan.cut("T3"))]
    assert not ids[0] & ids[1]


def test_the_same_plan_gives_the_same_picture(stubs):
    assert plan_svg(stubs.sum_broadcast_add()) == plan_svg(stubs.sum_broadcast_add())


def test_colour_is_never_alone(stubs):
    root = ET.fromstring(plan_svg(stubs.rope_like(10, 10)))
    looks = {(theme.hue(n), theme.pattern(n)) for n in range(64)}
    assert len(looks) == 64
    assert len(set(theme.HUES_LIGHT)) >= 8
    chips = [t.text for t in root.iter(f"{SVG}text") if t.get("class") == "fl-chip-text"]
    assert chips == [f"S{n}" for n in range(10)]


def test_a_pattern_is_defined_once(stubs):
    text = plan_svg(stubs.rope_like(14, 70))
    defined = re.findall(r'<pattern id="([^"]*)"', text)
    used = re.findall(r'fill="url\(#([^)]*)\)"', text)
    assert len(used) == 70
    assert sorted(defined) == sorted(set(used))
    assert len(defined) == 64


def test_replicas_and_refusals_are_marked(stubs):
    plan = replace(stubs.sum_broadcast_add(), groups=(("T2",), ("T2", "T3", "T4")), refused=frozenset({1}))
    text = plan_svg(plan)
    assert text.count("T2 ×2") == text.count('fl-sheet"') == 2
    assert "no scheduler" in text
    assert "No reduction in the segment." in text


def test_wider_edges_move_more():
    widths = [edge_width(n) for n in (0, 1, 1 << 10, 1 << 20, 1 << 30, 1 << 40)]
    assert widths == sorted(widths)
    assert (widths[0], widths[-1]) == (1.2, pytest.approx(4.4))


def test_drawing_needs_no_program_and_no_notebook():
    code = (
        "import sys\n"
        "for name in ('numba', 'IPython', 'torch', 'anywidget', 'ipywidgets'): sys.modules[name] = None\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import stub_plan\n"
        "from fuser_lab.report import html, svg, text\n"
        "plan = stub_plan.sum_broadcast_add()\n"
        "assert svg.plan_svg(plan) and html.plan_html(plan) and text.plan_text(plan)\n"
    )
    folder = __file__.rpartition("/")[0]
    subprocess.run([sys.executable, "-c", code, folder], env={"PATH": "/nonexistent"}, check=True, timeout=60)
