"""Ops of the IR that have no name in ``fd.ops``: only pre-segmentation passes create them, as in nvFuser."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from fuser_lab.dtypes import from_numpy
from fuser_lab.errors import UnknownNameError
from fuser_lab.ir import OpKind
from fuser_lab.ops.reduction import MAX, MIN
from fuser_lab.ops.registry import OpDef, register_made_by_passes
from fuser_lab.ops.rules import Array, Combine


def _nameless(name: str) -> Callable[..., NoReturn]:
    def frontend(*_: object, **__: object) -> NoReturn:
        raise UnknownNameError(f"fd.ops has no op {name}; only passes create it.")

    return frontend


def _extreme(name: str, plain: OpDef, fold: Any) -> OpDef:
    """Return a reduction like ``max`` or ``min`` that skips NaN; if all elements are NaN, it is the identity."""
    if plain.combine is None:
        raise TypeError(f"{plain.name} is not a reduction.")
    identity = plain.combine.identity

    def reference(x: Array, *, dims: tuple[int, ...]) -> Array:
        return np.asarray(fold.reduce(x, axis=dims, initial=identity(from_numpy(x.dtype))))

    return OpDef(
        name=name, kind=OpKind.REDUCTION, frontend=_nameless(name), infer=plain.infer, reference=reference,
        combine=Combine(fn=name, identity=identity), doc=f"As {plain.name}, but NaN is skipped.",
    )


FMAX = register_made_by_passes(_extreme("fmax", MAX, np.fmax))
FMIN = register_made_by_passes(_extreme("fmin", MIN, np.fmin))
