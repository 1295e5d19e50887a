"""Products and attention by torch and by NumPy, forward and backward, with dropout."""

import math

import numpy as np
import pytest
from needs import needs

from fuser_lab import FusionDefinition
from fuser_lab.dtypes import DataType
from fuser_lab.errors import UnsupportedError
from fuser_lab.ops.unsupported import UNSUPPORTED

torch = needs("torch")

F = torch.nn.functional


def test_linear_with_a_batch_of_weights():
    generator = torch.Generator().manual_seed(0)
    a, w, b = (torch.randn(s, generator=generator) for s in ((2, 3, 4), (2, 5, 4), (2, 1, 5)))
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1, -1], True), fd.define_tensor([-1, -1, -1], True)
        z = fd.define_tensor([-1, 1, -1], [True, None, True])
        fd.add_output(fd.ops.linear(x, y, z))
    wanted = torch.stack([a[i] @ w[i].T + b[i] for i in range(2)])
    torch.testing.assert_close(fd.execute([a, w, b])[0], wanted)
    np.testing.assert_allclose(fd.execute([a.numpy(), w.numpy(), b.numpy()])[0], wanted.numpy(), rtol=1e-5, atol=1e-5)


def attention(dtype=DataType.Float, dropout=0.0, causal=False, scale=None):
    """Forward and backward in one definition; all results are outputs."""
    with FusionDefinition() as fd:
        q, k, v, g = (fd.define_tensor([-1] * 4, True, dtype) for _ in range(4))
        given = {"dropout_p": dropout, "is_causal": causal, "scale": scale}
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, **given)
        grads = fd.ops.sdpfa_bwd(g, q, k, v, out, lse, dropout, causal, seed, offset, scale)
        for tensor in (out, lse, *grads, seed, offset):
            fd.add_output(tensor)
    return fd


def operands(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), (2, 3, 5, 7))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_gradients_are_torchs(causal, scale, library):
    q, k, v, g = operands()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted = F.scaled_dot_product_attention(*leaves, is_causal=causal, scale=scale)
    wanted.backward(g)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(~torch.ones(5, 6, dtype=torch.bool).tril(), -math.inf)
    fd = attention(DataType.Double, causal=causal, scale=scale)
    given = [q, k, v, g] if library == "torch" else [x.numpy() for x in (q, k, v, g)]
    out, lse, *grads = (torch.as_tensor(x) for x in fd.execute(given)[:5])
    # The logsumexp in between is a Float.
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(out, wanted.detach())
    torch.testing.assert_close(lse, torch.logsumexp(scores, -1).float())
    for got, leaf in zip(grads, leaves, strict=True):
        torch.testing.assert_close(got, leaf.grad, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types(dtype):
    kind = {torch.float32: DataType.Float, torch.float16: DataType.Half, torch.bfloat16: DataType.BFloat16}[dtype]
    q, k, v, g = operands(dtype)
    out, lse, dq, *_ = attention(kind).execute([q, k, v, g])
    assert out.dtype is dtype
    assert dq.dtype is dtype
    assert lse.dtype is torch.float32
    wanted = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(out.double(), wanted, rtol=2e-2, atol=2e-2)


def test_dropout_is_of_the_right_share_and_the_same_backwards():
    p = 0.4
    # With equal scores and values of one, an output is the actual share kept by dropout over the expected share.
    q, k, v = torch.zeros(2, 4, 64, 8), torch.zeros(2, 4, 64, 8), torch.ones(2, 4, 64, 8)
    g = torch.ones(2, 4, 64, 8)
    fd = attention(dropout=p)
    torch.manual_seed(5)
    out, _, _, _, dv, seed, offset = fd.execute([q, k, v, g])
    assert abs(out.mean() - 1) < 0.02
    assert out.std() > 0.05
    # Each key's gradient sums its contributions to all queries: the total sums agree only if the masks do.
    torch.testing.assert_close(dv.sum((2, 3)), out.sum((2, 3)), rtol=1e-4, atol=1e-4)
    assert seed.tolist() == [5, 0]
    assert int(offset) == 0
    again = fd.execute([q, k, v, g])
    assert not torch.equal(again[0], out)
    torch.manual_seed(5)
    for a, b in zip(fd.execute([q, k, v, g]), [out], strict=False):
        assert torch.equal(a, b)


def test_dropout_gradients_are_those_of_the_masked_product():
    p = 0.3
    q, k, v, g = operands()
    torch.manual_seed(2)
    out, _, dq, dk, dv, seed, offset = attention(DataType.Double, dropout=p).execute([q, k, v, g])
    from fuser_lab.ops.random import uniform_numbers

    keeps = torch.from_numpy(uniform_numbers(int(seed[0]), int(offset), (2, 3, 5, 6)) >= p).double() / (1 - p)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    chances = torch.softmax(leaves[0] @ leaves[1].mT / 2, -1) * keeps
    wanted = chances @ leaves[2]
    wanted.backward(g)
    torch.testing.assert_close(out, wanted.detach(), rtol=1e-6, atol=1e-6)
    for got, leaf in zip((dq, dk, dv), leaves, strict=True):
        torch.testing.assert_close(got, leaf.grad, rtol=1e-5, atol=1e-5)


def test_a_row_that_sees_nothing_is_zero():
    with FusionDefinition() as fd:
        q = fd.define_tensor([1, 1, 2, 3], True)
        m = fd.define_tensor([1, 1, 2, 2], True, DataType.Bool)
        out, lse, _, _ = fd.ops.sdpfa_fwd(q, q, q, mask=m)
        fd.add_output(out)
        fd.add_output(lse)
    x, mask = torch.ones(1, 1, 2, 3), torch.tensor([[[[False, False], [True, True]]]])
    for got in (fd.execute([x, mask]), fd.execute([x.numpy(), mask.numpy()])):
        out, lse = (np.asarray(v) for v in got)
        assert np.array_equal(out[0, 0], [[0, 0, 0], [1, 1, 1]])
        assert lse[0, 0, 0] == -np.inf


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_not_supported_says_so(name):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4], True)
        with pytest.raises(UnsupportedError, match=f"fd.ops.{name} is not supported: .+"):
            getattr(fd.ops, name)(x, x, block_size=16)
