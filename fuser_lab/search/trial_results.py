"""From the trials of a search to results that can be kept."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import prod

from fuser_lab.codegen.pipeline import kernel_digest, lower
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.plan import Plan
from fuser_lab.runtime.plan.memory import Memory
from fuser_lab.runtime.tuned_files import this_host
from fuser_lab.schedule.templates import set_by_hand
from fuser_lab.schedule.tuned_parameters import KeptResult, Machine
from fuser_lab.targets import target_of
from fuser_lab.version import __version__


def kept_result(
    start: Plan, end: Plan, number: int, request: KernelRequest, memory: Memory, gains: Sequence[tuple[float, float]],
) -> KeptResult | None:
    """Return the parameters that a search found for a segment, as a difference from the heuristics' choice.

    Parameters
    ----------
    start, end
        The plan that the search started from, and its result.
    number
        Number of the segment.
    request
        The kernel as it ran: for inputs that lie so, on the device.
    memory
        The device.
    gains
        For each nest with better parameters, seconds of the segment before and after.

    Returns
    -------
    None if nothing is better, or if better is what the heuristics choose anyway.
    """
    if not gains or request.scheduler is None:
        return None
    before, after = (
        lower(replace(request, changes=plan.segments[number].changes, kept=plan.oracle.kept)).nests
        for plan in (start, end)
    )
    plain = {nest.number: nest for nest in lower(replace(request, changes=(), kept=None)).nests}
    differ = (
        (nest.number, tuple(sorted(set_by_hand(replace(plain[nest.number], schedule=nest.schedule)).items())))
        for nest in after if nest.number in plain
    )
    changes = tuple((nest, values) for nest, values in differ if values)
    if not changes:
        return None
    by_hand = any(nest.is_changed for nest in before)
    than = "the parameters set by hand" if by_hand else "the heuristics' choice"
    if any(nest.is_kept for nest in before):
        than = "the parameters kept before"
    blocks, fusion = target_of(request.target).has_blocks, request.fusion
    machine = Machine.of_gpu(request.target, request.device) if blocks else this_host(request.target, _threads())
    # The gains of several nests multiply: the search begins with each where it left the one before.
    seconds = gains[0][0]
    return KeptResult(
        machine=machine, label=memory.label() if blocks else str(machine), scheduler=request.scheduler.value,
        program=fusion.program, kernel=kernel_digest(request), changes=changes, shapes=request.shapes,
        ops=tuple(expr.op.name for expr in fusion.tensor_exprs),
        dtypes=tuple(tv.dtype.name for tv in fusion.tensor_inputs), before=seconds,
        after=seconds * prod(fast / slow for slow, fast in gains), than=than,
        date=datetime.now(UTC).date().isoformat(), version=__version__,
    )


def _threads() -> int:
    from fuser_lab.runtime.numba_compat import cpu_threads

    return cpu_threads()
