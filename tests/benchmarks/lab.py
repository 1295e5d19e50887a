"""Promises of the ledger and of sweeps, measured: ``python -m tests.benchmarks.lab``.

Each line is one promise: the measured value, the limit, and whether it holds. ``--only NAME`` runs one of them;
``--scale 0.01`` reduces the number of rows, tasks and runs.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fuser_lab as fl
from fuser_lab.lab.query import duckdb_module
from fuser_lab.lab.schema import COLUMNS
from fuser_lab.lab.sweeps import Sweep

WRITER = """
import sys
from fuser_lab.lab.ledger import Ledger
with Ledger(sys.argv[1]) as ledger:
    for number in range(int(sys.argv[2])):
        ledger.append({"plan": sys.argv[3], "segment": number, "samples": [1e-6] * 100})
        if sys.argv[4] == "tell":
            print(number, flush=True)
"""
QUESTION = "SELECT fusion_hash, commit, median(median) FROM rows GROUP BY fusion_hash, commit"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One promise: ``measured`` and ``limit`` in ``unit``; ``note`` describes the case."""

    name: str
    measured: float
    limit: float
    unit: str
    note: str

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit


@contextmanager
def folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp())
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def question(scale: float) -> Iterator[Bar]:
    """Median by fusion and commit of many rows, in packed files."""
    count, files = max(int(10e6 * scale), 100), 16
    made = {
        "id": "uuid()", "measurement": "uuid()", "measured_at": "TIMESTAMP '2026-01-01' + n * INTERVAL 1 SECOND",
        "plan": "'bottom-up'", "median": "1e-5 * (1 + random())", "fusion_hash": "md5((n % 400)::VARCHAR)[:16]",
        "fusion": "repeat('fd.ops.add(T0, T1) ', 20) || (n % 400)", "commit": "md5((n % 50 + 1000)::VARCHAR)",
        "samples": "[1e-5 * random() for i in range(20)]",
    }
    columns = ", ".join(
        f"CAST({made.get(column.name, 'NULL')} AS {column.kind.duckdb}) AS \"{column.name}\"" for column in COLUMNS
    )
    with folder() as place, fl.Ledger(place) as ledger, duckdb_module().connect() as connection:
        for file in range(files):
            rows = f"range({file * count // files}, {(file + 1) * count // files}) AS t(n)"
            connection.execute(f"COPY (SELECT {columns} FROM {rows}) TO '{place}/rows-{file}.parquet' (FORMAT parquet)")
        ledger.append({"plan": "one row in a journal"})
        seconds, used = [], []
        for _ in range(3):
            start, began = time.perf_counter(), time.process_time()
            found = ledger.sql(QUESTION)
            seconds.append(time.perf_counter() - start)
            used.append(time.process_time() - began)
        note = (
            f"median by fusion and commit of {count:,} rows, {len(found):,} groups, median of 3; processor time "
            f"{statistics.median(used):.3g} s"
        )
        yield Bar(name="question", measured=statistics.median(seconds), limit=2.0, unit="s", note=note)


def append(scale: float) -> Iterator[Bar]:
    """Rows of a real measurement, with every column that it fills."""
    count = max(int(5000 * scale), 10)
    fd, inputs = fl.example("layer_norm")
    plan = fl.segment(fd, inputs)
    with folder() as place, fl.Ledger(place / "first") as first, fl.Ledger(place / "second") as second:
        fl.time(plan, inputs, seconds=0.01, progress=False, ledger=first)
        row = {name: value for name, value in first.to_pandas().iloc[0].to_dict().items() if isinstance(value, str)}
        row |= {"samples": [1e-5] * 1000, "median": 1e-5}
        start = time.process_time()  # an append does not wait
        for _ in range(count):
            second.append(row)
        each = (time.process_time() - start) / count
    note = f"of processor time per row with 1,000 samples, {count:,} rows"
    yield Bar(name="append", measured=1e3 * each, limit=1.0, unit="ms", note=note)


def writers(scale: float) -> Iterator[Bar]:
    """Sixteen processes append at once while this one packs and reads."""
    each = max(int(2000 * scale), 20)
    with folder() as place:
        started = [
            subprocess.Popen([sys.executable, "-c", WRITER, place, str(each), str(n), ""]) for n in range(16)
        ]
        ledger = fl.Ledger(place)
        while any(writer.poll() is None for writer in started):
            time.sleep(0.2)
            ledger.pack()
        found = _rows(ledger)
    wanted = {(str(n), number) for n in range(16) for number in range(each)}
    wrong = len(wanted ^ set(found)) + sum(count != 1 for count in found.values())
    note = f"lost or doubled of {len(wanted):,}, 16 writers"
    yield Bar(name="writers", measured=wrong, limit=0, unit="rows", note=note)


def kills(scale: float) -> Iterator[Bar]:
    """kill -9 at random moments: all confirmed rows exist, and at most one more."""
    runs, generator, lost = max(int(100 * scale), 2), random.Random(0), 0
    for _ in range(runs):
        with folder() as place:
            command = [sys.executable, "-c", WRITER, place, "1000000", "a", "tell"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
                writer.stdout.readline()
                time.sleep(generator.uniform(0, 0.2))
                writer.send_signal(signal.SIGKILL)
                told = max(map(int, writer.stdout.read().split()), default=0)
            found = _rows(fl.Ledger(place))
            numbers = {number for _, number in found}
            lost += len(set(range(told + 1)) - numbers) + sum(count != 1 for count in found.values())
    note = f"lost or doubled besides the row in flight, {runs} runs"
    yield Bar(name="kills", measured=lost, limit=0, unit="rows", note=note)


def sweeps(scale: float) -> Iterator[Bar]:
    """A sweep on one worker and on two, and the overhead per task."""
    from distributed import Client, LocalCluster

    count = max(int(2000 * scale), 16)
    seconds = {}
    for workers in (1, 2):
        with (
            LocalCluster(
                n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None,
            ) as cluster,
            Client(cluster) as client, folder() as place, fl.Ledger(place) as ledger,
        ):
            _swept(4 * workers, "warm-up").run(ledger, client, progress=False)  # workers import fuser_lab
            start, began = time.perf_counter(), time.process_time()
            _swept(count, "measured").run(ledger, client, progress=False)
            seconds[workers] = time.perf_counter() - start
            if workers == 1:
                work = ledger.sql("SELECT sum(elapsed) AS s FROM rows WHERE sweep = 'measured'")["s"][0]
                each = 1e3 * (seconds[1] - work) / count
                used = 1e3 * (time.process_time() - began) / count
    note = f"of one worker's {seconds[1]:.1f} s, {count:,} tasks over 2 workers, {os.cpu_count()} cores"
    yield Bar(name="sweeps", measured=seconds[2] / seconds[1], limit=0.55, unit="", note=note)
    note = f"per task on one worker, beyond the task itself; processor time of client and scheduler {used:.3g} ms"
    yield Bar(name="overhead", measured=each, limit=5.0, unit="ms", note=note)


def lost_worker(scale: float) -> Iterator[Bar]:
    """A worker that is killed in the middle of a sweep."""
    from distributed import Client, LocalCluster

    swept = _swept(max(int(200 * scale), 16), "killed")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client, folder() as place, fl.Ledger(place) as ledger,
    ):

        def kill(done: int, total: int, task: object) -> None:
            if done == total // 2:
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

        result = swept.run(ledger, client, progress=kill)
        rows = swept.to_pandas(ledger)
        found = Counter(rows["task"][rows["elapsed"].notna()])
    wrong = len({task.key for task in swept.tasks} ^ set(found)) + sum(count != 1 for count in found.values())
    note = f"missing, doubled or failed of {len(swept):,} with a worker killed"
    yield Bar(name="lost_worker", measured=wrong + len(result.failures), limit=0, unit="tasks", note=note)


def _swept(count: int, name: str) -> Sweep:
    """Return a sweep of a region that is typical of models, over many sizes, segmented and certified."""
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        weight = fd.define_tensor([-1], contiguity=True)
        inner = fd.ops.add(fd.ops.gelu(fd.ops.layer_norm(x, [-1], weight)), x)
        fd.add_output(fd.ops.softmax(inner, -1))
    sizes = [(64 + n % 100, 128 + 8 * (n // 100)) for n in range(count)]
    return fl.sweep({"region": fd}, sizes, work="certificate", name=name)


def _rows(ledger: fl.Ledger) -> Counter[tuple[str, int]]:
    rows = ledger.sql("SELECT plan, segment FROM rows")
    return Counter(zip(rows["plan"], map(int, rows["segment"]), strict=True))


BARS: dict[str, Callable[[float], Iterator[Bar]]] = {
    "question": question, "append": append, "writers": writers, "kills": kills, "sweeps": sweeps,
    "lost_worker": lost_worker,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=BARS, help="measure only this promise")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, tasks and runs")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    failed = 0
    for name in [given.only] if given.only else BARS:
        for bar in BARS[name](given.scale):
            failed += not bar.holds
            unit = f" {bar.unit}" if bar.unit else ""
            verdict = "holds" if bar.holds else "FAILS"
            measured = f"{bar.measured:>8.3g}{unit} (limit {bar.limit:g}{unit})"
            print(f"{bar.name:<12} {measured} {verdict}: {bar.note}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
