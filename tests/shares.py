"""The tests that a run shares out: which of a function's cases it tries, and in which order processes run them."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def sample(cases: Sequence[frozenset[Hashable]], step: int) -> set[int]:
    """Return the numbers of cases to try: every ``step``-th, and the first with each value that several cases share.

    Parameters
    ----------
    cases
        For each case, the values of its parameters. A value that only one case has does not select that case.
    step
        The distance between the cases that are tried whatever their values are.
    """
    shared = {value for value, count in Counter(value for case in cases for value in case).items() if count > 1}
    tried = set(range(0, len(cases), step))
    missing = shared.difference(*(cases[number] for number in tried))
    for number, case in enumerate(cases):
        if missing & case:
            tried.add(number)
            missing -= case
    return tried


def shared_out(tests: Sequence[T], longest: Sequence[Callable[[T], bool]], processes: int) -> list[T]:
    """Return the tests in an order in which each process begins with one of the groups that take longest.

    xdist gives each process an equal share of the list, from front to back, and a process that has finished takes from
    the end of another's share. In the order of files, tests that wait for a page all came last, when no other
    tests were left to fill the time.

    Parameters
    ----------
    tests
        The tests, in the order of files.
    longest
        For each group, whether a test belongs to it. With more groups than processes, the last ones stay in the order
        of files, and so does everything with one process.
    processes
        How many processes share the tests.
    """
    if processes < 2:
        return list(tests)
    groups = longest[:processes]
    first: list[list[T]] = [[] for _ in range(processes)]
    others = []
    for test in tests:
        group = next((number for number, belongs in enumerate(groups) if belongs(test)), None)
        (others if group is None else first[group]).append(test)
    ordered: list[T] = []
    for number, group in enumerate(first):
        ordered += group
        room = max(len(tests) * (number + 1) // processes - len(ordered), 0)
        ordered += others[:room]
        del others[:room]
    return ordered
