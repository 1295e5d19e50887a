"""Scripts as written for nvFuser's direct bindings, with torch as the oracle."""

import threading

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import nvfuser_direct
from fuser_lab.nvfuser_direct import DataType, FusionDefinition
from tests.unit.nvfuser_direct.scripts import exec_nvfuser, same

torch = needs("torch")


def test_sum_of_scaled_sum():
    inputs = [torch.ones(2, 4, 8), torch.ones(2, 4, 8)]

    def fusion_func(fd: FusionDefinition):
        t0 = fd.from_pytorch(inputs[0])
        t1 = fd.from_pytorch(inputs[1])
        c0 = fd.define_scalar(3.0)
        t2 = fd.ops.add(t0, t1)
        t3 = fd.ops.mul(t2, c0)
        t4 = fd.ops.sum(t3, [-1], False, DataType.Float)
        fd.add_output(t4)

    outputs, _ = exec_nvfuser(fusion_func, inputs)
    same(outputs, torch.sum((inputs[0] + inputs[1]) * 3.0, dim=-1))


def test_half_is_computed_in_float_and_cast_back():
    x = torch.randn(3, 5, dtype=torch.float16)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.relu(fd.ops.mul(t0, t0))
        assert t1.dtype() == DataType.Float
        fd.add_output(fd.ops.cast(t1, DataType.Half))
        fd.add_output(t1)

    outputs, _ = exec_nvfuser(fusion_func, [x])
    square = (x.float() * x.float()).relu()
    same(outputs, square.half(), square)


def test_bfloat16_round_trip():
    x = torch.randn(4, 6, dtype=torch.bfloat16)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.cast(t0, dtype=DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.exp(t1), dtype=DataType.BFloat16))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, x.float().exp().bfloat16())


def test_implicit_broadcast_of_shapes():
    x, y = torch.randn(2, 1, 4), torch.randn(3, 1)

    def fusion_func(fd):
        t0 = fd.define_tensor(shape=[-1, 1, -1], contiguity=[True, None, True], dtype=DataType.Float)
        t1 = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Float)
        fd.add_output(fd.ops.add(t0, t1))

    outputs, _ = exec_nvfuser(fusion_func, [x, y])
    same(outputs, x + y)


def test_broadcast_in_dim_with_a_tensors_shape():
    x, y = torch.randn(6), torch.randn(2, 3, 6)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.from_pytorch(y)
        t2 = fd.ops.broadcast_in_dim(t0, t1.shape(), [2])
        fd.add_output(fd.ops.mul(t2, t1))

    outputs, _ = exec_nvfuser(fusion_func, [x, y])
    same(outputs, x * y)


def test_explicit_broadcast_and_reduction():
    x = torch.randn(5, 7)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.max(t0, dims=[1], keepdim=False, dtype=DataType.Null)
        t2 = fd.ops.broadcast(t1, is_broadcast_dim=[False, True])
        t3 = fd.ops.exp(fd.ops.sub(t0, t2))
        t4 = fd.ops.sum(t3, dims=[1], keepdim=True, dtype=DataType.Null)
        fd.add_output(fd.ops.truediv(t3, t4))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, torch.softmax(x, 1))


def test_layer_norm_by_var_mean():
    x, weight = torch.randn(8, 33), torch.randn(33)

    def fusion_func(fd):
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(weight)
        var, mean = fd.ops.var_mean(t0, dims=[1], correction=0, keepdim=True)
        rstd = fd.ops.rsqrt(fd.ops.add(var, fd.define_scalar(1e-5)))
        fd.add_output(fd.ops.mul(fd.ops.mul(fd.ops.sub(t0, mean), rstd), t1))
        fd.add_output(mean)

    outputs, _ = exec_nvfuser(fusion_func, [x, weight])
    same(outputs, torch.nn.functional.layer_norm(x, (33,), weight), x.mean(1, keepdim=True))


def test_integer_sum_is_int():
    x = torch.randint(0, 10, (4, 5), dtype=torch.int32)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.sum(t0, dims=[0]))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, x.sum(0))
    assert outputs[0].dtype is torch.int64


def test_dynamic_reshape_with_a_vector():
    x = torch.randn(3, 8)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        v1 = fd.define_vector(3)
        fd.add_output(fd.ops.neg(fd.ops.reshape(t0, new_shape=v1)))

    outputs, fd = exec_nvfuser(fusion_func, [x, [2, 3, 4]])
    same(outputs, -x.reshape(2, 3, 4))
    same(fd.execute([x, (6, 2, 2)]), -x.reshape(6, 2, 2))
    same(fd.execute([x, 1, 24, 1]), -x.reshape(1, 24, 1))


def test_reshape_by_sizes_of_another_tensor():
    x, y = torch.randn(4, 6), torch.randn(2, 12)

    def fusion_func(fd):
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        shape = fd.ops.shape(t1)
        fd.add_output(fd.ops.add(fd.ops.reshape(t0, shape), t1))

    outputs, _ = exec_nvfuser(fusion_func, [x, y])
    same(outputs, x.reshape(2, 12) + y)


def test_static_reshape_and_permute():
    x = torch.randn(2, 3, 4)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.permute(t0, dims=[2, 0, 1])
        fd.add_output(fd.ops.reshape(t1, new_shape=[4, 6]))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, x.permute(2, 0, 1).reshape(4, 6))


def test_scalars_as_inputs():
    x = torch.randn(3, 4)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        s0 = fd.define_scalar(DataType.Double)
        s1 = fd.define_scalar(None, dtype=DataType.Int)
        fd.add_output(fd.ops.add(fd.ops.mul(t0, s0), s1))

    outputs, fd = exec_nvfuser(fusion_func, [x, 2.5, 7])
    same(outputs, x * 2.5 + 7)
    same(fd.execute([x, -1.0, 0]), -x)


def test_alias_in_place():
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    expected = x + y

    def fusion_func(fd):
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        t2 = fd.ops.add(t0, t1)
        fd.add_output(t2, t0)
        fd.add_output(fd.ops.mul(t2, 2.0))

    with FusionDefinition() as fd:
        fusion_func(fd)
    (doubled,) = fd.execute([x, y])
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(doubled, expected * 2)
    exec_nvfuser(fusion_func, [x, y])


def test_alias_that_is_returned_too():
    x = torch.zeros(3)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.add(t0, 1.0)
        fd.add_output(t1, alias_input=t0)
        fd.add_output(t1)

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, torch.ones(3))
    assert torch.equal(x, torch.zeros(3)), "the script ran on copies"


def test_batch_norm_running_statistics():
    x, running = torch.randn(16, 5), torch.zeros(5)
    expected = running * 0.9 + x.mean(0) * 0.1
    with FusionDefinition() as fd:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(running)
        mean = fd.ops.truediv(fd.ops.sum(t0, dims=[0]), fd.ops.size(t0, 0))
        fd.add_output(fd.ops.add(fd.ops.mul(t1, 0.9), fd.ops.mul(mean, 0.1)), t1)
        fd.add_output(fd.ops.sub(t0, fd.ops.broadcast(mean, [True, False])))
    outputs = fd.validate([x, running])
    torch.testing.assert_close(running, expected)
    same(outputs, x - x.mean(0))


def test_strides_of_a_channels_last_input_and_of_stride_order():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def fusion_func(fd):
        t0 = fd.define_tensor(
            shape=[-1, -1, -1, -1], contiguity=True, dtype=DataType.Float, stride_order=[3, 0, 2, 1],
        )
        t1 = fd.ops.relu(t0)
        fd.add_output(fd.ops.stride_order(t1, stride_order=[3, 0, 2, 1]))
        fd.add_output(fd.ops.stride_order(t1, stride_order=[3, 2, 1, 0]))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, x.relu(), x.relu())
    assert outputs[0].stride() == x.stride()
    assert outputs[1].is_contiguous()


def test_second_form_of_define_tensor_by_position_and_name():
    x = torch.randn(3, 1, 4)

    def fusion_func(fd):
        t0 = fd.define_tensor([3, 1, 4], [4, 4, 1])
        t1 = fd.define_tensor(sizes=[3, 1, 4], strides=[4, 4, 1], dtype=DataType.Float, static_sizes=True)
        fd.add_output(fd.ops.add(t0, t1))

    outputs, fd = exec_nvfuser(fusion_func, [x, x])
    same(outputs, x + x)
    assert "shape=[-1, 1, -1], contiguity=[True, None, True]" in repr(fd)
    assert "shape=[3, 1, 4], contiguity=[True, None, True]" in repr(fd)


def test_expanded_input():
    x = torch.randn(4, 1).expand(4, 3)

    def fusion_func(fd):
        fd.add_output(fd.ops.exp(fd.from_pytorch(x)))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs[0], x.exp())


def test_cpu_scalar_tensor():
    x, scale = torch.randn(3, 4), torch.tensor(2.0)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.from_pytorch(scale)
        t2 = fd.define_tensor(shape=[], contiguity=[], dtype=DataType.Float, is_cpu=True)
        fd.add_output(fd.ops.add(fd.ops.mul(t0, t1), t2))

    outputs, fd = exec_nvfuser(fusion_func, [x, scale, torch.tensor(1.0)])
    same(outputs, x * 2 + 1)
    assert repr(fd).count("is_cpu=True") == 2


def test_nothing_but_factories_returns_torch():
    def fusion_func(fd):
        t0 = fd.ops.full(shape=[2, 3], fill_value=1.5, dtype=DataType.Float)
        t1 = fd.ops.iota(3, 0, 1, DataType.Int)
        fd.add_output(t0)
        fd.add_output(t1)

    outputs, _ = exec_nvfuser(fusion_func, [])
    same([x.cpu() for x in outputs], torch.full((2, 3), 1.5), torch.arange(3))


def test_random_numbers_repeat_with_torchs_seed():
    with FusionDefinition() as fd:
        low, high = fd.define_scalar(-1.0), fd.define_scalar(1.0)
        fd.add_output(fd.ops.uniform(low, high, [2, 50], dtype=DataType.Float))
    torch.manual_seed(7)
    first, second = fd.execute([])[0], fd.execute([])[0]
    torch.manual_seed(7)
    (again,) = fd.validate([])
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert first.min() >= -1
    assert first.max() < 1


def test_where_keeps_half_and_wants_bool():
    x = torch.randn(6, dtype=torch.float16)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.where(fd.ops.gt(t0, 0.0), t0, fd.ops.cast(fd.ops.neg(t0), DataType.Half))
        assert t1.dtype() == DataType.Half
        fd.add_output(t1)

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, x.abs())


def test_slice_pad_cat():
    x = torch.randn(4, 6)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x, static_sizes=True)
        t1 = fd.ops.slice(t0, start_indices=[0, 1], end_indices=[4, 5])
        t2 = fd.ops.pad(t1, [1, 1])
        fd.add_output(fd.ops.cat([t0, t2], dim=0))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, torch.cat([x, torch.nn.functional.pad(x[:, 1:5], (1, 1))]))


def test_matmul_then_bias_and_relu():
    a, b, bias = torch.randn(4, 8), torch.randn(8, 5), torch.randn(5)

    def fusion_func(fd):
        t0, t1, t2 = fd.from_pytorch(a), fd.from_pytorch(b), fd.from_pytorch(bias)
        fd.add_output(fd.ops.relu(fd.ops.add(fd.ops.matmul(t0, t1), t2)))

    outputs, _ = exec_nvfuser(fusion_func, [a, b, bias])
    same(outputs, torch.relu(a @ b + bias))


def test_segment_set_makes_two_segments():
    x = torch.randn(4, 8)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.segment_set(fd.ops.sum(t0, dims=[1]))
        fd.add_output(fd.ops.mul(fd.ops.broadcast(t1, [False, True]), t0))
    same(fd.validate([x]), x.sum(1, keepdim=True) * x)
    assert fd.fec.get_most_recent_scheduled_ir().startswith("Segment 0: ")


def test_input_is_returned_as_a_copy():
    x = torch.randn(3)

    def fusion_func(fd):
        fd.add_output(fd.from_pytorch(x))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, x)
    assert outputs[0].data_ptr() != x.data_ptr()


def test_complex_tensor():
    x = torch.randn(3, 4, dtype=torch.complex64)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(t0, fd.define_scalar(1.0 + 2.0j)))
        fd.add_output(fd.ops.abs(t0))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs, x * (1 + 2j), x.abs())


def test_constants_of_every_kind_print_exactly():
    x = torch.randn(3, dtype=torch.float64)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        third = fd.define_scalar(1 / 3)
        t1 = fd.ops.mul(t0, third)
        t2 = fd.ops.add(t1, fd.define_scalar(float("inf")))
        fd.add_output(t1)
        fd.add_output(t2)
        fd.add_output(fd.ops.mul(t0, fd.define_scalar(float("nan"))))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    same(outputs[:1], x / 3)
    assert torch.isinf(outputs[1]).all()
    assert torch.isnan(outputs[2]).all()


def test_two_threads_define_at_once():
    x = torch.randn(64)
    barrier = threading.Barrier(2, timeout=60)
    results = {}

    def define_and_run(name, factor):
        with FusionDefinition() as fd:
            t0 = fd.from_pytorch(x)
            barrier.wait()
            for _ in range(50):
                t0 = nvfuser_direct.ops.mul(t0, factor)
            barrier.wait()
            fd.add_output(t0)
        results[name] = (fd, fd.execute([x])[0])

    threads = [threading.Thread(target=define_and_run, args=args) for args in (("a", 1.01), ("b", 0.99))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(results["a"][1], x * 1.01**50)
    torch.testing.assert_close(results["b"][1], x * 0.99**50)
    assert len(results["a"][0].fusion.exprs()) == 50


def test_threads_run_one_definition_at_once():
    x = torch.randn(8, 4)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.from_pytorch(x)))
    barrier, results = threading.Barrier(4, timeout=60), []

    def run(factor):
        barrier.wait()
        results.append((factor, fd.execute([x * factor])[0]))

    threads = [threading.Thread(target=run, args=(float(factor),)) for factor in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for factor, result in results:
        torch.testing.assert_close(result, (x * factor).exp())


def test_plans_and_pictures_of_a_script():
    x = torch.randn(8, 4)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.sum(fd.ops.exp(t0), [1]))
    plan = fl.segment(fd, [x])
    assert [s.scheduler.value for s in plan.segments] == ["reduction"]
    assert plan.hash == fl.segment(fd.fusion, [x]).hash == fd.plan_for([x]).hash
    torch.testing.assert_close(plan.run([x])[0], x.exp().sum(1))


def test_nested_definitions_record_into_the_innermost():
    x = torch.randn(3)
    with FusionDefinition() as outer:
        a = outer.from_pytorch(x)
        with FusionDefinition() as inner:
            b = inner.from_pytorch(x)
            inner.add_output(outer.ops.neg(b))
        outer.add_output(outer.ops.exp(a))
    same(outer.execute([x]), x.exp())
    same(inner.execute([x]), -x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.int32, torch.bool])
def test_dtypes_of_from_pytorch(dtype):
    x = torch.ones(2, 3).to(dtype)

    def fusion_func(fd):
        fd.add_output(fd.ops.set(fd.from_pytorch(x)))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    assert torch.equal(outputs[0], x)
    assert outputs[0].dtype is dtype


def test_operators_on_handles():
    x = torch.randn(5)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(-(2.0 * t0 - t0 / 4.0) // 1.0)
    torch.testing.assert_close(fd.execute([x])[0], -(2 * x - x / 4) // 1.0)


def test_import_star_and_ops_by_name():
    names = {}
    lines = [
        "import fuser_lab.nvfuser_direct as nvfuser_direct",
        "from fuser_lab.nvfuser_direct import *",
        "from fuser_lab.nvfuser_direct.ops import add, sum, relu",
    ]
    exec("\n".join(lines), names)
    x = torch.randn(3, 4)
    with names["FusionDefinition"]() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(names["sum"](names["relu"](names["add"](t0, t0)), [1]))
    same(fd.execute([x]), (x + x).relu().sum(1))
