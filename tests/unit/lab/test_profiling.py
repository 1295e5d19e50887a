"""Counters beside predictions: the values read from Nsight Compute's CSV, and the derived sentences."""

import json
import math
import mmap
import stat

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import InputError, UnsupportedError
from fuser_lab.lab.profiling import ncu
from fuser_lab.lab.profiling.counters import PAGE_FAULTS, count_events
from fuser_lab.lab.profiling.profile import PlanProfile, ProfiledSegment, counted_profile

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
COLUMNS = (
    ("ID", ""), ("Kernel Name", ""), ("gpu__time_duration.sum", "us"), ("dram__bytes_read.sum", "Mbyte"),
    ("dram__bytes_write.sum", "byte"), ("lts__t_bytes.sum", "byte"),
    ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    ("lts__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%"), ("launch__registers_per_thread", "register/thread"),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", ""),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", ""), (STALL.format("long_scoreboard"), "inst"),
    (STALL.format("barrier"), "inst"),
)


def table(*rows):
    lines = [[name for name, _ in COLUMNS], [unit for _, unit in COLUMNS], *rows]
    said = ["a program says something", "==PROF== Connected to process 7"]
    return "\n".join([*said, *(",".join(f'"{cell}"' for cell in line) for line in lines)])


def kernel(name, microseconds=100, shares=(85, 40, 30), conflicts=0, stalls=(6, 2)):
    return [0, name, microseconds, 8, "2,000,000", "20,000,000", *shares, 50, 40, conflicts, 1000, *stalls]


def test_units_and_separators_of_the_table_are_read():
    (one,) = ncu.parse_counters(table(kernel("softmax")))
    assert one.seconds == pytest.approx(1e-4)
    assert one.dram_bytes == 10_000_000
    assert (one.l2_bytes, one.dram_share, one.occupancy, one.registers) == (2e7, 0.85, 0.5, 40)
    assert one.top_stall == ("long_scoreboard", 0.75)


@pytest.mark.parametrize(("changes", "bound", "words"), [
    ({}, "memory", "memory at 85 %"),
    ({}, "memory", "2.00 times the bytes counted"),
    ({"shares": (20, 70, 30)}, "L2", "Bound by the L2 cache"),
    ({"shares": (20, 30, 70)}, "arithmetic", "Bound by arithmetic"),
    ({"shares": (20, 30, 30), "stalls": (1, 3)}, "latency", "wait most for barriers (75 % of the waiting)"),
    ({"shares": (20, 30, 30), "microseconds": 3}, "launches", "it takes 3.00 µs"),
    ({"conflicts": 500}, "memory", "Bank conflicts are 50 % of the accesses to shared memory"),
    ({"shares": ("n/a", "n/a", "n/a")}, "", "reported no rates"),
])
def test_the_highest_counter_is_the_bound(changes, bound, words):
    (one,) = ncu.parse_counters(table(kernel("k", **changes)))
    assert one.bound == bound
    assert words in one.sentence(5_000_000)


def test_what_ncu_says_instead_of_a_table_is_told():
    with pytest.raises(UnsupportedError, match="ERR_NVGPUCTRPERM - The user does not have permission"):
        ncu.parse_counters("==PROF== x\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    with pytest.raises(UnsupportedError, match="it said: nothing"):
        ncu.parse_counters("")


def known(*kernels):
    return PlanProfile(plan="p", device="H200", rows=tuple(
        ProfiledSegment(
            segment=n, scheduler="reduction", kernels=names, bytes=5_000_000, operations=1, predicted=1e-6,
            bound="memory", sentence="", source="compiled code",
        )
        for n, names in enumerate(kernels)
    ))


def test_launches_belong_to_segments_in_order():
    kernels = ncu.parse_counters(table(kernel("a_0"), kernel("memset"), kernel("b_0", 10), kernel("b_1", 30)))
    found = counted_profile(known(("a_0",), (), ("b_0", "b_1")), kernels)
    assert [row.source for row in found.rows] == ["counters", "compiled code", "counters"]
    assert found.rows[2].seconds == pytest.approx(4e-5)
    assert found.rows[2].sentence.startswith("Of 2 launches, the longest is b_1.")
    assert found.rows[0].dram_bytes == 10_000_000
    assert [[one.name for one in row.counters] for row in found.rows] == [["a_0"], [], ["b_0", "b_1"]]
    with pytest.raises(UnsupportedError, match="saw 1 launches of the plan's 2 kernels"):
        counted_profile(known(("a_0", "c_0")), kernels)


def test_ncu_is_started_with_the_plan_as_a_script(tmp_path, monkeypatch):
    """A program in its place, which prints its arguments."""
    program = tmp_path / "ncu"
    csv = table(kernel("k")).replace("\\", "")
    program.write_text(f"#!/bin/sh\nfor last; do :; done\ncp \"$last\" {tmp_path}/asked.py\ncat <<'E'\n{csv}\nE\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (one,) = ncu.measure_launches("plan, inputs = 1, 2")
    assert one.name == "k"
    asked = (tmp_path / "asked.py").read_text()
    assert asked.startswith("plan, inputs = 1, 2\n")
    assert asked.endswith("run(plan, inputs)\n")


def softmax(rows):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[rows, 64], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.truediv(x, fd.ops.sum(x, dims=[1], keepdim=True)))
    return fl.segment(fd)


def test_without_arrays_the_compiled_code_tells(tmp_path):
    plan = softmax(1 << 20)
    with fl.Ledger(tmp_path) as ledger:
        found = fl.profile(plan, ledger=ledger)
        rows = ledger.to_pandas()
    (row,) = found.rows
    assert row.bytes == 2 * 4 * 64 << 20
    assert row.predicted == pytest.approx(row.bytes / 4.8e12, rel=0.01)
    assert row.bound == "memory"
    assert "By the roofline of H200, bound by memory" in str(found)
    assert math.isnan(row.seconds)
    assert set(rows["subject"]) == {"profile", "profile of a line"}
    assert rows["note"][0] == row.sentence
    assert "at best" in found._repr_html_()
    assert found.to_pandas()["bound by"][0] == "memory"


@pytest.mark.parametrize(("given", "why"), [
    ([1], "got scalar 1"), ([fl.spec((9, 9, 9))], "input 0"),
    ([fl.spec((8, 64))], r"input 0 of the plan is \(4, 64\), given \(8, 64\)"),
])
def test_descriptions_of_other_inputs_are_refused(given, why):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor(shape=[-1, -1], contiguity=True)))
    plan = fl.segment(fd, [fl.spec((4, 64))])
    assert fl.profile(plan, list(plan.inputs)).rows
    with pytest.raises(InputError, match=why):
        fl.profile(plan, given)


def test_on_the_cpu_the_measured_time_is_compared_with_the_roofline():
    plan = softmax(64)
    found = fl.profile(plan, [np.ones((64, 64), np.float32)], seconds=0.0)
    (row,) = found.rows
    assert row.seconds > 0
    assert row.predicted > 0
    assert row.bound in {"launches", "memory", "latency"}
    assert "took" in row.sentence
    assert found.device.startswith("CPU")
    with pytest.raises(InputError):
        fl.profile(plan, [np.ones((64, 65), np.float32)])


def test_each_statement_that_reaches_memory_has_its_line_and_its_bytes():
    plan = softmax(64)
    found = fl.profile(plan, [np.ones((64, 64), np.float32)], seconds=0.0)
    (row,) = found.rows
    lines = plan.segments[0].kernel(found.target).source.split("\n")
    assert {(one.tensor, one.write) for one in found.statements} == {("T0", False), ("T3", True)}
    for one in found.statements:
        assert one.text == lines[one.line - 1].strip()
        assert one.tensor in one.text
        assert one.bytes == pytest.approx(one.tensor_bytes, rel=0.01)
        assert one.seconds == pytest.approx(one.share * row.seconds)
    assert sum(one.share for one in found.statements) == pytest.approx(1)
    assert found.plan_hash == plan.hash


def test_the_ledger_answers_which_line_moves_most(tmp_path):
    """By SQL alone, without fuser_lab."""
    with fl.Ledger(tmp_path) as ledger:
        found = fl.profile(softmax(1 << 16), ledger=ledger)
        query = """
            SELECT line.note, line.tags, kernel.note AS why, line.fusion_hash, line.cpu FROM rows AS line
            JOIN rows AS kernel ON kernel.measurement = line.measurement AND kernel.segment = line.segment
            WHERE line.subject = 'profile of a line' AND kernel.subject = 'profile'
        """
        rows = ledger.sql(query)
    assert sorted(rows["note"]) == sorted(one.text for one in found.statements)
    assert len(found.statements) >= 2
    tags = [json.loads(one) for one in rows["tags"]]
    assert sum(one["share"] for one in tags) == pytest.approx(1)
    assert {one["access"] for one in tags} == {"read", "write"}
    assert set(rows["why"]) == {found.rows[0].sentence}
    assert all(rows["fusion_hash"])
    assert all(rows["cpu"])


def test_events_of_this_process_are_counted():
    """Page faults, which every system counts; most virtual machines lack hardware counters."""
    try:
        with count_events(PAGE_FAULTS) as read:
            before = read()
            np.frombuffer(mmap.mmap(-1, 1 << 23), np.uint8)[:] = 1  # untouched pages
            assert read() - before >= (1 << 23) // (1 << 21)
    except UnsupportedError as error:
        assert "does not count" in str(error) or "Linux" in str(error)  # noqa: PT017 - a system may forbid it
