"""Methods that convert a script's tensor to another layout, dtype or device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.definition.repro.arguments import TORCH_DTYPES, Arguments, as_device, as_dtype, dtype_named
from fuser_lab.definition.spec import Fill, TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError
from fuser_lab.ops.arguments import as_list, whole, wholes
from fuser_lab.ops.operands import wrap_dim
from fuser_lab.targets import CPU, CUDA


def _span(tensor: TensorSpec) -> int:
    """Return the number of elements from the first to the last one in memory."""
    if 0 in tensor.shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))


def with_strides(tensor: TensorSpec, shape: Sequence[int], strides: Sequence[int], call: str) -> TensorSpec:
    """Return a tensor with other sizes and strides, or raise DefinitionError if they are invalid."""
    if len(shape) != len(strides) or min([*shape, *strides], default=0) < 0:
        raise DefinitionError(
            f"{call}: sizes {list(shape)} and strides {list(strides)} must have the same length, with entries of 0 or "
            "more."
        )
    return replace(tensor, shape=tuple(shape), strides=tuple(strides))


def _as_strided(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    shape, strides = wholes(a.next("size"), a.what, "size"), wholes(a.next("stride"), a.what, "stride")
    offset = whole(a.next("storage_offset", default=0), a.what, "storage_offset")
    view = with_strides(tensor, shape, strides, a.what)
    if offset < 0 or (_span(view) and offset + _span(view) > _span(tensor)):
        raise DefinitionError(
            f"{a.what}: sizes {shape} with strides {strides} span {offset + _span(view)} elements, but "
            f"the tensor has {_span(tensor)} in memory."
        )
    return _move(view, offset)


def _move(tensor: TensorSpec, offset: int) -> TensorSpec:
    """Return a tensor whose first element is ``offset`` elements later in its memory."""
    fill = tensor.fill
    if offset and fill is not None and fill.kind == "range":
        first, step = fill.values
        return replace(tensor, fill=replace(fill, values=(first + offset * step, step)))
    if offset and fill is not None and fill.kind == "values":
        rotated = offset % len(fill.values)
        return replace(tensor, fill=replace(fill, values=fill.values[rotated:] + fill.values[:rotated]))
    return tensor


def kept_strides(tensor: TensorSpec) -> tuple[int, ...]:
    """Return the strides of a dense copy with the same order of axes."""
    order = sorted(range(len(tensor.shape)), key=lambda i: -tensor.strides[i])
    return _in_order(tensor.shape, tuple(range(len(order))) if 0 in tensor.strides else tuple(order))


def _in_order(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def _is_contiguous(tensor: TensorSpec) -> bool:
    plain = _in_order(tensor.shape, range(len(tensor.shape)))
    pairs = zip(tensor.shape, tensor.strides, plain, strict=True)
    return 0 in tensor.shape or all(n == 1 or s == p for n, s, p in pairs)


def _copy(tensor: TensorSpec, strides: tuple[int, ...]) -> TensorSpec:
    """Return a copy in new memory, which would change the order of fixed numbers."""
    if strides == tensor.strides or (_is_contiguous(tensor) and _is_contiguous(replace(tensor, strides=strides))):
        return replace(tensor, strides=strides)
    fill = tensor.fill
    if fill is not None and (fill.kind == "range" or len(set(fill.values)) > 1):
        raise DefinitionError("a copy into another layout is read only for random and constant tensors.")
    return replace(tensor, strides=strides)


def _in_format(tensor: TensorSpec, memory_format: object, function: str) -> TensorSpec:
    """Return a copy in a memory format (a name in `FORMATS`)."""
    rank = len(tensor.shape)
    if memory_format in {None, "contiguous_format"}:
        order = list(range(rank))
    elif (memory_format, rank) in {("channels_last", 4), ("channels_last_3d", 5)}:
        order = [0, *range(2, rank), 1]
    else:
        msg = f"{function}: memory_format {short_text(memory_format)} is not read for a tensor with {rank} axes."
        raise DefinitionError(msg)
    return _copy(tensor, _in_order(tensor.shape, order))


def _contiguous(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    memory_format = a.take("memory_format")
    return tensor if memory_format is None and _is_contiguous(tensor) else _in_format(tensor, memory_format, a.what)


def _to(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    dtype, device = a.take("dtype"), a.take("device")
    for argument in a.args:
        if isinstance(argument, TensorSpec):
            dtype, device = argument.dtype, argument.device
        elif isinstance(argument, DataType):
            dtype = argument
        elif not isinstance(argument, bool):
            device = argument
    a.args = []
    layout = a.take("memory_format")
    converted = replace(
        tensor,
        dtype=tensor.dtype if dtype is None else as_dtype(dtype, a.what),
        device=tensor.device if device is None else as_device(device, a.what),
    )
    if converted != tensor:
        converted = _copy(converted, kept_strides(converted))
    return converted if layout in {None, "preserve_format"} else _in_format(converted, layout, a.what)


def _caster(name: str) -> Callable[[TensorSpec, Arguments], TensorSpec]:
    def cast(tensor: TensorSpec, a: Arguments) -> TensorSpec:
        return _to(tensor, Arguments(a.what, [dtype_named(name)], {}))

    return cast


def _cuda(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    return _to(tensor, Arguments(a.what, [a.next("device", default=CUDA.name)], {}))


def _permute_spec(tensor: TensorSpec, order: Sequence[int]) -> TensorSpec:
    return replace(
        tensor, shape=tuple(tensor.shape[i] for i in order), strides=tuple(tensor.strides[i] for i in order),
    )


def _permute(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    rank = len(tensor.shape)
    order = [wrap_dim(i, rank, a.what, "dims") for i in a.sizes("dims")]
    if sorted(order) != list(range(rank)):
        raise DefinitionError(f"{a.what}: dims {order} is not a permutation of {rank} axes.")
    return _permute_spec(tensor, order)


def _transpose(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    rank = len(tensor.shape)
    first, second = (wrap_dim(a.next(name), rank, a.what, name) for name in ("dim0", "dim1"))
    order = list(range(rank))
    order[first], order[second] = second, first
    return _permute_spec(tensor, order)


def _swap(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    return _transpose(tensor, Arguments(a.what, [a.next("axis0", "dim0"), a.next("axis1", "dim1")], {}))


def _t(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    if len(tensor.shape) > 2:
        raise DefinitionError(f"{a.what}: the tensor must have at most two axes, given {len(tensor.shape)}.")
    return _permute_spec(tensor, range(len(tensor.shape))[::-1])


def _reshape(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    shape = a.sizes("shape", "size")
    count, elements = prod(tensor.shape), prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and elements and count % elements == 0:
        shape[shape.index(-1)] = count // elements
    if min(shape, default=0) < 0 or prod(shape) != count:
        raise DefinitionError(f"{a.what}: {shape} does not have the {count} elements of {list(tensor.shape)}.")
    if not _is_contiguous(tensor):
        if a.what == "view":
            raise DefinitionError("view: the tensor must be contiguous; use reshape.")
        tensor = _copy(tensor, _in_order(tensor.shape, range(len(tensor.shape))))
    return replace(tensor, shape=tuple(shape), strides=_in_order(shape, range(len(shape))))


def _expand(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    shape = a.sizes("size")
    ahead = len(shape) - len(tensor.shape)
    if ahead < 0:
        raise DefinitionError(f"{a.what}: {shape} has fewer axes than {list(tensor.shape)}.")
    sizes, strides = [1] * ahead + list(tensor.shape), [0] * ahead + list(tensor.strides)
    for axis, size in enumerate(shape):
        if size == -1 and axis >= ahead:
            shape[axis] = sizes[axis]
        elif size < 0 or (sizes[axis] != 1 and size != sizes[axis]):
            msg = f"{a.what}: {list(tensor.shape)} cannot be expanded to {shape}; only axes of size 1 grow."
            raise DefinitionError(msg)
        elif size != sizes[axis]:
            strides[axis] = 0
    return replace(tensor, shape=tuple(shape), strides=tuple(strides))


def _repeat(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    times = a.sizes("repeats")
    ahead = len(times) - len(tensor.shape)
    if ahead < 0 or min(times, default=0) < 0:
        raise DefinitionError(f"{a.what}: repeats {times} must be 0 or more, for each axis of {list(tensor.shape)}.")
    shape = [n * by for n, by in zip([1] * ahead + list(tensor.shape), times, strict=True)]
    repeated = replace(tensor, shape=tuple(shape), strides=_in_order(shape, range(len(shape))))
    fill = tensor.fill
    if fill is None or (fill.kind != "range" and len(set(fill.values)) <= 1):
        return repeated
    # The numbers of a list repeat in the same order only if the list ends with the tensor.
    is_listed = fill.kind == "values" and len(tensor.shape) == len(shape) == 1 and _is_contiguous(tensor)
    if not is_listed or tensor.shape[0] % len(fill.values):
        msg = f"{a.what}: only random and constant tensors, and lists of numbers along their axis, are read."
        raise DefinitionError(msg)
    return repeated


def _unsqueeze(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    axis = wrap_dim(a.next("dim"), len(tensor.shape) + 1, a.what)
    step = tensor.shape[axis] * tensor.strides[axis] if axis < len(tensor.shape) else 1
    return replace(
        tensor,
        shape=(*tensor.shape[:axis], 1, *tensor.shape[axis:]),
        strides=(*tensor.strides[:axis], step, *tensor.strides[axis:]),
    )


def _squeeze(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    dim = a.next("dim")
    rank = len(tensor.shape)
    dims = range(rank) if dim is None else [dim] if is_whole(dim) else as_list(dim, a.what, "dim")
    gone = {i for i in (wrap_dim(d, rank, a.what) for d in dims) if tensor.shape[i] == 1}
    return _permute_spec(tensor, [i for i in range(rank) if i not in gone])


def _same(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    a.args = []
    return tensor


def _flatten(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    rank = len(tensor.shape)
    first = wrap_dim(a.next("start_dim", default=0), max(rank, 1), a.what)
    last = wrap_dim(a.next("end_dim", default=-1), max(rank, 1), a.what)
    if last < first:
        raise DefinitionError(f"{a.what}: start_dim {first} is after end_dim {last}.")
    shape = [*tensor.shape[:first], prod(tensor.shape[first : last + 1]), *tensor.shape[last + 1 :]]
    return _reshape(tensor, Arguments(a.what, [shape], {}))


def _unflatten(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    axis = wrap_dim(a.next("dim"), len(tensor.shape), a.what)
    sizes = wholes(a.next("sizes"), a.what, "sizes")
    count, elements = tensor.shape[axis], prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and elements and count % elements == 0:
        sizes[sizes.index(-1)] = count // elements
    if min(sizes, default=0) < 0 or prod(sizes) != count:
        raise DefinitionError(f"{a.what}: {sizes} does not have the {count} elements of axis {axis}.")
    strides, step = [0] * len(sizes), tensor.strides[axis]
    for place in reversed(range(len(sizes))):
        strides[place] = step
        step *= sizes[place]
    return replace(
        tensor, shape=(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :]),
        strides=(*tensor.strides[:axis], *strides, *tensor.strides[axis + 1 :]),
    )


def _movedim(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    rank = len(tensor.shape)
    taken, placed = (
        [wrap_dim(d, rank, a.what) for d in ([dims] if is_whole(dims) else as_list(dims, a.what, name))]
        for name, dims in ((name, a.next(name)) for name in ("source", "destination"))
    )
    if len(set(taken)) != len(taken) or len(set(placed)) != len(placed) or len(taken) != len(placed):
        msg = f"{a.what}: source {taken} and destination {placed} must have the same number of distinct axes."
        raise DefinitionError(msg)
    rest = iter(i for i in range(rank) if i not in taken)
    moved = dict(zip(placed, taken, strict=True))
    return _permute_spec(tensor, [moved[i] if i in moved else next(rest) for i in range(rank)])


def _narrow(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    axis = wrap_dim(a.next("dim"), len(tensor.shape), a.what)
    start, length = whole(a.next("start"), a.what, "start"), whole(a.next("length"), a.what, "length")
    size = tensor.shape[axis]
    start = start + size if start < 0 else start
    if not 0 <= start <= start + length <= size:
        raise DefinitionError(f"{a.what}: {length} elements from {start} exceed an axis of size {size}.")
    return taken_from(tensor, (*[slice(None)] * axis, slice(start, start + length)))


def _select(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    axis = wrap_dim(a.next("dim"), len(tensor.shape), a.what)
    return taken_from(tensor, (*[slice(None)] * axis, whole(a.next("index"), a.what, "index")))


def _statistic(tensor: TensorSpec, a: Arguments) -> TensorSpec:
    """Return a statistic along some axes, or along all; its values are random numbers, they are not computed."""
    axes, keepdim = a.next("dim", "axis"), a.next("keepdim", default=False)
    a.take("unbiased", "correction")
    rank = len(tensor.shape)
    dims = range(rank) if axes is None else [axes] if is_whole(axes) else as_list(axes, a.what, "dim")
    gone = {wrap_dim(dim, rank, a.what) for dim in dims}
    shape = [1 if place in gone else size for place, size in enumerate(tensor.shape) if keepdim or place not in gone]
    strides = _in_order(shape, range(len(shape)))
    dtype = a.dtype(tensor.dtype)
    if not dtype.is_float:
        raise DefinitionError(f"{a.what}: only statistics of floats are read, given {dtype!r}.")
    return replace(tensor, shape=tuple(shape), strides=strides, dtype=dtype, fill=Fill(kind="uniform"))


def _as_other(
    how: Callable[[TensorSpec, Arguments], TensorSpec],
) -> Callable[[TensorSpec, Arguments], TensorSpec]:
    """Return a method that uses another tensor's sizes."""
    def call(tensor: TensorSpec, a: Arguments) -> TensorSpec:
        other = a.next("other")
        if not isinstance(other, TensorSpec):
            msg = f"{a.what}: the argument must be a tensor that the script creates, given {short_text(other)}."
            raise DefinitionError(msg)
        return how(tensor, Arguments(a.what.removesuffix("_as"), [list(other.shape)], {}))

    return call


def join(name: str, tensors: Sequence[object], dim: object) -> TensorSpec | None:
    """Return the result of ``torch.cat`` or ``torch.stack``; None if dtypes or shapes are not read.

    Raises
    ------
    DefinitionError
        If the axis is out of range.
    """
    parts = [tensor for tensor in tensors if isinstance(tensor, TensorSpec)]
    if not parts or len(parts) != len(tensors):
        return None
    first = parts[0]
    if any(t.dtype is not first.dtype or len(t.shape) != len(first.shape) for t in parts):
        return None
    fill = first.fill
    is_one = all(t.fill == fill for t in parts)
    if not is_one or (fill is not None and (fill.kind == "range" or len(set(fill.values)) > 1)):
        if not first.dtype.is_float:
            # Integers may be indices, whose positions are not tracked.
            return None
        fill = Fill(kind="normal")
    is_stack = name == "stack"
    axis = wrap_dim(dim, len(first.shape) + is_stack, name)
    others = [(*t.shape[:axis], *t.shape[axis + (not is_stack) :]) for t in parts]
    if any(shape != others[0] for shape in others):
        return None
    size = len(parts) if is_stack else sum(t.shape[axis] for t in parts)
    shape = (*others[0][:axis], size, *others[0][axis:])
    return replace(first, shape=shape, strides=_in_order(shape, range(len(shape))), fill=fill)


METHODS: Mapping[str, Callable[[TensorSpec, Arguments], TensorSpec]] = {
    "as_strided": _as_strided,
    "to": _to,
    "type": _to,
    "astype": _to,
    "cuda": _cuda,
    "cpu": lambda tensor, a: _to(tensor, Arguments(a.what, [CPU.name], {})),
    "contiguous": _contiguous,
    "clone": lambda tensor, a: _copy(tensor, kept_strides(tensor)),
    "detach": _same,
    "requires_grad_": _same,
    "materialize": _same,
    "transpose": _transpose,
    "t": _t,
    "permute": _permute,
    "view": _reshape,
    "reshape": _reshape,
    "expand": _expand,
    "repeat": _repeat,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "movedim": _movedim,
    "moveaxis": _movedim,
    "swapaxes": _swap,
    "swapdims": _swap,
    "narrow": _narrow,
    "select": _select,
    "view_as": _as_other(_reshape),
    "reshape_as": _as_other(_reshape),
    "expand_as": _as_other(_expand),
    "type_as": _to,
    "pin_memory": _same,
    "retain_grad": _same,
    "broadcast_to": _expand,
    **dict.fromkeys(("mean", "var", "std", "sum"), _statistic),
    **{name: _caster(name) for name in TORCH_DTYPES if name in {"double", "float", "half", "bfloat16", "long", "int"}},
    "bool": _caster("bool"),
}


def changed_by(method: str, tensor: TensorSpec, args: Sequence[Any], keywords: Mapping[str, Any]) -> TensorSpec:
    """Return the result of ``tensor.<method>(...)``, for a method in `METHODS`.

    Raises
    ------
    DefinitionError
        If an argument cannot be read.
    """
    a = Arguments(method, args, keywords)
    result = METHODS[method](tensor, a)
    a.done()
    return result


def asked_of(tensor: TensorSpec, name: str, args: Sequence[Any]) -> Any:
    """Return the result of ``tensor.<name>(...)`` about a tensor's layout, for a name in `QUESTIONS`.

    Raises
    ------
    DefinitionError
        If an argument cannot be read.
    """
    match name, args:
        case "stride", []:
            return tensor.strides
        case "stride", [dim]:
            return tensor.strides[wrap_dim(dim, len(tensor.shape), "stride")]
        case "numel" | "nelement", []:
            return prod(tensor.shape)
        case "dim" | "ndimension", []:
            return len(tensor.shape)
        case "is_contiguous", []:
            return _is_contiguous(tensor)
        case "element_size", []:
            return tensor.dtype.itemsize
    raise DefinitionError(f"{name}: at most one axis is read.")


QUESTIONS = frozenset({"stride", "numel", "nelement", "dim", "ndimension", "is_contiguous", "element_size"})
# Functions that change a tensor's values but, except for broadcasts, not its layout.
ELEMENTWISE = frozenset({
    "abs", "neg", "exp", "sigmoid", "tanh", "relu", "sin", "cos", "square", "softmax", "sqrt", "rsqrt", "log", "gelu",
    "clamp", "clone", "add", "sub", "mul", "div", "pow", "reciprocal", "ceil", "floor", "erf", "cosh", "sinh", "silu",
    "masked_fill", "tril", "triu",
})  # fmt: skip
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def compare_tensors(tensors: Sequence[TensorSpec]) -> TensorSpec | None:
    """Return the result of a comparison of float tensors, None if dtypes or shapes are not read."""
    result = compute_tensors(tensors)
    return result and replace(result, dtype=DataType.Bool, fill=Fill(kind="integers", low=0, high=2))


def compute_tensors(tensors: Sequence[TensorSpec]) -> TensorSpec | None:
    """Return the result of arithmetic on floats of one dtype and masks, None if dtypes or shapes are not read.

    Its values are random normal numbers; they are not computed.
    """
    first = next((t for t in tensors if t.dtype.is_float), None)
    if first is None or any(t.dtype not in {first.dtype, DataType.Bool} for t in tensors):
        return None
    shape: list[int] = []
    for place in range(1, 1 + max(len(t.shape) for t in tensors)):
        sizes = {t.shape[-place] for t in tensors if len(t.shape) >= place} - {1}
        if len(sizes) > 1:
            return None
        shape.insert(0, sizes.pop() if sizes else 1)
    strides = kept_strides(first) if tuple(shape) == first.shape else _in_order(shape, range(len(shape)))
    return replace(first, shape=tuple(shape), strides=strides, fill=Fill(kind="normal"))


def taken_from(tensor: TensorSpec, index: object) -> TensorSpec:
    """Return ``tensor[index]`` for ints, slices with constant bounds, None and one ``...``.

    Raises
    ------
    DefinitionError
        If the index has another form or is out of range.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in entries:
        place = entries.index(Ellipsis)
        rest = entries[:place] + entries[place + 1 :]
        if Ellipsis in rest:
            raise DefinitionError("an index may contain ... only once.")
        taken = sum(entry is not None for entry in rest)
        entries[place : place + 1] = [slice(None)] * (len(tensor.shape) - taken)
    shape: list[int] = []
    strides: list[int] = []
    offset = axis = 0
    for entry in entries:
        if entry is None:
            # A new axis has the stride of the whole inner axis, before that axis is sliced.
            shape.append(1)
            strides.append(tensor.shape[axis] * tensor.strides[axis] if axis < len(tensor.shape) else 1)
            continue
        if axis >= len(tensor.shape):
            raise DefinitionError(f"the tensor has {len(tensor.shape)} axes, fewer than the index.")
        size, step = tensor.shape[axis], tensor.strides[axis]
        axis += 1
        if isinstance(entry, slice):
            places = range(size)[entry]
            if places.step < 0:
                raise DefinitionError("torch does not support slices with negative steps.")
            shape.append(len(places))
            strides.append(step * places.step)
            offset += step * places.start
        else:
            offset += step * wrap_dim(entry, size, "index", "entry")
    shape += tensor.shape[axis:]
    strides += tensor.strides[axis:]
    return _move(replace(tensor, shape=tuple(shape), strides=tuple(strides)), offset)
