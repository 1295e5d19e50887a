"""The command line."""

import json

from fuser_lab import cli, examples


def test_examples_as_json(capsys):
    assert cli.main(["examples", "sum_broadcast_add", "softmax", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["name"] == "sum_broadcast_add"
    assert first["segments"] == 2
    assert first["schedulers"] == ["reduction", "pointwise"]
    assert 0 < first["max_error"] < 1
    assert second["schedulers"] == ["inner_persistent"]
    assert second["seconds"] > 0


def test_examples_as_text(capsys):
    assert cli.main(["examples", "bias_gelu"]) == 0
    assert "bias_gelu" in capsys.readouterr().out


def test_a_wrong_result_is_an_exit_status(capsys, monkeypatch):
    monkeypatch.setattr(examples.Example, "max_error", lambda *_: 2.0)
    assert cli.main(["examples", "softmax"]) == 1
    assert "2.000" in capsys.readouterr().out


def test_one_attempt_is_counted_in_the_singular(capsys, tmp_path):
    script = tmp_path / "neg.py"
    script.write_text(
        "with FusionDefinition() as fd:\n"
        "    x = fd.define_tensor(shape=[4], contiguity=[True])\n"
        "    fd.add_output(fd.ops.neg(x))\n",
    )
    assert cli.main(["explain", str(script)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 attempt, accepted"


def test_bad_names(capsys):
    assert cli.main(["examples", "nothing"]) == 2
    assert "there is no example 'nothing'" in capsys.readouterr().err
