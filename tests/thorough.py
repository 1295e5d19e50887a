"""The share of random cases that tests try: a tenth, or all if FUSER_LAB_THOROUGH is set (test-all)."""

import os
from typing import Any

from hypothesis import settings

THOROUGH = bool(os.environ.get("FUSER_LAB_THOROUGH"))


def share(count: int) -> int:
    """Return how many of ``count`` random cases are tried."""
    return count if THOROUGH else max(count // 10, 5)


def tries(count: int, **options: Any) -> settings:
    """Return hypothesis's settings with a share of a number of examples."""
    return settings(max_examples=share(count), **options)
