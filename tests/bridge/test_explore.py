"""A captured model in a notebook: its map, the explorer of a region, the user's source lines in texts."""

import html
import json
import re
import threading

import pytest
from fuser_lab_widgets import answers
from needs import needs

import fuser_lab as fl
from fuser_lab.errors import InputError
from fuser_lab.ir.tensor_names import entry_for
from fuser_lab.report.view_model import view_plan

torch = needs("torch")
F = torch.nn.functional


@pytest.fixture(scope="module")
def found():
    class Layer(torch.nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return x + F.softmax(self.linear(x).transpose(0, 1).contiguous() * self.scale, -1).t()

    return fl.from_torch(torch.nn.Sequential(Layer(2), Layer(3)), torch.randn(8, 8))


def test_the_explorer_of_a_region_opens_from_the_map(found):
    pytest.importorskip("anywidget", reason="needs the notebook packages")
    shown = fl.explore(found)
    assert shown.explorer is None
    assert shown.map.boxes()["0"].inside is not None  # such a small map is open from the start
    shown.map._receive(shown.map, {"type": "depth", "n": 1}, [])
    shown.map.press("0")
    (leaf,) = [box for box in shown.map.boxes().values() if box.kind == "region" and box.id.startswith("0#")]
    shown.map.press(leaf.id)
    assert "F.softmax(self.linear(x)" in shown.map.view["side"]
    softmax = next(op for op in found.regions[0].ops if "exp" in op.target)
    event = {"type": "open", "graph": 0, "region": int(leaf.name), "tensor": softmax.tensors[-1]}
    shown.map._receive(shown.map, event, [])
    assert shown.explorer.plan == found.regions[0].plan
    assert shown.explorer.selection == softmax.tensors[-1]
    assert shown.explorer in shown.children
    shown.show_region(0, 1)
    assert shown.explorer.plan.sources == found.regions[1].plan.sources
    with pytest.raises(InputError, match="graph 0 has no region 9"):
        shown.show_region(0, 9)
    shown.map._receive(shown.map, {"type": "costs"}, [])
    shown.map.wait(300)
    assert "What the cuts cost" in shown.map.view["below"]
    shown.map._receive(shown.map, {"type": "out", "id": leaf.id}, [])
    assert leaf.id not in shown.map.boxes()


def test_a_search_opens_the_modules_around_each_match_in_turn(found):
    shown = fl.explore(found)
    shown.map._receive(shown.map, {"type": "depth", "n": 1}, [])
    word = next(box.ops[0] for box in shown.map.boxes_to_find() if "#" in box.id)
    matches = [box.id for box in shown.map.boxes_to_find() if box.id and word in " ".join(box.ops)]
    inner = [name for name in matches if "#" in name]
    assert inner
    assert not set(inner) & set(shown.map.boxes())  # closed
    reached = []
    for _ in matches:
        shown.map._receive(shown.map, {"type": "find", "text": f" {word.upper()} "}, [])
        reached.append(shown.map.view["selected"])
        assert reached[-1] in shown.map.boxes()
    assert set(inner) <= set(reached)
    shown.map._receive(shown.map, {"type": "find", "text": "nothing of the kind"}, [])
    assert shown.map.view["status"] == "No box contains 'nothing of the kind'."
    shown.close()


def test_the_map_shows_the_figures_of_the_table(found):
    pytest.importorskip("anywidget", reason="needs the notebook packages")
    shown = fl.explore(found)
    shown.map._receive(shown.map, {"type": "step"}, [])
    shown.map.wait(300)
    step = found.latest_step
    assert step.headline.partition(".")[0] in shown.map.view["below"]
    assert "Memory over the step" in shown.map.view["below"]
    assert "100.0 %" in shown.map.view["side"]
    shown.map.press("0#0") if "0#0" in shown.map.boxes() else shown.map.press("0")
    assert "In the step: " in shown.map.view["side"]
    shown.map._receive(shown.map, {"type": "step"}, [])
    assert shown.map.view["below"] == ""


def test_the_whole_graph_names_its_results_and_no_other_ops(found):
    pytest.importorskip("anywidget", reason="needs the notebook packages")
    shown = fl.explore(found)
    assert "from other ops" not in shown.map.view["side"]
    assert "its results have " in shown.map.view["side"]
    shown.close()


def test_one_table_is_below_the_map_at_a_time(found):
    pytest.importorskip("anywidget", reason="needs the notebook packages")
    shown = fl.explore(found)
    assert shown.map.view["status"].startswith("Click a module")
    headings = {"step": "What the step costs", "costs": "What the cuts cost"}
    for kind in ("step", "costs", "step"):
        shown.map._receive(shown.map, {"type": kind}, [])
        shown.map.wait(300)
        assert [each for each, words in headings.items() if words in shown.map.view["below"]] == [kind]
    shown.close()


def test_rows_of_the_step_open_the_region_of_their_graph():
    pytest.importorskip("anywidget", reason="needs the notebook packages")
    from fuser_lab_widgets import model_panels

    def twice(x):
        y = x.relu() * 2
        torch._dynamo.graph_break()
        return y.tanh() * 3

    model = fl.from_torch(twice, torch.randn(8, 4))
    below = html.unescape(model_panels.step(model.step(), "", asked=True))
    sent = [json.loads(text) for text in re.findall(r'data-send="(\{.*?\})"', below)]
    opened = sorted((event["type"], event["graph"], event["region"]) for event in sent)
    assert opened == [("open", 0, 0), ("open", 1, 0)]
    assert "inference 0 graph break" in below


def test_costs_that_are_found_while_the_map_is_drawn_are_shown(found, monkeypatch):
    pytest.importorskip("anywidget", reason="needs the notebook packages")
    from fuser_lab_widgets import model_panels

    shown, write, main = fl.explore(found), model_panels.costs, threading.current_thread()
    known, written = found.costs(), threading.Event()

    def slowly(*given, **options):
        text = write(*given, **options)
        if threading.current_thread() is main:
            written.set()
            shown.map.wait(0.5)  # the thread has computed the costs, and draws if allowed
        return text

    monkeypatch.setattr(model_panels, "costs", slowly)
    monkeypatch.setattr(type(found), "costs", lambda _: known if written.wait(60) else None)
    shown.map._receive(shown.map, {"type": "costs"}, [])
    shown.map.wait(300)
    assert "What the cuts cost" in shown.map.view["below"]


def test_why_and_pictures_tell_the_users_line(found):
    plan = found.regions[0].plan
    softmax = next(op for op in found.regions[0].ops if "exp" in op.target)
    assert softmax.origin.module == "0"
    plan = plan.cut(softmax.tensors[-1]) if len(plan.segments) == 1 else plan
    names = [plan.segments[side].outputs[-1].name for side in (0, -1)]
    line = "from 0: return x + F.softmax(self.linear(x)"
    assert line in str(plan.why(*names))
    assert "test_explore.py" in str(plan.why(*names))
    shown = plan._repr_mimebundle_()
    assert all("F.softmax(self.linear(x)" in shown[form] for form in ("image/svg+xml", "text/html", "text/plain"))
    tensor = softmax.tensors[-1]
    segment = next(one for one in plan.segments if tensor in {e.name for e in one.exprs})
    for target in ("cpu", "cuda"):
        kernel, told = segment.kernel(target).source.split("\n"), segment.source(target).split("\n")
        assert [line.partition("  <- ")[0] for line in told] == kernel
        comments = [line for line in told if line.lstrip().startswith(f"# {tensor} = ")]
        assert comments
        assert all(line.endswith(dict(plan.sources)[tensor]) for line in comments)
    with pytest.raises(fl.FuserLabError, match=f"(?s){tensor}.* comes from 0: return"):
        plan.cut((tensor, names[0]))


def test_lines_stay_where_a_plan_is_made_anew(found):
    plan = found.regions[0].plan
    tensor = plan.segments[0].exprs[0].name
    assert plan.resegmented("unfused").sources == plan.annotate(tensor).sources == plan.sources
    assert entry_for(f"{tensor}_lower", dict(plan.sources)) == dict(plan.sources)[tensor]
    panel = answers.answer(plan, view_plan(plan), "segment:0")
    lines = [text for name, text in panel["facts"] if name == "line"]
    assert lines == list(dict.fromkeys(line for _, line in plan.sources))


def test_sources_are_no_part_of_a_plans_identity(found):
    first = found.regions[0].plan
    assert first.sources
    again = fl.segment(found.regions[0].definition, found.regions[0].specs)
    assert again == first
    assert again.sources == ()


class Norms(torch.nn.Module):
    """Layers whose gradients need sums of rows and of columns."""

    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(512) for _ in range(3))
        self.mix = torch.nn.Linear(512, 512)

    def forward(self, x):
        for norm in self.norms:
            x = x + F.silu(self.mix(norm(x)))
        return x.softmax(0).square().mean()


def counted(plan):
    """Bytes that a plan's segments read from each other, computed from their expressions alone."""
    total = 0
    for reader in plan.segments:
        made = {tensor.name for expr in reader.exprs for tensor in expr.tensor_outputs}
        read = {tensor.name: tensor.nbytes for expr in reader.exprs for tensor in expr.tensor_inputs}
        others = {
            tensor.name for segment in plan.segments for expr in segment.exprs for tensor in expr.tensor_outputs
        }
        total += sum(size for name, size in read.items() if name in others - made)
    return total


def test_costs_are_what_each_segment_reads_of_others():
    with torch.device("meta"):
        found = fl.from_torch(Norms(), torch.empty(1024, 512), backward=True)
    costs = found.costs()
    regions = [region for graph in found.graphs for region in graph.regions]
    assert costs.bytes_crossing == sum(counted(region.plan) for region in regions) > 0
    assert sum(costs.by_module.values()) == sum(costs.by_reason.values()) == costs.bytes_crossing
    most_expensive = dict(costs.tables())["Most expensive boundaries"].rows
    assert len(most_expensive) == min(10, len(costs.boundaries))
    assert all(boundary.rule and boundary.why for boundary in costs.boundaries)
    sizes = [boundary.bytes for boundary in costs.boundaries]
    assert sizes == sorted(sizes, reverse=True)


def test_costs_count_equal_regions_and_name_modules(tmp_path):
    class Sums(torch.nn.Module):
        def forward(self, x):
            y = torch.sin(x)
            return torch.mm(y + y.sum(0) + y.sum(1, keepdim=True), y)

    with torch.device("meta"):
        found = fl.from_torch(torch.nn.Sequential(Sums(), Sums(), Sums()), torch.empty(4096, 4096))
    costs = found.costs()
    assert [boundary.count for boundary in costs.boundaries] == sorted(
        (boundary.count for boundary in costs.boundaries), reverse=True,
    )
    (plan,) = {region.plan for region in found.regions}
    crossing = sum(boundary.bytes for boundary in costs.boundaries)
    assert costs.bytes_crossing == crossing == sum(costs.by_module.values()) == sum(costs.by_reason.values())
    assert crossing == 3 * counted(plan) >= 3 * plan.bytes_crossing > 0
    assert set(costs.by_module) == {"*"}
    assert all(shown.count(costs.boundaries[0].rule.partition(";")[0]) for shown in (repr(costs), costs.to_json()))
    assert "test_explore.py" in repr(costs)
    frame = costs.to_pandas()
    assert frame["crossing [bytes]"].sum() == crossing
    for name in ("c.csv", "c.json", "c.html", "c.txt"):
        assert "test_explore.py" in costs.save(tmp_path / name).read_text()
    with pytest.raises(InputError, match=r"the extension must be one of \.csv"):
        costs.save(tmp_path / "c.xls")

