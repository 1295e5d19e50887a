"""The passes over Kernel IR, which rewrite the statements of a phase after its loops are written."""

from collections.abc import Callable
from dataclasses import dataclass

from fuser_lab.codegen import (
    cpu_functions,
    early_values,
    long_loops,
    position_checks,
    rewrites,
    value_ranges,
    vectorize,
)
from fuser_lab.codegen.kernel_ir import Block
from fuser_lab.targets import Form, target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPass:
    """A rewrite of a phase's statements that does not change the phase's results.

    ``run`` returns new statements; it applies to kernels whose loops have one of the ``forms``. ``example`` are
    statements that the pass changes, as a Python expression with the names of `tests.pages.kernel_passes`.
    """

    name: str
    run: Callable[[Block], Block]
    forms: frozenset[Form]
    example: str


_BLOCKS, _CORES = frozenset({Form.BLOCKS}), frozenset({Form.CORES})

KERNEL_PASSES = (
    KernelPass(name="early_values", run=early_values.with_early_values, forms=_BLOCKS, example=early_values.EXAMPLE),
    KernelPass(name="cheaper_values", run=rewrites.rewrite, forms=_BLOCKS, example=rewrites.LOGISTIC),
    KernelPass(name="vector_accesses", run=vectorize.with_vectors, forms=_BLOCKS, example=vectorize.EXAMPLE),
    KernelPass(
        name="equal_branches", run=rewrites.without_equal_branches, forms=_BLOCKS, example=rewrites.EQUAL_BRANCHES,
    ),
    KernelPass(
        name="unconditional_loads", run=rewrites.unconditional, forms=_BLOCKS | _CORES, example=rewrites.LOOKED_UP,
    ),
    KernelPass(
        name="known_conditions", run=value_ranges.without_known_conditions, forms=_BLOCKS | _CORES,
        example=value_ranges.EXAMPLE,
    ),
    KernelPass(
        name="position_checks", run=position_checks.with_position_checks, forms=_CORES, example=position_checks.EXAMPLE,
    ),
    KernelPass(name="divided_loops", run=long_loops.divide_long_loops, forms=_CORES, example=long_loops.EXAMPLE),
    KernelPass(
        name="named_constants", run=cpu_functions.with_named_constants, forms=_CORES, example=cpu_functions.EXAMPLE,
    ),
)
"""All passes, in the order in which they are applied."""


def with_passes(body: Block, target: str) -> Block:
    """Return the statements of a phase after the passes for the target's form of loops."""
    form = target_of(target).form
    for kernel_pass in KERNEL_PASSES:
        if form in kernel_pass.forms:
            body = kernel_pass.run(body)
    return body
