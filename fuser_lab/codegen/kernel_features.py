"""The features of a kernel that the model of its time uses."""

from dataclasses import asdict
from math import prod

from fuser_lab.codegen.kernel_ir import Kernel, Phase
from fuser_lab.codegen.kernel_profile import Profile, kernel_profile
from fuser_lab.cost.kernel_time import KernelFeatures
from fuser_lab.cost.traffic import traffic
from fuser_lab.cost.work import work_of
from fuser_lab.ir import Fusion
from fuser_lab.schedule.parameters import NestChoice
from fuser_lab.schedule.state import Style
from fuser_lab.targets import target_of


def kernel_features(
    fusion: Fusion, kernel: Kernel, *, registers: int = 0, spilled: int = 0, shared: int = 0, resident: int = 0,
) -> KernelFeatures:
    """Return the features of the kernel of a segment.

    For targets without blocks, instructions are counted per element, and bytes are those of whole tensors.

    Parameters
    ----------
    fusion
        The segment.
    kernel
        Its Kernel IR.
    registers, spilled, shared, resident
        Properties of the largest phase as compiled, if known; see `fuser_lab.runtime.gpu.facts.LaunchFacts`.
    """
    main = largest_phase(kernel)
    launch = kernel.phases[main].launch
    nest = max(kernel.nests, key=_points, default=None)
    profile = kernel_profile(kernel, main) if target_of(kernel.target).has_blocks else _whole(fusion)
    return KernelFeatures(
        style=Style.ELEMENTS.value if nest is None else nest.schedule.style.value, launches=len(kernel.phases),
        started=sum(phase.launch.blocks for phase in kernel.phases), blocks=launch.blocks,
        threads=prod(launch.threads), shared=shared or launch.shared, registers=registers, spilled=spilled,
        resident=resident, **asdict(profile),
    )


def largest_phase(kernel: Kernel) -> int:
    """Return the number of the phase that moves the most bytes; among equals, the one with the most threads.

    The number of threads alone is not enough: a phase whose blocks each iterate over many rows may have fewer threads
    than the phase that adds up their column sums.
    """
    return max(range(len(kernel.phases)), key=lambda n: (kernel.phases[n].nbytes, _threads(kernel.phases[n])))


def _whole(fusion: Fusion) -> Profile:
    moved, work = traffic(fusion, fusion.tensor_exprs), work_of(fusion.tensor_exprs)
    return Profile(
        read=moved.read, written=moved.written, fetched=moved.read, stored=moved.written,
        simple=work.simple + work.reducing, dividing=work.dividing, special=work.special,
    )


def _threads(phase: Phase) -> int:
    return phase.launch.blocks * prod(phase.launch.threads)


def _points(nest: NestChoice | None) -> int:
    return 0 if nest is None else max(nest.space.rows, 1) * max(nest.space.depth, 1)
