from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_path import HOW, find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless chromium."""
    path = find_browser()
    if path is None:
        pytest.skip(HOW)
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, headless=True, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="session")
def shots(repository: Path) -> Path:
    """Where screenshots are kept."""
    folder = repository / "test-output"
    folder.mkdir(exist_ok=True)
    return folder
