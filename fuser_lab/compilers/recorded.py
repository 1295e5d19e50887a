"""`fuser_lab.load_recorded`: plans that another machine recorded, opened without the compiler."""

from dataclasses import dataclass
from pathlib import Path

from fuser_lab.arguments import PATH, takes
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.compilers.record import recording_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedModel:
    """Plans that were read from a file: reasons, kernels, sources and costs; they cannot be edited.

    ``map`` is the map of the model as text, and ``note`` a sentence about versions, if there is one.
    """

    plans: tuple[CompiledPlan, ...]
    map: str
    note: str

    def __repr__(self) -> str:
        """Return the kernels of each graph, and why neighbours are separate."""
        return "\n\n".join([*(str(plan) for plan in self.plans), *([self.note] if self.note else [])])


@takes(path=PATH)
def load_recorded(path: str | Path) -> RecordedModel:
    """Return the plans in a file that ``save("name.fusions.json")`` of `from_inductor` wrote; no code of it is run.

    Raises
    ------
    InputError
        If the file is not one of recorded plans, or is too large.
    """
    recording = recording_of(Path(path))
    plans = tuple(CompiledPlan(record=entry.plan, costs=entry.costs) for entry in recording.plans)
    return RecordedModel(plans=plans, map=recording.map, note=recording.note)
