"""Every kind of kernel under NVIDIA's compute-sanitizer: ``python -m tests.gpu.sanitize`` prints one table.

memcheck looks for accesses outside allocations and misaligned ones, racecheck for threads of a block that access the
same shared memory without a barrier, synccheck for barriers that some threads do not reach. Kernels are first compiled
without the sanitizer, so that it finds them on disk. Parallel processes then each run a share of the kinds of
`kinds.py` under each tool, and one process runs a kernel with an error that the tool must report (`planted.py`). The
exit status is 0 if everything ran and nothing else was found.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck")
ALONE = "graphs"  # the kinds that need torch's caching allocator: captured runs may not allocate
_ROOT = Path(__file__).resolve().parents[2]
_FOUND = 97  # the sanitizer's exit status if it found an error
_GRACE = 40  # limit in seconds of the last kind of a process
_SHOWN = 12  # lines of output shown of a process that found an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The work of one process: every ``of``-th kind from ``number`` on, under a tool; no tool to compile only."""

    tool: str
    number: int = 0
    of: int = 1
    alone: bool = False
    planted: bool = False

    @property
    def text(self) -> str:
        """The share as an argument."""
        return "alone" if self.alone else f"planted/{self.tool}" if self.planted else f"{self.number}/{self.of}"

    def taken(self, groups: Sequence[str]) -> list[int]:
        """Return the numbers of the kinds of this share, given the groups of all kinds."""
        if self.planted:
            return []
        here = [number for number, group in enumerate(groups) if (group == ALONE) == self.alone]
        return here if self.alone else here[self.number :: self.of]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The findings of one process: kinds that ran, wrong or refused ones, the sanitizer's errors, and planted ones."""

    tool: str
    ran: int
    left: int
    failures: tuple[str, ...]
    errors: int
    warnings: int
    found: int = 0
    lines: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether everything ran and nothing was found."""
        return not (self.failures or self.errors or self.left)


def shares(tools: Sequence[str], jobs: int) -> list[Share]:
    """Return the shares per tool: ``jobs`` of them, one for the kinds that run alone, one for the planted error."""
    found = [Share(tool=tool, number=n, of=jobs) for tool in tools for n in range(jobs)]
    found += [Share(tool=tool, alone=True) for tool in tools]
    return found + [Share(tool=tool, planted=True) for tool in tools if tool in TOOLS]


def command(share: Share, seconds: float, sanitizer: str = "compute-sanitizer") -> list[str]:
    """Return the command of a share; without a tool, the same process without the sanitizer."""
    own = [sys.executable, "-m", "tests.gpu.sanitize", "--share", share.text, "--seconds", f"{seconds:.0f}"]
    if not share.tool:
        return own
    # Looking up functions that a driver lacks is an API error, not a kernel's.
    options = ["--tool", share.tool, "--report-api-errors", "no", "--target-processes", "application-only"]
    return [sanitizer, *options, "--error-exitcode", str(_FOUND), "--print-limit", "20", *own]


def read(share: Share, status: int, output: str) -> Said:
    """Return the findings in a process's output: its line and the sanitizer's summary; a missing one is a failure."""
    tool = share.tool
    own = re.search(r"^SHARE ran (\d+) left (\d+)$", output, re.MULTILINE)
    failures = tuple(re.findall(r"^FAILED (.*)$", output, re.MULTILINE))
    errors = sum(int(n) for n in re.findall(r"ERROR SUMMARY: (\d+) error", output))
    hazards = re.findall(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)", output)
    summaries = len(hazards) + len(re.findall(r"ERROR SUMMARY:", output))
    if own is None:
        failures = (*failures, f"the process ended with status {status} before its kinds had run")
    elif tool and not summaries:
        failures = (*failures, "the sanitizer gave no summary")
    elif status not in {0, _FOUND} and not failures:
        failures = (f"the process ended with status {status}",)
    found = errors + sum(int(a) for a, _ in hazards)
    if share.planted:
        missed = () if found else (*failures, "the planted error was not found")
        return Said(tool=tool, ran=0, left=0, failures=missed, errors=0, warnings=0, found=int(found > 0))
    shown = [line for line in output.splitlines() if line.startswith("=========") and line.strip("= ")]
    return Said(
        tool=tool, ran=int(own[1]) if own else 0, left=int(own[2]) if own else 0, failures=failures,
        errors=found, warnings=sum(int(b) for _, b in hazards),
        lines=tuple(shown[:_SHOWN]) if errors or hazards else (),
    )


def table(found: Sequence[Said]) -> str:
    """Return one line per tool: the number of kinds that ran, the wrong ones, the sanitizer's errors."""
    heads = f"{'kinds run':>10}{'not run':>9}{'wrong':>7}{'errors':>8}{'warnings':>10}{'planted found':>15}"
    lines = [f"{'tool':<12}{heads}"]
    for tool in dict.fromkeys(one.tool for one in found):
        here = [one for one in found if one.tool == tool]
        ran, left, errors, warned, planted = (
            sum(getattr(one, name) for one in here) for name in ("ran", "left", "errors", "warnings", "found")
        )
        wrong = sum(len(one.failures) for one in here)
        lines.append(f"{tool or 'no tool':<12}{ran:>10}{left:>9}{wrong:>7}{errors:>8}{warned:>10}{planted:>15}")
    details = [f"{one.tool}: {failure}" for one in found for failure in one.failures]
    details += [f"{one.tool}: {line}" for one in found if one.errors or one.warnings for line in one.lines]
    return "\n".join([*lines, *dict.fromkeys(details)])


def worked(chosen: Sequence[tuple[str, Callable[[str], None]]], target: str, until: float) -> Iterator[str]:
    """Run kinds until a time of ``time.monotonic``; yield a line per wrong kind, then the share's line."""
    ran = 0
    for name, run in chosen:
        if time.monotonic() > until:
            break
        try:
            run(target)
        except Exception as error:  # noqa: BLE001 - any failure is reported, and the others still run
            said = str(error).strip().partition("\n")[0] or traceback.format_exc().strip().splitlines()[-2].strip()
            yield f"FAILED {name}: {type(error).__name__}: {said}"
        ran += 1
    yield f"SHARE ran {ran} left {len(chosen) - ran}"


def _work(share: Share, seconds: float) -> None:
    """Run a share's kinds in this process."""
    until = time.monotonic() + seconds
    # As pytest finds them: the modules of tests, and the packages in it.
    sys.path.insert(0, str(_ROOT / "tests"))
    if share.planted:
        from tests.gpu import planted

        planted.run(share.tool)
        _say("SHARE ran 0 left 0")
        return
    from tests.gpu.kinds import kinds

    found = list(kinds())
    taken = [found[number] for number in share.taken([kind.group for kind in found])]
    for line in worked([(f"{kind.group}, {kind.name}", kind.run) for kind in taken], "cuda", until):
        _say(line)


def _run(todo: Sequence[Share], seconds: float, sanitizer: str) -> list[Said]:
    """Run shares in parallel, and read their output."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
    # Each tensor is then a separate allocation, and everything beyond it is out of bounds.
    apart = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    said = []
    limit = time.monotonic() + seconds + _GRACE
    with contextlib.ExitStack() as stack:
        # Not pipes: a full one that is not being read blocks its process.
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in todo]
        processes = [
            subprocess.Popen(
                command(share, seconds, sanitizer), env=env if share.alone else env | apart, cwd=_ROOT, stdout=output,
                stderr=subprocess.STDOUT,
            )
            for share, output in zip(todo, outputs, strict=True)
        ]
        for share, process, output in zip(todo, processes, outputs, strict=True):
            try:
                process.wait(max(limit - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            output.seek(0)
            said.append(read(share, process.returncode, output.read()))
    return said


def _share(text: str) -> Share:
    """Parse a share from its argument."""
    first, _, second = text.partition("/")
    if first == "planted":
        return Share(tool=second, planted=True)
    return Share(tool="", alone=True) if first == "alone" else Share(tool="", number=int(first), of=int(second))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all tools and print the table; return 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.sanitize", description=__doc__.partition(":")[0])
    parser.add_argument("--tools", nargs="+", default=TOOLS, choices=(*TOOLS, "initcheck"), metavar="TOOL")
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 1) // 3, 1), help="processes per tool")
    parser.add_argument("--seconds", type=float, default=600, help="kinds that have not begun by then are not run")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.share:
        _work(_share(given.share), given.seconds)
        return 0
    if shutil.which(given.sanitizer) is None:
        _say(f"{given.sanitizer} is not on the PATH; it comes with the CUDA toolkit.")
        return 2
    began = time.monotonic()
    first = _run(shares([""], max(os.cpu_count() or 1, 1)), given.seconds, given.sanitizer)
    _say(f"compiled and run without the sanitizer in {time.monotonic() - began:.0f} s")
    found = [*first, *_run(shares(given.tools, given.jobs), given.seconds, given.sanitizer)]
    _say(table(found))
    _say(f"{time.monotonic() - began:.0f} s")
    return 0 if all(one.clean for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
