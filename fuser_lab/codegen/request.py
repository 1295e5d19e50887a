"""What is asked of code generation: one record of everything that decides a segment's kernel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fuser_lab.codegen.kernel_ir import Layout
from fuser_lab.codegen.varying import SharedKernels
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.ir import Fusion
from fuser_lab.ir.transform import Transform
from fuser_lab.schedule.base import Propose
from fuser_lab.schedule.parameters import LoopChange
from fuser_lab.schedule.tuned_parameters import Kept
from fuser_lab.targets import CPU

Strides = Mapping[str, Sequence[int] | Layout]  # in elements, by the names of tensors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelRequest:
    """A request for the kernel of a segment; requests with the same `key` have the same kernel, except for names.

    Attributes
    ----------
    fusion
        A segment with known extents.
    scheduler
        The scheduler that accepted it. `EVALUATED` schedulers have no kernels, nor has a segment that none accepts.
    target
        Name of a target, such as ``"cuda"``.
    name
        Name of the kernel's function, or the prefix of its functions; by default made from the scheduler and the first
        output, so that equal segments have equal source in every plan.
    strides
        Strides in elements of inputs and outputs that are not dense in their allocation order, by name; a layout for
        those that are views in a larger buffer.
    alignment
        Alignment in bytes of the memory of inputs, by name, if it is less than 16.
    device
        The GPU whose limits the loops of a CUDA kernel respect: shared memory, registers, multiprocessors.
    changes
        Parameters set by hand, for any target. Parameters that these strides do not allow keep the heuristics' choice;
        for dense inputs they raise an error.
    loops
        A schedule that is lowered loop by loop (`fuser_lab.codegen.scheduled_lowering`), for targets with blocks.
    propose
        Proposes parameters of a nest instead of the default (`fuser_lab.schedule.base.Heuristics`).
    kept
        Results of `fl.tune` that were kept: those for this kernel replace what is proposed.
    shared
        The kernels of the same segment at other sizes, with which it shares compiled code.
    """

    fusion: Fusion
    scheduler: SchedulerType | None
    target: str = CPU.name
    name: str = ""
    strides: Strides = field(default_factory=dict)
    alignment: Mapping[str, int] = field(default_factory=dict)
    device: Device = DEFAULT
    changes: Sequence[LoopChange] = ()
    loops: Sequence[Transform] = ()
    propose: Propose | None = None
    kept: Kept | None = None
    shared: SharedKernels | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Everything that decides the kernel, except for names; it is hashable, and does not contain the fusion."""
        tensors = (*self.fusion.tensor_inputs, *self.fusion.outputs)
        strides = (self.strides.get(tensor.name) for tensor in tensors)
        return (
            self.fusion.digest, self.scheduler, self.target,
            tuple(layout if layout is None or isinstance(layout, Layout) else tuple(layout) for layout in strides),
            tuple(self.alignment.get(tensor.name) for tensor in tensors),
            self.device, tuple(self.changes), tuple(self.loops), self.propose, self.kept, self.shared,
        )

    def __eq__(self, other: object) -> bool:
        """Compare by content, except for names."""
        return self.key == other.key if isinstance(other, KernelRequest) else NotImplemented

    def __hash__(self) -> int:
        """Return the hash of the content without names."""
        return hash(self.key)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs."""
        return tuple(tensor.shape for tensor in self.fusion.tensor_inputs)

    @property
    def function(self) -> str:
        """The name of the kernel's function."""
        if self.name or self.scheduler is None:
            return self.name
        return f"{self.scheduler.value}_{self.fusion.outputs[0].name if self.fusion.outputs else 'nothing'}"
