"""Files kept between sessions: files that others may have written are not read, and nothing waits."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fuser_lab.errors import CacheWarning
from fuser_lab.runtime import store
from fuser_lab.runtime.oldest import remove_oldest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes are those of POSIX")
NAME = "cpu_kernel.bin"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path / "cache" / "kernels"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_read_and_lies_where_only_the_user_can(place: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store.write(NAME, b"code")
        store.write("tuned/best.json", b"[]")
    finally:
        os.umask(before)
    assert store.read(NAME) == b"code"
    assert store.read("tuned/best.json") == b"[]"
    assert store.has(NAME)
    assert store.is_usable()
    secret = tmp_path / "data" / "fuser_lab" / "cache_key"
    assert {mode(p) for p in (place.parent, place, place / "tuned", secret.parent)} == {0o700}
    assert mode(place / NAME) == mode(secret) == 0o600


def test_directories_of_earlier_versions_are_closed(place: Path) -> None:
    place.mkdir(parents=True, mode=0o755)
    assert store.directory() == place
    assert mode(place) == 0o700


def another_byte(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def of_another_name(file: Path) -> None:
    store.write("other", b"evil")
    (file.parent / "other").replace(file)


def a_link(file: Path) -> None:
    file.replace(file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved"))


def a_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def huge(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(1 << 40)


DAMAGES: list[Callable[[Path], object]] = [
    another_byte, of_another_name, a_link, a_fifo, a_directory, huge, lambda file: file.write_bytes(b""),
    lambda file: file.write_bytes(file.read_bytes()[:30]), lambda file: file.write_bytes(b"code"), Path.unlink,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
def test_what_is_not_as_it_was_written_is_missing_and_written_again(
    place: Path, damage: Callable[[Path], object],
) -> None:
    store.write(NAME, b"code")
    damage(place / NAME)
    assert store.read(NAME) is None
    store.write(NAME, b"again")
    assert store.read(NAME) == (None if damage is a_directory else b"again")
    assert not list(place.glob("*.tmp"))


def test_what_is_sealed_with_another_secret_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(NAME, b"code")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "of another user"))
    assert store.read(NAME) is None


def test_a_secret_that_others_may_have_read_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.secret()
    secret = tmp_path / "data" / "fuser_lab" / "cache_key"
    secret.chmod(0o640)
    store._secret.cache_clear()
    assert first != store.secret() == secret.read_bytes()
    assert mode(secret) == 0o600


def test_without_a_place_for_the_secret_nothing_is_kept(tmp_path: Path, place: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    store.write(NAME, b"code")
    assert store.read(NAME) is None
    assert not store.is_usable()
    assert not place.exists()


@pytest.mark.parametrize("folder", ["", "kernels"])
@pytest.mark.parametrize("others", [0o720, 0o702])
def test_a_directory_that_others_may_write_to_is_refused_in_one_sentence(
    place: Path, folder: str, others: int,
) -> None:
    store.write(NAME, b"code")
    open_to_all = place.parent / folder
    open_to_all.chmod(others)
    with pytest.warns(CacheWarning, match="users other than its owner may write to"):
        assert store.read(NAME) is None
    store.write(NAME, b"more")
    assert store.directory() is None, "a second warning would be an error"
    open_to_all.chmod(0o700)
    assert store.read(NAME) == b"code"


def test_a_directory_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(NAME, b"code")
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        assert store.read(NAME) is None
    place.parent.replace(place.parent.with_name("moved"))
    place.parent.symlink_to(place.parent.with_name("moved"))
    if user != 1:  # root's links are trusted like the system
        with pytest.warns(CacheWarning, match="is a link that belongs to another user"):
            assert store.directory() is None


def test_links_below_the_configured_directory_are_not_followed(place: Path, tmp_path: Path) -> None:
    place.parent.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    store.write(NAME, b"code")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_full_disk_keeps_nothing_and_raises_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(NAME, b"code")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        store.write("more", b"code")
        assert store.write_text("source.py", "") is None
    assert sorted(p.name for p in place.iterdir()) == [NAME]


def test_a_place_that_is_no_text_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    store.write(NAME, b"code")
    assert store.directory() is None
    assert store.read(NAME) is None
    assert not store.is_usable()


def test_a_file_in_place_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path / "file"))
    assert store.directory() is None


def test_the_usual_directory_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUSER_LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.directory() == tmp_path / "fuser_lab" / "kernels"


@pytest.mark.parametrize("limits", [{"most_bytes": 1000}, {"most_files": 10}])
def test_the_oldest_files_go_when_there_are_too_many(tmp_path: Path, limits: dict[str, int]) -> None:
    for number in range(10):
        file = tmp_path / f"cpu_{number}.bin"
        file.write_bytes(bytes(100))
        os.utime(file, (1e9 + number, 1e9 + number))
    remove_oldest(tmp_path, **limits)
    assert len(list(tmp_path.iterdir())) == 10, "nothing is deleted within the limits"
    young = tmp_path / "cpu_young.bin"
    young.write_bytes(bytes(100))
    remove_oldest(tmp_path, **limits)
    assert sorted(p.name for p in tmp_path.iterdir()) == [*(f"cpu_{n}.bin" for n in range(3, 10)), young.name]
    remove_oldest(tmp_path, most_bytes=0)
    assert [p.name for p in tmp_path.iterdir()] == [young.name], "recent files stay"
    remove_oldest(tmp_path / "missing")


def test_the_first_file_of_a_process_bounds_the_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(store, "remove_oldest", seen.append)
    for number in range(3):
        store.write(f"{number}", b"")
    assert seen == [place]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the secret of the first process stays where files can be linked")
def test_processes_that_start_at_once_share_a_secret(tmp_path: Path) -> None:
    # Each one finds no secret, waits for the others, and creates one.
    program = """
import sys, time
from pathlib import Path
from fuser_lab.runtime import store
known, waits = store._known_secret, [True]

def waiting(folder):
    secret = known(folder)
    if waits:
        waits.clear()
        Path(sys.argv[1], sys.argv[2]).touch()
        while len(list(Path(sys.argv[1]).glob("?"))) < 3:
            time.sleep(0.001)
    return secret

store._known_secret = waiting
store.secret()
Path(sys.argv[1], sys.argv[2] + "-created").touch()
while len(list(Path(sys.argv[1]).glob("*-created"))) < 3:
    time.sleep(0.001)
print(store.secret().hex())
"""
    path = ":".join(filter(None, sys.path))
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONPATH": path}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name], stdout=subprocess.PIPE, env=environment)
        for name in "abc"
    ]
    said = {process.communicate(timeout=120)[0] for process in processes}
    assert len(said) == 1
    assert len(bytes.fromhex(said.pop().decode())) == 32
