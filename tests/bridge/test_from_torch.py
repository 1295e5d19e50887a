"""`fuser_lab.from_torch`: what is captured, what is left to torch, the origin of ops, and what it refuses."""

import copy
import gc
import logging
import subprocess
import sys
import textwrap

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.bridge import requirement
from fuser_lab.errors import ArgumentTypeError, InputError, UnsupportedError
from fuser_lab.process.collector import collecting_rarely

torch = needs("torch")
F = torch.nn.functional
_LOGGER = logging.getLogger(__name__)


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 8)

    def forward(self, x):
        return F.silu(x) * self.up(x)


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Gate(), Gate()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def model():
    return fl.from_torch(Twice(), torch.randn(4, 8))


def test_a_function_that_is_one_fusion_gives_its_definition():
    x, w = torch.randn(6, 8), torch.rand(8)
    found = fl.from_torch(lambda x, w: F.softmax(x * w, dim=-1), x, w)
    assert found.left_to_torch == ()
    (ours,) = found.definition.reference([x.numpy(), w.numpy()])
    torch.testing.assert_close(torch.from_numpy(ours), F.softmax(x * w, dim=-1))
    assert [segment.scheduler.value for segment in found.plan.segments] == ["inner_persistent"]


def test_each_result_of_a_call_has_its_line_and_module():
    """A norm has two results, and separate ops compute the second one."""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.act = torch.nn.LayerNorm(8), torch.nn.Softmax(-1)

        def forward(self, x):
            return self.act(self.norm(x) * 2)

    (region,) = fl.from_torch(Net().eval(), torch.randn(4, 8)).regions
    plan = region.plan
    modules, made = dict(plan.modules), [tv.name for expr in plan.definition.exprs for tv in expr.tensor_outputs]
    assert any(len(expr.tensor_outputs) > 1 for expr in plan.definition.exprs)
    assert {modules.get(name, "missing") for name in made} <= {"norm", "act", "missing"}
    norms = {expr.tensor_outputs[0].name: expr for expr in plan.definition.exprs if len(expr.tensor_outputs) > 1}
    for expr in norms.values():
        assert {modules[tv.name] for tv in expr.tensor_outputs} == {"norm"}
        assert {tv.name for tv in expr.tensor_outputs} <= {name for name, _ in plan.sources}


def test_equal_layers_share_one_definition(model):
    first, second = model.regions
    assert (first.modules, second.modules) == (("layers.0",), ("layers.1",))
    assert first.definition is second.definition
    assert "2 × 2 ops of layers.0" in repr(model)


def test_every_op_knows_its_module_and_line(model):
    silu = [op for region in model.regions for op in region.ops if op.target == "aten.silu.default"]
    assert [op.origin.module for op in silu] == ["layers.0", "layers.1"]
    assert all("F.silu(x) * self.up(x)" in str(op.origin) and "test_from_torch.py:" in str(op.origin) for op in silu)
    told = dict(model.regions[1].plan.sources)
    assert told[silu[1].tensors[0]].startswith("layers.1: return F.silu(x)")


def test_what_is_left_is_counted_with_its_reason_and_line(model):
    (matmuls,) = [row for row in model.left_to_torch if "addmm" in row.op]
    assert (matmuls.count, matmuls.reason) == (2, "matrix products are torch's")
    assert "linear" in matmuls.origin.lower() or "self.up" in matmuls.origin
    assert f"2 × aten.addmm.default: {matmuls.reason}; the first: {matmuls.origin}" in repr(model)
    assert "aten.addmm.default" in model._repr_html_()
    with pytest.raises(InputError, match="not one fusion: torch runs 2 × aten.addmm.default"):
        _ = model.definition


def test_a_region_outside_of_all_modules_is_of_the_model():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.activation = torch.nn.SiLU()

        def forward(self, x):
            return self.activation(x * 2.0) + x

    found = fl.from_torch(Scaled(), torch.randn(4, 8))
    assert found.regions[0].modules == ("activation",)
    assert "ops of the model, activation" in repr(found)
    assert "the model" not in repr(fl.from_torch(torch.nn.SiLU(), torch.randn(4, 8)))


def test_copies_between_products_are_rows_that_cost_what_they_move():
    def scores(x):
        q, k = x.view(4, 32, 2, 8, 16).permute(2, 0, 3, 1, 4)
        return torch.softmax(q @ k.transpose(-1, -2), -1)

    found = fl.from_torch(scores, torch.randn(4, 32, 256))
    (copies,) = [row for row in found.left_to_torch if row.op == "aten.clone.default"]
    assert (copies.count, copies.is_free) == (2, False)
    rows = fl.explain(found).rows
    assert sum(row.count for row in rows if row.what == "aten.clone") == 2
    assert {row.bytes / row.count for row in rows if row.what == "aten.clone"} == {2 * 4 * 4 * 8 * 32 * 16}


def test_no_row_is_predicted_below_its_bound():
    (row,) = fl.explain(lambda a, b: a * b + a, torch.randn(1024, 256), torch.randn(1024, 256)).rows
    assert 0 < row.bound <= row.predicted


def test_a_module_of_torchs_alone_has_no_line_of_the_bridges_own():
    found = fl.from_torch(torch.nn.Linear(8, 8), torch.randn(4, 8))
    assert not any("called(*args" in row.origin for row in found.left_to_torch)


def test_matmuls_are_recorded_where_asked_for():
    found = fl.from_torch(Gate(), torch.randn(4, 8), matmuls="record")
    assert found.shares.others == found.shares.own_kernels == 0
    assert any(op.target == "aten.addmm.default" for op in found.regions[0].ops)


def test_ops_stay_with_torch_where_asked_for():
    found = fl.from_torch(lambda x: torch.tanh(x) * 2, torch.randn(4), left_to_torch=["aten.tanh"])
    reason = "left to torch by the option left_to_torch"
    assert [(row.op, row.reason) for row in found.left_to_torch] == [("aten.tanh.default", reason)]


@pytest.mark.parametrize("op", ["softmax", "aten._softmax", torch.softmax, torch.ops.aten._softmax.default])
def test_what_torch_would_take_apart_is_left_whole(op: object) -> None:
    found = fl.from_torch(lambda x: torch.softmax(x, -1), torch.randn(2, 3), left_to_torch=[op])
    assert [row.op for row in found.left_to_torch] == ["aten._softmax.default"]


def test_an_exported_program_has_its_inputs() -> None:
    exported = torch.export.export(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()), (torch.randn(2, 3),))
    assert fl.from_torch(exported).definition.fusion.exprs


def test_regions_are_no_larger_than_asked_for():
    def chain(x):
        for _ in range(7):
            x = torch.sin(x)
        return x

    found = fl.from_torch(chain, torch.randn(4), max_region_ops=3)
    assert [len(region) for region in found.regions] == [3, 3, 1]


def test_a_region_that_is_too_large_ends_where_little_is_passed_on():
    def function(x):
        total = x.sin().cos().exp().sum(1)
        return total.sin().cos().exp().tanh()

    for most in (5, 6):
        found = fl.from_torch(function, torch.randn(4, 64), max_region_ops=most)
        assert [len(region.ops) for region in found.regions] == [most, 8 - most]


def test_pieces_that_multiply_by_a_common_norm_are_regions_of_their_own():
    def clip(*gradients):
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        return [g * (1 / norm).clamp(max=1.0) for g in gradients]

    found = fl.from_torch(clip, *(torch.randn(n) for n in (5, 9, 33)))
    sizes = [len(region.ops) for region in found.regions]
    assert len(sizes) == 4
    assert sizes.count(1) == 3


def test_an_exported_program_is_captured():
    x = torch.randn(3, 8)
    program = torch.export.export(torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Tanh()), (x,))
    found = fl.from_torch(program, x)
    assert found.left_to_torch == ()
    assert len(found.regions) == 1


def test_data_dependent_control_flow_ends_a_graph_and_says_where():
    def branch(x):
        if x.sum() > 0:
            return x * 2 + 1
        return x - 1

    found = fl.from_torch(branch, torch.ones(4))
    assert len(found.graphs) == 2
    (ended,) = found.graph_breaks
    assert "test_from_torch.py:" in ended.place
    assert "control flow depends on the value of a tensor" in str(ended)
    with pytest.raises(InputError, match="not one fusion: the graph ends at test_from_torch.py"):
        _ = found.definition


def test_a_call_that_torch_does_not_trace_is_named():
    def function(x):
        y = x + 1
        print(end="")
        z = y * 2
        return z + z.nonzero().sum()

    reasons = [ended.reason for ended in fl.from_torch(function, torch.ones(4)).graph_breaks]
    assert any("print" in reason for reason in reasons)
    assert any("nonzero" in reason for reason in reasons)


def test_the_map_as_text_names_what_there_is_and_nothing_else():
    lines = str(fl.from_torch(lambda x, w: x @ w, torch.ones(2, 2), torch.ones(2, 2))).splitlines()
    assert lines[:2] == [
        "1 graph (1 inference): no regions; torch runs 1 op with kernels of its own", "inference: no regions",
    ]
    text = str(fl.from_torch(lambda x, y: (x.sin() * 2, (y + 1).exp(), x.t()), torch.ones(2, 3), torch.ones(2, 3)))
    assert text.startswith("1 graph (1 inference): 2 regions with 4 ops; 1 view or constant costs nothing\n")


def test_what_reads_a_large_input_is_one_region_and_what_reads_a_small_one_is_not():
    x, y, w = torch.rand(8, 16), torch.rand(8, 16), torch.rand(16)
    together = fl.from_torch(lambda x: (x.sin(), x.amax(0), x[:, 2:5].exp(), x.t() * 2), x)
    assert [len(region) for region in together.regions] == [4]  # views at its edge are torch's
    together.check(x)
    apart = fl.from_torch(lambda x, y, w: (x * w, y * w), x, y, w)
    assert [len(region) for region in apart.regions] == [1, 1]
    layers = fl.from_torch(lambda x, w, m: ((x * w) @ m) * w, x, w, torch.rand(16, 16))
    assert [len(region) for region in layers.regions] == [1, 1]


def test_nothing_of_the_users_changes():
    norm = torch.nn.BatchNorm1d(4)
    x = torch.randn(6, 4)
    seen, before = x.clone(), norm.running_mean.clone()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    fl.from_torch(lambda x: F.dropout(x.add_(1), 0.5), x)
    fl.from_torch(norm, x)
    assert torch.equal(x, seen)
    assert torch.equal(norm.running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_group_norm_is_one_region_each_way_and_names_no_line_of_ours():
    norm = torch.nn.Sequential(torch.nn.GroupNorm(2, 4), torch.nn.SiLU())
    found = fl.from_torch(norm, torch.randn(2, 4, 3, 3, requires_grad=True), backward=True)
    assert [len(graph.regions) for graph in found.graphs] == [1, 1]
    assert all(row.is_free for row in found.left_to_torch)
    assert "model.py" not in str(found)


def test_a_function_of_meta_tensors_has_the_graphs_that_it_has_elsewhere():
    """Composite ops keep their gradients, and constants that the function makes can be combined with its arguments."""
    def loss(x, target):
        scaled = x / x.var(-1, keepdim=True) * torch.tensor([1.0, 2.0, 3.0], device=x.device)
        return F.cross_entropy(torch.cat([torch.tensor([], device=x.device), scaled]), target)

    def calls(device):
        found = fl.from_torch(
            loss, torch.ones(4, 3, device=device, requires_grad=True),
            torch.zeros(4, dtype=torch.long, device=device), backward=True,
        )
        lifted = "aten.lift_fresh_copy.default"  # of a constant; a meta tensor has no memory
        return [
            (g.kind, sorted(op.target for r in g.regions for op in r.ops if op.target != lifted)) for g in found.graphs
        ]

    on_meta = calls("meta")
    assert [kind for kind, _ in on_meta] == ["forward", "backward"]
    assert on_meta == calls("cpu")
    assert len(on_meta[1][1]) > 10


def test_autocast_that_is_switched_off_is_captured_on_meta():
    def f(x):
        with torch.autocast(device_type=x.device.type, enabled=False):
            return (x.float() * 2).to(x.dtype)

    found = fl.from_torch(f, torch.empty(4, 4, dtype=torch.bfloat16, device="meta"))
    assert [op.target for op in found.regions[0].ops][1] == "aten.mul.Tensor"
    with pytest.raises(RuntimeError, match="unsupported"):
        torch.autocast(device_type="meta", enabled=False)


def test_messages_end_no_graph():
    def f(x):
        y = x * 2
        _LOGGER.warning("told")
        return y + 1

    found = fl.from_torch(f, torch.ones(3))
    assert found.graph_breaks == ()
    assert len(found.graphs) == 1


def test_a_capture_puts_the_garbage_collector_back():
    before = gc.get_threshold()
    with collecting_rarely():
        with collecting_rarely():
            pass
        assert gc.get_threshold()[2] > before[2]
    fl.from_torch(lambda x: x + 1, torch.ones(3))
    assert gc.get_threshold() == before


def test_the_collector_visits_old_objects_rarely_while_torch_compiles():
    def compiler(gm, _):
        during.append(gc.get_threshold())
        return gm

    before, during = gc.get_threshold(), []
    torch.compile(lambda x: x + 2, backend="fuser_lab")(torch.ones(3))  # registers again after a reset of torch
    torch.compile(lambda x: x + 3, backend=compiler)(torch.ones(3))
    assert during[0][2] > before[2]
    assert gc.get_threshold() == before


def test_a_collection_that_is_due_is_postponed_a_bounded_number_of_times():
    program = textwrap.dedent("""\
        import gc
        from fuser_lab.process.collector import RARELY, collecting_rarely

        def due():
            with collecting_rarely():
                for _ in range(11):
                    gc.collect(1)
                made = []
            assert any(each is made for each in gc.get_objects(generation=2)) is (not gc.get_count()[2])
            return gc.get_count()[2]

        gc.collect()
        times = next(number for number in range(RARELY) if due())
        assert 0 < times < RARELY / 11
        gc.collect()
        assert not due()
        assert not gc.get_freeze_count()
        gc.freeze()
        frozen = gc.get_freeze_count()
        assert due()
        assert gc.get_freeze_count() == frozen
    """)
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_inverse_which_asserts_is_captured_on_meta():
    found = fl.from_torch(lambda x: torch.linalg.inv(x * 2) + 1, torch.empty(4, 4, device="meta"))
    assert "aten.linalg_inv_ex.default" in {row.op for row in found.left_to_torch}


def test_meta_tensors_are_captured_with_nothing_that_runs():
    with torch.device("meta"):
        found = fl.from_torch(torch.nn.LayerNorm(1 << 14), torch.empty(1 << 20, 1 << 14))
    (region,) = found.regions
    assert region.specs[0].shape == (1 << 20, 1 << 14)
    assert region.plan.segments[0].bytes > 1 << 36


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: fl.from_torch(torch.sin, x.clone().requires_grad_()), InputError,
         "input 0 requires a gradient, and backward is False; pass backward=True"),
        (lambda x: fl.from_torch(torch.sin, x, backward=True), InputError,
         "neither an input nor a parameter requires a gradient"),
        (lambda x: fl.from_torch(3, x), ArgumentTypeError, "must be a function, a module or an exported program"),
        (lambda x: fl.from_torch(lambda x: 3, x), InputError, "torch captured no op"),
        (lambda x: fl.from_torch(lambda m: m[m.sum(0).nonzero()[0]] + 1, x.to("meta")), InputError,
         "the function's behaviour at test_from_torch.py:"),
        (lambda x: fl.from_torch(lambda m: m + 1 if float(m.sum()) > 0 else m, x.to("meta")), InputError,
         "depends on values, and tensors on the device"),
        (lambda x: fl.from_torch(torch.nn.Linear(4, 4, device="meta"), x), InputError,
         "the module is on meta and its inputs are on cpu"),
        (lambda x: fl.from_torch(lambda a, b: a * b, x, x.to("meta")), InputError,
         "torch does not capture this at test_from_torch.py:"),
        (lambda x: fl.from_torch(lambda a: a * torch.ones(3), x), InputError, "Attempting to broadcast a dimension"),
        (lambda x: fl.from_torch(torch.nn.Linear, x), ArgumentTypeError, "give an instance of Linear"),
        (lambda x: fl.from_torch(torch.sin, x.to_sparse()), UnsupportedError,
         "input 0 is a tensor of layout torch.sparse_coo, which torch does not capture"),
        (lambda x: fl.from_torch(torch.sin, torch.nested.nested_tensor([x])), UnsupportedError, "a nested tensor"),
        (lambda x: fl.from_torch(torch.sin, x.as_subclass(type("Sub", (torch.Tensor,), {}))), UnsupportedError,
         "input 0 is a Sub, a subclass of torch.Tensor that torch does not trace"),
        (lambda x: fl.from_torch(torch.nn.LSTM(4, 4), x[None], backward=True), InputError,
         "torch captured no op of LSTM; it does not capture training of torch.nn.LSTM"),
        (lambda x: copy.deepcopy(fl.from_torch(torch.sin, x)), UnsupportedError, "cannot be copied or pickled"),
        (lambda x: fl.from_torch(torch.sin, x, speed=3), InputError, "from_torch: unknown option 'speed'; choose from"),
        (lambda x: fl.from_torch(torch.softmax, x, dim=0), InputError,
         "precision; keyword arguments of the function go into keywords={...}."),
        (lambda x: fl.from_torch(torch.sin, x, min_region_ops=3, max_region_ops=2), InputError,
         "min_region_ops must not exceed max_region_ops, given 3 and 2"),
        (lambda x: fl.from_torch(torch.sin, x, matmuls="no"), InputError, "matmuls must be 'torch' or 'record'"),
        (lambda x: fl.from_torch(torch.sin, x, min_region_ops=0), ArgumentTypeError, "min_region_ops must be an int"),
        (lambda x: fl.from_torch(torch.sin, x, left_to_torch="sin"), ArgumentTypeError, "must be a list of ops"),
        (lambda x: fl.from_torch(torch.sin, x, left_to_torch=["sinn"]), InputError, "'sinn', which is not a torch op"),
        (lambda x: fl.from_torch(torch.sin, x, strategy="best"), InputError, "strategy"),
        (lambda x: fl.from_torch(torch.sin, x, check=1), ArgumentTypeError, "check must be True or False"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_with_one_sentence(call, error, says):
    with pytest.raises(error) as raised:
        call(torch.randn(4))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_recurrent_layer_is_an_op_of_torchs_without_gradients():
    layer = torch.nn.GRU(4, 4).eval()
    x = torch.randn(3, 2, 4)
    found = fl.from_torch(lambda x: torch.tanh(layer(x)[0]) * 2, x)
    torch.testing.assert_close(found.run(x), torch.tanh(layer(x)[0]) * 2)
    assert found.shares.fused > 0


def test_an_op_of_the_users_that_writes_is_named():
    @torch.library.custom_op("fuser_lab_tests::triple", mutates_args=("x",))
    def triple(x: torch.Tensor) -> None:
        x.mul_(3)

    def function(x):
        y = torch.sin(x)
        triple(y)
        return y + 1

    x = torch.randn(3)
    found = fl.from_torch(function, x)
    assert [row.op for row in found.left_to_torch if not row.is_free] == ["fuser_lab_tests.triple.default"]
    torch.testing.assert_close(found.run(x), function(x))


def test_an_old_torch_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(UnsupportedError, match="from_torch needs torch 2.6 or newer; torch 2.5.1 is installed"):
        fl.from_torch(torch.sin, torch.randn(4))


def test_without_torch_the_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError, match=r"from_torch needs torch: pip install 'fuser_lab\[torch\]'"):
        requirement.torch_for("from_torch")


def test_importing_the_bridge_imports_no_torch():
    code = "import sys, fuser_lab as fl; fl.from_torch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_new_sizes_are_captured_beyond_dynamos_limit_and_known_ones_do_not_touch_its_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._dynamo import config

    found = fl.from_torch(lambda x: x * 2 + 1, torch.ones(3))
    with config.patch(cache_size_limit=1):
        assert found.run(torch.ones(4)).tolist() == [3.0] * 4
    assert len(found.graphs) == 2
    monkeypatch.setattr(type(config), "patch", None)
    assert found.run(torch.ones(4)).tolist() == [3.0] * 4
