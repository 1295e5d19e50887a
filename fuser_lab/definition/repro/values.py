"""The values of a script's names while it is read, and arithmetic on plain values."""

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.handles import Handle
from fuser_lab.definition.spec import Fill, TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Number

_MOST_BITS = 128  # bits of an integer
_MOST_ENTRIES = 10_000  # entries of one list
_MOST_ENTRIES_IN_ALL = 5_000_000  # entries of all lists of a script


@dataclass(frozen=True, slots=True)
class Path:
    """A name inside a library, such as ``("torch", "testing", "make_tensor")``; nothing is imported."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        """Return the dotted name."""
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A value that a script computes beside its fusion; neither the fusion nor its inputs may use it."""

    what: str
    line: int

    def __str__(self) -> str:
        """Return its description."""
        return self.what


class Scope:
    """Names of a function or of the script, inside those of enclosing scopes."""

    __slots__ = ("around", "names")

    def __init__(self, around: "Scope | None" = None) -> None:
        self.names: dict[str, Any] = {}
        self.around = around

    def find(self, name: str) -> "Scope | None":
        """Return the innermost scope that has a name."""
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.around
        return scope

    def value(self, name: str) -> Any:
        """Return the value of a name, or None."""
        scope = self.find(name)
        return scope.names[name] if scope is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the script."""

    node: ast.FunctionDef
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """``functools.partial`` of a function of the script or of a library, or the execution of a definition."""

    function: "Function | Method | Op | Path | Recording"
    args: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """A class of the script: a definition, a test, or a container of sizes and dtypes."""

    node: ast.ClassDef
    scope: Scope

    def method(self, name: str) -> ast.FunctionDef | None:
        """Return a method that the class itself has."""
        return next((f for f in self.node.body if isinstance(f, ast.FunctionDef) and f.name == name), None)

    @property
    def is_definition(self) -> bool:
        """Whether its instances are definitions."""
        bases = {ast.unparse(base).rpartition(".")[2] for base in self.node.bases}
        return "FusionDefinition" in bases or self.method("definition") is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """An instance of a class of the script, or a namespace, with its attributes."""

    of: Class | None = None
    names: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unopened(Instance):
    """A ``FusionDefinition()`` whose ``with`` block has not begun, or an instance of a class with a definition."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording(Instance):
    """``fd``: the definition that is being recorded."""

    builder: FusionBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method of an instance."""

    of: Instance
    function: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """``fd.ops.<name>``, not called yet."""

    recording: Recording
    name: str


@dataclass(frozen=True, slots=True)
class Other:
    """A definition that is not the chosen one; it is skipped."""


@dataclass(frozen=True, slots=True)
class Ops:
    """``fd.ops``."""

    recording: Recording


@dataclass(slots=True)
class Lists:
    """Lists and tuples created so far, with their total number of entries, so that none grows too large."""

    weights: dict[int, int] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    left: int = _MOST_ENTRIES_IN_ALL

    def keep(self, made: Any) -> Any:
        """Return a list, tuple or dict, or raise DefinitionError if it has too many entries, nested ones included."""
        self.left -= len(made)
        if self.left < 0:
            raise DefinitionError("the script's lists have too many entries in all.")
        entries = made.values() if isinstance(made, dict) else made
        return self._weigh(made, sum(self.weights.get(id(entry), 1) for entry in entries))

    def append(self, made: list[Any], entry: Any) -> None:
        """Append to a stored list."""
        self._weigh(made, self.weights.get(id(made), len(made)) + self.weights.get(id(entry), 1))
        made.append(entry)

    def put(self, made: Any, place: Any, entry: Any) -> None:
        """Assign an entry of a stored list or dict."""
        self.left -= 1
        if self.left < 0:
            raise DefinitionError("the script's lists have too many entries in all.")
        if contains(entry, made):
            raise DefinitionError("a list that contains itself is not read.")
        is_there = isinstance(made, list) or place in made
        before = self.weights.get(id(made[place]), 1) if is_there else 0
        self._weigh(made, self.weights.get(id(made), len(made)) - before + self.weights.get(id(entry), 1))
        made[place] = entry

    def _weigh(self, made: Any, weight: int) -> Any:
        if weight > _MOST_ENTRIES:
            raise DefinitionError(f"this list has more than {_MOST_ENTRIES} entries.")
        if id(made) not in self.weights:
            # Identities are unique only while the objects are alive.
            self.kept.append(made)
        self.weights[id(made)] = weight
        return made


def contains(value: Any, searched: Any) -> bool:
    """Whether a list or dict is a value, or is contained in it."""
    if value is searched:
        return True
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(contains(entry, searched) for entry in entries)


PLAIN = (bool, int, float, complex, str, type(None), DataType, Handle)

BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
# Ops of the operators on tensors and scalars of a definition.
RECORDED: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.Mod: "mod", ast.Pow: "pow",
    ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or", ast.BitXor: "bitwise_xor",
}  # fmt: skip

CONSTANTS: Mapping[str, float] = {
    f"{library}.{name}": getattr(math, name)
    for library, names in (("math", ("inf", "nan", "pi", "e", "tau")), ("numpy", ("inf", "nan", "pi", "e")),
                           ("torch", ("inf", "nan", "pi", "e")))
    for name in names
}  # fmt: skip


# Ops of the comparisons of tensors and scalars of a definition.
COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip

_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def comparison(kind: type[ast.cmpop], left: Any, right: Any) -> bool | None:
    """Return the result of a comparison of plain values, None if it is not read."""
    if isinstance(left, Unread) or isinstance(right, Unread):
        return None
    if kind in {ast.Is, ast.IsNot} and (left is None or right is None):
        return (left is right) is (kind is ast.Is)
    if kind in {ast.In, ast.NotIn} and isinstance(right, str) and isinstance(left, str):
        return (left in right) is (kind is ast.In)
    if kind in {ast.In, ast.NotIn} and isinstance(right, dict) and is_key(left):
        return (left in right) is (kind is ast.In)
    if kind in {ast.In, ast.NotIn} and isinstance(right, list | tuple):
        matches = [comparison(ast.Eq, left, entry) for entry in right]
        return None if None in matches else any(matches) is (kind is ast.In)
    if kind in {ast.Is, ast.IsNot} and isinstance(left, bool | DataType) and isinstance(right, bool | DataType):
        return (left is right) is (kind is ast.Is)
    is_plain = all(isinstance(v, Number | str | None | DataType) for v in (left, right))
    are_lists = all(isinstance(v, list | tuple) and _are_plain(v) for v in (left, right))
    are_lists = are_lists and kind in {ast.Eq, ast.NotEq}
    if not (is_plain or are_lists) or kind not in _COMPARED:
        return None
    try:
        return bool(_COMPARED[kind](left, right))
    except TypeError:
        return None


HASHED = (bool, int, float, str, type(None), DataType)


def is_key(value: object) -> bool:
    """Whether a value may be a key of a dict."""
    return isinstance(value, HASHED) or (isinstance(value, tuple) and all(isinstance(e, HASHED) for e in value))


def _are_plain(values: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(v, Number | str | None | DataType) for v in values)


def small(value: Any) -> Any:
    """Return a number, or raise DefinitionError if it is an integer that no definition needs."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise DefinitionError(f"an integer with more than {_MOST_BITS} bits is not read.")
    return value


def short(value: str) -> str:
    """Return a text, or raise DefinitionError if no definition needs one of that length."""
    if len(value) > _MOST_ENTRIES:
        raise DefinitionError(f"a text of more than {_MOST_ENTRIES} characters is not read.")
    return value


def arithmetic(kind: type[ast.operator], left: Any, right: Any, lists: Lists) -> Any:
    """Return the result of an operator on two plain values: numbers, or lists that are joined or repeated."""
    if isinstance(left, Number) and isinstance(right, Number):
        if kind in {ast.Pow, ast.LShift} and isinstance(right, int) and abs(right) > _MOST_BITS:
            raise DefinitionError(f"an exponent or shift above {_MOST_BITS} is not read.")
        if kind in BINARY:
            return small(BINARY[kind](left, right))
    if kind is ast.Add and isinstance(left, list) and isinstance(right, list):
        return lists.keep(left + right)
    if kind is ast.Add and isinstance(left, str) and isinstance(right, str):
        return short(left + right)
    if kind is ast.Add and isinstance(left, tuple) and isinstance(right, tuple):
        return lists.keep(left + right)
    if kind is ast.Mult:
        for several, times in ((left, right), (right, left)):
            if isinstance(several, list | tuple) and isinstance(times, int):
                if len(several) * times > _MOST_ENTRIES:
                    raise DefinitionError(f"a list of more than {_MOST_ENTRIES} entries is not read.")
                return lists.keep(several * times)
    raise DefinitionError(
        f"{kind.__name__} is not read between {description(left)} and {description(right)}; only operators on numbers, "
        "and + on lists, are."
    )


def description(value: object) -> str:
    """Return the description of a value for a sentence."""
    match value:
        case Unread():
            return f"the value of {value.what} (line {value.line})"
        case Path():
            return str(value)
        case Function() | Class():
            return f"{value.node.name}, which the script defines"
        case Method():
            return f"{value.function.node.name}, which the script defines"
        case Recording() | Unopened() | Other():
            return "a definition"
        case Instance():
            return f"an instance of {value.of.node.name}" if value.of is not None else "a namespace"
        case Ops():
            return "fd.ops"
        case Op():
            return f"fd.ops.{value.name}"
        case TensorSpec():
            return f"an input of shape {list(value.shape)}"
        case Fill():
            return "a fill"
        case Handle():
            return f"{value.name or 'a constant'} of the definition"
        case str() | list() | tuple() | dict():
            return f"a {type(value).__name__}"
        case None:
            return "None"
        case slice():
            return "a slice"
        case _ if value is Ellipsis:
            return "..."
    return f"the {type(value).__name__} {value}" if isinstance(value, Number) else f"a {type(value).__name__}"


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        for value in args:
            entries = value if isinstance(value, list | tuple) else [value]
            if not all(isinstance(entry, Number) for entry in entries):
                raise DefinitionError(f"{function.__name__} is read only for numbers, given {description(value)}.")
            for entry in entries:
                small(entry)
        return small(function(*args))

    return call


def _float(value: Any = 0.0) -> float:
    if isinstance(value, str) and value.strip().lower().lstrip("+-") in {"inf", "infinity", "nan"}:
        return float(value)
    result: float = _of_numbers(float)(value)
    return result


def _count(value: Any) -> int:
    if isinstance(value, list | tuple):
        return len(value)
    raise DefinitionError(f"len is read only for lists, given {description(value)}.")


def _range(*args: Any) -> list[int]:
    if not all(isinstance(value, int) for value in args):
        raise DefinitionError(f"range is read only for integers, given {', '.join(map(description, args))}.")
    numbers = range(*args)
    # Longer ones have no len.
    if numbers and (abs(numbers[-1] - numbers[0]) // abs(numbers.step)) >= _MOST_ENTRIES:
        raise DefinitionError(f"a range of more than {_MOST_ENTRIES} entries is not read.")
    return list(numbers)


def _entries(value: Any = ()) -> list[Any]:
    if isinstance(value, list | tuple | dict | str):
        return list(value)
    raise DefinitionError(f"list is read only for lists, given {description(value)}.")


def _sum(values: Any, start: Any = 0) -> Any:
    entries = _entries(values)
    if all(isinstance(entry, Number) for entry in (*entries, start)):
        return small(sum(entries, start))
    msg = f"sum is read only for numbers, given {description(next(e for e in entries if not isinstance(e, Number)))}."
    raise DefinitionError(msg)


def _sort(values: Any) -> list[Any]:
    entries = _entries(values)
    if all(isinstance(e, int | float) for e in entries) or all(isinstance(e, str) for e in entries):
        return sorted(entries)
    raise DefinitionError("sorted is read on numbers, or on texts.")


def _distinct(values: Any = ()) -> list[Any]:
    entries = _entries(values)
    if all(isinstance(entry, HASHED) for entry in entries):
        return list(dict.fromkeys(entries))
    raise DefinitionError("set is read on numbers and texts only.")


def _truth_of(which: Callable[[list[Any]], bool]) -> Callable[[Any], bool]:
    def call(values: Any) -> bool:
        entries = _entries(values)
        if all(isinstance(entry, bool | int | float | str | None) for entry in entries):
            return which(entries)
        raise DefinitionError(f"{which.__name__} is read on plain values only.")

    return call


def _bounded_function(function: Callable[..., Any], least: int) -> Callable[..., Any]:
    """Return a function of itertools that returns lists with a limited number of entries."""
    def call(values: Any, count: Any = None) -> list[Any]:
        entries = _entries(values)
        size = len(entries) if count is None and least else count
        if not isinstance(size, int) or not 0 <= size <= 8 or len(entries) > 64:
            raise DefinitionError(f"{function.__name__} is read on up to 64 entries, with selections of up to 8.")
        return _few(function(entries, size))

    return call


def _few(values: Iterable[Any]) -> list[Any]:
    entries = list(itertools.islice(values, _MOST_ENTRIES + 1))
    if len(entries) > _MOST_ENTRIES:
        raise DefinitionError(f"a list of more than {_MOST_ENTRIES} entries is not read.")
    return entries


def _product(*values: Any) -> list[Any]:
    if len(values) > 8:
        raise DefinitionError(f"product is read on up to 8 lists, given {len(values)}.")
    return _few(itertools.product(*map(_entries, values)))


def _chain(*values: Any) -> list[Any]:
    return _few(entry for value in values for entry in _entries(value))


def _str(value: Any = "") -> str:
    if isinstance(value, str | int | float):
        return str(value)
    raise DefinitionError(f"str is read on numbers and texts only, given {description(value)}.")


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "float": _float,
    "int": _of_numbers(int),
    "bool": _of_numbers(bool),
    "complex": _of_numbers(complex),
    "abs": _of_numbers(abs),
    "min": _of_numbers(min),
    "max": _of_numbers(max),
    "len": _count,
    "range": _range,
    "list": _entries,
    "tuple": lambda value=(): tuple(_entries(value)),
    "enumerate": lambda value: [(place, entry) for place, entry in enumerate(_entries(value))],
    "zip": lambda *values: list(zip(*map(_entries, values), strict=False)),
    "sum": _sum,
    "sorted": _sort,
    "reversed": lambda value: _entries(value)[::-1],
    "set": _distinct,
    "frozenset": _distinct,
    "any": _truth_of(any),
    "all": _truth_of(all),
    "round": _of_numbers(round),
    "divmod": _of_numbers(divmod),
    "str": _str,
    "numpy.prod": _of_numbers(math.prod),
    "itertools.product": _product,
    "itertools.permutations": _bounded_function(itertools.permutations, 1),
    "itertools.combinations": _bounded_function(itertools.combinations, 0),
    "itertools.chain": _chain,
    **{
        f"math.{name}": _of_numbers(getattr(math, name))
        for name in ("sqrt", "prod", "ceil", "floor", "log", "log2", "exp", "gcd", "isqrt")
    },
}
