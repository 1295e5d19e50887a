"""The saved form of an explorer: small, complete, and readable after a page's sanitizer has processed it."""

import base64
import json
import zlib
from html import escape
from html.parser import HTMLParser
from xml.etree.ElementTree import fromstring

import pytest

pytest.importorskip("anywidget")

from browser.sizes import layers, two_norms
from fuser_lab_widgets import Explorer
from fuser_lab_widgets.baked import bake
from fuser_lab_widgets.saved import MOST_CHARACTERS, saved_html

from fuser_lab.errors import InputError
from fuser_lab.report.view_model import view_plan

# What sanitizers keep: JupyterLab's for untrusted outputs, and that of GitHub's html-pipeline, which GitHub
# states that it uses for Markdown, and which does not allow data URLs.
TAGS = {"div", "img", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "span"}
ATTRIBUTES = {"alt", "class", "src", "scope", "title"}
GONE_WITH_CONTENTS = {"script", "style", "iframe", "svg"}


class Sanitizer(HTMLParser):
    """Keeps the listed tags and attributes, and addresses with the listed schemes."""

    def __init__(self, schemes):
        super().__init__()
        self.schemes, self.kept, self.inside = schemes, [], 0

    def handle_starttag(self, tag, attrs):
        if tag in GONE_WITH_CONTENTS:
            self.inside += 1
        if self.inside or tag not in TAGS:
            return
        named = {k: v or "" for k, v in attrs if k in ATTRIBUTES and not (k == "src" and not self.is_allowed(v))}
        self.kept.append(f"<{tag}{''.join(f' {k}={chr(34)}{escape(v)}{chr(34)}' for k, v in named.items())}>")

    def handle_endtag(self, tag):
        if tag in GONE_WITH_CONTENTS:
            self.inside -= 1
        elif not self.inside and tag in TAGS and tag != "img":
            self.kept.append(f"</{tag}>")

    def handle_data(self, data):
        if not self.inside:
            self.kept.append(escape(data))

    def is_allowed(self, address):
        return any(address.startswith(f"{scheme}:") for scheme in self.schemes)


class Seen(HTMLParser):
    """The visible content of a page: the pictures and the cells of tables."""

    def __init__(self, text):
        super().__init__()
        self.pictures, self.cells, self.rows, self.said = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.pictures.append(dict(attrs))
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        self.said.append(data)
        if self.rows:
            self.rows[-1].append(data)


def sanitized(text, *schemes):
    sanitizer = Sanitizer(schemes)
    sanitizer.feed(text)
    return Seen("".join(sanitizer.kept))


def packed(text):
    """Return the data of the report in the frame."""
    frame = Seen(text)
    page = []
    frame.handle_starttag = lambda tag, attrs: page.append(dict(attrs).get("srcdoc")) if tag == "iframe" else None
    frame.reset()
    frame.feed(text)
    data = page[0].partition('id="fl-data"')[2].partition(">")[2].partition("<")[0]
    return json.loads(zlib.decompress(base64.b64decode(data)))


@pytest.fixture(scope="module")
def plan():
    return layers(3)  # 54 ops


def edited(plan):
    """The plan after an edit, which is saved together with the previous plan."""
    edges = [edge.tensor for edge in view_plan(plan).edges if edge.kind == "inside"]
    return next(made for tensor in reversed(edges) if (made := _cut(plan, tensor)) is not None)


def _cut(plan, tensor):
    preview = plan.preview_cut(tensor)
    return plan.with_edit(preview) if preview.legal else None


def test_a_plan_of_sixty_ops_and_the_one_it_was_made_of_fit_with_their_interactions(plan):
    for plans in ([edited(plan), plan], [layers(4)]):
        text = saved_html(plans, "key", title="sixty")
        assert len(text) < MOST_CHARACTERS == 300_000
        found = packed(text)
        assert [one["scenes"]["ops"]["hash"] for one in found["plans"]] == [one.hash for one in plans]
        assert found["plans"][0]["answers"]
        assert found["chunks"]


@pytest.mark.parametrize("count", [3, 22])
def test_a_page_that_keeps_data_shows_the_picture_and_one_that_does_not_shows_the_table(count):
    plan = layers(count)
    text = saved_html([plan], "key", title="<b>")
    whole, poor = sanitized(text, "data", "https"), sanitized(text, "https")
    (picture,) = whole.pictures
    drawing = base64.b64decode(picture["src"].removeprefix("data:image/svg+xml;base64,"))
    assert fromstring(drawing).tag.endswith("svg")
    assert f"S{len(plan.segments) - 1}" in drawing.decode()
    for seen in (whole, poor):
        assert "".join(seen.said).strip().startswith("<b>: the segments of the plan")
        assert "fl-saved" not in "".join(seen.said)  # no style sheet as text
        assert len(seen.rows) == 1 + min(len(plan.segments), 40)
        for segment, row in zip(plan.segments, seen.rows[1:], strict=False):
            assert row[:2] == [f"S{segment.index}", str(segment.scheduler.value)]
    assert "src" not in poor.pictures[0]
    assert poor.pictures[0]["alt"] == "<b>: the segments of the plan"


def test_a_reader_without_widgets_gets_the_plan_as_text():
    explorer = Explorer(two_norms())
    data = explorer._repr_mimebundle_()[0]
    assert "S2" in data["text/plain"]
    assert "pointwise" in data["text/plain"] or "persistent" in data["text/plain"]
    explorer.close()


def test_the_saved_form_opens_with_the_view_of_the_explorer(stubs):
    plan = stubs.sum_broadcast_add()
    explorer = Explorer(plan, view="decisions")
    assert explorer.opens == "decisions"
    assert bake([plan], opens=explorer.opens)["opens"] == "decisions"
    explorer.close()


def test_views_that_do_not_exist_are_refused_with_those_that_do(stubs):
    with pytest.raises(InputError, match=r"view must be 'decisions', .*'time_line'.*, given 'why'"):
        Explorer(stubs.sum_broadcast_add(), view="why")
