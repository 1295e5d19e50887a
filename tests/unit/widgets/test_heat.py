from dataclasses import replace

import pytest
from fuser_lab_widgets.heat import heat

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.report.view_model import view_plan


def test_each_colouring_has_its_greatest_segment_and_says_what_it_shows():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(fd.ops.sum(fd.ops.exp(x), [1])))
    plan = fl.segment(fd, strategy="unfused")
    found = heat(plan, view_plan(plan), ())
    moved = [s.bytes_in + s.bytes_out for s in plan.segments]
    for n, count in enumerate(moved):
        assert found["bytes"]["values"][str(n)] == pytest.approx(count / max(moved), abs=1e-3)
    assert max(found["time"]["values"].values()) == 1
    assert "H200" in found["time"]["about"]
    rows = [
        TimingRow(
            plan="a", segment=n, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0, median=1e-3,
            device="CPU (2 threads)", plan_hash=plan.hash,
        )
        for n in range(len(plan.segments))
    ]
    elsewhere, here = (heat(plan, view_plan(plan), taken)["time"]["labels"] for taken in (rows, ()))
    assert set(elsewhere.values()) == {"1.00 ms, this CPU"}
    on_target = heat(plan, view_plan(plan), [replace(row, device="NVIDIA H200") for row in rows])["time"]["labels"]
    assert set(on_target.values()) == {"1.00 ms"}
    assert not any("," in label for label in here.values())
    away = found["roof"]["values"]
    assert away["2"] == 1, "the smallest segment is nearly all launch, so it is the farthest from the roof"
    assert away["0"] < 0.1
