"""After any sequence of clicks, everything that the page states and offers is true of the plan on show."""

import ast
import json
import random
import time

import pytest

pytestmark = pytest.mark.browser

PLAN = """\
import json
import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab_widgets import answers, previews
with FusionDefinition() as fd:
    x = fd.define_tensor([64, 48], contiguity=True, dtype=DataType.Float)
    a = fd.ops.exp(x)
    b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]))
    c = fd.ops.neg(b)
    fd.add_output(fd.ops.mul(c, fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])))
explorer = Explorer(fl.segment(fd), [], strategies=["unfused"], timer=timer)

def truth():
    '''What has to be true of the page now, from the plan alone.'''
    explorer.wait(20)
    plan, view = explorer.plan, explorer._page.view
    said = answers.answer(plan, view, str(explorer.answer.get("id", ""))) if explorer.answer.get("id") else {}
    greyed = sorted(e.id for e in view.edges if e.kind == "boundary" and not previews.of_edge(plan, view, e).legal)
    moved = sum(s.bytes for s in plan.segments)
    return {
        "segments": len(plan.segments), "moved": answers.bytes_label(moved), "greyed": greyed,
        "edges": sorted(e.id for e in view.edges), "title": said.get("title", ""), "acked": explorer.acked,
        "actions": [[a["label"], "refused" in a] for a in said.get("actions", ())],
        "strategy": "mine" if explorer.history["edits"] else explorer.strategy.replace("_", "-"),
    }

explorer"""

# The content of the page, and whether it shows the answers to all its events.
SHOWN = """() => {
  const root = document.querySelector('.fl-explorer');
  const all = (selector) => [...root.querySelectorAll(selector)];
  const plain = (part) => { // without the users' names, which are added to the texts of tensors
    const copy = part.cloneNode(true);
    copy.querySelectorAll('.fx-called').forEach((name) => name.remove());
    return copy.textContent;
  };
  const edits = /^(Cut|Glue|Move|Recompute|Pass|Insert|Remove)/;
  const buttons = all('.fx-actions button').filter((b) => edits.test(b.textContent));
  return {
    segments: Number(root.querySelector('.fx-facts').innerText.match(/\\d+/)[0]),
    facts: root.querySelector('.fx-facts').innerText,
    edges: all('.fl-edge').map((e) => e.dataset.id).sort(),
    greyed: all('.fl-boundary.fx-cannot').map((e) => e.dataset.id).sort(),
    title: plain(root.querySelector('.fx-inspector h3')),
    actions: buttons.map((b) => [plain(b), b.getAttribute('aria-disabled') === 'true']),
    strategy: all('[aria-label="Strategy"] [aria-pressed=true]').map((b) => b.textContent).join(),
    stepping: root.querySelector('.fx-stepping') !== null,
  };
}"""
ASK = """async (code) => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  const future = kernel.requestExecute({ code: '', user_expressions: { told: code }, store_history: false });
  const reply = await future.done;
  const { told } = reply.content.user_expressions;
  if (!told.data) throw new Error(told.traceback.join(' '));
  return told.data['text/plain'];
}"""


class Hands:
    """Random clicks and keys, each on something that the page offers at that moment."""

    def __init__(self, desk, seed):
        self.desk, self.random, self.done = desk, random.Random(seed), []

    def act(self):
        explorer, keys = self.desk.explorer, self.desk.page.keyboard
        kinds = ["edge", "edge", "edge", "op", "button", "strategy", "u", "U", "j", "Escape", "run", "search", "look"]
        kind = self.random.choice(kinds)
        self.done.append(kind)
        if kind in {"edge", "look"}:
            self._one(explorer.locator(".fl-inside, .fl-boundary"), {"shiftKey": kind == "look", "bubbles": True})
        elif kind == "op":
            self._one(explorer.locator(".fl-op"))
        elif kind == "button":
            self._one(explorer.locator(".fx-actions button"))
        elif kind == "strategy":
            self._one(explorer.locator('[aria-label="Strategy"] button'))
        elif kind == "run":
            self._one(explorer.get_by_role("button", name="Run", exact=True))
        elif kind == "search":
            search = explorer.get_by_label("Search the graph")
            search.fill(self.random.choice(["sum", "T3", ""]))
            search.press("Escape")
        else:
            explorer.evaluate("(root) => root.focus({ preventScroll: true })")
            keys.press(kind)

    def _one(self, locator, event=None):
        count = locator.count()
        if count:
            one = locator.nth(self.random.randrange(count))
            self.done[-1] += f" {one.get_attribute('data-id') or one.text_content()}"
            one.dispatch_event("click", event or {"bubbles": True})


def told(desk):
    return json.loads(ast.literal_eval(desk.page.evaluate(ASK, "json.dumps(truth())")))


def untrue(shown, truth):
    """False statements of the page: what it shows, and what would be true."""
    checked = ["segments", "edges", "strategy"]
    if not shown["stepping"]:
        checked.append("greyed")
    if truth["title"] and shown["title"] != "This plan as code":
        checked += ["title", "actions"]
    found = {name: (shown[name], truth[name]) for name in checked if shown[name] != truth[name]}
    moved = f"{truth['moved']} moved"
    return found if moved in shown["facts"].replace("\n", " ") else found | {"moved": (shown["facts"], moved)}


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.matrix) for n in (2, 3, 4))])
def test_what_the_page_shows_is_true_of_the_plan(open_explorer, seed):
    desk = open_explorer(PLAN)
    hands = Hands(desk, seed)
    for _ in range(8):
        hands.act()
        end = time.monotonic() + 60
        while True:  # the page delays clicks while the kernel handles an earlier one
            desk.page.wait_for_timeout(50)
            truth = told(desk)
            found = untrue(desk.page.evaluate(SHOWN), truth)
            if not found or time.monotonic() > end:
                break
        assert found == {}, hands.done
    assert desk.complaints == []
