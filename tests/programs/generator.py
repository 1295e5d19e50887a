"""Random programs, and norm-like ones over rows of every length."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

from fuser_lab import DataType as D
from fuser_lab import FusionDefinition
from fuser_lab.errors import FuserLabError
from tests.programs.oracle import input_value, results
from tests.programs.program import NUMPY, Call, Input, Program, Ref, ScalarInput, Size, called
from tests.programs.values import FLOATS, KIND, REDUCED, Unsupported, Value

SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31, 32, 37, 64)
MOST_ELEMENTS, MOST_AXES = 400, 6
SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.0, -1.0)
UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "exp2", "expm1", "erf", "lgamma", "log",
    "log10", "log1p", "log2", "sigmoid", "sin", "sinh", "tan", "tanh", "reciprocal", "rsqrt", "sqrt",
)
KEEPING = ("ceil", "floor", "round", "trunc", "frac", "abs", "relu", "sign", "set", "segment_set", "silu", "neg", "neg")
PREDICATES = ("isfinite", "isinf", "isnan", "isneginf", "isposinf", "signbit", "logical_not")
BINARY = (
    "add", "add", "sub", "sub", "mul", "mul", "div", "truediv", "fmod", "mod", "remainder", "maximum", "minimum", "pow",
    "atan2",
)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
DTYPES = (*[D.Float] * 10, D.Double, D.Double, *[D.Half] * 2, *[D.BFloat16] * 3, D.Int, D.Int, D.Int32, D.Bool)


@dataclass(slots=True)
class Growing:
    """A program under construction: its values by torch, and its definition so far."""

    rng: Random
    refused: Counter[str]
    inputs: list[Input | ScalarInput] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    fd: Any = None

    def add_input(self, given: Input | ScalarInput) -> Ref:
        """Declare an input."""
        self.inputs.append(given)
        self.values.append(input_value(given))
        return Ref(len(self.values) - 1)

    def begin(self) -> None:
        """Record the inputs."""
        self.fd = FusionDefinition()
        self.fd.__enter__()
        for given in self.inputs:
            handle = given.define(self.fd) if isinstance(given, Input) else self.fd.define_scalar(None, given.dtype)
            self.handles.append(handle)

    def call(self, op: str, *args: Any, **kwargs: Any) -> list[Ref] | None:
        """Add a call unless torch or fuser_lab refuses it, or it has too many elements; return its results."""
        call = Call(op=op, args=args, kwargs=tuple(kwargs.items()))
        try:
            found = results(call, self.values)
        except Unsupported:
            return None
        if any(x.v.numel() > MOST_ELEMENTS * 2 or x.v.ndim > MOST_AXES for x in found):
            return None
        try:
            handles = called(self.fd, call, self.handles)
        except FuserLabError as error:
            self.refused[f"{op}: {' '.join(str(error).split())[:90]}"] += 1
            return None
        call = Call(op=op, args=args, kwargs=call.kwargs, results=len(handles))
        first = len(self.values)
        self.calls.append(call)
        self.values += found
        self.handles += handles
        if len(handles) != len(found):
            msg = f"{call} gives {len(handles)} results, not {len(found)}"
            raise AssertionError(msg)
        return [Ref(first + k) for k in range(len(found))]

    def tensors(self, fits: Callable[[Value], bool] = lambda _: True) -> list[Ref]:
        """Return the tensors of some kind."""
        return [Ref(k) for k, x in enumerate(self.values) if not x.scalar and fits(x)]

    def pick(self, fits: Callable[[Value], bool] = lambda _: True) -> Ref | None:
        """Return one tensor of some kind, later ones more often."""
        found = self.tensors(fits)
        if not found:
            return None
        return self.rng.choice(found[-5:] if self.rng.random() < 0.6 else found)

    def of(self, ref: Ref) -> Value:
        """Return a value."""
        return self.values[ref.number]


def program_of(seed: int, index: int, refused: Counter[str], *, most_calls: int = 24) -> Program:
    """Return the program of a number."""
    rng = Random(f"programs {seed} {index}")
    growing = Growing(rng, refused)
    sizes = [rng.choice(SIZES) for _ in range(rng.randint(2, 4))]
    if rng.random() < 0.08:
        sizes[0] = 0
    main = _shape(rng, sizes)
    static, special = rng.random(), rng.random() < 0.3
    for _ in range(rng.randint(1, 3)):
        shape = main if rng.random() < 0.5 else _related(rng, main, sizes)
        growing.add_input(_input(rng, shape, rng.choice(DTYPES), static, special=special and rng.random() < 0.6))
    if rng.random() < 0.25:
        scalar = rng.choice((ScalarInput(value=rng.uniform(-3, 3), dtype=D.Double),
                             ScalarInput(value=rng.randint(1, 4), dtype=D.Int)))
        growing.add_input(scalar)
    growing.begin()
    wanted, tries = rng.randint(1, most_calls), 0
    while len(growing.calls) < wanted and tries < 4 * most_calls:
        tries += 1
        rng.choices(MAKERS, WEIGHTS)[0](growing)
    return _finished(growing)


def _finished(growing: Growing) -> Program:
    rng, first = growing.rng, len(growing.inputs)
    if not growing.calls:
        growing.call("neg", growing.tensors()[0]) or growing.call("set", growing.tensors()[0])
    read = set().union(*(call.refs() for call in growing.calls))
    count = len(growing.values)
    ends = [k for k in range(first, count) if k not in read]
    more = [k for k in range(first, count) if k in read and rng.random() < 0.12]
    outputs = [k for k in (*ends, *more) if not growing.values[k].scalar]
    if len(outputs) > 5:
        outputs = sorted(rng.sample(outputs, 5))
    program = Program(inputs=tuple(growing.inputs), calls=tuple(growing.calls), outputs=tuple(outputs))
    return program.live()


def _shape(rng: Random, sizes: Sequence[int]) -> tuple[int, ...]:
    rank = rng.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 5, 6))
    shape = [rng.choice(sizes) for _ in range(rank)]
    while prod(shape) > MOST_ELEMENTS:
        shape[max(range(rank), key=shape.__getitem__)] = rng.choice((1, 2, 3))
    return tuple(shape)


def _related(rng: Random, shape: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
    kind = rng.randrange(4)
    if kind == 0:
        return shape[rng.randint(0, len(shape)):]
    if kind == 1:
        return tuple(1 if rng.random() < 0.4 else n for n in shape)
    if kind == 2:
        return tuple(rng.sample(shape, len(shape)))
    return _shape(rng, sizes)


def _numbers(rng: Random, shape: tuple[int, ...], dtype: D, *, special: bool) -> np.ndarray:
    numbers = np.random.default_rng(rng.randrange(2**32))
    kind = NUMPY[dtype]
    if dtype is D.Bool:
        return np.asarray(numbers.random(shape) < 0.5)
    if dtype not in FLOATS:
        found = numbers.integers(-9, 10, shape)
        if special:
            ends = np.iinfo(kind)
            picks = np.array([ends.max, ends.min, ends.max - 1, 2**31 - 1, -(2**31), 2**24 + 1, 0], dtype=object)
            found = np.where(numbers.random(shape) < 0.2, picks[numbers.integers(0, len(picks), shape)], found)
        return np.asarray(found).astype(kind)
    how = rng.randrange(5)
    found = numbers.standard_normal(shape) * (1, 1, 3, 30, 1)[how]
    if how == 4:
        found = np.round(found * 4)
    if special:
        info = ml_dtypes.finfo(kind)
        more = [info.smallest_subnormal, info.tiny, info.max, -info.max, info.eps, 1e4, -1e-3]
        picks = np.array([*SPECIAL, *map(float, more)])
        picks = picks[numbers.permutation(len(picks))[: rng.randint(1, len(picks))]]
        taken = picks[numbers.integers(0, len(picks), shape)]
        found = np.where(numbers.random(shape) < rng.choice((0.02, 0.2)), taken, found)
    with np.errstate(all="ignore"):
        return np.asarray(found).astype(kind)


def _input(
    rng: Random, shape: tuple[int, ...], dtype: D, static: float, *, special: bool, kind: str | None = None,
) -> Input:
    kind = kind or rng.choice(("dense", "dense", "dense", "permuted", "stepped", "backwards", "expanded"))
    kind = kind if shape else "dense"
    base_shape, view, contiguity = shape, "a", rng.choice((True, True, False))
    declared = tuple(-1 if rng.random() > static and (n != 1 or rng.random() < 0.15) else n for n in shape)
    if kind == "permuted":
        order = rng.sample(range(len(shape)), len(shape))
        base_shape, contiguity = tuple(shape[order.index(k)] for k in range(len(shape))), False
        view = f"a.transpose({order})"
        base_shape = tuple(dict(zip(order, shape, strict=True))[k] for k in range(len(shape)))
    elif kind == "stepped":
        steps = [rng.choice((1, 1, 2, 3)) for _ in shape]
        starts = [rng.choice((0, 0, 1, 2)) for _ in shape]
        base_shape = tuple(a + max(n - 1, 0) * s + 1 if n else a for a, n, s in zip(starts, shape, steps, strict=True))
        view, contiguity = _indexed(f"{a}::{s}" for a, s in zip(starts, steps, strict=True)), False
    elif kind == "backwards":
        flags = [rng.random() < 0.6 for _ in shape]
        view, contiguity = _indexed("::-1" if flag else ":" for flag in flags), False
    elif kind == "expanded":
        flags = [rng.random() < 0.5 for _ in shape]
        base_shape = tuple(1 if flag else n for n, flag in zip(shape, flags, strict=True))
        view, contiguity = f"np.broadcast_to(a, {shape})", False
        if rng.random() < 0.5:
            contiguity = tuple(None if flag or d == 1 else False for flag, d in zip(flags, declared, strict=True))
    return Input(base=_numbers(rng, base_shape, dtype, special=special), dtype=dtype, view=view, declared=declared,
                 contiguity=contiguity)


def _indexed(slices: Any) -> str:
    return f"a[{', '.join(slices)}]"


# Calls


def _unary(g: Growing) -> None:
    x = g.pick()
    op = g.rng.choice(UNARY)
    if x is None:
        return
    if op in {"log", "log2", "log10", "sqrt", "rsqrt", "acosh", "lgamma"} and g.rng.random() < 0.6:
        made = g.call("abs", x)
        x = made[0] if made else x
    g.call(op, x)


def _keeping(g: Growing) -> None:
    x = g.pick()
    if x is not None:
        g.call(g.rng.choice(KEEPING), x)


def _predicate(g: Growing) -> None:
    x = g.pick(lambda x: x.is_float)
    if x is not None:
        g.call(g.rng.choice(PREDICATES), x)


def _fitting(g: Growing, x: Ref, fits: Callable[[Value], bool] = lambda _: True) -> Ref:
    """Return a tensor whose shape broadcasts with another's."""
    shape = g.of(x).shape

    def broadcasts(y: Value) -> bool:
        pairs = zip(reversed(shape), reversed(y.shape), strict=False)
        return fits(y) and all(a == b or 1 in {a, b} for a, b in pairs)

    return g.pick(broadcasts) or x


def _constant(g: Growing, x: Ref) -> Any:
    scalars = [Ref(k) for k, y in enumerate(g.values) if y.scalar]
    if scalars and g.rng.random() < 0.4:
        return g.rng.choice(scalars)
    if g.of(x).shape and g.rng.random() < 0.1:
        return Size(x, g.rng.randrange(len(g.of(x).shape)))
    return g.rng.choice((2, 3, -1, 0.5, 1.5, -2.0, 1e-3, 7, 0.0, 1.0))


def _binary(g: Growing) -> None:
    x = g.pick()
    if x is None:
        return
    op = g.rng.choice(BINARY)
    y = _fitting(g, x) if g.rng.random() < 0.7 else _constant(g, x)
    pair = (x, y) if g.rng.random() < 0.7 else (y, x)
    g.call(op, *pair)


def _comparison(g: Growing) -> None:
    x = g.pick()
    if x is not None:
        g.call(g.rng.choice(COMPARISONS), x, _fitting(g, x) if g.rng.random() < 0.6 else _constant(g, x))


def _whole(g: Growing) -> None:
    x = g.pick(lambda x: KIND[x.dtype] < 2)
    if x is not None:
        op = g.rng.choice(("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "logical_and", "logical_or"))
        g.call(op, x, _fitting(g, x, lambda y: KIND[y.dtype] < 2))


def _where(g: Growing) -> None:
    c = g.pick(lambda x: x.dtype is D.Bool)
    if c is None:
        x = g.pick(lambda x: KIND[x.dtype] > 0)
        made = g.call("gt", x, 0) if x is not None else None
        c = made[0] if made else None
    if c is not None:
        x = _fitting(g, c)
        g.call("where", c, x, _constant(g, x) if g.rng.random() < 0.3 else _fitting(g, x))


def _bounded(g: Growing) -> None:
    x = g.pick(lambda x: x.dtype is not D.Bool)
    if x is None:
        return
    kind = g.rng.randrange(4)
    whole = KIND[g.of(x).dtype] < 2
    if kind == 0:
        g.call("clamp", x, *((-2, 3) if whole else (-0.5, 1.25)))
    elif kind == 1:
        g.call("threshold", x, *((1, -4) if whole else (0.25, -4.0)))
    else:
        y, z = _fitting(g, x), _fitting(g, x)
        g.call("lerp", x, y, g.rng.choice((0.25, z))) if kind == 2 else g.call("addcmul", x, y, z, 0.5)


def _dims(g: Growing, x: Ref) -> list[int]:
    rank = len(g.of(x).shape)
    chosen = sorted(g.rng.sample(range(rank), g.rng.randint(1, min(rank, 3))))
    return [d - rank if g.rng.random() < 0.3 else d for d in chosen]


def _reduction(g: Growing) -> None:
    x = g.pick(lambda x: x.v.ndim > 0)
    if x is None:
        return
    op, keep = g.rng.choice(("sum", "sum", "sum", "max", "min", "prod")), g.rng.random() < 0.5
    made = g.call(op, x, _dims(g, x), keep) if g.rng.random() < 0.93 else g.call(op, x)
    if made and keep and g.rng.random() < 0.5:
        g.call(g.rng.choice(("sub", "mul", "add", "truediv")), x, made[0])


def _statistics(g: Growing) -> None:
    x = g.pick(lambda x: x.v.ndim > 0 and x.is_float)
    if x is None:
        return
    op = g.rng.choice(("var", "var_mean", "var_mean", "welford"))
    if op == "welford":
        g.call(op, x, _dims(g, x))
    else:
        g.call(op, x, _dims(g, x), g.rng.choice((0, 1, 1, 2)), g.rng.random() < 0.6)


def _reshape(g: Growing) -> None:
    x = g.pick()
    if x is None:
        return
    shape = list(g.of(x).shape)
    new = list(shape)
    for _ in range(g.rng.randint(1, 3)):
        kind = g.rng.randrange(4)
        if kind == 0 and len(new) > 1:
            k = g.rng.randrange(len(new) - 1)
            new[k : k + 2] = [new[k] * new[k + 1]]
        elif kind == 1 and new:
            k = g.rng.randrange(len(new))
            factors = [f for f in (2, 3, 4, 5, 7, 8, 11, 13) if new[k] and new[k] % f == 0]
            if factors:
                f = g.rng.choice(factors)
                new[k : k + 1] = [f, new[k] // f] if g.rng.random() < 0.5 else [new[k] // f, f]
        elif kind == 2:
            new.insert(g.rng.randint(0, len(new)), 1)
        elif 1 in new:
            new.remove(1)
    if len(new) <= MOST_AXES:
        if new and 0 not in new and g.rng.random() < 0.3:
            new[g.rng.randrange(len(new))] = -1
        g.call("reshape", x, new)


def _movement(g: Growing) -> None:
    x = g.pick()
    if x is None:
        return
    rng, shape = g.rng, g.of(x).shape
    rank = len(shape)
    kind = rng.randrange(10)
    if kind == 0 and rank > 1:
        g.call("permute", x, rng.sample(range(rank), rank))
    elif kind == 1 and rank < MOST_AXES:
        flags = [False] * rank
        flags.insert(rng.randint(0, rank), True)
        g.call("broadcast", x, flags)
    elif kind == 2 and rank < MOST_AXES:
        place, size = rng.randint(0, rank), rng.choice((1, 2, 3, 5))
        new = [*shape[:place], size, *shape[place:]]
        g.call("broadcast_in_dim", x, new, [k for k in range(rank + 1) if k != place])
    elif kind == 3 and 1 in shape:
        new = [rng.choice((1, 2, 3, -1, 7)) if n == 1 else rng.choice((n, -1)) for n in shape]
        g.call("expand", x, new)
    elif kind == 4 and 1 in shape:
        g.call("squeeze", x, [rng.choice([k for k, n in enumerate(shape) if n == 1])])
    elif kind in {5, 6} and rank:
        starts = [rng.randint(0, n) if rng.random() < 0.5 else 0 for n in shape]
        ends = [rng.randint(a, n) if rng.random() < 0.4 else n for a, n in zip(starts, shape, strict=True)]
        g.call("slice", x, starts, ends)
    elif kind in {7, 8} and rank:
        count = rng.randint(1, min(rank, 2))
        widths = [rng.choice((0, 0, 1, 2, 3, -1)) for _ in range(2 * count)]
        fill = {} if rng.random() < 0.5 else {"value": _fill(rng, g.of(x).dtype)}
        if all(shape[-1 - k] + widths[2 * k] + widths[2 * k + 1] >= 0 for k in range(count)):
            g.call("pad", x, widths, **fill)
    elif kind == 9 and rank:
        ranks = rng.sample(range(rank), rank)
        g.call("stride_order", x, ranks)


def _fill(rng: Random, dtype: D) -> bool | int | float:
    if dtype is D.Bool:
        return True
    return rng.choice((0, 1, -3)) if KIND[dtype] < 2 else rng.choice((0.0, 1.0, -2.5, float("inf"), float("nan")))


def _cat(g: Growing) -> None:
    x = g.pick(lambda x: x.v.ndim > 0)
    if x is None:
        return
    shape, dtype = g.of(x).shape, g.of(x).dtype
    dim = g.rng.randrange(len(shape))

    def fits(y: Value) -> bool:
        return (y.dtype is dtype and len(y.shape) == len(shape)
                and all(k == dim or a == b for k, (a, b) in enumerate(zip(shape, y.shape, strict=True))))

    parts = [g.pick(fits) or x for _ in range(g.rng.randint(1, 3))]
    g.call("cat", parts, g.rng.choice((dim, dim - len(shape))))


def _cast(g: Growing) -> None:
    x = g.pick()
    if x is not None:
        g.call("cast", x, g.rng.choice((D.Float, D.Float, D.Double, D.Half, *[D.BFloat16] * 2, D.Int, D.Int32, D.Bool)))


def _factory(g: Growing) -> None:
    rng = g.rng
    x = g.pick()
    shape = [Size(x, k) if rng.random() < 0.4 else n for k, n in enumerate(g.of(x).shape)] if x is not None else [3]
    if rng.random() < 0.5:
        g.call("full", shape, rng.choice((0.0, 1.0, -2.5, 1e4)), rng.choice(FLOATS))
    else:
        dtype = rng.choice((D.Int, D.Int32, D.Float, D.Double))
        length = rng.choice(shape) if shape and rng.random() < 0.6 else rng.choice((0, 1, 5, 17))
        start, step = rng.choice(((0, 1), (3, 2), (5, -1)))
        if dtype in FLOATS:
            start, step = start * 0.5, step * 0.25
        g.call("iota", length, start, step, dtype)


def _index(g: Growing) -> None:
    rng = g.rng
    x = g.pick(lambda x: x.v.ndim > 0 and 0 not in x.shape)
    if x is None:
        return
    shape = g.of(x).shape
    dim, size = (d := rng.randrange(len(shape))), shape[d]
    kind = rng.randrange(6)

    def inside(fits: Callable[[Value], bool]) -> Ref | None:
        """Return a tensor of legal positions."""
        return g.pick(lambda y: y.dtype in {D.Int, D.Int32} and fits(y) and not bool(y.u.any())
                      and bool(((y.v >= 0) & (y.v < size)).all()))

    if kind == 0:
        g.call("triu", x, rng.choice((0, 1, -1)))
    elif kind == 1:
        _select(g, x, dim, size)
    elif kind == 2:
        at = inside(lambda y: y.v.ndim == 1) or _new_positions(g, [rng.choice((1, 2, 5))], size)
        if at is not None:
            g.call("index_select", x, at, dim)
    elif kind == 3:
        at = inside(lambda y: y.shape == shape) or _new_positions(g, list(shape), size)
        if at is not None:
            g.call(rng.choice(("gather", "take_along_axis")), x, at, dim)
    elif kind == 4 and len(shape) == 2:
        at = _new_positions(g, [rng.choice((1, 3)), 2], shape[0])
        if at is not None:
            g.call("embedding_fwd", at, x)
    elif kind == 5:
        at = g.call("iota", size, 0, 1, D.Int)
        if at is not None and len(shape) == 1:
            source = g.pick(lambda y: y.dtype is g.of(x).dtype and y.shape == shape)
            if source is not None:
                g.call("scatter", x, at[0], source, 0)


def _select(g: Growing, x: Ref, dim: int, size: int) -> None:
    """Select at a position that is a scalar input, or the size of an axis."""
    scalars = [Ref(k) for k, y in enumerate(g.values) if y.scalar and y.dtype is D.Int and 0 <= int(y.v) < size]
    sizes = [Size(y, k) for y in g.tensors() for k, n in enumerate(g.of(y).shape) if n < size]
    if scalars or sizes:
        g.call("select", x, g.rng.choice(scalars or sizes), dim)


def _new_positions(g: Growing, shape: list[int], size: int) -> Ref | None:
    """Return computed positions: a counter modulo the size, broadcast to a shape."""
    count = prod(shape)
    made = g.call("iota", count, g.rng.randrange(size), g.rng.choice((1, 2, 5)), g.rng.choice((D.Int, D.Int32)))
    made = g.call("mod", made[0], size) if made else None
    if made and len(shape) != 1:
        made = g.call("reshape", made[0], shape)
    return made[0] if made else None


def _scan(g: Growing) -> None:
    x = g.pick(lambda x: x.v.ndim > 0)
    if x is None:
        return
    dim = g.rng.randrange(len(g.of(x).shape))
    if g.rng.random() < 0.7:
        g.call(g.rng.choice(("cumsum", "cummax", "cummin")), x, dim)
    else:
        g.call("argsort", x, dim, g.rng.random() < 0.5, True)


def _matrices(g: Growing) -> None:
    x = g.pick(lambda x: x.v.ndim > 0 and x.is_float)
    if x is None:
        return
    a = g.of(x)

    def fits(y: Value) -> bool:
        return y.dtype is a.dtype and y.v.ndim > 0 and y.shape[-2 if y.v.ndim > 1 else 0] == a.shape[-1]

    y = g.pick(fits)
    if y is not None and g.rng.random() < 0.7:
        g.call("matmul", x, y)
    else:
        w = g.pick(lambda y: y.dtype is a.dtype and y.v.ndim == 2 and y.shape[1] == a.shape[-1])
        if w is not None:
            bias = g.pick(lambda y: y.dtype is a.dtype and y.shape == (g.of(w).shape[0],))
            g.call("linear", x, w, *([bias] if bias is not None and g.rng.random() < 0.5 else []))


def _norm(g: Growing) -> None:
    x = g.pick(lambda x: x.v.ndim > 0 and x.is_float)
    if x is not None:
        dims = [d % len(g.of(x).shape) for d in _dims(g, x)]
        g.rng.choice(NORMS)(g, x, dims)


MAKERS = (
    _unary, _keeping, _predicate, _binary, _comparison, _whole, _where, _bounded, _reduction, _statistics, _reshape,
    _movement, _cat, _cast, _factory, _index, _scan, _matrices, _norm,
)
WEIGHTS = (14, 8, 2, 22, 4, 3, 4, 5, 12, 4, 8, 16, 4, 8, 3, 5, 2, 2, 6)


# Norm-like fusions


def _wide(g: Growing, x: Ref) -> Ref:
    """Return a tensor converted to the dtype of its computation."""
    if g.of(x).dtype not in REDUCED:
        return x
    made = g.call("cast", x, D.Float)
    return made[0] if made else x


def _back(g: Growing, x: Ref | None, like: Ref) -> None:
    """Add the conversion of a result to the type of the input."""
    if x is not None and g.of(x).dtype is not g.of(like).dtype:
        g.call("cast", x, g.of(like).dtype)


def _chain(g: Growing, *steps: tuple[str, Callable[[list[Ref]], tuple[Any, ...]]]) -> list[Ref] | None:
    """Add calls in sequence, each a function of the results so far; None if one is refused."""
    found: list[Ref] = []
    for op, arguments in steps:
        made = g.call(op, *arguments(found))
        if not made:
            return None
        found += made
    return found


def softmax(g: Growing, x: Ref, dims: list[int]) -> None:
    """Softmax."""
    w = _wide(g, x)
    made = _chain(
        g, ("max", lambda _: (w, dims, True)), ("sub", lambda f: (w, f[0])), ("exp", lambda f: (f[1],)),
        ("sum", lambda f: (f[2], dims, True)), ("truediv", lambda f: (f[2], f[3])),
    )
    _back(g, (made and made[-1]) or None, x)


def log_softmax(g: Growing, x: Ref, dims: list[int]) -> None:
    """Logarithm of softmax."""
    w = _wide(g, x)
    made = _chain(
        g, ("max", lambda _: (w, dims, True)), ("sub", lambda f: (w, f[0])), ("exp", lambda f: (f[1],)),
        ("sum", lambda f: (f[2], dims, True)), ("log", lambda f: (f[3],)), ("sub", lambda f: (f[1], f[4])),
    )
    _back(g, (made and made[-1]) or None, x)


def layer_norm(g: Growing, x: Ref, dims: list[int]) -> None:
    """Layer norm by Welford's algorithm."""
    w = _wide(g, x)
    made = _chain(
        g, ("var_mean", lambda _: (w, dims, 0, True)), ("add", lambda f: (f[0], 1e-2)), ("rsqrt", lambda f: (f[2],)),
        ("sub", lambda f: (w, f[1])), ("mul", lambda f: (f[4], f[3])),
    )
    _back(g, (made and made[-1]) or None, x)


def rms_norm(g: Growing, x: Ref, dims: list[int]) -> None:
    """Division by the root of the mean square."""
    w = _wide(g, x)
    count = float(max(prod(g.of(x).shape[d] for d in dims), 1))
    made = _chain(
        g, ("mul", lambda _: (w, w)), ("sum", lambda f: (f[0], dims, True)), ("truediv", lambda f: (f[1], count)),
        ("add", lambda f: (f[2], 1e-2)), ("rsqrt", lambda f: (f[3],)), ("mul", lambda f: (w, f[4])),
    )
    _back(g, (made and made[-1]) or None, x)


def centered(g: Growing, x: Ref, dims: list[int]) -> None:
    """Deviations from the mean, and their largest magnitude."""
    w = _wide(g, x)
    count = float(max(prod(g.of(x).shape[d] for d in dims), 1))
    _chain(
        g, ("sum", lambda _: (w, dims, True)), ("div", lambda f: (f[0], count)), ("sub", lambda f: (w, f[1])),
        ("abs", lambda f: (f[2],)), ("max", lambda f: (f[3], dims)),
    )


def gradient(g: Growing, x: Ref, dims: list[int]) -> None:
    """Two sums of one product, each read again, as in backward passes of norms."""
    w = _wide(g, x)
    made = _chain(
        g, ("tanh", lambda _: (w,)), ("mul", lambda f: (w, f[0])), ("sum", lambda f: (f[1], dims, True)),
        ("sum", lambda f: (f[0], dims, True)), ("mul", lambda f: (f[0], f[2])), ("sub", lambda f: (f[4], f[3])),
    )
    _back(g, (made and made[-1]) or None, x)


NORMS = (softmax, log_softmax, layer_norm, rms_norm, centered, gradient)
ROW_DTYPES = (D.Float, D.Half, D.BFloat16, D.Double)
ROW_LAYOUTS = ("rows", "columns", "channels")
ROWS = 130 * len(NORMS) * len(ROW_LAYOUTS)


def row_program(seed: int, index: int, refused: Counter[str]) -> Program:
    """Return a norm-like fusion over rows of ``index % 130 + 1`` elements; all forms occur within `ROWS`."""
    rng = Random(f"rows {seed} {index}")
    length, rest = index % 130 + 1, index // 130
    norm, layout = NORMS[rest % len(NORMS)], ROW_LAYOUTS[rest // len(NORMS) % len(ROW_LAYOUTS)]
    # Two channels of rows must not exceed the number of elements that a call may have.
    many = min(rng.choice((1, 2, 3, 5)), MOST_ELEMENTS // length)
    shape, dims = {
        "rows": ((many, length), [1]), "columns": ((length, many), [0]), "channels": ((2, many, length), [0, 2]),
    }[layout]
    growing = Growing(rng, refused)
    kind = rng.choice(("dense", "dense", "dense", "permuted", "stepped"))
    growing.add_input(_input(rng, shape, rng.choice(ROW_DTYPES), rng.random(), special=rng.random() < 0.1, kind=kind))
    growing.begin()
    norm(growing, Ref(0), dims)
    return _finished(growing)
