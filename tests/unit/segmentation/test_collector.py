"""The garbage collector is paused during segmentation and while texts are parsed, and restored afterwards."""

import ast
import gc
import threading
from contextlib import contextmanager

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


def test_it_is_paused_until_the_last_of_several_threads_has_finished():
    entered, leaves = threading.Event(), threading.Event()

    def pause():
        with collector_paused():
            entered.set()
            leaves.wait()

    other = threading.Thread(target=pause)
    other.start()
    entered.wait()
    with collector_paused():
        leaves.set()
        other.join()
        assert not gc.isenabled()
    assert gc.isenabled()


@contextmanager
def collector_that_parses():
    """Let the collector run often, and call a function that builds a syntax tree."""

    def parse(_phase, _info):
        ast.parse("x")

    thresholds = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(10, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(parse)


def test_scripts_and_schedules_are_parsed_while_the_collector_parses_others(fusion, monkeypatch):
    plan = fl.segment(fusion)
    script, schedule = plan.to_python("nvfuser_direct"), str(plan.segments[0].schedule)

    def read():
        fl.load_repro(script)
        plan.with_schedule(0, schedule)

    read()  # imports modules, which pytest parses
    monkeypatch.setattr(ast, "parse", ast.parse.__wrapped__)  # without the pause of all tests
    with collector_that_parses():
        read()


def test_a_failure_is_reported_while_the_collector_parses_other_texts(request):
    failure = pytest.CallInfo.from_call(lambda: int(""), "call")
    with collector_that_parses():
        assert request.node.ihook.pytest_runtest_makereport(item=request.node, call=failure).failed


def test_functions_of_users_run_with_it(fusion):
    seen = []

    def each_alone(fusion, _oracle):
        seen.append(gc.isenabled())
        return [[expr.name] for expr in fusion.tensor_exprs]

    segment(fusion, SchedulerRegistry(), strategy=each_alone)
    assert seen == [True]
