"""Whatever is done with the controls of the explorer in whatever order, what the page says and offers is true.

The page is the explorer's own, and Python answers in this process, so that each step takes a fraction of what it takes
in JupyterLab (`test_truth`). After each step, all that is shown is compared with what follows from the plan alone.
"""

import base64
import json
import zlib
from urllib.parse import parse_qsl

import pytest
from browser.hands import Hands
from browser.sizes import layers, rewritable
from browser.stage import Stage
from browser.truth import SHOWN, untrue
from fuser_lab_widgets import Explorer

from fuser_lab.cost.measured_times import TimingRow, Timings

pytestmark = pytest.mark.browser

STEPS = 12
MORE_STEPS = 40  # of the seeds that only `make test-all` runs
CLIPBOARD = """() => Object.defineProperty(navigator, "clipboard", {
  value: { writeText: async (text) => (window.copied = text) },
})"""


PLANS = {"small": (rewritable, ["unfused", "optimal"]), "repeating": (lambda: layers(3), ["unfused"])}


def timer(plans, inputs, *, progress, cancelled):
    """Return times as long as the bytes take at 1 GB/s, at once."""
    rows = []
    for number, plan in enumerate(plans):
        for segment in plan.segments:
            rows.append(timed(plan, segment.index, segment.bytes, float("nan")))
            progress(len(rows), sum(len(one.segments) for one in plans), Timings(rows=tuple(rows)))
        rows.append(timed(plan, None, sum(segment.bytes for segment in plan.segments), 1.0 + number))
    return Timings(rows=tuple(rows))


def timed(plan, segment, moved, ratio):
    return TimingRow(
        plan=plan.name, segment=segment, scheduler="", ops=1, bytes_in=moved, bytes_out=0, bytes_crossing=0,
        median=moved * 1e-9, iqr=0.0, samples=20, ratio=ratio, device="CPU", timer="wall clock", error=0.1,
        plan_hash=plan.hash,
    )


def check_link(shown, plan):
    """Check that the link that was copied names the plan, and that its code makes it."""
    found = dict(parse_qsl(shown["copied"].lstrip("#")))
    assert found["plan"] == plan.hash
    assert found["detail"] == shown["scene"]["detail"]
    packed = found["code"].translate(str.maketrans("-_", "+/"))
    code = zlib.decompress(base64.b64decode(packed + "=" * (-len(packed) % 4))).decode()
    made = {}
    exec(code, made)
    assert made["plan"].hash == plan.hash


@pytest.mark.parametrize(("name", "seed"), [
    *((name, 1) for name in PLANS),
    *(pytest.param(name, seed, marks=pytest.mark.matrix) for name in PLANS for seed in range(2, 12)),
])
def test_what_the_page_shows_is_true_after_any_steps(browser, name, seed):
    make, strategies = PLANS[name]
    explorer = Explorer(make(), [], strategies=strategies, timer=timer)
    stage = Stage(browser, size=(1440, 900))
    stage.show(explorer)
    stage.page.evaluate(CLIPBOARD)
    hands = Hands(stage, seed)
    for _ in range(STEPS if seed == 1 else MORE_STEPS):
        hands.act()
        stage.rest()
        shown = stage.page.evaluate(SHOWN)
        assert untrue(explorer, shown, hands) == {}, json.dumps(hands.done)
        if hands.done[-1] == "button: Copy link":
            check_link(shown, explorer.plan)
    assert stage.errors == [], hands.done
    stage.close()
    explorer.close()
