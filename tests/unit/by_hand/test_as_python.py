"""A schedule printed as Python is a complete script: on an equal definition it makes the same schedule."""

import pytest
from hand_schedules import CASES

from fuser_lab import nvfuser_direct
from fuser_lab.api.functions import FusionDefinition
from fuser_lab.ir.transform import GLOBAL, MemoryType
from fuser_lab.ir.transform import ParallelType as P


def made_again(script, fresh):
    exec(script, {"fd": fresh})
    return fresh.sched


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_script_needs_nothing_but_an_equal_definition(case):
    fd, fresh = case.build(), case.build()
    fresh.sched.undo(len(fresh.sched.transforms))
    script = fd.sched.to_python()
    sched = made_again(script, fresh)
    assert sched.transforms == fd.sched.transforms
    assert str(sched) == str(fd.sched)
    assert sched.to_python() == script


def chain():
    """x -> exp -> neg -> relu, with an intermediate output and one at the end."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        a = fd.ops.exp(x)
        b = fd.ops.neg(a)
        fd.ops.abs(x)  # no output needs it
        c = fd.ops.relu(b)
        fd.add_output(b)
        fd.add_output(c)
    return fd, x, a, b, c


def test_every_kind_of_argument_is_written_so_that_python_reads_it():
    fd, x, a, b, c = chain()
    copy = x.cache_after(cached_uses=[a])
    b.cache_fork()
    c.set_memory_type(GLOBAL)
    copy.set_memory_type(MemoryType.shared)
    c.reorder({0: 1})
    c.split(0, 4, inner_split=False)
    c.bounded_transform_backward(-1, [a])
    c.transform_like([copy])
    c.parallelize(0, P.block_x)
    c.parallelize_like(-1, [a, b], [P.block_x])
    a.compute_at(b, 1, "best_effort")
    fd.sched.inline_at(c, 1, best_effort=True, selected_tensors=[b])
    a.inline_most()
    fd.sched.inline_most()
    script = fd.sched.to_python()
    fresh = chain()[0]
    sched = made_again(script, fresh)
    assert sched.transforms == fd.sched.transforms
    assert str(sched) == str(fd.sched)
    assert script.splitlines()[:2] == [
        "from fuser_lab import MemoryType, ParallelType", "",
    ]


def test_without_transforms_there_is_no_code():
    assert chain()[0].sched.to_python() == ""


def test_a_definition_of_nvfuser_direct_is_written_too():
    def build():
        with nvfuser_direct.FusionDefinition() as fd:
            x = fd.define_tensor(shape=[-1, -1], contiguity=True)
            y = fd.ops.exp(x)
            fd.add_output(y)
        return fd, y

    (fd, y), (fresh, _) = build(), build()
    fd.sched.split(y, 1, 4)
    fd.sched.merge(y, 0, 1)
    assert fd.sched.to_python().startswith('T1 = fd.sched.tensor("T1")\nT1.split(')
    assert made_again(fd.sched.to_python(), fresh).transforms == fd.sched.transforms
