"""Reading the Python code of a schedule by hand without running it: a whitelist of statements over a definition."""

import ast
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NoReturn

from fuser_lab.definition.owner import Owner
from fuser_lab.definition.schedulable import Schedulable, Transforms
from fuser_lab.errors import FuserLabError, ScheduleError, UnsupportedError
from fuser_lab.ir.transform import MemoryType, ParallelType
from fuser_lab.process.collector import collector_paused

_TRANSFORMS: Final = (
    "bounded_transform_backward", "cache_after", "cache_before", "cache_fork", "compute_at", "inline_at",
    "inline_most", "inner_split", "merge", "outer_split", "parallelize", "parallelize_like", "reorder", "rfactor",
    "set_memory_type", "split", "transform_like", "vectorize",
)
_OF_KERNELS: Final = (
    "cluster", "grid", "launch_bounds", "on_blocks", "on_cores", "read_again", "set_params", "specialize",
)
OF_TENSORS: Final = frozenset({*_TRANSFORMS, "axis"})
OF_SCHEDULES: Final = frozenset({*_TRANSFORMS, *_OF_KERNELS, "axis", "reduction_factor", "tensor"})
_ENUMS: Final[Mapping[str, type[Enum]]] = {"ParallelType": ParallelType, "MemoryType": MemoryType}
_ACCEPTED: Final = (
    'T1 = fd.sched.tensor("T1"), transforms such as T1.split(0, 128) or copy = T1.cache_after(), '
    "and imports of ParallelType and MemoryType"
)


def read_schedule(text: str, builder: Owner) -> None:
    """Add the transforms of a text to the schedule of a definition, ``fd`` in the text.

    The text is the output of ``fd.sched.to_python()`` or ``print(plan.segments[0].schedule)``, edited or not. It is
    parsed, never executed: a line is an import of ParallelType and MemoryType, the lookup of a tensor, or one transform
    whose arguments are literals, tensors and members of the two enums.

    Raises
    ------
    ScheduleError
        If a line is not one of these or its transform is illegal; the message has the line number.
    UnsupportedError
        If a transform needs a feature that no kernel here has.
    """
    try:
        with collector_paused():
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise ScheduleError(f"schedule, line {line}: this is not Python ({getattr(error, 'msg', error)}).") from None
    reader = _Reader(builder)
    for statement in tree.body:
        try:
            reader.statement(statement)
        except _Refused as refused:
            msg = f"schedule, line {refused.line}: {refused.what} is not accepted; write {_ACCEPTED}."
            raise ScheduleError(msg) from None
        except FuserLabError as error:
            kind = UnsupportedError if isinstance(error, UnsupportedError) else ScheduleError
            raise kind(f"schedule, line {statement.lineno}: {error}") from None
        except (TypeError, RecursionError) as error:
            raise ScheduleError(f"schedule, line {statement.lineno}: {error}.") from None


class _Refused(Exception):  # noqa: N818 - turned into a ScheduleError where it is caught
    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        self.line = getattr(node, "lineno", 1)
        text = ast.unparse(node).partition("\n")[0]
        self.what = text if len(text) <= 60 else f"{text[:57]}..."


class _Reader:
    def __init__(self, builder: Owner) -> None:
        self._sched = Transforms(builder)
        self._known: dict[str, Any] = {}

    def statement(self, node: ast.stmt) -> None:
        """Execute one line."""
        if isinstance(node, ast.ImportFrom) and node.module == "fuser_lab" and node.level == 0:
            if all(name.name in _ENUMS and name.asname is None for name in node.names):
                return
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call(node.value)
            return
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name not in {"fd", *_ENUMS} and isinstance(node.value, ast.Call):
                self._known[name] = self._call(node.value)
                return
        self._refuse(node)

    def _call(self, node: ast.Call) -> Any:
        function = node.func
        if not isinstance(function, ast.Attribute):
            self._refuse(node)
        owner, name = function.value, function.attr
        if isinstance(owner, ast.Attribute) and owner.attr == "sched" and _is_definition(owner.value):
            target: Any = self._sched
            allowed = OF_SCHEDULES
        elif isinstance(owner, ast.Name):
            target, allowed = self._name(owner), OF_TENSORS
            if not isinstance(target, Schedulable):
                self._refuse(node)
        elif isinstance(owner, ast.Call) and name == "parallelize":
            axis = owner.func
            if not (isinstance(axis, ast.Attribute) and axis.attr == "axis"):
                self._refuse(node)
            target, allowed = self._call(owner), frozenset({"parallelize"})
        else:
            self._refuse(node)
        if name not in allowed or any(isinstance(arg, ast.Starred) for arg in node.args):
            self._refuse(node)
        named = {keyword.arg: self._value(keyword.value) for keyword in node.keywords if keyword.arg is not None}
        if len(named) < len(node.keywords):
            self._refuse(node)
        return getattr(target, name)(*(self._value(arg) for arg in node.args), **named)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | str() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
                return -value
            case ast.List(elts=entries) | ast.Tuple(elts=entries):
                return [self._value(entry) for entry in entries]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {self._value(key): self._value(v) for key, v in zip(keys, values, strict=True) if key}
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in _ENUMS:
                return self._member(_ENUMS[owner], name, node)
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(str(name))) if owner in _ENUMS:
                return self._member(_ENUMS[owner], name, node)
            case ast.Name():
                return self._name(node)
        return self._refuse(node)

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self._known:
            there = ", ".join(self._known) or "none"
            msg = f'{node.id} is not defined; tensors so far: {there}. Look one up with fd.sched.tensor("{node.id}").'
            raise ScheduleError(msg)
        return self._known[node.id]

    def _member(self, kind: type[Enum], name: str, node: ast.AST) -> Enum:
        member = kind.__members__.get(name)
        if member is None:
            getattr(kind, name, None)  # raises with the reason, if there is one
            self._refuse(node)
        return member

    def _refuse(self, node: ast.AST) -> NoReturn:
        raise _Refused(node)


def _is_definition(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "fd"
