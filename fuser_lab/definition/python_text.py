"""A fusion as the Python that defines it, in the form nvFuser prints (``FusionDefinition.__repr__``)."""

from collections.abc import Callable, Iterator
from functools import cache
from math import copysign, isfinite

from fuser_lab import ir
from fuser_lab.dtypes import DataType, of_python
from fuser_lab.errors import UnsupportedError
from fuser_lab.ops import OPS

_INDENT = "    "
_NO_DEFAULT = object()
# Ops that accept only scalars of the definition, not Python numbers.
_DEFINED_SCALARS = frozenset(
    {ir.OpKind.INDEXING, ir.OpKind.SCATTER, ir.OpKind.SCAN, ir.OpKind.SORT, ir.OpKind.ATTENTION},
)
_SCALAR_ATTRIBUTES = frozenset({("topk", "k")})
# The value of an omitted operand.
_LEFT_OUT: dict[tuple[str, str], int] = {("pad", "value"): 0, ("iota", "start"): 0, ("iota", "step"): 1}


def definition_text(
    fusion: ir.Fusion, function: str = "nvfuser_fusion", letters: tuple[str, str] = ("tv", "c"),
) -> str:
    """Return a Python function that records the fusion again; floats keep full precision.

    ``letters`` begin the names of tensors and of scalars. Executing the text and calling the function inside
    ``with FusionDefinition() as fd:`` gives an equal fusion.
    """
    return _Writer(fusion, letters).write(function)


def recorded_names(fusion: ir.Fusion) -> dict[str, str]:
    """Return the name that each tensor gets when the printed definition is recorded."""
    tensors = [*fusion.tensor_inputs, *(tv for expr in fusion.exprs for tv in expr.tensor_outputs)]
    return {tv.name: f"T{number}" for number, tv in enumerate(tensors)}


class _Writer:
    """Writes statements in order; a size or constant has its line directly before the first statement that needs it."""

    def __init__(self, fusion: ir.Fusion, letters: tuple[str, str]) -> None:
        self._fusion = fusion
        self._letters = letters
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._constants: dict[tuple[DataType, str], str] = {}
        self._sizes: dict[str, tuple[ir.TensorView, int]] = {}
        self._lines: list[str] = []
        self._read = {v for expr in fusion.exprs for v in expr.inputs} | set(fusion.outputs)
        self._next_scalar = 1 + max(
            (_number(v.name) for v in _scalars(fusion)), default=-1,
        )

    def write(self, function: str) -> str:
        for value in self._fusion.inputs:
            self._input(value)
        for expr in self._fusion.exprs:
            self._expr(expr)
        targets: dict[ir.TensorView, list[ir.TensorView]] = {}
        for output, target in self._fusion.aliases:
            targets.setdefault(output, []).append(target)
        for output in self._fusion.outputs:
            for target in targets.get(output, ()):
                self._line(f"fd.add_output({self._name(output)}, {self._name(target)})")
            if output not in self._fusion.hidden:
                self._line(f"fd.add_output({self._name(output)})")
        for output, ranks in self._fusion.stride_orders:
            self._line(f"fd.set_output_stride_order({self._name(output)}, {list(ranks)})")
        return "\n".join([f"def {function}(fd : FusionDefinition) -> None :", *self._lines, ""])

    def _line(self, text: str) -> None:
        self._lines.append(_INDENT + text)

    def _input(self, value: ir.Val) -> None:
        name = self._name(value)
        if isinstance(value, ir.Scalar):
            self._line(f"{name} = fd.define_scalar(None, dtype={value.dtype!r})")
            return
        shape = [_declarations(axis) for axis in value.domain.logical]
        contiguity = list(value.domain.contiguity or ())
        text = f"{name} = fd.define_tensor(shape={shape}, contiguity={contiguity}, dtype={value.dtype!r}"
        text += f", is_cpu={value.is_cpu}"
        if value.domain.allocation is not None:
            text += f", stride_order={list(ir.stride_order_of(value.domain.allocation))}"
        self._line(text + ")")
        self._remember_sizes(value)

    def _remember_sizes(self, tensor: ir.TensorView) -> None:
        for dim, extent in enumerate(tensor.extents):
            if isinstance(extent, ir.Scalar):
                self._sizes.setdefault(extent.name, (tensor, dim))

    def _expr(self, expr: ir.Expr) -> None:
        special = _SPECIAL.get(expr.op.name)
        arguments = self._arguments(expr) if special is None else special(self, expr)
        shown = expr.outputs if len(expr.outputs) == 1 else [v if v in self._read else None for v in expr.outputs]
        results = ", ".join("_" if v is None else self._name(v) for v in shown)
        self._line(f"{results} = fd.ops.{expr.op.name}({', '.join(arguments)})")
        for value in shown:
            if isinstance(value, ir.TensorView):
                self._remember_sizes(value)

    def _arguments(self, expr: ir.Expr) -> list[str]:
        """Return the arguments of a call in the order of the op's signature: operands first, attributes by name.

        An operand belongs to the parameter at its position among those without an attribute. An attribute ``options``
        names the parameters of the last operands.
        """
        op, attrs = expr.op.name, dict(expr.attrs)
        parameters = _parameters(op)
        options = attrs.pop("options", ()) if "options" not in parameters else ()
        named = [str(name) for name in options] if isinstance(options, tuple) else []
        free = [name for name in parameters if name not in attrs and name not in named]
        places = [*free[: len(expr.inputs) - len(named)], *named]
        operands = dict(zip(places, range(len(expr.inputs)), strict=True))
        texts: list[str] = []
        positional = True
        for name, (default, keyword_only) in parameters.items():
            text = None
            if name in operands:
                place = operands[name]
                if not _is_left_out(expr, name, expr.inputs[place]):
                    text = self.operand(expr, place)
            elif name in attrs and not _same(attrs[name], default):
                text = self._attribute(expr.op.name, name, attrs[name])
                positional = positional and expr.kind is ir.OpKind.RANDOM and name == "shape"
            if text is None or keyword_only:
                positional = False
            if text is not None:
                texts.append(text if positional else f"{name}={text}")
        return texts

    def _name(self, value: ir.Val) -> str:
        if value.name not in self._names:
            letters = self._letters[isinstance(value, ir.Scalar)]
            name = f"{letters}{_number(value.name)}"
            if name in self._taken or _number(value.name) < 0:
                name = f"{letters}{value.name}"
            self._taken.add(name)
            self._names[value.name] = name
        return self._names[value.name]

    def operand(self, expr: ir.Expr, place: int) -> str:
        """Return an operand of an expression: a name, or a number if that is equivalent."""
        value = expr.inputs[place]
        if isinstance(value, ir.TensorView):
            return self._name(value)
        if value.value is not None:
            return number_text(value.value) if _stands_as_number(expr, place, value) else self._constant(value)
        return self._symbol(value)

    def _symbol(self, value: ir.Scalar) -> str:
        if value.name not in self._names and value.name in self._sizes:
            tensor, dim = self._sizes[value.name]
            name = self._name(value)
            self._line(f"{name} = fd.ops.size({self._name(tensor)}, dim={dim})")
        return self._name(value)

    def _constant(self, value: ir.Scalar) -> str:
        """Return the name of a constant that has its own line."""
        number = value.value
        if number is None:
            raise UnsupportedError(f"{value.name} is not a constant.")
        key = (value.dtype, repr(number))
        if key not in self._constants:
            name = self._constants[key] = f"{self._letters[1]}{self._next_scalar}"
            self._next_scalar += 1
            self._line(f"{name} = fd.define_scalar({number_text(number)}, dtype={value.dtype!r})")
        return self._constants[key]

    def _attribute(self, op: str, name: str, value: ir.AttrValue) -> str:
        if (op, name) in _SCALAR_ATTRIBUTES and isinstance(value, int):
            return self._constant(ir.Scalar(name="", dtype=DataType.Int, value=value))
        return self.attr_text(value)

    def attr_text(self, value: ir.AttrValue) -> str:
        """Return an attribute value as a Python expression."""
        if isinstance(value, tuple):
            return "[" + ", ".join(self.attr_text(v) for v in value) + "]"
        if isinstance(value, ir.Scalar):
            return self._symbol(value) if value.value is None else number_text(value.value)
        return repr(value)


@cache
def _parameters(op: str) -> dict[str, tuple[object, bool]]:
    """Return default and whether keyword-only, for each parameter of an op."""
    return {
        name: (_NO_DEFAULT if p.default is p.empty else p.default, p.kind is p.KEYWORD_ONLY)
        for name, p in OPS[op].signature.parameters.items()
    }


def _number(name: str) -> int:
    digits = name.lstrip("Tibdfc")
    return int(digits) if digits.isdecimal() else -1


def _scalars(fusion: ir.Fusion) -> Iterator[ir.Scalar]:
    for value in fusion.inputs:
        if isinstance(value, ir.Scalar):
            yield value
        else:
            yield from (e for e in value.extents if isinstance(e, ir.Scalar))
    for expr in fusion.exprs:
        for result in expr.outputs:
            if isinstance(result, ir.Scalar):
                yield result
            else:
                yield from (e for e in result.extents if isinstance(e, ir.Scalar))


def _same(value: ir.AttrValue, default: object) -> bool:
    return type(value) is type(default) and value == default


def _is_left_out(expr: ir.Expr, name: str, value: ir.Val) -> bool:
    """Whether an operand is the constant for an omitted argument."""
    usual = _LEFT_OUT.get((expr.op.name, name))
    if usual is None or not isinstance(value, ir.Scalar) or value.value is None:
        return False
    return repr(value.value) in {repr(usual), repr(float(usual)), repr(complex(usual)), repr(bool(usual))}


def _stands_as_number(expr: ir.Expr, place: int, value: ir.Scalar) -> bool:
    """Whether the number, as an operand of this expression, is recorded as this constant again.

    A number becomes a Bool, Int, Double or ComplexDouble; within its kind, tensor operands and result decide the dtype.
    """
    if value.value is None or expr.kind in _DEFINED_SCALARS or expr.op.name == "complex":
        return False
    if expr.kind is ir.OpKind.RANDOM and place > 1:
        return False
    plain = of_python(value.value)
    if plain is value.dtype:
        return True
    if plain.kind is not value.dtype.kind:
        return False
    if expr.kind is not ir.OpKind.POINTWISE:
        return True
    return any(v.dtype is value.dtype for v in expr.tensor_inputs)


def number_text(number: ir.Number) -> str:
    """Return a Python literal that evaluates to exactly this number, infinities, NaN and negative zeros too."""
    if isinstance(number, complex):
        # Python's own literal loses the signs of zeros, because 0.0 is added to the imaginary part.
        plain = f"{number.real!r}{number.imag:+}j" if isfinite(number.imag) and isfinite(number.real) else ""
        if plain and repr(complex(plain)) == repr(number) and copysign(1.0, number.imag) > 0 < copysign(1, number.real):
            return plain
        return f"complex({number_text(number.real)}, {number_text(number.imag)})"
    if isinstance(number, float) and not isfinite(number):
        return f'float("{number}")'
    return repr(number)


def _declarations(axis: ir.IterDomain) -> int:
    extent = axis.visible_extent
    return extent if isinstance(extent, int) else -1


def _cat_arguments(writer: _Writer, expr: ir.Expr) -> list[str]:
    operands = ", ".join(writer.operand(expr, place) for place in range(len(expr.inputs)))
    return [f"[{operands}]", f"dim={expr.attr('dim')}", "manual_padding=True"]


def _iota_arguments(writer: _Writer, expr: ir.Expr) -> list[str]:
    shape = expr.attr("shape")
    texts = [writer.attr_text(shape[0] if isinstance(shape, tuple) else shape)]
    for place, name in enumerate(("start", "step")):
        if not _is_left_out(expr, name, expr.inputs[place]):
            texts.append(f"{name}={writer.operand(expr, place)}")
    return [*texts, f"dtype={expr.outputs[0].dtype!r}"]


def _slice_arguments(writer: _Writer, expr: ir.Expr) -> list[str]:
    texts = [writer.operand(expr, 0)]
    texts += [f"{name}={writer.attr_text(expr.attr(name))}" for name in ("start_indices", "end_indices")]
    texts.append(f"strides={[1] * expr.out.ndim}")
    return [*texts, "manual_normalization=True"] if expr.attr("manual_normalization") else texts


def _fold_arguments(writer: _Writer, expr: ir.Expr) -> list[str]:
    texts = [writer.operand(expr, 0), f"dims={writer.attr_text(expr.attr('dims'))}"]
    # By default, a sum of integers is an Int.
    dtype = expr.outputs[0].dtype
    narrow = dtype is DataType.Bool or (dtype.is_integral and dtype is not DataType.Int)
    return [*texts, f"dtype={dtype!r}"] if narrow else texts


_SPECIAL: dict[str, Callable[[_Writer, ir.Expr], list[str]]] = {
    "cat": _cat_arguments,
    "iota": _iota_arguments,
    "slice": _slice_arguments,
    "sum": _fold_arguments,
    "prod": _fold_arguments,
}
