"""The machinery of `tests/forms`: forms as text, branches as they are taken, and the smallest corpus."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from fuser_lab.codegen import kernel_eval
from tests.forms import untaken
from tests.forms.check import loops_of, made
from tests.forms.corpus import Covered, Result, minimal, numbered, read, result_of, write
from tests.forms.directed import backward
from tests.forms.draw import changed, drawn
from tests.forms.form import Change, Form, Given, form_of
from tests.forms.trace import ROOT, Tracer, Untraced, branches, errors, missing
from tests.forms.untaken import UNTAKEN, Source, reasons, stale

SUM = Form(
    inputs=(Given(name="t0", shape=(3, 5), dtype="Float", order=(1, 0)),), outputs=("t2",),
    calls=((("t1",), "fd.ops.exp(t0)"), (("t2",), "fd.ops.sum(t1, [1])")),
)
SUMS_OF_COLUMNS = ((("t1",), "fd.ops.exp(t0)"), (("t2",), "fd.ops.sum(t1, [0])"))


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


def test_kernels_of_a_form_have_the_loops_that_are_chosen_at_its_real_sizes() -> None:
    form = replace(SUM, inputs=(Given(name="t0", shape=(12, 64), dtype="Float"),), calls=SUMS_OF_COLUMNS)
    large = ((12, 1 << 22),)
    kernels = [made(replace(form, real=real), Untraced()).kernels[0].kernel_ir for real in ((), large)]
    here, there = (kernel.nests[0].schedule.threads for kernel in kernels)
    assert (here, there) == (loops_of(form)[0].threads, loops_of(form.sized(large))[0].threads)
    assert here != there


def test_edits_change_the_schedule_of_the_first_kernel() -> None:
    edited = made(replace(SUM, target="cpu", edits=((r"tile=\d+", "tile=2"),)), Untraced())
    assert edited.kernels[0].kernel_ir.nests[0].schedule.tile == 2
    assert "tile" in made(replace(SUM, target="cpu", edits=((r"tile=\d+", "tile=0"),)), Untraced()).refusal


def test_a_form_of_the_corpus_that_is_not_refused_as_before_is_a_failure(tmp_path: Path) -> None:
    change = Change(segment=0, nest=0, values=(("threads", (0, 1)),))
    refused = replace(SUM, changes=(change,), refusal="ScheduleError")
    write([refused, replace(refused, refusal=""), replace(SUM, refusal="ScheduleError")], tmp_path / "forms")
    failures = [result.failure for result in numbered(tmp_path / "forms", range(3), is_verified=False)]
    assert failures == ["", "expected kernels, got ScheduleError", "expected ScheduleError, got kernels"]


def test_branches_that_lead_to_an_error_only() -> None:
    text = (ROOT / "codegen" / "kernel_eval.py").read_text().splitlines()
    every = branches("codegen/kernel_eval")["codegen/kernel_eval"]
    lines = {b: text[b - 1].strip() for _, b in errors("codegen/kernel_eval", every) if b > 0}
    assert "case _:" in lines.values()
    assert all("raise" in "".join(text[number - 1 : number + 11]) for number in lines)
    assert "return" not in {line.partition(" ")[0] for line in lines.values()}


def test_branches_of_code_that_writes_the_text_of_an_error() -> None:
    module = "codegen/kernel_verifier"
    text = (ROOT / f"{module}.py").read_text().splitlines()
    every = branches(module)[module]
    lines = {text[a - 1].strip() for a, _ in errors(module, every)}
    assert "case Let(name=name) | Reduce(name=name):" in lines  # in _text, which only _fail calls
    assert "case Let(name=name, value=value, update=True):" not in lines


def test_branches_that_return_why_parameters_are_illegal_are_those_of_errors() -> None:
    source = Source.of("schedule/kinds")
    apart = errors(source.module, branches(source.module)[source.module])
    lines = {source.line(first): source.line(then) for first, then in apart}
    assert lines["if y > 1 and x > WARP:"].startswith("return f")
    assert "if loops.staged:" not in lines


def test_parameters_of_rows_with_column_sums_are_legal_for_fewer_rows_than_chosen_blocks() -> None:
    change = Change(segment=0, nest=0, values=(("unroll", 2),))
    result = made(replace(backward(140, 256), changes=(change,)), Untraced())
    assert not result.refusal
    assert result.kernels[0].kernel_ir.nests[0].schedule.unroll == 2


def test_the_smallest_corpus_takes_every_arc() -> None:
    arcs = [frozenset({("m", 1, 2), ("m", 2, 3)}), frozenset({("m", 2, 3)}), frozenset({("m", 3, 4)})]
    results = [Result(form=SUM, number=n, arcs=some) for n, some in enumerate(arcs)]
    assert [one.number for one in minimal(results)] == [0, 2]


def test_untaken_branches_are_between_lines_that_exist() -> None:
    for modules in UNTAKEN.values():
        for module, pairs in modules.items():
            text = "\n".join(["", *Source.of(module).lines])
            assert [start for pair in pairs for start in pair if f"\n{start}" not in text] == []


def test_a_listed_branch_that_a_kernel_takes_or_that_does_not_exist_is_stale() -> None:
    module = "codegen/cache_lines"
    source, (first, then) = Source.of(module), min(branches(module)[module])
    pair = source.line(first), source.line(then)
    listed = {"a reason": {module: [pair]}}
    assert list(stale(listed, ())) == []
    (taken,) = stale(listed, {(module, first, then)})
    assert taken.endswith("is taken by a kernel.")
    (gone,) = stale({"a reason": {module: [(pair[1], pair[0])]}}, ())
    assert gone.endswith("does not exist.")
    (missing_module,) = stale({"a reason": {"codegen/no_module": [pair]}}, ())
    assert missing_module == "there is no module codegen/no_module."


def test_reasons_are_those_of_the_listed_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(module="codegen/some", lines=("if a:", "return b", "return c"))
    monkeypatch.setattr(untaken, "UNTAKEN", {"a is true": {"codegen/some": [("if a:", "return c"), ("return c", "")]}})
    assert reasons(source, 1, 3) == ("a is true",)
    assert reasons(source, 3, -1) == ("a is true",)
    assert reasons(source, 1, 2) == ()
