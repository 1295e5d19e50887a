"""The plugin of pytest: the fixture ``fusion`` with the contracts, and locks of the partitions of tests."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from fuser_lab.contracts.comparison import Comparison
    from fuser_lab.contracts.partition import Partition
    from fuser_lab.errors import FusionContractError

# Names of folders beside the file of a test.
LOCKS: Final = "fusion-locks"
FAILURES: Final = "fusion-failures"
_UNSAFE: Final = re.compile(r"[^\w.\-]+")  # characters of a test's name that not every file system accepts
_LONGEST: Final = 120  # characters of a file's name, which file systems limit to 255 bytes


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("fuser_lab", "fusion contracts")
    text = f"folder of the files with which fusion.lock(...) compares; by default {LOCKS} beside each test's file"
    group.addoption("--fusion-lock", metavar="FOLDER", default=None, help=text)
    text = "write the files of fusion.lock(...) instead of comparing with them"
    group.addoption("--fusion-update", action="store_true", default=False, help=text)


@pytest.fixture
def fusion(request: pytest.FixtureRequest) -> "Fusion":
    """The contracts of fuser_lab; a failed one saves pictures and the smallest function beside the test's file."""
    folder = request.path.parent
    locks = request.config.getoption("--fusion-lock")
    name = _UNSAFE.sub("_", f"{request.path.stem}.{request.node.name}")[:_LONGEST]
    return Fusion(
        name=name, locks=folder / LOCKS if locks is None else Path(locks), failures=folder / FAILURES / name,
        update=bool(request.config.getoption("--fusion-update")),
    )


@contextmanager
def _without_traces() -> Iterator[None]:
    """Keep torch's traces of each compilation, which have no text, out of pytest's report of a failed test."""
    logger = logging.getLogger("torch.__trace")
    of_pytest = [handler for handler in logger.handlers if type(handler).__module__.startswith("_pytest")]
    for handler in of_pytest:
        logger.removeHandler(handler)
    try:
        yield
    finally:
        for handler in of_pytest:
            logger.addHandler(handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The contracts as methods, for one test."""

    name: str
    locks: Path
    failures: Path
    update: bool

    def one_kernel(self, function: Any, *inputs: Any, **options: Any) -> "Partition":
        """Return the partition of a function in one kernel, or fail; see `fuser_lab.one_kernel`."""
        __tracebackhide__ = True
        from fuser_lab.contracts.checks import one_kernel

        return self._keep(one_kernel, function, inputs, options)

    def same_kernel(self, function: Any, *inputs: Any, **options: Any) -> "Partition":
        """Return the partition of a function that computes ``ops`` in one kernel, or fail; `fuser_lab.same_kernel`."""
        __tracebackhide__ = True
        from fuser_lab.contracts.checks import same_kernel

        return self._keep(same_kernel, function, inputs, options)

    def at_most(self, function: Any, *inputs: Any, **options: Any) -> "Partition":
        """Return the partition of a function within limits, or fail; see `fuser_lab.at_most`."""
        __tracebackhide__ = True
        from fuser_lab.contracts.checks import at_most

        return self._keep(at_most, function, inputs, options)

    def lock(
        self, function: Any, *inputs: Any, name: str = "", compiler: str = "inductor", device: str | None = None,
        backward: bool = False, keywords: Mapping[str, Any] | None = None, **options: Any,
    ) -> "Comparison":
        """Return the comparison of a function's partition with its lock, or fail if it regressed.

        With ``--fusion-update`` the lock is written instead. ``name`` distinguishes several locks of one test.

        Raises
        ------
        FusionContractError
            If the partition regressed, or there is no lock.
        """
        __tracebackhide__ = True
        from fuser_lab.contracts.call import Call
        from fuser_lab.contracts.comparison import REGRESSED, compare_partitions
        from fuser_lab.contracts.compiled import compile_call
        from fuser_lab.contracts.locks import Lock, lock_of, lock_text, printable
        from fuser_lab.errors import FusionContractError
        from fuser_lab.report.save import write_file

        with _without_traces():
            made = compile_call(Call(
                who="fusion.lock", function=function, inputs=inputs, compiler=compiler, device=device,
                backward=backward, keywords=keywords or {}, options=options,
            ))
        suffix = f".{_UNSAFE.sub('_', name)}" if name else ""
        path = self.locks / f"{self.name}{suffix}.lock"
        now = printable(made.partition)
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            label = getattr(function, "__qualname__", type(function).__name__)
            write_file("a lock", path, lock_text(Lock(function=label, partition=now)))
            return compare_partitions(now, now)
        if not path.exists():
            raise FusionContractError(f"fusion.lock: there is no lock {path}; pytest --fusion-update writes it.", now)
        comparison = compare_partitions(lock_of(path, "fusion.lock").partition, now)
        if comparison.verdict == REGRESSED:
            text = f"fusion.lock: {path.name}: {comparison}\npytest --fusion-update accepts the partition of today"
            error = FusionContractError(text, now, made.plans)
            raise self._save(error)
        return comparison

    def _keep(
        self, check: Callable[..., "Partition"], function: Any, inputs: tuple[Any, ...], options: dict[str, Any],
    ) -> "Partition":
        __tracebackhide__ = True
        from fuser_lab.errors import FusionContractError

        try:
            with _without_traces():
                return check(function, *inputs, **options)
        except FusionContractError as error:
            failed = self._save(error)
        raise failed

    def _save(self, error: "FusionContractError") -> "FusionContractError":
        """Return the error with the paths of the files that explain it."""
        from fuser_lab.compilers.plan import CompiledPlan
        from fuser_lab.errors import FuserLabError, FusionContractError
        from fuser_lab.plan import Plan

        self.failures.mkdir(parents=True, exist_ok=True)
        for old in self.failures.iterdir():
            if old.suffix in {".svg", ".py", ".txt"}:
                old.unlink()
        paths = [self.failures / "partition.txt"]
        paths[0].write_text(f"{error}\n\n{error.partition}\n", encoding="utf-8")
        if error.script:
            paths.append(self.failures / "smallest.py")
            paths[-1].write_text(error.script, encoding="utf-8")
        pictures: list[Plan] = []
        for plan in error.plans:
            if isinstance(plan, Plan):
                pictures.append(plan)
            elif isinstance(plan, CompiledPlan) and plan.graph is not None:
                pictures += plan.fusions
        for number, picture in enumerate(pictures):
            try:
                paths.append(picture.save(self.failures / f"fusion-{number}.svg"))
            except FuserLabError:  # a plan that cannot be drawn leaves the text and the script
                continue
        lines = "\n".join(f"    {path}" for path in paths)
        return FusionContractError(f"{error}\nsaved:\n{lines}", error.partition, error.plans, error.script)
