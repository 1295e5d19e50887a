"""Groups of nodes: convex, as large as possible where nothing is in between, in time linear in the graph."""

import graphlib
import sys

from hypothesis import given
from hypothesis import strategies as st

from fuser_lab.bridge.grouping import groups
from tests.thorough import tries


@st.composite
def graphs(draw):
    """The operands of each node, and the section that it may be grouped in."""
    size = draw(st.integers(1, 14))
    reads = [draw(st.lists(st.integers(0, node - 1), max_size=3)) if node else [] for node in range(size)]
    section = draw(st.lists(st.sampled_from([0, 0, 0, 1, None]), min_size=size, max_size=size))
    return reads, section


def quotient(reads, found):
    of = {node: f"group {number}" for number, group in enumerate(found) for node in group}
    edges = {}
    for node, given_nodes in enumerate(reads):
        for source in given_nodes:
            first, second = of.get(source, source), of.get(node, node)
            if first != second:
                edges.setdefault(second, set()).add(first)
    return edges


def is_acyclic(edges):
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError:
        return False
    return True


@tries(200)
@given(graphs())
def test_groups_are_acyclic_hold_every_allowed_node_once_and_stay_in_their_section(graph):
    reads, section = graph
    found = groups(reads, section)
    allowed = [node for node, here in enumerate(section) if here is not None]
    assert sorted(node for group in found for node in group) == allowed
    assert all(len({section[node] for node in group}) == 1 for group in found)
    assert is_acyclic(quotient(reads, found))


@tries(200)
@given(graphs())
def test_no_reader_stands_apart_from_what_it_reads_unless_joining_them_makes_a_cycle(graph):
    reads, section = graph
    found = groups(reads, section)
    of = {node: group for group in found for node in group}
    for node, given_nodes in enumerate(reads):
        for source in given_nodes:
            if node in of and source in of and section[node] == section[source] and of[node] is not of[source]:
                rest = [group for group in found if group not in (of[node], of[source])]
                assert not is_acyclic(quotient(reads, [*rest, of[node] + of[source]]))


def test_readers_of_one_node_are_one_group():
    # 1 is computed and stays alone, 2 and 3 read it; 4 and 5 have only an input in common.
    assert groups([[], [0], [1], [1], [0], [0]], [None, None, 0, 0, 0, 0]) == [[2, 3], [4], [5]]


def layers(count):
    """A stack of layers as in a transformer: a norm, a product that stays alone, a residual sum."""
    reads, section = [[]], [0]
    for _ in range(count):
        into = len(reads) - 1
        reads += [[into], [into, into + 1], [into + 2], [into, into + 3]]
        section += [0, 0, None, 0]
    return reads, section


def test_the_work_grows_with_the_graph():
    """Eight times the layers take eight times the calls, not 64 times."""
    work = []
    for count in (50, 400):
        reads, section = layers(count)
        calls = 0

        def counted(_frame, event, _called):
            nonlocal calls
            calls += event == "c_call"

        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            found = groups(reads, section)
        finally:
            sys.setprofile(before)
        assert len(found) == count + 1
        work.append(calls)
    assert work[1] < 10 * work[0]


def test_readers_of_an_input_are_joined_where_they_have_it_in_common_and_no_path_forbids_it():
    # 0 is an input; 1 and 2 read it, 3 stays alone and reads 1, 4 reads 3 and the input, 5 reads the input.
    reads, section = [[], [0], [0], [1], [3, 0], [0]], [None, 0, 0, None, 0, 0]
    assert sorted(groups(reads, section)) == [[1], [2], [4], [5]]
    found = groups(reads, section, {0: {1, 2, 4}})
    assert sorted(map(len, found)) == [1, 1, 2]
    assert is_acyclic(quotient(reads, found))
    assert [5] in found
