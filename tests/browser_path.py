"""Finds a chromium or chrome for the browser tests; as a script with --install, it installs Debian's if permitted."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
HOW = (
    "No chromium or chrome found: install one (on Debian: apt-get install chromium) "
    "or set FUSER_LAB_BROWSER to the path of one."
)


def candidates() -> Iterator[str]:
    """Candidate paths: only the requested one, or those on the PATH and in macOS's folders."""
    if asked := os.environ.get("FUSER_LAB_BROWSER"):
        yield asked
        return
    yield from filter(None, map(shutil.which, NAMES))
    yield from (place for place in PLACES if Path(place).exists())


def answers(path: str) -> bool:
    """Whether a path is a browser that starts: Ubuntu's /usr/bin/chromium-browser may be a note about snap."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_browser() -> str | None:
    """The first browser that starts, or None."""
    return next(filter(answers, candidates()), None)


def root_prefix() -> list[str] | None:
    """The prefix that runs a command as root without a prompt; None if there is none."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [sudo, "-n"]
    return None


def install() -> None:
    """Debian's chromium by apt-get, and a font for it, if this process is permitted to; otherwise nothing."""
    prefix = root_prefix()
    apt = shutil.which("apt-get")
    if apt is None or prefix is None:
        return
    print("Installing chromium for the browser tests (apt-get install chromium).", flush=True)
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", apt, "-qq", "-y"]
    for command in (["update"], ["install", "--no-install-recommends", "chromium", "fonts-liberation"]):
        done = subprocess.run(
            [*quiet, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"apt-get {command[0]} failed: {done.stderr.strip()[-500:]}", file=sys.stderr)


if __name__ == "__main__":
    found = find_browser()
    if found is None and "--install" in sys.argv[1:] and not os.environ.get("FUSER_LAB_BROWSER"):
        install()
        found = find_browser()
    print(f"Browser tests use {found}." if found else f"{HOW} The browser tests are skipped.")
