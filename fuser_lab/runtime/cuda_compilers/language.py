"""The interface of a compiler of CUDA kernels, and the functions that are defined for it."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fuser_lab.errors import UnsupportedError
from fuser_lab.runtime.cuda_compilers.building import Rule, rule_of


class Language(Protocol):
    """The interface by which functions are defined for a compiler."""

    @property
    def types(self) -> Any:
        """The module of its types: Numba's, or its copy of them."""

    def device(self, function: Callable[..., Any], *, inline: bool) -> Any:
        """Return a Python function as a device function; with ``inline``, all its calls are inlined."""

    def intrinsic(self, rule: Rule) -> Any:
        """Return a device function whose instructions a rule writes."""


class Compiler(Protocol):
    """Compiles the functions that the CUDA emitter prints to PTX."""

    def require(self) -> None:
        """Load the compiler.

        Raises
        ------
        UnsupportedError
            If it is not installed.
        """

    def compile_ptx(
        self, function: Callable[..., None], pointers: Sequence[str], scalars: Sequence[str], *, cc: tuple[int, int],
        threads: int, resident: int = 0, cluster: int = 1, lineinfo: bool = False,
    ) -> tuple[str, str]:
        """Return PTX and the name of its entry; no device and no driver are needed.

        The parameters of the entry are those of the function, in order: addresses, and numbers as C passes them.

        Parameters
        ----------
        function
            A generated kernel: a plain Python function.
        pointers, scalars
            Numba's names of the types that its first parameters point to, and of the types of the others.
        cc
            Compute capability.
        threads
            Threads per block; registers are limited so that it fits.
        resident
            Blocks per multiprocessor for which registers are limited; 0 for one.
        cluster
            Blocks per cluster, which are adjacent and run concurrently.
        lineinfo
            Whether the PTX has ``.loc`` directives with the lines of the source.
        """


class Library:
    """Collects the functions that kernels call, by name, as defined for one compiler."""

    def __init__(self, language: Language) -> None:
        self.types = language.types
        self.functions: dict[str, Any] = {}
        self._language = language

    def device(self, function: Callable[..., Any]) -> Any:
        """Define a device function."""
        return self._keep(function.__name__, self.helper(function))

    def helper(self, function: Callable[..., Any]) -> Any:
        """Return a device function that kernels do not call directly."""
        return self._language.device(function, inline=False)

    def inlined(self, function: Callable[..., Any]) -> Any:
        """Define a device function that is inlined into its callers."""
        return self._keep(function.__name__, self._language.device(function, inline=True))

    def intrinsic(self, rule: Rule) -> Any:
        """Define a function by a rule that writes its instructions."""
        return self.named(rule.__name__, rule)

    def named(self, name: str, rule: Rule) -> Any:
        """Define a function by a rule with a different name."""
        return self._keep(name, self._language.intrinsic(rule))

    def instructions(
        self, result: Any, *arguments: Any, name: str | None = None,
    ) -> Callable[[Callable[..., Any]], Any]:
        """Return a decorator that defines a function of these types; the decorated one writes its instructions."""
        return lambda generate: self.named(name or generate.__name__, rule_of(result, arguments, generate))

    def _keep(self, name: str, function: Any) -> Any:
        self.functions[name] = function
        return function


def with_clusters(ptx: str, blocks: int) -> str:
    """Return PTX whose entry is always launched in clusters of this many blocks.

    Raises
    ------
    UnsupportedError
        If the PTX does not declare the threads per block, after which the size of a cluster has to be written.
    """
    if blocks == 1:
        return ptx
    said = rf"\1\n.explicitcluster\n.reqnctapercluster {blocks}, 1, 1"
    text, count = re.subn(r"(?m)^(\s*\.maxntid .*)$", said, ptx, count=1)
    if not count:
        raise UnsupportedError("the compiler's PTX does not declare the threads per block, which clusters need.")
    return text


def entry_of(ptx: str, function: str) -> str:
    """Return the name of the entry in the PTX of a function.

    Raises
    ------
    UnsupportedError
        If there is none.
    """
    entry = re.search(r"\.entry\s+([^\s(]+)", ptx)
    if entry is None:
        raise UnsupportedError(f"the PTX of {function} has no entry.")
    return entry.group(1)


def signature_of(rule: Rule) -> inspect.Signature:
    """Return the parameters of a typing function for a rule: a context, and the rule's parameters."""
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([context, *inspect.signature(rule).parameters.values()])
