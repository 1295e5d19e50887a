"""Exact contraction: the expressions that every plan cheaper than a known one has in one segment.

If a bound with a tensor through memory reaches the cost of a known plan, then every cheaper plan has the tensor's
producer and its readers (or all readers of an input) in one segment, and with them everything between. This assumes
nothing about the schedulers, unlike rules that merge a producer because schedulers usually accept it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fuser_lab.analysis.bit_masks import bits, union_at
from fuser_lab.segmentation.packing import Link, packed_paths
from fuser_lab.segmentation.space import Conflicts, Flow, Space, in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPath:
    """The cost of a path between two blocks that exclude each other, beyond cliques.

    ``amount`` bytes are due as long as all of the ``waiting`` blocks are in segments to come, and the open segment
    touches none of the flows (a mask of their numbers) on the way.
    """

    amount: int
    waiting: int
    flows: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """Convex sets of units that stay together, in topological order, as a separate small problem.

    ``members`` are masks over the space's units; all other masks are over the blocks: which blocks must precede each,
    which ones exclude it, and the flows between blocks with their cliques. ``paths`` are charged for flows that have no
    clique.
    """

    space: Space
    members: tuple[int, ...]
    needs: tuple[int, ...]
    apart: tuple[int, ...]
    flows: tuple[Flow, ...]
    cliques: tuple[int, ...]
    launches: int
    paths: tuple[BlockPath, ...] = ()
    launching: int = 0  # those whose segments launch a kernel

    @property
    def all(self) -> int:
        """Mask of all blocks."""
        return (1 << len(self.members)) - 1

    def units(self, mask: int) -> int:
        """Return the units of blocks."""
        return union_at(self.members, mask)

    @property
    def is_contradictory(self) -> bool:
        """Whether some block contains units that can never be together."""
        return any(excluded >> i & 1 for i, excluded in enumerate(self.apart))


def blocks_of(space: Space, conflicts: Conflicts, groups: Iterable[int]) -> Blocks:
    """Return groups of units as blocks; units between the members of a group join it."""
    members = in_order(space, _convex_groups(space, groups))
    assert members is not None, "convex groups form no cycle"
    count = len(members)
    above = [union_at(space.above, m) for m in members]
    needs = tuple(
        sum(1 << j for j in range(count) if j != i and members[j] & above[i]) for i in range(count)
    )
    forbidden = [union_at(conflicts.of, m) for m in members]
    apart = [
        sum(1 << j for j in range(count) if members[j] & forbidden[i]) for i in range(count)
    ]
    home = {unit: i for i, m in enumerate(members) for unit in bits(m)}
    flows = tuple(_flows(space, home))
    blocks = Blocks(space, tuple(members), needs, tuple(apart), flows, (), 0)
    launching = sum(1 << i for i, m in enumerate(members) if m & space.launching)
    cliques = tuple(_clique(blocks, flow.producer | flow.readers, flow.producer) for flow in flows)
    launches = _clique(blocks, launching, 0)
    paths = tuple(_paths(apart, flows, cliques))
    return Blocks(space, tuple(members), needs, tuple(apart), flows, cliques, launches, paths, launching)


def _paths(apart: Sequence[int], flows: Sequence[Flow], cliques: Sequence[int]) -> Iterator[BlockPath]:
    links = [
        Link(capacity=0 if clique.bit_count() > 1 else flow.parting, units=flow.producer | flow.readers)
        for flow, clique in zip(flows, cliques, strict=True)
    ]
    for path in packed_paths(apart, links):
        waiting = sum(1 << i for i in path.units)
        for k in path.links:
            if not flows[k].kept:
                waiting |= flows[k].producer  # once it has run, reading the result costs half as much
        yield BlockPath(amount=path.amount, waiting=waiting, flows=sum(1 << k for k in path.links))


def _convex_groups(space: Space, groups: Iterable[int]) -> list[int]:
    """Return the groups made convex; groups that overlap or form a cycle are joined."""
    blocks = list(groups)
    while True:
        blocks = _disjoint_groups([space.hull(group) for group in blocks])
        if any(space.hull(group) != group for group in blocks):
            continue
        above = [union_at(space.above, m) for m in blocks]
        reach = [sum(1 << j for j in range(len(blocks)) if j != i and blocks[j] & above[i]) for i in range(len(blocks))]
        for k in range(len(blocks)):
            for i in range(len(blocks)):
                if reach[i] >> k & 1:
                    reach[i] |= reach[k]
        loops = [
            group | union_at(blocks, sum(1 << j for j in bits(reach[i]) if reach[j] >> i & 1))
            for i, group in enumerate(blocks)
        ]
        if loops == blocks:
            return blocks
        blocks = loops


def _disjoint_groups(groups: Iterable[int]) -> list[int]:
    disjoint: list[int] = []
    for group in groups:
        mask = group
        apart = []
        for other in disjoint:
            if other & mask:
                mask |= other
            else:
                apart.append(other)
        disjoint = [*apart, mask]
        if any(other & mask for other in apart):
            disjoint = _disjoint_groups(disjoint)
    return disjoint


def _flows(space: Space, home: dict[int, int]) -> Iterator[Flow]:
    """Yield the flows of the blocks; a flow from elsewhere is an input, and one that leads elsewhere is kept."""
    inside = sum(1 << unit for unit in home)
    for flow in space.flows:
        producer = flow.producer & inside
        readers_inside = flow.readers & inside
        is_written = bool(producer) and (flow.kept or bool(flow.readers & ~inside))
        at = sum(1 << home[i] for i in bits(producer))
        readers = 0
        for i in bits(readers_inside):
            readers |= 1 << home[i]
        readers &= ~at
        if readers or is_written:
            yield replace(flow, producer=at, readers=readers, kept=is_written, parts=())


def _clique(blocks: Blocks, among: int, start: int) -> int:
    best = start
    by_degree = sorted(bits(among & ~start), key=lambda i: -(blocks.apart[i] & among).bit_count())
    for order in (by_degree, list(bits(among & ~start))):
        chosen = start
        for i in order:
            if not chosen & ~blocks.apart[i]:
                chosen |= 1 << i
        if chosen.bit_count() > best.bit_count():
            best = chosen
    return best


def bound(blocks: Blocks, done: int = 0, chosen: int = 0, excluded: int = 0) -> int:
    """Return a lower bound on the cost of the remaining segments.

    ``done`` blocks are in closed segments, whose cost does not count here. ``chosen`` blocks are in the one open
    segment, which others may still join unless they are ``excluded`` (everything that needs an excluded block must be
    passed as excluded, too). Without an open segment, ``chosen`` is empty.
    """
    rest = blocks.all & ~done & ~chosen
    apart = excluded | union_at(blocks.apart, chosen)
    total = blocks.space.model.launch_bytes * launches(blocks, rest, chosen, apart)
    for path in blocks.paths if not chosen else ():
        if not path.waiting & ~rest:
            total += path.amount
    for flow, clique in zip(blocks.flows, blocks.cliques, strict=True):
        left = flow.readers & rest
        if flow.producer & rest:
            count = clique.bit_count()
            total += flow.bytes * (count if count > 1 else flow.kept)
        elif flow.producer & chosen:
            away = left & apart
            if away:
                total += flow.bytes * (1 + max((clique & away).bit_count(), 1))
            elif flow.kept:
                total += flow.bytes
        elif flow.readers & chosen:
            away = left & apart
            total += flow.bytes * (1 + (max((clique & away).bit_count(), 1) if away else 0))
        elif left:
            total += flow.bytes * max((clique & left).bit_count(), 1)
    return total


def launches(blocks: Blocks, rest: int, chosen: int, apart: int) -> int:
    """Return a lower bound on the number of launches of the open segment and of all later segments.

    ``rest`` are the blocks of later segments, of which all but those ``apart`` may also join the open segment.
    """
    ahead, waiting = (blocks.launches & rest).bit_count(), rest & blocks.launching
    if not chosen & blocks.launching:
        return max(ahead, 1) if waiting else 0
    if not blocks.launches & chosen and blocks.launches & rest & ~apart:
        ahead -= 1  # one of them may join the open segment
    if not ahead and apart & waiting:
        ahead = 1
    return 1 + ahead


def contract(conflicts: Conflicts, part: int, limit: int) -> Blocks:
    """Return a part of the space as blocks such that every plan of it cheaper than ``limit`` keeps them whole."""
    space = conflicts.space
    blocks = blocks_of(space, conflicts, [1 << i for i in bits(part)])
    while not blocks.is_contradictory:
        floor = bound(blocks)
        if floor >= limit:
            break
        joined = [
            blocks.units(flow.producer | flow.readers)
            for number, (flow, clique) in enumerate(zip(blocks.flows, blocks.cliques, strict=True))
            if floor + _parting(blocks, number, flow, clique) >= limit
        ]
        if not joined:
            break
        blocks = blocks_of(space, conflicts, [*blocks.members, *joined])
    return blocks


def _parting(blocks: Blocks, number: int, flow: Flow, clique: int) -> int:
    """Return how much the bound grows if a flow's producer and readers (or an input's readers) are not together."""
    if (flow.producer | flow.readers).bit_count() < 2:
        return 0
    launch = blocks.space.model.launch_bytes if blocks.launches.bit_count() < 2 else 0
    if clique.bit_count() > 1:
        return 0
    charged = sum(path.amount for path in blocks.paths if path.flows >> number & 1)
    return launch + flow.parting - charged
