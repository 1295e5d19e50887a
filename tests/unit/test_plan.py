"""Plans: hashing, edits, code that reproduces them, saving, and plans that cannot run."""

import functools
import re
import threading

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import ArgumentTypeError, CodegenError, IllegalEdit, InputError


def defined():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        y = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.add(y, fd.ops.sum(x, dims=[1], keepdim=True)))
    return fd


SPECS = [fl.spec((64, 128)), fl.spec((64, 128))]


def made_by(text):
    names = {}
    exec(text, names)
    return names["plan"]


def test_the_smallest_plan():
    plan = fl.segment(defined(), SPECS)
    assert [s.scheduler.value for s in plan.segments] == ["reduction", "pointwise"]
    assert [[e.op.name for e in s.exprs] for s in plan.segments] == [["sum", "broadcast"], ["add"]]
    first, second = plan.segments
    assert (first.bytes_in, first.bytes_out) == (64 * 128 * 4, 64 * 4)
    assert first.bytes_crossing == second.bytes_crossing == 64 * 4
    assert first.bytes == first.bytes_in + first.bytes_out
    assert "bottom-up" in str(plan)
    assert "refused" in plan.why("T2", "T4").relation.value


def test_edits_are_new_plans_with_content_hashes():
    plan = fl.segment(defined(), SPECS)
    cut = plan.cut("T2")
    assert (len(plan.segments), len(cut.segments)) == (2, 3)
    assert cut != plan
    assert cut == plan.cut(("T2", "T3"))
    assert cut.glue(0, 1) == plan
    assert hash(cut.glue(0, 1)) == hash(plan)
    assert fl.segment(defined(), SPECS).hash == plan.hash
    assert fl.segment(defined(), SPECS, target="A100").hash != plan.hash
    assert fl.segment(defined(), [fl.spec((64, 256))] * 2).hash != plan.hash
    with pytest.raises(IllegalEdit, match="no scheduler accepts segments 0 and 1 as one"):
        plan.glue(0, 1)


@pytest.mark.parametrize("name", fl.examples.names())
@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "unfused"])
def test_code_makes_the_same_plan(name, strategy):
    plan = fl.segment(*fl.example(name, "full"), strategy=strategy)
    assert made_by(plan.to_python()).hash == plan.hash


def test_code_of_an_edited_plan_with_options():
    options = fl.SegmenterOptions(segment_set="cut", forward_factories=[])
    plan = fl.segment(*fl.example("llama3_rope_backward", "full"), options=options, target="H100")
    edited = plan
    for tensor in [e.name for s in plan.segments for e in s.exprs[:-1]][:8]:
        try:
            edited = edited.cut(tensor)
        except IllegalEdit:
            continue
    assert edited != plan
    assert made_by(edited.to_python()).hash == edited.hash


def test_code_of_a_plan_for_arrays_of_any_strides():
    x = np.zeros((64, 128), np.float32)
    for inputs in ([x[::-1], x[:, ::-1]], [np.broadcast_to(x[0], x.shape), x], [np.asfortranarray(x), x]):
        plan = fl.segment(defined(), inputs)
        assert made_by(plan.to_python()).hash == plan.hash


def test_code_of_a_strategy_that_is_a_function():
    plan = fl.segment(defined(), SPECS, strategy=lambda *_: [["T2"], ["T3", "T4"]])
    assert made_by(plan.to_python()).hash == plan.hash
    edited = plan.cut("T3")
    assert len(edited.segments) == 3
    assert made_by(edited.to_python()).hash == edited.hash


def test_code_of_another_device_and_of_odd_numbers():
    device = fl.Device(
        name="H200", cc=(9, 0), sms=66, shared_per_sm=1, shared_per_block=1, l2=1, bandwidth=1, fp32=1, bf16=1,
    )
    plan = fl.segment(defined(), SPECS, target=device)
    assert plan.hash != fl.segment(defined(), SPECS).hash, "a device is more than its name"
    assert made_by(plan.to_python()).hash == plan.hash
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.define_tensor([4]), fd.define_scalar(None, DataType.Double)))
    for number in (float("nan"), float("inf"), -float("inf")):
        plan = fl.segment(fd, [fl.spec((4,)), number])
        assert made_by(plan.to_python()).hash == plan.hash


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: p.cut(None), "cut: where must be a tensor's name, or the pair of a tensor and its reader"),
        (lambda p: p.cut(("T2",)), "given \\('T2',\\)"),
        (lambda p: p.cut(b"T2"), "given b'T2'"),
        (lambda p: p.glue("T2", "T3"), "glue: a must be the number of a segment, given 'T2'"),
        (lambda p: p.glue(0, True), "glue: b must be the number of a segment, given True"),
        (lambda p: p.move("T2", "0"), "move: segment must be the number"),
        (lambda p: p.move(2, 0), "move: tensor must be a tensor's name, given 2"),
        (lambda p: p.why(True, "T2"), "why: a must be a tensor's name or a segment's number, given True"),
        (lambda p: p.renamed(3), "renamed: name must be a str, given 3"),
        (lambda p: p.save(None), "save: path must be a path, as str or Path, given None"),
        (lambda p: fl.report(p, path=3), "report: path must be a path, as str or Path or None, given 3"),
        (lambda p: fl.time(p, [], seconds="x"), "time: seconds must be a finite number of at least 0, given 'x'"),
        (lambda p: fl.time(p, [], cancelled=3), "cancelled must be a function without arguments or None, given 3"),
        (lambda p: fl.time(p, [], progress=3), "time: progress must be a function, True, False or None, given 3"),
        (lambda p: fl.time(p, [], peers=3), "time: peers must be a dict of functions by name, or a"),
        (lambda p: fl.segment(defined(), SPECS, name=3), "segment: name must be a str or None, given 3"),
        (lambda p: p.run(None), "run: inputs must be a list of arrays and numbers, given None"),
        (lambda p: fl.time([], []), "time: a list must contain plans, given an empty list"),
        (lambda p: fl.time([p, 5], []), "time: a list must contain plans, given a list with 5"),
        (lambda p: fl.segment(defined(), SPECS, options={}), "options must be SegmenterOptions or None, given {}"),
        (lambda p: fl.segment(defined(), SPECS, log=[]), r"log must be a DecisionLog or None, given \[\]"),
    ],
)
def test_arguments_of_wrong_types(call, text):
    with pytest.raises((ArgumentTypeError, InputError), match=text):
        call(fl.segment(defined(), SPECS))


def permuted_axes_of_size_one():
    """Return x[n, 1, m] + transposed row sums of x: all elements of an [n, n, m] result are different."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 1, -1], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.permute(fd.ops.sum(x, dims=[2], keepdim=True), [1, 0, 2]), x))
    return fd, [np.arange(24, dtype=np.float32).reshape(8, 1, 3)]


@pytest.mark.parametrize("name", [*fl.examples.names(), "permuted axes of size one"])
def test_every_element_of_every_output_is_written(name):
    fd, inputs = permuted_axes_of_size_one() if "permuted" in name else fl.example(name)
    plan = fl.segment(fd, inputs)
    poisoned = [np.full(tv.shape, -77).astype(tv.dtype.numpy) for tv in plan.fusion.outputs]
    for got, wanted in zip(plan.run(inputs, poisoned), fd.reference(inputs), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=2e-2, atol=2e-2)


def test_rope_backward_makes_its_zeros_where_it_reads_them():
    plan = fl.segment(*fl.example("llama3_rope_backward", "full"))
    (full,) = [e for e in plan.fusion.exprs if e.op.name == "full"]
    assert full.out not in plan.segmented.crossing
    assert len(plan.segmented.home[full.name]) == 2


def test_saving(tmp_path):
    plan = fl.segment(defined(), SPECS)
    for suffix, text in ((".svg", "<svg"), (".html", "<!DOCTYPE html>"), (".json", '"version"'), (".py", "fl.segment")):
        path = plan.save(tmp_path / f"plan{suffix}")
        assert text in path.read_text()
    every = ".svg, .png, .dot, .mmd, .html, .json, .csv, .txt, .py"
    with pytest.raises(InputError, match=f"the extension must be one of {re.escape(every)}"):
        plan.save(tmp_path / "plan.xyz")
    for write in (plan.save, functools.partial(fl.report, plan)):
        with pytest.raises(InputError, match=r"cannot be saved as \S+/no/x\.html: No such file or directory\.$"):
            write(tmp_path / "no" / "x.html")


def test_names_of_plans():
    assert fl.segment(defined(), SPECS, strategy=lambda *_: [["T2"], ["T3", "T4"]]).name == "custom"
    assert fl.segment(defined(), SPECS, strategy=bottom_up).name == "custom", "the name of a custom strategy"
    assert fl.segment(defined(), SPECS, strategy=in_pairs).name == "in-pairs"
    assert fl.segment(defined(), SPECS, name="mine").name == "mine"


def in_pairs(fusion, oracle):
    return [["T2", "T3"], ["T4"]]


def bottom_up(fusion, oracle):
    return [["T2", "T3"], ["T4"]]


def test_a_tensor_and_itself():
    plan = fl.segment(defined(), SPECS)
    assert plan.why("T2", "T2").text == "T2 (sum) is in segment 0, which the reduction scheduler accepts."
    assert plan.why(1, 1).text == "both are segment 1, which the pointwise scheduler accepts."


def test_what_one_segment_recomputes_for_itself():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.define_tensor([8, 8], contiguity=True)), dims=[1]))
        fd.add_output(fd.ops.neg(fd.define_tensor([3])))
    plan = fl.segment(fd)
    assert plan.segmented.recomputed == {"T1"}
    refusal = "^T1 is forwarded: segment 0, which reads it, computes it itself.* stores it"
    with pytest.raises(IllegalEdit, match=refusal):
        plan.cut("T1")
    stored = plan.annotate("T1")
    (writer,) = [s for s in stored.segments if "T1_hint" in {tensor.name for tensor in s.outputs}]
    (reader,) = [s for s in stored.segments if "T1_hint" in {tensor.name for tensor in s.inputs}]
    assert writer.index != reader.index


def test_rich_forms_are_static():
    plan = fl.segment(defined(), SPECS)
    bundle = plan._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
    assert "<script" not in bundle["text/html"]
    assert "<script" not in plan.segments[0]._repr_html_()


def test_sources_without_a_gpu():
    plan = fl.segment(defined(), SPECS)
    assert "@kernel(" in plan.segments[0].source("cpu")
    assert "cuda" in plan.segments[0].source("cuda")
    with pytest.raises(InputError, match="source: target must be 'cpu' or 'cuda', given 'metal'"):
        plan.segments[0].source("metal")


def test_a_segment_that_nobody_takes_has_no_source_and_does_not_run():
    plan = fl.segment(defined(), SPECS, strategy=lambda *_: [["T2", "T3", "T4"]])
    assert plan.segments[0].scheduler is None
    assert "no scheduler" in str(plan)
    with pytest.raises(CodegenError, match="segment 0 has no kernel: no scheduler accepts it"):
        plan.segments[0].source()
    with pytest.raises(fl.FuserLabError, match="the plan cannot run: no scheduler accepts segment 0"):
        plan.run([np.zeros((64, 128), np.float32)] * 2)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: fl.segment(3), ArgumentTypeError, "fd must be a FusionDefinition"),
        (lambda: fl.segment(defined()), InputError, "inputs must be given"),
        (lambda: fl.segment(defined(), SPECS, strategy="best"), InputError, "unknown strategy 'best'"),
        (lambda: fl.segment(defined(), SPECS, target="V100"), InputError, "unknown target 'V100'; choose from A100"),
        (lambda: fl.segment(defined(), SPECS[:1]), InputError, "takes 2 inputs"),
        (lambda: fl.segment(defined(), "ab"), ArgumentTypeError, "inputs must be a list"),
        (lambda: fl.segment(defined(), [object(), 1]), InputError, "an input must be an array or a number"),
        (lambda: fl.time(fl.segment(defined(), SPECS), [], seconds=-1), InputError, "must be a finite .* given -1"),
        (lambda: fl.time(fl.segment(defined(), SPECS), SPECS), InputError, "abstract inputs cannot run"),
        (lambda: fl.example("softmax", "huge"), InputError, "not 'huge'"),
        (lambda: fl.nothing, AttributeError, "no attribute 'nothing'"),
    ],
)
def test_bad_calls(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_public_names_exist():
    for name in fl.__all__:
        assert getattr(fl, name) is not None
    assert set(fl.__all__) <= set(dir(fl))


def test_plans_may_be_made_from_several_threads():
    found = []

    def work():
        found.append(fl.segment(*fl.example("rms_norm_backward", "full")).hash)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_a_tensor_that_is_not_cut_any_more_is_told_why():
    with FusionDefinition() as casts:
        x = casts.define_tensor([8, 8], contiguity=True)
        wide = casts.ops.cast(x, dtype=DataType.Double)
        casts.add_output(casts.ops.neg(casts.ops.cast(wide, dtype=DataType.BFloat16)))
    with FusionDefinition() as empty:
        x = empty.define_tensor([0, 8], contiguity=True)
        empty.add_output(empty.ops.sum(empty.ops.relu(x), dims=[0]))
    passed = r"T1 is not in the segmented fusion: .*consecutive_casts.*; choose from T0, T2, T3"
    for plan, said in ((fl.segment(casts), passed), (fl.segment(empty), "no output depends on it")):
        assert "T1" not in plan.fusion.tensors
        for call in (lambda p: p.cut("T1"), lambda p: p.cut(("T2", "T1")), lambda p: p.move("T1", 0)):
            with pytest.raises(IllegalEdit, match=said):
                call(plan)
        with pytest.raises(InputError, match=said):
            plan.why("T1", "T2")
        with pytest.raises(IllegalEdit, match="the fusion has no tensor called 'T9'"):
            plan.cut("T9")


def test_what_no_segment_moves_is_not_in_the_ideal_bytes():
    with FusionDefinition() as fd:
        x, _ = (fd.define_tensor([3], contiguity=True) for _ in range(2))
        fd.add_output(x)
    assert "0 B moved (one kernel: 0 B)" in str(fl.segment(fd))
    with FusionDefinition() as fd:
        x, _ = (fd.define_tensor([3], contiguity=True) for _ in range(2))
        fd.add_output(x)
        fd.add_output(fd.ops.neg(x))
    assert "24 B moved (one kernel: 24 B)" in str(fl.segment(fd))


def test_a_chain_that_a_reader_cannot_recompute_is_stored():
    # The reshape, a view, drops an axis whose size only the input determines: no kernel computes the cast with it.
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, -1], False, DataType.Char)
        y = fd.define_tensor([1, 5], False, DataType.BFloat16)
        flat = fd.ops.reshape(fd.ops.cast(x, DataType.Bool), [5])
        fd.add_output(fd.ops.le(flat, fd.ops.argsort(y, 1, False, True)))
        fd.add_output(fd.ops.sub(y, fd.ops.max(y, [1], True)))
    inputs = [np.ones((5, 1), np.int8), np.ones((1, 5), DataType.BFloat16.numpy)]
    plan = fl.segment(fd, inputs)
    assert "T2" in plan.segmented.recomputed
    plan = plan.cut("T3")
    assert [part for part in plan.segments if part.scheduler is None] == []
    np.testing.assert_array_equal(plan.run(inputs)[0], fd.reference(inputs)[0])


def test_the_definition_is_not_bound_again_to_explain_an_edited_plan(monkeypatch):
    plan = fl.segment(defined(), SPECS)
    names = [expr.name for expr in plan.fusion.tensor_exprs]
    said = str(plan.why(names[0], names[-1]))
    bound = []
    monkeypatch.setattr("fuser_lab.plan.explained.bind", lambda *given: bound.append(given))
    edited = plan.cut(names[0])
    assert str(edited.why(names[0], names[-1])) != said
    assert bound == []


@pytest.mark.parametrize("schedule", [lambda: 1, lambda _a, _b: 1])
def test_a_schedule_is_a_function_of_one_argument(schedule):
    plan = fl.segment(defined(), SPECS)
    with pytest.raises(ArgumentTypeError, match="a function of one argument, the definition of the segm"):
        plan.with_schedule(0, schedule)


def test_an_error_in_the_function_of_a_schedule_is_not_replaced():
    plan = fl.segment(defined(), SPECS)
    with pytest.raises(TypeError, match="unsupported operand") as raised:
        plan.with_schedule(0, lambda _: 1 + "")
    assert not isinstance(raised.value, fl.FuserLabError)


def test_a_number_in_place_of_an_array_is_told_what_to_give():
    with pytest.raises(InputError, match=r"got scalar 1\. Pass an array with 2 axes, or an fl\.spec\(\.\.\.\)\.$"):
        fl.segment(defined(), [1, SPECS[0]])
