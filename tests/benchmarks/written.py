"""A piece of a program as its user writes it: a definition, and the same in torch, at any share of its size."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

F, B, H, I = DataType.Float, DataType.BFloat16, DataType.Half, DataType.Int  # noqa: E741 - as in PyTorch's letters
Q, Y, Z = DataType.Char, DataType.Bool, DataType.Float8_e4m3fn
Shape = tuple[int, ...]
_TORCH = {F: "float32", B: "bfloat16", H: "float16", I: "int64", Q: "int8", Y: "bool", Z: "float8_e4m3fn"}


@dataclass(frozen=True, kw_only=True)
class Written:
    """``record(fd, *tensors)`` returns the outputs of the definition, ``torch(*tensors)`` the same by torch.

    ``sizes(d)`` are the shapes of the inputs with a ``d``-th of the elements. ``view`` makes the actual input from a
    dense one; the definition then has that shape, and unknown strides. ``below`` bounds inputs that are positions, by
    number. ``squares`` are the numbers of inputs that are means of squares: with a negative one, sums cancel, and a
    result that is divided by their root is wrong by any factor after a single other rounding. ``float_error`` is the
    deviation that results in Float may have, as a share of the largest magnitude.
    """

    name: str
    kind: str
    sizes: Callable[[int], tuple[Shape, ...]]
    record: Callable[..., Any]
    torch: Callable[..., Any]
    dtypes: tuple[DataType, ...] = (B,)  # the last one applies to all further inputs
    below: tuple[tuple[int, int], ...] = ()
    squares: tuple[int, ...] = ()
    view: Callable[[Any], Any] | None = None
    table: bool = False  # the first input is a table, of which only some rows are read
    divisor: int = 1
    jax: Callable[..., Any] | None = None
    float_error: float = 1e-3
    total: bool = False  # the result is the sum of all elements
    bytes_each: int = 0  # for each element of the first input; 0 to count inputs and outputs
    bar: float = 0.0  # the required share of a device copy's rate

    def at(self, divisor: int) -> "Written":
        """Return the workload with a share of the elements."""
        return replace(self, divisor=divisor)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.sizes(self.divisor)

    def dtype(self, number: int) -> DataType:
        return self.dtypes[min(number, len(self.dtypes) - 1)]

    @property
    def scale(self) -> float:
        """The magnitude that results may be compared with even if all of theirs are smaller."""
        return math.sqrt(math.prod(self.shapes[0])) if self.total else 1e-30

    def specs(self) -> list[Any]:
        """Return abstract inputs; torch is needed for views only."""
        if self.view is None:
            return [fl.spec(shape, self.dtype(number)) for number, shape in enumerate(self.shapes)]
        import torch

        seen = [self.view(torch.empty(shape, device="meta")) for shape in self.shapes]
        return [fl.spec(t.shape, self.dtype(number), t.stride()) for number, t in enumerate(seen)]

    def inputs(self, device: str = "cpu") -> list[Any]:
        """Return torch tensors, the same in each call."""
        import torch

        torch.manual_seed(0)
        found = []
        for number, shape in enumerate(self.shapes):
            kind, limit = getattr(torch, _TORCH[self.dtype(number)]), dict(self.below).get(number)
            if limit is not None:
                tensor = torch.randint(limit, shape, device=device)
            elif self.dtype(number) is Q:
                tensor = torch.randint(-127, 128, shape, device=device)
            elif self.dtype(number) is Y:
                tensor = torch.rand(shape, device=device) < 0.5
            else:
                tensor = torch.randn(shape, device=device)
            tensor = tensor.square().to(kind) if number in self.squares else tensor.to(kind)
            found.append(tensor if self.view is None else self.view(tensor))
        return found

    def definition(self) -> FusionDefinition:
        """Return the fusion as a user writes it."""
        with FusionDefinition() as fd:
            tensors = [
                fd.define_tensor(shape=list(spec.shape), contiguity=self.view is None, dtype=spec.dtype)
                for spec in self.specs()
            ]
            for output in several(self.record(fd, *tensors)):
                fd.add_output(output)
        return fd

    def outputs(self) -> list[Any]:
        """Return memory for the results, filled with NaN if the dtype has it."""
        import torch

        found = []
        for tensor in self.results([t.to("meta") for t in self.inputs()]):
            out = torch.zeros(tensor.shape, dtype=tensor.dtype)
            found.append(out.fill_(torch.nan) if tensor.is_floating_point() else out)
        return found

    def reference(self, inputs: list[Any]) -> list[Any]:
        """Return the results by torch, op by op."""
        return self.results(inputs)

    def results(self, inputs: list[Any]) -> list[Any]:
        return several(self.torch(*inputs))

    @property
    def nbytes(self) -> int:
        if self.bytes_each:
            return self.bytes_each * math.prod(self.shapes[0])
        small = self.at(max(self.divisor, 16))
        inputs = [t.to("meta") for t in small.inputs()]
        written = sum(t.nbytes for t in small.results(inputs))
        read = [min(t.nbytes, t.untyped_storage().nbytes()) for t in inputs]
        if self.table:
            read[0] = min(read[0], inputs[1].numel() * inputs[0].nbytes // len(inputs[0]))
        return (written + sum(read)) * small.divisor // self.divisor


def several(result: Any) -> list[Any]:
    """Return the results of a function as a list."""
    return list(result) if isinstance(result, tuple | list) else [result]


def torch_library() -> Any:
    import torch

    return torch


def error(load: Written, outs: list[Any], expected: list[Any]) -> float:
    """Return the largest deviation as a share of the tolerance; infinite if an element or dtype is not as expected."""
    import torch

    # Relative to the largest magnitude: a few roundings of the output, and another order of summation. Results of eight
    # bits may be one step apart: on a GPU, torch divides by a number by multiplying by its reciprocal.
    allowed = {torch.float32: load.float_error, torch.int8: 1.01 / 127, torch.float8_e4m3fn: 1.01 / 14}
    worst = 0.0
    for out, other in zip(outs, expected, strict=True):
        a, b = out.double(), other.double()
        magnitude = max(float(b.abs().max()), load.scale)
        share = float((a - b).abs().max()) / magnitude / allowed.get(out.dtype, 1e-2)
        worst = max(worst, share if share == share and out.dtype == other.dtype else math.inf)
    return worst


# Pieces of definitions


def wide(fd: Any, *tensors: Any) -> tuple[Any, ...]:
    return tuple(fd.ops.cast(t, dtype=F) for t in tensors)


def narrow(fd: Any, tensor: Any) -> Any:
    return fd.ops.cast(tensor, dtype=B)


def at_rank(fd: Any, vector: Any, like: Any, axis: int) -> Any:
    """A vector along one axis of another tensor."""
    return fd.ops.broadcast_in_dim(vector, shape=like.shape(), broadcast_dims=[axis])


def dense(fd: Any, tensor: Any) -> Any:
    """A tensor stored in the order of its axes; passes may give an output the layout of the inputs."""
    return fd.ops.stride_order(tensor, list(range(tensor.ndim))[::-1])


# Sizes


def flat(*columns: int, rows: int = 16384) -> Callable[[int], tuple[Shape, ...]]:
    """Rows (fewer on a CPU) by columns, then vectors of columns."""
    return lambda d: tuple((rows // d, n) if number == 0 else (n,) for number, n in enumerate(columns))


def same(*shape: int, count: int = 1) -> Callable[[int], tuple[Shape, ...]]:
    return lambda d: ((shape[0] // d, *shape[1:]),) * count


def once(*shapes: Shape) -> Callable[[int], tuple[Shape, ...]]:
    return lambda d: shapes
