"""bfloat16 and float16: regions round where eager mode rounds."""

import importlib

import pytest
from bridge.samples import by_reference
from needs import needs

torch = needs("torch")
F = torch.nn.functional
bridge = importlib.import_module("fuser_lab.torch")


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr("fuser_lab.bridge.torch_region.TorchRegion._run", by_reference)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parameters", ["own", "float32", None])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
def test_batch_norm_rounds_as_the_kernel_does(dtype, parameters, layout):
    from fuser_lab.bridge.decompositions import table

    torch.manual_seed(0)
    x = (torch.randn(4, 5, 6, 7) * 3 + 1).to(dtype)
    x = {
        "contiguous": x, "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(0, 1).contiguous().transpose(0, 1),
    }[layout]
    kind = torch.float32 if parameters == "float32" else dtype
    weight, bias = (torch.rand(5).to(kind) + 0.5, torch.randn(5).to(kind)) if parameters else (None, None)
    mean, variance = torch.randn(5).to(kind), torch.rand(5).to(kind)
    op = torch.ops.aten._native_batch_norm_legit_functional.default
    ours = table()[op](x, weight, bias, mean, variance, True, 0.1, 1e-5)
    theirs = op(x, weight, bias, mean, variance, True, 0.1, 1e-5)
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a.dtype == b.dtype
        if place < 3 and kind is dtype:
            # The gradient reads the saved numbers, so none may differ.
            assert float((a != b).float().mean()) <= (0.01 if place == 0 else 0.0)
        torch.testing.assert_close(a.float(), b.float(), rtol=1e-2, atol=1e-6 if place else 1e-2)
    plain = torch.ops.aten._native_batch_norm_legit.no_stats
    for a, b in zip(*(run(x, weight, bias, True, 0.1, 1e-5) for run in (table()[plain], plain)), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dropout_rounds_its_factor_as_the_kernel_does(dtype):
    found = []
    for run in (F.dropout, torch.compile(F.dropout, backend="fuser_lab")):
        torch.manual_seed(3)
        x = torch.randn(64, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        y = run(x, 0.1)
        found.append((y, *torch.autograd.grad(y, x, torch.full_like(y, 0.7))))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found[1], found[0], strict=True))


def test_a_residual_block_in_bfloat16_has_eagers_gradients():
    from bridge.models import OWN, error

    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, x = OWN["ResNet block"]()
        model, x = model.bfloat16(), x.bfloat16()
        run = torch.compile(model, backend="fuser_lab") if compiled else model
        run(x).backward()
        found.append([p.grad.float() for p in model.parameters()])
    assert error(found[1], found[0]) < 2e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [
    lambda x: x % 0.3, lambda x: torch.fmod(x, 0.3), lambda x: x + 0.3, lambda x: 0.3 - x, lambda x: x.abs() ** 0.3,
    lambda x: 0.3**x, lambda x: x * 0.3, lambda x: x / 0.3,
], ids=["remainder", "fmod", "add", "rsub", "pow", "power of a number", "mul", "div"])
def test_numbers_beside_a_tensor_are_rounded_where_eager_rounds_them(function, dtype):
    x = torch.cat([torch.arange(-240, 241) / 64, torch.tensor([0.3, -0.3, 0.6])]).to(dtype)
    torch.testing.assert_close(bridge.from_torch(function, x).run(x), function(x), rtol=0, atol=0)


def test_neighbours_in_a_dtype_that_kernels_do_not_compute_in_are_torchs():
    found = bridge.from_torch(torch.nextafter, *[torch.randn(4).bfloat16() for _ in range(2)])
    assert not found.regions
    (left,) = found.left_to_torch
    assert "kernels compute BFloat16 in Float" in left.reason


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_8_bits_are_converted_in_regions_bit_by_bit_as_eager_converts_them(dtype):
    import fuser_lab as fl

    def quantized(x, y):
        return (x * 3).to(dtype), y.float() * 2, torch.stack([y, y]).to(torch.bfloat16), y.reshape(-1)[3:9].float()

    ends = [0.0, 448, 464, 465, 480, 57344, 61439, 61440, 65536, 2.0**-9, 3 * 2.0**-10, 2.0**-17, float("inf")]
    x = torch.cat([torch.tensor(ends) / 3, -torch.tensor(ends), torch.randn(102) * 100]).reshape(8, 16)
    y = torch.randn(8, 16).to(dtype)
    found = fl.from_torch(quantized, x, y)
    assert found.shares.fused == 1
    for ours, theirs in zip(found.run(x, y), quantized(x, y), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.view(torch.uint8).equal(theirs.view(torch.uint8))
