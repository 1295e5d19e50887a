"""Fusion: a small graph of tensor expressions, in topological order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from fuser_lab.arguments import listing, short_text
from fuser_lab.errors import ArgumentTypeError, DefinitionError, InputError
from fuser_lab.ir.domain import IterDomain, OrderHint, allocation_of, stride_order_of
from fuser_lab.ir.expr import AttrValue, Expr, scalars_in
from fuser_lab.ir.printer import math_text
from fuser_lab.ir.scalar import Extent, Scalar
from fuser_lab.ir.val import TensorView, Val
from fuser_lab.ir.verifier import verify_graph, verify_stride_orders

_SHOWN = 8  # names on one line


@dataclass(repr=False, frozen=True, kw_only=True, eq=False)
class Fusion:
    """Inputs, expressions in topological order and outputs.

    ``aliases`` pairs an output with the input that it overwrites in place; ``hidden`` are outputs that exist only
    for that and are not returned. ``stride_orders`` pairs outputs with the layout that the user requires of them, the
    rank of each axis counted from the fastest; it never changes, whereas inferred layouts may be dropped. ``centered``
    are sums of squared deviations of which a segment knows that what it reads and subtracts is the mean of the same
    elements. ``keeps_float`` says that kernels round values of Half and BFloat16 only where they store them. Two
    fusions are equal if they differ only in names.

    Raises
    ------
    VerificationError
        If a value is used before it is produced, produced twice, or an output is never produced, or if a required
        layout is not that of its tensor.
    """

    inputs: tuple[Val, ...]
    exprs: tuple[Expr, ...]
    outputs: tuple[TensorView, ...]
    aliases: tuple[tuple[TensorView, TensorView], ...] = ()
    hidden: frozenset[TensorView] = frozenset()
    stride_orders: tuple[tuple[TensorView, tuple[int, ...]], ...] = ()
    centered: tuple[TensorView, ...] = ()
    keeps_float: bool = False

    def __post_init__(self) -> None:
        """Verify topological order, single assignment and required layouts."""
        verify_graph(self.inputs, self.exprs, self.outputs)
        verify_stride_orders(self.stride_orders, self.outputs)

    @cached_property
    def producers(self) -> Mapping[Val, Expr]:
        """Expression that defines each value; inputs and free constants are missing."""
        return {out: expr for expr in self.exprs for out in expr.outputs}

    @cached_property
    def users(self) -> Mapping[Val, tuple[Expr, ...]]:
        """Expressions that read each value, in order, each once."""
        readers: dict[Val, dict[Expr, None]] = {}
        for expr in self.exprs:
            for value in expr.inputs:
                readers.setdefault(value, {})[expr] = None
        return {value: tuple(exprs) for value, exprs in readers.items()}

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the expressions that read each value, by the name of the value."""
        return {value.name: tuple([expr.name for expr in exprs]) for value, exprs in self.users.items()}

    @cached_property
    def needed_for(self) -> Mapping[str, frozenset[str]]:
        """Names of the expressions that read each computed tensor, by its name, and "" for each output."""
        results, readers = self.output_names, self.readers
        return {
            tensor.name: frozenset(readers.get(tensor.name, ())).union([""] if tensor.name in results else ())
            for expr in self.exprs for tensor in expr.tensor_outputs
        }

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the outputs."""
        return frozenset(tensor.name for tensor in self.outputs)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Place of each expression in topological order, by name."""
        return {expr.name: place for place, expr in enumerate(self.exprs)}

    @cached_property
    def tensor_exprs(self) -> tuple[Expr, ...]:
        """Expressions with a tensor result, in order."""
        return tuple(expr for expr in self.exprs if expr.tensor_outputs)

    @cached_property
    def tensor_inputs(self) -> tuple[TensorView, ...]:
        """Tensor inputs in order."""
        return tuple(v for v in self.inputs if isinstance(v, TensorView))

    @cached_property
    def tensors(self) -> Mapping[str, TensorView]:
        """Every tensor by name: inputs first, then results in order."""
        tensors = {tv.name: tv for tv in self.tensor_inputs}
        for expr in self.exprs:
            tensors.update((tv.name, tv) for tv in expr.tensor_outputs)
        return tensors

    @cached_property
    def is_concrete(self) -> bool:
        """Whether every extent is known."""
        return all(isinstance(e, int) for tv in self.tensors.values() for e in tv.extents)

    @cached_property
    def has_empty_tensor(self) -> bool:
        """Whether a tensor has no elements; all extents must be known."""
        return any(tensor.numel == 0 for tensor in self.tensors.values())

    @cached_property
    def deciding_scalars(self) -> frozenset[str]:
        """Names of the scalar inputs that sizes and other attributes depend on, through arithmetic too."""
        names = {scalar.name for expr in self.exprs for scalar in scalars_in(value for _, value in expr.attrs)}
        for expr in reversed(self.exprs):
            if not expr.tensor_outputs and any(out.name in names for out in expr.outputs):
                names.update(v.name for v in expr.inputs)
        return frozenset(v.name for v in self.inputs if isinstance(v, Scalar) and v.name in names)

    def set_output_stride_order(self, output: TensorView | str, stride_order: Sequence[int]) -> "Fusion":
        """Return the fusion with a layout required of an output, replacing any earlier requirement.

        Parameters
        ----------
        output
            An output that the fusion computes, or its name.
        stride_order
            The rank of each axis counted from the fastest: ``[3, 2, 1, 0]`` is row-major, ``[3, 0, 2, 1]``
            channels-last.

        Raises
        ------
        InputError
            If it is not an output, or one whose memory is an input's.
        ArgumentTypeError
            If ``stride_order`` is not a list of ints.
        DefinitionError
            If it is not a permutation of the numbers of the output's axes.
        """
        tensor = self._output(output, "set_output_stride_order")
        if not isinstance(stride_order, list | tuple) or not all(type(rank) is int for rank in stride_order):
            msg = f"set_output_stride_order: stride_order must be a list of ints, given {short_text(stride_order)}."
            raise ArgumentTypeError(msg)
        ranks = tuple(stride_order)
        if sorted(ranks) != list(range(tensor.ndim)):
            raise DefinitionError(
                f"set_output_stride_order: {list(ranks)} is not a permutation of 0..{tensor.ndim - 1}, the ranks of "
                f"the {tensor.ndim} axes of {tensor.name}."
            )
        over = next((target for out, target in self.aliases if out == tensor), tensor)
        if over in self.inputs:
            msg = f"set_output_stride_order: {tensor.name} is written over the input {over.name} and has its layout."
            raise InputError(msg)
        placed = replace(tensor, domain=replace(tensor.domain, allocation=allocation_of(ranks)))
        return replace(
            self,
            exprs=tuple(_with(expr, tensor, placed) for expr in self.exprs),
            outputs=tuple(placed if tv == tensor else tv for tv in self.outputs),
            stride_orders=(*((tv, asked) for tv, asked in self.stride_orders if tv != tensor), (placed, ranks)),
        )

    def get_output_stride_order(self, output: TensorView | str) -> tuple[int, ...] | None:
        """Return the layout that is required of an output, as ranks counted from the fastest; None if none is.

        Raises
        ------
        InputError
            If it is not an output.
        """
        order = self.required_order(self._output(output, "get_output_stride_order"))
        return None if order is None else stride_order_of(order)

    def required_order(self, tensor: TensorView | str) -> tuple[int, ...] | None:
        """Return the axes of a tensor, slowest in memory first, if the user decides their order; otherwise None.

        The user decides for inputs, for results of ``stride_order``, and for outputs by `set_output_stride_order`.

        Raises
        ------
        InputError
            If the fusion has no tensor of a name.
        """
        tensor = self._tensor(tensor, "required_order")
        maker = self.producers.get(tensor)
        asked = maker is None or maker.op.name == "stride_order" or any(tensor == tv for tv, _ in self.stride_orders)
        return tensor.domain.allocation_order if asked else None

    def hint_order(self, tensor: TensorView | str) -> OrderHint | None:
        """Return the layout that an inference proposed for a tensor; None if there is none, or the user decides.

        Raises
        ------
        InputError
            If the fusion has no tensor of a name.
        """
        tensor = self._tensor(tensor, "hint_order")
        return None if self.required_order(tensor) is not None else tensor.domain.hint

    def _tensor(self, tensor: TensorView | str, method: str) -> TensorView:
        if isinstance(tensor, TensorView):
            return tensor
        match = self.tensors.get(tensor) if isinstance(tensor, str) else None
        if match is None:
            raise InputError(
                f"{method}: {short_text(tensor)} is not a tensor of the fusion; its tensors are "
                f"{listing(self.tensors)}."
            )
        return match

    def _output(self, output: TensorView | str, method: str) -> TensorView:
        for tensor in self.outputs:
            if output in (tensor.name, tensor):
                return tensor
        names = ", ".join(tv.name for tv in self.outputs)
        msg = f"{method}: {getattr(output, 'name', output)} is not an output of the fusion; its outputs are {names}."
        raise InputError(msg)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, as hex digits; stable between processes."""
        return sha256(repr(_Canon().fusion(self)).encode()).hexdigest()

    @cached_property
    def program(self) -> str:
        """SHA-256 of the content without extents, as hex digits: that of the same ops on tensors of other sizes.

        Sizes that ops have as attributes, such as the shape of a reshape, count as content.
        """
        return sha256(repr(_Canon(sizes=False).fusion(self)).encode()).hexdigest()

    def __str__(self) -> str:
        """Return the fusion as IR text."""
        return math_text(self)

    def __repr__(self) -> str:
        """Return one line; ``print(fusion)`` shows the expressions."""
        inputs = ", ".join(value.name for value in self.inputs[:_SHOWN]) + ", ..." * (len(self.inputs) > _SHOWN)
        outputs = ", ".join(tv.name for tv in self.outputs[:_SHOWN]) + ", ..." * (len(self.outputs) > _SHOWN)
        return f"<Fusion of {len(self.exprs)} expressions: ({inputs}) -> ({outputs})>"

    def __eq__(self, other: object) -> bool:
        """Compare by content, up to renaming."""
        return self.digest == other.digest if isinstance(other, Fusion) else NotImplemented

    def __hash__(self) -> int:
        """Hash by content."""
        return hash(self.digest)


def _with(expr: Expr, old: TensorView, new: TensorView) -> Expr:
    """Return an expression with one tensor replaced by another."""
    if old not in expr.inputs and old not in expr.outputs:
        return expr
    inputs, outputs = (tuple(new if v == old else v for v in values) for values in (expr.inputs, expr.outputs))
    return replace(expr, inputs=inputs, outputs=outputs)


class _Canon:
    """Numbers values in order of appearance; ``sizes`` says whether extents are part of the content."""

    def __init__(self, *, sizes: bool = True) -> None:
        self._values: dict[Val, int] = {}
        self._sizes = sizes

    def fusion(self, fusion: Fusion) -> tuple[object, ...]:
        inputs = tuple(self._declare(v) for v in fusion.inputs)
        exprs = tuple(
            (
                expr.op.name,
                tuple(self._use(v) for v in expr.inputs),
                tuple((key, self._attr(value)) for key, value in expr.attrs),
                tuple(self._declare(v) for v in expr.outputs),
            )
            for expr in fusion.exprs
        )
        outputs = tuple((self._values[tv], tv in fusion.hidden) for tv in fusion.outputs)
        aliases = tuple((self._values[a], self._values[b]) for a, b in fusion.aliases)
        orders = tuple((self._values[tv], ranks) for tv, ranks in fusion.stride_orders)
        centered = tuple(self._values[tv] for tv in fusion.centered)
        rest = (orders, centered) if centered else (orders,) if orders else ()
        return (inputs, exprs, outputs, aliases, *rest, *(["keeps_float"] if fusion.keeps_float else []))

    def _declare(self, value: Val) -> tuple[object, ...]:
        number = self._values.setdefault(value, len(self._values))
        if isinstance(value, Scalar):
            return ("scalar", number, value.dtype.name, repr(value.value))
        layout = (value.domain.allocation, value.domain.contiguity)
        axes = tuple(self._axis(axis) for axis in value.domain.logical)
        return ("tensor", number, value.dtype.name, axes, layout, value.is_cpu)

    def _axis(self, axis: IterDomain) -> tuple[object, ...]:
        if not self._sizes:
            return (axis.kind.value, axis.expanded is not None)
        return (axis.kind.value, self._extent(axis.extent), self._extent(axis.expanded))

    def _extent(self, extent: Extent | None) -> object:
        return extent if extent is None or isinstance(extent, int) else self._use(extent)

    def _use(self, value: Val) -> tuple[object, ...]:
        if isinstance(value, Scalar) and value.value is not None:
            return ("const", value.dtype.name, repr(value.value))
        return ("value", self._values.setdefault(value, len(self._values)))

    def _attr(self, value: AttrValue) -> object:
        if isinstance(value, Scalar):
            return self._use(value)
        if isinstance(value, tuple):
            return tuple(self._attr(v) for v in value)
        return repr(value)
