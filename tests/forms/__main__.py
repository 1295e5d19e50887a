"""Kernel forms, and the branches of code generation and scheduling that they take: ``python -m tests.forms``.

Every form of the corpus is generated, compiled (to PTX, or to machine code of the CPU) and evaluated in lock step, and
the share of branches that its kernels take is printed, by module, with the branches that nothing takes and the lines
that they begin at. Branches that only forms take which are refused, with an error that says so, are counted apart, and
so are the branches of errors: those that lead to one only, and those of code that writes its text. Of the rest,
`tests.forms.untaken` lists those that no form takes, with reasons; they do not count as taken. A listed branch that a
kernel takes, or that does not exist, is a failure.

``--directed`` tries the forms of `tests.forms.directed`, ``--from FILE`` those of a file, ``--grow SECONDS`` draws and
changes forms, and all three add those whose generation takes new branches, or with ``--evaluated``, which takes longer,
those whose evaluation does; ``--reduce`` keeps what is needed to take all of them.
``--index N`` repeats one form and prints it.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tests.forms.corpus import CORPUS, Covered, Result, endless, grown, minimal, numbered, read, write
from tests.forms.directed import directed
from tests.forms.form import Form
from tests.forms.trace import Tracer, branches, errors, missing
from tests.forms.untaken import UNTAKEN, Source, reasons, stale
from tests.processes import chunks, one_thread_each, results

_CHUNK = 4  # forms


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(path: Path, count: int, workers: int, *, is_verified: bool) -> list[Result]:
    """Return what the forms of a file do, in processes; failures are printed as they are found."""
    found: list[Result] = []
    calls = [(path, indices, is_verified) for indices in chunks(0, count, _CHUNK)]
    for some in results(numbered, calls, workers):
        for one in some:
            if one.failure:
                say(f"--- python -m tests.forms --index {one.number}: {one.failure[:300]}")
        found += some
    return found


def table(covered: Covered) -> str:
    """Return branch coverage by module, and the branches that are not taken; those of errors are counted apart."""
    apart = {module: errors(module, found) for module, found in branches().items()}
    every = {module: found - apart[module] for module, found in branches().items()}
    by_kernels = missing(frozenset(covered.evaluated))
    by_all = missing(frozenset(covered.evaluated | covered.refused))
    head = f"{'module':<34}{'branches':>9}{'by kernels':>12}{'refusals':>10}{'reached':>10}"
    lines = [f"{head}{'missing':>9}{'of errors':>11}"]

    def line(name: str, modules: Sequence[str]) -> str:
        count = sum(len(every[m]) for m in modules)
        left, rest = (sum(len(every[m] & found[m]) for m in modules) for found in (by_kernels, by_all))
        share, reached = (100 * (count - some) / max(count, 1) for some in (left, rest))
        others = sum(len(apart[m]) for m in modules)
        return f"{name:<34}{count:>9}{share:>10.1f} %{left - rest:>10}{reached:>8.1f} %{rest:>9}{others:>11}"

    lines += [line(module, [module]) for module in sorted(every) if every[module]]
    packages = sorted({module.partition("/")[0] for module in every})
    lines += [line(package, [m for m in every if m.startswith(f"{package}/")]) for package in packages]
    lines += [line("all", list(every)), "", "branches that no kernel takes, by the lines that they lead from and to:"]
    unexplained = 0
    for module in sorted(every):
        source = Source.of(module)
        for a, b in sorted(every[module] & by_kernels[module]):
            why = ("only refused forms take it",) if (a, b) not in by_all[module] else reasons(source, a, b)
            unexplained += not why
            lines.append(f"  {module}.py:{a} -> {abs(b)}: {source.line(a)[:70]} -> {source.line(b)[:60] or 'the end'}")
            lines += [f"      because {reason}" for reason in why]
    count = sum(map(len, every.values()))
    share = 100 * (count - unexplained) / max(count, 1)
    lines.append(f"{share:.1f} % are taken by kernels or have a reason why they are not, which leaves {unexplained}")
    return "\n".join(lines)


def one(path: Path, number: int) -> int:
    """Repeat one form and print it."""
    form: Form = read(path)[number]
    say(f"{form.text()}\n{form.program()}")
    (result,) = numbered(path, range(number, number + 1), is_verified=True)
    say(result.trace or ("refused" if result.refused else f"no failure: {', '.join(result.schedulers)}"))
    return int(bool(result.failure))


def main() -> int:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.forms", description=__doc__)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--index", type=int, help="only this form")
    parser.add_argument("--grow", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--directed", nargs="?", const="", metavar="GROUP", help="by default all groups of them")
    parser.add_argument("--evaluated", action="store_true", help="compile and evaluate the forms that are tried")
    parser.add_argument("--from", type=Path, dest="file", metavar="FILE", help="forms as lines of JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reduce", action="store_true")
    parser.add_argument("--unverified", action="store_true", help="only generate kernels")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if arguments.index is not None:
        return one(arguments.corpus, arguments.index)
    start, forms = time.perf_counter(), read(arguments.corpus)
    is_grown = arguments.grow or arguments.directed is not None or arguments.file
    is_verified = arguments.evaluated or not (is_grown or arguments.unverified)
    done = run(arguments.corpus, len(forms), arguments.workers, is_verified=is_verified)
    covered, right = Covered(), [result for result in done if not result.failure]
    for result in right:
        covered.add(result)
    found: list[Result] = []
    groups = () if arguments.directed is None else directed(arguments.directed)
    written = chain(groups, read(arguments.file) if arguments.file else ())
    candidates = chain(written, endless(forms, arguments.seed, arguments.grow))
    for form in grown(candidates, covered, Tracer(), found, is_verified=arguments.evaluated):
        forms.append(form)
        write(forms, arguments.corpus)
        if len(forms) % 25 == 0:
            say(f"{len(forms)} forms, {len(covered.evaluated)} arcs, {len(found)} kinds of failures")
    for failed in found:
        say(f"--- {failed.failure[:300]}\n{failed.form.text()}\n{failed.trace}")
    if arguments.reduce:
        kept = minimal(right)
        write([result.form for result in kept], arguments.corpus)
        say(f"{len(kept)} of {len(forms)} forms are needed, {sum(result.seconds for result in kept):.0f} s")
    say(table(covered))
    outdated = list(stale(UNTAKEN, covered.evaluated))
    for text in outdated:
        say(f"--- tests/forms/untaken.py: {text}")
    failures = len(done) - len(right) + len(found) + len(outdated)
    say(f"{len(forms)} forms in {time.perf_counter() - start:.0f} s: {failures or 'no'} failures")
    return int(failures > 0)


if __name__ == "__main__":
    one_thread_each()
    sys.exit(main())
