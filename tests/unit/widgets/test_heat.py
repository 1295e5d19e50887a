import pytest
from fuser_lab_widgets.heat import heat

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
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
    away = found["roof"]["values"]
    assert away["2"] == 1, "the smallest segment is nearly all launch, so it is the farthest from the roof"
    assert away["0"] < 0.1
