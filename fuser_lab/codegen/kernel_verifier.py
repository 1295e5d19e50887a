"""Verification of Kernel IR: the rules that each kernel keeps, whichever lowering and passes wrote it.

Scopes are those of blocks: a variable of a loop exists in its body only, although Python keeps it after the loop, and a
name that a loop or one branch of an ``If`` defines does not exist after it.
"""

from collections.abc import Iterator, Sequence
from typing import NoReturn

from fuser_lab.codegen.kernel_ir import (
    OF_A_THREAD,
    Alloc,
    Arrive,
    AtomicAdd,
    Await,
    Barrier,
    Buffer,
    If,
    Kernel,
    Let,
    Load,
    Loop,
    Phase,
    Reduce,
    Role,
    Scan,
    Scope,
    Send,
    Statement,
    Store,
    Transpose,
    Uniforms,
    VectorAdd,
    VectorLoad,
    VectorStore,
    terms_of,
    walk,
)
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import Term, Var, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.targets import Form, target_of

_GIVEN = frozenset({Role.INPUT, Role.UPDATED})  # memory with elements at the beginning
_THREADS = frozenset({ParallelType.block_x, ParallelType.block_y})
_TOGETHER = frozenset({Scope.BLOCK, Scope.CLUSTER})  # scopes whose threads wait for one another
_IN_TURN = frozenset({ParallelType.serial, ParallelType.unroll, ParallelType.unswitch})  # iterations of one thread


def verify_kernel(kernel: Kernel) -> None:
    """Raise unless each phase of a kernel keeps the rules below.

    * A name is defined before it is read, in the same block or one around it, and once, except that an update gives an
      accumulator of the same dtype a new value.
    * A buffer is a parameter or allocated before it is accessed, and is accessed under one description; it is
      written before it is read, unless it is an input, which is never written, or an updated input.
    * What threads of a block wait for is not in a branch or loop that some of them do not reach.
    * A loop whose iterations reduce over a block has a second wait, after which the memory of the reduction is free.
    * Iterations that cores share write no variable or scratch buffer from outside of them.

    Raises
    ------
    CodegenError
        If a phase breaks a rule; the message names the kernel, the statement and the variable or buffer.
    """
    buffers = {b.name: b for b in (*kernel.inputs, *kernel.outputs, *kernel.workspace)}
    scalars = {v.name for v in kernel.scalars}
    shares_iterations = target_of(kernel.target).form is Form.CORES
    written: set[str] = set()
    for phase in kernel.phases:
        for name in [v.name for v in phase.scalars if v.name not in scalars]:
            msg = f"{phase.name}: the scalar parameter {name} is no scalar of the kernel {kernel.name}."
            raise CodegenError(msg)
        for buffer in phase.buffers:
            if buffers.get(buffer.name) != buffer:
                msg = f"{phase.name}: the parameter {buffer.name} is no buffer of the kernel {kernel.name}."
                raise CodegenError(msg)
        _PhaseVerifier(phase, written, shares_iterations=shares_iterations).run()


class _PhaseVerifier:
    """The names and buffers that exist at one statement of a phase."""

    def __init__(self, phase: Phase, written: set[str], *, shares_iterations: bool) -> None:
        self._phase, self._shares_iterations = phase, shares_iterations
        self._names: dict[str, DataType] = {v.name: v.dtype for v in phase.scalars}
        self._names.update((size.name, size.dtype) for size in phase.sizes)
        self._indices: set[str] = set()  # variables of open loops
        self._local: set[str] = set()  # names that both branches of an `If` define, until one is read after it
        self._redefined: set[str] = set()  # such names that the block around defines again
        self._buffers: dict[str, Buffer] = {buffer.name: buffer for buffer in phase.buffers}
        self._written = written  # buffers that a statement before this one writes, in this phase or an earlier one
        self._varying: set[str] = set()  # names and buffers that can differ between threads of a block
        self._divides: Statement | None = None  # the innermost branch or loop that not all threads of a block reach
        self._outside: frozenset[str] = frozenset()  # names and buffers from outside of the iterations that cores share

    def run(self) -> None:
        """Verify all statements."""
        self._block(self._phase.body)

    def _block(
        self, statements: Sequence[Statement], var: str | None = None,
    ) -> tuple[dict[str, DataType], frozenset[str]]:
        """Verify a block; ``var`` is its loop's.

        Returns the names that the block defines, which do not exist after it, and the local ones that it defines again.
        """
        before, buffers, local = dict(self._names), dict(self._buffers), frozenset(self._local)
        redefined, self._redefined = self._redefined, set()
        if var is not None:
            self._names[var] = DataType.Index
            self._indices.add(var)
        for statement in statements:
            self._reads(statement)
            self._statement(statement)
        if var is not None:
            self._indices.discard(var)
            del self._names[var]
        made = {name: dtype for name, dtype in self._names.items() if name not in before}
        again = local & self._redefined
        self._names, self._buffers, self._redefined = before, buffers, redefined
        self._local |= again  # the other branch, or a later block, may define them too
        return made, again

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Let(name=name, value=value, update=True):
                self._update(statement, name, value.dtype)
                self._mark(name, varies=self._varies(value))
            case Let(name=name, value=value) | Reduce(name=name, value=value):
                self._define(statement, name, value.dtype)
                shared = isinstance(statement, Reduce) and statement.scope in _TOGETHER
                self._mark(name, varies=not shared and self._varies(value))
            case If():
                self._branches(statement)
            case Loop():
                self._loop(statement)
            case Alloc(buffer=buffer):
                if buffer.name in self._names or buffer.name in self._buffers:
                    self._fail(statement, f"allocates {buffer.name}, which already exists there")
                self._buffers[buffer.name] = buffer
                self._written.discard(buffer.name)
                self._varying.discard(buffer.name)
            case Scan(carry=carry):
                self._update(statement, carry.name, carry.dtype)
        if self._divides is not None and _waits(statement):
            self._fail(statement, f"waits for threads that do not reach it, in {_text(self._divides)}")
        for buffer, terms in _writes(statement):
            self._write(statement, buffer, terms)

    def _define(self, statement: Statement, name: str, dtype: DataType) -> None:
        if (name in self._names and name not in self._local) or name in self._buffers:
            self._fail(statement, f"defines {name}, which already exists there")
        self._names[name] = dtype
        if name in self._local:
            self._local.discard(name)
            self._redefined.add(name)

    def _update(self, statement: Statement, name: str, dtype: DataType) -> None:
        if name not in self._names or name in self._indices:
            self._fail(statement, f"updates {name}, which is not defined there")
        if self._names[name].compute is not dtype.compute:
            self._fail(statement, f"updates {name} of {self._names[name].name} by a value of {dtype.name}")
        if name in self._outside:
            self._fail(statement, f"updates {name}, which iterations that cores share have in common")

    def _branches(self, statement: If) -> None:
        divides = self._divides
        if self._varies(statement.condition):
            self._divides = statement
        made, again = self._block(statement.then)
        varying = self._varying & made.keys()
        made_otherwise, again_otherwise = self._block(statement.otherwise)
        both = made.keys() & made_otherwise.keys()
        self._divides = divides
        self._varying |= varying
        self._names.update((name, made[name]) for name in both)
        self._local |= both
        self._redefined |= again & again_otherwise

    def _loop(self, loop: Loop) -> None:
        if (loop.var in self._names and loop.var not in self._local) or loop.var in self._buffers:
            self._fail(loop, f"defines {loop.var}, which already exists there")
        if loop.parallel in _IN_TURN and loop.stop != index(1) and (reduction := _lonely_reduction(loop.body)):
            self._fail(reduction, (
                f"is the only wait of an iteration of {_text(loop)}: the next iteration overwrites the shared memory "
                "from which slower threads still read; end the body with a Barrier"
            ))
        divides, outside = self._divides, self._outside
        if self._varies(loop.start) or self._varies(loop.stop):
            self._divides = loop
        if self._shares_iterations and loop.parallel is ParallelType.grid_x:
            self._outside = frozenset(self._names).union(b.name for b in self._buffers.values() if b.role.is_allocated)
        self._mark(loop.var, varies=loop.parallel in _THREADS or self._divides is not divides)
        self._block(loop.body, loop.var)
        self._divides, self._outside = divides, outside

    # Terms and buffers

    def _reads(self, statement: Statement) -> None:
        """Verify that what a statement reads exists."""
        waiting = list(terms_of(statement))
        while waiting:
            term = waiting.pop()
            if isinstance(term, Var):
                if term.name not in self._names:
                    self._fail(statement, f"reads {term.name}, which is not defined there")
                self._local.discard(term.name)
            elif isinstance(term, Load):
                self._read(statement, term.buffer)
                waiting.append(term.position)
            else:
                waiting += term.children
        for buffer in _read_whole(statement):
            self._read(statement, buffer)

    def _read(self, statement: Statement, buffer: Buffer) -> None:
        self._check(statement, buffer)
        if buffer.role not in _GIVEN and buffer.name not in self._written:
            self._fail(statement, f"reads {buffer.name} before anything is written to it")

    def _write(self, statement: Statement, buffer: Buffer, terms: Sequence[Term]) -> None:
        self._check(statement, buffer)
        if buffer.role is Role.INPUT:
            self._fail(statement, f"writes to the input {buffer.name}")
        if buffer.name in self._outside:
            self._fail(statement, f"writes to {buffer.name}, which iterations that cores share have in common")
        self._written.add(buffer.name)
        if buffer.role in OF_A_THREAD and (self._divides is not None or any(map(self._varies, terms))):
            self._varying.add(buffer.name)

    def _check(self, statement: Statement, buffer: Buffer) -> None:
        declared = self._buffers.get(buffer.name)
        if declared is None:
            self._fail(statement, f"accesses {buffer.name}, which does not exist there")
        if declared is not buffer and declared != buffer:
            self._fail(statement, f"accesses {buffer.name} as {buffer}, which is declared as {declared}")

    def _mark(self, name: str, *, varies: bool) -> None:
        """Record whether a variable can differ between the threads of a block."""
        if varies or self._divides is not None:
            self._varying.add(name)
        else:
            self._varying.discard(name)

    def _varies(self, term: Term) -> bool:
        """Whether a term can differ between the threads of a block."""
        waiting = [term]
        while waiting:
            part = waiting.pop()
            if (part.name if isinstance(part, Var) else part.buffer.name if isinstance(part, Load) else None) in (
                self._varying
            ):
                return True
            waiting += part.children
        return False

    def _fail(self, statement: Statement, problem: str) -> NoReturn:
        origin = "" if statement.origin is None else f" of {statement.origin}"
        msg = f"the generated kernel {self._phase.name} is wrong: {_text(statement)}{origin} {problem}."
        raise CodegenError(msg)


def _waits(statement: Statement) -> bool:
    """Whether the threads of a block wait for one another at a statement."""
    if isinstance(statement, Reduce | Scan):
        return statement.scope in _TOGETHER
    return isinstance(statement, Barrier | Arrive)


def _lonely_reduction(body: Sequence[Statement]) -> Reduce | None:
    """Return the reduction over a block that is the only statement of a loop's body at which threads wait, or None."""
    waits = [s for s in walk(tuple(body)) if _waits(s) and not isinstance(s, Arrive)]
    return waits[0] if len(waits) == 1 and isinstance(waits[0], Reduce) and waits[0].scope is Scope.BLOCK else None


def _read_whole(statement: Statement) -> Iterator[Buffer]:
    """Yield the buffers that a statement reads other than by terms."""
    match statement:
        case VectorAdd(buffer=buffer, words=words):
            yield from (buffer, words)
        case (
            VectorLoad(buffer=buffer) | VectorStore(words=buffer) | AtomicAdd(buffer=buffer)
            | Transpose(source=buffer) | Scan(buffer=buffer)
        ):
            yield buffer


def _writes(statement: Statement) -> Iterator[tuple[Buffer, tuple[Term, ...]]]:
    """Yield the buffers that a statement writes, with the terms that determine what is written."""
    match statement:
        case Store(buffer=buffer, position=position, value=value) | Send(
            buffer=buffer, position=position, value=value,
        ):
            yield buffer, (position, value)
        case AtomicAdd(buffer=buffer, position=position, value=value, condition=condition):
            yield buffer, (position, value, condition)
        case VectorLoad(words=words, position=position, slot=slot):
            yield words, (position, slot)
        case VectorStore(buffer=buffer, words=words, slot=slot) | VectorAdd(buffer=buffer, words=words, slot=slot):
            yield buffer, (slot, Load(words.dtype, words, slot))
        case Uniforms(numbers=numbers, position=position, slot=slot):
            yield numbers, (position, slot)
        case Transpose(target=target, source=source, start=start):
            yield target, (start, Load(source.dtype, source, start))
        case Scan(buffer=buffer, carry=carry):
            yield buffer, (carry,)
        case Await(buffer=buffer):
            yield buffer, ()


def _text(statement: Statement) -> str:
    """Return a statement in one line, as the source has it, without its terms."""
    match statement:
        case Let(name=name) | Reduce(name=name):
            return f"'{name} = ...'"
        case AtomicAdd(buffer=buffer) | VectorAdd(buffer=buffer):
            return f"'{buffer.name}[...] += ...'"
        case (
            Store(buffer=buffer) | Send(buffer=buffer) | VectorStore(buffer=buffer) | VectorLoad(words=buffer)
            | Transpose(target=buffer) | Uniforms(numbers=buffer) | Scan(buffer=buffer)
        ):
            return f"'{buffer.name}[...] = ...'"
        case Loop(var=var):
            return f"'for {var} in ...'"
        case _:
            return f"the statement {type(statement).__name__}"
