import math
import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

from fuser_lab.report.bars import Bar, bars_svg
from fuser_lab.report.timing_table import timing_bars


def rects(svg: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"', svg)]


def test_bars_are_on_one_scale_and_say_what_was_not_measured():
    bars = [
        Bar(label="a <plan>", seconds=2e-3, low=1.9e-3, high=2.5e-3, strong=True), Bar(label="b", seconds=1e-3),
        Bar(label="c", seconds=math.nan, note="wrong results"),
    ]
    svg = bars_svg(bars, "Times & more")
    ET.fromstring(svg)
    long, short = rects(svg)
    assert abs(long / short - 2) < 0.01
    assert "not measured · wrong results" in svg
    assert "a &lt;plan&gt;" in svg
    assert "Times &amp; more" in svg
    assert "a &lt;plan&gt; 2.00 ms; b 1.00 ms; c not measured." in svg


def test_nothing_measured_is_still_a_picture():
    ET.fromstring(bars_svg([], "Nothing"))
    ET.fromstring(bars_svg([Bar(label="a", seconds=math.nan)], "Nothing"))


def test_plans_and_peers_are_bars_and_ties_are_called_ties():
    def row(plan, segment, median, ratio, tie=False):
        return SimpleNamespace(
            plan=plan, segment=segment, median=median, low=median, high=median, ratio=ratio, tie=tie,
        )

    rows = (row("ours", 0, 1.0, math.nan), row("ours", None, 1.0, 1.0), row("eager", None, 1.1, 1.1, tie=True))
    ours, eager = timing_bars(SimpleNamespace(rows=rows))
    assert (ours.label, ours.note, ours.strong) == ("ours", "", True)
    assert (eager.label, eager.note, eager.seconds) == ("eager", "1.10 (tie)", 1.1)
