"""The candidates that `fl.tune` searches, in the order of their predicted times; nothing is compiled."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fuser_lab.codegen.kernel_features import kernel_features
from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.codegen.pipeline import lower
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.cost.candidate_model import MARGIN, because, candidate_model
from fuser_lab.errors import CodegenError, ScheduleError
from fuser_lab.schedule.parameters import LoopChange, Values
from fuser_lab.targets import target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """A candidate: the values of a nest, and its predicted time over that of the kernel that runs.

    ``ratio`` is NaN where no model predicts it, and ``because`` says why; otherwise what makes it slower or faster.
    """

    values: Values
    ratio: float = math.nan
    because: str = ""

    @property
    def text(self) -> str:
        """The values as text."""
        return ", ".join(f"{name}={value}" for name, value in self.values) or "as it runs"

    @property
    def verdict(self) -> str:
        """What the prediction says of it beside the kernel that runs, in words."""
        if math.isnan(self.ratio):
            return "no prediction"
        if self.ratio * MARGIN <= 1:
            return "worth measuring"
        return "too close to tell" if self.ratio < MARGIN else "slower"


def ranked(
    request: KernelRequest, nest: int, candidates: Sequence[Values], tried: Iterable[Values] = (),
) -> tuple[RankedCandidate, ...]:
    """Return candidates that are different kernels, those that are predicted to be the fastest first.

    Values that give the kernel that runs, or that of another candidate, are left out. Those without a prediction keep
    their order, after the others; those that have no kernel are left out as well.

    Parameters
    ----------
    request
        The kernel that runs. No model ranks those of a target without blocks: they keep their order.
    nest
        Number of the nest.
    candidates
        Values of this nest, in place of those set by hand.
    tried
        Values that give kernels which are left out as well.
    """
    runs = lower(request)
    others = [change for change in request.changes if (change.target, change.nest) != (request.target, nest)]

    def made(several: Iterable[Values]) -> Iterator[tuple[Values, Kernel]]:
        for values in several:
            change = LoopChange(target=request.target, nest=nest, values=values)
            with contextlib.suppress(CodegenError, ScheduleError):
                yield values, lower(replace(request, changes=[*others, change] if values else others))

    seen, kernels = {_code(runs), *(_code(kernel) for _, kernel in made(tried))}, list[tuple[Values, Kernel]]()
    for values, kernel in made(candidates):
        code = _code(kernel)
        if code not in seen:
            seen.add(code)
            kernels.append((values, kernel))
    if not target_of(request.target).has_blocks:
        return tuple(RankedCandidate(values=values, because="no model ranks kernels of a CPU") for values, _ in kernels)
    model, device = candidate_model(), request.device
    base, *features = (kernel_features(request.fusion, one) for one in (runs, *(kernel for _, kernel in kernels)))
    ratios = model.ratios(base, features, device)
    found = (
        RankedCandidate(values=values, ratio=float(ratio), because=because(model, base, here, device))
        for (values, _), ratio, here in zip(kernels, ratios, features, strict=True)
    )
    return tuple(sorted(found, key=lambda one: one.ratio))


def _code(kernel: Kernel) -> object:
    """Return what a kernel executes: equal for parameters that make no difference."""
    return tuple((phase.buffers, phase.body, phase.launch, phase.sizes) for phase in kernel.phases)
