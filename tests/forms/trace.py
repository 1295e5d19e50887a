"""Which branches of the packages that choose and write kernels are taken."""

import ast
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
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


@cache
def errors(module: str) -> frozenset[int]:
    """Return the lines of a module that lead to an error only.

    They begin a block of statements that ends by raising it, are the pattern of such a block, or raise it after a loop
    or a block that is left out.
    """
    tree = ast.parse((ROOT / f"{module}.py").read_text())
    blocks = [
        block for node in ast.walk(tree) for name in ("body", "orelse", "handlers")
        if isinstance(block := getattr(node, name, None), list) and block
    ]
    found = {block[0].lineno for block in blocks if _raises(block[-1])}
    for case in (case for node in ast.walk(tree) if isinstance(node, ast.Match) for case in node.cases):
        if _raises(case.body[-1]):
            found |= {case.pattern.lineno, case.body[0].lineno}
    for block in blocks:
        for before, last in pairwise((None, *block)):
            if last is not None and _raises(last):
                found.add(before.lineno if isinstance(before, ast.Assign) else last.lineno)
    return frozenset(found)


def _raises(statement: ast.AST) -> bool:
    """Whether a statement raises an error, or says that no value arrives there."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = call.func if isinstance(call, ast.Call) else None
    return isinstance(statement, ast.Raise) or (isinstance(name, ast.Name) and name.id == "assert_never")


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
