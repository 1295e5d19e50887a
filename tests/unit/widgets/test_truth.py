"""After any sequence of clicks, everything that the explorer shows is true of the plan on show."""

import random

import pytest

pytest.importorskip("anywidget")

from browser.sizes import rewritable
from fuser_lab_widgets import Explorer, answers, previews
from unit.widgets import drawn


class Clicks:
    """Random events of a page that may lag behind: it clicks on what it received some events ago."""

    def __init__(self, explorer, seed):
        self.explorer, self.random, self.number = explorer, random.Random(seed), 0
        self.seen = []

    def event(self):
        explorer = self.explorer
        self.seen.append((explorer.scene, explorer.answer))
        scene, answer = self.seen[-1] if self.random.random() < 0.7 else self.random.choice(self.seen[-4:])
        edges = drawn.edges(explorer, scene)
        edge = self.random.choice(edges)
        places = [*(e[0] for e in edges), "segment:0", "segment:1", ""]
        strategies = [event for _, _, buttons, _ in explorer.history["controls"] for *_, event in buttons]
        events = [
            *[{"type": "act", "id": edge[0], "kind": edge[1]}] * 3,
            {"type": self.random.choice(["cut", "glue", "mark", "annotate", "unannotate"]), "id": edge[0]},
            {"type": "select", "id": self.random.choice(places)},
            {"type": "select", "id": self.random.choice(drawn.nodes(explorer, scene))[0]},
            *({key: said for key, said in action.items() if key not in {"label", "title"}} | {"plan": answer["plan"]}
              for action in answer.get("actions", ()) * 2),
            self.random.choice(strategies),
            {"type": self.random.choice(["undo", "redo", "reset"])},
            {"type": "detail", "detail": self.random.choice(["ops", "segments"])},
            {"type": "panel", "name": self.random.choice(["compare", "memory", "roofline", "layouts", "graph"])},
            {"type": "source", "segment": self.random.randrange(3), "target": "cuda"},
            {"type": "compare", "with": self.random.choice(["", "start", "top_down", "unfused"])},
        ]  # fmt: skip
        return self.random.choice(events)

    def send(self, event):
        self.number += 1
        self.explorer.events = [{"n": self.number, **event}]
        self.explorer.wait(300)


def check(explorer):
    plan, state = explorer.plan, explorer._session.state
    view = explorer._page.view
    assert plan is state.plan
    assert explorer.scene["hash"] == plan.hash == view.header.hash
    assert explorer.scene["detail"] == "segments" or len(drawn.nodes(explorer)) == len(view.nodes)
    said = explorer.answer
    if said.get("id"):
        assert said["plan"] == explorer._page.number
        fresh = answers.answer(plan, view, said["id"])
        changing = {"n", "plan", "adopt"} | ({"sentence", "verdicts", "refused"} if said.get("refused") else set())
        assert {k: v for k, v in said.items() if k not in changing} == {
            k: v for k, v in fresh.items() if k not in changing
        }
    assert explorer.foreseen["plan"] == explorer.scene["plan"] == explorer._page.number
    edges = {edge.id: edge for edge in view.edges}
    assert explorer.foreseen["edges"].keys() == {i for i, e in edges.items() if e.kind in {"inside", "boundary"}}
    for name, hint in explorer.foreseen["edges"].items():
        assert hint == previews.hint_of(previews.of_edge(plan, view, edges[name]))
    for action in said.get("actions", ()):
        if action["type"] in {"cut", "glue"}:
            assert ("refused" not in action) == explorer.foreseen["edges"][said["id"]][0]
    shown = [key for label, _, buttons, _ in explorer.history["controls"] for key, _, on, *_ in buttons
             if on and label == "Strategy"]
    assert shown == ["mine" if state.edits else state.strategy]
    assert explorer.history["edits"] == list(state.edits)
    assert explorer.strategy == state.strategy
    assert not explorer.status["text"].partition(":")[0].endswith("failed"), explorer.status


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(8))
def test_what_is_shown_is_true_of_the_plan_that_is_shown(seed):
    explorer = Explorer(rewritable(), strategies=["top_down", "unfused"])
    clicks = Clicks(explorer, seed)
    done = []
    for _ in range(30):
        event = clicks.event()
        done.append(event)
        before = explorer.plan
        clicks.send(event)
        try:
            check(explorer)
        except AssertionError as error:
            error.add_note(f"after {done}")
            raise
        if event.get("plan", explorer._page.number) != explorer._page.number and explorer.plan is before:
            assert "nothing was done" in explorer.status["text"]
    explorer.close()
