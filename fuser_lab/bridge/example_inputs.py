"""Inputs that fit a module: what an error suggests to a user who passed none, or others."""

from dataclasses import dataclass, replace
from typing import Any

from fuser_lab.bridge.input_names import parameters_of

SHORT_DTYPES = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16",
    "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "bool", "complex64": "c64",
}
# Dtypes of a parameter after which the inputs of a module are made, as torch names them.
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleInput:
    """A tensor of floats of a dtype, or of integers from 0 and below ``most``."""

    sizes: tuple[int, ...] = (64, 512)
    most: int = 0
    dtype: str = "float32"

    @property
    def code(self) -> str:
        """The tensor as a call of torch."""
        sizes = ", ".join(map(str, self.sizes))
        if self.most:
            return f"torch.randint(0, {self.most}, ({sizes}))"
        return f"torch.randn({sizes})" if self.dtype == "float32" else f"torch.randn({sizes}, dtype=torch.{self.dtype})"

    @property
    def text(self) -> str:
        """The tensor as ``explain FILE:NAME --inputs`` reads it."""
        sizes = ",".join(map(str, self.sizes))
        return f"i64[{sizes}]<{self.most}" if self.most else f"{SHORT_DTYPES[self.dtype]}[{sizes}]"


def example_input(function: Any) -> ExampleInput:
    """Return the input that the first layer of a module declares, or one of [64, 512]."""
    modules = function.modules() if hasattr(function, "modules") else ()
    first = next((example for module in modules if (example := _of_layer(module)) is not None), ExampleInput())
    return replace(first, dtype=_dtype(function))


def _dtype(function: Any) -> str:
    """Return the dtype of a module's first parameter of floats, or ``float32``."""
    parameters = function.parameters() if hasattr(function, "parameters") else ()
    names = (str(parameter.dtype).rpartition(".")[2] for parameter in parameters)
    return next((name for name in names if name in _FLOATS), "float32")


def example_inputs(function: Any) -> str:
    """Return arguments as code, such as ``torch.randn(64, 32)``; for several parameters, their names."""
    names = parameters_of(function, required=True)
    return ", ".join(names) if len(names) > 1 else example_input(function).code


def _of_layer(module: Any) -> ExampleInput | None:
    """Return an input of a layer by the attributes that declare its size; None if there are none."""
    if hasattr(module, "num_embeddings"):
        return ExampleInput(sizes=(4, 64), most=module.num_embeddings)
    if hasattr(module, "kernel_size") and hasattr(module, "in_channels"):
        return ExampleInput(sizes=(4, module.in_channels, *[32] * len(module.kernel_size)))
    if hasattr(module, "num_features") and hasattr(module, "running_mean"):
        return ExampleInput(sizes=(4, module.num_features, 32, 32))
    if hasattr(module, "input_size") and hasattr(module, "hidden_size"):
        return ExampleInput(sizes=(4, 64, module.input_size))
    if hasattr(module, "embed_dim") and hasattr(module, "num_heads"):
        return ExampleInput(sizes=(4, 64, module.embed_dim))
    if hasattr(module, "in_features"):
        return ExampleInput(sizes=(64, module.in_features))
    shape = getattr(module, "normalized_shape", None)
    return ExampleInput(sizes=(64, *shape)) if isinstance(shape, tuple) else None
