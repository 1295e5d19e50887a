"""A legal call of a public function."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@dataclass(frozen=True)
class Call:
    """A legal call: ``make()`` returns a new callee, so that calls do not affect each other."""

    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class _Later:
    """A placeholder for an object that is created for each call."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


TENSOR = _Later("a tensor")  # of the definition of the call
MORE = _Later("another one")  # also as the only entry of a list


def given(function: Callable[..., Any], made: Any, more: Any = None) -> Callable[..., Any]:
    """A function called with ``made`` in place of TENSOR, and with ``more`` in place of MORE."""

    def own(value: Any) -> Any:
        if type(value) is list and len(value) == 1 and value[0] is MORE:
            return [more]
        return made if value is TENSOR else more if value is MORE else value

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(own, args), **{name: own(value) for name, value in kwargs.items()})

    return call
