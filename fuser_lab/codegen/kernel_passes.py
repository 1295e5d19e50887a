"""The passes over Kernel IR, which rewrite the statements of a phase after its loops are written."""

from collections.abc import Callable
from dataclasses import dataclass

from fuser_lab.codegen.cpu_functions import with_named_constants
from fuser_lab.codegen.kernel_ir import Statement
from fuser_lab.codegen.long_loops import divide_long_loops
from fuser_lab.codegen.rewrites import rewrite, unconditional, without_equal_branches
from fuser_lab.codegen.vectorize import with_vectors
from fuser_lab.targets import Form, target_of

Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPass:
    """A rewrite of a phase's statements that does not change the phase's results.

    ``run`` returns new statements; it applies to kernels whose loops have one of the ``forms``.
    """

    name: str
    run: Callable[[Block], Block]
    forms: frozenset[Form]


_BLOCKS, _CORES = frozenset({Form.BLOCKS}), frozenset({Form.CORES})

KERNEL_PASSES = (
    KernelPass(name="cheaper_values", run=rewrite, forms=_BLOCKS),
    KernelPass(name="vector_accesses", run=with_vectors, forms=_BLOCKS),
    KernelPass(name="equal_branches", run=without_equal_branches, forms=_BLOCKS),
    KernelPass(name="unconditional_loads", run=unconditional, forms=_BLOCKS | _CORES),
    KernelPass(name="divided_loops", run=divide_long_loops, forms=_CORES),
    KernelPass(name="named_constants", run=with_named_constants, forms=_CORES),
)
"""All passes, in the order in which they are applied."""


def with_passes(body: Block, target: str) -> Block:
    """Return the statements of a phase after the passes for the target's form of loops."""
    form = target_of(target).form
    for kernel_pass in KERNEL_PASSES:
        if form in kernel_pass.forms:
            body = kernel_pass.run(body)
    return body
