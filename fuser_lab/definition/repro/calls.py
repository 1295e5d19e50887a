"""Calls in a script: its own functions and classes, torch functions that create tensors, and recording calls."""

import ast
import difflib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes

from fuser_lab.arguments import brief, is_whole
from fuser_lab.definition.handles import Handle, Tensor
from fuser_lab.definition.repro import spellings
from fuser_lab.definition.repro.arguments import as_device
from fuser_lab.definition.repro.expressions import Expressions
from fuser_lab.definition.repro.helpers import HELPER_FUNCTIONS, NOTED
from fuser_lab.definition.repro.layouts import (
    COMPARISONS,
    ELEMENTWISE,
    METHODS,
    QUESTIONS,
    asked_of,
    changed_by,
    compare_tensors,
    compute_tensors,
    join,
)
from fuser_lab.definition.repro.makers import FILLERS, MAKERS, made_by, refilled_by
from fuser_lab.definition.repro.source import Script
from fuser_lab.definition.repro.values import (
    FUNCTIONS,
    HASHED,
    PLAIN,
    Bound,
    Class,
    Function,
    Instance,
    Method,
    Op,
    Ops,
    Other,
    Path,
    Recording,
    Scope,
    Unopened,
    Unread,
    description,
)
from fuser_lab.definition.repro.vocabulary import ACCEPTED, HARMLESS, RUNS, SCHEDULED, SCHEDULES
from fuser_lab.definition.spec import Fill, TensorSpec
from fuser_lab.definition.strides import describe_strides
from fuser_lab.dtypes import DataType, of_python
from fuser_lab.errors import DefinitionError, UnsupportedError
from fuser_lab.ir import Number
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.targets import is_on_host

_DEEPEST_CALLS = 12  # calls of a script's functions inside one another
_METHODS = (
    "define_tensor", "define_scalar", "define_constant", "define_vector", "add_output", "set_output_stride_order",
    "from_pytorch",
)
_OF_TENSORS = ELEMENTWISE | COMPARISONS | METHODS.keys()
# Settings of torch that change the dtype of tensors created later.
_DEFAULTS = ("set_default_dtype", "set_default_tensor_type")
_ACTING = frozenset({"ctypes", "multiprocessing", "os", "shutil", "signal", "socket", "subprocess", "urllib"})
_HARMLESS_OF_OS = frozenset({"environ", "getenv", "path"})
_TYPES = {
    "int": int, "float": float, "bool": bool, "complex": complex, "str": str, "list": list, "tuple": tuple,
    "dict": dict,
}  # fmt: skip


def _of_range(args: Sequence[Any]) -> DataType:
    return DataType.Double if any(isinstance(value, float) for value in args) else DataType.Int


# NumPy functions that create arrays, as torch functions with the same arguments, with their default dtypes.
_NUMPY: Mapping[str, Callable[[Sequence[Any]], DataType]] = {
    **dict.fromkeys(("ones", "zeros", "empty", "randn", "rand", "standard_normal"), lambda _: DataType.Double),
    "full": lambda args: of_python(args[1]) if len(args) > 1 else DataType.Double,
    "arange": _of_range,
}


def _limits(name: str, dtype: DataType) -> Instance:
    """Return ``torch.finfo`` or ``torch.iinfo`` of a dtype."""
    if name == "iinfo" and dtype.is_integral:
        least, most = dtype.limits
        return Instance(names={"min": least, "max": most, "bits": 8 * dtype.itemsize})
    if name == "finfo" and dtype.is_float:
        finfo: Any = ml_dtypes.finfo
        info = finfo(dtype.numpy)
        names = ("min", "max", "eps", "tiny", "smallest_normal")
        return Instance(names={each: float(getattr(info, each)) for each in names} | {"bits": 8 * dtype.itemsize})
    msg = f"torch.{name} is read only for {'floats' if name == 'finfo' else 'integers'}, given {dtype!r}."
    raise DefinitionError(msg)


class Calls(Expressions):
    """Evaluates calls of one script."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._calls = 0

    def run_body(self, function: Function, scope: Scope) -> Any:
        """Run the statements of a function and return what it returns."""
        raise NotImplementedError

    def ran(self, definition: Any, inputs: Any, place: ast.AST) -> None:
        """Record that a definition, None for an unknown one, is executed with inputs."""
        raise NotImplementedError

    def made_of(self, of: Class) -> Instance:
        """Return a new instance of a class of the script."""
        raise NotImplementedError

    def call(self, node: ast.Call, scope: Scope) -> Any:
        """Return the result of a call."""
        called, owner, name = self._target_of_call(node, scope)
        args = self._several(node.args, scope)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
                self.step(keyword.value, len(value))
                keywords |= value
            elif isinstance(value, Unread) and self.open is None:
                return Unread(what="**", line=node.lineno)
            else:
                raise self.refusal(keyword.value, "** is read only before dicts with names as keys, given "
                                                  f"{description(value)}.")
        self._note_what_is_not_done(node, scope)
        callee = called if called is not None else owner
        if isinstance(callee, Unread | Path) and str(callee) not in HARMLESS and self.open is not None:
            for value in (*args, *keywords.values()):
                if value is self.open and name not in RUNS:
                    raise self.refusal(node, f"the effect of {description(callee)} on the definition is not read.")
        if called is None:
            return self._method(node, owner, name, args, keywords)
        return self._function(node, called, args, keywords)

    def _note_what_is_not_done(self, node: ast.Call, scope: Scope) -> None:
        """Note a skipped call that would act on the system."""
        called = ast.unparse(node.func)
        first, *rest = called.split(".")
        meant = scope.value(first) if first.isidentifier() else None
        if not isinstance(meant, Path | Unread):
            return
        module, *names = (*str(meant).split("."), *rest)
        if module in _ACTING and _HARMLESS_OF_OS.isdisjoint(names):
            self.note(node, f"{brief(called, 60)}(...) is skipped")

    def _target_of_call(self, node: ast.Call, scope: Scope) -> tuple[Any, Any, str]:
        """Return the called object, or the owner of a method and its name."""
        if not isinstance(node.func, ast.Attribute):
            return self.evaluate(node.func, scope), None, ""
        owner, name = self.evaluate(node.func.value, scope), node.func.attr
        if isinstance(owner, Instance) and owner.of is not None and not name.startswith("__"):
            member = self.attribute(node.func, owner)
            return (member, owner, name) if isinstance(member, Method | Function | Bound) else (None, owner, name)
        if name == "__init__" and isinstance(owner, Unread):
            return owner, None, name
        if name.startswith("_"):
            raise self.refusal(node.func, f"the attribute {name} is not read; {ACCEPTED}.")
        if isinstance(owner, Path | Class):
            return self.attribute(node.func, owner), owner, name
        return None, owner, name

    def _unread_in(self, node: ast.AST, function: str, values: Sequence[Any], tensors: int = 0) -> Unread | None:
        """Return what prevents a torch call: an argument that is not read, or a tensor inside one."""
        for place, value in enumerate(values):
            if isinstance(value, list | tuple):
                unread = self._unread_in(node, function, value)
                if unread is not None:
                    return unread
            elif isinstance(value, Unread):
                return value
            elif isinstance(value, TensorSpec):
                if place >= tensors:
                    return Unread(what=function, line=getattr(node, "lineno", 0))
            elif not isinstance(value, (*PLAIN, Fill)):
                raise self.refusal(node, f"{description(value)} cannot be an argument of {function}.")
        return None

    def _function(self, node: ast.Call, called: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        match called:
            case Function():
                return self.call_function(node, called, args, keywords)
            case Method():
                return self.call_function(node, called.function, [called.of, *args], keywords)
            case Class():
                return self._instance(node, called, args, keywords)
            case Op():
                return self.op(node, called.name, args, keywords, called.recording)
            case Unread():
                for run, inputs in pairwise(args):
                    if isinstance(run, Bound) and isinstance(run.function, Recording):
                        self.ran(run.function, inputs, node)
                return Unread(what=called.what, line=called.line)
            case Path(("getattr",)) if len(args) > 1 and isinstance(args[0], Ops) and isinstance(args[1], str):
                return Op(recording=args[0].recording, name=args[1])
            case Path(("hasattr",)) if len(args) == 2 and isinstance(args[0], Recording | Ops):
                attributes = {*OPS, *COMPOSITES} if isinstance(args[0], Ops) else {*_METHODS, "ops", "Ops", "execute"}
                return args[1] in attributes if isinstance(args[1], str) else Unread(what="hasattr", line=node.lineno)
            case Path(("isinstance",)) if len(args) == 2:
                return self._is_instance(node, *args)
            case Path(("dict",)):
                return self._dict_of(node, args, keywords)
            case Path((*_, "SimpleNamespace")) if not args:
                return Instance(names=dict(keywords))
            case Path(("os", "getenv")) | Path(("os", "environ", "get")) if args and isinstance(args[0], str):
                return self.environment.get(args[0], args[1] if len(args) > 1 else None)
            case Path(("nvfuser", *_, name)) if name in HELPER_FUNCTIONS:
                if name in NOTED:
                    self.note(node, NOTED[name])
                if any(isinstance(value, Unread) for value in (*args, *keywords.values())):
                    return Unread(what=name, line=node.lineno)
                return self.guarded(node, lambda: HELPER_FUNCTIONS[name](*args, **keywords))
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
                why = (
                    f"torch.{name} changes the dtype of tensors created after it; write dtype= where they are created."
                )
                raise self.refusal(node, why)
            case Path(("functools", "partial")) if args and isinstance(args[0], Function | Path | Method | Op):
                return Bound(function=args[0], args=tuple(args[1:]), keywords=tuple(keywords.items()))
            case Bound():
                options = dict(called.keywords) | keywords
                return self._function(node, called.function, [*called.args, *args], options)
            case Path(("torch", "cuda", "is_available" | "is_bf16_supported")):
                return True
            case Path(("torch", "cuda", "current_device")):
                return 0
            case Path(("torch", "cuda", "get_device_capability")):
                # Of the default target.
                return (9, 0)
            case Path(("torch", "finfo" | "iinfo" as name)) if len(args) == 1 and isinstance(args[0], DataType):
                return self.guarded(node, _limits, name, args[0])
            case Path(("nvfuser", *_, "compute_contiguity")) if len(args) == 2:
                unread = self._unread_in(node, "compute_contiguity", args)
                return unread or self.guarded(node, lambda: list(describe_strides(*args)[0]))
            case Path(("torch", "stack" | "cat" | "concat" as name)):
                unread = self._unread_in(node, f"torch.{name}", args[1:])
                tensors = args[0] if args else keywords.get("tensors")
                if unread is not None or not isinstance(tensors, list | tuple):
                    return unread or Unread(what=f"torch.{name}", line=node.lineno)
                axis = args[1] if len(args) > 1 else keywords.get("dim", keywords.get("axis", 0))
                result = self.guarded(node, join, name, tensors, axis)
                return result or Unread(what=f"torch.{name}", line=node.lineno)
            case Path(("torch", *_, name)) if name in _OF_TENSORS and args and isinstance(args[0], TensorSpec):
                return self._of_tensor(node, args[0], name, args[1:], keywords)
            case Path(("torch", "from_numpy" | "as_tensor")) if isinstance(args[0] if args else None, TensorSpec):
                return self.guarded(node, changed_by, "to", args[0], args[1:], keywords)
            case Path(("numpy", *_, name)) if name in _NUMPY:
                result = self._unread_in(node, str(called), [*args, *keywords.values()])
                keywords = {"dtype": _NUMPY[name](args)} | keywords
                return result or self.guarded(node, made_by, name.replace("standard_normal", "randn"), args, keywords)
            case Path(("torch", *rest)):
                name = ".".join(rest)
                if name not in MAKERS or name == "spec":
                    return Unread(what=f"torch.{name}", line=node.lineno)
                result = self._unread_in(
                    node, f"torch.{name}", [*args, *keywords.values()], tensors=int(name.endswith("_like")),
                )
                if result is not None:
                    return result
                if self.device is not None and not name.endswith(("_like", "make_tensor")):
                    keywords = {"device": self.device} | keywords
                return self.guarded(node, made_by, name, args, keywords)
            case Path():
                return self._library(node, called, args, keywords)
        if isinstance(called, DataType):
            raise self.refusal(node, f"{called!r} cannot be called.")
        raise self.refusal(node, f"{description(called)} cannot be called; {ACCEPTED}.")

    def _library(self, node: ast.Call, called: Path, args: list[Any], keywords: dict[str, Any]) -> Any:
        name = str(called)
        if name not in FUNCTIONS:
            return Unread(what=name, line=node.lineno)
        if name == "abs" and len(args) == 1 and isinstance(args[0], Handle):
            return self.op(node, "abs", args, keywords)
        if any(isinstance(value, Unread | TensorSpec) for value in args):
            return Unread(what=name, line=node.lineno)
        if name == "sorted" and keywords.keys() == {"reverse"}:
            ordered = self.guarded(node, FUNCTIONS["sorted"], *args)
            return self.guarded(node, self.lists.keep, ordered[::-1] if keywords["reverse"] else ordered)
        if keywords and set(keywords) <= {"strict"}:
            keywords = {}
        if keywords:
            raise self.refusal(node, f"{name} is read only without keyword arguments.")
        self.step(node, sum(len(value) for value in args if isinstance(value, list | tuple | dict)))
        ordered = self.guarded(node, FUNCTIONS[name], *args)
        return self.guarded(node, self.lists.keep, ordered) if isinstance(ordered, list | tuple) else ordered

    def call_function(self, place: ast.AST, function: Function, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Return the result of a function of the script."""
        signature = function.node.args
        name = function.node.name
        parameters = [*signature.posonlyargs, *signature.args]
        names = [p.arg for p in (*parameters, *signature.kwonlyargs)]
        values = dict(zip((p.arg for p in parameters), args, strict=False))
        spare = list(args[len(parameters) :])
        unknown = {key: value for key, value in keywords.items() if key not in names or key in values}
        if (spare and not signature.vararg) or (unknown and (not signature.kwarg or values.keys() & unknown)):
            raise self.refusal(place, f"{name} takes {', '.join(names) or 'no arguments'}.")
        values |= {key: value for key, value in keywords.items() if key not in unknown}
        if signature.vararg:
            values[signature.vararg.arg] = self.guarded(place, self.lists.keep, tuple(spare))
        if signature.kwarg:
            values[signature.kwarg.arg] = self.guarded(place, self.lists.keep, unknown)
        defaults = [
            *zip(parameters[len(parameters) - len(signature.defaults) :], signature.defaults, strict=True),
            *zip(signature.kwonlyargs, signature.kw_defaults, strict=True),
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

    def _instance(self, node: ast.Call, of: Class, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Return an instance of a class of the script, with the attributes from its ``__init__`` or its fields."""
        made = self.made_of(of)
        method = of.method("__init__")
        if method is None:
            # The fields of a dataclass.
            fields = (each.target for each in of.node.body if isinstance(each, ast.AnnAssign))
            names = (target.id for target in fields if isinstance(target, ast.Name))
            made.names.update(zip(names, args, strict=False))
            made.names.update(keywords)
            return made
        try:
            self.call_function(node, Function(node=method, scope=of.scope), [made, *args], keywords)
        except DefinitionError:
            if of.is_definition or self.open is not None:
                raise
            # For example, a torch module beside the definition.
            return Unread(what=of.node.name, line=node.lineno)
        return made

    def _is_instance(self, node: ast.Call, value: Any, kinds: Any) -> Any:
        listed = kinds if isinstance(kinds, list | tuple) else [kinds]
        classes = [_TYPES.get(str(kind)) for kind in listed if isinstance(kind, Path)]
        if isinstance(value, Unread) or None in classes or len(classes) != len(listed):
            return Unread(what="isinstance", line=node.lineno)
        return isinstance(value, tuple(kind for kind in classes if kind is not None))

    def _dict_of(self, node: ast.Call, args: list[Any], keywords: dict[str, Any]) -> Any:
        entries: dict[Any, Any] = {}
        if len(args) == 1 and isinstance(args[0], dict):
            entries |= args[0]
        elif len(args) == 1 and isinstance(args[0], list | tuple):
            for entry in args[0]:
                if not (isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], HASHED)):
                    raise self.refusal(node, "dict is read only with a dict, pairs or keywords.")
                entries[entry[0]] = entry[1]
        elif args:
            return Unread(what="dict", line=node.lineno)
        self.step(node, len(entries))
        return self.guarded(node, self.lists.keep, entries | keywords)

    def _of_dict(self, node: ast.Call, owner: dict[Any, Any], name: str, args: list[Any]) -> Any:
        """Return the result of a dict's method."""
        self.step(node, len(owner))
        match name, args:
            case "keys", []:
                listed: Any = list(owner)
            case "values", []:
                listed = list(owner.values())
            case "items", []:
                listed = [self.guarded(node, self.lists.keep, pair) for pair in owner.items()]
            case "get" | "setdefault" | "pop", [key, *usual] if isinstance(key, HASHED) and len(usual) < 2:
                default = usual[0] if usual else None
                if name == "setdefault" and key not in owner:
                    self.guarded(node, self.lists.put, owner, key, default)
                return owner.pop(key, default) if name == "pop" else owner.get(key, default)
            case "copy", []:
                return self.guarded(node, self.lists.keep, dict(owner))
            case _:
                raise self.refusal(node, f".{name}() of a dict is not read; only items, keys, values, get and copy "
                                         "are.")
        return self.guarded(node, self.lists.keep, listed)

    def _of_list(self, node: ast.Call, owner: list[Any] | tuple[Any, ...], name: str, args: list[Any]) -> Any:
        """Return the result of a list's method."""
        self.step(node, len(owner))
        match name, owner, args:
            case "append", list(), [entry]:
                return self.guarded(node, self.lists.append, owner, entry)
            case "extend", list(), [list() | tuple() as entries]:
                for entry in list(entries):
                    self.guarded(node, self.lists.append, owner, entry)
                self.step(node, len(entries))
                return None
            case "insert", list(), [int(place), entry]:
                self.guarded(node, self.lists.append, owner, entry)
                owner.insert(place, owner.pop())
                return None
            case "pop", list(), [] | [int()]:
                return self.guarded(node, owner.pop, *args)
            case "index" | "count", _, [entry] if isinstance(entry, HASHED):
                return self.guarded(node, getattr(owner, name), entry)
            case "copy", list(), []:
                return self.guarded(node, self.lists.keep, list(owner))
            case "reverse", list(), []:
                return owner.reverse()
            case "numel", tuple(), []:
                return self.guarded(node, FUNCTIONS["math.prod"], owner)
        raise self.refusal(node, f".{name}() of {description(owner)} is not read; {ACCEPTED}.")

    def _method(self, node: ast.Call, owner: Any, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        match owner:
            case Ops():
                return self.op(node, name, args, keywords, owner.recording)
            case Recording() if name in _METHODS:
                return self._define(node, owner, name, args, keywords)
            case Instance() if name in owner.names:
                return self._function(node, owner.names[name], args, keywords)
            case Recording() | Unopened() | Unread() if name in RUNS:
                inputs = args[0] if args else keywords.get("inputs")
                self.ran(None if isinstance(owner, Unread) else owner, inputs, node)
            case _ if name == "exec_nvfuser" and len(args) > 1:
                self.ran(args[0] if isinstance(args[0], Function | Bound) else None, args[1], node)
            case Tensor() if name in {"size", "shape"}:
                self.check_plain(node, args)
                return self.guarded(node, owner.size if name == "size" else owner.shape, *args)
            case TensorSpec():
                return self._of_tensor(node, owner, name, args, keywords)
            case list() | tuple() if not keywords:
                return self._of_list(node, owner, name, args)
            case dict() if not keywords:
                return self._of_dict(node, owner, name, args)
            case Handle() if name in SCHEDULED:
                return self.scheduled(node)
            case Recording() if name in SCHEDULES:
                return self.scheduled(node)
            case Unread() | Other() | Instance() | Class() | Function() | str():
                pass
            case _:
                raise self.refusal(node, f".{name}() of {description(owner)} is not read; {ACCEPTED}.")
        return Unread(what=f".{name}()", line=node.lineno)

    def _of_tensor(
        self, node: ast.Call, owner: TensorSpec, name: str, args: list[Any], keywords: dict[str, Any],
    ) -> Any:
        """Return the result of an input's method."""
        if name in QUESTIONS and not keywords:
            return self._unread_in(node, f".{name}()", args) or self.guarded(node, asked_of, owner, name, args)
        if name in METHODS or name in FILLERS:
            tensors = int(name in {"to", "type", "type_as", "view_as", "reshape_as", "expand_as"})
            unread = self._unread_in(node, f".{name}()", [*args, *keywords.values()], tensors)
            call = changed_by if name in METHODS else refilled_by
            return unread or self.guarded(node, call, name, owner, args, keywords)
        if name == "size":
            return self._item(node, owner.shape, args[0]) if args else owner.shape
        if name.startswith("new_") and f"{name.removeprefix('new_')}_like" in MAKERS:
            options = {"dtype": owner.dtype, "device": owner.device} | keywords
            maker = name.removeprefix("new_")
            return self._unread_in(node, f".{name}()", [*args, *options.values()]) or self.guarded(
                node, made_by, maker, args, options,
            )
        if name in COMPARISONS or name.removesuffix("_") in ELEMENTWISE:
            operands = [owner, *(value for value in args if isinstance(value, TensorSpec))]
            if all(isinstance(value, TensorSpec | Number) for value in args):
                result = compare_tensors(operands) if name in COMPARISONS else compute_tensors(operands)
                return result or Unread(what=f".{name}()", line=node.lineno)
        return Unread(what=f".{name}()", line=node.lineno)

    def op(
        self, place: ast.AST, name: str, args: list[Any], keywords: dict[str, Any], recording: Recording | None = None,
    ) -> Any:
        """Record an op of a definition, in its current spelling, and return its result."""
        recording = recording or self.open
        if recording is None:
            raise self.refusal(place, f"{name} is outside a definition.")
        self.check_plain(place, [*args, *keywords.values()])
        name, args, keywords = spellings.modern(spellings.OPS, name, args, keywords)
        if name in {"at", "vector_at"} and (len(args) == 2 or (len(args) == 1 and "index" in keywords)):
            return self._item(place, args[0], args[1] if len(args) == 2 else keywords["index"])
        if name not in OPS and name not in COMPOSITES:
            near = difflib.get_close_matches(name, [*OPS, *COMPOSITES], n=3)
            hint = f"; there is {', '.join(near)}" if near else ""
            raise self.refusal(place, f"fd.ops.{name} is not implemented{hint}.", UnsupportedError)
        results = self.guarded(place, lambda: getattr(recording.builder.ops, name)(*args, **keywords))
        return self.lists.keep(results) if isinstance(results, list | tuple) else results

    def check_plain(self, place: ast.AST, values: list[Any]) -> None:
        """Raise DefinitionError for an argument that is not a plain value."""
        # The cost of an op grows with the axes of its operands and the length of its lists.
        self.step(place, sum(value.ndim if isinstance(value, Tensor) else 1 for value in values))
        for value in values:
            if isinstance(value, list | tuple):
                self.check_plain(place, list(value))
            elif not isinstance(value, PLAIN):
                raise self.refusal(place, f"{description(value)} cannot be an argument of a definition.")

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
            raise self.refusal(node, "from_pytorch is read only for an input that the script creates, given "
                                     f"{description(tensor)}.")
        return self.guarded(
            node,
            lambda: recording.builder.define_tensor(
                sizes=list(tensor.shape), strides=list(tensor.strides), dtype=tensor.dtype, static_sizes=static,
                is_cpu=is_on_host(tensor.device) and not tensor.shape,
            ),
        )
