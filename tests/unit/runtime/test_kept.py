"""Objects on disk by the text that determines them."""

import pickle
import threading

import pytest

from fuser_lab.runtime import kept, store


class Unreadable:
    """An object whose pickle cannot be read."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """What is made with an empty cache."""
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    return []


def found(made, asked="text", content=(1, "a")):
    return kept.kept("things", asked, lambda: made.append(asked) or content)


def test_an_object_is_made_once_per_text_and_version_of_the_package(made, monkeypatch):
    assert found(made) == found(made) == (1, "a")
    assert found(made, "other", 2) == 2
    assert made == ["text", "other"]
    monkeypatch.setattr(kept, "files_digest", lambda: "another version")
    assert found(made) == (1, "a")
    assert made == ["text", "other", "text"]


@pytest.mark.parametrize("content", [b"damaged", pickle.dumps(Unreadable())])
def test_what_cannot_be_read_is_made_again(made, content):
    found(made)
    store.write(kept._file("things", "text"), content)
    assert found(made) == found(made) == (1, "a")
    assert made == ["text", "text"]


def test_what_cannot_be_stored_is_made_in_each_process(made):
    lock = threading.Lock()
    assert found(made, content=lock) is found(made, content=lock) is lock
    assert made == ["text", "text"]
