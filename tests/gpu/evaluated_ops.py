"""``python -m tests.gpu.evaluated_ops`` prints what torch computes on a device for segments without kernels.

Each op that torch evaluates there, from its samples and in every dtype of data and of positions, is compared with the
NumPy reference. A cell is ``torch``, ``numpy`` where torch has no kernel, or an error. ``--device cpu`` needs no GPU.
"""

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, OpKind, Scalar
from fuser_lab.ops import OPS
from fuser_lab.ops.registry import Arg, OpDef, Sample
from fuser_lab.runtime import evaluate as by_segment
from fuser_lab.runtime.arrays import TORCH_OF, from_numpy_as, to_numpy
from tests import agreement
from tests.needs import needs
from tests.unit.ops.sampling import build

torch = needs("torch")

DTYPES = tuple(dtype for dtype in TORCH_OF if dtype is not DataType.Index)
POSITIONS = tuple(dtype for dtype in DTYPES if dtype.is_integral)
# Views and casts, for which ops name no function of torch.
BY_TORCH = ("cast", "set", "permute", "broadcast", "squeeze", "expand", "reshape", "slice", "select")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A sample of an op in one dtype of its data, or of its positions."""

    op: str
    dtype: DataType
    sample: Sample


def ops() -> list[OpDef]:
    """The ops that torch evaluates."""
    return [entry for name, entry in OPS.items() if entry.library is not None or name in BY_TORCH]


def cases() -> Iterator[Case]:
    """The legal samples of all dtypes, and those that only move to another dtype of positions."""
    for entry in ops():
        for sample in entry.samples:
            at = {n for n, arg in enumerate(sample.args) if is_position(entry, n, arg)}
            for dtype in DTYPES:
                yield Case(op=entry.name, dtype=dtype, sample=_in(sample, dtype, set(range(len(sample.args))) - at))
            for dtype in POSITIONS if at else ():
                yield Case(op=f"{entry.name}, positions", dtype=dtype, sample=_in(sample, dtype, at))


def is_position(entry: OpDef, place: int, arg: Arg) -> bool:
    """Whether an operand of a read or write holds positions."""
    if entry.kind not in {OpKind.INDEXING, OpKind.SCATTER} or not arg.dtype.is_integral:
        return False
    return place == (0 if entry.name == "embedding_fwd" else 1)


def _in(sample: Sample, dtype: DataType, places: set[int]) -> Sample:
    args = tuple(replace(arg, dtype=dtype) if n in places else arg for n, arg in enumerate(sample.args))
    return replace(sample, args=args)


def outcome(case: Case, device: str) -> str | None:
    """Who computed a case: ``torch`` or ``numpy``; None if it is illegal. An error says what is wrong."""
    try:
        built = build(case.sample)
        fusion = agreement.bound(built.fd, built.inputs)
    except FuserLabError:
        return None
    if any(isinstance(value, Scalar) for value in fusion.inputs) or not built.inputs:
        return None
    with np.errstate(all="ignore"):
        wanted = evaluate(fusion, built.inputs)
    given = {value.name: _on(device, x) for value, x in zip(fusion.inputs, built.inputs, strict=True)}
    by_numpy = mock.Mock(side_effect=by_segment.evaluate_expr)
    with mock.patch.object(by_segment, "evaluate_expr", by_numpy), np.errstate(all="ignore"):
        got = by_segment.evaluate_segment(fusion, given)
        check(fusion, got, wanted, device, "new memory")
        into = {tv.name: torch.empty_like(got[tv.name]) for tv in fusion.outputs}
        check(fusion, by_segment.evaluate_segment(fusion, given, into), wanted, device, "given memory")
    computed = {expr.op.name for call in by_numpy.call_args_list for expr in call.args[:1]}
    return "numpy" if case.op.partition(",")[0] in computed else "torch"


def check(fusion: Fusion, got: dict[str, Any], wanted: Any, device: str, where: str) -> None:
    """Raise Disagreement unless results are on the device and equal the reference's."""
    tolerance = agreement.tolerance_of(fusion)
    for tv, right in zip(fusion.outputs, wanted, strict=True):
        agreement.close(to_numpy(got[tv.name]), right, tolerance, f"{tv.name} in {where}")
        if got[tv.name].device.type != torch.device(device).type:
            msg = f"{tv.name} is on {got[tv.name].device}."
            raise agreement.Disagreement(msg)


def _on(device: str, x: np.ndarray) -> Any:
    return from_numpy_as("torch", np.array(x, order="C")).to(device)


def table(device: str) -> dict[tuple[str, DataType], set[str]]:
    """The outcomes of all cases, by op and dtype; an error begins with ``FAILED``."""
    found: dict[tuple[str, DataType], set[str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases():
            try:
                what = outcome(case, device)
            except Exception as error:  # noqa: BLE001 - the table says what failed
                what = f"FAILED {case.sample.call}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            if what is not None:
                found.setdefault((case.op, case.dtype), set()).add(what)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="of torch, such as cuda or cpu")
    found = table(parser.parse_args().device)
    print("| op | " + " | ".join(dtype.name for dtype in DTYPES) + " |")
    print("|---" * (len(DTYPES) + 1) + "|")
    for op in dict.fromkeys(op for op, _ in found):
        cells = [found.get((op, dtype), set()) for dtype in DTYPES]
        words = ["FAILED" if any(w.startswith("FAILED") for w in one) else "+".join(sorted(one)) for one in cells]
        print(f"| {op} | " + " | ".join(words) + " |")
    failed = [(op, dtype, what) for (op, dtype), one in found.items() for what in one if what.startswith("FAILED")]
    for op, dtype, what in failed:
        print(f"{op} of {dtype.name}: {what}")
    print(f"{len(found)} pairs of op and dtype; {len(failed)} failures")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
