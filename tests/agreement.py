"""One definition computed in every available way, and the results compared.

The ways: the reference evaluation in the fusion's dtypes; the same in float64; the fusion cut into segments whose
kernels, for CPU and for CUDA, run in lock step in NumPy; compiled CPU kernels; and the definition that ``repr`` prints.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.codegen.kernel_eval import Lanes, evaluate_kernel
from fuser_lab.codegen.kernel_ir import dense_strides, layout_of
from fuser_lab.codegen.pipeline import GeneratedKernel, evaluated_because
from fuser_lab.definition.binding import bind
from fuser_lab.dtypes import DataType, from_numpy, number_of
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.passes import ExplicitSeeds
from fuser_lab.plan import Plan
from fuser_lab.runtime.arrays import describe, flat_view, storage_dtype
from fuser_lab.runtime.evaluate import apply_views, evaluate_segment, origins_of
from tests import kernels

TARGETS = ("cpu", "cuda")
STRATEGIES = ("bottom_up", "top_down", "unfused")
# A few roundings of the dtype; sums of some hundred elements included.
TOLERANCE = {
    "Double": 1e-11, "ComplexDouble": 1e-11, "Float": 2e-5, "ComplexFloat": 2e-5, "Half": 8e-3, "BFloat16": 5e-2,
    "Float8_e4m3fn": 0.2, "Float8_e5m2": 0.4, "Float8_e8m0fnu": 1.0,
}


class Disagreement(AssertionError):  # noqa: N818 - reads as the finding that it is
    """Two ways of computing one definition that give different results."""


def bound(fd: FusionDefinition, inputs: Sequence[Any]) -> Fusion:
    """The fusion with the sizes of these inputs; seeds that a run would draw are inputs."""
    return ExplicitSeeds().run(bind(fd.fusion, [describe(x) for x in inputs]).fusion)


def seeded(fusion: Fusion, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, followed by some seed and offsets if the fusion has such inputs."""
    return [*inputs, *range(11, 11 + len(fusion.inputs) - len(inputs))]


def tolerance_of(fusion: Fusion) -> float:
    """The tolerance of the coarsest dtype that any value of the fusion has."""
    seen = {tv.dtype.name for tv in fusion.tensors.values()}
    return max((TOLERANCE.get(name, 0.0) for name in seen), default=0.0)


def close(got: Any, wanted: Any, tolerance: float, what: str, *, dtype: bool = True) -> None:
    """Raise Disagreement unless two arrays are equal up to a tolerance, relative to the largest wanted magnitude."""
    array = np.asarray(wanted)
    size = np.ones(1) if array.dtype.kind in "biu" else np.abs(array.astype(np.complex128))
    scale = max(float(size[np.isfinite(size)].max(initial=0.0)), 1e-3)
    near(got, wanted, tolerance * scale, what, dtype=dtype)


def near(got: Any, wanted: Any, allowed: float, what: str, *, dtype: bool = True) -> None:
    """Raise Disagreement unless two arrays differ by at most ``allowed`` in every element.

    Integers and booleans must be equal; infinities and NaN must be in the same places.
    """
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape:
        raise Disagreement(f"{what}: shape {got.shape}, wanted {wanted.shape}")
    if dtype and got.dtype != wanted.dtype:
        raise Disagreement(f"{what}: dtype {got.dtype}, wanted {wanted.dtype}")
    if got.dtype.kind in "biu" and wanted.dtype.kind in "biu":
        if not np.array_equal(got, wanted):
            raise Disagreement(f"{what}: {_first(got, wanted, got != wanted)}")
        return
    wide = np.complex128 if "c" in {got.dtype.kind, wanted.dtype.kind} else np.float64
    with np.errstate(all="ignore"):
        a, b = got.astype(wide), wanted.astype(wide)
        same = np.isclose(a, b, rtol=0, atol=allowed, equal_nan=True)
    if not same.all():
        raise Disagreement(f"{what}: {_first(a, b, ~same)}")


def _first(got: np.ndarray, wanted: np.ndarray, differs: np.ndarray) -> str:
    where = tuple(int(i) for i in np.argwhere(differs)[0])
    return f"{got[where]!r} at {list(where)}, wanted {wanted[where]!r} ({int(differs.sum())} of {differs.size} differ)"


def visible(fusion: Fusion, results: Sequence[Any]) -> list[Any]:
    """The results that a user sees: the outputs that are not hidden."""
    return [x for tv, x in zip(fusion.outputs, results, strict=True) if tv not in fusion.hidden]


def element_strides(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


Strides = Mapping[str, tuple[int, ...]]


def kernel_of(part: Any, strides: Strides, target: str) -> GeneratedKernel:
    """The kernel of a segment for inputs of these strides, on the plan's device."""
    return kernels.kernel_of(part, target, strides)


def lock_step(
    plan: Plan, inputs: Sequence[Any], target: str,
    kernel: Callable[[Any, Strides, str], GeneratedKernel] = kernel_of,
    threads: Callable[[Any], Callable[..., Lanes] | None] = lambda _: None,
) -> list[np.ndarray]:
    """The outputs of a plan whose kernels for a target NumPy runs; each output element must be written exactly once.

    All elements of an expanded axis are one element of memory, which may be written once per element. ``kernel``
    returns the kernel of a segment for strides of its inputs and a target, ``threads`` what runs its phases.
    """
    fusion = plan.fusion
    known: dict[str, Any] = dict(zip((v.name for v in fusion.inputs), seeded(fusion, inputs), strict=True))
    given = {v.name: element_strides(known[v.name]) for v in fusion.tensor_inputs}
    for part in plan.segments:
        if part.scheduler is None:
            raise Disagreement(f"no scheduler accepts segment {part.index}: {part!r}")
        if evaluated_because(part.fusion, part.scheduler):
            results = evaluate_segment(part.fusion, {v.name: known[v.name] for v in part.fusion.inputs})
            for tv in part.fusion.outputs:
                known[tv.name] = dense(results[tv.name], tv)
                near(known[tv.name], results[tv.name], 0.0, f"{tv.name} as it is stored")
        else:
            strides = {n: s for n, s in given.items() if n in part.fusion.tensors}
            _run_kernel(part, known, strides, target, kernel(part, strides, target), threads(part))
    # An input that is both overwritten and returned is returned with its new values.
    written = {target: source for source, target in fusion.aliases}
    return [np.asarray(known[written.get(tv, tv).name]) for tv in fusion.outputs]


def _run_kernel(
    part: Any, known: dict[str, Any], strides: Strides, target: str, made: GeneratedKernel,
    threads: Callable[..., Lanes] | None,
) -> None:
    fusion, kernel = part.fusion, made.kernel_ir
    memory: dict[str, Any] = {}
    for value in fusion.inputs:
        if isinstance(value, TensorView):
            array = known[value.name]
            here = strides.get(value.name)
            if here is None:
                array, here = dense(array, value), dense_strides(value)
            layout = layout_of(value, here)
            memory[value.name] = flat_view(array, value.dtype, layout.size, layout.offset)
        else:
            memory[value.name] = number_of(known[value.name], value.dtype).astype(value.dtype.compute.numpy)
    computed = [tv for tv in dict.fromkeys(fusion.outputs) if tv not in fusion.inputs]
    for tv in computed:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory, threads).writes
    for tv in computed:
        expanded = any(axis.expanded is not None for axis in tv.domain.axes)
        if not (writes[tv.name] >= 1 if expanded else writes[tv.name] == 1).all():
            raise Disagreement(f"{target} kernel of segment {part.index} writes {tv.name} {writes[tv.name]} times")
        known[tv.name] = logical(memory[tv.name], tv)


def logical(flat: np.ndarray, tensor: TensorView) -> np.ndarray:
    """Dense memory as an array of a tensor's shape and dtype."""
    if not flat.size:
        return np.empty(tensor.shape, tensor.dtype.numpy)
    steps = [s * tensor.dtype.itemsize for s in dense_strides(tensor)]
    return np.ndarray(tensor.shape, tensor.dtype.numpy, buffer=flat, strides=steps)


def dense(array: Any, tensor: TensorView) -> np.ndarray:
    """An array of the library as the memory of an intermediate: dense in its allocation order."""
    array = np.asarray(array)
    layout = layout_of(tensor)
    target = logical(np.empty(layout.size, tensor.dtype.numpy), tensor)
    if target.size:
        kept = tuple(slice(0, 1) if s == 0 and n > 1 else slice(None) for n, s in
                     zip(tensor.shape, dense_strides(tensor), strict=True))
        target[kept] = array[kept]
    return target


def again(fd: FusionDefinition) -> FusionDefinition:
    """The definition that executing ``repr(fd)`` records."""
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as second:
        names["nvfuser_fusion"](second)
    return second


def check_same(fd: FusionDefinition) -> FusionDefinition:
    """The printed definition is the same fusion, with the same results and layouts; returns it."""
    second = again(fd)
    if second.fusion != fd.fusion:
        raise Disagreement(f"the printed definition is a different fusion:\n{fd!r}\nrecorded again:\n{second!r}")
    return second


def check_text(fd: FusionDefinition, inputs: Sequence[Any]) -> None:
    """The printed definition is the same fusion and gives the same values and strides."""
    second = check_same(fd)
    if repr(second) != repr(again(second)):
        raise Disagreement(f"printing is not stable:\n{second!r}")
    first, other = bound(fd, inputs), bound(second, inputs)
    for a, b in zip(first.outputs, other.outputs, strict=True):
        if dense_strides(a) != dense_strides(b) or a.dtype is not b.dtype:
            raise Disagreement(f"the printed definition gives {b} instead of {a}")
    for a, b in zip(evaluate(first, seeded(first, inputs)), evaluate(other, seeded(other, inputs)), strict=True):
        if not np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind not in "biu"):
            raise Disagreement(f"the printed definition gives other values:\n{fd!r}")


def check_reference(fusion: Fusion, inputs: Sequence[Any], tolerance: float) -> list[np.ndarray]:
    """The reference in the fusion's dtypes agrees with float64; returns all outputs in the fusion's dtypes."""
    inputs = seeded(fusion, inputs)
    narrow, wide = evaluate(fusion, inputs), evaluate(fusion, inputs, exact=False)
    for tv, a, b in zip(fusion.outputs, narrow, wide, strict=True):
        if from_numpy(a.dtype) not in {tv.dtype, DataType.Int if tv.dtype is DataType.Index else tv.dtype}:
            raise Disagreement(f"{tv} has dtype {a.dtype} in the reference evaluation")
        close(a, b, tolerance, f"{tv.name}, reference against float64", dtype=False)
    return list(narrow)


def check_kernels(
    fd: FusionDefinition, inputs: Sequence[Any], wanted: Sequence[np.ndarray], tolerance: float,
    strategy: str = "bottom_up", targets: Sequence[str] = TARGETS,
) -> None:
    """Segmented kernels, run in lock step, agree with the reference."""
    plan = segment(fd, list(inputs), strategy=strategy)
    for target in targets:
        for tv, a, b in zip(plan.fusion.outputs, lock_step(plan, inputs, target), wanted, strict=True):
            close(a, b, tolerance, f"{tv.name}, {target} kernels of {strategy}")


def check_compiled(fd: FusionDefinition, inputs: Sequence[Any], wanted: Sequence[np.ndarray], near_enough: Any) -> None:
    """Compiled CPU kernels agree with the reference: values by ``near_enough(position, got)``, strides, aliases.

    Results that are views of inputs have the views' strides and are in the memory of the given arrays.
    """
    plan = fd.plan_for(list(inputs))
    fusion = plan.fusion
    given = [x.copy() if isinstance(x, np.ndarray) and fusion.aliases else x for x in inputs]
    known = seeded(fusion, given)
    scalars = {v.name: x for v, x in zip(fusion.inputs, known, strict=True) if not isinstance(v, TensorView)}
    origins = origins_of(fusion)
    got = iter(plan.run(known))
    for position, (tv, defined) in enumerate(zip(fusion.outputs, bound(fd, inputs).outputs, strict=True)):
        # Passes choose the layout of what the definition leaves open, and nothing else.
        if tv.stored_shape != defined.stored_shape:
            raise Disagreement(f"{tv.name}: {tv} has other axes in memory than {defined}")
        if defined.domain.allocation is not None and dense_strides(tv) != dense_strides(defined):
            raise Disagreement(f"{tv.name}: strides {dense_strides(tv)}, defined as {dense_strides(defined)}")
        if tv in fusion.hidden:
            continue
        a = next(got)
        near_enough(position, a)
        sized = [i for i, n in enumerate(a.shape) if n > 1 and a.size]
        strides, origin = dense_strides(tv), origins.get(tv)
        if origin is not None and not origin.overwritten:
            view = apply_views(given[origin.number], origin.exprs, scalars)
            strides = element_strides(view)
            if a.size and np.shares_memory(view, given[origin.number]) and view.ctypes.data != a.ctypes.data:
                raise Disagreement(f"{tv.name} is a copy of data in input {origin.number}")
        if [element_strides(a)[i] for i in sized] != [strides[i] for i in sized]:
            raise Disagreement(f"{tv.name}: strides {element_strides(a)}, wanted {strides}")
    for output, target in fusion.aliases:
        near_enough(fusion.outputs.index(output), given[fusion.inputs.index(target)])
