"""FusionDefinition of the removed frontend: one cache per process, definitions by number and by subclassing.

`fuser_lab.api.fusion_definition.FusionDefinition` records and runs.
"""

import contextlib
import functools
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fuser_lab.api import executable, fusion_definition
from fuser_lab.arguments import FLAG, instance, optional, takes, whole
from fuser_lab.bindings.schedule import HeuristicParams
from fuser_lab.definition.binding import Described
from fuser_lab.definition.record import EMIT, Record, bare, named_in
from fuser_lab.definition.repro.writing import script_text
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError, FuserLabError, StateError
from fuser_lab.execution.executors import KernelExecutor
from fuser_lab.execution.profiling import FusionProfile, join_profiles, receiving
from fuser_lab.execution.validation import get_val_tolerances
from fuser_lab.ir import Number, Scalar, TensorView, Val
from fuser_lab.ir.printer import math_text
from fuser_lab.nvfuser import values
from fuser_lab.nvfuser.cache import FusionCache
from fuser_lab.nvfuser.sched import Params, Sched
from fuser_lab.nvfuser.text import function_text, takes_sizes
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.plan.planning import described_input, flatten
from fuser_lab.runtime.arrays import describe

LOGGER = logging.getLogger("nvfuser")
MAX_LENGTH = 9999  # records per definition, the default of nvFuser's FusionDefinition
_HELD = (values.Tensor, values.Scalar, values.Vector)


@functools.cache
def _sizes_of(op: str) -> dict[str, int]:
    """Return the parameters of an op that accept a vector, with their positions."""
    entry = OPS.get(op) or COMPOSITES.get(op)
    names = list(entry.signature.parameters) if entry is not None else []
    return {name: place for place, name in enumerate(names) if takes_sizes(op, name)}


class FusionDefinition(fusion_definition.FusionDefinition):
    """Defines a fusion, and runs it; equal definitions in a process share a number and compiled kernels.

    ``with FusionDefinition() as fd:`` records. A subclass has ``definition(self)`` instead, and may have
    ``schedule(self)``; `execute` calls both.

    Parameters
    ----------
    id
        Number of a fusion that the cache knows: the definition is complete, and can run at once.
    max_length
        Maximum number of calls.
    """

    @takes("FusionDefinition", id=optional(whole(accepted="an int")), max_length=whole(accepted="an int"))
    def __init__(self, id: int | None = None, max_length: int = MAX_LENGTH) -> None:
        self._home = FusionCache.get()
        super().__init__(self._home.known)
        self._max_length = max_length
        self._length = 0
        self._repeats = False  # records of another definition, or of this one once more
        self._debug: str | None = None
        self._measured: FusionProfile | None = None
        self._last: tuple[Described, ...] | None = None
        self.scheduler: HeuristicParams | None = None  # whose kernel `schedule` requests
        self.chosen: Params | None = None  # parameters that were computed last
        self._scheduled_for: list[Any] | None = None
        self._own_schedules: dict[tuple[object, ...], KernelExecutor] = {}
        if id is not None:
            self._end = self._home.known.end(id)
            self._walk, self._open = None, False
            self._restore(self._end)

    def _new(self) -> "FusionDefinition":
        return FusionDefinition()

    # Methods of subclasses

    def definition(self) -> None:  # type: ignore[override]  # a method there, a property in the package's own API
        """Record the fusion; subclasses implement this."""
        raise NotImplementedError("definition() should be implemented by child class!")

    def schedule(self) -> None:
        """Schedule the fusion by hand with ``self.sched``; subclasses may implement this."""
        raise NotImplementedError("schedule() should be implemented by child class!")

    # Recording

    def __exit__(self, *exception: object) -> None:
        """Close the definition; if it fails, log what it recorded and let its exception propagate."""
        try:
            super().__exit__(*exception)
        except Exception:
            self._log("defining")
            raise
        error = next((part for part in exception if isinstance(part, Exception)), None)
        if error is not None:
            self._log("defining", error)

    def recorded(
        self, name: str, carry_out: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:
        """Return the result of a call, and remember it; lists of sizes become vectors."""
        if self._inside:
            return super().recorded(name, carry_out, args, kwargs)
        if not self._repeats:
            args, kwargs = self._count_call(name, args, kwargs)
        result = super().recorded(name, carry_out, args, kwargs)
        if result is None or isinstance(result, _HELD) or name == EMIT:
            return result
        return self.wrap(bare(result))

    def _count_call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of one more call, with vectors for lists of sizes."""
        self._length += 1
        if self._length > self._max_length:
            raise DefinitionError(
                f"The fusion definition has exceeded {self._max_length} operations. The max_length for "
                "FusionDefinition's might need to be increased if the definition is created as expected."
            )
        for parameter, place in _sizes_of(name).items():
            if parameter in kwargs:
                kwargs = {**kwargs, parameter: self._as_vector(kwargs[parameter])}
            elif place < len(args):
                args = (*args[:place], self._as_vector(args[place]), *args[place + 1 :])
        return args, kwargs

    def _as_vector(self, value: Any) -> Any:
        if isinstance(value, values.Vector) or not isinstance(value, list | tuple) or not value:
            return value
        return self.define_vector(value)

    def call(self, record: Record, values: Any) -> Any:
        """Return the result of a recorded call, executed here; its sizes are already vectors."""
        before, self._repeats = self._repeats, True
        try:
            return super().call(record, values)
        finally:
            self._repeats = before

    def wrap(self, result: Any) -> Any:
        """Return values as this frontend's Tensor, Scalar and Vector, inside tuples too."""
        if isinstance(result, TensorView):
            return values.Tensor(result, self)
        if isinstance(result, Scalar):
            return values.Scalar(result, self)
        if isinstance(result, list):
            return values.Vector(self.wrap(part) for part in result)
        return tuple(self.wrap(part) for part in result) if isinstance(result, tuple) else result

    def define_scalar(self, value: Number | DataType | None = None, dtype: DataType | None = None) -> Any:
        """Add a scalar input, or return a constant when ``value`` is a number; a dtype in its place means None."""
        return super().define_scalar(value, dtype)

    @takes(value=instance(int, float, complex, np.number, np.bool_, accepted="a number"))
    def define_constant(self, value: Number, dtype: DataType | None = None) -> Any:
        """Return a constant."""
        return super().define_scalar(value, dtype)

    def add_output(self, output: Any, alias_input: Any = None, stride_order: Sequence[int] | None = None) -> None:
        """Make a tensor a result: ``(output)``, ``(output, alias_input)`` or ``(output, stride_order)``."""
        if isinstance(alias_input, list | tuple):
            alias_input, stride_order = None, alias_input
        super().add_output(output, alias_input, stride_order=() if stride_order is None else stride_order)

    # Numbers

    def id(self) -> int | None:
        """Return the number of the fusion in the cache; None before the definition is complete."""
        return self.fusion_id

    def inputs(self) -> list[int]:
        """Return the numbers of the states that are inputs."""
        return list(self.state.inputs)

    def outputs(self) -> list[int]:
        """Return the numbers of the states that are outputs."""
        return list(self.state.outputs)

    def extents(self, *sizes: Any) -> Any:
        """Return the numbers of the extents of inputs, which are negative; ops refer to them in lists of sizes."""
        return super().extents(*sizes) if sizes else list(self.state.extent_fids)

    # Running

    @takes(
        override_user_schedule=FLAG, capture_debug_output=FLAG, print_repro=FLAG, profile=FLAG, save_repro_inputs=FLAG,
    )
    def execute(
        self, inputs: Iterable[Any], *, device: object = None, override_user_schedule: bool = False,
        capture_debug_output: bool = False, print_repro: bool = False, profile: bool = False,
        save_repro_inputs: bool = False, _enable_options: Iterable[str] = (), _disable_options: Iterable[str] = (),
    ) -> list[Any]:
        """Return the outputs as arrays of the inputs' library.

        Parameters
        ----------
        inputs
            One array or number per fusion input; lists and tuples among them are flattened.
        device
            None, or the device that the inputs are on.
        override_user_schedule
            Whether ``schedule`` is skipped.
        capture_debug_output
            Whether `debug_output` returns what this run prints, including what ``NVFUSER_DUMP`` requests.
        print_repro
            Whether to print the script that repeats this run.
        profile
            Whether `profile` returns the times of this run.
        save_repro_inputs
            Whether `last_repro_script` may describe these inputs.
        _enable_options, _disable_options
            Names of nvFuser's options (`fuser_lab.FusionDefinition.execute`).

        Raises
        ------
        InputError
            If the inputs do not fit the definition.
        NotImplementedError
            If there is no definition.
        """
        flat = flatten(inputs)
        self._define()
        if print_repro:
            print(self.repro_script_for(flat))  # noqa: T201
        how: dict[str, Any] = {"device": device, "save_repro_inputs": save_repro_inputs}
        how |= {"_enable_options": _enable_options, "_disable_options": _disable_options}
        profiles: list[FusionProfile] = []
        try:
            with self._capturing(flat, capture_debug_output), self._measuring(profiles, profile):
                by_hand = self._kernel_by_hand(flat, override_user_schedule)
                if by_hand is not None:
                    if save_repro_inputs:
                        self._keep_inputs(flat)
                    outputs = by_hand.run(flat)
                else:
                    outputs = super().execute(flat, **how)
        except Exception:
            self._log("executing", inputs=flat)
            raise
        self._last = tuple(describe(value) for value in flat)
        if profiles:
            sizes = [_bytes_of(part) for part in (flat, outputs)]
            self._measured = profiles[0] if len(profiles) == 1 else join_profiles(profiles, self.fusion_id or 0, *sizes)
        return outputs

    def _define(self) -> None:
        """Record what a subclass defines, unless it is already recorded."""
        if self.is_new:
            with self:
                self.definition()

    def validate(self, inputs: Iterable[Any], *args: Any, **options: Any) -> list[Any]:
        """Run, compare the results with a reference, and return them; see `fuser_lab.FusionDefinition.validate`."""
        self._define()
        return super().validate(inputs, *args, **options)

    def segment(self, inputs: Iterable[Any] | None = None, **options: Any) -> list[fusion_definition.FusionDefinition]:
        """Return the definition's segments as definitions; see `fuser_lab.FusionDefinition.segment`."""
        self._define()
        return super().segment(inputs, **options)

    def _kernel_by_hand(self, flat: list[Any], override: bool) -> KernelExecutor | None:
        """Return the kernel that ``schedule`` produces for inputs of these sizes, cached; None without a schedule."""
        if override or self.segments or type(self).schedule is FusionDefinition.schedule:
            return None
        executors = self._own_schedules if self._end is None else self._home.user_schedules(self._end.schedules)
        key = (type(self), *(
            (d.shape, d.strides, d.device) if isinstance(d, TensorSpec) else d for d in map(described_input, flat)
        ))
        if key not in executors:
            # Each schedule begins with an empty list of transforms.
            self.__dict__.pop("hand", None)
            self.scheduler = self.chosen = None
            self._scheduled_for = flat
            self.schedule()
            executor = KernelExecutor(self.fusion_id or 0)
            chosen = None if self.scheduler is None else self.scheduler.scheduler
            executor.compile(self if self.hand.transforms else self.fusion, flat, scheduler_type=chosen)
            executors[key] = executor
        return executors[key]

    @contextlib.contextmanager
    def _capturing(self, flat: Sequence[Any], captures: bool) -> Iterator[None]:
        self._debug = None
        if not captures:
            yield
            return
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            yield
        self._debug = stream.getvalue() + self._dump_text(flat)

    def _dump_text(self, flat: Sequence[Any]) -> str:
        """Return the dumps that the environment variable ``NVFUSER_DUMP`` requests, as far as they exist here."""
        parts: dict[str, Callable[[], str]] = {
            "fusion_ir": self.fusion_ir,
            "fusion_ir_original": self.fusion_ir,
            "fusion_ir_math": self.fusion_ir,
            "python_definition": lambda: repr(self),
            "cuda_kernel": lambda: self.cuda_code_for(flat),
            "cuda_full": lambda: self.cuda_code_for(flat, intrinsic_code=True),
            "fusion_ir_presched": self.fusion_ir,
            "scheduled_ir": lambda: self.scheduled_fusion_ir_for(flat),
        }
        asked = [name.strip() for name in os.environ.get("NVFUSER_DUMP", "").split(",")]
        return "".join(parts[name]().rstrip() + "\n" for name in asked if name in parts)

    @staticmethod
    @contextlib.contextmanager
    def _measuring(profiles: list[FusionProfile], measures: bool) -> Iterator[None]:
        if not measures:
            yield
            return
        with receiving(profiles.append):
            yield

    def debug_output(self) -> str | None:
        """Return what the last run printed; None if it was not captured."""
        return self._debug

    def profile(self) -> FusionProfile:  # type: ignore[override]  # of the last run there
        """Return the times of the last ``execute(inputs, profile=True)``.

        Raises
        ------
        StateError
            If there was none.
        """
        if self._measured is None:
            raise StateError("profile: no run was profiled; call execute(inputs, profile=True) first.")
        return self._measured

    @property
    def sched(self) -> Sched:  # type: ignore[override]  # axes have other names there
        """The schedule by hand, and queries to schedulers about the inputs that `schedule` is called for."""
        return Sched(self, self._scheduled_for)

    # Texts

    def __repr__(self) -> str:
        """Return Python that records the fusion again, a blank line first."""
        number = self.fusion_id
        if number is not None:
            return function_text(self.steps, f"nvfuser_fusion_id{number}", self.fusion)
        complete = not (self.is_open or self.is_new) and self._left_by is None and bool(self._outputs)
        # A definition that the cache could not keep has no number.
        name = "nvfuser_fusion" if complete else "nvfuser_incomplete_fusion"
        return function_text(self.steps, name, self.fusion if complete else None)

    def fusion_ir(self) -> str:
        """Return the fusion as IR text, before any schedule."""
        return math_text(self.fusion)

    @takes(intrinsic_code=FLAG, override_user_schedule=FLAG)
    def last_cuda_code(self, intrinsic_code: bool = False, override_user_schedule: bool = False) -> str:
        """Return the kernels of the last run, with the functions that they call if ``intrinsic_code``."""
        return self.cuda_code_for(self._last_inputs("last_cuda_code"), intrinsic_code, override_user_schedule)

    @takes(intrinsic_code=FLAG, override_user_schedule=FLAG)
    def cuda_code_for(
        self, inputs: Iterable[Any], intrinsic_code: bool = False, override_user_schedule: bool = False,
    ) -> str:
        """Return the kernels for inputs like these; needs no GPU."""
        flat = flatten(inputs)
        by_hand = self._kernel_by_hand(flat, override_user_schedule)
        return by_hand.get_cuda_kernel() if by_hand else self._executor_cache().get_cuda_kernel(flat, intrinsic_code)

    @takes(tensor_transforms=FLAG, override_user_schedule=FLAG)
    def last_scheduled_fusion_ir(self, tensor_transforms: bool = False, override_user_schedule: bool = False) -> str:
        """Return the segments of the last run as IR text, each with its scheduler."""
        inputs = self._last_inputs("last_scheduled_fusion_ir")
        return self.scheduled_fusion_ir_for(inputs, tensor_transforms, override_user_schedule)

    @takes(tensor_transforms=FLAG, override_user_schedule=FLAG)
    def scheduled_fusion_ir_for(
        self, inputs: Iterable[Any], tensor_transforms: bool = False, override_user_schedule: bool = False,
    ) -> str:
        """Return the segments for inputs like these as IR text, each with its scheduler."""
        flat = flatten(inputs)
        by_hand = self._kernel_by_hand(flat, override_user_schedule)
        if by_hand:
            return by_hand.get_scheduled_ir(tensor_transforms)
        return self._executor_cache().get_scheduled_ir(flat, tensor_transforms)

    def _last_inputs(self, caller: str) -> list[Described]:
        if self._last is None:
            raise StateError(f"{caller}: nothing has run yet; call execute first.")
        return list(self._last)

    def last_repro_script(self) -> str:
        """Return the script for the inputs of the last ``execute(inputs, save_repro_inputs=True)``; else StateError."""
        if self._repro_inputs is None:
            raise StateError(
                "fd.last_repro_script() cannot provide a repro because fd.execute(inputs, save_repro_inputs=True) was "
                "not executed!"
            )
        return super().last_repro_script()

    def _script(self, described: Sequence[Described] | None, library: executable.Library) -> str:
        text = repr(self)
        name = text.split("(", 1)[0].split()[-1]
        versions, devices = executable.environment()
        return script_text(
            self.fusion, described, versions, devices=devices, library=library, frontend="nvfuser",
            function=(name, text),
        )

    def _log(self, doing: str, error: BaseException | None = None, inputs: Sequence[Any] | None = None) -> None:
        """Log an operation with a script that repeats it, if one can be written."""
        try:
            repro = repr(self) if inputs is None else self.repro_script_for(inputs)
        except (FuserLabError, TypeError, ValueError):
            repro = repr(self)
        number = self.fusion_id
        which = "" if number is None else f" {number}"
        LOGGER.error(
            "An error occurred while %s nvFuser FusionDefinition%s.\n# To repeat it:\n%s", doing, which, repro,
            exc_info=error or True,
        )

    def getValTolerances(self, inputs: Sequence[Any]) -> list[tuple[float, float]]:  # noqa: N802 - nvFuser's name
        """Return (absolute, relative) tolerance of each result for these inputs."""
        return get_val_tolerances(self, inputs)


def _bytes_of(arrays: Iterable[Any]) -> int:
    return sum(d.nbytes for d in map(describe, arrays) if isinstance(d, TensorSpec))


_DEFINITION = instance(FusionDefinition)


@takes(from_fd=_DEFINITION, to_fd=_DEFINITION)
def clone(from_fd: FusionDefinition, to_fd: FusionDefinition) -> None:
    """Record the calls of one definition in an empty one.

    Raises
    ------
    DefinitionError
        If the first is not complete, or something is recorded in the second.
    """
    if from_fd.is_new or from_fd.is_open:
        raise DefinitionError("clone: the definition to be cloned is not complete.")
    if to_fd.is_open:
        _replay(from_fd, to_fd)
        return
    if not to_fd.is_new:
        raise DefinitionError("clone: expected an empty FusionDefinition to clone to.")
    with to_fd:
        _replay(from_fd, to_fd)


def _replay(source: FusionDefinition, target: FusionDefinition) -> None:
    values_by_name: dict[str, Val] = {}
    for step in source.steps:
        values_by_name.update(named_in(bare(target.call(step.record, values_by_name))))
