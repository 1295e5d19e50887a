"""The subject of a public function: the one place that decides what a model, a function, a plan or a definition is."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fuser_lab.arguments import brief, short_text
from fuser_lab.bridge.backend import TORCH_OPTIONS
from fuser_lab.bridge.captured import Captured
from fuser_lab.bridge.jax_model import JAX_OPTIONS, from_jax
from fuser_lab.bridge.model import CapturedModel, from_torch
from fuser_lab.bridge.model_view import region_rows
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.ir import Fusion, Number
from fuser_lab.lab.corpus import Corpus, CorpusEntry
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import definition_of, flatten, segment
from fuser_lab.runtime.gpu.this_gpu import THIS_MACHINE
from fuser_lab.targets import has_own_memory

ACCEPTED = (
    "a function or module of torch or JAX with its inputs, a captured model, a plan or a list of plans, or a definition"
)


@dataclass(frozen=True, kw_only=True)
class FusionPart:
    """One fusion of a subject: its name, its definition or plan, its inputs, and how often it occurs."""

    name: str
    definition: object
    inputs: Sequence[Any] | None
    count: int = 1
    entry: CorpusEntry | None = None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A captured model, or fusions: plans, one definition, or entries of the corpus.

    Attributes
    ----------
    caller
        The public function, which begins messages.
    captured
        The model; None for fusions.
    fusions
        Plans, a definition, or entries; empty for a model.
    inputs
        What was passed: for a model its arguments, for fusions a flat list; None if nothing was.
    options
        Options of `segment`: those for a definition, or those by which the regions of a model are cut.
    """

    caller: str
    captured: Captured | None = None
    fusions: tuple[Any, ...] = ()
    inputs: list[Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def definition(self) -> Any:
        """The first fusion, as it was passed."""
        return self.fusions[0]

    @property
    def is_planned(self) -> bool:
        """Whether it consists of plans."""
        return all(isinstance(fusion, Plan) for fusion in self.fusions)

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """The plans: those that were passed, or those of the definition or the entries."""
        if self.is_planned:
            return self.fusions
        return tuple(segment(part.definition, part.inputs, **self.options) for part in self.parts())

    def parts(self) -> Iterator[FusionPart]:
        """Yield the fusions with their inputs: of a model, each distinct region."""
        if self.captured is not None:
            for number, graph in enumerate(self.captured.graphs):
                for row in region_rows(graph.regions):
                    region = row.region
                    name = f"graph {number} region {region.index}" if number else f"region {region.index}"
                    count = row.count * graph.runs
                    yield FusionPart(name=name, definition=region.definition, inputs=region.specs, count=count)
        for fusion in self.fusions:
            if isinstance(fusion, CorpusEntry):
                definition, inputs = fusion.load()
                yield FusionPart(name=fusion.name, definition=definition, inputs=inputs, entry=fusion)
            elif isinstance(fusion, Plan):
                yield FusionPart(
                    name="", definition=fusion.definition, inputs=self.inputs or list(fusion.inputs),
                )
            else:
                yield FusionPart(name="", definition=fusion, inputs=self.inputs)

    def without_inputs(self) -> "Subject":
        """Return the subject, or raise if inputs were passed although its plans have theirs."""
        if self.inputs is not None and self.fusions and self.is_planned:
            msg = f"{self.caller}: a plan has its inputs, given {short_text(self.inputs)} as well; omit them."
            raise InputError(msg)
        return self


def subject_of(
    caller: str, value: object, inputs: Sequence[Any] = (), options: Mapping[str, Any] | None = None,
    *, host_target: str | None = None,
) -> Subject:
    """Return what a value is: a function is captured, and a captured model, plans or a definition stay as they are.

    Parameters
    ----------
    caller
        The public function, which begins messages.
    value
        What it was given.
    inputs
        The positional arguments after it: arguments of a function, or the inputs of a fusion, also as one list.
    options
        The other keyword arguments: options of the capture or of `segment`; for a function, also its arguments.
    host_target
        The target of a function whose arrays are in host memory, unless the options name one; for arrays on a GPU it is
        that GPU.

    Raises
    ------
    ArgumentTypeError
        If it is something else, or options are passed for what is already cut.
    InputError
        If a function cannot be captured with these inputs.
    """
    named = dict(options or {})
    passed = tuple(inputs) if any(each is not None for each in inputs) else ()  # None says that a fusion has no inputs
    if isinstance(value, Captured):
        _refuse_options(caller, "a captured model", "fl.{caller}(model, *inputs, {name}=...) captures it again", named)
        return _of_model(caller, value, _arguments(value, passed))
    if isinstance(value, Corpus | CorpusEntry):
        if passed:
            raise InputError(f"{caller}: entries of the corpus have their own inputs; omit inputs.")
        entries = tuple(value) if isinstance(value, Corpus) else (value,)
        return Subject(caller=caller, fusions=entries, options=named)
    plans = _plans(caller, value)
    if plans:
        _refuse_options(caller, "a plan", "plan.resegmented(...) returns another plan", named)
        return Subject(caller=caller, fusions=plans, inputs=_flat(passed))
    if _is_function(value):
        return _of_model(caller, _capture(value, inputs, named, host_target), None)
    if isinstance(value, str | bytes) or hasattr(value, "__fspath__"):
        raise ArgumentTypeError(
            f"{caller}: the subject is {short_text(value)}, a text; fl.load_repro(text) reads the definition in a "
            "script, and 'python -m fuser_lab explain FILE:NAME' captures a function of a file."
        )
    if not isinstance(value, Fusion | FusionBuilder) and not isinstance(getattr(value, "definition", None), Fusion):
        raise ArgumentTypeError(
            f"{caller}: the subject must be {ACCEPTED}, given {type(value).__name__}; for example "
            f"fl.{caller}(torch.nn.functional.gelu, torch.randn(64, 512))."
        )
    definition_of(value)
    return Subject(caller=caller, fusions=(value,), inputs=_flat(passed), options=named)


def _of_model(caller: str, captured: Captured, inputs: list[Any] | None) -> Subject:
    options: dict[str, Any] = {}
    for region in captured.regions[:1]:
        cut = region.signature.cutting
        options = {"strategy": cut.strategy, "target": region.signature.device, "options": cut.options}
    return Subject(caller=caller, captured=captured, inputs=inputs, options=options)


def _refuse_options(caller: str, subject: str, remedy: str, options: Mapping[str, Any]) -> None:
    if options:
        name = brief(min(options))
        raise ArgumentTypeError(
            f"{caller}: {name} is an option of cutting a definition or capturing a function, given {subject}, which is "
            f"cut already; {remedy.format(caller=caller, name=name)}."
        )


def _plans(caller: str, value: object) -> tuple[Plan, ...]:
    """Return the plans that a value is, or none if it is something else."""
    if isinstance(value, Plan):
        return (value,)
    if not isinstance(value, list | tuple):
        return ()
    if not value or not all(isinstance(each, Plan) for each in value):
        odd = next((each for each in value if not isinstance(each, Plan)), None)
        contents = f"a list with {short_text(odd)}" if value else "an empty list"
        takes = f"fl.{caller}(model, *inputs) takes inputs one by one"
        if value and all(hasattr(each, "forward") for each in value):
            takes = f"fl.{caller}(torch.nn.Sequential(*model), *inputs) takes the modules as one"
        raise ArgumentTypeError(f"{caller}: a list must contain plans, given {contents}; {takes}.")
    return tuple(value)


def _flat(inputs: Sequence[Any]) -> list[Any] | None:
    """Return the inputs of a fusion, passed separately or as one list; None if none are passed."""
    if not inputs:
        return None
    first = inputs[0]
    is_one = hasattr(first, "dtype") or isinstance(first, TensorSpec | Number)
    return flatten(inputs if len(inputs) > 1 or is_one else first)


def _arguments(captured: Captured, inputs: Sequence[Any]) -> list[Any] | None:
    """Return the arguments of a captured model, passed separately or as one list, unless it takes a list itself."""
    if not inputs:
        return None
    source = captured.source if isinstance(captured, CapturedModel) else None
    takes_list = source is not None and len(source.inputs) == 1 and isinstance(source.inputs[0], list | tuple)
    if len(inputs) == 1 and isinstance(inputs[0], list | tuple) and not takes_list:
        return list(inputs[0])
    return list(inputs)


# Functions

def _is_function(value: object) -> bool:
    return not isinstance(value, Fusion | FusionBuilder) and (
        callable(value) or type(value).__name__ == "ExportedProgram"
    )


def _capture(
    function: Any, inputs: Sequence[Any], named: Mapping[str, Any], host_target: str | None,
) -> Captured:
    """Return a function captured by the library of its arrays.

    Keyword arguments that are options of the capture are these, unless the function has a parameter of that name.
    """
    of_jax = any(_is_of_jax(leaf) for leaf in _leaves((tuple(inputs), dict(named))))
    capture: Callable[..., Captured] = from_jax if of_jax else from_torch
    names = (JAX_OPTIONS if of_jax else TORCH_OPTIONS).keys() | {"keywords", *(() if of_jax else ("backward",))}
    names -= _parameters(function)
    options = {name: value for name, value in named.items() if name in names}
    keywords = {name: value for name, value in named.items() if name not in options}
    keywords |= options.pop("keywords", None) or {}
    if options.get("target") is None:
        on_gpu = any(_is_on_gpu(leaf) for leaf in _leaves((tuple(inputs), keywords)))
        options["target"] = THIS_MACHINE if on_gpu else host_target
    return capture(function, *inputs, keywords=keywords, **options)


def _parameters(function: Any) -> frozenset[str]:
    """Return the names of a function's parameters; of a module, those of its method ``forward``."""
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters
    except (TypeError, ValueError):  # built-in functions have no signature
        return frozenset()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return frozenset(name for name, parameter in parameters.items() if parameter.kind not in variable)


def _is_of_jax(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in {"jax", "jaxlib"}


def _is_on_gpu(value: object) -> bool:
    return has_own_memory(getattr(getattr(value, "device", None), "type", ""))


def _leaves(value: object) -> Iterator[object]:
    waiting = [value]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list | tuple):
            if id(each) not in seen:
                seen.add(id(each))
                waiting += each.values() if isinstance(each, dict) else each
        else:
            yield each
