"""Plans of torch.compile: kernels, reasons and edits. Kernels are not compiled here: they fill their tensors with 0.

`tests.bridge.inductor_plans` does the same for many functions with real kernels.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

import fuser_lab as fl
from fuser_lab.compilers.inductor import names as inductor_names
from fuser_lab.compilers.inductor.reader import sources_of
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.compilers.reasons import Unsaid
from fuser_lab.errors import ArgumentTypeError, IllegalEdit, InputError, UnsupportedError
from tests.bridge.uncompiled import compile_nothing
from tests.needs import needs


def block(x, w):
    h = x.sin().softmax(-1)
    y = h @ w
    return y.exp(), y.sum(0), x.cos()


@pytest.fixture(scope="module")
def torch():
    found = needs("torch")
    with pytest.MonkeyPatch.context() as patch:
        compile_nothing(patch)
        yield found


@pytest.fixture(scope="module")
def captured(torch):
    from tests.bridge.inductor_plans import with_partitions

    return with_partitions(lambda: fl.from_inductor(block, torch.ones(8, 16), torch.ones(16, 16)))[0]


def test_the_kernels_are_those_of_the_output_code(captured):
    from tests.bridge.inductor_plans import disagreements

    (plan,) = captured.plans
    assert disagreements(plan) == []
    assert [kernel.function for kernel in plan.segments if kernel.opaque] == ["extern_kernels.mm"]
    sources = [kernel.source() for kernel in plan.segments if not kernel.opaque]
    assert all('extern "C"' in source for source in sources)
    opaque = next(kernel for kernel in plan.segments if kernel.opaque)
    with pytest.raises(InputError, match="wrote no source"):
        opaque.source()


def test_the_arguments_of_the_function_name_the_inputs(captured):
    inputs = {name for region in captured.regions for name, tensor in region.names if tensor in {"T0", "T1"}}
    assert {"x"} <= inputs
    assert not {"args", "args.0"} & inputs


def test_each_line_of_a_source_that_computes_shows_its_op(captured):
    (plan,) = captured.plans
    first, line = plan.segments[0], f"test_inductor.py:{block.__code__.co_firstlineno + 1}"
    lines = first.source_lines()
    assert "\n".join(each.text for each in lines) == first.source()
    (sine, *_) = [each for each in lines if "std::sin(" in each.text]
    assert (sine.op, sine.place, sine.inside) == ("sin", line, True)
    assert str(sine).split()[:2] == ["sin", line]
    computing = [each for each in lines if re.search(r"\btmp\d+\b", each.text)]
    assert computing
    assert all(each.node in plan.record.calls for each in computing)
    for kernel in plan.segments:
        inside = {each.node for each in kernel.source_lines() if each.inside} if not kernel.opaque else set()
        assert inside <= set(kernel.nodes)
    of_loops = [each for each in lines if each.text.strip().startswith("for(")]
    assert {(each.op, each.inside) for each in of_loops} == {("", False)}


def test_the_record_changes_no_line_of_the_output_code(torch):
    from torch._inductor.graph import GraphLowering

    from fuser_lab.compilers.inductor.model import Source

    source = Source(
        function=block, inputs=(torch.ones(8, 16), torch.ones(16, 16)), keywords={}, backward=False, options={},
        names=inductor_names.names_for("from_inductor"),
    )
    recorded = source.compile().records[0].output_code
    codes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphLowering, "save_output_code", staticmethod(codes.append))
        source.compile(is_recorded=False)
    plain, with_record = (re.sub(r"AOT ID.*|\b\w+/\S+", "", code) for code in (codes[0], recorded))
    assert plain == with_record


def test_each_pair_that_is_not_fused_has_a_reason_and_who_states_it(captured):
    (plan,) = captured.plans
    whys = [*plan.boundaries(), *plan.siblings()]
    assert len(whys) >= 4
    assert all(why.text and why.by in {"inductor", "fuser_lab"} and not why.together for why in whys)
    by_product = plan.why("mm", "softmax")
    assert (by_product.code, by_product.by) == ("opaque", "fuser_lab")


def test_lines_ops_and_numbers_select_kernels(captured):
    (plan,) = captured.plans
    first = block.__code__.co_firstlineno + 1
    same = plan.why(f"test_inductor.py:{first}", "softmax")
    assert same.together
    assert plan.why(f"{first + 1}", 0).kernels == plan.why("aten.mm", "sin").kernels
    with pytest.raises(InputError, match="no kernel has 'nothing'; choose from kernels 0 to"):
        plan.why("nothing", 0)
    with pytest.raises(InputError, match="kernel must be from 0 to"):
        plan.why(0, 99)


def test_segments_ops_and_paths_select_kernels(captured):
    (plan,) = captured.plans
    first = block.__code__.co_firstlineno + 1
    before, product, after, *_ = plan.segments
    assert plan.why(before, product).kernels == (0, 1)
    sine, exponential = before.ops[0], after.ops[0]
    assert plan.why(sine, exponential).kernels == plan.why(before, after).kernels == (0, 2)
    assert plan.why(f"{__file__}:{first}", product).kernels == (0, 1)
    with pytest.raises(IllegalEdit, match="kernels 0 and 2 are separate"):  # the last line is of kernel 0, too
        plan.glue(str(first), str(first + 2))
    with pytest.raises(IllegalEdit, match="in kernel 0 already"):
        plan.glue(before, "sin")
    with pytest.raises(ArgumentTypeError, match="or a kernel or an op, given None"):
        plan.why(None, 0)


def test_our_own_fusions_are_cut_where_inductor_cuts(captured):
    (plan,) = captured.plans
    ops = {op.target for kernel in plan.segments for op in kernel.ops}
    assert {"aten.sin.default", "aten.exp.default", "aten.cos.default"} <= ops
    kernel_of = {name: kernel.index for kernel in plan.segments for name in kernel.nodes}
    for region, fusion in zip(plan.graph.regions, plan.fusions, strict=True):
        homes = {}
        for node, op in zip(region.call_nodes, region.ops, strict=True):
            for segment in fusion.segments:
                if {expr.name for expr in segment.exprs} & set(op.tensors):
                    homes.setdefault(segment.index, set()).add(kernel_of[node.name])
        assert all(len(kernels) == 1 for kernels in homes.values())
        assert fusion.time_bound().bound <= fusion.time_bound().seconds


def test_cuts_of_other_strategies_stand_beside_those_of_inductor(captured):
    (plan,) = captured.plans
    table = plan.comparison(0).table()
    assert [row[0] for row in table.rows] == ["inductor", "bottom_up", "optimal"]
    assert int(table.rows[2][1]) <= int(table.rows[0][1])
    with pytest.raises(InputError, match="region must be below"):
        plan.comparison(99)


def test_a_cut_is_obeyed_and_its_lines_work_when_pasted(captured, torch):
    from tests.bridge.inductor_plans import Case, pasted

    (plan,) = captured.plans
    kernel = plan.segments[0]
    edited = plan.cut(kernel.writes[0])
    assert len(edited.segments) == len(plan.segments) + 1
    assert edited.edited.difference == 0
    separated = [why for why in edited.boundaries() if why.code == "edit"]
    assert separated
    assert all(why.by == "fuser_lab" for why in separated)
    case = Case("block", block, [torch.ones(8, 16), torch.ones(16, 16)])
    assert pasted(edited, case) == set(map(frozenset, edited.groups))
    again = edited.glue(*separated[0].kernels)
    assert set(map(frozenset, again.groups)) == set(map(frozenset, plan.groups))


def test_kernels_without_a_common_buffer_are_glued_and_the_lines_work_when_pasted(torch):
    from tests.bridge.inductor_plans import Case, pasted

    def three(x, y, z):
        return x.softmax(-1), y.t().sin(), y.sum(0), z.cos()

    inputs = [torch.ones(8, 8), torch.ones(8, 8), torch.ones(64)]
    (plan,) = fl.from_inductor(three, *inputs).plans
    for a, b in (("sin", "cos"), ("amax", "sum_2")):
        edited = plan.glue(a, b)
        assert edited.why(a, b).together
        assert len(edited.segments) == len(plan.segments) - 1
        assert pasted(edited, Case("three", three, inputs)) == set(map(frozenset, edited.groups))
        assert torch._inductor.config._post_fusion_custom_pass is None


def test_lines_that_ran_earlier_do_not_change_the_reason_of_an_edit(captured, torch):
    from torch._inductor.virtualized import V

    (plan,) = captured.plans
    settings = ("fx_graph_cache", "_post_fusion_custom_pass", "inductor_choices_class")
    config = torch._inductor.config
    with config.patch({name: getattr(config, name) for name in settings}), V.set_choices_handler(V.choices):
        exec(plan.to_code(), {})
        with pytest.raises(IllegalEdit, match="their loops .* differ in size"):
            plan.glue(2, 3)


def test_a_refused_glue_compiles_no_kernel(captured, monkeypatch):
    from torch._inductor.async_compile import AsyncCompile

    (plan,) = captured.plans
    compiled = []
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: compiled.append(1))
    opaque = next(kernel.index for kernel in plan.segments if kernel.opaque)
    with pytest.raises(IllegalEdit, match="does not emit one kernel"):
        plan.glue(opaque - 1, opaque)
    assert not compiled


def test_values_are_compared_for_the_arguments_as_they_are(torch):
    x, w = torch.ones(8, 16), torch.ones(16, 16)
    (plan,) = fl.from_inductor(lambda x, w: (x @ w, x.softmax(-1)), x, w).plans
    x.mul_(3)
    edited = plan.cut(next(filter(plan.can_cut, plan.record.writers)))
    assert edited.edited.difference == 0


def test_an_edited_plan_stays_edited_when_torch_compiles_again(captured, torch):
    from tests.bridge.inductor_plans import with_partitions

    (plan,) = captured.plans
    edited, partitions = with_partitions(lambda: plan.cut(plan.segments[0].writes[0]))
    torch._dynamo.reset()
    plan.measure([edited, plan])
    assert partitions.count(set(map(frozenset, edited.groups))) == 2


def test_a_function_with_a_graph_break_is_cut(torch):
    def broken(x):
        y = x.sin().softmax(-1)
        torch._dynamo.graph_break()
        return (y.cos() + 1).sum(0)

    captured = fl.from_inductor(broken, torch.ones(8, 16))
    assert len(captured.plans) == 2
    plan = next(plan for plan in captured.plans if any(map(plan.can_cut, plan.record.writers)))
    for _ in range(10):  # Dynamo compiles a function at most 8 times by default
        edited = plan.cut(next(filter(plan.can_cut, plan.record.writers)))
    assert len(edited.segments) == len(plan.segments) + 1


def test_no_operation_depends_on_itself_where_buffers_are_written_to_in_place(torch):
    def updated(x, y):
        x.mul_(2).add_(y)
        z = x.exp()
        y.copy_(z.sum(0, keepdim=True).expand_as(y))
        return z

    (plan,) = fl.from_inductor(updated, torch.ones(8, 8), torch.ones(8, 8)).plans
    before, left = set(), dict(plan.record.read_by)
    while left:
        ready = {name for name, reads in left.items() if before.issuperset(reads)}
        assert ready
        before |= ready
        left = {name: reads for name, reads in left.items() if name not in ready}
    assert plan.record.in_place


def test_a_write_in_place_after_a_reduction_is_said_to_be_one(torch):
    def averaged(x, y):
        x.mul_(0.9).add_(y, alpha=0.1)
        return x.norm()

    (plan,) = fl.from_inductor(averaged, torch.ones(8, 8), torch.ones(8, 8)).plans
    assert plan.why(0, "copy_").code == "overwrites"


def test_plans_of_one_graph_stand_side_by_side(captured):
    (plan,) = captured.plans
    edited = plan.cut(plan.segments[0].writes[0])
    comparison = fl.compare([plan, edited, "bottom_up", "optimal"])
    first, second, *others = comparison.figures
    assert [row.name for row in comparison.figures] == ["inductor", "inductor, edited", "bottom_up", "optimal"]
    assert second.segments == first.segments + 1
    assert others[1].bytes <= min(first.bytes, others[0].bytes)
    assert [len(region.diffs) for region in comparison.regions] == [3] * len(plan.graph.regions)
    assert any(region.diffs[0] for region in comparison.regions)
    assert fl.compare([plan, edited], measure=True).figures[1].measured > 0
    with pytest.raises(InputError, match=r"at least two plans, of which from_inductor returned the first, given \[\]"):
        fl.compare([])
    with pytest.raises(InputError, match="must be a plan of from_inductor, .* given 'best'"):
        fl.compare([plan, "best"])
    with pytest.raises(InputError, match="is a plan of another graph, or of one of several regions"):
        fl.compare([plan, fl.segment(*fl.example("softmax"))])
    with pytest.raises(ArgumentTypeError, match="after must be timings"):
        fl.compare([plan, "optimal"], [plan])


def test_what_cannot_be_edited_says_why(captured):
    (plan,) = captured.plans
    opaque = next(kernel.index for kernel in plan.segments if kernel.opaque)
    with pytest.raises(IllegalEdit, match=r"does not emit one kernel of .* extern or nop \[inductor\]"):
        plan.glue(opaque - 1, opaque)
    with pytest.raises(IllegalEdit, match="reads it; cut"):
        plan.cut(plan.segments[opaque].writes[0])
    with pytest.raises(IllegalEdit, match="no kernel computes 'T7'"):
        plan.cut("T7")


def test_a_backward_graph_has_a_plan(torch):
    captured = fl.from_inductor(lambda x: x.sin().sum(), torch.ones(8, requires_grad=True), backward=True)
    assert [plan.record.kind for plan in captured.plans] == ["forward", "backward"]


def test_arguments_are_checked(torch):
    with pytest.raises(ArgumentTypeError, match="must be a function or a module, given 3"):
        fl.from_inductor(3)
    with pytest.raises(ArgumentTypeError, match=r"unknown option 'speed'; torch\.compile has mode"):
        fl.from_inductor(torch.sin, torch.ones(3), speed=1)
    with pytest.raises(InputError, match="does not accept the options: Unrecognized mode=fast"):
        fl.from_inductor(torch.sin, torch.ones(3), mode="fast")
    with pytest.raises(ArgumentTypeError, match="keywords must be a dict of keyword arguments or None, given 3"):
        fl.from_inductor(torch.sin, torch.ones(3), keywords=3)
    with pytest.raises(InputError, match="compiled no graph"):
        fl.from_inductor(lambda: 3)


def test_what_the_function_refuses_is_said_with_its_line(torch):
    layer = torch.nn.Linear(8, 4)
    with pytest.raises(InputError, match=r"^from_inductor: Linear\.forward cannot be called .*: missing a requ"):
        fl.from_inductor(layer)
    example = re.escape("fl.from_inductor(model, torch.randn(64, 8)).")
    with pytest.raises(InputError, match=f"^from_inductor: torch does not capture this.*: a and b must .*{example}$"):
        fl.from_inductor(layer, torch.ones(2, 9))

    def refuse(x):
        raise ValueError(f"no {x.ndim} axes")

    with pytest.raises(InputError, match=r"^from_inductor: the function raises .*inductor\.py:\d+ .*: no 1 axes; "):
        fl.from_inductor(refuse, torch.ones(3))


def installed(torch):
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def test_an_unknown_torch_is_said_and_a_missing_name_is_named(torch, monkeypatch):
    assert inductor_names.names_for("from_inductor").note == ""
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.99.0")
        assert "torch 2.99 is not among" in inductor_names.names_for("from_inductor").note
    version = installed(torch)
    changed = inductor_names.NAMES[version] | {"can_fuse": ("torch._inductor.scheduler", "Scheduler.may_fuse")}
    monkeypatch.setitem(inductor_names.NAMES, version, changed)
    with pytest.raises(UnsupportedError, match=r"no torch\._inductor\.scheduler\.Scheduler\.may_fuse"):
        inductor_names.names_for("from_inductor")


def test_what_works_without_a_missing_name_works(torch, monkeypatch):
    keys = ("choices", "fuse_two_nodes", "will_fusion_create_cycle", "launched_triton")
    lost = dict.fromkeys(keys, ("torch._inductor.scheduler", "Scheduler.elsewhere"))
    version = installed(torch)
    monkeypatch.setitem(inductor_names.NAMES, version, inductor_names.NAMES[version] | lost)
    captured = fl.from_inductor(lambda x: (x.sin(), x.cos()), torch.ones(8))
    (plan,) = captured.plans
    assert len(plan.segments) == 1
    assert "has no torch._inductor.scheduler.Scheduler.elsewhere, so edits are missing" in repr(captured)
    with pytest.raises(IllegalEdit, match="a plan of inductor is read-only"):
        plan.to_code()


def test_recorded_plans_open_without_torch(captured, tmp_path):
    path = captured.save(tmp_path / "step.fusions.json")
    (plan,) = captured.plans
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import fuser_lab as fl\n"
        f"model = fl.load_recorded({str(path)!r})\n"
        "print(model)\n"
        "print(model.plans[0].why('mm', 'softmax'), len(model.plans[0].segments[0].source()), model.plans[0].costs)\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    expected = f"{plan.why('mm', 'softmax')} {len(plan.segments[0].source())} {plan.region_costs()}"
    assert printed == f"{captured}\n{expected}\n"
    loaded = fl.load_recorded(path)
    assert loaded.plans[0].decisions == plan.decisions
    assert loaded.plans[0].segments[0].source_lines() == plan.segments[0].source_lines()
    edited = plan.cut(plan.segments[0].writes[0])
    figures = fl.compare([loaded.plans[0], plan, edited]).figures
    assert [row.segments for row in figures] == [len(plan.segments), len(plan.segments), len(plan.segments) + 1]
    assert [row.moved for row in figures[:2]] == [0, 0]
    assert figures[2].moved > 0
    assert figures[0].predicted == figures[1].predicted > 0
    with pytest.raises(IllegalEdit, match="a plan of inductor is read-only"):
        loaded.plans[0].cut(plan.segments[0].writes[0])
    with pytest.raises(UnsupportedError, match="read without a capture"):
        _ = loaded.plans[0].fusions


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "no entry format"), ("{", "not JSON"), ('{"format": "fuser_lab.compiled_plans"}', "has version None"),
        ('{"format": "fuser_lab.compiled_plans", "version": 1, "plans": [3]}', "plans is 3"),
        ('{"format": "fuser_lab.compiled_plans", "version": 1, "plans": [{"plan": {}}]}', "has no entry 'compiler'"),
        ("[" * 500 + "]" * 500, "inside each other"),
    ],
)
def test_files_of_something_else_are_refused(tmp_path, content, why):
    path = tmp_path / "other.fusions.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=why):
        fl.load_recorded(path)


def _with(record, name):
    """A plan with that name for its kind, or with buffers made of others in some way."""
    buffers = {
        "a diamond": {f"t{n}": [f"t{n + 1}", f"u{n}", f"t{n + 1}"] for n in range(60)}
        | {f"u{n}": [f"t{n + 1}"] for n in range(60)},
        "a chain": {f"t{n}": [f"t{n + 1}"] for n in range(20_000)},
        "a circle": {"t0": ["t1"], "t1": ["t0"]},
    }
    plan = record["plans"][0]["plan"]
    if name not in buffers:
        plan["kind"] = name
    else:
        plan["through"] = buffers[name]
        for kernel in plan["kernels"]:
            kernel["reads"].append("t0")
    return record


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("a chain", "buffer 't\\d+' and others are made of more buffers than are read"),
        ("a circle", "buffer 't[01]' is made of itself"),
        ("\x1b[2J", r"it has '\\x1b\[2J', with a character that cannot be printed"),
        ("\ud800", r"it has '\\ud800', with a character that cannot be printed"),
    ],
)
def test_hostile_recorded_plans_are_refused(captured, tmp_path, kind, why):
    path = captured.save(tmp_path / "step.fusions.json")
    path.write_text(json.dumps(_with(json.loads(path.read_text(encoding="utf-8")), kind)), encoding="utf-8")
    with pytest.raises(InputError, match=why):
        fl.load_recorded(path)


def test_buffers_made_of_one_another_in_many_ways_are_followed_once(captured, tmp_path):
    path = captured.save(tmp_path / "step.fusions.json")
    path.write_text(json.dumps(_with(json.loads(path.read_text(encoding="utf-8")), "a diamond")), encoding="utf-8")
    (plan,) = fl.load_recorded(path).plans
    assert plan.record.bases("t0") == ("t60",)
    assert plan.boundaries()


def test_text_of_a_recorded_plan_is_no_html(captured, tmp_path):
    path = captured.save(tmp_path / "step.fusions.json")
    script = "<script>alert(1)</script>"
    record = _with(json.loads(path.read_text(encoding="utf-8")), script)
    for kernel in record["plans"][0]["plan"]["kernels"]:
        kernel["function"] = kernel["loops"] = script
    path.write_text(json.dumps(record), encoding="utf-8")
    (plan,) = fl.load_recorded(path).plans
    assert script in str(plan)
    assert script not in plan._repr_html_()


def test_a_plan_without_kernels_says_so(captured):
    (plan,) = captured.plans
    empty = CompiledPlan(record=replace(plan.record, kernels=()))
    assert empty.siblings() == ()
    with pytest.raises(InputError, match=r"why: the plan has no kernels\."):
        empty.why(0, 1)


@pytest.mark.parametrize(
    ("a", "b", "facts", "code"),
    [
        ((("8", "4"), ()), (("8",), ("2",)), {}, "loop_sizes"),
        ((("8", "4"), ()), (("4", "8"), ()), {}, "loop_order"),
        (((), ("8",)), (("8",), ()), {"follows": True, "reduces": True}, "reduction"),
        (((), ("8",)), (("8",), ()), {"follows": True, "reduces": True, "overwrites": True}, "overwrites"),
        ((("8",), ()), (("8",), ()), {}, "outer_loops"),
        ((("8",), ()), (("8",), ()), {"count": 20, "limit": 16}, "node_limit"),
        ((("8",), ()), (("8",), ()), {"template": True}, "template"),
    ],
)
def test_reasons_that_inductor_does_not_give(a, b, facts, code):
    defaults = {"follows": False, "overwrites": False, "reduces": False, "count": 2, "limit": None, "template": False}
    assert Unsaid.of_loops(a, b, **(defaults | facts)).code == code


def test_sources_are_found_in_output_code():
    code = "a_0 = async_compile.cpp_pybinding(['float*'], r'''\nint x;\n''')\nb = 3\n"
    assert sources_of(code) == {"a_0": "int x;"}


def test_a_module_of_torch_has_no_line_of_ours(torch):
    captured = fl.from_inductor(torch.nn.Softmax(-1), torch.ones(4, 8))
    places = {call.place for plan in captured.plans for call in plan.record.calls.values()}
    assert places == {""}
