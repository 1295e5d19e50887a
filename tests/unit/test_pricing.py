"""The price of a rule: the gain if only this rule were lifted."""

import json
import math
import re

import pytest

import fuser_lab as fl
from fuser_lab.cli import commands as cli
from fuser_lab.errors import InputError
from tests.pages.prices import prices_markdown
from tests.unit.schedule.test_open import arrays, defined, norm_with_rope, softmax_of_columns, tensor

ROW = 6 * 32 * 4  # bytes of one tensor of norm_with_rope


def sum_added(fd, ops):
    """A fusion that nvFuser's rules do not cut."""
    fd.add_output(ops.neg(ops.exp(tensor(fd, 8))))


def test_the_price_of_the_rule_that_cuts():
    prices = fl.price(defined(norm_with_rope))
    row = prices.row("index_input")
    assert prices.rows[0] == row
    assert (row.fusions, row.gaining, row.bytes) == (1, 1, 4 * ROW)  # two tensors are neither written nor read again
    times = [plan.predicted_time().seconds for plan in (row.example.before, row.example.after)]
    assert row.seconds == times[0] - times[1] > 0
    assert prices.together.bytes == row.bytes
    assert (len(row.example.before.segments), len(row.example.after.segments)) == (2, 1)
    assert "needs its operand in memory" in row.example.sentence
    assert all(other.seconds == 0 and other.example is None for other in prices if other.rule != "index_input")


def test_a_rule_that_no_kernel_does_without_has_no_gain():
    prices = fl.price(defined(softmax_of_columns))
    assert {row.rule for row in prices} >= {"persistent_buffer"}
    assert all(row.seconds == row.bytes == 0 for row in (*prices, prices.together))


def test_a_fusion_that_no_rule_cuts_has_no_rows():
    prices = fl.price(defined(sum_added))
    assert (len(prices), prices.fusions, prices.together.fusions) == (0, 1, 0)


def test_entries_of_the_corpus_are_added_up(capsys):
    entries = fl.corpus("example/r*")
    seen = []
    prices = fl.price(entries, progress=lambda done, total, name: seen.append((done, total, name)))
    assert seen == [(n + 1, len(entries), entry.name) for n, entry in enumerate(entries)]
    alone = [fl.price(entry) for entry in entries]
    assert prices.fusions == len(entries)
    assert prices.seconds == pytest.approx(sum(one.seconds for one in alone))
    for row in prices:
        parts = [other for one in alone for other in one if other.rule == row.rule]
        assert (row.bytes, row.refusals) == (sum(p.bytes for p in parts), sum(p.refusals for p in parts))
    gains = [row.seconds for row in prices]
    assert gains == sorted(gains, reverse=True)
    assert prices.rows[0].example.name in {entry.name for entry in entries}
    page = prices_markdown(prices, "example/r*")
    assert all(row.rule in page for row in prices)
    assert "tests.pages.prices 'example/r*'" in page
    issues = re.findall(r"### (\w+)\n\n````markdown\n(.*?)````", page, re.DOTALL)
    assert [rule for rule, _ in issues] == [row.rule for row in prices if row.gaining]
    for rule, text in issues:
        fd, inputs = fl.load_repro(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
        assert fl.price(fd, inputs).row(rule).gaining == 1
    with pytest.raises(InputError, match="have their own inputs"):
        fl.price(entries, [])
    assert cli.main(["price", "--corpus", "example/res*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fusions"] == len(fl.corpus("example/res*"))


def test_the_table(tmp_path):
    prices = fl.price(defined(norm_with_rope))
    frame = prices.to_pandas()
    assert list(frame["rule"]) == [*(row.rule for row in prices), "all together"]
    assert frame["saved [bytes]"][0] == 4 * ROW
    assert "2 to 1 segment" in str(prices)
    assert "<table" in prices._repr_mimebundle_()["text/html"]
    read = json.loads(prices.save(tmp_path / "prices.json").read_text())
    assert read["rules"][0]["rule"] == "index_input"
    assert read["rules"][0]["measured [us]"] is None
    with pytest.raises(InputError, match="the rule 'cycle' refused no merge here; choose from index_input"):
        prices.row("cycle")


def test_an_issue_holds_a_smaller_script_that_still_gains():
    prices = fl.price(defined(norm_with_rope))
    text = prices.issue("index_input")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    fd, inputs = fl.load_repro(found[1])
    assert len(fd.fusion.tensor_exprs) < len(defined(norm_with_rope).fusion.tensor_exprs)
    assert fl.price(fd, inputs).row("index_input").gaining == 1
    for rule in ("resized_with_broadcast", "all together"):
        with pytest.raises(InputError, match="has no example"):
            prices.issue(rule)


def test_measured_prices_are_times_on_this_machine():
    fd = defined(norm_with_rope)
    prices = fl.price(fd, arrays(fd), measure=True)
    assert not math.isnan(prices.row("index_input").measured)
    assert "measured" in str(prices)


def looked_up(fd, ops):
    index = fd.define_tensor([20], contiguity=True, dtype=fl.DataType.Int)
    fd.add_output(ops.sum(ops.index_select(ops.exp(tensor(fd, 50, 16)), index, 0), [1]))


@pytest.mark.parametrize("make", [norm_with_rope, looked_up])
def test_arrays_are_made_for_described_inputs_that_are_measured(make):
    fd = defined(make)
    for inputs in (None, fl.segment(fd).inputs):
        prices = fl.price(fd, inputs, measure=True)
        assert not math.isnan(prices.row("index_input").measured)
        assert not math.isnan(prices.together.measured)


def test_the_command(tmp_path, capsys):
    fd = defined(norm_with_rope)
    script = tmp_path / "script.py"
    script.write_text(fd.repro_script_for(arrays(fd)), encoding="utf-8")
    assert cli.main(["price", str(script)]) == 0
    assert "index_input" in capsys.readouterr().out
    assert cli.main(["price", str(script), "--issue", "index_input"]) == 0
    assert capsys.readouterr().out.startswith("# Segmenter: `index_input` separates ops")
    assert cli.main(["price"]) == 2
    assert "either FILE or --corpus" in capsys.readouterr().err
