"""A case computed under strategies, after edits and at other sizes, and compared with the reference evaluation."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab.errors import InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.runtime.arrays import to_numpy
from tests import agreement
from tests.on_gpu import has_gpu, on_gpu
from tests.programs.edits import NOT_BROADCAST, OPTIONS, edited
from tests.templates.case import SIZES, SMALL, Case, Recording, recorded

PERTURBED = 6  # evaluations with other inputs
MOVED = 2.0**-19  # relative change of their inputs: 16 units in the last place of Float
SLACK = 4.0
# Relative error of a sum of Float, one number after another: at least 16 units in the last place; sums of many equal
# numbers are always rounded to one side, and reach about a quarter of what no sum exceeds, a half unit per number.
LEAST_SUMMED, SUMMED = 2.0**-19, 2.0**-26


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The strategies of a case, targets whose kernels run in lock step, and whether they are compiled and run."""

    strategies: tuple[str, ...]
    targets: tuple[str, ...]
    edits: bool = True
    compiled: bool = False


class Expected:
    """The results of a fusion in its dtypes, each with a bound of what roundings may change.

    The bound of an element is what small changes of the inputs change in float64, or the difference between the
    evaluations in the fusion's dtypes and in float64, whichever is larger, and a few roundings of numbers as large as
    the inputs, which may cancel. Elements of integers that small changes change may have any value.
    """

    def __init__(self, fusion: Fusion, inputs: Sequence[Any]) -> None:
        self.fusion, values = fusion, agreement.seeded(fusion, inputs)
        with np.errstate(all="ignore"):
            self.results = [np.asarray(x) for x in evaluate(fusion, values)]
            wide = [np.asarray(x) for x in evaluate(fusion, values, exact=False)]
            moved = [evaluate(fusion, _moved(values, seed), exact=False) for seed in range(PERTURBED)]
            size = max((float(np.abs(x).max(initial=0.0)) for x in map(np.asarray, values) if x.dtype.kind in "fV"),
                       default=0.0)
            terms = max((e.inputs[0].numel // max(e.out.numel, 1) for e in fusion.exprs if e.kind is OpKind.REDUCTION),
                        default=1)
            # Roundings of equal terms, as those of repeated rows, all go the same way.
            repeats = any(0 in np.asarray(x).strides for x in values)
            roundings = terms if repeats else math.sqrt(terms)
            columns = zip(fusion.outputs, self.results, wide, *moved, strict=True)
            self.bounds = [
                _bound(tv.dtype, size, terms, roundings, *map(np.asarray, column)) for tv, *column in columns
            ]

    def compare(self, results: Sequence[Any], what: str) -> None:
        """Raise Disagreement unless results are equal within the bounds."""
        for tv, result, wanted, bound in zip(self.fusion.outputs, results, self.results, self.bounds, strict=True):
            name, array = f"{tv.name}, {what}", np.asarray(result)
            if array.shape != wanted.shape or array.dtype != wanted.dtype:
                msg = f"{name}: {array.dtype}{array.shape}, wanted {wanted.dtype}{wanted.shape}"
                raise agreement.Disagreement(msg)
            a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (array, wanted))
            with np.errstate(all="ignore"):
                right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound)
            if not right.all():
                place = tuple(int(i) for i in np.argwhere(~right)[0])
                msg = (
                    f"{name}: {a[place]!r} at {list(place)}, wanted {b[place]!r} within {bound[place]:.3g} "
                    f"({int((~right).sum())} of {right.size} differ)"
                )
                raise agreement.Disagreement(msg)

    def compare_visible(self, results: Sequence[Any], what: str) -> None:
        """Raise Disagreement unless results, without those of hidden outputs, are equal within the bounds."""
        remaining = iter(results)
        whole = [
            reference if tv in self.fusion.hidden else next(remaining)
            for tv, reference in zip(self.fusion.outputs, self.results, strict=True)
        ]
        self.compare(whole, what)


def _moved(values: Sequence[Any], seed: int) -> list[Any]:
    """Return inputs whose floating-point numbers are changed a little, each on its own."""
    rng = np.random.default_rng(seed)
    return [
        np.asarray(x).astype(np.float64) * (1 + MOVED * rng.uniform(-1, 1, np.shape(x)))
        if isinstance(x, np.ndarray) and x.dtype.kind not in "biu" else x
        for x in values
    ]


def _bound(
    dtype: fl.DataType, size: float, terms: int, roundings: float, result: np.ndarray, wide: np.ndarray,
    *moved: np.ndarray,
) -> np.ndarray:
    """Return how far each element of a result may be from the reference.

    Inputs have magnitudes up to ``size``, and sums have up to ``terms`` terms, with an error of ``roundings`` of them.
    """
    a = wide.astype(np.float64)
    change = np.max([np.abs(m.astype(np.float64) - a) for m in moved], axis=0) if moved else np.zeros(a.shape)
    if not dtype.is_float:
        return np.where(change > 0, np.inf, 0.0)
    finite = np.abs(a)[np.isfinite(a)]
    largest = float(finite.max(initial=0.0))
    summed = max(LEAST_SUMMED, SUMMED * terms)
    rounding = summed if dtype.itemsize > 2 else {"Half": 2.0**-10}.get(dtype.name, 2.0**-7)
    exact = np.abs(result.astype(np.float64) - a)
    bound = SLACK * np.maximum(change, exact) + rounding * np.abs(a) + 2.0**-22 * largest
    unit = float(np.finfo(np.float64 if dtype is fl.DataType.Double else np.float32).eps)
    bound = bound + max(SLACK, roundings) * unit * size
    return np.where(np.isnan(bound), 0.0, bound)


def suited(case: Case) -> tuple[Case, Recording]:
    """Return a case and its recording, with static sizes where an axis of size 1 must be known to broadcast."""
    recording = recorded(case)
    try:
        agreement.bound(recording.fd, [x.array() for x in recording.inputs])
    except InputError as error:
        if NOT_BROADCAST not in str(error):
            raise
        return suited(replace(case, symbolic=False))
    return case, recording


def check(case: Case, way: Way) -> int:
    """Raise any failure of a case; Disagreement if results differ. Return the number of plans that were computed."""
    case, recording = suited(case)
    fd, inputs = recording.fd, [x.array() for x in recording.inputs]
    expected = Expected(agreement.bound(fd, inputs), inputs)
    agreement.check_same(fd)
    plans = 0
    for strategy in way.strategies:
        for plan, name in _plans(fd, inputs, strategy, case.seed, edits=way.edits):
            plans += 1
            _ask(plan, Random(case.seed))
            for target in way.targets:
                expected.compare(agreement.lock_step(plan, inputs, target), f"{target} kernels of {name}")
            if way.compiled:
                values = agreement.seeded(plan.fusion, inputs)
                if has_gpu():
                    results = [to_numpy(x) for x in plan.run([on_gpu(x) for x in values])]
                    expected.compare_visible(results, f"kernels on a GPU of {name}")
                expected.compare_visible(plan.run(values), f"compiled kernels of {name}")
                inputs = [x.array() for x in recording.inputs]  # which the plan may have overwritten
    if way.compiled:
        _reused(case, recording)
    return plans


def _plans(
    fd: Any, inputs: Sequence[Any], strategy: str, seed: int, *, edits: bool,
) -> Iterator[tuple[Any, str]]:
    """Yield the plan of a strategy, and that plan after random edits."""
    plan = fl.segment(fd, list(inputs), strategy=strategy, options=OPTIONS)
    yield plan, strategy
    if edits:
        changed, done = edited(plan, Random(seed))
        if done:
            yield changed, f"{strategy}, edited: {', '.join(done)}"


def _ask(plan: Any, rng: Random) -> None:
    """Ask a plan what a reader asks."""
    repr(plan)
    plan.to_python()
    plan.predicted_time()
    tensors = [tv.name for expr in plan.fusion.exprs for tv in expr.tensor_outputs]
    if len(tensors) > 1:
        str(plan.why(*rng.sample(tensors, 2)))


def _reused(case: Case, recording: Recording) -> None:
    """Compare a definition's results at other sizes of the axes that it leaves open."""
    fd, rng = recording.fd, Random(case.seed)
    words = {word for axes in recording.axes for word in axes}
    free = [
        axis for axis, size in case.sizes
        if axis not in recording.asked and size > 1 and not any(axis in w.split("*") and w != axis for w in words)
    ]
    if not case.symbolic or not free or len(agreement.bound(fd, [x.array() for x in recording.inputs]).inputs) > len(
        recording.inputs,
    ):
        return
    for _ in range(2):
        sizes = {axis: rng.choice([n for n in SIZES if 2 <= n <= SMALL.get(axis, 64)]) for axis in free}
        other = recorded(case.resized(sizes))
        if other.fd.fusion != fd.fusion:  # a reader or a layout depends on a size
            continue
        inputs = [x.array() for x in other.inputs]
        expected = Expected(agreement.bound(fd, inputs), inputs)
        expected.compare_visible(fd.execute([x.array() for x in other.inputs]), f"executed again at {sizes}")
