"""Workloads compiled, checked and measured: sequentially, or by several processes of which one measures at a time."""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.cpu.variants import OURS, SETS, Call, Load, error, limit_threads, missing, variant

CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter, "processor": time.process_time,
}


def measure(load: Load, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per variant, or the reason why they are missing."""
    row, calls = prepared(load, names, options)
    return measured(row, calls, options)


def prepared(
    load: Load, names: list[str], options: argparse.Namespace,
) -> tuple[dict[str, Any], dict[str, Call]]:
    """The calls of the variants, compiled and checked, and a row with their properties."""
    inputs = load.inputs()
    calls: dict[str, Call] = {}
    row: dict[str, Any] = {}
    expected = load.reference(inputs)
    for name in names:
        reason = missing(name, load)
        if reason:
            row[name] = {"skipped": reason}
            continue
        outs = load.outputs()
        try:
            call = variant(name, load, inputs, outs, options.strategy)
            call()
            deviation = error(load, outs, expected)
            if not deviation <= 1:
                row[name] = {"skipped": f"wrong by {deviation:.1e} of what is allowed"}
                continue
            calls[name], row[name] = call, {"error": deviation, "segments": getattr(call, "segments", 1)}
        except Exception as problem:
            if name == OURS:
                raise
            row[name] = {"skipped": f"{problem!r:.160}"}
    return row, calls


def measured(row: dict[str, Any], calls: dict[str, Call], options: argparse.Namespace) -> dict[str, Any]:
    """A row with the measured times of its calls."""
    for name, taken in sampled(calls, options.samples, CLOCKS[options.clock]).items():
        halved = options.clock == "processor" and name != "numpy"
        seconds = [s / options.threads for s in taken] if halved else taken
        row[name] |= {"median": statistics.median(seconds) * 1e3, "min": min(seconds) * 1e3, "samples": len(seconds)}
    return row


def every(chosen: list[Load], names: list[str], options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """The row of each workload; with several processes, each compiles a part, and then one measures at a time."""
    if options.processes < 2:
        for load in chosen:
            yield load.name, measure(load, names, options)
        return
    context = multiprocessing.get_context("spawn")
    count = min(options.processes, len(chosen))
    found, ready, turn = context.Queue(), context.Barrier(count), context.Lock()
    tasks = context.Queue()
    for name in [*(load.name for load in chosen), *[None] * count]:
        tasks.put(name)
    workers = [context.Process(target=share, args=(tasks, names, options, ready, turn, found)) for _ in range(count)]
    for worker in workers:
        worker.start()
    left = count
    while left:
        name, row = found.get()
        left -= name is None
        if name is not None and OURS in row:
            yield name, row
        elif name is not None:
            print(f"{name}: {row['failed']}", flush=True)
    for worker in workers:
        worker.join()


def share(tasks: Any, names: list[str], options: argparse.Namespace, ready: Any, turn: Any, found: Any) -> None:
    """Compile some workloads, wait for the other processes, and measure them when their turn comes."""
    limit_threads(options.threads)
    loads = {load.name: load for load in SETS["all"]}
    waiting = {}
    for name in iter(tasks.get, None):
        try:
            waiting[name] = prepared(loads[name], names, options)
        except Exception as problem:  # noqa: BLE001 - the others are measured all the same
            found.put((name, {"failed": f"{problem!r:.300}"}))
    ready.wait()
    for name, (row, calls) in waiting.items():
        with turn:
            measured(row, calls, options)
        found.put((name, row))
    found.put((None, None))


def sampled(calls: dict[str, Call], samples: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each call, measured round robin in an order that is reversed every other round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(samples + 2):
        for name in list(calls) if number % 2 else list(calls)[::-1]:
            begin = clock()
            calls[name]()
            if number >= 2:  # after two rounds of warm-up
                found[name].append(clock() - begin)
    return found
