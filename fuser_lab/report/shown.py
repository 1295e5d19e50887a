"""Notebook display of objects."""


class Shown:
    """An object that a notebook shows as HTML; front ends without HTML show a picture, if there is one, or text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return static HTML."""
        raise NotImplementedError

    def _picture(self) -> str:
        """Return an SVG, or ``""`` if there is nothing to draw."""
        return ""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return text, HTML, and the picture if there is one."""
        shown = {"text/plain": str(self), "text/html": self._repr_html_()}
        picture = self._picture()
        return {**shown, "image/svg+xml": picture} if picture else shown
