"""Views of measurements: values against known answers, texts, and bad input."""

import itertools
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, views
from fuser_lab.cli import commands as cli
from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.lab.timings import with_views


def measured(commit, seconds, seed=0, **more):
    samples = seconds * (1 + 0.02 * np.random.default_rng(seed).standard_normal(60))
    return {
        "id": f"{commit}-{seed}", "plan": "p", "fusion_hash": "ab12", "segment": None, "device": "CPU",
        "commit": commit, "measured_at": f"2026-01-0{commit[0]}", "median": float(np.median(samples)),
        "low": float(np.quantile(samples, 0.25)), "high": float(np.quantile(samples, 0.75)),
        "samples": [float(s) for s in samples], "kernel_hash": "", **more,
    }


def timed(name, seconds, seed):
    row = measured("1", seconds, seed)
    return TimingRow(
        plan=name, segment=None, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0, device="CPU",
        median=row["median"], low=row["low"], high=row["high"], samples=60, seconds=tuple(row["samples"]),
    )


def chain(count, *, breadth_first):
    """Products of pairs of inputs that are summed in sequence; only the order of recording differs."""
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor(shape=[64, 64], contiguity=True, dtype=DataType.Float) for _ in range(2))
        made = [fd.ops.matmul(a, b) for _ in range(count)] if breadth_first else []
        total = None
        for n in range(count):
            product = made[n] if made else fd.ops.matmul(a, b)
            total = product if total is None else fd.ops.matmul(total, product)
        fd.add_output(total)
    return fl.segment(fd)


def drawn(view):
    root = ET.fromstring(view.svg())
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]


def test_cells_of_a_heat_map_are_medians_by_parts_of_columns():
    rows = [
        {"sizes": json.dumps([[m, n]]), "tags": {"width": str(n)}, "median": m * n * 1e-9 * k}
        for m, n, k in itertools.product((128, 64), (8, 1024), (1.0, 5.0, 2.0))
    ]
    found = views.heat_map(rows, "sizes[0][0]", "sizes[0][1]")
    assert found.columns == (64, 128)
    assert found.rows == (8, 1024)
    assert found.cells[128, 1024] == pytest.approx(128 * 1024 * 2e-9)
    assert set(found.counts.values()) == {3}
    assert views.heat_map(rows, "tags[width]", "sizes[0][0]").columns == ("1024", "8")
    assert "8 \\ " not in str(found)
    assert "128, 1024: 262 µs" in drawn(found)
    assert len(found.to_pandas()) == 4


def test_a_plan_is_beaten_only_by_one_that_is_no_worse_in_either():
    """b ties with a and needs more; d is slower than c and needs less, so both stay."""
    rows = (timed("a", 1.0, 1), timed("b", 1.0, 2), timed("c", 0.5, 3), timed("d", 2.0, 4), timed("e", 2.0, 5))
    costs = {"a": 20, "b": 30, "c": 50, "d": 10, "e": 60}
    found = {row.plan: row for row in views.frontier(with_views(Timings(rows=rows)), costs).rows}
    assert {name for name, row in found.items() if row.on_frontier} == {"a", "c", "d"}
    assert found["b"].beaten_by == "a"
    assert found["b"].ties == ("a",)
    with pytest.raises(InputError, match="no number for 'e'"):
        views.frontier(with_views(Timings(rows=rows)), dict.fromkeys("abcd", 1.0))


def test_a_history_orders_commits_by_time_and_marks_new_kernels():
    rows = [
        measured("3c", 2.0, kernel_hash="y", segment=0.0), measured("1a", 1.0, kernel_hash="x", segment=0.0),
        measured("2b", 1.0, 1, kernel_hash="x", segment=0.0), measured("2b", 1.2, 2, kernel_hash="x", segment=0.0),
        measured("1a", 9.0, 3),
    ]
    found = views.history(rows, segment=0)
    assert [(row.commit, row.measurements, row.is_new) for row in found.rows] == [
        ("1a", 1, False), ("2b", 2, False), ("3c", 1, True),
    ]
    assert "The kernel is new at 3c." in found.note
    assert len(views.history(rows).rows) == 1
    with pytest.raises(InputError, match="2 plans; set plan to one of p, q"):
        views.history([*rows, measured("1a", 1.0, plan="q")])


def test_regressions_are_those_beyond_the_samples_and_name_the_bisecting_command(tmp_path):
    rows = [
        measured("1a", 1.0, 1), measured("2b", 1.5, 2), measured("1a", 1.0, 3, plan="same"),
        measured("2b", 1.0, 4, plan="same"), measured("1a", 1.0, 5, plan="better"),
        measured("2b", 0.5, 6, plan="better"),
    ]
    with fl.Ledger(tmp_path / "my runs") as ledger:
        for row in rows:
            ledger.append({name: value for name, value in row.items() if name != "id"})
        found = views.regressions(ledger)
    assert [one.plan for one in found.rows] == ["p"]
    assert (found.compared, found.ties) == (3, 1)
    assert found.bisect[0] == "git bisect start 2b 1a"
    assert found.bisect[1].startswith(f"git bisect run python -m fuser_lab retime '{tmp_path}/my runs' ")
    assert float(found.bisect[1].rpartition(" ")[2]) == pytest.approx(1.5**0.5, rel=0.02)
    with pytest.raises(InputError, match="beginning of 0 commits; choose from 1a, 2b"):
        views.regressions(rows, "7")
    dirty = views.regressions([{**row, "commit": {"1a": "1a", "2b": "1a+"}[row["commit"]]} for row in rows])
    assert dirty.bisect == ()
    assert "the same commit" in dirty.note


def test_orders_of_ops_that_change_the_plan_are_found():
    """A rule that depends on the order: a segmenter that makes a segment of the first two ops."""
    def first_two(fusion, oracle):
        names = [e.name for e in fusion.exprs if e.tensor_outputs]
        return [names[:2], *([name] for name in names[2:])]

    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[1024], contiguity=True, dtype=DataType.Float)
        y = fd.define_tensor(shape=[8, 1024], contiguity=True, dtype=DataType.Float)
        for value in (fd.ops.neg(fd.ops.exp(x)), fd.ops.neg(fd.ops.exp(y))):
            fd.add_output(value)
    plan = fl.segment(fd, strategy=first_two)
    found = views.order_sensitivity(plan, 40)
    # The chain that is recorded first is one segment; if chains alternate, the first ops of both are.
    assert len(found.rows) >= 3
    assert found.distinct == 6 == sum(row.orders for row in found.rows)
    assert sum(row.is_given for row in found.rows) == 1
    assert found.spread > 1
    greedy = views.order_sensitivity(fl.segment(fd), 5)
    assert (len(greedy.rows), greedy.spread) == (1, 1.0)


def test_the_best_order_of_segments_is_that_of_all_orders():
    plan = chain(3, breadth_first=True)
    found = views.memory_orders(plan, 4)
    size = 64 * 64 * 4
    # Two inputs; two products that are then multiplied, and the result.
    assert found.best.peak == 5 * size
    assert found.given.peak == 6 * size == views.peak_memory(plan)
    assert found.is_least
    assert all(found.best.peak <= one.peak <= found.given.peak for one in found.sampled)
    assert views.memory_orders(chain(3, breadth_first=False), 0).given.peak == found.best.peak
    cut_short = views.memory_orders(plan, 4, states=1)
    assert not cut_short.is_least
    assert "found" in cut_short.note


def test_views_refuse_what_holds_no_rows():
    with pytest.raises(ArgumentTypeError, match="a ledger, a data frame or a list of mappings, given 3"):
        views.history(3)
    with pytest.raises(InputError, match="data has no rows"):
        views.heat_map([], "x", "y")
    with pytest.raises(InputError, match="x='width' is not a column; choose from size, median"):
        views.heat_map([{"size": 1, "median": 1.0}], "width", "size")


def test_a_row_is_measured_again_and_the_exit_status_tells(tmp_path, capsys):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(x))
    inputs = [np.ones(64, np.float32)]
    plan = fl.segment(fd, inputs)
    with fl.Ledger(tmp_path) as ledger:
        fl.time(plan, inputs, ledger=ledger, seconds=0.0, progress=False)
        ledger.append({"plan": "peer", "median": 1.0})
        ids = dict(zip(*(ledger.to_pandas()[name] for name in ("plan", "id")), strict=True))

    def status(row, below):
        return cli.main(["retime", str(tmp_path), row, "--below", str(below)])

    assert status(ids[plan.name], 10.0) == 0
    assert "in the ledger" in capsys.readouterr().out
    assert status(ids[plan.name], 0.0) == 1
    assert status(ids["peer"], 10.0) == 125
    assert status("nothing", 10.0) == 125
    assert "has no row 'nothing'" in capsys.readouterr().err
