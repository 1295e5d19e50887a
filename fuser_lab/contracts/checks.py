"""The contracts: one kernel, one kernel for some ops, at most so many kernels or bytes."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fuser_lab import arguments as kinds
from fuser_lab.contracts.call import Call, Compiled
from fuser_lab.contracts.compiled import compile_call, has_schedulers
from fuser_lab.contracts.partition import Decision, GraphPartition, Partition, bare_name, ops_text
from fuser_lab.contracts.smallest import smallest
from fuser_lab.errors import FusionContractError, InputError
from fuser_lab.report.units import bytes_label, conjunction, plural, seconds_label

SHRINKING: Final = 20.0  # seconds in which the smallest function is searched
_MOST_LISTED: Final = 6  # reasons in a message
_COMMON = {
    "device": kinds.optional(kinds.TEXT), "backward": kinds.FLAG, "shrink_seconds": kinds.number(0),
    "compiler": kinds.TEXT,
    "keywords": kinds.optional(kinds.mapping(kinds.TEXT, kinds.ANYTHING, "a dict of arguments by name")),
}

_GLUE: Final = "plan.glue(a, b) of fl.from_inductor tries it; plan.to_code() prints what makes torch.compile do it"
# What helps, by code of the reason; codes of nvFuser's schedulers are explained in docs/reasons.md.
_STEPS: Final[Mapping[str, str]] = {
    "opaque": "keep the library's op outside of the function under contract, or allow its kernel with at_most",
    "left": "keep the library's op outside of the function under contract, or allow its kernel with at_most",
    "break": "move what torch cannot capture out of the compiled function",
    "loop_order": "give the operands one layout, as with .contiguous() before the function",
    "loop_sizes": "give both the same sizes, or compute the smaller one in a separate function",
    "outer_loops": "compute the second of the two in a separate function, or cut elsewhere with plan.cut",
    "reduction": "no kernel can hold both: the second needs the complete result of the first",
    "node_limit": "raise the limit that the reason names, in torch._inductor.config",
    "priority": _GLUE,
    "never_tried": _GLUE,
    "not_in_one_group": "torch._inductor.config.aggressive_fusion = True tries pairs without a common buffer",
}

# The same by the text of a reason of Inductor, whose reasons have no codes.
_STEPS_BY_TEXT: Final[Mapping[str, str]] = {
    "no shared data": "let both go over the common tensors in one order: one layout of the operands, one axis of sums",
    "max fusion": "raise torch._inductor.config.max_fusion_size",
    "mismatch": "give both the same sizes, or compute the smaller one in a separate function",
    "intermediate nodes": "what is computed between the two keeps them apart: look at the kernel between them first",
}


@kinds.takes(**_COMMON)
def one_kernel(
    function: Any, *inputs: Any, compiler: str = "inductor", device: str | None = None, backward: bool = False,
    keywords: Mapping[str, Any] | None = None, shrink_seconds: float = SHRINKING, **options: Any,
) -> Partition:
    """Return the partition of a function that a compiler makes one kernel of, or raise with the reason why it is not.

    Parameters
    ----------
    function
        A function or module with its inputs; for ``"nvfuser"`` and ``"fuser_lab"`` also a definition or a plan.
    *inputs
        Its arguments.
    compiler
        ``"inductor"`` (torch.compile), ``"nvfuser"`` (the cut that nvFuser makes), ``"fuser_lab"`` (our own cut) or
        ``"xla"`` (jax.jit).
    device
        For ``"inductor"`` and ``"xla"``, where the arguments are moved to, as ``"cuda"``; for the others the device
        that the plan is for, as ``"A100"``.
    backward
        Whether the backward graph counts as well.
    keywords
        Its keyword arguments.
    shrink_seconds
        Seconds in which the smallest function that still parts is searched; 0 for none.
    **options
        Options of `from_inductor`, `from_torch`, `segment` or `from_xla`.

    Raises
    ------
    FusionContractError
        If there are several kernels; the message has the ops that parted, the reason, what it costs, the smallest
        function that still parts, and the next step.
    """
    made = compile_call(Call(
        who="one_kernel", function=function, inputs=inputs, compiler=compiler, device=device, backward=backward,
        keywords=keywords or {}, options=options,
    ))
    if made.partition.kernels > 1:
        _fail(made, "the contract allows 1", shrink_seconds)
    return made.partition


@kinds.takes(ops=kinds.list_of(kinds.TEXT, "a list of ops, modules or lines", least=1), **_COMMON)
def same_kernel(
    function: Any, *inputs: Any, ops: Sequence[str], compiler: str = "inductor", device: str | None = None,
    backward: bool = False, keywords: Mapping[str, Any] | None = None, shrink_seconds: float = SHRINKING,
    **options: Any,
) -> Partition:
    """Return the partition of a function in which one kernel computes some ops, or raise with the reason why none does.

    Parameters
    ----------
    function, *inputs, compiler, device, backward, keywords, shrink_seconds, **options
        As for `one_kernel`.
    ops
        Ops (``"sum"``, ``"aten.exp"``), modules (``"model.norm1"``, ``"layers.*.norm"``), lines (``"model.py:12"``) or
        names of ops as the partition prints them (``"norm1/layer_norm.rsqrt"``). One kernel must compute all ops that
        they select.

    Raises
    ------
    FusionContractError
        If no kernel computes all of them.
    InputError
        If one of them selects nothing; the message lists the choices.
    """
    made = compile_call(Call(
        who="same_kernel", function=function, inputs=inputs, compiler=compiler, device=device, backward=backward,
        keywords=keywords or {}, options=options,
    ))
    selected = [_select(made.partition, text) for text in ops]
    selection = set().union(*selected)
    for number_of_graph, graph in enumerate(made.partition.graphs):
        if any(selection <= {(number_of_graph, op) for op in kernel.ops} for kernel in graph.kernels):
            return made.partition
    return _fail(made, f"{conjunction(ops)} are not in one kernel", shrink_seconds, only=selection)


@kinds.takes(kernels=kinds.optional(kinds.whole(0)), bytes_over_bound=kinds.optional(kinds.number(1)), **_COMMON)
def at_most(
    function: Any, *inputs: Any, kernels: int | None = None, bytes_over_bound: float | None = None,
    compiler: str = "inductor", device: str | None = None, backward: bool = False,
    keywords: Mapping[str, Any] | None = None, shrink_seconds: float = SHRINKING, **options: Any,
) -> Partition:
    """Return the partition of a function that is within limits, or raise with the reasons why kernels are separate.

    Parameters
    ----------
    function, *inputs, compiler, device, backward, keywords, shrink_seconds, **options
        As for `one_kernel`.
    kernels
        Maximum number of kernels.
    bytes_over_bound
        Maximum ratio of the bytes that the kernels move to those that one kernel for each fusion would move. It hardly
        depends on the device.

    Raises
    ------
    FusionContractError
        If a limit is exceeded.
    InputError
        If neither limit is given, or the bound of the bytes is not known.
    """
    if kernels is None and bytes_over_bound is None:
        raise InputError("at_most: give kernels, bytes_over_bound, or both; given neither.")
    made = compile_call(Call(
        who="at_most", function=function, inputs=inputs, compiler=compiler, device=device, backward=backward,
        keywords=keywords or {}, options=options,
    ))
    partition = made.partition
    if kernels is not None and partition.kernels > kernels:
        _fail(made, f"the contract allows {kernels}", shrink_seconds)
    if bytes_over_bound is not None:
        if not partition.bound_bytes:
            msg = f"at_most: no bound on the bytes of this function is known with compiler={compiler!r}; give kernels."
            raise InputError(msg)
        if partition.bytes_over_bound > bytes_over_bound:
            ratio = f"{partition.bytes_over_bound:.2f}"
            _fail(made, f"they move {ratio} times the least bytes, and the contract allows {bytes_over_bound:g}",
                  shrink_seconds)
    return partition


# Selections

def _select(partition: Partition, text: str) -> set[tuple[int, str]]:
    """Return the ops that a text selects, by the first way that selects any."""
    listed_ops = [
        (n, op, note.place) for n, graph in enumerate(partition.graphs) for op, note in graph.ops.items()
    ]
    for test in (_is_named, _is_of_line, _is_of_module, _is_op):
        chosen = {(n, op) for n, op, place in listed_ops if test(op, place, text)}
        if chosen:
            return chosen
    names = kinds.listing(dict.fromkeys(bare_name(op) for _, op, _ in listed_ops))
    msg = f"same_kernel: ops has {kinds.short_text(text)}, which selects no op of the function; it has {names}."
    raise InputError(msg)


def _is_named(op: str, place: str, text: str) -> bool:
    return text in {op, bare_name(op)}


def _is_of_line(op: str, place: str, text: str) -> bool:
    return bool(place) and (place == text or place.endswith(f":{text}"))


def _is_of_module(op: str, place: str, text: str) -> bool:
    module = op.rpartition("/")[0]
    return any(
        fnmatch.fnmatchcase(path, pattern)
        for path in _paths(module) for pattern in (text, f"*.{text}", text.removeprefix("model."))
    )


def _paths(module: str) -> list[str]:
    """Return a module's path and those around it."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _is_op(op: str, place: str, text: str) -> bool:
    called, _, part = bare_name(op).rpartition("/")[2].partition(".")
    return text.removeprefix("aten.").lstrip("_") in {called, part}


# The message

def _fail(made: Compiled, allowed: str, seconds: float, only: set[tuple[int, str]] | None = None) -> Partition:
    partition, call = made.partition, made.call
    apart = [
        (graph, decision) for n, graph in enumerate(partition.graphs) for decision in graph.decisions
        if not decision.fused and (only is None or _concerns(n, graph, decision, only))
    ]
    smaller = smallest(made, seconds)
    function = getattr(call.function, "__qualname__", type(call.function).__name__)
    count = plural(partition.kernels, "kernel")
    lines = [
        f"{call.who}: {function} is {count} under {call.compiler} on {partition.device}, and {allowed}.",
        *_ends(partition), *_reasons(apart), *_kernels(partition), _costs(partition),
    ]
    if smaller is not None:
        before, after = smaller.ops
        lines += [f"the smallest function that still parts has {plural(after, 'op')} of {before}:"]
        lines += [f"    {line}" for line in smaller.script.splitlines()]
    lines += [f"next: {_step(partition, [decision for _, decision in apart])}"]
    script = smaller.script if smaller is not None else ""
    raise FusionContractError("\n".join(lines), partition, made.plans, script)


def _concerns(number_of_graph: int, graph: GraphPartition, decision: Decision, only: set[tuple[int, str]]) -> bool:
    """Whether a decision is about kernels that compute some of the ops that are to be in one kernel."""
    numbers = {n for n, op in only if n == number_of_graph for n in graph.kernels_of(op)}
    return all(not numbers.isdisjoint(graph.kernels_of(op)) for op in decision.groups)


def _ends(partition: Partition) -> list[str]:
    return [f"graph {n} ends early: {graph.ends}" for n, graph in enumerate(partition.graphs) if graph.ends]


def _reasons(apart: Sequence[tuple[GraphPartition, Decision]]) -> list[str]:
    lines: list[str] = []
    for graph, decision in apart[:_MOST_LISTED]:
        ends = [ops_text((op,), graph.ops) for op in decision.groups]
        lines += [f"parted: {' | '.join(ends)}", f"    why: {decision.text or decision.code} [{decision.by}]"]
    more = len(apart) - _MOST_LISTED
    return [*lines, *([f"    and {plural(more, 'more pair')}"] if more > 0 else [])]


def _kernels(partition: Partition) -> list[str]:
    lines = []
    for graph in partition.graphs:
        for number_of_kernel, kernel in enumerate(graph.kernels[:_MOST_LISTED]):
            library = f" by {kernel.library}" if kernel.library else ""
            moved = f", {bytes_label(kernel.bytes)}" if kernel.bytes else ""
            lines.append(f"kernel {number_of_kernel}{library}: {ops_text(kernel.ops, graph.ops, 4)}{moved}")
        more = len(graph.kernels) - _MOST_LISTED
        lines += [f"    and {plural(more, 'more kernel')}"] if more > 0 else []
    return lines


def _costs(partition: Partition) -> str:
    parts = []
    if partition.bound_bytes:
        more = max(partition.bytes - partition.bound_bytes, 0)
        parts.append(
            f"{bytes_label(more)} ({bytes_label(partition.bytes)} moved, one kernel for each fusion would move "
            f"{bytes_label(partition.bound_bytes)})",
        )
    if partition.seconds:
        more_seconds = max(partition.seconds - partition.bound_seconds, 0.0)
        parts.append(f"{seconds_label(more_seconds)} predicted on {partition.model}")
    return f"costs: {', and '.join(parts) or 'not known'}"


def _step(partition: Partition, apart: Sequence[Decision]) -> str:
    if any(graph.ends for graph in partition.graphs):
        return _STEPS["break"]
    for decision in apart:
        step = _STEPS.get(decision.code) or next(
            (step for words, step in _STEPS_BY_TEXT.items() if words in decision.text), "",
        )
        if step:
            return step
    if apart and has_schedulers(partition.compiler):
        return "fl.explain and plan.why say what each scheduler needs, and docs/reasons.md explains the reason's code"
    return "print the partition (error.partition), and ask plan.why about the two ops"
