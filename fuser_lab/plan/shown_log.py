"""The decision log with its views and files; the records themselves do not depend on views."""

from pathlib import Path

from fuser_lab.report import html, save
from fuser_lab.report.log_picture import decisions_svg
from fuser_lab.report.shown import Shown
from fuser_lab.segmentation.events import DecisionLog


class ShownLog(Shown, DecisionLog):
    """A decision log with an HTML view and `save`."""

    def _repr_html_(self) -> str:
        """Return the attempts as static HTML."""
        return html.decisions_html(self)

    def _picture(self) -> str:
        """Return the attempts as a picture."""
        return decisions_svg(self)

    def save(self, path: str | Path) -> Path:
        """Write the log as .json (lines, which `from_json` reads), .csv, .html, .svg, .png or .txt; return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        return save.save("a decision log", path, save.log_writers(self))
