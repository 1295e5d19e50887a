import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fuser_lab.report import html, text
from fuser_lab.report.mermaid import view_mermaid
from fuser_lab.report.units import bytes_label, plural, seconds_label
from fuser_lab.report.view_model import view_plan


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def tags(source):
    parser = Tags()
    parser.feed(source)
    return parser.seen


def test_text_has_the_headline_the_table_and_the_reasons(stubs):
    shown = text.view_text(view_plan(stubs.sum_broadcast_add()))
    assert "3 ops in 2 segments, 403 MB moved (one kernel: 403 MB)" in shown
    assert re.search(r"S0 +reduction +1 ", shown)
    assert "2 attempts: 1 accepted, 1 refused" in shown
    assert "the reduced result is broadcast back" in shown
    assert max(map(len, text.plan_text(stubs.sum_broadcast_add()).splitlines())) <= 130


def test_text_says_why_a_segment_has_no_scheduler(stubs):
    plan = replace(stubs.sum_broadcast_add(), refused=frozenset({1}))
    assert "S1 has no scheduler:\n  ✗ reduction  No reduction in the segment." in text.plan_text(plan)


def test_html_has_picture_table_and_decisions_and_no_script(stubs):
    shown = html.plan_html(stubs.sum_broadcast_add())
    names = [name for name, _ in tags(shown)]
    assert {"svg", "table", "details", "summary", "style"} <= set(names)
    assert "script" not in names
    assert set(re.findall(r"https?://[^\"' )<]*", shown)) == {"http://www.w3.org/2000/svg"}


def test_html_says_one_segment_without_a_plural(stubs):
    plan = stubs.sum_broadcast_add()
    shown = html.plan_html(replace(plan, groups=(tuple(name for group in plan.groups for name in group),)))
    assert "<b>1</b> segment</span>" in shown


def test_html_escapes(stubs):
    names = ("<script>", "T1", "<b>T2</b>", "T3", "T4")
    plan = replace(stubs.sum_broadcast_add(names), name='"><script>alert(1)</script>')
    for shown in (html.plan_html(plan), html.plan_page(view_plan(plan))):
        seen = tags(shown)
        assert "script" not in [name for name, _ in seen]
        assert not [key for _, attrs in seen for key in attrs if key.startswith("on")]


def test_a_page_is_a_document(stubs):
    page = html.plan_page(view_plan(stubs.sum_broadcast_add()))
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>sum_broadcast_add</title>" in page
    assert re.search(r"body\{[^}]*color:var\(--fl-ink\)", page)  # black is unreadable on dark paper


def test_mermaid_has_a_subgraph_for_each_segment(stubs):
    drawn = view_mermaid(view_plan(stubs.sum_broadcast_add(('T"0', "T1", "T2", "T3", "T4"))))
    assert drawn.count("subgraph") == 2
    assert '"sum T2 32.8 kB"' in drawn
    assert '(["T#34;0"])' in drawn


@pytest.mark.parametrize(
    ("count", "label"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (32768, "32.8 kB"), (134217728, "134 MB"), (10**15, "1000 TB")],
)
def test_bytes_are_short(count, label):
    assert bytes_label(count) == label


@pytest.mark.parametrize(
    ("seconds", "label"),
    [(float("nan"), "not measured"), (2.5, "2.50 s"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 µs"), (0.0, "0.00 µs"),
     (-1.5e-9, "-1.50 ns"), (1e-7, "0.10 µs")],
)
def test_seconds_are_short(seconds, label):
    assert seconds_label(seconds) == label


def test_counts_have_their_noun():
    assert (plural(1, "op"), plural(2, "op")) == ("1 op", "2 ops")
