"""Recording into the active definition: nvFuser's ops are free functions over a stack of open fusions."""

import functools
from contextvars import ContextVar
from typing import Any, Self

from fuser_lab.arguments import FLAG, instance, optional, takes
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.handles import Handle
from fuser_lab.definition.scheduling import HandSchedule
from fuser_lab.errors import ArgumentTypeError, EmptyDefinitionError, StateError
from fuser_lab.ir import Expr, Fusion, Scalar, TensorView, Val
from fuser_lab.nvfuser_direct import values

NOTHING = "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion."
EMPTY = "Fusion is empty!"

_ACTIVE: ContextVar[tuple["Recorder", ...]] = ContextVar("nvfuser_direct_active", default=())


class Recorder(FusionBuilder):
    """A builder that stays open and whose handles have nvFuser's methods."""

    def __init__(self, recorded: Fusion | None = None) -> None:
        super().__init__()
        self._open = True
        if recorded is not None:
            self._continue(recorded)

    def _continue(self, fusion: Fusion) -> None:
        """Begin with a fusion's contents; new values get unused names."""
        self._inputs, self._exprs = list(fusion.inputs), list(fusion.exprs)
        self._outputs, self._aliases = list(fusion.outputs), list(fusion.aliases)
        self._returned = set(fusion.outputs) - fusion.hidden
        for value in (*self._inputs, *(v for expr in self._exprs for v in expr.outputs)):
            self._declare(value)
        axes = [axis.id for tv in fusion.tensors.values() for axis in tv.domain.logical]
        while self.axes.fresh(1).id <= max(axes, default=-1):
            pass
        used = {v.name for v in self._known}
        while self._tensor_name() in used:
            pass
        while self.axes.symbol().name in used:
            pass

    def wrap(self, result: Any) -> Any:
        """Return values as nvFuser's TensorView and Val, inside lists and tuples too."""
        if isinstance(result, TensorView):
            return values.TensorView(result, self)
        if isinstance(result, Scalar):
            return values.Val(result, self)
        if isinstance(result, list | tuple):
            return type(result)(self.wrap(r) for r in result)
        return result

    @functools.cached_property
    def hand(self) -> HandSchedule:
        """The schedule by hand; a definition that is still open may be scheduled, too."""
        return HandSchedule(self.snapshot, self._tensor_name)

    @property
    def recorded_inputs(self) -> tuple[Val, ...]:
        """Inputs so far."""
        return tuple(self._inputs)

    @property
    def recorded_outputs(self) -> tuple[TensorView, ...]:
        """Outputs so far."""
        return tuple(self._outputs)

    @property
    def recorded_exprs(self) -> tuple[Expr, ...]:
        """Expressions so far, including those that no output needs."""
        return tuple(self._exprs)

    def snapshot(self, *, everything: bool = False) -> Fusion:
        """Return what is recorded so far; ``everything`` keeps expressions that no output needs."""
        return self.placed(
            Fusion(
                inputs=tuple(self._inputs),
                exprs=tuple(self._exprs) if everything else self._live_exprs(),
                outputs=tuple(self._outputs),
                aliases=tuple(self._aliases),
                hidden=frozenset(set(self._outputs) - self._returned),
            ),
        )

    def tensor_input(self, *args: Any, **kwargs: Any) -> "values.TensorView":
        """Add a tensor input, given in one of nvFuser's two forms (`FusionBuilder.define_tensor`)."""
        handle: values.TensorView = self.wrap(self.define_tensor(*args, **kwargs).val)
        return handle

    def scalar_value(self, *args: Any, **kwargs: Any) -> "values.Val":
        """Add a scalar input, or return a constant (`FusionBuilder.define_scalar`)."""
        handle: values.Val = self.wrap(self.define_scalar(*args, **kwargs).val)
        return handle

    def detach(self, handle: Handle) -> None:
        """Remove a value from the inputs; `attach` makes it an input again."""
        self._inputs = [value for value in self._inputs if value is not handle.val]

    def attach(self, handle: object) -> None:
        """Make a value an input, unless it is one."""
        if not isinstance(handle, Handle):
            raise ArgumentTypeError(f"add_input: the value must be a tensor or scalar, given {type(handle).__name__}.")
        if handle.val not in self._inputs:
            self._add_input(self.value(handle, "add_input", "value"))

    def producer(self, value: Val) -> Expr | None:
        """Return the expression that computes a value, or None."""
        return next((expr for expr in self._exprs if value in expr.outputs), None)

    def readers(self, value: Val) -> list[Expr]:
        """Return the expressions that read a value."""
        return [expr for expr in self._exprs if value in expr.inputs]


def active() -> Recorder:
    """Return the innermost open definition of this thread.

    Raises
    ------
    StateError
        If none is open.
    """
    stack = _ACTIVE.get()
    if not stack:
        raise StateError("no definition is open; ops belong inside `with FusionDefinition() as fd:`.")
    return stack[-1]


class FusionGuard:
    """Makes a fusion the active one, from construction or ``with`` until it ends."""

    def __init__(self, fusion: "RecordedFusion") -> None:
        if not isinstance(fusion, RecordedFusion):
            raise ArgumentTypeError(f"FusionGuard: fusion must be a Fusion, given {type(fusion).__name__}.")
        self._recorder: Recorder | None = fusion.recorder
        _ACTIVE.set((*_ACTIVE.get(), fusion.recorder))

    def release(self) -> None:
        """Reactivate the fusion that was active before."""
        recorder, self._recorder = self._recorder, None
        stack = list(_ACTIVE.get())
        if recorder is not None and recorder in stack:
            # The innermost of equal ones: guards end in reverse order.
            del stack[len(stack) - 1 - stack[::-1].index(recorder)]
            _ACTIVE.set(tuple(stack))

    def __enter__(self) -> Self:
        """Return the guard, which is already active."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Release the guard; an exception propagates."""
        self.release()


class RecordedFusion:
    """nvFuser's Fusion: a growing list of inputs, expressions and outputs.

    Equal when the definitions are: order of arguments, dtypes, contiguity and constants count, names do not.
    """

    @takes("Fusion", recorded=optional(instance(Fusion)))
    def __init__(self, recorded: Fusion | None = None) -> None:
        self.recorder = Recorder(recorded)
        self.scheduler: SchedulerType | None = None  # the scheduler of its kernel (`schedule.schedule`)

    @property
    def hand(self) -> HandSchedule:
        """The schedule by hand."""
        return self.recorder.hand

    @property
    def definition(self) -> Fusion:
        """The current fusion.

        Raises
        ------
        EmptyDefinitionError
            If it is empty or has no output.
        """
        if not self.recorder.recorded_inputs and not self.recorder.recorded_exprs:
            raise EmptyDefinitionError(EMPTY)
        if not self.recorder.recorded_outputs:
            msg = f"{EMPTY} It has no outputs; call add_output on the values that it should return."
            raise EmptyDefinitionError(msg)
        return self.recorder.snapshot()

    def inputs(self) -> list[Any]:
        """Return the inputs in order."""
        return list(self.recorder.wrap(self.recorder.recorded_inputs))

    def outputs(self) -> list[Any]:
        """Return the outputs in order, including hidden ones of aliases."""
        return list(self.recorder.wrap(self.recorder.recorded_outputs))

    def vals(self) -> list[Any]:
        """Return all tensors and scalars: inputs, then results in order."""
        made = [value for expr in self.recorder.recorded_exprs for value in expr.outputs]
        return list(self.recorder.wrap([*self.recorder.recorded_inputs, *made]))

    def exprs(self) -> list[Any]:
        """Return the expressions in order."""
        return [values.expr_of(expr, self.recorder) for expr in self.recorder.recorded_exprs]

    def add_input(self, value: Any) -> None:
        """Make a value that was defined outside a definition an input."""
        self.recorder.attach(value)

    def add_output(self, value: Any, alias_input: Any = None) -> None:
        """Make a value an output, or write it over an input in place."""
        self.recorder.add_output(value, alias_input)

    @takes(from_outputs_only=FLAG)
    def print_math(self, from_outputs_only: bool = True) -> None:
        """Print the scheduled fusion as IR text; without ``from_outputs_only`` including unused expressions."""
        from fuser_lab.ir.printer import math_text

        if self.hand.transforms and from_outputs_only:
            print(self.hand.text())  # noqa: T201
            return
        print(math_text(self.recorder.snapshot(everything=not from_outputs_only)))  # noqa: T201

    def print_kernel(self, compile_params: object = None) -> None:
        """Print the CUDA kernels of a fusion whose sizes are all static."""
        from fuser_lab.execution.executors import cuda_source
        from fuser_lab.plan.planning import segment

        print(cuda_source(segment(self.definition)))  # noqa: T201

    def __eq__(self, other: object) -> bool:
        """Compare definitions."""
        if not isinstance(other, RecordedFusion):
            return NotImplemented
        return self.recorder.snapshot() == other.recorder.snapshot()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return Python code that defines the fusion again."""
        from fuser_lab.definition.python_text import definition_text

        return definition_text(self.recorder.snapshot())
