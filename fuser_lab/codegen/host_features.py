"""The features of a CPU kernel on which the model of its time depends, counted in its Kernel IR."""

from collections.abc import Iterator
from math import ceil

from fuser_lab.codegen.cache_lines import CacheLines, Fetched
from fuser_lab.codegen.kernel_ir import Buffer, Kernel, Phase
from fuser_lab.codegen.loop_tree import Access, Rounds, loop_tree
from fuser_lab.codegen.samples import GLOBAL
from fuser_lab.cost.host_time import COUNTS, HostCaches, HostFeatures, HostPhase, Moved

_MOST_WRITTEN_OUT = 16  # most rounds of a loop that LLVM unrolls completely if its accesses are not contiguous
_WRITTEN_OUT = 8  # with fewer rounds, LLVM unrolls any loop completely, so the loop around it becomes the vector loop
_LEAST = 4  # fewest rounds of a vector loop
_PART = 0.9  # fraction of a cache that one kernel can use
_INDEX = 0.25  # time of a step of index arithmetic, in simple operations: a core computes several at a time
_REST = 4.0  # time of an element after the last whole vector, in elements of vectors
_OWN = 0.5  # time of a function with a vector form in a scalar loop, in calls of a library function
_SCALAR = {"dividing": 4.0}  # time of a scalar operation of a class, in simple operations


def host_features(kernel: Kernel, caches: HostCaches) -> HostFeatures:
    """Return the features of a kernel for the CPU.

    Parameters
    ----------
    kernel
        Its Kernel IR.
    caches
        Threads that share its loops, and their caches.
    """
    return HostFeatures(phases=tuple(_phase(phase, caches) for phase in kernel.phases))


def _phase(phase: Phase, caches: HostCaches) -> HostPhase:
    root = loop_tree(phase)
    shared = next((rounds for rounds in root.inner if rounds.is_shared), None)
    cores, share = 1.0, 1.0
    if shared is not None and caches.threads > 1:
        units = max(shared.turns, 1.0)
        cores, share = min(caches.threads, units), ceil(units / caches.threads) / units
    counter = _Counter()
    counter.visit(root, share)
    lines = CacheLines(root)
    touched = lines.touched()
    near = lines.fetched(_PART * caches.first)
    far = lines.fetched(_PART * caches.second)
    memory = lines.fetched(_PART * caches.last / cores)
    stored = {access.buffer for access in _accesses(root) if access.stored}
    return HostPhase(
        cores=cores, is_shared=shared is not None, near=share * sum(fetched.nbytes for fetched in near.values()),
        moved=tuple(
            _traffic(buffer, nbytes, far[buffer], memory[buffer], buffer in stored)
            for buffer, nbytes in touched.items() if buffer.role in GLOBAL
        ),
        **counter.counts,
    )


def _traffic(buffer: Buffer, nbytes: float, far: Fetched, memory: Fetched, stored: bool) -> Moved:
    return Moved(
        name=buffer.name, nbytes=nbytes, far=max(far.nbytes, nbytes), memory=max(memory.nbytes, nbytes),
        length=far.nbytes / max(far.runs, 1.0), is_stored=stored,
    )


def _accesses(rounds: Rounds) -> Iterator[Access]:
    yield from rounds.accesses
    for inner in rounds.inner:
        yield from _accesses(inner)


class _Counter:
    """Adds up the operations of a tree of loops, by the form that the compiler gives each loop."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0.0)

    def visit(self, rounds: Rounds, times: float) -> None:
        """Count a loop, of which ``times`` rounds are computed in all, and its inner loops."""
        written_out = rounds.depth > 0 and all(_is_written_out(inner) for inner in rounds.inner)
        if written_out:
            self._innermost(rounds, times)
            return
        self._work(rounds, times, is_vector=False)
        self.counts["single"] += times * sum(access.times for access in rounds.accesses)
        waits = False
        for inner in rounds.inner:
            self.counts["wait"] += times * inner.times * waits
            waits = waits or _accumulates(inner)
            self.visit(inner, times * inner.times * inner.turns)

    def _innermost(self, rounds: Rounds, times: float) -> None:
        parts = [(rounds, times), *((inner, times * inner.times * inner.turns) for inner in rounds.inner)]
        is_vector = rounds.turns >= _LEAST and all(_can_be_vector(part, rounds) for part, _ in parts)
        entries = times / max(rounds.turns, 1.0)
        self.counts["start"] += entries
        # Elements after the last whole vector are computed one by one.
        slower = 1 + _REST * rounds.left / max(rounds.turns, 1.0) if is_vector else 1.0
        for part, often in parts:
            self._work(part, often * slower, is_vector=is_vector)
            for access in part.accesses:
                count = often * access.times
                if not is_vector:
                    self.counts["single"] += count
                elif _is_apart(access, rounds):
                    self.counts["apart"] += count
                else:
                    self.counts["vectors"] += slower * count * access.buffer.dtype.itemsize

    def _work(self, rounds: Rounds, times: float, *, is_vector: bool) -> None:
        for operation, amount in rounds.work.items():
            count, name = times * (amount.both if is_vector else amount.taken), operation.name
            match name:
                case "index":
                    self.counts["single"] += 0.0 if is_vector else _INDEX * count
                case "function":
                    self.counts[name] += count if is_vector else 0.0
                case "functions":
                    self.counts["called"] += 0.0 if is_vector else _OWN * count
                case "called" | "whole" | "scanned":
                    self.counts[name] += count
                case "converted" | "turned":
                    self.counts[name] += count * operation.size
                case _ if is_vector:
                    self.counts[name] += count * operation.size
                case _:
                    self.counts["single"] += count * _SCALAR.get(name, 1.0)


def _accumulates(rounds: Rounds) -> bool:
    return rounds.accumulates or any(_accumulates(inner) for inner in rounds.inner)


def _is_written_out(rounds: Rounds) -> bool:
    """Whether the compiler unrolls a loop completely."""
    if rounds.inner or not rounds.is_constant:
        return False
    along = any(access.step(rounds.depth)[0][0] == 1 for access in rounds.accesses)
    return rounds.turns < _WRITTEN_OUT or (rounds.turns <= _MOST_WRITTEN_OUT and not along)


def _can_be_vector(part: Rounds, rounds: Rounds) -> bool:
    """Whether the compiler vectorizes a loop: no calls, and no scattered accesses that only some rounds make."""
    return not any(operation.name in {"called", "scanned"} for operation in part.work) and not any(
        access.chosen and _is_apart(access, rounds) for access in part.accesses
    )


def _is_apart(access: Access, rounds: Rounds) -> bool:
    """Whether the elements of several rounds are not neighbours in memory, or the compiler does not know that."""
    if access.rounded >= rounds.depth:
        return True
    digits = [(step, turns) for step, turns in access.step(rounds.depth) if turns > 1]
    together = 1
    for inner in rounds.inner:
        step, turns = access.step(inner.depth)[0]
        together *= int(turns) if step == 1 else 1
    return len([step for step, _ in digits if step]) > 1 or (bool(digits) and digits[0][0] not in {0, together})
