"""`fuser_lab.from_inductor`: what torch.compile makes of a function, with the reason of each cut."""

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from fuser_lab.arguments import ANYTHING, FLAG, PATH, TEXT, brief, mapping, optional, short_text, takes, whole
from fuser_lab.bridge.admission import check_call
from fuser_lab.bridge.backend import options_of
from fuser_lab.bridge.capture import Capture, CapturedGraph, capture_graph
from fuser_lab.bridge.captured import Captured
from fuser_lab.bridge.input_names import parameters_of
from fuser_lab.bridge.model_step import accumulators, copies, state_kept
from fuser_lab.bridge.refusals import running_error, tracing_error
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.step_timing import MeasuredStep
from fuser_lab.compilers.inductor.names import EDITING, INDUCTOR, InductorNames, names_for
from fuser_lab.compilers.inductor.reader import FusedNode, GraphRecord, Reader
from fuser_lab.compilers.inductor.writer import Kernels, code_of, fusions_of
from fuser_lab.compilers.plan import CompiledPlan, Editing, EditTimes
from fuser_lab.compilers.reasons import loops_text
from fuser_lab.compilers.record import KernelRecord, PlanRecord, RecordedPlan, Recording, text_of_recording
from fuser_lab.errors import ArgumentTypeError, FuserLabError, IllegalEdit, InputError, UnsupportedError
from fuser_lab.plan import Plan
from fuser_lab.process.collector import collecting_rarely
from fuser_lab.report.save import save

_TIMED = 20  # calls of each of two plans, in turns; the least time of each counts
_ROUNDINGS = 1024  # roundings by which the order of a sum may change a result


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A compiled function, and the choices handler of its edit, without which torch would compile others later."""

    function: Callable[..., Any]
    fusions: Any = None


@dataclass(frozen=True, kw_only=True)
class _Compiled:
    """One compilation: the graphs in order, the compiled function, and its results."""

    records: tuple[GraphRecord, ...]
    run: _Run
    results: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The user's function, its arguments, and the arguments of torch.compile."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    backward: bool
    options: Mapping[str, Any]
    names: InductorNames

    def compile(self, edit: "_Edit | None" = None, *, is_recorded: bool = True) -> _Compiled:
        """Return what torch.compile makes of the function.

        Raises
        ------
        IllegalEdit
            If the kernels are not those of the edit; no kernel is compiled then.
        """
        torch = torch_for("from_inductor")
        fusions: Any = fusions_of(edit.kernels) if edit is not None else None
        allows, check = (fusions.allows, edit.check) if edit is not None else (None, None)
        reader = Reader(self.names, allows, check, parameters=parameters_of(self.function))
        run = _Run(function=self.callable(torch), fusions=fusions)
        reading = reader.reading() if is_recorded else nullcontext()
        try:
            with collecting_rarely(), reading:
                results, _ = self.call(torch, run)
        except Exception:
            if reader.refusal is None:
                raise
            raise reader.refusal.with_traceback(None) from None  # torch wraps it
        return _Compiled(records=tuple(reader.records), run=run, results=results)

    def callable(self, torch: Any, **options: Any) -> Callable[..., Any]:
        """Return the function compiled by torch, with other options than those passed if there are any."""
        called = self.function

        def enter(*args: Any, **kwargs: Any) -> Any:
            return called(*args, **kwargs)

        # Dynamo counts compilations by code, so each compilation has a code object of its own.
        enter.__code__ = enter.__code__.replace(co_name=f"compiled_{time.monotonic_ns():x}")
        try:
            compiled: Callable[..., Any] = torch.compile(enter, **(options or self._backend()))
        except (AssertionError, RuntimeError, TypeError) as error:  # of an option
            msg = f"from_inductor: torch.compile does not accept the options: {brief(str(error))}"
            raise InputError(msg) from error
        return compiled

    def _backend(self) -> Mapping[str, Any]:
        """Return options of torch.compile with a backend of Inductor that equals no other.

        Dynamo calls what an equal backend compiled of the same code before, such as the part after a graph break.
        """
        if "backend" in self.names.missing or {"mode", "options"} <= self.options.keys():  # torch refuses both
            return self.options
        passed = {name: value for name, value in self.options.items() if name not in {"mode", "options"}}
        unequal = {"__eq__": object.__eq__, "__hash__": object.__hash__}
        kind = type("Backend", (self.names["backend"],), unequal)
        mode, options, dynamic = (self.options.get(name) for name in ("mode", "options", "dynamic"))
        return {**passed, "backend": kind(mode, options, dynamic)}

    def call(self, torch: Any, run: _Run) -> tuple[tuple[Any, ...], float]:
        """Return what a compiled function returns for copies of the inputs, with gradients, and the call's seconds."""
        leaves = torch.utils._pytree.tree_leaves  # noqa: SLF001 - what torch flattens arguments with
        tensors = [x for x in leaves((self.inputs, dict(self.keywords))) if isinstance(x, torch.Tensor)]
        state, gradients_on = state_kept(torch, self.function, tensors), torch.set_grad_enabled(self.backward)
        with state, gradients_on, self._configure(run.fusions):
            torch.manual_seed(0)
            args, keywords = copies(torch, (self.inputs, dict(self.keywords)))
            start = time.perf_counter()
            with self._refusing_gradients():
                returned = run.function(*args, **keywords)
            results = [x for x in leaves(returned) if isinstance(x, torch.Tensor)]
            gradients = self._gradients(torch, [x for x in results if x.requires_grad]) if self.backward else ()
            if any(x.is_cuda for x in results):
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        # A later call may write to the same memory, as graphs of CUDA do.
        return tuple(x.detach().clone() for x in (*results, *gradients) if x is not None), seconds

    @contextmanager
    def _refusing_gradients(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if self.backward or "does not require grad" not in str(error):
                raise
            msg = "from_inductor: the function computes gradients itself, which needs backward=True, given False."
            raise InputError(msg) from error

    def _gradients(self, torch: Any, outputs: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of outputs; none if the function has computed its gradients itself."""
        if not outputs:
            return ()
        try:
            gradients: Sequence[Any] = torch.autograd.grad(
                outputs, accumulators(outputs), [torch.ones_like(x) for x in outputs], allow_unused=True,
            )
        except RuntimeError as error:
            if "second time" not in str(error):  # torch has no other name for the error of a freed graph
                raise
            return ()
        return gradients

    @contextmanager
    def _configure(self, fusions: Any) -> Iterator[None]:
        """Turn caches off, which would skip the scheduler, and install the choices handler of an edit, if any.

        Each edit compiles the function again, so Dynamo's limit on compilations is off.
        """
        dynamo, inductor, functorch = (self.names[f"{name}_config"] for name in ("dynamo", "inductor", "functorch"))
        patches: dict[str, Any] = {"fx_graph_cache": False}
        if fusions is not None:
            patches |= {"inductor_choices_class": type(fusions), "_post_fusion_custom_pass": fusions}
        with (
            dynamo.patch(recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize),
            inductor.patch(**patches), functorch.patch(enable_autograd_cache=False),
            nullcontext() if fusions is None else self.names["set_choices"](fusions),
        ):
            yield


class CompiledModel(Captured):
    """A function compiled by Inductor, with a plan for each graph; the result of `fuser_lab.from_inductor`."""

    library: ClassVar[str] = "torch"
    made_by: ClassVar[str] = "from_inductor"

    def __init__(
        self, graphs: Sequence[CapturedGraph], plans: Sequence[CompiledPlan], run: Callable[..., Any], note: str,
    ) -> None:
        self._graphs, self._plans, self._run, self.note = tuple(graphs), tuple(plans), run, note

    @property
    def graphs(self) -> tuple[CapturedGraph, ...]:
        """Our own capture of each graph that Inductor scheduled, in the order in which it did."""
        return self._graphs

    @property
    def plans(self) -> tuple[CompiledPlan, ...]:
        """Inductor's plan of each graph."""
        return self._plans

    def run(self, *inputs: Any, **keywords: Any) -> Any:
        """Return what the function returns, computed by Inductor's kernels."""
        return self._run(*inputs, **keywords)

    def measure_step(self, inputs: Sequence[Any] | None, seconds: float) -> MeasuredStep:
        """Raise UnsupportedError: Inductor's kernels are not units of a capture."""
        raise UnsupportedError(
            "explain: the units of a compiled model are Inductor's kernels, which are not timed one by one; "
            "fl.explain(model, *inputs, measure=True) times the units of our own capture."
        )

    @takes(path=PATH, depth=optional(whole(1)))
    def save(self, path: str | Path, *, depth: int | None = None) -> Path:
        """Write the plans as .fusions.json, or the map of the model in the formats of `from_torch`; return the path.

        `fuser_lab.load_recorded` reads the plans without torch.
        """
        if not str(path).endswith(".fusions.json"):
            return super().save(path, depth=depth)
        plans = tuple(RecordedPlan(plan=plan.record, costs=plan.region_costs()) for plan in self.plans)
        content = text_of_recording(Recording(map=super().__repr__(), note=self.note, plans=plans))
        return save("plans", path, {".json": lambda: content})

    def __repr__(self) -> str:
        """Return the kernels of each graph, and why neighbours are separate."""
        return "\n\n".join([*map(str, self.plans), *([self.note] if self.note else [])])

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled."""
        raise InputError("from_inductor: a compiled model cannot be copied or pickled; compile the function again.")


@takes(backward=FLAG, keywords=optional(mapping(TEXT, ANYTHING, "a dict of keyword arguments")))
def from_inductor(
    function: Any, *inputs: Any, backward: bool = False, keywords: Mapping[str, Any] | None = None, **options: Any,
) -> CompiledModel:
    """Return what torch.compile makes of a function: the kernels of each graph, and the reason of each cut.

    The function is compiled and called once, on copies of the inputs; the state of torch's generators and the buffers
    of a module are restored.

    Parameters
    ----------
    function
        A function of tensors, or a ``torch.nn.Module``.
    *inputs
        Its arguments.
    backward
        Whether to compile the backward graph as well. Otherwise the function runs under ``torch.no_grad``.
    keywords
        Its keyword arguments.
    **options
        Arguments of ``torch.compile``: ``mode``, ``dynamic``, ``fullgraph``, ``options``.

    Raises
    ------
    ArgumentTypeError
        If ``function`` cannot be called, or an option is not one of ``torch.compile``.
    InputError
        If the function cannot be called with these inputs or raises an error, or Inductor compiles no graph.
    UnsupportedError
        If torch is not installed, or has no scheduler with the names that are read.
    """
    names = names_for("from_inductor")
    if not callable(function) or isinstance(function, type):
        msg = f"from_inductor: function must be a function or a module, given {short_text(function)}."
        raise ArgumentTypeError(msg)
    accepted = ("mode", "dynamic", "fullgraph", "options")
    unknown_names = [name for name in options if name not in accepted]
    if unknown_names:
        msg = f"from_inductor: unknown option {unknown_names[0]!r}; torch.compile has {', '.join(accepted)}."
        raise ArgumentTypeError(msg)
    source = Source(
        function=function, inputs=inputs, keywords=dict(keywords or {}), backward=backward, options=options,
        names=names,
    )
    check_call(torch_for("from_inductor"), function, inputs, source.keywords, "from_inductor")
    try:
        compiled = source.compile()
    except FuserLabError:
        raise
    except importlib.import_module("torch._dynamo.exc").TorchDynamoException as error:
        raise InputError(tracing_error(function, str(error), "from_inductor")) from None
    except Exception as error:  # the user's code raises anything
        raise InputError(running_error(function, error, "from_inductor")) from error
    if not compiled.records:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise InputError(f"from_inductor: Inductor compiled no graph of {name}.")
    graphs = _graphs(compiled)
    editing = _Editing(source, compiled, graphs)
    plans = [editing.plan(number, compiled) for number in range(len(compiled.records))]
    return CompiledModel(graphs, plans, compiled.run.function, names.note)


def _graphs(compiled: _Compiled) -> tuple[CapturedGraph, ...]:
    """Return our own capture of each graph."""
    capture = Capture(options_of({}, "from_inductor"))
    capture.idle = True
    with collecting_rarely():
        return tuple(capture_graph(record.module(), record.kind, capture) for record in compiled.records)


def _record(number: int, record: GraphRecord) -> PlanRecord:
    """Return what was recorded of a graph as a plan."""
    launched = sorted(
        ((node.launch, position, node) for position, node in enumerate(record.nodes) if node.launch is not None),
        key=lambda entry: entry[:2],
    )
    silent = [node for node in record.nodes if node.launch is None]
    return PlanRecord(
        compiler=INDUCTOR, number=number, kind=record.kind, digest=record.digest, calls=record.calls,
        attempts=tuple(record.attempts), kernels=tuple(_kernel(node) for _, _, node in launched),
        groups=tuple(node.ops for node in record.nodes),
        through={name: node.reads for node in silent for name in node.writes},
        writers=record.writers, read_by={name: tuple(sorted(read)) for name, read in record.read_by.items()},
        sources=record.sources, lines=record.lines, output_code=record.output_code, pairwise=record.pairwise,
        in_place=record.in_place, sizes=record.sizes,
        computes=record.computes,
        unfusable=tuple(name for node in record.nodes if not node.fusable for name in node.ops),
    )


def _kernel(node: FusedNode) -> KernelRecord:
    assert node.launch is not None  # nodes without code are no kernels
    return KernelRecord(
        names=node.ops, writes=node.writes, reads=node.reads, nodes=node.nodes, function=node.kernel,
        launch=node.launch, opaque=node.opaque, bytes=node.bytes, loops=loops_text(node.loops),
    )


def _code(plan: CompiledPlan) -> str:
    of = " of a call that needs no gradients, as under torch.no_grad()" if plan.record.kind == "inference" else ""
    return code_of({plan.record.digest: plan.kernel_groups}, f"the {plan.record.kind} graph{of}")


@dataclass(frozen=True, kw_only=True)
class _Edit:
    """The kernels to emit, and a check of each graph with its number before its kernels are compiled."""

    kernels: Kernels
    check: Callable[[int, GraphRecord], None]


class _Editing:
    """Compiles a function again with other kernels in one graph, compares the values, and times both."""

    def __init__(self, source: Source, compiled: _Compiled, graphs: Sequence[CapturedGraph]) -> None:
        self._source, self._compiled, self._graphs = source, compiled, graphs

    def plan(self, number: int, made: _Compiled) -> CompiledPlan:
        """Return the plan of a graph in a compilation, which can be edited."""
        return CompiledPlan(
            record=_record(number, made.records[number]), graph=self._graphs[number],
            editing=None if EDITING & self._source.names.missing else Editing(
                apply=self.apply, code=_code, run=made.run, measure=self.measure,
            ),
        )

    def apply(self, plan: CompiledPlan, kernels: Sequence[Sequence[Sequence[str]]], count: int) -> CompiledPlan:
        """Return the plan with a number of kernels, each of which is within groups of a graph's operations."""
        try:
            return self._apply(plan, kernels, count)
        except IllegalEdit:
            if all(len(groups) == 1 for groups in kernels):
                raise
            apart = [
                [[name] for group in groups for name in group] if len(groups) > 1 else groups for groups in kernels
            ]
            # What cannot be fused with a complete kernel may be fused with a part of it.
            with suppress(IllegalEdit):
                return self._apply(plan, apart, count)
            raise

    def _apply(self, plan: CompiledPlan, kernels: Sequence[Sequence[Sequence[str]]], count: int) -> CompiledPlan:
        digest, number = plan.record.digest, plan.record.number

        def check(place: int, record: GraphRecord) -> None:
            if place == number and record.digest == digest:
                _check(kernels, count, CompiledPlan(record=_record(number, record)))

        made = self._source.compile(_Edit(kernels={digest: kernels}, check=check))
        if number >= len(made.records) or made.records[number].digest != digest:
            msg = "torch captured other graphs when the function was compiled again, so the plan cannot be edited."
            raise IllegalEdit(msg)
        edited = self.plan(number, made)
        edited = replace(edited, grouped=_groups_of(kernels, edited.groups))
        difference = self._difference(made)
        turns = self._turns((self._compiled.run, made.run))
        before, after = map(min, zip(*turns, strict=True))
        ratios = tuple(later / sooner for sooner, later in turns)
        return replace(edited, edited=EditTimes(before=before, after=after, difference=difference, ratios=ratios))

    def measure(self, plans: Sequence[CompiledPlan | Plan | str]) -> tuple[float, ...]:
        """Return the seconds of a call under each plan; a strategy is one of our own backend."""
        torch = torch_for("from_inductor")
        runs: list[_Run] = []
        for plan in plans:
            if isinstance(plan, CompiledPlan) and plan.editing is not None:
                runs.append(plan.editing.run)
            elif isinstance(plan, str):
                ours = self._source.callable(torch, backend="fuser_lab", options={"strategy": plan})
                runs.append(_Run(function=ours))
                self._source.call(torch, runs[-1])
            else:
                msg = f"compare: plan {plan.name!r} cannot be measured; give the name of its strategy instead."
                raise UnsupportedError(msg)
        return tuple(map(min, zip(*self._turns(runs), strict=True)))

    def _difference(self, made: _Compiled) -> float:
        """Return the largest difference of a result, relative to the largest magnitude of that result."""
        torch = torch_for("from_inductor")
        # The arguments may have other values than at the first call.
        results, _ = self._source.call(torch, self._compiled.run)
        largest = 0.0
        for before, after in zip(results, made.results, strict=True):
            if before.dtype.is_floating_point and before.numel():
                scale = max(float(before.abs().nan_to_num(0).max()), torch.finfo(before.dtype).tiny)
                largest = max(largest, float((before - after).abs().nan_to_num(0).max()) / scale)
            elif not torch.equal(before, after):
                largest = float("inf")
        limit = max(
            (torch.finfo(x.dtype).eps for x in results if x.dtype.is_floating_point), default=0.0,
        ) * _ROUNDINGS
        if largest > limit:
            msg = f"the edited kernels give other values: the largest relative difference of a result is {largest:.2g}."
            raise IllegalEdit(msg)
        return largest

    def _turns(self, runs: Sequence[_Run]) -> list[tuple[float, ...]]:
        """Return the seconds of a call of each in each turn; every other turn calls them in reverse order."""
        torch = torch_for("from_inductor")
        turns = []
        for turn in range(_TIMED):
            order = range(len(runs))[:: 1 if turn % 2 else -1]
            seconds = {number: self._source.call(torch, runs[number])[1] for number in order}
            turns.append(tuple(seconds[number] for number in range(len(runs))))
        return turns


def _groups_of(
    kernels: Sequence[Sequence[Sequence[str]]], groups: Sequence[tuple[str, ...]],
) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Return the groups of each kernel that was emitted, of those that an edit asks for."""
    return tuple(
        next(
            (tuple(part for g in parts if (part := tuple(name for name in group if name in g))) for parts in kernels
             if set(group) <= set().union(*parts)),
            (group,),
        )
        for group in groups
    )


def _check(kernels: Sequence[Sequence[Sequence[str]]], count: int, edited: CompiledPlan) -> None:
    """Raise if Inductor emitted more kernels than asked for, with its reason for a pair that should be one kernel."""
    if len(edited.groups) == count:
        return
    pairs = [
        (part, edited.why(a.index, b.index)) for part in (set().union(*groups) for groups in kernels)
        for a in edited.segments for b in edited.segments[a.index + 1 :] if {*a.names, *b.names} <= part
    ]
    if not pairs:
        raise IllegalEdit(f"Inductor emits {len(edited.groups)} kernels instead of {count}, and gives no reason.")
    part, why = min(pairs, key=lambda pair: pair[1].by != INDUCTOR)
    names = ", ".join(name for groups in edited.groups for name in groups if name in part)
    raise IllegalEdit(f"Inductor does not emit one kernel of {names}: {why}.")
