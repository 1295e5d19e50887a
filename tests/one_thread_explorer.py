"""Drives explorers, reports and runs as a user does; `tests.one_thread` runs this file in a restricted Python."""

import asyncio
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from fuser_lab_widgets import tabs

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.examples import normalization, reshapes, rope
from fuser_lab.examples.example import Example
from tests.one_thread import MISSING
from tests.thorough import THOROUGH
from tests.unit.widgets import drawn
from tests.unit.widgets.events import send

CASES = (rope.ROPE_BACKWARD if THOROUGH else normalization.RMS_NORM_BACKWARD, reshapes.RESHAPE_DECIDES)


def events(explorer: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield events as the page sends them, with their fields."""
    for tab in tabs.WRITTEN:
        yield "panel", {"name": tab}
    inside = [edge[0] for edge in drawn.edges(explorer) if edge[1] == "inside"]
    for edge in inside[:2]:
        yield "select", {"id": edge}
        yield "preview", {"id": edge}
        yield "act", {"id": edge}
    yield from (("undo", {}), ("redo", {}), ("strategy", {"strategy": "optimal"}), ("reset", {}))
    yield from (("decisions", {"first": 0}), ("run", {}), ("certificate", {}), ("schedule", {"segment": 0}))
    for view in ("source", "kernel"):
        yield "source", {"segment": 0, "target": "cpu", "view": view}
    yield "code", {}


def drive(example: Example) -> None:
    """Open the explorer of an example and send it events; what it says is an answer, not a failure."""
    inputs = example.inputs()
    with FusionDefinition() as fd:
        example.define(fd)
    explorer = fl.explore(fd, inputs)
    explorer.wait()
    for kind, fields in events(explorer):
        send(explorer, kind, **fields)
        explorer.wait()
        said = explorer.status["text"]
        assert "failed" not in said, f"{example.name}: {kind} {fields}: {said}"
    assert explorer.times.get("done"), f"{example.name}: nothing was timed: {explorer.times}"
    explorer.close()
    with tempfile.TemporaryDirectory() as folder:
        path = fl.report(fl.segment(fd, inputs), path=Path(folder) / "report.html")
        assert "<svg" in path.read_text(encoding="utf-8")
    error = example.max_error(inputs, fd.execute(inputs))
    assert error < 1, f"{example.name}: an error of {error} times the tolerance"


async def run_while_a_loop_runs() -> None:
    """Open an explorer in an event loop, which runs its searches between two events."""
    with FusionDefinition() as fd:
        reshapes.RESHAPE_DECIDES.define(fd)
    explorer = fl.explore(fd)
    send(explorer, "certificate")
    assert explorer.history["searching"]
    await asyncio.sleep(0.01)  # one turn of the loop
    assert not explorer.history["searching"]
    assert "than the cheapest possible plan" in explorer.status["text"], explorer.status
    explorer.close()


with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for case in CASES:
        drive(case)
assert any("Numba, which is not installed" in str(warning.message) for warning in said)
asyncio.run(run_while_a_loop_runs())
assert not {name.partition(".")[0] for name, module in sys.modules.items() if module is not None} & set(MISSING)
