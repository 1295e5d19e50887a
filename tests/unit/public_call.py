"""A legal call of a public function."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@dataclass(frozen=True)
class Call:
    """A legal call: ``make()`` returns what is called anew, so that no call sees what another left behind."""

    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class _Later:
    """Stands for what is made anew for each call."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


TENSOR = _Later("a tensor")  # of the definition that a call is made for
MORE = _Later("another one")  # also as the only entry of a list


def given(function: Callable[..., Any], made: Any, more: Any = None) -> Callable[..., Any]:
    """A function that is called with ``made`` where TENSOR is given, and with ``more`` where MORE is."""

    def own(value: Any) -> Any:
        if type(value) is list and len(value) == 1 and value[0] is MORE:
            return [more]
        return made if value is TENSOR else more if value is MORE else value

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(own, args), **{name: own(value) for name, value in kwargs.items()})

    return call
