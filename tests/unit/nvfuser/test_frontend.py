"""The removed frontend by its names: one cache per process, definitions of the same fusion, and execution."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from needs import needs

from fuser_lab import nvfuser
from fuser_lab.errors import ArgumentTypeError, DefinitionError, FuserLabError, InputError, StateError
from fuser_lab.nvfuser import (
    DataType,
    FusionCache,
    FusionDefinition,
    MemoryType,
    ParallelType,
    Scalar,
    SchedulerType,
    Tensor,
    Vector,
)
from fuser_lab.nvfuser.nvfuser_version import Version
from tests.unit.ops.sampling import ENTRIES, LETTERS

X, Y = (np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 4, 8) + n for n in range(2))


def scaled_sum(fd, dims=(-1,), scale=3.0):
    t0, t1 = fd.from_pytorch(X), fd.from_pytorch(Y)
    c0 = fd.define_scalar(scale)
    t2 = fd.ops.add(t0, t1)
    t3 = t2 * c0
    t4 = fd.ops.sum(t3, list(dims), False, DataType.Float)
    fd.add_output(t4)


def defined(define=scaled_sum, *args):
    with FusionDefinition() as fd:
        define(fd, *args)
    return fd


def by_text(fd):
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names[f"nvfuser_fusion_id{fd.id()}"](again)
    return again


def cloned(fd):
    new = FusionDefinition()
    nvfuser.clone(fd, new)
    return new


def test_the_text():
    assert repr(defined()) == """
def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, \
is_cpu=False, stride_order=[2, 1, 0])
    T1 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, \
is_cpu=False, stride_order=[2, 1, 0])
    S2 = fd.define_scalar(3.00000, dtype=DataType.Double)
    T3 = fd.ops.add(T0, T1)
    T4 = fd.ops.mul(T3, S2)
    T5 = fd.ops.sum(T4, dims=[2], keepdim=False, dtype=DataType.Float)
    fd.add_output(T5)
"""


def test_sizes_are_vectors_and_numbers_are_those_of_states(cache):
    def sizes(fd):
        t0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Half)
        n = fd.define_scalar(DataType.Int)
        t1 = fd.ops.reshape(t0, [4, 8])
        t2 = fd.ops.broadcast_in_dim(t1, [2, 4, t0.size(1)], [1, 2])
        t3 = fd.ops.full(t0.shape(), 1e-5, DataType.Float)
        t4 = fd.ops.full(fd.define_vector([n, 3]), n, DataType.Int)
        for out in (t2, t3, t4):
            fd.add_output(out)

    fd = defined(sizes)
    lines = [line.strip() for line in repr(fd).splitlines()[2:]]
    assert lines[1:6] == [
        "S1 = fd.define_scalar(None, dtype=DataType.Int)",
        "S2 = fd.define_scalar(4, dtype=DataType.Int)",
        "S3 = fd.define_scalar(8, dtype=DataType.Int)",
        "V4 = fd.define_vector([S2, S3], dtype=DataType.Int)",
        "T5 = fd.ops.reshape(T0, new_shape=V4)",
    ]
    assert "S6 = fd.ops.size(T0, dim=1)" in lines
    assert "V13 = fd.ops.shape(T0)" in lines
    assert "S14 = fd.define_scalar(1.00000e-05, dtype=DataType.Double)" in lines
    # 11 and 12 are the elements of V13.
    kinds = "".join(state.kind.value[0].upper() for state in fd.state.states)
    named = {int(line[1:].split(" ")[0].rstrip(",")): line[0] for line in lines if line[0] in "TSV"}
    assert all(kinds[number] == letter for number, letter in named.items())
    assert (fd.inputs(), fd.extents()) == ([0, 1], [-1, -2])
    assert [kinds[number] for number in fd.outputs()] == ["T", "T", "T"]
    assert by_text(fd)._end is cloned(fd)._end is fd._end
    assert cache.num_fusions() == 1


def test_a_script_its_text_its_clone_and_itself_again_are_one_fusion(cache):
    fd = defined()
    texts = [by_text(fd), by_text(by_text(fd))]
    others = [defined(), defined(scaled_sum, [2]), *texts, cloned(fd), FusionDefinition(fd.id())]
    assert {other.id() for other in others} == {fd.id()} == {0}
    assert cache.num_fusions() == 1
    assert defined(scaled_sum, [0]).id() == 1
    assert defined(scaled_sum, [-1], 4.0).id() == 2
    assert cache.num_fusions() == 3
    want = (3 * (X.astype(np.float64) + Y)).sum(-1)
    for other in (fd, *others):
        np.testing.assert_allclose(other.execute([X, Y])[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_op_is_one_fusion_with_its_text_and_its_clone(name, cache):
    for sample in ENTRIES[name].samples[:12]:
        with FusionDefinition() as fd:
            names = {letter: fd.define_tensor([n if n == 1 else -1 for n in arg.shape], True, arg.dtype)
                     for letter, arg in zip(LETTERS, sample.args, strict=False)}
            try:
                result = eval(sample.call, {"fd": fd, "DataType": DataType, **names})
            except (DefinitionError, TypeError):
                # A sample that needs known sizes.
                fd._walk = None
                continue
            for value in result if isinstance(result, list | tuple) else [result]:
                if isinstance(value, Tensor):
                    fd.add_output(value)
        if fd.id() is None:
            continue
        before = cache.num_fusions()
        assert cloned(fd)._end is fd._end, sample.call
        assert by_text(fd)._end is fd._end, (sample.call, repr(fd), repr(by_text(fd)))
        assert cache.num_fusions() == before


def test_kinds_of_values():
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(sizes=[3, 4], strides=[4, 1], dtype=DataType.Float, static_sizes=True)
        assert t0.ndim == 2
        s, c = fd.define_scalar(None, DataType.Double), fd.define_constant(2, DataType.Int)
        v, w = fd.define_vector([4, c]), t0.shape()
        many = fd.define_vector(2)
        assert all(isinstance(value, Scalar) for value in (s, c, v[0], w[1], many[0], t0.size(0), fd.ops.size(t0, 1)))
        assert all(isinstance(value, Vector) for value in (v, w, many, fd.ops.shape(t0)))
        assert all(isinstance(value, Tensor) for value in (t0, t0 + s, -t0, fd.ops.var_mean(t0, [1])[0]))
        assert (v.size, len(w)) == (2, 2)
        fd.add_output((t0 * s).builder.ops.neg(t0))
    with FusionDefinition() as fd:
        with pytest.raises(ArgumentTypeError, match="define_constant: value must be a number, given None"):
            fd.define_constant(None)
        with pytest.raises(ArgumentTypeError, match="define_vector: dtype must be DataType.Int"):
            fd.define_vector([1], DataType.Float)


def test_outputs_in_their_forms():
    def forms(fd):
        t0, t1 = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.neg(t0), [0, 1])
        fd.add_output(fd.ops.exp(t0), stride_order=[1, 0])
        fd.add_output(fd.ops.add(t0, t1), t1)

    fd = defined(forms)
    assert by_text(fd)._end is fd._end
    a, b = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    first, second = fd.execute([a, b])
    assert [n // 4 for n in first.strides] == [1, 2]
    np.testing.assert_allclose(second, np.e, rtol=1e-6)
    np.testing.assert_array_equal(b, 2)


class Negation(FusionDefinition):
    """A definition by subclassing, with a schedule."""

    scheduled = 0

    def definition(self):
        self.t0 = self.define_tensor(shape=[-1, -1], contiguity=True)
        self.t1 = self.ops.neg(self.t0)
        self.add_output(self.t1)

    def schedule(self):
        type(self).scheduled += 1
        taken, why = self.sched.can_schedule(SchedulerType.reduction)
        assert not taken
        assert "***rejected***" in why
        assert SchedulerType.pointwise in self.sched.find_compatible_schedulers()
        copy = self.sched.cache_after(self.t0)
        self.sched.set_memory_type(copy, MemoryType.shared)
        self.sched.merge(self.t1, dim=0)
        self.sched.split(self.t1, dim=0, factor=64)
        self.sched.reorder(self.t1, {0: 0})
        self.sched.parallelize(self.t1, 0, ParallelType.grid_x)
        self.sched.parallelize(self.t1, 1, ParallelType.block_x)
        self.sched.transform_like(self.t1)
        self.sched.parallelize_like(self.t1)


def test_subclasses_and_their_schedules(cache):
    Negation.scheduled = 0
    fd = Negation()
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(fd.execute([x])[0], -x)
    np.testing.assert_array_equal(fd.execute([x])[0], -x)
    np.testing.assert_array_equal(Negation().execute([x])[0], -x)
    assert (Negation.scheduled, cache.num_fusions()) == (1, 1)
    fd.execute([x[:2]])
    assert Negation.scheduled == 2
    assert "blockIdx" in fd.last_cuda_code()
    assert "ithreadIdx.x" in fd.last_scheduled_fusion_ir()
    np.testing.assert_array_equal(fd.execute([x], override_user_schedule=True)[0], -x)
    assert Negation.scheduled == 2
    assert "ithreadIdx.x" not in fd.last_scheduled_fusion_ir(override_user_schedule=True)


def test_schedules_of_schedulers():
    class Sum(FusionDefinition):
        def definition(self):
            t0 = self.define_tensor(shape=[-1, -1], contiguity=True)
            self.add_output(self.ops.sum(t0, [1]))

        def schedule(self):
            params = self.sched.compute_reduction_heuristics()
            assert params.vectorization_factor == 4
            params.vectorization_factor = 1
            self.sched.schedule()
            assert len(self.sched.transforms) > 3

    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    np.testing.assert_allclose(Sum().execute([x])[0], x.sum(1))

    class Wrong(Sum):
        def schedule(self):
            self.sched.schedule(SchedulerType.pointwise)

    with pytest.raises(DefinitionError, match=r"compute_heuristics: Scheduler .*pointwise.* \*\*\*rejected\*\*\*"):
        Wrong().execute([x])
    with pytest.raises(StateError, match="schedulers can be queried only inside schedule"):
        defined().sched.can_schedule(SchedulerType.pointwise)


class Scaled(FusionDefinition):
    """A definition with a schedule and a unique number."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def definition(self):
        self.out = self.ops.mul(self.define_tensor(shape=[-1], contiguity=True), self.factor)
        self.add_output(self.out)

    def schedule(self):
        self.sched.split(self.out, 0, 32)
        self.sched.parallelize(self.out, 0, ParallelType.grid_x)
        self.sched.parallelize(self.out, 1, ParallelType.block_x)


def test_schedules_of_a_definition_from_before_a_reset_are_its_own():
    x = np.ones(4, np.float32)
    before = Scaled(2.0)
    before.execute([x])
    FusionCache.reset()
    after = Scaled(3.0)
    assert (after.execute([x])[0][0], before.id(), after.id()) == (3, 0, 0)
    assert before.execute([x])[0][0] == 2


def test_subclasses_are_defined_when_they_are_needed():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(Negation().validate([x])[0], -x)
    assert Negation().segment([x]) == []


def test_definitions_that_the_cache_does_not_keep():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[3], contiguity=[True])
        with pytest.raises(DefinitionError):
            fd.ops.sum(x, [4])
        fd.add_output(fd.ops.neg(x))
    assert fd.id() is None
    assert "def nvfuser_fusion(fd : FusionDefinition) -> None :" in repr(fd)
    np.testing.assert_array_equal(fd.execute([np.ones(3, np.float32)])[0], -1)
    copy = cloned(fd)
    assert (copy.id(), copy.fusion) == (0, fd.fusion)


def test_no_definition():
    with pytest.raises(NotImplementedError, match="should be implemented by child class"):
        FusionDefinition().execute([X])
    with pytest.raises(NotImplementedError, match="should be implemented by child class"):
        FusionDefinition().schedule()


def test_options_of_execute(capsys, monkeypatch):
    fd = defined()
    assert fd.debug_output() is None
    for ask in (fd.profile, fd.last_cuda_code, fd.last_scheduled_fusion_ir):
        with pytest.raises(StateError):
            ask()
    with pytest.raises(StateError, match=r"fd.execute\(inputs, save_repro_inputs=True\) was not executed!"):
        fd.last_repro_script()
    monkeypatch.setenv("NVFUSER_DUMP", "fusion_ir_math,cuda_kernel,unknown")
    out = fd.execute([X, Y], profile=True, capture_debug_output=True, print_repro=True, save_repro_inputs=True,
                     _enable_options=["fuse_matmul"], _disable_options=["kernel_reuse"])
    assert "%kernel_math" in fd.debug_output()
    assert fd.last_cuda_code() in fd.debug_output()
    assert fd.profile().fusion_id == 0
    assert fd.profile().segments == 1
    assert fd.profile().kernel_profiles[0].scheduler in {"reduction", "inner_persistent"}
    assert capsys.readouterr().out.startswith("# ")
    script = fd.last_repro_script()
    assert script == fd.repro_script_for([X, Y])
    assert "from fuser_lab.nvfuser import FusionDefinition, DataType\n" in script
    assert repr(fd).strip() in script
    names = {}
    exec(script, names)
    assert names["fd"].id() == 0
    assert "inputs" not in fd.repro_script_for()
    fd.execute([X, Y])
    assert fd.debug_output() is None
    np.testing.assert_allclose(fd.validate([X, Y])[0], out[0])
    assert fd.getValTolerances([X, Y])[0][0] > 0
    assert "%kernel_math" in fd.fusion_ir()
    assert "Segment 0: " in fd.scheduled_fusion_ir_for([X, Y])
    assert "def " in fd.cuda_code_for([X, Y], intrinsic_code=True)
    with pytest.raises(DefinitionError, match="not an option"):
        fd.execute([X, Y], _enable_options=["no_such"])


def test_torch_scripts_name_the_frontend():
    torch = needs("torch")
    fd = defined()
    out = fd.execute([torch.from_numpy(X), torch.from_numpy(Y)], save_repro_inputs=True)
    assert isinstance(out[0], torch.Tensor)
    assert "import torch\nfrom nvfuser import FusionDefinition, DataType\n" in fd.last_repro_script()


def test_failures_are_logged_and_remembered(caplog, cache):
    for _ in range(2):
        with pytest.raises(DefinitionError, match="dims=5 is outside"):
            defined(scaled_sum, [5])
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "An error occurred while defining nvFuser FusionDefinition." in caplog.text
    assert "def nvfuser_incomplete_fusion(fd : FusionDefinition) -> None :" in caplog.text
    assert "T4 = fd.ops.mul(T3, S2)" in caplog.text
    assert cache.num_fusions() == 0
    caplog.clear()
    with pytest.raises(InputError, match="rank 3"):
        defined().execute([X[0], Y])
    assert "An error occurred while executing nvFuser FusionDefinition 0." in caplog.text


def test_too_long():
    said = "exceeded 3 operations. The max_length for FusionDefinition's might"
    with pytest.raises(DefinitionError, match=said), FusionDefinition(max_length=3) as fd:
        scaled_sum(fd)
    with FusionDefinition(max_length=7) as fd:
        scaled_sum(fd)
    assert fd.id() == 0


@pytest.mark.parametrize("arguments", [{"id": "a"}, {"id": 1.0}, {"max_length": None}])
def test_arguments_of_the_constructor(arguments):
    with pytest.raises(ArgumentTypeError, match="FusionDefinition: (id|max_length) must be an int"):
        FusionDefinition(**arguments)


def test_definitions_by_number(cache):
    fd = defined()
    assert FusionDefinition(0).execute([X, Y])[0].shape == (2, 4)
    assert repr(FusionDefinition(0)) == repr(fd)
    with pytest.raises(DefinitionError, match="no fusion has the number 7"):
        FusionDefinition(7)
    with pytest.raises(StateError, match="already been opened"), FusionDefinition(0):
        pass
    FusionCache.reset()
    assert cache.num_fusions() == 0
    with pytest.raises(DefinitionError, match="no fusion has the number 0"):
        FusionDefinition(0)
    assert defined().id() == 0


def test_clones_of_what_is_not_complete():
    fd = defined()
    with pytest.raises(DefinitionError, match="not complete"):
        nvfuser.clone(FusionDefinition(), FusionDefinition())
    with pytest.raises(DefinitionError, match="expected an empty"):
        nvfuser.clone(fd, defined())
    with pytest.raises(ArgumentTypeError, match="clone: to_fd must be a FusionDefinition, given 3"):
        nvfuser.clone(fd, 3)
    with FusionDefinition() as new:
        nvfuser.clone(fd, new)
    assert new.id() == 0


def two_segments(fd):
    x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    fd.add_output(fd.ops.add(y, fd.ops.sum(x, [1], keepdim=True)))


def test_segments(cache):
    fd = defined(two_segments)
    x, y = np.ones((64, 32), np.float32), np.ones((64, 128), np.float32)
    segments = fd.segment([x, y])
    assert fd.segments == segments
    assert [segment.id() for segment in segments] == [1, 2]
    assert [type(segment) for segment in segments] == [FusionDefinition] * 2
    assert fd.map_value_to_last_used_segment == {0: 0, 1: 1, 2: 1}
    np.testing.assert_array_equal(fd.execute([x, y])[0], 33)
    # A segment of a segment, its text, and its clone.
    assert segments[1].segment([y, np.ones((64, 1), np.float32)]) == []
    assert [by_text(segment).id() for segment in segments] == [cloned(segment).id() for segment in segments] == [1, 2]
    assert "    T1 = fd.ops.sum(T0, dims=[1])\n" in repr(segments[0])
    fd.execute([x, y], profile=True)
    # A segment may be segmented again when it runs.
    assert fd.profile().segments >= 2


def test_the_cache_of_the_process(cache, tmp_path, capsys):
    assert FusionCache.get() is FusionCache.get(max_fusions=3) is cache
    fd = defined()
    defined(two_segments)
    path = tmp_path / "cache.json"
    cache.serialize(path)
    with pytest.raises(RuntimeError, match="prohibited if FusionCache is already populated"):
        cache.deserialize(path)
    FusionCache.reset()
    cache.deserialize(str(path))
    assert cache.num_fusions() == 2
    again = defined()
    assert (again.id(), cache.num_fusions()) == (fd.id(), 2)
    assert "Total Fusions in Cache: 2" in cache.stats()
    cache.print()
    assert "T3 = ops.mul(T2, double(3))" in capsys.readouterr().out
    (tmp_path / "broken.json").write_text("{")
    FusionCache.reset()
    with pytest.raises(InputError, match="not a readable cache"):
        cache.deserialize(tmp_path / "broken.json")


def test_room_of_the_cache(monkeypatch):
    monkeypatch.setattr(FusionCache, "_only", None)
    cache = FusionCache.get(max_fusions=2, load_from_default_workspace=False)
    for scale in (1.0, 2.0, 3.0):
        defined(scaled_sum, [1], scale)
    assert cache.num_fusions() == 2


SCRIPT = """
import fuser_lab.nvfuser as nvfuser
nvfuser.enable_automatic_serialization()
if {off}:
    nvfuser.disable_automatic_serialization()
cache = nvfuser.FusionCache.get()
print(cache.num_fusions())
with nvfuser.FusionDefinition() as fd:
    fd.add_output(fd.ops.neg(fd.define_tensor(shape=[3])))
print(cache.num_fusions())
"""


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, **environment},
    )
    return done.stdout.split(), done.stderr


def test_processes_pass_their_fusions_on(tmp_path):
    place = {"FUSER_LAB_CACHE": str(tmp_path)}
    assert run(SCRIPT.format(off=True), **place)[0] == ["0", "1"]
    assert run(SCRIPT.format(off=False), **place)[0] == ["0", "1"]
    assert run(SCRIPT.format(off=True), **place)[0] == ["1", "1"]


BOTH = """
import sys
import fuser_lab.{first}
assert "fuser_lab.{second}" not in sys.modules
import fuser_lab.{second}
import fuser_lab.{first}
"""


@pytest.mark.parametrize(("first", "second"), [("nvfuser", "nvfuser_direct"), ("nvfuser_direct", "nvfuser")])
def test_both_frontends_in_one_process_warn_once(first, second):
    _, said = run(BOTH.format(first=first, second=second))
    assert said.count("UserWarning") == 1
    assert f"Be careful! You've imported {second} when the {first} module is already imported." in said


def test_descriptors():
    assert nvfuser.compute_contiguity([2, 1, 3], [3, 3, 1]) == [True, None, True]
    assert nvfuser.compute_contiguity([2, 3], [1, 2]) == [True, True]
    assert nvfuser.compute_contiguity([4, 5], [7, 1]) == [False, True]
    assert nvfuser.compute_contiguity([4, 5], [0, 1]) == [None, True]
    with pytest.raises(DefinitionError, match="compute_contiguity: sizes has 2 entries and strides 1"):
        nvfuser.compute_contiguity([4, 5], [1])
    assert nvfuser.compute_tensor_descriptor([2, 3, 4], [12, 1, 3]) == ([True, True, True], [2, 0, 1])
    assert nvfuser.version() == nvfuser.__version__
    params = nvfuser.LaunchParams(bdimx=128)
    assert (params.bdimx, params.gdimx) == (128, -1)
    for wrong in (0, -2, 1 << 70, 1.5, "a", None, True):
        with pytest.raises(FuserLabError, match="LaunchParams: gdimy must be"):
            nvfuser.LaunchParams(gdimy=wrong)
        with pytest.raises(FuserLabError, match="LaunchParams: gdimy must be"):
            params.gdimy = wrong
    assert params.gdimy == -1


def test_versions():
    assert Version("0.2.10") > "0.2.9"
    assert Version("0.2.9") < Version("0.2.10")
    assert Version("0.2") == "0.2.0"
    assert Version("0.2.1rc1") < "0.2.1" <= Version("0.2.1")
    assert Version("0.2.1+git1a2b") != "0.2.1"
    assert Version("0.2.1+git1a2b") >= "0.2.1"
    assert nvfuser.nvfuser_version.nvfuser_version == nvfuser.version()
    assert len({Version("1.0"), Version("1.0.0")}) == 1
    for text in ("", "one", "1..2", "1.0 beta gamma", None):
        with pytest.raises(InputError, match="Version: .* is not a version"):
            Version.parse(text)


def test_dtypes_of_torch():
    torch = needs("torch")
    utils = nvfuser.pytorch_utils
    assert utils.torch_dtype_to_nvfuser_dtype(torch.bfloat16) is DataType.BFloat16
    assert utils.python_scalar_to_nvfuser_dtype(2.5) is DataType.Double
    assert utils.python_scalar_to_nvfuser_dtype(True) is DataType.Bool


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("dims", "shape"), [(1, (2, 3, 5)), (2, (2, 3, 4, 5)), (3, (1, 2, 3, 2, 2))])
def test_instance_norm(dims, shape, affine):
    torch = needs("torch")
    from fuser_lab.nvfuser.contrib import nn

    torch.manual_seed(0)
    ours = getattr(nn, f"InstanceNorm{dims}dNVFuser")(shape[1], affine=affine, track_running_stats=True)
    theirs = getattr(torch.nn, f"InstanceNorm{dims}d")(shape[1], affine=affine, track_running_stats=True)
    x = torch.randn(shape, requires_grad=True)
    other = x.detach().clone().requires_grad_(True)
    grad = torch.randn(shape)
    for module, given in ((ours, x), (theirs, other)):
        module(given).backward(grad)
    torch.testing.assert_close(ours(x), theirs(other))
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(other))
