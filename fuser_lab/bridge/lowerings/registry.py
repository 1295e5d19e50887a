"""The registry of lowerings of ATen ops: how an op is written in ``fd.ops``, and when it cannot be.

Nothing here imports torch: a call is plain data, so `refusal` needs neither a tensor nor a definition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.handles import Tensor
from fuser_lab.dtypes import DataType, Kind
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import OpKind, Val
from fuser_lab.ops import OPS
from fuser_lab.passes.cat_parts import cat_axis, cat_parts, cat_sources
from fuser_lab.targets import holders, is_on_host

DTYPES: Mapping[str, DataType] = {
    "float64": DataType.Double,
    "float32": DataType.Float,
    "float16": DataType.Half,
    "bfloat16": DataType.BFloat16,
    "int64": DataType.Int,
    "int32": DataType.Int32,
    "int16": DataType.Short,
    "int8": DataType.Char,
    "uint8": DataType.Byte,
    "bool": DataType.Bool,
    "float8_e4m3fn": DataType.Float8_e4m3fn,
    "float8_e5m2": DataType.Float8_e5m2,
}
MOST_AXES = 16  # axes of a tensor that are lowered


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A traced tensor: strides are in elements; ``dtype`` and ``device`` are torch's names."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether elements are real floating-point numbers."""
        return self.dtype in DTYPES and DTYPES[self.dtype].is_float

    def __str__(self) -> str:
        """Return dtype and shape, ``float32[3, 4]``."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class TorchName:
    """A dtype, device, layout or memory format among the arguments of a call."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an ATen op: tensors as `TracedTensor`, lists as tuples, everything else unchanged."""

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[TracedTensor | None, ...]

    @property
    def result(self) -> TracedTensor:
        """The first result."""
        first = self.results[0]
        if first is None:
            msg = f"{self.target} has no first result."
            raise DefinitionError(msg)
        return first

    def option(self, name: str, default: Any = None) -> Any:
        """Return a keyword argument."""
        return dict(self.kwargs).get(name, default)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or by name."""
        return self.args[place] if place < len(self.args) else self.option(name, default)

    @property
    def tensors(self) -> tuple[TracedTensor, ...]:
        """All tensor operands."""
        return tuple(_tensors([*self.args, *(value for _, value in self.kwargs)]))


def _tensors(values: Sequence[Any]) -> Iterator[TracedTensor]:
    for value in values:
        if isinstance(value, TracedTensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


Refuse = Callable[[Call], str | None]
Lower = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """How one ATen op is recorded.

    ``lower(to, *args, **kwargs)`` gets an `Emitter` and the call's arguments, tensors as handles, and returns one
    handle or a list of them; dtypes of results are corrected afterwards. ``refuse(call)`` says why a call cannot be
    lowered, or returns None. ``computes`` is false for views and factories; a region of only these is not created.
    """

    target: str
    lower: Lower
    refuse: Refuse | None = None
    computes: bool = True


LOWERINGS: dict[str, Lowering] = {}


def lowering(*targets: str, refuse: Refuse | None = None, computes: bool = True) -> Callable[[Lower], Lower]:
    """Return a decorator that registers a function as the lowering of ATen ops."""

    def register(lower: Lower) -> Lower:
        for target in targets:
            if target in LOWERINGS:
                msg = f"{target} already has a lowering."
                raise DefinitionError(msg)
            LOWERINGS[target] = Lowering(target=target, lower=lower, refuse=refuse, computes=computes)
        return lower

    return register


def primitive(
    *names: str, refuse: Refuse | None = None, computes: bool = True, numbers: bool = False,
) -> Callable[[Lower], Lower]:
    """Return a decorator that registers a function as the lowering of JAX's primitives.

    ``lower(to, *operands)`` gets handles; with ``numbers``, Python numbers in place of operands that are 0-d and
    depend on no input. ``to.call.option`` returns the primitive's parameters.
    """

    def register(lower: Lower) -> Lower:
        for name in names:
            LOWERINGS[f"lax.{name}"] = Lowering(
                target=f"lax.{name}", lower=lower if numbers else _of_tensors(lower), refuse=refuse, computes=computes,
            )
        return lower

    return register


def by_op(name: str) -> Lower:
    """Return the lowering to the op of ``fd.ops`` with a name."""
    return lambda to, *operands: getattr(to.ops, name)(*operands)


def whole_power(to: "Emitter", x: Any, exponent: int) -> Any:
    """Return a power by repeated squaring, as in XLA; of integers, it is the low bits."""
    if exponent == 0:
        return to.full(to.call.result.shape, 1.0 if x.dtype.is_float else 1, x.dtype)
    power, square = None, x
    while exponent:
        if exponent & 1:
            power = square if power is None else to.ops.mul(power, square)
        exponent >>= 1
        square = to.ops.mul(square, square) if exponent else square
    return to.ops.set(x) if power is x else power


def _of_tensors(lower: Lower) -> Lower:
    """Return a lowering that gets tensors without axes in place of numbers."""
    def lower_tensors(to: "Emitter", *operands: Any) -> Any:
        dtypes = [*(x.dtype for x in operands if isinstance(x, Tensor)), to.dtype]
        tensors = (x if isinstance(x, Tensor) else to.full((), x, _dtype_of(x, dtypes)) for x in operands)
        return lower(to, *tensors)

    return lower_tensors


def _dtype_of(number: bool | float, dtypes: Sequence[DataType]) -> DataType:
    """Return the first dtype of a number's kind, or the widest one."""
    if isinstance(number, bool):
        return DataType.Bool
    kind = Kind.FLOAT if isinstance(number, float) else Kind.INTEGER
    widest = DataType.Double if isinstance(number, float) else DataType.Int
    return next((dtype for dtype in dtypes if dtype.kind is kind), widest)


def refusal(call: Call) -> str | None:
    """Return why a call cannot be lowered, or None if it can, without recording anything."""
    entry = LOWERINGS.get(call.target)
    if entry is None:
        return "it has no lowering"
    tensors = (*call.tensors, *(result for result in call.results if result is not None))
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            return f"fusions do not support the dtype {tensor.dtype}"
        if tensor.ndim > MOST_AXES:
            return f"a tensor has {tensor.ndim} axes; {MOST_AXES} at most are lowered"
    if not any(result is not None for result in call.results):
        return "its result is not a tensor"
    # A 0-d tensor on the CPU may be combined with tensors on a GPU, as in torch.
    devices = {tensor.device for tensor in tensors if tensor.ndim or not is_on_host(tensor.device)}
    if len(devices) > 1:
        return f"it moves data between {' and '.join(sorted(devices))}"
    if any(device.partition(":")[0] not in {*holders(), "meta"} for device in devices):
        return f"fusions do not run on {', '.join(sorted(devices))}"
    return entry.refuse(call) if entry.refuse is not None else None


def can_lower(call: Call) -> bool:
    """Whether a call can be lowered."""
    return refusal(call) is None


def in_its_own_dtype(call: Call) -> str | None:
    """Refuse the next representable number in a dtype for which kernels compute in a different one."""
    dtype = DTYPES[call.result.dtype]
    return f"kernels compute {dtype.name} in {dtype.compute.name}" if dtype.compute is not dtype else None


def _part(stacked: Mapping[Val, Sequence[Val] | None], value: Val, place: int) -> Val:
    """Return the part of a stack at a place; values with one element along its axis are those of all parts."""
    parts = stacked.get(value)
    return value if parts is None else parts[place]


class Emitter:
    """The recorder of lowerings: ``fd.ops``, and helpers that several lowerings need."""

    def __init__(self, fd: FusionBuilder, call: Call) -> None:
        self.ops, self.call, self._fd = fd.ops, call, fd

    def made_by_passes(self, name: str, *operands: Tensor, **attrs: Any) -> Any:
        """Record an op that has no name in ``fd.ops``."""
        return self._fd.wrap(self._fd.emit(OPS[name], [tensor.val for tensor in operands], **attrs)[0])

    def joined_there(self, x: Tensor, axis: int, start: int, end: int) -> tuple[Any, int] | None:
        """Return the operand of a concatenation that contains a slice of it, and where the operand begins; or None."""
        makers = {value: expr for expr in self._fd.recorded_exprs for value in expr.outputs}
        cat = makers.get(x.val)
        if cat is None or cat.op.name != "cat" or cat_axis(cat) != axis:
            return None
        for source, (_, (first, last)) in zip(cat_sources(cat, makers) or (), cat_parts(cat), strict=False):
            if first <= start < end <= last:
                return self._fd.wrap(source), first
        return None

    def parts_of_stack(self, x: Tensor, axis: int) -> list[Any]:
        """Return the parts along an axis of a stack, or of what is computed from stacks element by element; or nothing.

        Each part has one element along the axis, and is computed from parts.
        """
        exprs, count, stacked = tuple(self._fd.recorded_exprs), x.val.shape[axis], dict[Val, Sequence[Val] | None]()
        makers = {value: expr for expr in exprs for value in expr.outputs}
        for expr in exprs:
            if expr.op.name == "cat" and cat_axis(expr) == axis and expr.out.ndim == x.ndim:
                sources = cat_sources(expr, makers) or ()
                if len(sources) == count == expr.out.shape[axis]:
                    stacked[expr.out] = sources
            elif expr.kind is OpKind.POINTWISE and not stacked.keys().isdisjoint(expr.inputs):
                broadcasts = [tv for tv in expr.tensor_inputs if tv not in stacked]
                if all(tv.ndim == x.ndim and tv.shape[axis] == 1 for tv in broadcasts):
                    stacked[expr.out] = None  # until its parts are needed
        needed = set[Val]([x.val]) & stacked.keys()
        for expr in reversed(exprs):
            if expr.outputs[0] in needed and stacked[expr.out] is None:
                needed.update(value for value in expr.inputs if value in stacked)
        for expr in exprs:
            if expr.outputs[0] in needed and stacked[expr.out] is None:
                operands = [[_part(stacked, value, place) for value in expr.inputs] for place in range(count)]
                stacked[expr.out] = [self._fd.emit(OPS[expr.op.name], each, **dict(expr.attrs))[0] for each in operands]
        return [self._fd.wrap(part) for part in stacked.get(x.val) or ()]

    @property
    def dtype(self) -> DataType:
        """Element type of the first result."""
        return DTYPES[self.call.result.dtype]

    @staticmethod
    def shape(x: Tensor) -> tuple[int, ...]:
        """Return the sizes of a tensor, all of which are known."""
        return x.val.shape

    def cast(self, x: Any, dtype: DataType) -> Any:
        """Return a tensor in a dtype; numbers are returned as they are."""
        if not isinstance(x, Tensor) or x.dtype is dtype:
            return x
        if dtype is DataType.Bool:
            return self.ops.ne(x, 0 if x.dtype.kind is not Kind.FLOAT else 0.0)
        return self.ops.cast(x, dtype)

    def full(self, shape: Sequence[int], value: Any, dtype: DataType) -> Any:
        """Return a tensor of one value."""
        return self.ops.full(list(shape), value, dtype)

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        """Return a tensor broadcast to a shape, as torch's ``expand``; -1 keeps a size."""
        current = self.shape(x)
        new = len(shape) - len(current)
        sizes = [current[place - new] if size == -1 else size for place, size in enumerate(shape)]
        if new:
            x = self.ops.broadcast(x, [place < new for place in range(len(sizes))])
        return x if self.shape(x) == tuple(sizes) else self.ops.expand(x, sizes)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Return a tensor with its elements in row-major order under a shape."""
        return x if self.shape(x) == tuple(shape) else self.ops.reshape(x, list(shape))

    def shift(self, name: str, x: Any, y: Any) -> Any:
        """Return integers shifted by ``bitwise_left_shift`` or ``bitwise_right_shift``.

        If the distance is out of range, each bit is 0, or the sign bit for a right shift that fills in signs.
        """
        ops, bits = self.ops, 8 * self.dtype.itemsize
        shift = getattr(ops, name)

        def beyond() -> Any:
            if name == "bitwise_left_shift":
                return 0
            return ops.where(ops.lt(x, 0), -1, 0) if isinstance(x, Tensor) else -int(x < 0)

        if isinstance(y, Tensor):
            inside = ops.logical_and(ops.ge(y, 0), ops.lt(y, bits))
            return ops.where(inside, shift(x, ops.where(inside, y, 0)), beyond())
        if 0 <= y < bits:
            return shift(x, y)
        factor = beyond()
        return factor if isinstance(factor, Tensor) else ops.mul(x, factor)

    def places(self, count: int, start: int = 0, step: int = 1) -> Any:
        """Return ``start + step * i`` for i below count."""
        return self.ops.iota(count, start, step, DataType.Int)


def record(fd: FusionBuilder, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Record a call with handles in place of its tensors, and return its results in torch's dtypes.

    Raises
    ------
    FuserLabError
        If the call cannot be recorded.
    DefinitionError
        If the shape of a result differs from torch's.
    """
    entry = LOWERINGS[call.target]
    to = Emitter(fd, call)
    made = entry.lower(to, *args, **kwargs)
    results = list(made) if isinstance(made, list | tuple) else [made]
    handles: list[Any] = []
    for result, traced in zip(results, call.results, strict=True):
        if traced is None or result is None:
            handles.append(None)
            continue
        cast = to.cast(result, DTYPES[traced.dtype])
        if to.shape(cast) != traced.shape:
            msg = f"{call.target}: the result has shape {list(to.shape(cast))}; torch gives {list(traced.shape)}."
            raise DefinitionError(msg)
        handles.append(cast)
    return handles


def not_empty(call: Call) -> str | None:
    """Refuse calls with an empty tensor."""
    return None if all(tensor.size for tensor in call.tensors) else "a tensor is empty"


def axis_of(dim: int, ndim: int) -> int:
    """Return an axis counted from the front; 0 for tensors without axes."""
    return dim % ndim if ndim else 0


def axes_of(dims: Any, ndim: int) -> tuple[int, ...]:
    """Return axes counted from the front; all of them if none are given."""
    if dims is None or dims == ():
        return tuple(range(ndim))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(axis_of(dim, ndim) for dim in listed) if ndim else ()
