"""The glossary, whose terms are in glossary.toml: the site's page, and the footers of lessons.

``python -m tests.pages.glossary > docs/glossary.md`` writes the page.
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word, its meaning in a sentence or two, and how a text uses it, as a pattern."""

    name: str
    meaning: str
    pattern: str

    @property
    def anchor(self) -> str:
        """The fragment of the address of the term on the page."""
        return re.sub(r"[^\w]+", "-", self.name.lower()).strip("-")


def _terms() -> tuple[Term, ...]:
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(
        Term(
            name=term["name"], meaning=term["meaning"],
            pattern=term.get("pattern", rf"\b{re.escape(term['name'].lower())}s?\b"),
        )
        for term in data["term"]
    )


TERMS: Final = _terms()


def terms_of(text: str) -> list[Term]:
    """Return the terms that a text uses, in the order of the glossary."""
    return [term for term in TERMS if re.search(term.pattern, text, re.IGNORECASE)]


def footer(text: str) -> str:
    """Return a line of Markdown with the terms of a text: each links to the glossary and shows its meaning."""
    links = (f'[{term.name}](../docs/glossary.md#{term.anchor} "{term.meaning}")' for term in terms_of(text))
    return f"**Words:** {' · '.join(links)}"


def glossary_markdown() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Glossary",
        "",
        "<!-- Made by `python -m tests.pages.glossary > docs/glossary.md`; a test fails when it is stale. -->",
        "",
        "The words that the lessons and the explorer use. Each lesson ends with links to those that it needs.",
    ]
    for term in TERMS:
        lines += ["", f"## {term.name}", "", term.meaning]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(glossary_markdown())
