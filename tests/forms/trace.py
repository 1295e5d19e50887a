"""Which branches of the packages that choose and write kernels are taken."""

import ast
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import coverage

import fuser_lab

ROOT = Path(fuser_lab.__file__).parent
PACKAGES = ("codegen", "schedule")
# Annotations are not executed, and a variant that is missing from a match is a defect of the package itself.
_EXCLUDED = ("if TYPE_CHECKING:",)

Arc = tuple[str, int, int]


def _module(file: str) -> str:
    return Path(file).relative_to(ROOT).with_suffix("").as_posix()


def _coverage() -> coverage.Coverage:
    found = coverage.Coverage(
        data_file=None, branch=True, include=[str(ROOT / name / "*") for name in PACKAGES], config_file=False,
        messages=False,
    )
    found.set_option("run:disable_warnings", ["no-data-collected"])
    for pattern in _EXCLUDED:
        found.exclude(pattern)
    return found


class Tracer:
    """Records the arcs, pairs of lines executed one after the other, of parts of a run."""

    def __init__(self) -> None:
        self._coverage = _coverage()
        self._coverage.start()
        self._coverage.stop()

    @contextmanager
    def into(self, arcs: set[Arc]) -> Iterator[None]:
        """Add the arcs of the block to a set."""
        self._coverage.start()
        try:
            yield
        finally:
            self._coverage.stop()
            data = self._coverage.get_data()
            for file in data.measured_files():
                module = _module(file)
                arcs.update((module, a, b) for a, b in data.arcs(file) or ())
            data.erase()


class Untraced(Tracer):
    """Records nothing, and costs nothing."""

    def __init__(self) -> None:
        pass

    def into(self, arcs: set[Arc]) -> AbstractContextManager[None]:
        return nullcontext()


def branches(*modules: str) -> Mapping[str, frozenset[tuple[int, int]]]:
    """Return all branches of some modules, by default of all of them: pairs of a line and a line that may follow it."""
    return {module: found for module, (found, _) in _report(frozenset(), modules).items()}


def missing(arcs: frozenset[Arc], *modules: str) -> Mapping[str, frozenset[tuple[int, int]]]:
    """Return the branches of some modules, by default of all of them, that are not among the arcs."""
    return {module: found for module, (_, found) in _report(arcs, modules).items()}


def errors(module: str, among: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Return those branches of a module that lead to an error only, or are in code which writes the text of an error.

    A branch of the first kind leads to statements that end by raising the error, to the pattern of such a block, or to
    the last statement behind a loop or a block that is left out. Code of the second kind is in such a block, or in a
    private function that nothing else mentions. A function that returns why values are illegal, which its caller
    raises, ends such a block by returning the text.
    """
    tree = ast.parse((ROOT / f"{module}.py").read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    raising = frozenset({"assert_never"}).union(
        function.name for function in functions if _name(function.returns) == "NoReturn"
    )
    inside, after = set[int](), set[int]()
    for block in (block for node in ast.walk(tree) for block in _blocks(node)):
        if _only_raises(block, raising):
            inside.update(_lines(block[0], block[-1]))
        for before, last in pairwise((None, *block)):
            if last is not None and _raises(last, raising):
                after.add(before.lineno if isinstance(before, ast.Assign) else last.lineno)
    for case in (case for node in ast.walk(tree) if isinstance(node, ast.Match) for case in node.cases):
        if _only_raises(case.body, raising):
            after.add(case.pattern.lineno)
    for function in functions:
        if "illegal" in function.name and _name(function.returns) == "str":
            blocks = (block for node in ast.walk(function) if node is not function for block in _blocks(node))
            inside.update(line for block in blocks if _returns_text(block[-1]) for line in _lines(block[0], block[-1]))
    silent = _of_errors(tree, [function.name for function in functions], raising)
    for function in functions:
        if function.name in silent:
            inside.update(_lines(function, function))
    return frozenset((a, b) for a, b in among if a in inside or b in inside | after)


def _of_errors(tree: ast.AST, functions: Sequence[str], raising: frozenset[str]) -> frozenset[str]:
    """Return the names of the functions that only raise an error, and of private ones that only such code mentions."""
    mentioned = {_name(node) for node in ast.walk(tree)}
    private = {name for name in functions if name.startswith("_") and name in mentioned}
    found, more = frozenset[str](), raising
    while found != more:
        found = more
        more = found | (private - set(_mentioned(tree, found, raising)))
    return found


def _mentioned(node: ast.AST, left_out: frozenset[str], raising: frozenset[str]) -> Iterator[str]:
    """Yield the names in code, other than in some functions and in statements that end by raising an error."""
    if isinstance(node, ast.FunctionDef) and node.name in left_out:
        return
    yield _name(node)
    errors_only = [line for block in _blocks(node) if _only_raises(block, raising) for line in block]
    for child in ast.iter_child_nodes(node):
        if child not in errors_only:
            yield from _mentioned(child, left_out, raising)


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    found = (getattr(node, name, None) for name in ("body", "orelse"))
    return [block for block in found if isinstance(block, list) and block]


def _lines(first: ast.stmt, last: ast.stmt) -> range:
    return range(first.lineno, (last.end_lineno or last.lineno) + 1)


def _only_raises(block: Sequence[ast.stmt], raising: frozenset[str]) -> bool:
    """Whether a block of statements ends by raising an error, and nowhere else."""
    ends = (ast.Return, ast.Yield, ast.YieldFrom, ast.Break, ast.Continue)
    parts = (part for statement in block for part in ast.walk(statement))
    return _raises(block[-1], raising) and not any(isinstance(part, ends) for part in parts)


def _raises(statement: ast.AST, raising: frozenset[str]) -> bool:
    """Whether a statement raises an error, also by calling a function that does, or says that no value arrives."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(statement, ast.Raise) or (isinstance(call, ast.Call) and _name(call.func) in raising)


def _returns_text(statement: ast.AST) -> bool:
    """Whether a statement returns text that is not empty, as it is written or in a variable."""
    value = statement.value if isinstance(statement, ast.Return) else None
    return isinstance(value, ast.JoinedStr | ast.Name) or (isinstance(value, ast.Constant) and bool(value.value))


def _name(node: ast.AST | None) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _report(
    arcs: frozenset[Arc], modules: Sequence[str],
) -> dict[str, tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]]:
    """Return all branches and the missing ones by module."""
    measured = _coverage()
    measured.start()
    measured.stop()
    files = [file for name in PACKAGES for file in sorted((ROOT / name).rglob("*.py"))]
    by_file: dict[str, set[tuple[int, int]]] = {
        str(file): set() for file in files if not modules or _module(str(file)) in modules
    }
    for module, a, b in arcs:
        by_file.get(str(ROOT / f"{module}.py"), set()).add((a, b))
    measured.get_data().add_arcs({file: found or {(-1, 1)} for file, found in by_file.items()})
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "coverage.json"
        measured.json_report(morfs=list(by_file), outfile=str(place))
        reported: dict[str, Any] = json.loads(place.read_text())["files"]
    return {
        _module(str(Path(name).resolve())): (
            frozenset(map(tuple, [*found["executed_branches"], *found["missing_branches"]])),
            frozenset(map(tuple, found["missing_branches"])),
        )
        for name, found in reported.items()
    }
