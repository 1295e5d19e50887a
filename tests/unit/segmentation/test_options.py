"""Options under nvFuser's names: the effect of each, and clear sentences for unknown names."""

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
        ({"enable": ["id_model"]}, InputError, "enable\\[0\\] must be 'fuse_mat"),
        ({"disable": ["everything"]}, InputError, "disable\\[0\\] must be 'kernel_reuse', "),
        ({"disable_preseg": ["MovePad"]}, InputError, "disable_preseg\\[0\\] must be 'AddAxiomsPass', "),
        ({"segmenter": {"run_all": True}}, InputError, "segmenter must be 'run_combine_reductions', "),
        ({"segmenter": {"run_final_merge": 1}}, ArgumentTypeError, r"segmenter\['run_final_merge'\] must be True or"),
        ({"segmenter": True}, ArgumentTypeError, "segmenter must be a dict of switches or None, given True"),
        ({"entry": "front_door"}, InputError, "entry must be 'executor_cache' or 'segmenter_only', given"),
        ({"enable": "fuse_matmul"}, ArgumentTypeError, "enable must be a list of names among fuse_matmul, "),
        ({"requires": 9.0}, ArgumentTypeError, "requires must be a str or None, given 9.0"),
    ],
)
def test_names_that_are_none(given, error, text):
    with pytest.raises(error, match=f"from_nvfuser: {text}"):
        SegmenterOptions.from_nvfuser(**given)


SWITCHES = [field.name for field in fields(SegmenterOptions) if isinstance(field.default, bool)]


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("given", ["off", float("nan"), 0, None])
def test_switches_are_true_or_false(name, given):
    assert len(SWITCHES) == 16
    with pytest.raises(ArgumentTypeError, match=f"^SegmenterOptions: {name} must be True or False, given {given!r}"):
        SegmenterOptions(**{name: given})


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"segment_set": "nope"}, InputError, "segment_set must be 'hint', 'cut' or 'ignore', given 'nope'."),
        ({"disabled_schedulers": ["nope"]}, InputError, "disabled_schedulers[0] must be 'expr_eval', 'greedy', "),
        (
            {"disabled_schedulers": "yes"}, ArgumentTypeError,
            "disabled_schedulers must be a list of names among expr_eval, greedy, ",
        ),
        ({"disabled_schedulers": None}, ArgumentTypeError, "disabled_schedulers must be a list of names among expr_ev"),
        ({"disabled_schedulers": [["resize"]]}, ArgumentTypeError, "or a SchedulerType, given ['resize']."),
        (
            {"forward_factories": None}, ArgumentTypeError,
            "forward_factories must be a list of names among constant, full, iota, given None.",
        ),
        ({"forward_factories": [[]]}, ArgumentTypeError, "must be 'constant', 'full' or 'iota', given []."),
        ({"disabled_passes": None}, ArgumentTypeError, "disabled_passes must be a list of names among allocation_do"),
        ({"disabled_passes": ["nope"]}, InputError, "disabled_passes[0] must be 'allocation_domain', 'consecutive_ca"),
        (
            {"least_capability": "9.0"}, ArgumentTypeError,
            "least_capability must be two whole numbers such as (9, 0) or None, given '9.0'.",
        ),
        ({"least_capability": (9,)}, InputError, "must be two whole numbers such as (9, 0), given (9,)."),
        ({"search_seconds": float("nan")}, InputError, "must be a finite number of at least 0, given nan."),
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
    with pytest.raises(InputError, match="the options require compute capability 9.0, but target A100 has 8.0"):
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
