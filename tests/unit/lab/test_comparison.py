"""Two measurements side by side: ratios, intervals, ties, and changes between them."""

import math
from dataclasses import replace

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.lab.records import timings_data
from fuser_lab.lab.timings import with_views


def row(plan, seconds, **more):
    low, median, high = np.percentile(seconds, (25, 50, 75))
    return TimingRow(
        plan=plan, segment=None, scheduler="", ops=1, bytes_in=8, bytes_out=8, bytes_crossing=0, device="CPU",
        median=float(median), low=float(low), high=float(high), samples=len(seconds), seconds=tuple(seconds), **more,
    )


def samples(center, seed, count=200):
    return center * (1 + 0.1 * np.random.default_rng(seed).standard_normal(count))


def times(*rows, **environment):
    return with_views(Timings(rows=rows, environment=environment))


def test_the_true_ratio_lies_in_nearly_all_intervals():
    """For 40 pairs of independent normal samples with known medians; for large samples, 95 % is promised."""
    inside = ties = 0
    for seed in range(40):
        before, after = times(row("a", samples(1.0, 2 * seed, 50))), times(row("a", samples(1.2, 2 * seed + 1, 50)))
        (found,) = fl.compare(before, after).rows
        inside += found.low <= 1.2 <= found.high
        ties += fl.compare(before, times(row("a", samples(1.0, 2 * seed + 1, 50)))).rows[0].tie
    assert inside >= 34
    assert ties >= 34


def test_slow_spells_widen_the_interval():
    steady = samples(1.0, 1)
    spells = samples(1.0, 2) * np.repeat([1.0, 1.0, 1.5, 1.0, 1.5, 1.0, 1.5, 1.0, 1.5, 1.0], 20)
    quiet = fl.compare(times(row("a", steady)), times(row("a", samples(1.0, 3)))).rows[0]
    noisy = fl.compare(times(row("a", steady)), times(row("a", spells))).rows[0]
    assert noisy.high - noisy.low > 3 * (quiet.high - quiet.low)


def test_rows_pair_by_name_and_the_rest_is_said():
    before = times(row("a", [1.0] * 9), row("b", [1.0] * 9), row("c", [1.0] * 9), commit="1", versions='{"numba":"1"}')
    after = times(
        row("a", [2.0] * 9), replace(row("b", [1.0] * 9), median=math.nan), row("d", [1.0] * 9), commit="2",
        versions='{"numba":"2"}',
    )
    found = fl.compare(before, after)
    assert [r.verdict for r in found.rows] == ["slower", "not measured after", "only before", "only after"]
    assert found.rows[0].ratio == found.rows[0].low == found.rows[0].high == 2
    assert found.changes == (("commit", "1", "2"), ("numba", "1", "2"))
    assert "commit 1 -> 2" in str(found)
    assert list(found.to_pandas()["verdict"]) == [r.verdict for r in found.rows]


def test_other_devices_are_not_compared():
    found = fl.compare(times(row("a", [1.0] * 9)), times(replace(row("a", [1.0] * 9), device="H200")))
    assert found.rows[0].verdict == "other devices: CPU, H200"


def test_what_cannot_be_compared_is_refused():
    one = times(row("a", [1.0] * 9))
    with pytest.raises(InputError, match="no row is in both; the first has 'a', the second 'b'"):
        fl.compare(one, times(row("b", [1.0] * 9)))
    with pytest.raises(InputError, match="confidence must be below 1"):
        fl.compare(one, one, confidence=1)


def test_saved_timings_are_loaded_as_they_were(tmp_path):
    given = times(row("a", samples(1.0, 0)), replace(row("b", [1.0]), median=math.nan), host="here")
    path = given.save(tmp_path / "times.json")
    loaded = fl.Timings.load(path)
    assert json_text(timings_data(loaded)) == json_text(timings_data(given))
    assert repr(loaded) == repr(given)
    for text, said in (
        ("{", "it is not JSON"), ("[]", "does not contain timings"),
        ('{"format": "fuser_lab timings", "version": 9}', "has version 9"),
        ('{"format": "fuser_lab timings", "version": 1}', "is damaged"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            fl.Timings.load(path)
    with pytest.raises(InputError, match="No such file"):
        fl.Timings.load(tmp_path / "none.json")
