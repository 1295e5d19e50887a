"""Loops of CPU kernels that are functions of their own, and what they share."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from backend.fusions import D, S, build

from fuser_lab.codegen import cpu_functions, long_loops
from fuser_lab.codegen.kernel_ir import Loop, walk
from fuser_lab.codegen.kernel_steps import kernel_steps
from fuser_lab.codegen.links import source_lines
from tests.kernels import generate

Step = Callable[[Any, int, Any, Any], Any]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divides loops of more than 100 instructions, into parts of 60, and names more than 10 constants."""
    for name, limit in (("LONG", 100), ("PART", 60), ("MANY", 2)):
        monkeypatch.setattr(long_loops, name, limit)
    monkeypatch.setattr(cpu_functions, "MOST_UNNAMED", 10)


def chain(ops: int, step: Step, fd: Any, x: Any, y: Any) -> Any:
    z = x
    for number in range(ops):
        z = step(fd.ops, number, z, y)
    return z


def source(ops: int, step: Step) -> str:
    """The CPU kernel of a chain of ops, without comments."""
    text = generate(build(partial(chain, ops, step), [(64, 64)] * 2, D.Float), S.POINTWISE).source
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def functions(text: str) -> dict[str, str]:
    """The code of each function, by name."""
    return dict(re.findall(r"^def (\w+)(.*?)(?=^@|\Z)", text, re.MULTILINE | re.DOTALL))


def repeating(o: Any, number: int, z: Any, y: Any) -> Any:
    return (o.add(z, y), o.tanh(z), o.mul(z, 0.5))[number % 3]


def distinct(o: Any, number: int, z: Any, y: Any) -> Any:
    return o.add(o.mul(z, 1 + 2.0**-9 * number), y)


@pytest.mark.usefixtures("short")
def test_twice_the_chain_calls_the_same_functions_twice_as_often() -> None:
    once, twice = (source(ops, repeating) for ops in (300, 600))
    counts = len(functions(once)), len(functions(twice))
    assert max(counts) <= min(counts) + 2
    calls = [len(re.findall(r"^ +pointwise_\w+_part\d+\(", text, re.MULTILINE)) for text in (once, twice)]
    assert 1.6 < calls[1] / calls[0] < 2.2
    assert calls[1] > 3 * counts[1]
    assert len(twice) < 1.8 * len(once)


@pytest.mark.usefixtures("short")
def test_no_function_of_a_longer_kernel_is_longer() -> None:
    longest = [
        max(len(code) for name, code in functions(source(ops, distinct)).items() if "_part" in name)
        for ops in (150, 300)
    ]
    assert longest[1] < 1.2 * longest[0]


@pytest.mark.usefixtures("short")
def test_constants_have_names_in_the_function_that_reads_them() -> None:
    parts = [code for name, code in functions(source(200, distinct)).items() if "_part" in name]
    assert len(parts) > 2
    for code in parts:
        defined, read = set(re.findall(r"\b(c\d+) = ", code)), set(re.findall(r"\bc\d+\b", code))
        assert defined == read
    names = Counter(name for code in parts for name in set(re.findall(r"\b(c\d+) = ", code)))
    assert len(names) > 100
    assert set(names.values()) == {1}


def test_short_kernels_are_one_function() -> None:
    assert len(functions(source(150, repeating))) == 1


def test_a_loop_that_updates_an_accumulator_stays_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("LONG", 3), ("PART", 4), ("MANY", 0)):
        monkeypatch.setattr(long_loops, name, limit)
    fusion = build(lambda fd, x, y: (fd.ops.sum(z := fd.ops.exp(fd.ops.mul(x, y)), [1]), z), [(8, 64)] * 2, D.Float)
    (phase,) = generate(fusion, S.REDUCTION).kernel_ir.phases
    loops = [s for s in walk(phase.body) if isinstance(s, Loop)]
    called = {loop.called for loop in loops}
    assert called == {False, True}
    for loop in loops:
        assert not (loop.called and any(getattr(inside, "update", False) for inside in walk(loop.body)))


@pytest.mark.usefixtures("short")
def test_each_statement_has_lines_also_where_functions_are_shared() -> None:
    fusion = build(partial(chain, 200, repeating), [(2, 4)] * 2, D.Float)
    generated = generate(fusion, S.POINTWISE)
    assert generated.repeats
    (phase,) = generated.kernel_ir.phases
    linked = frozenset().union(*(line.places for line in source_lines(generated)))
    assert linked == {(0, number) for number in range(len(list(walk(phase.body))))}
    steps = kernel_steps(generated, fusion, most=10_000)
    assert all(steps.lines_of(step) for step in steps.steps)
    assert str(steps).count("line ") > 20
