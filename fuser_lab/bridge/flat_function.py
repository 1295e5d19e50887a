"""The Python function of a captured graph: its statements, and the forms in which they read tensors.

Kernels receive addresses, or read them from tensors on the CPU, so a view that only regions read is never created;
other views are created from their storage, without the dispatcher. A region's result is created in the form that is
read first.
"""

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser_lab.bridge.add_calls import AddCall, AddCalls
from fuser_lab.bridge.added_stores import adding_regions
from fuser_lab.bridge.host_scatters import PositionsKernel, host_scatter_of, scatter_kernel
from fuser_lab.bridge.in_place import InPlace
from fuser_lab.bridge.lists import ListedRegions, RegionList, in_lists, kernels_of
from fuser_lab.bridge.masks import dropout_mask
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.scatters import Scatter, is_filled
from fuser_lab.bridge.tensor_forms import Form, Unit, forms_of, is_dense, is_same_memory
from fuser_lab.bridge.torch_calls import quick_call
from fuser_lab.bridge.torch_region import TorchRegion, copy_with_strides, with_strides
from fuser_lab.bridge.traced import Node, is_write_back, target_of
from fuser_lab.codegen.kernel_ir import ALIGNED
from fuser_lab.errors import FuserLabError
from fuser_lab.runtime.arrays import empty_strided
from fuser_lab.runtime.cpu.host_ready import HostRun, TensorCall
from fuser_lab.runtime.gpu.ready import Block, DirectRun
from fuser_lab.runtime.missed_positions import refuse_look_up, refuse_write
from fuser_lab.targets import is_on_host

_DENSE = frozenset({"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"})

Frame = Callable[[list[Any]], Any]  # empties its list of arguments; returns None, without effect, for other alignments


class NotFlatError(Exception):
    """A graph contains something that a generated function does not support."""


@dataclass(slots=True)
class _Line:
    """A statement of the function with the local variables that it reads."""

    text: str
    reads: frozenset[str]


@dataclass(slots=True)
class _Base:
    """A local variable with memory: its own form, and its views by form."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    views: dict[Form, str] = field(default_factory=dict)


class FunctionWriter:
    """Generates the function of a graph; its global names are those in ``names``."""

    def __init__(
        self, inputs: Sequence[Node], units: Sequence[Unit], runs: Mapping[Region, DirectRun], arguments: Sequence[Any],
        adds: AddCalls,
    ) -> None:
        self._torch = torch_for("fuser_lab.bridge")
        guards = importlib.import_module("torch._C._dynamo.guards")
        if not hasattr(guards, "_reinterpret_tensor"):
            raise NotFlatError
        self._inputs, self._units, self._runs, self._adds = inputs, units, runs, adds
        # Not the arguments themselves, which are freed while the function runs.
        self._addresses = {node: value.data_ptr() for node, value in zip(inputs, arguments, strict=True)
                           if isinstance(value, self._torch.Tensor)}
        self.names: dict[str, Any] = {
            "view": guards._reinterpret_tensor, "strided": with_strides, "copy": copy_with_strides,  # noqa: SLF001
            "refuse_look_up": refuse_look_up, "refuse_write": refuse_write,
        }
        self._constants: dict[int, str] = {}
        self._kept: list[Any] = []  # keeps the objects alive whose ids are the keys of `_constants`
        self._lines: list[_Line] = []
        self._bases: dict[Node, _Base] = {}
        self._form = forms_of(units)
        self._runs = {region: run for region, run in runs.items() if self._fits(region, run)}
        self._on_host = all(isinstance(run, HostRun) for run in self._runs.values())
        self._scatters = {unit: kernel for unit in units if not isinstance(unit, Region)
                          if (kernel := _kernel_of(unit)) is not None}
        self._seen = self._views()
        self._returned = {node for unit in units if not isinstance(unit, Region) and unit.op == "output"
                          for node in unit.all_input_nodes}
        self._adding = adding_regions(units, self._runs, adds.of, self._form)
        self._added = {each.node: each.over for region in self._adding.values() for each in region.stores}
        kernels = kernels_of({region: run for region, run in self._runs.items() if region not in self._adding})
        self._ordered = in_lists(units, kernels, self._read_bases)
        places = {node: (base, form[2]) for node, (base, form) in self._form.items()}
        self._in_place = InPlace(self._ordered, self._runs, places, self._writable())

    @property
    def lists(self) -> tuple[RegionList, ...]:
        """The regions that one launch computes."""
        return tuple(unit.summary for unit in self._ordered if isinstance(unit, ListedRegions))

    def _read_bases(self, unit: Unit) -> set[Node]:
        """Return what a unit reads; views by their base."""
        read = (*unit.input_nodes, *self._added_operands(unit)) if isinstance(unit, Region) else unit.all_input_nodes
        return {self._form[node][0] if node in self._form else node for node in read}

    def _added_operands(self, region: Region) -> list[Node]:
        """Return the operands of what a region writes at positions."""
        stores = self._adding[region].stores if region in self._adding else ()
        return [node for each in stores for node in each.operands]

    def _writable(self) -> set[Node]:
        """Return the arguments that kernels may write to: dense, and on a GPU aligned as results are."""
        return {
            node for node, address in self._addresses.items()
            if node in self._form and is_dense(self._form[node][1])
            and (self._on_host or not address & (ALIGNED - 1))
        }

    def function(self, module: Any) -> Frame:
        """Return the function of a list of arguments, which it empties."""
        parameters = [self._bind(node, f"a{place}") for place, node in enumerate(self._inputs)]
        copies: list[Node] = []
        for unit in self._ordered:
            if self._is_write_of_new_memory(unit):
                copies.append(unit)
                continue
            self._copies(copies)
            copies = []
            if isinstance(unit, ListedRegions):
                self._list(unit)
            elif isinstance(unit, Region):
                self._region(unit)
            elif unit.op == "get_attr":
                self._define(unit, self._constant(functools.reduce(getattr, unit.target.split("."), module)))
            elif unit.op == "call_function":
                self._call(unit)
            elif unit.op == "output":
                returned = self._output(unit)
        text = "\n    ".join(self._with_deletions(parameters, returned))
        unpacked = f"    [{', '.join(parameters)}] = args\n" if parameters else ""
        source = f"def run(args):\n{unpacked}{self._alignments()}    args.clear()\n    {text}\n    return {returned}\n"
        exec(compile(source, "<a captured graph>", "exec"), self.names)  # noqa: S102 - our own source
        written: Frame = self.names["run"]
        return written

    def _alignments(self) -> str:
        """Return a statement that ends the function if an argument does not have the alignment that kernels need."""
        needed = dict.fromkeys(
            self._rest(node, alignment) for region, run in self._runs.items()
            for node, alignment in zip(region.input_nodes, run.alignments, strict=False)
        )
        if not self._on_host:
            needed |= dict.fromkeys((argument, ALIGNED - 1, 0) for argument in self._in_place.arguments.values())
        conditions = [
            f"{self._bases[base].name}.data_ptr() & {mask} != {rest}"
            for base, mask, rest in needed if base in self._addresses and (mask, rest) != (ALIGNED - 1, 0)
        ]
        aligned = [f"{self._bases[base].name}.data_ptr()" for base, *rest in needed
                   if base in self._addresses and rest == [ALIGNED - 1, 0]]
        if aligned:
            conditions.append(f"({' | '.join(aligned)}) & {ALIGNED - 1}")
        return f"    if {' or '.join(conditions)}: return None\n" if conditions else ""

    # Views

    def _fits(self, region: Region, run: DirectRun) -> bool:
        """Whether the inputs of a region are aligned like those of a run; memory allocated here is aligned."""
        for node, needed in zip(region.input_nodes, run.alignments, strict=False):
            base, mask, rest = self._rest(node, needed)
            if base in self._addresses and self._addresses[base] & mask != rest:
                return False
            if base not in self._addresses and rest:
                return False
        return True

    def _rest(self, node: Node, needed: tuple[int, int]) -> tuple[Node, int, int]:
        """Return the base of a region's input, and the required low bits of its address under a mask."""
        mask, rest = needed
        base, (_, _, start) = self._form[node]
        return base, mask, (rest - start * base.meta["val"].itemsize) & mask

    def _views(self) -> dict[Node, list[Form]]:
        """Return the forms in which torch reads a base, in their order."""
        forms: dict[Node, list[Form]] = {}
        for unit in self._units:
            if isinstance(unit, Region):
                read = () if unit in self._runs else unit.input_nodes
            else:
                read = () if self._is_view(unit) else unit.all_input_nodes
            for node in read:
                if node in self._form:
                    base, form = self._form[node]
                    forms.setdefault(base, []).append(form)
        return forms

    def _is_view(self, node: Node) -> bool:
        return node in self._form and self._form[node][0] is not node

    def _local(self, node: Node) -> str:
        """Return the local variable of a tensor, which is created if it is a view that was not read before."""
        base, form = self._form[node]
        memory = self._bases[base]
        if form == (memory.shape, memory.strides, 0):
            return memory.name
        if form not in memory.views:
            memory.views[form] = self._view(memory, form)
        return memory.views[form]

    def _view(self, memory: _Base, form: Form) -> str:
        name = self._new_name()
        shape, strides, start = form
        self._emit(f"{name} = view({memory.name}, {shape}, {strides}, {start})", {memory.name})
        return name

    def _new_name(self) -> str:
        return f"x{len(self._lines)}"

    def _define(self, node: Node, text: str, reads: set[str] | None = None) -> None:
        """Emit a separate tensor, or any other result of a node."""
        name = self._bind(node, f"{'v' if node in self._form else 'n'}{len(self._lines)}")
        self._emit(f"{name} = {text}", reads or set())

    def _bind(self, node: Node, name: str) -> str:
        """Return the name of the local variable that a node gets; only tensors have a form."""
        _, (shape, strides, _) = self._form.get(node, (node, ((), (), 0)))
        self._bases[node] = _Base(name, shape, strides)
        return name

    # Calls

    def _call(self, node: Node) -> None:
        if self._is_view(node) or node in self._in_place.copies or node in self._added or self._fills_scatters(node):
            return
        if node in self._scatters:
            self._scatter(node, *self._scatters[node])
            return
        if node in self._adds.of:
            self._define(node, *self._add_text(self._adds.of[node]))
            return
        target = target_of(node)
        if node.target is dropout_mask and is_on_host(node.meta["val"].device.type):
            sizes, strides, p, *_ = node.args
            form = f"{tuple(sizes)}, {tuple(strides)}, {self._constant(self._torch.bool)}"
            self._define(node, f"{self._new(node)}({form}).bernoulli_({1 - p!r})")
            return
        reads: set[str] = set()
        args = [self._argument(value, reads) for value in node.args]
        if target == "aten.clone.default" and node in self._form and set(node.kwargs) <= {"memory_format"}:
            _, (shape, strides, _) = self._form[node]
            if all(step for step, size in zip(strides, shape, strict=True) if size > 1):
                dtype = self._constant(node.meta["val"].dtype)
                self._define(node, f"{self._new(node)}({shape}, {strides}, {dtype}).copy_({args[0]})", reads)
                return
        args += [f"{key}={self._argument(value, reads)}" for key, value in node.kwargs.items()]
        function = self._constant(quick_call(node.target, len(node.args), frozenset(node.kwargs)))
        self._define(node, f"{function}({', '.join(args)})", reads)
        if node in self._form and target not in _DENSE and node.op == "call_function":
            base = self._bases[node]
            read_by_kernel = self._is_read_by_region(node) or self._is_read_by_scatter(node)
            if any(self._form.get(user, (user,))[0] is node for user in node.users) or read_by_kernel:
                # For some ops, torch's kernel returns strides other than the traced ones.
                self._emit(
                    f"if {base.name}.stride() != {base.strides}: {base.name} = strided({base.name}, {base.strides})",
                    {base.name},
                )
            if any(run.alignments for run in self._runs.values()) and self._is_read_by_region(node):
                # Most ops return new memory, which is aligned, but this is not guaranteed.
                self._emit(
                    f"if {base.name}.data_ptr() & {ALIGNED - 1}: {base.name} = copy({base.name}, {base.strides})",
                    {base.name},
                )

    def _is_write_of_new_memory(self, unit: Unit) -> bool:
        """Whether a unit writes over an argument what was computed elsewhere, so that such writes need no order."""
        if isinstance(unit, Region | ListedRegions) or not is_write_back(unit) or unit.users:
            return False
        source = self._form.get(unit.args[1])
        return unit not in self._in_place.copies and source is not None and source[0].op == "call_function"

    def _copies(self, copies: Sequence[Node]) -> None:
        """Emit one call for writes over arguments: on a GPU, it launches one kernel for many tensors."""
        if len(copies) < 2:
            for copy in copies:
                self._call(copy)
            return
        reads: set[str] = set()
        targets, sources = ([self._argument(copy.args[place], reads) for copy in copies] for place in (0, 1))
        function = self._constant(self._torch._foreach_copy_)
        self._emit(f"{function}([{', '.join(targets)}], [{', '.join(sources)}])", reads)

    def _is_read_by_region(self, node: Node) -> bool:
        return any(
            self._form[read][0] is node for region in self._runs
            for read in (*region.input_nodes, *self._added_operands(region)) if read in self._form
        )

    def _is_read_by_scatter(self, node: Node) -> bool:
        return any(self._form[read][0] is node for scatter, _ in self._scatters.values() for read in scatter.operands)

    def _add_text(self, call: AddCall) -> tuple[str, set[str]]:
        """Return the call of a kernel that adds at positions as text, and the local variables that it reads."""
        reads: set[str] = set()
        operands = [self._argument(operand, reads) for operand in call.scatter.operands]
        return f"{self._constant(call)}({', '.join(operands)})", reads

    def _fills_scatters(self, node: Node) -> bool:
        """Whether a node only fills tensors that kernels of scatters fill themselves."""
        scatters = {unit: scatter for unit, (scatter, _) in self._scatters.items()}
        return node in self._adds.filled or is_filled(node, scatters)

    def _scatter(self, node: Node, scatter: Scatter, kernel: PositionsKernel) -> None:
        """Emit new memory, addresses and the kernel of a write at positions."""
        self._made_by_region(node)
        self._positions_call(kernel, (*scatter.operands, node))
        missed, reads = self._constant(kernel.missed), set[str]()
        texts = [
            f"({f'the index of axis {each.axis}'!r}, {self._unkept_view(each.node, reads)}, {each.size}, {each.wraps})"
            for each in scatter.positions
        ]
        self._emit(f"if {missed}.value: refuse_write({missed}, {scatter.op!r}, [{', '.join(texts)}])", reads)

    def _unkept_view(self, node: Node, reads: set[str]) -> str:
        """Return a tensor as text; a view is created where the text is evaluated."""
        if node not in self._form:
            return self._argument(node, reads)
        base, (shape, strides, start) = self._form[node]
        memory = self._bases[base].name
        reads.add(memory)
        return f"view({memory}, {shape}, {strides}, {start})"

    def _positions_call(self, kernel: PositionsKernel, nodes: Sequence[Node]) -> None:
        """Emit the addresses of tensors and the call of a kernel."""
        name = self._constant(kernel)  # the function keeps it alive
        if kernel.of_tensors is not None:
            self._tensor_call(kernel.of_tensors, nodes)
            return
        values = [self._address(node) for node in nodes]
        for word, (memory, address) in zip(kernel.words, values, strict=True):
            self._emit(f"{self._constant(word)}.value = {address}", {memory})
        self._emit(f"{name}()", {memory for memory, _ in values})

    def _argument(self, value: Any, reads: set[str]) -> str:
        """Return an argument as text; the local variables that it reads are added to ``reads``."""
        if isinstance(value, self._torch.fx.Node):
            name = self._local(value) if value in self._form else self._bases[value].name
            reads.add(name)
            return name
        if isinstance(value, list | tuple):
            parts = "".join(f"{self._argument(part, reads)}, " for part in value)
            return f"[{parts}]" if isinstance(value, list) else f"({parts})"
        if value is None or value.__class__ in {bool, int, str} or (value.__class__ is float and math.isfinite(value)):
            return repr(value)
        return self._constant(value)

    def _new(self, node: Node) -> str:
        """Return the name of the function that allocates tensors on the device of a node's tensor."""
        return self._constant(empty_strided(str(node.meta["val"].device)))

    def _constant(self, value: Any) -> str:
        if id(value) not in self._constants:
            name = self._constants[id(value)] = f"c{len(self._constants)}"
            self._kept.append(value)
            self.names[name] = value
        return self._constants[id(value)]

    def _region(self, region: Region) -> None:
        run = self._runs.get(region)
        if run is None:
            reads: set[str] = set()
            operands = [self._argument(node, reads) for node in region.input_nodes]
            name = f"r{len(self._lines)}"
            self._emit(f"{name} = {self._constant(region)}({', '.join(operands)})", reads)
            for place, node in enumerate(region.output_nodes):
                self._define(node, f"{name}[{place}]", {name})
        else:
            self._direct(region, run)
        for node in region.view_nodes:
            self._call(node)

    def _direct(self, region: Region, run: DirectRun) -> None:
        """Emit new memory, addresses and kernels."""
        self._constant(run)  # the function keeps it alive, and with it the words of its launches
        adding = self._adding.get(region)
        stores = () if adding is None else adding.stores
        unstored = {each.stored for each in stores}
        for node in (*region.output_nodes, *(each.node for each in stores)):
            if node not in unstored:
                self._made_by_region(node)
        nodes = [*region.input_nodes, *region.output_nodes]
        placed = run.placed(self._in_place.over(region)) if isinstance(run, HostRun) else ()
        on_tensors = [call.on_tensors for call in placed]
        calls = [call.run for call in placed] or (run.calls if adding is None else (adding.call,))
        # Words of arrays that only calls on tensors read keep their addresses.
        arrays = {id(array) for call, plain in zip(placed, on_tensors, strict=True) if plain is None
                  for array in call.arrays}
        words: dict[int, list[str]] = {}
        for place, word in run.words:
            if not placed or id(word.array) in arrays:
                words.setdefault(place, []).append(self._constant(word))
        for each in stores:
            for node, word in zip((*each.operands, each.node), each.words, strict=True):
                words[len(nodes)] = [self._constant(word)]
                nodes.append(node)
        values = {place: self._address(node) for place, node in enumerate(nodes) if node not in unstored}
        for place, (memory, address) in values.items():
            if place in words:
                written = "".join(f"{word}.value = " for word in words[place])
                self._emit(f"{written}{address}", {memory})
        blocks = (*run.blocks, *(block for each in stores for block in each.sums))
        held = {memory for memory, _ in values.values()} | {
            self._block(region.output_nodes[0], block) for block in blocks}
        for call, tensor_call in itertools.zip_longest(calls, on_tensors):
            if tensor_call is None:
                self._emit(f"{self._constant(call)}()", held)
            else:
                self._tensor_call(tensor_call, nodes)
        missed = [self._constant(word) for word in run.missed(placed)] if isinstance(run, HostRun) else []
        if missed and isinstance(region, TorchRegion):
            reads: set[str] = set()
            views = ", ".join(self._unkept_view(node, reads) for node in region.input_nodes)
            has_missed, fusion = " or ".join(f"{word}.value" for word in missed), self._constant(region.prepared.fusion)
            self._emit(f"if {has_missed}: refuse_look_up([{', '.join(missed)}], {fusion}, [{views}])", reads)

    def _block(self, node: Node, block: Block) -> str:
        """Emit memory between kernels, on the device of a node's tensor, and return its local variable."""
        name = self._new_name()
        self._emit(f"{name} = {self._new(node)}(({block.nbytes},), (1,), {self._constant(self._torch.uint8)})", set())
        self._emit(f"{self._constant(block.word)}.value = {name}.data_ptr()", {name})
        return name

    def _tensor_call(self, call: TensorCall, nodes: Sequence[Node]) -> None:
        """Emit the call of a kernel that takes tensors; another first element, and an intermediate, is an address."""
        values, reads = [], set()
        for argument in call.arguments:
            if not isinstance(argument, int):
                values.append(str(argument.ctypes.data))
                continue
            memory, address = self._address(nodes[argument])
            values.append(memory if address == f"{memory}.data_ptr()" else address)
            reads.add(memory)
        values += [self._argument(size, reads) for size in call.sizes]
        self._emit(f"{self._constant(call.function)}({', '.join(values)})", reads)

    def _list(self, listed: ListedRegions) -> None:
        """Emit new memory for the results of a list of regions, the addresses of all tensors, and one launch."""
        for region in listed.regions:
            self._constant(self._runs[region])  # as in `_direct`
            for node in region.output_nodes:
                self._made_by_region(node)
        tensors = [(*region.input_nodes, *region.output_nodes) for region in listed.regions]
        values = [self._address(tensors[number][place]) for number, place in listed.run.places]
        memories = {memory for memory, _ in values}
        self._emit(f"{self._constant(listed.run.put)}({', '.join(address for _, address in values)})", memories)
        self._emit(f"{self._constant(listed.run.call)}()", memories)
        for region in listed.regions:
            for node in region.view_nodes:
                self._call(node)

    def _address(self, node: Node) -> tuple[str, str]:
        """Return the local variable with the memory of a tensor, and the address of its first element as text."""
        base, (_, _, start) = self._form[node]
        memory = self._bases[base].name
        # A base that is created in another form has its first element at the same address.
        shift = f" + {start * base.meta['val'].itemsize}" if start else ""
        return memory, f"{memory}.data_ptr(){shift}"

    def _made_by_region(self, node: Node) -> None:
        """Emit new memory for a result, in the first form that reads all of it, or take that of an argument."""
        traced = self._form[node][1]
        over = self._in_place.arguments.get(node) or self._added.get(node)
        if over is not None:
            shape, strides, _ = traced
            self._bases[node] = _Base(self._bases[over].name, shape, strides)
            return
        # A returned tensor must not be a view of another one.
        read = () if node in self._returned else self._seen.get(node, ())
        chosen = next((form for form in read if is_same_memory(form, traced)), traced)
        shape, strides, _ = chosen
        dtype = self._constant(node.meta["val"].dtype)
        self._define(node, f"{self._new(node)}({shape}, {strides}, {dtype})")
        self._bases[node] = _Base(self._bases[node].name, shape, strides)

    def _output(self, node: Node) -> str:
        """Return the graph's results as text; each node is a separate object.

        Views are torch's own here, because tensors saved for the backward pass must track writes to their base.
        """
        return self._result_text(node.args[0], {})

    def _result_text(self, value: Any, taken: dict[str, Node]) -> str:
        """Return a part of the graph's results as text; ``taken`` are the nodes returned so far, by variable."""
        if isinstance(value, list | tuple):
            return f"({''.join(f'{self._result_text(part, taken)}, ' for part in value)})"
        if not isinstance(value, self._torch.fx.Node):
            return self._argument(value, set())
        if value not in self._form:
            return self._bases[value].name
        base, form = self._form[value]
        memory = self._bases[base]
        # A view of an argument is not the argument.
        is_given = base is not value and base.op != "call_function"
        is_whole = form == (memory.shape, memory.strides, 0)
        if is_whole and not is_given and taken.setdefault(memory.name, value) is value:
            return memory.name
        if target_of(value) == "aten._unsafe_view.default":
            return self._view(memory, form)
        name, (shape, strides, start) = self._new_name(), form
        place = f"{memory.name}.storage_offset() + {start}"
        self._emit(f"{name} = {memory.name}.as_strided({shape}, {strides}, {place})", {memory.name})
        return name

    # Lines

    def _emit(self, text: str, reads: set[str]) -> None:
        self._lines.append(_Line(text, frozenset(reads)))

    def _with_deletions(self, parameters: Sequence[str], returned: str) -> Iterator[str]:
        """Yield the statements, each followed by the deletion of variables that are not read afterwards."""
        returned_names = set(returned.replace("(", " ").replace(")", " ").replace(",", " ").split())
        last: dict[str, int] = dict.fromkeys(parameters, -1)
        for number, line in enumerate(self._lines):
            name, is_assigned, _ = line.text.partition(" = ")
            if is_assigned and name.isidentifier():
                last[name] = number
            last.update(dict.fromkeys(line.reads & last.keys(), number))
        ends: dict[int, list[str]] = {}
        for name, number in last.items():
            if name not in returned_names:
                ends.setdefault(number, []).append(name)
        if -1 in ends:
            yield f"del {', '.join(ends[-1])}"
        for number, line in enumerate(self._lines):
            yield line.text
            if number in ends:
                yield f"del {', '.join(ends[number])}"
        yield "pass"


def _kernel_of(node: Node) -> tuple[Scatter, PositionsKernel] | None:
    """Return the write at positions that a node is, with its kernel; None if there is none, and torch runs the node."""
    scatter = host_scatter_of(node)
    try:
        return None if scatter is None else (scatter, scatter_kernel(scatter))
    except FuserLabError:  # of a compiler
        return None
