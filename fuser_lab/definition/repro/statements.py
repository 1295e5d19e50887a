"""Running the statements of a repro script: assignments, loops, functions, imports."""

import ast
from collections.abc import Sequence
from typing import Any

from fuser_lab.definition.repro.calls import Calls
from fuser_lab.definition.repro.helpers import HELPER_FUNCTIONS, HELPERS
from fuser_lab.definition.repro.source import Script
from fuser_lab.definition.repro.values import (
    Function,
    Path,
    Scope,
    Unread,
)
from fuser_lab.definition.repro.vocabulary import ACCEPTED, FRONTENDS, LIBRARIES


class _Return(Exception):  # noqa: N818 - not an error: it ends a function of the script
    def __init__(self, value: Any) -> None:
        self.value = value


class _Left(Exception):  # noqa: N818 - not an error: it ends a round of a loop of the script
    def __init__(self, for_good: bool) -> None:
        self.for_good = for_good


class Statements(Calls):
    """Runs the statements of a script and of its functions."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._bodies = 0  # functions that are being run
        self._loops = 0  # loops of the present function that are being run

    def run_each(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Run statements in order, those that matter."""
        raise NotImplementedError

    def run_if(self, node: ast.If, scope: Scope) -> None:
        """Run the branch that the script's values select."""
        raise NotImplementedError

    def run_with(self, node: ast.With, scope: Scope) -> None:
        """Run a block in a context."""
        raise NotImplementedError

    def define_function(self, node: ast.FunctionDef, scope: Scope) -> None:
        """Store a function of the script under its name."""
        raise NotImplementedError

    def define_class(self, node: ast.ClassDef, scope: Scope) -> None:
        """Store a class of the script under its name."""
        raise NotImplementedError

    def run_body(self, function: Function, scope: Scope) -> Any:
        """Run the statements of a function and return what it returns."""
        self._bodies += 1
        loops, self._loops = self._loops, 0
        try:
            self.run_each(function.node.body, scope)
        except _Return as done:
            return done.value
        finally:
            self._bodies -= 1
            self._loops = loops
        return None

    def run_statement(self, node: ast.stmt, scope: Scope) -> None:
        """Run a statement."""
        self.step(node)
        match node:
            case ast.Expr(value=ast.Name() | ast.Constant()) if self.open is None:
                pass
            case ast.Expr(value=value):
                self.evaluate(value, scope)
            case ast.Assign(targets=targets, value=value):
                result = self.evaluate(value, scope)
                for target in targets:
                    self.bind(target, result, scope)
                    self.quote(target, result)
            case ast.AnnAssign(target=target, value=expression):
                if expression is not None:
                    self.bind(target, self.evaluate(expression, scope), scope)
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                before = self.evaluate(ast.copy_location(ast.Name(id=target.id, ctx=ast.Load()), target), scope)
                self.bind(target, self.binary(node, op, before, self.evaluate(value, scope)), scope)
            case ast.FunctionDef():
                self.define_function(node, scope)
            case ast.ClassDef():
                self.define_class(node, scope)
            case ast.With():
                self.run_with(node, scope)
            case ast.For(target=target, iter=over, body=body, orelse=otherwise):
                for value in self.entries(over, scope):
                    self.step(node)
                    self.bind(target, value, scope)
                    if not self._run_round(body, scope):
                        return
                self.run_each(otherwise, scope)
            case ast.While(test=test, body=body, orelse=otherwise):
                self._while(node, test, [body, otherwise], scope)
            case ast.Break() | ast.Continue() if self._loops:
                raise _Left(isinstance(node, ast.Break))
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.Return(value=value) if self._bodies:
                raise _Return(None if value is None else self.evaluate(value, scope))
            case ast.If(
                test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]), body=body, orelse=[],
            ):
                self.run_each(body, scope)
            case ast.If():
                self.run_if(node, scope)
            case ast.Delete() | ast.Global() | ast.Nonlocal() if self.open is None:
                pass
            case ast.Raise() if self.open is None and not self._bodies:
                pass
            case ast.Try(body=body, orelse=otherwise, finalbody=last) if self.open is None:
                # No exception is raised here, so no handler runs.
                self.run_each([*body, *otherwise, *last], scope)
            case ast.Assert(test=test):
                self.evaluate(test, scope)
            case ast.Pass():
                pass
            case _:
                raise self.refusal(node, f"the statement {_keyword(node)} is not read; {ACCEPTED}.")

    def _while(self, node: ast.While, test: ast.expr, parts: list[list[ast.stmt]], scope: Scope) -> None:
        """Run a loop while its condition on the script's own values holds."""
        body, otherwise = parts
        while True:
            self.step(node)
            decided = self.truth(test, scope)
            if decided is None:
                raise self.refusal(node, "the loop's condition depends on a value that is not read.")
            if not decided:
                break
            if not self._run_round(body, scope):
                return
        self.run_each(otherwise, scope)

    def _run_round(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Run the body of a loop once; return whether the loop continues."""
        self._loops += 1
        try:
            self.run_each(body, scope)
        except _Left as left:
            return not left.for_good
        finally:
            self._loops -= 1
        return True

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            module = alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
            if module == "torch._C._nvfuser":
                module = "nvfuser"
            if isinstance(node, ast.ImportFrom) and (alias.name in HELPERS or alias.name in HELPER_FUNCTIONS):
                scope.names[alias.asname or alias.name] = Path(("nvfuser", alias.name))
            elif module.partition(".")[0] not in LIBRARIES | FRONTENDS:
                # Its value is unknown: anything that uses it is refused if the fusion or an input needs it.
                name = alias.asname or alias.name.partition(".")[0]
                scope.names[name] = Unread(what=f"{module}.{alias.name}".removesuffix(f".{module}"), line=node.lineno)
            elif isinstance(node, ast.ImportFrom):
                if alias.name != "*":
                    scope.names[alias.asname or alias.name] = _path(f"{module}.{alias.name}")
            elif alias.asname:
                scope.names[alias.asname] = _path(alias.name)
            else:
                top = alias.name.partition(".")[0]
                scope.names[top] = _path(top)


def _path(name: str) -> Path:
    """Return a name of a library; all frontends of nvFuser count as one library."""
    parts = name.split(".")
    if parts[0] in FRONTENDS:
        parts = ["nvfuser", *(part for part in parts[1:] if part not in FRONTENDS)]
    return Path(tuple(parts))


def _keyword(node: ast.stmt) -> str:
    return {"AsyncFunctionDef": "async def", "Delete": "del"}.get(type(node).__name__, type(node).__name__.lower())
