import gc
import json
import time
import weakref
from dataclasses import replace

import pytest

pytest.importorskip("anywidget")

from browser.sizes import layers
from fuser_lab_widgets import Explorer
from machine import allowed
from unit.widgets import drawn

from fuser_lab.errors import FuserLabError


class Page:
    """Sends events as the page does."""

    def __init__(self, explorer):
        self.explorer = explorer
        self.number = 0

    def send(self, kind, **data):
        self.number += 1
        self.explorer.events = [{"n": self.number, "type": kind, **data}]
        return self.explorer.status["text"]

    def edge(self, tensor):
        return next(e[0] for e in drawn.edges(self.explorer) if e[4] == tensor)


@pytest.fixture
def page(stubs, timer):
    plan = stubs.sum_broadcast_add()
    other = replace(plan, groups=(("T2", "T3"), ("T4",)), strategy="top_down")
    plan = replace(plan, makers=(("top_down", lambda: other),))
    explorer = Explorer(plan, [], strategies=["top_down"], timer=timer)
    yield Page(explorer)
    explorer.close()


def segments(page):
    return len(page.explorer.scene["segments"]["rows"])


def test_a_click_inside_a_segment_cuts_there_and_a_click_on_the_boundary_glues(page):
    assert segments(page) == 2
    assert page.send("act", id=page.edge("T3")) == "Cut at T3: 2 → 3 segments, +65.5 kB moved."
    assert segments(page) == 3
    assert page.explorer.plan.hash == page.explorer.scene["hash"]
    assert page.send("act", id=page.edge("T3")) == "Glued S1 and S2: 3 → 2 segments, −65.5 kB moved."
    assert segments(page) == 2


def test_a_click_on_one_of_several_edges_cuts_only_there(stubs):
    explorer = Explorer(stubs.rope_like())
    page = Page(explorer)
    tensor, edges = "T3", [e[0] for e in drawn.edges(explorer) if e[4] == "T3"]
    assert len(edges) > 1
    assert page.send("act", id=edges[0]).startswith(f"Cut at {tensor} → T4: 4 → 5 segments")
    assert explorer.history["edits"] == ["cut(T3 → T4)"]
    kinds = {e[0]: e[1] for e in drawn.edges(explorer)}
    assert [kinds[e] for e in edges] == ["boundary", "inside", "inside"]
    explorer.close()


def test_the_same_click_twice_counts_twice(page):
    edge = page.edge("T3")
    page.explorer.events = [{"n": 1, "type": "act", "id": edge}, {"n": 2, "type": "act", "id": edge}]
    assert page.explorer.acked == 2
    assert segments(page) == 2
    assert page.explorer.scene["rev"] == 3


def test_events_that_were_handled_are_not_handled_again(page):
    edge = page.edge("T3")
    page.explorer.events = [{"n": 1, "type": "act", "id": edge}]
    page.explorer.events = [{"n": 1, "type": "act", "id": edge}, {"n": 2, "type": "undo"}]
    assert segments(page) == 2


def test_a_refusal_stays_in_the_status_line_until_something_else_is_selected(page):
    edge = page.edge("T2")
    said = page.send("act", id=edge)
    assert page.send("select", id=edge) == said
    assert page.send("select", id="") == ""
    assert page.explorer.status["kind"] == "info"
    assert page.send("act", id=page.edge("T3")).startswith("Cut at T3")
    assert page.send("select", id="").startswith("Cut at T3")


def test_an_illegal_edit_says_why_and_changes_nothing(page):
    before = page.explorer.scene
    said = page.send("act", id=page.edge("T2"))
    assert said.startswith("S0 and S1 cannot be one kernel:")
    assert page.explorer.status["kind"] == "error"
    assert page.explorer.scene == before
    assert page.explorer.answer["refused"]
    assert page.explorer.answer["verdicts"][0]["text"] == "A reduction is inside: T1."


def test_fusion_inputs_and_outputs_can_not_be_cut(page):
    assert "T0 is a fusion input" in page.send("act", id=page.edge("T0"))
    assert "nothing to cut" in page.send("cut", id=page.edge("T4"))
    assert "nothing to glue" in page.send("glue", id=page.edge("T3"))
    assert segments(page) == 2


def test_undo_redo_and_reset(page):
    page.send("act", id=page.edge("T3"))
    assert page.explorer.history["edits"] == ["cut(T3)"]
    assert page.send("undo") == "Undid cut(T3)."
    assert segments(page) == 2
    assert page.send("undo") == "Nothing to undo."
    assert page.send("redo") == "Redid cut(T3)."
    assert page.send("redo") == "Nothing to redo."
    assert segments(page) == 3
    assert page.send("reset") == "Back to the plan without edits."
    assert segments(page) == 2
    assert page.send("undo") == "Undid reset."
    assert segments(page) == 3


def test_a_new_edit_drops_what_was_undone(page):
    page.send("act", id=page.edge("T3"))
    page.send("undo")
    assert page.explorer.history["redo"]
    page.send("strategy", strategy="top_down")
    assert not page.explorer.history["redo"]


def test_the_strategy_can_be_switched_and_switched_back(page):
    (_, _, buttons, _), = page.explorer.history["controls"]
    assert [button[:3] for button in buttons] == [["bottom_up", "bottom-up", True], ["top_down", "top-down", False]]
    assert page.send("strategy", strategy="top_down") == "Top-down: 2 segments."
    assert page.explorer.plan.strategy == "top_down"
    assert page.send("strategy", strategy="top_down") == "The top-down plan is already shown."
    assert page.send("undo") == "Undid switch to top-down."
    assert page.explorer.plan.strategy == "bottom_up"


@pytest.mark.parametrize("what", ["edge", "op", "segment"])
def test_a_selection_is_explained(page, what):
    op = next(node[0] for node in drawn.nodes(page.explorer) if node[1] == "op")
    selected = {"edge": page.edge("T3"), "op": op, "segment": "segment:1"}[what]
    page.send("select", id=selected)
    answer = page.explorer.answer
    assert answer["id"] == selected
    assert answer["sentence"]
    assert answer["verdicts"]
    assert dict(answer["facts"])
    page.send("select", id="")
    assert "id" not in page.explorer.answer


def test_decisions_are_sent_when_they_are_asked_for_with_the_names_they_are_about(page):
    assert page.explorer.decisions.keys() == {"log", "total"}
    page.send("decisions", first=0)
    rows = page.explorer.decisions["rows"]
    assert [(r["ok"], r["names"]) for r in rows] == [(False, ("T2", "T3")), (True, ("T3", "T4"))]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_source_is_made_when_it_is_asked_for(page, target):
    assert not page.explorer.source
    page.send("source", segment=1, target=target)
    source = page.explorer.source
    assert f"Segment 1, {target}" in source["text"]
    assert '<span class="k">def</span>' in source["html"]
    page.send("source", segment=7, target=target)
    assert page.explorer.source["problem"] == "This plan has no segment 7."


def test_the_plan_can_be_copied_as_code(page):
    page.send("code")
    assert page.explorer.code["text"].startswith("plan = fl.segment(fd, inputs)")


def test_run_times_the_baseline_and_the_edited_plan(page, timer):
    page.send("act", id=page.edge("T3"))
    page.send("run")
    page.explorer.wait(300)
    state = page.explorer.times
    assert timer.asked == [[page.explorer._session.baseline.hash, page.explorer.plan.hash]]
    assert (state["running"], state["done"], state["total"]) == (False, 5, 5)
    assert [row[1] for row in state["table"]["rows"]] == ["S0", "S1", "total", "S0", "S1", "S2", "total"]
    assert "CPU median" in state["table"]["columns"]
    assert len(state["table"]["columns"]) <= 12
    assert "not of a GPU" in state["note"]


def test_run_of_an_unchanged_plan_times_it_once(page, timer):
    page.send("run")
    page.explorer.wait(300)
    assert [len(plans) for plans in timer.asked] == [1]


def test_run_pressed_twice_is_refused_and_rows_fill_while_it_runs(page, timer):
    timer.gate.clear()
    page.send("run")
    assert page.explorer.times["running"]
    assert page.send("run") == "A run is in progress; cancel it first, or wait for it to end."
    timer.gate.set()
    page.explorer.wait(300)
    assert len(timer.asked) == 1
    assert page.explorer.times["table"]


def test_the_plan_can_be_edited_while_it_is_timed(page, timer):
    timer.gate.clear()
    page.send("run")
    page.send("act", id=page.edge("T3"))
    assert segments(page) == 3
    timer.gate.set()
    page.explorer.wait(300)
    assert not page.explorer.times["running"]


def test_cancel_before_the_first_measurement_says_that_there_is_none(page, timer):
    timer.gate.clear()
    page.send("run")
    page.send("cancel")
    timer.gate.set()
    page.explorer.wait(300)
    assert page.explorer.status["text"] == "Cancelled; no segment was measured yet."
    assert page.explorer.times["table"] is None
    assert page.explorer.timings is None


def test_cancel_keeps_the_rows_measured_so_far(page, timer):
    timer.gate.clear()
    timer.free = 1
    page.send("run")
    deadline = time.monotonic() + 300
    while page.explorer.times["done"] < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    page.send("cancel")
    timer.gate.set()
    page.explorer.wait(300)
    assert len(page.explorer.times["table"]["rows"]) == 1
    assert page.explorer.status["text"] == "Cancelled; the rows measured so far are kept."
    assert not page.explorer.times["running"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FuserLabError("T0 has the wrong size."), "T0 has the wrong size."),
        (ZeroDivisionError("by zero"), "The run failed: ZeroDivisionError: by zero"),
    ],
)
def test_a_run_that_fails_says_so(page, timer, error, sentence):
    timer.problem = error
    page.send("run")
    page.explorer.wait(300)
    assert page.explorer.status == page.explorer.status | {"text": sentence, "kind": "error"}
    timer.problem = None
    page.send("run")
    page.explorer.wait(300)
    assert page.explorer.times["table"]


def test_run_without_inputs_says_what_to_do(stubs):
    explorer = Explorer(stubs.sum_broadcast_add())
    assert "explore(fd, inputs)" in Page(explorer).send("run")
    explorer.close()


def test_an_error_in_a_handler_is_shown(page, monkeypatch):
    def broken(*_, **__):
        message = "kaput"
        raise KeyError(message)

    monkeypatch.setattr(page.explorer._session, "cut", broken)
    assert page.send("act", id=page.edge("T3")) == "Act failed: KeyError: 'kaput'"
    assert page.send("no such event").endswith("given 'no such event'.")
    assert page.explorer.status["kind"] == "error"
    assert page.send("act", id="gone") == "The current plan no longer has this edge."


def test_closing_frees_it_and_leaves_others_alone(stubs, timer):
    plan = stubs.sum_broadcast_add()
    one, two = Explorer(plan, [], timer=timer), Explorer(plan, [], timer=timer)
    Page(one).send("act", id=Page(one).edge("T3"))
    gone = weakref.ref(one)
    one.close()
    del one
    gc.collect()
    assert gone() is None
    assert segments(Page(two)) == 2
    two.close()


def test_a_change_is_sent_with_the_pieces_that_the_page_lacks_and_the_whole_state_with_all(page, monkeypatch):
    explorer, sent = page.explorer, []
    state_of = explorer.get_state
    monkeypatch.setattr(explorer, "get_state", lambda key=None: sent.append(state_of(key)) or sent[-1])

    def chunks(*states):
        return {key for state in states for key in state if key.startswith("chunk")}

    had = chunks(state_of())
    page.send("select", id=page.edge("T3"))
    assert not chunks(*sent)
    for ask in (lambda: page.send("act", id=page.edge("T3")), lambda: page.send("undo")):
        sent.clear()
        ask()
        assert not chunks(*sent) & had
        had |= chunks(*sent)
        assert {f"chunk{n}" for n in range(*explorer.scene["chunks"])} == had
        shapes = sum(len(chunk["shapes"]) for chunk in explorer._picture.pieces.stock.chunks)
        assert drawn.shapes(explorer) <= set(range(shapes))
    assert not chunks(*sent)  # after the undo the page shows its earlier content
    assert chunks(state_of()) == had


def test_a_cut_in_a_large_graph_sends_little():
    explorer = Explorer(layers(40), [])
    page, sent = Page(explorer), []
    page.send("detail", detail="ops")
    explorer.send_state = lambda key=None: sent.append(json.dumps(explorer.get_state(key)))
    whole = len(json.dumps(explorer.get_state()))

    def cut_in_the_middle():
        inside = [edge[0] for edge in drawn.edges(explorer) if edge[1] == "inside"]
        assert page.send("act", id=inside[len(inside) // 2]).startswith("Cut at ")

    cut_in_the_middle()  # the first one takes the remaining room
    sent.clear()
    cut_in_the_middle()
    assert max(map(len, sent)) < whole / 5
    chunks = explorer._picture.pieces.stock.chunks
    shapes = [len(chunk["shapes"]) for chunk in chunks]
    assert 0 < shapes[-1] < shapes[1] / 4  # the others only move
    explorer.close()


def test_pieces_of_earlier_pictures_are_given_up_when_there_are_many(page, monkeypatch):
    explorer = page.explorer
    state_of, sent = explorer.get_state, []
    had = {key for key in state_of() if key.startswith("chunk")}
    monkeypatch.setattr("fuser_lab_widgets.stock.MOST", 1)
    monkeypatch.setattr(explorer, "get_state", lambda key=None: sent.append(state_of(key)) or sent[-1])
    before = sorted(drawn.nodes(explorer))
    page.send("act", id=page.edge("T3"))
    page.send("undo")
    gone = {key for state in sent for key, value in state.items() if key.startswith("chunk") and value is None}
    assert had <= gone
    assert [node[:10] for node in sorted(drawn.nodes(explorer))] == [node[:10] for node in before]
    whole = {key for key in state_of() if key.startswith("chunk")}
    assert whole == {f"chunk{n}" for n in range(*explorer.scene["chunks"])}
    assert not whole & gone


def test_the_picture_is_sent_before_edits_are_foreseen(page, monkeypatch):
    explorer, sent = page.explorer, []
    state_of = explorer.get_state
    monkeypatch.setattr(explorer, "get_state", lambda key=None: sent.append(state_of(key)) or sent[-1])
    page.send("act", id=page.edge("T3"))
    first = {name: next(n for n, state in enumerate(sent) if name in state) for name in ("scene", "foreseen")}
    assert first["scene"] < first["foreseen"]
    assert explorer.foreseen["plan"] == explorer.scene["plan"]


def test_what_an_edit_only_moves_keeps_its_shape(stubs):
    explorer = Explorer(stubs.rope_like(30), [])
    before = {row[0]: row for row in drawn.nodes(explorer)}
    inside = next(e[0] for e in drawn.edges(explorer) if e[1] == "inside")
    assert Page(explorer).send("act", id=inside).startswith("Cut at ")
    same = [row for row in drawn.nodes(explorer) if row[0] in before]
    assert len(same) > 300
    assert all(row[-1] == before[row[0]][-1] for row in same)
    assert any(row[-5:-3] != before[row[0]][-5:-3] for row in same)
    explorer.close()


def test_there_is_a_static_picture_where_widgets_do_not_show(page):
    bundle = page.explorer._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/html"].startswith("<svg")
    assert "<script" not in data["text/html"]
    assert data["text/plain"].startswith("sum_broadcast_add")
    assert "application/vnd.jupyter.widget-view+json" in data


def test_what_is_sent_is_small(stubs):
    explorer = Explorer(stubs.rope_like())
    state = json.dumps({k: explorer.get_state()[k] for k in ("scene", "decisions", "history", "answer")})
    assert len(state) < 500_000
    assert len(explorer._esm) < 80_000
    explorer.close()


def test_a_hostile_name_stays_text(stubs):
    plan = stubs.sum_broadcast_add(("<script>alert(1)</script>", "T1", "T2", "<b>T3</b>", "T4"))
    explorer = Explorer(plan)
    shapes = [markup for chunk in explorer._picture.pieces.stock.chunks for markup in chunk["shapes"]]
    assert any("&lt;b&gt;T3" in markup for markup in shapes)
    assert not any("<script" in markup or "<b>" in markup for markup in shapes)
    page = Page(explorer)
    page.send("act", id=page.edge("<b>T3</b>"))
    assert segments(page) == 3
    explorer.close()


def test_an_op_is_moved_and_the_inspector_says_beforehand_whether_it_may():
    import fuser_lab as fl

    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], contiguity=True)
        total = fd.ops.sum(fd.ops.neg(fd.ops.exp(x)), dims=[1])
        fd.add_output(fd.ops.broadcast(total, is_broadcast_dim=[False, True]))
    page = Page(fl.explore(fl.segment(fd, strategy="unfused")))
    explorer = page.explorer
    op = next(n[0] for n in drawn.nodes(explorer) if "= neg(" in n[4])
    page.send("select", id=op)
    moves = {m["scheduler"]: m for m in explorer.answer["moves"]}
    assert moves["to S0"]["ok"]
    saved = moves["to S0"]["text"]
    action = next(a for a in explorer.answer["actions"] if a["segment"] == 0)
    assert action["type"] == "move"
    said = page.send("move", id=op, segment=0)
    assert said.startswith("Moved T")
    assert saved.rpartition(", ")[0] in said
    assert explorer.history["edits"] == [f"move({explorer.plan.edits[0][1][0]}, S0)"]
    assert page.send("move", id=op, segment=0).startswith(("Move", "move", "T"))
    assert explorer.status["kind"] == "error"
    assert page.send("undo").startswith("Undid move(")
    explorer.close()


def test_large_fusions_begin_with_one_box_a_segment_and_open_one_by_one(stubs):
    explorer = Explorer(stubs.rope_like(33, 9))
    page = Page(explorer)
    assert explorer.scene["detail"] == "segments"
    assert [n[1] for n in drawn.nodes(explorer)].count("segment") == 9
    page.send("open", segment=4)
    kinds = [n[1] for n in drawn.nodes(explorer)]
    assert kinds.count("segment") == 8
    assert kinds.count("op") == len(explorer.plan.groups[4])
    assert drawn.patterns(explorer).count("<pattern") == 1  # of the open box
    boundary = next(e[0] for e in drawn.edges(explorer) if e[1] == "boundary")
    assert page.send("act", id=boundary).startswith("Glued S")
    page.send("detail", detail="ops")
    assert [n[1] for n in drawn.nodes(explorer)].count("op") == 329
    explorer.close()


def test_the_plan_is_compared_with_others_and_the_marks_follow_edits():
    import fuser_lab as fl

    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], contiguity=True)
        fd.add_output(fd.ops.exp(fd.ops.neg(fd.ops.abs(x))))
    page = Page(fl.explore(fd))
    explorer = page.explorer
    assert "marks" not in explorer.scene
    assert page.send("compare", **{"with": "unfused"}) == "Compared with the unfused plan."
    unfused = fl.segment(fd, strategy="unfused")
    difference = fl.diff(unfused, explorer.plan)
    assert len(explorer.scene["marks"]["moved"]) == len(difference.moved)
    assert len(explorer.scene["marks"]["gone"]) == len(difference.no_longer_crossing)
    assert difference.headline.replace(">", "&gt;") in explorer.panels["compare"]["html"]
    inside = [e[0] for e in drawn.edges(explorer) if e[1] == "inside"]
    page.send("act", id=inside[0])
    assert len(explorer.scene["marks"]["gone"]) == len(difference.no_longer_crossing) - 1
    assert page.send("compare", **{"with": "optimal"}).endswith("switch to it once, then compare.")
    assert page.send("compare", **{"with": "nonsense"}) == "There is no nonsense plan to compare with."
    page.send("compare", **{"with": ""})
    changed = fl.diff(fl.segment(fd), explorer.plan)  # what the cut moved stays marked until the next edit
    assert len(explorer.scene["marks"]["moved"]) == len(changed.moved)
    explorer.close()


@pytest.mark.parametrize("name", [
    "graph", "roofline", "memory", "time_line", "layouts", "passes", "compare", "certificate",
])
def test_each_written_tab_escapes_names(stubs, name):
    plan = stubs.sum_broadcast_add(("<script>alert(1)</script>", "T1", "T2", "<b>T3</b>", "T4"))
    explorer = Explorer(plan)
    Page(explorer).send("panel", name=name)
    html = explorer.panels[name]["html"]
    assert html
    assert "<script" not in html
    assert "<b>T3" not in html
    explorer.close()


def test_an_edit_of_300_ops_takes_little_processor_time(stubs):
    explorer = Explorer(stubs.rope_like(30), [])
    page = Page(explorer)
    inside = [e[0] for e in drawn.edges(explorer) if e[1] == "inside"]
    took = []
    for edge in inside[:200:40]:
        start = time.process_time()
        assert page.send("act", id=edge).startswith("Cut at ")
        took.append(time.process_time() - start)
    assert min(took) < allowed(0.1)  # 0.051 to 0.064 when this was written, of the 0.15 from click to redraw
    assert len(json.dumps(explorer.scene)) < 150_000
    explorer.close()
