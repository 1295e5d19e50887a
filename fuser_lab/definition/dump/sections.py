"""Assigns the lines of a pasted text to the parts of a dump."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fuser_lab.definition.dump import terms
from fuser_lab.errors import DefinitionError

MOST_EXPRESSIONS = 10_000  # expressions of one fusion
_MOST_CHARACTERS = 32_000_000  # characters of a text
_MOST_REFUSALS = 100_000  # lines that are not read and listed
_MOST_GROUPS = 20_000  # segments, and lines of details
_MOST_LINES = 1_000  # of one expression

_QUOTE = re.compile(r"\s*> ?")
_LAUNCHER = re.compile(r"\[(?:rank|default)?\d*\]:? ?")
_BEGINS = re.compile(r"(?:T\d+(?:_|\s*\[|\s*=)|[bidfc]\d+\s*=)")
_CONTINUES = re.compile(
    r"[-+*/%<>=!&|^,.(){}?]|T\d|[bidfc]\d|\d|(?:double|float|int64_t|int|bool|std::complex<\w+>)\("
    r"|(?:flags|allreduce|op|dim|axis|index|cache_op)\s*=|\)",
)
_HEADER = re.compile(r"(?P<kind>Inputs|Outputs)\s*:\s*$", re.IGNORECASE)
_REFUSED = re.compile(r"Scheduler _(?P<scheduler>\w+)_ \*+rejected\*+ because\s*:\s*(?P<why>.*)")
_ACCEPTED = re.compile(r"\*+Accepted\*+ as:\s*_?(?P<scheduler>\w+?)_?\s*$")
_GROUP = re.compile(r"(?P<scheduler>[A-Za-z_]\w*)\s*\{(?P<numbers>[\d,\s]*)\}\s*(?P<merged>\(merged\))?\s*$")
_EDGE = re.compile(
    r"e\{\s*\w+\s*\{(?P<source>[\d,\s]*)\}\s*->\s*\w+\s*\{(?P<target>[\d,\s]*)\}\s*\(\s*(?P<tensor>T\d+[\w:<>]*)",
)
_DETAIL = re.compile(r"g\s*\{\s*(?:\((?P<scheduler>\w+)\))?\s*$")
_NUMBER = re.compile(r"\((?P<number>\d{1,9})\)\s*$")
_OWN = re.compile(r"//\s*fuser_lab:\s*(?P<what>.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A line of ``segmenter_logging``: which scheduler refused, why, and for which results, if known."""

    scheduler: str
    text: str
    about: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class MathText:
    """A fusion as text: lines of inputs and outputs, expressions as (line, text), and the domains of tensors."""

    inputs: list[tuple[int, str]] = field(default_factory=list)
    outputs: list[tuple[int, str]] = field(default_factory=list)
    exprs: list[tuple[int, str]] = field(default_factory=list)
    domains: dict[str, terms.Domains] = field(default_factory=dict)
    is_complete: bool = False

    def statements(self, notes: list[str]) -> list[terms.Statement]:
        """Return the expressions, without a truncated one at the end of the text."""
        statements = []
        for place, (line, text) in enumerate(self.exprs):
            is_last = not self.is_complete and place == len(self.exprs) - 1
            if is_last and not text.rstrip().endswith((";", ")")):
                notes.append(f"the text ends inside the expression on line {line}, which is omitted")
                continue
            try:
                statements.append(terms.statement(text, line))
            except DefinitionError:
                if not is_last:
                    raise
                notes.append(f"the text ends inside the expression on line {line}, which is omitted")
        return statements

    def values(self, which: str) -> list[terms.Value | terms.Symbol]:
        """Return the values listed as ``inputs`` or ``outputs``."""
        lines = self.inputs if which == "inputs" else self.outputs
        values = []
        for place, (line, text) in enumerate(lines):
            try:
                value = terms.listed_value(text, line)
            except DefinitionError:
                if self.is_complete or place < len(lines) - 1:
                    raise
                break  # the text ends inside this value
            if value is not None:
                values.append(value)
        return values


@dataclass(slots=True, kw_only=True)
class DumpedGroup:
    """A segment: its scheduler, the numbers of its expressions, and, from the details, their results and texts."""

    scheduler: str = ""
    numbers: tuple[int, ...] = ()
    exprs: list[tuple[int, str]] = field(default_factory=list)
    typed: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DumpText:
    """The parts of one dump; what is missing is None or empty.

    ``named`` gives the names of the results of each numbered expression. ``own`` are the comments that fuser_lab wrote.
    """

    line: int
    original: MathText | None = None
    rewritten: MathText | None = None
    groups: list[DumpedGroup] = field(default_factory=list)
    edges: list[tuple[frozenset[int], frozenset[int], str]] = field(default_factory=list)
    details: list[DumpedGroup] = field(default_factory=list)
    named: dict[int, tuple[str, ...]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    skipped: int = 0
    is_complete: bool = False

    @property
    def has_fusion(self) -> bool:
        """Whether the dump contains a fusion in any form."""
        return bool((self.rewritten and self.rewritten.exprs) or (self.original and self.original.exprs)
                    or any(group.exprs for group in self.details))  # fmt: skip


def dumps_in(text: str) -> list[DumpText]:
    """Return the dumps in a text, in order; other lines are skipped.

    Raises
    ------
    DefinitionError
        If the text contains none, or more than the limit.
    """
    if len(text) > _MOST_CHARACTERS:
        raise DefinitionError(f"load_dump: the text has {len(text)} characters; at most {_MOST_CHARACTERS} are read.")
    dumps = [dump for dump in _Sections().read(text) if dump.has_fusion]
    if not dumps:
        raise DefinitionError(
            "load_dump: the text contains no dump; NVFUSER_DUMP=segmented_fusion prints one, with the lines "
            "'Segmented_Fusion Dump: -- Re-written complete fusion:{' and '%kernel_math {'."
        )
    return dumps


class _Statements:
    """Joins lines to expressions, which end when brackets are closed and the next line does not continue them."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str]] = []
        self._lines: list[str] = []
        self._first = 0
        self._open = 0
        self._equals = False
        self._size = 0

    def add(self, number: int, text: str) -> bool:
        """Add a line; return False if it does not belong to an expression."""
        if text[0] == "}" and self._open <= 0:
            return False
        goes_on = bool(self._lines) and self._is_unfinished()
        if _BEGINS.match(text) and not (goes_on and self._may_continue(text)):
            self.close()
            self._first = number
        elif not self._lines or not _CONTINUES.match(text):
            return False
        if len(self._lines) >= _MOST_LINES:
            self.close()
            self._first = number
        self._lines.append(text)
        self._open += sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))
        self._equals = self._equals or _assigns(text)
        return True

    def _is_unfinished(self) -> bool:
        last = self._lines[-1]
        return self._open > 0 or last.endswith((",", "=")) or not self._equals

    def _may_continue(self, text: str) -> bool:
        # A result begins a new line; even inside brackets, a line with an assignment is a new expression.
        return not (self._equals and _assigns(text) and self._open <= 0)

    def close(self) -> None:
        """End the current expression."""
        if self._lines:
            self.done.append((self._first, " ".join(self._lines)))
            if len(self.done) > MOST_EXPRESSIONS:
                raise DefinitionError(
                    f"load_dump: line {self._first}: the fusion has more than {MOST_EXPRESSIONS} expressions; at most "
                    "as many are read."
                )
        self._lines, self._open, self._equals = [], 0, False


def _assigns(text: str) -> bool:
    return text.startswith("=") or re.search(r"(?:\]|\w|\))\s*=\s", text) is not None


class _Sections:
    """A state machine over lines."""

    def __init__(self) -> None:
        self._dumps: list[DumpText] = []
        self._state = ""
        self._list = ""
        self._math: MathText | None = None
        self._statements = _Statements()
        self._group: DumpedGroup | None = None
        self._considered: MathText | None = None
        self._about: tuple[str, ...] | None = None
        self._waiting: str | None = None
        self._listed: str | None = None  # the tensor whose domains are listed; empty before the first one

    def read(self, text: str) -> list[DumpText]:
        for number, line in _lines(text):
            self._line(number, line)
        self._end_math()
        return self._dumps

    @property
    def _dump(self) -> DumpText:
        if not self._dumps:
            self._dumps.append(DumpText(line=1))
        return self._dumps[-1]

    def _begin(self, number: int) -> None:
        self._end_math()
        self._dumps.append(DumpText(line=number))
        self._state = self._list = ""

    def _end_math(self) -> None:
        self._statements.close()
        done = self._statements.done
        if self._math is not None:
            self._math.exprs += done
        elif self._group is not None:
            self._group.exprs += done
        self._statements = _Statements()
        self._math = self._listed = None

    def _start_math(self) -> MathText:
        self._end_math()
        self._math = MathText()
        self._list = ""
        return self._math

    def _domain(self, line: str) -> None:
        """Process a line of the section ``TransformPrinter``: a tensor, or one of its domains."""
        assert self._math is not None
        names = terms.tensor_names(line)[:1] if line[0] == "T" else ()
        if names:
            self._listed = names[0]
        elif self._listed:
            domains = self._math.domains
            domains[self._listed] = terms.with_listed(domains.get(self._listed, terms.Domains()), line)

    def _line(self, number: int, line: str) -> None:
        if self._listed is not None and line[0] != "}":
            if not self._marks(number, line):
                self._domain(line)
            return
        if line.startswith("TransformPrinter") and self._math is not None:
            self._statements.close()
            self._listed = ""
            return
        if self._math is not None and self._waiting is None and line[0] in "T=+-*/" and not self._list:
            if not self._statements.add(number, line):
                self._dump.skipped += 1
            return
        if self._marks(number, line) or self._take_log(line):
            return
        comment = _OWN.match(line)
        if comment is not None:
            if len(self._dump.own) < 4 * MOST_EXPRESSIONS:
                self._dump.own.append(comment["what"])
        elif self._state == "groups":
            self._read_group(line)
        elif self._state == "details":
            self._read_detail(number, line)
        elif not self._in_math(number, line):
            self._dump.skipped += 1

    def _marks(self, number: int, line: str) -> bool:
        """Process a line that begins or ends a part."""
        if "(Original Fusion Un-modified)" in line:
            self._begin(number)
            self._dump.original = self._start_math()
            self._state = "math"
        elif "Re-written complete fusion:{" in line:
            if self._dumps and (self._dump.rewritten is not None or self._dump.groups):
                self._begin(number)
            self._dump.rewritten = self._start_math()
            self._state = "math"
        elif "{Re-written complete fusion}" in line:
            self._end_math()
            self._state = ""
        elif line.startswith("**Segmenter** Considering fusion"):
            self._considered = self._start_math()
            self._about = None
            self._state = "math"
        elif "fusion segments:" in line or line.startswith(("Segmented_Fusion{", "groups:", "edges:")):
            if self._dumps and self._dump.details and not line.startswith("edges"):
                self._begin(number)
            self._end_math()
            self._state = "groups"
        elif line.startswith("group details:"):
            self._end_math()
            self._state = "details"
        elif line.startswith("} //Segmented_Fusion"):
            self._end_math()
            self._group = None
            self._state = ""
            self._dump.is_complete = True
        else:
            return False
        return True

    def _take_log(self, line: str) -> bool:
        if self._waiting is not None:
            self._note_refusal(self._waiting, line)
            self._waiting = None
            return True
        match = _REFUSED.match(line)
        if match is None:
            return _ACCEPTED.match(line) is not None
        if match["why"].strip():
            self._note_refusal(match["scheduler"], match["why"].strip())
        else:
            self._waiting = match["scheduler"]
        return True

    def _note_refusal(self, scheduler: str, why: str) -> None:
        if self._considered is not None and self._about is None:
            if self._math is self._considered:
                self._end_math()
                self._state = ""
            tensors = [names[0] for _, text in self._considered.exprs if (names := terms.tensor_names(text[:200]))]
            self._about = tuple(dict.fromkeys(tensors))
        if len(self._dump.refusals) < _MOST_REFUSALS:
            self._dump.refusals.append(Refusal(scheduler=scheduler, text=why, about=self._about or ()))

    def _read_group(self, line: str) -> None:
        edge = _EDGE.match(line)
        if edge is not None:
            source, target = (frozenset(_numbers(edge[end])) for end in ("source", "target"))
            self._dump.edges += [(source, target, name) for name in terms.tensor_names(edge["tensor"])[:1]]
            return
        match = _GROUP.match(line)
        if match is None:
            self._dump.skipped += 1
        elif not match["merged"] and len(self._dump.groups) < _MOST_GROUPS:
            self._dump.groups.append(
                DumpedGroup(scheduler=_scheduler(match["scheduler"]), numbers=_numbers(match["numbers"])),
            )

    def _read_detail(self, number: int, line: str) -> None:
        match = _DETAIL.match(line)
        if match is not None:
            self._end_math()
            if len(self._dump.details) >= _MOST_GROUPS:
                raise DefinitionError(f"load_dump: line {number}: there are more than {_MOST_GROUPS} groups.")
            self._group = DumpedGroup(scheduler=_scheduler(match["scheduler"] or ""))
            self._dump.details.append(self._group)
            self._list = ""
        elif self._group is None or line.startswith("group id:"):
            return
        elif line == "}":
            self._end_math()
            self._group = None
        elif _HEADER.match(line):
            self._list = "typed"
        elif (named := _NUMBER.match(line)) is not None:
            self._statements.close()
            if self._statements.done:
                self._list = ""
                results = _results(self._statements.done[-1][1])
                self._dump.named[int(named["number"])] = results
                self._group.numbers += (int(named["number"]),)
        elif self._list == "typed" and not _assigns(line) and _BEGINS.match(line) and " = " not in line:
            # The first expression begins like the lists, so it may be among them until its "=" is seen.
            self._group.typed.append((number, line))
        else:
            if self._list == "typed" and self._group.typed and line.startswith("="):
                place, text = self._group.typed.pop()
                self._statements.add(place, text)
                while self._group.typed and self._group.typed[-1][1].endswith(","):
                    place, before = self._group.typed.pop()
                    self._statements = _Statements()
                    self._statements.add(place, f"{before} {text}")
                    text = f"{before} {text}"
                self._list = ""
            if not self._statements.add(number, line):
                self._dump.skipped += 1

    def _in_math(self, number: int, line: str) -> bool:
        header = _HEADER.match(line)
        if header is not None:
            if self._math is None:
                if self._dumps and self._dump.has_fusion:
                    self._begin(number)
                self._dump.original = self._start_math()
                self._state = "math"
            self._list = header["kind"].lower()
            return True
        if line.startswith(("%kernel_math", "%kernel {")):
            if self._math is None:
                self._dump.original = self._start_math()
            self._list = ""
            return True
        if line.startswith("} // %kernel") or (line == "}" and self._math is not None and not self._list):
            if self._math is not None:
                self._math.is_complete = True
            if self._math is not None and self._math is not self._dump.rewritten:
                self._end_math()
                self._state = ""
            return True
        if self._math is None:
            return False
        if self._list:
            if re.match(r"T\d|[bidfc]\d+\b", line):
                (self._math.inputs if self._list == "inputs" else self._math.outputs).append((number, line))
                return True
            return False
        return self._statements.add(number, line)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with their numbers, without marks of quotes and launchers.

    An operator may begin a line as well, so that ``>`` is a mark only as far as the line before or after has as many.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    depths = [0, *(_quote_depth(line) for _, line in lines), 0]
    for place, (number, line) in enumerate(lines, start=1):
        shown = line
        for _ in range(min(depths[place], max(depths[place - 1], depths[place + 1]))):
            shown = _QUOTE.sub("", shown, count=1)
        launched = _LAUNCHER.match(shown)
        shown = (shown[launched.end() :] if launched else shown).strip()
        if shown and not shown.startswith("```"):
            yield number, shown


def _quote_depth(line: str) -> int:
    depth, place = 0, 0
    while (mark := _QUOTE.match(line, place)) is not None:
        depth, place = depth + 1, mark.end()
    return depth


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d{1,9}", text))


def _results(text: str) -> tuple[str, ...]:
    head = text.partition(" = ")[0]
    return terms.tensor_names(head) or tuple(re.findall(r"^[bidfc]\d+", head))


_OLD_NAMES = {
    "noop": "no_op", "expreval": "expr_eval", "persistent": "inner_persistent", "innerpersistent": "inner_persistent",
    "outerpersistent": "outer_persistent", "innerouterpersistent": "inner_outer_persistent", "g": "", "none": "",
}


def _scheduler(name: str) -> str:
    lowered = name.lower()
    return _OLD_NAMES.get(lowered, lowered)
