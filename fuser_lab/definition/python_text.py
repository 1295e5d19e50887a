"""A fusion as the Python that defines it, in the form nvFuser prints (``FusionDefinition.__repr__``)."""

from fuser_lab.dtypes import DataType
from fuser_lab.errors import UnsupportedError
from fuser_lab.ir import AttrValue, Expr, Fusion, IterDomain, Number, Scalar, TensorView, Val, scalars_in

_INDENT = "    "


def definition_text(fusion: Fusion, function: str = "nvfuser_fusion") -> str:
    """Return a Python function that records the fusion again; floats keep full precision.

    Executing the text and calling the function inside ``with FusionDefinition() as fd:`` gives an equal fusion.
    """
    return _Writer(fusion).write(function)


def recorded_names(fusion: Fusion) -> dict[str, str]:
    """Return the name that each tensor gets when the printed definition is recorded."""
    tensors = [*fusion.tensor_inputs, *(tv for expr in fusion.exprs for tv in expr.tensor_outputs)]
    return {tv.name: f"T{number}" for number, tv in enumerate(tensors)}


class _Writer:
    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._names: dict[str, str] = {}
        self._sizes: dict[str, tuple[TensorView, int]] = {}
        self._lines: list[str] = []
        self._defined = 0

    def write(self, function: str) -> str:
        for value in self._fusion.inputs:
            self._input(value)
        for expr in self._fusion.exprs:
            self._expr(expr)
        for output in self._fusion.outputs:
            self._output(output)
        return "\n".join([f"def {function}(fd : FusionDefinition) -> None :", *self._lines, ""])

    def _line(self, text: str) -> None:
        self._lines.append(_INDENT + text)

    def _input(self, value: Val) -> None:
        name = self._name(value)
        if isinstance(value, Scalar):
            self._line(f"{name} = fd.define_scalar(None, dtype={value.dtype!r})")
            return
        shape = [_declared(axis) for axis in value.domain.logical]
        contiguity = list(value.domain.contiguity or ())
        text = f"{name} = fd.define_tensor(shape={shape}, contiguity={contiguity}, dtype={value.dtype!r}"
        text += f", is_cpu={value.is_cpu}"
        if value.domain.allocation is not None:
            text += f", stride_order={_ranks(value.domain.allocation)}"
        self._line(text + ")")
        self._remember_sizes(value)

    def _remember_sizes(self, tensor: TensorView) -> None:
        for dim, extent in enumerate(tensor.extents):
            if isinstance(extent, Scalar):
                self._sizes.setdefault(extent.name, (tensor, dim))

    def _expr(self, expr: Expr) -> None:
        operands = [self._operand(v) for v in expr.inputs]
        for scalar in scalars_in(value for _, value in expr.attrs):
            self._operand(scalar)
        args = _SPECIAL[expr.op.name](self, expr, operands) if expr.op.name in _SPECIAL else None
        if args is None:
            args = [*operands, *(f"{key}={self.attr_text(value)}" for key, value in _shown_attrs(expr))]
        results = ", ".join(self._name(v) for v in expr.outputs)
        self._line(f"{results} = fd.ops.{expr.op.name}({', '.join(args)})")
        for value in expr.outputs:
            if isinstance(value, TensorView):
                self._remember_sizes(value)

    def _output(self, output: TensorView) -> None:
        for target in (t for o, t in self._fusion.aliases if o == output):
            self._line(f"fd.add_output({self._name(output)}, {self._name(target)})")
        if output not in self._fusion.hidden:
            self._line(f"fd.add_output({self._name(output)})")

    def _name(self, value: Val) -> str:
        if value.name not in self._names:
            number = value.name.lstrip("Tibdc")
            self._names[value.name] = f"tv{number}" if isinstance(value, TensorView) else f"c{number}"
        return self._names[value.name]

    def _operand(self, value: Val) -> str:
        if isinstance(value, TensorView):
            return self._name(value)
        if value.value is not None:
            return self._constant(value)
        if value.name not in self._names and value.name in self._sizes:
            tensor, dim = self._sizes[value.name]
            name = self._name(value)
            self._line(f"{name} = fd.ops.size({self._name(tensor)}, dim={dim})")
        return self._name(value)

    def _constant(self, value: Scalar) -> str:
        number = value.value
        if number is None:
            msg = f"{value.name} is no constant."
            raise UnsupportedError(msg)
        return number_text(number)

    def scalar_name(self, value: Scalar) -> str:
        """Return a scalar where no Python number may stand: constants get a line and a name."""
        if value.value is None:
            return self._operand(value)
        name = f"s{self._defined}"
        self._defined += 1
        self._line(f"{name} = fd.define_scalar({number_text(value.value)}, dtype={value.dtype!r})")
        return name

    def scalar_text(self, value: Val, text: str) -> str:
        """Return an operand where only a scalar of the definition may stand: a constant gets a line of its own."""
        if not isinstance(value, Scalar) or value.value is None:
            return text
        name = f"seed{len(self._lines)}"
        self._line(f"{name} = fd.define_scalar({text}, dtype={value.dtype!r})")
        return name

    def attr_text(self, value: AttrValue) -> str:
        """Return an attribute value as a Python expression."""
        if isinstance(value, tuple):
            return "[" + ", ".join(self.attr_text(v) for v in value) + "]"
        if isinstance(value, Scalar):
            return self._operand(value)
        return repr(value)


def number_text(number: Number) -> str:
    """Return a Python literal that evaluates to exactly this number, infinities and NaN too."""
    if isinstance(number, float) and (number != number or number in {float("inf"), float("-inf")}):  # noqa: PLR0124
        return f'float("{number}")'
    return repr(number)


def _declared(axis: IterDomain) -> int:
    extent = axis.visible_extent
    return extent if isinstance(extent, int) else -1


def _ranks(allocation: tuple[int, ...]) -> list[int]:
    ranks = [0] * len(allocation)
    for place, axis in enumerate(allocation):
        ranks[axis] = len(allocation) - 1 - place
    return ranks


def _shown_attrs(expr: Expr) -> list[tuple[str, AttrValue]]:
    defaults: dict[str, AttrValue] = {"squeeze_expanded": False, "manual_normalization": False}
    return [(key, value) for key, value in expr.attrs if key not in defaults or value != defaults[key]]


def _cat_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    del writer
    return [f"[{', '.join(operands)}]", f"dim={expr.attr('dim')}", "manual_padding=True"]


def _pad_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    return [operands[0], f"{writer.attr_text(expr.attr('pad_widths'))}", operands[1]]


def _full_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    dtype = expr.outputs[0].dtype
    return [f"shape={writer.attr_text(expr.attr('shape'))}", f"fill_value={operands[0]}", f"dtype={dtype!r}"]


def _iota_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    shape = expr.attr("shape")
    length = writer.attr_text(shape[0] if isinstance(shape, tuple) else shape)
    return [length, *operands, f"dtype={expr.outputs[0].dtype!r}"]


def _random_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    first, second, *seeds = operands
    shape, dtype = writer.attr_text(expr.attr("shape")), expr.outputs[0].dtype
    names = zip(("rng_seed", "rng_offset"), expr.inputs[2:], seeds, strict=False)
    given = [f"{name}={writer.scalar_text(value, text)}" for name, value, text in names]
    return [first, second, shape, *given, f"dtype={dtype!r}"]


def _fold_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    # Left to itself, a sum of integers is an Int.
    dtype = expr.outputs[0].dtype
    narrow = dtype is DataType.Bool or (dtype.is_integral and dtype is not DataType.Int)
    return [*operands, f"dims={writer.attr_text(expr.attr('dims'))}", *([f"dtype={dtype!r}"] if narrow else [])]


def _named_scalars(writer: _Writer, expr: Expr) -> list[str]:
    """Return the scalar operands of an expression, none of them as a Python number."""
    return [writer.scalar_name(v) for v in expr.inputs if isinstance(v, Scalar)]


def _indexing_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    tensors = operands[: len(expr.tensor_inputs)]
    return [*tensors, *_named_scalars(writer, expr), f"dim={expr.attr('dim')}"]


def _scan_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    init = [f"init={name}" for name in _named_scalars(writer, expr)]
    return [operands[0], f"dim={expr.attr('dim')}", *init]


def _sort_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    defaults = {"dim": -1, "largest": True, "sorted": False} if expr.op.name == "topk" else {}
    defaults |= {"descending": False, "stable": False}
    count = [value for key, value in expr.attrs if key == "k"]
    scalars = [k if isinstance(k, Scalar) else Scalar(name="", dtype=DataType.Int, value=k) for k in count
               if isinstance(k, int | Scalar)]
    given = [(key, value) for key, value in expr.attrs if key != "k" and defaults.get(key) != value]
    return [*operands, *map(writer.scalar_name, scalars), *(f"{key}={value}" for key, value in given)]


def _embedding_args(writer: _Writer, expr: Expr, operands: list[str]) -> list[str]:
    options = expr.attr("options")
    names = _named_scalars(writer, expr)
    pairs = zip(options if isinstance(options, tuple) else (), names, strict=True)
    return [*operands[:2], *(f"{option}={name}" for option, name in pairs)]


_SPECIAL = {
    **dict.fromkeys(("select", "scatter"), _indexing_args),
    **dict.fromkeys(("cumsum", "cumprod", "cummin", "cummax"), _scan_args),
    **dict.fromkeys(("argsort", "topk"), _sort_args),
    "embedding_fwd": _embedding_args,
    "sum": _fold_args,
    "prod": _fold_args,
    "cat": _cat_args,
    "pad": _pad_args,
    "full": _full_args,
    "iota": _iota_args,
    "uniform": _random_args,
    "normal": _random_args,
}
