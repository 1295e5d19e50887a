"""Each kernel parameter has an effect: some legal value changes the schedule on show and the kernel."""

from typing import Any

import pytest

import fuser_lab as fl
from fuser_lab.codegen.kernel_ir import Launch
from fuser_lab.codegen.kernel_plan import EVALUATED
from fuser_lab.codegen.pipeline import generate
from fuser_lab.plan.requests import request_of
from fuser_lab.schedule.state import PARAMETERS, Parameter
from fuser_lab.schedule.suggestions import suggestions
from tests.unit.codegen.test_pipeline import STYLES


def weighted_rows(fd: fl.FusionDefinition, x: Any, w: Any) -> tuple[Any, Any]:
    """Rows that add to column sums, with values that all rows share."""
    weighted = fd.ops.mul(x, fd.ops.broadcast(w, [True, False]))
    return fd.ops.mul(weighted, fd.ops.sum(weighted, [1], keepdim=True)), fd.ops.sum(x, [0])


def texts(segment: Any, target: str) -> tuple[str, list[Launch]]:
    """The source of a segment's kernel, and how it is launched."""
    kernel = generate(request_of(segment, target))
    return kernel.source, [phase.launch for phase in kernel.kernel_ir.phases]


PROGRAMS = {
    **{name: (record, shapes) for name, (record, shapes, _, _) in STYLES.items()},
    "softmax": (lambda fd, x: fd.ops.softmax(x, 1), [(64, 96)]),
    "weighted rows": (weighted_rows, [(64, 40), (40,)]),
    "sum of long rows": (lambda fd, x: fd.ops.sum(x, [1]), [(512, 4096)]),
    "sum of a transposed tensor": (lambda fd, x: fd.ops.sum(fd.ops.permute(x, [1, 0]), [0]), [(512, 4096)]),
}


def plan_of(name: str) -> fl.Plan:
    record, shapes = PROGRAMS[name]
    with fl.FusionDefinition() as fd:
        made = record(fd, *(fd.define_tensor(list(shape), True, dtype=fl.DataType.Float) for shape in shapes))
        for output in made if isinstance(made, tuple) else (made,):
            fd.add_output(output)
    return fl.segment(fd)


@pytest.fixture(scope="module")
def plans() -> list[fl.Plan]:
    return [plan_of(name) for name in PROGRAMS]


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.name)
def test_a_value_changes_the_schedule_and_the_kernel(parameter: Parameter, plans: list[fl.Plan]) -> None:
    tried = list[str]()
    for plan in plans:
        segment = plan.segments[0]
        if segment.scheduler in EVALUATED:
            continue
        for target in ("cuda", "cpu"):
            nest = segment.params(target)[0]
            if parameter.name not in nest.names:
                continue
            others = [dict(values) for values in suggestions(nest) if list(dict(values)) == [parameter.name]]
            if parameter.is_flag:
                others.append({parameter.name: not nest.values[parameter.name]})
            for values in others:
                try:
                    changed = plan.with_params(segment.index, target=target, **values).segments[segment.index]
                except fl.errors.ScheduleError:
                    continue
                tried.append(f"{values} of {segment.scheduler.value} on {target}")
                shown = target == "cpu" or str(changed.schedule) != str(segment.schedule)
                if shown and texts(changed, target) != texts(segment, target):
                    return
    pytest.fail(
        f"{parameter.name}: no value changes both the schedule on show and the kernel. Tried: "
        f"{'; '.join(tried) or 'none: no nest has the parameter; add values to `tried` of its row in PARAMETERS'}. "
        "The writers must read the field of LoopSchedule, and `suggestions` or `tried` must have a legal value.",
    )
