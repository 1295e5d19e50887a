"""Pages without JupyterLab, which one test after another uses.

A new page is a new process of the browser: with an explorer in it, it takes a second of processor time, and an explorer
in a page that was used before takes a fifth of that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .waiting import PATIENCE

if TYPE_CHECKING:
    from typing import Literal

    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

_OUTSIDE = (-1, -1)
_unused: list[OpenPage] = []


@dataclass(frozen=True, eq=False)
class OpenPage:
    """A page that one user has, and what has happened in it since."""

    page: Page
    errors: list[str] = field(default_factory=list)  # of scripts and of the console, and dialogs
    requests: list[str] = field(default_factory=list)  # their addresses

    def close(self) -> None:
        """Leave the page to the next user; nothing of what it shows is left."""
        if self.page.is_closed():
            return
        self.page.goto("about:blank")
        self.page.mouse.move(*_OUTSIDE)
        _unused.append(self)

    def _listen(self) -> None:
        def console(message: ConsoleMessage) -> None:
            if message.type == "error":
                self.errors.append(message.text)

        def dialog(opened: Dialog) -> None:
            self.errors.append(f"dialog {opened.message}")
            opened.dismiss()

        self.page.on("console", console)
        self.page.on("dialog", dialog)
        self.page.on("pageerror", lambda error: self.errors.append(f"{error} {error.stack}"))
        self.page.on("request", lambda request: self.requests.append(request.url))


def open_page(
    browser: Browser, *, size: tuple[int, int], theme: Literal["light", "dark"] = "light", still: bool = True,
    offline: bool = True, fresh: bool = False,
) -> OpenPage:
    """Return an empty page, which its user closes.

    Parameters
    ----------
    browser
        The browser.
    size
        Width and height in pixels.
    theme
        The colours that the system prefers.
    still
        Whether the user asked the system for less motion.
    offline
        Whether the page has no network.
    fresh
        Whether the page is a new one, for times that an earlier use would shorten.
    """
    used = next((one for one in _unused if one.page.context.browser is browser and not fresh), None)
    if used is None:
        context = browser.new_context()
        context.set_default_timeout(PATIENCE)
        opened = OpenPage(context.new_page())
        opened._listen()
    else:
        _unused.remove(used)
        used.errors.clear()
        used.requests.clear()
        opened = used
    opened.page.set_viewport_size({"width": size[0], "height": size[1]})
    opened.page.emulate_media(color_scheme=theme, reduced_motion="reduce" if still else "no-preference")
    opened.page.context.set_offline(offline)
    return opened
