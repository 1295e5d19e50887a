"""Readers of files and texts: whatever these contain, there is an answer, or an error or warning of fuser_lab."""

import gzip
import json
import os
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from thorough import share

import fuser_lab as fl
from fuser_lab.cli import commands as cli
from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.definition.cache import FusionCache
from fuser_lab.errors import CacheWarning, FuserLabError, LedgerWarning, TuningWarning
from fuser_lab.files import reading
from fuser_lab.files.json_text import json_text
from fuser_lab.lab import ledger as ledgers
from fuser_lab.lab import query
from fuser_lab.lab.records import timings_data
from fuser_lab.lab.sweep_file import read_sweep
from fuser_lab.runtime import tuned_files
from fuser_lab.runtime.cpu import this_cpu
from fuser_lab.schedule.tuned_parameters import KeptResult, Machine
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.teaching import read_answers
from tests.fitting.measurements import load
from tests.fitting.plans import read_plans
from tests.unit.test_this_cpu import PLANTED

ROOT = Path(__file__).parents[2]
# The last two are Python's about the text of a script.
EXPECTED = (CacheWarning, LedgerWarning, TuningWarning, SyntaxWarning, DeprecationWarning)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """What reads a file, the file's name in its folder, and valid content; ``read`` also uses what it gets."""

    file: str
    content: Callable[[Path], str]
    read: Callable[[Path], object]
    packed: bool = False

    def write(self, path: Path, content: bytes) -> None:
        path.write_bytes(gzip.compress(content, 1) if self.packed else content)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def _log(path: Path) -> object:
    log = DecisionLog.from_json(_text(path))
    return str(log), log.to_json(), log.to_pandas()


def _decisions(_: Path) -> str:
    return fl.segment(fl.example("softmax")[0]).decisions.to_json()


def _timings(path: Path) -> object:
    timings = fl.Timings.load(path)
    return repr(timings), timings.bars(), json_text(timings_data(timings))


def _timings_text(_: Path) -> str:
    row = TimingRow(
        plan="a", segment=None, scheduler="", ops=1, bytes_in=8, bytes_out=8, bytes_crossing=0, median=1.0,
        seconds=(1.0, 2.0), samples=2,
    )
    return json_text(timings_data(Timings(rows=(row,), environment={"host": "here", "versions": '{"numba":"1"}'})))


def _journal_text(folder: Path) -> str:
    with fl.Ledger(folder / "written") as ledger:
        for segment in (0, None):
            ledger.append({"plan": "a", "segment": segment, "median": 1.0, "samples": [1.0, 2.0], "tags": '{"a":"b"}'})
    (journal,) = (folder / "written").glob("*.jsonl")
    return journal.read_text(encoding="utf-8")


def _ledger(path: Path) -> object:
    ledger = fl.Ledger(path.parent)
    return len(ledger.to_pandas()), ledger.timings(), ledger.pack()


def _head(path: Path) -> object:
    with fl.Ledger(path.parent) as ledger:
        ledger.append({"plan": "a"})
    return ledger.timings()


def _cache_text(folder: Path) -> str:
    cache: FusionCache[Any] = FusionCache()
    with fl.FusionDefinition(cache=cache) as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor(shape=[3, 4], dtype=fl.DataType.Float), [1]))
    return cache.save(folder / "written.json").read_text(encoding="utf-8")


def _tuned_text(_: Path) -> str:
    result = KeptResult(
        machine=Machine(target="cpu", device="a", detail="2"), label="a", scheduler="pointwise", program="p",
        kernel="k", ops=("exp",), dtypes=("Float",), shapes=((2, 3),), changes=((0, (("grain", 4),)),), before=2.0,
        after=1.0, than="the heuristics' choice", date="2026-11-20", version="0.1.0",
    )
    return tuned_files.keep(result).read_text(encoding="utf-8")


def _tuned(path: Path) -> object:
    place = tuned_files.folder() / path.name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    path.rename(place)
    return tuned_files.load(), str(fl.kept_results())


def _rates(path: Path) -> object:
    this_cpu.rates_file().parent.mkdir(parents=True, exist_ok=True)
    path.replace(this_cpu.rates_file())
    return this_cpu.this_cpu().host


def _command(*arguments: str) -> Callable[[Path], object]:
    return lambda path: cli.main([*arguments, str(path)])


def _data(name: str) -> Callable[[Path], str]:
    return lambda _: (ROOT / "tests" / "data" / name).read_text(encoding="utf-8")


def _gzipped(name: str, lines: int) -> Callable[[Path], str]:
    place = ROOT / "tests" / "data" / "kernels" / name
    return lambda _: "\n".join(gzip.decompress(place.read_bytes()).decode().splitlines()[:lines]) + "\n"


ANSWERS = {"schema": "fuser_lab.answers", "version": 1, "name": "a", "answers": [
    {"question": "q", "predicted": "1", "right": True, "skipped": False},
]}

SWEEP = """name = "a"
strategies = ["bottom_up", "unfused"]
targets = ["A100"]
options = [{}]

[[fusions]]
example = "bias_gelu"
sizes = [[64, 128]]
"""
HEAD = '{"format":"fuser_lab ledger","version":1}'

READERS = {
    "decision log": Reader(file="log.json", content=_decisions, read=_log),
    "timings": Reader(file="times.json", content=_timings_text, read=_timings),
    "journal": Reader(file="here-1-2.jsonl", content=_journal_text, read=_ledger),
    "ledger.json": Reader(file="ledger.json", content=lambda _: HEAD, read=_head),
    "cache": Reader(file="cache.json", content=_cache_text, read=lambda path: repr(FusionCache.load(path))),
    "kept parameters": Reader(file="kept.json", content=_tuned_text, read=_tuned),
    "rates": Reader(
        file="rates.json", content=lambda _: this_cpu.keep(PLANTED).read_text(encoding="utf-8"), read=_rates,
    ),
    "answers": Reader(file="a.json", content=lambda _: json_text(ANSWERS), read=lambda path: str(read_answers(path))),
    "sweep": Reader(file="sweep.toml", content=lambda _: SWEEP, read=read_sweep),
    "measurements": Reader(file="m.csv.gz", content=_gzipped("H100.csv.gz", 40), read=load, packed=True),
    "measured plans": Reader(file="p.gz", content=_gzipped("H100.plans.json.gz", 2), read=read_plans, packed=True),
    "repro script": Reader(
        file="r.py", content=_data("repros/direct.py.txt"), read=lambda path: fl.load_repro(_text(path)),
    ),
    "dump": Reader(
        file="d.txt", content=_data("dumps/permute_and_hint.txt"), read=lambda path: str(fl.load_dump(_text(path))),
    ),
    "command": Reader(file="c.py", content=_data("repros/direct.py.txt"), read=_command("explain")),
}


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path / "configured"))


def outcome(reader: Reader, path: Path) -> str:
    """The error or the warnings of a reader; any other exception fails the test."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reader.read(path)
    except FuserLabError as error:
        return str(error)
    assert all(issubclass(each.category, EXPECTED) for each in caught)
    return " ".join(str(each.message) for each in caught)


CONTENTS = {
    "nothing": b"", "a word": b"null", "a number": b"1e400", "digits": b"1" * 5000, "NaN": b"NaN",
    "null characters": b"\0" * 100, "not UTF-8": b'{"\xff": "\xfe\x00"}', "a mark": b"\xef\xbb\xbf{}",
    "lists": b"[" * 100_000 + b"]" * 100_000, "objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "less deep": b"[" * 400 + b"]" * 400, "parentheses": b"(" * 5000, "signs": b"-" * 100_000 + b"1",
    "half": b'{"format": "fuser', "equal keys": b'{"version": 1, "version": 2}', "line ends": b"\r\n\r{}\r\n",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", CONTENTS)
def test_files_of_any_content_are_answered(tmp_path: Path, name: str, content: str, capsys: Any) -> None:
    reader = READERS[name]
    for packed in {False, reader.packed}:
        path = tmp_path / reader.file
        path.write_bytes(gzip.compress(CONTENTS[content]) if packed else CONTENTS[content])
        said = outcome(reader, path)
    if name not in {"journal", "command"}:  # a line of text without an end is in flight; a command prints its error
        assert said
        assert len(said) < 1000
    assert "Traceback" not in capsys.readouterr().err


def _enlarge(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


OTHERS: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a huge file": lambda path: _enlarge(path, (1 << 26) + 1 if path.suffix == ".jsonl" else reading.MOST_BYTES + 1),
}
BY_PATH = sorted(READERS.keys() - {"decision log", "repro script", "dump"})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", BY_PATH)
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, kind: str, capsys: Any) -> None:
    reader, path = READERS[name], tmp_path / READERS[name].file
    OTHERS[kind](path)
    said = outcome(reader, path) or capsys.readouterr().err
    is_made = name == "ledger.json" and kind.startswith("a link")  # a new one takes its place
    is_answers = name == "answers" and kind == "a directory"  # of no answers
    is_missing = kind == "a link to nothing" and name == "kept parameters"  # as if it had just been deleted
    assert bool(said) != (is_made or is_answers or is_missing)
    assert "Traceback" not in said


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 2**64, 1e308, -0.5, "", "x" * 100_000, "\0", "\ud800", "NaN", [], {}, [[]], {"": None},
    ["a"], [None], json.loads("[" * 90 + "]" * 90),
)


def damaged(content: str, dice: random.Random) -> str:
    """Content in which one value or one place is another, at random."""
    lines = content.splitlines(keepends=True)
    place = dice.randrange(len(lines))
    whole = content.lstrip().startswith("{") and not lines[0].rstrip().endswith("}")
    try:
        data = json.loads(content if whole else lines[place])
    except ValueError:
        data = None
    if isinstance(data, dict | list) and dice.random() < 0.8:
        inner, key = dice.choice(list(_places(data)))
        action = dice.random()
        if action < 0.2:
            del inner[key]
        elif action < 0.3 and isinstance(inner, list):
            inner.append(inner[key])
        else:
            inner[key] = dice.choice(STRANGE)
        text = json.dumps(data)
        return text if whole else "".join([*lines[:place], text + "\n", *lines[place + 1 :]])
    start = dice.randrange(len(content))
    stop = min(start + dice.choice((0, 1, 1, 3, 40)), len(content))
    return content[:start] + dice.choice(("", "", "\0", "9" * 30, "-", "1e999", "[", '"', "é", "None")) + content[stop:]


def _places(data: Any) -> Any:
    for key in data if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from _places(data[key])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_answered(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    reader = READERS[name]
    content = reader.content(tmp_path)
    for number in range(share(200)):
        dice = random.Random(number)
        if name == "journal" and number % 2:
            monkeypatch.setattr(query, "duckdb_module", lambda: None)
            monkeypatch.setattr(ledgers, "duckdb_module", lambda: None)
        folder = tmp_path / str(number)
        folder.mkdir()
        text = damaged(content, dice)
        reader.write(folder / reader.file, text.encode("utf-8", errors="replace"))
        try:
            outcome(reader, folder / reader.file)
        except Exception as error:
            error.add_note(f"case {number}: {text[:2000]}")
            raise
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", READERS)
def test_valid_files_are_read(tmp_path: Path, name: str, capsys: Any) -> None:
    reader = READERS[name]
    folder = tmp_path / "valid"
    folder.mkdir()
    reader.write(folder / reader.file, reader.content(tmp_path).encode())
    assert not outcome(reader, folder / reader.file)
    assert not capsys.readouterr().err
