"""Definitions segmented into definitions: nvFuser's worked examples, lifetimes, updates in place and bad calls."""

import itertools
import json
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionCache, FusionDefinition, SegmenterOptions
from fuser_lab.definition.spec import spec
from fuser_lab.errors import DefinitionError, InputError, StateError
from fuser_lab.passes import offsets_of
from fuser_lab.process.collector import collector_paused
from fuser_lab.runtime.cpu import host_ready
from fuser_lab.runtime.cpu.host import HostMemory
from fuser_lab.runtime.plan.argument_manager import ArgumentManager
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import generate
from tests.kernels import prepare

DATA = Path(__file__).parents[2] / "data"
CASES = {case["id"]: case for case in json.loads((DATA / "segmentation_cases.json").read_text())}
# Nearly every op is a separate segment, so many values pass between segments.
APART = SegmenterOptions(whole_fusion=False, level_merge=False, final_merge=False, combine_reductions=False)


def defined(define, *args, cache=None, **kwargs):
    with FusionDefinition(cache=cache) as fd:
        define(fd, *args, **kwargs)
    return fd


def maps(fd):
    return [fd.segment_index_space_maps[segment] for segment in fd.segments]


def two_iotas(fd):
    first = fd.ops.iota(*(fd.define_scalar(n, dtype=DataType.Int) for n in (2, 0, 2)), dtype=DataType.Int)
    second = fd.ops.iota(
        fd.define_scalar(3, dtype=DataType.Int), fd.define_scalar(100, dtype=DataType.Int32),
        fd.define_scalar(1, dtype=DataType.Int32), dtype=DataType.Int32,
    )
    fd.add_output(first)
    fd.add_output(second)


def rows_added(fd, *, keepdim):
    x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    if keepdim:
        total = fd.ops.sum(x, dims=[1], keepdim=True)
    else:
        total = fd.ops.broadcast(fd.ops.sum(x, dims=[1]), is_broadcast_dim=[False, True])
    fd.add_output(fd.ops.add(y, total))


ROWS = [spec((2, 32)), spec((2, 128))]


def rows():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(x.shape).astype(np.float32) for x in ROWS]


def three_sums(fd):
    exec(CASES["lifetime_three_sums"]["python"], {"fd": fd, "DataType": DataType})


# nvFuser's worked examples


def test_two_iotas():
    fd = defined(two_iotas)
    first, second = fd.segment([])
    assert maps(fd) == [{3: 3}, {3: 7}]
    assert fd.map_value_to_last_used_segment == {}
    for segment, numbers in ((first, [2, 0, 2]), (second, [3, 100, 1])):
        assert [s.values[0].value for s in segment.state.states[:3]] == numbers
        assert segment.state.outputs == (3,)
    a, b = fd.execute([])
    assert (a.tolist(), b.tolist(), str(b.dtype)) == ([0, 2], [100, 101, 102], "int32")


@pytest.mark.parametrize(
    ("keepdim", "wanted"),
    [(False, [{0: 0, 2: 3}, {0: 1, 1: 3, 2: 4}]), (True, [{0: 0, 2: 2}, {0: 1, 1: 2, 2: 3}])],
)
def test_sum_broadcast_add(keepdim, wanted):
    fd = defined(rows_added, keepdim=keepdim)
    first, second = fd.segment(ROWS)
    assert maps(fd) == wanted
    crossing = wanted[1][1]
    assert fd.map_value_to_last_used_segment == {0: 0, 1: 1, crossing: 1}
    assert repr(first) == (
        "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"
        "    tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    tv1 = fd.ops.sum(tv0, dims=[1])\n"
        "    tv2 = fd.ops.broadcast(tv1, is_broadcast_dim=[False, True])\n"
        "    fd.add_output(tv2)\n"
    )
    assert "tv1 = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Float" in repr(second)
    x, y = rows()
    (got,) = fd.execute([x, y])
    np.testing.assert_allclose(got, y + x.sum(axis=1, keepdims=True), rtol=1e-5)


def test_fusion_ids_are_those_of_the_example():
    cache = FusionCache()
    fd = defined(rows_added, keepdim=False, cache=cache)
    assert [fd.fusion_id, *(s.fusion_id for s in fd.segment(ROWS))] == [0, 1, 2]
    # Segmented again, the segments are known.
    assert [s.fusion_id for s in fd.segment(ROWS)] == [1, 2]
    assert cache.num_fusions() == 3


def test_the_three_steps_by_hand():
    fd = defined(rows_added, keepdim=False)
    assert fd.setup_segmentation(ROWS) == 2
    segments = [FusionDefinition(), FusionDefinition()]
    # In any order, and more than once.
    assert fd.build_segment(segments[1], 1) == {0: 1, 1: 3, 2: 4}
    assert fd.build_segment(segments[0], 0) == {0: 0, 2: 3}
    assert fd.build_segment(FusionDefinition(), 0) == {0: 0, 2: 3}
    fd.finalize_segmentation()
    x, y = rows()
    (column,) = segments[0].execute([x])
    np.testing.assert_allclose(column, x.sum(axis=1, keepdims=True), rtol=1e-5)
    (got,) = segments[1].execute([y, column])
    np.testing.assert_allclose(got, y + column, rtol=1e-6)
    assert fd.segments == []


def test_one_segment_is_no_segment():
    fd = defined(lambda fd: fd.add_output(fd.ops.neg(fd.define_tensor(shape=[-1], contiguity=True))))
    assert fd.segment([spec((5,))]) == []
    assert fd.segments == []
    assert fd.setup_segmentation([spec((5,))]) == 1
    fd.finalize_segmentation()
    assert fd.execute([np.ones(3, np.float32)])[0].tolist() == [-1] * 3


def reshaped_by_extents(fd):
    x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    total = fd.ops.sum(fd.ops.exp(x), dims=[1])
    count = fd.ops.mul(fd.ops.size(x, 1), fd.ops.size(y, 1))
    fd.add_output(fd.ops.reshape(fd.ops.sum(y, dims=[0]), [fd.ops.size(x, 1), -1]))
    fd.add_output(fd.ops.full([fd.ops.size(x, 0), count], fill_value=2.0, dtype=DataType.Float))
    fd.add_output(total)


def test_extents_come_from_the_original_definition():
    fd = defined(reshaped_by_extents)
    x, y = np.ones((3, 4), np.float32), np.arange(40, dtype=np.float32).reshape(5, 8)
    segments = fd.segment([x, y], options=APART)
    found = {fid for numbers in maps(fd) for fid in numbers.values() if fid < 0}
    # Rows of x for full, columns of x for the reshape and for full, columns of y for full.
    assert found == {-1, -2, -4}
    reshape = next(s for s in segments if "reshape" in repr(s))
    numbers = fd.segment_index_space_maps[reshape]
    assert -2 in numbers.values()
    scalar = reshape.fusion.inputs[-1]
    assert str(scalar.dtype) == str(DataType.Int)
    assert numbers[reshape.state.fid_of[scalar.name]] == -2
    got = fd.execute([x, y])
    np.testing.assert_allclose(got[0], y.sum(axis=0).reshape(4, 2))
    np.testing.assert_allclose(got[1], np.full((3, 32), 2.0))
    np.testing.assert_allclose(got[2], np.exp(x).sum(axis=1), rtol=1e-6)


def test_scalar_inputs_and_arithmetic_go_where_they_are_needed():
    def define(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        n = fd.define_scalar(None, dtype=DataType.Double)
        twice = fd.ops.mul(n, 2.0)
        total = fd.ops.sum(fd.ops.mul(x, twice), dims=[0])
        fd.add_output(fd.ops.sum(fd.ops.add(total, fd.ops.mul(twice, fd.ops.size(x, 1))), dims=[0]))

    fd = defined(define)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    fd.segment([x, 1.5], options=APART)
    assert sum(fid == 1 for numbers in maps(fd) for fid in numbers.values()) == 2, "both readers get the scalar"
    (got,) = fd.execute([x, 0.25])
    np.testing.assert_allclose(got, (x * 0.5).sum() + 4 * 0.5 * 4, rtol=1e-6)


def test_sizes_that_ops_decide_are_given_to_other_segments():
    def define(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.pad(x, [1, 2, 0, 0])
        total = fd.ops.sum(y, dims=[0])
        n = fd.ops.size(y, 1)
        fd.add_output(total)
        fd.add_output(fd.ops.full([n], fill_value=1.0, dtype=DataType.Float))

    fd = defined(define)
    x = np.ones((3, 4), np.float32)
    segments = fd.segment([x], options=APART)
    total, ones = fd.execute([x])
    assert total.tolist() == [0, 3, 3, 3, 3, 0, 0]
    assert ones.tolist() == [1] * 7
    full = next(segment for segment in segments if "full" in repr(segment))
    # -1 and -2 are those of the input; the sizes that the pad determines come after them, and the caller passes them.
    assert fd.segment_index_space_maps[full][full.state.inputs[0]] == -3
    assert "is -3 (i2)" in repr(fd.index_maps)
    assert "<svg" in fd.index_maps._repr_html_()
    total, ones = fd.execute([np.ones((2, 6), np.float32)])
    assert total.tolist() == [0, 2, 2, 2, 2, 2, 2, 0, 0]
    assert ones.tolist() == [1] * 9


# Random programs


def same(a, b):
    """Whether arrays of one dtype are equal, with NaN equal to NaN."""
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    return np.array_equal(a.astype(np.complex128), b.astype(np.complex128), equal_nan=True)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("seed", range(24))
def test_segments_of_random_programs_give_the_same_together(seed):
    program = generate(Seeded(7000 + seed), 25)
    cache = FusionCache()
    fds = [program_on(cache, program) for _ in range(2)]
    assert fds[1].fusion is fds[0].fusion
    fd = fds[1]
    if offsets_of(fd.fusion):
        return
    for options in (None, APART):
        inputs = program.arrays()
        wanted = [np.array(x) for x in fd.reference(inputs)]
        segments = fd.segment(inputs, options=options)
        if segments:
            got = fd.argument_manager.run(inputs, [segment.reference for segment in segments])
            for a, b in zip(got, wanted, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                assert same(a, b)
            for segment in segments:
                assert defined(run_text, repr(segment)).fusion == segment.fusion


def program_on(cache, program):
    with FusionDefinition(cache=cache) as fd:
        run_text(fd, None, "\n".join(program.lines()))
    return fd


def run_text(fd, text, body=None):
    names = {"fd": fd, "DataType": DataType, "FusionDefinition": FusionDefinition}
    exec(text if body is None else body, names)
    if body is None:
        names["nvfuser_fusion"](fd)


@pytest.mark.parametrize("name", sorted(CASES))
def test_known_cases(name):
    case = CASES[name]
    fd = defined(lambda fd: exec(case["python"], {"fd": fd, "DataType": DataType}))
    inputs = [spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]]
    segments = fd.segment(inputs)
    assert len(segments) != 1
    ready = {*fd.state.inputs, *fd.state.extent_fids}
    for segment in segments:
        numbers = fd.segment_index_space_maps[segment]
        assert {numbers[fid] for fid in segment.state.inputs} <= ready, "each segment has its inputs"
        ready |= {numbers[fid] for fid in segment.state.outputs}
    assert not segments or set(fd.state.outputs) <= ready
    last = {fid: i for i, s in enumerate(segments) for n, fid in maps(fd)[i].items() if n in s.state.inputs}
    assert fd.map_value_to_last_used_segment == last


# Running


def test_values_are_freed_after_their_last_use(monkeypatch):
    live = peak = 0

    def counted(made):
        def make(*args):
            nonlocal live, peak
            array = made(*args)
            live += array.nbytes
            peak = max(peak, live)
            weakref.finalize(array, gone, array.nbytes)
            return array

        return make

    def gone(nbytes):
        nonlocal live
        live -= nbytes

    fd = defined(three_sums)
    x = np.random.default_rng(0).standard_normal((32, 64, 8, 128))
    assert len(fd.segment([x])) == 3
    assert maps(fd) == [{0: 0, 3: 3}, {0: 3, 1: 4}, {0: 4, 1: 5}]
    maker = host_ready._numpy_maker
    monkeypatch.setattr(HostMemory, "fresh", counted(HostMemory.fresh))
    monkeypatch.setattr(HostMemory, "block", counted(HostMemory.block))
    monkeypatch.setattr(host_ready, "_numpy_maker", lambda slot: counted(maker(slot)))
    with collector_paused():  # no value waits for the collector
        for _ in range(3):  # the first takes the slow path
            peak = live
            (got,) = fd.execute([x])
            np.testing.assert_allclose(got, (x + 1).sum(axis=(0, 1, 3)))
            assert x.nbytes + peak == (32 * 64 * 8 * 128 + 64 * 8 * 128 + 64 * 8) * 8
            assert live == got.nbytes
            del got


def test_values_that_are_inputs_outputs_or_unread_are_kept():
    manager = fd_manager(outputs_on_the_way, [spec((4, 6))])
    freed = [fid for segment in manager.segments for fid in segment.frees]
    assert len(freed) == len(set(freed))
    assert not {*freed} & {*manager.inputs, *manager.outputs}
    assert freed


def outputs_on_the_way(fd):
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    a = fd.ops.sum(x, dims=[0])
    b = fd.ops.sum(fd.ops.exp(a), dims=[0])
    c = fd.ops.sum(fd.ops.mul(x, b), dims=[1])
    fd.add_output(a)
    fd.add_output(fd.ops.neg(c))
    fd.add_output(x)


def fd_manager(define, inputs, options=APART):
    fd = defined(define)
    fd.segment(inputs, options=options)
    return fd.argument_manager


def test_outputs_are_made_with_the_library_of_the_inputs():
    torch = needs("torch")

    def define(fd):
        x = fd.define_tensor(shape=[-1], contiguity=True)
        fd.add_output(fd.ops.iota(3))
        fd.add_output(fd.ops.neg(x))
        fd.add_output(x)

    fd = defined(define)
    x = torch.ones(4)
    assert len(fd.segment([x], options=APART)) == 2
    for _ in range(2):
        outputs = fd.execute([x])
        assert all(isinstance(output, torch.Tensor) for output in outputs)
        assert outputs[0].tolist() == [0, 1, 2]
        assert outputs[2].data_ptr() == x.data_ptr()
    assert isinstance(fd.execute([np.ones(4, np.float32)])[0], np.ndarray)


def test_inputs_of_other_layouts_and_views_between_segments():
    def define(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=False)
        turned = fd.ops.permute(x, [1, 0])
        part = fd.ops.slice(turned, [1, 0], [4, 2])
        fd.add_output(fd.ops.add(fd.ops.exp(part), fd.ops.sum(part, dims=[0], keepdim=True)))
        fd.add_output(turned)

    fd = defined(define)
    base = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)
    fd.segment([base[::2, ::3]], options=APART)
    for x in (base[::2, ::3], np.asfortranarray(base[:3, :6]), base[:3, :6], base[2::-1, 5::-1]):
        for got, wanted in zip(fd.execute([x]), fd.reference([x]), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_segments_are_ordinary_definitions():
    fd = defined(rows_added, keepdim=False)
    x, y = rows()
    first, second = fd.segment([x, y])
    assert len(fl.segment(second, [y, y[:, :1]]).segments) == 1
    assert first.plan_for([x]).segments
    # Inside, the first one is segmented once more.
    inner = first.segment([x], options=APART)
    assert len(inner) == 2
    np.testing.assert_allclose(fd.execute([x, y])[0], y + x.sum(axis=1, keepdims=True), rtol=1e-5)
    # Run with a schedule by hand, a segment is one kernel, also together with the others.
    _, second = fd.segment([x, y])
    assert second.manual_execute([y, x[:, :1]])[0].shape == y.shape
    np.testing.assert_allclose(fd.execute([x, y])[0], y + x.sum(axis=1, keepdims=True), rtol=1e-5)


def test_many_threads_run_one_segmented_definition():
    fd = defined(outputs_on_the_way)
    inputs = [np.random.default_rng(n).standard_normal((4, 6 + n % 2)).astype(np.float32) for n in range(8)]
    fds = [defined(outputs_on_the_way), fd]
    for definition, x in zip(fds, inputs, strict=False):
        definition.segment([x], options=APART)
    wanted = [[np.array(out) for out in fd.reference([x])] for x in inputs]
    wrong = []

    def work(n):
        for _ in range(20):
            got = fds[n % 2].execute([inputs[n]])
            if not all(np.allclose(a, b, rtol=1e-4) for a, b in zip(got, wanted[n], strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_random_numbers_follow_the_generator_of_the_inputs():
    torch = needs("torch")

    def define(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.rand_like(x), dims=[0]))
        fd.add_output(fd.ops.uniform(0.0, 1.0, shape=[4]))

    fd = defined(define)
    x = torch.ones(3, 5)
    assert fd.segment([x], options=APART)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(fd.execute([x]))
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))


def test_nothing_to_compute_is_no_segment():
    fd = defined(lambda fd: fd.add_output(fd.define_tensor(shape=[-1], contiguity=True)))
    assert fd.segment([spec((3,))]) == []
    x = np.ones(3, np.float32)
    assert fd.execute([x])[0] is x


def test_a_segment_is_scheduled_by_hand():
    fd = defined(rows_added, keepdim=False)
    x, y = rows()
    _, second = fd.segment([x, y])
    total = second.handle(2)
    total.split(1, 32)
    assert second.hand.transforms
    for _ in range(2):
        np.testing.assert_allclose(fd.execute([x, y])[0], y + x.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)
    assert second.ke is not None
    assert second.fec is None


def test_handles_of_numbers():
    fd = defined(rows_added, keepdim=True)
    assert [fd.handle(fid).name for fid in (0, 1, 2, 3, 4, -1, -4)] == ["T0", "T1", "T3", "T4", "T2", "i0", "i3"]
    for fid in (5, -5):
        with pytest.raises(DefinitionError, match=f"no value of this definition has the number {fid}"):
            fd.handle(fid)
    with pytest.raises(TypeError, match="fid must be an int"):
        fd.handle("T0")


def test_profiles_are_of_all_segments():
    fd = defined(rows_added, keepdim=False)
    fd.segment(rows())
    profile = fd.profile(rows())
    assert [k.segment_id for k in profile.kernel_profiles] == list(range(profile.segments))
    assert profile.segments >= 2
    assert profile.input_bytes == sum(x.nbytes for x in rows())
    assert profile.output_bytes == rows()[1].nbytes


def test_validate_runs_segments():
    fd = defined(rows_added, keepdim=True)
    fd.segment(rows())
    (got,) = fd.validate(rows())
    assert got.shape == (2, 128)


# Bad calls


def test_calls_out_of_order():
    fd = defined(rows_added, keepdim=False)
    with pytest.raises(StateError, match="^build_segment: no segments are set up; call setup_segmentation first"):
        fd.build_segment(FusionDefinition(), 0)
    with pytest.raises(StateError, match="^finalize_segmentation: no segments are set up"):
        fd.finalize_segmentation()
    fd.setup_segmentation(ROWS)
    with pytest.raises(StateError, match="^setup_segmentation: segments are already set up; call finalize"):
        fd.setup_segmentation(ROWS)
    with pytest.raises(StateError, match="^setup_segmentation: segments are already set up"):
        fd.segment(ROWS)
    # The earlier setup is still there.
    assert fd.build_segment(FusionDefinition(), 0) == {0: 0, 2: 3}
    fd.finalize_segmentation()
    with pytest.raises(StateError):
        fd.finalize_segmentation()
    assert len(fd.segment(ROWS)) == 2


def test_segments_that_cannot_be_built():
    fd = defined(rows_added, keepdim=False)
    fd.setup_segmentation(ROWS)
    for index in (2, -1):
        with pytest.raises(InputError, match=f"there is no segment {index}; there are 2, counted from 0"):
            fd.build_segment(FusionDefinition(), index)
    with pytest.raises(TypeError, match="index must be an int, given 0.0"):
        fd.build_segment(FusionDefinition(), 0.0)
    with pytest.raises(TypeError, match="definition must be a FusionDefinition, given NoneType"):
        fd.build_segment(None, 0)
    for other in (fd, defined(two_iotas)):
        with pytest.raises(StateError, match="the definition must be empty, but it has been opened"):
            fd.build_segment(other, 0)
    used = FusionDefinition()
    fd.build_segment(used, 0)
    with pytest.raises(StateError, match="must be empty"):
        fd.build_segment(used, 1)


def test_an_open_or_empty_definition_has_no_segments():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[3])
        fd.add_output(fd.ops.neg(x))
        with pytest.raises(StateError, match="still open"):
            fd.segment([spec((3,))])
    with pytest.raises(NotImplementedError, match="does not exist"):
        FusionDefinition().segment([])


def test_inputs_that_do_not_fit_the_definition():
    fd = defined(rows_added, keepdim=False)
    with pytest.raises(InputError, match="takes 2 inputs"):
        fd.segment(ROWS[:1])
    with pytest.raises(InputError, match="dtype"):
        fd.segment([spec((2, 32), "int32"), ROWS[1]])
    with pytest.raises(TypeError, match="options must be SegmenterOptions"):
        fd.segment(ROWS, options={})
    # A refused call has no effect.
    assert len(fd.segment(ROWS)) == 2


def test_inputs_of_other_sizes_than_segmented_for():
    fd = defined(rows_added, keepdim=False)
    x, y = rows()
    fd.segment([x, y])
    for n in (128, 3, 1):
        np.testing.assert_allclose(fd.execute([x, y[:, :n]])[0], y[:, :n] + x.sum(axis=1, keepdims=True), rtol=1e-5)
    for wrong, says in (
        ([x], "takes 2 inputs .*, given 1"), ([x, y, y], "given 3"), ([x, 1.0], "to be an at::Tensor but got scalar"),
        ([x, y[:, :3].astype(np.float64)], "to be bound to a tensor of dtype float"),
        ([x, y[0]], "to be bound to a tensor of rank 2"), ([x, "y"], "given str"),
        ([x[:1], y], "do not fit the fusion"),
    ):
        with pytest.raises(InputError, match=says):
            fd.execute(wrong)


def test_scalars_that_decide_sizes():
    def define(fd):
        x = fd.define_tensor(shape=[-1], contiguity=True)
        n = fd.define_scalar(None, dtype=DataType.Int)
        fd.add_output(fd.ops.mul(fd.ops.neg(x), n))
        fd.add_output(fd.ops.iota(n))

    fd = defined(define)
    x = np.ones(3, np.float32)
    fd.segment([x, 4], options=APART)
    for n in (4, 5):
        assert [out.shape for out in fd.execute([x, n])] == [(3,), (n,)]


# Updates in place


def updates(fd):
    """Two inputs that are overwritten and read by others, with views of them."""
    x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    total = fd.ops.sum(x, dims=[1], keepdim=True)
    scaled = fd.ops.mul(y, total)
    fd.add_output(fd.ops.add(x, y), x)
    fd.add_output(scaled, y)
    fd.add_output(scaled)
    fd.add_output(fd.ops.permute(x, [1, 0]))
    fd.add_output(fd.ops.sum(fd.ops.exp(y), dims=[0]))
    fd.add_output(x)


def expected_updates(x, y):
    scaled = y * x.sum(axis=1, keepdims=True)
    return [scaled, x.T, np.exp(y).sum(axis=0), x + y], [x + y, scaled]


def square(kind="numpy"):
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2)]
    if kind == "torch":
        torch = needs("torch")
        return [torch.from_numpy(array) for array in arrays]
    return arrays


def legal_orders(edges, count):
    """Return every order in which the operands of segments are ready; edges are (before, after)."""
    return [
        order for order in itertools.permutations(range(count))
        if all(order.index(a) < order.index(b) for a, b in edges)
    ]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("options", [None, APART], ids=["as cut", "apart"])
def test_updates_in_place(kind, options):
    fd = defined(updates)
    inputs = square(kind)
    outputs, over = expected_updates(*square())
    assert len(fd.segment(inputs, options=options)) > 1
    got = fd.execute(inputs)
    for a, b in zip([*got, *inputs], [*outputs, *over], strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5)
    assert np.shares_memory(np.asarray(got[0]), np.asarray(inputs[1])), "it is the overwritten input"
    assert np.shares_memory(np.asarray(got[3]), np.asarray(inputs[0]))
    assert not np.shares_memory(np.asarray(got[1]), np.asarray(inputs[0])), "the view keeps the old values"


def test_segments_in_any_order_read_what_inputs_were():
    fd = defined(updates)
    segments = fd.segment(square(), options=APART)
    manager = fd.argument_manager
    edges = [
        (a, b) for a, one in enumerate(manager.segments) for b, other in enumerate(manager.segments)
        if set(one.writes) & set(other.reads)
    ]
    orders = legal_orders(edges, len(segments))
    assert len(orders) > 5
    outputs, over = expected_updates(*square())
    for order in orders:
        # Freed only at the end: the last reader depends on the order.
        steps = tuple(
            type(step)(alone=step.alone, reads=step.reads, writes=step.writes, frees=())
            for step in (manager.segments[n] for n in order)
        )
        turned = ArgumentManager(
            inputs=manager.inputs, outputs=manager.outputs, extents=manager.extents, updates=manager.updates,
            segments=steps,
        )
        inputs = square()
        got = turned.run(inputs, [segments[n].reference for n in order])
        for a, b in zip([*got, *inputs], [*outputs, *over], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_segments_of_a_plan_in_any_order_read_what_inputs_were():
    plan = fl.segment(defined(updates), square(), options=APART)
    parts = [(s.fusion, s.scheduler) for s in plan.segments]
    edges = [(a, b) for a, after in enumerate(plan.segmented.successors) for b in after]
    orders = legal_orders(edges, len(parts))
    assert len(orders) > 5
    outputs, over = expected_updates(*square())
    for order in orders[:: max(len(orders) // 5, 1)]:
        inputs = square()
        got = prepare(plan.fusion, [parts[n] for n in order]).run(inputs)
        for a, b in zip([*got, *inputs], [*outputs, *over], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def swapped(fd):
    a, b = (fd.define_tensor(shape=[-1], contiguity=True) for _ in range(2))
    fd.add_output(fd.ops.set(a), b)
    fd.add_output(fd.ops.set(b), a)
    fd.add_output(fd.ops.mul(a, b))
    fd.add_output(fd.ops.iota(2))


def test_inputs_that_change_places():
    fd = defined(swapped)
    x, y = np.arange(3, dtype=np.float32), np.full(3, 7, np.float32)
    assert len(fd.segment([x, y], options=APART)) > 1
    product, _ = fd.execute([x, y])
    assert (x.tolist(), y.tolist(), product.tolist()) == ([7, 7, 7], [0, 1, 2], [0, 7, 14])


class Foreign(np.ndarray):
    """Simulates an array of JAX, which may not be installed."""


Foreign.__module__ = "jaxlib.xla_extension"


@pytest.fixture
def foreign(monkeypatch):
    """An array that is treated as one of JAX."""
    from fuser_lab.runtime import arrays, binding

    real = arrays.kind_of

    def kind_of(value):
        return "jax" if isinstance(value, Foreign) else real(value)

    for module in (arrays, binding):
        monkeypatch.setattr(module, "kind_of", kind_of)
    return square()[0].view(Foreign)


@pytest.mark.parametrize("segmented", [False, True])
def test_arrays_that_cannot_be_written_to(segmented, foreign):
    fd = defined(updates)
    x, y = square()
    if segmented:
        fd.segment([x, y], options=APART)
    frozen = x.copy()
    frozen.flags.writeable = False
    before = y.copy()
    with pytest.raises(InputError, match="writes to its input T0 in place, but the given array is read-only"):
        fd.execute([frozen, y])
    with pytest.raises(InputError, match="its input T0 in place, but the given JAX array cannot be"):
        fd.execute([foreign, y])
    with pytest.raises(InputError, match="T0 and T1 share memory; a run writes to both"):
        fd.execute([y, y])
    with pytest.raises(InputError, match="T0 and T1 share memory"):
        fd.execute([y, y.T])
    np.testing.assert_array_equal(y, before)


def test_two_outputs_over_one_input():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        fd.add_output(fd.ops.neg(x), x)
        with pytest.raises(DefinitionError) as caught:
            fd.add_output(fd.ops.exp(x), x)
    assert str(caught.value) == (
        "add_output: T2 cannot be written over the input T0, because T1 already is; only one output may "
        "alias an input."
    )


def test_results_that_are_views_need_no_kernel():
    def define(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.sum(fd.ops.exp(x), dims=[0]))

    fd = defined(define)
    (x, _) = square()
    segments = fd.segment([x], options=APART)
    turned, _ = fd.execute([x])
    assert np.shares_memory(turned, x)
    view = next(s for s in segments if "permute" in repr(s))
    assert not any(step.runs for step in view.plan_for([x]).prepare().steps())
