"""The stated accuracy of ops as tables: numbers that `tests.op_accuracy.measuring` measured, kept beside this file."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fuser_lab.files.json_text import json_text
from fuser_lab.targets import CPU, CUDA

FILE = Path(__file__).with_name("accuracy.json")
WITHOUT_FMA = f"{CPU.name}_without_fma"  # CPU kernels for processors that round a product before they add to it
TITLES = {
    **{target.name: f"{target.label} kernels" for target in (CPU, CUDA)},
    WITHOUT_FMA: f"{CPU.label} kernels without fused multiply-add",
}
_PLAIN = 10.0  # below it errors are printed to tenths

Errors = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """The largest error of each op by dtype, in units in the last place, and the device that it was measured on."""

    target: str
    device: str
    ulps: Errors


def stated() -> dict[str, Stated]:
    """Return the measured errors by target; targets without measurements are omitted."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        target: Stated(
            target=target, device=part["device"],
            ulps={op: {d: math.inf if x is None else x for d, x in row.items()} for op, row in part["ulps"].items()},
        )
        for target, part in data["targets"].items()
    }


def save(tables: Mapping[str, Stated]) -> Path:
    """Replace the errors of the given targets, keep those of other targets, and return the file."""
    targets = {
        target: {
            "device": part.device,
            "ulps": {op: {d: _stored(x) for d, x in row.items()} for op, row in part.ulps.items()},
        }
        for target, part in sorted({**(stated() if FILE.exists() else {}), **tables}.items())
    }
    data = {"schema": "fuser_lab.accuracy", "version": 1, "targets": targets}
    FILE.write_text(json_text(data, indent=1) + "\n", encoding="utf-8")
    return FILE


def _stored(ulps: float) -> float | None:
    """Return an error rounded up to hundredths, or to two digits if it is large; JSON has no infinity."""
    if math.isinf(ulps):
        return None
    step = 0.01 if ulps < _PLAIN else 10.0 ** (math.floor(math.log10(ulps)) - 1)
    return round(math.ceil(ulps / step - 1e-9) * step, 2)


def accuracy_text(tables: Mapping[str, Stated]) -> str:
    """Return the tables as plain text, one line for each op."""
    lines = []
    for part in tables.values():
        dtypes = list(dict.fromkeys(d for row in part.ulps.values() for d in row))
        lines += [f"{TITLES[part.target]}, measured on {part.device}: largest error in units in the last place", ""]
        lines.append(f"{'op':<12}" + "".join(f"{dtype:>15}" for dtype in dtypes))
        for op, row in sorted(part.ulps.items()):
            lines.append(f"{op:<12}" + "".join(f"{ulps_text(row.get(dtype)):>15}" for dtype in dtypes))
        lines.append("")
    return "\n".join(lines).rstrip()


def ulps_text(ulps: float | None) -> str:
    """Return an error as text; an infinite error is a NaN in the wrong place."""
    if ulps is None:
        return ""
    if math.isinf(ulps):
        return "NaN"
    return f"{math.ceil(ulps * 10 - 1e-9) / 10:g}" if ulps < _PLAIN else f"{ulps:.2g}"
