"""How processor time grows with the number of ops: ``python -m tests.benchmarks.sizes [--ops N] [--only PATTERN]``.

Each family of fusions is built at N and at 2N ops. The last column is the ratio of the two times: about 2 is linear.
``--work`` names what is measured: segmentation as nvFuser does, the same without trying the whole fusion first
(``pairs``), the search for the fastest plan, the first result on the CPU, the PTX of all CUDA kernels, the picture of
the explorer, and the report. No GPU is needed.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.report.view_model import view_plan
from tests.benchmarks.chains import arithmetic, mixed, processor_seconds
from tests.benchmarks.segmentation import PIECEMEAL, additions

SHAPE = [32, 64]
Body = Callable[[FusionDefinition, Any, int], None]

FAMILIES: dict[str, Callable[[int], FusionDefinition]] = {"additions": additions}


def family(body: Body) -> Body:
    """Add a family: ``body(fd, x, ops)`` defines about that many ops of the input ``x``."""

    def make(ops: int) -> FusionDefinition:
        with FusionDefinition() as fd:
            body(fd, fd.define_tensor(SHAPE, contiguity=True), ops)
        return fd

    FAMILIES[body.__name__.replace("_", " ")] = make
    return body


def _wide(fd: FusionDefinition, value: Any) -> Any:
    """Return a result with one number for each row, on the columns again."""
    return fd.ops.broadcast_in_dim(value, SHAPE, [0])


def _softmax(fd: FusionDefinition, x: Any) -> Any:
    """Return a softmax of rows as six ops."""
    e = fd.ops.exp(fd.ops.sub(x, _wide(fd, fd.ops.max(x, [1]))))
    return fd.ops.div(e, _wide(fd, fd.ops.sum(e, [1])))


def _chain(fd: FusionDefinition, x: Any, ops: int, step: Callable[..., Any]) -> None:
    """Add a chain of ops; each is made of the value before, ``x`` and a second input."""
    y, z = fd.define_tensor(SHAPE, contiguity=True), x
    for number in range(ops):
        z = step(fd.ops, number, z, x, y)
    fd.add_output(z)


@family
def arithmetic_chain(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of three kinds of arithmetic."""
    _chain(fd, x, ops, arithmetic)


@family
def mixed_ops(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of arithmetic, functions, and choices."""
    _chain(fd, x, ops, mixed)


@family
def output_at_each_op(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of which each value is an output."""
    for number in range(ops):
        x = (fd.ops.sin, fd.ops.neg)[number % 2](x)
        fd.add_output(x)


@family
def sums_of_two_kinds_along_a_chain(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of which the sum of rows or of columns of each value is an output."""
    for number in range(ops // 2):
        x = fd.ops.sin(x)
        fd.add_output(fd.ops.sum(x, [number % 2]))


@family
def sums_along_a_chain(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of which the sum of each value is an output."""
    for _ in range(ops // 2):
        x = fd.ops.sin(x)
        fd.add_output(fd.ops.sum(x, [1]))


@family
def persistent_chain(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A softmax of a softmax, and so on."""
    for _ in range(ops // 6):
        x = _softmax(fd, x)
    fd.add_output(x)


@family
def softmaxes_with_outputs(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of softmaxes, each an output."""
    for _ in range(ops // 6):
        x = _softmax(fd, x)
        fd.add_output(x)


@family
def softmaxes_beside_each_other(fd: FusionDefinition, x: Any, ops: int) -> None:
    """Softmaxes of multiples of one input."""
    for number in range(ops // 7):
        fd.add_output(_softmax(fd, fd.ops.mul(x, number + 2.0)))


@family
def alternating_outputs(fd: FusionDefinition, x: Any, ops: int) -> None:
    """Sums of rows and of columns of one tensor."""
    x = fd.ops.sin(x)
    for number in range(ops // 3):
        fd.add_output(fd.ops.sin(fd.ops.sum(fd.ops.mul(x, number + 2.0), [number % 2])))


@family
def many_inputs(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A sum of inputs."""
    for _ in range(ops):
        x = fd.ops.add(x, fd.define_tensor(SHAPE, contiguity=True))
    fd.add_output(x)


@family
def fan_out(fd: FusionDefinition, x: Any, ops: int) -> None:
    """Pointwise outputs of one computed tensor."""
    x = fd.ops.sin(x)
    for number in range(ops):
        fd.add_output(fd.ops.mul(x, number + 2.0))


@family
def fan_in(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A binary tree of sums of multiples of one input."""
    values = [fd.ops.mul(x, number + 2.0) for number in range(max(ops // 2, 1))]
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [*(fd.ops.add(a, b) for a, b in pairs), *(values[-1:] if len(values) % 2 else ())]
    fd.add_output(values[0])


@family
def broadcasts(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain that a row and a column, both computed, are broadcast into."""
    row, column = (fd.define_tensor([n], contiguity=True) for n in (SHAPE[1], SHAPE[0]))
    for number in range(ops // 3):
        operand, axis = ((column, 0), (row, 1))[number % 2]
        x = fd.ops.add(x, fd.ops.broadcast_in_dim(fd.ops.mul(operand, number + 2.0), SHAPE, [axis]))
    fd.add_output(x)


@family
def reductions_beside_each_other(fd: FusionDefinition, x: Any, ops: int) -> None:
    """Sums of rows of multiples of one input."""
    for number in range(ops // 2):
        fd.add_output(fd.ops.sum(fd.ops.mul(x, number + 2.0), [1]))


@family
def casts(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of which each sum is in Float between BFloat16 values, some of them outputs."""
    x = fd.ops.cast(x, fl.DataType.BFloat16)
    for number in range(ops // 3):
        wide = fd.ops.cast(x, fl.DataType.Float)
        x = fd.ops.cast(fd.ops.add(wide, 1.0), fl.DataType.BFloat16)
        if number % 8 == 7:
            fd.add_output(x)
    fd.add_output(x)


@family
def look_ups(fd: FusionDefinition, x: Any, ops: int) -> None:
    """Look-ups of rows in a chain."""
    for _ in range(ops // 2):
        x = fd.ops.sin(fd.ops.index_select(x, fd.define_tensor([SHAPE[0]], contiguity=True, dtype=fl.DataType.Int), 0))
    fd.add_output(x)


@family
def scatters(fd: FusionDefinition, x: Any, ops: int) -> None:
    """Scatters into a chain."""
    index = fd.define_tensor(SHAPE, contiguity=True, dtype=fl.DataType.Int)
    for _ in range(ops // 2):
        x = fd.ops.sin(fd.ops.scatter(x, index, x, 1))
    fd.add_output(x)


@family
def diamonds(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain that parts in two and joins again."""
    for _ in range(ops // 3):
        x = fd.ops.add(fd.ops.sin(x), fd.ops.cos(x))
    fd.add_output(x)


@family
def disconnected(fd: FusionDefinition, x: Any, ops: int) -> None:
    """Parts that share nothing."""
    fd.add_output(fd.ops.sin(x))
    for _ in range(ops // 3):
        other = fd.ops.sin(fd.define_tensor(SHAPE, contiguity=True))
        fd.add_output(fd.ops.add(other, _wide(fd, fd.ops.sum(other, [1]))))


@family
def rows_then_columns(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of sums of rows and columns that are broadcast and subtracted."""
    for number in range(ops // 3):
        axis = number % 2
        x = fd.ops.sub(x, fd.ops.broadcast_in_dim(fd.ops.sum(x, [axis]), SHAPE, [1 - axis]))
    fd.add_output(x)


@family
def transposes(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of sines of transposes, every fourth an output."""
    for number in range(ops // 2):
        x = fd.ops.sin(fd.ops.permute(x, [1, 0]))
        if number % 4 == 3:
            fd.add_output(x)
    fd.add_output(x)


@family
def reshapes(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of sines of reshapes."""
    for number in range(ops // 2):
        x = fd.ops.sin(fd.ops.reshape(x, [[64, 32], [32, 64]][number % 2]))
    fd.add_output(x)


@family
def slices_and_a_cat(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A concatenation of functions of slices."""
    parts = [fd.ops.sin(fd.ops.slice(x, [0, n % 32], [32, n % 32 + 2])) for n in range(ops // 4)]
    fd.add_output(fd.ops.cat(parts, 1))


@family
def products(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of matrix products with a function after each."""
    weight = fd.define_tensor([SHAPE[1], SHAPE[1]], contiguity=True)
    for _ in range(ops // 2):
        x = fd.ops.relu(fd.ops.matmul(x, weight))
    fd.add_output(x)


@family
def barriers(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of functions of ``segment_set``."""
    for _ in range(ops // 2):
        x = fd.ops.sin(fd.ops.segment_set(x))
    fd.add_output(x)


@family
def skip_connections(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of norms, the results of which are all added at the end."""
    every = []
    for _ in range(ops // 7):
        x = _softmax(fd, x)
        every.append(x)
    for value in reversed(every[:-1]):
        x = fd.ops.add(x, value)
    fd.add_output(x)


@family
def scans(fd: FusionDefinition, x: Any, ops: int) -> None:
    """A chain of cumulative sums."""
    for _ in range(ops // 2):
        x = fd.ops.cumsum(fd.ops.sin(x), 1)
    fd.add_output(x)


def arguments_of(plan: fl.Plan) -> list[Any]:
    """Return small arrays of ones for the inputs of a plan; of zeros for indices."""
    made = []
    for tensor in plan.fusion.tensor_inputs:
        like = np.zeros if tensor.dtype is fl.DataType.Int else np.ones
        made.append(like([axis.visible_extent for axis in tensor.domain.logical], tensor.dtype.numpy))
    return made


def cpu(plan: fl.Plan) -> None:
    """Compile a plan for the CPU and run it once."""
    inputs = arguments_of(plan)
    plan.prepare("cpu").run(inputs)


def cuda(plan: fl.Plan) -> None:
    """Compile the CUDA kernels of a plan to PTX."""
    for segment in plan.segments:
        segment.launches()


def picture(plan: fl.Plan) -> None:
    """Draw what the explorer shows first."""
    from fuser_lab_widgets.scenes import Pieces, first_detail, scene

    view = view_plan(plan)
    scene(view, Pieces(), detail=first_detail(view))


def report(plan: fl.Plan) -> None:
    """Write the report."""
    with tempfile.TemporaryDirectory() as place:
        fl.report(plan, Path(place) / "report.html")


OF_PLANS: dict[str, Callable[[fl.Plan], object]] = {"cpu": cpu, "cuda": cuda, "picture": picture, "report": report}
OF_FUSIONS: dict[str, Callable[[FusionDefinition], object]] = {
    "segment": fl.segment,
    "pairs": partial(fl.segment, options=PIECEMEAL),
    "fastest": partial(fl.segment, strategy="fastest"),
}


def seconds(make: Callable[[int], FusionDefinition], ops: int, work: str) -> float:
    """Return the processor seconds of some work on a fusion, without those of making its definition or plan."""
    fd = make(ops)
    if work in OF_PLANS:
        plan = fl.segment(fd)
        begin = processor_seconds()
        OF_PLANS[work](plan)
        return processor_seconds() - begin
    begin = time.process_time()
    OF_FUSIONS[work](fd)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sizes")
    parser.add_argument("--ops", type=int, default=400, help="N; the other size is 2N")
    parser.add_argument("--only", default="*", help="families, as a pattern with wildcards")
    every = ",".join((*OF_FUSIONS, *OF_PLANS))
    parser.add_argument("--work", default="segment,picture", help=f"some of {every}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["FUSER_LAB_CACHE"] = place
        print(f"| family | work | {options.ops} ops, s | {2 * options.ops} ops, s | ratio |\n|---|---|---|---|---|")
        for work in options.work.split(","):
            for name, make in FAMILIES.items():
                if fnmatch(name, options.only):
                    seconds(make, 16, work)
                    few, many = (seconds(make, count, work) for count in (options.ops, 2 * options.ops))
                    print(f"| {name} | {work} | {few:.2f} | {many:.2f} | {many / few:.1f} |", flush=True)


if __name__ == "__main__":
    main()
