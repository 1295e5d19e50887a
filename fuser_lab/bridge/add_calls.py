"""Calls of the kernels that add at positions on a GPU, in place of the nodes of a captured graph.

The function of a graph and its FX module both use them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fuser_lab.bridge.decompositions import is_named
from fuser_lab.bridge.gpu_scatters import add_kernel, refusal
from fuser_lab.bridge.partition import ADDED, Left
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.scatters import Scatter, is_filled, may_add_over, number_of, op_of, scatter_of
from fuser_lab.bridge.torch_region import with_strides
from fuser_lab.bridge.traced import Node, tensor_of
from fuser_lab.errors import FuserLabError, RegionWarning, warn
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.arrays import TORCH_OF, empty_strided
from fuser_lab.targets import find, has_own_memory


class AddCall:
    """The additions of a node: called with the operands of ``scatter``, it returns the result.

    The result is in new memory, or with ``over_start`` in that of the first operand, which nothing else reads. The
    kernel is compiled at the first call, and launched on the current stream. Torch adds if it cannot be compiled.
    """

    def __init__(self, node: Node, scatter: Scatter, *, over_start: bool = False) -> None:
        self.scatter, self.over_start, self._node = scatter, over_start, node
        self._strides = tuple(tensor_of(operand).strides for operand in scatter.operands)
        self._launch: Callable[..., None] | None = None
        self._new: tuple[Callable[[], Any], ...] = ()  # make new memory: that of the result, and of the kernel
        self._failed = False
        self._lock = new_lock()

    def __call__(self, *operands: Any) -> Any:
        """Return the tensor that is written into, with the additions."""
        if self._launch is None and not self._failed:
            self._prepare()
        if self._launch is None:
            return self._by_torch(operands)
        laid = [x if x.stride() == s else with_strides(x, s) for x, s in zip(operands, self._strides, strict=True)]
        made = [*laid[: self.over_start], *(new() for new in self._new)]
        self._launch(*[x.data_ptr() for x in (*laid, *made)])
        return made[0]

    def _prepare(self) -> None:
        from fuser_lab.runtime.gpu.address_words import address_words

        torch, target = torch_for("fuser_lab.bridge"), self.scatter.target
        try:
            memory = _memory(target.device)
            kernel = add_kernel(self.scatter, memory.gpu, over_start=self.over_start)
            ir = kernel.kernel_ir
            names = [buffer.name for buffer in (*ir.inputs, *ir.outputs, *ir.workspace)]
            put, start = address_words(memory.calls(kernel), names)
        except FuserLabError as error:
            self._failed = True
            warn(f"torch runs {self.scatter.op}, because its kernel does not run: {error}", RegionWarning)
            return
        empty = empty_strided(target.device)
        forms = [] if self.over_start else [(target.shape, target.strides, target.dtype)]
        forms += [((buffer.size,), (1,), TORCH_OF[buffer.dtype]) for buffer in ir.workspace]
        self._new = tuple(partial(empty, shape, strides, getattr(torch, dtype)) for shape, strides, dtype in forms)

        def launch(*addresses: int) -> None:
            with self._lock:  # the addresses of another call must not replace these before the launch
                put(*addresses)
                start(memory.queue())

        self._launch = launch

    def _by_torch(self, operands: Sequence[Any]) -> Any:
        torch, target = torch_for("fuser_lab.bridge"), self.scatter.target
        values = dict(zip(self.scatter.operands, operands, strict=True))

        def argument(node: Node) -> Any:
            if node in values:
                return values[node]
            traced, number = tensor_of(node), number_of(node)
            return node.target(*node.args, **node.kwargs) if number is None else torch.full(
                traced.shape, number, dtype=getattr(torch, traced.dtype), device=traced.device)

        args, kwargs = torch.fx.node.map_arg((self._node.args, self._node.kwargs), argument)
        return with_strides(self._node.target(*args, **kwargs), target.strides)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCalls:
    """The calls in place of nodes, and the nodes that only fill tensors that calls do not read."""

    of: Mapping[Node, AddCall] = field(default_factory=dict)
    filled: Collection[Node] = frozenset()


def add_calls(left: Sequence[Left], by_torch: frozenset[str]) -> tuple[AddCalls, list[Left]]:
    """Return calls in place of nodes that no region contains, and these nodes with reasons that say so.

    ``by_torch`` are the names of the ops that torch runs in any case.
    """
    scatters: dict[Node, Scatter] = {}
    told: list[Left] = []
    for each in left:
        op = op_of(each.node)
        scatter = None if is_named(op, by_torch) else scatter_of(each.node)
        reason = each.reason
        if scatter is not None and has_own_memory(scatter.target.device):
            refused = refusal(scatter)
            if refused is None:
                scatters[each.node] = scatter
            reason = ADDED if refused is None else f"{reason}; {refused}"
        told.append(replace(each, op=op, reason=reason))
    calls = {
        node: AddCall(node, scatter, over_start=_is_over_start(scatter, scatter.start, scatters))
        for node, scatter in scatters.items()
    }
    filled = {read for node in calls for read in node.all_input_nodes if is_filled(read, scatters)}
    filled |= {of for node in filled for of in node.all_input_nodes if number_of(of) is not None
               and filled.issuperset(of.users)}
    return AddCalls(of=calls, filled=filled), told


def _is_over_start(scatter: Scatter, start: Any, scatters: Collection[Node]) -> bool:
    """Whether a kernel adds to the result of another one, ``start``, which nothing else reads."""
    return start in scatters and len(start.users) == 1 and scatter.combine == "add" and may_add_over(scatter.target)


def _memory(device: str) -> Any:
    """Return the memory of a device, which compiles and launches kernels."""
    target = find(device)
    assert target is not None
    return target.memory()(target.number(device))
