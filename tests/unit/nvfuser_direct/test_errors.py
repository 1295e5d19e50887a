"""Errors have the types that nvFuser's users catch, and sentences with the remedy."""

import operator
import re

import pytest
from needs import needs

from fuser_lab import nvfuser_direct
from fuser_lab.errors import UnsupportedError
from fuser_lab.nvfuser_direct import DataType, FusionDefinition

torch = needs("torch")

X = torch.ones(3, 4)
CAUGHT = (RuntimeError, TypeError, NotImplementedError, AssertionError, ValueError, KeyError)


def added(dtype=DataType.Float):
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=dtype)
        fd.add_output(fd.ops.add(t0, fd.define_scalar(None, dtype=DataType.Double)))
    return fd


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("fd.define_tensor(shape=[-2, 3])", RuntimeError),
        ("fd.define_tensor(shape=[3, 4], contiguity=[True])", RuntimeError),
        ("fd.define_tensor(shape=[3, 4], is_cpu=True)", RuntimeError),
        ("fd.define_tensor(shape=[3, 4], stride_order=[0, 0])", RuntimeError),
        ("fd.define_tensor(shape='ab')", TypeError),
        ("fd.define_tensor()", TypeError),
        ("fd.define_tensor(shape=[3], color=1)", TypeError),
        ("fd.define_tensor(sizes=[3], strides=[-1])", RuntimeError),
        ("fd.define_scalar('a')", TypeError),
        ("fd.define_vector(-1)", RuntimeError),
        ("fd.define_vector('a')", TypeError),
        ("fd.ops.add(t, 'a')", TypeError),
        ("fd.ops.add(lhs=t, rhs=t)", TypeError),
        ("fd.ops.relu(x=t)", TypeError),
        ("fd.ops.add(t)", TypeError),
        ("fd.ops.sum(t, [5])", RuntimeError),
        ("fd.ops.permute(t, [0, 0])", RuntimeError),
        ("fd.ops.where(t, t, t)", RuntimeError),
        ("fd.add_output(1.0)", TypeError),
        ("fd.add_output(t, fd.ops.neg(t))", RuntimeError),
        ("fd.ops.no_such_op(t)", AttributeError),
    ],
)
def test_illegal_definitions(call, error, capsys):
    def run():
        with FusionDefinition() as fd:
            t = fd.from_pytorch(X)
            eval(call, {"fd": fd, "t": t, "DataType": DataType})

    with pytest.raises(error) as raised:
        run()
    assert str(raised.value)
    assert "Exception occurred" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([2, 1.0], r"Expected input 0, T0_g_float\[.*\], to be an at::Tensor but got scalar 2\."),
        ([X, X], r"Expected input 1, d2, to be a scalar but got float tensor of rank 2\."),
        ([X.half(), 1.0], r"Expected input 0, .*, to be bound to a tensor of dtype float, but got .* dtype __half\."),
        ([X, 2 + 1j], r"Scalar value \(2,1\) is not compatible with the expected data type: double\."),
        ([X[0], 1.0], r"to be bound to a tensor of rank 2, but got a tensor of rank 1\."),
        ([X], r"takes 2 inputs"),
        ([X, 1.0, 2.0], r"takes 2 inputs"),
    ],
)
def test_inputs_that_do_not_fit(inputs, says):
    fd = added()
    with pytest.raises(RuntimeError, match=says):
        fd.execute(inputs)


@pytest.mark.parametrize("inputs", [None, X, 3, {"a": X}, "ab"])
def test_inputs_that_are_no_list(inputs):
    with pytest.raises(TypeError, match="inputs must be a list of arrays and numbers"):
        added().execute(inputs)


def test_sizes_that_contradict_each_other():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.from_pytorch(X), fd.from_pytorch(X)))
    with pytest.raises(RuntimeError, match="these inputs do not fit the fusion"):
        fd.execute([X, torch.ones(3, 5)])


def test_options():
    fd = added()
    fd.execute([X, 1.0], _enable_options=["fuse_matmul"], _disable_options=["matmul_expr_eval", "resize_scheduler"])
    with pytest.raises(RuntimeError, match="'no_such', which is not an option"):
        fd.execute([X, 1.0], _enable_options=["no_such"])
    with pytest.raises(RuntimeError, match="'no_such', which is not an option"):
        fd.execute([X, 1.0], _disable_options=["no_such"])
    with pytest.raises(TypeError, match="list of names"):
        fd.execute([X, 1.0], _disable_options="resize_scheduler")
    with pytest.raises(TypeError, match="must be a str"):
        fd.execute([X, 1.0], _disable_options=[3])


def test_device():
    fd = added()
    for device in (None, "cpu", torch.device("cpu")):
        fd.execute([X, 1.0], device=device)
    with pytest.raises(RuntimeError, match="device is .?cuda:0.?, but the inputs are on cpu"):
        fd.execute([X, 1.0], device=0)
    with pytest.raises(RuntimeError, match="device is cuda:1, but the inputs are on cpu"):
        fd.execute([X, 1.0], device="cuda:1")
    with pytest.raises(TypeError, match="device must be"):
        fd.execute([X, 1.0], device=1.5)


def test_undefined_and_empty():
    fd = FusionDefinition()
    assert fd.validate_definition() == (
        False, "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion.",
    )
    with pytest.raises(NotImplementedError, match="Fusion does not exist!"):
        fd.execute([])
    with pytest.raises(NotImplementedError, match="Fusion does not exist!"):
        _ = fd.fusion
    with FusionDefinition() as fd:
        pass
    assert fd.validate_definition() == (False, "Fusion is empty!")
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        fd.execute([])
    with FusionDefinition() as fd:
        fd.from_pytorch(X)
    ok, message = fd.validate_definition()
    assert not ok
    assert message.startswith("Fusion is empty! It has no outputs")
    with pytest.raises(NotImplementedError, match="no outputs"):
        fd.validate([X])
    assert added().validate_definition() == (True, "")


def test_state():
    fd = added()
    fd.execute([X, 1.0])
    with pytest.raises(AssertionError, match="has run by execute"):
        fd.manual_execute([X, 1.0])
    fd = added()
    fd.manual_execute([X, 1.0])
    with pytest.raises(AssertionError, match="has run by manual_execute"):
        fd.execute([X, 1.0])
    with pytest.raises(AssertionError, match="save_repro_inputs=True"):
        fd.last_repro_script()
    with pytest.raises(AssertionError, match="already been opened"), fd:
        pass
    with pytest.raises(AssertionError, match="not open"):
        fd.define_scalar(1.0)
    with pytest.raises(AssertionError, match="no definition is open"):
        fd.ops.add(1.0, 2.0)


def test_from_pytorch_refuses_by_kind():
    with FusionDefinition() as fd:
        for dtype in (torch.uint16, torch.uint32):
            with pytest.raises(KeyError, match=f"dtype {dtype}"):
                fd.from_pytorch(torch.ones(2, dtype=dtype))
        with pytest.raises(ValueError, match="Found unsupported device meta"):
            fd.from_pytorch(torch.ones(2, device="meta"))
        for value in (1.0, [1.0], None, "a"):
            with pytest.raises(TypeError):
                fd.from_pytorch(value)


@pytest.mark.parametrize(
    "use",
    [
        lambda fd, tv: fd.ops.scaled_mm(tv, tv, tv),
        lambda fd, tv: fd.ops.nv_block_quantize(tv),
        lambda fd, tv: fd.ops.cutlass_nvfp4_grouped_mm(),
        lambda fd, tv: tv.cache_after(nvfuser_direct.LoadStoreOpType.tma),
        lambda fd, tv: tv.cache_after(nvfuser_direct.LoadStoreOpType.cp_async),
        lambda fd, tv: tv.cache_before(nvfuser_direct.LoadStoreOpType.load_matrix),
        lambda fd, tv: tv.set_memory_type(nvfuser_direct.MemoryType.tensor),
        lambda fd, tv: tv.set_memory_type(nvfuser_direct.MemoryType.symmetric),
        lambda fd, tv: tv.circular_buffer(2),
        lambda fd, tv: tv.swizzle(0, 1),
        lambda fd, tv: tv.swizzle1d(0, nvfuser_direct.ParallelType.mesh_x),
        lambda fd, tv: tv.set_allocation_domain([], True),
        lambda fd, tv: tv.set_device_mesh(None),
        lambda fd, tv: tv.axis(0).parallelize(nvfuser_direct.ParallelType.mma),
        lambda fd, tv: tv.axis(0).parallelize(nvfuser_direct.ParallelType.tma),
        lambda fd, tv: tv.axis(0).parallelize(nvfuser_direct.ParallelType.mesh_x),
        lambda fd, tv: tv.axis(0).parallelize(nvfuser_direct.ParallelType.stream),
        lambda fd, tv: nvfuser_direct.schedule.warp_specialize(tv),
        lambda fd, tv: fd.sched.warp_specialize(tv),
        lambda fd, tv: nvfuser_direct.DeviceMesh([0, 1]),
        lambda fd, tv: nvfuser_direct.multidevice.Communicator(),
        lambda fd, tv: nvfuser_direct.execute_with_dtensors(fd, []),
        lambda fd, tv: nvfuser_direct.FusionExecutorCache(fd.fusion, 0, auto_schedule=False),
        lambda fd, tv: nvfuser_direct.KernelExecutor().compile(fd.fusion, [X], launch_constraints=object()),
        lambda fd, tv: nvfuser_direct.idm.IdModel(fd.fusion).maybe_build_graph(nvfuser_direct.IdMappingMode.loop),
    ],
)
def test_what_is_not_supported_is_none_of_the_caught_errors(use):
    with FusionDefinition() as fd:
        tv = fd.from_pytorch(X)
        fd.add_output(fd.ops.neg(tv))
        with pytest.raises(UnsupportedError, match="not supported") as raised:
            use(fd, tv)
    assert not isinstance(raised.value, CAUGHT)


REFUSED = {
    "ParallelType.cluster_x": "schedules by hand have no clusters of blocks",
    "ParallelType.ClusterIDx": "schedules by hand have no clusters of blocks",
    "WarpSpecialized": "Numba cannot give warps of one block different programs",
    "Pipelined": "Numba has no asynchronous copies to overlap",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_numba_cannot_express_is_refused_by_name(name):
    with pytest.raises(UnsupportedError, match=f"^{name} is not supported: {REFUSED[name]}.$"):
        operator.attrgetter(name)(nvfuser_direct)


def test_other_names_are_as_unknown_as_ever():
    assert not hasattr(nvfuser_direct.ParallelType, "cluster_x")
    assert not hasattr(nvfuser_direct, "Pipelined")
    for holder in (nvfuser_direct, nvfuser_direct.ParallelType):
        with pytest.raises(AttributeError, match="nothing_of_the_kind"):
            _ = holder.nothing_of_the_kind
    assert nvfuser_direct.ParallelType["grid_x"] is nvfuser_direct.ParallelType.BIDx


def test_manual_execute_of_what_no_scheduler_takes_whole():
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(X)
        total = fd.ops.sum(t0, [0])
        fd.add_output(fd.ops.sum(total, [0]))
        fd.add_output(fd.ops.sum(t0, [1]))
    with pytest.raises(UnsupportedError, match="the fusion cannot be one kernel: "):
        fd.manual_execute([X])


def test_wrong_results_are_told():
    fd = added()
    assert torch.equal(fd.validate([X, 1.0])[0], X + 1)
    fd.validate([X, 1.0], [X + 1])
    wrong = X + 1
    wrong[1, 2] = 5
    wrong[2, 0] = 2.5
    says = (
        "output 0, T1_g_float[iS2{3}, iS3{4}], is wrong in 2 of 12 elements; the worst is at [1, 2]: "
        "expected 5.0, got 2.0"
    )
    with pytest.raises(RuntimeError, match=re.escape(says)):
        fd.validate([X, 1.0], [wrong])
    with pytest.raises(RuntimeError, match="returns 1 outputs, given 2 reference outputs"):
        fd.validate([X, 1.0], [wrong, wrong])
    with pytest.raises(RuntimeError, match=re.escape("has shape [3, 4], but [3] is expected")):
        fd.validate([X, 1.0], [wrong[:, 0]])
    with pytest.raises(RuntimeError, match="has dtype float32, but float64 is expected"):
        fd.validate([X, 1.0], [X.double()])
    with pytest.raises(RuntimeError, match="output 0"):
        nvfuser_direct.validate_with_auto_inferred_outputs(fd.fusion, [wrong], [X, 1.0])
    nvfuser_direct.validate_with_auto_inferred_outputs(fd.fusion, [X + 1], [X, 1.0])
