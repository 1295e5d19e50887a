"""What is checked before torch captures a function: its kind, its arguments, and where they are."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.bridge.example_inputs import example_inputs
from fuser_lab.bridge.input_names import parameters_of
from fuser_lab.errors import ArgumentTypeError, InputError, UnsupportedError


def callable_of(torch: Any, function: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return what torch captures: the function itself, or the module of an exported program or of torch.jit.

    Raises
    ------
    ArgumentTypeError
        If it is a class, or cannot be called.
    InputError
        If it cannot be called with these arguments.
    UnsupportedError
        If torch does not convert a module of torch.jit.
    """
    if isinstance(function, torch.export.ExportedProgram):
        return function.module()
    if not callable(function):
        msg = (
            f"from_torch: function must be a function, a module or an exported program, given {short_text(function)}; "
            "for example fl.from_torch(torch.nn.functional.gelu, torch.randn(64, 512))."
        )
        raise ArgumentTypeError(msg)
    if isinstance(function, type):
        name = function.__name__
        made = f"{name}({', '.join(parameters_of(function, required=True))})"
        msg = (
            f"from_torch: function must not be a class; give an instance of {name}, as in "
            f"fl.from_torch({made}, *inputs)."
        )
        raise ArgumentTypeError(msg)
    if isinstance(function, torch.jit.ScriptModule):
        return _export(function, inputs, keywords)
    check_call(torch, function, inputs, keywords)
    return function


def check_call(
    torch: Any, function: Any, inputs: Sequence[Any], keywords: Mapping[str, Any], made_by: str = "from_torch",
) -> None:
    """Raise InputError if a function or module cannot be called with these arguments."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        inspect.signature(called).bind(*inputs, **keywords)
    except TypeError as error:
        name = getattr(called, "__qualname__", type(called).__name__)
        msg = (
            f"{made_by}: {name} cannot be called with these arguments: {error}; "
            f"for example fl.{made_by}(model, {example_inputs(function)})."
        )
        raise InputError(msg) from None
    except ValueError:  # built-in functions have no signature
        return


def _export(function: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the graph of a module of torch.jit as a module that torch captures."""
    try:
        converter = importlib.import_module("torch._export.converter").TS2EPConverter
        return converter(function, tuple(inputs), dict(keywords)).convert().module()
    except Exception as error:  # noqa: BLE001 - the converter fails in many ways
        first = str(error).partition("\n")[0]
        msg = (
            "from_torch: torch does not convert a module that torch.jit has compiled "
            f"({type(error).__name__}: {first}); give its Python module."
        )
        raise UnsupportedError(msg) from None


def check_gradients(torch: Any, called: Any, tensors: Sequence[Any], *, backward: bool) -> None:
    """Raise InputError if a gradient is required but not captured, or captured but not required."""
    wanting = [place for place, x in enumerate(tensors) if x.requires_grad]
    if wanting and not backward:
        msg = (
            f"from_torch: input {wanting[0]} requires a gradient, and backward is False; pass backward=True, as in "
            "fl.from_torch(model, *inputs, backward=True), to capture the backward graph as well, or detach the input."
        )
        raise InputError(msg)
    parameters = called.parameters() if isinstance(called, torch.nn.Module) else ()
    bound = getattr(called, "__self__", None)
    if isinstance(bound, torch.nn.Module):
        parameters = bound.parameters()
    if backward and not wanting and not any(p.requires_grad for p in parameters) and not _closes_over(torch, called):
        msg = (
            "from_torch: backward is True, but neither an input nor a parameter requires a gradient; "
            "fl.from_torch(model, *inputs) captures without a backward graph."
        )
        raise InputError(msg)


def _closes_over(torch: Any, called: Any) -> bool:
    """Whether a function has modules or tensors in its closure, which may require gradients."""
    cells = [cell.cell_contents for cell in getattr(called, "__closure__", None) or ()]
    names = getattr(getattr(called, "__code__", None), "co_names", ())
    held = [*cells, *(getattr(called, "__globals__", {}).get(name) for name in names)]
    return any(isinstance(value, torch.nn.Module | torch.Tensor) for value in held)


def check_parameters(torch: Any, called: Any) -> None:
    """Raise InputError if a module has parameters without a shape."""
    is_lazy = torch.nn.parameter.is_lazy
    for module in called.modules() if isinstance(called, torch.nn.Module) else ():
        if any(map(is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False)))):
            msg = (
                f"from_torch: the parameters of {type(module).__name__} have no shape before the first call; call "
                "model(*inputs) once, and then fl.from_torch(model, *inputs)."
            )
            raise InputError(msg)


def check_layouts(torch: Any, tensors: Sequence[Any]) -> None:
    """Raise UnsupportedError for tensors that torch does not capture."""
    for place, x in enumerate(tensors):
        nested = getattr(x, "is_nested", False)
        is_wrapper = type(x).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl  # noqa: SLF001
        if is_wrapper and type(x) not in {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}:
            msg = (
                f"from_torch: input {place} is a {type(x).__name__}, a subclass of torch.Tensor that torch does not "
                "trace; fl.from_torch(model, *(x.as_subclass(torch.Tensor) for x in inputs)) captures its values."
            )
            raise UnsupportedError(msg)
        if x.is_quantized or x.layout not in {torch.strided, torch.jagged}:
            kind = "a quantized tensor" if x.is_quantized else f"a tensor of layout {x.layout}"
            dense = "x.dequantize()" if x.is_quantized else "x.to_dense()"
        elif nested and x.layout is torch.strided:
            kind, dense = "a nested tensor of layout torch.strided", "x.to_padded_tensor(0.0)"
        else:
            continue
        msg = (
            f"from_torch: input {place} is {kind}, which torch does not capture; in torch.compile it runs in eager. "
            f"fl.from_torch(model, *({dense} for x in inputs)) captures dense tensors."
        )
        raise UnsupportedError(msg)


def check_devices(torch: Any, called: Any, tensors: Sequence[Any]) -> None:
    """Raise InputError if a module and its inputs are on different devices."""
    if not isinstance(called, torch.nn.Module):
        return
    of_module = {str(p.device) for p in called.parameters()}
    of_inputs = {str(x.device) for x in tensors if x.ndim}
    if len(of_module) == 1 and of_inputs and not of_inputs <= of_module:
        msg = (
            f"from_torch: the module is on {of_module.pop()} and its inputs are on {', '.join(sorted(of_inputs))}; "
            "fl.from_torch(model.to(inputs[0].device), *inputs) moves the module."
        )
        raise InputError(msg)
