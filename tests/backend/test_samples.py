"""Samples of all ops as compiled CPU kernels; calls with the same operands share a definition, since compiling is slow.

All samples run in lock step in tests/unit/ops; the dtypes of pointwise ops are compiled in test_ops.py.
"""

from collections import defaultdict

import numpy as np
import pytest

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.dtypes import DataType
from fuser_lab.ir import OpKind
from fuser_lab.ops.registry import Arg, Sample
from tests import agreement
from tests.unit.ops.sampling import ENTRIES, LETTERS, results, values

UNSEEDED = frozenset({"rand_like", "randn_like"})  # each run draws different numbers
MOST_CALLS = 24


def has_elements(sample: Sample) -> bool:
    return all(0 not in arg.shape for arg in sample.args)


def batches() -> list[tuple[tuple[Arg, ...], tuple[tuple[str, Sample], ...]]]:
    """Samples with equal operands, in groups: one sample of each pointwise op, two of any other op."""
    found: dict[tuple[Arg, ...], list[tuple[str, Sample]]] = defaultdict(list)
    for name, entry in ENTRIES.items():
        if name not in UNSEEDED:
            others = {sample.args: sample for sample in reversed(entry.samples) if has_elements(sample)}
            count = 1 if getattr(entry, "kind", None) is OpKind.POINTWISE else 2
            for sample in list(reversed(others.values()))[:count]:
                found[sample.args].append((name, sample))
    return [
        (args, tuple(samples[first : first + MOST_CALLS]))
        for args, samples in found.items()
        for first in range(0, len(samples), MOST_CALLS)
    ]


BATCHES = batches()


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(
    ("args", "samples"), BATCHES, ids=[f"{k}-{samples[0][0]}" for k, (_, samples) in enumerate(BATCHES)],
)
def test_compiled(args: tuple[Arg, ...], samples: tuple[tuple[str, Sample], ...]) -> None:
    rng = np.random.default_rng(0)
    inputs = [values(arg, rng) for arg in args]
    calls: list[str] = []
    with FusionDefinition() as fd:
        names = {
            letter: fd.define_tensor(list(arg.shape), True, arg.dtype)
            for letter, arg in zip(LETTERS, args, strict=False)
        }
        for _, sample in samples:
            for value in results(eval(sample.call, {"fd": fd, "DataType": DataType, **names})):
                dtype = DataType.Int if isinstance(value, int) else value.dtype
                fd.add_output(value if hasattr(value, "ndim") else fd.ops.full([2], value, dtype=dtype))
                calls.append(sample.call)
    fusion = agreement.bound(fd, inputs)
    tolerance = agreement.tolerance_of(fusion)
    wanted = agreement.check_reference(fusion, inputs, tolerance)

    def near_enough(position: int, got: np.ndarray) -> None:
        agreement.close(got, wanted[position], tolerance, f"{calls[position]}, compiled for the CPU")

    agreement.check_compiled(fd, inputs, wanted, near_enough)


def test_every_op_is_compiled_here() -> None:
    compiled = {name for _, samples in BATCHES for name, _ in samples}
    assert set(ENTRIES) - UNSEEDED <= compiled
