"""Calls whose types Numba has worked out before are looked up, instead of trying all candidates again.

Numba asks for the type of each call and operator of a function when it infers types, and again when it lowers them.
Each time it tries candidates for scalars and arrays of all kinds, which takes up to a millisecond. A kernel of 1,000
ops has a few dozen different calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MOST = 4096  # of each class: positions of constants and sizes are types of their own

_KNOWN: dict[Any, dict[Any, tuple[Any, Any]]] = {}


@contextmanager
def known_calls(functions: Any) -> Iterator[None]:
    """Look up the types of calls in a block, of which one thread at a time executes one.

    ``functions`` is the class of types of functions, Numba's `BaseFunction` or a copy of it. A type is kept with the
    key that finds the implementation, because Numba stores the last of those that resolve to the same operands.
    """
    known = _KNOWN.setdefault(functions, {})
    resolve = functions.get_call_type

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

    functions.get_call_type = get_call_type
    try:
        yield
    finally:
        functions.get_call_type = resolve
