"""``python -m fuser_lab agree``: one line per dump, the totals, the exit status."""

import json
from pathlib import Path

from fuser_lab.cli import commands as cli

DUMPS = Path(__file__).parents[2] / "data" / "dumps"
ALIKE = str(DUMPS / "permute_and_hint.txt")
OTHER = str(DUMPS / "cut_before_broadcast.txt")


def test_a_line_for_each_dump_and_the_totals(capsys):
    assert cli.main(["agree", ALIKE, OTHER]) == 1
    first, second, total = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{ALIKE}: agrees: 2 segments of nvFuser, 2 of ours, 2 alike")
    assert second.startswith(f"{OTHER}: differs: 2 segments of nvFuser, 2 of ours, 0 alike")
    assert total.startswith("total: 1 of 2 dumps agree; 2 of 4 segments alike")


def test_the_status_says_whether_all_agree(capsys):
    assert cli.main(["agree", ALIKE]) == 0
    assert cli.main(["agree", "--long", OTHER]) == 1
    assert "T2 -> T3: one segment in ours; nvFuser: expr_eval" in capsys.readouterr().out


def test_what_cannot_be_read_is_named(capsys, tmp_path):
    bad = tmp_path / "no_dump.txt"
    bad.write_text("nothing")
    assert cli.main(["agree", str(bad), ALIKE]) == 2
    out = capsys.readouterr().out
    assert f"{bad}: load_dump: the text contains no dump" in out
    assert out.splitlines()[-1].endswith("1 file not read")


def test_json(capsys):
    assert cli.main(["agree", "--json", ALIKE]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["agreeing"], data["totals"]["nvfuser"]) == ("fuser_lab.agreement", 1, 2)
    assert data["dumps"][0]["agrees"] is True
