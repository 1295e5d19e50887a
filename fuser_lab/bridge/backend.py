"""``torch.compile(model, backend="fuser_lab")``, and its captures."""

import importlib
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import CodeType
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.bridge.annotations import patterns_of
from fuser_lab.bridge.capture import Capture, CaptureOptions, compile_graph
from fuser_lab.bridge.options import COMMON, chosen_of, cutting_of
from fuser_lab.bridge.partition import Wishes
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.process.collector import collecting_rarely
from fuser_lab.process.forks import after_fork
from fuser_lab.segmentation.options import PRECISIONS, SegmenterOptions

NAME = "fuser_lab"
_WHO = "fuser_lab backend"  # in messages


class _Last(threading.local):
    """The last capture of a thread.

    ``is_broken`` says that its last graph ended with a break, and ``root`` is the code that calls its graphs: None
    before the second of them.
    """

    capture: Capture | None = None
    is_broken: bool = False
    root: CodeType | None = None


_LAST = _Last()
_MATMULS = ("torch", "record")
TORCH_OPTIONS: Mapping[str, Any] = {  # with defaults
    **COMMON, "left_to_torch": (), "matmuls": "torch", "annotate": (), "precision": "eager",
}


# Where the defaults of the backend differ from those of a capture. A search takes at most a tenth of what it may save
# in 100,000 runs, and no more than 10 seconds.
_DEFAULTS: Mapping[str, Any] = {
    "precision": "fused", "strategy": "fastest",
    "options": SegmenterOptions(search_calls=100_000, search_seconds=10.0),
}


def options_of(options: Mapping[str, Any] | None, who: str = _WHO) -> CaptureOptions:
    """Return the options of `backend` as passed to ``torch.compile``; ``who`` begins each message.

    Raises
    ------
    InputError
        If there is no such option, or it does not accept the value.
    ArgumentTypeError
        If a value is of another type.
    """
    chosen = chosen_of(who, TORCH_OPTIONS, options)
    if chosen["matmuls"] not in _MATMULS:
        msg = f"{who}: matmuls must be 'torch' or 'record', given {short_text(chosen['matmuls'])}."
        raise InputError(msg)
    if chosen["precision"] not in PRECISIONS:
        msg = f"{who}: precision must be 'eager' or 'fused', given {short_text(chosen['precision'])}."
        raise InputError(msg)
    return CaptureOptions(
        wishes=Wishes(
            min_region_ops=chosen["min_region_ops"], max_region_ops=chosen["max_region_ops"],
            left=_op_names(who, chosen["left_to_torch"]), records_matmuls=chosen["matmuls"] == "record",
        ),
        cutting=cutting_of(chosen), check=chosen["check"],
        annotate=patterns_of(who, chosen["annotate"]),
    )


def _op_names(who: str, ops: Any) -> frozenset[str]:
    if isinstance(ops, str) or not isinstance(ops, Iterable):
        msg = f"{who}: left_to_torch must be a list of ops or their names, given {short_text(ops)}."
        raise ArgumentTypeError(msg)
    torch = torch_for("the fuser_lab backend")
    return frozenset(_op_name(who, torch, op) for op in ops)


def _op_name(who: str, torch: Any, op: Any) -> str:
    """Return an op's name, given as ``"aten.gelu"``, ``"gelu"``, a torch op, or a function of that name."""
    is_op = isinstance(op, torch._ops.OpOverload | torch._ops.OpOverloadPacket)  # noqa: SLF001
    name = op if isinstance(op, str) else str(op) if is_op else str(getattr(op, "__name__", ""))
    space, *rest = name.split(".") if "." in name else ("aten", name)
    bare = rest[0]
    if not bare.isidentifier() or not any(hasattr(getattr(torch.ops, space, None), n) for n in (bare, f"_{bare}")):
        msg = f"{who}: left_to_torch has {short_text(op)}, which is not a torch op, such as 'aten.gelu'."
        raise InputError(msg)
    return name


def backend(
    gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None,
) -> Callable[..., Any]:
    """Return a callable for a graph that Dynamo captured: regions run as fusions, the rest as torch runs it.

    Parameters
    ----------
    gm, example_inputs
        The arguments that ``torch.compile`` passes to a backend.
    options
        ``strategy``, ``target`` and ``options`` as for `fuser_lab.segment`, but for the defaults: the strategy is
        ``"fastest"``, with at most a tenth of what it may save in 100,000 runs for a search, and ``"bottom_up"`` for
        graphs of symbolic sizes, which are planned while the program runs; the target of a search for tensors on the
        host is this CPU, by its measured rates or typical ones; ``min_region_ops`` and ``max_region_ops``,
        the minimum and maximum number of ops in a region (1 and 1024); ``left_to_torch``, ops that torch runs, such as
        ``["aten.gelu"]``; ``check``, whether each region's result is compared with torch's; ``matmuls``, ``"torch"`` or
        ``"record"``; ``annotate``, the modules and calls at whose boundaries regions get a ``segment_set``, as
        ``["layers.*.mlp", torch.nn.functional.silu]`` (`fuser_lab.from_torch`); ``precision``, ``"fused"`` (the
        default: kernels round values of float16 and bfloat16 only where they store them, as other compilers do) or
        ``"eager"`` (after each op).

    mode
        The mode of ``torch.compile``; only ``"default"`` is accepted.

    Raises
    ------
    InputError
        If there is no such option or mode, or ``annotate`` matches nothing; with graph breaks only a warning, since a
        later graph may contain a match.
    UnsupportedError
        If torch is too old.
    """
    torch_for("the fuser_lab backend")
    _collect_rarely()
    if mode not in {None, "default"}:
        msg = f"{_WHO}: unknown mode {mode!r}; pass options instead, such as {{'strategy': 'saving'}}."
        raise InputError(msg)
    chosen = options_of({**_DEFAULTS, **(options or {})})
    chosen = replace(chosen, cutting=replace(chosen.cutting, on_inputs=True))
    if "strategy" not in (options or {}):
        chosen = replace(chosen, at_new_sizes=replace(chosen.cutting, strategy="bottom_up"))
    before, root = _LAST.capture, _root()
    capture = before
    if before is None or before.options != chosen:
        capture = Capture(chosen)
    elif root is None or not (_LAST.is_broken if _LAST.root is None else _LAST.root is root):
        # A recompiled part of a function may lack a match of `annotate` that another part has.
        capture = Capture(chosen, names=before.names)
    assert capture is not None
    is_broken = capture.note_break(gm)
    _LAST.capture, _LAST.root, _LAST.is_broken = capture, root, is_broken
    made = compile_graph(gm, example_inputs, capture, keeps=True)
    if not is_broken:
        capture.names.check(_WHO, chosen.annotate)
    return made


def _root() -> CodeType | None:
    """Return the outermost running code that Dynamo has written around a graph break, or None if there is none.

    Such code calls the graphs of one function, and functions that have separate graphs, one after another.
    """
    frame, code = inspect.currentframe(), None
    while frame is not None:
        if _has_resumption(frame.f_code):
            code = frame.f_code
        frame = frame.f_back
    return code


def _has_resumption(code: CodeType) -> bool:
    """Whether code calls a graph break's resumption: a global function, or a constant if torch 2.6 needs cells."""
    names = (*code.co_names, *(inner.co_name for inner in code.co_consts if isinstance(inner, CodeType)))
    return any(name.startswith(("__resume_at_", "torch_dynamo_resume_in_")) for name in names)


def last_capture() -> Capture | None:
    """Return this thread's latest capture by `backend`: a function's graphs, up to its end."""
    return _LAST.capture


def register() -> None:
    """Register ``"fuser_lab"`` with ``torch.compile``, also if the package's entry points are not installed."""
    torch_for("the fuser_lab backend")
    registry = importlib.import_module("torch._dynamo.backends.registry")
    if NAME not in registry._COMPILER_FNS:  # noqa: SLF001 - torch warns of nothing, and refuses a second one
        registry.register_backend(backend, NAME)
    _collect_rarely()


_COMPILING = ExitStack()  # the contexts in which Dynamo compiles
after_fork(_COMPILING.pop_all)


def _collect_rarely() -> None:
    """Let the cyclic collector run rarely while Dynamo compiles, from its first call of a traced function on."""
    handler = importlib.import_module("torch._dynamo.callback").callback_handler
    if _compilation_starts not in handler.start_callbacks:  # torch._dynamo.reset drops callbacks
        handler.register_start_callback(_compilation_starts)
        handler.register_end_callback(_compilation_ends)


def _compilation_starts(*_: object) -> None:
    _compilation_ends()
    _COMPILING.enter_context(collecting_rarely())


def _compilation_ends(*_: object) -> None:
    _COMPILING.close()

