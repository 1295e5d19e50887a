"""A lower bound for every legal partition, from pairs of expressions that can never share a kernel.

Two expressions are incompatible if their convex hull is refused for monotone reasons only: then every segment that
contains both would be refused too. Members of a clique of incompatible expressions are in different segments. So a
tensor whose producer and readers contain a clique of w is written once and read w - 1 times, and a clique of m among
all expressions means m launches. Each of these terms is charged to different (tensor, segment) pairs, so their sum is a
bound.
"""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fuser_lab.analysis.bit_masks import bits
from fuser_lab.cost.amounts import bytes_label
from fuser_lab.cost.traffic import may_view, root_of_view, seen_as
from fuser_lab.ir import TensorView
from fuser_lab.segmentation.certificate import Term, TermKind
from fuser_lab.segmentation.packing import Link, Path, packed_paths
from fuser_lab.segmentation.space import Conflicts, Flow, Space, final_text, is_by_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Cliques with their costs: one for each flow of the space, in order, and one for the launches."""

    cliques: tuple[int, ...]
    launches: int
    terms: tuple[Term, ...]

    @property
    def cost(self) -> int:
        """The bound."""
        return sum(term.cost for term in self.terms)

    @property
    def stored(self) -> int:
        """The part of the bound that segments of stored chains pay."""
        return sum(term.cost for term in self.terms if term.kind is TermKind.STORED)


def clique_bound(space: Space, conflicts: Conflicts) -> Bound:
    """Return the bound and its terms as sentences."""
    cliques, terms = [], []
    for flow in space.flows:
        clique = conflicts.clique(flow.producer | flow.readers, flow.producer)
        cliques.append(clique)
        term = _flow_term(space, conflicts, flow, clique)
        if term.cost:
            terms.append(term)
    launches = conflicts.clique(space.launching)
    if space.launching:
        terms.append(_launch_term(space, conflicts, launches))
    terms += _stored_terms(space)
    return Bound(cliques=tuple(cliques), launches=launches, terms=tuple(terms))


def lifted_bound(space: Space, conflicts: Conflicts, base: Bound) -> Bound:
    """Return the clique bound with more terms, for tensors whose readers only pass results on.

    A cast may share a kernel with the producer of its operand, and with the reader of its result, while these two
    cannot be together. Then one of the two tensors goes through memory, the smaller one at least. The results of the
    steps that are skipped on the way to such a reader must have one reader each, and are charged in one term only.
    """
    flow_of = {flow.producer: flow for flow in space.flows if flow.producer}
    charged = {flow.name for flow, clique in zip(space.flows, base.cliques, strict=True) if clique.bit_count() > 1}
    taken: set[str] = set()
    terms = {(term.kind is TermKind.STORED, term.subject): term for term in base.terms}
    for place in sorted(range(len(space.flows)), key=lambda f: -space.flows[f].bytes):
        flow = space.flows[place]
        if flow.name in taken:
            continue
        lifted: dict[int, tuple[Flow, ...]] = {}
        for reader in bits(flow.readers):
            for steps, end in _ways_on(space, flow_of, reader):
                if not any(step.name in taken | charged for step in steps) and end not in lifted:
                    lifted[end] = steps
        among = flow.producer | sum(1 << end for end in lifted)
        # Two ways through one step would charge its result twice.
        clique = conflicts.clique(among, flow.producer)
        ends = [i for i in bits(clique) if not flow.producer >> i & 1]
        used: set[str] = set()
        chosen = []
        for end in sorted(ends, key=lambda i: len(lifted[i])):
            names = {step.name for step in lifted[end]}
            if not names & used:
                used |= names
                chosen.append(end)
        term = _lifted_term(space, conflicts, flow, sorted(chosen), lifted)
        old = terms.get((False, flow.name))
        if term is not None and used and term.cost > (old.cost if old else 0):
            terms[False, flow.name] = term
            taken |= used
            charged.add(flow.name)
    remaining = (term for term in terms.values() if not (term.cost and term.subject in taken and not term.through))
    return Bound(cliques=base.cliques, launches=base.launches, terms=tuple(remaining))


def with_paths(space: Space, conflicts: Conflicts, bound: Bound) -> Bound:
    """Return a bound with more terms, for the paths between pairs that exclude each other.

    Tensors that the other terms charge for being read more than once are left out.
    """
    makers = {unit.name: unit for unit in space.units}
    closed: set[str] = set()
    for term in bound.terms:
        if term.kind is TermKind.MEMORY or (term.kind is TermKind.INPUT and len(term.members) > 1):
            closed.add(term.subject)
        closed.update(tensor.name for steps in term.through for n in steps for tensor in makers[n].tensor_outputs)
    links = [
        Link(capacity=0 if flow.name in closed else flow.parting, units=flow.producer | flow.readers)
        for flow in space.flows
    ]
    paths = packed_paths(conflicts.of, links)
    terms = [_path_term(space, conflicts, path) for path in sorted(paths, key=lambda path: -path.amount)]
    return replace(bound, terms=(*bound.terms, *terms))


def with_views_apart(space: Space, bound: Bound) -> Bound:
    """Return a clique bound with free views and one more term: what every segment of views leaves apart.

    If such a segment is between a producer and readers, these are in different segments, and the tensor between them
    goes through memory. If it reads the end of a chain that others recompute, a separate segment stores this end.
    """
    costs = []
    launch = space.model.launch_bytes if bound.launches.bit_count() < 2 else 0
    places = {flow.name: number for number, flow in enumerate(space.flows) if flow.producer}
    stored = {term.subject for term in bound.terms if term.kind is TermKind.STORED}
    chains = {chain.end: chain for chain in space.chains if not all(map(may_view, chain.exprs))}
    for view in space.views:
        root = root_of_view(space.fusion, view, space.views)
        if root in chains:
            costs.append(0 if root.name in stored else space.least_stored_cost(chains[root]))
            continue
        behind = seen_as(space.fusion, view.out, space.views)[1]
        if root.name not in places or not any(expr in behind for expr in space.units):
            return bound
        place = places[root.name]
        charged = bound.cliques[place].bit_count() > 1
        costs.append(launch + (0 if charged else space.flows[place].parting))
    if not any(costs):
        return bound
    text = "each segment of views lies between two others, which pass a tensor on through memory"
    term = Term(kind=TermKind.VIEWS, subject="", members=(), cost=min(costs), text=text)
    return replace(bound, terms=(*bound.terms, term))


def _path_term(space: Space, conflicts: Conflicts, path: Path) -> Term:
    names = tuple(space.flows[k].name for k in path.links)
    subject = f"{names[0]} goes" if len(names) == 1 else f"one of {_shorten(names)} goes"
    text = f"{subject} through memory between segments: {conflicts.text(path.units[0], path.units[-1])}"
    return Term(
        kind=TermKind.PATH,
        subject="",
        members=tuple(space.units[i].name for i in path.units),
        cost=path.amount,
        text=text,
        through=(names,),
    )


def _ways_on(space: Space, flow_of: dict[int, Flow], reader: int) -> Iterator[tuple[tuple[Flow, ...], int]]:
    """Yield a reader and the units that its result reaches, with the flows on the way."""
    steps: tuple[Flow, ...] = ()
    while True:
        yield steps, reader
        flow = flow_of.get(1 << reader)
        several = len(space.units[reader].tensor_outputs) != 1
        if flow is None or several or flow.kept or flow.readers.bit_count() != 1:
            return
        steps = (*steps, flow)
        reader = next(bits(flow.readers))


def _lifted_term(
    space: Space, conflicts: Conflicts, flow: Flow, ends: Sequence[int], lifted: dict[int, tuple[Flow, ...]],
) -> Term | None:
    if not ends or (len(ends) < 2 and not flow.producer):
        return None
    inside = [2 * min((step.bytes for step in lifted[end]), default=flow.bytes) for end in ends]
    least = [min(flow.bytes, cost) if lifted[end] else flow.bytes for end, cost in zip(ends, inside, strict=True)]
    if not flow.producer:
        cost = flow.bytes + sum(least) - max(least)
    elif flow.kept or not all(lifted[end] for end in ends):
        cost = flow.bytes + sum(least)
    else:
        cost = min(sum(inside), flow.bytes + sum(least))
    members = [*bits(flow.producer), *ends]
    first, second = members[:2]
    label = _label(space.fusion.tensors[flow.name], space)
    later = ", ".join(dict.fromkeys(step.name for end in ends for step in lifted[end]))
    text = (
        f"{label} ({bytes_label(flow.bytes)}), or a value computed from it ({later}), must go through memory for "
        f"{', '.join(space.units[end].name for end in ends)}: "
        f"{conflicts.text(first, second, sum(1 << i for i in members))}"
    )
    return Term(
        kind=TermKind.MEMORY if flow.producer else TermKind.INPUT,
        subject=flow.name,
        members=tuple(space.units[i].name for i in members),
        cost=cost,
        text=text,
        through=tuple(tuple(_maker(space, step) for step in lifted[end]) for end in ends),
    )


def _maker(space: Space, flow: Flow) -> str:
    return space.units[next(bits(flow.producer))].name


def _stored_terms(space: Space) -> Iterator[Term]:
    """Yield a term for each chain that ends in an output, or that some reader can never hold a copy of.

    With free views, a separate segment for a chain of views costs nothing.
    """
    for number, chain in enumerate(space.chains):
        if space.free_views and all(map(may_view, chain.exprs)):
            continue
        if space.kept_chains >> number & 1:
            text = (
                f"{chain.end.name} ({bytes_label(chain.end.nbytes)}) is an output that readers recompute: a separate "
                "segment writes it"
            )
            cost = space.model.launch_bytes + chain.end.nbytes
            yield Term(kind=TermKind.STORED, subject=chain.end.name, members=(), cost=cost, text=text)
            continue
        for i in space.readers(chain.end):
            if space.never_copies(i, number):
                unit, answer = space.units[i], space.ask(1 << i, 1 << number)
                cost = space.least_stored_cost(chain)
                condition = space.while_kept if is_by_hint(answer) else ""
                text = (
                    f"{chain.end.name} ({bytes_label(chain.end.nbytes)}) must be stored by a separate segment: "
                    f"{unit.name} ({unit.op.name}) cannot recompute it{condition}, because {final_text(answer)}"
                )
                yield Term(
                    kind=TermKind.STORED, subject=chain.end.name, members=(unit.name,), cost=cost, text=text,
                )
                break


def _flow_term(space: Space, conflicts: Conflicts, flow: Flow, clique: int) -> Term:
    size, members = bytes_label(flow.stored if flow.producer else flow.bytes), list(bits(clique))
    count = len(members)
    label = _label(space.fusion.tensors[flow.name], space)
    if not flow.producer:
        cost = flow.bytes * max(count, 1)
        text = f"{label} ({size}) is read once"
        if count > 1:
            text = f"{label} ({size}) is read {count} times: {conflicts.text(members[0], members[1], clique)}"
        return Term(kind=TermKind.INPUT, subject=flow.name, members=space.names(clique), cost=cost, text=text)
    if count < 2:
        cost = flow.stored if flow.kept else 0
        text = f"{label} ({size}) is written once"
        return Term(kind=TermKind.OUTPUT, subject=flow.name, members=space.names(clique), cost=cost, text=text)
    maker = next(bits(flow.producer))
    other = next(i for i in members if i != maker)
    times = "once" if count == 2 else f"{count - 1} times"
    text = (
        f"{label} ({size}) must go through memory, written once and read {times}: "
        f"{conflicts.text(maker, other, clique)}"
    )
    cost = flow.bytes * count + flow.unread
    return Term(kind=TermKind.MEMORY, subject=flow.name, members=space.names(clique), cost=cost, text=text)


def _launch_term(space: Space, conflicts: Conflicts, clique: int) -> Term:
    members = list(bits(clique))
    cost = space.model.launch_bytes * max(len(members), 1)
    text = "at least one kernel is launched"
    if len(members) > 1:
        text = f"at least {len(members)} launches, because no two of {_shorten(space.names(clique))} share a kernel: "
        text += conflicts.text(members[0], members[1], clique)
        text += ", and so on" if len(members) > 2 else ""
    return Term(kind=TermKind.LAUNCHES, subject="", members=space.names(clique), cost=cost, text=text)


def _label(tensor: TensorView, space: Space) -> str:
    maker = space.fusion.producers.get(tensor)
    if maker is None:
        return f"input {tensor.name}"
    chain = next((c for c in space.chains if c.end == tensor), None)
    if chain is not None and space.is_copied(tensor):
        source = chain.exprs[0].tensor_inputs
        return f"input {source[0].name}, for {tensor.name}," if source else f"factory {tensor.name}"
    return f"{tensor.name} ({maker.op.name})"


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 8 else (*names[:5], "...", *names[-2:]))
