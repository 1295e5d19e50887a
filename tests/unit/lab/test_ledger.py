"""The ledger: rows of any number of writers are read once, whenever a process ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.errors import InputError, LedgerWarning, UnsupportedError
from fuser_lab.lab import ledger as ledger_module
from fuser_lab.lab import query, store
from fuser_lab.lab.schema import COLUMNS
from tests.benchmarks import lab

WRITER = """
import sys
from fuser_lab.lab.ledger import Ledger
with Ledger(sys.argv[1]) as ledger:
    for number in range(int(sys.argv[2])):
        ledger.append({"plan": sys.argv[3], "segment": number})
        if sys.argv[4] == "tell":
            print(number, flush=True)
"""


@pytest.fixture
def without_duckdb(monkeypatch):
    monkeypatch.setattr(query, "duckdb_module", lambda: None)
    monkeypatch.setattr(ledger_module, "duckdb_module", lambda: None)


def softmax(rows=64):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
        fd.add_output(fd.ops.truediv(e, fd.ops.sum(e, [1], True)))
    inputs = [np.random.default_rng(0).standard_normal((rows, 32), np.float32)]
    return fl.segment(fd, inputs), inputs


def counted(ledger):
    rows = ledger.sql("SELECT plan, segment FROM rows")
    return Counter(zip(rows["plan"], map(int, rows["segment"]), strict=True))


def test_timings_are_kept_with_what_they_were_made_of(tmp_path):
    plan, inputs = softmax()
    with fl.Ledger(tmp_path) as ledger:
        times = fl.time(plan, inputs, seconds=0.02, progress=False, ledger=ledger)
        rows = ledger.to_pandas()
        assert ledger.timings() == times
    assert list(rows["plan_hash"]) == [plan.hash] * 2
    assert set(rows["sizes"]) == {"[[64,32]]"}
    assert json.loads(rows["versions"][0])["numba"]
    assert [len(samples) for samples in rows["samples"]] == [row.samples for row in times.rows]
    segment = rows[rows["segment"] == 0].iloc[0]
    assert "grain" in segment["schedule"]
    assert segment["kernel_hash"]
    scope: dict[str, object] = {}
    exec(segment["plan_python"], scope)
    assert scope["plan"] == plan
    assert [column.name for column in COLUMNS] == list(rows.columns)


def test_without_duckdb_sqlite_answers(tmp_path, without_duckdb):
    with fl.Ledger(tmp_path) as ledger:
        ledger.append({"plan": "a", "segment": 1, "samples": [1.0, 2.0], "median": float("nan")})
        (row,) = ledger.sql("SELECT plan, samples, median FROM rows WHERE segment = ?", [1]).itertuples(index=False)
        assert tuple(row) == ("a", "[1.0,2.0]", None)
        assert ledger.pack() == 0
        with pytest.raises(InputError, match="no such column: nowhere"):
            ledger.sql("SELECT nowhere FROM rows")
    (tmp_path / "rows-1.parquet").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="pip install duckdb"):
        ledger.to_pandas()


def test_writers_do_not_lose_each_others_rows(tmp_path):
    names = ["a", "b", "c"]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, "200", name, ""]) for name in names]
    ledger = fl.Ledger(tmp_path)
    while any(writer.poll() is None for writer in writers):
        time.sleep(0.1)
        ledger.pack()
        assert set(counted(ledger).values()) <= {1}, "each row is read once, even while files are packed"
    assert counted(ledger) == Counter((name, number) for name in names for number in range(200))


@pytest.mark.skipif(store.fcntl is None, reason="without file locks, no process packs")
def test_a_packer_does_not_take_a_journal_that_is_being_made(tmp_path, monkeypatch):
    locked = store.fcntl.flock

    def late(file, kind):
        if kind == store.fcntl.LOCK_EX:  # held by a writer; a packer does not wait for its locks
            fl.Ledger(tmp_path).pack()
        locked(file, kind)

    monkeypatch.setattr(store.fcntl, "flock", late)
    with fl.Ledger(tmp_path) as ledger:
        ledger.append({"plan": "a", "segment": 0})
        assert counted(ledger) == {("a", 0): 1}


def test_a_writer_that_is_killed_loses_no_row_that_it_was_told_of(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path, "100000", "a", "tell"], stdout=subprocess.PIPE, text=True,
    ) as writer:
        for _ in range(50):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        last = max(map(int, writer.stdout.read().split()), default=49)
    ledger = fl.Ledger(tmp_path)
    for _ in range(2):
        found = counted(ledger)
        assert set(found.values()) == {1}
        assert set(range(last + 1)) <= {number for _, number in found}
        assert ledger.pack() in {0, 1}
    assert not ledger.damaged


class Killed(BaseException):
    """Simulates SIGKILL: nothing in the package catches it."""


@pytest.mark.parametrize("at", range(12))
def test_a_packer_that_is_killed_at_any_step_neither_loses_nor_doubles_a_row(at, tmp_path, monkeypatch):
    pytest.importorskip("duckdb")
    for name in ("a", "b"):
        with fl.Ledger(tmp_path) as ledger:
            ledger.append({"plan": name, "segment": 0})
    fl.Ledger(tmp_path).pack()
    with fl.Ledger(tmp_path) as ledger:
        ledger.append({"plan": "c", "segment": 0})
    steps = iter(range(100))

    def killing(function):
        def called(*arguments, **options):
            if next(steps) == at:
                raise Killed
            return function(*arguments, **options)

        return called

    monkeypatch.setattr(ledger_module, "_MANY_PARQUET", 0)
    with monkeypatch.context() as patch:
        for name in ("replace", "unlink", "write_text"):
            patch.setattr(Path, name, killing(getattr(Path, name)))
        patch.setattr(os, "fsync", killing(os.fsync))
        try:
            fl.Ledger(tmp_path).pack()
        except Killed:
            pass
        else:
            assert at > 6, "fewer steps than the test assumes"
    ledger = fl.Ledger(tmp_path)
    for _ in range(2):
        assert counted(ledger) == Counter({("a", 0): 1, ("b", 0): 1, ("c", 0): 1})
        ledger.pack()
    assert not list(tmp_path.glob("*.unfinished"))
    assert not list(tmp_path.glob("*.sources"))


def test_damaged_files_cost_their_own_rows_and_are_named(tmp_path):
    pytest.importorskip("duckdb")
    for number in range(3):
        with fl.Ledger(tmp_path) as ledger:
            ledger.append({"plan": "a", "segment": number})
        if number == 0:
            ledger.pack()
    (parquet,) = tmp_path.glob("*.parquet")
    content = bytearray(parquet.read_bytes())
    content[4:200] = bytes(196)
    parquet.write_bytes(content)
    journal = min(tmp_path.glob("*.jsonl"))
    journal.write_bytes(b"{]\n" + journal.read_bytes() + b'{"id": "in fli')
    with pytest.warns(LedgerWarning, match=f"{journal.name} is damaged: 1 of 2 lines are not rows"):
        assert set(counted(ledger)) == {("a", 1), ("a", 2)}
    assert {one.file for one in ledger.damaged} == {parquet.name, journal.name}
    with pytest.warns(LedgerWarning), pytest.raises(InputError, match=r"Ledger\.timings: .* has no measurement x"):
        ledger.timings("x")


def test_files_of_an_earlier_version_lack_columns(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    ledger = fl.Ledger(tmp_path)
    duckdb.sql(f"COPY (SELECT '1' AS id, 'a' AS plan, 2 AS segment) TO '{tmp_path}/rows-1.parquet' (FORMAT parquet)")
    ledger.append({"plan": "b", "segment": 0, "task": "key"})
    rows = ledger.sql("SELECT plan, segment, task FROM rows ORDER BY plan")
    assert [tuple(row) for row in rows.fillna("").itertuples(index=False)] == [("a", 2, ""), ("b", 0, "key")]
    ledger.close()
    assert ledger.pack() == 1
    assert counted(ledger) == Counter({("a", 2): 1, ("b", 0): 1})


def test_what_no_ledger_can_be_is_refused(tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(InputError, match="cannot be used as a ledger"):
        fl.Ledger(place)
    fl.Ledger(tmp_path / "newer").close()
    (tmp_path / "newer" / "ledger.json").write_text('{"version": 2}')
    with pytest.raises(InputError, match="has version 2, and this version of fuser_lab reads version 1"):
        fl.Ledger(tmp_path / "newer")
    (tmp_path / "newer" / "ledger.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        fl.Ledger(tmp_path / "newer")
    ledger = fl.Ledger(tmp_path / "ours")
    with pytest.raises(InputError, match="unknown column planet; choose from"):
        ledger.append({"planet": 1})
    for value in (1, ["a"], object(), float("nan")):
        with pytest.raises(InputError, match="the column 'plan' is VARCHAR, given "):
            ledger.append({"plan": value})
    with pytest.raises(InputError, match=r"Ledger\.sql: "):
        ledger.sql("SELEKT 1")
    assert ledger.sql("SELECT count(*) AS n FROM rows")["n"][0] == 0


@pytest.mark.parametrize("bar", ["append", "question"])
def test_the_benchmark_of_a_ledger_runs(bar):
    if bar == "question":
        pytest.importorskip("duckdb")
    (found,) = lab.BARS[bar](1e-5)
    assert found.measured > 0
    assert found.holds == (found.measured <= found.limit)


def test_a_full_disk_leaves_whole_rows(tmp_path, monkeypatch):
    ledger = fl.Ledger(tmp_path)
    ledger.append({"plan": "a", "segment": 0})
    write = os.write
    monkeypatch.setattr(store.os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(InputError, match="cannot store a row: the disk is full"):
        ledger.append({"plan": "a", "segment": 1})
    monkeypatch.setattr(store.os, "write", write)
    ledger.append({"plan": "a", "segment": 2})
    assert set(counted(ledger)) == {("a", 0), ("a", 2)}
    assert not ledger.damaged
