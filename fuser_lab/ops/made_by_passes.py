"""Ops of the IR that have no name in ``fd.ops``: only passes before the cut make them, as in nvFuser."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from fuser_lab.dtypes import from_numpy
from fuser_lab.errors import UnknownNameError
from fuser_lab.ir import OpKind
from fuser_lab.ops.positions import checked_positions, checked_positions_torch
from fuser_lab.ops.reduction import MAX, MIN
from fuser_lab.ops.registry import Array, Combine, OpDef, register_made_by_passes
from fuser_lab.ops.scatter import SCATTER


def _nameless(name: str) -> Callable[..., NoReturn]:
    def frontend(*_: object, **__: object) -> NoReturn:
        msg = f"fd.ops has no op {name}; passes make it."
        raise UnknownNameError(msg)

    return frontend


def _extreme(name: str, plain: OpDef, fold: Any) -> OpDef:
    """Return a reduction like ``max`` or ``min`` that passes over NaN; of NaN alone it is the identity."""
    if plain.combine is None:
        msg = f"{plain.name} is no reduction."
        raise TypeError(msg)
    identity = plain.combine.identity

    def reference(x: Array, *, dims: tuple[int, ...]) -> Array:
        return np.asarray(fold.reduce(x, axis=dims, initial=identity(from_numpy(x.dtype))))

    return OpDef(
        name=name, kind=OpKind.REDUCTION, frontend=_nameless(name), infer=plain.infer, reference=reference,
        combine=Combine(fn=name, identity=identity), doc=f"As {plain.name}, but NaN is passed over.",
    )


FMAX = register_made_by_passes(_extreme("fmax", MAX, np.fmax))
FMIN = register_made_by_passes(_extreme("fmin", MIN, np.fmin))


def _reference_scatter_add(x: Array, index: Array, source: Any, *, dim: int) -> Array:
    places = np.moveaxis(checked_positions("scatter", index, x.shape[dim]), dim, 0)
    values = np.asarray(source)
    values = np.broadcast_to(values, index.shape) if not values.ndim else values[tuple(map(slice, index.shape))]
    out = np.array(x)
    others = np.indices(places.shape, sparse=True)[1:]
    np.add.at(np.moveaxis(out, dim, 0), (places, *others), np.moveaxis(values, dim, 0).astype(out.dtype))
    return out


def _library_scatter_add(torch: Any, x: Any, index: Any, source: Any, *, dim: int) -> Any:
    places = checked_positions_torch(torch, "scatter", index, x.shape[dim])
    values = source if torch.is_tensor(source) else torch.as_tensor(source, dtype=x.dtype, device=x.device)
    values = values if values.ndim else values.expand(places.shape)
    return torch.scatter_add(x, dim, places, values)


SCATTER_ADD = register_made_by_passes(
    OpDef(
        name="scatter_add", kind=OpKind.SCATTER, frontend=_nameless("scatter_add"), infer=SCATTER.infer,
        reference=_reference_scatter_add, library=_library_scatter_add, axes=SCATTER.axes,
        doc="A copy of arg to which src is added at the positions index of axis dim; equal positions add up.",
    ),
)

