"""The page of all passes over Kernel IR, each run on its example: ``python -m tests.pages.kernel_passes``."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import getdoc
from textwrap import dedent
from typing import Any
from unittest import mock

from fuser_lab.codegen import cpu_functions, long_loops
from fuser_lab.codegen.kernel_ir import (
    Buffer,
    If,
    Kernel,
    Let,
    Load,
    Loop,
    Phase,
    Role,
    Statement,
    Store,
    arguments_of,
)
from fuser_lab.codegen.kernel_passes import KERNEL_PASSES, KernelPass
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Const, Term, Var, apply, cast, index, select
from fuser_lab.ir.transform import ParallelType
from fuser_lab.targets import Form, target_of

COMMAND = "python -m tests.pages.kernel_passes > docs/kernel_passes.md"
_TARGETS = ("cpu", "cuda")
SIZE = 64  # elements of T0 and T1
# Limits that make the short examples long.
_LIMITS = (
    (long_loops, "LONG", 3), (long_loops, "PART", 4), (long_loops, "ROUNDS", 16), (cpu_functions, "MOST_UNNAMED", 0),
)
Block = tuple[Statement, ...]


class _Memory:
    """A buffer of an example, whose elements are read as ``T0[c]``."""

    def __init__(self, name: str, role: Role) -> None:
        self.buffer = Buffer(name=name, dtype=DataType.Float, size=SIZE, role=role, alignment=16)

    def __getitem__(self, position: Term) -> Load:
        return Load(DataType.Float, self.buffer, position)


def _loop(var: Var, count: int, parallel: ParallelType, *body: Statement) -> Loop:
    return Loop(var=var.name, start=index(0), stop=index(count), parallel=parallel, body=body)


def _choose(condition: Term, *, then: Sequence[Statement], otherwise: Sequence[Statement] = ()) -> If:
    return If(condition=condition, then=tuple(then), otherwise=tuple(otherwise))


def _store(memory: _Memory, position: Term, value: Term) -> Store:
    return Store(buffer=memory.buffer, position=position, value=value)


NAMES: dict[str, Any] = {
    "T0": _Memory("T0", Role.INPUT), "T1": _Memory("T1", Role.OUTPUT),
    **{name: Var(DataType.Index, name) for name in ("c", "v", "at")},
    **{name: Var(DataType.Float, name) for name in ("t0", "t1", "t2", "t3")},
    **{kind.name: kind for kind in (ParallelType.serial, ParallelType.block_x, ParallelType.vectorize)},
    "loop": _loop, "let": lambda var, value: Let(name=var.name, value=value), "store": _store, "choose": _choose,
    "apply": apply, "cast": cast, "number": lambda value: Const(DataType.Float, value), "Index": DataType.Index,
    "Int": DataType.Int, "select": select, "whole": lambda value: Const(DataType.Int, value),
}
"""What an example may name: an input and an output of 64 Floats, variables, kinds of loops, statements and terms."""


def body_of(shown: KernelPass) -> Block:
    """Return the statements on which a pass is shown.

    Raises
    ------
    ValueError
        If they are not an expression with the names above; the message names the pass.
    """
    try:
        made = eval(shown.example.strip(), dict(NAMES))
    except (SyntaxError, NameError, TypeError) as error:
        msg = f"pass {shown.name!r}: its example is no expression with the names of {__name__}: {error}."
        raise ValueError(msg) from error
    return made if isinstance(made, tuple) else (made,)


def changed(shown: KernelPass, body: Block) -> Block:
    """Return statements after a pass, with limits that make the short examples long."""
    with _small_limits():
        return shown.run(body)


@contextmanager
def _small_limits() -> Iterator[None]:
    patches = [mock.patch.object(module, limit, value) for module, limit, value in _LIMITS]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def target_for(shown: KernelPass) -> str:
    """Return a target whose kernels the pass is for."""
    form = Form.BLOCKS if Form.BLOCKS in shown.forms else Form.CORES
    return next(name for name in _TARGETS if target_of(name).form is form)


def kernel(body: Block, target: str) -> Kernel:
    """Return a kernel with one phase of these statements."""
    buffers, _ = arguments_of(body)
    memory = tuple(sorted((b for b in buffers if not b.role.is_allocated), key=lambda b: b.name))
    phase = Phase(name="kernel", buffers=memory, scalars=(), body=body)
    return Kernel(
        name="kernel", target=target, scheduler=SchedulerType.POINTWISE,
        inputs=tuple(b for b in memory if b.role is Role.INPUT), scalars=(),
        outputs=tuple(b for b in memory if b.role is Role.OUTPUT), workspace=(), phases=(phase,), ops=(),
    )


def text_of(body: Block, target: str) -> str:
    """Return statements as the target prints them."""
    source = target_of(target).emitter()(kernel(body, target)).source().text
    return dedent(source.rpartition("\ndef ")[2].partition(":\n")[2])


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Passes over Kernel IR",
        "",
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        "These passes rewrite the statements of a kernel after its loops are written, in this order. Each is shown on",
        "its example, as the target prints it; limits that no short example reaches are smaller here.",
        "",
    ]
    for shown in KERNEL_PASSES:
        lines += _section(shown)
    return "\n".join(lines)


def _section(shown: KernelPass) -> list[str]:
    target, body = target_for(shown), body_of(shown)
    kernels = " and ".join(name for name in _TARGETS if target_of(name).form in shown.forms)
    text = " ".join((getdoc(shown.run) or "").split()).replace("``", "`")
    before, after = (text_of(block, target).rstrip().splitlines() for block in (body, changed(shown, body)))
    return [
        f"## {shown.name}", "", text, "", f"For kernels of: {kernels}.", "",
        "```python", *before, "```", "", "becomes", "", "```python", *after, "```", "",
    ]


if __name__ == "__main__":
    sys.stdout.write(page())
