"""Scripts in the forms of nvFuser's issues and tests, as people paste them."""

from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import DefinitionError
from fuser_lab.interpreter import evaluate
from tests.agreement import bound, check_kernels, tolerance_of
from tests.unit.definition.repro_answers import ANSWERS

FORMS = Path(__file__).parents[2] / "data" / "repro_forms"
TEXTS = {p.stem: p.read_bytes().decode() for p in sorted(FORMS.glob("*.txt"))}

# Ops that are recorded; shapes and strides of the inputs.
KNOWN = {
    "cond_fixture": (["exp"], [((10, 5), (5, 1))]),
    "lambda_helper": (["relu"], [((8, 8), (8, 1))]),
    "nested_unused": (["cast", "cast", "mul"], [((2, 64, 32), (0, 0, 1)), ((2, 64, 32), (2048, 32, 1))]),
    "opinfo": (
        ["broadcast", "expand", "cast", "cast", "add", "reshape", "permute"],
        [((2, 16, 32), (512, 32, 1)), ((32,), (1,)), ((2, 16, 32), (512, 32, 1))],
    ),
    "parametrize_if": (["sum", "broadcast", "cast"], [((4, 8), (8, 1))]),
    "partial": (["slice"], [((10, 12), (12, 1))]),
    "raises": (["neg"], [((4, 4), (4, 1))]),
    "strides": (["relu", "neg", "neg"], [((3, 8, 4), (1, 3, 24)), ((3, 8), (8, 1)), ((3, 8, 4), (1, 3, 24))]),
    "ternary": (["cast", "sum", "broadcast", "div"], [((16, 32), (32, 1))]),
    "thunder": (["add", "mul"], [((16, 16), (16, 1)), ((16, 16), (16, 1))]),
}


def test_every_text_has_an_answer():
    assert TEXTS.keys() == KNOWN.keys() | ANSWERS.keys()
    assert KNOWN.keys().isdisjoint(ANSWERS)


@pytest.mark.parametrize("name", KNOWN)
def test_forms(name):
    fd, inputs = fl.load_repro(TEXTS[name])
    ops, layouts = KNOWN[name]
    assert [expr.op.name for expr in fd.fusion.exprs] == ops
    assert [(value.shape, value.strides) for value in inputs] == layouts


@pytest.mark.parametrize("name", ANSWERS)
def test_forms_define_what_is_said_by_hand(name):
    fd, inputs = fl.load_repro(TEXTS[name])
    known = ANSWERS[name]
    with FusionDefinition() as direct:
        known.define(direct)
    assert str(fd) == str(direct)
    assert fd.fusion == direct.fusion
    assert [(v.shape, v.strides) if isinstance(v, TensorSpec) else v for v in inputs] == list(known.inputs)
    notes = [note for note in fd.notes if "numbers of their own" not in note]
    assert len(notes) == len(known.notes)
    assert all(said in note for note, said in zip(notes, known.notes, strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TEXTS)
def test_what_is_loaded_runs_with_the_inputs_of_the_script(name):
    fd, inputs = fl.load_repro(TEXTS[name])
    arrays = [v.materialize(n) if isinstance(v, TensorSpec) else v for n, v in enumerate(inputs)]
    fusion = bound(fd, arrays)
    wanted = evaluate(fusion, arrays)
    assert [out.shape for out in wanted] == [out.shape for out in fusion.outputs]
    # Lock step takes a while for a million elements.
    if sum(np.size(x) for x in arrays) < 70_000:
        check_kernels(fd, arrays, wanted, tolerance_of(fusion), targets=["cpu"])


def test_what_was_taken_for_granted_is_noted():
    assert fl.load_repro(TEXTS["raises"])[0].notes == (
        "line 13: the script expects an error here, which nvFuser raises",
    )
    notes = fl.load_repro(TEXTS["parametrize_if"])[0].notes
    assert [note.partition(": ")[2] for note in notes] == [
        "of several values for dtype, keepdim, the first are used", "of several values for size, the first are used",
    ]
    assert fl.load_repro(TEXTS["partial"])[0].notes == ()


SYSTEM = """
import os, shutil
from os import system
from nvfuser import FusionDefinition
os.system("echo 1")
class Sharded(FusionDefinition):
    def definition(self):
        shutil.rmtree("a")
        system(os.path.join("a", "b"))
        self.add_output(self.ops.neg(self.define_tensor([-1])))
    def multidevice_schedule(self):
        self.sched._set_device_mesh(self.a, None)
fd = Sharded()
fd.execute([torch.randn(4)])
"""


def test_calls_that_would_act_on_the_system_are_noted():
    assert fl.load_repro(SYSTEM)[0].notes == (
        "line 5: os.system(...) is skipped",
        "the script's user schedule is skipped",
        "line 8: shutil.rmtree(...) is skipped",
        "line 9: system(...) is skipped",
    )


def test_refusals_have_the_names_of_the_script():
    line = "T7 = fd.ops.neg(x); T42 = fd.ops.neg(fd.ops.neg(T7)); fd.add_output(T42, T7)"
    script = HEAD + BLOCK.format(line=line, size=3)
    with pytest.raises(DefinitionError, match="alias_input T7 is not an input of the fusion"):
        fl.load_repro(script)


def test_a_trace_without_its_regions_says_what_prints_them():
    trace = TEXTS["thunder_regions"].partition("def nvfusion0")[0]
    with pytest.raises(DefinitionError, match=r"the trace calls nvFusion0, .*python_ctx\(\)\['nvFusion0'\].last_used"):
        fl.load_repro(trace)


HEAD = "import torch\nfrom nvfuser_direct import FusionDefinition\n"
BLOCK = """
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    {line}
    fd.add_output(x)
fd.execute([torch.randn({size}, 6)])
"""


@pytest.mark.parametrize(
    ("before", "size", "rows"),
    [
        ("n = 3 if 2 > 1 else 4", "n", 3),
        ("n = 3\nif n == 3 and not n is None:\n    n += 1\nelse:\n    n = 9", "n", 4),
        ("n = 5\nif n in [1, 2] or n > 7:\n    n = 1\nelif n <= 5:\n    n = 2", "n", 2),
        ("n = torch.randn(7, 2).numel()", "n", 14),
        ("n = torch.randn(7, 2).t().stride(0) + 6", "n", 7),
        ("m = torch.cuda.device_count()\nif m > 3:\n    k = 1\nn = 2", "n", 2),
    ],
)
def test_conditions_on_the_scripts_own_values(before, size, rows):
    assert fl.load_repro(f"{HEAD}{before}{BLOCK.format(line='pass', size=size)}")[1][0].shape == (rows, 6)


def test_a_condition_that_is_not_read_decides_nothing():
    text = HEAD + "n = 3\nif torch.cuda.device_count() > 3:\n    n = 1\n" + BLOCK.format(line="pass", size="n")
    with pytest.raises(DefinitionError, match="is not read"):
        fl.load_repro(text)
    text = HEAD + BLOCK.format(line="if torch.version.cuda:\n        x = fd.ops.neg(x)", size="3")
    with pytest.raises(DefinitionError, match="the branch's condition depends on a value that is not read"):
        fl.load_repro(text)


def test_many_comparisons_with_long_lists_end():
    text = HEAD + "a = [1] * 9999\n" + "k = 2 in a\n" * 20_000 + BLOCK.format(line="pass", size="3")
    with pytest.raises(DefinitionError, match="too many steps"):
        fl.load_repro(text)


def test_tests_of_one_file_are_chosen_by_name():
    other = TEXTS["raises"].replace("test_bad", "test_good").replace("(4, 4,", "(2, 3,")
    fd, inputs = fl.load_repro(f"{TEXTS['raises']}\n\n{other}", name="test_good")
    assert (len(fd.fusion.exprs), inputs[0].shape) == (1, (2, 3))


BENCHMARK = """
import torch
from nvfuser_direct import FusionDefinition, DataType
from .core import run_benchmark

def weighted(fd: FusionDefinition, dtype: DataType):
    T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=dtype)
    T1 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=dtype)
    fd.add_output(fd.ops.mul(T0, fd.ops.broadcast(T1, [True, False])))

def test_weighted(benchmark, disable_validation: bool, disable_benchmarking: bool):
    inputs = torch.randn(6, 4, device="cuda")
    weights = torch.ones(4, device="cuda")
"""
DEFINED = """
    with FusionDefinition() as fd:
        weighted(fd, DataType.Float)
"""
CHECKED = """
    if not disable_validation:
        expected = torch.special.i0(inputs) * weights
        fd.validate([inputs, weights], [expected])
"""
TIMED = """
    if not disable_benchmarking:
        run_benchmark(benchmark, fd.execute, [inputs, weights])
"""
DEFINED_ASIDE = """
    if not disable_benchmarking:
        with FusionDefinition() as fd:
            weighted(fd, DataType.Float)
        run_benchmark(benchmark, fd.execute, [inputs, weights])
"""


@pytest.mark.parametrize("rest", [DEFINED + CHECKED, DEFINED + TIMED, DEFINED + CHECKED + TIMED, DEFINED_ASIDE])
def test_inputs_are_those_of_a_run_in_a_branch_on_a_value_that_is_not_read(rest):
    fd, inputs = fl.load_repro(BENCHMARK + rest)
    assert [each.shape for each in inputs] == [(6, 4), (4,)]
    assert len(fl.segment(fd, inputs).segments) == 1


def test_one_tensor_of_the_name_inputs_is_no_list():
    fd, inputs = fl.load_repro(BENCHMARK + DEFINED)
    assert [each.shape for each in inputs] == [(256, 256), (256,)]
    assert "open sizes are assumed" in fd.notes[-1]


def test_the_first_frontend_wrote_ops_with_a_capital():
    block = BLOCK.format(line="x = fd.Ops.exp(x)", size="3")
    assert "exp" in [expr.op.name for expr in fl.load_repro(HEAD + block)[0].fusion.exprs]
