"""The machinery of `tests/forms`: forms as text, branches as they are taken, and the smallest corpus."""

import re
from dataclasses import replace
from random import Random

import pytest

from fuser_lab.codegen import kernel_eval
from tests.forms.corpus import Covered, Result, minimal, read, result_of
from tests.forms.draw import changed, drawn
from tests.forms.form import Change, Form, Given, form_of
from tests.forms.trace import ROOT, Tracer, branches, missing

SUM = Form(
    inputs=(Given(name="t0", shape=(3, 5), dtype="Float", order=(1, 0)),), outputs=("t2",),
    calls=((("t1",), "fd.ops.exp(t0)"), (("t2",), "fd.ops.sum(t1, [1])")),
)


def test_forms_are_lines_of_text() -> None:
    rng = Random(3)
    for form in (*read()[::20], *(drawn(rng) for _ in range(5))):
        assert form_of(form.text()) == form


def test_drawn_and_changed_forms_are_the_same_for_the_same_seed() -> None:
    first, second = ([changed(drawn(rng), rng) for _ in range(3)] for rng in (Random(8), Random(8)))
    assert first == second


def test_an_arc_is_recorded_only_where_a_kernel_takes_it() -> None:
    result = result_of(SUM, Tracer(), is_verified=False)
    assert result is not None
    assert not result.failure
    text = (ROOT / "codegen" / "gpu_rows.py").read_text().splitlines()
    modules = ("codegen/cpu_scans", "codegen/gpu_rows", "codegen/nests")
    every, left = branches(*modules), missing(result.arcs, *modules)
    assert set(every) == set(modules)
    assert left["codegen/cpu_scans"] == every["codegen/cpu_scans"]
    assert left["codegen/nests"] < every["codegen/nests"]
    assert all(0 < a <= len(text) for a, _ in left["codegen/gpu_rows"])


def test_a_wrong_kernel_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernel_eval._FUNCTIONS, "exp", lambda x: x)
    result = result_of(SUM, Tracer())
    assert result is not None
    assert re.match("Disagreement: T\\d, in lock step: ", result.failure)


def test_refused_forms_count_apart() -> None:
    change = Change(segment=0, nest=0, values=(("threads", (0, 1)),))
    result = result_of(replace(SUM, changes=(change,)), Tracer(), is_verified=False)
    assert result is not None
    assert result.refused
    covered = Covered()
    covered.add(result)
    assert not covered.evaluated
    assert covered.refused


def test_the_smallest_corpus_takes_every_arc() -> None:
    arcs = [frozenset({("m", 1, 2), ("m", 2, 3)}), frozenset({("m", 2, 3)}), frozenset({("m", 3, 4)})]
    results = [Result(form=SUM, number=n, arcs=some) for n, some in enumerate(arcs)]
    assert [one.number for one in minimal(results)] == [0, 2]
