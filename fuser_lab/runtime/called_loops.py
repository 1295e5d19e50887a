"""Loops of CPU kernels that are functions, because Numba and LLVM take time that is quadratic in a function's length.

Numba compiles each function to LLVM IR, which becomes part of the kernel's module, so LLVM compiles a module once.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numba.extending
from numba.core import imputils, types, typing
from numba.core.registry import cpu_target

# Their names are not exported for type checkers.
_extending: Any = numba.extending
_imputils: Any = imputils
_types: Any = types
_typing: Any = typing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class CalledLoop:
    """A function that a kernel calls, with Numba's signature and options."""

    function: Callable[..., None]
    signature: str
    options: Mapping[str, Any]


def called(signature: str, **options: Any) -> Callable[[Callable[..., None]], CalledLoop]:
    """Return a decorator that marks a function as one that a kernel calls; options are those of Numba's ``njit``."""
    return lambda function: CalledLoop(function=function, signature=signature, options=options)


def called_by(function: Callable[..., None]) -> Iterator[CalledLoop]:
    """Yield the marked functions that a function calls."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, CalledLoop):
            yield value


class _Type(_types.Callable, _types.Opaque):  # type: ignore[misc]
    """Numba's type of a marked function."""

    def __init__(self, loop: CalledLoop, arguments: tuple[Any, ...]) -> None:
        self.loop = loop
        self.call = _typing.signature(_types.none, *arguments)
        super().__init__(f"called_loop({loop.function.__name__}, {id(loop)})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call."""
        return self.call

    def get_call_signatures(self) -> Any:
        """Return all signatures, and whether there are others."""
        return [self.call], False

    def get_impl_key(self, sig: Any) -> Any:
        """Return the key of the implementation."""
        return self.loop


_TYPES: dict[CalledLoop, _Type] = {}  # of the functions that the kernel that is being compiled calls


def _type_of(loop: CalledLoop, context: Any) -> Any:
    return _TYPES[loop]


def _constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


_extending.register_model(_Type)(_extending.models.OpaqueModel)
_extending.typeof_impl.register(CalledLoop)(_type_of)
_imputils.lower_constant(_Type)(_constant)


@contextmanager
def callable_in_block(compiled: Mapping[CalledLoop, tuple[Any, Any]]) -> Iterator[None]:
    """Let functions that are compiled in a block call others, given the libraries and Numba's descriptions of these."""
    context: Any = cpu_target.target_context
    for loop, (library, described) in compiled.items():
        _TYPES[loop] = _Type(loop, described.argtypes)
        context.insert_user_function(loop, described, [library])
    try:
        yield
    finally:
        for loop in compiled:
            del _TYPES[loop]
            context.remove_user_function(loop)
