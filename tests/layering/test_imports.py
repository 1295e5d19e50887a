"""Imports have one direction: a module imports its own rank or a lower one, and low ranks need no Numba."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# The packages in the order in which a fusion passes through them. Those in one line have the same rank.
HOUSE = (
    (
        "errors", "arguments", "dtypes", "files", "process", "targets", "version",
    ),
    ("ir",),
    ("ops",),
    ("definition", "interpreter", "analysis", "examples"),
    ("passes",),
    ("cost",),
    ("segmentation",),
    ("schedule",),
    ("codegen",),
    ("runtime",),
    ("report",),
    ("plan",),
    ("execution",),
    (
        "api", "bindings", "bridge", "cli", "compilers", "contracts", "lab", "nvfuser", "nvfuser_direct", "pricing",
        "search", "teaching", "torch", "__main__",
    ),
)
RUNTIME = "fuser_lab.runtime"
# The rooms of the runtime and their ranks; a room imports itself and lower ranks. Other modules have rank 0.
ROOMS = {"cpu": 1, "gpu": 1, "plan": 2}
# Modules outside the CPU's room that are of it, because the printed source of kernels imports them.
OF_THE_CPU = {
    "called_functions", "called_loops", "cpu_kernels", "intrinsics_cpu", "narrow_floats_cpu", "polynomials", "threads",
}
RANKS = {room: rank for rank, rooms in enumerate(HOUSE) for room in rooms}
PUBLIC = RANKS["api"]  # names of the package itself lead to the public API
WIDGETS = len(HOUSE)
NEEDS_NO_NUMBA = {*range(8), RANKS["report"]}

# And only inside a function.
IMPORTS_WIDGETS = {"fuser_lab.api.functions", "fuser_lab.api.exploring", "fuser_lab.teaching.questions"}
COMPILERS = re.compile(r"\bnumba\.cuda\b|\bnumba_cuda_mlir\b")  # compilers of CUDA kernels, by their modules
KNOWS_COMPILERS = "fuser_lab.runtime.cuda_compilers"  # the package
PRINTS_COMPILERS = "fuser_lab.codegen.numba_cuda"  # in the source of kernels


@dataclass(frozen=True, kw_only=True)
class Module:
    """A source file and the name it is imported by."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Imported:
    """One name that a module imports, and whether the import is deferred until a function runs."""

    name: str
    line: int
    lazy: bool


def modules_under(root: Path) -> tuple[Module, ...]:
    """The modules of both packages of a checkout."""
    return tuple(
        Module(name=".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"), path=path)
        for base, package in ((root, "fuser_lab"), (root / "widgets", "fuser_lab_widgets"))
        for path in sorted((base / package).rglob("*.py"))
    )


def imports_of(module: Module) -> tuple[Imported, ...]:
    """Each import statement, each importlib.import_module("..."), and each use of Numba's ``cuda`` as an attribute."""
    return _imports(module.package, module.path.read_text(encoding="utf-8"))


@functools.cache
def _imports(package: str, text: str) -> tuple[Imported, ...]:
    found: list[Imported] = []
    left: list[tuple[ast.AST, bool]] = [(ast.parse(text), False)]
    while left:
        node, lazy = left.pop()
        names: list[tuple[str, int]] = []
        match node:
            case ast.Import():
                names = [(alias.name, node.lineno) for alias in node.names]
            case ast.ImportFrom(module=source, level=level):
                parts = package.split(".")
                above = parts[: len(parts) + 1 - level] if level else []
                origin = ".".join([*above, *([source] if source else [])])
                names = [(f"{origin}.{alias.name}", node.lineno) for alias in node.names]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names = [(name, node.lineno)]
            case ast.Attribute(value=ast.Name(id="numba"), attr="cuda"):
                names = [("numba.cuda", node.lineno)]
        found += [Imported(name=name, line=line, lazy=lazy) for name, line in names]
        # Imports for annotations only are never loaded.
        for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        inside = lazy or for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        left += [(child, inside) for child in ast.iter_child_nodes(node)]
    return tuple(sorted(found, key=lambda imported: imported.line))


def rank_of(name: str, *, root: Path) -> int | None:
    """The rank of a dotted name of either package; None for other packages and for modules that no rank lists."""
    top, _, rest = name.partition(".")
    if top == "fuser_lab_widgets":
        return WIDGETS
    if top != "fuser_lab":
        return None
    room = rest.partition(".")[0]
    if room in RANKS:
        return RANKS[room]
    is_room = bool(room) and ((root / "fuser_lab" / room).is_dir() or (root / "fuser_lab" / f"{room}.py").is_file())
    return None if is_room else PUBLIC


def room_of(name: str) -> tuple[int, str]:
    """The rank and the name of a room of the runtime; rank 0 for modules that are in none, and for other packages."""
    room = name.removeprefix(f"{RUNTIME}.").partition(".")[0] if is_below(name, RUNTIME) else ""
    room = "cpu" if room in OF_THE_CPU else room
    return (ROOMS[room], room) if room in ROOMS else (0, "")


def is_below(name: str, package: str) -> bool:
    """Whether a module is a package or in it."""
    return name == package or name.startswith(f"{package}.")


def names_compilers(root: Path) -> list[str]:
    """One line for each text that names a compiler of CUDA kernels outside the modules that may."""
    return [
        f"{module.name}:{node.lineno}: names {named.group()}"
        for module in modules_under(root)
        if module.name != PRINTS_COMPILERS and not is_below(module.name, KNOWS_COMPILERS)
        if "numba" in (text := module.path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (named := COMPILERS.search(node.value))
    ]


def violations(root: Path) -> list[str]:
    """One line for each import that the layering forbids, and for each module without a rank."""
    found = []
    for module in modules_under(root):
        is_front = module.name == "fuser_lab"
        rank = PUBLIC if is_front else rank_of(module.name, root=root)
        if rank is None:
            found.append(f"{module.name}: no rank; give it one in tests/layering/test_imports.py")
            continue
        for imported in imports_of(module):
            where = f"{module.name}:{imported.line}"
            target = rank_of(imported.name, root=root)
            here, there = room_of(module.name), room_of(imported.name)
            if is_below(module.name, RUNTIME) and there != here and there[0] >= max(here[0], 1):
                found.append(f"{where}: {here[1] or RUNTIME} imports {imported.name} of another room")
            if COMPILERS.match(imported.name) and not is_below(module.name, KNOWS_COMPILERS):
                found.append(f"{where}: only {KNOWS_COMPILERS} may import a compiler of CUDA kernels")
            elif target == WIDGETS and rank < WIDGETS:
                if module.name not in IMPORTS_WIDGETS or not imported.lazy:
                    found.append(f"{where}: only the public functions import the widgets, and inside a function")
            elif is_front and target and not imported.lazy:
                found.append(f"{where}: fuser_lab/__init__.py imports {imported.name} at once; it should be lazy")
            elif target is not None and target > rank:
                found.append(f"{where}: rank {rank} imports {imported.name} of rank {target}")
    return found


def circles(root: Path) -> list[tuple[str, ...]]:
    """Sets of modules that import each other, directly, inside functions or for annotations (Tarjan's algorithm)."""
    modules = {module.name: module for module in modules_under(root)}
    targets = {
        name: sorted({_module_of(imported.name, modules) for imported in imports_of(module)} - {name, ""})
        for name, module in modules.items()
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        waiting.append(name)
        for target in targets[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in waiting:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            place = waiting.index(name)
            if len(waiting) > place + 1:
                found.append(tuple(sorted(waiting[place:])))
            del waiting[place:]

    for name in modules:
        if name not in index:
            visit(name)
    return found


def _module_of(name: str, modules: Mapping[str, Module]) -> str:
    """The module that an imported name belongs to; empty for other packages."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def in_fresh_python(code: str) -> None:
    """Runs code in a new interpreter, and fails with its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def low_modules() -> list[str]:
    """Modules that every Python can import, in the order of their ranks."""
    ranked = [(rank_of(module.name, root=REPOSITORY), module.name) for module in modules_under(REPOSITORY)]
    return [name for rank, name in sorted(r for r in ranked if r[0] in NEEDS_NO_NUMBA)]


BLOCK = """
import sys

class Blocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "numba_cuda", "llvmlite", "cuda", "torch", "IPython"}:
            raise ModuleNotFoundError(f"{name} is blocked in this test", name=name)

sys.meta_path.insert(0, Blocked)
"""

SEGMENT_AND_DRAW = """
import tempfile
from pathlib import Path
import fuser_lab as fl

with fl.FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=fl.DataType.Float)
    y = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=fl.DataType.Float)
    total = fd.ops.sum(x, dims=[1])
    fd.add_output(fd.ops.add(fd.ops.broadcast(total, [False, True]), y))

plan = fl.segment(fd, [fl.spec((64, 32), "float32"), fl.spec((64, 32), "float32")])
assert len(plan.segments) == 2, plan
with tempfile.TemporaryDirectory() as folder:
    picture = Path(folder, "plan.svg")
    plan.save(picture)
    assert "<svg" in picture.read_text(encoding="utf-8")
"""


def test_imports_go_one_way():
    assert violations(REPOSITORY) == []


def test_one_package_and_what_the_emitter_prints_name_the_compilers_of_cuda_kernels(tmp_path):
    assert names_compilers(REPOSITORY) == []
    for place in ("codegen/lower.py", "codegen/numba_cuda.py", "runtime/cuda_compilers/selection.py"):
        (tmp_path / "fuser_lab" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fuser_lab" / place).write_text("LINE = 'from numba_cuda_mlir import cuda'\n", encoding="utf-8")
    assert names_compilers(tmp_path) == ["fuser_lab.codegen.lower:1: names numba_cuda_mlir"]


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("fuser_lab/ir/val.py", "from fuser_lab.ops import add", "rank 1 imports fuser_lab.ops.add of rank 2"),
        ("fuser_lab/ir/val.py", "from ..ops import add", "rank 1 imports fuser_lab.ops.add of rank 2"),
        ("fuser_lab/ir/val.py", "from .. import ops", "rank 1 imports fuser_lab.ops of rank 2"),
        ("fuser_lab/ir/__init__.py", "from ..ops import add", "rank 1 imports fuser_lab.ops.add of rank 2"),
        ("fuser_lab/ir/val.py", "def f():\n    import fuser_lab.ops.add", "rank 1 imports fuser_lab.ops.add"),
        ("fuser_lab/ir/val.py", "import fuser_lab as fl", "rank 1 imports fuser_lab of rank 13"),
        ("fuser_lab/ir/val.py", "from fuser_lab import segment", "rank 1 imports fuser_lab.segment of rank 13"),
        ("fuser_lab/ir/val.py", "from importlib import import_module\nimport_module('fuser_lab.ops')", "of rank 2"),
        ("fuser_lab/attic.py", "", "fuser_lab.attic: no rank"),
        ("fuser_lab/__init__.py", "from fuser_lab.ops import add", "it should be lazy"),
        ("fuser_lab/api/functions.py", "import fuser_lab_widgets", "the widgets, and inside a function"),
        ("fuser_lab/cli/commands.py", "def f():\n    import fuser_lab_widgets", "only the public functions import"),
        ("fuser_lab/codegen/lower.py", "from numba import cuda", "may import a compiler"),
        ("fuser_lab/runtime/store.py", "from fuser_lab.runtime.gpu import ptx", "fuser_lab.runtime imports fuser_lab"),
        ("fuser_lab/runtime/gpu/ptx.py", "from fuser_lab.runtime.cpu import host", "gpu imports fuser_lab.runtime.cpu"),
        ("fuser_lab/runtime/cpu/host.py", "from fuser_lab.runtime.gpu import ptx", "cpu imports fuser_lab.runtime.gpu"),
        ("fuser_lab/runtime/gpu/ptx.py", "def f():\n    from fuser_lab.runtime.plan import parts", "of another room"),
        ("fuser_lab/runtime/cpu/launcher.py", "import numba\nf = numba.cuda.jit", "may import a compiler"),
        ("fuser_lab/codegen/numba_cuda.py", "from numba_cuda_mlir import cuda", "may import a compiler"),
        ("widgets/fuser_lab_widgets/view.py", "import numba.cuda.types", "may import a compiler"),
    ],
)
def test_what_is_forbidden_is_found(tmp_path, path, source, complaint):
    (tmp_path / "fuser_lab" / "ops").mkdir(parents=True)
    place = tmp_path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(source, encoding="utf-8")
    (found,) = violations(tmp_path)
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("fuser_lab/ops/pointwise.py", "import numpy\nfrom fuser_lab.ir import val\nfrom . import registry"),
        ("fuser_lab/__init__.py", "def __getattr__(name):\n    from fuser_lab import ops"),
        ("fuser_lab/api/functions.py", "def explore():\n    from fuser_lab_widgets import Explorer"),
        ("fuser_lab/runtime/cuda_compilers/numba_cuda.py", "from numba import cuda"),
        ("fuser_lab/runtime/plan/memory.py", "from fuser_lab.runtime.gpu import ready"),
        ("fuser_lab/runtime/cpu/launcher.py", "from fuser_lab.runtime.cpu_kernels import functions_of"),
        ("fuser_lab/codegen/lower.py", "SOURCE = 'from numba import cuda'"),
        ("widgets/fuser_lab_widgets/view.py", "import fuser_lab as fl"),
    ],
)
def test_what_is_allowed_is_not_found(tmp_path, path, source):
    (tmp_path / "fuser_lab" / "ops").mkdir(parents=True)
    place = tmp_path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(source, encoding="utf-8")
    assert violations(tmp_path) == []


def test_no_modules_import_each_other():
    assert circles(REPOSITORY) == []


@pytest.mark.parametrize(
    "source",
    [
        "from fuser_lab.ir import a",
        "def f():\n    from fuser_lab.ir.a import X",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fuser_lab.ir.a import X",
    ],
)
def test_a_circle_is_found(tmp_path, source):
    folder = tmp_path / "fuser_lab" / "ir"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("from fuser_lab.ir import b\n", encoding="utf-8")
    (folder / "b.py").write_text("import json\n", encoding="utf-8")
    assert circles(tmp_path) == []
    (folder / "b.py").write_text(source, encoding="utf-8")
    assert circles(tmp_path) == [("fuser_lab.ir.a", "fuser_lab.ir.b")]


def test_low_ranks_load_nothing_higher():
    steps = [(rank_of(name, root=REPOSITORY), name) for name in low_modules() if name.startswith("fuser_lab.")]
    assert steps
    in_fresh_python(f"""
import importlib, sys
RANKS = {RANKS!r}
for rank, name in {steps!r}:
    importlib.import_module(name)
    rooms = {{loaded.split(".")[1] for loaded in sys.modules if loaded.startswith("fuser_lab.")}}
    higher = sorted(room for room in rooms if RANKS[room] > rank)
    assert not higher, f"importing {{name}} of rank {{rank}} loads {{higher}}"
""")


def test_low_ranks_need_no_numba_torch_or_ipython():
    in_fresh_python(f"{BLOCK}\nimport importlib\nfor name in {low_modules()!r}:\n    importlib.import_module(name)\n")


def test_the_block_blocks():
    with pytest.raises(AssertionError, match="numba is blocked"):
        in_fresh_python(f"{BLOCK}\nimport numba")


def test_segmenting_and_drawing_need_no_numba_torch_or_ipython():
    in_fresh_python(BLOCK + SEGMENT_AND_DRAW)


def test_segmenting_and_drawing_load_nothing_of_scipy():
    """It would take as long to import as all that they need."""
    in_fresh_python(SEGMENT_AND_DRAW + """
import sys
loaded = sorted(name for name in sys.modules if name.startswith("scipy."))
assert not loaded, loaded
""")


@pytest.mark.skipif(
    not (REPOSITORY / "widgets" / "fuser_lab_widgets" / "assets.py").exists(), reason="there are no assets yet"
)
def test_the_widgets_assets_need_no_third_party_package():
    in_fresh_python("""
import sys
before = set(sys.modules)
import fuser_lab_widgets.assets
third_party = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
assert third_party <= {"fuser_lab", "fuser_lab_widgets"}, sorted(third_party)
""")
