"""Schedules by hand of the tutorials, and their output: a copy, reductions with rfactor, reshapes, a normalization."""

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import nvfuser_direct
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.nvfuser_direct import (
    DataType,
    FusionDefinition,
    IdMappingMode,
    KernelExecutor,
    Merge,
    ParallelType,
    PythonProfiler,
    SchedulerType,
    Split,
    idm,
    schedule,
)

torch = needs("torch")


def copied():
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float)
        tv1 = fd.ops.set(tv0)
        fd.add_output(tv1)
    return fd, tv1


def test_a_copy_of_memory_block_by_block():
    fd, tv1 = copied()
    cache = tv1.cache_before()
    tv1.split(0, 4)
    tv1.split(0, 64)
    tv1.axis(0).parallelize(ParallelType.grid_x)
    tv1.axis(1).parallelize(ParallelType.block_x)
    schedule.transform_like(tv1)
    schedule.parallelize_like(tv1)
    schedule.inline_most([cache])
    tv1.axis(-1).parallelize(ParallelType.vectorize)
    x = torch.randn(1024)
    with PythonProfiler() as profiler:
        out = fd.manual_execute([x])[0]
    assert torch.equal(out, x)
    kernel = profiler.profile.kernel_profiles[0]
    assert (kernel.scheduler, kernel.grid_str, kernel.block_str) == ("user", "[4, 1, 1]", "[64, 1, 1]")
    assert (kernel.input_bytes, kernel.output_bytes) == (4096, 4096)
    assert profiler.profile.segments == 1


def test_a_kernel_of_one_scheduler_is_the_users_too():
    fd, _ = copied()
    executor = KernelExecutor()
    x = torch.randn(256)
    executor.compile(fd.fusion, [x], scheduler_type=SchedulerType.pointwise)
    with PythonProfiler() as profiler:
        executor.run([x])
    assert [kernel.scheduler for kernel in profiler.profile.kernel_profiles] == ["user"]
    with PythonProfiler() as profiler:
        fd.execute([x])
    assert [kernel.scheduler for kernel in profiler.profile.kernel_profiles] != ["user"]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_sum_in_one_and_two_steps(steps):
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        tv1 = fd.ops.sum(tv0, dims=[1])
        fd.add_output(tv1)
    if steps == 2:
        tv1.split(1, 32)
        partial = tv1.rfactor([1])
        partial.axis(-1).parallelize(ParallelType.block_x)
    tv1.axis(0).parallelize(ParallelType.grid_x)
    tv1.axis(-1).parallelize(ParallelType.block_x)
    x = torch.randn(6, 96)
    torch.testing.assert_close(fd.manual_execute([x])[0], x.sum(1))


def test_reshapes_and_which_axes_are_one():
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[4, 6], contiguity=[True, True], dtype=DataType.Float)
        tv1 = fd.ops.reshape(tv0, [24])
        tv2 = fd.ops.reshape(tv0, [24])
        fd.add_output(tv1)
        fd.add_output(tv2)
        merge = tv1.get_logical_domain()[0].definition()
        assert isinstance(merge, Merge)
        assert not isinstance(merge, Split)
        assert [merge.outer(), merge.inner()] == tv1.get_root_domain()
        assert merge.out() == tv1.get_logical_domain()[0]
        graph = idm.IdModel(fd.fusion).maybe_build_graph(IdMappingMode.exact)
        sets = graph.disjoint_val_sets()
        a, b = tv1.get_logical_domain()[0], tv2.get_logical_domain()[0]
        assert not sets.strict_are_mapped(a, b)
        before = sets.size()
        graph.map_vals(a, b)
        assert sets.strict_are_mapped(a, b)
        assert sets.size() == before - 1
        with pytest.raises(ArgumentTypeError, match="map_vals: 3 is not an axis of this fusion"):
            graph.map_vals(a, 3)


def layer_norm():
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        var, mean = fd.ops.var_mean(tv0, dims=[-1], correction=0, keepdim=True)
        fd.add_output(fd.ops.mul(fd.ops.sub(tv0, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5))))
    return fd


def test_a_normalization_scheduled_by_name_and_measured():
    fd = layer_norm()
    x = torch.randn(16, 128)
    taken, why = schedule.can_schedule(fd.fusion, SchedulerType.pointwise, [x])
    assert not taken
    assert why.startswith("Scheduler _pointwise_ ***rejected*** because : ")
    params = schedule.compute_heuristics(fd.fusion, SchedulerType.inner_persistent, [x])
    assert str(params).splitlines()[1:3] == ["===== Inner Persistent Parameters ========", " vectorization_factor: 4"]
    schedule.schedule(fd.fusion, SchedulerType.inner_persistent, params)
    want = torch.nn.functional.layer_norm(x, [128])
    with PythonProfiler(auto_scheduled=False) as profiler:
        out = fd.manual_execute([x], params)[0]
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    assert profiler.profile.kernel_profiles[0].scheduler == "user"


def test_fusions_print_short():
    plan = fl.segment(layer_norm(), [fl.spec((16, 128))])
    assert repr(plan.fusion).startswith("<Fusion of ")
    assert len(repr(plan.fusion)) < 120
    assert len(str(plan.fusion)) < 4000
    assert "%kernel_math {" in str(plan.fusion)


def test_gradients_of_attention_without_dropout():
    shape = (1, 2, 4, 8)
    q, k, v, grad = (torch.randn(shape) for _ in range(4))
    scores = q @ k.mT / 8**0.5
    out, logsumexp = scores.softmax(-1) @ v, scores.logsumexp(-1)
    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(t) for t in (grad, q, k, v, out, logsumexp)]
        seeds = [fd.define_tensor(shape=[], contiguity=[], dtype=DataType.Int, is_cpu=True) for _ in range(2)]
        for made in fd.ops.sdpfa_bwd(*tensors, None, None, *seeds, None):
            fd.add_output(made)
    seed = torch.zeros((), dtype=torch.int64)
    found = fd.execute([grad, q, k, v, out, logsumexp, seed, seed])
    leaves = [t.clone().requires_grad_(True) for t in (q, k, v)]
    torch.nn.functional.scaled_dot_product_attention(*leaves).backward(grad)
    for a, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(a, leaf.grad, rtol=1e-4, atol=1e-5)


def test_printed_definitions_define_again():
    fd = layer_norm()
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert again.fusion == fd.fusion
    assert nvfuser_direct.translate_fusion(again.fusion) == repr(fd.fusion)
    assert torch.isfinite(again.execute([torch.ones(2, 4)])[0]).all()
