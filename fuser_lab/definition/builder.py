"""Recording a fusion with nvFuser's Python API.

``FusionBuilder`` only records. The public ``FusionDefinition`` (`fuser_lab.api.functions`) adds execution.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, overload

import numpy as np

from fuser_lab import arguments, ir
from fuser_lab.arguments import is_whole, short_text
from fuser_lab.definition.axis_numbers import AxisNumbers
from fuser_lab.definition.handles import Handle, Tensor
from fuser_lab.definition.known import KnownDefinitions
from fuser_lab.definition.op_calls import Ops
from fuser_lab.definition.record import EMIT
from fuser_lab.definition.recording import Recording
from fuser_lab.definition.scheduling import HandSchedule
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.definition.state import Called
from fuser_lab.definition.strides import describe_strides
from fuser_lab.definition.tensor_inputs import MOST_AXES, check_axes, input_layout
from fuser_lab.dtypes import DataType, of_python
from fuser_lab.errors import (
    ArgumentTypeError,
    ClosedDefinitionError,
    DefinitionError,
    EmptyDefinitionError,
    StateError,
)
from fuser_lab.ir.transform import Transform
from fuser_lab.ops import OpDef
from fuser_lab.ops.arguments import as_list, check_range, element_type, flag, wholes
from fuser_lab.ops.promotion import convert_number
from fuser_lab.ops.rules import Result

_PACKAGE = __name__.partition(".")[0]
_VECTOR_SIZE = arguments.whole(0, 1 << 16)


class FusionBuilder(Recording):
    """Records a fusion; use as ``with FusionBuilder() as fd:`` and read ``fd.fusion`` afterwards.

    Parameters
    ----------
    cache
        The cache in which equal definitions are looked up and stored; while it knows all calls, nothing is built.
    """

    # The class of users' definitions, once it exists, because modules of lower rank also create definitions.
    public: ClassVar["type[FusionBuilder] | None"] = None

    def __init_subclass__(cls, *, public: bool = False) -> None:
        """Record which class is the public one."""
        super().__init_subclass__()
        if public:
            FusionBuilder.public = cls

    def __init__(self, cache: KnownDefinitions[Any] | None = None) -> None:
        super().__init__(cache)
        self.axes = AxisNumbers()
        self.ops = Ops(self)
        self._tensors = 0
        self._inputs: list[ir.Val] = []
        self._exprs: list[ir.Expr] = []
        self._outputs: list[ir.TensorView] = []
        self._aliases: list[tuple[ir.TensorView, ir.TensorView]] = []
        self._returned: set[ir.TensorView] = set()
        self._stride_orders: dict[str, tuple[int, ...]] = {}  # required of results, by name
        self._known: set[ir.Val] = set()
        self._sized: dict[int, list[ir.Scalar]] = {}  # sizes that an expression determines first, by its position
        self._open: bool | None = None
        self._left_by: str | None = None  # the exception that ended the block
        self._fusion: ir.Fusion | None = None

    @classmethod
    def of(cls, fusion: ir.Fusion) -> Self:
        """Return a finished definition of a fusion, in which each expression is a call; it belongs to no cache."""
        made = cls()
        made._open, made._fusion = False, fusion
        made._inputs, made._outputs = list(fusion.inputs), list(fusion.outputs)
        made._exprs, made._aliases = list(fusion.exprs), list(fusion.aliases)
        made._returned = set(fusion.outputs) - fusion.hidden
        made._stride_orders = {tv.name: ranks for tv, ranks in fusion.stride_orders}
        inputs = [("define_tensor" if isinstance(v, ir.TensorView) else "define_scalar", v) for v in fusion.inputs]
        made._calls = [Called(name, (), {}, 0, 0, value) for name, value in inputs]
        made._calls += [
            Called(EMIT, (), {}, place, place + 1, expr.outputs) for place, expr in enumerate(fusion.exprs)
        ]
        return made

    @classmethod
    def _copy(cls, fusion: ir.Fusion, transforms: Sequence[Transform]) -> Self:
        made = cls.of(fusion)
        made.hand.extend(transforms)
        return made

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[object, ...], dict[str, object]]:
        """Return the recorded fusion, its schedule by hand and names, from which copies and pickles are built.

        They belong to no cache and compile their own kernels.
        """
        content: tuple[object, ...] = (self.fusion, self.hand.transforms)
        rest: dict[str, object] = {"notes": self.notes, "sources": self.sources, "names": self.names}
        return type(self)._copy, content, rest  # noqa: SLF001 - of the same class

    # Notes of `load_repro` about skipped or assumed parts of the definition's script.
    notes: tuple[str, ...] = ()
    # Names of values, with the script's lines that define them under other names.
    sources: tuple[tuple[str, str], ...] = ()
    # What the user's code calls tensors, with their names.
    names: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def hand(self) -> HandSchedule:
        """The schedule by hand, empty until a tensor's loops are changed."""
        return HandSchedule(lambda: self.fusion, taken=lambda: self.state.fid_of)

    def __enter__(self) -> Self:
        """Open the definition for recording."""
        if self._open is not None:
            raise StateError("this definition has already been opened; create a new FusionDefinition for a new fusion.")
        self._open = True
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the definition; an exception inside it propagates, and the incomplete definition is not a fusion."""
        self._open = False
        self._left_by = next((kind.__name__ for kind in exception[:1] if isinstance(kind, type)), None)
        if not any(exception):
            # A variable of the script names a value that a function has returned better than the function's own.
            self.names = tuple(dict.fromkeys((*self.names, *_variables(self), *self._assigned)))
        if self._walk is not None and not any(exception):
            self._look_up(self._walk)

    @property
    def is_open(self) -> bool:
        """Whether the ``with`` block is open."""
        return bool(self._open)

    @property
    def is_new(self) -> bool:
        """Whether the definition has never been opened."""
        return self._open is None

    def require_open(self, caller: str) -> None:
        """Raise ClosedDefinitionError unless inside the ``with`` block."""
        if not self._open:
            raise ClosedDefinitionError(f"{caller} belongs inside `with FusionDefinition() as fd:`, which is not open.")

    @property
    def fusion(self) -> ir.Fusion:
        """The recorded fusion.

        Raises
        ------
        StateError
            While the definition is still open, or if its block was left by an exception.
        EmptyDefinitionError
            If nothing was defined, or there is no output.
        """
        if self._open:
            raise StateError("the definition is still open; leave the `with` block first.")
        if self._left_by is not None:
            msg = f"the definition was left by an exception ({self._left_by}) before it was complete; define it again."
            raise StateError(msg)
        if self._open is None:
            msg = "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion."
            raise EmptyDefinitionError(msg)
        if self._fusion is None:
            if not self._outputs:
                msg = "Fusion is empty! It has no outputs; call fd.add_output on the values that it should return."
                raise EmptyDefinitionError(msg)
            self._fusion = self.placed(
                ir.Fusion(
                    inputs=tuple(self._inputs),
                    exprs=self._live_exprs(),
                    outputs=tuple(self._outputs),
                    # In the order of the outputs, in which they are printed: the printed definition is the same fusion.
                    aliases=tuple(sorted(self._aliases, key=lambda alias: self._outputs.index(alias[0]))),
                    hidden=frozenset(set(self._outputs) - self._returned),
                ),
            )
        return self._fusion

    def placed(self, fusion: ir.Fusion) -> ir.Fusion:
        """Return a recorded fusion with the layouts that are required of its results."""
        for name, ranks in self._stride_orders.items():
            fusion = fusion.set_output_stride_order(name, ranks)
        return fusion

    @property
    def recorded_exprs(self) -> Sequence[ir.Expr]:
        """The expressions recorded so far, also while the definition is open."""
        return self._exprs

    def _live_exprs(self) -> tuple[ir.Expr, ...]:
        """Return the expressions that an output depends on; nvFuser also drops the others."""
        needed: set[ir.Val] = set(self._outputs)
        live: list[ir.Expr] = []
        for place in range(len(self._exprs) - 1, -1, -1):
            expr = self._exprs[place]
            if needed.isdisjoint(expr.outputs) and needed.isdisjoint(self._sized.get(place, ())):
                continue
            live.append(expr)
            needed.update(expr.inputs)
            needed.update(ir.scalars_in(value for _, value in expr.attrs))
        return tuple(reversed(live))

    @overload
    def define_tensor(
        self,
        shape: Sequence[int],
        contiguity: bool | Sequence[bool | None] = False,
        dtype: DataType = DataType.Float,
        is_cpu: bool = False,
        stride_order: Sequence[int] = (),
    ) -> Tensor: ...

    @overload
    def define_tensor(
        self,
        sizes: Sequence[int],
        strides: Sequence[int],
        dtype: DataType = DataType.Float,
        static_sizes: bool = False,
        is_cpu: bool = False,
    ) -> Tensor: ...

    def define_tensor(self, *args: Any, **kwargs: Any) -> Tensor:
        """Add a tensor input, described in one of two forms.

        ``define_tensor(shape, contiguity=False, dtype=DataType.Float, is_cpu=False, stride_order=())`` or
        ``define_tensor(sizes, strides, dtype=DataType.Float, static_sizes=False, is_cpu=False)``; a list of ints in
        the second place means strides.

        Parameters
        ----------
        shape
            One entry per axis: -1 symbolic, 1 broadcast, 0 or more than 1 static.
        contiguity
            True, False, or one entry per axis in memory order (slowest first), None exactly on broadcast axes.
        dtype
            Element type.
        is_cpu
            A 0-d tensor that stays on the CPU beside GPU tensors.
        stride_order
            Rank of each axis counted from the fastest (0); empty for row-major.
        sizes, strides
            Sizes and strides in elements of an example: contiguity and stride order are those of its layout, and
            sizes above 1 become symbolic.
        static_sizes
            Whether sizes above 1 are static.
        """
        self.require_open("define_tensor")
        tensor: Tensor = self.recorded("define_tensor", self._tensor_input, args, kwargs)
        return tensor

    def _tensor_input(self, *args: Any, **kwargs: Any) -> Tensor:
        layout = input_layout(args, kwargs, self.axes)
        tensor = ir.TensorView(name=self._tensor_name(), dtype=layout.dtype, domain=layout.domain, is_cpu=layout.is_cpu)
        self._add_input(tensor)
        return Tensor(tensor, self)

    def define_from_spec(
        self, described: TensorSpec, *, static_sizes: bool = False, is_cpu: bool = False,
    ) -> Tensor:
        """Add a tensor input like a described array: its dtype, the order of its strides, its contiguity.

        Parameters
        ----------
        described
            The result of `fuser_lab.runtime.arrays.describe` or `fl.spec`. Strides may be negative: such axes are not
            contiguous.
        static_sizes
            Whether sizes above 1 are static; otherwise they become symbolic. Sizes of 1 become broadcast axes.
        is_cpu
            A 0-d tensor that stays on the CPU beside GPU tensors.

        Raises
        ------
        ArgumentTypeError
            If it is not a TensorSpec.
        """
        if not isinstance(described, TensorSpec):
            raise ArgumentTypeError(f"define_from_spec: described must be a TensorSpec, given {short_text(described)}.")
        static = flag(static_sizes, "define_from_spec", "static_sizes")
        contiguity, ranks = describe_strides(described.shape, [abs(s) for s in described.strides])
        backwards = [described.strides[axis] < 0 for axis in ir.allocation_of(ranks)]
        return self.define_tensor(
            shape=[n if static or n in {0, 1} else -1 for n in described.shape],
            contiguity=[False if back and mark else mark for mark, back in zip(contiguity, backwards, strict=True)],
            dtype=described.dtype,
            is_cpu=is_cpu,
            stride_order=ranks,
        )

    def define_scalar(self, value: ir.Number | DataType | None = None, dtype: DataType | None = None) -> Handle:
        """Add a scalar input, or return a constant when ``value`` is a number.

        ``define_scalar(DataType.Int)`` and ``define_scalar(None, DataType.Int)`` are inputs, ``define_scalar(2.0)`` and
        ``define_scalar(2, DataType.Float)`` constants.
        """
        self.require_open("define_scalar")
        scalar: Handle = self.recorded("define_scalar", self._scalar, (value,) if dtype is None else (value, dtype), {})
        return scalar

    def _scalar(self, value: ir.Number | DataType | None, dtype: DataType | None = None) -> Handle:
        if isinstance(value, DataType) and dtype is None:
            value, dtype = None, value
        if isinstance(value, np.generic):
            value = value.item()
        if value is None:
            scalar = self.axes.scalar(DataType.Double if dtype is None else element_type(dtype, "define_scalar"))
            self._add_input(scalar)
            return Handle(scalar, self)
        if not isinstance(value, bool | int | float | complex):
            raise ArgumentTypeError(f"define_scalar: value must be a number, given {short_text(value)}.")
        scalar_type = of_python(value) if dtype is None else element_type(dtype, "define_scalar")
        return Handle(
            ir.Scalar(
                name="", dtype=scalar_type, value=convert_number(value, scalar_type, "define_scalar", "value"),
            ), self,
        )

    def define_vector(self, size: int | Sequence[Handle | int], dtype: DataType = DataType.Int) -> list[Handle]:
        """Add ``size`` integer scalar inputs, or return integers and integer scalars as a vector.

        Vectors contain sizes, so ``dtype`` must be ``DataType.Int``.
        """
        self.require_open("define_vector")
        if dtype is not DataType.Int:
            raise ArgumentTypeError(f"define_vector: dtype must be DataType.Int, given {short_text(dtype)}.")
        elements: list[Handle] = self.recorded("define_vector", self._vector, (size,), {})
        return elements

    def _vector(self, size: int | Sequence[Handle | int]) -> list[Handle]:
        if not is_whole(size) and not isinstance(size, list | tuple):
            raise ArgumentTypeError(
                "define_vector: size must be an int, or a list of ints and integer scalars, given "
                f"{short_text(size)}."
            )
        if not is_whole(size):
            sizes = self.extents(size, "define_vector", "values")
            return [Handle(self.value(extent, "define_vector", "values"), self) for extent in sizes]
        count: int = _VECTOR_SIZE.of(size, "define_vector", "size", DefinitionError)
        return [self.define_scalar(None, DataType.Int) for _ in range(count)]

    def add_output(
        self, output: Tensor, alias_input: Tensor | None = None, *, stride_order: Sequence[int] = (),
    ) -> None:
        """Make ``output`` a result, or write it over ``alias_input`` in place (then it is not returned).

        A tensor that is already a result is returned twice. ``stride_order`` is the layout of the
        result: the rank of each axis counted from the fastest.
        """
        self.require_open("add_output")
        keywords = {} if isinstance(stride_order, tuple) and not stride_order else {"stride_order": stride_order}
        args = (output,) if alias_input is None else (output, alias_input)
        self.recorded("add_output", self._add_output, args, keywords)

    def _add_output(
        self, output: Tensor, alias_input: Tensor | None = None, *, stride_order: Sequence[int] = (),
    ) -> None:
        if isinstance(output, Handle) and isinstance(output.val, ir.Scalar):
            msg = f"add_output: output must be a tensor, given the scalar {output}; kernels return tensors only."
            raise DefinitionError(msg)
        tensor = self.tensor(output, "add_output", "output")
        if wholes(stride_order, "add_output", "stride_order"):
            tensor = self.tensor(self.ops.stride_order(tensor, stride_order), "add_output", "output")
        if alias_input is not None:
            target = self.tensor(alias_input, "add_output", "alias_input")
            if target not in self._inputs:
                raise DefinitionError(f"add_output: alias_input {target.name} is not an input of the fusion.")
            if tensor.ndim != target.ndim:
                raise DefinitionError(
                    f"add_output: output {tensor.name} has {tensor.ndim} axes and alias_input {target.name} "
                    f"{target.ndim}; an in-place update needs the same number."
                )
            if tensor.dtype is not target.dtype:
                # A result that is written over an input has the input's type, as in nvFuser.
                tensor = self.tensor(self.ops.cast(tensor, target.dtype), "add_output", "output")
            for other, overwritten in self._aliases:
                if overwritten == target:
                    raise DefinitionError(
                        f"add_output: {tensor.name} cannot be written over the input {target.name}, because "
                        f"{other.name} already is; only one output may alias an input."
                    )
            self._aliases.append((tensor, target))
            if tensor not in self._outputs:
                self._outputs.append(tensor)
            return
        if tensor in self._outputs and tensor not in self._returned:
            # Results are in the order of these calls, not in that of the aliases.
            self._outputs.remove(tensor)
        self._returned.add(tensor)
        self._outputs.append(tensor)

    def set_output_stride_order(self, output: Tensor, stride_order: Sequence[int]) -> None:
        """Require a layout of a result: the rank of each axis counted from the fastest; see `Fusion`'s method.

        Unlike ``add_output(..., stride_order=...)`` this adds no copy: the op that computes the result writes it in
        this layout.
        """
        self.require_open("set_output_stride_order")
        self.recorded("set_output_stride_order", self._require_order, (output, stride_order), {})

    def _require_order(self, output: Tensor, stride_order: Sequence[int]) -> None:
        tensor = self.tensor(output, "set_output_stride_order", "output")
        # The fusion itself checks it; the recording may still contain results that no output needs.
        fusion = ir.Fusion(
            inputs=tuple(self._inputs), exprs=self._live_exprs(), outputs=tuple(self._outputs),
            aliases=tuple(self._aliases),
        )
        fusion.set_output_stride_order(tensor, stride_order)
        self._stride_orders[tensor.name] = tuple(stride_order)

    def get_output_stride_order(self, output: Tensor) -> tuple[int, ...] | None:
        """Return the layout that was required of a result by `set_output_stride_order`, None if none was."""
        if self._walk is not None and self._walk.following:
            self._build(self._walk)
        return self._stride_orders.get(self.tensor(output, "get_output_stride_order", "output").name)

    def emit(self, op: OpDef, inputs: Sequence[ir.Val], **attrs: ir.AttrValue) -> tuple[ir.Val, ...]:
        """Append ``op(inputs)`` and return its results."""
        if self._inside:
            return self._emit_all(op, inputs, attrs)

        def carry_out(*_: Any) -> tuple[ir.Val, ...]:
            return self._emit_all(op, inputs, attrs)

        results: tuple[ir.Val, ...] = self.recorded(EMIT, carry_out, (op.name, list(inputs), *attrs.items()), {})
        return results

    def _emit_all(self, op: OpDef, inputs: Sequence[ir.Val], attrs: dict[str, ir.AttrValue]) -> tuple[ir.Val, ...]:
        for value in inputs:
            if value not in self._known and not (isinstance(value, ir.Scalar) and value.value is not None):
                raise DefinitionError(f"{op.name}: {value} belongs to another definition.")
        results = op.infer(tuple(inputs), attrs, self.axes)
        for result in results:
            if result.domain is not None and len(result.domain.logical) > MOST_AXES:
                count = len(result.domain.logical)
                msg = f"{op.name}: the result would have {count} axes; arrays have {MOST_AXES} at most."
                raise DefinitionError(msg)
        outputs = tuple(self._make(result) for result in results)
        sizes = [size for value in outputs for size in self._declare(value)]
        if sizes:
            self._sized[len(self._exprs)] = sizes
        self._exprs.append(ir.Expr(op=op, inputs=tuple(inputs), outputs=outputs, attrs=tuple(attrs.items())))
        return outputs

    def _make(self, result: Result) -> ir.Val:
        if result.domain is None:
            return self.axes.scalar(result.dtype)
        return ir.TensorView(name=self._tensor_name(), dtype=result.dtype, domain=result.domain)

    def _tensor_name(self) -> str:
        name = f"T{self._tensors}"
        self._tensors += 1
        return name

    def _add_input(self, value: ir.Val) -> None:
        self._inputs.append(value)
        self._declare(value)

    def _declare(self, value: ir.Val) -> list[ir.Scalar]:
        """Declare a value; return the sizes that were unknown before."""
        self._known.add(value)
        if isinstance(value, ir.Scalar):
            return []
        sizes = [extent for extent in value.extents if isinstance(extent, ir.Scalar) and extent not in self._known]
        self._known.update(sizes)
        return sizes

    def value(self, operand: Any, op: str, argument: str) -> ir.Val:
        """Return an operand as a value; Python numbers become constants."""
        if isinstance(operand, Handle):
            if operand.builder is not self:
                raise DefinitionError(f"{op}: {argument} ({operand}) belongs to another definition.")
            return operand.val
        if isinstance(operand, ir.TensorView | ir.Scalar):
            return operand
        if isinstance(operand, np.generic):
            operand = operand.item()
        if isinstance(operand, bool | int | float | complex):
            check_range(operand, DataType.Int, op, argument)
            return ir.Scalar(name="", dtype=of_python(operand), value=operand)
        if operand is None:
            msg = f"{op}: {argument} is None; it must be a value defined earlier or a number."
        else:
            msg = f"{op}: {argument} must be a tensor, scalar or number, given {type(operand).__name__}."
        raise ArgumentTypeError(msg)

    def tensor(self, operand: Any, op: str, argument: str) -> ir.TensorView:
        """Return a tensor operand."""
        value = self.value(operand, op, argument)
        if isinstance(value, ir.TensorView):
            return value
        raise ArgumentTypeError(f"{op}: {argument} must be a tensor, given the scalar {value}.")

    def tensors(self, operands: object, op: str, argument: str) -> tuple[ir.TensorView, ...]:
        """Return a list of tensor operands."""
        if not isinstance(operands, list | tuple):
            raise ArgumentTypeError(f"{op}: {argument} must be a list of tensors, given {type(operands).__name__}.")
        return tuple(self.tensor(x, op, f"{argument}[{i}]") for i, x in enumerate(operands))

    def extents(self, sizes: object, op: str, argument: str) -> tuple[ir.Extent, ...]:
        """Return a shape argument: ints and integer scalars."""
        extents: list[ir.Extent] = []
        entries = as_list(sizes, op, argument, "ints and integer scalars")
        check_axes(op, argument, len(entries), each=2)  # a pad has two widths for each axis
        for position, size in enumerate(entries):
            value = self.value(size, op, f"{argument}[{position}]")
            if not isinstance(value, ir.Scalar) or not value.dtype.is_integral:
                raise ArgumentTypeError(f"{op}: {argument}[{position}] is {value}; it must be an integer.")
            extents.append(value if value.value is None else int(value.value.real))
        return tuple(extents)

    def wrap(self, result: Any) -> Any:
        """Return values as handles, inside lists and tuples too."""
        if isinstance(result, ir.TensorView):
            return Tensor(result, self)
        if isinstance(result, ir.Scalar):
            return Handle(result, self)
        if isinstance(result, list | tuple):
            return type(result)(self.wrap(r) for r in result)
        return result


def _variables(builder: object) -> tuple[tuple[str, str], ...]:
    """Return the variables of a notebook or script that hold tensors of a definition, with the names of these.

    Variables of functions are not read: in Python 3.11 and 3.12 that would keep their values alive.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    if frame is None or frame.f_locals is not frame.f_globals:
        return ()
    return tuple(
        (name, value.name) for name, value in frame.f_globals.items()
        if isinstance(value, Tensor) and value.builder is builder and not name.startswith("_")
    )
