"""Float tensors between segments pass as halves where halves are the result: bytes, values, exclusions, the log."""


import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.cost.verdict import Answer, SchedulerType, accept
from fuser_lab.definition.binding import bind, default_inputs
from fuser_lab.plan.planning import rewrite_fusion
from fuser_lab.report.view_model import view_plan
from fuser_lab.segmentation import candidate, replay, verify
from fuser_lab.segmentation.boundary_casts import Lowering, lower_types
from fuser_lab.segmentation.events import DecisionLog, Kind
from tests.unit.builders import record

BF16, HALF, FLOAT = DataType.BFloat16, DataType.Half, DataType.Float
LOWER = SegmenterOptions(io_to_lower_precision=True)
STRATEGIES = ["bottom_up", "top_down", "optimal", "unfused"]


def normed_twice(out=BF16, *, also=None):
    """Return a column normalization followed by a row normalization, which no kernel combines."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 256], contiguity=True, dtype=BF16)
        wide = fd.ops.exp(fd.ops.cast(x, FLOAT))
        column = fd.ops.truediv(wide, fd.ops.sum(wide, [0], keepdim=True))
        row = fd.ops.truediv(column, fd.ops.sum(column, [1], keepdim=True))
        if also is not None:
            fd.add_output(fd.ops.cast(fd.ops.neg(column), also))
        fd.add_output(row if out is FLOAT else fd.ops.cast(row, out))
    return fd


def data():
    return np.random.default_rng(0).uniform(-1, 1, (64, 256)).astype(BF16.numpy)


def casts(plan, *, accepted=True):
    return [a for a in plan.decisions.filter(kind=Kind.CAST) if a.accepted is accepted]


def crossing(plan):
    return {tv.name: tv.dtype for tv in plan.segmented.crossing}


@pytest.mark.parametrize(("strategy", "out"), [
    *((strategy, BF16) for strategy in STRATEGIES), ("bottom_up", HALF),
    *(pytest.param(strategy, HALF, marks=pytest.mark.matrix) for strategy in STRATEGIES[1:]),
])
def test_bytes_of_the_boundary_halve(strategy, out):
    fd, x = normed_twice(out), data()
    plain = fl.segment(fd, [x], strategy=strategy)
    plan = fl.segment(fd, [x], strategy=strategy, options=LOWER)
    assert len(plain.segments) == len(plan.segments) > 1
    assert not casts(plain)
    assert casts(plan)
    moved = {a.subjects[0][0] for a in casts(plan)}
    sizes = plain.crossing_bytes.items()
    assert plan.bytes_crossing == sum(size // (1 + (name in moved)) for name, size in sizes)
    assert all(crossing(plan)[f"{name}_lower"] is out for name in moved)
    (found,) = plan.run([x])
    exact = np.exp(x.astype(np.float64))
    exact /= exact.sum(0)
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0.02)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_plan_and_its_certificate_speak_of_the_half(strategy):
    fd = normed_twice()
    plan = fl.segment(fd, strategy=strategy, options=LOWER)
    name = casts(plan)[0].subjects[0][0]
    assert f"{name} passes as BFloat16" in casts(plan)[0].text
    assert f"{name}_lower" in str(plan)
    assert f"{name}_lower" in view_plan(plan).to_json()
    assert f"{name}_lower" in plan._repr_mimebundle_()["image/svg+xml"]
    writer = next(s for s in plan.segments if f"{name}_lower" in {tv.name for tv in s.outputs})
    readers = [s for s in plan.segments if f"{name}_lower" in {tv.name for tv in s.inputs}]
    assert f"{name}_lower" in writer.source("cuda")
    for reader in readers:
        assert sum(e.op.name == "cast" and e.inputs[0].name == f"{name}_lower" for e in reader.exprs) == 1
        assert f"{name}_back" in reader.source("cpu")
    certificate = plan.certificate()
    assert not certificate.obstacle
    # The model has a price for every segment; a plan knows which ones are views, and that nothing moves there.
    priced = zip(certificate.segments, plan.segments, strict=True)
    moved = [(0, 0) if s.is_view else (cost.read, cost.written) for cost, s in priced]
    assert moved == [(s.bytes_in, s.bytes_out) for s in plan.segments]
    assert verify(certificate, plan.segmented, plan.oracle).holds
    assert replay(plan.fusion, plan.decisions, plan.oracle) == plan.segmented
    definition = rewrite_fusion(bind(fd.fusion, default_inputs(fd.fusion)).fusion, plan.options, DecisionLog())
    read = DecisionLog.from_json(plan.decisions.to_json())
    assert replay(definition, read, plan.oracle) == plan.segmented
    space: dict[str, fl.Plan] = {}
    exec(plan.to_python(), space)
    assert space["plan"].hash == plan.hash
    assert plan.why(0, 1).text


def test_edits_go_on_from_there():
    fd, x = normed_twice(), data()
    plan = fl.segment(fd, [x], options=LOWER)
    name = casts(plan)[0].subjects[0][0]
    changed = plan.cut(next(e.name for e in plan.segments[0].exprs if e.op.name == "sum"))
    assert len(changed.segments) == len(plan.segments) + 1
    assert crossing(changed)[f"{name}_lower"] is BF16
    np.testing.assert_array_equal(*(p.run([x])[0].astype(np.float32) for p in (plan, changed)))


def test_nvfuser_s_name_of_it():
    made = SegmenterOptions.from_nvfuser(enable=["io_to_lower_precision"])
    assert made == LOWER
    assert not SegmenterOptions().io_to_lower_precision


def test_without_outputs_of_16_bits_nothing_changes():
    fd = normed_twice(FLOAT)
    plan = fl.segment(fd, options=LOWER)
    assert not plan.decisions.filter(kind=Kind.CAST)
    assert plan.segmented == fl.segment(fd).segmented


def test_a_whole_fusion_has_no_boundary():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 256], contiguity=True)
        fd.add_output(fd.ops.cast(fd.ops.exp(x), BF16))
    plan = fl.segment(fd, options=LOWER)
    assert len(plan.segments) == 1
    assert not plan.decisions.filter(kind=Kind.CAST)


def test_the_last_output_of_16_bits_says_which():
    for first, last in ((HALF, BF16), (BF16, HALF)):
        plan = fl.segment(normed_twice(last, also=first), strategy="unfused", options=LOWER)
        made = {tv.dtype for tv in plan.fusion.tensors.values() if tv.name.endswith("_lower")}
        # A tensor used only for the first output is stored in that output's dtype.
        assert made == {first, last}
        column = next(e for e in plan.fusion.exprs if e.op.name == "truediv").name
        assert crossing(plan)[f"{column}_lower"] is last


def lowered_names(body):
    """Return the tensors that may be stored as halves in a fusion that ends with a BFloat16 output."""
    return {tv.name for tv in lower_types(record(body), SegmenterOptions())}


def ending(fd, value):
    fd.add_output(fd.ops.cast(value, BF16))


def test_what_may_pass_as_a_half():
    def body(fd):
        x = fd.define_tensor([4, 6])
        ending(fd, fd.ops.exp(fd.ops.mul(x, x)))

    assert lowered_names(body) == {"T1", "T2"}


def inputs_and_outputs(fd):
    value = fd.ops.mul(fd.define_tensor([4, 6]), 2.0)  # recomputed by its reader, like the ops after it
    fd.add_output(value)
    ending(fd, value)


def no_path(fd):
    x = fd.define_tensor([4, 6])
    fd.add_output(fd.ops.exp(fd.ops.mul(x, x)))
    fd.add_output(fd.ops.cast(x, BF16))


def whole_numbers(fd):
    x = fd.define_tensor([4, 6], dtype=DataType.Int)
    ending(fd, fd.ops.mul(x, x))


def doubles(fd):
    x = fd.define_tensor([4, 6], dtype=DataType.Double)
    ending(fd, fd.ops.mul(x, x))


def selected(fd):
    x = fd.define_tensor([4, 6])
    ending(fd, fd.ops.select(fd.ops.mul(x, x), fd.define_scalar(1, DataType.Int), 0))


def index_selected(fd):
    x, index = fd.define_tensor([4, 6]), fd.define_tensor([3], dtype=DataType.Int)
    ending(fd, fd.ops.index_select(fd.ops.mul(x, x), index, 0))


def gathered(fd):
    x, index = fd.define_tensor([4, 6]), fd.define_tensor([3, 6], dtype=DataType.Int)
    ending(fd, fd.ops.gather(fd.ops.mul(x, x), index, 0))


def sliced(fd):
    x = fd.define_tensor([4, 6])
    ending(fd, fd.ops.slice(fd.ops.mul(x, x), [0, 0], [2, 6]))


def hinted(fd):
    x = fd.define_tensor([4, 6])
    fd.add_output(fd.ops.cast(fd.ops.segment_set(fd.ops.mul(x, x)), BF16))


def multiplied(fd):
    x = fd.define_tensor([4, 4])
    ending(fd, fd.ops.matmul(x, x))


def viewed(fd):
    x = fd.define_tensor([4, 6])
    turned = fd.ops.permute(x, [1, 0])
    ending(fd, fd.ops.add(turned, fd.ops.broadcast(fd.define_tensor([6]), [False, True])))


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (inputs_and_outputs, {"T0", "T1"}), (no_path, {"T1", "T2"}), (whole_numbers, {"T1"}), (doubles, {"T1"}),
        (selected, {"T1"}), (index_selected, {"T2"}), (gathered, {"T2"}), (sliced, {"T1"}), (hinted, {"T2"}),
        (multiplied, {"T1"}), (viewed, {"T1", "T3"}),
    ],
)
def test_what_stays(body, kept):
    fusion = record(body)
    assert kept <= fusion.tensors.keys()
    assert kept.isdisjoint(lowered_names(body)), fusion


def test_the_end_of_a_forwarded_chain_stays():
    def body(fd):
        x = fd.define_tensor([4, 6])
        once = fd.ops.exp(x)
        ending(fd, fd.ops.mul(once, fd.ops.sum(once, [1], keepdim=True)))

    assert "T1" not in lowered_names(body)
    off = SegmenterOptions(forward_inputs=False)
    assert "T1" in {tv.name for tv in lower_types(record(body), off)}


class Recording:
    """Accepts everything, and records the candidates."""

    def __init__(self):
        self.asked = []

    def ask(self, group):
        self.asked.append(group)
        return Answer((accept(SchedulerType.POINTWISE),))


def test_a_candidate_has_one_cast_back_for_all_its_readers():
    def body(fd):
        x = fd.define_tensor([4, 6])
        y = fd.ops.mul(x, x)
        ending(fd, fd.ops.add(fd.ops.exp(y), fd.ops.sin(y)))

    fusion = record(body)
    inner = Recording()
    asker = Lowering(inner, SegmenterOptions())
    readers = [e for e in fusion.exprs if e.op.name in {"exp", "sin", "add"}]
    asker.ask(candidate(fusion, readers))
    asker.ask(candidate(fusion, readers))
    (group,) = inner.asked
    assert [tv.dtype for tv in group.tensor_inputs] == [BF16]
    assert [tv.dtype for tv in group.outputs] == [BF16]
    assert [e.op.name for e in group.exprs] == ["cast", "exp", "sin", "add", "cast"]
    asker.ask(candidate(fusion, fusion.exprs))
    assert inner.asked[-1].exprs == fusion.exprs


def test_a_cast_that_a_scheduler_refuses_is_left_out():
    class NoNarrow(Recording):
        def ask(self, group):
            answer = super().ask(group)
            names = {e.name for e in group.exprs}
            refused = any(name.endswith("_back") for name in names)
            return Answer(()) if refused else answer

    def body(fd):
        x = fd.define_tensor([4, 6])
        y = fd.ops.mul(x, x)
        ending(fd, fd.ops.mul(y, x))

    fusion = record(body)
    log = DecisionLog()
    found = fl.segmentation.segment(fusion, NoNarrow(), strategy="unfused", options=LOWER, log=log)
    refusals = [a for a in log.filter(kind=Kind.CAST) if not a.accepted]
    assert {a.subjects[0][0] for a in refusals} == {"T1", "T2"}
    assert "T1 stays Float" in refusals[0].text
    assert {tv.dtype for tv in found.crossing} == {FLOAT}
