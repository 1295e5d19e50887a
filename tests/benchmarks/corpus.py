"""``python -m tests.benchmarks.corpus`` measures the whole corpus and writes docs/corpus.md.

Three parts, each resumed where it was stopped (rows are lines of a file): ``plans`` (segments, the optimum's
certificate within a number of states, boundaries with the rejections that cause them), ``kernels`` (small forms on the
CPU, compared with a copy) and ``torch`` (functions of tests/corpus/functions.py compared with torch.compile; needs
torch and a C++ compiler). ``kernels`` and ``torch`` measure entries spread evenly over the corpus until ``--seconds``
have passed.
"""

import argparse
import json
import math
import os
import platform
import statistics
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import fuser_lab as fl
from fuser_lab.bridge.costs import deciding_rule
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError
from fuser_lab.lab.calibration import machine_model
from fuser_lab.lab.environment import environment, now
from fuser_lab.search.presegmentation import bytes_moved
from tests.fitting.measurements import load

Row = dict[str, Any]
Place = tuple[str, str, int]  # the fusion of a boundary, the scheduler that rejected it, and the bytes that cross
ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "corpus.md"
REASONS: Final = ROOT / "docs" / "reasons.md"
STATES: Final = 4000  # limit of the search for a certificate
MOST_OPS: Final = 200  # above it, a certificate is not searched for
MOST_BYTES: Final = 1 << 28  # of the inputs and outputs of entries that run here
_LARGE: Final = 64e6  # bytes from which a kernel on a GPU is compared with a copy


class Rows:
    """Rows in a file, one line each; a row is looked up by part, entry and the hash of its script."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {(row["part"], row["name"], row["script"]): row for row in map(json.loads, lines)}

    def find(self, part: str, entry: Any) -> Row | None:
        return self.known.get((part, entry.name, digest(entry)))

    def add(self, part: str, entry: Any, row: Row) -> None:
        row = {"part": part, "name": entry.name, "kind": entry.kind, "script": digest(entry), **row}
        self.known[part, entry.name, row["script"]] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def digest(entry: Any) -> str:
    return sha256((entry.script + entry.small_script).encode()).hexdigest()[:16]


def plan_row(entry: Any, states: int) -> Row:
    """Return the results of the segmenter and of the certificate for one entry at real sizes."""
    fd, inputs = entry.load()
    began = time.process_time()
    plan = fl.segment(fd, inputs)
    segmented = time.process_time()
    certificate = plan.certificate(states=states) if entry.ops <= MOST_OPS else None
    certified = time.process_time()
    boundaries = []
    for why in plan.boundaries():
        first, second = why.segments
        read = set(plan.segments[second].inputs)
        crossing = sum(tensor.nbytes for tensor in plan.segments[first].outputs if tensor in read)
        rule = deciding_rule(why, plan.decisions)
        boundaries.append([rule.code, rule.by, crossing])
    return {
        "ops": entry.ops, "segments": [s.scheduler.value if s.scheduler else "none" for s in plan.segments],
        "moved": bytes_moved(plan), "io": entry.bytes, "crossing": plan.bytes_crossing, "boundaries": boundaries,
        "segment seconds": segmented - began, "certificate seconds": certified - segmented,
        **({} if certificate is None else {
            "cost": certificate.cost, "bound": certificate.bound, "known": min(certificate.known, certificate.cost),
            "optimal": certificate.is_optimal, "legal": not certificate.obstacle,
        }),
    }


def kernel_row(entry: Any, seconds: float) -> Row:
    """Return the time of one entry's small form on the CPU, and its rate as a share of the rate of a copy."""
    fd, inputs = entry.load(small=bool(entry.small_script))
    arrays = [one.materialize() if isinstance(one, TensorSpec) else one for one in inputs]
    plan = fl.segment(fd, arrays)
    began = time.perf_counter()
    times = fl.time(plan, arrays, seconds=seconds, progress=False)
    total = times.totals[0]
    model = machine_model("cpu", max(sum(t.nbytes for t in (*plan.fusion.tensor_inputs, *plan.fusion.outputs)), 1))
    counted = sum(t.nbytes for t in {*plan.fusion.tensor_inputs, *plan.fusion.outputs})
    return {
        "median": total.median, "bytes": counted, "share": counted / total.median / model.bandwidth,
        "predicted": model.seconds(bytes_moved(plan)) + model.launch * len(plan.segments),
        "segments": [s.scheduler.value if s.scheduler else "none" for s in plan.segments], "error": total.error,
        "seconds": time.perf_counter() - began, "load": os.getloadavg()[0], "note": total.note,
    }


def torch_row(function: Any, seconds: float) -> Row:
    """Return the times of a function's small form by fuser_lab, eager torch and torch.compile."""
    import torch

    torch._dynamo.reset()
    inputs = [_filled(one.detach()) for one in function.inputs(small=True)]
    found = fl.from_torch(function.compute, *inputs)
    times = fl.time(found, seconds=seconds, peers=["eager", "inductor"], progress=False)
    whole = [row for row in times.totals if row.group == times.totals[0].group]
    medians = {row.plan: row.median for row in whole}
    return {
        "medians": medians, "load": os.getloadavg()[0], "torch": torch.__version__, "regions": len(found.regions),
        "share in regions": found.shares.fused,
    }


def _filled(given: Any) -> Any:
    import torch

    generator = torch.Generator().manual_seed(0)
    if given.is_floating_point():
        return torch.rand(given.shape, generator=generator).to(given.dtype) + 0.01
    most = 255 if given.dtype is torch.uint8 else 20
    return torch.randint(0, most, given.shape, generator=generator).to(given.dtype)


def spread(entries: Sequence[Any]) -> Iterator[Any]:
    """Yield all entries in an order whose every prefix is spread evenly over them (bit reversal)."""
    bits = max((len(entries) - 1).bit_length(), 1)
    order = sorted(range(len(entries)), key=lambda n: int(f"{n:0{bits}b}"[::-1], 2))
    return (entries[n] for n in order)


def measure(
    rows: Rows, part: str, entries: Iterable[Any], measured: Callable[[Any], Row], seconds: float = math.inf,
) -> None:
    """Add the missing rows until the time is up; an entry that cannot be measured becomes a row with the reason."""
    until = time.monotonic() + seconds
    for entry in entries:
        if time.monotonic() > until:
            return
        if rows.find(part, entry) is not None:
            continue
        try:
            row = measured(entry)
        except FuserLabError as error:
            row = {"failed": " ".join(str(error).split())[:300]}
        except Exception as error:  # noqa: BLE001 - one entry must not end the run, and the page says so
            row = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        rows.add(part, entry, row)
        told = row.get("failed") or f"{len(row.get('segments', ()))} segments"
        print(f"{part} {entry.name}: {told}", flush=True)


class NamedFunction:
    """A function as an entry of the corpus, for `Rows`."""

    def __init__(self, function: Any) -> None:
        self.function, self.name, self.kind = function, function.name, "function"
        self.script, self.small_script = function.real, function.small


# The page


def page(corpus: Any, rows: Rows) -> str:
    """Return docs/corpus.md."""
    plans = [row for one in corpus if (row := rows.find("plans", one)) is not None]
    good = [row for row in plans if "failed" not in row]
    kernels = [row for one in corpus if (row := rows.find("kernels", one)) is not None]
    beside = [row for (part, _, _), row in rows.known.items() if part == "torch"]
    where = environment().to_dict()
    machine = f"{where['cpu']}, {os.cpu_count()} cores shared with other work, {now()[:10]}"
    parts = [_head(corpus), _plans(good, len(corpus)), _reasons(good), _certificates(good)]
    parts.append(on_gpus())
    parts.append(_kernels(kernels, machine))
    parts.append(_torch(beside, machine))
    failed = [row for row in (*plans, *kernels, *beside) if "failed" in row]
    if failed:
        lines = "\n".join(f"* {row['part']}, `{row['name']}`: {row['failed']}" for row in failed)
        parts.append(f"## What could not be measured\n\n{lines}\n")
    return "\n".join(parts)


def _head(corpus: Any) -> str:
    kinds = Counter(one.kind for one in corpus)
    sources = {one.name.split("/")[0] for one in corpus}
    small = sum(bool(one.small_script) for one in corpus)
    ops = sorted(one.ops for one in corpus)
    captured = kinds["forward"] + kinds["backward"]
    said = f"""
        `fl.corpus()` lists {len(corpus)} fusions to sweep over: {kinds['example']} examples, {kinds['gallery']} rebuilt
        from public issues (the gallery), and {captured} regions that `fl.from_torch` captured from {len(sources) - 2}
        functions and models, {kinds['forward']} of forward and {kinds['backward']} of backward graphs. Models have the
        sizes of their published configurations and two layers. Equal fusions occur once; `entry.also` names the other
        sources. {small} entries have a second, small form for machines with little memory. Definitions have {ops[0]} to
        {ops[-1]} ops; the median is {statistics.median(ops):g}."""
    return f"""# The corpus

{_filled_text(said)}

```python
fl.corpus()                                          # all of them, as a table
fl.corpus("llama_8b/backward/*")                     # by name, with wildcards
fl.corpus(kind="gallery")                            # example, gallery, forward or backward
fl.corpus(origin="self_attn")                        # by module
fd, inputs = fl.corpus()["adamw/forward/0"].load()   # small=True for the small form
```

An entry is a script that defines the fusion and describes its inputs, which `fl.load_repro` reads as data.
`python -m tests.corpus.capture` captures these regions again; `python -m tests.benchmarks.corpus plans kernels torch
page` measures all of it and writes this page.
"""


def _filled_text(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 127, break_long_words=False, break_on_hyphens=False)


def _plans(rows: Sequence[Row], total: int) -> str:
    segments = Counter(name for row in rows for name in row["segments"])
    counts = Counter(min(len(row["segments"]), 6) for row in rows)
    seconds = sorted(row["segment seconds"] for row in rows)
    lines = "\n".join(
        f"| {name} | {count} | {count / segments.total():.1%} | {_fusions(rows, name)} |"
        for name, count in segments.most_common()
    )
    sizes = "\n".join(
        f"| {n if n < 6 else '6 or more'} | {counts[n]} | {counts[n] / len(rows):.1%} |" for n in sorted(counts)
    )
    moved, least = sum(row["moved"] for row in rows), sum(row["io"] for row in rows)
    return f"""## Segments by scheduler

Segmented bottom-up, as in nvFuser, for an H200 at real sizes: {len(rows)} of {total} fusions. Segmenting takes a median
of {1e3 * statistics.median(seconds):.0f} ms and at most {seconds[-1]:.1f} s (processor time).

| scheduler | segments | share | fusions with one |
|---|---|---|---|
{lines}
| all | {segments.total()} | | {len(rows)} |

| segments of a fusion | fusions | share |
|---|---|---|
{sizes}

All segments together read and write {moved / 1e9:,.0f} GB, {moved / least:.2f} times the inputs and outputs of the
fusions.
"""


def _fusions(rows: Sequence[Row], name: str) -> int:
    return sum(name in row["segments"] for row in rows)


def _reasons(rows: Sequence[Row]) -> str:
    found: dict[str, list[Place]] = {}
    for row in rows:
        for code, by, crossing in row["boundaries"]:
            found.setdefault(code, []).append((row["name"], by, crossing))
    total = sum(map(_crossing, found.values()))
    ranked = sorted(found.items(), key=lambda item: -_crossing(item[1]))
    lines = "\n".join(_reason(code, places, total) for code, places in ranked)
    said = f"""
        Segments of {sum(bool(row["boundaries"]) for row in rows)} fusions meet at {sum(map(len, found.values()))}
        boundaries. The decisive refusal at a boundary is that of the scheduler that came closest to accepting, or the
        segmenter's own: a `segment_set`, or a cycle through another segment. The table ranks nvFuser's rules by the
        bytes that pass from one segment to the other, {total / 1e9:,.0f} GB; a tensor that several segments read counts
        at each boundary. A few fusions with large attention scores dominate, so the table also says how many fusions a
        rule affects. The example is the fusion in which the rule costs most."""
    return f"""## Refusals by reason

{_filled_text(said)}

| reason | refused by | GB | share | boundaries | fusions | example |
|---|---|---|---|---|---|---|
{lines}
"""


def _reason(code: str, places: Sequence[Place], total: int) -> str:
    by = Counter(who for _, who, _ in places)
    fusions: Counter[str] = Counter()
    for name, _, crossing in places:
        fusions[name] += crossing
    who = ", ".join(name for name, _ in by.most_common())
    nbytes = _crossing(places)
    return (
        f"| {_linked(code)} | {who} | {nbytes / 1e9:,.2f} | {nbytes / (total or 1):.1%} | {len(places)} | "
        f"{len(fusions)} | `{fusions.most_common(1)[0][0]}` |"
    )


def _crossing(places: Iterable[Place]) -> int:
    return sum(crossing for _, _, crossing in places)


def _linked(code: str) -> str:
    """Return the name of a reason, with a link if the page of reasons lists it."""
    name = code.replace("_", " ")
    return f"[{name}](reasons.md#{code})" if f"\n## {code}\n" in REASONS.read_text() else name


def _certificates(rows: Sequence[Row]) -> str:
    known = [row for row in rows if row.get("legal")]
    optimal = [row for row in known if row["optimal"]]
    better = [row for row in known if row["known"] < row["cost"]]
    unknown = len(known) - len(optimal) - len([row for row in better if not row["optimal"]])
    gaps = sorted(row["cost"] / row["known"] - 1 for row in better)
    open_gaps = sorted(row["cost"] / row["bound"] - 1 for row in known if not row["optimal"])
    saved = sum(row["cost"] - row["known"] for row in better) / (sum(row["cost"] for row in known) or 1)
    worst = sorted(better, key=lambda row: row["known"] - row["cost"])[:8]
    lines = "\n".join(
        f"| `{row['name']}` | {len(row['segments'])} | {row['cost'] / 1e6:,.0f} | {row['known'] / 1e6:,.0f} | "
        f"{row['cost'] / row['known']:.2f} |"
        for row in worst
    )
    seconds = sorted(row["certificate seconds"] for row in known)
    middle = f"{statistics.median(gaps):.1%} (median) to {gaps[-1]:.1%}" if gaps else "nothing"
    bound = f"{statistics.median(open_gaps):.1%}" if open_gaps else "0 %"
    took = f"a median of {1e3 * statistics.median(seconds):.0f} ms and at most {seconds[-1]:.0f} s"
    said = f"""
        `plan.certificate(states={STATES})` compares each plan with the cheapest one under the model of bytes and
        launches ([how](optimal.md)). Of {len(known)} plans with a certificate (fusions of at most {MOST_OPS} ops),
        {len(optimal)} are proved optimal, for {len(better)} a cheaper one was found, and {unknown} are open. If a
        cheaper one was found, the greedy plan costs {middle} more. For the plans that are not proved optimal, the
        median gap to the lower bound is {bound}. Together, the cheaper plans save {saved:.1%} of the total cost. A
        certificate takes {took} (processor time)."""
    return f"""## Bottom-up and the optimum

{_filled_text(said)}

The fusions with the largest loss:

| fusion | segments | cost, MB | cheapest known, MB | ratio |
|---|---|---|---|---|
{lines}

A launch counts as the bytes that memory could move in the same time.
"""


def on_gpus() -> str:
    """Return the section on the kernels of the corpus that `measure_kernels` measured, from the stored files."""
    lines, said = [], []
    for name in ("H200", "H100"):
        found = load(ROOT / "tests" / "data" / "kernels" / f"{name}.csv.gz")
        copy = 1e9 * float(found.facts["copy"].split()[0])
        shares: dict[str, list[float]] = {}
        for row in found.good:
            moved = row.features.read + row.features.written
            if not row.params and row.fusion.startswith("corpus/") and moved >= _LARGE:
                for group in ("all", row.scheduler):
                    shares.setdefault(group, []).append(moved / copy / row.median)
        said.append(f"{name} {found.facts['begun'][:10]}, torch {found.facts['torch']}, copy {copy / 1e9:.0f} GB/s")
        for group, ours in sorted(shares.items(), key=lambda item: -len(item[1])):
            quartiles = statistics.quantiles(ours, n=4, method="inclusive")
            lines.append(f"| {name} | {group} | {len(ours)} | {' | '.join(f'{one:.2f}' for one in quartiles)} |")
    text = f"""
        Kernels of segments that read and write at least {_LARGE / 1e6:.0f} MB, with the heuristics' parameters, as
        `tests.benchmarks.measure_kernels` measured them, in random order, until its time limit ({'; '.join(said)}). The
        share is the rate at which a kernel moves the bytes that it accesses, each counted once, relative to that of a
        device copy, with a cold L2 cache. Kernels for sums over axes that a reshape merges, and for small windows, have
        changed since."""
    rows = "\n".join(lines)
    return f"""## Kernels on GPUs

{_filled_text(text)}

| device | scheduler | kernels | lower quartile | median | upper quartile |
|---|---|---|---|---|---|
{rows}
"""


def _kernels(rows: Sequence[Row], machine: str) -> str:
    good = [row for row in rows if "failed" not in row and row["median"] and row["median"] > 0]
    if not good:
        return ""
    by: dict[str, list[Row]] = {}
    for row in good:
        name = row["segments"][0] if len(row["segments"]) == 1 else "several segments"
        by.setdefault(name, []).append(row)
    lines = "\n".join(
        f"| {name} | {len(group)} | {_quartile(group, 1):.2f} | {_quartile(group, 2):.2f} | {_quartile(group, 3):.2f} |"
        for name, group in sorted(by.items(), key=lambda item: -len(item[1]))
    )
    loads = [row["load"] for row in good]
    worst = max(row["error"] for row in good if row["error"] == row["error"])
    said = f"""
        Small forms of {len(good)} entries, spread evenly over the corpus: {machine}, between {min(loads):.0f} and
        {max(loads):.0f} runnable processes. On such a machine the figures are noisy: they compare a kernel with a copy,
        and do not say how fast either is on a quiet machine. The share is the rate of inputs and outputs, each counted
        once, relative to that of a copy of as many bytes (`fuser_lab.lab.calibration.machine_model`). Every result was
        compared with the reference; the largest deviation is {worst:.2f} of the rounding error bound."""
    return f"""## Kernels on the CPU

{_filled_text(said)}

| segments | fusions | lower quartile | median | upper quartile |
|---|---|---|---|---|
{lines}
"""


def _quartile(rows: Sequence[Row], which: int) -> float:
    shares = [row["share"] for row in rows]
    return shares[0] if len(shares) == 1 else statistics.quantiles(shares, n=4, method="inclusive")[which - 1]


def _torch(rows: Sequence[Row], machine: str) -> str:
    good = [row for row in rows if "failed" not in row and len([v for v in row["medians"].values() if v]) == 3]
    if not good:
        return ""
    told = []
    for row in sorted(good, key=lambda row: row["name"]):
        medians = {name.rpartition(": ")[2]: value for name, value in row["medians"].items()}  # "model: eager"
        ours = medians["fuser_lab"]
        told.append((row["name"], ours, medians["eager"] / ours, medians["inductor"] / ours))
    lines = "\n".join(f"| {name} | {1e6 * ours:,.0f} | {a:.2f} | {b:.2f} |" for name, ours, a, b in told)
    mean = [math.exp(statistics.fmean(math.log(row[n]) for row in told)) for n in (2, 3)]
    loads = [row["load"] for row in good]
    said = f"""
        {len(good)} functions, spread evenly over those captured, in their small form and forward only: {machine}, torch
        {good[0]['torch']} with the backends `eager` and `inductor` (g++), between {min(loads):.0f} and {max(loads):.0f}
        runnable processes. The three are sampled round-robin. Above 1, fuser_lab is faster."""
    return f"""## Compared with torch.compile

{_filled_text(said)}

| function | µs | eager / ours | torch.compile / ours |
|---|---|---|---|
{lines}
| geometric mean | | {mean[0]:.2f} | {mean[1]:.2f} |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["plans"], help="plans, kernels, torch or page; plans by default")
    parser.add_argument("--rows", type=Path, default=ROOT / "test-output" / "corpus.jsonl", help="the file of rows")
    parser.add_argument("--name", help="only entries whose names match a pattern")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit for each of kernels and torch")
    parser.add_argument("--sample", type=float, default=0.2, help="seconds per measurement")
    parser.add_argument("--states", type=int, default=STATES)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, corpus = Rows(chosen.rows), fl.corpus(chosen.name)
    print(f"{len(corpus)} entries, {platform.processor() or platform.machine()}", flush=True)
    if "plans" in chosen.parts:
        measure(rows, "plans", spread(corpus), lambda entry: plan_row(entry, chosen.states))
    if "kernels" in chosen.parts:
        fits = [one for one in corpus if _fits(one)]
        measure(rows, "kernels", spread(fits), lambda entry: kernel_row(entry, chosen.sample), chosen.seconds)
    if "torch" in chosen.parts:
        from tests.corpus.functions import FUNCTIONS

        entries = list(map(NamedFunction, FUNCTIONS))
        measure(
            rows, "torch", spread(entries), lambda entry: torch_row(entry.function, chosen.sample), chosen.seconds,
        )
    if "page" in chosen.parts:
        PAGE.write_text(page(corpus, rows))


def _fits(entry: Any) -> bool:
    if not entry.small_script:
        return bool(entry.bytes <= MOST_BYTES)
    fd, inputs = entry.load(small=True)
    del fd
    return sum(one.nbytes for one in inputs if isinstance(one, TensorSpec)) <= MOST_BYTES


if __name__ == "__main__":
    main()
