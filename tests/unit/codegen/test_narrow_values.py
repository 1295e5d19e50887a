"""Values of reduced floats that are stored without a separate rounding, and those that are copied as words."""

from collections.abc import Sequence

from fuser_lab.codegen.kernel_ir import Buffer, If, Let, Load, Loop, Role, Statement, Store, VectorLoad, VectorStore
from fuser_lab.codegen.rewrites import narrow_values
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var, cast, index
from fuser_lab.ir.transform import ParallelType

Z, B, F = DataType.Float8_e4m3fn, DataType.BFloat16, DataType.Float
PAIRED = frozenset({Z})
X = Var(F, "x")


def memory(name: str, dtype: DataType = Z, role: Role = Role.OUTPUT) -> Buffer:
    return Buffer(name=name, dtype=dtype, size=8, role=role)


T0, T1 = memory("T0", role=Role.INPUT), memory("T1")
WORDS = memory("T1_v", role=Role.WORDS)


def let(name: str, value: Term) -> Let:
    return Let(name=name, value=value)


def store(name: str, to: Buffer = T1, dtype: DataType = Z) -> Store:
    return Store(buffer=to, position=index(0), value=Var(dtype, name))


def loop(*body: Statement) -> Loop:
    return Loop(var="i", start=index(0), stop=index(8), parallel=ParallelType.serial, body=body)


def moved(words: Buffer = WORDS) -> VectorStore:
    return VectorStore(buffer=T1, position=index(0), words=words, slot=index(0), count=8, width=8)


def found(*body: Statement) -> tuple[Sequence[int], Sequence[int], Sequence[str]]:
    values = narrow_values(body, PAIRED)
    return sorted(values.unrounded), sorted(values.copied), sorted(values.wide)


def test_a_store_rounds_what_nothing_else_reads() -> None:
    assert found(let("a", cast(X, Z)), store("a")) == ([0, 1], [], [])
    assert found(loop(let("a", cast(X, Z)), loop(store("a")))) == ([1, 3], [], [])
    # Not if the number is used again, is stored in another dtype, or is a thread's own float32 number.
    assert found(let("a", cast(X, Z)), store("a"), let("b", cast(Var(Z, "a"), F))) == ([], [], [])
    assert found(let("a", cast(X, Z)), store("a", memory("T2", B))) == ([], [], [])
    assert found(let("a", cast(X, Z)), store("a", memory("T1_s", role=Role.SCRATCH))) == ([], [], [])
    at_data = Store(buffer=T1, position=Apply(DataType.Index, "cast", (Var(Z, "a"),)), value=Var(Z, "a"))
    assert found(let("a", cast(X, Z)), at_data) == ([], [], [])


def test_words_are_copied() -> None:
    read = Load(Z, T0, index(0))
    assert found(let("a", read), store("a"), store("a")) == ([], [0, 1, 2], [])
    assert found(let("a", Load(B, memory("T0", B), index(0))), store("a")) == ([], [], [])


def test_a_name_means_the_value_of_its_block() -> None:
    read = Load(Z, T0, index(0))
    used = let("b", cast(Var(Z, "a"), F))
    assert found(loop(let("a", read), store("a")), loop(let("a", read), used)) == ([], [1, 2], [])
    # After a selection, the source may be either value.
    choice = If(condition=Const(DataType.Bool, True), then=(let("a", cast(X, Z)),), otherwise=(let("a", read),))
    assert found(choice, store("a")) == ([], [], [])
    assert found(let("a", cast(X, Z)), choice, store("a")) == ([], [], [])
    assert found(let("a", cast(X, Z)), Let(name="a", value=cast(X, Z), update=True), store("a")) == ([], [], [])


def test_words_hold_numbers_until_a_vector_store() -> None:
    rounded = (let("a", cast(X, Z)), store("a", WORDS))
    assert found(*rounded, moved()) == ([0, 1], [], ["T1_v"])
    assert found(*rounded, moved(), let("b", Load(Z, WORDS, index(0)))) == ([0, 1], [], [])
    assert found(let("a", Load(Z, T0, index(0))), store("a", WORDS), moved()) == ([], [0, 1], [])
    filled = VectorLoad(buffer=T0, position=index(0), words=WORDS, slot=index(0), count=8, width=8)
    assert found(filled, *rounded, moved()) == ([1, 2], [], [])
    halves = memory("T1_h", B, Role.WORDS)
    assert found(let("a", cast(X, B)), store("a", halves, B), moved(halves)) == ([0, 1], [], [])
