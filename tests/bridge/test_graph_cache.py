"""Another process finds the graphs of AOTAutograd, their regions and kernels, and they are as if made again."""

import importlib
import pickle

import pytest
from needs import needs

from fuser_lab.bridge import capture, signature
from fuser_lab.bridge.graph_cache import has_cache
from fuser_lab.runtime import store
from fuser_lab.runtime.plan import variants

torch = needs("torch")
F = torch.nn.functional
bridge = importlib.import_module("fuser_lab.torch")
counters = importlib.import_module("torch._dynamo.utils").counters

pytestmark = pytest.mark.skipif(not has_cache(), reason="torch keeps only graphs of its own compiler")


def norm_of(x, running):
    with torch.no_grad():
        running.lerp_(x.mean(0), 0.1)
    y = F.layer_norm(x, (8,)) * torch.tensor([1.0, 2.0] * 4)
    return F.gelu(y).sum(), x.view(2, -1), y.detach()


def noisy(x, running):
    return (F.dropout(torch.softmax(x * running, -1), 0.5) + torch.rand_like(x)).sum(), x[1:], running.t()


def without_gradient(x, running):
    running.add_(1)
    with torch.no_grad():
        values, places = x.sort(-1)
        return (values * running).cumsum(0), places, running


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache, and a list of what is done: `_partition` cuts a graph into forward and backward."""
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    done = []

    def note(module, name):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, **named: done.append(name) or function(*given, **named))

    note(capture, "_partition")
    note(capture, "partition_graph")
    note(signature, "_record")
    note(signature, "segment")
    note(variants, "generate")
    return done


def outcome(function, **options):
    """Results, gradient and state of a step in what is, for Dynamo, another process; and what there is to see of it."""
    torch._dynamo.reset()
    counters.clear()
    signature._RECORDED.clear()
    torch.manual_seed(3)
    x, running = torch.randn(6, 8, requires_grad=function is not without_gradient), torch.rand(8)
    result, *others = torch.compile(function, backend="fuser_lab", dynamic=False, options=options)(x, running)
    if result.requires_grad:
        result.backward()
    model = bridge.last()
    rest = [(y.requires_grad, y.data_ptr() in {x.data_ptr(), x[1:].data_ptr()}, y.stride()) for y in others]
    shown = repr(model), [(r.ops, r.names, str(r.plan)) for r in model.regions], [str(g.left) for g in model.graphs]
    return (result, x.grad, running, *others), (rest, shown), torch.rand(2)


@pytest.mark.parametrize("function", [norm_of, noisy, without_gradient])
def test_a_second_process_makes_nothing_again(cache, function):
    traced, seen, after = outcome(function)
    done = list(cache)
    assert counters["aot_autograd"]["autograd_cache_saved"] == 1
    found, seen_again, after_again = outcome(function)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert cache == done
    assert done.count("_partition") == (function is not without_gradient)
    assert {"partition_graph", "_record", "segment", "generate"} <= {*done}
    torch.testing.assert_close(found, traced, rtol=0, atol=0)
    torch.testing.assert_close(after_again, after, rtol=0, atol=0)
    assert seen_again == seen


def test_regions_are_made_again_if_their_file_cannot_be_read(cache, tmp_path):
    made, seen, _ = outcome(noisy)
    (*files,) = (tmp_path / "kernels" / "parts").iterdir()
    assert len(files) == cache.count("partition_graph") == 2
    for file in files:
        store.write(f"parts/{file.name}", pickle.dumps(b"damaged"))
    made_again, seen_again, _ = outcome(noisy)
    assert cache.count("partition_graph") == 4
    torch.testing.assert_close(made_again, made, rtol=0, atol=0)
    assert seen_again == seen


def test_other_options_are_another_graph(cache):
    outcome(noisy)
    outcome(noisy, left_to_torch=["aten._softmax"])
    assert counters["aot_autograd"]["autograd_cache_hit"] == 0
    assert any("_softmax" in row.op for graph in bridge.last().graphs for row in graph.left)


def test_lines_of_code_may_move(cache):
    """The graphs are found on disk, and are shown with the lines where the code is now."""
    for line, hits in ((1, 0), (1, 1), (4, 1)):
        names = {"F": F}
        code = "def doubled(x, running):\n    y = F.silu(x)\n    return (y * 2).sum(), x @ x.mT"
        exec(compile("\n" * line + code, "user.py", "exec"), names)
        outcome(names["doubled"])
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits
        forward, backward = bridge.last().graphs
        assert {op.origin.place for op in forward.regions[0].ops} == {f"user.py:{line + n}" for n in (2, 3)}
        assert {op.origin.place for region in backward.regions for op in region.ops} >= {f"user.py:{line + 2}"}
        assert [row.origin.place for row in forward.left if "mm" in row.op] == [f"user.py:{line + 3}"]


def test_symbolic_sizes_are_traced(cache):
    def scaled(x):
        return torch.softmax(x * x.shape[0], -1)

    for _ in range(2):
        torch._dynamo.reset()
        run = torch.compile(scaled, backend="fuser_lab", dynamic=True)
        for rows in (4, 7):
            x = torch.randn(rows, 5, requires_grad=True)
            torch.testing.assert_close(run(x), scaled(x))
            torch.testing.assert_close(*(torch.autograd.grad(f(x)[:, 0].sum(), x) for f in (run, scaled)))
    assert cache.count("_partition") == 2
