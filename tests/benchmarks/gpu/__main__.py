"""Run the workloads on one GPU: ``python -m tests.benchmarks.gpu [--set NAME] [--only NAME,...] [--peers NAME,...]``.

``--strategy fastest`` measures the plans of another strategy. ``--processes N`` first distributes one untimed run of
all workloads over N processes, so that the kernels of fuser_lab and torch.compile come from their disk caches.

Each line is one workload: the share of a device copy's rate that fuser_lab and each peer reach in the same run, then
the plan's segments and kernels. Times are medians of device time with the L2 cache flushed before each run; calls are
replayed as CUDA graphs where they can be captured, so that gaps between kernels are not counted. The peer
``specialized`` is fuser_lab with kernels that take no sizes as arguments, ``bottom_up`` with nvFuser's plan, ``liger``
and ``quack`` are libraries (see `tests.benchmarks.gpu.libraries`). Our results, with any plan, are checked against
torch in Float before they are timed. The spread is that of the middle half of the samples; shares whose spreads overlap
are called ties.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import torch
import triton.testing

import fuser_lab as fl
from fuser_lab.runtime.gpu.ptx import compile_phases, machine_code
from tests.benchmarks.gpu.libraries import KERNELS, library_call
from tests.benchmarks.gpu.workloads import WORKLOADS
from tests.benchmarks.new_sizes import specialized
from tests.benchmarks.second import SECOND
from tests.benchmarks.third import THIRD
from tests.benchmarks.written import Written, error, several

SETS: dict[str, tuple[Written, ...]] = {
    "first": WORKLOADS, "second": SECOND, "third": THIRD, "all": (*WORKLOADS, *SECOND, *THIRD),
}
PEERS = ("compile", "max", "eager", "jax", "specialized", "bottom_up", *KERNELS)
LIBRARIES = 4  # factor on the allowed deviation for libraries, some of which round intermediate results


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds: the median of the samples and the bounds of their middle half; NaN if not measured."""

    median: float = math.nan
    low: float = math.nan
    high: float = math.nan

    def meets(self, other: "Measured") -> bool:
        return self.low <= other.high and other.low <= self.high


def milliseconds(call: Any, rep: int) -> Measured:
    return Measured(*triton.testing.do_bench(call, warmup=25, rep=rep, quantiles=[0.5, 0.25, 0.75]))


def captured(call: Any) -> Any:
    """The call as a CUDA graph, or the call itself if it cannot be captured."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            kept = call()
    except Exception as problem:  # noqa: BLE001 - libraries raise what they like
        torch.cuda.synchronize()
        print(f"  not captured: {problem!r:.120}")
        return call
    graph.kept = kept  # the graph writes to this memory
    return graph.replay


def copy_rate(rep: int) -> float:
    """Bytes per millisecond, read and written, of a copy of 1 GiB."""
    source = torch.randn(1 << 29, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source), rep).median


def check(load: Written, got: list[Any], inputs: list[Any]) -> float:
    """The worst deviation as a share of the allowed one."""
    return error(load, got, load.reference(inputs))


def compiled(plan: Any, inputs: list[Any]) -> tuple[list[str], float]:
    """The registers and spills of each kernel, and the seconds to compile them without a cache."""
    found, begin = [], time.perf_counter()
    for step in plan.prepare("cuda").steps(inputs):
        if step.generated is None:
            found.append(f"evaluated: {step.evaluated_because}")
            continue
        for phase in compile_phases(step.generated):
            _, log = machine_code(phase.ptx, (9, 0))
            registers = re.search(r"Used (\d+) registers", log)
            spills = sum(map(int, re.findall(r"(\d+) bytes spill", log)))
            launch = phase.phase.launch
            threads = launch.threads[0] * launch.threads[1]
            text = f"{launch.blocks}x{threads} {registers.group(1) if registers else '?'}r"
            found.append(text + (f" {spills}B spilled" if spills else ""))
    return found, time.perf_counter() - begin


def bound(plan: Any, inputs: list[Any], outputs: list[Any]) -> tuple[Any, Any]:
    """A plan's run into given outputs, and the cleanup after the last one."""
    made = plan.prepare("cuda").bind(inputs, outputs)

    def run() -> None:
        for step in made.steps:
            step()

    return run, made.finish


def checked(load: Written, plan: Any, inputs: list[Any], outputs: list[Any]) -> tuple[Any, float]:
    """A plan's run into outputs of an earlier run, and the deviation of its results."""
    for output in outputs:
        output.fill_(math.nan if output.is_floating_point() else 0)
    run, finish = bound(plan, inputs, outputs)
    run()
    finish()
    torch.cuda.synchronize()
    return run, check(load, outputs, inputs)


def ours(load: Written, inputs: list[Any], rep: int, strategy: Any, *, kernels: bool) -> dict[str, Any]:
    begin = time.perf_counter()
    plan = fl.segment(load.definition(), inputs, strategy=strategy)
    outputs = plan.prepare("cuda").run(inputs)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    run, deviation = checked(load, plan, inputs, outputs)
    texts, seconds = compiled(plan, inputs) if kernels else ([], math.nan)
    return {
        "ms": milliseconds(captured(run), rep) if deviation < 1 else Measured(), "error": deviation, "first_s": first,
        "segments": [s.scheduler.value if s.scheduler else "none" for s in plan.segments], "kernels": texts,
        "compile_s": seconds,
    }


def peer(name: str, load: Written, inputs: list[Any], rep: int) -> Measured:
    if name == "jax":
        return by_jax(load)
    if name in KERNELS:
        call = library_call(name, load.name, inputs)
        if call is None:
            return Measured()
        deviation = check(load, several(call()), inputs)
        if not deviation < LIBRARIES:
            print(f"  {name}: error {deviation:.2f}")
            return Measured()
        return milliseconds(captured(call), rep)
    if name in {"specialized", "bottom_up"}:
        plan = fl.segment(load.definition(), inputs)
        plan = specialized(plan, "cuda") if name == "specialized" else plan
        run, deviation = checked(load, plan, inputs, plan.prepare("cuda").run(inputs))
        if not deviation < 1:
            print(f"  {name}: error {deviation:.2f}")
            return Measured()
        return milliseconds(captured(run), rep)
    if name == "eager":
        return milliseconds(captured(lambda: load.torch(*inputs)), rep)
    torch._dynamo.reset()
    mode = "max-autotune-no-cudagraphs" if name == "max" else None
    function = torch.compile(load.torch, dynamic=False, mode=mode)
    return milliseconds(captured(lambda: function(*inputs)), rep)


def by_jax(load: Written) -> Measured:
    if load.jax is None:
        return Measured()
    import jax

    keys = jax.random.split(jax.random.PRNGKey(0), len(load.shapes))
    given = [jax.random.normal(k, s, dtype="bfloat16") for k, s in zip(keys, load.shapes, strict=True)]
    function = jax.jit(load.jax)
    jax.block_until_ready(function(*given))
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(20):
            result = function(*given)
        jax.block_until_ready(result)
        found.append((time.perf_counter() - begin) / 20 * 1e3)
    _, low, median, high, _ = sorted(found)
    return Measured(median, low, high)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--set", choices=sorted(SETS), default="first")
    parser.add_argument("--peers", default="compile,max,jax", help=f"some of {','.join(PEERS)}, or none")
    parser.add_argument("--rep", type=int, default=60, help="milliseconds to measure each call for")
    parser.add_argument("--strategy", default="bottom_up", help="the strategy that cuts the workloads")
    parser.add_argument("--processes", type=int, default=0, help="processes that fill the caches first")
    parser.add_argument("--no-kernels", action="store_true", help="do not recompile kernels to read their registers")
    options = parser.parse_args()
    peers = [] if options.peers == "none" else options.peers.split(",")
    chosen = [w for w in SETS[options.set] if not options.only or w.name in options.only.split(",")]
    if options.processes:
        fill_caches([load.name for load in chosen], options)
    rate = copy_rate(options.rep)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {rate / 1e6:.0f} GB/s")
    rows: dict[str, dict[str, Any]] = {}
    for load in chosen:
        inputs, floor = load.inputs("cuda"), load.nbytes / rate
        row: dict[str, Any] = {"floor_ms": floor}
        try:
            row |= ours(load, inputs, options.rep, options.strategy, kernels=not options.no_kernels)
        except Exception as problem:  # noqa: BLE001 - the others are measured all the same
            print(f"{load.name}: {problem!r:.300}")
            traceback.print_exc(limit=-1)
            row |= {"ms": Measured(), "error": math.nan, "first_s": math.nan, "compile_s": math.nan}
            row |= {"segments": [], "kernels": []}
        for name in peers:
            try:
                row[name] = peer(name, load, inputs, options.rep)
            except Exception as problem:  # noqa: BLE001
                print(f"  {name}: {problem!r:.200}")
                row[name] = Measured()
        rows[load.name] = row
        print(line(load, row, peers), flush=True)
        del inputs
        torch.cuda.empty_cache()
    print("\n".join(summary(rows, peers)))
    if os.environ.get("OUT"):
        place = Path(os.environ["OUT"])
        (place / "gpu_benchmarks.md").write_text("\n".join([*table(rows, peers), "", *summary(rows, peers)]) + "\n")
        (place / "gpu_benchmarks.json").write_text(
            json.dumps({"copy_bytes_per_ms": rate, "rows": rows}, indent=1, default=asdict),
        )


def fill_caches(names: list[str], options: argparse.Namespace) -> None:
    """Run all workloads briefly in parallel processes; their output is discarded."""
    fixed = ["--set", options.set, "--peers", options.peers, "--strategy", options.strategy]
    environment = {name: value for name, value in os.environ.items() if name != "OUT"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.gpu", *fixed, "--rep", "1", "--no-kernels", "--only",
             ",".join(part)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
        )
        for number in range(options.processes) if (part := names[number :: options.processes])
    ]
    for process in running:
        process.wait()


def share(row: dict[str, Any], name: str = "ms") -> float:
    return float(row["floor_ms"] / row[name].median)


def best_of(row: dict[str, Any], peers: list[str]) -> str | None:
    """The peer with the largest share, if any was measured."""
    return max((n for n in peers if not math.isnan(row[n].median)), key=lambda n: share(row, n), default=None)


def against_best(row: dict[str, Any], peers: list[str]) -> str:
    """Our share divided by that of the best peer; a tie if the spreads overlap."""
    best = best_of(row, peers)
    if best is None or math.isnan(row["ms"].median):
        return ""
    return f"{share(row) / share(row, best):.2f}" + (" (tie)" if row["ms"].meets(row[best]) else "")


def line(load: Written, row: dict[str, Any], peers: list[str]) -> str:
    text = f"{load.name:21s} {share(row):5.2f}" + (" " if share(row) >= load.bar else "<")
    text += "".join(f"  {name} {share(row, name):.2f}" for name in peers if not math.isnan(row[name].median))
    ratio, spread = against_best(row, peers), (row["ms"].high - row["ms"].low) / row["ms"].median
    text += f"  ratio {ratio}" if ratio else ""
    text += f"  {row['ms'].median * 1e3:.0f} us +-{spread / 2:.1%}, error {row['error']:.2f}"
    return text + f", {'+'.join(row['segments'])} [{'; '.join(row['kernels'])}] compiled {row['compile_s']:.1f} s"


def table(rows: dict[str, dict[str, Any]], peers: list[str]) -> list[str]:
    """Lines of a Markdown table of shares."""
    labels = {"compile": "torch.compile", "max": "max-autotune", "eager": "torch eager", "jax": "JAX"}
    labels |= {"specialized": "all sizes constant", "bottom_up": "bottom-up", "liger": "Liger", "quack": "QuACK"}
    head = ["workload", "us", "fuser_lab", *(labels[n] for n in peers), "ours / best peer"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, row in rows.items():
        shares = [f"{share(row, n):.2f}" if not math.isnan(row[n].median) else "" for n in ("ms", *peers)]
        cells = [name, f"{row['ms'].median * 1e3:.0f}", *shares, against_best(row, peers)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary(rows: dict[str, dict[str, Any]], peers: list[str]) -> list[str]:
    """Geometric means of shares, ours also over the workloads that each peer was measured on."""
    lines = []
    for name in ["ms", *peers]:
        both = [row for row in rows.values() if not math.isnan(row[name].median) and not math.isnan(row["ms"].median)]
        if not both:
            continue
        mine, theirs = (math.exp(sum(math.log(share(row, n)) for row in both) / len(both)) for n in ("ms", name))
        text = f"geometric mean, {'fuser_lab' if name == 'ms' else name}: {theirs:.3f} of {len(both)}"
        lines.append(text if name == "ms" else f"{text}; fuser_lab on the same {mine:.3f}, {mine / theirs:.2f} times")
    return lines


if __name__ == "__main__":
    main()
