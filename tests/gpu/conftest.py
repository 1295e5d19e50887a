"""Memory of a GPU that several processes share: each returns what a test has freed, and large tests wait for memory."""

import sys
import time
from collections.abc import Callable, Iterator

import pytest

_KEPT = 1 << 30  # bytes that a process may keep for its next tests; torch returns nothing by itself
_LONGEST_WAIT = 120.0  # seconds; the largest tests of another process take ten


@pytest.fixture(autouse=True)
def returned_memory() -> Iterator[None]:
    """Return freed memory to the driver after each test that had much."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > _KEPT:
        torch.cuda.empty_cache()


@pytest.fixture
def wait_for_memory() -> Callable[[int], None]:
    """Return a function that waits until other processes leave some bytes of the GPU's memory, or skips the test."""
    import torch

    def wait(nbytes: int) -> None:
        end = time.monotonic() + _LONGEST_WAIT
        while torch.cuda.mem_get_info()[0] < nbytes:
            if time.monotonic() > end:
                pytest.skip(f"other processes leave less than {nbytes:,} bytes of the GPU's memory")
            time.sleep(0.5)

    return wait
