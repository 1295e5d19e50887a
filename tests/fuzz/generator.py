"""Random legal programs over every op of the registry."""

import ast
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.ir import OpKind
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.ops.registry import Sample
from tests.fuzz.analysis import DRAWN, Analysis
from tests.fuzz.choices import Choices
from tests.fuzz.program import Program, ScalarInput, TensorInput

ENTRIES = {**OPS, **COMPOSITES}
UNARY = tuple(n for n, e in OPS.items() if e.positional_only and e.kind is OpKind.POINTWISE and e.arity == 1)
BINARY = tuple(n for n, e in OPS.items() if e.positional_only and e.kind is OpKind.POINTWISE and e.arity == 2)
SAMPLED = tuple(n for n, e in ENTRIES.items() if e.samples and n not in DRAWN)
SCANS = tuple(n for n, e in OPS.items() if e.kind is OpKind.SCAN)

FLOATS = (DataType.Float, DataType.Float, DataType.Float, DataType.BFloat16, DataType.Half, DataType.Double)
DTYPES = (*FLOATS, *FLOATS, DataType.Int, DataType.Int32, DataType.Bool, DataType.ComplexFloat)
CASTS = (*DTYPES, DataType.Short, DataType.Char, DataType.Byte, DataType.UInt64, DataType.ComplexDouble)

POSITIVE = frozenset({"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "reciprocal"})
BELOW_ONE = frozenset({"acos", "asin", "atanh", "erfinv"})
GROWING = frozenset({"exp", "exp2", "expm1", "cosh", "sinh", "tan", "erfc"})
DIVISION = frozenset({"truediv", "div", "floor_divide", "fmod", "mod", "remainder"})
MOST_ELEMENTS = 200


class Generator:
    """Builds one program from choices."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.analysis = Analysis()
        self.tensors: list[str] = []
        self.scalars: list[str] = []
        self.numbers = np.random.default_rng(choices.integer(0, 2**16))
        # Few sizes, so that shapes often match.
        self.sizes = [choices.pick((4, 3, 2, 5, 6, 7, 8)) for _ in range(3)]
        self.rare = choices.pick((1, 1, 1, 1, 1, 1, 1, 1, 1, 0))
        self.symbolic = choices.chance(40)

    def program(self, most_steps: int) -> Program:
        """Return a program of up to ``most_steps`` steps."""
        c = self.choices
        for _ in range(c.integer(1, 3)):
            self.tensor_input()
        if c.chance(30):
            self.scalar_input()
        steps = c.integer(5, most_steps) if c.chance(30) else c.integer(5, max(most_steps // 3, 6))
        for _ in range(4 * steps):
            if len(self.analysis.steps) >= steps:
                break
            family = c.pick(FAMILIES)
            family(self)
        return self._finished()

    def _finished(self) -> Program:
        c, analysis = self.choices, self.analysis
        used = {name for step in analysis.steps for name in step.uses}
        made = [name for step in analysis.steps for name in step.results if name in self.tensors]
        if not made:
            made = [self.call(f"fd.ops.neg({self.tensors[0]})") or self.tensors[0]]
        outputs: list[str | tuple[str, str]] = [n for n in made if n not in used] or [made[-1]]
        outputs += [n for n in made if n not in outputs and c.chance(6)]
        outputs = outputs[: c.integer(8, 16)]
        target = self._aliased(outputs)
        if target is not None:
            outputs[target[0]] = (str(outputs[target[0]]), target[1])
            if c.chance(50):
                outputs.append(outputs[target[0]][0])
        return Program(inputs=tuple(analysis.inputs), steps=tuple(analysis.steps), outputs=tuple(outputs)).live()

    def _aliased(self, outputs: list[Any]) -> tuple[int, str] | None:
        """An output and an input of its shape, dtype and kinds of axes that it may overwrite."""
        if not self.choices.chance(8):
            return None
        for place, name in enumerate(outputs):
            made = self.analysis.tensor(name)
            for given in self.analysis.inputs:
                if not isinstance(given, TensorInput) or given.expanded:
                    continue
                tensor = self.analysis.tensor(given.name)
                same = [a.is_broadcast for a in tensor.domain.axes] == [a.is_broadcast for a in made.domain.axes]
                if same and tensor.shape == made.shape and tensor.dtype is made.dtype:
                    return place, given.name
        return None

    # Values

    def call(self, text: str) -> str | None:
        """Record a call; returns its first tensor result, or None if it was refused."""
        results = self.analysis.add_call(text)
        if results is None:
            return None
        tensors = [r for r in results if r.startswith("t")]
        small = [t for t in tensors if prod(self.analysis.tensor(t).shape) <= 4 * MOST_ELEMENTS]
        self.tensors += small
        self.scalars += [r for r in results if r.startswith("s")]
        return small[0] if small else None

    def shape(self) -> tuple[int, ...]:
        """A shape of few elements over the program's sizes."""
        c = self.choices
        rank = c.pick((2, 2, 2, 1, 3, 3, 0, 4))
        found = [c.pick((*self.sizes, *self.sizes, self.rare)) for _ in range(rank)]
        while prod(found) > MOST_ELEMENTS:
            found[c.integer(0, rank - 1)] = 1
        return tuple(found)

    def values(self, shape: tuple[int, ...], dtype: DataType, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        """Values: in half of all cases small multiples of 0.5, which discontinuous ops accept."""
        if dtype is DataType.Bool:
            return self.numbers.integers(0, 2, shape).astype(np.bool_)
        if dtype.is_integral:
            first = int(np.ceil(max(low, 0.0) if dtype is DataType.UInt64 else low))
            return self.numbers.integers(first, max(int(np.ceil(high)), first + 1), shape).astype(dtype.numpy)
        found = self.numbers.uniform(low, high, shape)
        if self.choices.chance(50) and high - low >= 1:
            found = np.clip(np.rint(found * 2) / 2, low, None)
        if dtype.is_complex:
            found = found + 1j * self.numbers.uniform(low, high, shape)
        return np.asarray(found).astype(dtype.numpy)

    def tensor_input(
        self, shape: tuple[int, ...] | None = None, dtype: DataType | None = None, low: float = -2.0, high: float = 2.0,
    ) -> str:
        """A new tensor input in some layout."""
        c = self.choices
        shape = self.shape() if shape is None else shape
        dtype = c.pick(DTYPES) if dtype is None else dtype
        low, high = (-4.0, 5.0) if dtype.is_integral and (low, high) == (-2.0, 2.0) else (low, high)
        values = self.values(shape, dtype, low, high)
        given = TensorInput(name=f"t{len(self.analysis.names)}", values=values, dtype=dtype)
        if self.symbolic:
            given = replace(given, symbolic=frozenset(i for i in range(len(shape)) if c.chance(80)))
        given = self._laid_out(given)
        self.tensors.append(self.analysis.add_input(given))
        return given.name

    def _laid_out(self, given: TensorInput) -> TensorInput:
        c, rank = self.choices, given.values.ndim
        if not rank or c.chance(50):
            return given
        kind = c.pick(("order", "step", "backwards", "expanded"))
        if kind == "order":
            order = list(range(rank))
            for i in range(rank - 1):
                j = c.integer(i, rank - 1)
                order[i], order[j] = order[j], order[i]
            return replace(given, order=tuple(order))
        if kind == "step":
            return replace(given, step=c.integer(2, 3))
        axis = c.integer(0, rank - 1)
        if kind == "backwards" or given.values.shape[axis] < 2:
            return replace(given, backwards=frozenset({axis}))
        values = np.broadcast_to(np.take(given.values, [0], axis), given.values.shape)
        return replace(given, expanded=frozenset({axis}), values=values)

    def scalar_input(self) -> str:
        """A new scalar input."""
        double, whole = DataType.Double, DataType.Int
        dtype, value = self.choices.pick(((double, 1.5), (whole, 3), (double, -0.25), (whole, 2)))
        given = ScalarInput(name=f"s{len(self.analysis.names)}", value=value, dtype=dtype)
        self.scalars.append(self.analysis.add_input(given))
        return given.name

    def some(self, accept: Callable[[Any], bool] = lambda tv: True) -> str | None:
        """A tensor, later ones more often."""
        fits = [t for t in self.tensors if accept(self.analysis.tensor(t))]
        if not fits:
            return None
        return self.choices.pick(fits[-5:] if self.choices.chance(60) else fits)

    def any(self) -> str:
        """A tensor, later ones more often."""
        found = self.some()
        assert found is not None
        return found

    def ranked(self) -> str | None:
        """A tensor with axes."""
        return self.some(lambda tv: tv.ndim > 0)

    def fitting(self, name: str) -> str:
        """A second operand: a tensor that broadcasts with another, a scalar or a number."""
        c, tensor = self.choices, self.analysis.tensor(name)
        if c.chance(70):
            shape = tensor.shape

            def fits(other: Any) -> bool:
                pairs = zip(reversed(shape), reversed(other.shape), strict=False)
                return all(a == b or 1 in {a, b} for a, b in pairs) and _joined(shape, other.shape) <= MOST_ELEMENTS

            found = self.some(fits)
            if found is not None:
                return found
        if self.scalars and c.chance(40):
            return str(c.pick(self.scalars))
        if tensor.dtype.is_float or tensor.dtype.is_complex:
            return str(c.pick((0.5, 2.0, -1.5, 3, 0.25, 1.0)))
        return str(c.pick((1, 2, 3, True, -1)))

    def dim(self, name: str) -> int:
        """An axis, sometimes counted from the end."""
        rank = self.analysis.tensor(name).ndim
        axis = self.choices.integer(0, rank - 1)
        return axis - rank if self.choices.chance(30) else axis

    def tamed(self, op: str, name: str) -> str:
        """An operand in the domain of an op, computed from a given one."""
        known, dtype = self.analysis.known(name), self.analysis.tensor(name).dtype
        if dtype.is_complex or not np.size(known.value):
            return name
        low, high = float(np.min(known.value)), float(np.max(known.value))
        call = None
        if op in POSITIVE and low < 0.25:
            call = f"fd.ops.add(fd.ops.abs({name}), 0.5)"
        elif op in BELOW_ONE and max(-low, high) > 0.9:
            call = f"fd.ops.mul(fd.ops.tanh({name}), 0.75)"
        elif op == "acosh" and low < 1.25:
            call = f"fd.ops.add(fd.ops.abs({name}), 1.5)"
        elif op == "erfcinv" and not 0.1 < low <= high < 1.9:
            call = f"fd.ops.add(fd.ops.sigmoid({name}), 0.25)"
        elif op in GROWING and max(-low, high) > 4:
            call = f"fd.ops.tanh({name})"
        return name if call is None else self.call(call) or name

    # Families

    def unary(self) -> None:
        op = self.choices.pick(UNARY)
        self.call(f"fd.ops.{op}({self.tamed(op, self.any())})")

    def binary(self) -> None:
        c, op = self.choices, self.choices.pick((*BINARY, "add", "mul", "sub", "maximum"))
        a = self.any()
        if op == "pow":
            self.call(f"fd.ops.pow({self.tamed('log', a)}, {c.pick((2, 0.5, -1.0, 3))})")
            return
        b = self.fitting(a)
        if op in DIVISION and b in self.tensors:
            b = self.tamed("reciprocal", b)
        if c.chance(20):
            a, b = b, a
        self.call(f"fd.ops.{op}({a}, {b})")

    def bounded(self) -> None:
        """Return a tensor to small, certain values."""
        self.call(f"fd.ops.{self.choices.pick(('tanh', 'sigmoid'))}({self.any()})")

    def where(self) -> None:
        condition = self.some(lambda tv: tv.dtype is DataType.Bool)
        a = self.any()
        if condition is None:
            condition = self.call(f"fd.ops.{self.choices.pick(('lt', 'ge', 'ne'))}({a}, {self.fitting(a)})")
        if condition is not None:
            self.call(f"fd.ops.where({condition}, {self.fitting(condition)}, {self.fitting(condition)})")

    def cast(self) -> None:
        self.call(f"fd.ops.cast({self.any()}, dtype={self.choices.pick(CASTS)!r})")

    def reduction(self) -> None:
        c, name = self.choices, self.ranked()
        if name is None:
            return
        rank = self.analysis.tensor(name).ndim
        op = c.pick(("sum", "max", "sum", "min", "prod", "var", "var_mean", "welford"))
        dims = sorted({c.integer(0, rank - 1) for _ in range(c.integer(1, 2))})
        extra = ", keepdim=True" if op != "welford" and c.chance(40) else ""
        if op in {"var", "var_mean"}:
            extra += f", correction={c.integer(0, 1)}"
            if any(self.analysis.tensor(name).shape[d] < 2 for d in dims):
                return
        elif op in {"sum", "prod"} and c.chance(20):
            extra += f", dtype={c.pick((DataType.Float, DataType.Double))!r}"
        total = self.call(f"fd.ops.{op}({name}, {dims}{extra})")
        if total is not None and c.chance(35) and "keepdim" in extra:
            # The pattern of softmax and normalizations: the reduction is combined with what was reduced.
            self.call(f"fd.ops.{c.pick(('sub', 'add', 'maximum'))}({name}, {total})")

    def reshape(self) -> None:
        c, name = self.choices, self.any()
        shape = list(self.analysis.tensor(name).shape)
        total = prod(shape)
        new = list(shape)
        for _ in range(c.integer(1, 3)):
            at = c.integer(0, len(new) - 1) if new else 0
            if not new or c.chance(20):
                new.insert(at, 1)
            elif c.chance(50) and at + 1 < len(new):
                new[at : at + 2] = [new[at] * new[at + 1]]
            else:
                factors = [f for f in range(2, new[at]) if new[at] % f == 0]
                if factors:
                    f = c.pick(factors)
                    new[at : at + 1] = [f, new[at] // f]
        if c.chance(20):
            new = [total]
        if new and total and c.chance(30):
            new[c.integer(0, len(new) - 1)] = -1
        self.call(f"fd.ops.reshape({name}, {new})")

    def permute(self) -> None:
        c, name = self.choices, self.ranked()
        if name is None:
            return
        order = list(range(self.analysis.tensor(name).ndim))
        for i in range(len(order) - 1):
            j = c.integer(i, len(order) - 1)
            order[i], order[j] = order[j], order[i]
        op, argument = c.pick((("permute", "dims"), ("permute", "dims"), ("stride_order", "stride_order")))
        self.call(f"fd.ops.{op}({name}, {argument}={order})")

    def copy(self) -> None:
        self.call(f"fd.ops.{self.choices.pick(('segment_set', 'set'))}({self.any()})")

    def broadcast(self) -> None:
        c, name = self.choices, self.any()
        shape = self.analysis.tensor(name).shape
        flags = [False] * len(shape)
        for _ in range(c.integer(1, 2)):
            flags.insert(c.integer(0, len(flags)), True)
        if len(flags) > 4:
            return
        if c.chance(50):
            self.call(f"fd.ops.broadcast({name}, is_broadcast_dim={flags})")
            return
        sizes = iter(shape)
        new = [c.pick(self.sizes) if flag else next(sizes) for flag in flags]
        kept = [i for i, flag in enumerate(flags) if not flag]
        if prod(new) <= MOST_ELEMENTS:
            self.call(f"fd.ops.broadcast_in_dim({name}, shape={new}, broadcast_dims={kept})")

    def expand(self) -> None:
        c = self.choices
        name = self.some(lambda tv: any(a.is_broadcast and a.expanded is None for a in tv.domain.axes))
        if name is None:
            return
        axes = self.analysis.tensor(name).domain.axes
        shape = self.analysis.tensor(name).shape
        plain = [a.is_broadcast and a.expanded is None for a in axes]
        if c.chance(40):
            self.call(f"fd.ops.squeeze({name}, [{c.pick([i for i, p in enumerate(plain) if p])}])")
            return
        new = [c.pick((*self.sizes, -1)) if p else n if c.chance(50) else -1 for p, n in zip(plain, shape, strict=True)]
        if prod(max(n, old) for n, old in zip(new, shape, strict=True)) <= MOST_ELEMENTS:
            self.call(f"fd.ops.expand({name}, {new})")

    def slice(self) -> None:
        c, name = self.choices, self.ranked()
        if name is None:
            return
        shape = self.analysis.tensor(name).shape
        starts, ends = [0] * len(shape), list(shape)
        for axis, n in enumerate(shape):
            if c.chance(50):
                starts[axis] = c.integer(0, max(n - 1, 0))
                ends[axis] = c.integer(min(starts[axis] + 1, n), n + 1) if c.chance(90) else starts[axis]
        self.call(f"fd.ops.slice({name}, {starts}, {ends})")

    def pad(self) -> None:
        c, name = self.choices, self.ranked()
        if name is None:
            return
        shape = self.analysis.tensor(name).shape
        widths: list[int] = []
        for axis in range(c.integer(1, min(len(shape), 2))):
            n = shape[-1 - axis]
            left = c.integer(-1, 2)
            right = c.integer(-1 if n + left > 1 else 0, 2)
            widths += [left if n + left > 0 else 0, right]
        self.call(f"fd.ops.pad({name}, {widths}{c.pick(('', ', 1.0', ', 2', ', True'))})")

    def cat(self) -> None:
        c, name = self.choices, self.ranked()
        if name is None:
            return
        first = self.analysis.tensor(name)
        axis = c.integer(0, first.ndim - 1)

        def fits(other: Any) -> bool:
            return bool(
                other.dtype is first.dtype and other.ndim == first.ndim
                and all(a == b for i, (a, b) in enumerate(zip(other.shape, first.shape, strict=True)) if i != axis)
            )

        tensors = [name, *(self.some(fits) or name for _ in range(c.integer(0, 2)))]
        sizes = sum(self.analysis.tensor(t).shape[axis] for t in tensors)
        if sizes * prod(first.shape[:axis] + first.shape[axis + 1 :]) <= MOST_ELEMENTS:
            self.call(f"fd.ops.cat([{', '.join(tensors)}], {axis})")

    def factory(self) -> None:
        c, shape = self.choices, list(self.shape())
        kind = c.pick(("full", "iota", "uniform", "normal", "size"))
        dtype = c.pick(DTYPES)
        if kind == "full":
            fill = c.pick((*self.scalars, 1.5, 2, 0)) if not dtype.is_complex else 1.0
            self.call(f"fd.ops.full({shape}, {fill}, {dtype!r})")
        elif kind == "iota" and shape:
            dtype = c.pick((DataType.Int, DataType.Float, DataType.Int32))
            start, step = c.integer(-2, 2), c.pick((1, 2, -1))
            kind = float if dtype is DataType.Float else int
            self.call(f"fd.ops.iota({shape[0]}, {kind(start)}, {kind(step)}, {dtype!r})")
        elif kind == "size":
            name = self.ranked()
            if name is not None:
                self.call(f"fd.ops.size({name}, {self.dim(name)})")
        elif kind in OPS:
            ends = c.pick(("-1.0, 1.0", "0.0, 1.0")) if kind == "uniform" else "0.0, 0.5"
            seed, offset = (f"fd.define_scalar({n}, dtype=DataType.Int)" for n in (c.integer(0, 99), c.integer(0, 9)))
            seeds = f"rng_seed={seed}, rng_offset={offset}"
            self.call(f"fd.ops.{kind}({ends}, {shape}, {seeds}, dtype={c.pick(FLOATS)!r})")

    def symbol(self) -> None:
        """Arithmetic on scalars."""
        if self.scalars:
            c = self.choices
            op = c.pick(("add", "mul", "sub", "neg", "maximum", "cast"))
            a, b = c.pick(self.scalars), c.pick((*self.scalars, 2, 0.5))
            if op == "cast":
                self.call(f"fd.ops.cast({a}, {c.pick((DataType.Float, DataType.Double))!r})")
            elif abs(self.analysis.scalar(a)) < 100:
                self.call(f"fd.ops.{op}({a})" if op == "neg" else f"fd.ops.{op}({a}, {b})")

    def scan(self) -> None:
        name = self.ranked()
        if name is not None and SCANS:
            self.call(f"fd.ops.{self.choices.pick(SCANS)}({name}, {self.dim(name)})")

    def sort(self) -> None:
        c, name = self.choices, self.some(lambda tv: tv.ndim > 0 and not tv.dtype.is_complex)
        if name is None or "topk" not in OPS:
            return
        dim = self.dim(name)
        if c.chance(50):
            self.call(f"fd.ops.argsort({name}, {dim}, descending={c.chance(50)}, stable=True)")
        else:
            k = min(c.integer(1, 3), self.analysis.tensor(name).shape[dim])
            self.call(f"fd.ops.topk({name}, fd.define_scalar({k}, DataType.Int), {dim}, {c.chance(50)}, True)")

    def indexing(self) -> None:
        c, name = self.choices, self.ranked()
        if name is None:
            return
        shape, dim = self.analysis.tensor(name).shape, self.dim(name)
        size, axis = shape[dim], dim % len(shape)
        if not size:
            return
        op = c.pick(("index_select", "gather", "take_along_axis", "select", "scatter"))
        dtype = c.pick((DataType.Int, DataType.Int, DataType.Int32))
        count = c.integer(1, 4)
        if op == "select":
            self.call(f"fd.ops.select({name}, fd.define_scalar({c.integer(0, size - 1)}, DataType.Int), {dim})")
            return
        if op == "index_select":
            index = self.tensor_input((count,), dtype, 0, size)
            self.call(f"fd.ops.index_select({name}, {index}, {dim})")
            return
        if op == "scatter":
            # Each position is written once; otherwise the order of writes decides.
            order = self.tensor_input(tuple(shape), dtype, 0, size)
            chosen = self.call(f"fd.ops.argsort({order}, {dim}, stable=True)")
            if chosen is not None:
                self.call(f"fd.ops.scatter({name}, {chosen}, {name}, {dim})")
            return
        index = self.tensor_input(tuple(count if i == axis else n for i, n in enumerate(shape)), dtype, 0, size)
        self.call(f"fd.ops.{op}({name}, {index}, {dim})")

    def product(self) -> None:
        c = self.choices
        name = self.some(lambda tv: 0 < tv.ndim < 4 and tv.dtype in FLOATS)
        if name is None:
            return
        tensor = self.analysis.tensor(name)
        inner, outer = tensor.shape[-1], c.pick(self.sizes)
        if c.chance(50):
            other = self.tensor_input((inner, outer), tensor.dtype, -1, 1)
            self.call(f"fd.ops.matmul({name}, {other})")
        else:
            weight = self.tensor_input((outer, inner), tensor.dtype, -1, 1)
            bias = f", {self.tensor_input((outer,), tensor.dtype)}" if c.chance(50) else ""
            self.call(f"fd.ops.linear({name}, {weight}{bias})")

    def sampled(self) -> None:
        """A legal call of any op, on existing values if they fit."""
        if not SAMPLED:
            return
        c = self.choices
        sample: Sample = c.pick(ENTRIES[c.pick(SAMPLED)].samples)
        bound: dict[str, str] = {}
        for letter, arg in zip("abcdefghij", sample.args, strict=False):
            found = None
            if c.chance(60):
                candidates = [t for t in self.tensors if self._serves(t, arg)]
                found = c.pick(candidates) if candidates else None
            bound[letter] = found or self.tensor_input(arg.shape, arg.dtype, arg.low, arg.high)
        self.call(renamed(sample.call, bound))

    def _serves(self, name: str, arg: Any) -> bool:
        """Whether a tensor can replace an operand of a sample."""
        tensor = self.analysis.tensor(name)
        if tensor.shape != arg.shape or tensor.dtype is not arg.dtype:
            return False
        value = np.real(np.asarray(self.analysis.known(name).value))
        return not value.size or value.dtype == np.bool_ or bool(value.min() >= arg.low and value.max() < arg.high)


def renamed(call: str, names: dict[str, str]) -> str:
    """A sample's call with other names."""
    tree = ast.parse(call, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.unparse(tree)


def _joined(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return prod(np.broadcast_shapes(a, b))


G = Generator
FAMILIES: tuple[Callable[[Generator], None], ...] = (
    *[G.unary] * 10, *[G.binary] * 14, *[G.bounded] * 3, *[G.where] * 2, *[G.cast] * 5, *[G.reduction] * 8,
    *[G.reshape] * 5, *[G.permute] * 4, *[G.copy] * 2, *[G.broadcast] * 4, *[G.expand] * 3, *[G.slice] * 4, *[G.pad] *
    2, *[G.cat] * 3, *[G.factory] * 4, G.symbol, *[G.scan] * 2, G.sort, *[G.indexing] * 3, *[G.product] * 2,
    *[G.sampled] * 12,
)


def generate(choices: Choices, most_steps: int = 60) -> Program:
    """Return a random program."""
    return Generator(choices).program(most_steps)
