"""From the parts of a dump to a fusion with known sizes, and to groups of its expressions."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, cast

from fuser_lab.definition.axis_numbers import AxisNumbers
from fuser_lab.definition.dump.calls import Call, Context, call_of
from fuser_lab.definition.dump.equal_extents import equal_extents
from fuser_lab.definition.dump.operands import constant, size_of
from fuser_lab.definition.dump.sections import MOST_EXPRESSIONS, DumpText, MathText
from fuser_lab.definition.dump.terms import Applied, Axis, Constant, Domains, Listed, Statement, Symbol, Term, Value
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, FuserLabError
from fuser_lab.files.reading import UnreadableError, parse_json
from fuser_lab.ir import AttrValue, Expr, Fusion, IterType, OpKind, Scalar, TensorDomain, TensorView, Val, needed_exprs
from fuser_lab.ops import OPS
from fuser_lab.ops.rules import Result

# By the first letter of a scalar's name.
SCALAR_DTYPES: Mapping[str, DataType] = {
    "b": DataType.Bool, "i": DataType.Int, "d": DataType.Double, "f": DataType.Float, "c": DataType.ComplexDouble,
}  # fmt: skip
# Sizes of symbols by their number in one tensor: about a million elements.
_USUAL = {0: 1024, 1: 1 << 20, 2: 1024, 3: 128, 4: 32}
_LEAST_USUAL = 8  # elements of an axis without a size, if inputs have many such axes
_DIVIDED = re.compile(r"(?:ceilDiv\(\s*)?([bi]\d+)\s*[,/]\s*(\d{1,9})\s*\)")
_MOST_SIZE = 1 << 40  # elements of an axis, more than any memory holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A dumped fusion with the sizes of its symbols.

    ``groups`` are a scheduler's name and the expressions of each segment; empty if the dump shows no segments.
    ``replicas`` names expressions that repeat another one. ``notes`` say what was omitted or assumed.
    """

    fusion: Fusion
    sizes: Mapping[str, int]
    chosen: tuple[str, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    replicas: Mapping[str, str]
    notes: tuple[str, ...]


def build_fusion(dump: DumpText, sizes: Mapping[str, int]) -> Sized:
    """Return the fusion of a dump and its segments.

    Parameters
    ----------
    dump
        Its parts.
    sizes
        Sizes of symbols by name; typical ones are assumed for the others.

    Raises
    ------
    DefinitionError
        If a line cannot be read; the message names it.
    UnsupportedError
        If it has an op that is not implemented.
    """
    return _Builder(dump, sizes).build()


class _Builder:
    """Records the statements of a dump; results keep their names."""

    def __init__(self, dump: DumpText, sizes: Mapping[str, int]) -> None:
        self._dump = dump
        self._notes: list[str] = []
        self._axes = AxisNumbers()
        self._values: dict[str, Val] = {}
        self._shown: dict[str, tuple[Axis, ...]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._exprs: list[Expr] = []
        self._sizes = dict(sizes)
        self._chosen: list[str] = []
        self._made = 0
        self._own = _own_notes(dump.own)
        self._domains: Mapping[str, Domains] = {}

    def build(self) -> Sized:
        math = self._math()
        self._domains = math.domains
        statements = self._in_order(math.statements(self._notes))
        if not statements:
            line = max((line for line, _ in (*math.inputs, *math.outputs, *math.exprs)), default=self._dump.line)
            raise DefinitionError(f"load_dump: line {line}: the text ends before the first expression is complete.")
        inputs = self._inputs(math, statements)
        self._choose_sizes(inputs, statements)
        types = self._types(math, statements)
        values: list[Val] = [self._input(value, types) for value in inputs]
        scalars = {value.name for value in values if isinstance(value, Scalar)}
        for statement in statements:
            self._statement(statement)
        values = [value for value in values if value.name not in scalars or value.name in self._values]
        outputs = self._outputs(math)
        if not outputs:
            raise DefinitionError("load_dump: the dump has no output that an expression computes.")
        fusion = self._fusion(tuple(values), outputs)
        groups = self._groups({expr.name for expr in fusion.exprs})
        if self._chosen:
            shown = ", ".join(f"{name}={self._sizes[name]}" for name in self._chosen[:12])
            more = f" and {len(self._chosen) - 12} more" if len(self._chosen) > 12 else ""
            self._notes.append(f"sizes that the dump does not give are assumed to be {shown}{more}")
        replicas = {name: data["repeats"] for name, data in self._own.items() if isinstance(data.get("repeats"), str)}
        names = {expr.name for expr in fusion.exprs}
        return Sized(
            fusion=fusion, sizes=self._sizes, chosen=tuple(self._chosen), groups=groups,
            replicas={a: b for a, b in replicas.items() if a in names and b in names}, notes=tuple(self._notes),
        )

    def _math(self) -> MathText:
        """Return the fusion as math text: the rewritten one, otherwise the closest substitute."""
        dump = self._dump
        if dump.rewritten is not None and dump.rewritten.exprs:
            if not dump.rewritten.is_complete:
                self._notes.append("the rewritten fusion is truncated")
            return dump.rewritten
        if any(group.exprs for group in dump.details):
            self._notes.append("there is no rewritten fusion; it is assembled from the details of the groups")
            joined = MathText(is_complete=False)
            for group in dump.details:
                joined.exprs += group.exprs
                joined.inputs += group.typed
            joined.inputs = []
            return joined
        if dump.original is None:
            raise DefinitionError("load_dump: the dump has no fusion.")
        if dump.groups:
            self._notes.append("there is no rewritten fusion; the original one is used")
        if not dump.original.is_complete:
            self._notes.append("the fusion is truncated")
        return dump.original

    def _in_order(self, statements: list[Statement]) -> list[Statement]:
        """Return statements with producers first, each once."""
        makers: dict[str, int] = {}
        unique: list[Statement] = []
        for statement in statements:
            names = [result.name for result in statement.results]
            if any(name in makers for name in names):
                continue
            makers.update(dict.fromkeys(names, len(unique)))
            unique.append(statement)
        needs = [[makers[name] for name in _names(s.term) if name in makers] for s in unique]
        if all(need < place for place, needed in enumerate(needs) for need in needed):
            return unique
        done: dict[int, None] = {}
        open_: set[int] = set()
        waiting = list(reversed(range(len(unique))))
        while waiting:
            place = waiting[-1]
            rest = [need for need in needs[place] if need not in done]
            if place in done or not rest:
                waiting.pop()
                open_.discard(place)
                done[place] = None
            elif place in open_:
                msg = f"load_dump: line {unique[place].line}: {unique[place].results[0].name} depends on itself."
                raise DefinitionError(msg)
            else:
                open_.add(place)
                waiting += rest
        return [unique[place] for place in done]

    def _inputs(self, math: MathText, statements: Sequence[Statement]) -> list[Value | Symbol]:
        """Return the inputs: those listed, and, if the text is incomplete, values that are read but never computed."""
        made = {result.name for statement in statements for result in statement.results}
        listed = {value.name: value for value in math.values("inputs") if value.name not in made}
        read: dict[str, Value] = {}
        for statement in statements:
            for value in _values(statement.term):
                before = read.get(value.name)
                if value.name not in made and (before is None or before.axes is None):
                    read[value.name] = value
        for name, value in read.items():
            if name not in listed:
                if value.axes is None:
                    raise DefinitionError(f"load_dump: {name} is read, but its axes are not printed anywhere.")
                listed[name] = value
                if math.inputs:
                    self._notes.append(f"{name} is read but never computed; it is assumed to be an input")
        return list(listed.values())

    def _choose_sizes(self, inputs: Sequence[Value | Symbol], statements: Sequence[Statement]) -> None:
        """Give each symbol in the inputs a size: a multiple of what it is divided by."""
        symbols: dict[str, None] = {}
        most = 0
        made = {result.name for statement in statements for result in statement.results}
        for value in inputs:
            names = [t.name for axis in (value.axes or () if isinstance(value, Value) else ())
                   for t in _symbols(axis.visible)]  # fmt: skip
            symbols.update(dict.fromkeys(names))
            most = max(most, len(names))
        equal = equal_extents(statements, self._sizes)
        classes = equal.classes()
        for name in symbols:
            size = equal.size(name)
            if size is not None and name not in made:
                self._sizes.setdefault(name, size)
        factors = _divisors(self._dump)
        usual = _USUAL.get(most, _LEAST_USUAL)
        for name in symbols:
            if name not in self._sizes and name not in made:
                alike = classes.get(name, frozenset({name}))
                by = lcm(*(factors.get(other, 1) for other in alike))
                for other in alike - made:
                    self._sizes.setdefault(other, -(-usual // by) * by)
                self._chosen.append(name)

    def _types(self, math: MathText, statements: Sequence[Statement]) -> dict[str, DataType]:
        """Return dtypes of values in versions that do not print them, from lists and from casts."""
        dtypes: dict[str, DataType] = {}
        for group in self._dump.details:
            values = MathText(inputs=group.typed).values("inputs")
            dtypes.update({v.name: v.dtype for v in values if isinstance(v, Value) and v.dtype is not None})
        for value in (*math.values("outputs"), *math.values("inputs")):
            if isinstance(value, Value) and value.dtype is not None:
                dtypes[value.name] = value.dtype
        for statement in statements:
            term = statement.term
            if isinstance(term, Applied) and term.name.startswith("__") and len(term.operands) == 1:
                source = _source_of_cast(term.name)
                operand = term.operands[0]
                if source is not None and isinstance(operand, Value):
                    dtypes.setdefault(operand.name, source)
        return dtypes

    def _input(self, value: Value | Symbol, types: Mapping[str, DataType]) -> Val:
        if isinstance(value, Symbol):
            own_dtype = DataType.__members__.get(str(self._own.get(value.name, {}).get("dtype")))
            dtype = own_dtype or SCALAR_DTYPES.get(value.name[0], DataType.Double)
            scalar = Scalar(name=value.name, dtype=dtype)
            self._values[value.name] = scalar
            return scalar
        axes = []
        for axis in value.kept_axes:
            extent, seen = size_of(axis.extent, self._sizes), size_of(axis.visible, self._sizes)
            if extent is None or seen is None or not 0 <= seen < _MOST_SIZE:
                msg = f"load_dump: an axis of {value.name} has an unknown size; pass it as sizes={{...}}."
                raise DefinitionError(msg)
            kind = IterType.BROADCAST if axis.kind == "b" else IterType.ITERATION
            if kind is IterType.BROADCAST:
                axes.append(self._axes.fresh(1, kind, None if axis.expanded is None else seen))
            else:
                axes.append(self._axes.fresh(seen, kind))
        contiguity = tuple(None if axis.is_broadcast else True for axis in axes)
        domain = TensorDomain(logical=tuple(axes), contiguity=contiguity)
        dtype = value.dtype or types.get(value.name, DataType.Float)
        comment = self._own.get(value.name, {})
        domain = self._laid_out(value.name, domain)
        tensor = TensorView(name=value.name, dtype=dtype, domain=domain, is_cpu=comment.get("is_cpu") is True)
        self._add(tensor, value.kept_axes)
        return tensor

    def _laid_out(self, name: str, domain: TensorDomain) -> TensorDomain:
        """Return axes with the layout that a comment of fuser_lab or a listed allocation domain says."""
        comment, listed = self._own.get(name, {}), self._domains.get(name, Domains())
        if "allocation" in comment or "contiguity" in comment:
            allocation, flags = comment.get("allocation"), comment.get("contiguity")
            return replace(
                domain, allocation=None if allocation is None else tuple(allocation),
                contiguity=None if flags is None else tuple(flags),
            )
        return laid_out(domain, listed)

    def _add(self, tensor: TensorView, shown: tuple[Axis, ...]) -> None:
        self._values[tensor.name] = tensor
        self._shown[tensor.name] = shown
        self._shapes[tensor.name] = tensor.shape

    def _statement(self, statement: Statement) -> None:
        if all(isinstance(result, Symbol) for result in statement.results):
            size = size_of(statement.term, self._sizes)
            if size is not None:
                self._sizes[statement.results[0].name] = size
                return
        context = Context(
            statement=statement, sizes=self._sizes, axes=self._shown, shapes=self._shapes, domains=self._domains,
        )
        call = self._call(context)
        operands = [self._operand(term, statement) for term in call.operands]
        try:
            self._emit(statement, call, operands)
        except DefinitionError:
            raise
        except (FuserLabError, KeyError, TypeError, ValueError, IndexError, StopIteration, AttributeError) as error:
            msg = f"load_dump: line {statement.line}: {call.op} does not fit its operands ({error})."
            raise DefinitionError(msg) from None

    def _call(self, context: Context) -> Call:
        """Return the call of a statement; a comment of fuser_lab supplies what math text lacks."""
        statement = context.statement
        comment = self._own.get(statement.results[0].name, {})
        if "op" not in comment or "attrs" not in comment:
            return call_of(context)
        term = statement.term
        try:
            operands = call_of(context).operands
        except FuserLabError:
            operands = term.operands if isinstance(term, Applied) else (term,)
        if comment["op"] not in OPS and comment["op"] not in _BY_PASSES:
            raise DefinitionError(f"load_dump: line {statement.line}: unknown op {comment['op']!r:.60}.")
        plain = tuple(v for v in operands if not isinstance(v, Listed) and not _is_attribute(v))
        return Call(op=comment["op"], operands=plain, attrs={key: _decode(value) for key, value in comment["attrs"]})

    def _operand(self, term: Term, statement: Statement) -> Val:
        match term:
            case Value(name=name) | Symbol(name=name) if name in self._values:
                return self._values[name]
        value = constant(term, self._sizes)
        if value is not None:
            return value
        if isinstance(term, Applied):
            self._made += 1
            if self._made > MOST_EXPRESSIONS:
                msg = f"load_dump: line {statement.line}: more than {MOST_EXPRESSIONS} nested operands."
                raise DefinitionError(msg)
            name = f"d{10**8 + self._made}"
            inner = Statement(results=(Symbol(name=name),), term=term, line=statement.line)
            self._statement(inner)
            if name in self._sizes:
                return Scalar(name="", dtype=DataType.Int, value=self._sizes[name])
            return self._values[name]
        shown = getattr(term, "name", "an operand")
        raise DefinitionError(f"load_dump: line {statement.line}: {shown} is not defined before it is read.")

    def _emit(self, statement: Statement, call: Call, operands: list[Val]) -> None:
        op = OPS[call.op]
        first = statement.results[0]
        dtype = first.dtype if isinstance(first, Value) else None
        results = op.infer(tuple(operands), call.attrs, self._axes)
        if op.kind is OpKind.POINTWISE and _is_widened(results[0], dtype, operands):
            operands = [_as_tensors(value, operands) for value in operands]
            results = op.infer(tuple(operands), call.attrs, self._axes)
        if len(results) < len(statement.results):
            raise DefinitionError(f"load_dump: line {statement.line}: {call.op} has {len(results)} results.")
        outputs: list[Val] = []
        for place, result in enumerate(results):
            shown = statement.results[place] if place < len(statement.results) else None
            outputs.append(self._result(result, shown, f"{first.name}_{place}", statement))
        self._exprs.append(
            Expr(op=op, inputs=tuple(operands), outputs=tuple(outputs), attrs=tuple(call.attrs.items())),
        )

    def _result(self, result: Result, shown: Value | Symbol | None, unnamed: str, statement: Statement) -> Val:
        name = unnamed if shown is None else shown.name
        if name in self._values:
            raise DefinitionError(f"load_dump: line {statement.line}: {name} is defined a second time.")
        if result.domain is None:
            scalar = self._values[name] = Scalar(name=name, dtype=result.dtype)
            return scalar
        dtype = shown.dtype if isinstance(shown, Value) and shown.dtype is not None else result.dtype
        tensor = TensorView(name=name, dtype=dtype, domain=self._laid_out(name, result.domain))
        printed = shown.kept_axes if isinstance(shown, Value) else ()
        if printed and len(printed) != tensor.ndim:
            msg = f"load_dump: line {statement.line}: {name} has {len(printed)} axes, but should have {tensor.ndim}."
            raise DefinitionError(msg)
        for axis, size in zip(printed, tensor.shape, strict=False):
            if isinstance(axis.visible, Symbol):
                self._sizes.setdefault(axis.visible.name, size)
        if max(tensor.shape, default=0) >= _MOST_SIZE:
            raise DefinitionError(f"load_dump: line {statement.line}: {name} has the shape {list(tensor.shape)}.")
        self._add(tensor, printed)
        return tensor

    def _outputs(self, math: MathText) -> tuple[TensorView, ...]:
        made = {tv.name: tv for expr in self._exprs for tv in expr.tensor_outputs}
        listed = [value.name for value in math.values("outputs")]
        outputs = [made[name] for name in listed if name in made]
        lost = [name for name in listed if name not in made]
        if lost:
            self._notes.append(f"outputs that no expression computes are omitted: {', '.join(lost[:8])}")
        if outputs:
            return tuple(outputs)
        read = {value for expr in self._exprs for value in expr.inputs}
        return tuple(tv for tv in made.values() if tv not in read)

    def _fusion(self, inputs: tuple[Val, ...], outputs: tuple[TensorView, ...]) -> Fusion:
        """Return the fusion of the expressions that outputs need."""
        live = needed_exprs(self._exprs, outputs)
        dead = len(self._exprs) - len(live)
        if dead:
            self._notes.append(f"{dead} expressions that no output needs are omitted")
        comment = self._own.get("", {})
        made = {tv.name: tv for expr in live for tv in expr.tensor_outputs} | {
            value.name: value for value in inputs if isinstance(value, TensorView)
        }
        pairs = [(made[a], made[b]) for a, b in comment.get("aliases", []) if a in made and b in made]
        hidden = frozenset(made[name] for name in comment.get("hidden", []) if name in made)
        orders = tuple((made[name], tuple(ranks)) for name, ranks in comment.get("stride_orders", []) if name in made)
        return Fusion(
            inputs=inputs, exprs=live, outputs=outputs, aliases=tuple(pairs), hidden=hidden,
            stride_orders=orders,
        )

    def _groups(self, computed: set[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        dump = self._dump
        if not dump.groups and not dump.details:
            return ()
        named = {number: [n for n in names if n in computed] for number, names in dump.named.items()}
        source = dump.groups or dump.details
        schedulers = {frozenset(group.numbers): group.scheduler for group in dump.details}
        missing = {n for group in source for n in group.numbers} - named.keys()
        if missing:
            by_order = self._by_order(missing, computed)
            if not by_order:
                return ()
            named |= by_order
        groups = []
        for group in source:
            names = tuple(dict.fromkeys(name for n in group.numbers for name in named.get(n, ())[:1]))
            scheduler = group.scheduler or schedulers.get(frozenset(group.numbers), "")
            if names:
                groups.append((scheduler, names))
        return tuple(groups)

    def _by_order(self, missing: Iterable[int], computed: set[str]) -> dict[int, list[str]]:
        """Return the expressions of numbers without details: the rest in order, as far as the edges agree."""
        numbered = {name for names in self._dump.named.values() for name in names}
        rest = [expr.name for expr in self._exprs if expr.name in computed and expr.name not in numbered]
        numbers = sorted(missing)
        if len(rest) != len(numbers) and not self._dump.details:
            self._notes.append("the list of groups is truncated, so that no segments are read")
            return {}
        if len(rest) != len(numbers):
            raise DefinitionError(
                f"load_dump: the details of the groups are truncated: {len(numbers)} numbers and {len(rest)} "
                "expressions cannot be matched; paste the whole dump."
            )
        names_of = {number: [name] for number, name in zip(numbers, rest, strict=True)}
        for source, _, tensor in self._dump.edges:
            maker = next((n for n, names in names_of.items() if names == [tensor]), None)
            if maker is not None and maker not in source:
                raise DefinitionError(
                    "load_dump: the details of the groups are truncated, and the edges show that the numbers are not "
                    f"in order ({tensor} is not in {sorted(source)[:8]}); paste the whole dump."
                )
        self._notes.append("details of groups are truncated; numbers are assigned in the order of the expressions")
        return names_of


_BY_PASSES = ("fmax", "fmin", "scatter_add")


def _own_notes(lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return fuser_lab's comments on values, by name; ``""`` is the fusion's."""
    comments: dict[str, dict[str, Any]] = {}
    for line in lines:
        name, _, text = line.partition(" ")
        try:
            data = parse_json(text)
        except UnreadableError:
            continue
        if isinstance(data, dict) and _is_well_formed(data):
            comments["" if name == "fusion" else name] = data
    return comments


def _is_well_formed(data: Mapping[str, Any]) -> bool:
    def texts(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(v, str) for v in value)

    def ints(value: object) -> bool:
        return isinstance(value, list) and all(type(v) is int for v in value)

    def pairs(value: object, second: Callable[[Any], bool]) -> bool:
        return isinstance(value, list) and all(
            isinstance(v, list) and len(v) == 2 and isinstance(v[0], str) and second(v[1]) for v in value
        )

    checks: dict[str, Callable[[Any], bool]] = {
        "op": lambda v: isinstance(v, str), "attrs": lambda v: pairs(v, lambda _: True), "is_cpu": lambda v: v is True,
        "repeats": lambda v: isinstance(v, str), "dtype": lambda v: isinstance(v, str), "hidden": texts,
        "allocation": lambda v: v is None or ints(v),
        "contiguity": lambda v: v is None or (isinstance(v, list) and all(f is None or isinstance(f, bool) for f in v)),
        "aliases": lambda v: pairs(v, lambda s: isinstance(s, str)), "stride_orders": lambda v: pairs(v, ints),
    }
    return all(key in checks and checks[key](value) for key, value in data.items())


def _decode(value: Any) -> AttrValue:
    if isinstance(value, list):
        return tuple(_decode(entry) for entry in value)
    if isinstance(value, dict):
        (name,) = value.values() if len(value) == 1 else ("Null",)
        return cast("AttrValue", DataType.__members__.get(str(name), DataType.Null))
    return cast("AttrValue", value)


def laid_out(domain: TensorDomain, listed: Domains) -> TensorDomain:
    """Return axes in the memory order, and with the contiguity, that nvFuser lists for their tensor."""
    order, flags = listed.order, listed.flags
    if order is None or len(order) != len(domain.axes):
        return domain
    is_moved = order != domain.allocation_order
    if not is_moved and False not in flags:
        return domain
    contiguity = domain.contiguity
    if contiguity is not None or False in flags:
        contiguity = tuple(
            None if domain.axes[axis].is_broadcast else flag is not False
            for axis, flag in zip(order, flags or [True] * len(order), strict=True)
        )
    return replace(domain, allocation=order if is_moved else domain.allocation, contiguity=contiguity)


def _is_attribute(term: Term) -> bool:
    return isinstance(term, Constant) and (term.value is None or isinstance(term.value, DataType | str))


def _is_widened(result: Result, dtype: DataType | None, operands: Sequence[Val]) -> bool:
    """Whether a constant would determine the dtype of a result that tensors must determine."""
    if dtype is not None:
        return result.dtype is not dtype
    tensors = {value.dtype for value in operands if isinstance(value, TensorView)}
    return bool(tensors) and result.dtype is not DataType.Bool and result.dtype not in tensors


def _as_tensors(value: Val, operands: Sequence[Val]) -> Val:
    """Return a constant in the dtype of the tensors beside it."""
    tensors = [v.dtype for v in operands if isinstance(v, TensorView) and v.dtype is not DataType.Bool]
    if not isinstance(value, Scalar) or value.value is None or not tensors:
        return value
    dtype = tensors[0]
    if isinstance(value.value, complex) and not dtype.is_complex:
        return value
    if dtype.is_integral and not isinstance(value.value, int):
        return value
    number = float(value.value.real) if dtype.is_float else value.value
    return Scalar(name="", dtype=dtype, value=number)


def _source_of_cast(name: str) -> DataType | None:
    source = name[2:].partition("2")[0]
    return {"half": DataType.Half, "bfloat": DataType.BFloat16, "float": DataType.Float, "double": DataType.Double,
            "e4m3": DataType.Float8_e4m3fn, "e5m2": DataType.Float8_e5m2}.get(source)  # fmt: skip


def _values(term: Term) -> list[Value]:
    if isinstance(term, Value):
        return [term]
    if isinstance(term, Applied):
        return [v for inner in (*term.operands, *(option for _, option in term.options)) for v in _values(inner)]
    return []


def _symbols(term: Term) -> list[Symbol]:
    if isinstance(term, Symbol):
        return [term]
    if isinstance(term, Applied):
        return [s for inner in term.operands for s in _symbols(inner)]
    return []


def _names(term: Term) -> list[str]:
    if isinstance(term, Value | Symbol):
        return [term.name]
    if isinstance(term, Constant | Axis):
        return []
    inner = term.operands if isinstance(term, Applied) else term.entries
    options = [option for _, option in term.options] if isinstance(term, Applied) else []
    return [name for each in (*inner, *options) for name in _names(each)]


def _divisors(dump: DumpText) -> dict[str, int]:
    """Return the divisors of each symbol in the text."""
    divisors: dict[str, int] = {}
    for math in (dump.rewritten, dump.original):
        for _, text in math.exprs if math is not None else ():
            for name, number in _DIVIDED.findall(text):
                by = lcm(divisors.get(name, 1), max(int(number), 1))
                if by <= 1 << 24:
                    divisors[name] = by
    return divisors
