"""Regions captured after `fl.use_tuned` start from kept parameters, including those captured before as well."""

from pathlib import Path

import pytest

import fuser_lab as fl
from tests.needs import needs

torch = needs("torch")


def test_a_region_follows_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    given = torch.ones(4, 8)

    def captured() -> fl.Plan:
        return fl.from_torch(lambda x: torch.softmax(x, -1), given).plan

    assert captured().oracle.kept is None
    with fl.use_tuned():
        assert captured().oracle.kept is not None
    assert captured().oracle.kept is None
