"""Assertions that wait, because a page shows the result of a click some time after it.

A test uses ``expect(locator)``, or ``eventually`` and ``until`` for a value that Playwright has no matcher for. It does
not use ``assert locator.count() == 2``, which reads the page at that moment: ``tests/layering`` refuses such a read
unless its line contains ``# settled``. Before a test asserts that something did not happen, it waits for a sign that it
would have happened by then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PATIENCE", "eventually", "expect", "until"]

T = TypeVar("T")

PATIENCE = 120_000  # milliseconds to wait for a page, because the machine may be busy
_BETWEEN = 0.05  # seconds
expect.set_options(timeout=PATIENCE)


def until(read: Callable[[], T], holds: Callable[[T], bool]) -> T:
    """Read until a value holds, and return it; ``read`` queries the page, which lets Playwright handle its events."""
    end = time.monotonic() + PATIENCE / 1000
    while not holds(found := read()):
        if time.monotonic() > end:
            message = f"after {PATIENCE / 1000:.0f} s the page still says {found!r}"
            raise AssertionError(message)
        time.sleep(_BETWEEN)
    return found


def eventually(read: Callable[[], T], wanted: T) -> None:
    """Read until the value is the expected one."""
    try:
        until(read, lambda found: bool(found == wanted))
    except AssertionError as error:
        message = f"{error}, not {wanted!r}"
        raise AssertionError(message) from None
