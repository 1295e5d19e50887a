"""Writing a repro script: the definition, inputs like the given ones, and the call that runs it."""

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import Literal

from fuser_lab.definition.binding import Described
from fuser_lab.definition.python_text import definition_text, number_text
from fuser_lab.definition.repro.arguments import TORCH_DTYPES
from fuser_lab.definition.spec import Fill, TensorSpec, spec
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion

# Of several names for a dtype, the first is the one that torch prints.
_TORCH_NAMES = {member: name for name, member in reversed(list(TORCH_DTYPES.items()))} | {"Index": "int64"}
_FUNCTION = "nvfuser_fusion"


def script_text(
    fusion: Fusion,
    inputs: Sequence[Described] | None,
    versions: Mapping[str, str] | None = None,
    *,
    devices: Sequence[str] = (),
    library: Literal["torch", "numpy"] = "torch",
    frontend: str = "nvfuser_direct",
    function: tuple[str, str] | None = None,
) -> str:
    """Return a script that defines a fusion and runs it on inputs of the same shapes, dtypes, strides and devices.

    Parameters
    ----------
    fusion
        The fusion to define.
    inputs
        Descriptions of tensors, and numbers; None for a script that only defines.
    versions
        Versions by package for the comments at the top, such as ``{"torch": "2.9"}``.
    devices
        Names of GPUs for the comments at the top.
    library
        The library that creates the inputs. NumPy needs no torch; it replaces torch if strides are negative.
    frontend
        The module from which FusionDefinition and DataType are imported if torch creates the inputs.
    function
        Name and text of the function that defines the fusion; written in this package's form by default.
    """
    name, text = function or (_FUNCTION, definition_text(fusion, _FUNCTION))
    tensors = [value for value in inputs or () if isinstance(value, TensorSpec)]
    is_numpy = library == "numpy" or any(stride < 0 for tensor in tensors for stride in tensor.strides)
    write = _numpy_tensor if is_numpy else _torch_tensor
    lines = _comments(versions or {}, devices)
    if is_numpy and function is None:
        lines.append("from fuser_lab import DataType, FusionDefinition, spec")
    elif is_numpy:
        lines += ["from fuser_lab import spec", f"from fuser_lab.{frontend} import FusionDefinition, DataType"]
    if is_numpy:
        if any(tensor.fill is not None for tensor in tensors):
            lines.append("from fuser_lab.definition.spec import Fill")
    else:
        lines += ["import torch", f"from {frontend} import FusionDefinition, DataType"]
    lines += ["", "", *text.strip().split("\n"), "", ""]
    lines += ["with FusionDefinition() as fd:", f"    {name}(fd)"]
    if inputs is not None:
        written = [write(value) if isinstance(value, TensorSpec) else _scalar(value) for value in inputs]
        lines += ["", "inputs = [", *(f"    {text}," for text in written), "]", "fd.execute(inputs)"]
    return "\n".join(lines) + "\n"


def _comments(versions: Mapping[str, str], devices: Sequence[str]) -> list[str]:
    lines = ["# CUDA devices:", *(f"#  {number}: {name}" for number, name in enumerate(devices))] if devices else []
    return [*lines, *(f"# {name} version: {version}" for name, version in versions.items())]


def _scalar(value: bool | complex) -> str:
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    return number_text(value)


def _is_row_major(tensor: TensorSpec) -> bool:
    return tensor.strides == spec(tensor.shape, tensor.dtype).strides


def _torch_tensor(tensor: TensorSpec) -> str:
    """Return torch's expression: for the tensor if it is row-major, otherwise for its memory viewed with strides."""
    fill = tensor.fill
    is_ordered = fill is not None and (fill.kind == "range" or len(fill.values) > 1)
    if _is_row_major(tensor) and not is_ordered:
        return _maker_text(tensor, tensor.shape, is_whole=True)
    stored = 0 if 0 in tensor.shape else 1 + sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True)
    )  # fmt: skip
    return f"{_maker_text(tensor, (stored,), is_whole=False)}.as_strided({tensor.shape}, {tensor.strides})"


def _maker_text(tensor: TensorSpec, shape: tuple[int, ...], *, is_whole: bool) -> str:
    fill, count = tensor.fill, prod(shape)
    name = _TORCH_NAMES[tensor.dtype.name]
    base = _base(tensor.dtype, fill)
    ending = f"dtype=torch.{base}, device='{tensor.device}')"
    if fill is None:
        text = _usual(tensor.dtype, shape, ending, is_whole=is_whole)
    elif fill.kind == "normal":
        text = f"torch.randn({shape}, {ending}"
    elif fill.kind == "range":
        first, step = (number_text(value) for value in fill.values)
        text = f"torch.arange({first}, {number_text(fill.values[0] + count * fill.values[1])}, {step}, {ending}"
    elif len(fill.values) == 1:
        text = f"torch.full({shape}, {_scalar(fill.values[0])}, {ending}"
    elif fill.kind == "values":
        text = f"torch.tensor([{', '.join(_scalar(value) for value in fill.values[:count])}], {ending}"
        if count > len(fill.values):
            # More than the tensor needs; `as_strided` selects its part.
            text += f".repeat({ceil(count / len(fill.values))})"
    elif fill.kind == "integers" and not _is_integer(tensor.dtype):
        text = f"torch.randint({fill.low}, {fill.high}, {shape}, {ending}"
    else:
        low, high = number_text(fill.low), number_text(fill.high)
        text = f"torch.testing.make_tensor({shape}, {ending[:-1]}, low={low}, high={high})"
    return text if base == name else f"{text}.to(torch.{name})"


def _is_integer(dtype: DataType) -> bool:
    return dtype.is_integral or dtype is DataType.Bool


def _base(dtype: DataType, fill: Fill | None) -> str:
    """Return the dtype in which torch can create such values; the tensor is converted from it."""
    if dtype.name.startswith(("Float8", "Float4")):
        return "float32"
    match fill:
        case Fill(kind="normal" | "uniform") if _is_integer(dtype):
            return "float32"
        case Fill(kind="integers") if dtype.is_complex:
            return "float64"
        case Fill(kind="range") if dtype.is_complex or dtype in {DataType.Bool, DataType.UInt64}:
            return "int64" if all(isinstance(value, int) for value in fill.values) else "float64"
    return _TORCH_NAMES[dtype.name]


def _usual(dtype: DataType, shape: tuple[int, ...], ending: str, *, is_whole: bool) -> str:
    """Return nvFuser's own form of an input: make_tensor, or random memory viewed with strides."""
    if is_whole:
        return f"torch.testing.make_tensor({shape}, {ending}"
    if _is_integer(dtype):
        return f"torch.randint(0, {2 if dtype is DataType.Bool else 10}, {shape}, {ending}"
    return f"torch.randn({shape[0]}, {ending}"


def _numpy_tensor(tensor: TensorSpec) -> str:
    strides = "" if _is_row_major(tensor) else f", strides={tensor.strides}"
    fill = "" if tensor.fill is None else f", fill={_fill(tensor.fill)}"
    return f"spec({tensor.shape}, {tensor.dtype!r}{strides}{fill}).materialize()"


def _fill(fill: Fill) -> str:
    if fill.kind in {"uniform", "integers"}:
        return f"Fill(kind={fill.kind!r}, low={number_text(fill.low)}, high={number_text(fill.high)})"
    values = "".join(f"{_scalar(value)}, " for value in fill.values)
    return f"Fill(kind={fill.kind!r}, values=({values.rstrip()}))" if values else f"Fill(kind={fill.kind!r})"
