"""Arguments of a script's calls of torch: sizes, dtypes, devices and numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, UnsupportedError
from fuser_lab.ops.arguments import wholes
from fuser_lab.targets import CPU, CUDA, find, holders

# Torch's spelling of each dtype; some names are members of DataType only if it has them.
TORCH_DTYPES: Mapping[str, str] = {
    "float64": "Double", "double": "Double", "float32": "Float", "float": "Float", "float16": "Half", "half": "Half",
    "bfloat16": "BFloat16", "int64": "Int", "long": "Int", "int32": "Int32", "int": "Int32", "uint64": "UInt64",
    "bool": "Bool", "complex64": "ComplexFloat", "cfloat": "ComplexFloat", "complex128": "ComplexDouble",
    "cdouble": "ComplexDouble", "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
    "float8_e8m0fnu": "Float8_e8m0fnu", "float4_e2m1fn_x2": "Float4_e2m1fn_x2",
    "int16": "Short", "short": "Short", "int8": "Char", "uint8": "Byte", "uint16": "", "uint32": "",
}  # fmt: skip
# Memory formats with which torch's `contiguous` and `to` choose an order of axes.
FORMATS = {"contiguous_format", "channels_last", "channels_last_3d", "preserve_format"}
_IGNORED = {
    "requires_grad", "pin_memory", "generator", "layout", "non_blocking", "copy", "exclude_zero",
}  # fmt: skip


def dtype_named(name: str) -> DataType:
    """Return torch's dtype as a DataType, or raise UnsupportedError."""
    member = TORCH_DTYPES[name]
    if member in DataType.__members__:
        return DataType[member]
    raise UnsupportedError(f"torch.{name} is not a supported tensor type.")


class Arguments:
    """Positional and keyword arguments of one call, consumed one by one."""

    def __init__(self, function: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self.what = function
        self.args = list(args)
        self.keywords = {key: value for key, value in keywords.items() if key not in _IGNORED}

    def take(self, *names: str, default: Any = None) -> Any:
        """Return a keyword argument by any of its names."""
        for name in names:
            if name in self.keywords:
                return self.keywords.pop(name)
        return default

    def next(self, *names: str, default: Any = None) -> Any:
        """Return the next positional argument, or a keyword argument."""
        return self.args.pop(0) if self.args else self.take(*names, default=default)

    def sizes(self, *names: str) -> list[int]:
        """Return a list of sizes given as one list or as all positional arguments."""
        sizes = self.take(*names)
        if sizes is None:
            sizes = list(self.args)
            self.args = []
            if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
                sizes = sizes[0]
        return wholes(sizes, self.what, names[0])

    def dtype(self, default: DataType) -> DataType:
        """Return the dtype argument."""
        argument = self.take("dtype")
        return default if argument is None else as_dtype(argument, self.what)

    def device(self, default: str = CPU.name) -> str:
        """Return the device argument."""
        argument = self.take("device")
        return default if argument is None else as_device(argument, self.what)

    def done(self) -> None:
        """Raise DefinitionError if an argument is left."""
        left = [*self.keywords, *(short_text(value) for value in self.args)]
        if left:
            msg = f"{self.what}: the argument {left[0]} is not read; only a size, dtype, device and values are."
            raise DefinitionError(msg)


def as_dtype(argument: object, function: str) -> DataType:
    """Return a dtype argument, or raise DefinitionError."""
    if isinstance(argument, DataType) and argument is not DataType.Null:
        return argument
    raise DefinitionError(f"{function}: dtype must be a dtype of torch, given {short_text(argument)}.")


def as_device(argument: object, function: str) -> str:
    """Return a device argument as torch prints it, or raise DefinitionError."""
    if is_whole(argument):
        return f"{CUDA.name}:{argument}"
    target = find(argument) if isinstance(argument, str) else None
    if target is not None and target.name in holders():
        return f"{target.name}:{target.number(str(argument)) or 0}" if target.is_numbered else target.name
    raise DefinitionError(f"{function}: device must be 'cpu', 'cuda' or 'cuda:0', given {short_text(argument)}.")


def plain_number(value: Any, function: str, argument: str) -> Any:
    """Return a number, or raise DefinitionError."""
    if isinstance(value, bool | int | float | complex):
        return value
    raise DefinitionError(f"{function}: {argument} must be a number, given {short_text(value)}.")


def real_number(value: Any, function: str, argument: str) -> int | float:
    """Return a real number, or raise DefinitionError."""
    number = plain_number(value, function, argument)
    if isinstance(number, complex):
        raise DefinitionError(f"{function}: {argument} must be a real number, given {short_text(number)}.")
    return int(number) if isinstance(number, bool) else number
