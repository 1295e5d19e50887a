"""The representations of an object in a notebook: text and HTML, and a picture if there is one."""

from fuser_lab.report.shown import Shown


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
