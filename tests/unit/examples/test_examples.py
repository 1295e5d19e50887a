"""Each example against its own float64 evaluation, and against torch's op if there is one."""

import numpy as np
import pytest
from needs import needs

from fuser_lab import examples
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.errors import InputError
from fuser_lab.interpreter import evaluate
from tests.unit.builders import describe


def evaluated(example, *, exact):
    inputs = example.inputs()
    with FusionBuilder() as fd:
        example.define(fd)
    return inputs, evaluate(bind(fd.fusion, [describe(x) for x in inputs]).fusion, inputs, exact=exact)


@pytest.mark.parametrize("example", examples.ALL, ids=lambda e: e.name)
def test_reference_evaluation_is_right(example):
    assert example.max_error(*evaluated(example, exact=True)) < 1
    # Without rounding, only the error of the float32 constants (1 / 0.9) remains.
    assert example.max_error(*evaluated(example, exact=False)) < 1e-4


@pytest.mark.parametrize("example", examples.ALL, ids=lambda e: e.name)
def test_a_wrong_result_is_noticed(example):
    inputs, outputs = evaluated(example, exact=True)
    wrong = [x.astype(np.float64) + 0.5 for x in outputs]
    if example.name == "dropout_add_layer_norm":
        wrong[0] = outputs[0]
    assert example.max_error(inputs, wrong) > 1


@pytest.mark.parametrize("example", examples.ALL, ids=lambda e: e.name)
def test_full_sizes_bind_without_arrays(example):
    with FusionBuilder() as fd:
        example.define(fd, "full")
    assert bind(fd.fusion, example.specs("full")).fusion.is_concrete


@pytest.mark.parametrize("example", examples.ALL, ids=lambda e: e.name)
def test_the_sizes_of_a_definition_its_inputs_and_its_specs_agree(example):
    with FusionBuilder() as fd:
        example.define(fd)
    assert bind(fd.fusion, example.specs()).fusion.is_concrete
    arrays = [value for value in example.inputs() if isinstance(value, np.ndarray)]
    assert [value.shape for value in example.specs() if hasattr(value, "shape")] == [value.shape for value in arrays]


def test_unknown_names():
    with pytest.raises(InputError, match="unknown example 'nothing'"):
        examples.get("nothing")
    with pytest.raises(InputError, match="not 'huge'"):
        examples.get("softmax").sizes("huge")


def torch_results():
    torch = needs("torch")
    f = torch.nn.functional

    def grad(function, dy, *leaves):
        wanted = [x.clone().requires_grad_() for x in leaves]
        function(*wanted).backward(dy)
        return [x.grad for x in wanted]

    def reshape_decides(x, y):
        a = torch.exp(x)
        r = a.reshape(a.shape[0] // 2, -1)
        return [a + y, torch.exp(a), r / r.sum(1, keepdim=True)]

    def layer_norm_backward(dy, x, _mean, _rstd, w):
        n = (x.shape[1],)
        return grad(lambda x, w, b: f.layer_norm(x, n, w, b, 1e-5), dy, x, w, torch.zeros_like(w))

    def rms_norm_backward(dy, x, _rstd, w):
        return grad(lambda x, w: f.rms_norm(x, (x.shape[1],), w, 1e-5), dy, x, w)

    return {
        "sum_broadcast_add": lambda x, y: [y + x.sum(1, keepdim=True)],
        "reshape_decides": reshape_decides,
        "bias_gelu": lambda x, b: [f.gelu(x + b, approximate="tanh")],
        "silu_mul": lambda g, u: [f.silu(g) * u],
        "softmax": lambda x: [x.softmax(1)],
        "softmax_backward": lambda dy, y: [torch.ops.aten._softmax_backward_data(dy, y, 1, torch.float64)],
        "layer_norm": lambda x, w, b: [f.layer_norm(x, (x.shape[1],), w, b, 1e-5)],
        "layer_norm_backward": layer_norm_backward,
        "rms_norm": lambda x, w: [f.rms_norm(x, (x.shape[1],), w, 1e-5)],
        "rms_norm_backward": rms_norm_backward,
    }


@pytest.mark.parametrize("name", [n for n in examples.names() if "dropout" not in n and "rope" not in n])
def test_against_torch(name):
    results = torch_results()
    torch = needs("torch")

    example = examples.get(name)
    inputs, outputs = evaluated(example, exact=False)
    wanted = results[name](*(torch.from_numpy(np.asarray(x).astype(np.float64)) for x in inputs))
    for got, want in zip(outputs, wanted, strict=False):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-4, atol=1e-4)
