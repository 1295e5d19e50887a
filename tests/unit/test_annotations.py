"""Annotations: a segment_set inserted by a plan, by a definition, and by the text of either."""

import json
from pathlib import Path

import numpy as np
import pytest
from fuser_lab_widgets.session import Session

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import ArgumentTypeError, IllegalEdit, InputError, UnsupportedError
from fuser_lab.passes import bare
from fuser_lab.report.view_model import view_plan
from fuser_lab.segmentation.events import Kind

DATA = Path(__file__).parents[1] / "data"
GALLERY = json.loads((DATA / "gallery.json").read_text())
CASES = {case["id"]: case for case in GALLERY}
# Like others, and among the largest.
MORE = {"rope_llama2_fwd", "rope_llama3_fwd", "rope_llama3_bwd", "dit_layernorm_bwd_io", "dropout_add_layernorm_bwd"}


def defined():
    """T3 = exp(T2) and T4 = sin(T2) of T2 = T0 + T1; T5 = T3 + T4."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        a = fd.ops.add(x, y)
        fd.add_output(fd.ops.add(fd.ops.exp(a), fd.ops.sin(a)))
    return fd


SPECS = [fl.spec((64, 128)), fl.spec((64, 128))]


def gallery(name):
    case = CASES[name]
    with FusionDefinition() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    return fd, [
        fl.spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]
    ]


def made_by(text):
    names = {}
    exec(text, names)
    return names["plan"]


def ops(plan):
    return [[expr.op.name for expr in segment.exprs] for segment in plan.segments]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.matrix] if name in MORE else []) for name in (*fl.examples.names(), *CASES)
])
def test_plan_definition_and_every_text_give_the_same_hash(name):
    fd, inputs = fl.example(name, "full") if name in fl.examples.names() else gallery(name)
    plan = fl.segment(fd, inputs)
    read = [
        (tv.name, user.name) for tv in fd.fusion.tensors.values() if not is_hint(fd.fusion.producers.get(tv))
        for user in fd.fusion.users.get(tv, ()) if user.tensor_outputs and not is_hint(user)
    ]
    tensor, reader = read[len(read) // 2]
    for readers in (None, reader):
        annotated = plan.annotate(tensor, readers)
        assert set(annotated.definition.tensors) - set(plan.definition.tensors)
        assert fl.segment(fd.with_segment_set(tensor, readers), inputs).hash == annotated.hash
        assert made_by(annotated.to_python()).hash == annotated.hash
        for form in ("nvfuser_direct", "nvfuser"):
            script = annotated.to_python(form)
            assert "fd.ops.segment_set(" in script
            assert fl.segment(*fl.load_repro(script)).hash == annotated.hash
        hints = [one.hint for one in annotated.annotations if one.hint.startswith(f"{tensor}_hint")]
        assert annotated.without_annotation(hints[-1]).hash == plan.hash


@pytest.mark.parametrize("name", [*fl.examples.names(), *CASES])
def test_forced_top_down_with_every_switch(name):
    fd, inputs = fl.example(name) if name in fl.examples.names() else gallery(name)
    options = fl.SegmenterOptions(
        cut_reshape_inputs=True, cut_resize_inputs=True, pieces_by_depth=True, whole_fusion=False,
    )
    plan = fl.segment(fd, inputs, strategy="top_down", options=options)
    assert all(segment.scheduler is not None for segment in plan.segments)
    accepted = [attempt.names for attempt in plan.decisions if attempt.phase == "top-down" and attempt.accepted]
    for attempt in plan.decisions:
        if attempt.kind is Kind.MERGE and attempt.phase != "top-down":
            assert sum(not attempt.names.isdisjoint(names) for names in accepted) < 2, "two accepted pieces"
    if name in fl.examples.names():
        for want, got in zip(fd.reference(inputs), plan.definitions().reference(inputs), strict=True):
            np.testing.assert_array_equal(want, got)


def is_hint(expr):
    return expr is not None and expr.op.name == "segment_set"


def test_a_segment_set_asks_the_segmenter_and_a_cut_overrules_it():
    plan = fl.segment(defined(), SPECS)
    assert ops(plan) == [["add", "exp", "sin", "add"]]
    annotated = plan.annotate("T2")
    assert ops(annotated) == [["add", "segment_set"], ["exp", "sin", "add"]]
    # A copy for one reader is not a cut-set: exp is separate from add, and the path around it merges where possible.
    partly = plan.annotate("T2", "T3")
    assert [one.readers for one in partly.annotations] == [("T3",)]
    assert len(partly.segments) == 2
    assert plan.cut("T2").annotations == ()


def test_segment_sets_for_readers_do_not_depend_on_the_order_in_which_they_are_made():
    plan = fl.segment(defined(), SPECS)
    both = plan.annotate("T2", ["T3"]).annotate("T2", ["T4"])
    assert both == plan.annotate("T2", ["T4"]).annotate("T2", ["T3"])
    assert both != plan.annotate("T2", ["T3", "T4"])
    assert both.annotate("T3").without_annotation("T2") == plan.annotate("T3")
    assert both.without_annotation("T2", "T3") == plan.annotate("T2", "T4")


def test_text_by_hand_gives_the_same_hash():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        a = fd.ops.segment_set(fd.ops.add(x, y))
        fd.add_output(fd.ops.add(fd.ops.exp(a), fd.ops.sin(a)))
    assert fl.segment(fd, SPECS).hash == fl.segment(defined(), SPECS).annotate("T2").hash
    assert bare(fd.fusion) == defined().fusion


def test_every_strategy_and_reading_starts_from_the_annotated_definition():
    annotated = fl.segment(defined(), SPECS).annotate("T2")
    for strategy, count in (("bottom_up", 2), ("top_down", 2), ("optimal", 2), ("saving", 2), ("unfused", 5)):
        assert len(annotated.resegmented(strategy).segments) == count
        assert annotated.resegmented(strategy).annotations == annotated.annotations
    ignored = annotated.resegmented(segment_set="ignore")
    assert len(ignored.segments) == 1
    assert ignored.resegmented(segment_set="hint") == annotated
    forced = annotated.resegmented("top_down", cut_reshape_inputs=True)
    assert forced.options.cut_reshape_inputs
    assert not forced.resegmented("bottom_up").options.cut_reshape_inputs
    with pytest.raises(InputError, match="the strategy 'bottom_up' does not accept cut_reshape_inputs"):
        annotated.resegmented(cut_reshape_inputs=True)
    with pytest.raises(ArgumentTypeError, match="unknown option 'cut'; choose from segment_set"):
        annotated.resegmented(cut=True)


def test_the_strategy_target_and_schedulers_in_force_segment_anew():
    def alone(fusion, oracle):
        return [[expr.name] for expr in fusion.tensor_exprs]

    plan = fl.segment(defined(), SPECS, strategy=alone, target="A100", schedulers=fl.with_rule(lambda f, d: None))
    annotated = plan.annotate("T2")
    assert (len(plan.segments), len(annotated.segments)) == (4, 5)
    assert (annotated.target, annotated.oracle.schedulers) == ("A100", plan.oracle.schedulers)
    # Edits of the partition belong to the earlier plan.
    assert plan.glue(0, 1).annotate("T2") == annotated


def test_a_strategy_that_names_expressions_says_that_it_does_not_know_the_new_one():
    plan = fl.segment(defined(), SPECS, strategy=lambda fusion, oracle: [["T2", "T3"], ["T4", "T5"]])
    says = r"'custom' is a function that does not cut .* \(the strategy left out T2_hint\); select another one first"
    with pytest.raises(IllegalEdit, match=says):
        plan.annotate("T2")
    assert plan.resegmented("bottom_up").annotate("T2").annotations
    _, dumped = fl.load_dump((DATA / "dumps" / "cut_before_broadcast.txt").read_text())
    with pytest.raises(IllegalEdit, match="the strategy 'nvfuser' is a function"):
        dumped.annotate(dumped.segments[0].outputs[0].name)


def test_an_annotated_definition_runs():
    fd = defined().with_segment_set("T2")
    x, y = np.arange(64 * 128, dtype=np.float32).reshape(64, 128) % 7, np.ones((64, 128), np.float32)
    (result,) = fd.reference([x, y])
    np.testing.assert_allclose(result, np.exp(x + y) + np.sin(x + y), rtol=1e-5)
    assert fd.annotations[0].hint == "T2_hint"
    assert fd.without_segment_set("T2").fusion == defined().fusion
    # It can be segmented into definitions like any other; values that pass between them are numbered.
    first, second = fd.segment([x, y])
    maps = fd.segment_index_space_maps
    shared = set(maps[first].values()) & set(maps[second].values())
    assert {fd.state.name_of[number] for number in shared if number >= 0} == {"T2_hint"}


def test_a_segment_set_that_is_an_output_becomes_a_copy():
    with FusionDefinition() as fd:
        hint = fd.ops.segment_set(fd.ops.exp(fd.define_tensor([4])))
        fd.add_output(hint)
        fd.add_output(fd.ops.sin(hint))
    assert [expr.op.name for expr in fd.without_segment_set("T2").fusion.exprs] == ["exp", "set", "sin"]


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda p: p.annotate("T9"), "the fusion has no tensor called 'T9'; it has T0, T1, T2, T3, T4, T5."),
        (lambda p: p.annotate("T5"), "a segment_set cannot be inserted after T5: nothing reads it."),
        (lambda p: p.annotate("T2", "T5"), "T5 does not read T2; readers of T2 are T3, T4."),
        (lambda p: p.annotate("T2", []), "readers of T2 must name at least one of T3, T4."),
        (lambda p: p.annotate("T2").annotate("T2"), "every reader of it is already a segment_set."),
        (lambda p: p.annotate("T2").annotate("T2_hint"), "T2_hint is already the result of a segment_set"),
        (lambda p: p.annotate("T2").annotate("T2", "T2_hint"), "T2_hint is a segment_set itself"),
        (lambda p: p.without_annotation("T2"), "T2 has no segment_set; there are none."),
        (lambda p: p.annotate("T2").without_annotation("T3"), "T3 has no segment_set; there are T2 -> T3, T4."),
        (lambda p: p.annotate("T2", "T3").without_annotation("T2", "T4"), "T4 does not read T2 through a segment_set."),
    ],
)
def test_edits_that_cannot_be(edit, sentence):
    with pytest.raises(IllegalEdit) as error:
        edit(fl.segment(defined(), SPECS))
    assert sentence in str(error.value)


def test_what_a_pass_made_is_not_the_definition_s():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 32])
        fd.add_output(fd.ops.permute(fd.ops.exp(x), [1, 0]))
    plan = fl.segment(fd)
    (view,) = view_plan(plan).annotations
    assert not view.own
    with pytest.raises(IllegalEdit, match=f"{view.hint} is created by the pass mark_aliases_prepare"):
        plan.without_annotation(view.hint)


def test_marks_on_edges_are_data():
    view = view_plan(fl.segment(defined(), SPECS).annotate("T2"))
    (mark,) = view.annotations
    assert (mark.tensor, mark.hint, mark.readers, mark.own) == ("T2", "T2_hint", ("T3", "T4"), True)
    edges = {edge.id: edge for edge in view.edges}
    assert {edges[one].tensor for one in mark.edges} == {"T2_hint"}
    assert {edges[one].source for one in mark.edges} == {mark.node}
    assert json.loads(view.to_json())["annotations"][0]["hint"] == "T2_hint"


def test_edits_of_a_session_are_undone_and_redone():
    plan = fl.segment(defined(), SPECS)
    session = Session(plan)
    session.go(session.annotate_at("T2", "T3"))
    marked = session.plan
    assert session.state.step == "segment_set(T2 → T3)"
    session.go(session.without_annotation("T2"))
    assert session.plan == plan
    session.undo()
    assert session.plan is marked
    session.redo()
    assert session.plan == plan


def test_plans_that_differ_in_annotations_are_compared():
    plan = fl.segment(defined(), SPECS)
    found = fl.diff(plan, plan.annotate("T2"))
    assert found.only_after == ("T2_hint",)
    assert [c.name for c in found.now_crossing] == ["T2_hint"]
    other = fl.segment(defined(), [fl.spec((64, 64))] * 2)
    with pytest.raises(InputError, match="of one definition"):
        fl.diff(plan, other.annotate("T2"))


def test_scripts_for_nvfuser_say_what_they_cannot_hold():
    plan = fl.segment(defined(), SPECS, strategy="top_down").annotate("T2").cut("T3")
    script = plan.to_python("nvfuser_direct")
    assert "# fl.segment(fd, inputs, strategy='top_down'); nvFuser does not accept these options." in script
    assert "# Edits of the partition are omitted: cut(T3)." in script
    flipped = np.zeros((64, 128), np.float32)[::-1]
    with pytest.raises(UnsupportedError, match="does not support their negative strides"):
        fl.segment(defined(), [flipped, flipped]).to_python("nvfuser")
    with pytest.raises(InputError, match="form must be"):
        plan.to_python("tvm")
