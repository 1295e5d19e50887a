"""The cache of the process, empty for each test."""

import pytest

from fuser_lab.nvfuser import FusionCache


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> FusionCache:
    monkeypatch.setattr(FusionCache, "_only", None)
    return FusionCache.get(load_from_default_workspace=False)
