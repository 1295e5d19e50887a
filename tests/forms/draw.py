"""Forms drawn from small independent choices, and small changes of forms.

A drawn program is a few values over one space of up to four axes, and some of what kernels are for: sums along any axes
whose results are read again, scans, masks and weights that are broadcast in stages, windows, look-ups, views, random
numbers, several readers and several outputs. A change replaces one choice by another.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from random import Random
from typing import Any

from fuser_lab.cost.device import DEVICES
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import OpKind
from fuser_lab.ops import OPS
from tests.forms.check import QUESTIONS
from tests.forms.form import Change, Form, Given, Number

MOST_ELEMENTS = 1 << 17
FLOATS = ("Float", "Float", "Float", "BFloat16", "Half", "Double")
WHOLE = ("Int", "Int32", "Bool", "Short", "Char", "Byte", "UInt64")
OTHER = ("ComplexFloat", "ComplexDouble", "Float8_e4m3fn", "Float8_e5m2", "Float8_e8m0fnu")
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65, 77, 96, 100, 128, 130, 200, 256)
LONG = (300, 512, 513, 1000, 1024, 1500, 2048, 2051, 3000, 4096, 5000, 8192, 9001, 16_384, 20_000, 33_000, 65_536)
# Ops of one operand whose results are small for any operand.
TAME = ("tanh", "sigmoid", "neg", "abs", "sin", "cos", "atan", "erf", "relu", "sign", "square_root")
POINTWISE = tuple(
    name for name, op in OPS.items() if op.kind is OpKind.POINTWISE and op.positional_only and op.arity in {1, 2}
)
_FEW = 4096  # elements of operands of several ops, whose kernels are long
STRATEGIES = ("bottom_up",) * 40 + ("top_down", "top_down", "saving", "unfused", "optimal", "fastest")
OPTIONS = ("fuse_matmul", "memory_promotion", "io_to_lower_precision", "forward_broadcasts", "cut_resize_inputs")
LIMITS = (
    ("sms", (1, 2, 4, 8, 16, 40, 300)), ("shared_per_block", (0, 2048, 8192, 49_152)),
    ("shared_per_sm", (0, 16_384, 65_536)), ("registers", (2048, 8192, 16_384, 32_768)),
    ("max_threads_per_block", (64, 128, 256, 512)), ("l2", (0, 4096, 65_536, 10**6)), ("bandwidth", (100, 20_000)),
)


class Sketch:
    """A program under construction, recorded with its sizes so that each call is legal."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._fd: Any = FusionBuilder().__enter__()
        self.names: dict[str, Any] = {"fd": self._fd, "DataType": DataType}
        self.inputs: list[Given | Number] = []
        self.calls: list[tuple[tuple[str, ...], str]] = []
        self.tensors: list[str] = []

    @classmethod
    def of(cls, form: Form, rng: Random) -> "Sketch | None":
        """Return the sketch of a form, or None if a call is illegal."""
        sketch = cls(rng)
        for one in form.inputs:
            sketch.add(one)
        for names, text in form.calls:
            if sketch.call(text, names) is None:
                return None
        return sketch

    def add(self, given: Given | Number) -> str:
        """Add an input."""
        dtype = getattr(DataType, given.dtype)
        if isinstance(given, Given):
            flags = [None if n == 1 or k in given.expanded else True for k, n in enumerate(given.shape)]
            self.names[given.name] = self._fd.define_tensor(list(given.shape), flags, dtype)
            self.tensors.append(given.name)
        else:
            self.names[given.name] = self._fd.define_scalar(None, dtype)
        self.inputs.append(given)
        return given.name

    def input(self, shape: Sequence[int], dtype: str, below: int = 0) -> str:
        """Add a tensor in some layout."""
        given = Given(name=self.name(), shape=tuple(shape), dtype=dtype, below=below)
        return self.add(laid_out(given, self.rng))

    def name(self, more: int = 0) -> str:
        """Return an unused name."""
        last = max((int(name[1:]) for name in self.names if name[1:].isdigit()), default=-1)
        return f"t{last + 1 + more}"

    def call(self, text: str, results: Sequence[str] = ()) -> str | None:
        """Add a call, and return the name of its first result; None if it is illegal or too large."""
        try:
            made = eval(text, self.names)
        except (FuserLabError, ValueError, TypeError, IndexError):
            return None
        values = list(made) if isinstance(made, list | tuple) else [made]
        if not values or not all(hasattr(v, "ndim") and prod(v.val.shape) <= MOST_ELEMENTS for v in values):
            return None
        names = tuple(results) or tuple(self.name(k) for k in range(len(values)))
        self.names.update(zip(names, values, strict=True))
        self.calls.append((names, text))
        self.tensors += names
        return names[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        shape: tuple[int, ...] = self.names[name].val.shape
        return shape

    def dtype(self, name: str) -> DataType:
        """Return the dtype of a value."""
        dtype: DataType = self.names[name].val.dtype
        return dtype

    def pick(self, accept: Callable[[str], bool] = lambda name: True) -> str | None:
        """Return a value, the latest ones more often; None if none is accepted."""
        fits = [name for name in self.tensors if accept(name)]
        if not fits:
            return None
        return self.rng.choice(fits[-3:] if self.rng.random() < 0.6 else fits)

    def floats(self) -> str | None:
        """Return a value of a float type."""
        return self.pick(lambda name: self.dtype(name).is_float)

    def form(self, rng: Random) -> Form:
        """Return the program with outputs: what nothing reads, and some of the rest."""
        made = [name for names, _ in self.calls for name in names]
        read = {word for _, text in self.calls for word in re.findall(r"t\d+", text)}
        outputs = [name for name in made if name not in read or rng.random() < 0.12]
        rng.shuffle(outputs)
        outputs = outputs[: rng.choice((1, 2, 3, 4))]
        return Form(inputs=tuple(self.inputs), calls=tuple(self.calls), outputs=tuple(outputs))


def laid_out(given: Given, rng: Random) -> Given:
    """Return an input with another layout in half of all cases."""
    rank = len(given.shape)
    if not rank or rng.random() < 0.6:
        return given
    plain = replace(given, order=(), step=1, backwards=(), expanded=(), alignment=16, symbolic=False)
    kind = rng.randrange(6)
    if kind == 0:
        return replace(plain, order=tuple(rng.sample(range(rank), rank)))
    if kind == 1:
        return replace(plain, step=rng.choice((2, 3)))
    if kind == 2:
        return replace(plain, backwards=(rng.randrange(rank),))
    if kind == 3:
        return replace(plain, expanded=(rng.randrange(rank),))
    if kind == 4:
        return replace(plain, alignment=rng.choice((1, 2, 4, 8)))
    return replace(plain, symbolic=True)


def space(rng: Random) -> tuple[int, ...]:
    """Return the sizes of a space of one to four axes."""
    rank = rng.choice((1, 2, 2, 2, 2, 3, 3, 4))
    sizes = [rng.choice(LONG if rng.random() < 0.35 else SIZES) for _ in range(rank)]
    while prod(sizes) > MOST_ELEMENTS:
        longest = max(range(rank), key=lambda k: sizes[k])
        others = [k for k in range(rank) if k != longest]
        shrunk = rng.choice(others) if others and rng.random() < 0.7 else longest
        sizes[shrunk] = max(sizes[shrunk] // rng.choice((2, 3, 8)), 1)
    return tuple(sizes)


def drawn(rng: Random) -> Form:
    """Return a new form."""
    sketch, sizes = Sketch(rng), space(rng)
    dtype = rng.choice(FLOATS if rng.random() < 0.85 else WHOLE if rng.random() < 0.6 else OTHER)
    sketch.input(sizes, dtype)
    if rng.random() < 0.4:
        sketch.input(sizes, dtype if rng.random() < 0.7 else rng.choice(FLOATS))
    wanted = rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8))
    for _ in range(4 * wanted):
        if len(sketch.calls) >= wanted:
            break
        rng.choice(WEIGHTED)(sketch)
    while not sketch.calls:
        sketch.call(f"fd.ops.neg({sketch.tensors[0]})") or sketch.call(f"fd.ops.set({sketch.tensors[0]})")
    return around(sketch.form(rng), rng).live()


def around(form: Form, rng: Random) -> Form:
    """Return a program with other choices of device, target, strategy and questions."""
    limits = {}
    if rng.random() < 0.3:
        for name, values in rng.sample(LIMITS, rng.choice((1, 1, 2))):
            limits[name] = rng.choice(values)
    return replace(
        form, target=rng.choice(("cuda", "cuda", "cpu")),
        device=rng.choice(("H200", "H200", *(device.name for device in DEVICES))),
        limits=tuple(sorted(limits.items())), strategy=rng.choice(STRATEGIES), is_open=rng.random() < 0.1,
        questions=tuple(rng.sample(QUESTIONS, 1)) if rng.random() < 0.1 else (),
        options=((rng.choice(OPTIONS), True),) if rng.random() < 0.06 else (),
    )


# Families of calls


def _unary(s: Sketch) -> None:
    name = s.pick()
    if name is not None:
        op = s.rng.choice(TAME)
        s.call(f"fd.ops.sqrt(fd.ops.abs({name}))" if op == "square_root" else f"fd.ops.{op}({name})")


def _fitting(s: Sketch, name: str) -> str | None:
    shape = s.shape(name)

    def fits(other: str) -> bool:
        pairs = zip(reversed(shape), reversed(s.shape(other)), strict=False)
        return all(a == b or 1 in {a, b} for a, b in pairs)

    return s.pick(fits)


def _binary(s: Sketch) -> None:
    a = s.pick()
    if a is None:
        return
    b = _fitting(s, a) if s.rng.random() < 0.8 else s.rng.choice(("0.5", "2.0", "3"))
    op = s.rng.choice(("add", "mul", "sub", "maximum", "minimum", "add", "mul"))
    s.call(f"fd.ops.{op}({a}, {b})")


def _division(s: Sketch) -> None:
    a = s.pick()
    b = None if a is None else _fitting(s, a)
    if b is not None:
        op, least = s.rng.choice(("div", "truediv")), s.rng.choice(("1.0", "2"))
        s.call(f"fd.ops.{op}({a}, fd.ops.add(fd.ops.abs({b}), {least}))")


def _whole(s: Sketch) -> None:
    a = s.pick(lambda name: s.dtype(name).is_integral)
    if a is not None:
        op = s.rng.choice(("mod", "remainder", "fmod", "div", "bitwise_and", "gcd", "bitwise_left_shift"))
        s.call(f"fd.ops.{op}({a}, {s.rng.choice((2, 3, 7))})")


def _weight(s: Sketch) -> None:
    """A weight that lacks some axes, broadcast in one or several stages."""
    a = s.pick(lambda name: len(s.shape(name)) > 0)
    if a is None:
        return
    shape = s.shape(a)
    axes = sorted(s.rng.sample(range(len(shape)), s.rng.randint(0, len(shape))))
    dtype = s.rng.choice((s.dtype(a).name, *FLOATS, "Bool", "Int"))
    w = s.input([shape[k] for k in axes], dtype)
    if s.rng.random() < 0.4:
        s.call(f"fd.ops.{s.rng.choice(('mul', 'add'))}({w}, 0.5)")
        w = s.tensors[-1]
    if s.rng.random() < 0.5 and len(axes) < len(shape):
        more = sorted({*axes, s.rng.choice([k for k in range(len(shape)) if k not in axes])})
        w = s.call(f"fd.ops.broadcast_in_dim({w}, {[shape[k] for k in more]}, {[more.index(k) for k in axes]})") or w
        if s.rng.random() < 0.5:
            v = s.input([shape[k] for k in more if s.rng.random() < 0.6 or k == more[-1]][-1:], dtype)
            w = s.call(f"fd.ops.add({w}, {v})") or w
        axes = more
    wide = s.call(f"fd.ops.broadcast_in_dim({w}, {list(shape)}, {axes})")
    if wide is None:
        return
    if s.rng.random() < 0.8:
        op = s.rng.choice(("mul", "add", "sub", "where"))
        s.call(f"fd.ops.where(fd.ops.gt({wide}, 0), {a}, 0.0)" if op == "where" else f"fd.ops.{op}({a}, {wide})")


def _mask(s: Sketch) -> None:
    """A mask of positions: below a length per row, of a triangle, or of a stripe."""
    a = s.pick(lambda name: len(s.shape(name)) > 0)
    if a is None:
        return
    shape = s.shape(a)
    axis = s.rng.randrange(len(shape))
    first, step = s.rng.choice((0, 0, 3)), s.rng.choice((1, 1, 2, -1))
    i = s.call(f"fd.ops.iota({shape[axis]}, {first}, {step}, dtype=DataType.Int)")
    i = None if i is None else s.call(f"fd.ops.broadcast_in_dim({i}, {list(shape)}, [{axis}])")
    if i is None:
        return
    others = [k for k in range(len(shape)) if k != axis]
    if others and s.rng.random() < 0.6:
        k = s.rng.choice(others)
        if s.rng.random() < 0.5:
            j = s.input([shape[k]], s.rng.choice(("Int", "Int32")), below=max(shape[axis], 1))
        else:
            j = s.call(f"fd.ops.iota({shape[k]}, 0, 1, dtype=DataType.Int)") or ""
        bound = s.call(f"fd.ops.broadcast_in_dim({j}, {list(shape)}, [{k}])")
    else:
        bound = str(shape[axis] // 2)
    mask = s.call(f"fd.ops.{s.rng.choice(('lt', 'ge', 'eq'))}({i}, {bound})")
    if mask is not None:
        s.call(f"fd.ops.where({mask}, {a}, {s.rng.choice((a, '0.0', '-1.0'))})")


def _dims(s: Sketch, name: str) -> list[int]:
    rank = len(s.shape(name))
    kind = s.rng.randrange(6)
    if kind == 0:
        return [rank - 1]
    if kind == 1:
        return [0]
    if kind == 2:
        return list(range(rank))
    return sorted(s.rng.sample(range(rank), s.rng.randint(1, rank)))


def _reduction(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) > 0)
    if a is None:
        return
    op = s.rng.choice(("sum", "sum", "sum", "max", "min", "prod", "var", "var_mean", "welford", "mean", "any", "amax"))
    dims, keep = _dims(s, a), s.rng.random() < 0.6
    if op in {"prod", "welford"}:
        keep = keep and op == "prod"
    if op == "welford":
        s.call(f"fd.ops.welford({a}, {dims})")
        return
    total = s.call(f"fd.ops.{op}({a}, {dims}{', keepdim=True' if keep else ''})")
    if total is not None and keep and s.rng.random() < 0.6:
        s.call(f"fd.ops.{s.rng.choice(('sub', 'mul', 'add'))}({a}, {total})")


def _softmax(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) > 0 and s.dtype(name).is_float)
    if a is None:
        return
    dims = _dims(s, a)
    if s.dtype(a).itemsize < 4:
        a = s.call(f"fd.ops.cast({a}, dtype=DataType.Float)") or a
    m = s.call(f"fd.ops.max({a}, {dims}, keepdim=True)")
    e = s.call(f"fd.ops.exp(fd.ops.sub({a}, {m}))")
    total = s.call(f"fd.ops.sum({e}, {dims}, keepdim=True)")
    if total is not None:
        s.call(f"fd.ops.truediv({e}, {total})")


def _norm(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) > 0 and s.dtype(name).is_float)
    if a is None:
        return
    dims, dtype = _dims(s, a), s.dtype(a).name
    wide = s.call(f"fd.ops.cast({a}, dtype=DataType.Float)") or a
    kind = s.rng.randrange(3)
    if kind == 0:
        n = s.call(f"fd.ops.var_mean({wide}, {dims}, correction=0, keepdim=True)")
        if n is None:
            return
        center = s.call(f"fd.ops.sub({wide}, {s.tensors[-1]})")
        out = s.call(f"fd.ops.mul({center}, fd.ops.rsqrt(fd.ops.add({n}, 1e-2)))")
    elif kind == 1:
        n = s.call(f"fd.ops.mean(fd.ops.mul({wide}, {wide}), {dims}, keepdim=True)")
        out = s.call(f"fd.ops.mul({wide}, fd.ops.rsqrt(fd.ops.add({n}, 1e-2)))")
    else:
        m = s.call(f"fd.ops.mean({wide}, {dims}, keepdim=True)")
        out = s.call(f"fd.ops.sub({wide}, {m})")
    if out is not None and s.rng.random() < 0.5:
        s.call(f"fd.ops.cast({out}, dtype=DataType.{dtype})")


def _both(s: Sketch) -> None:
    """Sums along rows that elements need, and sums along columns."""
    a = s.pick(lambda name: len(s.shape(name)) > 1 and s.dtype(name).is_float)
    if a is None:
        return
    rank = len(s.shape(a))
    cut = s.rng.randint(1, rank - 1)
    inner, outer = list(range(cut, rank)), list(range(cut))
    if s.rng.random() < 0.15:
        inner, outer = outer, inner
    row = s.call(f"fd.ops.sum({a}, {inner}, keepdim=True)")
    b = s.call(f"fd.ops.mul({a}, {row})") if s.rng.random() < 0.5 else a
    s.call(f"fd.ops.sub({b}, {row})")
    for name in s.rng.sample(s.tensors[-3:], s.rng.choice((1, 2))):
        s.call(f"fd.ops.sum({name}, {outer})")


def _scan(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) > 0)
    if a is not None:
        op = s.rng.choice(("cumsum", "cumsum", "cummax", "cummin", "cumprod"))
        s.call(f"fd.ops.{op}({a}, {s.rng.randrange(len(s.shape(a)))})")


def _reshape(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) > 0)
    if a is None:
        return
    new = list(s.shape(a))
    for _ in range(s.rng.randint(1, 2)):
        k = s.rng.randrange(len(new))
        if s.rng.random() < 0.4 and k + 1 < len(new):
            new[k : k + 2] = [new[k] * new[k + 1]]
        elif s.rng.random() < 0.15:
            new.insert(k, 1)
        else:
            factors = [f for f in range(2, min(new[k], 65)) if new[k] % f == 0]
            if factors:
                f = s.rng.choice(factors)
                new[k : k + 1] = [f, new[k] // f] if s.rng.random() < 0.5 else [new[k] // f, f]
    s.call(f"fd.ops.reshape({a}, {new})")


def _permute(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) > 1)
    if a is None:
        return
    order = s.rng.sample(range(len(s.shape(a))), len(s.shape(a)))
    if s.rng.random() < 0.2:
        s.call(f"fd.ops.stride_order({a}, {order})")
        return
    b = s.call(f"fd.ops.permute({a}, {order})")
    if b is not None and s.rng.random() < 0.6:
        other = s.input(s.shape(b), s.dtype(a).name)
        s.call(f"fd.ops.add({b}, {other})")


def _window(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) > 0)
    if a is None:
        return
    shape, kind = s.shape(a), s.rng.randrange(4)
    if kind == 0:
        starts = [s.rng.randint(0, n // 2) if s.rng.random() < 0.5 else 0 for n in shape]
        ends = [s.rng.randint(a_, n) if s.rng.random() < 0.5 else n for a_, n in zip(starts, shape, strict=True)]
        s.call(f"fd.ops.slice({a}, {starts}, {ends})")
    elif kind == 1:
        count = s.rng.randint(1, min(len(shape), 2))
        s.call(f"fd.ops.pad({a}, {[s.rng.choice((0, 1, 2, 3, -1)) for _ in range(2 * count)]})")
    elif kind == 2:
        dim = s.rng.randrange(len(shape))
        like = s.pick(lambda n: s.dtype(n) is s.dtype(a) and len(s.shape(n)) == len(shape) and all(
            k == dim or p == q for k, (p, q) in enumerate(zip(s.shape(n), shape, strict=True)))) or a
        s.call(f"fd.ops.cat([{a}, {like}], {dim})")
    else:  # shifted by some elements and added, as in a rotation or a convolution
        dim = s.rng.randrange(len(shape))
        by = s.rng.choice((1, 2, shape[dim] // 2))
        starts = [by if k == dim else 0 for k in range(len(shape))]
        part = s.call(f"fd.ops.slice({a}, {starts}, {list(shape)})")
        if part is not None:
            ends = [by if k == dim else n for k, n in enumerate(shape)]
            rest = s.call(f"fd.ops.slice({a}, {[0] * len(shape)}, {ends})")
            turned = s.call(f"fd.ops.cat([{part}, {rest}], {dim})")
            if turned is not None:
                s.call(f"fd.ops.add({a}, {turned})")


def _repeat(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) < 4)
    if a is None:
        return
    shape, k = s.shape(a), s.rng.randint(0, len(s.shape(a)))
    n = s.rng.choice((2, 3, 4, 8, 40))
    wide = [*shape[:k], n, *shape[k:]]
    b = s.call(f"fd.ops.broadcast_in_dim({a}, {wide}, {[i for i in range(len(wide)) if i != k]})")
    if b is not None and s.rng.random() < 0.5 and len(shape) > k:
        s.call(f"fd.ops.reshape({b}, {[*shape[:k], n * shape[k], *shape[k + 1:]]})")


def _lookup(s: Sketch) -> None:
    a = s.pick(lambda name: len(s.shape(name)) > 0 and 0 not in s.shape(name))
    if a is None:
        return
    shape = s.shape(a)
    dim = s.rng.randrange(len(shape))
    kind = s.rng.randrange(5)
    dtype = s.rng.choice(("Int", "Int", "Int32"))
    if kind in {0, 1}:
        i = s.input([s.rng.choice((*SIZES, 3000))], dtype, below=shape[dim])
        s.call(f"fd.ops.index_select({a}, {i}, {dim})")
    elif kind == 2:
        i = s.input(shape, dtype, below=shape[dim])
        s.call(f"fd.ops.{s.rng.choice(('gather', 'take_along_axis'))}({a}, {i}, {dim})")
    elif kind == 3 and len(shape) == 2:
        i = s.input([s.rng.choice(SIZES[:12]), s.rng.choice(SIZES)], dtype, below=shape[0])
        s.call(f"fd.ops.embedding_fwd({i}, {a})")
    else:
        s.call(f"fd.ops.select({a}, {s.rng.randrange(shape[dim])}, {dim})")


def _random(s: Sketch) -> None:
    a = s.floats()
    if a is None:
        return
    op = s.rng.choice(("rand_like", "randn_like", "dropout"))
    if op == "dropout":
        s.call(f"fd.ops.dropout({a}, 0.25)")
        return
    r = s.call(f"fd.ops.{op}({a})")
    if r is not None:
        s.call(f"fd.ops.mul({a}, {r})")


def _factory(s: Sketch) -> None:
    a = s.pick()
    if a is not None:
        shape = list(s.shape(a))
        s.call(s.rng.choice((
            f"fd.ops.full({shape}, 1.5, dtype=DataType.{s.rng.choice(FLOATS)})",
            f"fd.ops.iota({shape[-1] if shape else 4}, 1, 2, dtype=DataType.{s.rng.choice(('Int', 'Float', 'Int32'))})",
        )))


def _cast(s: Sketch) -> None:
    a = s.pick()
    if a is not None:
        dtypes = FLOATS if s.dtype(a).is_float else (*FLOATS, *WHOLE)
        dtype = s.rng.choice((*dtypes, *OTHER) if s.rng.random() < 0.2 else dtypes)
        s.call(f"fd.ops.cast({a}, dtype=DataType.{dtype})")


def _scalar(s: Sketch) -> None:
    a = s.pick()
    if a is None:
        return
    whole = s.rng.random() < 0.3
    name = s.add(Number(name=s.name(), value=2 if whole else 0.75, dtype="Int" if whole else "Double"))
    s.call(f"fd.ops.{s.rng.choice(('mul', 'add'))}({a}, {name})")


def _squeeze(s: Sketch) -> None:
    a = s.pick(lambda name: 1 in s.shape(name))
    if a is not None:
        s.call(f"fd.ops.squeeze({a}, [{s.shape(a).index(1)}])")
    else:
        b = s.pick(lambda name: len(s.shape(name)) < 4)
        if b is not None:
            flags = [False] * len(s.shape(b))
            flags.insert(s.rng.randint(0, len(flags)), True)
            s.call(f"fd.ops.broadcast({b}, {flags})")


def _chain(s: Sketch) -> None:
    """Many ops on several values, perhaps under conditions: a loop that is too long to compile as one."""
    a = s.floats()
    if a is None:
        return
    start = a
    for _ in range(s.rng.choice((8, 20, 45, 90))):
        kind = s.rng.randrange(8)
        if kind == 0:
            a = s.call(f"fd.ops.add({a}, {s.rng.choice((start, *s.tensors[-2:]))})") or a
        elif kind == 1:
            a = s.call(f"fd.ops.where(fd.ops.gt({start}, 0.5), {a}, fd.ops.tanh({start}))") or a
        else:
            a = s.call(f"fd.ops.{s.rng.choice(('tanh', 'sigmoid', 'sin', 'atan', 'erf'))}({a})") or a
    if s.rng.random() < 0.4 and s.shape(a):
        s.call(f"fd.ops.pad({a}, [1, 2])")


def _product(s: Sketch) -> None:
    """A matrix product, which the array library evaluates, or a sum of products, which it evaluates as well."""
    a = s.pick(lambda name: len(s.shape(name)) in {2, 3} and s.dtype(name).is_float)
    if a is None:
        return
    shape, dtype = s.shape(a), s.dtype(a).name
    n = s.rng.choice((8, 16, 48))
    kind = s.rng.randrange(3)
    if kind == 0:
        s.call(f"fd.ops.matmul({a}, {s.input([*shape[:-2], shape[-1], n], dtype)})")
    elif kind == 1:
        s.call(f"fd.ops.linear({a}, {s.input([n, shape[-1]], dtype)})")
    elif len(shape) == 2:
        b = s.input([n, shape[1]], dtype)
        s.call(
            f"fd.ops.sum(fd.ops.mul(fd.ops.broadcast({a}, [False, True, False]), "
            f"fd.ops.broadcast({b}, [True, False, False])), [2])",
        )


def _sort(s: Sketch) -> None:
    """A sort or a scatter, which has no kernel."""
    a = s.pick(lambda name: len(s.shape(name)) > 0 and 0 not in s.shape(name))
    if a is None:
        return
    dim = s.rng.randrange(len(s.shape(a)))
    if s.rng.random() < 0.5:
        s.call(f"fd.ops.argsort({a}, {dim})")
    elif len(s.shape(a)) == 1:
        i = s.input(s.shape(a), "Int", below=s.shape(a)[0])
        s.call(f"fd.ops.scatter({a}, {i}, {s.input(s.shape(a), s.dtype(a).name)}, 0)")


def _any_op(s: Sketch) -> None:
    """An op of the registry over a tame value."""
    a = s.floats()
    if a is None:
        return
    op = s.rng.choice([name for name in POINTWISE if OPS[name].arity == 1])
    s.call(f"fd.ops.{op}(fd.ops.add(fd.ops.mul(fd.ops.tanh({a}), 0.25), {'1.5' if op == 'acosh' else '0.5'}))")


def _several_ops(s: Sketch) -> None:
    """Several ops of the registry of the same operands, whatever they give."""
    a = s.pick(lambda name: prod(s.shape(name)) <= _FEW)
    if a is None:
        return
    for op in s.rng.sample(POINTWISE, 8):
        s.call(f"fd.ops.{op}({a})" if OPS[op].arity == 1 else f"fd.ops.{op}({a}, {s.rng.choice((a, 2))})")


FAMILIES = {
    _unary: 6, _binary: 8, _division: 2, _whole: 1, _weight: 6, _mask: 4, _reduction: 8, _softmax: 3, _norm: 4,
    _both: 4, _several_ops: 2, _scan: 3, _reshape: 5, _permute: 5, _window: 6, _repeat: 2, _lookup: 4, _random: 2,
    _factory: 2, _cast: 4, _scalar: 1,
    _squeeze: 2, _any_op: 2, _chain: 1, _product: 1, _sort: 1,
}
WEIGHTED = [family for family, weight in FAMILIES.items() for _ in range(weight)]


# Changes


def _resized(form: Form, rng: Random) -> Form:
    sizes = sorted({n for one in form.inputs if isinstance(one, Given) for n in one.shape})
    if not sizes:
        return form
    old = rng.choice(sizes)
    near = (old - 1, old + 1, 2 * old, old // 2, 0, 1)
    new = rng.choice(near if rng.random() < 0.3 else LONG if rng.random() < 0.4 else SIZES)
    inputs = tuple(
        replace(
            one, shape=tuple(new if n == old else n for n in one.shape), below=new if one.below == old else one.below,
        ) if isinstance(one, Given) else one for one in form.inputs
    )
    calls = tuple((names, re.sub(rf"(?<![\w.]){old}(?![\w.])", str(new), text)) for names, text in form.calls)
    return replace(form, inputs=inputs, calls=calls if old > 1 or rng.random() < 0.1 else form.calls)


def _retyped(form: Form, rng: Random) -> Form:
    places = [k for k, one in enumerate(form.inputs) if isinstance(one, Given) and not one.below]
    if not places:
        return form
    old = form.inputs[rng.choice(places)].dtype
    new = rng.choice((*FLOATS, *FLOATS, *WHOLE, *OTHER))
    inputs = tuple(
        replace(one, dtype=new) if one.dtype == old and k in places and rng.random() < 0.9 else one
        for k, one in enumerate(form.inputs)
    )
    return replace(form, inputs=inputs)


def _moved(form: Form, rng: Random) -> Form:
    places = [k for k, one in enumerate(form.inputs) if isinstance(one, Given) and one.shape]
    if not places:
        return form
    place = rng.choice(places)
    one = form.inputs[place]
    assert isinstance(one, Given)
    new = laid_out(replace(one, order=(), step=1, backwards=(), expanded=(), alignment=16, symbolic=False), rng)
    return replace(form, inputs=(*form.inputs[:place], new, *form.inputs[place + 1 :]))


def _surrounded(form: Form, rng: Random) -> Form:
    other = around(form, rng)
    name = rng.choice(("target", "device", "limits", "limits", "limits", "strategy", "is_open", "questions", "options"))
    return replace(form, **{name: getattr(other, name)})


def _asked(form: Form, rng: Random) -> Form:
    return replace(form, questions=(rng.choice(QUESTIONS),))


def _extended(form: Form, rng: Random) -> Form:
    sketch = Sketch.of(form, rng)
    if sketch is None:
        return form
    before = len(sketch.calls)
    for _ in range(8):
        rng.choice(WEIGHTED)(sketch)
        if len(sketch.calls) > before:
            break
    made = [name for names, _ in sketch.calls[before:] for name in names]
    read = {word for _, text in sketch.calls[before:] for word in re.findall(r"t\d+", text)}
    kept = [name for name in form.outputs if name not in read or rng.random() < 0.3]
    new = [name for name in made if name not in read]
    outputs = (*kept, *new[:2]) or form.outputs
    return replace(form, inputs=tuple(sketch.inputs), calls=tuple(sketch.calls), outputs=outputs)


def _more_outputs(form: Form, rng: Random) -> Form:
    rest = [name for names, _ in form.calls for name in names if name not in form.outputs]
    if rest and rng.random() < 0.6:
        return replace(form, outputs=(*form.outputs, rng.choice(rest)))
    if len(form.outputs) > 1:
        gone = rng.choice(form.outputs)
        return replace(form, outputs=tuple(name for name in form.outputs if name != gone)).live()
    return form


def _reordered(form: Form, rng: Random) -> Form:
    """Return a form with other numbers among the arguments of a call."""
    place = rng.randrange(len(form.calls))
    names, text = form.calls[place]
    numbers = list(re.finditer(r"(?<![\w.])-?\d+(?![\w.])", text))
    if not numbers:
        return form
    one = rng.choice(numbers)
    new = int(one.group()) + rng.choice((-2, -1, 1, 2))
    text = f"{text[: one.start()]}{new}{text[one.end() :]}"
    return replace(form, calls=(*form.calls[:place], (names, text), *form.calls[place + 1 :]))


def _other_op(form: Form, rng: Random) -> Form:
    """Return a form with another op of the same operands."""
    groups = (
        ("sum", "max", "min", "prod", "amax", "any", "mean"), ("cumsum", "cummax", "cummin", "cumprod"), TAME[:-1],
        ("add", "mul", "sub", "maximum", "minimum", "truediv", "lt"),
    )
    place = rng.randrange(len(form.calls))
    names, text = form.calls[place]
    ops = [one for one in re.finditer(r"fd\.ops\.(\w+)", text) if any(one.group(1) in g for g in groups)]
    if not ops:
        return form
    one = rng.choice(ops)
    group = next(g for g in groups if one.group(1) in g)
    text = f"{text[: one.start(1)]}{rng.choice(group)}{text[one.end(1) :]}"
    return replace(form, calls=(*form.calls[:place], (names, text), *form.calls[place + 1 :]))


PARAMETERS: dict[str, tuple[Any, ...]] = {
    "threads": (
        (32, 1), (64, 1), (128, 1), (256, 1), (512, 1), (1024, 1), (16, 16), (32, 8), (8, 4), (32, 32), (8, 64), (0, 1),
        (33, 3),
    ),
    "blocks": (1, 2, 7, 64, 132, 1000, 0), "unroll": (1, 2, 3, 4, 8, 16, 0), "vector": (1, 2, 4, 8, 16, 3),
    "split": (1, 2, 3, 4, 8, 16, 33, 100, 0), "cluster": (1, 2, 4, 8, 16, 3), "persistent": (True, False),
    "resident": (0, 1, 2, 3, 4, 8, 33), "tile": (8, 16, 24, 32, 64, 100, 512, 0), "grain": (1, 2, 4, 16, 64, 0),
    "parallel": (True, False), "partial": (1, 16, 64, 1024, 0), "shared": (0, 1, 2, 3), "constants": (True, False),
    "specialized": (True, False),
}


def _parametrized(form: Form, rng: Random) -> Form:
    if form.changes and rng.random() < 0.2:
        return replace(form, changes=())
    names = rng.sample(sorted(PARAMETERS), rng.choice((1, 1, 1, 2)))
    values = tuple(sorted((name, rng.choice(PARAMETERS[name])) for name in names))
    nest = rng.choice((0, 0, 0, 0, 1, 2))
    before = next((dict(c.values) for c in form.changes if c.nest == nest), {})
    merged = {**(before if rng.random() < 0.5 else {}), **dict(values)}
    return replace(form, changes=(Change(segment=0, nest=nest, values=tuple(sorted(merged.items()))),))


def _shorter(form: Form, rng: Random) -> Form:
    """Return a form without its last call, whose operands are outputs."""
    names, text = form.calls[-1]
    made = {name for several, _ in form.calls[:-1] for name in several}
    outputs = [name for name in form.outputs if name not in names]
    outputs += [name for name in re.findall(r"t\d+", text) if name in made and name not in outputs]
    return replace(form, calls=form.calls[:-1], outputs=tuple(outputs)).live() if outputs else form


CHANGES = {
    _resized: 8, _retyped: 4, _moved: 4, _surrounded: 4, _asked: 1, _extended: 6, _more_outputs: 3, _reordered: 2,
    _other_op: 2, _parametrized: 7, _shorter: 1,
}
_WEIGHTED_CHANGES = [change for change, weight in CHANGES.items() for _ in range(weight)]


def changed(form: Form, rng: Random) -> Form:
    """Return a form with one or several other choices."""
    if form.actions:
        return with_actions(form, rng)
    if not form.calls:
        return drawn(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        form = rng.choice(_WEIGHTED_CHANGES)(form, rng)
    return form


# Schedules by hand

_TYPES = ("serial", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "unroll", "unswitch", "vectorize")
_SCHEDULED = ("POINTWISE", "REDUCTION", "TRANSPOSE", "INNER_PERSISTENT", "OUTER_PERSISTENT", "RESIZE")


def _action(rng: Random) -> str:
    tensor, axis, number = f"tensors[{rng.randrange(8)}]", rng.randint(0, 4), rng.choice((1, 2, 3, 4, 8, 32))
    return rng.choice((
        f"{tensor}.split({axis}, {number}, inner_split={rng.random() < 0.7})", f"{tensor}.split({axis}, {number})",
        f"{tensor}.merge({axis})", f"{tensor}.reorder({{{axis}: {rng.randint(0, 4)}}})",
        f"{tensor}.parallelize({axis}, ParallelType.{rng.choice(_TYPES)})",
        f"{tensor}.parallelize({axis}, ParallelType.{rng.choice(_TYPES)})",
        f"tensors.append({tensor}.{rng.choice(('cache_after', 'cache_before', 'cache_fork'))}())",
        f"tensors.append({tensor}.rfactor([{axis}]))",
        f"{tensor}.set_memory_type(MemoryType.{rng.choice(('shared', 'local', 'global_'))})",
        f"{tensor}.inline_at({axis}, best_effort={rng.random() < 0.7})",
        f"{tensor}.compute_at(tensors[{rng.randrange(8)}], {axis}, 'best_effort')",
        f"{tensor}.transform_like()", f"{tensor}.parallelize_like()", "fd.sched.inline_most()", f"{tensor}.vectorize()",
        f"apply_schedule(fd.hand, SchedulerType.{rng.choice(_SCHEDULED)})",
    ))


def with_actions(form: Form, rng: Random) -> Form:
    """Return a form with other statements that schedule it by hand."""
    actions = list(form.actions)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        kind = rng.random()
        place = rng.randint(0, len(actions))
        if kind < 0.2 and actions:
            actions.pop(rng.randrange(len(actions)))
        elif kind < 0.35:
            actions.append(rng.choice((
                "tensors[0].transform_like()", "fd.sched.inline_most()", "tensors[-1].parallelize_like()",
            )))
        else:
            actions.insert(place, _action(rng))
    return replace(form, actions=tuple(actions[:24]), target="cuda", changes=(), questions=())
