"""Models of ``transformers``, tiny and with random weights: values and gradients are those of eager mode.

Regions contain the ops; the NumPy reference evaluates them, so that few kernels are compiled.
"""

import importlib
from typing import Any

import pytest
from bridge.samples import by_reference
from needs import needs

torch = needs("torch")
needs("transformers")
bridge = importlib.import_module("fuser_lab.torch")
# Transformers calls deprecated functions of torch, and torch warns about its own access to gradients.
pytestmark = pytest.mark.filterwarnings("ignore", "error::fuser_lab.errors.RegionWarning")


def trained(model: Any, run: Any, given: Any) -> tuple[list[Any], Any]:
    """The gradients and the loss of one step."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = run(*given)
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None], loss.detach()


@pytest.mark.parametrize(("name", "compiled"), [
    ("Llama", True), ("T5", False), ("ConvNeXt", False),
    *(pytest.param(name, False, marks=pytest.mark.matrix) for name in ("GPT-2", "ALBERT", "Gemma 2")),
])
def test_a_model_trains_as_in_eager(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from bridge.models import error, of_transformers
    from bridge.more_models import of_transformers as more_of_transformers

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = {**dict(of_transformers()), **dict(more_of_transformers())}[name]()
    given = given if isinstance(given, tuple) else (given,)
    model.train()
    gradients, loss = trained(model, model, given)
    if not compiled:
        monkeypatch.setattr("fuser_lab.bridge.torch_region.TorchRegion._run", by_reference)
    found, found_loss = trained(model, torch.compile(model, backend="fuser_lab"), given)
    assert error([found_loss, *found], [loss, *gradients]) < 5e-6
    assert bridge.last().shares.fused >= 0.95
    assert not [region.failed for region in bridge.last().regions if region.failed]
