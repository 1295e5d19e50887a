"""The partition that a compiler makes of a function: the one place of contracts that asks which compiler it is."""

from collections.abc import Callable, Mapping

from fuser_lab.arguments import short_text
from fuser_lab.contracts.by_inductor import partition_by_inductor
from fuser_lab.contracts.by_segmenter import STRATEGIES, partition_by_segmenter
from fuser_lab.contracts.by_xla import partition_by_xla
from fuser_lab.contracts.call import Call, Compiled
from fuser_lab.errors import InputError


def has_schedulers(compiler: str) -> bool:
    """Whether a compiler, by its name in contracts, is one of ours, whose reasons are those of schedulers."""
    return compiler in STRATEGIES


def compile_call(call: Call) -> Compiled:
    """Return the partition that a compiler makes of a function.

    Raises
    ------
    InputError
        If there is no such compiler or device, or the compiler makes no graph of the function.
    """
    made = COMPILERS.get(call.compiler)
    if made is None:
        names = ", ".join(map(repr, COMPILERS))
        raise InputError(f"{call.who}: compiler must be one of {names}, given {short_text(call.compiler)}.")
    return made(call)


COMPILERS: Mapping[str, Callable[[Call], Compiled]] = {
    "inductor": partition_by_inductor, "nvfuser": partition_by_segmenter, "fuser_lab": partition_by_segmenter,
    "xla": partition_by_xla,
}
