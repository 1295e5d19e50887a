"""Plans expressed as annotations: found by searching, checked by segmenting."""

import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.errors import InputError
from tests.random_annotations import company, problem, random_plan, read_again


def two_norms():
    """Lesson 04's fusion, which bottom-up cuts into three segments although two are possible."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([4096, 4096], contiguity=True) for _ in range(2))
        a = fd.ops.exp(x)
        b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, [1]), [False, True]))
        columns = fd.ops.broadcast(fd.ops.sum(b, [0]), [True, False])
        fd.add_output(fd.ops.add(fd.ops.mul(b, columns), y))
        fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), [1]))
    return fd


def chain(count):
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([1024, 1024], contiguity=True) for _ in range(2))
        x = fd.ops.add(x, y)
        for _ in range(count):
            x = fd.ops.sin(x)
        fd.add_output(x)
    return fd


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        # The search for the largest example's best plan runs until the time limit.
        pytest.param(s, n, marks=pytest.mark.matrix if (s, n) == ("optimal", "llama3_rope_backward") else ())
        for s in ("bottom_up", "top_down", "optimal") for n in fl.examples.names()
    ],
)
def test_plans_of_examples_are_told(name, strategy):
    plan = fl.segment(*fl.example(name, "full"), strategy=strategy)
    told = plan.to_annotations()
    assert told
    assert told.fewest
    assert company(told.plan) == company(plan)
    assert read_again(told.plan).hash == told.plan.hash


def test_what_nvfuser_today_cannot_be_told_has_a_reason():
    plan = fl.segment(*fl.example("reshape_decides", "full"), strategy="optimal")
    assert str(plan.to_annotations()) == "T3 -> T6, T8 (bottom-up, segment_set as a cut; the fewest)"
    hints = plan.to_annotations(segment_set="hint")
    assert hints.way.strategy == "top_down"
    assert hints.annotations == plan.to_annotations().annotations
    today = plan.to_annotations(strategy="bottom_up", segment_set="hint")
    assert not today
    assert len(today.reasons) == 1
    assert "T3 and T4 are in one segment in this plan" in today.reasons[0]
    with pytest.raises(InputError, match="strategy must be 'bottom_up' or 'top_down'"):
        plan.to_annotations(strategy="optimal")


def test_what_a_search_found_is_something_that_nvfuser_can_be_told():
    plan = fl.segment(two_norms(), strategy="optimal")
    assert (len(fl.segment(two_norms()).segments), len(plan.segments)) == (3, 2)
    told = plan.to_annotations()
    assert told.fewest
    script = told.plan.to_python("nvfuser_direct")
    assert script.count("fd.ops.segment_set(") == len(told.annotations)
    again = fl.segment(*fl.load_repro(script), strategy=told.way.strategy, options=told.plan.options)
    assert again.hash == told.plan.hash


def test_cuts_that_were_clicked_become_annotations():
    plan = fl.segment(chain(4)).cut("T3").cut("T5")
    told = plan.to_annotations()
    assert [(one.tensor, one.readers) for one in told.annotations] == [("T3", ("T4",)), ("T5", ("T6",))]
    assert str(told) == "T3 -> T4; T5 -> T6 (bottom-up, segment_set as a hint; the fewest)"
    again = told.plan.to_annotations()
    assert again.annotations == told.annotations
    assert company(again.plan) == company(plan)


def test_annotations_that_are_not_needed_are_left_out():
    plan = fl.segment(chain(4), options=fl.SegmenterOptions(segment_set="ignore")).annotate("T3")
    assert plan.annotations
    assert plan.to_annotations().annotations == ()


def test_of_many_places_none_that_is_found_can_be_left_out():
    plan = fl.segment(chain(12), strategy="unfused")
    told = plan.to_annotations(tries=30)
    assert told
    assert not told.fewest
    assert len(told.annotations) == 12
    assert company(told.plan) == company(plan)
    assert "none of those added can be removed" in str(told)


def test_a_partition_that_no_segmenter_makes_has_a_reason_for_each_way():
    with FusionDefinition() as fd:
        x = fd.define_tensor([1024, 1024], contiguity=True)
        a = fd.ops.segment_set(fd.ops.sin(x))
        fd.add_output(fd.ops.exp(a))
    # Gluing overrules the hint, which no form of annotations does if the definition has it; without it, none is needed.
    glued = fl.segment(fd).glue(0, 1)
    assert glued.to_annotations().annotations == ()
    with FusionDefinition() as fd:
        x = fd.define_tensor([1024, 1024], contiguity=True)
        for op in ("sin", "cos", "exp"):
            fd.add_output(getattr(fd.ops, op)(x))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [["T1", "T2"], ["T3"]])
    told = plan.to_annotations()
    assert not told
    assert told.plan is None
    assert len(told.reasons) == 5
    assert told.reasons[0].startswith("bottom-up, segment_set as a hint, nothing to annotate: ")
    assert "No set of annotations" in str(told)


def test_random_plans_are_told_or_have_a_reason():
    # `python -m tests.random_annotations --count 1000` does the same for a thousand.
    found = {index: problem(random_plan(17, index), tries=20)[0] for index in range(12)}
    assert not any(found.values())
