"""Operations of a finished definition: run, check, print and save."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fuser_lab.arguments import FLAG, short_text, takes
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import Described, bind
from fuser_lab.definition.python_text import definition_text
from fuser_lab.definition.repro.writing import script_text
from fuser_lab.definition.scheduling import HandSchedule
from fuser_lab.definition.spec import Fill, TensorSpec
from fuser_lab.errors import (
    ArgumentTypeError,
    EmptyDefinitionError,
    InputError,
    StateError,
)
from fuser_lab.execution.executors import FusionExecutorCache, KernelExecutor
from fuser_lab.execution.profiling import FusionProfile, join_profiles, receiving
from fuser_lab.execution.validation import check_outputs, expected_outputs
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ir.printer import math_text
from fuser_lab.ir.tensor_names import Names, named_error
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import described_input, flatten
from fuser_lab.report import html, save
from fuser_lab.report.fusions import fusion_html, fusion_view
from fuser_lab.report.svg import view_svg
from fuser_lab.runtime.arrays import describe, output_kind, to_numpy, torch_module
from fuser_lab.runtime.plan.generator import reference_form
from fuser_lab.version import __version__

Library = Literal["torch", "numpy"]


class Executable:
    """The operations of a finished definition: running, checking and printing it.

    ``fec`` holds the plans after `execute` has run, ``ke`` the kernel after `manual_execute`; a definition runs in only
    one of these ways.
    """

    fec: FusionExecutorCache | None = None
    ke: KernelExecutor | None = None
    names: Names = ()  # what the user's code calls tensors
    _repro_inputs: tuple[tuple[Described, ...], Library] | None = None

    @property
    def recorded_fusion(self) -> Fusion:
        """The recorded fusion; raises EmptyDefinitionError if there is none."""
        raise NotImplementedError

    def _executor_cache(self) -> FusionExecutorCache:
        """Return ``fec``; create it if nothing has run yet."""
        if self.fec is None:
            self.fec = FusionExecutorCache(self.recorded_fusion)
        return self.fec

    @takes(save_repro_inputs=FLAG)
    def execute(
        self, inputs: Iterable[Any], *, device: object = None, save_repro_inputs: bool = False,
        _enable_options: Iterable[str] = (), _disable_options: Iterable[str] = (),
    ) -> list[Any]:
        """Return the outputs as arrays of the inputs' library (NumPy for NumPy, torch for torch).

        Parameters
        ----------
        inputs
            One array or number per fusion input; lists and tuples among them are flattened.
        device
            None, or the device that the inputs are on: a number, a name or a torch.device.
        save_repro_inputs
            Whether to keep descriptions of the inputs for `last_repro_script`.
        _enable_options, _disable_options
            Names of nvFuser's options. Enabling ``memory_promotion`` is the segmenter's option of that name; disabling
            ``resize_scheduler``, ``transpose_scheduler`` or ``greedy_scheduler`` disables that scheduler. All others
            (`fuser_lab.execution.executors.ENABLE_OPTIONS` and ``DISABLE_OPTIONS``) are accepted and have no effect,
            because fuser_lab does not have these features.

        Raises
        ------
        InputError
            If the inputs do not fit the definition.
        EmptyDefinitionError
            If nothing is defined.
        StateError
            After `manual_execute`, or inside the ``with`` block.
        """
        if self.ke is not None:
            raise StateError("execute: this definition has run by manual_execute; a definition runs in one way only.")
        flat = flatten(inputs)
        if save_repro_inputs:
            self._keep_inputs(flat)
        try:
            return self._run(flat, device=device, _enable_options=_enable_options, _disable_options=_disable_options)
        except InputError as error:
            raise named_error(error, self.names) from None

    def _keep_inputs(self, flat: Sequence[Any]) -> None:
        """Keep descriptions of inputs for `last_repro_script`."""
        self._repro_inputs = (tuple(_with_range(value) for value in flat), _library(flat))

    def _run(self, flat: list[Any], **how: Any) -> list[Any]:
        """Return the outputs for flat inputs."""
        return self._executor_cache().execute(flat, **how)

    def manual_execute(self, inputs: Iterable[Any], heuristic_params: object = None) -> list[Any]:
        """Return the outputs of the fusion run as one kernel, compiled for the first call's inputs.

        Parameters
        ----------
        inputs
            As for `execute`.
        heuristic_params
            None, or the scheduler to use (`fuser_lab.bindings.schedule.compute_heuristics`).

        Raises
        ------
        UnsupportedError
            If no scheduler accepts the whole fusion.
        StateError
            After `execute`.
        """
        if self.fec is not None:
            raise StateError("manual_execute: this definition has run by execute; a definition runs in one way only.")
        flat = flatten(inputs)
        hand = getattr(self, "hand", None)
        transforms = hand.transforms if isinstance(hand, HandSchedule) else ()
        if self.ke is None or self.ke.transforms != transforms:
            executor = KernelExecutor()
            scheduler = self._manual_scheduler(heuristic_params)
            executor.compile(self if transforms else self.recorded_fusion, flat, scheduler_type=scheduler)
            self.ke = executor
        return self.ke.run(flat)

    def _manual_scheduler(self, heuristic_params: object) -> SchedulerType | None:
        scheduler = getattr(heuristic_params, "scheduler", heuristic_params)
        if scheduler is None or isinstance(scheduler, SchedulerType):
            return scheduler
        shown_params = short_text(heuristic_params)
        msg = f"manual_execute: heuristic_params must be what compute_heuristics returns, given {shown_params}."
        raise ArgumentTypeError(msg)

    def plan_for(self, inputs: Iterable[Any]) -> Plan:
        """Return the plan that `execute` runs for these inputs; the last 64 are kept."""
        return self._executor_cache().plan_for(inputs)

    def validate(
        self, inputs: Iterable[Any], reference_outputs: Sequence[Any] | None = None, device: object = None,
        **options: Any,
    ) -> list[Any]:
        """Run, compare the results with a reference, and return them.

        Parameters
        ----------
        inputs
            As for `execute`.
        reference_outputs
            The expected results; by default evaluated op by op, without kernels (`fuser_lab.execution.validation`).
        device, **options
            As for `execute`.

        Raises
        ------
        ValidationError
            If a result is wrong; the message names the output, the worst element, and the expected and allowed values.
        """
        flat = flatten(inputs)
        self._ready(inside="validate")
        expected = self._expected_outputs(flat, reference_outputs)
        outputs = self.execute(flat, device=device, **options)
        check_outputs(self.recorded_fusion, flat, outputs, expected)
        return outputs

    def manual_validate(self, inputs: Iterable[Any], reference_outputs: Sequence[Any] | None = None) -> list[Any]:
        """Run with `manual_execute`, compare the results with a reference, and return them."""
        flat = flatten(inputs)
        self._ready(inside="manual_validate")
        expected = self._expected_outputs(flat, reference_outputs)
        outputs = self.manual_execute(flat)
        check_outputs(self.recorded_fusion, flat, outputs, expected)
        return outputs

    def _ready(self, inside: str) -> None:
        """Raise if there is nothing to run."""
        ok, message = self.validate_definition()
        if not ok:
            raise EmptyDefinitionError(f"{inside}: {message}")

    def _expected_outputs(self, flat: Sequence[Any], expected: Sequence[Any] | None) -> Sequence[Any]:
        # Evaluated first, because a run may write to its inputs.
        return expected_outputs(self.recorded_fusion, flat, self._like(flat)) if expected is None else expected

    def _like(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        """Return an array whose library makes random numbers if no input is an array; None selects NumPy."""
        return ()

    def validate_definition(self) -> tuple[bool, str]:
        """Return whether the definition can run, and otherwise a sentence that says what is missing."""
        try:
            _ = self.recorded_fusion
        except EmptyDefinitionError as error:
            return False, str(error)
        return True, ""

    def repro_script_for(self, inputs: Iterable[Any] | None = None) -> str:
        """Return a script that defines this fusion again and runs it on inputs like these.

        Parameters
        ----------
        inputs
            Arrays, abstract inputs and numbers; without them the script contains only the definition.
        """
        if inputs is None:
            return self._script(None, "torch")
        flat = flatten(inputs)
        bind(self.recorded_fusion, [described_input(value) for value in flat])
        return self._script([_with_range(value) for value in flat], _library(flat))

    def last_repro_script(self) -> str:
        """Return the script for the inputs of the last ``execute(inputs, save_repro_inputs=True)``.

        Raises
        ------
        StateError
            If there was none.
        """
        if self._repro_inputs is None:
            msg = "last_repro_script: no inputs are kept; call execute(inputs, save_repro_inputs=True) first."
            raise StateError(msg)
        return self._script(*self._repro_inputs)

    def _script(self, described: Sequence[Described] | None, library: Library) -> str:
        versions, devices = environment()
        return script_text(self.recorded_fusion, described, versions, devices=devices, library=library)

    def profile(self, inputs: Iterable[Any]) -> FusionProfile:
        """Return the times of one run on these inputs, by segment; its results are discarded."""
        profiles: list[FusionProfile] = []
        flat = flatten(inputs)
        with receiving(profiles.append):
            outputs = self.execute(flat)
        if len(profiles) == 1:
            return profiles[0]
        read, written = (sum(d.nbytes for d in map(describe, v) if isinstance(d, TensorSpec)) for v in (flat, outputs))
        return join_profiles(profiles, profiles[0].fusion_id, read, written)

    def reference(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results of the NumPy reference evaluation as NumPy arrays, rounded as in the fusion's dtypes."""
        flat = flatten(inputs)
        bound, values = reference_form(bind(self.recorded_fusion, [describe(v) for v in flat]).fusion, flat)
        results = evaluate(bound, values)
        return [x for tv, x in zip(bound.outputs, results, strict=True) if tv not in bound.hidden]

    def print_math(self) -> None:
        """Print the fusion as nvFuser's IR text."""
        print(math_text(self.recorded_fusion))  # noqa: T201

    def save(self, path: str | Path) -> Path:
        """Write the unsegmented fusion as .svg, .png, .html, .json, .dot, .mmd, .csv, .txt or .py and return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        view = fusion_view(self.recorded_fusion)
        writers = save.graph_writers(view) | {
            ".html": lambda: html.document("fusion", fusion_html(self.recorded_fusion, repr(self))),
            ".py": lambda: repr(self),
        }
        return save.save("a fusion", path, writers)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the definition as text, and the graph where the definition is complete."""
        try:
            view = fusion_view(self.recorded_fusion)
        except (EmptyDefinitionError, StateError):
            return {"text/plain": repr(self)}
        shown = {"text/html": fusion_html(self.recorded_fusion, repr(self)), "image/svg+xml": view_svg(view)}
        return {"text/plain": repr(self), **shown}

    def __repr__(self) -> str:
        """Return Python code that defines the fusion again."""
        try:
            return definition_text(self.recorded_fusion)
        except (EmptyDefinitionError, StateError) as error:
            return f"<FusionDefinition: {error}>"


def _library(flat: Sequence[Any]) -> Library:
    """Return the library with which a script creates inputs: NumPy if all arrays are NumPy's, otherwise torch."""
    return "numpy" if flat and output_kind([v for v in flat if not isinstance(v, TensorSpec)]) == "numpy" else "torch"


def _with_range(value: Any) -> Described:
    """Return the description from which a script recreates an input.

    The range of integers is kept, because they may be indices.
    """
    described = described_input(value)
    if value is described or not isinstance(described, TensorSpec):
        return described
    # Torch's fake tensors have no values, and no library creates random integers up to the largest one.
    if not described.dtype.is_integral or 0 in described.shape or hasattr(value, "fake_mode"):
        return described
    numbers = to_numpy(value)
    low, high = int(numbers.min()), int(numbers.max()) + 1
    return replace(described, fill=Fill(kind="integers", low=low, high=high)) if high < 2**63 else described


def environment() -> tuple[dict[str, str], list[str]]:
    """Return the environment that a script records: versions of loaded libraries, and names of GPUs."""
    torch = torch_module()
    if torch is None:
        return {"fuser_lab": __version__}, []
    names = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    devices = [torch.cuda.get_device_name(number) for number in names]
    versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    return {"fuser_lab": __version__, **versions}, devices
