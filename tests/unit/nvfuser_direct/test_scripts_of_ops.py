"""Scripts with the less common ops, as written for nvFuser's direct bindings."""

import itertools

from needs import needs

from fuser_lab import nvfuser_direct
from fuser_lab.nvfuser_direct import DataType, FusionDefinition, PythonProfiler
from tests.unit.nvfuser_direct.scripts import exec_nvfuser

torch = needs("torch")


def test_nothing_but_scalars_as_inputs():
    def fusion_func(fd):
        s0 = fd.define_scalar()
        s1 = fd.define_scalar()
        s2 = fd.ops.add(s0, s1)
        c0 = fd.define_scalar(1.0, DataType.Float)
        t3 = fd.ops.full(shape=[2, 2], fill_value=c0, dtype=DataType.Float)
        fd.add_output(fd.ops.mul(t3, s2))

    outputs, _ = exec_nvfuser(fusion_func, [2.0, 3.0])
    torch.testing.assert_close(outputs[0].cpu(), torch.full((2, 2), 5.0))


def test_pad_by_computed_widths():
    x = torch.testing.make_tensor((1, 2, 3), dtype=torch.float32, device="cpu")

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        S10 = fd.define_scalar(2.5, dtype=DataType.Float)
        S13 = fd.define_scalar(7, dtype=DataType.Int)
        S15 = fd.ops.add(fd.ops.cast(S10, dtype=DataType.Int), S13)
        S16 = fd.ops.add(fd.define_scalar(1, dtype=DataType.Int), fd.define_scalar(4, dtype=DataType.Int))
        t14 = fd.ops.pad(t0, [S13, S15, S16, fd.define_scalar(2, dtype=DataType.Int)], S10)
        fd.add_output(t14)

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs[0], torch.nn.functional.pad(x, (7, 9, 5, 2), value=2.5))


def test_cat_symbolic():
    a = torch.randn(3, 4)
    b = torch.randn(2, 4)

    def fusion_func(fd):
        t0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        t1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        fd.add_output(fd.ops.cat([t0, t1], 0))

    outputs, _ = exec_nvfuser(fusion_func, [a, b])
    torch.testing.assert_close(outputs[0], torch.cat([a, b], 0))


def test_in_place_on_memory_with_holes():
    x = torch.randn(5).as_strided((2, 2), (1, 3))
    y = torch.randn(2, 2)
    expected = (x + 1.0, y + x + 1.0)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.from_pytorch(y)
        t2 = fd.ops.add(t0, 1.0)
        t3 = fd.ops.add(t1, t2)
        fd.add_output(t2, t0)
        fd.add_output(t3, t1)

    outputs, fd = exec_nvfuser(fusion_func, [x, y])
    assert outputs == []
    fd.execute([x, y])
    torch.testing.assert_close((x, y), expected)


def test_index_select():
    x = torch.randn(31, 65)
    i = torch.randint(0, 31, (128,))

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.from_pytorch(i)
        fd.add_output(fd.ops.neg(fd.ops.index_select(fd.ops.neg(t0), t1, 0)))

    outputs, _ = exec_nvfuser(fusion_func, [x, i])
    torch.testing.assert_close(outputs[0], x.index_select(0, i))


def test_welford():
    x = torch.randn(2, 2)

    def fusion_func(fd):
        a, b, _ = fd.ops.welford(fd.from_pytorch(x), [1])
        fd.add_output(fd.ops.truediv(b, fd.ops.size(fd.from_pytorch(x), 1)))
        fd.add_output(a)

    outputs, _ = exec_nvfuser(fusion_func, [x, x])
    torch.testing.assert_close(outputs[1], x.mean(1))
    torch.testing.assert_close(outputs[0], x.var(1, unbiased=False))


def test_var_mean_and_var():
    x = torch.randn(2, 3, 8)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        v, m = fd.ops.var_mean(t0, dims=[1, 2], correction=1, keepdim=True)
        fd.add_output(v)
        fd.add_output(m)
        fd.add_output(fd.ops.var(t0, [0], 0))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    rv, rm = torch.var_mean(x, (1, 2), keepdim=True)
    torch.testing.assert_close(outputs[0], rv)
    torch.testing.assert_close(outputs[1], rm)


def test_every_stride_order():
    x = torch.randn(3, 4, 5)
    for perm in itertools.permutations(range(3)):

        def fusion_func(fd, perm=perm):
            t0 = fd.from_pytorch(x)
            t1 = fd.ops.add(t0, 0.0)
            fd.add_output(fd.ops.stride_order(t1, list(perm)))

        outputs, _ = exec_nvfuser(fusion_func, [x])
        torch.testing.assert_close(outputs[0], x)
        assert nvfuser_direct.compute_tensor_descriptor(x.size(), outputs[0].stride())[1] == list(perm)


def test_gelu_as_thunder_writes_it():
    x = torch.randn(4, 8, dtype=torch.bfloat16)

    def fusion_func(fd):
        T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.BFloat16, is_cpu=False)
        T1 = fd.ops.cast(T0, dtype=DataType.Float)
        S = fd.define_scalar(0.7071, dtype=DataType.Double)
        T2 = fd.ops.mul(T1, S)
        T3 = fd.ops.erf(T2)
        T4 = fd.ops.add(fd.define_scalar(1.0, dtype=DataType.Double), T3)
        T5 = fd.ops.mul(T1, fd.ops.mul(T4, 0.5))
        fd.add_output(fd.ops.cast(T5, dtype=DataType.BFloat16))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs[0], torch.nn.functional.gelu(x))


def test_two_aliases_beside_a_result():
    a = torch.randn(3)
    b = torch.randn(3)

    def fusion_func(fd):
        t0 = fd.from_pytorch(a)
        t1 = fd.from_pytorch(b)
        s0 = fd.define_scalar(1.0)
        s1 = fd.define_scalar(2.0)
        s2 = fd.define_scalar(3.0)
        t2 = fd.ops.add(t0, s0)
        t3 = fd.ops.mul(t2, s1)
        t4 = fd.ops.mul(t1, s2)
        fd.add_output(t2, alias_input=t0)
        fd.add_output(t3)
        fd.add_output(t4, alias_input=t1)

    expected = ((a + 1.0) * 2.0, a + 1.0, b * 3.0)
    outputs, fd = exec_nvfuser(fusion_func, [a, b])
    assert len(outputs) == 1
    fd.execute([a, b])
    torch.testing.assert_close((outputs[0], a, b), expected)


def test_linear_and_matmul_of_bfloat16():
    m = torch.randn(8, 16, dtype=torch.bfloat16)
    w = torch.randn(4, 16, dtype=torch.bfloat16)
    b = torch.randn(4, dtype=torch.bfloat16)

    def fusion_func(fd):
        a = fd.from_pytorch(m)
        ww = fd.from_pytorch(w)
        bb = fd.from_pytorch(b)
        fd.add_output(fd.ops.linear(a, ww, bb))
        fd.add_output(fd.ops.matmul(a, fd.ops.permute(ww, [1, 0])))

    outputs, _ = exec_nvfuser(fusion_func, [m, w, b])
    torch.testing.assert_close(outputs, [torch.nn.functional.linear(m, w, b), m @ w.t()])


def test_attention():
    q, k, v = [torch.randn(2, 3, 8, 16, dtype=torch.bfloat16) for _ in range(3)]

    def fusion_func(fd):
        a, b, c = [fd.from_pytorch(x) for x in (q, k, v)]
        o, *_ = fd.ops.sdpfa_fwd(a, b, c, None, None, None, fd.define_scalar(True), None)
        fd.add_output(o)

    outputs, _ = exec_nvfuser(fusion_func, [q, k, v])
    torch.testing.assert_close(
        outputs[0], torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), rtol=2e-2, atol=2e-2
    )


def test_topk_and_argsort():
    x = torch.randn(4, 8)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        k = fd.define_scalar(3, dtype=DataType.Int)
        v, i = fd.ops.topk(t0, k, dim=-1, largest=True, sorted=True)
        fd.add_output(v)
        fd.add_output(i)
        fd.add_output(fd.ops.argsort(t0, 1, True, True))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs, [*x.topk(3), x.argsort(dim=1, descending=True, stable=True)])


def test_cumsum_keeps_int32():
    x = torch.randint(0, 9, (3, 4), dtype=torch.int32)

    def fusion_func(fd):
        fd.add_output(fd.ops.cumsum(fd.from_pytorch(x), 1))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs[0], x.cumsum(1, dtype=torch.int32))


def test_embedding():
    i = torch.randint(0, 10, (2, 3))
    w = torch.randn(10, 4)

    def fusion_func(fd):
        fd.add_output(fd.ops.embedding_fwd(fd.from_pytorch(i), fd.from_pytorch(w)))

    outputs, _ = exec_nvfuser(fusion_func, [i, w])
    torch.testing.assert_close(outputs[0], w[i])


def test_dropout_with_seed_and_offset():
    x = torch.randn(4, 5)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        u = fd.ops.uniform(
            fd.define_scalar(0.0),
            fd.define_scalar(1.0),
            t0.shape(),
            rng_seed=fd.define_scalar(3),
            rng_offset=fd.define_scalar(0),
            dtype=DataType.Float,
        )
        m = fd.ops.lt(u, 0.5)
        fd.add_output(fd.ops.where(m, t0, 0.0))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    assert ((outputs[0] == x) | (outputs[0] == 0)).all()


def test_rand_like():
    x = torch.randn(4, 5)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.rand_like(fd.from_pytorch(x)))
    torch.manual_seed(0)
    a = fd.execute([x])
    torch.manual_seed(0)
    b = fd.validate([x])
    assert torch.equal(a[0], b[0])


def test_shapes_computed_from_shapes():
    x = torch.randn(2, 3, 4)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        sh = fd.ops.shape(t0)
        n = fd.ops.mul(sh[0], sh[1])
        t1 = fd.ops.reshape(t0, [n, *sh[2:]])
        fd.add_output(t1)
        t2 = fd.ops.expand(fd.ops.broadcast(t1, [True, False, False]), [5, -1, -1])
        fd.add_output(t2)

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs[0], x.reshape(6, 4))
    torch.testing.assert_close(outputs[1], x.reshape(1, 6, 4).expand(5, 6, 4))


def test_slice_by_scalars():
    x = torch.randn(5, 6)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.slice(t0, [1, fd.define_scalar(2)], [fd.ops.sub(t0.size(0), 1), t0.size(1)], [1, 1]))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs[0], x[1:4, 2:6])


def test_complex_reduction():
    x = torch.randn(3, 4, dtype=torch.complex64)

    def fusion_func(fd):
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), [-1], False, DataType.ComplexFloat))
        fd.add_output(fd.ops.real(fd.from_pytorch(x)))

    outputs, _ = exec_nvfuser(fusion_func, [x, x])
    torch.testing.assert_close(outputs, [x.sum(-1), x.real])


def test_fp8():
    x = torch.randn(3, 4)

    def fusion_func(fd):
        t1 = fd.ops.cast(fd.from_pytorch(x), DataType.Float8_e4m3fn)
        fd.add_output(fd.ops.cast(t1, DataType.Float))
        fd.add_output(t1)

    with FusionDefinition() as fd:
        fusion_func(fd)
    outputs = fd.validate([x])
    torch.testing.assert_close(outputs[0], x.to(torch.float8_e4m3fn).float())
    assert outputs[1].dtype is torch.float8_e4m3fn


def test_scatter_and_gather():
    x = torch.randn(3, 5)
    i = torch.randint(0, 5, (3, 5)).argsort(1)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.from_pytorch(i)
        fd.add_output(fd.ops.gather(t0, t1, 1))
        fd.add_output(fd.ops.scatter(t0, t1, fd.ops.neg(t0), 1))
        fd.add_output(fd.ops.take_along_axis(t0, t1, 1))

    outputs, _ = exec_nvfuser(fusion_func, [x, i])
    torch.testing.assert_close(outputs[0], x.gather(1, i))
    torch.testing.assert_close(outputs[1], x.scatter(1, i, -x))
    torch.testing.assert_close(outputs[2], x.take_along_dim(i, 1))


def test_zero_size():
    x = torch.randn(0, 4)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.sum(t0, [0]))
        fd.add_output(fd.ops.neg(t0))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs, [torch.zeros(4), -x])


def test_tensor_without_axes():
    x = torch.tensor(3.0)

    def fusion_func(fd):
        fd.add_output(fd.ops.exp(fd.from_pytorch(x)))

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs[0], x.exp())


def test_two_reductions_are_two_segments():
    x = torch.randn(32, 64)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.sum(t0, [0])
        t2 = fd.ops.sum(t0, [1])
        fd.add_output(t1)
        fd.add_output(t2)
    with PythonProfiler() as p:
        fd.execute([x])
    assert p.profile.segments == 2
    torch.testing.assert_close(fd.validate([x]), [x.sum(0), x.sum(1)])


def test_one_tensor_returned_twice_and_an_input():
    x = torch.randn(3)

    def fusion_func(fd):
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.neg(t0)
        fd.add_output(t1)
        fd.add_output(t1)
        fd.add_output(t0)

    outputs, _ = exec_nvfuser(fusion_func, [x])
    torch.testing.assert_close(outputs, [-x, -x, x])
