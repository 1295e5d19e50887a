"""Everything that is shown can be saved: by extension, complete, escaped, and without external links."""

import csv
import json
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.errors import InputError, UnsupportedError
from fuser_lab.report import raster, save
from fuser_lab.segmentation.events import DecisionLog

OUTSIDE = re.compile(r"(?:https?:)?//(?!www\.w3\.org/)[a-z]", re.IGNORECASE)


@pytest.fixture(scope="module")
def fd():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([64, 32], contiguity=True, dtype=DataType.Float) for _ in range(2))
        total = fd.ops.broadcast(fd.ops.sum(x, dims=[1]), is_broadcast_dim=[False, True])
        fd.add_output(fd.ops.add(fd.ops.mul(x, total), y))
    return fd


@pytest.fixture(scope="module")
def plans(fd):
    return fl.segment(fd), fl.segment(fd, strategy="unfused")


@pytest.fixture(scope="module")
def shown(fd, plans):
    rows = tuple(
        TimingRow(plan="<b>one</b>", segment=n, scheduler="pointwise", ops=1, bytes_in=8, bytes_out=8, bytes_crossing=0)
        for n in (0, None)
    )
    return {
        "fusion": fd,
        "plan": plans[1],
        "segment": plans[1].segments[0],
        "log": plans[0].decisions,
        "timings": fl.Timings(rows=rows),
        "diff": fl.diff(*plans),
        "comparison": fl.diff(plans[0], plans[1], plans[0]),
    }


def bundle(thing):
    if hasattr(thing, "_repr_mimebundle_"):
        return thing._repr_mimebundle_()
    return {"text/plain": repr(thing), "text/html": thing._repr_html_()}


@pytest.mark.parametrize("what", ["fusion", "plan", "segment", "log", "timings", "diff", "comparison"])
def test_each_has_text_and_html_without_scripts_or_links(shown, what):
    data = bundle(shown[what])
    assert "image/svg+xml" in data or what == "comparison"
    assert data["text/plain"].strip()
    html = data["text/html"]
    assert not re.search(r"<script|\son\w+=|javascript:", html, re.IGNORECASE)
    assert not OUTSIDE.search(html)
    assert "<b>one</b>" not in html
    if "image/svg+xml" in data:
        root = ET.fromstring(data["image/svg+xml"])
        assert root.find("{*}title").text.strip()
        assert not [e for e in root.iter() if e.tag.endswith("script")]
        assert not OUTSIDE.search(data["image/svg+xml"])


@pytest.mark.parametrize("what", ["fusion", "plan"])
def test_pictures_are_svg_dot_and_mermaid(shown, what, tmp_path):
    thing = shown[what]
    ops = [e.op.name for e in thing.definition.exprs]
    root = ET.fromstring(thing.save(tmp_path / "x.svg").read_text())
    drawn = [g for g in root.iter() if "fl-op" in g.get("class", "").split()]
    assert len(drawn) == len(ops)
    dot, mermaid = (thing.save(tmp_path / f"x.{kind}").read_text() for kind in ("dot", "mmd"))
    kinds = (dot, "shape=box"), (mermaid, "[")
    nodes = [[line for line in text.splitlines() if box in line] for text, box in kinds]
    for op in set(ops):
        assert [sum(f'"{op} ' in line for line in lines) for lines in nodes] == [ops.count(op)] * 2


def test_dot_is_read_by_graphviz(shown, tmp_path):
    pygraphviz = pytest.importorskip("pygraphviz")
    graph = pygraphviz.AGraph(shown["plan"].save(tmp_path / "x.dot").read_text())
    assert len(graph.subgraphs()) == len(shown["plan"].segments)
    assert graph.number_of_nodes() == 3 + len(shown["plan"].fusion.exprs) + 1  # two segments read one input


def test_a_fusion_is_saved_as_code_that_defines_it_again(shown, tmp_path):
    text = shown["fusion"].save(tmp_path / "x.py").read_text()
    space = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, space)
    define = next(v for k, v in space.items() if callable(v) and k.startswith("nvfuser_fusion"))
    with FusionDefinition() as again:
        define(again)
    assert again.definition == shown["fusion"].definition


KINDS = {
    "fusion": "svg html json dot mmd csv txt py",
    "plan": "svg html json dot mmd csv txt py",
    "segment": "svg html json dot mmd csv txt py",
    "log": "svg html json csv txt",
    "timings": "svg html json csv txt",
    "diff": "svg html json dot mmd csv txt",
    "comparison": "html json csv txt",
}


@pytest.mark.parametrize("what", list(KINDS))
def test_each_is_saved_as_every_kind_that_makes_sense_and_refuses_the_others(shown, what, tmp_path):
    kinds = KINDS[what].split()
    for kind in kinds:
        assert shown[what].save(tmp_path / f"x.{kind}").read_text().strip()
    others = {"svg", "html", "json", "dot", "mmd", "csv", "txt", "py", "pdf"} - set(kinds)
    for kind in others:
        with pytest.raises(InputError, match=r"cannot be saved as"):
            shown[what].save(tmp_path / f"x.{kind}")
        assert not (tmp_path / f"x.{kind}").exists()


@pytest.mark.parametrize("what", ["fusion", "plan", "segment", "log", "timings", "diff"])
def test_each_picture_becomes_a_png_where_a_program_makes_one(shown, what, tmp_path, monkeypatch):
    monkeypatch.setattr(save, "rasterize", lambda svg: b"PNG of " + svg[:4].encode())
    assert shown[what].save(tmp_path / "x.png").read_bytes() == b"PNG of <svg"


@pytest.mark.parametrize("what", ["plan", "log", "timings", "diff", "comparison"])
def test_tables_are_csv_and_json(shown, what, tmp_path):
    thing = shown[what]
    rows = list(csv.reader(thing.save(tmp_path / "x.csv").read_text().splitlines()))
    assert len({len(row) for row in rows}) == 1
    expected = {"plan": len(shown["plan"].segments), "log": len(shown["log"]), "timings": 2, "comparison": 3}
    assert len(rows) - 1 == expected.get(what, len(shown["diff"].table().rows))
    text = thing.save(tmp_path / "x.json").read_text()
    if what == "log":
        assert DecisionLog.from_json(text) == thing
    else:
        json.loads(text)
    page = thing.save(tmp_path / "x.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert not OUTSIDE.search(page)


def read(thing, path):
    return list(csv.DictReader(thing.save(path).read_text().splitlines()))


def test_csv_holds_numbers_with_the_unit_in_the_name_of_the_column(fd, plans, tmp_path):
    """x and y are [64, 32] in float32; the sum over rows has shape [64]; a broadcast is a view, which moves nothing."""
    large, small = 64 * 32 * 4, 64 * 4
    unfused = plans[1]
    rows = read(unfused, tmp_path / "p.csv")
    ops = [s.exprs[0].op.name for s in unfused.segments]
    expected = {
        "sum": (large, small), "broadcast": (0, 0), "mul": (large + small, large), "add": (2 * large, large),
    }
    assert [(int(r["read [bytes]"]), int(r["written [bytes]"])) for r in rows] == [expected[op] for op in ops]
    assert [r["segment"] for r in rows] == ["0", "1", "2", "3"]
    ((sums,),) = ([r for r in rows if r["reads"] == "T0" and r["writes"] == "T2"],)
    assert int(sums["crossing [bytes]"]) == small
    graph = read(fd, tmp_path / "f.csv")
    assert {r["op"]: (r["size [bytes]"], r["shape"]) for r in graph}["mul"] == (str(large), "64 32")
    assert [r["read by"] for r in graph if r["op"] == "add"] == ["output"]
    first, second = read(fl.diff(*plans, plans[0]), tmp_path / "c.csv")[:2]
    assert int(second["moved [bytes]"]) == sum(s.bytes for s in unfused.segments)
    ratio = int(second["moved [bytes]"]) / int(first["moved [bytes]"])
    assert float(second["moved / moved by the first"]) == pytest.approx(ratio)
    changes = read(fl.diff(*plans), tmp_path / "d.csv")
    assert {r["what"]: int(r["size [bytes]"]) for r in changes if r["change"] == "now crosses"}["T4"] == large


def test_csv_of_times_is_in_microseconds(tmp_path):
    whole = TimingRow(
        plan="a, b", segment=None, scheduler="", ops=2, bytes_in=8_000, bytes_out=2_000, bytes_crossing=0,
        median=1.5e-3, low=1e-3, high=2e-3, iqr=1e-3, ratio=1.0, device="CPU", timer="wall",
    )
    part = TimingRow(plan="a, b", segment=0, scheduler="pointwise", ops=2, bytes_in=8, bytes_out=8, bytes_crossing=0)
    first, second = read(fl.Timings(rows=(part, whole)), tmp_path / "t.csv")
    assert [first[c] for c in ("plan", "segment", "median [µs]", "tie")] == ["a, b", "0", "", ""]
    assert float(second["median [µs]"]) == pytest.approx(1500)
    assert float(second["upper quartile [µs]"]) == pytest.approx(2000)
    assert float(second["bandwidth [GB/s]"]) == pytest.approx(10_000 / 1.5e-3 / 1e9)
    assert (second["segment"], second["tie"], second["warm median [µs]"]) == ("", "False", "")
    text = [c for c in first if c in {"plan", "scheduler", "timer", "device", "clocks", "note", "tie"}]
    for row in (first, second):
        assert all(not row[c] or float(row[c]) >= 0 for c in row if c not in text)


@pytest.mark.parametrize("what", ["fusion", "plan", "log", "timings", "diff", "comparison"])
def test_an_unknown_extension_is_answered_with_the_known_ones(shown, what, tmp_path):
    with pytest.raises(InputError, match=r"cannot be saved as 'x\.docx'; the extension must be one of \."):
        shown[what].save(tmp_path / "x.docx")
    assert not list(tmp_path.iterdir())


def test_a_png_says_what_is_missing(shown, tmp_path, monkeypatch):
    monkeypatch.delenv("FUSER_LAB_BROWSER", raising=False)
    monkeypatch.setattr(raster.shutil, "which", lambda name: None)
    monkeypatch.setattr(raster, "_PLACES", ())
    with pytest.raises(UnsupportedError, match=r"a PNG needs a browser .* or set FUSER_LAB_BROWSER"):
        shown["plan"].save(tmp_path / "x.png")
    for browser in (tmp_path / "nothing", "true"):
        monkeypatch.setenv("FUSER_LAB_BROWSER", str(browser))
        with pytest.raises(UnsupportedError, match=r"the browser .* made no PNG"):
            shown["plan"].save(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.browser
@pytest.mark.parametrize("what", [
    "plan", "timings", *(pytest.param(what, marks=pytest.mark.matrix) for what in ("fusion", "segment", "log", "diff")),
])
def test_a_browser_draws_the_png_in_colour(shown, what, tmp_path, monkeypatch, browser_path):
    monkeypatch.setenv("FUSER_LAB_BROWSER", browser_path)
    root = ET.fromstring(shown[what].save(tmp_path / "x.svg").read_text())
    Image = pytest.importorskip("PIL.Image", reason="pictures are read with Pillow: pip install pillow")
    with Image.open(shown[what].save(tmp_path / "x.png")) as image:
        dots = np.asarray(image.convert("RGB")) / 255
    wide, high = (2 * round(float(root.get(side))) for side in ("width", "height"))
    assert dots.shape[:2] == (high, wide)
    assert (dots.max(), dots.min() < 0.5) == (1, True), "dark text on white"
    if what in {"plan", "diff"}:
        assert (dots.max(axis=2) - dots.min(axis=2)).max() > 0.2, "segments are coloured"
