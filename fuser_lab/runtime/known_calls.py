"""Calls whose types Numba has worked out before are looked up, instead of trying all candidates again.

Numba asks for the type of each call and operator of a function when it infers types, and again when it lowers them.
Each time it tries candidates for scalars and arrays of all kinds, which takes up to a millisecond. A kernel of 1,000
ops has a few dozen different calls.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fuser_lab.runtime.replacing import replace_attribute

_MOST = 4096  # of each class: positions of constants and sizes are types of their own

_KNOWN: dict[Any, dict[Any, tuple[Any, Any]]] = {}


def known_calls(functions: Any) -> AbstractContextManager[None]:
    """Look up the types of calls in a block.

    ``functions`` is the class of types of functions, Numba's `BaseFunction` or a copy of it. A type is kept with the
    key that finds the implementation, because Numba stores the last of those that resolve to the same operands.
    """
    return replace_attribute(
        functions, "get_call_type", lambda resolve: _looking_up(resolve, _KNOWN.setdefault(functions, {})),
    )


def _looking_up(resolve: Callable[..., Any], resolved: dict[Any, tuple[Any, Any]]) -> Callable[..., Any]:
    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return resolve(self, context, args, kws)
        key = self, context, args
        entry = resolved.get(key)
        if entry is None:
            signature = resolve(self, context, args, kws)
            if len(resolved) >= _MOST:
                resolved.clear()
            resolved[key] = signature, self.get_impl_key(signature)
            return signature
        signature, implementation = entry
        self._impl_keys[signature.args] = implementation
        return signature

    return get_call_type


def plain_messages(errors: Any) -> AbstractContextManager[None]:
    """Leave colours out of messages in a block: Numba prepares messages for each statement, and few are read.

    ``errors`` is the module `numba.core.errors` or a copy of it, which uses colours where colorama is installed.
    """
    colored = getattr(errors, "HighlightColorScheme", None)
    return nullcontext() if colored is None else replace_attribute(colored, "_markup", lambda _: _plain)


def _plain(scheme: Any, message: str, *style: Any) -> str:
    del scheme, style
    return message


def known_parameters(base: Any) -> AbstractContextManager[None]:
    """Remember in a block which implementations take a location: Numba inspects the parameters of each one it calls.

    ``base`` is the module `numba.core.base`, in which ``_has_loc`` answers this.
    """
    return replace_attribute(base, "_has_loc", functools.cache) if hasattr(base, "_has_loc") else nullcontext()
