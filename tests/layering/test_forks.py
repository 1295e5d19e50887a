"""What a fork must make new is registered in one place: `fuser_lab.process.forks`."""

import ast
import re
from pathlib import Path

import pytest

REGISTRY = "fuser_lab/process/forks.py"
PRIMITIVES = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier"}
MENTIONS = re.compile(r"\bthreading\b|\bmultiprocessing\b|register_at_fork")


def unregistered(text: str) -> list[str]:
    """One line per lock, condition or event that is not an argument of ``renew_in_forks``, and per hook for forks."""
    nodes = list(ast.walk(ast.parse(text)))
    allowed: set[int] = set()
    problems = []
    for node in nodes:
        match node:
            case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.expr() as annotation):
                allowed |= {id(part) for part in ast.walk(annotation)}
            case ast.FunctionDef(returns=ast.expr() as annotation):
                allowed |= {id(part) for part in ast.walk(annotation)}
            case ast.Call(func=ast.Name(id="renew_in_forks"), args=[ast.Call(func=made)]):
                allowed.add(id(made))
            case ast.ClassDef(bases=bases) if "renew_in_forks(self)" in ast.unparse(node):
                allowed |= {id(base) for base in bases}
            case ast.ImportFrom(module="threading" | "multiprocessing", names=names):
                problems += [f"{node.lineno}: {name.name} by name" for name in names if name.name in PRIMITIVES]
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="threading" | "multiprocessing" as module), attr=name):
                if name in PRIMITIVES and id(node) not in allowed:
                    problems.append(f"{node.lineno}: {module}.{name}")
            case ast.Attribute(attr="register_at_fork"):
                problems.append(f"{node.lineno}: os.register_at_fork")
    return problems


def test_each_lock_is_registered_for_forks(repository: Path) -> None:
    files = {
        path.relative_to(repository).as_posix(): path
        for folder in ("fuser_lab", "widgets/fuser_lab_widgets") for path in (repository / folder).rglob("*.py")
    }
    problems = [
        f"{name}:{problem}; register it with `renew_in_forks`, `new_lock` or `after_fork` of {REGISTRY}"
        for name, path in files.items() if name != REGISTRY
        if MENTIONS.search(text := path.read_text(encoding="utf-8"))
        for problem in unregistered(text)
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("text", [
    "LOCK = threading.Lock()",
    "LOCK = threading.RLock()",
    "class A:\n    lock: threading.Lock = field(default_factory=threading.Lock)",
    "class Flag(threading.Event):\n    pass",
    "from threading import Condition",
    "os.register_at_fork(after_in_child=print)",
])
def test_what_is_not_registered_is_reported(text: str) -> None:
    assert unregistered(text)


@pytest.mark.parametrize("text", [
    "LOCK = new_lock()",
    "changed = renew_in_forks(threading.Condition())",
    "class A:\n    lock: threading.Lock = field(default_factory=new_lock)",
    "def new() -> threading.Lock:\n    return new_lock()",
    "class Flag(threading.Event):\n    def __init__(self):\n        super().__init__()\n        renew_in_forks(self)",
])
def test_what_is_registered_passes(text: str) -> None:
    assert not unregistered(text)
