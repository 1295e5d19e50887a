"""Parameters kept from `fl.tune`: where they are used, where not and why, and their files."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.codegen.pipeline import kernel_digest
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.errors import ArgumentTypeError, InputError, TuningWarning
from fuser_lab.plan.kept_results import keep
from fuser_lab.runtime import tuned_files
from fuser_lab.schedule.parameter_values import Values
from fuser_lab.schedule.tuned_parameters import KeptResult, Machine, Shapes
from fuser_lab.search import tuning
from tests.unit.tuning_clock import clock

ROWS = 512
X = np.linspace(0, 1, ROWS * 300, dtype=np.float32).reshape(ROWS, 300)


def definition(unused: int = 0, op: str = "exp") -> fl.FusionDefinition:
    """Sums of rows; unused ops change the names of the others."""
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        for _ in range(unused):
            fd.ops.neg(x)
        fd.add_output(fd.ops.sum(getattr(fd.ops, op)(x), [1]))
    return fd


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(tuned_files, "_WARNED", set())
    with fl.use_tuned(False):
        yield


def segment(rows: int = ROWS, columns: int = 300, *, tuned: bool = True, unused: int = 0, op: str = "exp") -> fl.Plan:
    return fl.segment(definition(unused, op), [fl.spec((rows, columns))], tuned=tuned)


def result(values: Values, target: str = "cpu", shapes: Shapes = ((ROWS, 300),), **changed: object) -> KeptResult:
    """A result for a kernel of the plan's device, or for this processor."""
    plan = segment(*shapes[0], tuned=False)
    (one,) = plan.segments
    assert one.scheduler is not None
    device = plan.oracle.device
    request = KernelRequest(fusion=one.fusion, scheduler=one.scheduler, target=target, device=device)
    machine = tuned_files.this_host(target) if target == "cpu" else Machine.of_gpu(target, device)
    made = KeptResult(
        machine=machine, label="NVIDIA H200" if target == "cuda" else str(machine), scheduler=one.scheduler.value,
        program=one.fusion.program, kernel=kernel_digest(request), ops=("exp", "sum"), dtypes=("Float",), shapes=shapes,
        changes=((0, values),), before=1.12e-5, after=1e-5, than="the heuristics' choice", date="2026-11-20",
        version="0.1.0",
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def reasons(plan: fl.Plan, target: str = "cpu") -> str:
    return " ".join(reason for nest in plan.segments[0].params(target) for reason in nest.schedule.reasons)


def test_what_a_search_finds_is_kept_and_used_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "suggestions", lambda _: ((("grain", 4),), (("grain", 2),)))
    clock(monkeypatch, {"grain=4": (0.5,)})
    plan = segment(tuned=False)
    found = fl.tune(plan, [X], progress=False)
    kept = found.keep()
    assert [one.changes for one in kept.results] == [((0, (("grain", 4),)),)]
    assert fl.kept_results().results == kept.results
    assert "exp, sum" in str(kept)
    assert "100 % faster than the heuristics' choice" in repr(fl.kept_results())
    assert "<table" in kept._repr_html_()

    assert segment(tuned=False).hash == plan.hash
    new = segment()
    assert new.segments[0].params("cpu")[0].values["grain"] == 4
    today = kept.results[0].date
    said = f"parameters found by fl.tune on {kept.results[0].label}, {today}: grain = 4; 100 % faster than the heur"
    assert said in reasons(new)
    assert said in str(new.segments[0].schedule_for("cpu"))
    np.testing.assert_allclose(new.run([X])[0], np.exp(X).sum(1), rtol=1e-5)

    assert new.hash != plan.hash
    assert new.with_schedule(0, str(new.segments[0].schedule_for("cpu"))) == new
    other = new.with_params(0, target="cpu", grain=8).segments[0].params("cpu")[0]
    assert "grain = 8 (kept: 4)" in str(other)
    scope: dict[str, fl.Plan] = {}
    exec(new.to_python(), scope)
    assert scope["plan"] == new

    # A search from there states its baseline, and keeps the difference from the heuristics.
    monkeypatch.setattr(tuning, "suggestions", lambda _: ((("partial", 64),),))
    clock(monkeypatch, {"partial=64": (0.5,)})
    (again,) = fl.tune(new, [X], progress=False).keep().results
    assert again.changes == ((0, (("grain", 4), ("partial", 64))),)
    assert again.than == "the parameters kept before"
    assert fl.kept_results().results == (again,), "replaces the earlier one"


def test_a_search_that_finds_nothing_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "suggestions", lambda _: ((("grain", 2),),))
    clock(monkeypatch, {})
    assert not fl.tune(segment(tuned=False), [X], progress=False).keep().results
    assert "Nothing is kept in" in repr(fl.kept_results())


def test_other_parameters_of_the_user_are_what_it_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "suggestions", lambda _: ((("grain", 2),),))
    clock(monkeypatch, {"grain=2, partial=64": (0.5,)})
    plan = segment(tuned=False).with_params(0, target="cpu", partial=64)
    (one,) = fl.tune(plan, [X], progress=False).found
    assert (one.changes, one.than) == (((0, (("grain", 2), ("partial", 64))),), "the parameters set by hand")


def test_names_do_not_matter_and_ops_dtypes_and_devices_do() -> None:
    keep([result((("grain", 4),)), result((("threads", (64, 1)),), "cuda")])
    assert "grain = 4" in reasons(segment(unused=3))
    assert "threads = (64, 1); 12 % faster" in reasons(segment(unused=3), "cuda")
    assert "fl.tune" not in reasons(segment(op="neg"))
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Double)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
    assert "fl.tune" not in reasons(fl.segment(fd, [fl.spec((ROWS, 300), "float64")], tuned=True))
    elsewhere = fl.segment(definition(), [fl.spec((ROWS, 300))], target="A100", tuned=True)
    assert "fl.tune" not in reasons(elsewhere, "cuda")
    assert "grain = 4" in reasons(elsewhere), "the kernel of the CPU is for this machine"
    fl.kept_results().forget()
    host = tuned_files.this_host("cpu")
    keep([result((("grain", 4),), machine=replace(host, detail=str(int(host.detail) + 1)))])
    assert "fl.tune" not in reasons(segment()), "with another number of threads"


def test_sizes_of_one_class_share_a_result_if_they_are_near() -> None:
    keep([result((("threads", (64, 1)),), "cuda", ((4096, 300),))])
    assert "2026-11-20: threads" in reasons(segment(4096), "cuda")
    assert "2026-11-20, at the sizes [4096, 300], which have the same kernel: " in reasons(segment(5000), "cuda")
    assert "fl.tune" not in reasons(segment(4096 * 5), "cuda"), "five times as many elements"
    assert "fl.tune" not in reasons(segment(4096, 4096), "cuda"), "another kernel"
    keep([result((("threads", (128, 1)),), "cuda", ((6000, 300),))])
    assert segment(4096).segments[0].params("cuda")[0].values["threads"] == (64, 1)
    assert segment(5500).segments[0].params("cuda")[0].values["threads"] == (128, 1), "the nearest sizes"


def test_what_cannot_be_used_is_said() -> None:
    keep([result((("threads", (48, 1)),), "cuda")])
    said = reasons(segment(), "cuda")
    assert "are not used: threads = (48, 1) must be a multiple of 32" in said
    assert segment().segments[0].params("cuda")[0].values == segment(tuned=False).segments[0].params("cuda")[0].values
    fl.kept_results().forget()
    keep([result((("threads", (64, 1)),), "cuda", kernel="0" * 64)])
    said = reasons(segment(), "cuda")
    assert "are not used: they are for another kernel of the heuristics, of fuser_lab 0.1.0 or of other strides" in said


def test_strided_inputs_have_their_own_kernel() -> None:
    keep([result((("grain", 4),))])
    plan = segment()
    dense, strided = X, np.asfortranarray(X)
    for array, used in ((dense, True), (strided, False)):
        (step,) = plan.prepare("cpu").steps([array])
        assert step.generated is not None
        (nest,) = step.generated.kernel_ir.nests
        assert nest.is_kept is used
        np.testing.assert_allclose(plan.run([array])[0], np.exp(array).sum(1), rtol=1e-5)


def test_the_setting_holds_for_new_plans_and_executed_definitions() -> None:
    keep([result((("grain", 4),))])
    fd = definition()

    def grain() -> object:
        return fd.plan_for([X]).segments[0].params("cpu")[0].values["grain"]

    before = grain()
    with fl.use_tuned():
        assert grain() == 4
        assert "fl.tune" in reasons(fl.segment(fd, [X]))
        with fl.use_tuned(False):
            assert grain() == before
        fl.kept_results().forget([0])
        assert grain() == before
        keep([result((("grain", 8),))])
        assert grain() == 8
    assert grain() == before
    fl.use_tuned()
    assert grain() == 8
    some = fl.kept_results()
    fl.use_tuned(False)
    assert "fl.tune" in reasons(fl.segment(fd, [X], tuned=some))
    edited = fl.segment(fd, [X], tuned=True).annotate("T1")
    assert edited.oracle.kept is not None, "plans made from others use the same results"
    with pytest.raises(ArgumentTypeError, match="tuned must be True, False, None, or what kept_results"):
        fl.segment(fd, [X], tuned="yes")  # type: ignore[arg-type]


def test_results_are_forgotten_by_number() -> None:
    keep([result((("grain", 4),)), result((("threads", (64, 1)),), "cuda", date="2026-11-21")])
    found = fl.kept_results()
    assert [one.date for one in found.results] == ["2026-11-21", "2026-11-20"]
    with pytest.raises(InputError, match="numbers must be from 0 to 1; given 2"):
        found.forget([2])
    left = found.forget([0])
    assert left.results == fl.kept_results().results == found.results[1:]
    assert not found.forget().results
    assert not list(tuned_files.folder().iterdir())
    with pytest.raises(InputError, match="numbers must be none: there are no results; given 0"):
        fl.kept_results().forget([0])


def damaged(change: Callable[[dict[str, object]], object]) -> Callable[[str], str]:
    def write(text: str) -> str:
        record = json.loads(text)
        change(record)
        return json.dumps(record)

    return write


@pytest.mark.parametrize(("write", "why"), [
    (lambda text: text[: len(text) // 2], "cannot be read .it is not JSON"),
    (lambda _: "[]", "is not a record of the schema 'fuser_lab.tuned'"),
    (damaged(lambda r: r.update(version=0)), "has format 0, and this version of fuser_lab reads format 1"),
    (damaged(lambda r: r["result"].pop("kernel")), "cannot be read .the result has no entry 'kernel'"),  # type: ignore[attr-defined]
    (damaged(lambda r: r["result"].update(after=0)), "times are not positive"),  # type: ignore[attr-defined]
    (damaged(lambda r: r["result"].update(changes=[[0, [["threads", "many"]]]])), "changes is 'many'"),  # type: ignore[attr-defined]
    (lambda text: text + " " * (1 << 16), "has more than 65,536 bytes"),
])
def test_a_file_that_cannot_be_used_is_ignored_with_one_warning(write: Callable[[str], str], why: str) -> None:
    keep([result((("grain", 4),)), result((("threads", (64, 1)),), "cuda")])
    place = tuned_files.path_of(fl.kept_results().results[0])
    place.write_text(write(place.read_text()))
    with pytest.warns(TuningWarning, match=f"{place.name} is ignored: it .*{why}") as seen:
        assert len(fl.kept_results().results) == 1
    assert len(seen) == 1
    assert len(fl.kept_results().results) == 1, "the second time without a warning"
    fl.kept_results().forget_ignored()
    assert len(list(tuned_files.folder().iterdir())) == 1


def test_several_files_that_cannot_be_used_are_one_warning() -> None:
    keep([result((("grain", n),), shapes=((n, 300),)) for n in (64, 128)])
    for place in tuned_files.folder().iterdir():
        place.write_text("{")
    with pytest.warns(TuningWarning, match="2 files in .* are ignored: [0-9a-f]{32}.json cannot be read") as seen:
        assert not fl.kept_results().results
    assert len(seen) == 1


def test_writers_at_the_same_time_lose_nothing() -> None:
    made = [result((("grain", 2),), shapes=((n, 300),)) for n in (64, 128, 256, 512)]

    def write(one: KeptResult) -> None:
        for grain in (2, 4, 8):
            tuned_files.keep(replace(one, changes=((0, (("grain", grain),)),)))
            assert tuned_files.load()

    threads = [threading.Thread(target=write, args=(one,)) for one in (*made, *made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = fl.kept_results().results
    assert {one.shapes for one in found} == {one.shapes for one in made}
    assert all(one.changes == ((0, (("grain", 8),)),) for one in found)
    assert not list(tuned_files.folder().glob("*.tmp"))
