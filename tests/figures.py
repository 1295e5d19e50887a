"""Figures of the code's form: ``python -m tests.figures [--against REVISION]``, a table in Markdown.

It counts lines, long files, classes that make one writer, attributes that are set outside of a constructor, arguments,
vague names, numbers without a comment, and the modules that a row sum passes on its way from `segment` to source, which
``--way`` lists. With ``--against`` the same is counted in a git revision, which is archived to a temporary folder.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from itertools import groupby
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # as pytest does

from tests.layering.test_vague_names import vague_names

_ROOT = Path(__file__).resolve().parents[1]
_LONG_FILE = 600  # lines
_SIGNATURES = 10
_SMALL = 8  # numbers up to here count things that a reader sees, such as the bytes of a Double
_DEEP = 4  # classes; a writer that is made of fewer is not listed
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_LINE_WITHOUT_COMMENT = re.compile(r"^(?!.*#)_?[A-Z][A-Z0-9_]*(?:: [^=\n]+)? = (?![a-z\"'])", re.MULTILINE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Prints the modules of which a function is called for the second row sum of a process, so that imports and tables that
# are made once do not count.
_WAY = """
import json, sys
from pathlib import Path
import numpy as np
import fuser_lab
ROOT = str(Path(fuser_lab.__file__).parent) + "/"
def run(columns):
    with fuser_lab.FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor(shape=[-1, -1]), dims=[1]))
    return fd, np.ones((64, columns), np.float32)
def source(fd, x, target):
    return fuser_lab.segment(fd, [x]).segments[0].source(target)
modules = {}
for target in ("cuda", "cpu"):
    source(*run(256), target)
    definition, files = run(768), {}
    def see(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            files[frame.f_code.co_filename] = None
    sys.setprofile(see)
    source(*definition, target)
    sys.setprofile(None)
    modules[target] = ["fuser_lab/" + name.removeprefix(ROOT) for name in files if name.startswith(ROOT)]
print(json.dumps(modules))
"""


class Figures:
    """The figures of one checkout."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources = {
            path.relative_to(root).as_posix(): path.read_text("utf-8")
            for folder in ("fuser_lab", "widgets/fuser_lab_widgets") for path in sorted((root / folder).rglob("*.py"))
        }
        self._trees = {name: ast.parse(source) for name, source in self._sources.items()}
        self.packages = sorted({package_of(name) for name in self._sources})

    def lines(self) -> Counter[str]:
        """Return the lines of each package."""
        return self._count(lambda name: self._sources[name].count("\n"))

    def long_files(self) -> list[str]:
        """Return the files with more lines than fit on a few screens."""
        sizes = {name: source.count("\n") for name, source in self._sources.items()}
        return [f"{name} ({size})" for name, size in sizes.items() if size > _LONG_FILE]

    def vague_names(self) -> Counter[str]:
        """Return how many functions of each package bind a vague name, a function once per name."""
        return self._count(lambda name: len(vague_names(self._sources[name])))

    def bare_constants(self) -> Counter[str]:
        """Return the constants of modules without a comment on or above their line."""
        return self._count(lambda name: len(bare_constants(self._sources[name])))

    def late_attributes(self) -> Counter[str]:
        """Return the attributes that are set outside of a constructor, each once per class."""
        return self._count(lambda name: sum(len(late_attributes(c)) for c in classes(self._trees[name])))

    def signatures(self) -> list[str]:
        """Return the longest signatures with their numbers of parameters."""
        counts = sorted(
            ((-parameters(node), f"{name.removeprefix('fuser_lab/')}::{node.name}")
             for name, tree in self._trees.items() for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)),
        )
        return [f"{-count} {where}" for count, where in counts[:_SIGNATURES]]

    def writers(self) -> list[str]:
        """Return the classes of codegen that no other extends, with the classes, methods and attributes they are of."""
        nodes = {
            node.name: node for name, tree in self._trees.items() if package_of(name) == "codegen"
            for node in classes(tree)
        }
        bases = {name: [n for n in map(_base_name, node.bases) if n in nodes] for name, node in nodes.items()}

        def line(name: str) -> set[str]:
            return {name}.union(*map(line, bases[name]))

        extended = {base for names in bases.values() for base in names}
        rows = []
        for name in nodes.keys() - extended:
            parts = [nodes[part] for part in line(name)]
            methods = sum(isinstance(node, _FUNCTIONS) for part in parts for node in part.body)
            late = set().union(*map(late_attributes, parts))
            rows.append((-len(parts), f"{name}: {len(parts)} classes, {methods} methods, {len(late)} late attributes"))
        return [text for count, text in sorted(rows) if -count >= _DEEP]

    def way(self) -> dict[str, list[str]]:
        """Return the modules that a row sum passes from `segment` to its source, in order, by target."""
        paths = os.pathsep.join(str(self._root / folder) for folder in (".", "widgets"))
        run = subprocess.run(
            [sys.executable, "-c", _WAY], env=os.environ | {"PYTHONPATH": paths}, cwd=self._root, check=True,
            capture_output=True, text=True,
        )
        modules: dict[str, list[str]] = json.loads(run.stdout)
        return modules

    def _count(self, count: Callable[[str], int]) -> Counter[str]:
        totals: Counter[str] = Counter()
        for name in self._sources:
            totals[package_of(name)] += count(name)
        return totals


def package_of(name: str) -> str:
    """Return the package of a file, or an empty text for modules at the top of fuser_lab."""
    parts = name.split("/")
    return parts[1] if parts[0] == "widgets" or len(parts) > 2 else "(top)"


def classes(tree: ast.AST) -> list[ast.ClassDef]:
    """Return the classes of a module."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def bare_constants(source: str) -> list[str]:
    """Return the names of numbers that a module defines without a comment on their lines or on the line above."""
    if not _LINE_WITHOUT_COMMENT.search(source):  # most files are not parsed, which takes most of the time
        return []
    lines, bare = source.splitlines(), []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not _is_number(node.value):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        above = lines[node.lineno - 2] if node.lineno > 1 else ""
        if not above.startswith("#") and not any("#" in line for line in lines[node.lineno - 1 : node.end_lineno]):
            names = (target.id for target in targets if isinstance(target, ast.Name))
            bare += filter(_CONSTANT.fullmatch, names)
    return bare


def bare_comparisons(source: str) -> list[str]:
    """Return the comparisons in functions whose limit is written as a number, from 9 on or with a fraction.

    Tuples, such as compute capabilities, and arguments of calls do not count.
    """
    compared = [
        (node, side) for function in ast.walk(ast.parse(source)) if isinstance(function, _FUNCTIONS)
        for node in ast.walk(function) if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)
    ]
    return list(dict.fromkeys(
        f"line {node.lineno}: {ast.unparse(node)}" for node, side in compared
        if _is_number(side) and not isinstance(side, ast.Tuple) and any(map(_decides, ast.walk(side)))
    ))


def _decides(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return (isinstance(value, float) and value % 1 != 0) or (type(value) in {int, float} and value > _SMALL)


def _is_number(node: ast.expr) -> bool:
    """Return whether an expression is arithmetic on numbers, or a tuple of such."""
    return not any(isinstance(n, ast.Call | ast.Attribute | ast.Subscript | ast.Dict) for n in ast.walk(node)) and any(
        isinstance(n, ast.Constant) and isinstance(n.value, int | float) and not isinstance(n.value, bool)
        for n in ast.walk(node)
    )


def late_attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes of ``self`` that methods other than constructors assign."""
    methods = (n for n in node.body if isinstance(n, _FUNCTIONS) and n.name not in {"__init__", "__post_init__"})
    return {
        inner.attr for method in methods for inner in ast.walk(method)
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name) and inner.value.id == "self"
    }


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters of a function, without the instance or class of a method."""
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(arg.arg not in {"self", "cls"} for arg in every)


def _base_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def table(columns: dict[str, Figures]) -> str:
    """Return the figures of several checkouts side by side."""
    rows: list[tuple[str, ...]] = []

    def add(title: str, values: list[object]) -> None:
        rows.append((title, *map(str, values)))

    every = list(columns.values())
    packages = sorted({package for figures in every for package in figures.packages})
    counts = {
        "lines": [f.lines() for f in every], "vague names": [f.vague_names() for f in every],
        "numbers without a comment": [f.bare_constants() for f in every],
        "attributes set outside of constructors": [f.late_attributes() for f in every],
    }
    for title, totals in counts.items():
        add(title, [sum(total.values()) for total in totals])
        for package in packages:
            if any(total[package] for total in totals):
                add(f"- {package}", [total[package] for total in totals])
    ways = [figures.way() for figures in every]
    for target in ways[0]:
        passed = [Counter(map(package_of, way[target])) for way in ways]
        add(f"modules that a row sum passes to its {target} source", [sum(counter.values()) for counter in passed])
        for package in ("schedule", "codegen"):
            add(f"- {package}", [counter[package] for counter in passed])
    for title, lists in (
        (f"files over {_LONG_FILE} lines", [f.long_files() for f in every]),
        ("longest signatures", [f.signatures() for f in every]), ("writers", [f.writers() for f in every]),
    ):
        add(title, [len(entries) if title.startswith("files") else "" for entries in lists])
        for place in range(max(map(len, lists))):
            add("-", [entries[place] if place < len(entries) else "" for entries in lists])
    lines = [("figure", *columns), ("---",) * (len(columns) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=__doc__)
    parser.add_argument("--against", metavar="REVISION", help="a git revision for a second column")
    parser.add_argument("--way", action="store_true", help="list the modules that a row sum passes, by target")
    options = parser.parse_args()
    now = Figures(_ROOT)
    if options.way:
        for target, modules in now.way().items():
            print(f"{target}, in the order in which functions of modules are first called:")
            for package, group in groupby(modules, package_of):
                print(f"  {package}: {', '.join(Path(module).stem for module in group)}")
    elif options.against is None:
        print(table({"now": now}))
    else:
        git = ["git", "archive", options.against]
        content = subprocess.run(git, cwd=_ROOT, check=True, stdout=subprocess.PIPE).stdout
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=BytesIO(content)) as archive:
                archive.extractall(folder, filter="data")
            print(table({options.against: Figures(Path(folder)), "now": now}))


if __name__ == "__main__":
    main()
