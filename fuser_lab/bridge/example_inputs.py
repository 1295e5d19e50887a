"""Inputs that fit a module: what an error suggests to a user who passed none, or others."""

import inspect
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleInput:
    """A tensor of floats, or of integers from 0 and below ``most``."""

    sizes: tuple[int, ...] = (64, 512)
    most: int = 0

    @property
    def code(self) -> str:
        """The tensor as a call of torch."""
        sizes = ", ".join(map(str, self.sizes))
        return f"torch.randint(0, {self.most}, ({sizes}))" if self.most else f"torch.randn({sizes})"

    @property
    def text(self) -> str:
        """The tensor as ``explain FILE:NAME --inputs`` reads it."""
        sizes = ",".join(map(str, self.sizes))
        return f"i64[{sizes}]<{self.most}" if self.most else f"f32[{sizes}]"


def example_input(function: Any) -> ExampleInput:
    """Return the input that the first layer of a module declares, or one of [64, 512]."""
    modules = function.modules() if hasattr(function, "modules") else ()
    return next((example for module in modules if (example := _of_layer(module)) is not None), ExampleInput())


def example_inputs(function: Any) -> str:
    """Return arguments as code, such as ``torch.randn(64, 32)``; for several parameters, their names."""
    names = required_names(function)
    return ", ".join(names) if len(names) > 1 else example_input(function).code


def required_names(function: Any) -> tuple[str, ...]:
    """Return the names of the arguments that a call of a function, module or class needs; none without a signature."""
    try:
        called = function if isinstance(function, type) else getattr(function, "forward", function)
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty)


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
