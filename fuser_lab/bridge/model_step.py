"""One step of a torch model: a call, and all gradients that its results require."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.errors import InputError
from fuser_lab.targets import has_own_memory


@dataclass(frozen=True, kw_only=True)
class Source:
    """The captured function, as torch traced it, and its arguments."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]


def step_arguments(
    source: Source | None, inputs: Sequence[Any] | None, caller: str,
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a step: those that are passed, by default those of the capture; and the keywords.

    Raises
    ------
    InputError
        If the model was captured from a graph alone, or some argument is on the device ``"meta"``.
    """
    if source is None:
        msg = f"{caller}: the model was captured from a graph alone; give the function: fl.{caller}(model, *inputs)."
        raise InputError(msg)
    arguments = source.inputs if inputs is None else tuple(inputs)
    if any(getattr(getattr(x, "device", None), "type", "") == "meta" for x in leaves((arguments, source.keywords))):
        msg = (
            f"{caller}: tensors on the device 'meta' cannot run; capture the model on a device with memory: "
            f"fl.{caller}(model.to_empty(device='cpu'), *(torch.zeros_like(x, device='cpu') for x in inputs))."
        )
        raise InputError(msg)
    return arguments, source.keywords


def leaves(value: Any) -> list[Any]:
    """Return the values in nested lists, tuples and dicts, as torch flattens arguments."""
    torch = torch_for("fuser_lab.bridge")
    flat: list[Any] = torch.utils._pytree.tree_leaves(value)  # noqa: SLF001 - what torch flattens arguments with
    return flat


def step_of(
    function: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any], *, backward: bool,
) -> Callable[[], object]:
    """Return a function that calls a model once, and computes all required gradients if ``backward`` is set."""
    torch = torch_for("fuser_lab.bridge")
    if not backward:
        def forward() -> object:
            with torch.no_grad():
                return function(*inputs, **keywords)

        return forward
    wanting: list[Any] = []

    def step() -> object:
        outputs = [
            x for x in leaves(function(*inputs, **keywords)) if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        if not wanting:
            wanting.extend(accumulators(outputs))
        return torch.autograd.grad(outputs, wanting, [torch.ones_like(x) for x in outputs], allow_unused=True)

    return step


@contextmanager
def state_kept(torch: Any, called: Any, tensors: Sequence[Any]) -> Iterator[None]:
    """Restore the generators' state and a module's buffers at the end."""
    module = called if isinstance(called, torch.nn.Module) else getattr(called, "__self__", None)
    buffers = list(module.buffers()) if isinstance(module, torch.nn.Module) else []
    saved = [buffer.detach().clone() for buffer in buffers]
    devices = sorted({x.device.index or 0 for x in tensors if has_own_memory(x.device.type)})
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in zip(buffers, saved, strict=True):
                    buffer.copy_(before)


def copies(torch: Any, value: Any) -> Any:
    """Return arguments with copied tensors, with the same strides and shared memory."""
    storages: dict[int, Any] = {}

    def copy_of(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.device.type == "meta" or x.layout is not torch.strided:
            return x
        if type(x) is not torch.Tensor:
            return x
        storage = x.untyped_storage()
        copy = storages.setdefault(storage.data_ptr(), None) or storage.clone()
        storages[storage.data_ptr()] = copy
        made = torch.empty(0, dtype=x.dtype, device=x.device)
        made.set_(copy, x.storage_offset(), x.shape, x.stride())
        return made.requires_grad_(x.requires_grad)

    return torch.utils._pytree.tree_map(copy_of, value)  # noqa: SLF001 - what torch flattens arguments with


def accumulators(outputs: Sequence[Any]) -> list[Any]:
    """Return the leaves that accumulate gradients of some results."""
    waiting, seen, leaves = [x.grad_fn for x in outputs], set(), []
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            leaves.append(function.variable)
        waiting += [following for following, _ in function.next_functions]
    return leaves
