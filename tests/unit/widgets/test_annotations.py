"""Annotations made in the explorer: the definition changes, and every strategy and interpretation starts from it."""

import pytest

pytest.importorskip("anywidget")

from unit.widgets import drawn

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from tests.unit.test_annotations import CASES, gallery, is_hint
from tests.unit.widgets.test_explorer import Page

FLOAT = DataType.Float
LONG = {"llama3_rope_backward", "dropout_add_layer_norm", "layer_norm"}
FEW = (  # the other cases take much longer, and so do the long examples
    "rope_phi3_fwd", "group_norm_silu", "mistral_pre_matmul", "linear_chain_30", *set(fl.examples.names()) - LONG,
)


@pytest.fixture
def diamond():
    """A value with two readers, whose results are combined."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], contiguity=True, dtype=FLOAT)
        a = fd.ops.exp(x)
        fd.add_output(fd.ops.add(fd.ops.sin(a), fd.ops.neg(a)))
    return fd


@pytest.fixture
def reshaped():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], contiguity=True, dtype=FLOAT)
        fd.add_output(fd.ops.sin(fd.ops.reshape(fd.ops.exp(x), [32, 128])))
    return fd


@pytest.fixture
def open_page():
    opened = []

    def open_it(*given, **options):
        opened.append(fl.explore(*given, **options))
        return Page(opened[-1])

    yield open_it
    for explorer in opened:
        explorer.close()


def edges(page, tensor):
    return [edge[0] for edge in drawn.edges(page.explorer) if edge[4] == tensor]


def marked(page):
    return [edge[4] for edge in drawn.edges(page.explorer) if "fl-hinted" in edge[9]]


def pasted(text):
    """Return the plan that copied code creates."""
    space = {}
    exec(text, space)
    return space["plan"]


def buttons(page):
    return {key: (on, free) for _, _, row, _ in page.explorer.history["controls"] for key, _, on, free, *_ in row}


def test_segment_set_is_inserted_at_an_edge_and_the_definition_has_it(open_page, diamond):
    page = open_page(diamond)
    selected, other = edges(page, "T1")
    page.send("select", id=selected)
    labels = [action["label"] for action in page.explorer.answer["actions"]]
    assert labels == ["Cut at T1", "Insert segment_set: T1 → T2", "Insert segment_set: T1, all readers"]
    told = page.send("annotate", id=selected)
    assert told.startswith("Inserted segment_set at T1 → T2: sin T2 and add T4 moved from S0 to S1, because ")
    assert "; 1 → 2 segments, " in told
    plan = fl.segment(diamond).annotate("T1", "T2")
    assert page.explorer.plan.hash == plan.hash
    assert [str(one) for one in page.explorer.plan.annotations] == ["T1 -> T2"]
    assert marked(page) == ["T1_hint"]
    assert page.explorer.history["annotations"] == ["segment_set(T1)"]
    assert page.send("undo") == "Undid segment_set(T1 → T2)."
    assert marked(page) == []
    page.send("annotate", id=other, all=True)
    assert page.explorer.plan.hash == fl.segment(diamond).annotate("T1").hash


def test_a_mark_is_removed_at_either_of_its_edges_or_at_its_op(open_page, diamond):
    page = open_page(diamond)
    before = page.explorer.plan.hash

    def node():
        return next(n[0] for n in drawn.nodes(page.explorer) if "T1_hint" in n[3])

    def edge_to_it():
        return next(e for e in edges(page, "T1") if e.endswith(node()))

    for find in (lambda: edges(page, "T1_hint")[0], edge_to_it, node):
        page.send("mark", id=edges(page, "T1")[0])
        selected = find()
        page.send("select", id=selected)
        assert "Remove segment_set" in [action["label"] for action in page.explorer.answer["actions"]]
        assert page.send("unannotate", id=selected).startswith("Removed the segment_set of T1: ")
        assert page.explorer.plan.hash == before
    assert page.send("unannotate", id=edges(page, "T1")[0]).startswith("There is no segment_set to remove")


def test_what_cannot_be_annotated_says_why_and_changes_nothing(open_page, diamond):
    page = open_page(diamond)
    before = page.explorer.scene
    assert page.send("annotate", id=edges(page, "T4")[0]).startswith("A segment_set cannot be inserted after T4")
    assert page.explorer.status["kind"] == "error"
    assert page.explorer.scene == before


def test_every_strategy_starts_from_the_annotated_definition(open_page, diamond):
    page = open_page(diamond)
    page.send("annotate", id=edges(page, "T1")[0])
    for strategy in ("top_down", "unfused", "bottom_up"):
        page.send("strategy", strategy=strategy)
        assert [str(one) for one in page.explorer.plan.annotations] == ["T1 -> T2"]
        expected = fl.segment(diamond).annotate("T1", "T2").resegmented(strategy)
        assert page.explorer.plan.hash == expected.hash
    page.send("strategy", strategy="optimal")
    page.explorer.wait(300)
    assert page.explorer.plan.strategy == "optimal"
    assert page.explorer.plan.annotations


def test_annotating_the_optimal_plan_searches_in_the_background(open_page, diamond):
    page = open_page(diamond)
    page.send("strategy", strategy="optimal")
    page.explorer.wait(300)
    assert page.send("annotate", id=edges(page, "T1")[0]).startswith(("Searching", "Inserted"))
    page.explorer.wait(300)
    assert page.explorer.plan.strategy == "optimal"
    assert marked(page) == ["T1_hint"]


@pytest.mark.parametrize("reading", ["cut", "ignore", "hint"])
def test_the_reading_is_switched_for_the_annotated_definition(open_page, diamond, reading):
    page = open_page(diamond, options=fl.SegmenterOptions(segment_set="cut" if reading == "hint" else "hint"))
    page.send("annotate", id=edges(page, "T1")[0])
    said = page.send("switches", switches={"segment_set": reading})
    assert said.startswith(f"Segmented with segment_set as {reading}: ")
    expected = fl.segment(diamond, options=fl.SegmenterOptions(segment_set=reading)).annotate("T1", "T2")
    assert page.explorer.plan.hash == expected.hash
    assert {key for key, (on, _) in buttons(page).items() if on and key.startswith("reading")} == {f"reading-{reading}"}


def test_cuts_at_reshapes_are_for_top_down_only_and_come_back_with_it(open_page, reshaped):
    page = open_page(reshaped)
    assert "cut_reshape_inputs" not in buttons(page)
    said = page.send("switches", switches={"cut_reshape_inputs": True})
    assert "does not accept cut_reshape_inputs; only 'top_down' does" in said
    assert not page.explorer.cut_reshape_inputs
    page.send("strategy", strategy="top_down")
    assert len(page.explorer.plan.segments) == 1
    page.send("switches", switches={"cut_reshape_inputs": True})
    assert len(page.explorer.plan.segments) == 2
    expected = fl.segment(reshaped, strategy="top_down", options=fl.SegmenterOptions(cut_reshape_inputs=True))
    assert page.explorer.plan.hash == expected.hash
    page.send("strategy", strategy="bottom_up")
    assert "cut_reshape_inputs" not in buttons(page)
    assert page.explorer.plan.hash == fl.segment(reshaped).hash
    page.send("strategy", strategy="top_down")
    assert page.explorer.plan.hash == expected.hash
    assert buttons(page)["whole_fusion"] == (True, True)
    page.send("strategy", strategy="unfused")
    assert "whole_fusion" not in buttons(page)


def test_edits_of_the_partition_are_left_behind_and_the_way_back_keeps_them(open_page, diamond):
    page = open_page(diamond)
    page.send("cut", id=edges(page, "T2")[0])
    edited = page.explorer.plan
    said = page.send("annotate", id=edges(page, "T1")[0])
    assert said.endswith("; 1 edit of the partition dropped.")
    assert not page.explorer.plan.edits
    assert page.send("undo").startswith("Undid segment_set(T1")
    assert page.explorer.plan is edited


def test_the_star_of_an_annotated_definition_goes_with_its_annotations(open_page, diamond):
    page = open_page(diamond)
    page.send("mark", id=edges(page, "T1")[0])
    page.send("strategy", strategy="unfused")
    assert page.explorer.scene["title"] == "unfused*"
    page.send("reset")
    assert page.explorer.scene["title"] == "unfused"


def test_the_annotated_plan_is_compared_with_the_plain_one_and_reset_goes_back_to_it(open_page, diamond):
    page = open_page(diamond)
    plain = page.explorer.plan
    page.send("mark", id=edges(page, "T1")[0])
    assert page.send("compare", **{"with": "unannotated"}) == "Compared with the plan without your annotations."
    headline = fl.diff(plain, page.explorer.plan).headline.replace(">", "&gt;")
    assert headline in page.explorer.panels["compare"]["html"]
    assert page.explorer.history["resettable"]
    assert page.send("reset") == "Back to the plan without edits."
    assert page.explorer.plan.hash == plain.hash
    assert not page.explorer.history["resettable"]
    assert page.send("reset") == "There are no edits to reset."


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in FEW else [pytest.mark.matrix]) for name in (*fl.examples.names(), *CASES)
])
def test_click_python_and_pasted_text_have_the_same_hash(open_page, name):
    fd, inputs = gallery(name) if name in CASES else fl.example(name, "full")
    page = open_page(fd, inputs)
    fusion = fd.fusion
    free = {
        tensor.name for tensor in fusion.tensors.values() if not is_hint(fusion.producers.get(tensor))
        and any(user.tensor_outputs and not is_hint(user) for user in fusion.users.get(tensor, ()))
    }
    places = [edge for edge in drawn.edges(page.explorer) if edge[4] in free and edge[1] != "output"]
    tried = 0
    for edge in (places[len(places) // 2], *places[: name not in CASES]):
        page.send("annotate", id=edge[0], all=True)
        if page.explorer.status["kind"] == "error":
            continue
        tried += 1
        page.send("switches", switches={"segment_set": "cut"})
        page.send("strategy", strategy="top_down")
        page.send("code")
        assert "fd.ops.segment_set(" in page.explorer.code["text"]
        assert pasted(page.explorer.code["text"]).hash == page.explorer.plan.hash
        options = fl.SegmenterOptions(segment_set="cut")
        expected = fl.segment(fd, inputs).annotate(edge[4]).resegmented("top_down", segment_set="cut")
        assert page.explorer.plan.hash == expected.hash
        for form in ("nvfuser_direct", "nvfuser"):
            page.send("code", form=form)
            again, specs = fl.load_repro(page.explorer.code["text"])
            read = fl.segment(again, specs, strategy="top_down", options=options)
            assert read.hash == page.explorer.plan.hash
        page.send("reset")
    assert tried


def test_both_plans_are_timed_under_names_of_their_own(open_page, diamond, timer):
    page = open_page(diamond)
    explorer = page.explorer
    explorer._runs.inputs, explorer._runs.runner._timer = [], timer
    page.send("switches", switches={"segment_set": "cut"})
    page.send("mark", id=edges(page, "T1")[0])
    page.send("strategy", strategy="top_down")
    page.send("run")
    explorer.wait(300)
    assert timer.asked == [[fl.segment(diamond).hash, explorer.plan.hash]]
    names = {row[0] for row in explorer.times["table"]["rows"]}
    assert len(names) == 2


def test_a_cheaper_top_down_plan_is_mentioned_and_shown(open_page):
    fd, specs = fl.example("reshape_decides", "full")
    page = open_page(fd, specs)
    page.explorer.wait(300)
    (mention,) = [row[0] for _, _, row, _ in page.explorer.history["controls"] if row[0][0] == "alternative"]
    assert mention[1] == "top-down with reshape cuts: 22 % fewer bytes"
    before = sum(s.bytes for s in page.explorer.plan.segments)
    assert page.send(mention[5]["type"]) == "Top-down with reshape cuts: 2 segments."
    expected = fl.segment(fd, specs, strategy="top_down", options=fl.SegmenterOptions(cut_reshape_inputs=True))
    assert page.explorer.plan.hash == expected.hash
    assert round(sum(s.bytes for s in expected.segments) / before, 2) == 0.78
    assert page.explorer.cut_reshape_inputs
    assert "alternative" not in buttons(page)
    page.send("switches", switches={"segment_set": "cut"})
    page.send("strategy", strategy="bottom_up")
    page.explorer.wait(300)
    assert "alternative" in buttons(page)


def test_no_plan_is_mentioned_that_is_not_cheaper(open_page, reshaped):
    page = open_page(reshaped)
    page.explorer.wait(300)
    assert "alternative" not in buttons(page)
