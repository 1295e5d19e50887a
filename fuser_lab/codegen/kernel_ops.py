"""The ops of a segment as kernels compute them, after each of the rewrites of whole segments."""

from dataclasses import dataclass

from fuser_lab.codegen.accurate import accurate
from fuser_lab.codegen.decompose import decompose
from fuser_lab.codegen.sums_of_rows import with_sums_of_rows
from fuser_lab.ir import Fusion


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOps:
    """The fusion after each rewrite: each Welford decomposed, rounding errors corrected, sums of rows shared."""

    decomposed: Fusion
    corrected: Fusion
    fusion: Fusion

    @classmethod
    def of(cls, fusion: Fusion) -> "KernelOps":
        """Return the ops of a segment's kernels."""
        decomposed = decompose(fusion)
        corrected = accurate(decomposed)
        return cls(decomposed=decomposed, corrected=corrected, fusion=with_sums_of_rows(corrected))

    def corrections(self) -> dict[str, str]:
        """Return, for each expression that corrects a rounding error, the name of the expression that it serves."""
        recorded = {expr.name for expr in self.decomposed.exprs}
        served: dict[str, str] = {}
        name = ""
        for expr in reversed(self.corrected.exprs):  # additions directly precede the expression that they serve
            if expr.name in recorded:
                name = expr.name
            else:
                served[expr.name] = name
        return served
