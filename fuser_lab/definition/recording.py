"""The calls recorded inside a definition, for its numbered states and for a cache."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_lab.definition.canonical import Step, steps_of
from fuser_lab.definition.handles import Handle, Tensor
from fuser_lab.definition.known import KnownDefinitions
from fuser_lab.definition.record import EMIT, Record, Unrecordable, arguments, named_in
from fuser_lab.definition.state import DEFINES, Called, FusionState, fusion_state
from fuser_lab.definition.trie import End
from fuser_lab.definition.variables import assigned_names
from fuser_lab.definition.walk import Walk
from fuser_lab.errors import ArgumentTypeError, DefinitionError, InputError
from fuser_lab.ir import AttrValue, Expr, Fusion, Scalar, TensorView, Val
from fuser_lab.ops import COMPOSITES, OPS, OpDef
from fuser_lab.ops.arguments import whole


def _is_attribute(pair: object) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)


class Recording:
    """The calls inside a definition; `FusionBuilder` executes them."""

    ops: Any
    _exprs: list[Expr]
    _outputs: list[TensorView]
    _stride_orders: dict[str, tuple[int, ...]]
    _open: bool | None
    _fusion: Fusion | None

    def __init__(self, cache: KnownDefinitions[Any] | None) -> None:
        if cache is not None and not isinstance(cache, KnownDefinitions):
            msg = f"{type(self).__name__}: cache must be a FusionCache, given {type(cache).__name__}."
            raise ArgumentTypeError(msg)
        self.cache = cache
        self._walk: Walk[Any] | None = None if cache is None else Walk(cache)
        self._end: End | None = None
        self._calls: list[Called] = []
        self._assigned: list[tuple[str, str]] = []  # variables, with the tensors that they were assigned
        self._inside = False  # a user's call, whose parts are not user's calls
        self._state: FusionState | None = None

    @property
    def fusion(self) -> Fusion:
        """The recorded fusion."""
        raise NotImplementedError

    def require_open(self, caller: str) -> None:
        """Raise ClosedDefinitionError unless inside the ``with`` block."""
        raise NotImplementedError

    def wrap(self, result: Any) -> Any:
        """Return values as handles, inside lists and tuples too."""
        raise NotImplementedError

    def emit(self, op: OpDef, inputs: Sequence[Val], **attrs: AttrValue) -> tuple[Val, ...]:
        """Append ``op(inputs)`` and return its results."""
        raise NotImplementedError

    def recorded(
        self, name: str, carry_out: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:
        """Return the result of a user's call, and store the call and the variables that it is assigned to."""
        if self._inside:
            return carry_out(*args, **kwargs)
        result = self._result_of(name, carry_out, args, kwargs)
        variables = assigned_names()
        if variables:
            values = result if isinstance(result, list | tuple) else (result,)
            for variable, value in zip(variables, values, strict=False):
                if isinstance(value, Tensor) and variable[0] != "_":
                    self._assigned.append((variable, value.name))
        return result

    def _result_of(
        self, name: str, carry_out: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:
        """Return the result of a user's call, and store the call; known calls are not executed."""
        walk, record = self._walk, None
        if walk is not None:
            record = walk.record(name, args, kwargs, self)
            node = walk.follow(record)
            if node is not None and node.step is not None:
                result = node.step.result
                return (result if isinstance(result, tuple) else (result,)) if name == EMIT else self.wrap(result)
            refused = walk.refused(record)
            if refused is not None:
                walk.give_up()
                raise refused
            if walk.following:
                self._build(walk)
        self._inside, first = True, len(self._exprs)
        try:
            result = carry_out(*args, **kwargs)
        except BaseException as error:
            if walk is not None:
                walk.remember(record, error)
                # Numbers that a refused call has already assigned would not exist in another definition.
                walk.give_up()
            raise
        finally:
            self._inside = False
        call = Called(name, args, kwargs, first, len(self._exprs), result)
        self._calls.append(call)
        if walk is not None and record is not None:
            try:
                walk.advance(record, steps_of(call, self._exprs[first:], self))
            except Unrecordable:
                walk.give_up()
        return result

    @property
    def steps(self) -> tuple[Step, ...]:
        """The definition's canonical records so far."""
        if self._end is not None:
            return self._end.steps
        if self._walk is not None and self._walk.following:
            return self._walk.steps
        return tuple(step for call in self._calls for step in steps_of(call, self._exprs[call.first : call.last], self))

    def _build(self, walk: "Walk[Any]") -> None:
        """Execute the calls that a definition has only followed in the cache."""
        path = walk.leave()
        values = dict(named for _, result in path for named in named_in(result))
        for record, _ in path:
            self.call(record, values)

    def call(self, record: Record, values: Mapping[str, Val]) -> Any:
        """Return the result of a recorded call, executed here; its values are found by name.

        Raises
        ------
        InputError
            If it is not a call of a definition, or needs values that do not exist.
        """
        self.require_open(record.name)
        if record.name == EMIT:
            args, _ = arguments(record, values, lambda value: value)
            op, operands, *attrs = args
            if op not in OPS or not isinstance(operands, list) or not all(_is_attribute(pair) for pair in attrs):
                raise InputError(f"{op!r} is not an op with operands and attributes.")
            return self.emit(OPS[op], operands, **dict(attrs))
        args, kwargs = arguments(record, values, self.wrap)
        if record.name in DEFINES:
            return getattr(self, record.name)(*args, **kwargs)
        if record.name not in OPS and record.name not in COMPOSITES:
            raise InputError(f"{record.name!r} is not a call of a definition.")
        return getattr(self.ops, record.name)(*args, **kwargs)

    def _look_up(self, walk: "Walk[Any]") -> None:
        """Use the data of an equal definition in the cache, or store it there."""
        self._end = walk.find_end()
        if self._end is None and walk.following:
            self._open = True
            self._build(walk)
            self._open = False
            self._end = walk.find_end(again=True)
        self._walk = None
        if self._end is None and self._outputs:
            self._end = walk.keep(self.fusion, self.state)
        if self._end is not None:
            self._restore(self._end)

    def _restore(self, end: End) -> None:
        """Adopt the results of a definition with the same records."""
        self._fusion, self._state = end.fusion, end.state
        self._stride_orders = {tv.name: tuple(ranks) for tv, ranks in end.fusion.stride_orders}

    @property
    def fusion_id(self) -> int | None:
        """Number of the fusion in the cache; None if it is not cached."""
        return None if self._end is None else self._end.schedules.fusion_id

    @property
    def state(self) -> FusionState:
        """The definition's values, numbered in the order in which they are defined.

        Raises
        ------
        StateError
            While the definition is still open.
        EmptyDefinitionError
            If nothing was defined, or there is no output.
        """
        fusion = self.fusion
        if self._state is None:
            self._state = fusion_state(self._calls, fusion, self._exprs)
        return self._state

    def handle(self, fid: int) -> Handle:
        """Return the handle of a numbered value (`state`), for example to schedule a segment by hand.

        Raises
        ------
        DefinitionError
            If no value has this number; vectors and fixed sizes are not values.
        """
        state, fusion = self.state, self.fusion
        value: Val | None = None
        fid = whole(fid, "handle", "fid")
        if 0 <= fid < len(state.states) and len(state.states[fid].values) == 1:
            value = state.states[fid].values[0]
        elif -len(state.extents) <= fid < 0:
            extent = state.extents[-1 - fid]
            value = extent if isinstance(extent, Scalar) else None
        # With its layout in the fusion, which may be required.
        value = fusion.tensors.get(state.name_of.get(fid, ""), value)
        if value is None:
            raise DefinitionError(f"handle: no value of this definition has the number {fid}.")
        handle: Handle = self.wrap(value)
        return handle
