"""Each expression of math text as an op with operands and attributes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fuser_lab.definition.dump import terms
from fuser_lab.definition.dump.operands import attribute, size_of
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, UnsupportedError
from fuser_lab.ir import AttrValue
from fuser_lab.ops import OPS

_INFIX = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "%": "mod", "==": "eq", "!=": "ne", "<": "lt", "<=": "le",
    ">": "gt", ">=": "ge", "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor", "&&": "logical_and",
    "||": "logical_or", "<<": "bitwise_left_shift", ">>": "bitwise_right_shift", "!": "logical_not",
    "~": "bitwise_not",
}  # fmt: skip
_FUNCTIONS = {
    "fmax": "maximum", "fmin": "minimum", "max": "maximum", "min": "minimum", "fmaxf": "maximum", "fminf": "minimum",
    "nearbyint": "round", "nearbyintf": "round", "std::complex": "complex", "fabs": "abs", "fabsf": "abs",
    "std::real": "real", "std::imag": "imag", "Set": "set", "Set.Permute": "permute", "SegmenterSet": "segment_set",
    "view": "reshape", "ViewOp": "reshape", "ReshapeOp": "reshape", "torch_gather": "gather", "Welford": "welford",
    "rng_uniform": "uniform", "rng_uniform_range": "uniform", "rng_normal_standard": "normal",
    "rng_normal_general": "normal", "notOp": "logical_not", "rsqrtf": "rsqrt", "frac": "frac", "argsort": "argsort",
}  # fmt: skip
_FOLDS = {"add": "sum", "mul": "prod", "max": "max", "fmax": "max", "min": "min", "fmin": "min"}
_NARROW = {
    "half": DataType.Half, "bfloat": DataType.BFloat16, "float": DataType.Float, "double": DataType.Double,
    "int": DataType.Int, "int32": DataType.Int32, "bool": DataType.Bool, "e4m3": DataType.Float8_e4m3fn,
    "e5m2": DataType.Float8_e5m2, "e8m0": DataType.Float8_e8m0fnu, "uint64_t": DataType.UInt64,
    "int16_t": DataType.Short, "int8_t": DataType.Char, "uint8_t": DataType.Byte,
    "std::complex<float>": DataType.ComplexFloat, "std::complex<double>": DataType.ComplexDouble,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An op by name, the terms that are its operands, and its attributes."""

    op: str
    operands: tuple[terms.Term, ...]
    attrs: dict[str, AttrValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What attributes depend on besides the statement: sizes of symbols, axes and sizes of operands, listed domains."""

    statement: terms.Statement
    sizes: dict[str, int]
    axes: Mapping[str, tuple[terms.Axis, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    domains: Mapping[str, terms.Domains] = field(default_factory=dict)

    def refuse(self, problem: str) -> DefinitionError:
        """Return the error for a statement that cannot be read."""
        return DefinitionError(f"load_dump: line {self.statement.line}: {problem}.")

    @property
    def result(self) -> terms.Value:
        """The first result, which must be a tensor."""
        value = self.statement.results[0]
        if not isinstance(value, terms.Value):
            raise self.refuse(f"{value.name} is a scalar, but the expression computes a tensor")
        return value

    def kept_axes(self, op: str) -> tuple[terms.Axis, ...]:
        """Return the axes of the result, or raise if the text does not show them."""
        if self.result.axes is None:
            raise self.refuse(f"{op}: the axes of {self.result.name} are not printed")
        return self.result.kept_axes

    def size(self, term: terms.Term, op: str) -> int:
        """Return a size, or raise if it is not known."""
        size = size_of(term, self.sizes)
        if size is None:
            shown = term.name if isinstance(term, terms.Symbol) else "an expression"
            raise self.refuse(f"{op}: the size {shown} is unknown; pass it as sizes={{'{shown}': ...}}")
        return size

    def shape(self, op: str, count: int | None = None) -> tuple[int, ...]:
        """Return the sizes of the result; an unknown one follows from the number of elements."""
        sizes = [size_of(axis.visible, self.sizes) for axis in self.kept_axes(op)]
        unknown = [place for place, size in enumerate(sizes) if size is None]
        if len(unknown) == 1 and count is not None:
            product = 1
            for size in sizes:
                product *= 1 if size is None else size
            if product and count % product == 0:
                sizes[unknown[0]] = count // product
        for place, size in enumerate(sizes):
            if size is None:
                self.size(self.kept_axes(op)[place].visible, op)
        return tuple(size for size in sizes if size is not None)


def call_of(context: Context) -> Call:
    """Return the call of a statement.

    Raises
    ------
    UnsupportedError
        If there is no such op.
    DefinitionError
        If its operands or options cannot be read.
    """
    term = context.statement.term
    if not isinstance(term, terms.Applied):
        # A plain copy of a scalar or of a tensor.
        return Call(op="set", operands=(term,))
    name = term.name
    if name.startswith("("):
        return _cast(context, term, terms.IR_TYPES[name[1:-1]])
    if name.startswith("__") and "2" in name:
        target = _NARROW.get(name.partition("2")[2])
        if target is None and not (context.result.dtype and len(term.operands) == 1):
            raise context.refuse(f"unknown cast {name}")
        return _cast(context, term, context.result.dtype or target or DataType.Float)
    if name == "reduction":
        return _reduction(context, term)
    if name in _INFIX:
        return Call(op=_INFIX[name], operands=term.operands)
    op = _FUNCTIONS.get(name, name)
    if op in _BUILT:
        return _BUILT[op](context, term)
    if op not in OPS and op.endswith("f") and op[:-1] in OPS:
        op = op[:-1]
    try:
        OPS[op]
    except KeyError:
        raise UnsupportedError(f"load_dump: line {context.statement.line}: unknown op {name[:60]}.") from None
    return _plain(context, op, term)


def _plain(context: Context, op: str, term: terms.Applied) -> Call:
    """Return a call whose options are operands if they are tensors, and attributes otherwise."""
    operands, attrs = list(term.operands), dict[str, AttrValue]()
    for key, value in term.options:
        if isinstance(value, terms.Value):
            operands.append(value)
        elif isinstance(value, terms.Axis):
            attrs["dim"] = _place(context, term, value)
        elif key == "index" and op == "select":
            operands.append(value)
        else:
            try:
                attrs[key] = attribute(value, context.sizes)
            except ValueError:
                raise context.refuse(f"{op}: the option {key} is not a plain value") from None
    return Call(op=op, operands=tuple(operands), attrs=attrs)


def _place(context: Context, term: terms.Applied, axis: terms.Axis) -> int:
    first = next((v for v in term.operands if isinstance(v, terms.Value)), None)
    numbers = [] if first is None else [a.number for a in context.axes.get(first.name, ()) if a.kind != "r"]
    if axis.number not in numbers:
        raise context.refuse(f"axis {axis.number} is not an axis of the operand")
    return numbers.index(axis.number)


def _cast(context: Context, term: terms.Applied, dtype: DataType) -> Call:
    (operand,) = term.operands if len(term.operands) == 1 else (None,)
    if operand is None:
        raise context.refuse("a cast has one operand")
    if isinstance(operand, terms.Applied) and operand.name == "std::real" and len(operand.operands) == 1:
        operand = operand.operands[0]
    return Call(op="cast", operands=(operand,), attrs={"dtype": dtype})


def _operand(context: Context, term: terms.Applied) -> terms.Value:
    first = term.operands[0] if term.operands else None
    if not isinstance(first, terms.Value) or first.name not in context.shapes:
        raise context.refuse(f"{term.name}: the first operand must be a tensor")
    return first


def _option(term: terms.Applied, name: str) -> terms.Term | None:
    return next((value for key, value in term.options if key == name), None)


def _reduced_axes(context: Context, term: terms.Applied) -> tuple[int, ...]:
    operand = _operand(context, term)
    axes = context.result.axes
    if axes is None or len(axes) != len(context.shapes[operand.name]):
        msg = f"the reduced axes cannot be determined: {context.result.name} and {operand.name} differ in number"
        raise context.refuse(msg)
    return tuple(place for place, axis in enumerate(axes) if axis.kind == "r")


def _reduction(context: Context, term: terms.Applied) -> Call:
    fold = _option(term, "op")
    name = fold.name if isinstance(fold, terms.Symbol) else fold.name if isinstance(fold, terms.Applied) else ""
    if name not in _FOLDS:
        msg = f"load_dump: line {context.statement.line}: unknown reduction {name[:40] or 'without a name'}."
        raise UnsupportedError(msg)
    return Call(op=_FOLDS[name], operands=(_operand(context, term),), attrs={"dims": _reduced_axes(context, term)})


def _welford(context: Context, term: terms.Applied) -> Call:
    return Call(op="welford", operands=(_operand(context, term),), attrs={"dims": _reduced_axes(context, term)})


def _flags(context: Context, term: terms.Applied) -> tuple[bool, ...] | None:
    option = _option(term, "flags") or _option(term, "is_broadcast_dim")
    if not isinstance(option, terms.Listed):
        return None
    flags = []
    for entry in option.entries:
        if not isinstance(entry, terms.Constant) or not isinstance(entry.value, bool):
            raise context.refuse("flags must be true or false")
        flags.append(entry.value)
    return tuple(flags)


def _added_axes(
    context: Context, wide: Sequence[terms.Axis], narrow: Sequence[terms.Axis], op: str,
) -> tuple[bool, ...]:
    """Return which broadcast axes of ``wide`` are not in ``narrow``, by the order of their kinds."""
    flags: list[bool] = []
    left = [axis.kind for axis in narrow]
    for axis in wide:
        is_added = axis.kind == "b" and (not left or left[0] != "b" or len(wide) - len(flags) > len(left))
        flags.append(is_added)
        if not is_added and left:
            left.pop(0)
    if left or sum(flags) != len(wide) - len(narrow):
        raise context.refuse(f"{op}: flags are missing and cannot be determined from the axes")
    return tuple(flags)


def _broadcast(context: Context, term: terms.Applied) -> Call:
    flags = _flags(context, term)
    if flags is None:
        # Versions before 2023 print none.
        operand = _operand(context, term)
        flags = _added_axes(context, context.kept_axes("broadcast"), context.axes[operand.name], "broadcast")
    return Call(op="broadcast", operands=(_operand(context, term),), attrs={"is_broadcast_dim": flags})


def _squeeze(context: Context, term: terms.Applied) -> Call:
    flags = _flags(context, term)
    if flags is None:
        operand = _operand(context, term)
        flags = _added_axes(context, context.axes[operand.name], context.kept_axes("squeeze"), "squeeze")
    dims = tuple(place for place, gone in enumerate(flags) if gone)
    return Call(
        op="squeeze", operands=(_operand(context, term),), attrs={"dims": dims, "squeeze_expanded": False},
    )


def _expand(context: Context, term: terms.Applied) -> Call:
    return Call(op="expand", operands=(_operand(context, term),), attrs={"shape": context.shape("expand")})


def _reshape(context: Context, term: terms.Applied) -> Call:
    operand = _operand(context, term)
    count = 1
    for size in context.shapes[operand.name]:
        count *= size
    return Call(op="reshape", operands=(operand,), attrs={"new_shape": context.shape("reshape", count)})


def _permute(context: Context, term: terms.Applied) -> Call:
    """Return a permutation that the extents allow; the text does not distinguish axes with the same extent."""
    operand = _operand(context, term)
    before = [axis for axis in context.axes.get(operand.name, ()) if axis.kind != "r"]
    after = context.kept_axes("permute")
    option = _option(term, "dims")
    if isinstance(option, terms.Listed):
        listed = tuple(context.size(entry, "permute") for entry in option.entries)
        return Call(op="permute", operands=(operand,), attrs={"dims": listed})
    if len(before) != len(after):
        raise context.refuse(f"permute: {operand.name} has {len(before)} axes and {context.result.name} {len(after)}")
    permutation = context.domains.get(context.result.name, terms.Domains()).permutation
    if permutation is not None and len(permutation) == len(after) and permutation != tuple(range(len(after))):
        return Call(op="permute", operands=(operand,), attrs={"dims": permutation})
    left = list(range(len(before)))
    dims: list[int] = []
    for axis in after:
        alike = [place for place in left if _alike(before[place], axis)]
        if not alike:
            # Symbols of one size may have several names.
            alike = [place for place in left if _same_size(context, before[place], axis)]
        if not alike:
            raise context.refuse(f"permute: {context.result.name} has an axis that {operand.name} lacks")
        dims.append(alike[0])
        left.remove(alike[0])
    if dims == sorted(dims):
        dims = _other_order(context, before, dims)
    return Call(op="permute", operands=(operand,), attrs={"dims": tuple(dims)})


def _other_order(context: Context, axes: Sequence[terms.Axis], dims: list[int]) -> list[int]:
    """Return an order other than the identity, because a permutation that moves nothing is not printed as one."""
    for second in reversed(range(len(axes))):
        for first in reversed(range(second)):
            if _same_size(context, axes[first], axes[second]):
                swapped = list(dims)
                swapped[first], swapped[second] = swapped[second], swapped[first]
                return swapped
    return dims


def _alike(a: terms.Axis, b: terms.Axis) -> bool:
    return (a.kind == "b") is (b.kind == "b") and a.extent == b.extent and a.expanded == b.expanded


def _same_size(context: Context, a: terms.Axis, b: terms.Axis) -> bool:
    sizes = size_of(a.visible, context.sizes), size_of(b.visible, context.sizes)
    return (a.kind == "b") is (b.kind == "b") and sizes[0] is not None and sizes[0] == sizes[1]


def _slice(context: Context, term: terms.Applied) -> Call:
    ranges = term.operands[1] if len(term.operands) == 2 else _option(term, "ranges")
    if not isinstance(ranges, terms.Listed):
        raise context.refuse("slice: the ranges are missing")
    starts, ends = [], []
    for entry in ranges.entries:
        if not isinstance(entry, terms.Listed) or len(entry.entries) not in {2, 3}:
            raise context.refuse("slice: a range must be {start, end, step}")
        first, last, *step = (context.size(bound, "slice") for bound in entry.entries)
        if step and step[0] != 1:
            raise context.refuse(f"slice: steps must be 1, given {step[0]}")
        starts.append(first)
        ends.append(last)
    operand = _operand(context, term)
    if len(starts) != len(context.shapes[operand.name]):
        raise context.refuse(f"slice: {len(starts)} ranges for a tensor with {len(context.shapes[operand.name])} axes")
    attrs: dict[str, AttrValue] = {"start_indices": tuple(starts), "end_indices": tuple(ends)}
    return Call(op="slice", operands=(operand,), attrs=attrs | {"manual_normalization": False})


def _pad(context: Context, term: terms.Applied) -> Call:
    operand, *rest = term.operands or (None,)
    widths = rest[0] if rest else _option(term, "widths")
    if not isinstance(operand, terms.Value) or not isinstance(widths, terms.Listed) or len(widths.entries) % 2:
        raise context.refuse("pad: the widths are missing")
    numbers = [context.size(width, "pad") for width in widths.entries]
    if len(numbers) != 2 * len(context.shapes.get(operand.name, ())):
        msg = f"pad: {len(numbers)} widths for a tensor with {len(context.shapes.get(operand.name, ()))} axes"
        raise context.refuse(msg)
    # The innermost axis comes first in the attribute, and last in the text.
    inner = [width for place in reversed(range(0, len(numbers), 2)) for width in numbers[place : place + 2]]
    value: terms.Term = rest[1] if len(rest) > 1 else terms.Constant(value=0)
    return Call(op="pad", operands=(operand, value), attrs={"pad_widths": tuple(inner)})


def _cat(context: Context, term: terms.Applied) -> Call:
    dim = _option(term, "dim")
    tensors = term.operands
    if dim is None and tensors:
        tensors, dim = tensors[:-1], tensors[-1]
    if dim is None or not tensors:
        raise context.refuse("cat: operands or axis are missing")
    return Call(op="cat", operands=tensors, attrs={"dim": context.size(dim, "cat")})


def _fill(op: str) -> Callable[[Context, terms.Applied], Call]:
    def made(context: Context, term: terms.Applied) -> Call:
        operands = [v for v in term.operands if not isinstance(v, terms.Listed) and not _is_type(v)]
        if op == "iota":
            operands = operands[1:] or [terms.Constant(value=0), terms.Constant(value=1)]
        if op in {"uniform", "normal"} and len(operands) in {0, 2} and "range" not in term.name and (
            "general" not in term.name
        ):
            operands = [terms.Constant(value=0.0), terms.Constant(value=1.0), *operands]
        dtype = context.result.dtype or DataType.Float
        return Call(op=op, operands=tuple(operands), attrs={"shape": context.shape(op), "dtype": dtype})

    return made


def _is_type(term: terms.Term) -> bool:
    return isinstance(term, terms.Constant) and isinstance(term.value, DataType)


def _copy(op: str) -> Callable[[Context, terms.Applied], Call]:
    return lambda _, term: Call(op=op, operands=term.operands)


_BUILT: Mapping[str, Callable[[Context, terms.Applied], Call]] = {
    "welford": _welford,
    "broadcast": _broadcast,
    "squeeze": _squeeze,
    "expand": _expand,
    "reshape": _reshape,
    "permute": _permute,
    "slice": _slice,
    "pad": _pad,
    "cat": _cat,
    "set": _copy("set"),
    "segment_set": _copy("segment_set"),
    **{op: _fill(op) for op in ("full", "iota", "uniform", "normal")},
}
