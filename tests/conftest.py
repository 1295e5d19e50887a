"""What every test shares: the environment that Numba reads, hypothesis, and what a machine may lack."""

import ctypes
import functools
import os
from collections.abc import Generator
from pathlib import Path

# Before anything imports Numba: OpenMP threads that spin take 8 ms a region when the cores are busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Between any two passes the fusion is verified.
os.environ.setdefault("FUSER_LAB_VERIFY", "1")

import hypothesis
import pytest
from browser_path import HOW, find_browser

REPOSITORY = Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile("fuser_lab", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("fuser_lab")


@functools.cache
def cuda_device_count() -> int:
    """How many devices the CUDA driver reports; 0 without a driver. Loads neither Numba nor torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        default=bool(os.environ.get("FUSER_LAB_NO_SKIPS")),
        help="a skipped test fails, unless it is one for a GPU or for JAX (FUSER_LAB_NO_SKIPS=1 says the same)",
    )


# No part of the project and not to be had everywhere: arrays of its own are taken and returned where it is installed.
NO_JAX = "JAX is not installed"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and cuda_device_count() == 0:
        pytest.skip("needs a CUDA device")


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        if NO_JAX in str(reason):
            return
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and --no-skips was given. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.getoption("--no-skips") and not item.get_closest_marker("gpu"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if collector.config.getoption("--no-skips"):
        _refuse_skip(report)
    return report


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def test_output() -> Path:
    """Where tests leave what a person may want to look at, as screenshots; not under version control."""
    place = REPOSITORY / "test-output"
    place.mkdir(exist_ok=True)
    return place


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The chromium or chrome of this machine, for Playwright's executable_path."""
    found = find_browser()
    if found is None:
        pytest.skip(HOW)
    return found
