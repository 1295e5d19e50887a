"""The schedule of a segment is Python that a user can edit and run beside the automatic kernel."""

from typing import Any

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.errors import ArgumentTypeError, CodegenError, InputError, ScheduleError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir.transform import ParallelType as P
from fuser_lab.plan.schedules import SegmentSchedule

X = np.random.default_rng(0).standard_normal((6, 128)).astype(np.float32)


def softmax_plan(strategy: str = "bottom_up") -> fl.Plan:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.softmax(fd.ops.neg(x), 1))
    return fl.segment(fd, [X], strategy=strategy)


def lowered_loop_by_loop(plan: fl.Plan) -> fl.Plan:
    """Return the plan with 10 threads per row, which no scheduler's kernel has."""
    return plan.with_schedule(0, str(plan.segments[0].schedule).replace("factor=32", "factor=10"))


def test_the_schedule_prints_as_python_that_gives_the_same_schedule() -> None:
    plan = softmax_plan()
    schedule = plan.segments[0].schedule
    text = str(schedule)
    assert text.startswith("# 128 elements fit 32 lanes")
    assert "T0.cache_after(" in text
    assert "factor=32" in text, "the threads of the automatic kernel"
    assert "factor=32, inner_split=True)  # threads of a block, in x" in text
    for given in (text, schedule, schedule.transforms, list(schedule.transforms)):
        edited = plan.with_schedule(0, given)
        assert edited.hash == plan.hash, "the automatic kernel is its schedule"
        assert edited.segments[0].schedule.to_python() == schedule.to_python()
        assert edited.segments[0].edit is None


def test_an_edited_number_is_a_parameter_and_the_other_way_round() -> None:
    plan = softmax_plan()
    text = str(plan.segments[0].schedule)
    text = text.replace("factor=32", "factor=16").replace("axis=1, factor=4", "axis=1, factor=2")
    edited = plan.with_schedule(0, text)
    given = plan.with_params(0, threads=(16, plan.segments[0].params()[0].schedule.threads[1]), vector=2)
    assert edited.hash == given.hash != plan.hash
    for target in ("cpu", "cuda"):
        assert edited.segments[0].source(target) == given.segments[0].source(target)
    assert "split(axis=1, factor=16" in str(given.segments[0].schedule)
    assert "split(axis=1, factor=2," in str(given.segments[0].schedule)
    assert edited.segments[0].changes[0].values == given.segments[0].changes[0].values


def test_parameters_after_a_schedule_edit_the_same_thing() -> None:
    plan = softmax_plan()
    text = str(plan.segments[0].schedule)
    edited = plan.with_schedule(0, text.replace("factor=32", "factor=16"))
    both = edited.with_params(0, vector=2)
    assert both.hash == plan.with_params(0, vector=2).hash, "other parameters keep their chosen values"
    assert both.with_schedule(0, None).hash == plan.hash == both.with_params(0).hash
    assert both.with_schedule(0, text).hash == plan.hash


def test_lines_of_the_schedule_that_are_not_loops() -> None:
    plan = softmax_plan()
    text = str(plan.segments[0].schedule)
    (nest,) = plan.segments[0].params()
    assert "# these imply" in text
    for line, values in (
        ("fd.sched.launch_bounds(blocks=2)", {"resident": 2}), ("fd.sched.read_again()", {"persistent": False}),
        ("fd.sched.specialize()", {"specialized": True}), ("fd.sched.specialize(sizes=False)", {}),
        (f"fd.sched.launch_bounds(blocks={nest.schedule.resident})", {}),
    ):
        edited = plan.with_schedule(0, f"{text}{line}\n")
        given = plan.with_params(0, **values)  # type: ignore[arg-type]
        assert edited.hash == given.hash
        assert edited.segments[0].source("cuda") == given.segments[0].source("cuda")
        again = plan.with_schedule(0, str(given.segments[0].schedule))
        assert again.hash == given.hash, line
    with pytest.raises(ScheduleError, match="launch_bounds: the schedule says this already"):
        plan.with_schedule(0, f"{text}fd.sched.launch_bounds(2)\nfd.sched.launch_bounds(3)\n")
    with pytest.raises(ScheduleError, match=r"launch_bounds: blocks must be from 0 to 2147483647, given -1"):
        plan.with_schedule(0, f"{text}fd.sched.launch_bounds(-1)\n")


def test_blocks_that_share_a_row_are_a_line_of_the_schedule() -> None:
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [0, 1]))
    plan = fl.segment(fd, [X])
    given = plan.with_params(0, cluster=4)
    text = str(given.segments[0].schedule)
    assert text.endswith("fd.sched.cluster(blocks=4)\n")
    edited = plan.with_schedule(0, text)
    assert edited.hash == given.hash != plan.hash
    assert edited.segments[0].source("cuda") == given.segments[0].source("cuda")
    assert plan.with_schedule(0, text.replace("blocks=4", "blocks=2")).hash == plan.with_params(0, cluster=2).hash
    assert plan.with_schedule(0, text.replace("blocks=4", "blocks=1")).hash == plan.hash
    with pytest.raises(ScheduleError, match=r"cluster\(blocks=3\) applies .*: cluster = 3 must be a power of two"):
        plan.with_schedule(0, text.replace("blocks=4", "blocks=3"))


def test_values_of_parameters_are_a_line_of_the_schedule() -> None:
    plan = softmax_plan()
    text = str(plan.segments[0].schedule)
    edited = plan.with_schedule(0, f"{text}fd.sched.set_params(resident=4, specialized=True)\n")
    assert edited.hash == plan.with_params(0, resident=4, specialized=True).hash
    for arguments, problem in (
        ("nothing=3", r"set_params: unknown parameter 'nothing'; choose from threads"),
        ("unroll=True", r"set_params: unroll must be an int, given True"),
        ("grain=3", r"set_params\(grain=3\) applies .*: grain is not a parameter of a nest of rows on cuda"),
        ("resident=2000", r"set_params\(resident=2000\) applies .*: resident = 2000 blocks .* exceed the capacity"),
        ("", r"set_params: no parameter is given"),
    ):
        with pytest.raises(ScheduleError, match=problem):
            plan.with_schedule(0, f"{text}fd.sched.set_params({arguments})\n")


def test_other_loops_refuse_what_only_the_scheduler_writes() -> None:
    plan = softmax_plan()
    other = lowered_loop_by_loop(plan)
    assert other.segments[0].loops, "no template has 10 threads per row"
    assert "# Lowered loop by loop: threads = (10," in str(other.segments[0].schedule)
    with pytest.raises(ScheduleError, match=r"fd\.sched\.read_again\(\) applies only to loops that the scheduler"):
        plan.with_schedule(0, f"{other.segments[0].schedule}fd.sched.read_again()\n")
    bounded = plan.with_schedule(0, f"{other.segments[0].schedule}fd.sched.launch_bounds(3)\n")
    assert bounded.segments[0].kernel("cuda").kernel_ir.phases[0].launch.resident == 3
    with pytest.raises(ScheduleError, match=r"on_cores.* a template cannot be combined with"):
        plan.with_schedule(0, f"{other.segments[0].schedule}fd.sched.on_cores('rows', grain=1)\n")


def test_the_schedule_of_a_cpu_kernel_is_a_template() -> None:
    plan = softmax_plan()
    schedule = plan.segments[0].schedule_for("cpu")
    assert schedule.to_python().startswith("fd.sched.on_cores('rows', nest=0, grain=")
    assert plan.with_schedule(0, schedule).hash == plan.hash
    text = f"{schedule}"
    edited = plan.with_schedule(0, text.replace("partial=4096", "partial=64"))
    assert edited.hash == plan.with_params(0, target="cpu", partial=64).hash
    assert "partial=64" in str(edited.segments[0].schedule), "the GPU's schedule mentions what was set for the CPU"
    assert edited.with_schedule(0, edited.segments[0].schedule).hash == edited.hash
    both = edited.with_params(0, threads=(16, 1))
    assert {change.target for change in both.segments[0].changes} == {"cpu", "cuda"}
    assert both.with_schedule(0, both.segments[0].schedule).hash == both.hash
    assert both.with_schedule(0, schedule).hash == plan.with_params(0, threads=(16, 1)).hash
    for line, sentence in (
        ("fd.sched.on_cores('columns')", "nest 0 is of style 'rows', given 'columns'"),
        ("fd.sched.on_cores('rows', nest=3)", "the kernel has 1 nest of loops, given nest 3"),
        ("fd.sched.on_cores('rows', grain=0)", "on_cores: grain = 0 must be between 1 and"),
        ("fd.sched.on_cores('rows', colour=1)", "on_cores: unknown parameter 'colour'; choose from"),
        ("fd.sched.on_cores('rows', threads=(1, 1))", "on_cores: threads is not a parameter of a nest of rows on cpu"),
        ("fd.sched.on_cores('rows', target='cuda')", "on_cores: target is 'cuda'; choose from cpu"),
        ("fd.sched.on_cores('rows')\nfd.sched.on_cores('rows')", "nest 0 has loops already"),
    ):
        with pytest.raises(ScheduleError, match=sentence):
            plan.with_schedule(0, line)


def test_an_edited_schedule_runs_beside_the_automatic_kernel() -> None:
    plan = softmax_plan()
    (wanted,) = evaluate(plan.fusion, [X], exact=False)
    text = str(plan.segments[0].schedule)
    edited = plan.with_schedule(0, text.replace("factor=32", "factor=8"))
    assert edited.segments[0].transforms != plan.segments[0].schedule.transforms
    assert not edited.segments[0].loops, "8 threads are a parameter of the same kernel"
    np.testing.assert_allclose(edited.run([X])[0], wanted, rtol=1e-5)
    strided = np.asfortranarray(X)
    np.testing.assert_allclose(edited.run([strided])[0], wanted, rtol=1e-5)
    assert "cuda.threadIdx.x" in edited.segments[0].source("cuda")
    assert edited.segments[0].kernel("cuda").kernel_ir.phases[0].launch.threads[0] == 8
    assert edited.segments[0].steps("cuda").shrunk


@pytest.mark.parametrize("columns", [8, 24, 100])
def test_rows_that_share_a_block_are_reduced_separately(columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((9, columns)).astype(np.float32)
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [1]))
    plan = fl.segment(fd, [x])
    lines = str(plan.segments[0].schedule).splitlines()
    edited = plan.with_schedule(0, "\n".join(line for line in lines if "vectorize" not in line))
    assert edited.segments[0].loops, "no scheduler reads these rows without vectors"
    np.testing.assert_allclose(edited.run([x])[0], x.sum(1), rtol=1e-5, atol=1e-5)


def test_one_segment_follows_a_schedule_and_the_others_do_not() -> None:
    plan = softmax_plan("unfused")
    number = next(s.index for s in plan.segments if s.exprs[0].op.name == "sum")

    def threads_share_a_row(fd: Any) -> None:
        (total,) = (tv for tv in fd.sched.tensors() if fd.sched.is_reduction(tv))
        total.split(1, 8)
        total.parallelize(0, P.grid_x)
        total.parallelize(2, P.block_x)

    edited = plan.with_schedule(number, threads_share_a_row)
    steps = edited.prepare("cpu").steps()
    assert [step.in_lock_step for step in steps].count(True) == 1
    assert steps[number].in_lock_step
    np.testing.assert_allclose(edited.run([X])[0], plan.run([X])[0], rtol=1e-5)
    other = next(s.index for s in plan.segments if s.exprs[0].op.name == "neg")
    assert edited.glue(other, other + 1).segments, "an edit elsewhere"
    assert any(s.transforms for s in edited.glue(other, other + 1).segments)


def test_an_output_that_the_segment_reads_too_is_forked() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.exp(x)
        fd.add_output(y)
        fd.add_output(fd.ops.neg(y))
    plan = fl.segment(fd, [X])
    edited = plan.with_schedule(0, plan.segments[0].schedule)
    assert "cache_fork" in str(edited.segments[0].schedule)
    for got, wanted in zip(edited.run([X]), (np.exp(X), -np.exp(X)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_the_plan_written_as_python_has_the_schedule() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.ops.exp(x)  # unused, so that the printed definition has other names
        fd.add_output(fd.ops.sum(fd.ops.neg(x), [1]))
    plan = fl.segment(fd, [X])
    edited = plan.with_schedule(0, plan.segments[0].schedule)
    scope: dict[str, Any] = {}
    exec(edited.to_python(), scope)
    assert scope["plan"].hash == edited.hash
    np.testing.assert_allclose(scope["plan"].run([X])[0], -X.sum(1), rtol=1e-4, atol=1e-4)
    back = edited.with_schedule(0, None)
    assert back.hash == plan.hash
    exec(back.to_python(), scope)
    assert scope["plan"].hash == plan.hash


def _halves(ops: Any, x: Any) -> Any:
    first, second = ops.slice(x, [0, 0], [12, 20]), ops.slice(x, [0, 20], [12, 40])
    return ops.mul(ops.cat([ops.neg(second), first], 1), x)


FORMS = {
    "rows": ("reduction", lambda ops, x: ops.sum(x, [1])),
    "columns": ("reduction", lambda ops, x: ops.sum(ops.exp(x), [0])),
    "two reductions": ("reduction", lambda ops, x: ops.add(ops.sum(x, [1]), ops.max(ops.neg(x), [1]))),
    "variance of rows": ("reduction", lambda ops, x: ops.var_mean(x, [1])[0]),
    "rows kept": ("inner_persistent", lambda ops, x: ops.sub(x, ops.mean(x, [1], keepdim=True))),
    "columns kept": ("outer_persistent", lambda ops, x: ops.sub(x, ops.mean(x, [0], keepdim=True))),
    "split afterwards": (
        "inner_persistent", lambda ops, x: ops.reshape(ops.sub(x, ops.mean(x, [1], keepdim=True)), [3, 4, 40]),
    ),
    "halves": ("resize", lambda ops, x: _halves(ops, ops.exp(x))),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_values_of_the_reference(form: str) -> None:
    scheduler, record = FORMS[form]
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(record(fd.ops, x))
    x = np.random.default_rng(1).standard_normal((12, 40)).astype(np.float32)
    plan = fl.segment(fd, [x])
    done = []
    for segment in plan.segments:
        if segment.scheduler is not None and segment.scheduler.value == scheduler:
            plan = plan.with_schedule(segment.index, segment.schedule)
            done.append(segment.index)
    assert done, f"{plan.segments}"
    (wanted,) = evaluate(plan.fusion, [x], exact=False)
    np.testing.assert_allclose(plan.run([x])[0], wanted, rtol=1e-5, atol=1e-5)


def test_loops_that_no_scheduler_writes_have_no_parameters() -> None:
    plan = softmax_plan()
    text = str(plan.segments[0].schedule)
    edited = plan.with_params(0, vector=1).with_schedule(0, text.replace("factor=32", "factor=10"))
    with pytest.raises(ScheduleError, match=r"segment 0 has a schedule from .*with_schedule\(0, None"):
        edited.with_params(0, vector=2)
    assert edited.with_schedule(0, None).hash == plan.hash


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("T0.split(axis=0, factor=0)", r"line 2: split: .*factor"),
        ("T0.split(9, 2)", r"line 2: split: axis 9 is out of range; T0 has 2 loops"),
        ("T1.merge(0)", r"line 2: T1 is not defined; tensors so far: T0\. Look one up"),
        ("x = 3", r"line 2: x = 3 is not accepted; write T1 = "),
        ("import os", r"line 2: import os is not accepted"),
        ("T0.builder.ops.exp(T0)", r"line 2: T0\.builder\.ops\.exp\(T0\) is not accepted"),
        ("T0.__class__()", r"line 2: T0\.__class__\(\) is not accepted"),
        ("fd.sched.undo(1)", r"line 2: fd\.sched\.undo\(1\) is not accepted"),
        ("T0.split(len('ab'), 2)", r"line 2: len\('ab'\) is not accepted"),
        ("T0.split(*[0, 1])", r"is not accepted"),
        ("T0.split(", r"line 2: this is not Python"),
        ("T0.axis(0).parallelize(ParallelType.nothing)", r"ParallelType\.nothing is not accepted"),
        ("T0.split(0)", r"line 2: .*missing 1 required positional argument"),
        ("T0 = fd.sched.tensor('T99')", r"line 2: tensor: 'T99' is not a tensor of the scheduled fusion"),
    ],
)
def test_text_is_read_by_a_whitelist(line: str, sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        softmax_plan().with_schedule(0, f'T0 = fd.sched.tensor("T0")\n{line}\n')


def test_what_is_no_schedule() -> None:
    plan = softmax_plan()
    with pytest.raises(ArgumentTypeError, match="schedule must be the Python of a schedule, .* given int"):
        plan.with_schedule(0, 3)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="the schedule has no transforms"):
        plan.with_schedule(0, "")
    with pytest.raises(InputError, match="segment must be from 0 to 0, given 4"):
        plan.with_schedule(4, "")
    with pytest.raises(ScheduleError, match="4096 threads per block"):
        plan.with_schedule(0, str(plan.segments[0].schedule).replace("factor=32", "factor=1024"))
    with pytest.raises(CodegenError, match="it is lowered for GPUs, and the CPU evaluates that kernel in lock step"):
        lowered_loop_by_loop(plan).segments[0].source("cpu")


def test_a_kernel_of_several_nests_is_a_template_for_each() -> None:
    with fl.FusionDefinition() as fd:
        x, dy = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        row = fd.ops.sum(fd.ops.mul(x, dy), [1], keepdim=True)
        fd.add_output(fd.ops.sub(dy, fd.ops.mul(x, row)))
        fd.add_output(fd.ops.sum(dy, [0]))
    plan = fl.segment(fd, [fl.spec((4096, 1024))] * 2)
    text = plan.segments[0].schedule.to_python()
    assert [line[:30] for line in text.splitlines()] == [
        "fd.sched.on_blocks('rows', nes", "fd.sched.on_blocks('columns', ",
    ]
    edited = plan.with_schedule(0, text.replace("blocks=1056", "blocks=528"))
    given = plan.with_params(0, blocks=528)
    assert "blocks=1056" in text
    assert edited.hash == given.hash
    assert edited.segments[0].source("cuda") == given.segments[0].source("cuda")
    assert plan.with_schedule(0, given.segments[0].schedule).hash == given.hash
    assert plan.with_schedule(0, "fd.sched.on_blocks('columns', nest=1, unroll=2)").hash == plan.with_params(
        0, nest=1, unroll=2,
    ).hash


def test_the_loop_nest_after_each_step() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, [1]))
    plan = fl.segment(fd, [X])

    def by_hand(fd: Any) -> None:
        total = fd.sched.tensor("T1")
        total.split(1, 8)
        total.parallelize(0, P.grid_x)

    schedule = plan.with_schedule(0, by_hand).segments[0].schedule
    assert isinstance(schedule, SegmentSchedule)
    assert schedule.nests() == (
        "for serial in 6:\n  for serial in 128:\n    T1 += sum(T0)\n  T1 is complete  # global",
        "for serial in 6:\n  for serial in 16:\n    for serial in 8:\n      T1 += sum(T0)\n  T1 is complete  # global",
        (
            "for blockIdx.x in 6:\n  for serial in 16:\n    for serial in 8:\n      T1 += sum(T0)\n"
            "  T1 is complete  # global"
        ),
    )


def test_times_say_that_the_kernel_is_evaluated_in_lock_step() -> None:
    plan = softmax_plan()
    edited = lowered_loop_by_loop(plan)
    rows = fl.time([plan, edited], [X], seconds=0.01, progress=False).rows
    assert [("in lock step" in row.note) for row in rows] == [False, False, True, True]
    assert all(row.error < 1 for row in rows)
