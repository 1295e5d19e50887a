"""Inputs that fit a module, as text: what an error suggests to a user who passed none, or others."""

import inspect
from typing import Any

_DEFAULT = "torch.randn(64, 512)"


def example_inputs(function: Any) -> str:
    """Return arguments as text, such as ``torch.randn(64, 32)``; for several parameters, their names.

    The sizes are those that the first layer of a module declares.
    """
    names = required_names(function)
    if len(names) > 1:
        return ", ".join(names)
    modules = function.modules() if hasattr(function, "modules") else ()
    return next((text for module in modules if (text := _of_layer(module))), _DEFAULT)


def required_names(function: Any) -> tuple[str, ...]:
    """Return the names of the arguments that a call of a function, module or class needs; none without a signature."""
    try:
        called = function if isinstance(function, type) else getattr(function, "forward", function)
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty)


def _of_layer(module: Any) -> str:
    """Return an input of a layer by the attributes that declare its size, or an empty text."""
    if hasattr(module, "num_embeddings"):
        return f"torch.randint(0, {module.num_embeddings}, (4, 64))"
    if hasattr(module, "kernel_size") and hasattr(module, "in_channels"):
        spatial = ", ".join(["32"] * len(module.kernel_size))
        return f"torch.randn(4, {module.in_channels}, {spatial})"
    if hasattr(module, "num_features") and hasattr(module, "running_mean"):
        return f"torch.randn(4, {module.num_features}, 32, 32)"
    if hasattr(module, "input_size") and hasattr(module, "hidden_size"):
        return f"torch.randn(4, 64, {module.input_size})"
    if hasattr(module, "embed_dim") and hasattr(module, "num_heads"):
        return f"torch.randn(4, 64, {module.embed_dim})"
    if hasattr(module, "in_features"):
        return f"torch.randn(64, {module.in_features})"
    shape = getattr(module, "normalized_shape", None)
    return f"torch.randn(64, {', '.join(map(str, shape))})" if isinstance(shape, tuple) else ""
