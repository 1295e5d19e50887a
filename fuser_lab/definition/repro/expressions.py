"""Evaluating a script's expressions: a whitelist over syntax nodes; no part of the script is ever executed."""

import ast
import builtins
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fuser_lab.arguments import is_whole
from fuser_lab.definition.handles import Handle, Tensor
from fuser_lab.definition.repro.arguments import FORMATS, TORCH_DTYPES, dtype_named
from fuser_lab.definition.repro.helpers import HELPER_FUNCTIONS, HELPERS
from fuser_lab.definition.repro.layouts import changed_by, compare_tensors, compute_tensors, taken_from
from fuser_lab.definition.repro.source import Script
from fuser_lab.definition.repro.values import (
    COMPARED,
    CONSTANTS,
    FUNCTIONS,
    PLAIN,
    RECORDED,
    Bound,
    Class,
    Function,
    Instance,
    Lists,
    Method,
    Op,
    Ops,
    Other,
    Path,
    Recording,
    Scope,
    Unopened,
    Unread,
    arithmetic,
    comparison,
    description,
    is_key,
    short,
    small,
)
from fuser_lab.definition.repro.vocabulary import (
    ACCEPTED,
    COMMON,
    FORBIDDEN,
    HARMLESS,
    RUNS,
    SCHEDULED,
    SCHEDULES,
    has_meaning,
)
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, FuserLabError, UnsupportedError
from fuser_lab.ir import Number

_DEEPEST = 100  # nested expressions
_SPARE_STEPS = 50_000  # evaluated nodes, besides one for each node of the script

_VALUE = re.compile(r"\b[A-Za-z]+\d+\b")  # T3, i0
_OF_GRADIENTS = ("requires_grad", "grad")

# Constructs that may be used beside a definition, where they have no value.
_ASIDE = (ast.SetComp,)


class Expressions:
    """Evaluates expressions of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.lists = Lists()
        self.open: Recording | None = None
        self.device: str | None = None
        self._steps = _SPARE_STEPS + sum(1 for _ in ast.walk(script.tree))
        self._depth = 0
        # Only what the script sets; the machine's own environment is not read.
        self.environment: dict[str, Any] = {}
        self.notes: list[str] = []
        # The script's names of the definition's tensors and scalars, by their names in the definition.
        self._variables: dict[str, str] = {}
        # The lines that name the tensors, by the same names, except if the name has the same number, such as tv3 for
        # T3.
        self.sources: dict[str, str] = {}
        # What the script calls tensors, with their names; in order, each pair once.
        self.called: dict[tuple[str, str], None] = {}

    def refusal(
        self, place: ast.AST | int, why: str, kind: type[FuserLabError] = DefinitionError,
    ) -> FuserLabError:
        """Return the error for a position in the script."""
        return self.script.refusal(place, why, kind)

    def step(self, node: ast.AST, steps: int = 1) -> None:
        """Count steps, so that loops and functions of a script cannot run forever."""
        self._steps -= steps
        if self._steps < 0:
            raise self.refusal(node, "reading stops here: the script's loops take too many steps.")

    def call(self, node: ast.Call, scope: Scope) -> Any:
        """Return the result of a call."""
        raise NotImplementedError

    def op(
        self, place: ast.AST, name: str, args: list[Any], keywords: dict[str, Any], recording: Recording | None = None,
    ) -> Any:
        """Record an op of a definition and return its result."""
        raise NotImplementedError

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression, or raise if it is not in the whitelist."""
        self.step(node)
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise self.refusal(node, f"this is nested more than {_DEEPEST} deep.")
            return self._evaluate(node, scope)
        finally:
            self._depth -= 1

    def _evaluate(self, node: ast.expr, scope: Scope) -> Any:
        match node:
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.Name(id=name):
                return self._name(node, name, scope)
            case ast.Attribute():
                return self.attribute(node, self.evaluate(node.value, scope))
            case ast.Call():
                return self.call(node, scope)
            case ast.List(elts=entries):
                return self.guarded(node, self.lists.keep, self._several(entries, scope))
            case ast.Tuple(elts=entries):
                return self.guarded(node, self.lists.keep, tuple(self._several(entries, scope)))
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(node, op, self.evaluate(operand, scope))
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(node, op, self.evaluate(left, scope), self.evaluate(right, scope))
            case ast.Subscript(value=owner, slice=index):
                return self._item(node, self.evaluate(owner, scope), self._index(index, scope))
            case ast.Set(elts=entries):
                result = self.guarded(node, FUNCTIONS["set"], self._several(entries, scope))
                return self.guarded(node, self.lists.keep, result)
            case ast.Dict(keys=keys, values=values):
                return self._dict(node, keys, values, scope)
            case ast.ListComp(elt=entry, generators=loops) | ast.GeneratorExp(elt=entry, generators=loops):
                made = [self.evaluate(entry, inside) for inside in self._iterate(node, loops, Scope(scope))]
                return self.guarded(node, self.lists.keep, made)
            case ast.DictComp(key=key, value=value, generators=loops):
                pairs = [
                    (self._key(key, inside), self.evaluate(value, inside))
                    for inside in self._iterate(node, loops, Scope(scope))
                ]
                return self.guarded(node, self.lists.keep, dict(pairs))
            case ast.NamedExpr(target=target, value=value):
                result = self.evaluate(value, scope)
                self.bind(target, result, scope)
                return result
            case ast.Lambda():
                return Function(node=_as_function(node), scope=scope)
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(node, [self.evaluate(each, scope) for each in (left, *others)], ops)
            case ast.BoolOp(op=op, values=nodes):
                return self._chain(node, isinstance(op, ast.Or), nodes, scope)
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                decided = self.truth(test, scope)
                if decided is not None:
                    return self.evaluate(body if decided else otherwise, scope)
                if self.open is None:
                    return Unread(what="a conditional expression", line=node.lineno)
            case ast.JoinedStr(values=parts):
                return self._text(node, parts, scope)
        if self.open is None and isinstance(node, _ASIDE):
            return Unread(what=FORBIDDEN[type(node)], line=node.lineno)
        construct = FORBIDDEN.get(type(node), f"the expression {type(node).__name__}")
        raise self.refusal(node, f"{construct} is not read; {ACCEPTED}.")

    def _text(self, node: ast.expr, parts: Sequence[ast.expr], scope: Scope) -> Any:
        """Return the value of an f-string that consists of texts and integers."""
        texts: list[str] = []
        is_plain = True
        for part in parts:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self.evaluate(inner, scope)
            formats = isinstance(part, ast.FormattedValue) and (part.format_spec is not None or part.conversion != -1)
            is_plain &= isinstance(value, str | int) and not formats
            texts.append(str(value) if isinstance(value, str | int) else "")
        if is_plain:
            return self.guarded(node, short, "".join(texts))
        return Unread(what="an f-string", line=node.lineno)

    def _dict(
        self, node: ast.expr, keys: Sequence[ast.expr | None], values: Sequence[ast.expr], scope: Scope,
    ) -> Any:
        mapping: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            if key is not None:
                mapping[self._key(key, scope)] = self.evaluate(value, scope)
                continue
            spread = self.evaluate(value, scope)
            if isinstance(spread, Unread):
                return spread
            if not isinstance(spread, dict):
                raise self.refusal(value, f"** is read only before dicts, given {description(spread)}.")
            self.step(node, len(spread))
            mapping |= spread
        return self.guarded(node, self.lists.keep, mapping)

    def _key(self, node: ast.expr, scope: Scope) -> Any:
        value = self.evaluate(node, scope)
        if is_key(value):
            return value
        raise self.refusal(node, f"keys of a dict must be numbers, strings or dtypes, given {description(value)}.")

    def _iterate(self, node: ast.AST, loops: Sequence[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        """Iterate over a comprehension, with its names bound to each entry."""
        if not loops:
            yield scope
            return
        loop, *rest = loops
        if loop.is_async:
            raise self.refusal(node, "async is not read.")
        for value in self.entries(loop.iter, scope):
            self.step(node)
            self.bind(loop.target, value, scope)
            taken = [self.truth(test, scope) for test in loop.ifs]
            if None in taken:
                raise self.refusal(loop.ifs[0], "whether an entry is included depends on a value that is not read.")
            if all(taken):
                yield from self._iterate(node, rest, scope)

    def _compare(self, node: ast.expr, values: Sequence[Any], ops: Sequence[ast.cmpop]) -> Any:
        self.step(node, sum(len(value) for value in values if isinstance(value, list | tuple)))
        is_recorded = any(isinstance(v, Handle) for v in values) and all(isinstance(v, Handle | Number) for v in values)
        if is_recorded and len(ops) == 1 and type(ops[0]) in COMPARED:
            return self.op(node, COMPARED[type(ops[0])], list(values), {})
        tensors = [value for value in values if isinstance(value, TensorSpec)]
        if len(ops) == 1 and tensors and all(isinstance(value, TensorSpec | float | int) for value in values):
            return compare_tensors(tensors) or Unread(what="a comparison", line=node.lineno)
        answers = [comparison(type(op), a, b) for op, a, b in zip(ops, values, values[1:], strict=False)]
        return Unread(what="a comparison", line=node.lineno) if None in answers else all(answers)

    def _chain(self, node: ast.expr, ends_on: bool, nodes: Sequence[ast.expr], scope: Scope) -> Any:
        """Return the result of ``and`` or ``or``, as far as it is known."""
        for each in nodes:
            value = self.truth(each, scope)
            if value is None:
                return Unread(what="and/or", line=node.lineno)
            if value is ends_on:
                return ends_on
        return not ends_on

    def truth(self, node: ast.expr, scope: Scope) -> bool | None:
        """Return whether a condition holds, None if it depends on a value that is not read."""
        value = self.evaluate(node, scope)
        if isinstance(value, bool | int | float | str | None | list | tuple | dict):
            return bool(value)
        return True if isinstance(value, Function | Method | Instance) else None

    def _several(self, nodes: Sequence[ast.expr], scope: Scope) -> list[Any]:
        """Return the values of arguments or entries; those after a star are unpacked."""
        arguments: list[Any] = []
        for node in nodes:
            if not isinstance(node, ast.Starred):
                arguments.append(self.evaluate(node, scope))
                continue
            value = self.evaluate(node.value, scope)
            if isinstance(value, list | tuple):
                self.step(node, len(value))
                arguments += value
            elif isinstance(value, Unread | TensorSpec):
                arguments.append(Unread(what="a starred expression", line=node.lineno))
            else:
                raise self.refusal(node, f"a star is read only before lists, given {description(value)}.")
        return arguments

    def _constant(self, node: ast.Constant, value: object) -> Any:
        if isinstance(value, Number | str | None):
            return self.guarded(node, small, value)
        if value is Ellipsis:
            return Unread(what="...", line=node.lineno)
        raise self.refusal(node, f"a literal of type {type(value).__name__} is not read.")

    def _name(self, node: ast.AST, name: str, scope: Scope) -> Any:
        holder = scope.find(name)
        if holder is not None:
            return self._value_of_library(node, holder.names[name])
        if name in COMMON:
            return self._value_of_library(node, COMMON[name])
        if name in HELPERS or name in HELPER_FUNCTIONS:
            return HELPERS.get(name, Path(("nvfuser", name)))
        if name in FUNCTIONS or name in HARMLESS:
            return Path((name,))
        if name == "__name__":
            return "__main__"
        if isinstance(getattr(builtins, name, None), type) and issubclass(getattr(builtins, name), BaseException):
            return Unread(what=name, line=getattr(node, "lineno", 0))
        if name.startswith("__") or name in {"eval", "exec", "open", "compile", "globals", "locals", "vars", "input"}:
            raise self.refusal(node, f"{name} is not read; {ACCEPTED}.")
        raise self.refusal(node, f"{name} is used before it is assigned.")

    def _value_of_library(self, node: ast.AST, value: Any) -> Any:
        """Return the value of a library's name if it is a constant, a dtype or a memory format."""
        if not isinstance(value, Path):
            return value
        match value.parts:
            case ("nvfuser", "DataType", name):
                if name in DataType.__members__:
                    return DataType[name]
                why = f"unknown DataType.{name}; choose from {', '.join(DataType.__members__)}."
                raise self.refusal(node, why, UnsupportedError)
            case ("torch" | "numpy", name) if name in TORCH_DTYPES:
                return self.guarded(node, dtype_named, name)
            case ("torch", name) if name in FORMATS:
                return name
            case ("nvfuser", *_, name) if name in HELPERS:
                return HELPERS[name]
            case ("numpy", "bool_"):
                return DataType.Bool
            case ("os", "environ"):
                return self.environment
            case ("sys", "argv"):
                return ["script.py"]
        return CONSTANTS.get(str(value), value)

    def attribute(self, node: ast.Attribute, owner: Any) -> Any:
        """Return ``owner.<name>``, or raise if it is not in the whitelist."""
        name = node.attr
        is_own = isinstance(owner, Instance) and owner.of is not None and not name.startswith("__")
        if name.startswith("_") and not is_own:
            raise self.refusal(node, f"the attribute {name} is not read; {ACCEPTED}.")
        match owner:
            case Path():
                return self._value_of_library(node, Path((*owner.parts, name)))
            case Recording() if name in {"ops", "Ops"}:  # the first frontend wrote Ops
                return Ops(owner)
            case Recording() if name in RUNS and self.open is None:
                return Bound(function=owner, args=(), keywords=())
            case Ops():
                return Op(recording=owner.recording, name=name)
            case Tensor() if name == "ndim":
                return owner.ndim
            case Handle() if name == "dtype":
                return owner.dtype
            case TensorSpec() if name in {"shape", "dtype", "device", "ndim"}:
                return len(owner.shape) if name == "ndim" else getattr(owner, name)
            case TensorSpec() if name in {"T", "mT"}:
                return self.guarded(node, changed_by, "transpose", owner, [-2, -1], {})
            case Instance():
                return self._member(node, owner, name)
            case Class():
                return self._of_class(owner, name) or Unread(what=f".{name}", line=node.lineno)
            case Unread() | Other() | TensorSpec():
                return Unread(what=f".{name}", line=node.lineno)
            case Handle() if name in SCHEDULED:
                return self.scheduled(node)
        raise self.refusal(node, f".{name} of {description(owner)} is not read; {ACCEPTED}.")

    def _member(self, node: ast.AST, owner: Instance, name: str) -> Any:
        """Return an attribute of an instance or of its class."""
        if name in owner.names:
            return owner.names[name]
        member = None if owner.of is None else self._of_class(owner.of, name)
        if isinstance(member, Function):
            is_static = any(ast.unparse(each) == "staticmethod" for each in member.node.decorator_list)
            return member if is_static else Method(of=owner, function=member)
        if name in SCHEDULES and isinstance(owner, Unopened | Recording):
            return self.scheduled(node)
        return Unread(what=f".{name}", line=getattr(node, "lineno", 0)) if member is None else member

    def _of_class(self, owner: Class, name: str) -> Any:
        """Return a method or a class attribute; None if there is none."""
        for each in reversed(owner.node.body):
            match each:
                case ast.FunctionDef(name=label) if label == name:
                    return Function(node=each, scope=owner.scope)
                case ast.Assign(targets=[ast.Name(id=label)], value=value) if label == name:
                    return self.evaluate(value, owner.scope)
                case ast.AnnAssign(target=ast.Name(id=label), value=value) if label == name and value is not None:
                    return self.evaluate(value, owner.scope)
        return None

    def note(self, node: ast.AST, text: str) -> None:
        """Note what was skipped or assumed at a position in the script."""
        self.notes.append(f"line {getattr(node, 'lineno', 0)}: {text}")

    def scheduled(self, node: ast.AST) -> Unread:
        """Return a placeholder for a line of a schedule, which is skipped with a note."""
        self.notes.append("the script's user schedule is skipped")
        return Unread(what="a user schedule", line=getattr(node, "lineno", 0))

    def _unary(self, node: ast.expr, op: ast.unaryop, value: Any) -> Any:
        if isinstance(value, Unread | TensorSpec):
            return Unread(what="an operator", line=node.lineno)
        if isinstance(op, ast.USub):
            if isinstance(value, Number):
                return -value
            if isinstance(value, Handle):
                return self.op(node, "neg", [value], {})
        if isinstance(op, ast.UAdd) and isinstance(value, Number):
            return value
        if isinstance(op, ast.Not) and isinstance(value, bool | int | float | str | None | list | tuple | dict):
            return not value
        if isinstance(op, ast.Invert) and isinstance(value, Handle):
            return self.op(node, "logical_not" if value.dtype is DataType.Bool else "bitwise_not", [value], {})
        why = f"this operator on {description(value)} is not read; only - on numbers and tensors is."
        raise self.refusal(node, why)

    def binary(self, node: ast.AST, op: ast.operator, left: Any, right: Any) -> Any:
        """Return ``left op right``."""
        tensors = [value for value in (left, right) if isinstance(value, TensorSpec)]
        if tensors and all(isinstance(value, TensorSpec | float | int) for value in (left, right)):
            made = compute_tensors(tensors)
            if made is not None and type(op) in {ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow}:
                return made
        if isinstance(left, Unread | TensorSpec) or isinstance(right, Unread | TensorSpec):
            return Unread(what="an operator", line=getattr(node, "lineno", 0))
        if (isinstance(left, Handle) or isinstance(right, Handle)) and type(op) in RECORDED:
            return self.op(node, RECORDED[type(op)], [left, right], {})
        return self.guarded(node, arithmetic, type(op), left, right, self.lists)

    def _index(self, index: ast.expr, scope: Scope) -> Any:
        if isinstance(index, ast.Slice):
            bounds = [None if x is None else self.evaluate(x, scope) for x in (index.lower, index.upper, index.step)]
            for bound in bounds:
                if isinstance(bound, Unread | TensorSpec):
                    return Unread(what="a slice", line=index.lineno)
                if not (bound is None or is_whole(bound)):
                    raise self.refusal(index, f"bounds of a slice must be whole numbers, given {description(bound)}.")
            return slice(*bounds)
        if isinstance(index, ast.Tuple):
            return tuple(
                self._index(e, scope) if not isinstance(e, ast.Starred) else self._several([e], scope)
                for e in index.elts
            )
        if isinstance(index, ast.Constant) and index.value is Ellipsis:
            return Ellipsis
        return self.evaluate(index, scope)

    def _item(self, node: ast.AST, owner: Any, index: Any) -> Any:
        if isinstance(owner, Unread):
            return Unread(what=owner.what, line=owner.line)
        if isinstance(owner, TensorSpec):
            entries = index if isinstance(index, tuple) else (index,)
            for entry in entries:
                if isinstance(entry, Unread | TensorSpec | list | tuple):
                    # Elements selected by a tensor or a list of indices are computed, so they cannot be an input.
                    return Unread(what="an index with tensors or lists", line=getattr(node, "lineno", 0))
                if not isinstance(entry, (slice, *PLAIN)) and entry is not Ellipsis:
                    raise self.refusal(node, "an input must be indexed with whole numbers and slices, given "
                                             f"{description(entry)}.")
            return self.guarded(node, taken_from, owner, index)
        if isinstance(owner, dict):
            if is_key(index) and index in owner:
                return owner[index]
            return Unread(what="an entry of a dict", line=getattr(node, "lineno", 0))
        if isinstance(owner, Path | Function | Class) or (
            isinstance(owner, list | tuple) and isinstance(index, Unread)
        ):
            return Unread(what=f"{owner}[...]" if isinstance(owner, Path) else "[...]", line=getattr(node, "lineno", 0))
        if isinstance(owner, list | tuple) and (is_whole(index) or isinstance(index, slice)):
            try:
                item = owner[index]
            except (IndexError, ValueError) as error:
                raise self.refusal(node, f"{error}; the list has {len(owner)} entries.") from None
            return self.lists.keep(item) if isinstance(index, slice) else item
        why = f"[...] is read only for lists, vectors and inputs, with whole numbers, given {description(owner)}."
        raise self.refusal(node, why)

    def entries(self, node: ast.expr, scope: Scope) -> list[Any]:
        """Return the entries that a loop iterates over."""
        value = self.evaluate(node, scope)
        if isinstance(value, list | tuple | dict | str):
            return list(value)
        raise self.refusal(node, f"loops are read only over range(...) and lists, given {description(value)}.")

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign a value to a name, or to a list of names."""
        if isinstance(value, Handle) and isinstance(target, ast.Name | ast.Attribute):
            self._variables[value.name] = ast.unparse(target)
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
            return
        if isinstance(target, ast.Tuple | ast.List):
            if isinstance(value, Unread):
                value = [value] * len(target.elts)
            starred = [place for place, each in enumerate(target.elts) if isinstance(each, ast.Starred)]
            if len(starred) == 1 and isinstance(value, list | tuple) and len(value) >= len(target.elts) - 1:
                self._bind_starred(target, starred[0], list(value), scope)
                return
            if not isinstance(value, list | tuple) or len(value) != len(target.elts):
                count = len(value) if isinstance(value, list | tuple) else 1
                raise self.refusal(target, f"{len(target.elts)} names are assigned {count} values.")
            for name, entry in zip(target.elts, value, strict=True):
                self.bind(name, entry, scope)
            return
        if isinstance(target, ast.Attribute | ast.Subscript):
            owner = self.evaluate(target.value, scope)
            if isinstance(owner, Unread | Handle) and isinstance(target, ast.Attribute):
                return
            if isinstance(owner, Unread):
                return
            if isinstance(owner, Instance) and isinstance(target, ast.Attribute) and not target.attr.startswith("__"):
                owner.names[target.attr] = value
                return
            if isinstance(owner, list | dict) and isinstance(target, ast.Subscript):
                self._put(target, owner, value, scope)
                return
            if isinstance(owner, TensorSpec) and isinstance(target, ast.Subscript):
                self.note(target, "assignments to single elements are skipped")
                return
            if isinstance(owner, TensorSpec) and isinstance(target, ast.Attribute) and target.attr in _OF_GRADIENTS:
                return
            if isinstance(owner, Path):
                changed = f"{owner}.{target.attr}" if isinstance(target, ast.Attribute) else str(owner)
                if not has_meaning(changed):
                    return
                raise self.refusal(target, f"an assignment to {changed} would change tensors that the script creates.")
        why = "only assignments to names and tuples of names are read; those to torch's settings are skipped."
        raise self.refusal(target, why)

    def quote(self, target: ast.expr, value: Any) -> None:
        """Store the line of an assignment that first names tensors, unless the names are those in the definition."""
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, list | tuple):
            for element, entry in zip(target.elts, value, strict=False):
                self.quote(element, entry)
        elif isinstance(target, ast.Name) and isinstance(value, Tensor):
            number = value.name[1:]
            line = "" if target.id in {value.name, f"t{number}", f"tv{number}"} else self.script.line(target)
            self.sources.setdefault(value.name, line)
            self.called.setdefault((target.id, value.name))

    def _bind_starred(
        self, target: ast.Tuple | ast.List, place: int, values: list[Any], scope: Scope,
    ) -> None:
        """Assign the entries of a list to names; the one with a star gets all remaining entries."""
        behind = len(target.elts) - place - 1
        rest = self.guarded(target, self.lists.keep, values[place : len(values) - behind])
        parts = [*values[:place], rest, *values[len(values) - behind :]]
        for name, entry in zip(target.elts, parts, strict=True):
            self.bind(name.value if isinstance(name, ast.Starred) else name, entry, scope)

    def _put(self, target: ast.Subscript, owner: list[Any] | dict[Any, Any], value: Any, scope: Scope) -> None:
        place = self._index(target.slice, scope) if isinstance(owner, list) else self._key(target.slice, scope)
        if isinstance(owner, list) and not (is_whole(place) and -len(owner) <= place < len(owner)):
            raise self.refusal(target, "an index of an assigned list entry must be a whole number, given "
                                       f"{description(place)}.")
        self.step(target, self.lists.weights.get(id(value), 1))
        self.guarded(target, self.lists.put, owner, place, value)

    def guarded(self, place: ast.AST, call: Callable[..., Any], *args: Any) -> Any:
        """Return ``call(*args)``; an error in it names the line."""
        try:
            return call(*args)
        except UnsupportedError as error:
            raise self.refusal(place, self._in_its_words(str(error)), UnsupportedError) from None
        except FuserLabError as error:
            raise self.refusal(place, self._in_its_words(str(error))) from None
        except (
            TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError,
            AssertionError, NotImplementedError,
        ) as error:
            # Users call the builder fd.
            why = str(error).replace("FusionBuilder.", "fd.")
            raise self.refusal(place, f"this cannot be evaluated ({type(error).__name__}: {why}).") from error


    def _in_its_words(self, text: str) -> str:
        """Return a sentence about the definition with the script's names of its values."""
        return _VALUE.sub(lambda match: self._variables.get(match[0], match[0]), text)


def _as_function(node: ast.Lambda) -> ast.FunctionDef:
    """Return a lambda as a function that returns its expression."""
    body = ast.copy_location(ast.Return(value=node.body), node)
    made = ast.FunctionDef(name="lambda", args=node.args, body=[body], decorator_list=[])
    return ast.copy_location(made, node)
