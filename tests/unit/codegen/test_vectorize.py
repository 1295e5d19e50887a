"""The pass that makes vector accesses, on kernels written by hand."""

import numpy as np
import pytest

from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.index_math import access_of, simplify
from fuser_lab.codegen.kernel_eval import evaluate_kernel
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
    Role,
    Statement,
    Store,
    Uniforms,
    VectorLoad,
    VectorStore,
    walk,
)
from fuser_lab.codegen.rewrites import rewrite
from fuser_lab.codegen.vector_widths import best_width
from fuser_lab.codegen.vectorize import with_vectors
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, index
from fuser_lab.ir.transform import ParallelType

F, I = DataType.Float, DataType.Index  # noqa: E741
c, v, u = (index_var(name) for name in "cvu")


def buffer(name: str, size: int, role: Role = Role.INPUT, dtype: DataType = F, alignment: int = 16) -> Buffer:
    return Buffer(name=name, dtype=dtype, size=size, role=role, alignment=alignment)


def loop(var: Var, stop: int, parallel: ParallelType, *body: Statement) -> Loop:
    return Loop(var=var.name, start=index(0), stop=index(stop), parallel=parallel, body=body)


def kernel(*body: Statement) -> Kernel:
    found = {b.name: b for s in walk(body) for b in _touched(s) if not b.role.is_allocated}
    inputs = tuple(b for b in found.values() if b.role is Role.INPUT)
    outputs = tuple(b for b in found.values() if b.role is Role.OUTPUT)
    phase = Phase(name="kernel", buffers=(*inputs, *outputs), scalars=(), body=body)
    return Kernel(
        name="kernel", target="cuda", scheduler=SchedulerType.POINTWISE, inputs=inputs, scalars=(), outputs=outputs,
        workspace=(), phases=(phase,), ops=(),
    )


def _touched(statement: Statement) -> list[Buffer]:
    found = [statement.buffer] if isinstance(statement, Store | VectorLoad | VectorStore) else []
    values = [statement.value] if isinstance(statement, Let | Store) else []
    return found + [t.buffer for value in values for t in value.walk() if isinstance(t, Load)]


def copying(source: Term, target: Term, into: Buffer, given: Buffer) -> tuple[Statement, ...]:
    return (
        Let(name="t0", value=Load(F, given, source)),
        Store(buffer=into, position=target, value=apply("mul", Var(F, "t0"), 2.0)),
    )


def results(body: tuple[Statement, ...], given: np.ndarray, size: int) -> np.ndarray:
    memory = {"T0": given, "T1": np.full(size, np.nan, np.float32)}
    evaluate_kernel(kernel(*body), memory)
    return memory["T1"]


def of_kind(body: tuple[Statement, ...], kind: type) -> list[Statement]:
    return [s for s in walk(body) if isinstance(s, kind)]


T0, T1 = buffer("T0", 64), buffer("T1", 64, Role.OUTPUT)
X = np.arange(64, dtype=np.float32)


@pytest.mark.parametrize(
    ("position", "widths"),
    [
        (c * 4 + v, [4]), (c * 4 + v + 32, [4]), (c * 4 + v + 2, [2]), (c * 4 + v + 1, [4, 1]), (c * 2 + v, [2]),
        (c + v, []), (c * 4 + v * 2, [4]), (c * 4 + 3 - v, [4]), (c * 4, []),
        (apply("mod", c * 4, 8) + v, [4]), (apply("mod", c * 4 + v, 6), []), (apply("floordiv", c * 8, 2) + v, [4]),
    ],
)
def test_neighbours_are_moved_together(position: Term, widths: list[int]) -> None:
    inner = loop(v, 4, ParallelType.vectorize, *copying(position, c * 4 + v, T1, T0))
    body = (loop(c, 8, ParallelType.block_x, inner),)
    wide = with_vectors(body)
    assert [s.width for s in of_kind(wide, VectorLoad)] == widths
    assert [s.width for s in of_kind(wide, VectorStore)] == [4]
    np.testing.assert_array_equal(results(wide, X, 64)[:32], results(body, X, 64)[:32])


@pytest.mark.parametrize(("alignment", "width"), [(16, 4), (8, 2), (4, 0)])
def test_an_address_allows_so_much(alignment: int, width: int) -> None:
    access = access_of(buffer("T0", 64, alignment=alignment), c * 4 + v, "v")
    assert max(access.width(4), 1) == max(width, 1)


def test_names_of_indices_are_looked_through() -> None:
    at, place = Let(name="at", value=c * 4), Let(name="place", value=index_var("at") + v)
    inner = loop(v, 4, ParallelType.vectorize, place, *copying(index_var("place"), index_var("place"), T1, T0))
    body = (loop(c, 8, ParallelType.block_x, at, inner),)
    wide = with_vectors(body)
    assert len(of_kind(wide, VectorLoad)) == len(of_kind(wide, VectorStore)) == 1
    np.testing.assert_array_equal(results(wide, X, 64)[:32], 2 * X[:32])


def test_conditions_on_the_element_keep_stores_apart_and_others_go_along() -> None:
    for condition, stores in ((v < 3, 0), (c < 5, 1)):
        guarded = If(condition=condition, then=copying(c * 4 + v, c * 4 + v, T1, T0))
        body = (loop(c, 8, ParallelType.block_x, loop(v, 4, ParallelType.vectorize, guarded)),)
        wide = with_vectors(body)
        assert len(of_kind(wide, VectorLoad)) == 1
        assert len(of_kind(wide, VectorStore)) == stores
        np.testing.assert_array_equal(results(wide, X, 64), results(body, X, 64))


def test_nothing_is_read_where_no_iteration_reads() -> None:
    """T0 ends within the chunk of the last thread that reads from it: the evaluator refuses every access beyond."""
    short = buffer("T0", 20)
    guarded = If(condition=c * 4 + v < 18, then=copying(c * 4 + v, c * 4 + v, T1, short))
    body = (loop(c, 8, ParallelType.block_x, loop(v, 4, ParallelType.vectorize, guarded)),)
    wide = with_vectors(body)
    (load,) = of_kind(wide, VectorLoad)
    assert isinstance(load, VectorLoad)
    assert load.position == Apply(I, "select", (c <= 4, c * 4, index(0)))
    np.testing.assert_array_equal(results(wide, X[:20], 64), results(body, X[:20], 64))


def test_two_sides_that_read_as_much_are_one_read_from_here_or_there() -> None:
    def side(distance: int) -> tuple[Statement, ...]:
        return (Let(name="t0", value=Load(F, T0, c * 4 + v + distance)),)

    choice = If(condition=c < 4, then=side(16), otherwise=side(-16))
    store = Store(buffer=T1, position=c * 4 + v, value=Var(F, "t0"))
    body = (loop(c, 8, ParallelType.block_x, loop(v, 4, ParallelType.vectorize, choice, store)),)
    wide = with_vectors(body)
    (load,) = of_kind(wide, VectorLoad)
    assert isinstance(load, VectorLoad)
    assert isinstance(load.position, Apply)
    assert load.position.fn == "select"
    np.testing.assert_array_equal(results(wide, X, 64)[:32], np.concatenate([X[16:32], X[:16]]))


def test_nested_branches_use_the_same_words() -> None:
    def choice(condition: Term, then: Statement, otherwise: Statement) -> If:
        return If(condition=condition, then=(then,), otherwise=(otherwise,))

    places = [Let(name="t0", value=Load(F, T0, c * 4 + v + distance)) for distance in (0, 4, 8, 16)]
    halves = [choice(c < 2, *places[:2]), choice(c < 6, *places[2:])]
    store = Store(buffer=T1, position=c * 4 + v, value=Var(F, "t0"))
    body = (loop(c, 8, ParallelType.block_x, loop(v, 4, ParallelType.vectorize, choice(c < 4, *halves), store)),)
    wide = with_vectors(body)
    assert len(of_kind(wide, VectorLoad)) == 1
    assert {s.buffer.name for s in of_kind(wide, Alloc)} == {"T0_v", "T1_v"}
    np.testing.assert_array_equal(results(wide, X, 64), results(body, X, 64))


HALF = apply("floordiv", v, 2)


@pytest.mark.parametrize(("positions", "widths"), [
    ([c * 8 + v * 2, c * 8 + v * 2 + 1], [4]),  # neighbours
    ([c * 2 + HALF], [2]),  # repeated
    ([c * 8 + HALF * 2 + 1, c * 8 + HALF * 2], [4]),
    ([c * 4 + 3 - v, c * 4 + v], [4, 4]),  # reversed beside straight
    ([c * 8 + v * 2], [4]),  # every other
    ([c * 4 + v * 3], [4, 1, 1]),  # 0, 3, 6, 9
    ([c * 4 + v * 2 + 1, c * 4 + v * 2 + 3], [4, 1]),  # overlapping: 1, 3, 5, 7, 9
    ([c * 4 + v, c * 4 + v + 17], [4, 1, 4]),  # apart, the second of them straight
    ([c + v * 8], []),
    ([c * 2 + apply("mod", v, 2) * 32 + HALF], []),  # two runs that are too far apart for one window
    ([c * 3 + HALF], []),
])
def test_neighbours_in_another_order_are_loaded_together(positions: list[Term], widths: list[int]) -> None:
    read = [Let(name=f"t{n}", value=Load(F, T0, position)) for n, position in enumerate(positions)]
    total = apply("sub", *(Var(F, let.name) for let in read)) if len(read) == 2 else Var(F, "t0")
    store = Store(buffer=T1, position=c * 4 + v, value=total)
    body = (loop(c, 8, ParallelType.block_x, loop(v, 4, ParallelType.vectorize, *read, store)),)
    wide = with_vectors(body)
    assert [s.width for s in of_kind(wide, VectorLoad)] == widths
    np.testing.assert_array_equal(results(wide, X, 64), results(body, X, 64))


def test_elements_that_only_some_iterations_read_have_windows_of_their_own() -> None:
    last = buffer("T0", 16)  # iterations 2 and 3 of c = 7 would read beyond it
    chosen = If(
        condition=v < 2, then=(Let(name="t0", value=Load(F, last, c * 2 + v)),),
        otherwise=(Let(name="t0", value=Const(F, 5.0)),),
    )
    store = Store(buffer=T1, position=c * 4 + v, value=Var(F, "t0"))
    body = (loop(c, 8, ParallelType.block_x, loop(v, 4, ParallelType.vectorize, chosen, store)),)
    wide = with_vectors(body)
    assert [(s.width, s.count) for s in of_kind(wide, VectorLoad)] == [(2, 2)]
    np.testing.assert_array_equal(results(wide, X[:16], 64), results(body, X[:16], 64))


def test_an_element_that_several_iterations_read_is_loaded_if_one_of_them_runs() -> None:
    chosen = If(
        condition=c * 4 + v < 17, then=(Let(name="t0", value=Load(F, T0, c * 2 + HALF)),),
        otherwise=(Let(name="t0", value=Const(F, 5.0)),),
    )
    store = Store(buffer=T1, position=c * 4 + v, value=Var(F, "t0"))
    body = (loop(c, 8, ParallelType.block_x, loop(v, 4, ParallelType.vectorize, chosen, store)),)
    wide = with_vectors(body)
    assert of_kind(wide, VectorLoad)
    np.testing.assert_array_equal(results(wide, X, 64), results(body, X, 64))


def test_loads_that_may_not_run_are_left_alone() -> None:
    for position in (HALF, v * 2):
        value = apply("select", v < 2, Load(F, T0, c * 2 + position), Const(F, 5.0))
        store = Store(buffer=T1, position=c * 4 + v, value=value)
        body = (loop(c, 8, ParallelType.block_x, loop(v, 4, ParallelType.vectorize, store)),)
        assert not of_kind(with_vectors(body), VectorLoad)


def test_a_buffer_that_the_loop_writes_is_not_read_ahead() -> None:
    both = buffer("T1", 64, Role.OUTPUT)
    body = (loop(c, 8, ParallelType.block_x, loop(
        v, 4, ParallelType.vectorize, Store(buffer=both, position=c * 4 + v, value=Load(F, T0, c * 4 + v)),
        Let(name="t1", value=Load(F, both, c * 4 + v)),
        Store(buffer=both, position=c * 4 + v, value=apply("add", Var(F, "t1"), 1.0)),
    )),)
    assert not [s for s in of_kind(with_vectors(body), VectorLoad) if s.buffer is both]


def test_loads_of_all_rounds_come_first() -> None:
    at = u * 32 + c * 4
    inner = loop(v, 4, ParallelType.vectorize, *copying(at + v, at + v, T1, T0))
    body = (loop(c, 8, ParallelType.block_x, loop(u, 2, ParallelType.unroll, inner)),)
    wide = with_vectors(body)
    (thread,) = [s for s in wide if isinstance(s, Loop)]
    loads, rest = [s for s in thread.body if isinstance(s, Loop)]
    assert [type(s) for s in loads.body] == [VectorLoad]
    assert not of_kind(rest.body, VectorLoad)
    assert {s.buffer.name: s.buffer.size for s in of_kind(wide, Alloc)} == {"T0_v": 8, "T1_v": 4}
    np.testing.assert_array_equal(results(wide, X, 64), 2 * X)


def test_loads_of_inputs_do_not_wait_for_a_barrier() -> None:
    tile = buffer("tile", 32, Role.SHARED)
    rounds = (
        loop(u, 1, ParallelType.unroll, loop(
            v, 4, ParallelType.vectorize,
            Store(buffer=tile, position=Apply(I, "sub", (index(31), c * 4 + v)), value=Load(F, T0, c * 4 + v)),
        )),
        Barrier(),
        loop(u, 1, ParallelType.unroll, loop(
            v, 4, ParallelType.vectorize,
            Store(
                buffer=T1, position=c * 4 + v,
                value=apply("add", Load(F, tile, c * 4 + v), Load(F, T0, c * 4 + v + 32)),
            ),
        )),
    )
    block = index_var("block")
    body = (loop(block, 1, ParallelType.grid_x, loop(c, 8, ParallelType.block_x, Alloc(buffer=tile), *rounds)),)
    wide = with_vectors(body)
    order = [type(s).__name__ for s in walk(wide) if isinstance(s, VectorLoad | Barrier | VectorStore)]
    assert order == ["VectorLoad", "VectorLoad", "Barrier", "VectorStore"]
    np.testing.assert_array_equal(results(wide, X, 64)[:32], X[31::-1] + X[32:])
    without = tuple(s for s in rounds if not isinstance(s, Barrier))
    racing = (loop(block, 1, ParallelType.grid_x, loop(c, 8, ParallelType.block_x, Alloc(buffer=tile), *without)),)
    with pytest.raises(IndexError, match="without a barrier after its write"):
        results(with_vectors(racing), X, 64)


def test_random_numbers_are_drawn_together() -> None:
    def drawing(position: Term) -> tuple[Statement, ...]:
        number = Apply(F, "philox_uniform", (Const(DataType.Int, 3), Const(DataType.Int, 5), position))
        return (loop(c, 8, ParallelType.block_x, loop(
            v, 4, ParallelType.vectorize, Store(buffer=T1, position=c * 4 + v, value=number),
        )),)

    for position, together in ((c * 4 + v, 1), (c * 4 + v - apply("mod", v, 2), 1), (c * 4 + v + 2, 0), (c + v, 0)):
        body = drawing(position)
        wide = with_vectors(body)
        assert len(of_kind(wide, Uniforms)) == together
        np.testing.assert_array_equal(results(wide, X, 64)[:32], results(body, X, 64)[:32])


def test_the_width_with_the_fewest_accesses() -> None:
    def trial(position: Term, dtype: DataType, alignment: int) -> object:
        given = buffer("T0", 1 << 20, dtype=dtype, alignment=alignment)

        def one(size: int) -> tuple[Statement, ...]:
            return (Let(name="t0", value=Load(dtype, given, position if size == 0 else c * size + v)),)

        return one

    for dtype, alignment, width in ((F, 16, 4), (F, 8, 4), (DataType.BFloat16, 16, 8), (DataType.Double, 16, 2),
                                    (DataType.Bool, 16, 16), (DataType.ComplexDouble, 16, 1)):
        assert best_width(trial(c + v, dtype, alignment), "v", bytes_per_cycle=21) == width


@pytest.mark.parametrize(("dtype", "width"), [(F, 8), (DataType.Int, 4)])
def test_columns_that_every_row_reads_in_many_lines_make_accesses_narrower(dtype: DataType, width: int) -> None:
    # Eight neighbouring integers of 64 bits take four accesses, of which each meets sixteen lines.
    columns = [buffer(name, 1 << 12, dtype=dtype, alignment=16) for name in ("T0", "T1")]
    rows = buffer("T2", 1 << 24, dtype=DataType.BFloat16, alignment=16, role=Role.OUTPUT)

    def trial(size: int) -> tuple[Statement, ...]:
        column = apply("mod", c, (1 << 12) // size) * size + v
        first, second = (Load(dtype, given, column) for given in columns)
        value = apply("cast", apply("mul", first, second), dtype=DataType.BFloat16)
        return (Store(buffer=rows, position=c * size + v, value=value),)

    assert best_width(trial, "v", bytes_per_cycle=21) == width


@pytest.mark.parametrize(("taps", "width"), [(2, 4), (40, 1)])
def test_many_reads_of_rows_that_begin_anywhere_make_accesses_narrower(taps: int, width: int) -> None:
    # Lanes that are four elements apart meet four lines in each of the reads, which memory serves once.
    given = buffer("T0", 1 << 24, alignment=16)

    def trial(size: int) -> tuple[Statement, ...]:
        place = c * size + v
        row = apply("floordiv", place, 513) * 517 + apply("mod", place, 513)
        return tuple(Let(name=f"t{n}", value=Load(F, given, row + n)) for n in range(taps))

    assert best_width(trial, "v", bytes_per_cycle=21) == width


def test_a_number_that_all_elements_of_a_chunk_need_does_not_bound_the_width() -> None:
    places, rows = buffer("T0", 1 << 16, dtype=DataType.Int), buffer("T1", 1 << 20, dtype=DataType.BFloat16)

    def trial(size: int) -> tuple[Statement, ...]:
        place = simplify(apply("floordiv", c * size + v, 16), {"v": (0, size - 1)})
        read = Load(DataType.BFloat16, rows, c * size + v)
        return (Let(name="t0", value=Load(DataType.Int, places, place)), Let(name="t1", value=read))

    assert best_width(trial, "v", bytes_per_cycle=21) == 8


def test_one_plus_tanh_and_cosines_of_turns() -> None:
    x = Var(F, "x")
    body = (
        Let(name="a", value=apply("tanh", x)),
        Let(name="b", value=apply("add", Const(F, 1.0), Var(F, "a"))),
        Let(name="d", value=apply("cos", apply("mul", x, 2 * np.pi))),
        Store(buffer=T1, position=index(0), value=apply("add", Var(F, "b"), Var(F, "d"))),
    )
    assert [str(s.value.fn) for s in rewrite(body) if isinstance(s, Let)] == ["one_plus_tanh", "cos_turns"]
    kept = (*body, Store(buffer=T1, position=index(1), value=Var(F, "a")))
    assert [s.name for s in rewrite(kept) if isinstance(s, Let)] == ["a", "b", "d"]


def test_the_logistic_function_is_one_call() -> None:
    x = Var(F, "x")
    form = apply("div", Const(F, 1.0), apply("add", Const(F, 1.0), apply("exp", apply("neg", x))))
    (let, _) = rewrite((
        Let(name="a", value=form), Store(buffer=T1, position=index(0), value=Var(F, "a")),
    ))
    assert isinstance(let, Let)
    assert let.value == Apply(F, "sigmoid", (x,))
    # Another number, or a double, is a different value.
    other = apply("div", Const(F, 2.0), apply("add", Const(F, 1.0), apply("exp", apply("neg", x))))
    y = Var(DataType.Double, "y")
    one = Const(DataType.Double, 1.0)
    double = apply("div", one, apply("add", one, apply("exp", apply("neg", y))))
    for value in (other, double):
        body = (Let(name="a", value=value),)
        assert rewrite(body) == body
