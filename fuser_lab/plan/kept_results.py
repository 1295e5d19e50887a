"""Results of `fl.tune` that were kept: which there are, and whether new plans use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fuser_lab.arguments import FLAG, list_of, optional, takes, whole
from fuser_lab.errors import InputError
from fuser_lab.process.forks import new_lock
from fuser_lab.report import html
from fuser_lab.report.shown import Shown
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.units import seconds_label
from fuser_lab.runtime import tuned_files
from fuser_lab.schedule.tuned_parameters import Kept, KeptResult


@dataclass(frozen=True, kw_only=True)
class KeptResults(Kept, Shown):
    """Parameters that `fl.tune` found and that were kept, the newest first: each for one segment on one device.

    It prints as a table. ``results`` are the entries; `forget` deletes some. ``fl.segment(..., tuned=...)`` accepts it.
    """

    @takes(numbers=optional(list_of(whole(accepted="the number of a result"), "a list of numbers of results")))
    def forget(self, numbers: Sequence[int] | None = None) -> Self:
        """Delete results from disk, and return the others.

        Parameters
        ----------
        numbers
            Numbers of results, as in the table; all by default.

        Raises
        ------
        InputError
            If there is no result of a number.
        """
        chosen = set(range(len(self.results)) if numbers is None else numbers)
        for number in chosen:
            if number not in range(len(self.results)):
                has = f"from 0 to {len(self.results) - 1}" if self.results else "none: there are no results"
                raise InputError(f"forget: numbers must be {has}; given {number}.")
        tuned_files.forget(self.results[number] for number in chosen)
        _SETTING.changed()
        left = tuple(result for number, result in enumerate(self.results) if number not in chosen)
        return type(self)(results=left, host=self.host)

    def forget_ignored(self) -> None:
        """Delete the files that cannot be used: damaged ones, and those of another version's format."""
        tuned_files.forget_unreadable()

    def table(self) -> Table:
        """Return one row per result."""
        rows = tuple(
            (
                str(number), str(result.machine), ", ".join(result.ops),
                f"{', '.join(dict.fromkeys(result.dtypes))} {result.sizes}", "; ".join(_changes(result)),
                seconds_label(result.before), seconds_label(result.after),
                f"{result.gain} than {result.than}", result.date,
            )
            for number, result in enumerate(self.results)
        )
        columns = ("", "device", "ops", "inputs", "parameters", "before", "after", "gain", "date")
        return Table(columns=columns, rows=rows, numeric=frozenset({"", "before", "after"}))

    def __repr__(self) -> str:
        """Return the table as text."""
        return table_text(self.table()) if self.results else f"Nothing is kept in {tuned_files.folder()}."

    def __str__(self) -> str:
        """Return the table as text."""
        return repr(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML."""
        where = f"Kept in {tuned_files.folder()}." if self.results else repr(self)
        return html.table_html(self.table(), note=where)


def _changes(result: KeptResult) -> list[str]:
    several = len(result.changes) > 1
    return [
        (f"nest {nest}: " if several else "") + ", ".join(f"{name}={value}" for name, value in values)
        for nest, values in result.changes
    ]


def kept_results() -> KeptResults:
    """Return the results of `tune` that were kept (`Tuning.keep`), of all devices.

    They are in the directory ``tuned`` of the cache (``FUSER_LAB_CACHE``). A file that is damaged or of another
    format is ignored, and a `TuningWarning` says so once.
    """
    return KeptResults(results=tuned_files.load(), host=tuned_files.this_host())


def keep(results: Sequence[KeptResult]) -> KeptResults:
    """Write results to disk, and return them; plans made from then on may use them."""
    for result in results:
        tuned_files.keep(result)
    _SETTING.changed()
    return KeptResults(results=tuple(results), host=tuned_files.this_host())


# Whether new plans use them


class _Setting:
    """Whether new plans of this process use kept results, and how often this or the results have changed."""

    def __init__(self) -> None:
        self.on = False
        self.count = 0
        self._lock = new_lock()

    def set(self, on: bool) -> bool:
        """Set whether they are used, and return what was set before."""
        with self._lock:
            before, self.on = self.on, on
            self.count += 1
        return before

    def changed(self) -> None:
        """Note that the results have changed."""
        with self._lock:
            self.count += 1


_SETTING = _Setting()


class _Restoring:
    """Restores the setting at the end of a ``with`` block."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __enter__(self) -> None:
        """Begin the block; the setting is in effect already."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        """Restore the setting."""
        _SETTING.set(self._before)


@takes(on=FLAG)
def use_tuned(on: bool = True) -> _Restoring:
    """Let kernels of new plans start from the parameters kept from `tune`, or stop doing so.

    It holds for this process: for `segment`, for definitions that are executed, and for `torch.compile`. Plans that
    exist stay as they are. Each kernel says in its reasons (``print(plan.segments[0].schedule)``) what it begins with,
    from which device and day, and how much faster that was. ``fl.segment(..., tuned=True)`` is for one plan.

    Parameters
    ----------
    on
        Whether they are used.

    Returns
    -------
    A context manager: ``with fl.use_tuned():`` restores the setting at the end of the block; a plain call stays.
    """
    return _Restoring(_SETTING.set(on))


def kept_for(tuned: bool | Kept | None) -> Kept | None:
    """Return the results that a new plan uses: given ones, all or none, by default as `use_tuned` says."""
    if isinstance(tuned, Kept):
        return tuned
    return kept_results() if (_SETTING.on if tuned is None else tuned) else None


def tuned_state() -> int:
    """Return a number that is equal as long as new plans of one definition begin with the same kept parameters."""
    return _SETTING.count if _SETTING.on else -1
