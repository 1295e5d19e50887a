"""The picture of the packages: ``python -m tests.pages.architecture > docs/images/architecture.svg`` draws it.

The packages, their ranks and what they contain are the rows of the table in CONTRIBUTING.md. A test compares the ranks
with those that are enforced.
"""

import re
import sys
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fuser_lab.report import theme

CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
ROW = re.compile(r"^\| (\d+) \| ((?:`[\w/]+` ?)+)\| (.+) \|$", re.MULTILINE)
# Lengths in pixels, and characters per line of text.
WIDTH, LEFT, PACKAGES, GAP, LINE, LETTER, LETTERS = 960, 52, 500, 8, 26, 7.9, 58


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The packages that may import each other's rank and lower ones, and what they contain."""

    number: int
    packages: tuple[str, ...]
    contents: str


def ranks() -> tuple[Rank, ...]:
    """Return the ranks in the order in which a fusion passes through them."""
    rows = ROW.findall(CONTRIBUTING.read_text(encoding="utf-8"))
    return tuple(
        Rank(number=int(number), packages=tuple(names.replace("`", " ").split()), contents=contents.replace("`", ""))
        for number, names, contents in rows
    )


def picture() -> str:
    """Return an SVG with one band per rank; imports point down."""
    parts: list[str] = []
    top = GAP
    for rank in reversed(ranks()):
        band, height = _band(rank, top)
        parts.append(band)
        top += height + GAP
    arrow = (
        f'<path d="M26 {GAP + 4}V{top - 16}m-5 -8l5 8l5 -8" class="a-arrow"/>'
        f'<text class="a-muted" transform="translate(19 {top / 2:.0f}) rotate(-90)" text-anchor="middle">imports</text>'
    )
    style = (
        theme.variables(".fl-ranks")
        + f".fl-ranks text{{font:13px {theme.SANS};fill:var(--fl-ink)}}.fl-ranks .a-name{{font:13px {theme.MONO}}}"
        + ".fl-ranks .a-muted{fill:var(--fl-muted)}.fl-ranks .a-band{fill:var(--fl-panel);stroke:var(--fl-line)}"
        + ".fl-ranks .a-box{fill:var(--fl-node);stroke:var(--fl-accent)}.fl-ranks .a-paper{fill:var(--fl-paper)}"
        + ".fl-ranks .a-arrow{fill:none;stroke:var(--fl-muted);stroke-width:1.5}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fl-ranks" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" '
        f'height="{top}" role="img" aria-label="The packages by rank: a package imports its own rank or a lower one">'
        f'<style>{escape(style, quote=False)}</style><rect class="a-paper" width="100%" height="100%"/>'
        f"{arrow}{''.join(parts)}</svg>"
    )


def _band(rank: Rank, top: int) -> tuple[str, int]:
    """Return the band of a rank, and its height."""
    places, x, row = [], LEFT + 34.0, 0
    for name in rank.packages:
        width = LETTER * len(name) + 14
        if x + width > PACKAGES:
            x, row = LEFT + 34.0, row + 1
        places.append((name, x, LINE * row, width))
        x += width + 6
    lines = textwrap.wrap(rank.contents, LETTERS)
    height = max(LINE * (row + 1), 17 * len(lines)) + 12
    middle = top + height / 2
    first = middle - LINE * (row + 1) / 2 + 3
    boxes = "".join(
        f'<rect class="a-box" x="{x:.0f}" y="{first + y:.0f}" width="{width:.0f}" height="20" rx="4"/>'
        f'<text class="a-name" x="{x + 7:.0f}" y="{first + y + 14:.0f}">{escape(name)}</text>'
        for name, x, y, width in places
    )
    said = "".join(
        f'<text x="{PACKAGES + 20}" y="{middle + 17 * (n - len(lines) / 2) + 13:.0f}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )
    return (
        f'<rect class="a-band" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - GAP}" height="{height}" rx="6"/>'
        f'<text class="a-muted" x="{LEFT + 20}" y="{middle + 5:.0f}" text-anchor="middle">{rank.number}</text>'
        f"{boxes}{said}"
    ), height


if __name__ == "__main__":
    sys.stdout.write(f"{picture()}\n")
