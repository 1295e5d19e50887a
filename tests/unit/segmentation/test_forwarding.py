"""Values that readers recompute instead of loading them, and values that are never recomputed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.segmentation import SegmenterOptions, replay, segment, verify
from fuser_lab.segmentation.edits import cut
from fuser_lab.segmentation.events import DecisionLog, Kind
from fuser_lab.segmentation.forwarding import forwarded_chains
from tests.unit.builders import record
from tests.unit.segmentation.toy import Rule, chance, everything

FLOAT, INT = DataType.Float, DataType.Int
GALLERY = json.loads((Path(__file__).parents[2] / "data" / "gallery.json").read_text())
ALL = frozenset({"full", "iota", "constant"})


def chains(fusion, **options):
    return [chain.names for chain in forwarded_chains(fusion, SegmenterOptions(**options))]


def both_sides(make):
    """Return a fusion that reads the result of ``make`` before and after a hint."""

    def body(fd):
        x = fd.define_tensor([4, 4], contiguity=True)
        made = make(fd)
        first = fd.ops.segment_set(fd.ops.add(x, made))
        fd.add_output(fd.ops.mul(first, made))

    return record(body)


def eye(fd):
    row = fd.ops.broadcast(fd.ops.iota(4, 0, 1), [True, False])
    column = fd.ops.broadcast(fd.ops.iota(4, 0, 1), [False, True])
    return fd.ops.cast(fd.ops.eq(row, column), FLOAT)


def ramp(fd):
    return fd.ops.broadcast_in_dim(fd.ops.iota(4, 0.0, 1.0, FLOAT), [4, 4], [1])


def ones(fd):
    return fd.ops.full([4, 4], 1.0, FLOAT)


def noise(fd):
    return fd.ops.uniform(0.0, 1.0, [4, 4], rng_seed=fd.define_scalar(1), rng_offset=fd.define_scalar(0), dtype=FLOAT)


def test_full_as_nvfuser():
    assert chains(both_sides(ones)) == [("T1",)]
    assert chains(both_sides(ones), forward_factories=()) == []
    assert chains(both_sides(ramp)) == []


def test_iota_as_an_option():
    assert chains(both_sides(ramp), forward_factories={"iota"}) == [("T1",)], "its views are not unary ops"


@pytest.mark.parametrize(("make", "count"), [(ones, 1), (ramp, 3), (eye, 6)])
def test_constants_whole(make, count):
    fusion = both_sides(make)
    (chain,) = chains(fusion, forward_factories=ALL)
    assert len(chain) == count
    log = DecisionLog()
    segmented = segment(fusion, everything(), options=SegmenterOptions(forward_factories=ALL), log=log)
    assert {tv.name for tv in segmented.crossing}.isdisjoint(chain)
    assert all(set(chain) <= {e.name for e in group.exprs} for group in segmented.groups)
    assert replay(fusion, log, everything()) == segmented


def test_an_identity_is_made_by_each_of_two_kernels():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4, 4], contiguity=True)
        one = eye(fd)
        first = fd.ops.segment_set(fd.ops.add(x, one))
        fd.add_output(fd.ops.mul(first, one))
    stored = fl.segment(fd)
    made = fl.segment(fd, options=fl.SegmenterOptions(forward_factories=ALL))
    assert stored.bytes_crossing == made.bytes_crossing + 4 * 16
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    np.testing.assert_array_equal(made.run([x])[0], (x + np.eye(4, dtype=np.float32)) * np.eye(4, dtype=np.float32))


def test_constants_of_which_several_are_read_are_forwarded_one_by_one():
    def body(fd):
        x = fd.define_tensor([4, 4], contiguity=True)
        one = ones(fd)
        two = fd.ops.add(one, one)
        fd.add_output(fd.ops.mul(fd.ops.segment_set(fd.ops.add(x, one)), two))

    assert chains(record(body), forward_factories=ALL) == [("T1",)]


def test_never_random_numbers():
    assert chains(both_sides(noise), forward_factories=ALL) == []
    assert chains(both_sides(lambda fd: fd.ops.mul(noise(fd), ones(fd))), forward_factories=ALL) == [("T2",)]


def test_never_fusion_outputs():
    def body(fd):
        x = fd.define_tensor([4, 4], contiguity=True)
        one = ones(fd)
        two = fd.ops.neg(one)
        y = fd.ops.neg(x)
        fd.add_output(one)
        fd.add_output(two)
        fd.add_output(y)
        fd.add_output(fd.ops.add(fd.ops.segment_set(y), fd.ops.add(one, two)))

    assert chains(record(body), forward_factories=ALL) == []


def test_what_is_forwarded_is_never_part_of_a_merge():
    def body(fd):
        x, y = (fd.define_tensor([4, 4], contiguity=True) for _ in range(2))
        a, b = fd.ops.neg(fd.ops.relu(x)), fd.ops.exp(y)
        fd.add_output(fd.ops.sum(fd.ops.mul(a, b), [0]))
        fd.add_output(fd.ops.segment_set(fd.ops.sum(fd.ops.add(fd.ops.mul(a, b), ones(fd)), [1])))

    for seed in range(20):
        log = DecisionLog()
        fusion = record(body)
        segment(fusion, chance(seed, 60), log=log)
        forwarded = {name for a in log.filter(kind=Kind.FORWARD) for name in a.names}
        assert len(forwarded) == 4
        merges = [a for a in log.filter(kind=Kind.MERGE) if a.phase != "whole fusion"]
        assert merges
        assert all(forwarded.isdisjoint(a.names) for a in merges)


def test_unknown_factories_are_refused():
    says = r"forward_factories\[0\] must be 'constant', 'full' or 'iota', given 'uniform'"
    with pytest.raises(InputError, match=says):
        SegmenterOptions(forward_factories=["uniform"])


def backward_of_rope(where):
    """Return the plan of the example, or of the gallery's fusion."""
    if where == "example":
        return fl.segment(*fl.example("llama3_rope_backward"))
    (case,) = (c for c in GALLERY if c["id"] == "rope_llama3_bwd")
    with fl.FusionDefinition() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    return fl.segment(fd, [fl.spec(x["shape"], x["dtype"], x.get("strides")) for x in case["inputs"]])


@pytest.mark.parametrize("where", ["example", "gallery"])
def test_the_backward_of_rope_stores_no_zeros(where):
    plan = backward_of_rope(where)
    zeros = {e.out for e in plan.fusion.exprs if e.op.name == "full"}
    assert zeros
    assert zeros.isdisjoint(plan.segmented.crossing)
    readers = [s for s in plan.segments if any(not zeros.isdisjoint(e.inputs) for e in s.exprs)]
    assert readers
    for segment_ in readers:
        read = {v for e in segment_.exprs for v in e.inputs} & zeros
        assert read <= {e.out for e in segment_.exprs}, "each segment that reads zeros creates them"


def test_forwarded_values_do_not_change_results():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 4)).astype(np.float32)
    for make in (ones, ramp, eye):
        fusion = both_sides(make)
        known = {}
        segmented = segment(
            fusion, Rule(lambda c: len(c.exprs) < 9), options=SegmenterOptions(forward_factories=ALL),
        )
        known["T0"] = x
        for group in segmented.groups:
            part = group.candidate.narrowed
            results = evaluate(part, [known[v.name] for v in part.inputs])
            known.update(zip((tv.name for tv in part.outputs), results, strict=True))
        np.testing.assert_array_equal(known[fusion.outputs[0].name], evaluate(fusion, [x])[0])


# Factories that are outputs


def zeros_kept(size):
    """Return the backward of Llama-3's rotary embedding with its zeros, T10, as another output, and its inputs."""
    fd, inputs = fl.example("llama3_rope_backward", size)
    return replace(fd.fusion, outputs=(*fd.fusion.outputs, fd.fusion.tensors["T10"])), inputs


ANEW = SegmenterOptions(forward_factory_outputs=True)


def test_a_full_that_is_an_output_is_stored_once_or_made_anew():
    fusion, inputs = zeros_kept("full")
    stored, anew = (fl.segment(fusion, inputs, options=options) for options in (SegmenterOptions(), ANEW))
    zeros = stored.fusion.tensors["T10"]
    assert [s.scheduler.value for s in stored.segments] == ["resize", "reduction", "pointwise"]
    assert zeros in stored.segmented.crossing
    # One more segment, which writes only the zeros; no segment reads them.
    assert [s.scheduler.value for s in anew.segments] == ["resize", "pointwise", "reduction", "pointwise"]
    assert [s.outputs for s in anew.segments if zeros in s.outputs] == [(zeros,)]
    assert zeros not in anew.segmented.crossing
    moved = [sum(s.bytes for s in plan.segments) for plan in (stored, anew)]
    assert moved == [624_951_296, 608_174_080]
    assert moved[0] - moved[1] == zeros.nbytes // 4  # of the stored zeros, a slice takes every fourth row of heads
    assert any(a.kind is Kind.STORE and a.names == {"T10"} for a in anew.decisions)


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "saving", "optimal"])
def test_an_output_that_readers_make_anew_is_written_once_by_every_strategy(strategy):
    fusion, inputs = zeros_kept("small")
    options = SegmenterOptions(forward_factory_outputs=True, search_states=2000)
    plan = fl.segment(fusion, inputs, strategy=strategy, options=options)
    assert [tv.name for s in plan.segments for tv in s.outputs].count("T10") == 1
    certificate = plan.certificate()
    assert verify(certificate, plan.segmented, plan.oracle, seconds=2).problems == ()
    assert fl.segment(fusion, inputs, strategy=strategy, options=options).hash == plan.hash
    for want, got in zip(plan.definitions().reference(inputs), evaluate(fusion, inputs), strict=True):
        np.testing.assert_array_equal(want, got)


def test_edits_elsewhere_leave_the_copies_alone():
    fusion, inputs = zeros_kept("small")
    plan = fl.segment(fusion, inputs, options=ANEW)
    edited = plan.cut("T31")
    assert len(edited.segments) == len(plan.segments) + 1
    assert edited.fusion.tensors["T10"] not in edited.segmented.crossing
    # Glued to a segment that reads them, the zeros are an ordinary result of it, which others read.
    home, writer = (plan.segmented.home["T28"][0], plan.segmented.home["T10"])
    (alone,) = (i for i in writer if [tv.name for tv in plan.segments[i].outputs] == ["T10"])
    glued = plan.glue(home, alone)
    assert [s.scheduler.value for s in glued.segments] == ["resize", "reduction", "pointwise"]
    assert glued.fusion.tensors["T10"] in glued.segmented.crossing


def test_a_chain_that_is_stored_for_one_reader_stays_copied_in_others():
    def body(fd):
        x, y = (fd.define_tensor([4], contiguity=True) for _ in range(2))
        a = fd.ops.neg(x)
        fd.add_output(fd.ops.sum(fd.ops.mul(a, y), [0]))
        fd.add_output(fd.ops.exp(fd.ops.add(a, y)))

    fusion = record(body)
    # The sum cannot hold the chain; the sum and the exp cannot be one.
    oracle = Rule(lambda c: not ({"T2", "T3"} <= c.key or {"T4", "T6"} <= c.key))
    segmented = segment(fusion, oracle)
    groups = {frozenset(g.names) for g in segmented.groups}
    assert groups == {frozenset({"T2"}), frozenset({"T3", "T4"}), frozenset({"T2", "T5", "T6"})}
    parted = {frozenset(g.names) for g in cut(segmented, "T3", None, oracle).groups}
    assert parted == {*groups, frozenset({"T3"}), frozenset({"T4"})} - {frozenset({"T3", "T4"})}
    parted = {frozenset(g.names) for g in cut(segmented, "T5", None, oracle).groups}
    assert parted == {*groups, frozenset({"T2", "T5"}), frozenset({"T6"})} - {frozenset({"T2", "T5", "T6"})}


def test_a_stored_chain_that_computes_a_scalar_is_one_segment_after_edits():
    def body(fd):
        x, y = (fd.define_tensor([4], contiguity=True) for _ in range(2))
        value = fd.ops.mul(fd.define_scalar(dtype=DataType.Double), 2.0)
        made = fd.ops.full([4], value, FLOAT)
        fd.add_output(fd.ops.sum(fd.ops.mul(made, x), [0]))
        fd.add_output(fd.ops.exp(fd.ops.add(made, y)))

    oracle = Rule(lambda c: not ({"T2", "T3"} <= c.key or {"T4", "T6"} <= c.key))
    parted = cut(segment(record(body), oracle), "T3", None, oracle)
    tensors = [[tv.name for e in g.exprs for tv in e.tensor_outputs] for g in parted.groups]
    assert sorted(tensors) == [["T2"], ["T2", "T5", "T6"], ["T3"], ["T4"]]


def test_chains_that_end_in_an_output():
    def body(fd):
        x = fd.define_tensor([4, 4], contiguity=True)
        one, unread = ones(fd), ones(fd)
        ramp_ = ramp(fd)
        for made in (one, unread, ramp_):
            fd.add_output(made)
        fd.add_output(fd.ops.mul(fd.ops.segment_set(fd.ops.add(x, fd.ops.neg(one))), fd.ops.add(one, ramp_)))

    fusion = record(body)
    assert chains(fusion) == []
    assert chains(fusion, forward_factory_outputs=True) == [("T1",)]
    assert chains(fusion, forward_factories=ALL) == [("T3", "T4")]
    # Ops on an output read it, and are not part of its chain.
    assert chains(fusion, forward_factory_outputs=True, forward_factories=ALL) == [("T1",), ("T3", "T4", "T5")]


# Broadcasts


def table_read_twice(fd):
    table = fd.define_tensor([4], contiguity=True)
    wide = fd.ops.exp(fd.ops.broadcast_in_dim(table, [3, 4], [1]))
    for _ in range(2):
        x = fd.define_tensor([3, 4], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, wide), [0]))


def test_broadcasts_of_inputs_as_an_option():
    fusion = record(table_read_twice)
    assert chains(fusion) == []
    (chain,) = chains(fusion, forward_broadcasts=True)
    ops = [fusion.exprs[fusion.positions[name]].op.name for name in chain]
    assert ops == ["broadcast", "expand", "exp"]
    assert chains(fusion, forward_broadcasts=True, forward_inputs=False) == []


def test_each_broadcast_of_an_input_starts_a_chain():
    def body(fd):
        x = fd.define_tensor([4], contiguity=True)
        row, column = (fd.ops.broadcast(x, [first, not first]) for first in (True, False))
        fd.add_output(fd.ops.mul(row, column))
        fd.add_output(fd.ops.add(row, column))
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.broadcast(x, [False, True, True]))
        fd.add_output(fd.ops.exp(fd.ops.segment_set(fd.ops.broadcast(x, [True, True, False]))))

    assert chains(record(body), forward_broadcasts=True) == [("T1",), ("T2",)]


def test_rope_backward_is_cut_as_nvfuser_dumps_it():
    fd, inputs = fl.example("llama3_rope_backward", "full")
    one = fl.segment(fd, inputs)
    dumped = fl.segment(fd, inputs, options=SegmenterOptions(forward_broadcasts=True))
    first, second, *rest = dumped.segments
    # As in the dump of PR #4269: a resize segment for each gradient, with both tables and a full of its own.
    assert [{tv.name for tv in part.inputs} for part in (first, second)] == [{"T0", "T1", "T3"}, {"T0", "T2", "T3"}]
    for part in (first, second):
        assert part.scheduler.value == "resize"
        assert len(part.outputs) == 1
        made = [e.op.name for e in part.exprs]
        assert (made.count("full"), made.count("expand")) == (1, 2)
    assert [part.scheduler.value for part in rest] == ["reduction", "pointwise"]
    assert [part.scheduler.value for part in one.segments] == ["resize", "reduction", "pointwise"]
    # The only difference is that both tables are read once more.
    moved = [sum(part.bytes for part in plan.segments) for plan in (one, dumped)]
    assert moved[1] - moved[0] == sum(tv.nbytes for tv in one.fusion.tensor_inputs if tv.name in {"T0", "T3"})
    small, arrays = fl.example("llama3_rope_backward", "small")
    plan = fl.segment(small, arrays, options=SegmenterOptions(forward_broadcasts=True))
    np.testing.assert_array_equal(plan.definitions().reference(arrays)[0], small.reference(arrays)[0])
