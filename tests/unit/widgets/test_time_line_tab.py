import re

from fuser_lab_widgets import panels

import fuser_lab as fl
from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.report.view_model import view_plan


def rows_of(plan, medians, whole):
    return [
        TimingRow(
            plan="a", segment=n, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0, median=median,
            device="CPU (2 threads)", plan_hash=plan.hash,
        ) for n, median in [*enumerate(medians), (None, whole)]
    ]


def test_the_tab_says_what_is_missing_and_how_it_is_measured(stubs):
    plan = fl.segment(*fl.example("softmax"), strategy="unfused")
    view, count = view_plan(plan, decisions=False), len(plan.segments)
    predicted = panels.time_line(plan, view, ())
    assert predicted.count('<g class="fl-point"') == count
    assert "Press Run to measure it." in predicted
    assert "fl.time(plans, inputs)" in panels.time_line(plan, view, (), fixed=True)
    both = panels.time_line(plan, view, rows_of(plan, [1e-3] * count, count * 1.5e-3))
    assert both.count('<g class="fl-point"') == 2 * count
    assert "Run" not in both
    assert re.findall(r'data-id="(segment:\d+)" tabindex', both) == [f"segment:{n}" for n in range(count)]
    busy = panels.time_line(plan, view, rows_of(plan, [1e-3] * count, 1e-3))
    assert f"except where segments took {count - 1}.00 ms more than the run" in busy
    assert "except where" not in both
    assert "−" not in re.sub("<[^>]*>", "", busy)
    stub = stubs.sum_broadcast_add()
    assert "no predicted times" in panels.time_line(stub, view_plan(stub), ())
