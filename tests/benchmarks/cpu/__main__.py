"""CPU benchmarks: ``python -m tests.benchmarks.cpu [--set NAME,...] [--only NAME,...] [--peers NAME,...] [--first]``.

The set ``float`` is eight pieces of neural networks in Float, written for each library as its users write them. The
first set (`tests.benchmarks.gpu.workloads`), and the second and third (`tests.benchmarks.second`,
`tests.benchmarks.third`), which were not used for tuning, run at a sixteenth of their size on a GPU; ``all`` is all
sets. ``--strategy fastest`` plans for this CPU, with the rates that ``python -m fuser_lab fit --this-cpu`` measured
with as many threads. The peer ``bottom_up`` is fuser_lab with its default strategy; if it is measured as well, ratios
are those of the faster plan, with bottom-up's own beside them. Numbers of segments are in parentheses where a plan has
several.

Every library uses two threads (``--threads``) and writes to given outputs where it can (torch.compile by
``out.copy_(result)``, which it fuses). Results are checked against Double, or against torch, before anything is timed.
Samples are taken round robin, one call per variant, so that other programs on the machine disturb all variants alike;
the table shows median and minimum. ``--clock processor`` counts processor seconds instead of wall time, which is
disturbed less by other programs: those of all threads divided by the number of threads, or those of the only thread
that NumPy uses.
"""

import argparse
import datetime as dt
import json
import math
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two OpenMP runtimes in one process must not spin

from tests.benchmarks.cpu import first_call
from tests.benchmarks.cpu.measuring import CLOCKS, every
from tests.benchmarks.cpu.variants import BASE, OURS, PEERS, SETS, THREADS, Load, limit_threads


def ratios(row: dict[str, Any], key: str) -> tuple[float, ...]:
    """How many times faster than the best peer and than torch.compile the best of our plans is, and bottom-up's.

    NaN where there is none.
    """
    others = [row[n][key] for n in PEERS if key in row.get(n, {})]
    compiled, bottom_up = (row.get(n, {}).get(key, math.nan) for n in ("compile", BASE))
    ours = min(row[n][key] for n in (OURS, BASE) if key in row.get(n, {}))
    return min(others, default=math.nan) / ours, compiled / ours, compiled / bottom_up


def geometric(numbers: list[float]) -> float:
    """The geometric mean of the values that are not NaN."""
    known = [n for n in numbers if n == n]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan


def table(
    loads: list[Load], rows: dict[str, dict[str, Any]], names: list[str], key: str, strategy: str,
) -> list[str]:
    """A Markdown table of milliseconds and ratios."""
    both = BASE in names
    heads = ["best peer / ours", "torch.compile / ours", *(["torch.compile / bottom-up"] if both else [])]
    labels = [f"{OURS}, {strategy}" if n == OURS and both else n for n in names]
    lines = [f"| workload | GB/s | {' | '.join([*labels, *heads])} |", "|---" * (2 + len(names) + len(heads)) + "|"]
    for load in loads:
        row = rows[load.name]
        cells = [time_text(row[n], key) for n in names]
        cells += [f"{ratio:.2f}" for ratio in ratios(row, key)[: len(heads)]]
        lines.append(f"| {load.name} | {load.nbytes / row[OURS][key] / 1e6:.1f} | {' | '.join(cells)} |")
    means = [f"{geometric([ratios(row, key)[n] for row in rows.values()]):.2f}" for n in range(len(heads))]
    return [*lines, f"| geometric mean | {'| ' * len(names)}| {' | '.join(means)} |"]


def time_text(cell: dict[str, Any], key: str) -> str:
    """Milliseconds, and the number of segments if there are several, or the reason why there are none."""
    if key not in cell:
        return str(cell["skipped"])
    return f"{cell[key]:.3g}" + (f" ({cell['segments']})" if cell["segments"] > 1 else "")


def first_table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A Markdown table of first calls."""
    lines = [
        "| workload | fuser_lab, s | torch.compile, s | ratio | processor seconds, fuser_lab | torch.compile | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    found: dict[str, list[float]] = {"wall": [], "processor": []}
    for name, row in rows.items():
        if "first" not in row:
            continue
        cells = []
        for clock, kept in found.items():
            mine, other = row["first"][OURS][clock], row["first"]["compile"][clock]
            kept.append(other / mine)
            cells.append(f"{mine:.2f} | {other:.2f} | {other / mine:.1f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    means = [geometric(kept) for kept in found.values()]
    return [*lines, f"| geometric mean | | | {means[0]:.1f} | | | {means[1]:.1f} |"]


def heading(load_before: float, options: argparse.Namespace) -> list[str]:
    """Machine, versions, date, and how busy the machine was."""
    words = ("model name\t: ", platform.processor() or platform.machine())
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.removeprefix(words[0]) for line in lines if line.startswith(words[0])), words[1])
    packages = [f"{name} {version(name)}" for name in ("numba", "llvmlite", "numpy", "torch")]
    today = f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}"
    load = f"Load average {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    return [
        f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}, {', '.join(packages)}; {today}.",
        f"{load}; {options.clock} time, {options.threads} threads, {options.samples} samples of each, round robin.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cpu")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas, or none")
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--first", action="store_true", help="measure first calls in new processes as well")
    parser.add_argument("--markdown", action="store_true", help="print only what docs/benchmarks.md shows")
    parser.add_argument("--json", default="", help="file for everything measured")
    parser.add_argument("--set", default="float", help=f"some of {', '.join(SETS)}, separated by commas")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--strategy", default="bottom_up", help="the strategy that cuts the workloads")
    parser.add_argument("--processes", type=int, default=1, help="processes that compile before anything is timed")
    options = parser.parse_args()
    loads = [load for name in options.set.split(",") for load in SETS[name]]
    chosen = [w for w in loads if not options.only or w.name in options.only.split(",")]
    names = [OURS, *(() if options.peers == "none" else options.peers.split(","))]
    before = os.getloadavg()[0]
    limit_threads(options.threads)
    rows: dict[str, dict[str, Any]] = {}
    for name, row in every(chosen, names, options):
        rows[name] = row
        if not options.markdown:
            cells = [f"{n} {row[n].get('min', math.nan):.2f}" for n in names]
            print(f"{name:20s} min ms: {', '.join(cells)}", flush=True)
    chosen = [load for load in chosen if load.name in rows]
    if options.first:
        for load in chosen:
            rows[load.name]["first"] = {n: first_call.measured(load.name, n) for n in (OURS, "compile")}
    print("\n".join(heading(before, options)))
    for key in ("median", "min"):
        print("\n".join(["", f"Milliseconds, {'median' if key == 'median' else 'minimum'} of the samples:", ""]))
        print("\n".join(table(chosen, rows, names, key, options.strategy)))
    if options.first:
        print("\n".join(["", "First call in a new process with empty caches:", "", *first_table(rows)]))
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
