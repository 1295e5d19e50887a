"""The definitions of the texts in tests/data/repro_forms, written by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuser_lab import DataType, FusionDefinition

Shape = tuple[int, ...]
Layout = tuple[Shape, Shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The definition of a text, shapes and strides of its inputs (numbers unchanged), and the content of its notes."""

    define: Callable[[FusionDefinition], None]
    inputs: tuple[Layout | float, ...]
    notes: tuple[str, ...]


ANSWERS: dict[str, Answer] = {}
Half, BFloat16, Float, Double, Int = DataType.Half, DataType.BFloat16, DataType.Float, DataType.Double, DataType.Int


def packed(*shape: int) -> Layout:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return shape, tuple(strides)


def answer(*inputs: Layout | float, notes: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    def keep(define: Callable[[FusionDefinition], None]) -> Callable[[FusionDefinition], None]:
        ANSWERS[define.__name__] = Answer(define=define, inputs=inputs, notes=notes)
        return define

    return keep


def opened(fd, rank, dtype=Float):
    return fd.define_tensor([-1] * rank, True, dtype)


@answer(packed(2, 4, 8), packed(2, 4, 8))
def direct_basic(fd):
    x, y = opened(fd, 3), opened(fd, 3)
    three = fd.define_scalar(3.0)
    fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.add(x, y), three), [2], False, Float))


@answer(packed(12, 20))
def loop_over_dtypes(fd):
    x = fd.ops.cast(opened(fd, 2, Half), Float)
    fd.add_output(fd.ops.cast(fd.ops.sum(x, [0]), Float))


@answer(packed(2, 1, 3, 1))
def helper_called_many_times(fd):
    x = fd.define_tensor([-1, 1, -1, 1], [True, None, True, None])
    fd.add_output(fd.ops.sin(fd.ops.squeeze(x, [1, 3])))


@answer(packed(1024, 1024), notes=(
    "sizes of nvFuser's benchmarks", "for size,", "for dtype,", "for reduction_axis,", "line 57: of a branch",
))  # fmt: skip
def benchmark_softmax(fd):
    x = opened(fd, 2, BFloat16)
    f = fd.ops.cast(x, Float)
    most = fd.ops.broadcast_in_dim(fd.ops.max(f, [0]), [1, f.size(1)], [1])
    e = fd.ops.exp(fd.ops.sub(f, fd.ops.broadcast_in_dim(most, f.shape(), [0, 1])))
    fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [0], True)), BFloat16))


@answer(packed(4, 6), packed(4, 6), notes=("the script's user schedule is skipped",))
def class_with_state(fd):
    x, y = opened(fd, 2), opened(fd, 2)
    fd.add_output(fd.ops.sum(fd.ops.add(fd.ops.mul(x, fd.define_scalar(2.5)), y), [1]))


@answer(packed(32, 32), notes=("the script's user schedule is skipped",))
def user_schedule_direct(fd):
    fd.add_output(fd.ops.set(opened(fd, 2)))


@answer(packed(16, 48), notes=("the script's user schedule is skipped",))
def schedule_in_function(fd):
    fd.add_output(fd.ops.sum(opened(fd, 2, Double), [1]))


@answer(packed(1, 128, 64), packed(128, 64), 0.125)
def issue_with_logs(fd):
    x = fd.define_tensor([1, -1, 64], [None, True, True], BFloat16)
    y = fd.define_tensor([-1, 64], True, BFloat16)
    s = fd.define_scalar(None, Double)
    scaled = fd.ops.mul(fd.ops.cast(x, Float), s)
    wide = fd.ops.broadcast_in_dim(y, [1, y.size(0), 64], [1, 2])
    fd.add_output(fd.ops.cast(fd.ops.add(scaled, wide), BFloat16))


@answer(packed(32, 64), notes=("lines 1 to 4 are not part", "lines 27 to 31 are not part"))
def error_text_without_fence(fd):
    var, mean = fd.ops.var_mean(fd.ops.cast(opened(fd, 2, Half), Float), [1], 0)
    fd.add_output(var)
    fd.add_output(mean)


@answer(packed(100), notes=("lines 1 to 4 are not part",))
def rank_prefixed_log(fd):
    fd.add_output(fd.ops.tanh(opened(fd, 1)))


@answer(((7, 10), (1, 7)), notes=("lines 1 to 4 are not part", "lines 20 to 21 are not part"))
def indented_block(fd):
    fd.add_output(fd.ops.relu(fd.ops.permute(opened(fd, 2), [1, 0])))


@answer(packed(4, 1), packed(4, 2), packed(4, 4), notes=("for num_tensors,", "for cat_dim,"))
def cat_in_loop(fd):
    a, b = opened(fd, 2), opened(fd, 2)
    turned = fd.ops.neg(b)
    fd.add_output(fd.ops.cat([a, turned, opened(fd, 2)], 1))


@answer(packed(2, 8, 16), packed(16))
def kwargs_dict(fd):
    x, w = opened(fd, 3, BFloat16), opened(fd, 1, BFloat16)
    f = fd.ops.cast(x, Float)
    r = fd.ops.rsqrt(fd.ops.add(fd.ops.div(fd.ops.sum(fd.ops.mul(f, f), [2], True), 16), 1e-5))
    fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.mul(f, r), w), BFloat16))


@answer(packed(6, 10), notes=("for name,", "for dtype,"))
def getattr_ops(fd):
    fd.add_output(fd.ops.exp(opened(fd, 2)))


@answer(packed(64, 96), packed(96), notes=("for params,",))
def fixture_params(fd):
    x, w = opened(fd, 2), opened(fd, 1)
    fd.add_output(fd.ops.mul(x, fd.ops.broadcast(w, [True, False])))


@answer(packed(3, 4))
def crlf_and_tabs(fd):
    fd.add_output(fd.ops.abs(fd.define_tensor([-1, 4], True)))


@answer(packed(5, 4))
def no_break_spaces(fd):
    fd.add_output(fd.ops.ceil(fd.define_tensor([-1, 4], True)))


@answer(packed(4, 3, 5), 7)
def vectors_and_scalars(fd):
    x, n = opened(fd, 3), fd.define_scalar(None, Int)
    flat = fd.ops.reshape(x, [x.size(0), fd.ops.mul(x.size(1), x.size(2))])
    fd.add_output(fd.ops.slice(fd.ops.mul(flat, fd.ops.cast(n, Float)), [0, 2], [4, 10], [1, 1], False))


@answer(packed(2, 4, 8, 16), packed(2, 4, 8, 16))
def nested_comprehensions(fd):
    q, k = opened(fd, 4, Half), opened(fd, 4, Half)
    s = fd.ops.add(fd.ops.permute(q, [0, 2, 3, 1]), fd.ops.permute(k, [0, 2, 3, 1]))
    out = fd.ops.permute(s, [0, 3, 1, 2])
    fd.add_output(out)
    fd.add_output(s)


@answer(packed(3, 9), packed(3, 9), packed(3, 9))
def two_functions_in_sequence(fd):
    a, b, c = (opened(fd, 2) for _ in range(3))
    third = fd.define_scalar(9**-0.5, Double)
    fd.add_output(fd.ops.add(fd.ops.add(fd.ops.mul(a, third), b), c))


@answer(packed(24, 40))
def self_attributes(fd):
    x = opened(fd, 2)
    var, mean = fd.ops.var_mean(x, [1], 0, True)
    fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-3))))


@answer(packed(64, 128))
def executor_cache(fd):
    fd.add_output(fd.ops.max(fd.ops.cast(opened(fd, 2, BFloat16), Float), [1]))


@answer(packed(8, 6), packed(8, 6), packed(4))
def returned_inputs(fd):
    x, y, places = opened(fd, 2), opened(fd, 2), opened(fd, 1, Int)
    fd.add_output(fd.ops.index_select(fd.ops.add(x, y), places, 0))


@answer(packed(5, 3), notes=("for dims, expectation,",))
def raises_then_good(fd):
    fd.add_output(fd.ops.permute(fd.ops.cos(opened(fd, 2)), [1, 0]))


@answer(packed(2, 1, 9), packed(2, 5, 9))
def env_guarded(fd):
    a = fd.define_tensor([-1, 1, -1], [True, None, True])
    fd.add_output(fd.ops.sum(fd.ops.mul(a, opened(fd, 3)), [0, 1]))


@answer(packed(64, 32), packed(32), notes=("line 29: the region nvfusion1 is skipped; name='nvfusion1' reads it",))
def thunder_regions(fd):
    x, w = fd.define_tensor([64, 32], True), fd.define_tensor([32], True)
    e = fd.ops.exp(x)
    wide = fd.ops.broadcast_in_dim(w, [64, 32], [1])
    fd.add_output(fd.ops.mul(e, wide), stride_order=[0, 1])
    fd.add_output(wide)


@answer(packed(16, 8), packed(16, 8), ((16, 8), (1, 16)))
def thunder_backward(fd):
    a, b = (fd.define_tensor([16, 8], True, BFloat16) for _ in range(2))
    c = fd.define_tensor([16, 8], True, BFloat16, stride_order=[0, 1])
    a, b, c = (fd.ops.cast(each, Float) for each in (a, b, c))
    zero = fd.define_scalar(0.0, Double)
    fd.add_output(fd.ops.cast(fd.ops.mul(a, fd.ops.where(fd.ops.gt(c, zero), b, zero)), BFloat16))


@answer(packed(2, 3), packed(10, 4))
def embedding_opinfo(fd):
    ids, table = opened(fd, 2, Int), opened(fd, 2)
    fd.add_output(fd.ops.embedding_fwd(ids, table))


@answer(packed(2, 4, 64))
def namespace_config(fd):
    x = fd.define_tensor([2, 4, 64], True, BFloat16)
    fd.add_output(fd.ops.neg(fd.ops.permute(fd.ops.reshape(x, [2, 4, 4, 16]), [0, 2, 1, 3])))


@answer(packed(5, 9))
def rng_and_fill(fd):
    one = fd.define_scalar(1.0, Float)
    full = fd.ops.full([5, 9], one, Float)
    steps = fd.ops.iota(9, 0, 1, DataType.Int32)
    fd.add_output(fd.ops.add(full, opened(fd, 2)))
    fd.add_output(steps)


@answer(packed(2, 5, 3))
def stride_order_checks(fd):
    x = opened(fd, 3)
    fd.add_output(fd.ops.mul(x, x), stride_order=[0, 1, 2])


@answer(packed(2, 4), packed(2, 4))
def static_ops_module(fd):
    x, which = opened(fd, 2), opened(fd, 2, DataType.Bool)
    fd.add_output(fd.ops.where(which, x, fd.define_scalar(0.0, Double)))


@answer(packed(2, 3))
def prompt_session(fd):
    fd.add_output(fd.ops.reciprocal(fd.define_tensor([-1, 3], True)))


@answer(packed(3, 7, 11))
def diff_hunk(fd):
    fd.add_output(fd.ops.reshape(fd.ops.sum(fd.define_tensor([3, 7, 11], True), [0]), [77]))


@answer(((2, 4, 3), (12, 1, 4)), ((2, 4, 3), (12, 1, 4)), packed(2, 4, 3), ((2, 4, 3), (24, 6, 1)))
def tensor_methods(fd):
    turned = {"shape": [-1, -1, -1], "contiguity": True, "stride_order": [2, 0, 1]}
    a, b = fd.define_tensor(**turned), fd.define_tensor(**turned)
    c, d = opened(fd, 3), fd.define_tensor([-1, -1, -1], [True, False, True])
    fd.add_output(fd.ops.add(fd.ops.add(fd.ops.add(a, b), c), d))


@answer(packed(4, 5), packed(4, 5), 3.0)
def operators_in_definition(fd):
    x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
    s = fd.define_scalar(None, Double)
    z = fd.ops.sub(fd.ops.mul(fd.ops.add(x, y), 2.0), fd.ops.truediv(x, s))
    both = fd.ops.bitwise_and(fd.ops.gt(x, y), fd.ops.ge(y, 0.5))
    fd.add_output(fd.ops.where(both, fd.ops.neg(z), fd.ops.abs(z)))


@answer(packed(1024, 512))
def issue_two_fences(fd):
    x = opened(fd, 2)
    rows, columns = fd.ops.sum(x, [0]), fd.ops.sum(x, [1])
    fd.add_output(rows)
    fd.add_output(columns)


@answer(packed(2, 3, 4), packed(4), notes=("fusion_func_2 is skipped; name='fusion_func_2' reads it",))
def two_definitions_in_a_test(fd):
    x, w = opened(fd, 3), opened(fd, 1)
    fd.add_output(fd.ops.add(x, fd.ops.broadcast_in_dim(w, [2, 3, 4], [2])))


@answer(packed(16, 128, 192), notes=("the definition fusion_func_1 is skipped",))
def table_of_tests(fd):
    x = opened(fd, 3)
    for i in range(3):
        fd.add_output(fd.ops.slice(x, [0, 0, 64 * i], [16, 128, 64 * (i + 1)], [1, 1, 1]))


@answer(((2, 4, 8), (8, 16, 1)), packed(2, 4, 8), notes=(
    "line 10: assignments to single elements", "line 12: assignments to single elements",
))
def torch_infos(fd):
    x = fd.define_tensor([-1, -1, -1], True, BFloat16, stride_order=[1, 2, 0])
    mask = opened(fd, 3, DataType.Bool)
    least = -3.4028234663852886e38
    fd.add_output(fd.ops.max(fd.ops.where(mask, least, fd.ops.cast(x, Float)), [2]))


@answer(packed(6, 7))
def method_helpers(fd):
    fd.add_output(fd.ops.sum(opened(fd, 2, Double), [0]))


@answer(packed(4, 6))
def profiler_around(fd):
    x = fd.define_tensor([-1, 6], True, Half)
    fd.add_output(fd.ops.log1p(fd.ops.abs(fd.ops.cast(x, Float))))


@answer(packed(4, 50), packed(4, 1))
def int_indices(fd):
    table, places = fd.define_tensor([4, 50], True), fd.define_tensor([4, 1], [True, None], Int)
    fd.add_output(fd.ops.neg(fd.ops.take_along_axis(table, places, 1)))


@answer(packed(12), packed(12))
def inplace_alias(fd):
    old, new = opened(fd, 1), opened(fd, 1)
    both = fd.ops.add(old, new)
    tenth = fd.define_scalar(0.1, Double)
    fd.add_output(fd.ops.mul(both, tenth), old)
    fd.add_output(both)


@answer(packed(2, 3))
def while_and_walrus(fd):
    x = opened(fd, 2)
    for _ in range(3):
        x = fd.ops.sin(x)
    fd.add_output(fd.ops.mul(x, 2))


@answer(packed(8, 64), packed(64), notes=("the region nvfuser_fusion is skipped; name='line 26' reads it",))
def thunder_direct_regions(fd):
    x, bias = fd.define_tensor([8, 64], True, BFloat16), fd.define_tensor([64], True, BFloat16)
    row = fd.ops.broadcast(bias, [True, False])
    wide, narrow = fd.ops.cast(x, Float), fd.ops.cast(row, Float)
    fd.add_output(fd.ops.cast(fd.ops.add(wide, narrow), BFloat16))


@answer(packed(4, 8), notes=("for keepdim,", "for shape, dims,"))
def class_parametrized(fd):
    fd.add_output(fd.ops.sum(opened(fd, 2), [0], True))


@answer(packed(16, 4), packed())
def inputs_appended(fd):
    x, s = opened(fd, 2, Half), fd.define_tensor([], [], Float, is_cpu=True)
    fd.add_output(fd.ops.mul(x, s))


@answer(packed(6, 4))
def numpy_inputs(fd):
    fd.add_output(fd.ops.exp(opened(fd, 2)))


@answer(packed(3))
def numbered_lines(fd):
    fd.add_output(fd.ops.neg(opened(fd, 1)))


@answer(packed(3, 4), notes=("lines 8 to 12 are not part of the script",))
def pytest_source(fd):
    fd.add_output(fd.ops.neg(opened(fd, 2)))


@answer(packed(3, 5))
def set_up_class(fd):
    fd.add_output(fd.ops.sqrt(fd.ops.abs(opened(fd, 2))))


@answer(packed(8, 16), packed(4, 4))
def test_in_a_test(fd):
    x, places = opened(fd, 2), opened(fd, 2, Int)
    fd.add_output(fd.ops.gather(fd.ops.add(x, fd.define_scalar(1.0)), places, 0))
