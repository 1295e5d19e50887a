"""Dumps of nvFuser: what is read from them, whole and in parts."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, InputError, UnsupportedError

DUMPS = Path(__file__).parents[2] / "data" / "dumps"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DUMPS.glob("*.txt"))}
CUT = TEXTS["cut_before_broadcast"]


def schedulers(plan):
    return [(s.scheduler.value, s.group.names) for s in plan.segments]


def test_the_fusion_and_the_groups_keep_nvfusers_names():
    fd, plan = fl.load_dump(CUT)
    assert schedulers(plan) == [("reduction", ("T2",)), ("pointwise", ("T3", "T4"))]
    assert plan.name == "nvFuser"
    assert [tv.name for tv in fd.fusion.tensor_inputs] == ["T0", "T1"]
    assert [tv.name for tv in fd.fusion.outputs] == ["T4"]
    assert [e.op.name for e in fd.fusion.exprs] == ["sum", "broadcast", "add"]


def test_the_plan_differs_from_ours_in_numbers():
    fd, plan = fl.load_dump(CUT)
    found = fl.diff(plan, fl.segment(fd))
    assert [m.name for m in found.moved] == ["T3"]
    assert [c.name for c in found.now_crossing] == ["T3"]
    assert [c.name for c in found.no_longer_crossing] == ["T2"]
    agreement = fl.load_dump(CUT).agreement()
    assert not agreement
    assert (agreement.nvfuser, agreement.ours, agreement.alike, agreement.scheduled_alike) == (2, 2, 0, 0)
    assert (agreement.pairs, agreement.pairs_alike) == (2, 0)


def test_the_plan_runs():
    x, y = np.arange(12.0, dtype=np.float32).reshape(3, 4), np.ones((3, 4), np.float32)
    _, plan = fl.load_dump(CUT, sizes={"i0": 3, "i1": 4})
    np.testing.assert_array_equal(plan.run([x, y])[0], y + x.sum(1, keepdims=True))


def test_sizes_are_chosen_given_or_derived():
    assert fl.load_dump(CUT).sizes == {"i0": 1024, "i1": 1024}
    assert any("i0=1024, i1=1024" in note for note in fl.load_dump(CUT).notes)
    given = fl.load_dump(CUT, sizes={"i0": 3})
    assert given.fd.fusion.tensors["T0"].shape == (3, 1024)
    found = fl.load_dump(TEXTS["welford_reshape"], sizes={"i0": 6, "i1": 5}).fd.fusion.tensors
    assert found["T1"].shape == (6, 640)
    assert found["T9"].shape == (6, 5, 128)


def test_logged_refusals_are_reasons():
    dump = fl.load_dump(CUT)
    assert {r.about for r in dump.refusals} == {("T2", "T3", "T4")}
    said = {r.scheduler: r.text for r in dump.refusals}
    assert said["inner_persistent"] == "unsupported post reduction normalization"
    refused = dump.plan.decisions.filter(accepted=False)
    assert [a.verdicts[-1].text for a in refused] == ["unsupported post reduction normalization"]
    assert "nvFuser: expr_eval: Fusion must contain only a single expression" in str(dump.agreement())


def test_values_without_dtypes_groups_without_details():
    dump = fl.load_dump(TEXTS["bfloat16_rms_norm_2022"])
    tensors = dump.fd.fusion.tensors
    assert [tensors[n].dtype for n in ("T0", "T1", "T2", "T4", "T12")] == [
        DataType.BFloat16, DataType.BFloat16, DataType.Float, DataType.Float, DataType.BFloat16,
    ]
    assert schedulers(dump.plan)[0][0] == "inner_persistent"
    assert any("details of groups are truncated" in note for note in dump.notes)
    assert dump.agreement()


def test_casts_tell_the_dtypes_of_inputs_that_no_list_tells():
    text = TEXTS["bfloat16_rms_norm_2022"].replace(", __bfloat", "")
    assert fl.load_dump(text).fd.fusion.tensors["T0"].dtype is DataType.BFloat16


def test_log_lines_in_between_are_passed_over():
    dump = fl.load_dump(TEXTS["permute_and_hint"])
    assert [e.op.name for e in dump.fd.fusion.exprs] == [
        "cast", "mul", "cast", "segment_set", "cast", "relu", "cast", "permute",
    ]
    assert dump.fd.fusion.producers[dump.fd.fusion.tensors["T6"]].attr("dims") == (1, 0)
    assert [s.scheduler.value for s in dump.plan.segments] == ["pointwise", "transpose"]
    assert any("skipped" in note for note in dump.notes)
    assert dump.agreement()


def test_welford_and_its_three_results():
    dump = fl.load_dump(TEXTS["welford_reshape"])
    expr = dump.fd.fusion.producers[dump.fd.fusion.tensors["T2"]]
    assert (expr.op.name, [v.name for v in expr.outputs], expr.attr("dims")) == ("welford", ["T2", "T3", "T4"], (1,))
    assert dump.agreement()


def test_markdown_quotes_and_fences():
    quoted = "\n".join(["I see this:", "> ```", *(f"> {line}" for line in CUT.splitlines()), "> ```", "Why?"])
    assert schedulers(fl.load_dump(quoted).plan) == schedulers(fl.load_dump(CUT).plan)


def test_several_dumps_in_a_text():
    text = f"{CUT}\n{TEXTS['permute_and_hint']}"
    assert fl.load_dump(text, index=1).fd.fusion.tensors.keys() == fl.load_dump(
        TEXTS["permute_and_hint"]).fd.fusion.tensors.keys()
    with pytest.raises(InputError, match="the text contains 2 dumps, but no dump 2"):
        fl.load_dump(text, index=2)


def test_every_beginning_of_a_dump_gives_an_answer():
    lines = CUT.splitlines()
    loaded = 0
    for end in range(len(lines)):
        with suppress(DefinitionError, UnsupportedError):
            fl.load_dump("\n".join(lines[:end]))
            loaded += 1
    assert loaded > len(lines) // 2


def test_without_the_rewritten_fusion_the_details_are_enough():
    text = CUT[CUT.index("Segmented_Fusion Dump: -- fusion segments:") :]
    dump = fl.load_dump(text)
    assert schedulers(dump.plan) == schedulers(fl.load_dump(CUT).plan)
    assert any("assembled from the details" in note for note in dump.notes)


def test_a_fusion_without_segments_is_cut_by_us():
    text = CUT[: CUT.index("**Segmenter**")]
    dump = fl.load_dump(text)
    assert dump.plan.strategy == "bottom_up"
    assert any("the plan is ours" in note for note in dump.notes)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("T1_g_float[iS1{i0}]\n = frobnicate( T0_g_float[iS0{i0}] )", "unknown op frobnicate"),
        ("T1_g_float[iS1{i0}]\n = -T7;", "T7 is read, but its axes are not printed"),
        ("T1_g_float[iS1{i0}, iS2{i0}]\n = -T0_g_float[iS0{i0}];", "T1 has 2 axes, but should have 1"),
        ("T1_g_float[iS1{i9}, iS2{i8}] = reshape( T0_g_float[iS0{i0}] )", "the size i9 is unknown"),
        ("T1_g_float[iS1{i0}]\n = slice( T0_g_float[iS0{i0}], { {0, 8, 2} } )", "steps must be 1, given 2"),
        ("T1_g_float[rS1{i0}]\n = reduction( T0_g_float[iS0{i0}], op = argmax )", "unknown reduction argmax"),
    ],
)
def test_what_is_not_understood_is_named_with_its_line(statement, says):
    text = f"Inputs:\n  T0_g_float[iS0{{i0}}]\nOutputs:\n  T1_g_float[iS1{{i0}}]\n%kernel_math {{\n{statement}\n}}\n"
    with pytest.raises((DefinitionError, UnsupportedError), match=says) as raised:
        fl.load_dump(text)
    assert str(raised.value).startswith("load_dump: ")


@pytest.mark.parametrize("text", ["", "hello", "import os; os.abort()", "%kernel_math {\n}", "\0", "Inputs:\n" * 9])
def test_no_dump(text):
    with pytest.raises(DefinitionError, match="load_dump: "):
        fl.load_dump(text)


def test_sizes_must_be_sizes():
    with pytest.raises(InputError, match="sizes has 'i0': -1"):
        fl.load_dump(CUT, sizes={"i0": -1})


# What nvFuser prints today


TODAY = """\
Segmented_Fusion Dump: -- Re-written complete fusion:{
Inputs:
  T0_g_float[iS0{i0}, iS1{i2}rf_p]
  T1_g_float[iS2{i2}, iS3{i0}]
Outputs:
  T5_g_float[iS10{i0}, iS11{i2}]

%kernel {
T2_l_float[iS4{i0}, iS5{i2}]
    = Set.Permute( T1_g_float[iS2{i2}, iS3{i0}], cache_op=Streaming )
T3_l_bool[iS6{i0}, iS7{i2}]
   = T0_g_float[iS0{i0}, iS1{i2}rf_p]
   > T2_l_float[iS4{i0}, iS5{i2}];
T4_l_float[iS8{i0}, bS9{1 ex 6}] = expand( T6_l_float[iS12{i0}, bS13{1}], {i0, 6} )
T6_l_float[iS12{i0}, bS13{1}]
   = broadcast( T7_l_float[iS14{i0}, rS15{i2}], flags = {false, true} )
T7_l_float[iS14{i0}, rS15{i2}]
   = reduction( T0_g_float[iS0{i0}, iS1{i2}rf_p], op = add, initial value = float(0), allreduce = false )
T5_g_float[iS10{i0}, iS11{i2}]
   = where(T3_l_bool[iS6{i0}, iS7{i2}]
  , T4_l_float[iS8{i0}, bS9{1 ex 6}]
  , T2_l_float[iS4{i0}, iS5{i2}]);

TransformPrinter :
T0_g_float[iS0{i0}, iS1{i2}rf_p]
 logical domain: (iS0{i0}, iS1{i2}rf_p)
 contiguity: t t
 loop domain: (iS0{i0}, iS1{i2}rf_p)
T1_g_float[iS2{i2}, iS3{i0}]
 logical domain: (iS2{i2}, iS3{i0})
 allocation domain: (iS3{i0}, iS2{i2})
 contiguity: t t
 loop domain: (iS2{i2}, iS3{i0})
T5_g_float[iS10{i0}, iS11{i2}]
 logical domain: (iS10{i0}, iS11{i2})
 contiguity: t t
 loop domain: (iS10{i0}, iS11{i2})
} // %kernel
} // {Re-written complete fusion}
"""


def test_the_form_since_2026_is_read():
    dump = fl.load_dump(TODAY)
    assert [expr.op.name for expr in dump.plan.fusion.exprs][-1] == "where"
    assert dump.plan.fusion.tensor_inputs[1].domain.allocation == (1, 0)
    assert dump.sizes["i2"] == 6, "the expand beside it in one where says so"


@pytest.mark.parametrize("mark", ["> ", ">> ", "> > "])
def test_operators_that_look_like_quotes_survive_in_a_quote(mark):
    plain, quoted = (fl.load_dump(text) for text in (TODAY, "".join(mark + s for s in TODAY.splitlines(keepends=True))))
    assert plain.plan.segmented.key == quoted.plan.segmented.key


def test_a_text_without_segments_agrees_with_nothing():
    agreement = fl.load_dump(TODAY).agreement()
    assert not agreement
    assert agreement.line.startswith("nothing to compare: the text shows no segments of nvFuser")


@pytest.mark.parametrize("form", ["math", "print"])
def test_a_text_that_ends_anywhere_loses_only_the_expression_that_it_cuts(form):
    text = fl.segment(*fl.example("softmax")).to_dump(form)
    begin = text.index("Re-written")
    body = text.index(";", text.index("%kernel", begin)) + 1
    for end in range(body, len(text), 37):
        read = fl.load_dump(text[begin:end])
        whole = text[begin:end].count(";") + text[begin:end].count(" )\n")
        assert len(read.plan.fusion.exprs) <= whole
        assert read.plan.fusion.exprs
