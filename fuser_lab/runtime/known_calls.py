"""Calls whose types Numba has worked out before are looked up, instead of trying all candidates again.

Numba asks for the type of each call and operator of a function when it infers types, and again when it lowers them.
Each time it tries candidates for scalars and arrays of all kinds, which takes up to a millisecond. A kernel of 1,000
ops has a few dozen different calls.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_MOST = 4096  # of each class: positions of constants and sizes are types of their own


@dataclass(slots=True)
class _Class:
    """A class of types of functions: its method, how many blocks replace it now, and the types of known calls."""

    resolve: Callable[..., Any]
    blocks: int = 0
    known: dict[Any, tuple[Any, Any]] = field(default_factory=dict)


_CLASSES: dict[Any, _Class] = {}
_LOCK = threading.Lock()


@contextmanager
def known_calls(functions: Any) -> Iterator[None]:
    """Look up the types of calls in a block.

    ``functions`` is the class of types of functions, Numba's `BaseFunction` or a copy of it. A type is kept with the
    key that finds the implementation, because Numba stores the last of those that resolve to the same operands.
    """
    with _LOCK:
        replaced = _CLASSES.setdefault(functions, _Class(functions.get_call_type))
        replaced.blocks += 1
        functions.get_call_type = _looking_up(replaced)
    try:
        yield
    finally:
        with _LOCK:
            replaced.blocks -= 1
            if not replaced.blocks:
                functions.get_call_type = replaced.resolve


def _looking_up(replaced: _Class) -> Callable[..., Any]:
    resolve, known = replaced.resolve, replaced.known

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return resolve(self, context, args, kws)
        key = self, context, args
        found = known.get(key)
        if found is None:
            signature = resolve(self, context, args, kws)
            if len(known) >= _MOST:
                known.clear()
            known[key] = signature, self.get_impl_key(signature)
            return signature
        signature, implementation = found
        self._impl_keys[signature.args] = implementation
        return signature

    return get_call_type
