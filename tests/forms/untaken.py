"""Branches of code generation and scheduling that no kernel form takes, with the reasons."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.forms.trace import ROOT, Arc, branches

# By reason and module: the texts of the line that a branch leads from and of the line that it leads to, which is empty
# at the end of a function. Texts remain when lines are inserted elsewhere.
UNTAKEN: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The lines of a module, without indentation."""

    module: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, module: str) -> "Source":
        """Return a module's lines."""
        text = (ROOT / f"{module}.py").read_text()
        return cls(module=module, lines=tuple(line.strip() for line in text.splitlines()))

    def line(self, number: int) -> str:
        """Return a line; a number below 1 is the end of a function, which has no text."""
        return self.lines[number - 1] if number > 0 else ""


def reasons(source: Source, first: int, then: int) -> tuple[str, ...]:
    """Return the listed reasons why no kernel takes a branch between two lines."""
    pair = source.line(first), source.line(then)
    return tuple(reason for reason, modules in UNTAKEN.items() if pair in modules.get(source.module, ()))


def stale(
    listed: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]], taken: Collection[Arc],
) -> Iterator[str]:
    """Yield which listed branches do not exist, or are taken by kernels wherever these texts occur."""
    for module in sorted({module for modules in listed.values() for module in modules}):
        if not (ROOT / f"{module}.py").exists():
            yield f"there is no module {module}."
            continue
        source = Source.of(module)
        here = {(a, b) for name, a, b in taken if name == module}
        existing: dict[tuple[str, str], list[bool]] = {}
        for first, then in branches(module)[module]:
            existing.setdefault((source.line(first), source.line(then)), []).append((first, then) in here)
        for pair in (pair for modules in listed.values() for pair in modules.get(module, ())):
            are_taken = existing.get(pair, [])
            if all(are_taken):
                why = "is taken by a kernel" if are_taken else "does not exist"
                yield f"the branch of {module} from {pair[0]!r} to {pair[1]!r} {why}."
