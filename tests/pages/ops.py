"""The page of all ops, with their accuracy: ``python -m tests.pages.ops``."""

import sys
from collections.abc import Iterator, Mapping, Sequence

from fuser_lab.report import op_page
from fuser_lab.targets import CPU, CUDA
from tests.op_accuracy.tables import TITLES, WITHOUT_FMA, Stated, stated, ulps_text

COMMAND = "python -m tests.pages.ops > docs/ops.md"
COLUMNS = op_page.TARGETS
TARGETS = (CPU.name, CUDA.name)
ROUNDED = 0.5  # units in the last place: the exact result, rounded once
_SLIGHT = 0.1  # units in the last place that count as no difference
_SHOWN_RULES = 6  # dtypes listed per op

_ACCURACY = (
    "These tables list the largest error found for each pointwise op, in units in the last place of the result's",
    "dtype, against a reference of higher precision: float64 for floats of up to 32 bits, long double or mpmath for",
    "Double. Operands are random bit patterns, numbers of ordinary size, neighbours of zeros and poles, and special",
    "values; an infinity or NaN in the wrong place would appear as NaN. Errors of complex results are distances in the",
    "plane, for finite operands whose squares neither overflow nor vanish. CUDA kernels may flush results below",
    "the smallest normal number to zero; such results are left out. `lerp` and `addcmul` add terms that may",
    "cancel, so their errors are small relative to the operands, not to the result; the real `sigmoid` and",
    "`silu` return 0 if exp(-x) overflows. `exp2` and `pow` of ComplexDouble lose the precision that whole turns of",
    "their angle take up. `python -m tests.op_accuracy` repeats the measurement; [numbers](numbers.md) has the",
    "rules for special values.",
)


def page() -> str:
    """Return the page as Markdown."""
    rows = op_page.op_rows()
    missing = op_page.unsupported_rows()
    lines = [
        "# Ops",
        "",
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        f"`fd.ops` has {len(rows)} ops. The first column shows each op's signature; *dtypes* lists operands and",
        "results of the op's samples. The NumPy reference evaluates every op. *CPU* and *CUDA* say whether a generated",
        "kernel or the array library of the inputs computes the op; *library* names the library that evaluates torch",
        "tensors outside kernels (torch itself, or NumPy on copies).",
        "",
    ]
    for title, _ in op_page.FAMILIES:
        family = [row for row in rows if row.family == title]
        if family:
            lines += [f"## {title}", "", *_family_table(family), ""]
    lines += ["## Accuracy", "", *_ACCURACY, "", *accuracy_lines(stated())]
    lines += ["## Not supported", "", *_unsupported_table(missing), ""]
    return "\n".join(lines)


def _family_table(rows: Sequence[op_page.OpRow]) -> Iterator[str]:
    columns = ("call", "description", "dtypes", "reference", *COLUMNS.values(), "library")
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        shown = [f"{operands} → {results}" for operands, results in row.dtypes[:_SHOWN_RULES]]
        dtypes = "; ".join(shown) + (f"; {len(row.dtypes) - _SHOWN_RULES} more" if row.dtypes[_SHOWN_RULES:] else "")
        kernels = [row.kernels[target] for target in COLUMNS]
        cells = (f"`{row.signature}`", row.doc, dtypes, row.reference, *kernels, row.library)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _unsupported_table(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "nvFuser has these ops; calling one raises an `UnsupportedError` that names it."
    yield ""
    yield "| name | why |"
    yield "|---|---|"
    for name, reason in rows:
        yield f"| `{name}` | {reason} |"


def accuracy_lines(tables: Mapping[str, Stated]) -> Iterator[str]:
    """Yield the tables as Markdown; ops that round once, or not at all, are named in a sentence."""
    for target in TARGETS:
        part = tables.get(target)
        if part is None:
            yield from (f"### {TITLES[target]}", "", "Not measured on a GPU yet.", "")
            continue
        dtypes = list(dict.fromkeys(d for row in part.ulps.values() for d in row))
        exact = sorted(op for op, row in part.ulps.items() if max(row.values()) <= ROUNDED)
        yield from (f"### {TITLES[target]}", "", f"Measured on {part.device}.", "")
        yield from ("| op | " + " | ".join(dtypes) + " |", "|---" * (len(dtypes) + 1) + "|")
        for op in sorted(set(part.ulps) - set(exact)):
            yield f"| `{op}` | " + " | ".join(ulps_text(part.ulps[op].get(dtype)) for dtype in dtypes) + " |"
        yield from ("", f"At most {ROUNDED} in every dtype: {', '.join(f'`{op}`' for op in exact)}.", "")
        if target == CPU.name and WITHOUT_FMA in tables:
            less = "; ".join(_less_exact(tables[WITHOUT_FMA], part)) or "none"
            where = "Less exact on processors without fused multiply-add (`NUMBA_CPU_NAME=generic`)"
            yield from (f"{where}: {less}. No other error is larger by more than {_SLIGHT}.", "")


def _less_exact(part: Stated, base: Stated) -> Iterator[str]:
    """Yield the ops for which one table has larger errors than another, with both errors."""
    for op, row in sorted(part.ulps.items()):
        base_errors = base.ulps.get(op, {})
        worse = {dtype: ulps for dtype, ulps in row.items() if ulps > base_errors.get(dtype, ulps) + _SLIGHT}
        if worse:
            texts = (f"{ulps_text(x)} instead of {ulps_text(base_errors[d])} in {d}" for d, x in worse.items())
            yield f"`{op}` {', '.join(texts)}"


if __name__ == "__main__":
    sys.stdout.write(page())
