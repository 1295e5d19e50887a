"""One small run of every kind of kernel: the computation, its scheduler and its arrays.

Each run is repeated into arrays with other contents, and both runs must have the same bits, but for additions at
positions, whose order varies, and the reference's values. On a GPU, `test_kinds.py` runs them, and `sanitize.py` under
NVIDIA's compute-sanitizer; on the CPU the same code runs, so that it is tested where there is no GPU.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from backend.fusions import CASES, D, S, build, close, numbers
from backend.lookups import LOOKUPS, Lookup
from backend.reductions import BACKWARD, COLUMNS, PATTERNS, ROWS, add_norm, backward, softmax, totals
from hand_schedules import CASES as BY_HAND
from hand_schedules import TOLERANCE, arrays, bound
from needs import needs

import fuser_lab as fl
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.dtypes import DataType
from fuser_lab.errors import EvaluationWarning, InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.passes import offsets_of
from fuser_lab.runtime.arrays import from_numpy_as, to_numpy
from fuser_lab.runtime.gpu.this_gpu import this_gpu
from fuser_lab.runtime.plan.generator import reference_form
from fuser_lab.schedule.parameter_values import Values
from fuser_lab.schedule.parameters import LoopChange
from fuser_lab.schedule.suggestions import suggestions
from tests.kernels import generate, prepare

STRATEGIES = ("bottom_up", "top_down", "saving", "unfused")
_DTYPES = (D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.UInt64, D.Bool, D.ComplexFloat, D.ComplexDouble)
# Enough that each thread has several loads in flight, even on a GPU with 132 multiprocessors.
_MANY_LOOKUPS = (
    Lookup(name="many rows of a small table", record=lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 0)),
           table=(64, 64), index=(70_001,), size=64),
    Lookup(name="many elements", record=lambda fd, x, i: fd.ops.mul(fd.ops.gather(x, i, 1), 2.0),
           table=(34_000, 64), index=(34_000, 64), size=64),
)
_EACH = 4  # parameters set by hand that are tried per kernel


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A run of one kind of kernel; ``run(target)`` raises if results are wrong or two runs differ."""

    name: str
    group: str
    run: Callable[[str], None]


def kinds() -> Iterator[Kind]:
    """Yield every kind that is checked."""
    yield from _examples()
    for case in CASES:
        yield _segment("segments", case.name, case.fusion, case.scheduler, case.inputs)
    for lookup in (*LOOKUPS, *_MANY_LOOKUPS):
        yield _segment("lookups", lookup.name, lookup.fusion, lookup.scheduler, lookup.inputs)
    yield from _elements()
    yield from _reductions()
    yield from _views()
    yield from _parameters()
    yield from _clusters()
    for case in BY_HAND:
        for number, shapes in enumerate(case.shapes):
            yield Kind(group="by hand", name=f"{case.name} {number}", run=_by_hand(case, shapes))
    for name in ("uniform", "normal"):
        yield Kind(group="random", name=name, run=_random(name))
    for name, shape in (("one block", (31, 4, 300)), ("tables", (31, 4, 70_001)), ("global memory", (5000, 64, 1000))):
        yield Kind(group="additions", name=f"additions in {name}", run=_additions(*shape))
    yield Kind(group="graphs", name="six segments", run=_captured)
    for name in sorted({**OPS, **COMPOSITES}):
        yield Kind(group="ops", name=name, run=_sample(name))


def _examples() -> Iterator[Kind]:
    for name in fl.examples.names():
        for strategy in STRATEGIES:
            def run(target: str, name: str = name, strategy: str = strategy) -> None:
                fd, given = fl.example(name)
                outputs = twice(fl.segment(fd, given, strategy=strategy).prepare(target), placed(given, target))
                assert fl.examples.get(name).max_error(given, outputs) < 1

            yield Kind(group="examples", name=f"{name}, {strategy}", run=run)


def _elements() -> Iterator[Kind]:
    def mixed(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.where(fd.ops.cast(y, D.Bool), x, y), fd.ops.cat([x, y], 1), fd.ops.slice(x, [1, 2], [30, 60])

    def turned(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.where(fd.ops.cast(y, D.Bool), fd.ops.permute(x, [1, 0]), y)

    for dtype in _DTYPES:
        for group, record, shapes, scheduler in (
            ("elements", mixed, [(33, 65), (33, 65)], S.RESIZE),
            ("transposes", turned, [(130, 65), (65, 130)], S.TRANSPOSE),
        ):
            yield _recorded(group, record, shapes, dtype, scheduler)


def _reductions() -> Iterator[Kind]:
    for name, record, shape in PATTERNS:
        for dtype in _DTYPES:
            yield _recorded("sums", record, [shape], dtype, S.REDUCTION, name)
    for shape in ROWS:
        for dtype in (D.BFloat16, D.Float):
            yield _recorded("rows", softmax, [shape], dtype, S.INNER_PERSISTENT, "softmax")
            yield _recorded("rows", totals(1), [shape], dtype, S.REDUCTION, "sums")
    for shape in ((3, 1), (130, 6), (3, 700), (2, 9000), (2, 40_000)):
        for dtype in (D.BFloat16, D.Double):
            yield _recorded("rows", add_norm, [shape, shape, shape[1:]], dtype, S.INNER_PERSISTENT, "norm")
    for shape in COLUMNS:
        record = totals(0) if shape[0] else lambda fd, x: fd.ops.sum(x, [0])
        for dtype in (D.BFloat16, D.Float):
            yield _recorded("columns", record, [shape], dtype, S.REDUCTION)
    for size in (64, 83, 700):
        for dtype in (D.BFloat16, D.Float):
            yield _recorded("tiles", _both_ways, [(size, size), (size, size)], dtype, S.REDUCTION)
    for shape in BACKWARD:
        shapes = [shape, shape, shape[1:], (shape[0], 1)]
        for dtype in (D.BFloat16, D.Float):
            yield _recorded("backward", backward, shapes, dtype, S.INNER_OUTER_PERSISTENT)


def _both_ways(fd: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The largest difference between a matrix and its transpose in each row, and a sum of products with another."""
    turned = fd.ops.permute(fd.ops.cast(x, D.Float), [1, 0])
    return fd.ops.max(fd.ops.sub(x, turned), [1]), fd.ops.sum(fd.ops.mul(turned, fd.ops.sub(y, x)), [1])


def _views() -> Iterator[Kind]:
    """Yield kernels of inputs that start at odd addresses, have gaps, are expanded, or are reversed."""
    shape = (24, 40)
    for name, view in {
        "begins at an odd address": lambda flat: flat[1 : 1 + 24 * 40].reshape(24, 40),
        "has gaps": lambda flat: flat[: 24 * 80].reshape(24, 80)[:, ::2],
        "rows of odd length": lambda flat: flat[: 24 * 43].reshape(24, 43)[:, 1:41],
        "repeats a row": lambda flat: _repeated(flat[:40].reshape(1, 40), shape),
        "repeats a column": lambda flat: _repeated(flat[:24].reshape(24, 1), shape),
        "lies the other way round": lambda flat: flat[: 24 * 40].reshape(40, 24).T,
    }.items():
        for word, record, scheduler in (
            ("elements", lambda fd, x: fd.ops.exp(x), S.POINTWISE),
            ("row sums", totals(1), S.REDUCTION), ("column sums", totals(0), S.REDUCTION),
            ("softmax", softmax, S.INNER_PERSISTENT),
        ):
            for dtype in (D.Float, D.Half):
                def run(
                    target: str, view: Any = view, record: Any = record, scheduler: S = scheduler, dtype: D = dtype,
                ) -> None:
                    x = numbers((24 * 80,), dtype)
                    fusion = build(record, [shape], dtype)
                    plan = prepare(fusion, [(fusion, scheduler)], target, allow_fallback=False)
                    _compare(fusion, [np.array(view(x))], twice(plan, [view(*placed([x], target))]))

                yield Kind(group="views", name=f"{word} of {dtype.name} that {name}", run=run)


def _parameters() -> Iterator[Kind]:
    """Yield kernels with parameters set by hand: the forms that heuristics do not choose for small inputs."""
    for name, record, shapes, dtype, scheduler in (
        ("elements", lambda fd, x, b: fd.ops.add(x, b), [(64, 96), (96,)], D.Float, S.POINTWISE),
        ("turned", lambda fd, x: fd.ops.neg(fd.ops.permute(x, [1, 0])), [(70, 96)], D.Float, S.TRANSPOSE),
        ("softmax", softmax, [(5, 4096)], D.BFloat16, S.INNER_PERSISTENT),
        ("softmax of long rows", softmax, [(3, 33_000)], D.Float, S.INNER_PERSISTENT),
        ("softmax of odd rows", softmax, [(5, 4099)], D.BFloat16, S.INNER_PERSISTENT),
        ("sums of odd rows", totals(1), [(300, 2051)], D.Float, S.REDUCTION),
        ("row sums", totals(1), [(2, 9000)], D.Float, S.REDUCTION),
        ("column sums", totals(0), [(257, 96)], D.BFloat16, S.REDUCTION),
        ("backward", backward, [(37, 1024), (37, 1024), (1024,), (37, 1)], D.BFloat16, S.INNER_OUTER_PERSISTENT),
    ):
        fusion = build(record, shapes, dtype)
        for nest in generate(fusion, scheduler, "cuda").kernel_ir.nests[:1]:
            options = suggestions(nest)
            for values in options[:: max(len(options) // _EACH, 1)]:
                yield _changed("parameters", name, fusion, scheduler, values)


def _changed(group: str, name: str, fusion: Fusion, scheduler: S, values: Values) -> Kind:
    """A kernel with some parameters of its first nest set by hand."""
    change = LoopChange(target="cuda", nest=0, values=values)
    inputs = [numbers(tv.shape, tv.dtype, n) for n, tv in enumerate(fusion.tensor_inputs)]

    def run(target: str) -> None:
        plan = prepare(fusion, [(fusion, scheduler)], target, allow_fallback=False, changes={0: (change,)})
        _compare(fusion, inputs, twice(plan, placed(inputs, target)))

    said = ", ".join(f"{key}={value}" for key, value in values)
    return Kind(group=group, name=f"{name}: {said}", run=run)


def _clusters() -> Iterator[Kind]:
    """Yield kernels in which the blocks of a cluster share rows and columns, if the device has clusters."""
    rows = (
        ("softmax", softmax, [(5, 4096)], D.BFloat16), ("softmax of odd rows", softmax, [(3, 20_001)], D.Float),
        ("norm", add_norm, [(3, 9000), (3, 9000), (9000,)], D.Half), ("row sums", totals(1), [(2, 9000)], D.Double),
    )
    for cluster in (n for n in (2, 4, 8, 16) if n <= _device().largest_cluster):
        for name, record, shapes, dtype in rows:
            scheduler = S.REDUCTION if record is not softmax and len(shapes) == 1 else S.INNER_PERSISTENT
            yield _changed("clusters", name, build(record, shapes, dtype), scheduler, (("cluster", cluster),))
    for shape in ((300, 70_000), (1024, 17_000)):
        columns = build(_column_softmax, [shape], D.BFloat16)
        for cluster in (n for n in (2, 8) if n <= _device().max_cluster):
            yield _changed("clusters", f"columns of {shape[0]}", columns, S.OUTER_PERSISTENT, (("cluster", cluster),))


def _device() -> Device:
    """The GPU of this machine, or the default GPU that kernels are generated for if there is none."""
    try:
        return this_gpu()
    except InputError:
        return DEFAULT


def _column_softmax(fd: Any, x: Any) -> Any:
    f = fd.ops.cast(x, D.Float)
    e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [0], keepdim=True)))
    return fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [0], keepdim=True)), x.dtype)


def _recorded(
    group: str, record: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: DataType, scheduler: S,
    name: str = "",
) -> Kind:
    said = f"{name or group} of {dtype.name} {' '.join(map(str, shapes[:1]))}"
    return _segment(
        group, said, lambda: build(record, shapes, dtype), scheduler,
        lambda: [numbers(shape, dtype, n) for n, shape in enumerate(shapes)],
    )


def _segment(
    group: str, name: str, fusion_of: Callable[[], Fusion], scheduler: S, inputs_of: Callable[[], list[np.ndarray]],
) -> Kind:
    def run(target: str) -> None:
        fusion, inputs = fusion_of(), inputs_of()
        plan = prepare(fusion, [(fusion, scheduler)], target, allow_fallback=False)
        _compare(fusion, inputs, twice(plan, placed(inputs, target)))

    return Kind(group=group, name=name, run=run)


def _by_hand(case: Any, shapes: tuple[tuple[int, ...], ...]) -> Callable[[str], None]:
    def run(target: str) -> None:
        fd, inputs = case.build(), arrays(shapes, case.dtype)
        given = placed(inputs, target)
        first, second = ([to_numpy(x) for x in fd.manual_execute(given)] for _ in range(2))
        for a, b, wanted in zip(first, second, evaluate(bound(fd, inputs), inputs, exact=False), strict=True):
            assert a.tobytes() == b.tobytes(), "two runs differ"
            allowed = TOLERANCE[case.dtype] * max(float(np.abs(wanted).max(initial=0.0)), 1.0)
            np.testing.assert_allclose(a.astype(np.float64), wanted, rtol=0, atol=allowed)

    return run


def _random(name: str) -> Callable[[str], None]:
    def run(target: str) -> None:
        with fl.FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], contiguity=True)
            seeds = {"rng_seed": fd.define_scalar(None, D.Int), "rng_offset": fd.define_scalar(None, D.Int)}
            drawn = getattr(fd.ops, name)(0.5, 2.0, [33, 65], dtype=D.Float, **seeds)
            fd.add_output(fd.ops.add(x, drawn))
        inputs = [np.zeros((33, 65), np.float32), 7, 8]
        plan = fl.segment(fd, inputs)
        got = twice(plan.prepare(target), placed(inputs, target))
        _compare(plan.fusion, inputs, got, factor=10)

    return run


def _additions(rows: int, columns: int, count: int) -> Callable[[str], None]:
    def run(target: str) -> None:
        torch = needs("torch")
        importlib.import_module("fuser_lab.torch")
        values = torch.randint(0, rows, (count,), device=target), torch.randn(count, columns, device=target)

        def function(places: Any, source: Any) -> Any:
            return source.new_zeros(rows, columns).index_add(0, places, source)

        compiled = torch.compile(function, backend="fuser_lab", dynamic=False)
        for _ in range(2):
            expected = function(values[0], values[1].double())
            torch.testing.assert_close(compiled(*values).double(), expected, rtol=1e-4, atol=1e-3)

    return run


def _captured(target: str) -> None:
    """Run a plan captured as a CUDA graph; on a target without graphs, run the plan itself."""
    def record(fd: Any, x: Any) -> Any:
        total = x
        for _ in range(6):
            total = fd.ops.add(total, x)
        return fd.ops.sum(total, [1]), total

    fusion = build(record, [(40, 60)], D.Float)
    parts = [
        (Fusion(inputs=tuple(dict.fromkeys(e.tensor_inputs)), exprs=(e,), outputs=(e.out,)),
         S.POINTWISE if len(e.tensor_inputs) > 1 else S.REDUCTION)
        for e in fusion.exprs
    ]
    plan = prepare(fusion, parts, target, allow_fallback=False)
    x = numbers((40, 60), D.Float)
    given = placed([x], target)
    if target == "cpu":
        _compare(fusion, [x], twice(plan, given))
        return
    graph = plan.captured(given, [poisoned(out) for out in plan.run(given)])
    for _ in range(2):
        _compare(fusion, [x], [to_numpy(out) for out in graph.run(given)])


def _sample(name: str) -> Callable[[str], None]:
    def run(target: str) -> None:
        from tests import agreement
        from tests.unit.ops.sampling import ENTRIES
        from tests.unit.ops.sampling import build as built_of

        built = built_of(ENTRIES[name].samples[0])
        fusion = agreement.bound(built.fd, built.inputs)
        given = placed(built.inputs, target)
        # Without a seed, each run draws new numbers.
        wanted = evaluate(*reference_form(fusion, given, ahead=True))
        with warnings.catch_warnings():
            # The array library evaluates segments without a kernel.
            warnings.simplefilter("ignore", EvaluationWarning)
            first = [to_numpy(x) for x in built.fd.execute(given)]
            tolerance = agreement.tolerance_of(fusion)
            for tv, a, b in zip(fusion.outputs, first, wanted, strict=True):
                agreement.close(a, b, tolerance, tv.name)
            if not offsets_of(fusion):
                for a, b in zip(first, built.fd.execute(given), strict=True):
                    assert a.tobytes() == to_numpy(b).tobytes(), "two runs differ"

    return run


def placed(values: Sequence[Any], target: str) -> list[Any]:
    """Return arrays in the memory of a target's kernels, as torch's tensors on a GPU; numbers are unchanged."""
    if target == "cpu":
        return list(values)
    return [
        from_numpy_as("torch", np.ascontiguousarray(x).reshape(x.shape)).to(target) if isinstance(x, np.ndarray) else x
        for x in values
    ]


def _repeated(row: Any, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(row, shape) if isinstance(row, np.ndarray) else row.expand(shape)


def poisoned(array: Any) -> Any:
    """Return an array like another, with other contents."""
    if isinstance(array, np.ndarray):
        return np.full_like(array, 1 if array.dtype == np.bool_ else 77)
    import torch

    if array.dtype.is_floating_point and array.dtype.itemsize == 1:
        return torch.full(array.shape, 0x5A, dtype=torch.uint8, device=array.device).view(array.dtype)
    return torch.full_like(array, 77)


def twice(plan: Any, inputs: Sequence[Any]) -> list[np.ndarray]:
    """Return the results of a plan as NumPy arrays, after a second run into poisoned arrays with the same bits."""
    first = plan.run(inputs)
    second = plan.run(inputs, [poisoned(out) for out in first])
    found = [to_numpy(out) for out in first]
    for number, (a, b) in enumerate(zip(found, second, strict=True)):
        assert a.tobytes() == to_numpy(b).tobytes(), f"two runs differ in output {number}"
    return found


def _compare(fusion: Fusion, inputs: Sequence[Any], got: Sequence[np.ndarray], factor: float = 1.0) -> None:
    outputs = [tv for tv in fusion.outputs if tv not in fusion.hidden]
    for tv, a, b in zip(outputs, got, evaluate(fusion, inputs, exact=False), strict=True):
        close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype, factor)
