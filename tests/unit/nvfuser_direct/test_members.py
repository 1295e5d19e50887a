"""Caches, executors, schedulers, the profiler and members of values, by nvFuser's names."""

import math
import threading

import numpy as np
import pytest
from needs import needs

from fuser_lab import nvfuser_direct
from fuser_lab.nvfuser_direct import (
    BroadcastOp,
    DataType,
    Fusion,
    FusionDefinition,
    FusionExecutorCache,
    FusionGuard,
    IdMappingMode,
    KernelExecutor,
    LRUCache,
    LruFusionCache,
    Merge,
    PythonProfiler,
    ReshapeOp,
    SchedulerType,
    Split,
    SqueezeOp,
)

torch = needs("torch")


def scaled(factor=2.0, *, dtype=DataType.Float, swap=False):
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=dtype)
        t1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=dtype)
        a, b = (t1, t0) if swap else (t0, t1)
        fd.add_output(fd.ops.add(a, fd.ops.mul(b, factor)))
    return fd


INPUTS = [torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)]
EXPECTED = INPUTS[0] + 2 * INPUTS[1]


def test_lru_cache_idiom_and_statistics():
    cache = LRUCache(max_fusions=10)
    assert cache.stats() == "Max Fusions Allowed: 10\nThe fusion cache is empty.\n"
    definitions = [scaled() for _ in range(5)]
    for fd in definitions:
        fd.fec = cache.cache_compile(fd.fusion)
        del fd._fusion
        assert torch.equal(fd.execute(INPUTS)[0], EXPECTED)
    assert cache.num_fusions() == 1
    assert len({id(fd.fec) for fd in definitions}) == 1
    assert cache.stats() == (
        "Max Fusions Allowed: 10\n"
        "Total Fusions in Cache: 1\n"
        "Total Unique Fusions Compiled: 1\n"
        "Cache Hits by LRU ordering:\n"
        "\t0 -> 4 hits\n"
        "Cache Lookups: 5\n"
        "Cache Hits: 4\n"
        "Hit Rate: 80%\n"
    )


def test_lru_cache_forgets_the_oldest():
    cache = LRUCache(2)
    for factor in (1.0, 2.0, 1.0, 3.0, 2.0):
        cache.cache_compile(scaled(factor).fusion)
    assert cache.num_fusions() == 2
    assert "Total Unique Fusions Compiled: 4\n" in cache.stats()
    assert "\t0 -> 0 hits\n\t1 -> 0 hits\n" in cache.stats()
    with pytest.raises(RuntimeError):
        LRUCache(0)
    with pytest.raises(TypeError):
        LRUCache("a")


def test_keys_are_structural():
    cache = LRUCache(16)
    different = [
        scaled(), scaled(3.0), scaled(dtype=DataType.Double), scaled(swap=True), scaled(2),
    ]
    with FusionDefinition() as strided:
        t0 = strided.define_tensor(shape=[-1, -1], contiguity=[False, True], dtype=DataType.Float)
        t1 = strided.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        strided.add_output(strided.ops.add(t0, strided.ops.mul(t1, 2.0)))
    for fd in (*different, strided):
        cache.cache_compile(fd.fusion)
    with FusionDefinition() as renamed:
        t0 = renamed.define_tensor(shape=[-1, -1], contiguity=[True, True])
        t1 = renamed.define_tensor(shape=[-1, -1], contiguity=[True, True])
        renamed.ops.neg(t0)  # without effect
        renamed.add_output(renamed.ops.add(t0, renamed.ops.mul(t1, 2.0)))
    cache.cache_compile(renamed.fusion)
    assert renamed.fusion == scaled().fusion
    assert renamed.fusion != scaled(3.0).fusion
    # The integer 2 is cast to a float, as the float is: both are one definition.
    assert cache.num_fusions() == len(different) + 1 - (scaled(2).fusion == scaled().fusion)


def test_lru_cache_from_many_threads():
    cache = LRUCache(4)
    found = []

    def look():
        found.extend(cache.cache_compile(scaled().fusion) for _ in range(20))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert "Cache Lookups: 80\nCache Hits: 79\n" in cache.stats()


def test_decorator():
    @LruFusionCache(max_fusions=1)
    def define(factor):
        return scaled(factor)

    for factor in (2.0, 2.0, 4.0):
        fd = define(factor)
        assert torch.equal(fd.execute(INPUTS)[0], INPUTS[0] + factor * INPUTS[1])
    assert define.num_fusions() == 1
    assert "Cache Lookups: 3\nCache Hits: 1\n" in define.stats()

    @LruFusionCache
    def plain():
        return scaled()

    plain()
    assert plain.num_fusions() == 1
    assert plain.stats().startswith("Max Fusions Allowed: 16384\n")


def test_executor_cache():
    fd = scaled()
    fec = FusionExecutorCache(fd.fusion, fusion_id=3)
    assert not fec.is_compiled(INPUTS)
    with pytest.raises(AssertionError, match="nothing has run"):
        fec.get_most_recent_scheduled_ir()
    assert torch.equal(fec.execute(INPUTS)[0], EXPECTED)
    assert fec.is_compiled(INPUTS)
    assert not fec.is_compiled([x[:1] for x in INPUTS])
    assert fec.fusion() == fd.fusion
    assert "cuda" in fec.get_cuda_kernel(INPUTS)
    assert "def " in fec.get_cuda_kernel(INPUTS)
    assert len(fec.get_cuda_kernel(INPUTS, intrinsic_code=True)) > len(fec.get_cuda_kernel(INPUTS))
    ir = fec.get_scheduled_ir(INPUTS)
    assert ir == fec.get_most_recent_scheduled_ir()
    assert "%kernel_math {" in ir
    assert "logical domain : (" not in ir
    assert "logical domain : (" in fec.get_scheduled_ir(INPUTS, tensor_transforms=True)
    assert fec.get_output_shardings() == []


def test_executor_of_the_definition():
    fd = scaled()
    before = fd.fusion
    fd.execute(INPUTS)
    assert fd.fec.is_compiled(INPUTS)
    assert fd.fusion == before
    assert fd.fusion is not before
    assert repr(fd) == repr(scaled())


def test_kernel_executor():
    fd = scaled()
    executor = KernelExecutor()
    assert not executor.is_compiled()
    with pytest.raises(AssertionError, match="nothing has been compiled"):
        executor.run(INPUTS)
    executor.compile(fd.fusion, INPUTS)
    assert executor.is_compiled()
    assert not executor.is_programmatic_dependent_launch_enabled()
    assert torch.equal(executor.run(INPUTS)[0], EXPECTED)
    with pytest.raises(RuntimeError, match="this plan is for size 2"):
        executor.run([torch.ones(4, 3), torch.ones(4, 3)])


def test_manual_execute_with_a_chosen_scheduler():
    fd = scaled()
    with pytest.raises(RuntimeError, match="reduction"):
        fd.sched.compute_heuristics(fd.fusion, SchedulerType.reduction, INPUTS)
    params = fd.sched.compute_heuristics(fd.fusion, SchedulerType.pointwise, INPUTS)
    fd.sched.schedule(fd.fusion, SchedulerType.pointwise, params)
    assert torch.equal(fd.manual_validate(INPUTS)[0], EXPECTED)
    again = scaled()
    assert torch.equal(again.manual_execute(INPUTS, params)[0], EXPECTED)


def test_schedulers():
    inputs = [torch.ones(4, 8)]
    with FusionDefinition() as pointwise:
        pointwise.add_output(pointwise.ops.neg(pointwise.from_pytorch(inputs[0])))
    with FusionDefinition() as reduction:
        reduction.add_output(reduction.ops.sum(reduction.from_pytorch(inputs[0]), [1]))
    with FusionDefinition() as nothing:
        nothing.add_output(nothing.from_pytorch(inputs[0]))
    find = nvfuser_direct.schedule.find_compatible_schedulers
    assert find(pointwise.fusion, inputs) == [SchedulerType.pointwise]
    assert find(reduction.fusion, inputs) == [SchedulerType.reduction]
    assert find(nothing.fusion, inputs) == [SchedulerType.no_op, SchedulerType.expr_eval]
    assert pointwise.sched.can_schedule(pointwise.fusion, SchedulerType.pointwise, inputs) == (True, "")
    taken, why = pointwise.sched.can_schedule(pointwise.fusion, SchedulerType.reduction, inputs)
    assert not taken
    assert why.startswith("Scheduler _reduction_ ***rejected*** because : ")
    with pytest.raises(TypeError, match="must be a SchedulerType"):
        pointwise.sched.can_schedule(pointwise.fusion, "pointwise", inputs)


def test_enumerations():
    entries = SchedulerType.__entries
    assert set(entries) == {
        "none", "no_op", "pointwise", "matmul", "reduction", "inner_persistent", "inner_outer_persistent",
        "outer_persistent", "transpose", "expr_eval", "resize",
    }  # fmt: skip
    assert all(value is SchedulerType[name] for name, (value, _) in entries.items())
    assert str(SchedulerType.pointwise) == "SchedulerType.pointwise"
    assert nvfuser_direct.ParallelType.grid_x.name == "grid_x"
    assert nvfuser_direct.MemoryType["global"].name == "global"
    assert nvfuser_direct.LoadStoreOpType.tma in set(nvfuser_direct.LoadStoreOpType)
    assert nvfuser_direct.CacheOp.streaming in set(nvfuser_direct.CacheOp)


def test_profiler():
    x = torch.randn(64, 32)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.segment_set(fd.ops.sum(t0, [1]))
        fd.add_output(fd.ops.mul(fd.ops.broadcast(t1, [False, True]), t0))
    with PythonProfiler() as prof:
        outputs = fd.execute([x])
    torch.testing.assert_close(outputs[0], x.sum(1, keepdim=True) * x)
    profile = prof.profile
    assert profile.segments == len(profile.kernel_profiles) == 2
    assert [k.segment_id for k in profile.kernel_profiles] == [0, 1]
    assert [k.scheduler for k in profile.kernel_profiles] == ["reduction", "pointwise"]
    first = profile.kernel_profiles[0]
    assert (first.input_bytes, first.output_bytes) == (64 * 32 * 4, 64 * 4)
    assert 0 < first.time_ms <= profile.kernel_time_ms <= profile.host_time_ms
    assert first.effective_bandwidth_gbs > 0
    assert (first.grid_str, first.block_str, first.shared_mem_str) == ("", "", "")
    assert first.device == -1
    assert math.isnan(first.percentage_peak_bandwidth)
    assert math.isnan(first.registers)
    assert "reduction" in str(profile)
    fd.execute([x])
    assert prof.profile is profile, "runs outside the block are not measured"
    unused = PythonProfiler()
    with pytest.raises(AssertionError, match="nothing has run"):
        _ = unused.profile
    with unused, pytest.raises(AssertionError, match="already running"):
        unused.__enter__()


def test_values():
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[-1, 4, 1], contiguity=True, dtype=DataType.Half)
        c = fd.define_scalar(3.0)
        s = fd.define_scalar(None, dtype=DataType.Int)
        t1 = fd.ops.mul(t0, c)
        t2 = fd.ops.sum(t1, [0])
        fd.add_output(t2)
    assert t0.dtype() == DataType.Half
    assert t1.dtype() == DataType.Float
    assert (t0.ndim, t2.ndim) == (3, 2)
    assert [v.is_symbolic() for v in t0.shape()] == [True, False, False]
    assert [str(v) for v in t0.shape()] == ["i0", "4", "1"]
    assert str(t0.size(-2)) == "4"
    assert (c.is_symbolic(), s.is_symbolic(), t0.is_tensor(), c.is_tensor()) == (False, True, True, False)
    assert [axis.is_reduction() for axis in t2.get_logical_domain()] == [True, False, False]
    assert str(t2.axis(0).extent()) == "i0"
    assert str(t2.axis(-1)).startswith("b")
    assert str(t2.domain()) == "[" + ", ".join(map(str, t2.get_loop_domain())) + "]"
    assert not t2.has_root()
    assert t2.get_root_domain() == []
    assert t0.definition() is None
    assert t2.definition().input(0) == t1
    assert t2.definition().output(0) == t2
    assert [e.output(0) for e in t1.uses()] == [t2]
    assert t1 != t2
    assert str(t2) in str(t2.definition())
    assert str(t0) == "T0_g___half[iS0{i0}, iS1{4}, bS2{1}]"
    assert str(t1).startswith("T2_l_float[")
    with pytest.raises(RuntimeError):
        t2.definition().input(7)
    with pytest.raises(RuntimeError):
        t0.axis(3)


def test_expressions_by_class():
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[4, 6], contiguity=True)
        t1 = fd.ops.broadcast(t0, [True, False, False])
        t2 = fd.ops.squeeze(t1, [0])
        t3 = fd.ops.reshape(t2, [24])
        t4 = fd.ops.reshape(t3, [8, 3])
        fd.add_output(t4)
    kinds = [type(t.definition()) for t in (t1, t2, t3, t4)]
    assert kinds == [BroadcastOp, SqueezeOp, ReshapeOp, ReshapeOp]
    merged = t3.axis(0).definition()
    assert isinstance(merged, Merge)
    assert str(merged.input(0).extent()) == "4"
    assert merged.output(0) == t3.axis(0)
    assert "Merge: " in str(merged)
    split = t4.axis(0).definition()
    assert isinstance(split, Split)
    assert [str(split.output(i).extent()) for i in range(2)] == ["8", "3"]
    assert t3.has_root()
    assert [str(axis.extent()) for axis in t3.get_root_domain()] == ["4", "6"]


def test_fusion_by_hand():
    fusion = Fusion()
    with FusionGuard(fusion):
        tv0 = nvfuser_direct.define_tensor(shape=[-1], contiguity=[True])
        s0 = nvfuser_direct.define_scalar(DataType.Double)
        fusion.add_input(tv0)
        fusion.add_input(s0)
        c0 = nvfuser_direct.define_scalar(2.0)
        tv1 = nvfuser_direct.ops.mul(nvfuser_direct.ops.add(tv0, c0), s0)
        fusion.add_output(tv1)
    with pytest.raises(AssertionError, match="no definition is open"):
        nvfuser_direct.define_scalar(1.0)
    assert fusion.inputs() == [tv0, s0]
    assert fusion.outputs() == [tv1]
    assert tv1 in fusion.vals()
    (result,) = FusionExecutorCache(fusion).execute([torch.ones(3), 3.0])
    assert torch.equal(result, torch.full((3,), 9.0))
    assert nvfuser_direct.translate_fusion(fusion).startswith("def nvfuser_fusion(fd : FusionDefinition) -> None :\n")
    # A copy continues from the state of the fusion, and does not change the fusion.
    copied = FusionExecutorCache(fusion).fusion()
    with FusionGuard(copied):
        copied.add_output(nvfuser_direct.ops.neg(copied.outputs()[0]))
    assert len(copied.outputs()) == 2
    assert len(fusion.outputs()) == 1
    first, second = FusionExecutorCache(copied).execute([torch.ones(3), 3.0])
    assert torch.equal(first, -second)
    with pytest.raises(TypeError):
        FusionGuard(3)
    with pytest.raises(TypeError):
        fusion.add_input(3)


def test_print_math(capsys):
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[4], contiguity=True)
        fd.ops.exp(t0)
        fd.add_output(fd.ops.neg(t0))
    fd.fusion.print_math()
    live = capsys.readouterr().out
    fd.fusion.print_math(from_outputs_only=False)
    everything = capsys.readouterr().out
    assert live.startswith("Inputs:\n  T0_g_float[iS0{4}]\nOutputs:\n  T2_g_float[iS2{4}]\n\n%kernel_math {\n")
    assert "expf(" in everything
    assert "expf(" not in live
    fd.fusion.print_kernel()
    assert "def " in capsys.readouterr().out


def test_id_model():
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[-1, -1], contiguity=True)
        t1 = fd.define_tensor(shape=[-1], contiguity=True)
        t2 = fd.ops.broadcast(t1, [True, False])
        t3 = fd.ops.add(t0, t2)
        t4 = fd.ops.sum(t3, [0])
        fd.add_output(t4)
    model = nvfuser_direct.idm.IdModel(fd.fusion)
    exact = model.maybe_build_graph(IdMappingMode.exact).disjoint_val_sets()
    assert exact.strict_are_mapped(t0.axis(1), t1.axis(0))
    assert exact.strict_are_mapped(t0.axis(0), t4.axis(0))
    assert not exact.strict_are_mapped(t0.axis(0), t0.axis(1))
    assert not exact.strict_are_mapped(t2.axis(0), t3.axis(0))
    assert exact.size() == 3
    broadcast = model.maybe_build_graph(IdMappingMode.broadcast).disjoint_val_sets()
    assert broadcast.strict_are_mapped(t2.axis(0), t3.axis(0))
    assert broadcast.size() == 2
    assert str(model) == str(exact)
    assert str(exact).startswith("disjoint sets {\n")
    with pytest.raises(TypeError):
        exact.strict_are_mapped(1, 2)
    with pytest.raises(TypeError):
        nvfuser_direct.idm.IdModel(3)


@pytest.mark.parametrize(
    ("sizes", "strides", "contiguity", "order"),
    [
        ([2, 3, 4], [12, 4, 1], [True, True, True], [2, 1, 0]),
        ([2, 3, 4], [1, 2, 6], [True, True, True], [0, 1, 2]),
        ([2, 1, 4], [4, 4, 1], [True, None, True], [2, 1, 0]),
        ([2, 3, 4], [4, 0, 1], [True, None, True], [2, 1, 0]),
        ([4, 4], [8, 1], [False, True], [1, 0]),
        ([4, 4], [8, 2], [True, False], [1, 0]),
        ([], [], [], []),
    ],
)
def test_compute_tensor_descriptor(sizes, strides, contiguity, order):
    assert nvfuser_direct.compute_tensor_descriptor(sizes, strides) == (contiguity, order)


def test_compute_tensor_descriptor_refuses_negative_strides():
    with pytest.raises(RuntimeError, match="negative"):
        nvfuser_direct.compute_tensor_descriptor([2], [-1])


def test_tolerances():
    def of(dtype, size, *, op="sum"):
        with FusionDefinition() as fd:
            t0 = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
            fd.add_output(fd.ops.sum(t0, [1]) if op == "sum" else fd.ops.neg(t0))
        x = torch.ones(2, size).to({DataType.Float: torch.float32, DataType.Half: torch.float16,
                                    DataType.Int: torch.int64}[dtype])  # fmt: skip
        ((absolute, relative),) = nvfuser_direct.get_val_tolerances(fd.fusion, [x])
        assert relative == pytest.approx(0.01 * absolute)
        return absolute

    assert of(DataType.Float, 4) == 1.68e-6
    assert of(DataType.Float, 5) == of(DataType.Float, 32) == 4.5e-6
    assert of(DataType.Float, 1000) == 3.3e-5
    assert of(DataType.Half, 1024) == 6.3e-2
    assert of(DataType.Int, 1024) == 0
    assert of(DataType.Float, 1000, op="neg") == 1.68e-6


def test_pytorch_utils():
    utils = nvfuser_direct.pytorch_utils
    assert utils.torch_dtype_to_nvfuser_dtype(torch.bfloat16) is DataType.BFloat16
    assert utils.torch_dtype_to_nvfuser_dtype(float) is DataType.Double
    with pytest.raises(KeyError):
        utils.torch_dtype_to_nvfuser_dtype(torch.uint16)
    assert utils.python_scalar_to_nvfuser_dtype(True) is DataType.Bool
    assert utils.python_scalar_to_nvfuser_dtype(1) is DataType.Int
    assert utils.python_scalar_to_nvfuser_dtype(1j) is DataType.ComplexDouble
    assert utils.python_scalar_to_nvfuser_dtype(float) is DataType.Double
    with pytest.raises(TypeError):
        utils.python_scalar_to_nvfuser_dtype("a")


def test_retry_on_oom():
    calls = []

    @nvfuser_direct.pytorch_utils.retry_on_oom_or_skip_test
    def once():
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return 7

    assert once() == 7
    assert len(calls) == 2


def test_repro_scripts_run_again():
    x = torch.randn(6, 4).t()
    with FusionDefinition() as fd:
        t0, s0 = fd.from_pytorch(x), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(t0, s0))
    fd.execute([x, 2.5], save_repro_inputs=True)
    script = fd.last_repro_script()
    assert script == fd.repro_script_for([x, 2.5])
    assert "from nvfuser_direct import FusionDefinition, DataType" in script
    names = {}
    exec(script.replace("from nvfuser_direct", "from fuser_lab.nvfuser_direct"), names)
    assert names["fd"].fusion == fd.fusion
    again, number = names["inputs"]
    assert (again.shape, again.stride(), again.dtype, number) == (x.shape, x.stride(), x.dtype, 2.5)
    assert "inputs = [" not in fd.repro_script_for()


def test_version_and_names():
    assert nvfuser_direct.version()
    for name in nvfuser_direct.__all__:
        assert hasattr(nvfuser_direct, name)
    assert {"add", "sum", "cast", "welford"} <= set(dir(nvfuser_direct.ops))


def test_numpy_arrays_run_too():
    (result,) = scaled().execute([x.numpy() for x in INPUTS])
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, EXPECTED.numpy())
