"""The ledger of lesson 19: ``python -m tests.notebooks.lesson_ledger`` runs its sweep and stores the rows.

Only rows of whole plans are stored, in ``notebooks/ledger_19``, without their scripts and the machine's name.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import fuser_lab as fl
from tests.notebooks.text_forms import text_form

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LEFT_OUT = ("plan_python", "host", "fusion", "note")


def lesson_sweep() -> Any:
    """Return the sweep of the lesson, from its cells."""
    text = text_form("19_a_question").read_text(encoding="utf-8")
    cells = re.split(r"^# %%.*\n", text, flags=re.MULTILINE)
    scope: dict[str, Any] = {}
    first = next(cell for cell in cells if "fusions = {" in cell)
    exec(first, scope)
    exec(next(cell for cell in cells if "sweep = fl.sweep(" in cell).partition("first = ")[0], scope)
    return scope["sweep"]


def main() -> None:
    swept = lesson_sweep()
    place = NOTEBOOKS / "ledger_19"
    with fl.Ledger(tempfile.mkdtemp()) as ledger:
        swept.run(ledger)
        rows = ledger.sql("SELECT * FROM rows WHERE segment IS NULL ORDER BY measured_at")
    shutil.rmtree(place, ignore_errors=True)
    with fl.Ledger(place) as kept:
        for row in rows.to_dict("records"):
            known = {name: value for name, value in row.items() if name not in LEFT_OUT and value == value}  # not NaN
            kept.append({name: _plain(name, value) for name, value in known.items() if value is not None})
    (journal,) = place.glob("*.jsonl")
    journal.rename(place / "rows.jsonl")


def _plain(name: str, value: Any) -> Any:
    whole = {"ops", "bytes_in", "bytes_out", "bytes_crossing", "segments", "cost", "bound", "known", "cores"}
    return int(value) if name in whole else value.isoformat() if hasattr(value, "isoformat") else value


if __name__ == "__main__":
    main()
