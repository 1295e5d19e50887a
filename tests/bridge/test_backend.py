"""``torch.compile(..., backend="fuser_lab")``: values, gradients, and otherwise silent errors."""

import gc
import importlib
import tomllib
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from bridge.samples import graph_of, regions_of
from needs import needs

from fuser_lab.bridge import capture
from fuser_lab.cost.scheduler_type import SchedulerType
from fuser_lab.errors import RegionWarning, ValidationError
from fuser_lab.segmentation import SegmenterOptions

torch = needs("torch")
F = torch.nn.functional
bridge = importlib.import_module("fuser_lab.torch")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """Graphs, regions and plans are made in the test, whatever earlier runs of the tests left on disk."""
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))


@pytest.fixture
def by_torch(monkeypatch):
    """Regions run by torch, for tests of the order of a graph, which need no kernel."""
    run = "fuser_lab.bridge.torch_region.TorchRegion._run"
    monkeypatch.setattr(run, lambda region, inputs: list(region.fallback(*inputs)))


def compiled(function, **options):
    return torch.compile(function, backend="fuser_lab", options=options or None)


def agree(function, *inputs, seed=1, **options):
    """Compare results and gradients of the inputs with eager mode, with equal seeds; return the captured graphs."""
    found = []
    for run in (function, compiled(function, **options)):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        torch.manual_seed(seed)
        results = run(*given)
        results = results if isinstance(results, tuple) else (results,)
        wanting = [x for x in given if x.requires_grad]
        total = sum((y * (1 + torch.arange(y.numel()).reshape(y.shape) % 3)).sum() for y in results)
        gradients = torch.autograd.grad(total, wanting) if wanting else ()
        found.append([*results, *gradients, *given])
    for place, (ours, theirs) in enumerate(zip(found[1], found[0], strict=True)):
        assert ours.stride() == theirs.stride() or place >= len(results)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    return bridge.last()


def test_the_garbage_collector_runs_rarely_while_a_graph_is_compiled(monkeypatch, empty_cache):
    before, seen = gc.get_threshold(), []
    partitioned = capture.partition_graph

    def watched(*given):
        seen.append(gc.get_threshold())
        return partitioned(*given)

    monkeypatch.setattr(capture, "partition_graph", watched)
    agree(torch.tanh, torch.randn(5, requires_grad=True))
    assert len(seen) == 2
    assert all(threshold[2] > before[2] for threshold in seen)
    assert gc.get_threshold() == before


def test_the_entry_point_leads_to_the_backend(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["fuser_lab"].partition(":")
    assert getattr(importlib.import_module(module), name) is bridge.backend


def test_training_runs_in_regions_and_is_checked():
    linear = torch.nn.Linear(8, 8)

    def step(x):
        return F.gelu(F.layer_norm(linear(x), (8,)))

    found = agree(step, torch.randn(4, 8, requires_grad=True), check=True)
    assert [graph.kind for graph in found.graphs] == ["forward", "backward"]
    assert found.shares.fused == 1
    assert not any(region.failed for region in found.regions)


# Otherwise silent errors

def test_attention_keeps_the_logsumexp_that_its_gradient_reads(by_torch):
    inputs = [torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3)]
    found = agree(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *inputs)
    assert any("_scaled_dot_product" in row.op for row in found.left_to_torch)


def test_random_numbers_are_drawn_in_program_order(by_torch):
    def drawn(x, y):
        first = F.dropout(torch.sin(x) @ y, 0.5)  # reads what torch computes
        second = F.dropout(y * 2, 0.5)  # could run before it
        return first, second + torch.rand_like(x), F.dropout(first + second, 0.25)

    found = agree(drawn, torch.randn(6, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True))
    assert not any("native_dropout" in row.op for row in found.left_to_torch)  # masks, which regions apply


def test_draws_that_read_data_are_passed_by_no_other(by_torch):
    def drawn(x):
        p = torch.sigmoid(x)
        first = torch.bernoulli(p)
        kept = F.dropout(p, 0.5)  # one region with p, were it not for the random op in between
        return first, kept, torch.bernoulli(torch.sigmoid(x * kept)), torch.rand(3) * 2

    agree(drawn, torch.randn(5, 5))


def test_dropout_draws_in_the_order_of_memory(by_torch):
    agree(lambda x: F.dropout(x.t() * 2, 0.5), torch.randn(4, 6))
    agree(lambda x: F.dropout(x[1:2].expand(4, 6), 0.5), torch.randn(4, 6))
    agree(lambda x: F.dropout(x, 1.0) + F.dropout(x, 0.0), torch.randn(4))
    agree(lambda x: F.dropout(x, 0.5, training=False) * 2, torch.randn(4))


def test_segments_agree_on_the_memory_order_of_channels_last(by_torch):
    """Between the segments of its gradient, group norm splits the axis of channels by a reshape."""
    x = torch.randn(4, 16, 32, 32).contiguous(memory_format=torch.channels_last).requires_grad_()
    compiled(lambda x: F.silu(F.group_norm(x, 4, torch.ones(16))))(x).sum().backward()
    crossing = [
        tensor for region in bridge.last().regions for tensor in region.plan.segmented.crossing
        if tensor.nbytes == x.nbytes
    ]
    assert crossing
    assert all(tensor.domain.allocation_order != tuple(range(tensor.ndim)) for tensor in crossing)


def test_results_have_the_strides_that_torch_traced():
    def strided(x):
        y = x.t() * 2
        return y, torch.as_strided(y, (4, 2), (1, 4)) + 1

    agree(strided, torch.randn(4, 3, requires_grad=True))


@pytest.mark.parametrize(
    "function", [
        lambda x: torch.sin(x[:, None] * torch.arange(5)),
        lambda x: torch.stack([x[::2] * 2, x[1::2] + 1], -1),
        lambda x: torch.cos(x.view(2, 3).t()).contiguous() + 1,
    ], ids=["more axes than the input", "stacked", "transposed"],
)
def test_kernels_write_row_major_results_as_torch_lays_them(function):
    x = torch.randn(6)
    found = bridge.from_torch(function, x)
    for region in found.regions:
        for output in region.plan.fusion.outputs:
            assert output.domain.allocation_order == tuple(range(output.ndim))
    torch.testing.assert_close(found.run(x), function(x))


def test_inputs_that_lie_otherwise_than_traced_are_laid_as_traced():
    def function(x, w):
        return torch.sin(x) * w + 1

    x, w, wide = torch.randn(4, 3), torch.randn(4, 3), torch.randn(8, 9)
    (region,) = bridge.from_torch(function, x, w).regions
    for given in [(wide[::2, ::3], w), (torch.randn(3, 4).t(), wide[:1, :3].expand(4, 3)), (x, w), (wide[:4, :3], x)]:
        (ours,) = region(*given)
        torch.testing.assert_close(ours, function(*given))
        assert ours.is_contiguous()
    assert region.failed is None
    assert len(region.prepared._variants.kept) == 1, "kernels are compiled for one layout"


def test_a_call_like_one_before_asks_the_plan_alone(monkeypatch):
    function = compiled(lambda x, w: (torch.sin(x * w), x.t().clone(), x[1:] + 1))
    x, w = torch.randn(4, 3), torch.randn(3)
    first = function(x, w)
    monkeypatch.setattr("fuser_lab.bridge.torch_region.TorchRegion._run", lambda *_: pytest.fail("the slow path"))
    for given in (x, torch.randn(4, 3)):
        found = function(given, w)
        expected = (torch.sin(given * w), given.t().clone(), given[1:] + 1)
        for ours, before, theirs in zip(found, first, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == before.stride() == theirs.stride()
            assert ours.data_ptr() != given.data_ptr()


@pytest.mark.parametrize("strides", [(1, 4), (8, 1), (0, 1), (3, 0)])
def test_a_region_gives_any_strides(strides):
    x = torch.randn(4, 3)
    gm = graph_of(torch, lambda given: torch.sin(given["x"]) * 2, {"x": x})
    (*_, last, _) = gm.graph.nodes
    last.meta["val"] = torch.empty_strided((4, 3), strides)
    _, (region,) = regions_of(gm)
    region._prepared = SimpleNamespace(run=lambda inputs: [torch.sin(inputs[0]) * 2])
    (found,) = region(x)
    assert found.stride() == strides
    kept = tuple(slice(None) if stride else slice(0, 1) for stride in strides)
    torch.testing.assert_close(found[kept], (torch.sin(x) * 2)[kept])


def test_a_call_like_one_before_gives_the_strides_that_were_traced(monkeypatch):
    x = torch.randn(4, 3)
    gm = graph_of(torch, lambda given: torch.sin(given["x"]) * 2, {"x": x})
    (*_, last, _) = gm.graph.nodes
    last.meta["val"] = torch.empty_strided((4, 3), (8, 1))
    _, (region,) = regions_of(gm)
    region(x)
    monkeypatch.setattr(type(region), "_run", lambda *_: pytest.fail("the slow path"))
    (found,) = region(x)
    assert found.stride() == (8, 1)
    torch.testing.assert_close(found, torch.sin(x) * 2)
    assert not region.is_direct, "a function of the graph would give it another layout"


def test_a_copy_is_no_view_of_what_is_changed_afterwards():
    def changed(x):
        kept, view = x.clone(), x[1:]
        x.add_(1)
        return kept, view * 2, kept + x

    agree(changed, torch.randn(4, 3))


def test_what_a_gradient_compares_for_equality_is_computed_once(by_torch):
    """Recomputed by another kernel it might be rounded differently, and no element would equal the extreme."""
    places = torch.tensor([[0, 2, 2], [1, 1, 0]])
    x = torch.randn(2, 3, requires_grad=True)
    for function in (
        lambda x: F.silu(x).scatter_reduce(1, places, F.silu(x) * 2, "amax").sin(),
        lambda x: F.silu(x).sum(1) * F.silu(x).amax(1),
    ):
        found = agree(function, x)
        assert all("silu" not in op.target for region in found.graphs[1].regions for op in region.ops)


def test_two_results_share_no_memory():
    def twice(x):
        y = torch.sin(x)
        return y, y.clone(), y + 0

    results = compiled(twice)(torch.randn(5))
    assert len({y.data_ptr() for y in results}) == 3


def test_numbers_that_are_equal_and_differ_in_kind_are_other_regions():
    x = torch.tensor([3.0, -2.0, 5.0])
    for add, scale in ((1, 0.0), (1.0, -0.0), (True, 1)):
        (ours,) = bridge.from_torch(lambda x, a=add, s=scale: x * s + torch.full((3,), a), x).definition.reference([x])
        expected = x * scale + torch.full((3,), add)
        torch.testing.assert_close(torch.from_numpy(ours), expected)
        scaled = bridge.from_torch(lambda x, s=scale: x * s, x).definition.reference([x])[0]
        assert torch.equal(torch.signbit(torch.from_numpy(scaled)), torch.signbit(x * scale))


def test_the_table_does_not_change_with_what_is_registered():
    from fuser_lab.bridge import composites, pools
    from fuser_lab.bridge.decompositions import NAMES, table

    def names_of(ops):
        return {str(op).removeprefix("aten.").rpartition(".")[0] for op in ops}

    names, own = names_of(table()), names_of(composites.decompositions())
    assert names - own - names_of(pools.decompositions()) <= set(NAMES.split())
    assert {name for name in own if not name.startswith("_foreach_")} == {
        "_weight_norm_interface_backward", "bmm", "col2im", "eye", "fake_quantize_per_tensor_affine_cachemask", "lerp",
        "unfold_backward",
    }
    assert not {name for name in names if "scaled_dot_product" in name or "dropout" in name} - {
        "native_dropout_backward",
    }
    assert not {"bernoulli", "rrelu_with_noise", "embedding_dense_backward"} & names


# Other features of torch.compile

def test_dropout_of_what_is_not_dense_or_empty_lies_as_torch_lays_it(by_torch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(lambda x: F.dropout(x, 0.5), torch.randn(4, 8)[:, :5])
        agree(lambda x: F.dropout(x, 0.5) * 2, torch.randn(0, 3, requires_grad=True))


def test_the_whole_jacobian_of_a_function_is_captured(by_torch):
    agree(torch.func.jacrev(torch.sin), torch.randn(3))


def test_nested_tensors_are_left_to_torch():
    x = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    torch.testing.assert_close(compiled(lambda x: x.sin() * 2)(x).values(), x.values().sin() * 2)
    reasons = {row.reason for row in bridge.last().left_to_torch}
    assert reasons == {"some sizes remain symbolic, as in nested tensors"}


def test_a_region_that_fails_is_torchs_with_one_warning(monkeypatch, empty_cache):
    def fail(*_, **__):
        raise RuntimeError("no compiler")

    monkeypatch.setattr("fuser_lab.plan.Plan.prepare", fail)
    x = torch.randn(7)
    function = compiled(lambda x: torch.sin(x) * 3)
    says = r"torch runs region 0 \(.*test_backend.py:\d+\)\): RuntimeError: no compiler"
    with pytest.warns(RegionWarning, match=says) as warned:
        torch.testing.assert_close(function(x), torch.sin(x) * 3)
    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(x)
    assert bridge.last().regions[0].failed == "RuntimeError: no compiler"
    assert "no compiler" in repr(bridge.last())


def test_there_are_no_modes():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="unknown mode 'max-autotune'; pass options"):
        torch.compile(torch.sin, backend="fuser_lab", mode="max-autotune")(torch.randn(3))


def test_a_wrong_result_is_found_by_check(monkeypatch):
    run = "fuser_lab.bridge.torch_region.TorchRegion._run"
    monkeypatch.setattr(run, lambda region, inputs: [y + 1 for y in region.fallback(*inputs)])
    with pytest.raises(ValidationError, match=r"region 0 \(.*test_backend.py:\d+\)"):
        compiled(lambda x: torch.sin(x) * 3, check=True)(torch.randn(4))


def test_rounding_that_an_op_amplifies_is_no_wrong_result(monkeypatch):
    def exactly(region, inputs):
        return [y.float() * factor for y in region.fallback(*(x.double() for x in inputs))]

    monkeypatch.setattr("fuser_lab.bridge.torch_region.TorchRegion._run", exactly)
    function = compiled(lambda x: F.layer_norm(x, (64,)), check=True)
    x, factor = 100 + torch.randn(8, 64) / 1000, 1
    with pytest.raises(AssertionError):
        torch.testing.assert_close(function(x), F.layer_norm(x, (64,)), rtol=1e-4, atol=1e-4)
    factor = 1.5
    with pytest.raises(ValidationError, match="is wrong in"):
        function(x)


def test_several_threads_run_one_region():
    (region,) = bridge.from_torch(lambda x: torch.sin(x) * 3, torch.randn(4, 5)).regions
    given = [torch.randn(4, 5) for _ in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda x: region(x)[0], given))
    for ours, x in zip(found, given, strict=True):
        torch.testing.assert_close(ours, torch.sin(x) * 3)
    assert region.failed is None


@pytest.mark.parametrize("order", [lambda x: x, lambda x: x.t().contiguous().t()])
def test_a_region_that_reads_nothing_runs(order):
    def mask():
        return order(torch.arange(4)[None] <= torch.arange(5)[:, None])

    found, expected = compiled(mask, check=True), mask()
    for _ in range(3):
        ours = found()
        assert torch.equal(ours, expected)
        assert ours.stride() == expected.stride()
    (region,) = bridge.last().regions
    assert region.failed is None


def test_graphs_of_functions_that_a_broken_one_calls_belong_to_it(by_torch):
    def broken(x):
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y * 2

    def inner(x):
        return broken(x) + x * 3

    compiled(lambda x: inner(x * 4) - 5)(torch.randn(3))
    assert len(bridge.last().graphs) == 5  # two of `broken`, two around the call of `inner`, one after that of `broken`


def test_graphs_of_one_function_belong_together(by_torch):
    def broken(x):
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y * 2

    compiled(broken)(torch.randn(3))
    assert len(bridge.last().graphs) == 2
    compiled(lambda x: x - 1)(torch.randn(3))
    assert len(bridge.last().graphs) == 1

    def at_its_end(x):
        return (x * 2).tolist()

    compiled(at_its_end)(torch.randn(3))
    compiled(lambda x: x - 6)(torch.randn(3))
    assert len(bridge.last().graphs) == 1


def test_kernels_are_compiled_in_the_background_before_they_run(monkeypatch):
    from fuser_lab.runtime.plan.background import IN_BACKGROUND

    def entries_of(source, names):
        run.append(source)
        return tuple((lambda *_: None, None) for _ in names)

    ahead, run = [], []
    monkeypatch.setattr("fuser_lab.runtime.cpu_kernels.entries_of", entries_of)
    monkeypatch.setattr("fuser_lab.runtime.plan.variants.compile_ahead", lambda *_: None)
    monkeypatch.setattr(IN_BACKGROUND, "add", lambda kernels: ahead.append({kernel.source for kernel, _ in kernels}))
    x = torch.randn(6, 6, requires_grad=True)
    y = compiled(lambda x: torch.sin(F.softmax(x @ x * 2, -1) + 471))(x)
    assert [set(run)] == ahead
    run.clear()
    y.sum().backward()
    assert [set(run)] == ahead[1:]
    ahead.clear()
    bridge.from_torch(torch.sin, x.detach())
    assert not ahead, "no kernel runs"


def test_bits_of_numbers_are_read_within_a_region():
    """Shared exponents of blocks, as in the MX formats, and views as smaller and larger numbers."""

    def of_blocks(x, h):
        y = x.float().unflatten(-1, (-1, 32))
        exponent = ((y.abs().amax(-1, keepdim=True).view(torch.int32) >> 23) & 255) - 135
        scaled = (y * torch.exp2(-exponent.clamp(-127, 127).float())).clamp(-448, 448)
        doubled = (h * 3).view(torch.int16) + 1  # of the rounded products, also if kernels keep more digits
        halves = ((x + 1).view(torch.int16) ^ 3).view(torch.int64) + 5
        return scaled.to(torch.float8_e4m3fn).flatten(1), doubled, (halves.view(torch.uint8) + 1).view(torch.int32) - 1

    x, h = torch.randn(6, 64), torch.randn(5, 12).half()
    torch._dynamo.reset()
    for ours, theirs in zip(compiled(of_blocks)(x, h), of_blocks(x, h), strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
    (graph,) = bridge.last().graphs
    assert not any(left.op == "aten.view.dtype" for left in graph.left)
    assert not any(region.failed for region in graph.regions)


def both_sums(x):
    y = x.sin()
    return y.sum(0), y.sum(1)


def test_the_fastest_plan_is_on_disk_for_other_processes(monkeypatch, empty_cache):
    from fuser_lab.bridge import signature

    monkeypatch.setattr(signature, "_RECORDED", type(signature._RECORDED)())

    def planned(**options):
        torch._dynamo.reset()
        compiled(both_sums, **options)(torch.ones(40, 40))
        (region,) = bridge.last().regions
        return region.plan

    searched = planned()
    assert searched.strategy == "fastest"
    assert searched.options.search_calls == 100_000
    signature._RECORDED.clear()
    monkeypatch.setattr(signature, "segment", None)  # as in another process, which does not search again
    read = planned()
    assert read == searched
    assert list(read.decisions) == list(searched.decisions)
    with pytest.raises(TypeError, match="NoneType"):
        _ = signature.record_definition(replace(
            bridge.last().regions[0].signature, cutting=replace(searched_cutting(), target="A100"),
        )).plan


def masked_and_scaled(x, y):
    masked = torch.where(x > 0, y, 0)
    return masked, masked * (masked * x).sum((0, 2, 3), keepdim=True)


@pytest.mark.parametrize(("layout", "mode"), [("contiguous_format", "outputs"), ("channels_last", "propagate")])
def test_tensors_between_segments_have_the_order_of_inputs_if_that_is_faster(layout, mode):
    x, y = (torch.empty(32, 64, 56, 56, device="meta", memory_format=getattr(torch, layout)) for _ in range(2))
    options = SegmenterOptions(search_calls=0)
    (region,) = bridge.from_torch(masked_and_scaled, x, y, strategy="fastest", target="H200", options=options).regions
    assert region.plan.options.layout_mode == mode
    assert len(region.plan.segments) > 1
    assert SchedulerType.TRANSPOSE not in [segment.scheduler for segment in region.plan.segments]
    # The masked tensor is a result, and the second segment reads that.
    assert sum(segment.bytes for segment in region.plan.segments) == pytest.approx(5 * x.nbytes, rel=1e-3)


def searched_cutting():
    return bridge.last().regions[0].signature.cutting


def test_a_search_for_tensors_on_the_host_is_for_its_cpu(empty_cache):
    def halved(x):
        return F.relu(x[:, ::2] * 2) + 1

    x = torch.randn(8, 14)
    torch.testing.assert_close(compiled(halved)(x), halved(x))
    (region,) = bridge.last().regions
    assert region.plan.target == "typical CPU"
    for options in ({"strategy": "bottom_up"}, {"target": "A100"}):
        torch._dynamo.reset()
        compiled(halved, **options)(x)
        (region,) = bridge.last().regions
        assert region.plan.target == options.get("target", "H200")


def test_new_sizes_are_planned_without_a_search():
    torch._dynamo.reset()
    run = torch.compile(both_sums, backend="fuser_lab", dynamic=True)
    for size in (6, 9):
        x = torch.randn(size, 5)
        torch.testing.assert_close(run(x), both_sums(x))
    assert {region.plan.strategy for region in bridge.last().regions} == {"bottom_up"}
