"""Random numbers on a real GPU: the same as on the CPU; torch's generator of the device advances with each run."""

import numpy as np
import pytest
from needs import needs

from fuser_lab import FusionDefinition
from fuser_lab.dtypes import DataType
from fuser_lab.ops.random import normal_numbers, uniform_numbers

torch = needs("torch")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("name", "numbers"), [("rand_like", uniform_numbers), ("randn_like", normal_numbers)])
def test_stateful_runs_are_the_stateless_ones(name, numbers):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(getattr(fd.ops, name)(x))
    x = torch.zeros(33, 65, device="cuda")
    torch.manual_seed(8)
    for run in range(4):
        (got,) = fd.execute([x])
        np.testing.assert_allclose(got.cpu().numpy(), numbers(8, 4 * run, (33, 65)), rtol=1e-4, atol=1e-5)
    assert torch.cuda.default_generators[x.device.index].get_offset() == 16


def test_attention_with_dropout_agrees_with_the_cpu():
    with FusionDefinition() as fd:
        q = fd.define_tensor([-1] * 4, True, DataType.Half)
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, q, q, dropout_p=0.3, is_causal=True)
        grads = fd.ops.sdpfa_bwd(q, q, q, q, out, lse, 0.3, True, seed, offset, None)
        for tensor in (out, lse, *grads):
            fd.add_output(tensor)
    x = torch.randn(2, 3, 16, 8, generator=torch.Generator().manual_seed(0)).half()
    torch.manual_seed(3)
    wanted = fd.execute([x])
    torch.manual_seed(3)
    for a, b in zip(fd.execute([x.cuda()]), wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-2, atol=1e-2)
