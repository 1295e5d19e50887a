"""Tensors that a script creates with torch, as `TensorSpec`: shape, dtype, strides, device and values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.definition.repro.arguments import Arguments, plain_number, real_number
from fuser_lab.definition.repro.layouts import kept_strides, with_strides
from fuser_lab.definition.spec import Fill, TensorSpec, spec
from fuser_lab.dtypes import DataType, of_python
from fuser_lab.errors import DefinitionError
from fuser_lab.ops.arguments import whole, wholes

_MOST_VALUES = 10_000  # values of a tensor that a script builds


def _make(shape: Sequence[int], dtype: DataType, device: str, fill: Fill | None) -> TensorSpec:
    return replace(spec(shape, dtype), device=device, fill=fill)


def _constant(value: Any) -> Fill:
    return Fill(kind="values", values=(value,))


def _between(low: float, high: float, dtype: DataType, call: str) -> Fill:
    if not low < high:
        msg = f"{call}: low is {short_text(low)} and high is {short_text(high)}; low must be below high."
        raise DefinitionError(msg)
    if not (dtype.is_integral or dtype is DataType.Bool):
        return Fill(kind="uniform", low=low, high=high)
    if low != low or high != high or abs(low) == float("inf") or abs(high) == float("inf"):  # noqa: PLR0124
        raise DefinitionError(f"{call}: low and high must be finite, given {short_text(low)} and {short_text(high)}.")
    return _integers(ceil(low), ceil(high), dtype, call)


def _integers(low: int, high: int, dtype: DataType, call: str) -> Fill:
    least, most = dtype.limits if dtype.is_integral else (-(2**63), 2**63 - 1)
    if not least <= low < high <= most + 1:
        raise DefinitionError(
            f"{call}: the range of integers from {short_text(low)} to {short_text(high)} is empty or does not fit "
            f"{dtype!r}."
        )
    return Fill(kind="integers", low=low, high=high)


def _random_maker(kind: str) -> Callable[[Arguments], TensorSpec]:
    def make(a: Arguments) -> TensorSpec:
        shape, dtype, device = a.sizes("size"), a.dtype(DataType.Float), a.device()
        if not dtype.is_float and not (kind == "randn" and dtype.is_complex):
            raise DefinitionError(f"{a.what}: dtype must be a float type, given {dtype!r}.")
        fill = Fill(kind="normal") if kind == "randn" else Fill(kind="uniform", low=0, high=1)
        return _make(shape, dtype, device, fill)

    return make


def _constant_maker(value: int | None) -> Callable[[Arguments], TensorSpec]:
    def make(a: Arguments) -> TensorSpec:
        shape, dtype = a.sizes("size"), a.dtype(DataType.Float)
        a.take("memory_format")
        # Uninitialized memory may contain anything; integers become indices that are valid everywhere.
        fill = None if value is None and not dtype.is_integral else _constant(value or 0)
        return _make(shape, dtype, a.device(), fill)

    return make


def _full(a: Arguments) -> TensorSpec:
    shape = wholes(a.next("size"), a.what, "size")
    value = plain_number(a.next("fill_value"), a.what, "fill_value")
    return _make(shape, a.dtype(_of_value(value)), a.device(), _constant(value))


def _randint_like(a: Arguments) -> TensorSpec:
    size, *bounds = a.args
    inner = Arguments(a.what, [*bounds, size], a.keywords)
    made = _randint(inner)
    a.args, a.keywords = inner.args, inner.keywords
    return made


def _of_value(value: Any) -> DataType:
    dtype = of_python(value)
    return {DataType.Double: DataType.Float, DataType.ComplexDouble: DataType.ComplexFloat}.get(dtype, dtype)


def _randint(a: Arguments) -> TensorSpec:
    numbers = []
    while a.args and is_whole(a.args[0]):
        numbers.append(a.args.pop(0))
    low, high = a.take("low", default=0), a.take("high")
    if high is None and numbers:
        high = numbers.pop()
    if numbers:
        low = numbers.pop()
    shape = wholes(a.next("size"), a.what, "size")
    dtype = a.dtype(DataType.Int)
    fill = _integers(whole(low, a.what, "low"), whole(high, a.what, "high"), dtype, a.what)
    return _make(shape, dtype, a.device(), fill)


def _arange(a: Arguments) -> TensorSpec:
    numbers = [real_number(value, a.what, "end") for value in a.args]
    a.args = []
    first, end, step = (a.take("start", default=0), a.take("end"), a.take("step", default=1))
    match numbers:
        case [only]:
            first, end = (first, only) if end is None else (only, end)
        case [start, stop]:
            first, end = start, stop
        case [start, stop, by]:
            first, end, step = start, stop, by
        case _ if end is None or numbers:
            raise DefinitionError(
                f"{a.what}: arguments must be end, or start and end, or start, end and step, given {len(numbers)} "
                "numbers."
            )
    first, end, step = (real_number(v, a.what, n) for v, n in ((first, "start"), (end, "end"), (step, "step")))
    if not step or (end - first) / step < 0 or abs(end - first) == float("inf"):
        raise DefinitionError(
            f"{a.what}: there is no range from {short_text(first)} to {short_text(end)} in steps of "
            f"{short_text(step)}."
        )
    count = ceil((end - first) / step)
    dtype = a.dtype(DataType.Float if any(isinstance(v, float) for v in (first, end, step)) else DataType.Int)
    return _make([count], dtype, a.device(), Fill(kind="range", values=(first, step)))


def _eye(a: Arguments) -> TensorSpec:
    rows = whole(a.next("n"), a.what, "n")
    columns = whole(a.next("m", default=rows), a.what, "m")
    if rows <= columns + 1:
        # A one, then as many zeros as there are columns: the next one stands a row below, one place further on.
        values, count = (1, *[0] * min(columns, _MOST_VALUES)), columns + 1
    else:
        count = rows * columns
        values = tuple(int(place % (columns + 1) == 0 and place < columns * (columns + 1))
                       for place in range(min(count, _MOST_VALUES)))  # fmt: skip
    if count > _MOST_VALUES:
        raise DefinitionError(f"{a.what}: a matrix of {rows} x {columns} has more than {_MOST_VALUES} numbers.")
    return _make([rows, columns], a.dtype(DataType.Float), a.device(), Fill(kind="values", values=values or (0,)))


def _make_tensor(a: Arguments) -> TensorSpec:
    shape, dtype, device = a.sizes("shape"), a.dtype(DataType.Null), a.device("")
    if dtype is DataType.Null or not device:
        raise DefinitionError(f"{a.what}: needs both dtype and device.")
    if a.take("noncontiguous"):
        raise DefinitionError(f"{a.what}: noncontiguous=True does not define the strides; use as_strided.")
    low, high = a.take("low"), a.take("high")
    a.take("memory_format")
    # Torch's own range, limited to that of the dtype.
    least, most = (0, 2) if dtype is DataType.Bool else (-9, 10) if dtype.is_integral else (-9, 9)
    least = max(least, dtype.limits[0]) if dtype.is_integral else least
    first = least if low is None else real_number(low, a.what, "low")
    last = most if high is None else real_number(high, a.what, "high")
    return _make(shape, dtype, device, _between(first, last, dtype, a.what))


def _empty_strided(a: Arguments) -> TensorSpec:
    shape, strides = wholes(a.next("size"), a.what, "size"), wholes(a.next("stride"), a.what, "stride")
    dtype = a.dtype(DataType.Float)
    fill = _constant(0) if dtype.is_integral else None
    return replace(with_strides(spec(shape, dtype), shape, strides, a.what), device=a.device(), fill=fill)


def _tensor(a: Arguments) -> TensorSpec:
    flat: list[Any] = []
    shape = _nested_shape(a.next("data"), flat, a.what)
    dtype = a.dtype(_of_value(max(flat, key=lambda v: of_python(v).kind, default=0.0)))
    return _make(shape, dtype, a.device(), Fill(kind="values", values=tuple(flat)) if flat else None)


def _nested_shape(data: Any, flat: list[Any], function: str) -> list[int]:
    if not isinstance(data, list | tuple):
        flat.append(plain_number(data, function, "data"))
        if len(flat) > _MOST_VALUES:
            raise DefinitionError(f"{function}: data has more than {_MOST_VALUES} numbers.")
        return []
    inner = [_nested_shape(entry, flat, function) for entry in data]
    if any(shape != inner[0] for shape in inner):
        raise DefinitionError(f"{function}: the lists in data have different lengths.")
    return [len(inner), *(inner[0] if inner else [])]


def _spec(a: Arguments) -> TensorSpec:
    shape, dtype, strides = a.next("shape"), a.next("dtype", default="float32"), a.next("strides")
    return spec(shape, dtype, strides, a.next("fill"))


def _like(maker: Callable[[Arguments], TensorSpec]) -> Callable[[Arguments], TensorSpec]:
    def make(a: Arguments) -> TensorSpec:
        like = a.args.pop(0) if a.args else None
        if not isinstance(like, TensorSpec):
            raise DefinitionError(f"{a.what}: the first argument must be a tensor that the script creates.")
        keywords = {"dtype": like.dtype, "device": like.device} | a.keywords
        inner = Arguments(a.what, [list(like.shape), *a.args], keywords)
        made = maker(inner)
        a.args, a.keywords = inner.args, inner.keywords
        return replace(made, strides=kept_strides(like))

    return make


# Names after `torch.`; `spec` is fuser_lab's own.
MAKERS: Mapping[str, Callable[[Arguments], TensorSpec]] = {
    "randn": _random_maker("randn"),
    "rand": _random_maker("rand"),
    "zeros": _constant_maker(0),
    "ones": _constant_maker(1),
    "empty": _constant_maker(None),
    "full": _full,
    "randint": _randint,
    "arange": _arange,
    "eye": _eye,
    "tensor": _tensor,
    "empty_strided": _empty_strided,
    "testing.make_tensor": _make_tensor,
    "randn_like": _like(_random_maker("randn")),
    "rand_like": _like(_random_maker("rand")),
    "zeros_like": _like(_constant_maker(0)),
    "ones_like": _like(_constant_maker(1)),
    "empty_like": _like(_constant_maker(None)),
    "full_like": _like(_full),
    "randint_like": _like(_randint_like),
    "spec": _spec,
}


def made_by(name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> TensorSpec:
    """Return the result of ``torch.<name>(...)``, for a name in `MAKERS`.

    Raises
    ------
    DefinitionError
        If an argument cannot be read.
    """
    a = Arguments(name if name == "spec" else f"torch.{name}", args, keywords)
    made = MAKERS[name](a)
    a.done()
    return made


def _normal_fill(tensor: TensorSpec, a: Arguments) -> Fill:
    mean, std = (real_number(a.next(name, default=usual), a.what, name) for name, usual in (("mean", 0), ("std", 1)))
    if (mean, std) != (0, 1) or not (tensor.dtype.is_float or tensor.dtype.is_complex):
        raise DefinitionError(f"{a.what}: only mean 0 and std 1, on tensors of floats, are read.")
    return Fill(kind="normal")


def _uniform_fill(tensor: TensorSpec, a: Arguments) -> Fill:
    low, high = (a.next(*names, default=usual) for names, usual in ((("from", "a"), 0), (("to", "b"), 1)))
    if not tensor.dtype.is_float:
        raise DefinitionError(f"{a.what}: only tensors of floats are read, given {tensor.dtype!r}.")
    return _between(real_number(low, a.what, "from"), real_number(high, a.what, "to"), tensor.dtype, a.what)


def _random_fill(tensor: TensorSpec, a: Arguments) -> Fill:
    bounds = [whole(a.args.pop(0), a.what, "to") for _ in a.args[:2]]
    low = bounds.pop(0) if len(bounds) == 2 else whole(a.take("from", default=0), a.what, "from")
    high = bounds.pop() if bounds else a.take("to")
    if high is None:
        raise DefinitionError(f"{a.what}: it is read only with an upper bound of the values.")
    return _integers(low, whole(high, a.what, "to"), tensor.dtype, a.what)


# Methods that fill the memory of a tensor.
FILLERS: Mapping[str, Callable[[TensorSpec, Arguments], Fill]] = {
    "normal_": _normal_fill,
    "uniform_": _uniform_fill,
    "random_": _random_fill,
    "fill_": lambda _, a: _constant(plain_number(a.next("value"), a.what, "value")),
    "zero_": lambda _, a: _constant(0),
}


def refilled_by(method: str, tensor: TensorSpec, args: Sequence[Any], keywords: Mapping[str, Any]) -> TensorSpec:
    """Fill a tensor as ``tensor.<method>(...)`` does, for a method in `FILLERS`, and return it.

    Raises
    ------
    DefinitionError
        If an argument cannot be read.
    """
    a = Arguments(method, args, keywords)
    fill = FILLERS[method](tensor, a)
    a.done()
    # As in torch, the tensor itself changes, under all of its names; this does not affect comparisons or hashes.
    object.__setattr__(tensor, "fill", fill)
    return tensor
