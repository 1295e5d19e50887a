"""Tests can be collected without torch and JAX, because they request them with ``needs``."""

import ast
from pathlib import Path

import pytest
from needs import INSTALL

TESTS = Path(__file__).resolve().parents[1]
# Programs that are run by name and import a library at once; a test that uses one requests the library first.
PROGRAMS = {TESTS / folder for folder in ("benchmarks/gpu", "benchmarks/cpu", "programs", "notebooks/text")}


def imported_at_once(source: str) -> set[str]:
    """The optional libraries that importing a module with this source imports."""
    found = set()
    for statement in ast.parse(source).body:
        match statement:
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found & {name for name in INSTALL if "." not in name}


def test_no_test_needs_an_optional_library_to_be_collected():
    files = [path for path in TESTS.rglob("*.py") if PROGRAMS.isdisjoint(path.parents)]
    assert len(files) > 100
    found = {path.relative_to(TESTS): names for path in files if (names := imported_at_once(path.read_text("utf-8")))}
    assert not found, f'write `torch = needs("torch")`: {found}'


@pytest.mark.parametrize(
    ("source", "names"),
    [("import torch\n", {"torch"}), ("from jax.numpy import ones\n", {"jax"}), ("def f():\n    import torch\n", set())],
)
def test_the_check_itself(source, names):
    assert imported_at_once(source) == names
