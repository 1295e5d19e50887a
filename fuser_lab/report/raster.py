"""Pictures as PNG, drawn by a browser: converters do not support the CSS variables of the pictures' colours."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from fuser_lab.errors import UnsupportedError

BROWSERS: Final = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
)
_PLACES: Final = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_SCALE: Final = 2.0  # pixels per unit of the picture
_MOST_DOTS: Final = 16_000.0  # largest side that browsers draw
_SECONDS: Final = 120  # seconds after which a browser is stopped


def rasterize(svg: str) -> bytes:
    """Return the PNG of an SVG on white, with two pixels per unit if that is not too large.

    Raises
    ------
    UnsupportedError
        If there is no browser, or it produces no picture.
    """
    browser = _browser()
    root = ET.fromstring(svg)  # noqa: S314 - written by this package
    width, height = (round(float(root.attrib[side])) for side in ("width", "height"))
    scale = min(_SCALE, _MOST_DOTS / max(width, height, 1))
    with tempfile.TemporaryDirectory() as folder:
        drawing, picture = Path(folder, "drawing.svg"), Path(folder, "picture.png")
        drawing.write_text(svg, encoding="utf-8")
        options = [
            "--headless", "--disable-gpu", "--hide-scrollbars", "--default-background-color=ffffffff",
            f"--force-device-scale-factor={scale}", f"--window-size={width},{height}", f"--user-data-dir={folder}/user",
            f"--screenshot={picture}",
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # browsers have no sandbox for root
        try:
            subprocess.run(  # noqa: S603 - a browser of this machine on a file of ours
                [browser, *options, drawing.as_uri()], capture_output=True, check=False, timeout=_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnsupportedError(f"the browser {browser} made no PNG: {error}; .svg and .html need none.") from None
        if not picture.exists():
            msg = f"the browser {browser} made no PNG; .svg and .html need none, and FUSER_LAB_BROWSER names another."
            raise UnsupportedError(msg)
        return picture.read_bytes()


def _browser() -> str:
    """Return the browser that FUSER_LAB_BROWSER names, or an installed one."""
    asked = os.environ.get("FUSER_LAB_BROWSER")
    there = (*filter(None, map(shutil.which, BROWSERS)), *(place for place in _PLACES if Path(place).exists()))
    if asked or there:
        return asked or there[0]
    raise UnsupportedError(
        "a PNG needs a browser that draws it, chromium, chrome or edge, and none was found: install one (on Debian: "
        "apt-get install chromium), or set FUSER_LAB_BROWSER to the path of one; .svg and .html need nothing."
    )
