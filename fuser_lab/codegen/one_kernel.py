"""Whether a candidate can be lowered to one kernel, and the schedulers that accept all such candidates."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from fuser_lab.arguments import TEXT, short_text, takes
from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.codegen.kernel_plan import may_join_rows_and_columns
from fuser_lab.codegen.pipeline import MovesMore, lower, lower_within
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.codegen.short_reductions import LONGEST
from fuser_lab.cost.crossovers import crossover
from fuser_lab.cost.device import Device
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Reason, SchedulerType, reason
from fuser_lab.errors import CodegenError, InputError
from fuser_lab.schedule.base import Scheduler
from fuser_lab.schedule.open import LIFTABLE, open_versions
from fuser_lab.schedule.parameters import NestChoice
from fuser_lab.schedule.registry import SCHEDULERS
from fuser_lab.schedule.sets import SchedulerSet, register
from fuser_lab.schedule.state import Style
from fuser_lab.segmentation.oracle import Candidate
from fuser_lab.targets import names, target_of

MORE_BYTES = crossover("open.more_bytes")


@dataclass(frozen=True, slots=True)
class OneKernel:
    """Lowers a candidate for each target, and counts the bytes that the kernel moves on a GPU."""

    def refusal(self, candidate: Candidate, scheduler: SchedulerType, device: Device) -> Reason | None:
        """Return why the candidate is not one kernel, or None.

        It is one kernel if every target has a kernel for it, and the kernel for the device moves hardly more bytes than
        one read of each input and one write of each output; otherwise its phases might as well be separate kernels.
        """
        return _refusal(candidate, _lowering_scheduler(candidate, scheduler), device)


def _lowering_scheduler(candidate: Candidate, scheduler: SchedulerType) -> SchedulerType:
    """Return the scheduler whose lowering of a candidate is the same: most share one."""
    if scheduler is SchedulerType.INNER_OUTER_PERSISTENT:
        return scheduler if may_join_rows_and_columns(candidate.narrowed) else SchedulerType.REDUCTION
    return scheduler if scheduler is SchedulerType.OUTER_PERSISTENT else SchedulerType.REDUCTION


@lru_cache(maxsize=16)  # schedulers are asked in turn about the same candidate
def _refusal(candidate: Candidate, scheduler: SchedulerType, device: Device) -> Reason | None:
    least = sum(tv.nbytes for tv in (*candidate.tensor_inputs, *candidate.outputs))
    most = least + least // MORE_BYTES
    for target in sorted(names(), key=lambda name: not target_of(name).has_blocks):
        request = KernelRequest(fusion=candidate.narrowed, scheduler=scheduler, target=target, device=device)
        try:
            moved = _bytes_moved(request, most) if target_of(target).has_blocks else _bytes_moved(request)
        except CodegenError as error:
            return reason(ReasonCode.NOT_LOWERED, why=str(error).rstrip("."))
        if target_of(target).has_blocks and moved > most:
            return reason(ReasonCode.READ_AGAIN, moved=moved, least=least)
    return None


@lru_cache(maxsize=256)  # equal layers of a model have equal requests
def _bytes_moved(request: KernelRequest, most: int | None = None) -> int:
    """Return the bytes that the kernel of a segment moves, or any number above the limit if it moves more."""
    kernel = lower(request) if most is None else lower_within(request, most)
    return kernel.moved if isinstance(kernel, MovesMore) else bytes_moved(kernel)


def bytes_moved(kernel: Kernel) -> int:
    """Return the bytes that the phases of a GPU kernel read and write, counting each buffer once per phase.

    An input that several passes over a row read counts once per pass, except for the part that stays on chip. Phases
    that only prepare others are not counted: apart from these, they would not be kernels.
    """
    return sum(phase.nbytes for phase in kernel.phases if not phase.prepares) + sum(map(_read_again, kernel.nests))


def _read_again(nest: NestChoice) -> int:
    """Return the bytes that later passes over rows read again."""
    space, chosen = nest.space, nest.schedule
    again = space.passes - 1 - chosen.online
    if not space.reduced or again < 1 or space.depth <= LONGEST:
        return 0  # a few elements that a thread has just read are still in its cache
    part = 1.0
    if chosen.persistent and chosen.style is Style.ROWS:
        steps = -(-space.groups(chosen.vector) // prod(chosen.threads))
        part = max(steps - chosen.registers - chosen.shared, 0) / max(steps, 1)
    return int(again * part * space.rows * space.depth * space.input_bytes)


def with_lifted(*rules: ReasonCode) -> tuple[Scheduler, ...]:
    """Return nvFuser's schedulers, followed by open ones without some of nvFuser's rules."""
    return open_versions(SCHEDULERS, rules, OneKernel())


@takes(rules=TEXT.worded("the code of a rule"))
def without_rules(*rules: str) -> tuple[Scheduler, ...]:
    """Return nvFuser's schedulers, followed by open ones without some of nvFuser's rules.

    For ``fuser_lab.segment(schedulers=...)``: a candidate that only a lifted rule refuses is accepted if fuser_lab
    lowers it to one kernel. `OPEN_SCHEDULERS` lift all of these rules. ``fl.price`` shows what each rule costs a
    fusion.

    Parameters
    ----------
    *rules
        Codes of reasons (docs/reasons.md), such as ``"index_input"``.

    Raises
    ------
    InputError
        If no rule is given, or every kernel needs one of them.
    """
    codes = {code.value: code for code in LIFTABLE}
    wrong = next((rule for rule in rules if rule not in codes), None)
    if wrong is not None or not rules:
        said = "no rule is given" if wrong is None else f"the rule {short_text(wrong)} cannot be lifted"
        msg = f"without_rules: {said}; choose from {', '.join(sorted(codes))}."
        raise InputError(msg)
    return with_lifted(*(code for code in LIFTABLE if code.value in rules))


OPEN_SCHEDULERS = register(SchedulerSet("OPEN_SCHEDULERS", with_lifted(*LIFTABLE)))
"""nvFuser's schedulers, then open ones, which accept candidates that nvFuser refuses and fuser_lab can lower.

Pass them to `fuser_lab.segment` as ``schedulers``. Each acceptance names the rules of nvFuser that the segment breaks
(``segment.beyond``), and plans made with them are marked in their log, code and explanation. Bottom-up is greedy and
may merge a small pair that prevents a large merge; ``strategy="saving"`` begins with the merge that saves the most
bytes.
"""
