"""Each rule of Kernel IR: a kernel that keeps it passes, and one that breaks it is refused, with the reason."""

from dataclasses import replace

import pytest
from backend.fusions import CASES, Case

from fuser_lab.codegen.emitter import Emitter
from fuser_lab.codegen.kernel_ir import (
    Alloc,
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
    Scope,
    Statement,
    Store,
    VectorLoad,
    VectorStore,
)
from fuser_lab.codegen.kernel_verifier import verify_kernel
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import Const, Term, Var, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.targets import target_of
from tests.kernels import generate

F = DataType.Float
X = Buffer(name="X", dtype=F, size=64, role=Role.INPUT)
Y = Buffer(name="Y", dtype=F, size=64, role=Role.OUTPUT)
WORDS = Buffer(name="X_words", dtype=F, size=4, role=Role.WORDS)
SUMS = Buffer(name="X_sums", dtype=F, size=4, role=Role.SCRATCH)
TILE = Buffer(name="X_tile", dtype=F, size=64, role=Role.SHARED)
ONE, AT = Const(F, 1.0), Var(DataType.Index, "i")


def var(name: str) -> Var:
    return Var(F, name)


def let(name: str, value: Term = ONE, *, update: bool = False) -> Let:
    return Let(name=name, value=value, update=update)


def store(value: Term, position: Term | None = None, buffer: Buffer = Y) -> Store:
    return Store(buffer=buffer, position=index(0) if position is None else position, value=value)


def load(position: Term | None = None, buffer: Buffer = X) -> Load:
    return Load(F, buffer, index(0) if position is None else position)


def loop(*body: Statement, var: str = "i", parallel: ParallelType = ParallelType.serial, stop: int = 4) -> Loop:
    return Loop(var=var, start=index(0), stop=index(stop), parallel=parallel, body=body)


def threads(*body: Statement) -> Loop:
    return loop(*body, var="lane", parallel=ParallelType.block_x, stop=32)


def kernel(*body: Statement, target: str = "cuda", scalars: tuple[Var, ...] = ()) -> Kernel:
    phase = Phase(name="written", buffers=(X, Y), scalars=scalars, body=body)
    return Kernel(
        name="written", target=target, scheduler=SchedulerType.POINTWISE, inputs=(X,), scalars=scalars, outputs=(Y,),
        workspace=(), phases=(phase,), ops=(),
    )


HOLDS = Var(DataType.Bool, "holds")
LANE = Var(DataType.Index, "lane")
TAKEN = VectorLoad(buffer=X, position=index(0), words=WORDS, slot=index(0), count=4, width=4)
SUMMED = Reduce(name="total", fn="add", value=load(LANE), identity=0.0, scope=Scope.BLOCK)
BOTH = If(condition=HOLDS, then=(let("a"),), otherwise=(let("a"),))
NESTED = If(condition=HOLDS, then=(BOTH, store(var("a"))), otherwise=(BOTH, store(var("a"))))

RIGHT = {
    "a loop and its variable": [loop(store(load(AT), AT))],
    "one variable for two loops": [loop(store(ONE, AT)), loop(store(ONE, AT))],
    "an accumulator": [let("a"), loop(let("a", load(AT), update=True)), store(var("a"))],
    "both branches": [BOTH, store(var("a"))],
    "a name for each branch": [If(condition=HOLDS, then=(let("a"), store(var("a")))), let("a"), store(var("a"))],
    "a name that was local to both branches": [BOTH, let("a"), store(var("a"))],
    "a name that was local to both branches of two": [BOTH, BOTH, store(var("a"))],
    "branches in both branches": [NESTED, NESTED, store(var("a"))],
    "words": [Alloc(buffer=WORDS), TAKEN, store(load(buffer=WORDS))],
    "a barrier": [threads(Alloc(buffer=TILE), store(ONE, LANE, TILE), Barrier(), store(load(buffer=TILE), LANE))],
    "a branch of a block": [threads(If(condition=load() > 0.0, then=(Barrier(),)))],
    "a sum of the block": [threads(SUMMED, If(condition=var("total") > 0.0, then=(Barrier(),)))],
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_accepts(body: list[Statement]) -> None:
    verify_kernel(kernel(*body, scalars=(HOLDS,)))


WRONG = {
    "a name that nothing defines": ([store(var("a"))], "reads a, which is not defined there"),
    "a name before it is defined": ([store(var("a")), let("a")], "reads a, which"),
    "a variable after its loop": ([loop(store(ONE, AT)), store(load(AT))], "reads i, which"),
    "a variable in the bounds of its loop": (
        [Loop(var="i", start=index(0), stop=AT, parallel=ParallelType.serial, body=(store(ONE, AT),))],
        "reads i, which",
    ),
    "a value after its loop": ([loop(let("a", load(AT))), store(var("a"))], "reads a, which"),
    "a value after one branch": ([If(condition=HOLDS, then=(let("a"),)), store(var("a"))], "reads a, which"),
    "a value of the other branch": (
        [If(condition=HOLDS, then=(let("a"),), otherwise=(store(var("a")),))], "reads a, which",
    ),
    "a position that nothing defines": ([store(load(AT))], "reads i, which"),
    "two definitions": ([let("a"), let("a")], "defines a, which already exists"),
    "a definition in a loop of a name before it": ([let("a"), loop(let("a", load(AT)))], "defines a, which already"),
    "a definition of what both branches define": (
        [BOTH, store(var("a")), let("a")], "defines a, which already exists",
    ),
    "a definition in a branch of what it reads": (
        [BOTH, If(condition=HOLDS, then=(store(var("a")), BOTH))], "defines a, which already exists",
    ),
    "a loop over a variable of a loop around it": ([loop(loop(store(ONE, AT)))], "defines i, which already exists"),
    "an update of nothing": ([let("a", update=True)], "updates a, which is not defined there"),
    "an update of another dtype": (
        [let("a"), let("a", Const(DataType.Int, 1), update=True)], "updates a of Float by a value of Int",
    ),
    "a buffer that nothing allocates": ([store(load(buffer=SUMS))], "accesses X_sums, which does not exist there"),
    "a buffer after its loop": (
        [loop(Alloc(buffer=SUMS), store(ONE, AT, SUMS)), store(load(buffer=SUMS))], "accesses X_sums, which does not",
    ),
    "a buffer allocated twice": ([Alloc(buffer=SUMS), Alloc(buffer=SUMS)], "allocates X_sums, which already exists"),
    "a buffer of another size": (
        [store(load(buffer=replace(X, size=65)))], "which is declared as Buffer(name='X'",
    ),
    "a buffer that nothing is written to": (
        [Alloc(buffer=SUMS), store(load(buffer=SUMS))], "reads X_sums before anything is written to it",
    ),
    "words that nothing is written to": (
        [
            Alloc(buffer=WORDS),
            VectorStore(buffer=Y, position=index(0), words=WORDS, slot=index(0), count=4, width=4),
        ],
        "reads X_words before",
    ),
    "an output that nothing is written to": ([store(load(buffer=Y))], "reads Y before anything is written to it"),
    "a write to an input": ([store(ONE, buffer=X)], "writes to the input X"),
    "a barrier for some threads": (
        [threads(If(condition=LANE < 7, then=(Barrier(),)))], "waits for threads that do not reach it",
    ),
    "a barrier where the data of a thread says so": (
        [threads(let("a", load(LANE)), If(condition=var("a") > 0.0, then=(Barrier(),)))], "waits for threads",
    ),
    "a barrier in a loop of unequal lengths": (
        [threads(Loop(var="i", start=index(0), stop=LANE, parallel=ParallelType.serial, body=(Barrier(),)))],
        "in 'for i in ...'",
    ),
    "a sum of a block in each iteration, without another wait": (
        [threads(loop(SUMMED))], "is the only wait of an iteration of 'for i in ...'",
    ),
    "a sum of a block for some threads": ([threads(If(condition=LANE < 7, then=(SUMMED,)))], "waits for threads"),
}


@pytest.mark.parametrize(("body", "problem"), WRONG.values(), ids=WRONG)
def test_refuses(body: list[Statement], problem: str) -> None:
    with pytest.raises(CodegenError, match="the generated kernel written is wrong") as caught:
        verify_kernel(kernel(*body, scalars=(HOLDS,)))
    assert problem in str(caught.value)


@pytest.mark.parametrize(("before", "inside", "problem"), [
    (let("a"), let("a", load(AT), update=True), "updates a, which iterations that cores share have in common"),
    (Alloc(buffer=SUMS), store(ONE, buffer=SUMS), "writes to X_sums, which iterations that cores share have in common"),
])
def test_cores_share_nothing_that_they_write(before: Statement, inside: Statement, problem: str) -> None:
    shared = loop(inside, parallel=ParallelType.grid_x)
    with pytest.raises(CodegenError, match=problem):
        verify_kernel(kernel(before, shared, target="cpu"))
    verify_kernel(kernel(loop(before, inside, parallel=ParallelType.grid_x), target="cpu"))
    verify_kernel(kernel(before, loop(inside), target="cpu"))


def test_parameters_are_those_of_the_kernel() -> None:
    right = kernel(store(ONE), scalars=(HOLDS,))
    with pytest.raises(CodegenError, match="the scalar parameter holds is no scalar of the kernel written"):
        verify_kernel(replace(right, scalars=()))
    with pytest.raises(CodegenError, match="the parameter Y is no buffer of the kernel written"):
        verify_kernel(replace(right, outputs=()))


def test_a_wrong_kernel_is_not_printed() -> None:
    wrong = kernel(store(var("a")))
    emitter: type[Emitter] = target_of("cuda").emitter()
    with pytest.raises(CodegenError, match=r"'Y\[...\] = ...' reads a"):
        emitter(wrong).source()


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_a_statement_less_is_missed(case: Case) -> None:
    """Without its first definition, a kernel of each kind is refused."""
    made = generate(case.fusion(), case.scheduler, "cuda").kernel_ir
    verify_kernel(made)
    for phase in made.phases:
        body, removed = _without_definition(phase.body)
        if removed:
            with pytest.raises(CodegenError, match=rf"{removed}\b"):
                verify_kernel(replace(made, phases=(replace(phase, body=body),)))


def _without_definition(body: tuple[Statement, ...]) -> tuple[tuple[Statement, ...], str]:
    """Return statements without the first one that names a value, and the name."""
    for place, statement in enumerate(body):
        if isinstance(statement, Let):
            return body[:place] + body[place + 1 :], statement.name
        if isinstance(statement, Loop):
            inner, name = _without_definition(statement.body)
            if name:
                return (*body[:place], replace(statement, body=inner), *body[place + 1 :]), name
    return body, ""
