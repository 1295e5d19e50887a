"""The representations of an object in a notebook: text and HTML, and a picture if there is one."""

import fuser_lab as fl
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table


class Plain(Shown):
    def __str__(self):
        return "two"

    def _repr_html_(self):
        return "<b>2</b>"


class Drawn(Plain):
    def _picture(self):
        return "<svg/>"


def test_an_object_without_a_picture_shows_text_and_html():
    assert Plain()._repr_mimebundle_() == {"text/plain": "two", "text/html": "<b>2</b>"}


def test_a_picture_is_for_what_shows_no_html():
    assert Drawn()._repr_mimebundle_(include=None) == {
        "text/plain": "two", "text/html": "<b>2</b>", "image/svg+xml": "<svg/>",
    }


def test_a_prompt_shows_certificates_and_tables_as_text():
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([4])))
    found = fl.segment(fd).certificate()
    assert repr(found) == str(found)
    assert repr(found).startswith("certified optimal")
    assert repr(Table(columns=("plan", "bytes"), rows=(("a", "8"),))) == "plan  bytes\n----  -----\na     8"
