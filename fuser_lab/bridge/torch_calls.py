"""The Python bindings of torch's ops, which are called in about half of the time of the same ops by their schemas.

A captured graph calls overloads, such as ``aten.convolution.default``, whose arguments are compared with a schema and
converted twice. Bindings, such as ``torch.convolution``, convert arguments once, but choose the overload themselves.
"""

import functools
from collections.abc import Callable
from typing import Any

from fuser_lab.bridge.requirement import torch_for


@functools.cache
def quick_call(target: Any, count: int, keywords: frozenset[str] = frozenset()) -> Callable[..., Any]:
    """Return a function that calls an op with ``count`` arguments by position and ``keywords``: its binding.

    It is the op itself if it has no binding, or if another overload accepts as many arguments.
    """
    torch = torch_for("fuser_lab.bridge")
    if not isinstance(target, torch._ops.OpOverload) or "self" in keywords:  # noqa: SLF001 - bindings say `input`
        return target  # type: ignore[no-any-return]
    if target.namespace != "aten" or target._overloadname != "default":  # noqa: SLF001
        return target  # type: ignore[no-any-return]
    packet = target.overloadpacket
    overloads = (getattr(packet, name) for name in packet.overloads())
    taking = [each for each in overloads if _takes(each._schema, count, keywords)]  # noqa: SLF001
    binding = getattr(torch._C._VariableFunctions, packet.__name__, None)  # noqa: SLF001
    return target if binding is None or taking != [target] else binding  # type: ignore[no-any-return]


def _takes(schema: Any, count: int, keywords: frozenset[str]) -> bool:
    """Whether a schema takes so many arguments by position and these keywords."""
    places = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    names = {argument.name for argument in schema.arguments}
    arguments = {*places[:count], *keywords}
    needed = {argument.name for argument in schema.arguments if not argument.has_default_value()}
    return count <= len(places) and needed <= arguments <= names
