"""The terms of nvFuser's math text: values with their axes, numbers, calls and arithmetic."""

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Number

_DEEPEST = 40  # nested brackets
_MOST_OPERATORS = 200  # operators of an expression
_LONGEST = 100_000  # characters of one expression
_MOST_BITS = 64  # bits of an integer; larger ones become floats

IR_TYPES = {dtype.ir_name: dtype for dtype in DataType} | {"__half": DataType.Half, "int32_t": DataType.Int32}
_TENSOR = re.compile(
    rf"(T\d+(?:_\w+?)??)(?:_([a-z])(?:_({'|'.join(map(re.escape, sorted(IR_TYPES, key=len, reverse=True)))}))?)?$",
)
_AXIS = re.compile(r"([a-z])([A-Za-z_.]*?)(\d+)(rf)?$")
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
           ("*", "/", "%"))  # fmt: skip
_BINDING = {mark: level for level, marks in enumerate(_LEVELS) for mark in marks}
# Values whose extents are names and numbers are most of a dump. This pattern is unambiguous.
_PLAIN_AXES = r"\[(?>\s*+[\w.?]++\{\w++(?:\ ex\ \w++)?\}(?:rf|_p|_c)*+\s*+,?)*+\s*+\]"
_PLAIN_AXIS = re.compile(r"(\?|[a-z])[A-Za-z_.]*?(\d+)(?:rf)?\{(\w+)(?: ex (\w+))?\}")
_SUFFIX = re.compile(r"(?:rf)?(?:_[a-z]+)*$")  # an rfactor product, padded to whole warps, of a cluster
_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<whole>T\d+(?:_[\w:]*+(?:<\w++>)?)?\s*+{_PLAIN_AXES})
    | (?P<tensor>T\d+(?:_(?:std::complex<\w+>|\w*::complex<\w+>|\w+))?(?=[\s\[(,);:}}]|$))
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<name>__(?:std::complex<\w+>|\w+?)2(?:std::complex<\w+>|\w+)(?=\()
        | std::\w+(?:<\w+>)?|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
    | (?P<text>'[^'\n]*')
    | (?P<mark><<|>>|<=|>=|==|!=|&&|\|\||->|[-+*/%<>=!~&|^,;:?(){{}}\[\].])
    )""",
    re.VERBOSE,
)
_WORDS: dict[str, Number | None] = {
    "true": True, "false": False, "inf": math.inf, "INFINITY": math.inf, "nan": math.nan, "NAN": math.nan,
    "None": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of a dumped value: ``kind`` is ``i``, ``r``, ``b`` or ``?``; extents are terms."""

    kind: str
    number: int
    extent: "Term"
    expanded: "Term | None" = None

    @property
    def visible(self) -> "Term":
        """The extent that a reader of the value sees."""
        return self.extent if self.expanded is None else self.expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A dumped tensor; ``dtype`` is None if the version does not print it, ``axes`` None for a bare name."""

    name: str
    dtype: DataType | None = None
    axes: tuple[Axis, ...] | None = None
    memory: str = ""

    @property
    def kept_axes(self) -> tuple[Axis, ...]:
        """Axes that are not reduced."""
        return tuple(axis for axis in self.axes or () if axis.kind != "r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number, with its dtype if it is printed; or None, a dtype or a text as an attribute."""

    value: Number | str | DataType | None
    dtype: DataType | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A scalar by name, or any other word."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Terms in braces."""

    entries: "tuple[Term, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A function or an operator with its operands; casts are named ``(dtype)``, operators by their symbols."""

    name: str
    operands: "tuple[Term, ...]"
    options: "tuple[tuple[str, Term], ...]" = ()


Term = Value | Constant | Symbol | Listed | Applied | Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """``results = term`` on a line of the text."""

    results: tuple[Value | Symbol, ...]
    term: Term
    line: int


@dataclass(slots=True, kw_only=True)
class _Parser:
    """Recursive descent over tokens."""

    tokens: list[tuple[str, str]]
    line: int
    at: int = 0
    depth: int = 0
    operators: int = 0

    def refuse(self, problem: str) -> NoReturn:
        raise DefinitionError(f"load_dump: line {self.line}: {problem}.")

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ("end", "")

    def is_mark(self, mark: str, ahead: int = 0) -> bool:
        return self.peek(ahead) == ("mark", mark)

    def take(self, mark: str) -> bool:
        if self.is_mark(mark):
            self.at += 1
            return True
        return False

    def need(self, mark: str) -> None:
        if not self.take(mark):
            text = self.peek()[1] or "the end of the expression"
            self.refuse(f"expected {mark!r}, found {text[:40]!r}")

    def term(self, level: int = 0) -> Term:
        left = self.unary()
        while True:
            kind, mark = self.peek()
            binding = _BINDING.get(mark, -1) if kind == "mark" else -1
            if binding < level:
                return left
            self.at += 1
            self.operators += 1
            if self.operators > _MOST_OPERATORS:
                self.refuse(f"an expression has more than {_MOST_OPERATORS} operators")
            left = Applied(name=mark, operands=(left, self.term(binding + 1)))

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.refuse(f"brackets are nested more than {_DEEPEST} deep")

    def unary(self) -> Term:
        marks = []
        while self.peek()[0] == "mark" and self.peek()[1] in "-!~":
            marks.append(self.peek()[1])
            self.at += 1
            if len(marks) > _DEEPEST:
                self.refuse(f"more than {_DEEPEST} consecutive signs")
        term = self.primary()
        for mark in reversed(marks):
            if mark == "-" and isinstance(term, Constant) and isinstance(term.value, int | float | complex):
                term = Constant(value=-term.value, dtype=term.dtype)
            else:
                term = Applied(name={"-": "neg"}.get(mark, mark), operands=(term,))
        return term

    def primary(self) -> Term:
        kind, text = self.peek()
        self.at += 1
        if kind in {"whole", "tensor"}:
            return self.value(text)
        if kind == "number":
            return Constant(value=number(text))
        if kind == "text":
            return Constant(value=text[1:-1])
        if kind == "name":
            return self.named(text)
        if text == "{":
            return self.listed()
        if text == "?" and self.peek()[0] == "name":
            return self.axis("?")
        if text == "(":
            cast, after = self.peek(), self.is_mark(")", 1)
            if cast[0] == "name" and cast[1] in IR_TYPES and after:
                self.at += 2
                return Applied(name=f"({cast[1]})", operands=(self.unary(),))
            self.deeper()
            inside = self.term()
            self.need(")")
            self.depth -= 1
            return inside
        return self.refuse(f"expected a value, found {text[:40] or 'the end of the expression'!r}")

    def listed(self) -> Listed:
        self.deeper()
        entries = []
        while not self.take("}"):
            if not self.take(","):
                entries.append(self.term())
        self.depth -= 1
        return Listed(entries=tuple(entries))

    def named(self, text: str) -> Term:
        if self.is_mark("{"):
            self.at -= 1
            return self.axis("")
        if self.is_mark("("):
            return self.called(text)
        if text in _WORDS:
            return Constant(value=_WORDS[text])
        if text in IR_TYPES:
            return Constant(value=IR_TYPES[text])
        return Symbol(name=text)

    def called(self, name: str) -> Term:
        self.need("(")
        self.deeper()
        operands: list[Term] = []
        options: list[tuple[str, Term]] = []
        while not self.take(")"):
            if self.take(","):
                continue
            key = self.key()
            if key:
                options.append((key, self.term()))
            else:
                operands.append(self.term())
        self.depth -= 1
        if name in IR_TYPES and not options and all(isinstance(v, Constant) for v in operands):
            literal = _typed_constant(IR_TYPES[name], [v.value for v in operands if isinstance(v, Constant)])
            if literal is not None:
                return literal
        return Applied(name=name, operands=tuple(operands), options=tuple(options))

    def key(self) -> str:
        """Return the words before a ``=`` and skip both; empty if there are none."""
        ahead = 0
        while self.peek(ahead)[0] == "name" and ahead < 4:
            ahead += 1
        if not ahead or not self.is_mark("=", ahead):
            return ""
        words = [self.peek(i)[1] for i in range(ahead)]
        self.at += ahead + 1
        return " ".join(words)

    def value(self, text: str) -> Value:
        value = _plain_value(text)
        if value is None:
            self.refuse(f"{text[:40]!r} is not a value")
        axes = None if value.axes is None else list(value.axes)
        if axes is None and self.take("["):
            axes = []
            while not self.take("]"):
                if not self.take(","):
                    axes.append(self.axis("?" if self.take("?") else ""))
        # (Avg), (Var) and (Count) mark the parts of a Welford.
        if self.is_mark("(") and self.peek(1)[0] == "name" and self.is_mark(")", 2):
            self.at += 3
        return value if axes is None or value.axes is not None else replace(value, axes=tuple(axes))

    def axis(self, kind: str) -> Axis:
        sort, text = self.peek()
        match = _AXIS.match(f"i{text}" if kind == "?" or sort == "number" else text)
        if sort not in {"name", "number"}:
            match = None
        if match is None:
            self.refuse(f"expected an axis, found {text[:40] or 'the end of the expression'!r}")
        self.at += 1
        self.need("{")
        extent, expanded = self.term(), None
        while self.take(":"):  # nvFuser prints a start and a stop before the extent where they are not 0 and the extent
            extent = self.term()
        if self.peek() == ("name", "ex"):
            self.at += 1
            expanded = self.term()
        self.need("}")
        if self.peek()[0] == "name" and _SUFFIX.match(self.peek()[1]):
            self.at += 1
        letter = kind or match[1]
        return Axis(
            kind=letter if letter in "rb?" else "i", number=int(match[3][-18:]), extent=extent, expanded=expanded,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Domains:
    """The domains of a tensor as nvFuser's ``TransformPrinter`` lists them: kinds and numbers of axes.

    ``contiguity`` follows ``allocation``, or ``logical`` if there is no allocation domain.
    """

    root: tuple[tuple[str, int], ...] = ()
    logical: tuple[tuple[str, int], ...] = ()
    allocation: tuple[tuple[str, int], ...] = ()
    contiguity: tuple[bool | None, ...] = ()

    @property
    def order(self) -> tuple[int, ...] | None:
        """The positions of the logical axes in memory, slowest first, without reductions; None if they are split."""
        return _order_of(self.allocation or self.logical, self.logical)

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The positions of the logical axes in the root domain; None if the logical domain is no permutation of it."""
        return _order_of(self.logical, self.root)

    @property
    def flags(self) -> tuple[bool | None, ...]:
        """The contiguity of the axes in memory, without reductions; empty if the text does not say it."""
        axes = self.allocation or self.logical
        if len(axes) != len(self.contiguity):
            return ()
        return tuple(flag for (kind, _), flag in zip(axes, self.contiguity, strict=True) if kind != "r")


def _order_of(axes: tuple[tuple[str, int], ...], source: tuple[tuple[str, int], ...]) -> tuple[int, ...] | None:
    numbers, sources = ([number for kind, number in some if kind != "r"] for some in (axes, source))
    if sorted(numbers) != sorted(sources):
        return None
    return tuple(sources.index(number) for number in numbers)


_LISTED_DOMAIN = re.compile(r"(root|logical|allocation) domain: \((.*)\)$")
_LISTED_AXIS = re.compile(r"(\?|[a-z])[A-Za-z_.]*?(\d+)\{")
_FLAGS = {"t": True, "1": True, "true": True, "f": False, "0": False, "false": False, "n": None}


def with_listed(domains: Domains, line: str) -> Domains:
    """Return the domains of a tensor with the one that a line of ``TransformPrinter`` lists, if it lists one."""
    head, _, flags = line.partition("contiguity: ")
    if not head and all(word in _FLAGS for word in flags.split()):
        return replace(domains, contiguity=tuple(_FLAGS[word] for word in flags.split()))
    listed = _LISTED_DOMAIN.match(line)
    if listed is None:
        return domains
    axes = tuple((kind, int(number[-18:])) for kind, number in _LISTED_AXIS.findall(listed[2]))
    match listed[1]:
        case "root":
            return replace(domains, root=axes)
        case "logical":
            return replace(domains, logical=axes)
        case _:
            return replace(domains, allocation=axes)


def tensor_names(text: str) -> tuple[str, ...]:
    """Return the names of the tensors in a text, in order, each once."""
    words = re.findall(r"(?<![\w.])T\d+(?:_[\w:<>]+)?", text)
    return tuple(dict.fromkeys(match[1] for word in words if (match := _TENSOR.match(word))))


@lru_cache(maxsize=4096)
def _plain_value(text: str) -> Value | None:
    """Return a value by its token, cached, because it is read again wherever it is an operand."""
    head, bracket, rest = text.partition("[")
    match = _TENSOR.match(head.rstrip())
    if match is None:
        return None
    name, memory, dtype = match.groups()
    return Value(
        name=name, dtype=None if dtype is None else IR_TYPES[dtype], memory=memory or "",
        axes=tuple(_plain_axis(axis) for axis in _PLAIN_AXIS.findall(rest)) if bracket else None,
    )


def _plain_axis(parts: tuple[str, str, str, str]) -> Axis:
    kind, place, extent, expanded = parts
    return Axis(
        kind=kind if kind in "rb?" else "i", number=int(place[-18:]), extent=_plain_extent(extent),
        expanded=_plain_extent(expanded) if expanded else None,
    )


def _plain_extent(text: str) -> Term:
    return Constant(value=number(text)) if text.isdecimal() else Symbol(name=text)


def number(text: str) -> int | float:
    """Return a number as it is written; one without a point or an exponent is an int."""
    if not text.isdecimal():
        return float(text)
    whole = int(text) if len(text) <= 20 else 1 << _MOST_BITS
    return whole if whole.bit_length() <= _MOST_BITS else float(whole)


def _typed_constant(dtype: DataType, values: list[object]) -> Constant | None:
    numbers = [v for v in values if isinstance(v, bool | int | float | complex)]
    if len(numbers) != len(values):
        return None
    match numbers:
        case [only]:
            if dtype.is_complex:
                return Constant(value=complex(only), dtype=dtype)
            if dtype.is_float:
                return Constant(value=float(only.real), dtype=dtype)
            if only != only or abs(only) == math.inf:  # noqa: PLR0124 - a NaN is no int
                return None
            return Constant(value=bool(only) if dtype is DataType.Bool else int(only.real), dtype=dtype)
        case [real, imaginary] if dtype.is_complex:
            return Constant(value=complex(float(real.real), float(imaginary.real)), dtype=dtype)
    return None


def _tokens(text: str, line: int) -> list[tuple[str, str]]:
    if len(text) > _LONGEST:
        msg = f"load_dump: line {line}: an expression has {len(text)} characters; at most {_LONGEST} are read."
        raise DefinitionError(msg)
    tokens = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise DefinitionError(f"load_dump: line {line}: {text[at : at + 30].strip()!r} is not read.")
        kind = match.lastgroup or ""
        tokens.append((kind, match[kind]))
        at = match.end()
    return tokens


def statement(text: str, line: int) -> Statement:
    """Return one expression of the math text.

    Raises
    ------
    DefinitionError
        If it cannot be read; the message names the line.
    """
    parser = _Parser(tokens=_tokens(text, line), line=line)
    results: list[Value | Symbol] = []
    while True:
        kind, word = parser.peek()
        parser.at += 1
        if kind in {"whole", "tensor"}:
            results.append(parser.value(word))
        elif kind == "name":
            results.append(Symbol(name=word))
        else:
            parser.refuse(f"expected a result, found {word[:40] or 'the end of the expression'!r}")
        if not parser.take(","):
            break
    parser.need("=")
    term = parser.term()
    parser.take(";")
    if parser.at < len(parser.tokens):
        parser.refuse(f"{parser.peek()[1][:40]!r} is not read here")
    return Statement(results=tuple(results), term=term, line=line)


def listed_value(text: str, line: int) -> Value | Symbol | None:
    """Return the value on a line of inputs or outputs, with the dtype that follows it in some versions."""
    parser = _Parser(tokens=_tokens(text, line), line=line)
    kind, word = parser.peek()
    parser.at += 1
    if kind == "name":
        return Symbol(name=word)
    if kind not in {"whole", "tensor"}:
        return None
    value = parser.value(word)
    parser.take(",")
    kind, word = parser.peek()
    if value.dtype is None and word in IR_TYPES:
        return Value(name=value.name, dtype=IR_TYPES[word], axes=value.axes, memory=value.memory)
    return value
