"""Messages that no page of this version sends: each is refused with a sentence, and later clicks do what they did."""

import copy
import gc
import time
import weakref

import pytest

pytest.importorskip("anywidget")

import ipywidgets
from fuser_lab_widgets import Explorer, messages
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.model import ModelMap
from ipywidgets.widgets import widget
from needs import needs
from unit.widgets import drawn

import fuser_lab as fl
from fuser_lab.arguments import short_text
from fuser_lab.errors import FuserLabError

NESTED = []
for _ in range(400):
    NESTED = [NESTED]
VALUES = [None, True, -1, 2.5, 1e308, 10**33, "", "S0", "\ud800", [], {}, [None], {"a": 1}, NESTED]


@pytest.fixture(scope="module")
def plan():
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor([16, 32], contiguity=True) for _ in range(2))
        total = fd.ops.sum(fd.ops.exp(x), [1])
        fd.add_output(fd.ops.add(fd.ops.broadcast(total, [False, True]), y))
    return fl.segment(fd)


def click(explorer):
    """Cut with the message that the page sends next, undo it, and return the numbers of segments after both."""
    edge = next(e[0] for e in drawn.edges(explorer) if e[4] == "T3")
    counts = []
    for data in ({"type": "cut", "id": edge}, {"type": "undo"}):
        explorer.set_state({"events": [{"n": explorer.acked + 1, **data}]})
        counts.append(len(explorer.scene["segments"]["rows"]))
    return counts


@pytest.mark.parametrize("event", [
    None, 7, "cut", [], {}, {"type": "cut"}, {"n": None, "type": "cut"}, {"n": "1", "type": "cut"}, {"n": 1.5},
    {"n": True, "type": "undo"}, {"n": -1, "type": "undo"}, {"n": 10**33, "type": "undo"},
    {"n": 2**53, "type": "undo"}, {"n": NESTED, "type": "undo"},
], ids=short_text)  # fmt: skip
def test_an_event_without_a_number_that_can_follow_the_last_one_is_refused(explorer, event):
    before = explorer.acked
    explorer.set_state({"events": [event]})
    assert explorer.status["kind"] == "error"
    assert explorer.status["text"].startswith(("A message of the page must be an object", "Message: n must be a whole"))
    assert explorer.acked == before
    assert click(explorer) == [3, 2]


def test_a_malformed_event_does_not_keep_those_beside_it_from_being_handled(explorer):
    edge = next(e[0] for e in drawn.edges(explorer) if e[4] == "T3")
    explorer.set_state({"events": [None, {"n": 1, "type": "cut", "id": edge}, {"n": 10**33}, {"n": 2, "type": "undo"}]})
    assert explorer.acked == 2
    assert explorer.status["text"] == "Undid cut(T3)."


@pytest.mark.parametrize("kind", [*messages.EXPLORER, "nothing", None, 3, [], "__init__"], ids=short_text)
def test_a_message_with_a_field_of_any_kind_is_done_or_refused_with_a_sentence(explorer, kind):
    form = messages.EXPLORER.get(kind) if isinstance(kind, str) else None
    names = [*form.has, *form.may] if form else ["id"]
    for fields in [{}, *({name: value} for name in names for value in VALUES)]:
        explorer.set_state({"events": [{"n": explorer.acked + 1, "type": kind, **fields}]})
        explorer.wait(60)
        assert " failed: " not in explorer.status["text"], (fields, explorer.status["text"])
        if form is None or any(name not in fields for name in form.has) or (kind == "open" and not fields):
            assert explorer.status["kind"] == "error", fields
    explorer.set_state({"events": [{"n": explorer.acked + 1, "type": "reset"}]})
    explorer.set_state({"events": [{"n": explorer.acked + 1, "type": "strategy", "strategy": "bottom_up"}]})
    assert click(explorer)[0] == click(explorer)[0] == len(explorer.scene["segments"]["rows"]) + 1


def test_every_message_of_the_explorer_has_a_handler(explorer):
    assert explorer._handlers.keys() == messages.EXPLORER.keys()


@pytest.mark.parametrize("state", [
    {"events": None}, {"events": 3}, {"strategy": 5}, {"strategy": "no such strategy"}, {"whole_fusion": "yes"},
    {"selection": "T99"}, {"selection": {"a": []}}, {"running": None},
], ids=short_text)  # fmt: skip
def test_a_trait_that_a_page_sets_wrongly_is_refused_and_reverts(explorer, state):
    (name,) = state
    before, sent = copy.copy(getattr(explorer, name)), []
    explorer.send_state = lambda key=None: sent.append(key)
    explorer.set_state(state)
    assert getattr(explorer, name) == before
    assert explorer.status["kind"] == "error"
    assert [name] in sent  # the page reverts, too
    assert click(explorer) == [3, 2]


@pytest.mark.parametrize("name", ["acked", "scene", "panels", "status", "history", "views", "targets"])
def test_a_page_cannot_set_what_only_python_sets(explorer, name):
    before = getattr(explorer, name)
    explorer.set_state({name: 10**33})
    assert getattr(explorer, name) == before
    assert click(explorer) == [3, 2]


def test_a_message_has_only_fields_that_are_described():
    said = messages.read({"type": "cut", "id": "T1|T2", "label": "Cut", "n": 3, "plan": 2}, messages.EXPLORER)
    assert said == {"type": "cut", "id": "T1|T2", "plan": 2}
    cut = {"type": "cut"}
    for wrong in (cut, cut | {"id": 1}, cut | {"id": "", "plan": "x"}, {"type": "box", "id": "1"}):
        with pytest.raises(FuserLabError, match=r"must be|given"):
            messages.read(wrong, messages.EXPLORER)


def test_a_level_of_detail_changes_only_the_picture(explorer):
    for name in ("compare", "schedule", "certificate", "memory"):
        explorer.set_state({"events": [{"n": explorer.acked + 1, "type": "panel", "name": name}]})
    before = explorer.panels, explorer.history, explorer.decisions, explorer.answer
    for event in ({"type": "detail", "detail": "segments"}, {"type": "open", "segment": 0}):
        rev = explorer.scene["rev"]
        explorer.set_state({"events": [{"n": explorer.acked + 1, **event}]})
        assert explorer.scene["rev"] == rev + 1
        after = explorer.panels, explorer.history, explorer.decisions, explorer.answer
        assert all(a is b for a, b in zip(before, after, strict=True)), event


def test_a_tab_that_cannot_be_written_contains_the_reason(explorer, monkeypatch):
    def refuse(_shown):
        message = "memory: this plan has none."
        raise FuserLabError(message)

    monkeypatch.setitem(messages.tabs.WRITTEN, "memory", refuse)
    explorer.set_state({"events": [{"n": 1, "type": "panel", "name": "memory"}]})
    assert "this plan has none." in explorer.panels["memory"]["html"]
    assert explorer.panels["memory"]["hash"] == explorer.scene["hash"]


def test_closed_explorers_leave_nothing_behind(plan):
    registered = dict(widget._instances)
    explorers = []
    for number in range(20):
        explorer = Explorer(plan, [], strategies=["unfused"])
        explorer.set_state({"events": [{"n": 1, "type": "panel", "name": "edits"}]})
        if number % 2:
            explorer.layout = ipywidgets.Layout(width="50%")
            explorer.layout.close()
        explorer.close()
        explorer.close()
        explorers.append(weakref.ref(explorer))
        del explorer
    assert widget._instances == registered
    end = time.monotonic() + 60
    # A thread that computes for an explorer keeps the explorer until it ends.
    while any(explorer() for explorer in explorers) and time.monotonic() < end:
        time.sleep(0.01)
        gc.collect()
    assert [explorer() for explorer in explorers] == [None] * 20


def test_a_closed_explorer_starts_nothing_when_its_run_ends(plan, timer, monkeypatch):
    explorer = Explorer(plan, [], timer=timer)
    explorer.wait(60)
    timer.gate.clear()
    explorer.running = True
    explorer.close()
    started = []
    monkeypatch.setattr(Background, "_run", lambda worker, *_: started.append(worker))
    timer.gate.set()
    explorer.wait(60)
    assert explorer.times["running"] is False  # the end of the run was reported
    assert started == []


@pytest.fixture(scope="module")
def captured():
    """A captured model of one module."""
    torch = needs("torch")
    return fl.from_torch(torch.nn.Softmax(-1), torch.zeros(4, 8))


@pytest.fixture(scope="module")
def model_map(captured):
    """The map of the model."""
    made = ModelMap(captured, "a model", fl.explore(captured).show_region)
    yield made
    made.close()


def test_a_closed_explorer_of_a_model_leaves_nothing_behind(captured):
    registered = dict(widget._instances)
    explorer = fl.explore(captured)
    for _ in range(2):  # one explorer of a region replaces the other
        explorer.show_region(0, 0)
        explorer.explorer.strategy = explorer.explorer._session.strategies[-1]
    explorer.close()
    assert widget._instances == registered


@pytest.mark.parametrize("event", [
    None, 3, {}, {"type": None}, {"type": "box"}, {"type": "box", "id": 4}, {"type": "graph", "n": 10**33},
    {"type": "graph", "n": -1}, {"type": "depth", "n": "all"}, {"type": "open", "graph": 0},
    {"type": "open", "graph": 99, "region": 0}, {"type": "cut", "id": ""},
], ids=short_text)  # fmt: skip
def test_the_map_of_a_model_refuses_malformed_messages(model_map, event):
    view = model_map.view
    model_map._receive(model_map, event, [])
    assert {**model_map.view, "status": ""} == {**view, "status": ""}
    assert "must be" in model_map.view["status"] or "has no" in model_map.view["status"]
