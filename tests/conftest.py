"""Settings of all tests: environment variables that Numba reads, hypothesis, and what a machine may lack."""

import ast
import ctypes
import functools
import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

# Before anything imports Numba: OpenMP threads that spin take 8 ms per region when the cores are busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# The fusion is verified between passes.
os.environ.setdefault("FUSER_LAB_VERIFY", "1")

# On a machine with a GPU, JAX would reserve most of its memory in each test process.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import pytest
from browser_path import HOW, find_browser
from needs import INSTALL, MAY_BE_SKIPPED, NEEDS_DEVICE, missing, needs
from shares import sample, shared_out

from fuser_lab.process.collector import collector_paused

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REPOSITORY = Path(__file__).resolve().parent.parent
# Markers of tests that take seconds each, and wait for other processes part of the time.
LONGEST = ("browser", "notebooks")

# nbformat imports jsonschema, which would make parsers of 38 grammars to check addresses: 1.3 s in each process.
sys.modules.setdefault("rfc3987_syntax", None)  # as if it were not installed

# pytest parses the modules that it imports and the files of a traceback.
ast.parse = collector_paused()(ast.parse)

hypothesis.settings.register_profile("fuser_lab", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("fuser_lab")


@functools.cache
def cuda_device_count() -> int:
    """The number of devices that the CUDA driver reports; 0 without a driver. Loads neither Numba nor torch."""
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
        help="a skipped test fails, unless it needs a GPU or numba-cuda-mlir (FUSER_LAB_NO_SKIPS=1 says the same)",
    )
    parser.addoption(
        "--passed-to",
        type=Path,
        default=os.environ.get("FUSER_LAB_PASSED_TO"),
        help="the file to which the outcomes of tests are appended (or FUSER_LAB_PASSED_TO)",
    )
    parser.addoption(
        "--not-passed-in",
        type=Path,
        default=os.environ.get("FUSER_LAB_NOT_PASSED_IN"),
        help="run only what has not passed in this file, made by --passed-to (or FUSER_LAB_NOT_PASSED_IN)",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files with nothing to run, since each process would import and expand all of them."""
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    marker = config.getoption("markexpr")
    if marker.isidentifier():  # whatever has passed: tests with this marker may not have run
        return True if marker not in text else None
    if (file := config.getoption("--not-passed-in")) is None:
        return None
    # The tests in a file that mentions a library may depend on whether the library is installed.
    done = _outcomes(Path(file)).complete(collection_path.relative_to(config.rootpath).as_posix())
    return True if done and not any(library in text for library in INSTALL) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of garbage away from what lives as long as the run: modules, functions and parameters."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _leave_to_the_matrix(items: list[pytest.Item]) -> None:
    """Mark the cases of sampled tests that are not in the sample as those of the matrix."""
    functions: dict[str, list[pytest.Function]] = {}
    for item in items:
        marked = [item.get_closest_marker(name) is not None for name in ("sampled", "matrix")]
        if isinstance(item, pytest.Function) and marked == [True, False]:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        (step,) = cases[0].get_closest_marker("sampled").args
        # Cases that several decorators combine refer to the same objects.
        tried = sample([frozenset((name, id(value)) for name, value in c.callspec.params.items()) for c in cases], step)
        for number, case in enumerate(cases):
            if number not in tried:
                case.add_marker(pytest.mark.matrix)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    _leave_to_the_matrix(items)
    yield  # markers select the tests
    if (file := config.getoption("--not-passed-in")) is not None:
        passed = _outcomes(Path(file)).passed
        done = [item for item in items if item.nodeid in passed]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in passed]
    longest = [lambda item, name=name: item.get_closest_marker(name) is not None for name in LONGEST]
    items[:] = shared_out(items, longest, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # With xdist, the process that distributes the tests receives every result, and only it writes.
    if (file := config.getoption("--passed-to")) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(OutcomesTo(Path(file)))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Which tests passed, and which were skipped or failed."""

    passed: frozenset[str]
    left: frozenset[str]

    def complete(self, file: str) -> bool:
        """Whether tests of a file have passed and none was skipped or failed."""
        return file in _files(self.passed) and file not in _files(self.left)


@functools.cache
def _files(tests: frozenset[str]) -> frozenset[str]:
    return frozenset(test.partition("::")[0] for test in tests)


@functools.cache
def _outcomes(file: Path) -> Outcomes:
    lines = [line.partition(" ") for line in file.read_text(encoding="utf-8").splitlines()]
    passed, left = (frozenset(name for word, _, name in lines if word == kind) for kind in ("passed", "left"))
    return Outcomes(passed, left)


@dataclass(frozen=True, slots=True, eq=False)  # pytest keeps plugins in sets
class OutcomesTo:
    """A plugin that appends the outcome and name of each test to a file."""

    file: Path
    lines: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.lines.append(f"{'passed' if report.passed else 'left'} {report.nodeid}\n")

    def pytest_sessionfinish(self) -> None:
        with self.file.open("a", encoding="utf-8") as opened:
            opened.writelines(self.lines)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and cuda_device_count() == 0:
        pytest.skip(NEEDS_DEVICE)
    if item.get_closest_marker("mlir"):
        needs("numba_cuda_mlir")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(reason).removeprefix("Skipped: ")


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and --no-skips was given. {_reason(report)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.getoption("--no-skips") and not any(map(item.get_closest_marker, MAY_BE_SKIPPED)):
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not run and why, one line per reason: the reader does not need the files that asked for torch."""
    lines = missing("torch", "jax")
    reasons = Counter(map(_reason, terminalreporter.stats.get("skipped", ())))
    lines += [f"{reason} ({count} skipped)" for reason, count in reasons.items() if not reason.startswith("needs torch")
              and not reason.startswith("needs jax")]
    if lines:
        terminalreporter.section("not run here")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def few_frames() -> Generator[None]:
    """Leaves 300 frames to a test, so that recursion over 1,000 ops fails; 100,000 ops would take minutes."""
    limit, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()
    while frame := frame.f_back:
        depth += 1
    sys.setrecursionlimit(depth + 300)
    yield
    sys.setrecursionlimit(limit)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def test_output() -> Path:
    """The folder for output that people look at, such as screenshots; not under version control."""
    place = REPOSITORY / "test-output"
    place.mkdir(exist_ok=True)
    return place


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The path of an installed chromium or chrome, for Playwright's executable_path."""
    found = find_browser()
    if found is None:
        pytest.skip(HOW)
    return found


@pytest.fixture(scope="session")
def browser(browser_path: str) -> "Iterator[Browser]":
    """A headless chromium. A process can have one synchronous Playwright: while it runs, another cannot be started."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser_path, headless=True, args=arguments)
        yield running
        running.close()
