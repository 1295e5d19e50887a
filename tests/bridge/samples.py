"""Operands of the lowerings' sample calls, and the results of such a call by torch and by a recorded definition."""

from typing import Any

from fuser_lab.bridge.capture import CaptureOptions
from fuser_lab.bridge.partition import Partition, Wishes, partition_graph, prepare
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.signature import Cutting
from fuser_lab.bridge.torch_region import TorchRegion, with_strides


def operands(torch: Any) -> dict[str, Any]:
    """Tensors by the letters that samples use; the same in each call."""
    draw = torch.Generator().manual_seed(5)
    a = torch.randn(3, 4, generator=draw)
    w = a.clone()
    w[0, 0], w[1, 1], w[2, 2], w[2, 3] = float("nan"), float("inf"), -float("inf"), -0.0
    return {
        "a": a,
        "b": torch.randn(2, 3, 4, generator=draw),
        "c": torch.randn(4, generator=draw),
        "e": torch.tensor([[0, 2], [1, 0]]),
        "g": torch.tensor([[0, 2, 1], [1, 0, 2], [2, 1, 0]]),
        "h": torch.randn(3, 4, generator=draw).to(torch.float16),
        "i": torch.tensor([2, 0, 1]),
        "k": torch.tensor([[3, -3, 2, -2], [1, 5, -5, 7], [-1, 2, 3, 4]]),
        "m": torch.rand(3, 4, generator=draw) > 0.5,
        "n": torch.tensor([[7, -7, 0, 3], [-8, 9, -1, 2], [0, 5, 6, -4]]),
        "o": torch.tensor([[200, 3, 0, 255], [7, 100, 50, 1], [128, 127, 2, 9]], dtype=torch.uint8),
        "p": torch.rand(3, 4, generator=draw) + 0.25,
        "s": torch.tensor(1.5),
        "u": torch.rand(3, 4, generator=draw) * 1.8 - 0.9,
        "w": w,
        "z": torch.empty(0),
    }


def graph_of(torch: Any, function: Any, given: dict[str, Any]) -> Any:
    """The ATen graph of a function of named tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    names = list(given)
    traced = make_fx(lambda *values: function(dict(zip(names, values, strict=True))), tracing_mode="fake")
    return traced(*given.values())


def regions_of(gm: Any, wishes: Wishes | None = None) -> tuple[Partition, list[TorchRegion]]:
    """The bridge's form of an ATen graph."""
    options = CaptureOptions(wishes=wishes or Wishes(records_matmuls=True))
    found = partition_graph(gm, options.wishes, prepare(gm))
    return found, [TorchRegion(place, nodes, Cutting()) for place, nodes in enumerate(found.regions)]


def by_reference(region: Region, inputs: Any) -> list[Any]:
    """The results of a region, evaluated by NumPy, with the strides that torch traced, like `TorchRegion._run`."""
    import torch

    found = region.definition.reference([x.detach() for x in inputs])
    narrow = ("bfloat16", "float8")  # torch does not accept arrays of these dtypes
    wide = [torch.as_tensor(y.astype("float32") if y.dtype.name.startswith(narrow) else y.copy()) for y in found]
    tensors = [y.to(getattr(torch, traced.dtype)) for y, traced in zip(wide, region.traced, strict=True)]
    return [with_strides(y, traced.strides) for y, traced in zip(tensors, region.traced, strict=True)]
