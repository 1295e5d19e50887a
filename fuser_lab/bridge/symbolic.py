"""A graph with symbolic sizes, captured once: dropouts are rewritten and regions found for all sizes.

For the sizes of a call, torch's expressions for the sizes, strides and offsets of all values are evaluated; nothing is
traced again, and torch's guards remain valid. The regions are the same for all sizes. Each has one `SharedKernels`, so
it shares kernels among all sizes that lower to the same statements.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fuser_lab.bridge.masks import dropout_mask, mask_layout
from fuser_lab.bridge.partition import Left, Partition, lowering_refusal, prepare
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import SYMBOLIC, Node, origin_of, target_of
from fuser_lab.codegen.varying import SharedKernels

Values = tuple[Any, ...]


def is_symbolic(gm: Any) -> bool:
    """Whether some value of a graph is a symbol, or has a symbolic size."""
    torch = torch_for("fuser_lab.bridge")
    symbols = torch.SymInt | torch.SymFloat | torch.SymBool
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, symbols):
                return True
            if isinstance(part, torch.Tensor) and any(type(n) is not int for n in part.shape):
                return True
    return False


class SymbolicGraph:
    """A captured graph with symbolic sizes, and its regions.

    Attributes
    ----------
    shared
        The kernels of each region, at all sizes.
    """

    def __init__(
        self, gm: Any, args: Sequence[Any], partition: Callable[[Any, Sequence[Node]], Partition],
    ) -> None:
        """Capture a graph module without changing it; ``args`` are the arguments of one call.

        ``partition`` finds the regions of a graph with known sizes, given the first nodes of its sections.
        An error means that some size cannot be computed from the sizes of arguments.
        """
        torch = self._torch = torch_for("fuser_lab.bridge")
        self._fakes = importlib.import_module("torch._subclasses.fake_tensor")
        self._mode = self._fakes.FakeTensorMode(allow_non_fake_inputs=True, shape_env=None)
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        self._module = torch.fx.GraphModule(gm, graph)
        self._graph = self._module.graph
        self._inputs = self._graph.find_nodes(op="placeholder")
        self._symbols = self._places_of_symbols()
        values = self.values_of(args)
        fill = _Fill(self._torch, self._fakes, self._mode, dict(zip(self._symbols, values, strict=True)))
        for node in self._graph.nodes:
            if node.op not in {"output", "get_attr"} and "val" in node.meta:
                node.meta[SYMBOLIC] = node.meta["val"]
                node.meta["val"] = fill.fill(node.meta["val"])
        if not self.fits(args, values):
            msg = "the shape of an argument differs from the traced one."
            raise ValueError(msg)
        begins = set(prepare(self._module))
        sized, copies = self._graph_at(values)
        of = {copy: node for node, copy in copies.items()}
        partitioned = partition(sized, [copies[node] for node in begins])
        self._left = tuple(replace(left, node=of[left.node]) for left in partitioned.left)
        self._regions = tuple(tuple(of[node] for node in region) for region in partitioned.regions)
        kernels: dict[str, SharedKernels] = {}
        self.shared = tuple(kernels.setdefault(_text(region), SharedKernels()) for region in self._regions)

    def _places_of_symbols(self) -> dict[Any, tuple[int, int | None]]:
        """Return the source of each symbol: the index of an argument, and the axis whose size it is."""
        places: dict[Any, tuple[int, int | None]] = {}
        symbols = self._torch.SymInt | self._torch.SymFloat | self._torch.SymBool
        for place, node in enumerate(self._inputs):
            value = node.meta.get("val")
            if isinstance(value, symbols) and value.node.expr.is_Symbol:
                places.setdefault(value.node.expr, (place, None))
        for place, node in enumerate(self._inputs):
            value = node.meta.get("val")
            for axis, size in enumerate(value.shape if isinstance(value, self._torch.Tensor) else ()):
                if isinstance(size, symbols) and size.node.expr.is_Symbol:
                    places.setdefault(size.node.expr, (place, axis))
        return places

    def values_of(self, args: Sequence[Any]) -> Values:
        """Return the values of the symbols in a call."""
        return tuple(
            args[place] if axis is None else args[place].shape[axis] for place, axis in self._symbols.values()
        )

    @staticmethod
    def other_values(values: Values) -> tuple[Values, Values]:
        """Return other values of the symbols: near these, and further away."""
        def scaled_up(times: int, step: int) -> Values:
            return tuple(
                times * value + step * number if type(value) is int else value
                for number, value in enumerate(values, 1)
            )

        return scaled_up(3, 1), scaled_up(1, 2)

    def fits(self, args: Sequence[Any], values: Values) -> bool:
        """Whether arguments have the shapes for these values of the symbols."""
        fill = _Fill(self._torch, self._fakes, self._mode, dict(zip(self._symbols, values, strict=True)))
        for node, value in zip(self._inputs, args, strict=True):
            traced = node.meta.get(SYMBOLIC)
            if isinstance(traced, self._torch.Tensor) and tuple(map(fill.number, traced.shape)) != tuple(value.shape):
                return False
        return True

    def at(self, values: Values) -> tuple[Any, Partition]:
        """Return a graph module with values in place of the symbols, and its regions.

        A region is empty if it has a call that cannot be lowered for these sizes.
        """
        sized, copies = self._graph_at(values)
        left = [replace(call, node=copies[call.node]) for call in self._left if call.node in copies]
        regions: list[tuple[Node, ...]] = []
        for region in self._regions:
            nodes = tuple(copies[node] for node in region)
            calls = (node for node in nodes if target_of(node) != "getitem")
            why = next((why for node in calls if (why := lowering_refusal(node)) is not None), None)
            if why is not None:
                left += [Left(node, target_of(node), why, origin_of(node)) for node in nodes]
            regions.append(nodes if why is None else ())
        return sized, Partition(tuple(regions), tuple(left))

    def _graph_at(self, values: Values) -> tuple[Any, Mapping[Node, Node]]:
        """Return a graph module with values in place of the symbols, and its nodes by the nodes of this graph."""
        torch = self._torch
        fill = _Fill(torch, self._fakes, self._mode, dict(zip(self._symbols, values, strict=True)))
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        numbers: dict[Node, Any] = {}

        def value_of(node: Node) -> Any:
            return numbers[node] if node in numbers else copies[node]

        for node in self._graph.nodes:
            value = fill.fill(node.meta[SYMBOLIC]) if SYMBOLIC in node.meta else node.meta.get("val")
            if isinstance(value, bool | int | float):
                numbers[node] = value
                if node.op == "call_function":
                    continue
            copy = copies[node] = graph.node_copy(node, value_of)
            if node.target is dropout_mask:
                of = copies[node.meta["mask_of"]].meta["val"]
                copy.args = (*mask_layout(torch, of), *copy.args[2:])
            if node.op == "call_function" and SYMBOLIC not in node.meta:
                value = self._compute(copy)
            if node.op != "output":
                copy.meta["val"] = value
                copy.meta.pop(SYMBOLIC, None)
        return torch.fx.GraphModule(self._module, graph), copies

    def _compute(self, node: Node) -> Any:
        """Return the value of a node that was not traced but created by a rewrite of the graph."""
        held = self._torch.fx.map_arg
        with self._mode, self._torch.no_grad():
            args = held(node.args, lambda operand: operand.meta["val"])
            return node.target(*args, **held(node.kwargs, lambda operand: operand.meta["val"]))


class _Fill:
    """Replaces symbols by numbers; tensors that share memory still share it afterwards."""

    def __init__(self, torch: Any, fakes: Any, mode: Any, values: Mapping[Any, Any]) -> None:
        sympify = importlib.import_module("sympy").sympify
        self._torch, self._fakes, self._mode = torch, fakes, mode
        self._known = {symbol: sympify(value) for symbol, value in values.items()}
        self._numbers: dict[Any, Any] = {}
        self._memory: dict[int, Any] = {}

    def number(self, value: Any) -> Any:
        """Return a number; ValueError if it depends on more than the known symbols."""
        if type(value) in {int, float, bool}:
            return value
        expression = value.node.expr
        if expression not in self._numbers:
            number = expression.xreplace(self._known)
            if number.free_symbols:
                msg = f"{number} is not known."
                raise ValueError(msg)
            self._numbers[expression] = number
        number = self._numbers[expression]
        if isinstance(value, self._torch.SymBool):
            return bool(number)
        return float(number) if isinstance(value, self._torch.SymFloat) else int(number)

    def fill(self, value: Any) -> Any:
        """Return a traced value with numbers in place of symbols."""
        torch = self._torch
        if isinstance(value, list | tuple):
            return type(value)(map(self.fill, value))
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.number(value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        shape, strides = tuple(map(self.number, value.shape)), tuple(map(self.number, value.stride()))
        offset, place = self.number(value.storage_offset()), value.untyped_storage()._cdata  # noqa: SLF001
        memory = self._memory.get(place)
        if memory is None:
            try:
                nbytes = self.number(value.untyped_storage().nbytes())
            except ValueError:  # the size of an argument's base, because torch enlarges memory without elements
                nbytes = 0
            memory = self._memory[place] = torch.empty(nbytes, dtype=torch.uint8, device="meta")
        with torch.no_grad():
            held = torch.empty(0, dtype=value.dtype, device="meta")
            held.set_(memory.untyped_storage(), offset, shape, strides)
        return self._fakes.FakeTensor(self._mode, held, value.device)


def _text(nodes: Sequence[Node]) -> str:
    """Return the symbolic computation of a region, which is the same for equal layers."""
    names: dict[Node, str] = {}

    def text_of(value: Any) -> str:
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(text_of, value))}]"
        if not hasattr(value, "all_input_nodes"):
            return repr(value)
        if value not in names:
            names[value] = f"%{len(names)}"
            return f"{names[value]}: {' '.join(_symbols_of(value))}"
        return names[value]

    return "\n".join(
        f"{text_of(node)} = {target_of(node)}{text_of(node.args)} {text_of(list(node.kwargs.items()))}"
        for node in nodes
    )


def _symbols_of(node: Node) -> Iterator[str]:
    value = node.meta.get(SYMBOLIC, node.meta.get("val"))
    for part in value if isinstance(value, list | tuple) else (value,):
        if hasattr(part, "stride"):
            yield f"{part.dtype}{list(part.shape)}{list(part.stride())}"
        else:
            yield str(part)
