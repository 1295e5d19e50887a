"""A request passes through named steps to source, and decides which kernels are the same."""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from backend.fusions import D, S, build

import fuser_lab as fl
from fuser_lab.analysis.numbering import number_values
from fuser_lab.codegen import kernel_plan
from fuser_lab.codegen.decompose import accurate
from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.codegen.nest_writing import PhaseCode
from fuser_lab.codegen.pipeline import generate, lower, plan_kernel, steps_of, text_of
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Fusion
from fuser_lab.ir.kernel_transforms import is_hint
from fuser_lab.schedule.base import Heuristics
from fuser_lab.schedule.parameters import LoopChange

REWRITES = ("decompose", "accurate", "sums_of_rows")


STEPS = (*REWRITES, "nests", "space", "schedule", "plan", "write", "passes", "sizes", "print")


def softmax_of_columns(fd: Any, x: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [0], keepdim=True)))
    return fd.ops.div(e, fd.ops.sum(e, [0], keepdim=True))


# One nest of each style: ops, shapes of inputs, scheduler, and the style of the first nest.
STYLES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], S, str]] = {
    "elements": (lambda fd, x: fd.ops.exp(x), [(6, 40)], S.POINTWISE, "elements"),
    "tiles": (lambda fd, x, y: fd.ops.add(x, fd.ops.permute(y, [1, 0])), [(64, 96), (96, 64)], S.POINTWISE, "tiles"),
    "rows": (lambda fd, x: fd.ops.sum(x, [1]), [(6, 40)], S.REDUCTION, "rows"),
    "rows in parts": (lambda fd, x: fd.ops.sum(x, [0, 1]), [(2048, 1024)], S.REDUCTION, "rows"),
    "columns": (lambda fd, x: fd.ops.sum(x, [0]), [(64, 40)], S.REDUCTION, "columns"),
    "kept columns": (softmax_of_columns, [(64, 4096)], S.OUTER_PERSISTENT, "columns"),
    "scanned rows": (lambda fd, x: fd.ops.cumsum(x, 1), [(6, 40)], S.GREEDY, "rows"),
    "rows with scans": (lambda fd, x: fd.ops.cumsum(fd.ops.softmax(x, 1), 1), [(6, 40)], S.GREEDY, "rows"),
    "scanned columns": (lambda fd, x: fd.ops.cumsum(x, 0), [(40, 6)], S.GREEDY, "columns"),
    "rows with column sums": (
        lambda fd, x: (fd.ops.mul(x, fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])), fd.ops.sum(x, [0])),
        [(64, 40)], S.INNER_OUTER_PERSISTENT, "rows",
    ),
}


def statistics() -> Fusion:
    return build(lambda fd, x: fd.ops.var_mean(x, [1], correction=0), [(6, 40)], D.Float)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_last_step_is_the_source(target: str) -> None:
    request = KernelRequest(fusion=statistics(), scheduler=S.REDUCTION, target=target)
    steps = dict(steps_of(request))
    assert tuple(steps) == STEPS
    assert text_of(steps["print"]) == generate(request).source
    assert steps["sizes"] == lower(request)
    written = steps["write"]
    assert isinstance(written, Kernel)
    assert not any(phase.sizes for phase in written.phases), "sizes become arguments after this step"
    assert f"def {request.function}" in text_of(written)
    for name in REWRITES:
        assert "kernel_math" in text_of(steps[name])


def test_steps_before_an_error_can_be_looked_at() -> None:
    product = build(lambda fd, x, y: fd.ops.matmul(x, y), [(4, 8), (8, 4)], D.Float)
    steps = steps_of(KernelRequest(fusion=product, scheduler=S.POINTWISE, target="cuda"))
    assert [next(steps)[0] for _ in REWRITES] == list(REWRITES)
    with pytest.raises(CodegenError):
        next(steps)


def test_a_segment_that_no_scheduler_accepts_has_no_kernel() -> None:
    with pytest.raises(CodegenError, match="no scheduler accepts"):
        lower(KernelRequest(fusion=statistics(), scheduler=None))


def test_loops_set_by_hand_have_fewer_steps_and_need_blocks() -> None:
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1, -1], dtype=fl.DataType.Float)))
    (segment,) = fl.segment(fd, [fl.spec((8, 64))]).segments
    loops = tuple(one for one in segment.schedule.transforms if not is_hint(one))
    request = KernelRequest(fusion=segment.fusion, scheduler=S.POINTWISE, target="cuda", loops=loops)
    steps = dict(steps_of(request))
    assert tuple(steps) == ("decompose", "sizes", "print")
    assert text_of(steps["print"]) == generate(request).source
    assert "def by_hand_" in text_of(steps["print"])
    with pytest.raises(CodegenError, match="loops over blocks and threads have no kernel for 'cpu'"):
        lower(replace(request, target="cpu"))


def test_requests_are_equal_up_to_names() -> None:
    fusion = build(lambda fd, x, y: (fd.ops.sub(x, y), fd.ops.exp(y)), [(6, 40)] * 2, D.Float)
    first, second = (tensor.name for tensor in fusion.tensor_inputs)
    request = KernelRequest(fusion=fusion, scheduler=S.POINTWISE, strides={first: (80, 2)})
    other = number_values(build(lambda fd, x, y: (fd.ops.sub(x, y), fd.ops.exp(y)), [(6, 40)] * 2, D.Float))
    renamed = replace(request, fusion=other.fusion, strides={other.names[first]: [80, 2]}, name="another")
    assert request == renamed
    assert len({request, renamed}) == 1
    change = LoopChange(target="cpu", nest=0, values=(("grain", 2),))
    different = (
        replace(request, strides={second: (80, 2)}), replace(request, target="cuda"), replace(request, strides={}),
        replace(request, alignment={first: 4}), replace(request, changes=[change]),
        replace(request, scheduler=S.TRANSPOSE), replace(request, propose=Heuristics().propose),
        replace(request, fusion=statistics()),
    )
    assert len({request, *different}) == 1 + len(different)
    assert request != "request"


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("style", STYLES)
def test_every_writer_receives_the_schedule_that_is_shown(style: str, target: str) -> None:
    record, shapes, scheduler, word = STYLES[style]
    request = KernelRequest(fusion=build(record, shapes, D.Float), scheduler=scheduler, target=target)
    steps = dict(steps_of(request))
    assert tuple(steps) == STEPS
    choices, kernel = steps["schedule"], steps["sizes"]
    assert isinstance(choices, tuple)
    assert isinstance(kernel, Kernel)
    assert choices[0].schedule.style.value == word
    assert all(shown is choice for shown, choice in zip(kernel.nests, choices, strict=True))
    for phase in kernel.phases:
        assert any(phase.schedule is choice.schedule for choice in choices)
    for name, lines in (*((name, len(choices)) for name in ("nests", "space", "plan")), ("write", 10), ("passes", 10)):
        assert len(text_of(steps[name]).splitlines()) >= lines
    assert str(choices[0]) in text_of(choices)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("style", STYLES)
def test_schedules_are_chosen_without_a_writer(style: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record, shapes, scheduler, _ = STYLES[style]
    request = KernelRequest(fusion=build(record, shapes, D.Float), scheduler=scheduler, target=target)
    chosen = lower(request).nests

    def construct(*_: object, **__: object) -> None:
        msg = "code is written"
        raise AssertionError(msg)

    monkeypatch.setattr(PhaseCode, "__init__", construct)
    assert plan_kernel(request).choices == chosen
    with pytest.raises(AssertionError, match="code is written"):
        lower(request)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_segment_shows_the_schedule_that_its_writer_receives(target: str) -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=fl.DataType.Float)
        fd.add_output(fd.ops.mul(x, fd.ops.sum(x, [1], keepdim=True)))
    plan = fl.segment(fd, [fl.spec((64, 256))])
    parameter = {"cpu": {"grain": 4}, "cuda": {"threads": 64}}[target]
    for shown in (plan, plan.with_params(0, target=target, **parameter)):
        (segment,) = shown.segments
        kernel = segment.kernel(target).kernel_ir
        for params in (segment.params(target), segment.schedule_for(target).params):
            assert params[0] is kernel.nests[0]
            assert params[0].schedule is kernel.phases[0].schedule
        assert params[0].is_changed is (shown is not plan)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("style", STYLES)
def test_a_scheduler_that_proposes_the_default_has_the_same_kernel(style: str, target: str) -> None:
    record, shapes, scheduler, _ = STYLES[style]
    request = KernelRequest(fusion=build(record, shapes, D.Float), scheduler=scheduler, target=target)
    assert lower(replace(request, propose=Heuristics().propose)) == lower(request)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_sums_that_are_needed_at_other_positions_go_through_memory(target: str) -> None:
    def record(fd: Any, x: Any, y: Any) -> Any:
        z = fd.ops.mul(y, fd.ops.sub(x, fd.ops.sum(x, [3], keepdim=True)))
        turned = fd.ops.permute(fd.ops.permute(z, [0, 3, 1, 2]), [0, 2, 3, 1])
        return fd.ops.reshape(fd.ops.set(turned), [2 * 7 * 7, 32]), fd.ops.stride_order(z, [3, 1, 0, 2])

    fusion = build(record, [(2, 7, 7, 32)] * 2, D.Float)
    kernel = lower(KernelRequest(fusion=fusion, scheduler=S.INNER_PERSISTENT, target=target))
    assert [len(choice.space.reduced) for choice in kernel.nests] == [1, 0]
    assert [buffer.name for buffer in kernel.workspace] == ["T2_whole"]


def test_the_ops_of_a_kernel_are_rewritten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Fusion] = []

    def counted(fusion: Fusion) -> Fusion:
        calls.append(fusion)
        return accurate(fusion)

    monkeypatch.setattr(kernel_plan, "accurate", counted)
    record, shapes, scheduler, _ = STYLES["rows"]
    request = KernelRequest(fusion=build(record, shapes, D.Float), scheduler=scheduler, target="cpu")
    generate(request, plan_kernel(request))
    assert len(calls) == 1


def test_the_plan_of_rows_says_in_which_memory_each_step_stays() -> None:
    def softmax(fd: Any, x: Any) -> Any:
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        return fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True))

    fusion = build(softmax, [(64, 1 << 17)], D.Float)
    steps = dict(steps_of(KernelRequest(fusion=fusion, scheduler=S.INNER_PERSISTENT, target="cuda")))
    (style,) = steps["plan"]
    sections = style.plan.sections
    assert [section.first for section in sections] == [0, *accumulate(section.count for section in sections[:-1])]
    assert sum(section.count for section in sections) == style.plan.steps
    assert "saved=[Saved(tensor=T0, written=0)" in text_of(steps["plan"])
    assert text_of(steps["plan"]).count("place=") == len(sections) > 1


@pytest.mark.parametrize(("target", "counts"), [("cuda", (30, 3)), ("cpu", (28, 3))])
def test_the_files_that_a_row_sum_passes_are_listed_in_the_design(target: str, counts: tuple[int, int]) -> None:
    record, shapes, scheduler, _ = STYLES["rows"]
    request = KernelRequest(fusion=build(record, shapes, D.Float), scheduler=scheduler, target=target)
    package, files = Path(fl.__file__).parent, set[Path]()

    def note(frame: FrameType, event: str, _: object) -> None:
        # Bodies of modules and classes run when they are imported, perhaps here.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            files.add(Path(frame.f_code.co_filename))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        generate(request)
    finally:
        sys.setprofile(before)
    passed = {room: {file.stem for file in files if file.parent == package / room} for room in ("codegen", "schedule")}
    assert tuple(map(len, passed.values())) == counts, "docs/design.md has the counts and the list"
    design = (package.parent / "docs" / "design.md").read_text()
    (listed,) = re.findall(r"^On its way from segment to source.*?(?=^\*\*)", design, re.MULTILINE | re.DOTALL)
    assert set().union(*passed.values()) <= set(re.findall(r"`(\w+)`", listed))
    assert all(str(count) in listed.partition("\n\n")[0] for count in counts)


def test_the_example_of_the_design_page_prints_each_step(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (repository / "docs" / "design.md").read_text("utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (example,) = [code for code in examples if "steps_of" in code]
    exec(example, {})
    printed = capsys.readouterr().out
    assert re.findall(r"^--- (\w+)$", printed, re.MULTILINE) == list(STEPS)
    assert "keeps i0 < 64; reduces r0 < 96" in printed
    assert "def reduction_" in printed.rpartition("--- print")[2]
