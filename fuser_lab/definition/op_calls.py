"""The namespace ``fd.ops``: calls of ops by name."""

import functools
import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, Protocol

from fuser_lab.errors import ArgumentTypeError, UnknownNameError, UnsupportedError
from fuser_lab.ops import COMPOSITES, OPS, Composite, OpDef
from fuser_lab.ops.registry import Recorder
from fuser_lab.ops.unsupported import UNSUPPORTED, refusal


class OpsRecorder(Recorder, Protocol):
    """The interface of a definition for calls of ops."""

    @property
    def is_open(self) -> bool:
        """Whether recording is allowed."""

    def require_open(self, caller: str) -> None:
        """Raise unless the definition is open."""

    def recorded(
        self, name: str, carry_out: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:
        """Return the result of a user's call, and store the call."""

    def wrap(self, result: Any) -> Any:
        """Return a frontend's result as handles."""


class Ops:
    """The namespace ``fd.ops``: every registered op, recording into one definition."""

    def __init__(self, builder: OpsRecorder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the op called ``name``."""
        entry: OpDef | Composite | None = OPS.get(name) or COMPOSITES.get(name)
        if entry is None:
            if name.startswith("__"):
                raise AttributeError(name)
            if name in UNSUPPORTED:
                return _refusal(name)
            near = get_close_matches(name, dir(self), 1)
            hint = f"did you mean {near[0]}?" if near else "dir(fd.ops) lists all ops."
            raise UnknownNameError(f"fd.ops has no op {name}; {hint}")
        # Shared by all definitions, because separate functions would be cyclic garbage, which takes time to collect.
        method = _method(entry)
        setattr(Ops, name, method)
        call: Callable[..., Any] = method.__get__(self)
        return call

    def __dir__(self) -> list[str]:
        """Return the names of all ops."""
        return sorted([*OPS, *COMPOSITES])


def _refusal(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(refusal(name))

    return call


def _method(entry: OpDef | Composite) -> Any:
    """Return an op as a method of `Ops`."""
    name, frontend, signature = entry.name, entry.frontend, entry.signature

    def call(self: Ops, /, *args: Any, **kwargs: Any) -> Any:
        builder = self._builder
        if not builder.is_open:
            builder.require_open(f"fd.ops.{name}")
        return builder.recorded(name, functools.partial(carry_out, builder), args, kwargs)

    def carry_out(builder: OpsRecorder, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return builder.wrap(frontend(builder, *args, **kwargs))
        except ArgumentTypeError:
            raise
        except TypeError:
            # The frontend does not accept the arguments, or there is an error inside it.
            check_arguments(name, signature, args, kwargs)
            raise

    call.__name__ = call.__qualname__ = name
    call.__doc__ = entry.doc
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def check_arguments(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any],
) -> inspect.BoundArguments:
    """Return arguments by parameter, or raise ArgumentTypeError."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentTypeError(f"{name}{signature}: {error}.") from None
