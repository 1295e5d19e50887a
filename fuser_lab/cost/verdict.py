"""The verdicts of schedulers, with reasons."""

from dataclasses import dataclass

from fuser_lab.cost.reasons import OTHER_KIND, REFERRALS, ReasonCode
from fuser_lab.cost.scheduler_type import SchedulerType

__all__ = ["Answer", "Param", "Reason", "SchedulerType", "Verdict", "accept", "reason", "refuse"]

Param = int | float | str


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason code with its names and numbers."""

    code: ReasonCode
    params: tuple[tuple[str, Param], ...] = ()

    @property
    def text(self) -> str:
        """The reason as a sentence; integers of 10,000 and more have commas."""
        if not self.params:
            return self.code.text
        shown = {key: f"{v:,}" if isinstance(v, int) and v >= 10_000 else v for key, v in self.params}
        return self.code.text.format(**shown)

    def __str__(self) -> str:
        """Return the sentence."""
        return self.text


def reason(code: ReasonCode, **params: Param) -> Reason:
    """Return a reason; its parameters are those that the code's sentence names."""
    return Reason(code, tuple(params.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One scheduler's answer about one candidate.

    A refusal has a reason and a ``core``: the names of expressions that alone cause it. ``monotone`` guarantees that
    every larger candidate is refused as well; it is set only for reasons on a short whitelist. An acceptance has the
    parameters that the segmenter needs: whether values are ``persistent``, kept on chip across a reduction, and whether
    the blocks of the whole grid do this together, ``cross_grid``. ``beyond`` lists the rules of nvFuser that the
    candidate breaks if an open scheduler accepts it.
    """

    scheduler: SchedulerType
    accepted: bool
    reason: Reason | None = None
    core: tuple[str, ...] = ()
    monotone: bool = False
    persistent: bool = False
    cross_grid: bool = False
    beyond: tuple[ReasonCode, ...] = ()

    def __post_init__(self) -> None:
        """Require a reason for every refusal."""
        if not self.accepted and self.reason is None:
            raise ValueError(f"a refusal by {self.scheduler.value} needs a reason.")

    @property
    def code(self) -> str:
        """Code of the reason, empty if there is none."""
        return self.reason.code.value if self.reason is not None else ""

    @property
    def text(self) -> str:
        """Sentence of the reason, empty if there is none."""
        return self.reason.text if self.reason is not None else ""


def accept(
    scheduler: SchedulerType, why: Reason | None = None, *, persistent: bool = False, cross_grid: bool = False,
    beyond: tuple[ReasonCode, ...] = (),
) -> Verdict:
    """Return an acceptance, optionally with a note."""
    return Verdict(
        scheduler=scheduler, accepted=True, reason=why, persistent=persistent, cross_grid=cross_grid, beyond=beyond,
    )


def refuse(scheduler: SchedulerType, why: Reason, *core: str, monotone: bool = False) -> Verdict:
    """Return a refusal."""
    return Verdict(scheduler=scheduler, accepted=False, reason=why, core=core, monotone=monotone)


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdicts of all schedulers in the order in which they were asked, up to the first acceptance.

    ``monotone`` is the reason why every larger candidate is refused too, if it follows from the rules of several
    schedulers.
    """

    verdicts: tuple[Verdict, ...]
    monotone: Reason | None = None

    @property
    def chosen(self) -> SchedulerType | None:
        """The scheduler that accepts, or None."""
        return self.verdicts[-1].scheduler if self.verdicts and self.verdicts[-1].accepted else None

    @property
    def decisive(self) -> tuple[Verdict, ...]:
        """The verdicts that explain the answer: the acceptance, or the refusals of schedulers for this kind of fusion.

        If all refusals say only that a scheduler is for another kind, they are all decisive. A refusal that points to a
        scheduler made for more of the fusion, such as a persistent one, is decisive only if no other refusal is.
        """
        if self.chosen is not None:
            return self.verdicts[-1:]
        close = tuple(v for v in self.verdicts if v.reason is not None and v.reason.code not in OTHER_KIND)
        closest = tuple(v for v in close if v.reason is not None and v.reason.code not in REFERRALS)
        return closest or close or self.verdicts

    @property
    def text(self) -> str:
        """The decisive refusals on one line, without repeated sentences; for an acceptance, its scheduler."""
        decisive = self.decisive
        left = len(self.verdicts) - len(decisive)
        others = "the other scheduler is" if left == 1 else f"the other {left} schedulers are"
        return self.brief if self.chosen or not left else f"{self.brief} ({others} for other kinds of fusions)"

    @property
    def brief(self) -> str:
        """The text without schedulers for other kinds of fusions."""
        if self.chosen is not None:
            rules = ", ".join(code.value for code in self.verdicts[-1].beyond)
            return f"accepted as {self.chosen.value}" + (f", beyond nvFuser's rules {rules}" if rules else "")
        schedulers: dict[str, list[str]] = {}
        decisive = self.decisive
        for verdict in decisive:
            schedulers.setdefault(verdict.text, []).append(verdict.scheduler.value)
        if len(schedulers) == 1 and len(decisive) == len(self.verdicts) > 1:
            return f"every scheduler: {next(iter(schedulers))}"
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in schedulers.items())
