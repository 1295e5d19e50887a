"""``annotate``: a ``segment_set`` at the boundaries of modules and calls, in forward and backward graphs."""

import importlib
import warnings

import pytest
from needs import needs

import fuser_lab as fl

torch = needs("torch")
F = torch.nn.functional


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.nn.GELU()

    def forward(self, x):
        return self.act(x) * F.silu(x)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = MLP()

    def forward(self, x):
        return torch.sin(x) + torch.cos(self.mlp(torch.tanh(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _annotated(found, kind):
    """The modules of the annotated values in graphs of a kind, and those of their readers."""
    sides = set()
    for graph in found.graphs:
        for region in graph.regions if graph.kind == kind else ():
            origins = {name: op.origin.module for op in region.ops for name in op.tensors}
            hints = region.plan.annotations
            sides |= {(origins[one.tensor], origins[reader]) for one in hints for reader in one.readers}
    return sides


def _capture(annotate, **options):
    x = torch.linspace(-2, 2, 48).reshape(6, 8).requires_grad_()
    return fl.from_torch(Model(), x, backward=True, annotate=annotate, **options), x


def test_modules_are_parted_forward_and_backward_and_results_stay_right():
    found, x = _capture(["layers.*.mlp"], options=fl.SegmenterOptions(segment_set="cut"))
    for kind, inward in (("forward", ("layers.0", "layers.0.mlp.act")), ("backward", ("layers.0", "layers.0.mlp"))):
        sides = _annotated(found, kind)
        assert inward in sides
        assert all((".mlp" in a) != (".mlp" in b) or a.split(".")[1] != b.split(".")[1] for a, b in sides)
    for region in found.regions:
        inside = {name: ".mlp" in op.origin.module for op in region.ops for name in op.tensors}
        hints = {one.hint for one in region.plan.annotations}
        for segment in region.plan.segments:
            names = {tensor.name for e in segment.exprs for tensor in e.tensor_outputs} - hints
            assert len({inside[name] for name in names if name in inside}) <= 1
    found.check(x).sum().backward()
    expected = x.detach().clone().requires_grad_()
    Model()(expected).sum().backward()
    torch.testing.assert_close(x.grad, expected.grad)


@pytest.mark.parametrize("call", [F.silu, torch.ops.aten.silu.default])
def test_calls_are_parted_by_function_and_by_op(call):
    found, _ = _capture([call])
    for region in found.graphs[0].regions:
        (before, after) = [one for one in region.plan.annotations if "silu" not in one.tensor][:2]
        silu = next(op for op in region.ops if op.target == "aten.silu.default")
        assert silu.tensors[0] in (*before.readers, *after.readers, before.tensor, after.tensor)
    backward = next(graph for graph in found.graphs if graph.kind == "backward")
    assert any(region.plan.annotations for region in backward.regions)


def test_equal_regions_are_shared_only_if_they_are_annotated_alike():
    whole, _ = _capture([])
    classes, _ = _capture([MLP])
    assert not any(region.plan.annotations for region in whole.regions)
    assert any(region.plan.annotations for region in classes.regions)
    one, _ = _capture(["layers.1.mlp"])
    assert {pair[1].split(".")[1] for pair in _annotated(one, "forward") if ".mlp" in pair[1]} == {"1"}


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("layers.*.mpl", "'layers.*.mpl', but the captured graphs have no such module; close names are 'layers.*.mlp'"),
        (F.selu, "annotate has 'selu', but the captured graphs have no such call; close names are 'silu', 'gelu'"),
        (torch.nn.ReLU, "no such module of this class"),
        (3, "each entry must be a module's path"),
        ("layers..mlp", "each entry must be a module's path"),
    ],
)
def test_what_names_nothing_is_refused_with_close_names(pattern, told):
    with pytest.raises(fl.FuserLabError, match="^from_torch|^fuser_lab backend") as refused:
        _capture([pattern])
    assert told in str(refused.value)


def test_the_backend_takes_annotations():
    fuser_lab_torch = importlib.import_module("fuser_lab.torch")
    torch._dynamo.reset()
    x = torch.randn(6, 8)
    with pytest.raises(Exception, match="no such module; close names are 'layers"):
        torch.compile(Model(), backend="fuser_lab", options={"annotate": ["lairs.*"]})(x)

    def broken(x):
        y = F.silu(x)
        torch._dynamo.graph_break()
        return torch.sin(torch.cos(y) * 2)

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = torch.compile(broken, backend="fuser_lab", options={"annotate": [torch.cos]})
        torch.testing.assert_close(step(x), broken(x))
        torch.testing.assert_close(step(x[:3]), broken(x[:3]))  # only the second graph mentions it, and is rebuilt
    assert fuser_lab_torch.last().regions[-1].plan.annotations
