"""Parameters that `fl.tune` found and a user kept: which ones a kernel's nests begin with, and the reasons for it.

A result is kept for a device, a scheduler, a program (the ops of a segment, whatever its sizes) and the kernel that the
heuristics make of it. Sizes for which they make the same kernel, as compiled code is shared, are one class: a result is
used for the sizes that it was measured at, and for others of its class that are at most `NEAR` times as large or small.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuser_lab.cost.device import Device
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.schedule.parameter_values import Values
from fuser_lab.schedule.parameters import KeptChoice
from fuser_lab.targets import target_of

NEAR = 4.0  # largest factor between the elements read at measured sizes and at sizes for which a result is used

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What runs kernels, as far as their fastest parameters depend on it.

    Attributes
    ----------
    target
        Name of the target: ``"cpu"`` or ``"cuda"``.
    device
        Name of the GPU as a device is named (``"H200"``), or model of the processor.
    detail
        Compute capability (``"9.0"``), or number of threads.
    """

    target: str
    device: str
    detail: str

    @classmethod
    def of_gpu(cls, target: str, device: Device) -> "Machine":
        """Return a GPU."""
        return cls(target=target, device=device.name, detail=".".join(map(str, device.cc)))

    def __str__(self) -> str:
        """Return the device with its compute capability or threads."""
        if target_of(self.target).has_blocks:
            return f"{self.device}, compute capability {self.detail}"
        return f"{self.device}, {self.detail} thread{'s' if self.detail != '1' else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """Parameters that were faster than others, for one segment on one device.

    Attributes
    ----------
    machine, label
        The device, and its name as tables show it.
    scheduler
        The scheduler that accepts the segment.
    program, kernel
        Digests of the segment's ops without sizes, and of the kernel that the heuristics make for these sizes.
    ops, dtypes, shapes
        Names of the ops, and dtypes and shapes of the inputs.
    changes
        For each nest by number, the values in which it differs from the heuristics' choice.
    before, after
        Seconds of the segment with what it was compared with, and with these parameters; measured alternately.
    than
        What it was compared with, as ``"the heuristics' choice"``.
    date, version
        Day of the measurement (ISO 8601), and version of fuser_lab.
    """

    machine: Machine
    label: str
    scheduler: str
    program: str
    kernel: str
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: Shapes
    changes: tuple[tuple[int, Values], ...]
    before: float
    after: float
    than: str
    date: str
    version: str

    @property
    def key(self) -> tuple[object, ...]:
        """What a newer result for the same kernel has as well, which replaces this one."""
        return self.machine, self.scheduler, self.program, self.kernel, self.shapes

    @property
    def gain(self) -> str:
        """How much faster it is, as text."""
        return f"{100 * (self.before / self.after - 1):.0f} % faster"

    @property
    def sizes(self) -> str:
        """The shapes of the inputs, each once, as text."""
        return ", ".join("[" + ", ".join(map(str, shape)) + "]" for shape in dict.fromkeys(self.shapes))

    @property
    def elements(self) -> int:
        """Elements of all inputs."""
        return sum(map(math.prod, self.shapes))


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Results that a plan's kernels begin with, where they fit.

    ``host`` is the processor of this machine: results of others are not for kernels of the CPU.
    """

    results: tuple[KeptResult, ...]
    host: Machine
    _by_program: Mapping[tuple[str, str], tuple[KeptResult, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the results."""
        by_program: dict[tuple[str, str], tuple[KeptResult, ...]] = {}
        for result in self.results:
            key = (result.program, result.scheduler)
            by_program[key] = (*by_program.get(key, ()), result)
        object.__setattr__(self, "_by_program", by_program)

    def of(self, program: str, scheduler: SchedulerType) -> tuple[KeptResult, ...]:
        """Return the results for a program, on any device."""
        return self._by_program.get((program, scheduler.value), ())

    def on(self, target: str, device: Device) -> Machine:
        """Return what a kernel for a target runs on, if its GPU is the given one."""
        if target_of(target).has_blocks:
            return Machine.of_gpu(target, device)
        return replace(self.host, target=target)


def kept_choice(results: Sequence[KeptResult], kernel: str, shapes: Shapes) -> KeptChoice:
    """Return what the nests of a kernel begin with, or why nothing is used; nothing if no result is for such sizes.

    Parameters
    ----------
    results
        Those of the device for the kernel's program.
    kernel
        Digest of the kernel that the heuristics make.
    shapes
        Shapes of the inputs.
    """
    exact = [result for result in results if result.shapes == shapes]
    same = [result for result in results if result.kernel == kernel]
    elements = max(sum(map(math.prod, shapes)), 1)

    def distance(result: KeptResult) -> float:
        return abs(math.log(max(result.elements, 1) / elements))

    best = min(same, key=lambda result: (result.shapes != shapes, distance(result)), default=None)
    if best is not None and (best.shapes == shapes or distance(best) <= math.log(NEAR)):
        where = "" if best.shapes == shapes else f", at the sizes {best.sizes}, which have the same kernel"
        return KeptChoice(
            values=dict(best.changes), origin=f"found by fl.tune on {best.label}, {best.date}{where}",
            gain=f"{best.gain} than {best.than}",
        )
    if exact:
        result = exact[0]
        return KeptChoice(
            refused=f"parameters found by fl.tune on {result.label}, {result.date} are not used: they are for another "
            f"kernel of the heuristics, of fuser_lab {result.version} or of other strides; fl.tune and keep() find "
            "new ones",
        )
    return KeptChoice()
