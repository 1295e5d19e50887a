"""The Python of a pasted text: its fence, its syntax tree and its lines for error messages."""

import ast
import re
import textwrap
import warnings
from contextlib import suppress
from dataclasses import dataclass

from fuser_lab.errors import DefinitionError, FuserLabError

LONGEST = 1_000_000
_SHOWN = 120
_FENCE = re.compile(r"^[\s>]*(`{3,}|~{3,})\s*([\w+-]*)[^`]*$")
_DEFINES = re.compile(r"\b(?:define_tensor|add_output|from_pytorch)\b")
_PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.)(?: |$)")
_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A parsed script; line numbers are those of the text that it was found in, of which ``above`` lines precede it."""

    tree: ast.Module
    lines: tuple[str, ...]
    above: int = 0

    def refusal(
        self, place: ast.AST | int, why: str, kind: type[FuserLabError] = DefinitionError,
    ) -> FuserLabError:
        """Return the error for something at a place: line number, reason, the line itself and a caret."""
        line = place if isinstance(place, int) else int(getattr(place, "lineno", 0))
        column = -1 if isinstance(place, int) else int(getattr(place, "col_offset", -1))
        return kind(_located(self.lines, self.above, line, column, why))


def _located(lines: tuple[str, ...], above: int, line: int, column: int, why: str) -> str:
    message = f"line {line}: {why}"
    if not 1 <= line - above <= len(lines):
        return message
    whole = lines[line - above - 1]
    shown = whole.strip()
    if not shown:
        return message
    caret = column - (len(whole) - len(whole.lstrip()))
    if len(shown) > _SHOWN:
        shown, caret = shown[:_SHOWN] + " ...", caret if caret < _SHOWN else -1
    message += f"\n    {shown}"
    # A column counts bytes, which are characters only here.
    return f"{message}\n    {' ' * caret}^" if caret >= 0 and whole.isascii() else message


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A fenced block of a Markdown text; ``above`` lines stand before its first line."""

    text: str
    above: int
    is_python: bool


def scripts_in(text: str) -> tuple[Script, ...]:
    """Return the scripts of a text that define a fusion: those in its fences, or the text itself if it has none.

    Raises
    ------
    DefinitionError
        If it is too long, or what should be a script is no Python.
    """
    if len(text) > LONGEST:
        msg = f"load_repro: the text has {len(text)} characters; scripts of up to {LONGEST} are read."
        raise DefinitionError(msg)
    lines = tuple(_NEWLINE.split(text.removeprefix("\ufeff")))
    fences = [fence for fence in _fences(lines) if _DEFINES.search(fence.text)]
    fences = [fence for fence in fences if fence.is_python] or fences
    if not fences:
        return (_parse(lines, 0),)
    found: list[Script] = []
    failures: list[DefinitionError] = []
    for fence in fences:
        try:
            found.append(_parse(tuple(_NEWLINE.split(fence.text)), fence.above))
        except DefinitionError as error:
            failures.append(error)
    if not found:
        raise failures[0]
    return tuple(found)


def _fences(lines: tuple[str, ...]) -> list[Fence]:
    found: list[Fence] = []
    opened: re.Match[str] | None = None
    above = 0
    inside: list[str] = []
    for number, line in enumerate([*lines, ""]):
        mark = _FENCE.match(line)
        closes = opened is not None and mark is not None and mark[1].startswith(opened[1]) and not mark[2]
        if opened is not None and (closes or number == len(lines)):
            is_quoted = ">" in opened[0]
            body = [re.sub(r"^\s*>\s?", "", entry) for entry in inside] if is_quoted else inside
            language = opened[2].lower()
            found.append(
                Fence(text=textwrap.dedent("\n".join(body)), above=above, is_python=language in {"python", "py"}),
            )
            opened = None
        elif opened is not None:
            inside.append(line)
        elif mark is not None:
            opened, above, inside = mark, number + 1, []
    return found


def _parse(lines: tuple[str, ...], above: int) -> Script:
    if any(line.lstrip().startswith(">>> ") for line in lines):
        # A session of Python's prompt; lines without one are what it printed.
        typed = tuple(_PROMPT.sub("", line) if _PROMPT.match(line) else "" for line in lines)
        with suppress(DefinitionError):
            return _parse_lines(lines, above)
        return _parse_lines(typed, above)
    return _parse_lines(lines, above)


def _parse_lines(lines: tuple[str, ...], above: int) -> Script:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse("\n".join(lines))
        if above:
            ast.increment_lineno(tree, above)
    except SyntaxError as error:
        line = above + (error.lineno or 1)
        hint = "of an issue, paste the whole text with its ```python fence, or the script alone."
        raise DefinitionError(_located(lines, above, line, -1, f"this is no Python ({error.msg}); {hint}")) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        reason = str(error) or "it is nested too deeply"
        msg = f"load_repro: the text cannot be parsed as Python ({reason})."
        raise DefinitionError(msg) from None
    return Script(tree=tree, lines=lines, above=above)
