"""`fuser_lab.from_torch`: a function, a module or an exported program as regions, each of which has a plan."""

import importlib
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import PurePath
from typing import Any, ClassVar, NoReturn

from fuser_lab.arguments import FLAG, takes
from fuser_lab.bridge.admission import callable_of, check_devices, check_gradients, check_layouts, check_parameters
from fuser_lab.bridge.backend import options_of
from fuser_lab.bridge.capture import Capture, CapturedGraph, GraphBreak, compile_graph
from fuser_lab.bridge.captured import Captured
from fuser_lab.bridge.example_inputs import example_input
from fuser_lab.bridge.input_names import parameters_of
from fuser_lab.bridge.model_step import Source, accumulators, copies, leaves, state_kept, step_arguments, step_of
from fuser_lab.bridge.model_view import LeftOver, left_rows
from fuser_lab.bridge.on_meta import traced_on_meta
from fuser_lab.bridge.refusals import EXPLAINED, first_line, place_of, running_error, tracing_error
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.step_timing import MeasuredStep, measured_on_gpu, measured_on_host
from fuser_lab.errors import FuserLabError, InputError, UnsupportedError
from fuser_lab.process.collector import collecting_rarely
from fuser_lab.targets import has_own_memory


class CapturedModel(Captured):
    """A function or module captured by torch, with its regions as fusions; the result of `fuser_lab.from_torch`."""

    library: ClassVar[str] = "torch"
    made_by: ClassVar[str] = "from_torch"

    def __init__(self, capture: Capture, run: Callable[..., Any] | None, source: Source | None = None) -> None:
        self._capture, self._run, self._source = capture, run, source

    @property
    def source(self) -> Source | None:
        """The captured function; None for a graph that torch passed to a backend."""
        return self._source

    @property
    def graphs(self) -> tuple[CapturedGraph, ...]:
        """The captured graphs, in the order in which torch made them."""
        return tuple(self._capture.graphs)

    @property
    def graph_breaks(self) -> tuple[GraphBreak, ...]:
        """Where torch ended a graph early, and why."""
        return tuple(self._capture.breaks)

    @property
    def left_to_torch(self) -> tuple[LeftOver, ...]:
        """The ops that torch runs, in graphs and between them: how often, why, and the source line of the first one."""
        return left_rows(self.graphs, self.graph_breaks)

    def run(self, *inputs: Any, **keywords: Any) -> Any:
        """Return the function's results, computed by regions and by torch; gradients flow if they were captured."""
        if self._run is None:
            msg = "run: the model was captured from a graph alone; fl.from_torch(model, *inputs) captures the function."
            raise InputError(msg)
        return self._run(*inputs, **keywords)

    def measure_step(self, inputs: Sequence[Any] | None, seconds: float) -> MeasuredStep:
        """Return measured seconds of a step and of its units; by default with the inputs of the capture."""
        torch = torch_for("explain")
        arguments, keywords = step_arguments(self._source, inputs, "explain")
        tensors = [x for x in leaves((arguments, keywords)) if isinstance(x, torch.Tensor)]
        backward = any(graph.kind == "backward" for graph in self.graphs)
        with state_kept(torch, self._source.function if self._source else None, tensors):
            inputs, named_arguments = copies(torch, (arguments, dict(keywords)))
            step = step_of(self.run, inputs, named_arguments, backward=backward)
            if any(has_own_memory(x.device.type) for x in tensors):
                return measured_on_gpu(torch, self.graphs, self.graph_breaks, step, seconds)
            return measured_on_host(self.graphs, self.graph_breaks, step, seconds, torch.get_num_threads())

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: compiled graphs can be neither."""
        msg = (
            "from_torch: a captured model cannot be copied or pickled; copy the module, and capture it again: "
            "fl.from_torch(model, *inputs)."
        )
        raise UnsupportedError(msg)


@takes(backward=FLAG)
def from_torch(
    function: Any, *inputs: Any, backward: bool = False, keywords: Mapping[str, Any] | None = None, **options: Any,
) -> CapturedModel:
    """Return the regions of a torch function that fusions can compute, and the ops left to torch.

    Torch runs the function once, on copies of the inputs; the state of torch's generators and the buffers of a
    module are restored. With tensors on the device ``"meta"``, the function is captured without running anything.

    Parameters
    ----------
    function
        A function of tensors, a ``torch.nn.Module`` or a ``torch.export.ExportedProgram``.
    *inputs
        Its arguments; by default an exported program's own examples.
    backward
        Whether to capture the backward graph as well. Otherwise the function runs under ``torch.no_grad``.
    keywords
        Its keyword arguments.
    **options
        As for the backend: ``strategy``, ``target``, ``options``, ``min_region_ops``, ``max_region_ops``,
        ``left_to_torch``, ``check``, ``matmuls``, ``precision`` (`fuser_lab.bridge.backend.backend`); here the default
        of ``precision`` is ``"eager"``, so that plans are of the ops as they are recorded. ``annotate`` puts a
        ``segment_set`` at the boundaries of modules and of calls, forward and backward, before segmentation. Each
        entry is a module path or the end of one (``"layers.*.mlp"``; ``*`` matches one component, ``**`` any
        number), a module class, a torch function (``torch.nn.functional.silu``) or an ATen op (``"aten.silu"``).

    Raises
    ------
    InputError
        If an input requires a gradient and ``backward`` is False, if ``backward`` is True and nothing requires one, if
        tensors and parameters are on different devices, if the function raises an error, if torch captures nothing, or
        if ``annotate`` matches nothing.
    ArgumentTypeError
        If ``function`` cannot be called.
    UnsupportedError
        If torch is not installed, or is older than 2.6.
    """
    torch = torch_for("from_torch")
    named_arguments = dict(keywords or {})
    chosen = options_of(options, "from_torch")
    exported = isinstance(function, torch.export.ExportedProgram)
    if exported and not inputs and not named_arguments and function.example_inputs is not None:
        inputs, named_arguments = tuple(function.example_inputs[0]), dict(function.example_inputs[1])
    called = callable_of(torch, function, inputs, named_arguments)
    tensors = [x for x in leaves((inputs, named_arguments)) if isinstance(x, torch.Tensor)]
    check_parameters(torch, called)
    check_layouts(torch, tensors)
    check_gradients(torch, called, tensors, backward=backward)
    check_devices(torch, called, tensors)
    on_meta = any(x.device.type == "meta" for x in tensors)
    breaks = importlib.import_module("torch._dynamo.utils").counters["graph_break"]  # their numbers, by explanation
    breaks_before, skipped = dict(breaks), ""
    for skips_errors in (False, True):
        capture = Capture(chosen, arguments=parameters_of(called))
        run = _compile(torch, called, capture, backward=backward, skips_errors=skips_errors)
        with collecting_rarely(), state_kept(torch, called, tensors), traced_on_meta() if on_meta else nullcontext():
            given_copies, copied_keywords = copies(torch, (inputs, named_arguments))
            capture.idle = True
            try:
                results = run(*given_copies, **copied_keywords)
                if backward and not any(graph.kind == "backward" for graph in capture.graphs):
                    _run_backward(torch, results)
            except FuserLabError:
                raise
            except importlib.import_module("torch._dynamo.exc").TorchDynamoException as error:
                raise InputError(tracing_error(called, str(error))) from None
            except Exception as error:  # the user's code raises anything
                if not skips_errors and _is_of_tracer(error):
                    skipped = f"its tracer fails: {first_line(error)}; "
                    continue
                has_no_values = on_meta and isinstance(error, RuntimeError) and "meta" in str(error).lower()
                raise InputError(_without_values(error) if has_no_values else running_error(called, error)) from error
            capture.idle = False
        break
    capture.note_runs()
    for graph in capture.graphs:
        for region in graph.regions:
            region.idle = False
    if not capture.graphs:
        said = (EXPLAINED.search(text) for text, count in breaks.items() if count > breaks_before.get(text, 0))
        because = skipped or next((f"{match[1].rstrip('.')}; " for match in said if match), "")
        raise _nothing_captured(torch, function, called, because, backward=backward)
    capture.names.check("from_torch", capture.options.annotate, is_whole=True)
    return CapturedModel(capture, run, Source(function=called, inputs=tuple(inputs), keywords=named_arguments))


def _nothing_captured(torch: Any, function: Any, called: Any, because: str, *, backward: bool) -> InputError:
    """Return the error of a function of which torch captured no op, with what to do; ``because`` is torch's reason."""
    recurrent, quantised = _recurrent(torch, called), _advise_unquantised(torch, called)
    if recurrent and backward:
        why = (
            f"it does not capture training of {recurrent}, nor the rest of the same function; "
            "fl.from_torch(model, *inputs) captures it without a backward graph"
        )
    elif quantised:
        why = (
            "its quantised layers are single calls of a library, between which nothing is fused; capture the model "
            f"before it is quantised, for example a layer of it: {quantised}"
        )
    else:
        why = (
            f"{because}give a function that computes with its tensor arguments, by ops that torch.compile captures; "
            "for example fl.from_torch(torch.nn.functional.gelu, torch.randn(64, 512))"
        )
    name = getattr(function, "__qualname__", type(function).__name__)
    return InputError(f"from_torch: torch captured no op of {name}; {why}.")


def _recurrent(torch: Any, called: Any) -> str:
    """Return the kind of a module's first recurrent layer, such as ``torch.nn.LSTM``, or an empty text."""
    modules = called.modules() if isinstance(called, torch.nn.Module) else ()
    return next((f"torch.nn.{type(m).__name__}" for m in modules if isinstance(m, torch.nn.RNNBase)), "")


def _advise_unquantised(torch: Any, called: Any) -> str:
    """Return a call that captures a module's first quantised layer without quantisation, or an empty text."""
    for module in called.modules() if isinstance(called, torch.nn.Module) else ():
        name = type(module).__name__
        if not type(module).__module__.startswith("torch.ao.nn.") or not hasattr(torch.nn, name):
            continue
        attributes = ("in_features", "out_features"), ("in_channels", "out_channels", "kernel_size")
        sizes = next(([getattr(module, n) for n in names] for names in attributes if hasattr(module, names[0])), None)
        if sizes is not None:
            layer = f"torch.nn.{name}({', '.join(map(str, sizes))})"
            return f"fl.from_torch({layer}, {example_input(module).code})"
    return ""


def _is_of_tracer(error: Exception) -> bool:
    """Whether torch's tracer raised an error itself, and not the code that it traces."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "_dynamo" in PurePath(frames[-1].filename).parts


def _compile(
    torch: Any, called: Any, capture: Capture, *, backward: bool, skips_errors: bool,
) -> Callable[..., Any]:
    """Return a function that runs what was called and captures its graphs.

    With ``skips_errors``, functions in which torch's tracer fails run uncaptured.
    """
    failures: list[FuserLabError] = []

    def keep(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        capture.note_break(gm)
        try:
            return compile_graph(gm, example_inputs, capture)
        except FuserLabError as error:
            failures.append(error)
            raise

    def enter(*args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    # Dynamo counts compilations by code: each capture has a code object of its own.
    enter.__code__ = enter.__code__.replace(co_name=f"captured_{id(capture):x}")
    config = importlib.import_module("torch._dynamo.config")
    settings: dict[str, Any] = {
        "recompile_limit": 1 << 30, "accumulated_recompile_limit": 1 << 30, "run_gc_after_compile": False,
        # By default, torch skips recurrent layers such as LSTM, and it cannot partition their gradient.
        "allow_rnn": not backward,
        "suppress_errors": skips_errors,
    }
    patches = {setting: value for name, value in settings.items() if (setting := _setting_name(config, name))}
    ignored = _setting_name(config, "ignore_logging_functions")
    patches[ignored] = {*getattr(config, ignored), *_messages()}
    optimizing = importlib.import_module("torch._dynamo").optimize(keep, dynamic=False)
    _configure(optimizing.callback, lambda: config.patch(**patches))
    traced = optimizing(enter)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(backward), _silent("torch._dynamo") if skips_errors else nullcontext():
            results = traced(*args, **kwargs)
        if failures:  # torch has skipped it, too
            raise failures.pop(0)
        return results

    return run


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Return a context in which loggers below a name write only errors."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


_OLDER = {
    "recompile_limit": "cache_size_limit", "accumulated_recompile_limit": "accumulated_cache_size_limit",
    "ignore_logging_functions": "ignore_logger_methods",
}  # names in torch 2.6


def _setting_name(config: Any, name: str) -> str:
    """Return the name of a setting in this torch, or an empty text."""
    return next((n for n in (name, _OLDER.get(name, name)) if hasattr(config, n)), "")


def _configure(callback: Any, configured: Callable[[], AbstractContextManager[object]]) -> None:
    """Let Dynamo compile frames in a context, which a run without compilation does not enter."""
    kind = type(callback)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with configured():
            return kind.__call__(self, *args, **kwargs)

    callback.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _messages() -> set[Any]:
    """Return the methods of loggers that write messages, which must not end a graph."""
    kinds = ("debug", "info", "warn", "error", "exception", "critical", "log")
    return {method for name, method in vars(logging.Logger).items() if name.startswith(kinds) and callable(method)}


def _without_values(error: Exception) -> str:
    """Return a sentence, with the user's line, about an operation that torch cannot do on tensors without values."""
    return (
        f"from_torch: the function's behaviour{place_of(error)} depends on values, and tensors on the device 'meta' "
        "have none; give tensors on another device: "
        "fl.from_torch(model, *(torch.zeros_like(x, device='cpu') for x in inputs))."
    )


def _run_backward(torch: Any, results: Any) -> None:
    outputs = [x for x in leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not outputs:
        msg = "from_torch: backward is True, but no result depends on a value that requires a gradient."
        raise InputError(msg)
    torch.autograd.grad(outputs, accumulators(outputs), [torch.ones_like(x) for x in outputs], allow_unused=True)
