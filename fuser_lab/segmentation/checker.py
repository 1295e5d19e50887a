"""The checker of certificates: it verifies every statement again with separate, simpler code.

It shares the oracle, the traffic model and the rewriting of replicas with the prover, and no other code: convex hulls,
segments, costs and searches are implemented separately.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations, pairwise

from fuser_lab.analysis.parts_read import Part
from fuser_lab.cost.traffic import Traffic, least_reads, may_view, part_bytes, root_of_view, seen_as, traffic
from fuser_lab.cost.verdict import Answer
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.segmentation.certificate import Certificate, Proof, Term, TermKind
from fuser_lab.segmentation.graph import SegmentedFusion
from fuser_lab.segmentation.hints import refused_by_hint
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import SchedulerOracle, candidate
from fuser_lab.segmentation.privatization import without


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The errors that a checker found in a certificate, and the parts that it had no time to check."""

    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether everything was checked and is correct."""
        return not self.problems and not self.unchecked

    def __str__(self) -> str:
        """Return one line for each finding."""
        if self.holds:
            return "the certificate holds"
        return "\n".join([*self.problems, *(f"not checked: {text}" for text in self.unchecked)])


def verify(
    certificate: Certificate, plan: SegmentedFusion, oracle: SchedulerOracle, seconds: float = 30.0,
) -> Verification:
    """Check a certificate against a plan, from scratch.

    It checks costs, cover, convexity, order and schedulers of the plan, and for each term of each bound that its
    members exclude each other (by asking about the hull of each pair), that it is not counted twice, and that a search
    repeated by another algorithm finds no cheaper plan.

    Parameters
    ----------
    certificate
        The certificate.
    plan
        The plan to which it refers.
    oracle
        The schedulers.
    seconds
        Time limit for repeated searches.
    """
    problems = _plan_problems(certificate, plan, oracle)
    unchecked: list[str] = []
    if not certificate.proofs:
        problems.append("there is no proof")
    spaces = {
        (proof.merged, frozenset(name for chain in proof.recomputed for name in chain), proof.free_views)
        for proof in certificate.proofs
    }
    replicas = tuple(sorted(plan.replicas.items()))
    has_views = certificate.views is not None and any(map(may_view, plan.fusion.tensor_exprs))
    for merged, recomputed in (((), frozenset[str]()), ((), plan.recomputed), (replicas, frozenset[str]())):
        for free_views in (False, True) if has_views else (False,):
            if (merged, recomputed, free_views) not in spaces and not certificate.obstacle:
                copies = f"{', '.join(sorted(recomputed)) or 'nothing'}{', replicas being one' if merged else ''}"
                text = f"recompute {copies}{', with segments of views' if free_views else ''}"
                problems.append(f"no proof covers the plans that {text}")
    if certificate.proofs and certificate.bound > certificate.known:
        problems.append("the bound is above the cost of a known plan")
    end = time.monotonic() + seconds
    for proof in certificate.proofs:
        if proof.merged not in {(), replicas}:
            problems.append("a proof merges expressions other than the plan's replicas")
            continue
        checker = _Checker(certificate, proof, without(plan.fusion, dict(proof.merged)), oracle)
        checker.check(end)
        problems += checker.problems
        unchecked += checker.unchecked
    return Verification(problems=tuple(dict.fromkeys(problems)), unchecked=tuple(dict.fromkeys(unchecked)))


def _plan_problems(certificate: Certificate, plan: SegmentedFusion, oracle: SchedulerOracle) -> list[str]:
    """Return the errors in the plan itself, and in the certificate's statements about it."""
    problems = []
    if [set(segment.exprs) for segment in certificate.segments] != [set(group.names) for group in plan.groups]:
        problems.append("the segments are not those of the plan")
    for index, (group, claim) in enumerate(zip(plan.groups, certificate.segments, strict=False)):
        moved = traffic(plan.fusion, group.exprs, plan.recomputed)
        launch = certificate.model.launch_bytes if group.exprs else 0
        if index in (certificate.views or ()):
            moved, launch = Traffic(read=0, written=0), 0
            if not all(map(may_view, group.exprs)):
                problems.append(f"segment {index} does more than make views")
        if (claim.read, claim.written, claim.launch) != (moved.read, moved.written, launch):
            problems.append(
                f"segment {index} reads {moved.read} and writes {moved.written} bytes, which differs from the "
                "certificate",
            )
        tensor_exprs = [expr for expr in group.exprs if expr.tensor_outputs]
        asked = candidate(plan.fusion, group.exprs, plan.recomputed)
        answer = refused_by_hint(asked, SegmenterOptions(segment_set=certificate.segment_set)) or oracle.ask(asked)
        if len(tensor_exprs) > 1 and answer.chosen is None and not certificate.obstacle:
            problems.append(f"no scheduler accepts segment {index}")
    device = getattr(oracle, "device", None)
    if device is not None and certificate.model.bandwidth != device.bandwidth * 1e9:
        problems.append(f"the model is not that of {device.name}")
    if set(certificate.hints) != {expr.name for expr in plan.fusion.tensor_exprs if expr.op.name == "segment_set"}:
        problems.append("the hints are not those of the fusion")
    done: set[TensorView] = set(plan.fusion.tensor_inputs)
    for index, group in enumerate(plan.groups):
        early = [tensor.name for tensor in group.tensor_inputs if tensor not in done]
        problems += [f"segment {index} reads {name} before it is written" for name in early]
        done.update(group.outputs)
    lost = [tensor.name for tensor in plan.fusion.outputs if tensor not in done]
    if lost:
        problems.append(f"nothing writes {', '.join(lost)}")
    if certificate.missed and sum(entry.cost for entry in certificate.missed) != certificate.cost - certificate.known:
        problems.append("what the cheaper plan saves does not add up to the difference of the costs")
    if not certificate.obstacle and certificate.known > certificate.cost:
        problems.append("the cheapest known plan is more expensive than this one")
    return problems


class _Checker:
    """Checks one proof; sets of expressions are sets of names here."""

    def __init__(
        self, certificate: Certificate, proof: Proof, fusion: Fusion, oracle: SchedulerOracle,
    ) -> None:
        self.problems: list[str] = []
        self.unchecked: list[str] = []
        self._proof = proof
        self.fusion = fusion
        self._oracle = oracle
        self.launch = certificate.model.launch_bytes
        self._options = SegmenterOptions(segment_set=certificate.segment_set)
        self.copied = frozenset(name for chain in proof.recomputed for name in chain)
        self.exprs: dict[str, Expr] = {e.name: e for e in fusion.tensor_exprs if e.name not in self.copied}
        views = self.exprs.values() if proof.free_views else ()
        self.views = frozenset(expr for expr in views if may_view(expr))
        self.ends: dict[TensorView, tuple[Expr, ...]] = {}
        self.parts = least_reads(fusion)
        self._read_chains()
        self.behind: dict[str, set[str]] = {}
        for name in reversed(list(self.exprs)):
            self.behind[name] = set()
            for tensor in self.exprs[name].tensor_outputs:
                for user in self.readers(tensor):
                    self.behind[name] |= {user, *self.behind[user]}
        self._apart: dict[frozenset[str], bool] = {}
        self._claimed_tensors = {term.subject for term in proof.terms if term.subject}

    def _read_chains(self) -> None:
        """Read the chains that the proof declares as recomputed, if they are valid chains."""
        by_name = {expr.name: expr for expr in self.fusion.tensor_exprs}
        for chain in self._proof.recomputed:
            exprs = tuple(by_name[name] for name in chain if name in by_name)
            legal = len(exprs) == len(chain) > 0 and len(exprs[0].tensor_inputs) < 2
            for first, second in pairwise(exprs):
                legal = legal and second.tensor_inputs == (first.out,) and self.fusion.users[first.out] == (second,)
            legal = legal and all(tensor not in self.fusion.producers for tensor in exprs[0].tensor_inputs)
            reads = any(expr.tensor_inputs for expr in exprs)
            legal = legal and not any(expr.out in self.fusion.outputs for expr in (exprs if reads else exprs[:-1]))
            if legal:
                self.ends[exprs[-1].out] = exprs
            else:
                self.problems.append(f"{', '.join(chain)} is not a chain that readers can recompute")

    def readers(self, tensor: TensorView) -> list[str]:
        """Return the names of the expressions that read a tensor, without chains."""
        return [user.name for user in self.fusion.users.get(tensor, ()) if user.name in self.exprs]

    def users(self, tensor: TensorView) -> list[str]:
        """Return the names of a tensor's readers, without chains; free views are passed, and their readers named."""
        return [user.name for user in seen_as(self.fusion, tensor, self.views)[1] if user.name in self.exprs]

    def bytes(self, tensor: TensorView) -> int:
        """Minimum bytes that a reader reads for a tensor; for the end of a chain, the end or the chain's operands."""
        chain = self.ends.get(tensor)
        least = min(map(self.least, seen_as(self.fusion, tensor, self.views)[0]))
        if chain is None or not self.copies(tensor):
            return least
        return min(least, sum(map(self.least, chain[0].tensor_inputs)))

    def parts_of(self, tensor: TensorView) -> Mapping[str, Part]:
        """Return what each reader reads of a tensor, if that is not the same for all."""
        seen, _ = seen_as(self.fusion, tensor, self.views)
        return {} if tensor in self.ends or len(seen) > 1 else self.parts.get(tensor, {})

    def least(self, tensor: TensorView) -> int:
        """Minimum bytes of a tensor in memory that a segment which reads it reads."""
        parts = self.parts.get(tensor)
        return tensor.nbytes if parts is None else min(part_bytes(tensor, [part]) for part in parts.values())

    def stored(self, tensor: TensorView) -> int:
        """Bytes that the producer of a tensor writes; for the end of a chain, those that a reader reads for it."""
        if tensor in self.ends and self.copies(tensor):
            return self.bytes(tensor)
        return min(seen.nbytes for seen in seen_as(self.fusion, tensor, self.views)[0])

    def copies(self, end: TensorView) -> bool:
        """Whether some reader of a chain may hold a copy of it."""
        return not all(self._never_copies(user, end) for user in self.readers(end))

    def _never_copies(self, user: str, end: TensorView) -> bool:
        verdicts = self.ask((user,), (end,)).verdicts
        return bool(verdicts) and not any(v.accepted or not v.monotone for v in verdicts)

    def maker(self, tensor: TensorView) -> str | None:
        """Return the name of the expression that computes a tensor, None for inputs and in chains."""
        maker = self.fusion.producers.get(tensor)
        return maker.name if maker is not None and maker.name in self.exprs else None

    def is_written(self, tensor: TensorView) -> bool:
        """Whether a tensor is always written."""
        seen, users = seen_as(self.fusion, tensor, self.views)
        return not set(seen).isdisjoint(self.fusion.outputs) or any(user.name not in self.exprs for user in users)

    def hull(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names with everything on paths between them."""
        inside = frozenset(names)
        after = {other for name in inside for other in self.behind[name]}
        return inside | {name for name in after if not inside.isdisjoint(self.behind[name])}

    def ask(self, names: Iterable[str], chains: Iterable[TensorView] = ()) -> Answer:
        """Return the verdicts about expressions with copies of the chains that end in some tensors."""
        exprs = [self.exprs[name] for name in names] + [expr for end in chains for expr in self.ends[end]]
        group = candidate(self.fusion, exprs, self.copied)
        return refused_by_hint(group, self._options) or self._oracle.ask(group)

    def never_together(self, a: str, b: str) -> bool:
        """Whether no segment can contain both: their hull, or the hull of a pair in it, is refused permanently."""
        hull = self.hull((a, b))
        if self._is_refused(hull):
            return True
        inner = {self.hull(pair) for pair in combinations(sorted(hull), 2)}
        return any(self._is_refused(other) for other in inner)

    def _is_refused(self, hull: frozenset[str]) -> bool:
        is_refused = self._apart.get(hull)
        if is_refused is None:
            answer = self.ask(hull)
            is_refused = not any(v.accepted or not v.monotone for v in answer.verdicts) and bool(answer.verdicts)
            self._apart[hull] = is_refused
        return is_refused

    def check(self, end: float) -> None:
        """Collect the errors in the terms."""
        seen: set[object] = set()
        for term in self._proof.terms:
            unknown = [name for name in term.members if name not in self.exprs]
            separate = {TermKind.SEARCH: 1, TermKind.STORED: 2, TermKind.PATH: 3, TermKind.VIEWS: 4}.get(term.kind, 0)
            key = (separate, (term.members, term.through) if separate in {1, 3} else term.subject)
            if unknown or self._charges_views(term) or key in seen or term.cost < 0:
                self.problems.append(f"a term names a tensor that it may not charge, or charges it twice: {term.text}")
                continue
            seen.add(key)
            if term.kind is TermKind.SEARCH:
                continue
            if term.kind is TermKind.VIEWS:
                if term.cost > self._worth_of_views():
                    self.problems.append(f"no segment of views has to cost {term.cost} bytes: {term.text}")
                continue
            if term.kind is TermKind.PATH:
                self._check_path(term)
                continue
            if len(set(term.members)) != len(term.members):
                self.problems.append(f"a member occurs twice: {term.text}")
            for a, b in combinations(term.members, 2):
                if not self.never_together(a, b):
                    self.problems.append(f"{a} and {b} may share a kernel, which contradicts: {term.text}")
            worth = self._worth(term)
            if term.cost > worth:
                self.problems.append(f"{term.cost} bytes are claimed, but {worth} are correct: {term.text}")
        self._check_charges()
        if not self.problems:
            self._check_searches(end)

    def _charges_views(self, term: Term) -> bool:
        """Whether a term charges something that a plan with free views need not pay."""
        passed = (name for steps in term.through for name in steps)
        named = {term.subject, *term.members, *passed}
        return term.kind is not TermKind.SEARCH and not named.isdisjoint(expr.name for expr in self.views)

    def _check_path(self, term: Term) -> None:
        """Check that neighbours share the tensors between them, and that the first and the last exclude each other."""
        tensors = [self.fusion.tensors.get(name) for steps in term.through for name in steps]
        if len(tensors) + 1 != len(term.members) or len(tensors) < 1:
            self.problems.append(f"not every two neighbours have a tensor between them: {term.text}")
            return
        for tensor, (a, b) in zip(tensors, pairwise(term.members), strict=True):
            near = set() if tensor is None else {*self.users(tensor), self.maker(tensor)}
            if a == b or not {a, b} <= near:
                self.problems.append(f"{a} and {b} do not share such a tensor, which contradicts: {term.text}")
        a, b = term.members[0], term.members[-1]
        if not self.never_together(a, b):
            self.problems.append(f"{a} and {b} may share a kernel, which contradicts: {term.text}")

    def _check_charges(self) -> None:
        """Check that paths charge no tensor more than separating its producer and readers costs beyond other terms."""
        charged: dict[str, int] = {}
        searched: set[str] = set()
        several: set[str] = set()
        for term in self._proof.terms:
            if term.kind is TermKind.PATH:
                for name in dict.fromkeys(name for steps in term.through for name in steps):
                    charged[name] = charged.get(name, 0) + term.cost
            elif term.kind is TermKind.SEARCH:
                searched.update(term.members)
            else:
                passed = [self.exprs[name] for steps in term.through for name in steps if name in self.exprs]
                several.update(tensor.name for expr in passed for tensor in expr.tensor_outputs)
                if len(term.members) > 1 or term.through:
                    several.add(term.subject)
        for name, amount in charged.items():
            tensor = self.fusion.tensors.get(name)
            if tensor is None:
                continue  # already reported
            maker, near = self.maker(tensor), set(self.users(tensor))
            made_here = maker is None and tensor in self.fusion.producers and tensor not in self.ends
            room = self.bytes(tensor) + (0 if maker is None or self.is_written(tensor) else self.stored(tensor))
            if name in several or made_here or searched & {*near, *([maker] if maker else [])}:
                room = 0
            if amount > room:
                self.problems.append(f"paths charge {amount} bytes for {name}, but only {room} are left")

    def _worth(self, term: Term) -> int:
        count = len(term.members)
        if term.kind is TermKind.LAUNCHES:
            return self.launch * max(count, 1) if len(self.exprs) > len(self.views) else 0
        tensor = self.fusion.tensors.get(term.subject)
        if tensor is None:
            return 0
        if term.kind is TermKind.STORED:
            return self._worth_stored(term, tensor)
        maker, users = self.maker(tensor), self.users(tensor)
        if term.through:
            return self._worth_through(term, tensor)
        if not set(term.members) <= {*users, *([maker] if maker else [])}:
            return 0
        if maker is None:
            is_read = (tensor not in self.fusion.producers or tensor in self.ends) and users
            return self.bytes(tensor) * max(count, 1) if is_read else 0
        if maker not in term.members:
            return self.stored(tensor) if self.is_written(tensor) else 0
        return self.bytes(tensor) * (count - 1) + self.stored(tensor) * (count > 1 or self.is_written(tensor))

    def _worth_of_views(self) -> int:
        """Return the least that a segment of views costs beyond the other terms, because of what it separates."""
        terms, least = self._proof.terms, list[int]()
        if any(term.through for term in terms) or not self._proof.free_views:
            return 0
        several = {term.subject for term in terms if len(term.members) > 1}
        for view in self.views:
            root = root_of_view(self.fusion, view, self.views)
            if root in self.ends and not all(map(may_view, self.ends[root])):
                is_charged = any(term.kind is TermKind.STORED and term.subject == root.name for term in terms)
                least.append(0 if is_charged else self._least_stored(root))
                continue
            behind = seen_as(self.fusion, view.out, self.views)[1]
            if self.maker(root) is None or not any(expr.name in self.exprs for expr in behind):
                return 0
            written = 0 if self.is_written(root) else self.stored(root)
            moved = 0 if root.name in several else self.bytes(root) + written
            least.append(moved + (0 if "" in several else self.launch))
        return min(least, default=0)

    def _worth_through(self, term: Term, tensor: TensorView) -> int:
        """Return the cost of a tensor whose readers pass their results on to the members of a clique."""
        maker = self.maker(tensor)
        readers = [name for name in term.members if name != maker]
        if len(term.through) != len(readers) or (maker is not None and maker not in term.members):
            return 0
        if maker is None and tensor in self.fusion.producers and tensor not in self.ends:
            return 0
        size, least = self.bytes(tensor), []
        for reader, steps in zip(readers, term.through, strict=True):
            smallest, value = size, tensor
            for index, name in enumerate((*steps, reader)):
                # Only the first step may share its operand with others; the results of all steps have one reader.
                if name not in self.users(value) or (index and self.users(value) != [name]):
                    return 0
                if name == reader:
                    break
                if len(self.exprs[name].tensor_outputs) != 1:
                    return 0
                value = self.exprs[name].out
                if self.is_written(value) or value.name in self._claimed_tensors:
                    return 0
                self._claimed_tensors.add(value.name)
                smallest = min(smallest, 2 * self.bytes(value))
            least.append(smallest)
        if maker is None:
            return size + sum(least) - max(least, default=0)
        if self.is_written(tensor):
            return size + sum(least)
        inside = [2 * min((self.bytes(self.exprs[n].out) for n in steps), default=size) for steps in term.through]
        if all(term.through):
            return min(sum(inside), size + sum(least))
        return size + sum(least)

    def _worth_stored(self, term: Term, end: TensorView) -> int:
        """Return the cost of storing a chain, if the only member reads its end and can never contain a copy."""
        if self._proof.free_views and end in self.ends and all(map(may_view, self.ends[end])):
            return 0
        if end in self.ends and end in self.fusion.outputs and not term.members:
            return self.launch + end.nbytes
        if end not in self.ends or len(term.members) != 1 or term.members[0] not in self.users(end):
            return 0
        if not self._never_copies(term.members[0], end):
            return 0
        return self._least_stored(end)

    def _least_stored(self, end: TensorView) -> int:
        """Return the least cost of storing a chain in a separate segment."""
        return self.launch + end.nbytes + sum(map(self.least, self.ends[end][0].tensor_inputs))

    def _check_searches(self, end: float) -> None:
        covered: set[str] = set()
        for term in self._proof.terms:
            if term.kind is not TermKind.SEARCH:
                continue
            part = frozenset(term.members)
            if part & covered:
                self.problems.append(f"two searches cover the same expressions: {term.text}")
            covered |= part
            outside = [name for name in self.exprs if name not in part]
            joined = next(((a, b) for a in part for b in outside if not self.never_together(a, b)), None)
            if joined:
                self.problems.append(f"{joined[0]} and {joined[1]} may share a kernel, so the search does not cover "
                                     "all plans")
                continue
            claimed = term.cost + sum(self._share(other, part) for other in self._proof.terms)
            cheaper = _Repeat(self, part, claimed, end).run()
            if cheaper is None:
                self.unchecked.append(term.text)
            elif cheaper < claimed:
                self.problems.append(f"a plan costs {cheaper}, less than the {claimed} of: {term.text}")

    def _share(self, term: Term, part: frozenset[str]) -> int:
        """Return the bytes that a term charges to the segments of a part."""
        inside = [name for name in term.members if name in part]
        if term.kind in {TermKind.SEARCH, TermKind.STORED}:
            return 0
        if term.kind is TermKind.LAUNCHES:
            launching = any(self.exprs[name] not in self.views for name in part)
            return self.launch * max(len(inside), 1 if launching else 0)
        if term.kind is TermKind.VIEWS:
            return 0
        tensor = self.fusion.tensors[term.subject]
        maker = self.maker(tensor)
        if maker in part:
            is_written = len(term.members) > 1 or self.is_written(tensor)
            return self.bytes(tensor) * (len(inside) - 1) + self.stored(tensor) * is_written
        return self.bytes(tensor) * max(len(inside), 1) if part.intersection(self.users(tensor)) else 0


class _Repeat:
    """Repeats the search of a part by Dijkstra's algorithm over sets of finished expressions, one segment per step."""

    def __init__(self, checker: _Checker, part: frozenset[str], claimed: int, end: float) -> None:
        self._checker = checker
        self._claimed = claimed
        self._end = end
        self._names = [name for name in checker.exprs if name in part]
        place = {name: i for i, name in enumerate(self._names)}
        self._before = [0] * len(place)
        for name in self._names:
            for other in checker.behind[name]:
                if other in place:
                    self._before[place[other]] |= 1 << place[name]
        self._launching = sum(1 << place[name] for name in place if checker.exprs[name] not in checker.views)
        # Per tensor: bytes, maker's bit, readers' bits, whether it must be written.
        self._tensors: list[tuple[int, int, int, bool]] = []
        self._read: list[TensorView] = []
        for tensor in checker.fusion.tensors.values():
            maker = checker.maker(tensor)
            if maker is not None and checker.exprs[maker] in checker.views:
                continue
            users = checker.users(tensor)
            made = 1 << place[maker] if maker in place else 0
            read = sum(1 << place[user] for user in users if user in place)
            must_write = bool(made) and (checker.is_written(tensor) or any(user not in place for user in users))
            if read or must_write:
                self._tensors.append((checker.bytes(tensor), made, read, must_write))
                self._read.append(tensor)

    def run(self) -> int | None:
        """Return the minimum cost, or any cost that is not below the claimed one; None if time runs out."""
        everything = (1 << len(self._names)) - 1
        cost: dict[int, int] = {0: 0}
        waiting = [(0, 0)]
        while waiting:
            so_far, done = heappop(waiting)
            if so_far > cost[done]:
                continue
            if done == everything:
                return so_far
            for segment in self._next(done, self._claimed - so_far):
                price = so_far + self._price(segment)
                extra = self._legal(segment, self._claimed - price)
                if extra is None:
                    continue
                after = done | segment
                total = price + extra
                if total < cost.get(after, self._claimed):
                    cost[after] = total
                    heappush(waiting, (total, after))
            if self._is_late:
                return None
        return self._claimed

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._end

    def _next(self, done: int, left: int) -> Iterator[int]:
        """Yield the segments that can come next and leave enough for the rest; stop early if time runs out."""
        waiting = [(0, 0)]
        count = len(self._names)
        while waiting and not self._is_late:
            segment, place = waiting.pop()
            if self._at_least(done, segment, place) >= left:
                continue
            if place == count:
                if segment:
                    yield segment
                continue
            waiting.append((segment, place + 1))
            if not done >> place & 1 and not self._before[place] & ~(done | segment):
                waiting.append((segment | 1 << place, place + 1))

    def _at_least(self, done: int, segment: int, place: int) -> int:
        """Return a lower bound for a segment that takes no more of the first ``place`` expressions, and the rest."""
        everything = (1 << len(self._names)) - 1
        rest = everything & ~done & ~segment
        never = rest & ((1 << place) - 1)
        opened, later = segment & self._launching, (never if segment else rest) & self._launching
        total = (self._checker.launch if opened else 0) + (self._checker.launch if later else 0)
        for size, made, read, must_write in self._tensors:
            if made & segment:
                total += size * (2 if read & never else must_write)
            elif made & rest:
                total += size * must_write
            elif read & segment:
                total += size * (2 if read & never else 1)
            elif read & rest:
                total += size
        return total

    def _price(self, segment: int) -> int:
        total = self._checker.launch if segment & self._launching else 0
        for tensor, (size, made, read, must_write) in zip(self._read, self._tensors, strict=True):
            if made & segment:
                total += self._checker.stored(tensor) if must_write or read & ~segment else 0
            elif read & segment:
                parts = self._checker.parts_of(tensor)
                inside = [parts[name] for n, name in enumerate(self._names) if segment >> n & 1 and name in parts]
                total += part_bytes(tensor, inside) if parts else size
        return total

    def _legal(self, segment: int, left: int) -> int | None:
        """Return a segment's cost beyond the cheapest way to read chains; None if it is not accepted below a limit."""
        checker = self._checker
        names = [name for i, name in enumerate(self._names) if segment >> i & 1]
        if len(checker.hull(names)) != len(names):
            return None  # an expression of another part is between them
        ends = [
            end for end in checker.ends
            if checker.copies(end) and any(end in checker.exprs[name].tensor_inputs for name in names)
        ]
        best: int | None = None
        for count in range(len(ends) + 1):
            for copied in combinations(ends, count):
                extra = sum(_cost_of(checker, end, copy=end in copied) - checker.bytes(end) for end in ends)
                if extra >= left or (best is not None and extra >= best):
                    continue
                alone = len(names) == 1 and not copied
                if alone or checker.ask(names, copied).chosen is not None:
                    best = extra
        return best


def _cost_of(checker: _Checker, end: TensorView, *, copy: bool) -> int:
    if not copy:
        return checker.least(end)
    return sum(map(checker.least, checker.ends[end][0].tensor_inputs))

