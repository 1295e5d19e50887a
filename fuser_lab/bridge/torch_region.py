"""A region of a torch graph: tensors with their traced strides, on their device."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fuser_lab.bridge.annotations import Home
from fuser_lab.bridge.region import Region, Watched
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.roundings import rounding_errors
from fuser_lab.bridge.signature import Cutting, Signature
from fuser_lab.bridge.traced import Node
from fuser_lab.runtime.arrays import empty_strided
from fuser_lab.targets import CPU, has_own_memory, is_on_host

Again = Callable[[Sequence[Any], None], list[Any] | None]

if TYPE_CHECKING:
    from fuser_lab.codegen.varying import SharedKernels
    from fuser_lab.runtime.plan.executor import PreparedPlan
    from fuser_lab.runtime.waiting import Compilation


class TorchRegion(Region):
    """Nodes of an FX graph that run as one fusion.

    Attributes
    ----------
    observer
        Called with the region and its inputs in each call.
    """

    library: ClassVar[str] = "torch"
    observer = Watched["Callable[[TorchRegion, Sequence[Any]], None] | None"]()

    def __init__(
        self, index: int, nodes: Sequence[Node], cutting: Cutting, *, checked: bool = False, idle: bool = False,
        homes: Mapping[Node, frozenset[Home]] | None = None, shared: "SharedKernels | None" = None,
        signature: Signature | None = None,
    ) -> None:
        super().__init__(
            index, nodes, cutting, checked=checked, idle=idle, homes=homes, shared=shared, signature=signature,
        )
        self.observer = None
        devices = [traced.device for traced in self.signature.inputs]
        self._gpu = next(filter(has_own_memory, devices), None)
        # Tensors without axes may be on the CPU, with other tensors on a GPU.
        self._moved = frozenset(n for n, device in enumerate(devices) if self._gpu is not None and is_on_host(device))
        self.input_strides = tuple(traced.strides for traced in self.signature.inputs)
        self._out_strides = tuple(traced.strides for traced in self.traced)
        self._prepared: PreparedPlan | None = None
        self._again: Again | None = None  # a run like one before
        self._quick: Again | None = None  # the same run, if a call does nothing else
        self.watchers.append(self._choose)
        self._apart: tuple[int, ...] = ()  # outputs that the plan returns in shared memory
        self._relaid: tuple[int, ...] = ()  # outputs that the plan returns with strides other than the traced ones
        self._finish: tuple[tuple[int, Callable[[Any], Any]], ...] = ()  # conversions of outputs for torch, by index

    @functools.cached_property
    def fallback(self) -> Any:
        """The same nodes as a torch GraphModule; it takes the region's inputs and returns a tuple."""
        torch = torch_for("fuser_lab.bridge")
        graph = torch.fx.Graph()
        env = {node: graph.placeholder(f"input_{place}") for place, node in enumerate(self.input_nodes)}
        for node in self._nodes:
            env[node] = graph.node_copy(node, env.__getitem__)
        graph.output(tuple(env[node] for node in self.output_nodes))
        return torch.fx.GraphModule(torch.nn.Module(), graph)

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Return the results of the region's nodes, with their traced strides."""
        quick = self._quick
        if quick is not None:
            outputs = quick(self._on_gpu(inputs) if self._moved else inputs, None)
            if outputs is not None:
                for place, finished in self._finish:
                    outputs[place] = finished(outputs[place])
                return outputs
        if self.observer is not None:
            self.observer(self, inputs)
        return super().__call__(*inputs)

    def _choose(self) -> None:
        """Choose what a call tries first."""
        self._quick = None if self.checked or self.idle or self.observer or self.failed else self._again

    @property
    def is_on_host(self) -> bool:
        """Whether all tensors are in host memory."""
        return all(is_on_host(tensor.device) for tensor in (*self.signature.inputs, *self.traced))

    def kernels(self) -> "tuple[Compilation, ...]":
        """Return the kernels that the region will run for inputs with the traced strides, each with its capability.

        There are none on devices without kernels, or if the region cannot run; its first run then says why.
        """
        if self.idle or not (self._gpu or self.is_on_host):
            return ()
        try:
            prepared = self.recorded.prepare(self._gpu or CPU.name)
            return tuple((kernel, prepared.memory.capability()) for kernel in prepared.generated(self.input_strides))
        except Exception:  # noqa: BLE001 - it is raised again, and reported, where the region runs
            return ()

    @property
    def prepared(self) -> "PreparedPlan":
        """The plan as it runs on the device of the inputs, once it has run."""
        assert self._prepared is not None
        return self._prepared

    @property
    def is_direct(self) -> bool:
        """Whether a run consists only of kernels that write to new memory with the traced layout."""
        if self._again is None or self.failed is not None or self._apart or self._moved:
            return False
        made = self.prepared.output_strides
        return all(
            size <= 1 or a == b
            for place in self._relaid
            for size, a, b in zip(self.traced[place].shape, made[place], self._out_strides[place], strict=True)
        )

    def fail(self, error: Exception) -> None:
        """Leave the region to torch from now on, and warn once."""
        self._again = None
        super().fail(error)

    def _by_library(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if any(x.device.type == "meta" for x in inputs):
            return self._on_meta()
        results: Sequence[Any] = self.fallback(*inputs)
        return results

    def _on_meta(self) -> list[Any]:
        """Return tensors without memory, as torch traced them."""
        torch = torch_for("fuser_lab.bridge")
        return [
            torch.empty_strided(traced.shape, traced.strides, dtype=getattr(torch, traced.dtype), device=traced.device)
            for traced in self.traced
        ]

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        prepared = self._prepared
        if prepared is None:
            devices = {str(x.device) for x in inputs} or {traced.device for traced in self.traced}
            if "meta" in devices:
                return self._on_meta()
            target = next(filter(has_own_memory, sorted(devices)), CPU.name)
            prepared = self.recorded.prepare(target)
        if not inputs:
            return self._make(prepared)
        # A tensor from autograd or another compiler may have a layout other than the traced one.
        strided = zip(inputs, self.input_strides, strict=True)
        laid_inputs = [x if x.stride() == s else with_strides(x, s) for x, s in strided]
        laid_inputs = self._on_gpu(laid_inputs) if self._moved else laid_inputs
        outputs = prepared.run(laid_inputs)
        if self._prepared is None:
            made = prepared.output_strides
            self._apart = self._shared_outputs(laid_inputs, outputs)
            self._relaid = tuple(n for n, (a, b) in enumerate(zip(made, self._out_strides, strict=True)) if a != b)
            self._finish = tuple(
                (place, (copier if place in self._apart else layer)(outputs[place], self._out_strides[place]))
                for place in sorted({*self._apart, *self._relaid})
            )
            self._again, self._prepared = prepared.repeat, prepared
            self._choose()
        return [
            copy_with_strides(x, strides) if place in self._apart else with_strides(x, strides)
            for place, (x, strides) in enumerate(zip(outputs, self._out_strides, strict=True))
        ]

    def _on_gpu(self, inputs: Sequence[Any]) -> list[Any]:
        """Return inputs that are all on the GPU, so that a plan's run can be repeated."""
        return [x.to(self._gpu) if place in self._moved else x for place, x in enumerate(inputs)]

    def inexactness(self, inputs: Sequence[Any], outputs: Sequence[Any], expected: Sequence[Any]) -> float:
        """Return the distance of results from torch's, relative to what roundings of its ops explain."""
        return rounding_errors(self.fallback, inputs, outputs, expected)

    def _make(self, prepared: "PreparedPlan") -> list[Any]:
        """Return the outputs of a region without inputs, which would determine the library."""
        torch = torch_for("fuser_lab.bridge")
        empty = [torch.empty(out.shape, dtype=getattr(torch, out.dtype), device=out.device) for out in self.traced]
        made = prepared.run((), empty)
        self._prepared = prepared
        return [with_strides(x, strides) for x, strides in zip(made, self._out_strides, strict=True)]

    def _shared_outputs(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, ...]:
        """Return the outputs that share memory with an input or an earlier output; a region's outputs are not views."""
        taken = {_memory(x) for x in inputs}
        places = []
        for place, output in enumerate(outputs):
            memory = _memory(output)
            if memory in taken and output.numel():
                places.append(place)
            taken.add(memory)
        return tuple(places)


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def with_strides(tensor: Any, strides: tuple[int, ...]) -> Any:
    """Return a tensor with these strides: itself, a view if only axes of size 1 differ, otherwise a copy."""
    return tensor if tensor.stride() == strides else layer(tensor, strides)(tensor)


def copy_with_strides(tensor: Any, strides: tuple[int, ...]) -> Any:
    """Return a copy of a tensor with these strides."""
    return copier(tensor, strides)(tensor)


def layer(like: Any, strides: tuple[int, ...]) -> Callable[[Any], Any]:
    """Return `with_strides` for tensors like this one, with its strides."""
    shape, current = tuple(like.shape), like.stride()
    if current == strides:
        return lambda tensor: tensor
    if not like.numel() or all(n <= 1 or a == b for n, a, b in zip(shape, current, strides, strict=True)):
        return lambda tensor: tensor.as_strided(shape, strides)
    copy = copier(like, strides)
    return lambda tensor: tensor if tensor.stride() == strides else copy(tensor)


def copier(like: Any, strides: tuple[int, ...]) -> Callable[[Any], Any]:
    """Return `copy_with_strides` for tensors of the shape, dtype and device of this one."""
    shape, dtype, new = tuple(like.shape), like.dtype, empty_strided(str(like.device))
    if 0 not in strides:
        return lambda tensor: new(shape, strides, dtype).copy_(tensor)
    # An expanded axis has one element.
    once = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    if 0 in shape or once == shape:
        return lambda tensor: new(shape, strides, dtype).copy_(tensor)

    def copy(tensor: Any) -> Any:
        return new(once, strides, dtype).copy_(tensor.as_strided(once, tensor.stride())).as_strided(shape, strides)

    return copy
