"""Evaluating a script's expressions: a whitelist over syntax nodes, nothing of the script is ever executed."""

import ast
import builtins
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_lab.arguments import is_whole
from fuser_lab.definition.handles import Handle, Tensor
from fuser_lab.definition.repro import spellings
from fuser_lab.definition.repro.arguments import FORMATS, TORCH_DTYPES, as_device, dtype_named
from fuser_lab.definition.repro.layouts import (
    ELEMENTWISE,
    METHODS,
    QUESTIONS,
    asked_of,
    changed_by,
    computed,
    taken_from,
)
from fuser_lab.definition.repro.makers import FILLERS, MAKERS, made_by, refilled_by
from fuser_lab.definition.repro.source import Script
from fuser_lab.definition.repro.values import (
    CONSTANTS,
    FUNCTIONS,
    PLAIN,
    RECORDED,
    Bound,
    Class,
    Function,
    Lists,
    Ops,
    Other,
    Path,
    Recording,
    Scope,
    Unopened,
    Unread,
    arithmetic,
    comparison,
    said,
    small,
)
from fuser_lab.definition.spec import Fill, TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, FuserLabError, UnsupportedError
from fuser_lab.ir import Number
from fuser_lab.ops import COMPOSITES, OPS

_DEEPEST = 100
_DEEPEST_CALLS = 12
_SPARE_STEPS = 50_000

# Libraries whose names may occur. Those of nvFuser's frontends, ours among them, are one.
LIBRARIES = frozenset({
    "torch", "numpy", "math", "thunder", "typing", "__future__", "ml_dtypes", "pytest", "os", "sys", "time", "copy",
    "functools", "itertools", "random",
})  # fmt: skip
FRONTENDS = frozenset({"nvfuser", "nvfuser_direct", "fuser_lab"})
# What a snippet may use without importing it.
_COMMON = {
    "torch": Path(("torch",)), "np": Path(("numpy",)), "numpy": Path(("numpy",)), "math": Path(("math",)),
    "nvfuser": Path(("nvfuser",)), "nvfuser_direct": Path(("nvfuser",)), "fl": Path(("nvfuser",)),
    "FusionDefinition": Path(("nvfuser", "FusionDefinition")), "DataType": Path(("nvfuser", "DataType")),
    "make_tensor": Path(("torch", "testing", "make_tensor")), "exec_nvfuser": Path(("nvfuser", "exec_nvfuser")),
}  # fmt: skip
_METHODS = (
    "define_tensor", "define_scalar", "define_constant", "define_vector", "add_output", "set_output_stride_order",
    "from_pytorch",
)
_RUNS = ("execute", "validate", "manual_execute", "manual_validate")
_SCHEDULES = ("sched", "schedule")
# Settings of torch that change what its makers make after them.
_DEFAULTS = ("set_default_dtype", "set_default_tensor_type")
# What beside makers, dtypes and formats has a meaning here.
_MEANT = frozenset({"torch.device", "torch.Size", "torch.Tensor", *(f"torch.{name}" for name in _DEFAULTS)})
_OF_GRADIENTS = ("requires_grad", "grad")
_HARMLESS = frozenset({"print", "repr", "str", "type", "isinstance", "getattr", "hasattr", "dir", "id", "sum", "round"})

FORBIDDEN: Mapping[type[ast.AST], str] = {
    ast.Lambda: "a lambda",
    ast.Dict: "a dict",
    ast.Set: "a set",
    ast.DictComp: "a dict comprehension",
    ast.SetComp: "a set comprehension",
    ast.GeneratorExp: "a generator",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.NamedExpr: "an assignment inside of an expression",
    ast.IfExp: "a conditional expression",
    ast.Starred: "a starred expression",
}
ACCEPTED = (
    "read are names, numbers, lists, DataType.X, fd.define_*, fd.ops.*, fd.add_output, torch's makers of inputs and "
    "functions that the script defines"
)


# What may stand beside a definition: nothing of it is read, and using it is refused.
_ASIDE = (ast.Lambda, ast.Dict, ast.Set, ast.DictComp, ast.SetComp, ast.GeneratorExp)


class Expressions:
    """Evaluates expressions of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.lists = Lists()
        self.open: Recording | None = None
        self.device: str | None = None
        self._steps = _SPARE_STEPS + sum(1 for _ in ast.walk(script.tree))
        self._depth = 0
        self._calls = 0

    def refusal(
        self, place: ast.AST | int, why: str, kind: type[FuserLabError] = DefinitionError,
    ) -> FuserLabError:
        """Return the error for something at a place of the script."""
        return self.script.refusal(place, why, kind)

    def run_body(self, function: Function, scope: Scope) -> Any:
        """Run the statements of a function and return what it returns."""
        raise NotImplementedError

    def ran(self, what: Recording | Function | Bound | None, given: Any, place: ast.AST) -> None:
        """Learn that a definition is executed with inputs."""
        raise NotImplementedError

    def step(self, node: ast.AST, steps: int = 1) -> None:
        """Count steps; loops and functions of a script end early rather than run on."""
        self._steps -= steps
        if self._steps < 0:
            raise self.refusal(node, "reading stops here: the script's loops take too many steps.")

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression, or raise for what the whitelist does not have."""
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
                return self._attribute(node, self.evaluate(node.value, scope))
            case ast.Call():
                return self._call(node, scope)
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
            case ast.ListComp(elt=entry, generators=[ast.comprehension(target=target, iter=over, ifs=[], is_async=0)]):
                inside = Scope(scope)
                found = []
                for value in self.entries(over, scope):
                    self.bind(target, value, inside)
                    found.append(self.evaluate(entry, inside))
                return self.guarded(node, self.lists.keep, found)
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self.evaluate(each, scope) for each in (left, *others)]
                self.step(node, sum(len(value) for value in values if isinstance(value, list | tuple)))
                found = [comparison(type(op), a, b) for op, a, b in zip(ops, values, values[1:], strict=False)]
                return Unread(what="a comparison", line=node.lineno) if None in found else all(found)
            case ast.BoolOp(op=op, values=nodes):
                return self._chain(node, isinstance(op, ast.Or), nodes, scope)
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                decided = self.truth(test, scope)
                if decided is not None:
                    return self.evaluate(body if decided else otherwise, scope)
                if self.open is None:
                    return Unread(what="a conditional expression", line=node.lineno)
            case ast.JoinedStr() | ast.FormattedValue():
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.evaluate(child, scope)
                return Unread(what="an f-string", line=node.lineno)
        if self.open is None and isinstance(node, _ASIDE):
            return Unread(what=FORBIDDEN[type(node)], line=node.lineno)
        what = FORBIDDEN.get(type(node), f"the expression {type(node).__name__}")
        raise self.refusal(node, f"{what} is not read; {ACCEPTED}.")

    def _chain(self, node: ast.expr, ends_on: bool, nodes: Sequence[ast.expr], scope: Scope) -> Any:
        """Return what ``and`` or ``or`` give, as far as that is known."""
        for each in nodes:
            value = self.truth(each, scope)
            if value is None:
                return Unread(what="and/or", line=node.lineno)
            if value is ends_on:
                return ends_on
        return not ends_on

    def truth(self, node: ast.expr, scope: Scope) -> bool | None:
        """Return whether a condition holds, None where it depends on what is not read."""
        value = self.evaluate(node, scope)
        if isinstance(value, bool | int | float | str | None | list | tuple):
            return bool(value)
        return None

    def _several(self, nodes: Sequence[ast.expr], scope: Scope) -> list[Any]:
        """Return the values of arguments or entries; those behind a star are spread."""
        found: list[Any] = []
        for node in nodes:
            if not isinstance(node, ast.Starred):
                found.append(self.evaluate(node, scope))
                continue
            value = self.evaluate(node.value, scope)
            if isinstance(value, list | tuple):
                self.step(node, len(value))
                found += value
            elif isinstance(value, Unread | TensorSpec):
                found.append(Unread(what="a starred expression", line=node.lineno))
            else:
                raise self.refusal(node, f"a star is read before lists only, given {said(value)}.")
        return found

    def _constant(self, node: ast.Constant, value: object) -> Any:
        if isinstance(value, Number | str | None):
            return self.guarded(node, small, value)
        if value is Ellipsis:
            return Unread(what="...", line=node.lineno)
        raise self.refusal(node, f"a literal of type {type(value).__name__} is not read.")

    def _name(self, node: ast.AST, name: str, scope: Scope) -> Any:
        found = scope.find(name)
        if found is not None:
            return self._settled(node, found.names[name])
        if name in _COMMON:
            return self._settled(node, _COMMON[name])
        if name in FUNCTIONS or name in _HARMLESS:
            return Path((name,))
        if name == "__name__":
            return "__main__"
        if isinstance(getattr(builtins, name, None), type) and issubclass(getattr(builtins, name), BaseException):
            return Unread(what=name, line=getattr(node, "lineno", 0))
        if name.startswith("__") or name in {"eval", "exec", "open", "compile", "globals", "locals", "vars", "input"}:
            raise self.refusal(node, f"{name} is not read; {ACCEPTED}.")
        raise self.refusal(node, f"{name} is used before it is assigned.")

    def _settled(self, node: ast.AST, value: Any) -> Any:
        """Return what a name of a library stands for, where that is a constant, a dtype or a memory format."""
        if not isinstance(value, Path):
            return value
        match value.parts:
            case ("nvfuser", "DataType", name):
                if name in DataType.__members__:
                    return DataType[name]
                why = f"DataType.{name} is not here; there are {', '.join(DataType.__members__)}."
                raise self.refusal(node, why, UnsupportedError)
            case ("torch", name) if name in TORCH_DTYPES:
                return self.guarded(node, dtype_named, name)
            case ("torch", name) if name in FORMATS:
                return name
        return CONSTANTS.get(str(value), value)

    def _attribute(self, node: ast.Attribute, owner: Any) -> Any:
        name = node.attr
        if name.startswith("_"):
            raise self.refusal(node, f"the attribute {name} is not read; {ACCEPTED}.")
        match owner:
            case Path():
                return self._settled(node, Path((*owner.parts, name)))
            case Recording() if name == "ops":
                return Ops(owner)
            case Recording() if name in _SCHEDULES:
                raise self.refusal(node, "user schedules are not read; delete them.", UnsupportedError)
            case Tensor() if name == "ndim":
                return owner.ndim
            case Handle() if name == "dtype":
                return owner.dtype
            case TensorSpec() if name in {"shape", "dtype", "device", "ndim"}:
                return len(owner.shape) if name == "ndim" else getattr(owner, name)
            case TensorSpec() if name in {"T", "mT"}:
                return self.guarded(node, changed_by, "transpose", owner, [-2, -1], {})
            case Unread() | Recording() | Other() | TensorSpec() | Unopened() | Class():
                return Unread(what=f".{name}", line=node.lineno)
        raise self.refusal(node, f".{name} of {said(owner)} is not read; {ACCEPTED}.")

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
        if isinstance(op, ast.Not) and isinstance(value, bool):
            return not value
        raise self.refusal(node, f"this operator on {said(value)} is not read; - is, on numbers and tensors.")

    def binary(self, node: ast.AST, op: ast.operator, left: Any, right: Any) -> Any:
        """Return ``left op right``."""
        tensors = [value for value in (left, right) if isinstance(value, TensorSpec)]
        if tensors and all(isinstance(value, TensorSpec | float | int) for value in (left, right)):
            made = computed(tensors)
            if made is not None and type(op) in {ast.Add, ast.Sub, ast.Mult, ast.Div}:
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
                    raise self.refusal(index, f"a slice has whole numbers as bounds, given {said(bound)}.")
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
                    # Elements picked by a tensor or a list of places: computed, so that no input can be it.
                    return Unread(what="an index with tensors or lists", line=getattr(node, "lineno", 0))
                if not isinstance(entry, (slice, *PLAIN)) and entry is not Ellipsis:
                    raise self.refusal(node, f"an input is indexed with whole numbers and slices, given {said(entry)}.")
            return self.guarded(node, taken_from, owner, index)
        if isinstance(owner, Path) or (isinstance(owner, list | tuple) and isinstance(index, Unread)):
            return Unread(what=f"{owner}[...]" if isinstance(owner, Path) else "[...]", line=getattr(node, "lineno", 0))
        if isinstance(owner, list | tuple) and (is_whole(index) or isinstance(index, slice)):
            try:
                found = owner[index]
            except (IndexError, ValueError) as error:
                raise self.refusal(node, f"{error}; the list has {len(owner)} entries.") from None
            return self.lists.keep(found) if isinstance(index, slice) else found
        why = f"[...] is read on lists, vectors and inputs, with whole numbers; given {said(owner)}."
        raise self.refusal(node, why)

    def entries(self, node: ast.expr, scope: Scope) -> list[Any]:
        """Return what a loop runs over."""
        value = self.evaluate(node, scope)
        if isinstance(value, list | tuple):
            return list(value)
        raise self.refusal(node, f"loops are read over range(...) and lists, given {said(value)}.")

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign a value to a name, or to a list of names."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
            return
        if isinstance(target, ast.Tuple | ast.List):
            if isinstance(value, Unread):
                value = [value] * len(target.elts)
            if not isinstance(value, list | tuple) or len(value) != len(target.elts):
                given = len(value) if isinstance(value, list | tuple) else 1
                raise self.refusal(target, f"{len(target.elts)} names are assigned, but {given} values come.")
            for name, entry in zip(target.elts, value, strict=True):
                self.bind(name, entry, scope)
            return
        if isinstance(target, ast.Attribute | ast.Subscript):
            owner = self.evaluate(target.value, scope)
            if isinstance(owner, Unread):
                return
            if isinstance(owner, TensorSpec) and isinstance(target, ast.Attribute) and target.attr in _OF_GRADIENTS:
                return
            if isinstance(owner, Path):
                changed = f"{owner}.{target.attr}" if isinstance(target, ast.Attribute) else str(owner)
                if not _has_meaning(changed):
                    return
                raise self.refusal(target, f"an assignment to {changed} would change what the script makes.")
        why = "assignments are read to names and tuples of names, and passed over to settings of torch."
        raise self.refusal(target, why)

    def guarded(self, place: ast.AST, call: Callable[..., Any], *args: Any) -> Any:
        """Return ``call(*args)``; what goes wrong in it is told with the line."""
        try:
            return call(*args)
        except UnsupportedError as error:
            raise self.refusal(place, str(error), UnsupportedError) from None
        except FuserLabError as error:
            raise self.refusal(place, str(error)) from None
        except (
            TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError,
            AssertionError, NotImplementedError,
        ) as error:
            # Users know the builder as fd.
            why = str(error).replace("FusionBuilder.", "fd.")
            raise self.refusal(place, f"this cannot be evaluated ({type(error).__name__}: {why}).") from error

    # Calls

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        owner: Any = None
        name = ""
        if isinstance(node.func, ast.Attribute):
            owner, name = self.evaluate(node.func.value, scope), node.func.attr
            if name.startswith("_"):
                raise self.refusal(node.func, f"the attribute {name} is not read; {ACCEPTED}.")
        called = self._attribute(node.func, owner) if isinstance(owner, Path) and isinstance(
            node.func, ast.Attribute,
        ) else None if name else self.evaluate(node.func, scope)
        args = self._several(node.args, scope)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.refusal(keyword.value, "** is not read; write the keyword arguments out.")
            keywords[keyword.arg] = self.evaluate(keyword.value, scope)
        what = called if called is not None else owner
        if isinstance(what, Unread | Path) and str(what) not in _HARMLESS and self.open is not None:
            for value in (*args, *keywords.values()):
                if value is self.open and name not in _RUNS:
                    raise self.refusal(node, f"what {said(what)} does with the definition is not read.")
        return self._method(node, owner, name, args, keywords) if name and called is None else self._function(
            node, called, args, keywords,
        )

    def _unread_in(self, node: ast.AST, what: str, values: Sequence[Any], tensors: int = 0) -> Unread | None:
        """Return what stands in the way of a call of torch: an argument that is not read, or a tensor beyond some."""
        for place, value in enumerate(values):
            if isinstance(value, list | tuple):
                found = self._unread_in(node, what, value)
                if found is not None:
                    return found
            elif isinstance(value, Unread):
                return value
            elif isinstance(value, TensorSpec):
                if place >= tensors:
                    return Unread(what=what, line=getattr(node, "lineno", 0))
            elif not isinstance(value, (*PLAIN, Fill)):
                raise self.refusal(node, f"{said(value)} cannot be an argument of {what}.")
        return None

    def _function(self, node: ast.Call, called: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        match called:
            case Function():
                return self.call_function(node, called, args, keywords)
            case Class():
                return Unopened(of=called)
            case Unread():
                return Unread(what=called.what, line=called.line)
            case Path(("nvfuser", "FusionDefinition")):
                return Unopened()
            case Path(("nvfuser", "ops", name)):
                return self.op(node, name, args, keywords)
            case Path((*_, "exec_nvfuser")) if len(args) > 1:
                self.ran(args[0] if isinstance(args[0], Function | Bound) else None, args[1], node)
                return Unread(what="exec_nvfuser", line=node.lineno)
            case Path(("nvfuser", *_, "spec")):
                return self._unread_in(node, "spec", [*args, *keywords.values()]) or self.guarded(
                    node, made_by, "spec", args, keywords,
                )
            case Path(("nvfuser", *_, "Fill")):
                return self._unread_in(node, "Fill", [*args, *keywords.values()]) or self.guarded(
                    node, lambda: Fill(**keywords | {"values": tuple(keywords.get("values", ()))}),
                )
            case Path(("torch", "device")):
                kind = args[0] if args else keywords.get("type")
                return f"{kind}:{args[1]}" if len(args) == 2 and is_whole(args[1]) else kind
            case Path(("torch", "Size")):
                return args[0] if len(args) == 1 else args
            case Path(("torch", "set_default_device")) if len(args) == 1:
                unread = self._unread_in(node, str(called), args)
                if unread is None:
                    self.device = None if args[0] is None else self.guarded(node, as_device, args[0], str(called))
                return unread
            case Path(("torch", name)) if name in _DEFAULTS and args != [DataType.Float]:
                why = f"torch.{name} changes the dtype of the tensors made after it; write dtype= where they are made."
                raise self.refusal(node, why)
            case Path(("functools", "partial")) if args and isinstance(args[0], Function):
                return Bound(function=args[0], args=tuple(args[1:]), keywords=tuple(keywords.items()))
            case Bound():
                given = dict(called.keywords) | keywords
                return self.call_function(node, called.function, [*called.args, *args], given)
            case Path(("torch", "cuda", "is_available")):
                return True
            case Path(("torch", name)) if name in METHODS and args and isinstance(args[0], TensorSpec):
                unread = self._unread_in(node, f"torch.{name}", [*args[1:], *keywords.values()])
                return unread or self.guarded(node, changed_by, name, args[0], args[1:], keywords)
            case Path(("torch", *_, name)) if name in ELEMENTWISE and args and isinstance(args[0], TensorSpec):
                return computed(args[:1]) or Unread(what=f"torch.{name}", line=node.lineno)
            case Path(("torch", *rest)):
                name = ".".join(rest)
                if name not in MAKERS or name == "spec":
                    return Unread(what=f"torch.{name}", line=node.lineno)
                found = self._unread_in(
                    node, f"torch.{name}", [*args, *keywords.values()], tensors=int(name.endswith("_like")),
                )
                if found is not None:
                    return found
                if self.device is not None and not name.endswith(("_like", "make_tensor")):
                    keywords = {"device": self.device} | keywords
                return self.guarded(node, made_by, name, args, keywords)
            case Path():
                return self._library(node, called, args, keywords)
        if isinstance(called, DataType):
            raise self.refusal(node, f"{called!r} is not called.")
        raise self.refusal(node, f"{said(called)} is not called; {ACCEPTED}.")

    def _library(self, node: ast.Call, called: Path, args: list[Any], keywords: dict[str, Any]) -> Any:
        name = str(called)
        if name not in FUNCTIONS:
            return Unread(what=name, line=node.lineno)
        if any(isinstance(value, Unread | TensorSpec) for value in args):
            return Unread(what=name, line=node.lineno)
        if keywords:
            raise self.refusal(node, f"{name} is read without keyword arguments.")
        found = self.guarded(node, FUNCTIONS[name], *args)
        return self.guarded(node, self.lists.keep, found) if isinstance(found, list | tuple) else found

    def call_function(self, place: ast.AST, function: Function, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Return what a function of the script returns."""
        given = function.node.args
        name = function.node.name
        if given.vararg or given.kwarg:
            raise self.refusal(function.node, f"{name} takes * or **, which is not read.")
        parameters = [*given.posonlyargs, *given.args]
        names = [p.arg for p in (*parameters, *given.kwonlyargs)]
        values = dict(zip((p.arg for p in parameters), args, strict=False))
        unknown = [key for key in keywords if key not in names or key in values]
        if len(args) > len(parameters) or unknown:
            raise self.refusal(place, f"{name} takes {', '.join(names) or 'no arguments'}.")
        values |= keywords
        defaults = [
            *zip(parameters[len(parameters) - len(given.defaults) :], given.defaults, strict=True),
            *zip(given.kwonlyargs, given.kw_defaults, strict=True),
        ]
        for parameter, default in defaults:
            if parameter.arg not in values and default is not None:
                values[parameter.arg] = self.evaluate(default, function.scope)
        missing = [key for key in names if key not in values]
        if missing:
            raise self.refusal(place, f"{name} is called without {', '.join(missing)}.")
        if self._calls >= _DEEPEST_CALLS:
            raise self.refusal(place, f"functions call each other more than {_DEEPEST_CALLS} deep.")
        inside = Scope(function.scope)
        inside.names |= values
        self._calls += 1
        try:
            return self.run_body(function, inside)
        finally:
            self._calls -= 1

    def _method(self, node: ast.Call, owner: Any, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        match owner:
            case Ops():
                return self.op(node, name, args, keywords, owner.recording)
            case Recording() if name in _METHODS:
                return self._define(node, owner, name, args, keywords)
            case Recording() | Unopened() | Unread() if name in _RUNS:
                given = args[0] if args else keywords.get("inputs")
                self.ran(owner if isinstance(owner, Recording) else None, given, node)
            case _ if name == "exec_nvfuser" and len(args) > 1:
                self.ran(args[0] if isinstance(args[0], Function | Bound) else None, args[1], node)
            case Tensor() if name in {"size", "shape"}:
                self.check_plain(node, args)
                return self.guarded(node, owner.size if name == "size" else owner.shape, *args)
            case TensorSpec() if name in QUESTIONS and not keywords:
                return self._unread_in(node, f".{name}()", args) or self.guarded(node, asked_of, owner, name, args)
            case TensorSpec() if name in METHODS or name in FILLERS:
                tensors = int(name in {"to", "type"})
                found = self._unread_in(node, f".{name}()", [*args, *keywords.values()], tensors)
                call = changed_by if name in METHODS else refilled_by
                return found or self.guarded(node, call, name, owner, args, keywords)
            case TensorSpec() if name == "size":
                return self._item(node, owner.shape, args[0]) if args else owner.shape
            case list() if name == "append" and len(args) == 1 and not keywords:
                return self.guarded(node, self.lists.append, owner, args[0])
            case Recording() if name in _SCHEDULES:
                raise self.refusal(node, "user schedules are not read; delete them.", UnsupportedError)
            case Unread() | Recording() | Other() | TensorSpec() | Unopened() | Class():
                pass
            case _:
                raise self.refusal(node, f".{name}() of {said(owner)} is not read; {ACCEPTED}.")
        return Unread(what=f".{name}()", line=node.lineno)

    def op(
        self, place: ast.AST, name: str, args: list[Any], keywords: dict[str, Any], recording: Recording | None = None,
    ) -> Any:
        """Record an op of a definition, in its present spelling, and return its result."""
        recording = recording or self.open
        if recording is None:
            raise self.refusal(place, f"{name} stands outside of a definition.")
        self.check_plain(place, [*args, *keywords.values()])
        name, args, keywords = spellings.modern(spellings.OPS, name, args, keywords)
        if name in {"at", "vector_at"} and (len(args) == 2 or (len(args) == 1 and "index" in keywords)):
            return self._item(place, args[0], args[1] if len(args) == 2 else keywords["index"])
        if name not in OPS and name not in COMPOSITES:
            near = difflib.get_close_matches(name, [*OPS, *COMPOSITES], n=3)
            hint = f"; there is {', '.join(near)}" if near else ""
            raise self.refusal(place, f"fd.ops.{name} is not implemented{hint}.", UnsupportedError)
        found = self.guarded(place, lambda: getattr(recording.builder.ops, name)(*args, **keywords))
        return self.lists.keep(found) if isinstance(found, list | tuple) else found

    def check_plain(self, place: ast.AST, values: list[Any]) -> None:
        """Raise DefinitionError for an argument that is no plain value."""
        # What an op costs grows with the axes of its operands and the length of its lists.
        self.step(place, sum(value.ndim if isinstance(value, Tensor) else 1 for value in values))
        for value in values:
            if isinstance(value, list | tuple):
                self.check_plain(place, list(value))
            elif not isinstance(value, PLAIN):
                raise self.refusal(place, f"{said(value)} cannot be an argument of a definition.")

    def _define(
        self, node: ast.Call, recording: Recording, name: str, args: list[Any], keywords: dict[str, Any],
    ) -> Any:
        if name == "from_pytorch":
            return self._from_array(node, recording, args, keywords)
        self.check_plain(node, [*args, *keywords.values()])
        is_old = "symbolic_sizes" in keywords or "contiguous" in keywords
        name, args, keywords = spellings.modern(spellings.METHODS, name, args, keywords)
        builder = recording.builder
        if name == "define_tensor":
            args, keywords = self.guarded(node, lambda: spellings.tensor_arguments(args, keywords, is_old=is_old))
        elif name == "define_vector":
            entries = args[0] if args else keywords.get("size")
            if isinstance(entries, list | tuple):
                dtype = keywords.get("dtype", args[1] if len(args) > 1 else DataType.Int)
                return self.guarded(
                    node, lambda: [e if isinstance(e, Handle) else builder.define_scalar(e, dtype) for e in entries],
                )
            keywords = {key: value for key, value in keywords.items() if key != "dtype"}
        elif name == "add_output" and len(args) == 2 and isinstance(args[1], list | tuple):
            args, keywords = args[:1], keywords | {"stride_order": args[1]}
        return self.guarded(node, lambda: getattr(builder, name)(*args, **keywords))

    def _from_array(self, node: ast.Call, recording: Recording, args: list[Any], keywords: dict[str, Any]) -> Any:
        tensor = args[0] if args else keywords.get("tensor")
        static = args[1] if len(args) > 1 else keywords.get("static_sizes", False)
        if not isinstance(tensor, TensorSpec) or not isinstance(static, bool):
            raise self.refusal(node, f"from_pytorch is read on an input that the script makes, given {said(tensor)}.")
        return self.guarded(
            node,
            lambda: recording.builder.define_tensor(
                sizes=list(tensor.shape), strides=list(tensor.strides), dtype=tensor.dtype, static_sizes=static,
                is_cpu=tensor.device == "cpu" and not tensor.shape,
            ),
        )


def _has_meaning(name: str) -> bool:
    """Whether a name of a library stands for something that is read, so that no script may give it another meaning."""
    library, _, rest = name.partition(".")
    known = _MEANT | CONSTANTS.keys() | FUNCTIONS.keys() | {
        f"torch.{each}" for each in (*MAKERS, *TORCH_DTYPES, *FORMATS)
    }  # fmt: skip
    return library == "nvfuser" or not rest or any(
        name == each or name.startswith(f"{each}.") or each.startswith(f"{name}.") for each in known
    )
