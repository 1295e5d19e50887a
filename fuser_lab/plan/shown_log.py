"""The decision log with its views and files; the records themselves do not depend on views."""

from pathlib import Path

from fuser_lab.events import DecisionLog
from fuser_lab.report import html, save, text
from fuser_lab.report.log_picture import decisions_svg


class ShownLog(DecisionLog):
    """A decision log with an HTML view and `save`."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the attempts as text, as static HTML, and as a picture."""
        shown = {"text/html": html.decisions_html(self), "image/svg+xml": decisions_svg(self)}
        return {"text/plain": text.decisions_text(self), **shown}

    def save(self, path: str | Path) -> Path:
        """Write the log as .json (lines, which `from_json` reads), .csv, .html, .svg, .png or .txt; return the path.

        Raises
        ------
        InputError
            If the extension is none of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        return save.save("a decision log", path, save.log_writers(self))
