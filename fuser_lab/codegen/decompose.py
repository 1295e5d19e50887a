"""Reductions with several results, decomposed into reductions that kernels support."""

from fuser_lab.ir import Fusion
from fuser_lab.segmentation.welford import written_out


def decompose(fusion: Fusion) -> Fusion:
    """Return the fusion with each remaining Welford written as a mean and a sum of squared deviations from it."""
    return written_out(fusion, {expr.name for expr in fusion.exprs if expr.op.name == "welford"})


def welford_of(fusion: Fusion) -> dict[str, str]:
    """Return, for each expression that `decompose` makes, the name of the Welford that it comes from."""
    origins: dict[str, str] = {}
    former_names = {expr.name for expr in fusion.exprs}
    for expr in fusion.exprs:
        if expr.op.name == "welford":
            origins.update((f"{expr.name}_{part}", expr.name) for part in _PARTS)
            origins[f"{expr.outputs[2].name}_once"] = expr.name
            origins.update((out.name, expr.name) for out in expr.outputs if out.name not in former_names)
    return origins


_PARTS = ("wide", "total", "mean", "placed", "deviation", "square", "squares")
