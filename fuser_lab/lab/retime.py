"""One row of a ledger measured again, for ``git bisect run``."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fuser_lab.api.functions import load_repro, segment, time
from fuser_lab.arguments import brief
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import InputError, UnsupportedError
from fuser_lab.lab.ledger import Ledger
from fuser_lab.plan import Plan
from fuser_lab.report.units import seconds_label
from fuser_lab.runtime.arrays import from_numpy_as
from fuser_lab.segmentation import STRATEGIES
from fuser_lab.targets import CPU, Target, target_of_label

_STRATEGY: Final = re.compile(r"^plan = fl\.segment\(fd, inputs(?:, strategy='(\w+)')?\)$", re.MULTILINE)
_EDIT: Final = re.compile(r"^plan = plan\.(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retimed:
    """A row measured again: ``before`` and ``now`` are medians in seconds, NaN if not measured."""

    plan: str
    segment: int | None
    before: float
    now: float

    def __str__(self) -> str:
        """Return one line."""
        where = self.plan if self.segment is None else f"{self.plan}, S{self.segment}"
        return f"{where}: {seconds_label(self.now)} now, {seconds_label(self.before)} in the ledger"


def retime(ledger: str | Path, row: str) -> Retimed:
    """Return a row of a ledger measured again, by the version of fuser_lab that is imported.

    The definition and its inputs are read from the row's script as data; nothing in it is executed. The segmenter cuts
    it again, so a change of the plan counts as a change of the time. It runs on the same kind of device as before, CPU
    or GPU.

    Parameters
    ----------
    ledger
        Folder of the ledger.
    row
        Identifier of the row.

    Raises
    ------
    InputError
        If there is no such ledger, or it has no such row.
    UnsupportedError
        If the row's plan was edited or has non-default options, or if the row has no plan.
    """
    if not Path(ledger).is_dir():
        raise InputError(f"retime: there is no ledger {brief(str(ledger))}; give the folder that a sweep wrote.")
    records = Ledger(ledger).sql("SELECT * FROM rows WHERE id = ?", [row]).to_dict("records")
    if not records:
        raise InputError(f"retime: {brief(str(ledger))} has no row {brief(row)!r}.")
    script, name = str(records[0]["plan_python"] or ""), str(records[0]["plan"])
    strategy = _strategy(script, name)
    fd, inputs = load_repro(script)
    target = target_of_label(str(records[0]["device"] or CPU.label))
    arrays: list[Any] = [
        _array(described, target) if isinstance(described, TensorSpec) else described for described in inputs
    ]
    plan: Plan = segment(fd, arrays, strategy=strategy, name=name)
    number = records[0]["segment"]
    place = None if number is None or math.isnan(number) else int(number)
    rows = [
        timing for timing in time(plan, arrays, progress=False).rows if timing.segment == place and timing.plan == name
    ]
    now = rows[0].median if rows else math.nan
    return Retimed(plan=name, segment=place, before=float(records[0]["median"] or math.nan), now=now)


def _array(described: TensorSpec, target: Target) -> Any:
    array = described.materialize()
    return array if target.on_host else from_numpy_as("torch", array).to(target.name)


def _strategy(script: str, name: str) -> str:
    match, edit = _STRATEGY.search(script), _EDIT.search(script)
    strategy = (match[1] or "bottom_up") if match else ""
    if strategy not in STRATEGIES or edit is not None:
        why = f"was edited by {edit[1]}" if edit else "has options or schedulers of its own" if script else "is a peer"
        raise UnsupportedError(f"retime: {name} {why}; only unedited plans of a strategy can be measured again.")
    return strategy
