"""A name says what a thing is: words such as ``found`` and ``one`` name no variable, parameter or function.

A public function of a module is named by what it returns or by a verb, not by a participle such as ``rewritten``. The
same holds for functions and methods with an underscore, and in the packages of `ROOMS` for all methods but properties.
"""

import re
import symtable
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.layering.test_imports import REPOSITORY

VAGUE = frozenset({"found", "given", "it", "kept", "known", "one", "own", "these", "those", "wanted", "what"})

# Files in which a word is a term, with the term.
TERMS = {
    ("fuser_lab/analysis/buffer_sizes.py", "kept"): "tensors that a persistent buffer keeps",
    ("fuser_lab/analysis/reductions.py", "kept"): "axes that a reduction keeps",
    ("fuser_lab/plan/base.py", "kept"): "kept results of fl.tune, class Kept",
    ("fuser_lab/plan/planning.py", "kept"): "kept results of fl.tune, class Kept",
    ("fuser_lab/plan/clock.py", "given"): "a given schedule, class Given",
    ("fuser_lab/plan/schedules.py", "given"): "a given schedule, class Given",
    ("fuser_lab/schedule/registry.py", "kept"): "kept results of fl.tune, class Kept",
}

# Participles that do not end in "ed", without those that are also verbs or nouns, such as ``run`` and ``bound``.
IRREGULAR = frozenset({
    "begun", "built", "chosen", "done", "drawn", "driven", "fed", "found", "frozen", "given", "grown", "held", "kept",
    "known", "laid", "left", "lost", "made", "met", "said", "seen", "sent", "shown", "spent", "taken", "told",
    "written",
})
FUNCTION = re.compile(r"^(?:async )?def ([a-z]\w*)\(", re.MULTILINE)
PRIVATE = re.compile(r"^ *(?:async )?def (_[a-z]\w*)\(", re.MULTILINE)
METHOD = re.compile(r"(?<!property)\n +(?:async )?def ([a-z]\w*)\(")
ROOMS = (
    "fuser_lab/bridge", "fuser_lab/compilers", "fuser_lab/contracts", "fuser_lab/lab", "fuser_lab/pricing",
    "fuser_lab/report", "fuser_lab/search", "widgets/fuser_lab_widgets",
)
# Methods of plans, which the explorer calls.
OF_PLAN = frozenset({"renamed", "resegmented"})
# A function of a flat graph that torch calls.
OF_FLAT = frozenset({("flat.py", "boxed")})
# Functions that may have such a name, with the reason; words that only end like a participle.
PARTICIPLES = {
    ("fuser_lab/runtime/called_loops.py", "called"): "a decorator, which kernels print",
}
OTHER_WORDS = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed"})


def is_participle(name: str) -> bool:
    return name in IRREGULAR or (name.endswith("ed") and "_" not in name and name not in OTHER_WORDS)


def participles(source: str) -> list[str]:
    """Return the public functions of a module that are named by a participle alone."""
    return list(filter(is_participle, FUNCTION.findall(source)))


def private_participles(source: str) -> list[str]:
    """Return the functions and methods with an underscore that are named by a participle alone."""
    return [name for name in PRIVATE.findall(source) if is_participle(name.removeprefix("_"))]


def bound_names(table: symtable.SymbolTable) -> Iterator[tuple[int, str]]:
    """Yield the names of variables, parameters and functions, each with the first line of the code around it.

    Fields of classes are left out, because they may be data.
    """
    if table.get_type() != "class":
        symbols = map(table.lookup, VAGUE & set(table.get_identifiers()))
        yield from ((table.get_lineno(), s.get_name()) for s in symbols if s.is_assigned() or s.is_parameter())
    for inner in table.get_children():
        if table.get_type() == "class" and inner.get_type() == "function":
            yield inner.get_lineno(), inner.get_name()
        yield from bound_names(inner)


def vague_names(source: str) -> list[tuple[int, str]]:
    # Symbol tables take a tenth of the time of syntax trees.
    return [(line, name) for line, name in bound_names(symtable.symtable(source, "module", "exec")) if name in VAGUE]


def files_of_package() -> Iterator[Path]:
    for folder in ("fuser_lab", "widgets/fuser_lab_widgets"):
        yield from (REPOSITORY / folder).rglob("*.py")


def test_no_vague_name_is_bound():
    files = {path.relative_to(REPOSITORY).as_posix(): path.read_text("utf-8") for path in files_of_package()}
    assert len(files) > 400
    names = {(file, name): line for file, source in files.items() for line, name in vague_names(source)}
    places = [f"{file}:{line}: {name}" for (file, name), line in sorted(names.items()) if (file, name) not in TERMS]
    assert not places, "\n".join([*places, "Name a value by what it is, such as `matches`, `strides` or `path`."])
    assert names.keys() >= TERMS.keys(), "a term is listed that its file does not use"


def test_no_function_is_named_by_a_participle():
    files = {path.relative_to(REPOSITORY).as_posix(): path.read_text("utf-8") for path in files_of_package()}
    names = {(file, name) for file, source in files.items() for name in participles(source)}
    assert names == PARTICIPLES.keys(), "name a function by what it returns or by a verb, such as `rewrite`"


def test_no_private_function_or_method_is_named_by_a_participle():
    names = [(path.name, name) for path in files_of_package() for name in private_participles(path.read_text("utf-8"))]
    assert not names, "name a function by what it returns or by a verb, such as `_rewrite`"


def test_no_method_is_named_by_a_participle():
    files = [path for room in ROOMS for path in sorted((REPOSITORY / room).rglob("*.py"))]
    assert len(files) > 100
    names = [(path.name, name) for path in files for name in METHOD.findall(path.read_text("utf-8"))]
    wrong = {(file, name) for file, name in names if is_participle(name) and name not in OF_PLAN}
    assert wrong == OF_FLAT, "name a method by what it returns or by a verb, such as `rewrite`"


def test_a_participle_is_recognized():
    source = "def chosen():\n    pass\n\n\nasync def rewritten_text():\n    pass\n\n\ndef ranked(a):\n    pass\n"
    assert participles(source) == ["chosen", "ranked"]
    assert not participles("def _kept():\n    pass\n\n\ndef seed():\n    pass\n")
    assert private_participles("def _kept(): ...\nclass A:\n    def _ranked(self): ...\n") == ["_kept", "_ranked"]
    assert METHOD.findall("class A:\n    @property\n    def ranked(self): ...\n\n    def kept(self): ...\n") == ["kept"]
    assert not private_participles("def _seed(): ...\nclass A:\n    def _is_kept(self): ...\n")


@pytest.mark.parametrize(
    "source",
    [
        "found = 1\n", "found: int = 1\n", "total, known = 1, 2\n", "known, total = 1, 2\n", "found += [1]\n",
        "[one for one in (1, 2)]\n", "for one, other in pairs:\n    pass\n", "lambda given: 1\n",
        "def f(a, what=1):\n    pass\n", "def f(\n    given,\n    a,\n):\n    pass\n", "def kept():\n    pass\n",
        "class A:\n    def found(self):\n        pass\n", "class A:\n    def f(self):\n        found = 1\n",
        "if (wanted := 1):\n    pass\n", "with open('a') as own:\n    pass\n",
        "match a:\n    case [those]:\n        pass\n",
    ],
)  # fmt: skip
def test_a_vague_name_is_recognized(source):
    assert vague_names(source)


@pytest.mark.parametrize("source", ["class A:\n    kept: int\n", "matches = kept(a, own=1)\n", "a.found = 'one'\n"])
def test_uses_and_fields_are_allowed(source):
    assert not vague_names(source)
