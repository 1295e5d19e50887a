"""Switches under nvFuser's names: what each does, and clear sentences for names that are none."""

import re
from dataclasses import fields

import pytest

import fuser_lab as fl
from fuser_lab import SegmenterOptions
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.passes import PRESEGMENTATION
from fuser_lab.segmentation import options as module


def test_nothing_given_is_the_default():
    assert SegmenterOptions.from_nvfuser() == SegmenterOptions()


def test_each_name_does_what_it_says():
    made = SegmenterOptions.from_nvfuser(
        enable=[
            "fuse_matmul", "io_to_lower_precision", "memory_promotion", "warp_specialized_normalization",
            "resize_scheduler",
        ],
        disable=["resize_scheduler", "kernel_reuse", "parallel_compile"],
        disable_preseg=["MarkAliasesPreparePass", "AllocationDomainPass", "AddAxiomsPass"],
        segmenter={
            "run_combine_reductions": False, "run_herrmann_merge": False, "run_final_merge": False,
            "run_translate_welford": False,
        },
        requires="compute capability 9.0",
    )
    assert made == SegmenterOptions(
        fuse_matmul=True, io_to_lower_precision=True, memory_promotion=True, disabled_schedulers=["resize"],
        disabled_passes=["mark_aliases_prepare", "allocation_domain"], combine_reductions=False, level_merge=False,
        final_merge=False, welford=False, least_capability=(9, 0),
    )


def test_the_segmenter_alone_runs_no_passes_and_does_not_try_the_whole_fusion():
    made = SegmenterOptions.from_nvfuser(entry="segmenter_only")
    assert not made.whole_fusion
    assert made.disabled_passes == {p.name for p in PRESEGMENTATION.passes if p.nvfuser}
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        fd.add_output(fd.ops.permute(fd.ops.mul(x, x), [1, 0]))
    plan = fl.segment(fd, options=made)
    assert not plan.decisions.passes
    assert {a.phase for a in plan.decisions}.isdisjoint({"whole fusion"})


def test_every_pass_of_nvfuser_has_a_name_here():
    known = module._PASSES
    assert len(known) == 20
    for name in known:
        SegmenterOptions.from_nvfuser(disable_preseg=[name])


def test_every_name_is_documented():
    text = SegmenterOptions.from_nvfuser.__doc__
    for name in (*module._ENABLE, *module._DISABLE, *module._PHASES, *module._ENTRIES):
        assert name in text, name


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"enable": ["id_model"]}, InputError, "enable names 'id_model', which is unknown here; there are 'fuse_mat"),
        ({"disable": ["everything"]}, InputError, "disable names 'everything', which is unknown here"),
        ({"disable_preseg": ["MovePad"]}, InputError, "disable_preseg names 'MovePad', which is unknown here"),
        ({"segmenter": {"run_all": True}}, InputError, "segmenter names 'run_all', which is unknown here"),
        ({"segmenter": {"run_final_merge": 1}}, ArgumentTypeError, r"segmenter\['run_final_merge'\] must be True or"),
        ({"segmenter": True}, ArgumentTypeError, "segmenter must map names of switches to True and False, given True"),
        ({"entry": "front_door"}, InputError, "entry 'front_door' is unknown; there are 'executor_cache', 'segmenter"),
        ({"enable": "fuse_matmul"}, ArgumentTypeError, "enable must be a list of names, given 'fuse_matmul'"),
        ({"requires": 9.0}, ArgumentTypeError, "requires must be a text such as 'compute capability 9.0', given 9.0"),
    ],
)
def test_names_that_are_none(given, error, text):
    with pytest.raises(error, match=f"from_nvfuser: {text}"):
        SegmenterOptions.from_nvfuser(**given)


SWITCHES = [field.name for field in fields(SegmenterOptions) if isinstance(field.default, bool)]


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("given", ["off", float("nan"), 0, None])
def test_switches_are_true_or_false(name, given):
    assert len(SWITCHES) == 14
    with pytest.raises(ArgumentTypeError, match=f"^{name} must be True or False, given {given!r}\\.$"):
        SegmenterOptions(**{name: given})


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"segment_set": "nope"}, InputError, "segment_set: 'nope' is unknown; there are 'cut', 'hint', 'ignore'."),
        (
            {"disabled_schedulers": ["nope"]}, InputError,
            "disabled_schedulers names 'nope', which is unknown here; there are 'expr_eval', 'greedy', ",
        ),
        (
            {"disabled_schedulers": "yes"}, ArgumentTypeError,
            "disabled_schedulers must be a list of names, given 'yes'; there are 'expr_eval', 'greedy', ",
        ),
        ({"disabled_schedulers": None}, ArgumentTypeError, "must be a list of names, given None; there are 'expr_ev"),
        ({"disabled_schedulers": [["resize"]]}, InputError, "disabled_schedulers names ['resize'], which is unknown"),
        (
            {"forward_factories": None}, ArgumentTypeError,
            "forward_factories must be a list of names, given None; there are 'constant', 'full', 'iota'.",
        ),
        ({"forward_factories": 3}, ArgumentTypeError, "forward_factories must be a list of names, given 3; there are"),
        ({"forward_factories": [[]]}, InputError, "forward_factories: [] cannot be recomputed; there are 'constant'"),
        (
            {"disabled_passes": None}, ArgumentTypeError,
            "disabled_passes must be a list of names, given None; there are 'allocation_domain', ",
        ),
        ({"disabled_passes": ["nope"]}, InputError, "disabled_passes names 'nope', which is unknown here; there are"),
        (
            {"least_capability": "9.0"}, ArgumentTypeError,
            "least_capability must be two whole numbers such as (9, 0), or None, given '9.0'.",
        ),
        ({"least_capability": 3}, ArgumentTypeError, "must be two whole numbers such as (9, 0), or None, given 3."),
        ({"least_capability": [1]}, ArgumentTypeError, "must be two whole numbers such as (9, 0), or None, given [1]."),
    ],
)
def test_values_that_a_field_does_not_take(given, error, text):
    with pytest.raises(error, match=re.escape(text)):
        SegmenterOptions(**given)


def test_schedulers_are_switched_off_by_name_or_by_type():
    assert SegmenterOptions(disabled_schedulers=[SchedulerType.RESIZE]) == SegmenterOptions(
        disabled_schedulers={"resize"},
    )


def test_a_target_that_does_not_suffice_is_refused():
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([4])))
    needed = SegmenterOptions.from_nvfuser(requires="compute capability 9.0")
    assert fl.segment(fd, options=needed).target == "H200"
    with pytest.raises(InputError, match="the options need compute capability 9.0; target A100 has 8.0"):
        fl.segment(fd, options=needed, target="A100")


def test_options_are_part_of_the_code_that_makes_a_plan():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        fd.add_output(fd.ops.permute(fd.ops.mul(x, x), [1, 0]))
    options = SegmenterOptions.from_nvfuser(
        enable=["memory_promotion"], disable_preseg=["MarkAliasesPreparePass"], requires="compute capability 8.0",
    )
    plan = fl.segment(fd, options=options)
    names = {}
    exec(plan.to_python(), names)
    assert names["plan"] == plan
    assert len(plan.segments) == 1
