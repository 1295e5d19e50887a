"""ExplicitSeeds: random numbers without a seed get one that is drawn when the fusion runs."""

from dataclasses import dataclass, replace
from typing import ClassVar

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, OpKind, Scalar
from fuser_lab.ops.attention import draws
from fuser_lab.ops.random import is_seedless
from fuser_lab.passes.base import Pass

_SEED = "rng_seed"
_OFFSET = "rng_offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitSeeds(Pass):
    """``uniform(a, b) -> uniform(a, b, rng_seed, rng_offset_T3)`` with seed and offsets appended to the inputs.

    The whole fusion has one seed; each expression has its own offset. Attention with dropout gets both as well.
    """

    name: ClassVar[str] = "explicit_seeds"
    adds_scalars: ClassVar[bool] = True
    example: ClassVar[str] = """
        fd.add_output(fd.ops.uniform(0.0, 1.0, [4, 6], dtype=DataType.Float))
    """

    def run(self, fusion: Fusion) -> Fusion:
        """Return the fusion whose random numbers all depend on inputs."""
        seed = Scalar(name=_SEED, dtype=DataType.Int)
        offsets: list[Scalar] = []
        exprs: list[Expr] = []
        for expr in fusion.exprs:
            if (expr.kind is OpKind.RANDOM and is_seedless(expr.inputs)) or draws(expr):
                offset = Scalar(name=f"{_OFFSET}_{expr.name}", dtype=DataType.Int)
                offsets.append(offset)
                inputs = (*expr.inputs, seed, offset)
                exprs.append(Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs))
            else:
                exprs.append(expr)
        if not offsets:
            return fusion
        return replace(fusion, inputs=(*fusion.inputs, seed, *offsets), exprs=tuple(exprs))


def offsets_of(fusion: Fusion) -> int:
    """Return how many offsets `ExplicitSeeds` added; they are the last inputs, after the seed."""
    return sum(isinstance(v, Scalar) and v.name.startswith(_OFFSET) for v in fusion.inputs)


def offsets_drawn(fusion: Fusion, inputs: int) -> int:
    """Return how many offsets a run draws, besides a seed, after ``inputs`` inputs: none if these include them."""
    count = offsets_of(fusion)
    return count if count and inputs == len(fusion.inputs) - count - 1 else 0
