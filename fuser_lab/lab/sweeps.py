"""Sweeps: many fusions, sizes, strategies, targets and schedules as tasks, whose results a ledger keeps."""

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fuser_lab import examples
from fuser_lab.arguments import (
    ANYTHING,
    FLAG,
    FUNCTION,
    NONE,
    TEXT,
    having,
    instance,
    list_of,
    mapping,
    number,
    one_of,
    optional,
    short_text,
    takes,
)
from fuser_lab.cost.device import Device
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.ir import Fusion
from fuser_lab.lab.cluster import connect, rows_from
from fuser_lab.lab.ledger import Ledger
from fuser_lab.lab.performing import Peers, perform
from fuser_lab.lab.schema import Row
from fuser_lab.lab.tasks import Case, Task, Work, case_of, schedule_of, tasks_of
from fuser_lab.plan import Plan
from fuser_lab.plan.accepted import TARGET
from fuser_lab.plan.planning import definition_of, device_of
from fuser_lab.report.html import table_html
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import plural, seconds_label
from fuser_lab.runtime.interrupts import progress_bar
from fuser_lab.segmentation import STRATEGIES, SegmenterOptions
from fuser_lab.targets import CPU, CUDA

if TYPE_CHECKING:
    import pandas as pd

_SHOWN: Final = 10  # reasons for failures in a text
Progress = Callable[[int, int, Task], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult(Shown):
    """The result of a run: tasks ``done`` now, tasks ``kept`` from an earlier run, and failures with reasons."""

    done: int
    kept: int
    failures: tuple[tuple[Task, str], ...]
    seconds: float

    @property
    def note(self) -> str:
        """The counts in one sentence."""
        earlier = f" {plural(self.kept, 'task')} had already been done." if self.kept else ""
        failed = f"; {len(self.failures)} of them failed" if self.failures else ""
        return f"{plural(self.done, 'task')} done in {seconds_label(self.seconds)}{failed}.{earlier}"

    def __str__(self) -> str:
        """Return the counts and the reasons of failures."""
        table = self._table()
        return f"{self.note}\n{table_text(table)}" if table.rows else self.note

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the same as HTML."""
        return table_html(self._table(), note=self.note)

    def _table(self) -> Table:
        first: dict[str, Task] = {}
        counts: Counter[str] = Counter()
        for task, reason in self.failures:
            first.setdefault(reason, task)
            counts[reason] += 1
        rows = tuple((reason, str(count), str(first[reason])) for reason, count in counts.most_common(_SHOWN))
        return Table(columns=("why tasks failed", "tasks", "the first"), rows=rows, numeric=frozenset({"tasks"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Tasks, unique by content.

    Attributes
    ----------
    name
        Name of the sweep, which is part of the keys of its tasks.
    tasks
        The tasks in the order of fusions, sizes, targets, strategies, options and schedules.
    peers
        Peers by the names of fusions.
    """

    name: str
    tasks: tuple[Task, ...]
    peers: Mapping[str, Peers] = field(default_factory=dict)

    @takes(
        "Sweep.run", ledger=instance(Ledger),
        client=(optional(TEXT) | having("scheduler_info", "submit", accepted="a client of dask.distributed")).worded(
            "a client of dask.distributed, the address of a scheduler, or None",
        ),
        again=(FLAG | one_of("failed")).worded("True, False or 'failed'"),
        progress=(FUNCTION | optional(FLAG)).worded("a function, True, False or None"),
    )
    def run(
        self, ledger: Ledger, client: Any = None, *, again: bool | str = False,
        progress: Progress | bool | None = None,
    ) -> SweepResult:
        """Run the missing tasks and return a summary; rows are in the ledger as soon as their task is done.

        Tasks that are in the ledger are not repeated, so a sweep that was interrupted or lost its machine continues
        where it stopped. A task that fails is a row with the reason in the column ``failure``.

        Parameters
        ----------
        ledger
            The ledger that stores the rows; this process writes all of them.
        client
            A client of dask.distributed or the address of a scheduler; by default the tasks run in this process.
            Measurements need workers with one thread and the resource ``GPU=1`` (``CPU=1`` for those on a CPU); other
            work runs on the other workers.
        again
            True repeats tasks that the ledger has, ``"failed"`` those that failed.
        progress
            Called as ``progress(done, total, task)``; None shows a bar in a terminal or notebook, False none.

        Raises
        ------
        InputError
            If no scheduler answers, or no worker can run the tasks.
        UnsupportedError
            If an address is given and dask.distributed is not installed.
        """
        start = time.perf_counter()
        open_ = self.missing(ledger, again=again)
        failures: list[tuple[Task, str]] = []
        with _show(progress, len(open_)) as show, contextlib.closing(self._rows(open_, client)) as results:
            for done, (task, rows) in enumerate(results, start=1):
                for row in rows:
                    ledger.append(row)
                failures += [(task, str(row["failure"])) for row in rows if row.get("failure")]
                show(done, len(open_), task)
        return SweepResult(
            done=len(open_), kept=len(self.tasks) - len(open_), failures=tuple(failures),
            seconds=time.perf_counter() - start,
        )

    @takes("Sweep.missing", ledger=instance(Ledger), again=(FLAG | one_of("failed")).worded("True, False or 'failed'"))
    def missing(self, ledger: Ledger, *, again: bool | str = False) -> list[Task]:
        """Return the tasks that a ledger does not have; with ``again="failed"`` also those that failed."""
        if again is True:
            return list(self.tasks)
        counts = ledger.sql(
            "SELECT task, count(*) - count(failure) AS succeeded FROM rows "
            "WHERE task IS NOT NULL AND elapsed IS NOT NULL GROUP BY task",
        )
        complete = counts[counts["succeeded"] > 0] if again == "failed" else counts
        keys = set(complete["task"])
        return [task for task in self.tasks if task.key not in keys]

    @takes("Sweep.to_pandas", ledger=instance(Ledger))
    def to_pandas(self, ledger: Ledger) -> "pd.DataFrame":
        """Return the rows that a ledger has of the sweep's tasks, the oldest first."""
        rows = ledger.sql("SELECT * FROM rows WHERE sweep = ? ORDER BY measured_at", [self.name])
        return rows[rows["task"].isin({task.key for task in self.tasks})].reset_index(drop=True)

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.tasks)

    def __repr__(self) -> str:
        """Return a one-line summary of the sweep."""
        counts: dict[str, set[Any]] = {
            "fusion": {task.fusion for task in self.tasks}, "size": {task.inputs for task in self.tasks},
            "target": {task.target for task in self.tasks},
        }
        parts = [plural(len(axis_values), noun) for noun, axis_values in counts.items()]
        strategies = ", ".join(dict.fromkeys(task.strategy for task in self.tasks))
        work = ", ".join(dict.fromkeys(task.work.value for task in self.tasks))
        name = f" {self.name!r}" if self.name else ""
        return f"<Sweep{name} of {plural(len(self.tasks), 'task')}: {work} of {', '.join(parts)}; {strategies}>"

    def _rows(self, tasks: Sequence[Task], client: Any) -> Generator[tuple[Task, list[Row]]]:
        run = uuid.uuid4().hex
        if client is None or not tasks:
            for task in tasks:
                yield task, perform(task, self.peers.get(task.subject, {}), run=run)
            return
        with connect(client) as open_client:
            yield from rows_from(open_client, tasks, dict(self.peers), run)


_SIZES = (NONE | list_of(ANYTHING, "a list of sizes", lazy=True)).worded(
    "a list of sizes, or a dict of such lists by the names of fusions",
)
_FUNCTIONS = mapping(TEXT, FUNCTION.worded("a function of the inputs"), "a dict of functions by name")
_PARAMETERS = mapping(TEXT, ANYTHING, "a dict of parameters by name")


@takes(
    sizes=mapping(TEXT, list_of(ANYTHING, "a list of sizes", lazy=True), "a dict of lists of sizes") | _SIZES,
    strategies=list_of(one_of(*STRATEGIES), "a list of strategies", least=1),
    targets=list_of(optional(TEXT.worded("a device's name") | instance(Device)), "a list of devices", least=1),
    options=list_of(instance(SegmenterOptions), "a list of SegmenterOptions", least=1),
    schedules=(
        one_of("candidates")
        | list_of(
            NONE | mapping(ANYTHING, _PARAMETERS, "a dict of parameters by segment"), "a list of schedules", least=1,
        )
    ).worded("'candidates' or a list of dicts of parameters by segment"),
    peers=(
        NONE | mapping(TEXT, FUNCTION | _FUNCTIONS, "a dict of functions by name")
    ).worded("a dict of functions by name, or of such dicts by the names of fusions"),
    work=one_of(*(work.value for work in Work)), device=optional(TARGET), seconds=number(0), name=TEXT,
)
def sweep(
    fusions: object, sizes: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None, *,
    strategies: Sequence[str] = ("bottom_up",), targets: Sequence[str | Device | None] = (None,),
    options: Sequence[SegmenterOptions] = (SegmenterOptions(),),
    schedules: Sequence[Mapping[Any, Mapping[str, Any]] | None] | str = (None,),
    peers: Mapping[str, Any] | None = None, work: str = "time", device: str | None = None, seconds: float = 1.0,
    name: str = "",
) -> Sweep:
    """Return a sweep: a task for each combination of the arguments, without repetitions.

    A size that does not fit a fusion becomes a task that fails; the others continue.

    Parameters
    ----------
    fusions
        A definition, a pair of a definition and its inputs (`load_repro`), the name of an example, a list of these, or
        a dict of them by name.
    sizes
        Sizes for all fusions, or lists of sizes by the names of fusions. A size is a list with an entry per input (a
        shape, `spec`, an array, which stands for its description, or a number), or a shape that holds for all tensors,
        aligned at the last axis: ``(1024, 512)`` makes ``x[1024, 512]`` and ``bias[512]``. A fusion without sizes uses
        its own inputs.
    strategies
        Names of strategies, as for `segment`.
    targets
        Devices to plan for, as for `segment`.
    options
        Options of the segmenter.
    schedules
        Parameters of kernels by segment, such as ``{0: {"grain": 64}}``, and None for the heuristics' choice; or
        ``"candidates"`` for that choice and each change of one kernel that `tune` would try.
    peers
        Functions of the inputs, timed beside each plan, by name; or dicts of them by the names of fusions.
    work
        ``"time"``, ``"segment"``, ``"certificate"`` or ``"compile"``: what to do with each plan.
    device
        The device whose kernels are compiled and timed, ``"cpu"`` or ``"cuda"``; by default CUDA if this machine has a
        GPU.
    seconds
        Maximum time for each measurement.
    name
        Name of the sweep. It is part of the tasks' keys: the same tasks under another name are measured again.

    Raises
    ------
    ArgumentTypeError
        If an argument has the wrong type.
    InputError
        If a strategy, target, example or parameter is unknown, or ``sizes`` names a fusion that is not swept.
    """
    named_fusions = dict(_fusions(fusions))
    by_fusion = _sizes_of(named_fusions, sizes)
    known_peers = _peers_of(named_fusions, peers or {})
    chosen = Work(work)
    places = [device_of(target) for target in targets]
    schedule_list = None if isinstance(schedules, str) else [schedule_of(schedule or {}) for schedule in schedules]
    runs_on = device or _device_here(chosen)
    tasks: dict[str, Task] = {}
    for label, (fusion, example_inputs) in named_fusions.items():
        cases: list[Case] = [case_of(label, fusion, size, example_inputs) for size in by_fusion[label]]
        functions = sorted(
            (peer, _function_name(peers_of_fusion)) for peer, peers_of_fusion in known_peers.get(label, {}).items()
        )
        for case in cases:
            for task in tasks_of(
                case, strategies=strategies, targets=places, options=options, schedules=schedule_list, work=chosen,
                device=runs_on, peers=functions, seconds=seconds, sweep=name,
            ):
                tasks.setdefault(task.key, task)
    return Sweep(name=name, tasks=tuple(tasks.values()), peers=known_peers)


def _fusions(fusions: object) -> Iterator[tuple[str, tuple[Fusion, Sequence[Any] | None]]]:
    """Yield names of fusions with their definitions and inputs."""
    if isinstance(fusions, Mapping):
        yield from ((TEXT.of(name, "sweep", "fusions"), _fusion(fusion)) for name, fusion in fusions.items())
        return
    several = fusions if isinstance(fusions, list) else [fusions]
    if not several:
        raise InputError("sweep: fusions must have at least one fusion, given [].")
    for place, entry in enumerate(several):
        label = entry if isinstance(entry, str) else getattr(entry, "name", "")
        yield (label if isinstance(label, str) and label else f"fusion{place}"), _fusion(entry)


def _fusion(entry: object) -> tuple[Fusion, Sequence[Any] | None]:
    if isinstance(entry, str):
        chosen = examples.get(entry)
        builder = FusionBuilder()
        with builder:
            chosen.define(builder, "small")
        return builder.fusion, list(chosen.specs("small"))
    if isinstance(entry, Plan):
        raise ArgumentTypeError("sweep: a plan is already cut; give its definition, (plan.definition, plan.inputs).")
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], list | tuple):
        return definition_of(entry[0]), entry[1]
    entry_inputs = getattr(entry, "inputs", None)
    has_inputs = isinstance(entry_inputs, list | tuple) and not isinstance(entry, Fusion)
    return definition_of(entry), entry_inputs if has_inputs else None


def _sizes_of(
    fusions: Mapping[str, Any], sizes: Iterable[Any] | Mapping[str, Iterable[Any]] | None,
) -> dict[str, list[Sequence[Any] | None]]:
    if isinstance(sizes, Mapping):
        unknown = [label for label in sizes if label not in fusions]
        if unknown:
            msg = f"sweep: sizes names the fusion {short_text(unknown[0])}; the fusions are {', '.join(fusions)}."
            raise InputError(msg)
        return {label: list(map(_size, sizes[label])) if label in sizes else [None] for label in fusions}
    return dict.fromkeys(fusions, [None] if sizes is None else list(map(_size, sizes)))


def _size(size: object) -> Sequence[Any]:
    if not isinstance(size, list | tuple):
        msg = f"sweep: a size must be a shape or a list with an entry per input, given {short_text(size)}."
        raise ArgumentTypeError(msg)
    return size


def _peers_of(fusions: Mapping[str, Any], peers: Mapping[str, Any]) -> dict[str, Peers]:
    """Return peers by fusion."""
    shared = {peer: peer_function for peer, peer_function in peers.items() if not isinstance(peer_function, Mapping)}
    unknown = [label for label, each in peers.items() if isinstance(each, Mapping) and label not in fusions]
    if unknown:
        msg = f"sweep: peers names the fusion {short_text(unknown[0])}; the fusions are {', '.join(fusions)}."
        raise InputError(msg)
    by_fusion = {label: functions for label, functions in peers.items() if isinstance(functions, Mapping)}
    combined = {label: {**shared, **by_fusion.get(label, {})} for label in fusions}
    return {label: functions for label, functions in combined.items() if functions}


def _function_name(function: Any) -> str:
    module = getattr(function, "__module__", "")
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _device_here(work: Work) -> str:
    """Return the default device of measurements; work without kernels is the same for both."""
    if work in {Work.SEGMENT, Work.CERTIFICATE}:
        return CPU.name
    from fuser_lab.teaching import on_gpu

    return CPU.name if on_gpu([]) is None else CUDA.name


@contextlib.contextmanager
def _show(progress: Progress | bool | None, total: int) -> Iterator[Progress]:
    if callable(progress):
        yield progress
        return
    bar = progress_bar("sweep", total, hidden=progress is False)

    def show(done: int, _: int, task: Task) -> None:
        bar.set_postfix_str(str(task)[:60], refresh=False)
        bar.update(done - bar.n)

    with contextlib.closing(bar):
        yield show
