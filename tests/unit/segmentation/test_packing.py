"""Paths between units that exclude each other: no link exceeds its capacity, and known optima are found."""

from hypothesis import given
from hypothesis import strategies as st
from thorough import tries

from fuser_lab.segmentation.packing import Link, packed_paths


def apart_of(size, *pairs):
    masks = [0] * size
    for a, b in pairs:
        masks[a] |= 1 << b
        masks[b] |= 1 << a
    return masks


def link(capacity, *units):
    return Link(capacity=capacity, units=sum(1 << i for i in set(units)))


def test_a_chain_costs_its_cheapest_link():
    paths = packed_paths(apart_of(4, (0, 3)), [link(70, 0, 1), link(20, 1, 2), link(50, 2, 3)])
    assert [path.amount for path in paths] == [20]
    assert paths[0].units == (0, 1, 2, 3)
    assert paths[0].links == (0, 1, 2)


def test_two_ways_are_both_cut():
    links = [link(30, 0, 1), link(30, 1, 3), link(40, 0, 2), link(10, 2, 3)]
    assert sum(path.amount for path in packed_paths(apart_of(4, (0, 3)), links)) == 40


def test_pairs_share_what_they_have_in_common():
    links = [link(100, 0, 2), link(100, 1, 2), link(50, 2, 3)]
    assert sum(path.amount for path in packed_paths(apart_of(4, (0, 3), (1, 3)), links)) == 50
    # A triangle of exclusions around one unit: half of each leg, 150 of 300.
    star = [link(100, 0, 3), link(100, 1, 3), link(100, 2, 3)]
    assert sum(path.amount for path in packed_paths(apart_of(4, (0, 1), (1, 2), (0, 2)), star)) == 150


def test_a_link_without_capacity_leads_nowhere():
    assert packed_paths(apart_of(2, (0, 1)), [link(0, 0, 1)]) == ()
    assert packed_paths(apart_of(2), [link(9, 0, 1)]) == ()
    assert packed_paths([], []) == ()


SIZE = 6
PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda p: p[0] != p[1]), max_size=5)
LINKS = st.lists(st.builds(link, st.integers(0, 99), st.integers(0, 5), st.integers(0, 5)), max_size=9)


def least_cut(apart, links):
    """Return the least capacity of links cut by any labelling of the units that respects the exclusions."""
    best = None
    labels = [0] * SIZE

    def go(unit):
        nonlocal best
        if unit == SIZE:
            cut = sum(
                one.capacity for one in links
                if len({labels[i] for i in range(SIZE) if one.units >> i & 1}) > 1
            )
            best = cut if best is None else min(best, cut)
            return
        for label in range(max(labels[:unit], default=-1) + 2):
            if any(labels[other] == label and apart[unit] >> other & 1 for other in range(unit)):
                continue
            labels[unit] = label
            go(unit + 1)
        labels[unit] = 0

    go(0)
    return best


@tries(200, deadline=None)
@given(PAIRS, LINKS)
def test_it_never_exceeds_the_least_cut(pairs, links):
    apart = apart_of(SIZE, *pairs)
    paths = packed_paths(apart, links)
    assert sum(path.amount for path in paths) <= least_cut(apart, links)
    for number, one in enumerate(links):
        assert sum(path.amount for path in paths if number in path.links) <= one.capacity
    for path in paths:
        assert apart[path.units[0]] >> path.units[-1] & 1
        assert len(path.units) == len(path.links) + 1
        for (a, b), number in zip(zip(path.units, path.units[1:], strict=False), path.links, strict=True):
            assert links[number].units >> a & 1
            assert links[number].units >> b & 1
