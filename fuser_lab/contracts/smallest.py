"""The smallest function that a compiler still parts for the same reason, with a limit of time."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, target_of, traced_tensor
from fuser_lab.compilers.inductor import from_inductor
from fuser_lab.compilers.kernels import CompiledWhy
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.contracts.call import Compiled
from fuser_lab.cost.verdict import Answer
from fuser_lab.errors import FuserLabError
from fuser_lab.plan import Plan
from fuser_lab.search.shrinking import shrink

_DROPPED = re.compile(r"; +\w+ = (?:\w+ = )*None(?= |$)", re.MULTILINE)  # by which FX frees values in its code
_HIDDEN = re.compile(r"  # [^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """A small function that is still parted: a script with inputs, and the number of ops before and after."""

    script: str
    ops: tuple[int, int]


def smallest(made: Compiled, seconds: float) -> Smallest | None:
    """Return the smallest function that still parts, found within a time; None if none is."""
    if seconds <= 0:
        return None
    for plan in made.plans:
        made_smaller = (
            _of_plan(plan, seconds) if isinstance(plan, Plan)
            else _of_inductor(plan, seconds, made.call.options) if plan.editing is not None else None
        )
        if made_smaller is not None:
            return made_smaller
    return None


def _of_plan(plan: Plan, seconds: float) -> Smallest | None:
    answers = (Answer(why.verdicts).decisive for why in plan.boundaries())
    keep = next((v.reason.code.value for answer in answers for v in answer if v.reason is not None), None)
    try:
        shrunk = shrink(
            plan.definition, list(plan.inputs), keep=keep, seconds=seconds, strategy=plan.method,
            target=plan.oracle.device, options=plan.options,
        )
    except FuserLabError:  # a plan of one segment, or of a strategy that the definition alone does not repeat
        return None
    return Smallest(script=shrunk.script, ops=shrunk.ops)


# torch.compile

def _of_inductor(plan: CompiledPlan, seconds: float, options: Any) -> Smallest | None:
    why = next(iter(_apart(plan)), None)
    if why is None or plan.graph is None:
        return None
    torch = torch_for("one_kernel")
    ends = time.monotonic() + seconds
    graph = plan.graph.traced
    names = {name for number in why.kernels for name in plan.segments[number].nodes}
    nodes = [node for node in graph.nodes if node.name in names]
    try:
        best = _Cone(torch, graph, nodes)
        if not best.is_parted(why, options):
            return None
        progress = True
        while progress and time.monotonic() < ends:
            progress = False
            for part in _parts(best.nodes):
                if time.monotonic() >= ends:
                    break
                smaller = _Cone(torch, graph, part)
                if smaller.is_parted(why, options):
                    best, progress = smaller, True
                    break
    except _CannotRunError:
        return None
    return Smallest(script=best.script(), ops=(sum(map(_computes, graph.nodes)), sum(map(_computes, best.nodes))))


def _apart(plan: CompiledPlan) -> list[CompiledWhy]:
    """Return why kernels are separate, a library's kernels last: a function of two such kernels explains little."""
    return sorted((*plan.boundaries(), *plan.siblings()), key=lambda why: why.code == "opaque")


def _computes(node: Node) -> bool:
    return node.op == "call_function" and target_of(node) != "getitem"


def _parts(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Yield shorter lists of nodes, the shortest first."""
    listed = list(nodes)
    size = len(listed) // 2
    while size:
        for start in range(0, len(listed), size):
            yield listed[:start] + listed[start + size :]
        size //= 2


class _CannotRunError(Exception):
    """A value without a size that is a number."""


class _Cone:
    """Some nodes of a graph as a function; values from other nodes are its inputs."""

    def __init__(self, torch: Any, graph: Any, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self._torch = torch
        self.inputs: list[Any] = []
        made = torch.fx.Graph()
        values: dict[Node, Any] = {}
        inside = set(nodes)
        needed = {operand for node in nodes for operand in node.all_input_nodes if operand not in inside}
        for node in graph.nodes:
            if node in needed:
                values[node] = made.placeholder(node.name)
                self.inputs.append(self._input(node))
        for node in graph.nodes:
            is_entry = target_of(node) == "getitem" and node.args[0] in values and node not in values
            if node in inside or (is_entry and node.args[0] in inside):
                values[node] = made.node_copy(node, values.__getitem__)
        results = [
            values[node] for node in graph.nodes
            if node in values and node not in needed and traced_tensor(node.meta.get("val")) is not None
            and (not any(user in values and user not in needed for user in node.users)
                 or any(user not in values for user in node.users))
        ]
        made.output(tuple(results))
        self._results = len(results)
        self._module = torch.fx.GraphModule(torch.nn.Module(), made)

    def _input(self, node: Node) -> Any:
        described = traced_tensor(node.meta.get("val"))
        if described is None:
            raise _CannotRunError
        torch = self._torch
        kind = getattr(torch, described.dtype)
        tensor = torch.empty_strided(described.shape, described.strides, dtype=kind, device=described.device)
        return tensor.normal_() if kind.is_floating_point else tensor.zero_()

    def is_parted(self, why: CompiledWhy, options: Any) -> bool:
        """Whether Inductor parts this function for a reason."""
        if not self._results:
            return False
        try:
            plans = from_inductor(self._module, *self.inputs, **options).plans
        except Exception:  # noqa: BLE001 - whatever Inductor raises, this function shows nothing
            return False
        return any((each.code, each.by) == (why.code, why.by) for plan in plans for each in _apart(plan))

    def script(self) -> str:
        """Return the function with inputs, as Python code."""
        code = _HIDDEN.sub("", _DROPPED.sub("", self._module.code)).strip()
        code = code.replace("def forward(self, ", "def f(").replace("def forward(self)", "def f()")
        inputs = ",\n".join(f"    {self._text(tensor)}" for tensor in self.inputs)
        return (
            "import torch\nfrom torch import device\n\nimport fuser_lab as fl\n\n\n"
            f"{code}\n\n\ninputs = [\n{inputs},\n]\nprint(fl.from_inductor(f, *inputs))\n"
        )

    def _text(self, tensor: Any) -> str:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        where = f", dtype={tensor.dtype}, device={str(tensor.device)!r}"
        if not tensor.is_contiguous():
            return f"torch.empty_strided({shape}, {strides}{where}).zero_()"
        maker = "randn" if tensor.dtype.is_floating_point else "zeros"
        return f"torch.{maker}({shape}{where})"
