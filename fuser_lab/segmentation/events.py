"""The decision log: every attempt of the segmenter as data.

Records contain only names, so a log can be written, read and shown without its fusion. Replaying the accepted attempts
rebuilds the plan (`fuser_lab.segmentation.replay`).
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

from fuser_lab.arguments import FLAG, TEXT, instance, list_of, optional, short_text, takes
from fuser_lab.cost.scheduler_type import SchedulerType
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import UnreadableError, parse_json, record_of

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 2  # of the format of decision logs
LONGEST_SHOWN = 60  # characters of a line in a sentence
_MOST_GROUPS = 4  # groups of an attempt that are listed one by one
Names = tuple[str, ...]
Params = tuple[tuple[str, int | float | str], ...]


class Kind(enum.Enum):
    """What an attempt would do to its subjects, which are groups of expression names."""

    MERGE = "merge"  # all subjects become one group
    FORWARD = "forward"  # the expressions of the only subject are recomputed by each reader
    REPLICATE = "replicate"  # the first subject, a forwarded chain, is copied into the second
    STORE = "store"  # a forwarded chain becomes a separate group after all
    PARTITION = "partition"  # the subjects replace all groups
    PRIVATIZE = "privatize"  # the first subject gets replicas: each other subject is a replica and its reader
    REVERT = "revert"  # each subject is a set of replicas that became one segment; its first expression stays
    CAST = "cast"  # the tensor of the first subject is passed to the others, which are groups, in half its bytes
    # The first subject is computed again as the second, which the third reads; the fourth moves to the third's group.
    RECOMPUTE = "recompute"
    REWRITE = "rewrite"  # Welford expressions in the only subject become sums, each expression in its own group


class Outcome(enum.Enum):
    """How an attempt ended."""

    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRecord:
    """One scheduler's answer, by name; ``params`` are the names and numbers in its sentence.

    ``beyond`` are nvFuser's rules that the candidate breaks if an open scheduler accepts it.
    """

    scheduler: str
    accepted: bool
    code: str = ""
    text: str = ""
    params: Params = ()
    beyond: Names = ()

    @property
    def reason(self) -> str:
        """Code of the reason."""
        return self.code


class LaterRecords(Sequence[VerdictRecord]):
    """Verdicts that are turned into sentences when they are read, because most never are."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], tuple[VerdictRecord, ...]]) -> None:
        self._make = make
        self._made: tuple[VerdictRecord, ...] | None = None

    @property
    def _records(self) -> tuple[VerdictRecord, ...]:
        if self._made is None:
            self._made = self._make()
        return self._made

    @overload
    def __getitem__(self, index: int) -> VerdictRecord: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[VerdictRecord, ...]: ...

    def __getitem__(self, index: int | slice) -> VerdictRecord | tuple[VerdictRecord, ...]:
        """Return one verdict, or a slice."""
        return self._records[index]

    def __len__(self) -> int:
        """Return the number of verdicts."""
        return len(self._records)

    def __eq__(self, other: object) -> bool:
        """Compare verdict by verdict; a tuple may be the other operand."""
        return tuple(other) == self._records if isinstance(other, tuple | LaterRecords) else NotImplemented

    def __hash__(self) -> int:
        """Hash as the tuple does."""
        return hash(self._records)

    def __repr__(self) -> str:
        """Return the text of the equal tuple."""
        return repr(self._records)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Attempt:
    """One attempt: its phase, kind and groups, its outcome, the schedulers' verdicts, and the seconds spent on them."""

    phase: str
    kind: Kind
    subjects: tuple[Names, ...]
    outcome: Outcome
    code: str = ""
    text: str = ""
    verdicts: Sequence[VerdictRecord] = ()
    seq: int = -1
    seconds: float = field(default=0.0, compare=False)

    @property
    def accepted(self) -> bool:
        """Whether the attempt changed the plan."""
        return self.outcome is Outcome.ACCEPTED

    @property
    def names(self) -> frozenset[str]:
        """Names of all expressions that it concerns."""
        return frozenset(name for group in self.subjects for name in group)

    def __str__(self) -> str:
        """Return the attempt in one line: its number, its outcome, what it tried and the reason."""
        sign, groups = "+" if self.accepted else "-", groups_text(self.subjects)
        return f"{self.seq:>4} {sign} {self.phase}: {self.kind.value} {groups}  {self.text}".rstrip()

    def __repr__(self) -> str:
        """Return the same line in brackets, without the verdicts of each scheduler."""
        return f"<Attempt {str(self).lstrip()}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassApplied:
    """A presegmentation pass that changed the fusion: digests of its text before and after, and its seconds."""

    name: str
    before: str
    after: str
    seconds: float = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChosen:
    """The memory layout of a tensor that a segment writes, and what decided it.

    Orders are positions of axes, slowest first.

    ``cost`` and ``natural_cost`` are the bytes that accesses across its rows cost, in the chosen layout and in the
    producer's.
    """

    tensor: str
    required: tuple[int, ...] | None
    hint: tuple[int, ...] | None
    natural: tuple[int, ...]
    chosen: tuple[int, ...]
    by: str
    cost: int
    natural_cost: int


class DecisionLog:
    """Attempts in order; pass one to `fuser_lab.segment` to collect, or read ``plan.decisions``.

    ``passes`` are the rewrites before the first attempt, ``layouts`` the choices after the last one.
    """

    @takes(
        "DecisionLog",
        attempts=list_of(instance(Attempt), "a list of attempts", lazy=True),
        passes=list_of(instance(PassApplied), "a list of passes", lazy=True),
        layouts=list_of(instance(LayoutChosen), "a list of layouts", lazy=True),
    )
    def __init__(
        self, attempts: Iterable[Attempt] = (), passes: Iterable[PassApplied] = (),
        layouts: Iterable[LayoutChosen] = (),
    ) -> None:
        self.passes: list[PassApplied] = list(passes)
        self.layouts: list[LayoutChosen] = list(layouts)
        self._attempts: list[Attempt] = []
        self._about: dict[str, list[int]] = {}
        self._indexed = 0
        for attempt in attempts:
            self.append(attempt)

    @takes(attempt=instance(Attempt))
    def append(self, attempt: Attempt) -> None:
        """Add an attempt and number it."""
        self._attempts.append(replace(attempt, seq=len(self._attempts)))

    @takes(names=list_of(TEXT, "a list of names", lazy=True))
    def about(self, names: Iterable[str]) -> set[int]:
        """Return the numbers of the attempts that concern any of these expressions."""
        for attempt in self._attempts[self._indexed :]:
            for name in attempt.names:
                self._about.setdefault(name, []).append(attempt.seq)
        self._indexed = len(self._attempts)
        return {seq for name in names for seq in self._about.get(name, ())}

    def __iter__(self) -> Iterator[Attempt]:
        """Iterate over the attempts in order."""
        return iter(self._attempts)

    def __len__(self) -> int:
        """Return the number of attempts."""
        return len(self._attempts)

    def __getitem__(self, seq: int) -> Attempt:
        """Return an attempt by number."""
        return self._attempts[seq]

    def __eq__(self, other: object) -> bool:
        """Compare attempt by attempt, and pass by pass."""
        if not isinstance(other, DecisionLog):
            return NotImplemented
        mine = (self._attempts, self.passes, self.layouts)
        return mine == (other._attempts, other.passes, other.layouts)

    __hash__ = None  # type: ignore[assignment]  # a log grows

    @takes(
        phase=optional(TEXT), accepted=optional(FLAG), code=optional(TEXT), op=optional(TEXT),
        kind=optional(TEXT | instance(enum.Enum)), scheduler=optional(TEXT | instance(enum.Enum)),
    )
    def filter(
        self,
        *,
        phase: str | None = None,
        kind: Kind | str | None = None,
        accepted: bool | None = None,
        scheduler: enum.Enum | str | None = None,
        code: str | None = None,
        op: str | None = None,
    ) -> "DecisionLog":
        """Return the attempts that match, numbered from 0.

        ``phase`` is a prefix of a phase's name, ``op`` the name of an expression's result such as ``"T3"``, ``code`` a
        reason code of the attempt or of any scheduler's verdict. ``kind`` and ``scheduler`` are given as members of
        their enumerations or by value, as ``"merge"`` and ``"pointwise"``.

        Raises
        ------
        InputError
            If the kind or scheduler is unknown.
        ArgumentTypeError
            If ``accepted`` is neither a bool nor None.
        """
        kind_name = None if kind is None else _checked_name("kind", kind, [member.value for member in Kind])
        asked = None if scheduler is None else _checked_name(
            "scheduler", scheduler, [member.value for member in SchedulerType],
        )
        tests: list[Callable[[Attempt], bool]] = []
        if phase is not None:
            tests.append(lambda a: a.phase.startswith(phase))
        if kind_name is not None:
            tests.append(lambda a: a.kind.value == kind_name)
        if accepted is not None:
            tests.append(lambda a: a.accepted is accepted)
        if asked is not None:
            tests.append(lambda a: any(v.scheduler == asked for v in a.verdicts))
        if code is not None:
            tests.append(lambda a: a.code == code or any(v.code == code for v in a.verdicts))
        if op is not None:
            tests.append(lambda a: op in a.names)
        return DecisionLog(a for a in self if all(test(a) for test in tests))

    def to_json(self) -> str:
        """Return JSON lines: the schema version, then the passes, one line per attempt, then the layouts."""
        head = json_text({"schema": "fuser_lab.decisions", "version": SCHEMA_VERSION})
        passes = [json_text({"pass": asdict(applied)}) for applied in self.passes]
        layouts = [json_text({"layout": asdict(chosen)}) for chosen in self.layouts]
        return "\n".join([head, *passes, *(json_text(_to_dict(a)) for a in self), *layouts])

    @classmethod
    @takes(text=TEXT)
    def from_json(cls, text: str) -> "DecisionLog":
        """Return the log that `to_json` wrote; blank lines are skipped.

        Raises
        ------
        ArgumentTypeError
            If the text is not a str.
        InputError
            If it is not a decision log of this schema version, or a line of it is not a record; the message names the
            line.
        """
        lines = text.split("\n")
        try:
            head = parse_json(lines[0])
            version = head["version"] if head["schema"] == "fuser_lab.decisions" else None
        except (KeyError, TypeError, UnreadableError):
            version = None
        if version != SCHEMA_VERSION:
            msg = f"this is not a decision log of schema version {SCHEMA_VERSION}."
            raise InputError(msg)
        log = cls()
        for number, line in enumerate(lines[1:], start=2):
            if line.strip():
                log._read(number, line)
        return log

    def _read(self, number: int, line: str) -> None:
        """Add the record on one line of `to_json`."""
        try:
            match parse_json(line):
                case {"pass": data}:
                    self.passes.append(record_of(PassApplied, data))
                case {"layout": data}:
                    self.layouts.append(record_of(LayoutChosen, data))
                case data:
                    self.append(_from_dict(data))
        except (AttributeError, KeyError, TypeError, UnreadableError):
            shown = line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN]}..."
            msg = f"line {number} of the decision log is not an attempt, pass or layout as to_json writes it: {shown}"
            raise InputError(msg) from None

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per attempt."""
        import pandas as pd

        columns = ["phase", "kind", "of", "outcome", "code", "reason"]
        rows = [
            (a.phase, a.kind.value, " + ".join(map(group_text, a.subjects)), a.outcome.value, a.code, a.text)
            for a in self
        ]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        """Return the counts."""
        accepted = sum(a.accepted for a in self)
        return f"<DecisionLog: {len(self)} attempt{'s' * (len(self) != 1)}, {accepted} accepted>"

    def __str__(self) -> str:
        """Return one line per attempt."""
        passes = [f"   pass {a.name}: {a.before} -> {a.after}, {1000 * a.seconds:.1f} ms" for a in self.passes]
        layouts = [f"   layout {c.tensor}: {c.chosen} by {c.by}, {c.cost} bytes across rows" for c in self.layouts]
        return "\n".join([repr(self), *passes, *map(str, self), *layouts])


def group_text(names: Names) -> str:
    """Return a group as text, ``{T2, T3}``, shortened in the middle when long."""
    shown = names if len(names) <= 6 else (*names[:3], "...", *names[-2:])
    return "{" + ", ".join(shown) + "}"


def groups_text(groups: Sequence[Names]) -> str:
    """Return groups as text, ``{T2} + {T3}``; more than `_MOST_GROUPS` as their count and their names as one group."""
    if len(groups) <= _MOST_GROUPS:
        return " + ".join(map(group_text, groups))
    return f"{len(groups)} groups of {group_text(tuple(name for group in groups for name in group))}"


def _checked_name(argument: str, value: object, names: Sequence[str]) -> str:
    """Return a name, given as text or as a member of an enumeration; raise InputError if it is unknown."""
    name = value.value if isinstance(value, enum.Enum) else value
    if isinstance(name, str) and name in names:
        return name
    msg = f"filter: unknown {argument} {short_text(value)}; choose from {', '.join(map(repr, names))}."
    raise InputError(msg)


def _to_dict(attempt: Attempt) -> dict[str, Any]:
    return {
        "seq": attempt.seq,
        "phase": attempt.phase,
        "kind": attempt.kind.value,
        "subjects": [list(group) for group in attempt.subjects],
        "outcome": attempt.outcome.value,
        "code": attempt.code,
        "text": attempt.text,
        "verdicts": [
            {
                "scheduler": v.scheduler,
                "accepted": v.accepted,
                "code": v.code,
                "text": v.text,
                "params": dict(v.params),
                **({"beyond": list(v.beyond)} if v.beyond else {}),
            }
            for v in attempt.verdicts
        ],
        "seconds": round(attempt.seconds, 9),
    }


def _from_dict(data: dict[str, Any]) -> Attempt:
    verdicts = [{**verdict, "params": tuple(verdict["params"].items())} for verdict in data["verdicts"]]
    return record_of(Attempt, {**data, "verdicts": verdicts})
