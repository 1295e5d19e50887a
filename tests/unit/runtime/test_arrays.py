"""Arrays of several libraries: described without copying, returned as the same kind."""

import ml_dtypes
import numpy as np
import pytest
from backend.fusions import D, S, build
from needs import needs

from fuser_lab.codegen.kernel_ir import layout_of
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.runtime.arrays import describe, flat_view, from_numpy_as, inputs_to_numpy, kind_of, to_numpy
from tests.kernels import prepare


def test_numpy_and_numbers() -> None:
    x = np.zeros((3, 4), np.float32).T
    assert describe(x) == TensorSpec(shape=(4, 3), dtype=D.Float, strides=(1, 4), device="cpu")
    assert describe(np.zeros(2, ml_dtypes.bfloat16)) == TensorSpec(shape=(2,), dtype=D.BFloat16, strides=(1,))
    assert describe(3) == 3
    assert describe(np.float32(2.5)) == 2.5
    assert kind_of(True) == "number"
    assert inputs_to_numpy([x, np.int64(4), 2.0])[1:] == [4, 2.0]


@pytest.mark.parametrize("value", [[1, 2], "text", None, object()])
def test_what_is_no_array(value: object) -> None:
    with pytest.raises(InputError, match="must be an array or a number, given"):
        describe(value)


def test_a_dtype_that_no_fusion_has() -> None:
    with pytest.raises(InputError, match="dtype uint16 is not a tensor type"):
        describe(np.zeros(3, np.uint16))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x, lambda x: x[::-1], lambda x: x[:, ::-2], lambda x: x.T, lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: x[2:5, 1:3], lambda x: x[:0],
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.bool_])
def test_the_flat_view_holds_every_element_at_its_place(view: object, dtype: object) -> None:
    assert callable(view)
    x = view((np.arange(42) % 7).reshape(6, 7).astype(dtype))
    fusion = build(lambda fd, t: fd.ops.cast(t, D.Double), [x.shape], DataType(describe(x).dtype))
    layout = layout_of(fusion.tensor_inputs[0], [s // x.itemsize for s in x.strides])
    flat = flat_view(x, fusion.tensor_inputs[0].dtype, layout.size, layout.offset)
    assert flat.ndim == 1
    assert flat.size == layout.size
    for index in np.ndindex(*x.shape):
        place = layout.offset + sum(i * s for i, s in zip(index, layout.strides, strict=True))
        assert flat[place : place + 1].view(x.dtype)[0] == x[index]


def test_torch_in_torch_out() -> None:
    torch = needs("torch")
    kinds = {torch.float32: D.Float, torch.bfloat16: D.BFloat16, torch.float16: D.Half, torch.int64: D.Int}
    for kind, dtype in kinds.items():
        x = (torch.arange(12).reshape(3, 4) % 5).to(kind)
        assert describe(x.t()) == TensorSpec(shape=(4, 3), dtype=dtype, strides=(1, 4), device="cpu")
        assert to_numpy(x).dtype == dtype.numpy
        assert np.shares_memory(to_numpy(x), to_numpy(x))
        fusion = build(lambda fd, a: fd.ops.stride_order(fd.ops.relu(a), [0, 1]), [(4, 3)], dtype)
        (got,) = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x.t()])
        assert isinstance(got, torch.Tensor)
        assert got.dtype == kind
        assert got.stride() == (1, 4)
        assert torch.equal(got, x.t())


def test_torch_outputs_given_and_inputs_that_require_gradients() -> None:
    torch = needs("torch")
    fusion = build(lambda fd, a: fd.ops.exp(a), [(5,)], D.Float)
    plan = prepare(fusion, [(fusion, S.POINTWISE)])
    x, out = torch.randn(5, requires_grad=True), torch.zeros(5)
    (same,) = plan.run([x], [out])
    assert same is out
    torch.testing.assert_close(out, torch.exp(x).detach())
    (expanded,) = plan.run([torch.randn(1).expand(5)])
    assert expanded.shape == (5,)


def test_torch_tensors_that_cannot_be_inputs() -> None:
    torch = needs("torch")
    with pytest.raises(InputError, match=r"dtype torch.uint16 is not a tensor type"):
        describe(torch.zeros(3, dtype=torch.uint16))
    with pytest.raises(InputError, match="layout torch.sparse_coo"):
        describe(torch.zeros(3).to_sparse())
    with pytest.raises(InputError, match="device meta"):
        describe(torch.zeros(3, device="meta"))


def test_torch_shares_memory_with_numpy() -> None:
    needs("torch")
    x = np.zeros(3, ml_dtypes.bfloat16)
    tensor = from_numpy_as("torch", x)
    tensor[0] = 1.0
    assert x[0] == 1
