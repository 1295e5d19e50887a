"""The Python of a pasted text: its fence, its syntax tree and its lines for error messages."""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fuser_lab.errors import DefinitionError, FuserLabError
from fuser_lab.process.collector import collector_paused

LONGEST = 1_000_000  # characters of a script
_SHOWN = 120  # characters of a line under which an error points
_QUOTED = 80  # characters of a line that an error quotes
_FENCE = re.compile(r"^[\s>]*(`{3,}|~{3,})\s*([\w+-]*)[^`]*$")
_DEFINES = re.compile(r"\b(?:define_tensor|add_output|from_pytorch)\b")
_PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.)(?: |$)")
_INPUTS = re.compile(r"^\s*inputs\s*=\s*[\[(]", re.MULTILINE)
# Possible first lines of a script among prose or log lines.
_BEGINS = re.compile(
    r"\s*(?:import [\w.]+|from [\w.]+ import |def \w+\s*\(|class \w+|with .*FusionDefinition|@[\w.]+|# CUDA devices)",
)
# Prefixes that logs and diffs add to each line.
_PREFIXES = (
    re.compile(r"\[(?:rank|default)\d+\]:\s?"), re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\s?"),
    re.compile(r"\+(?!\+\+)"), re.compile(r"(?:E {3}|> ?|\|) ?"), re.compile(r" *\d{1,6}[:|] ?"),
)  # fmt: skip
# Typographic spaces and quotes.
_TYPOGRAPHY = {0xA0: " ", 0x2007: " ", 0x202F: " ", 0x200B: None, 0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'}
_MOST_CUTS = 40  # attempts to parse a text with lines removed
_MOST_PARSED = 5_000_000  # characters that these attempts parse in total
_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A parsed script; line numbers are those of the text, in which ``above`` lines precede it.

    ``notes`` say which lines are not Python, and ``beside`` are the inputs from another fence of the text.
    """

    tree: ast.Module
    lines: tuple[str, ...]
    above: int = 0
    notes: tuple[str, ...] = ()
    beside: tuple[ast.stmt, ...] = ()

    def refusal(
        self, place: ast.AST | int, why: str, kind: type[FuserLabError] = DefinitionError,
    ) -> FuserLabError:
        """Return the error for a position: line number, reason, the line itself and a caret."""
        line = place if isinstance(place, int) else int(getattr(place, "lineno", 0))
        column = -1 if isinstance(place, int) else int(getattr(place, "col_offset", -1))
        return kind(_locate(self.lines, self.above, line, column, why))

    def line(self, place: ast.AST) -> str:
        """Return the number and the beginning of the line at a position, or an empty text if there is none."""
        number = int(getattr(place, "lineno", 0))
        if not 1 <= number - self.above <= len(self.lines):
            return ""
        text = self.lines[number - self.above - 1].strip()
        return f"line {number}: {text if len(text) <= _QUOTED else text[:_QUOTED].rstrip() + ' ...'}"


def _locate(lines: tuple[str, ...], above: int, line: int, column: int, why: str) -> str:
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
    # Columns count bytes, which equal characters only here.
    return f"{message}\n    {' ' * caret}^" if caret >= 0 and whole.isascii() else message


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A fenced block of a Markdown text; ``above`` lines precede its first line."""

    text: str
    above: int
    is_python: bool


def scripts_in(text: str) -> tuple[Script, ...]:
    """Return the scripts of a text that define a fusion: those in its fences, or the text itself if it has none.

    Raises
    ------
    DefinitionError
        If it is too long, or the script is not Python.
    """
    if len(text) > LONGEST:
        raise DefinitionError(f"load_repro: the text has {len(text)} characters; scripts of up to {LONGEST} are read.")
    lines = tuple(_NEWLINE.split(text.removeprefix("\ufeff")))
    every = _fences(lines)
    fences = [fence for fence in every if _DEFINES.search(fence.text)]
    fences = [fence for fence in fences if fence.is_python] or fences
    if not fences:
        return (_parse(lines, 0),)
    beside = tuple(_inputs_in(fence for fence in every if not _DEFINES.search(fence.text)))
    scripts: list[Script] = []
    failures: list[DefinitionError] = []
    for fence in fences:
        try:
            script = _parse(tuple(_NEWLINE.split(fence.text)), fence.above)
            scripts.append(replace(script, beside=beside))
        except DefinitionError as error:
            failures.append(error)
    if not scripts:
        raise failures[0]
    return tuple(scripts)


def _fences(lines: tuple[str, ...]) -> list[Fence]:
    fences: list[Fence] = []
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
            fences.append(
                Fence(text=textwrap.dedent("\n".join(body)), above=above, is_python=language in {"python", "py"}),
            )
            opened = None
        elif opened is not None:
            inside.append(line)
        elif mark is not None:
            opened, above, inside = mark, number + 1, []
    return fences


def _inputs_in(fences: Iterable[Fence]) -> Iterator[ast.stmt]:
    """Yield the statements of fences that assign inputs."""
    for fence in fences:
        if not _INPUTS.search(fence.text):
            continue
        with suppress(DefinitionError):
            tree = _parse_lines(tuple(_NEWLINE.split(fence.text)), fence.above).tree
            yield from (each for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign | ast.Import))


def _parse(lines: tuple[str, ...], above: int) -> Script:
    try:
        return _parse_lines(lines, above)
    except DefinitionError:
        for typed in _clean_lines(lines):
            with suppress(DefinitionError):
                return _parse_lines(typed, above)
            cut = _cut_out(typed, above)
            if cut is not None:
                return cut
        raise


def _clean_lines(lines: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield lines without prefixes and typographic characters."""
    if any(line.lstrip().startswith(">>> ") for line in lines):
        # A session at Python's prompt; lines without a prompt are output.
        yield tuple(_PROMPT.sub("", line) if _PROMPT.match(line) else "" for line in lines)
        return
    plain = tuple(line.translate(_TYPOGRAPHY) for line in lines)
    for prefix in _PREFIXES:
        defining = [line for line in plain if _DEFINES.search(line)]
        if defining and all(prefix.match(line) for line in defining):
            plain = tuple(prefix.sub("", line) if prefix.match(line) else "" for line in plain)
    yield plain


def _cut_out(lines: tuple[str, ...], above: int) -> Script | None:
    """Return the script among other lines, which become empty; None if there is none.

    Other lines are prose and logs before the script, and everything from the first line that is not Python after the
    last line that defines something or assigns inputs.
    """
    begins = [number for number, line in enumerate(lines) if _BEGINS.match(line)]
    defining = [number for number, line in enumerate(lines) if _DEFINES.search(line)]
    if not begins or not defining or begins[0] > defining[0]:
        return None
    first, end, spent = begins[0], len(lines), 0
    for _ in range(_MOST_CUTS):
        script_lines = [*[""] * first, *_dedent(lines[first:end])]
        spent += sum(map(len, script_lines))
        if spent > _MOST_PARSED:
            return None
        wrong = _first_wrong(script_lines)
        if wrong is None:
            script = _parse_lines((*script_lines, *[""] * (len(lines) - end)), above)
            notes = [_passed_over(above, a, b) for a, b in ((0, first), (end, len(lines)))
                     if any(line.strip() for line in lines[a:b])]  # fmt: skip
            return replace(script, notes=tuple(notes))
        later = next((number for number in begins if number > max(wrong, first)), None)
        if wrong > defining[-1] and wrong > first:
            # Inputs may follow prose after the definition; these are dropped.
            end = wrong
        elif wrong < defining[0] and later is not None and later <= defining[0]:
            first = later
        else:
            return None
    return None


def _dedent(lines: Sequence[str]) -> list[str]:
    """Return lines without the indentation of the first one, up to a line with less."""
    depth = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return [line[depth:] if not line[:depth].strip() else line for line in lines]


@collector_paused()
def _first_wrong(lines: Sequence[str]) -> int | None:
    """Return the number of the first line that is not Python, None if all are."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return max((error.lineno or 1) - 1, 0)
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return 0
    return None


def _passed_over(above: int, first: int, end: int) -> str:
    if end - first == 1:
        return f"line {above + end} is not part of the script and is skipped"
    return f"lines {above + first + 1} to {above + end} are not part of the script and are skipped"


@collector_paused()
def _parse_lines(lines: tuple[str, ...], above: int) -> Script:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse("\n".join(lines))
        if above:
            ast.increment_lineno(tree, above)
    except SyntaxError as error:
        line = above + (error.lineno or 1)
        hint = "paste an issue whole, with its ```python fence, or the script alone."
        raise DefinitionError(_locate(lines, above, line, -1, f"this is not Python ({error.msg}); {hint}")) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        reason = str(error) or "it is nested too deeply"
        raise DefinitionError(f"load_repro: the text cannot be parsed as Python ({reason}).") from None
    return Script(tree=tree, lines=lines, above=above)
