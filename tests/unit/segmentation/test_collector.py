"""The garbage collector is paused during segmentation, and restored afterwards."""

import gc

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import InputError
from fuser_lab.process.collector import collector_paused
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import segment


@pytest.fixture
def fusion():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[4, 8], dtype=DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), dims=[1]))
    return fl.segment(fd).fusion


class Watching(SchedulerRegistry):
    """Schedulers that record whether the collector is enabled when they are asked."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def ask(self, candidate):
        self.seen.add(gc.isenabled())
        return super().ask(candidate)


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "unfused"])
def test_it_is_paused_and_goes_on(fusion, strategy):
    oracle = Watching()
    segment(fusion, oracle, strategy=strategy)
    assert oracle.seen == {False}
    assert gc.isenabled()


def test_it_goes_on_after_an_error(fusion):
    with pytest.raises(InputError, match="unknown"):
        segment(fusion, SchedulerRegistry(), strategy="sideways")
    assert gc.isenabled()


def test_whoever_paused_it_before_goes_on_pausing():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_functions_of_users_run_with_it(fusion):
    seen = []

    def each_alone(fusion, _oracle):
        seen.append(gc.isenabled())
        return [[expr.name] for expr in fusion.tensor_exprs]

    segment(fusion, SchedulerRegistry(), strategy=each_alone)
    assert seen == [True]
