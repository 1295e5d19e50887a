"""The profile in the explorer: its plan, its source, and the text if there is none."""

import numpy as np
import pytest
from fuser_lab_widgets import Explorer, profiling
from unit.widgets import drawn

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.errors import ArgumentTypeError, InputError, UnsupportedError


def scaled(factor=2.0):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.relu(fd.ops.sum(fd.ops.mul(x, factor), dims=[0])))
    return fl.segment(fd, [fl.spec((64, 32))])


def ask(explorer, **event):
    explorer.events = [{"n": explorer.acked + 1, **event}]


def look(explorer, target="cpu"):
    ask(explorer, type="source", segment=0, target=target, view="profile")
    return explorer.source


def test_a_profile_belongs_to_the_plan_that_was_profiled():
    explorer = Explorer(scaled(), [np.ones((64, 32), np.float32)])
    assert look(explorer)["unprofiled"]
    ask(explorer, type="profile", target="cpu", plan=explorer.scene["plan"])
    explorer.wait()
    first = explorer.source
    assert "T0" in first["columns"][0][1]
    assert "Line" in first["columns"][1][1]
    ask(explorer, type="strategy", strategy="bottom_up")
    assert look(explorer)["columns"] == first["columns"]
    ask(explorer, type="cut", id=next(e[0] for e in drawn.edges(explorer) if e[1] == "inside"))
    assert explorer.plan.hash != first["hash"]
    assert look(explorer)["unprofiled"]
    ask(explorer, type="undo")
    assert look(explorer)["columns"] == first["columns"]
    explorer.close()


def test_a_profile_of_another_plan_is_refused():
    found = fl.profile(scaled())
    with pytest.raises(InputError, match="the profile is of another plan"):
        fl.explore(scaled(3.0), profile=found)
    with pytest.raises(ArgumentTypeError, match=r"profile must be the result of fl\.profile"):
        fl.explore(scaled(), profile=3)


def test_without_inputs_the_cpu_is_not_profiled_and_says_so():
    explorer = Explorer(scaled())
    look(explorer)
    ask(explorer, type="profile", target="cpu", plan=explorer.scene["plan"])
    explorer.wait()
    assert "give the explorer arrays" in explorer.status["text"]
    assert explorer.source["unprofiled"]
    with pytest.raises(UnsupportedError, match="A profile on the CPU runs the kernels"):
        profiling.profile_plan(scaled(), None, "cpu")
    explorer.close()


def test_a_profile_that_was_passed_is_shown():
    plan = scaled()
    found = fl.profile(plan)
    explorer = fl.explore(plan, profile=found)
    said = look(explorer, "cuda")["columns"][1]
    assert said[0] == "Profile, H200"
    assert found.rows[0].sentence[:30] in said[1]
    assert look(explorer, "cpu")["unprofiled"]
    explorer.close()
