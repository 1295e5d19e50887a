"""The workloads of the benchmarks: no result depends on rounding, so any deviation is an error, and shares of sizes."""

from dataclasses import replace
from functools import partial
from math import prod

from needs import needs

from tests.benchmarks.cpu.variants import SETS, SHARE, variant
from tests.benchmarks.gpu.workloads import WORKLOADS
from tests.benchmarks.second import SECOND

SMALL = 64  # a sixty-fourth of the elements


def test_no_rounding_decides_the_step_of_adam():
    torch = needs("torch")
    load = next(one for one in SECOND if one.name == "adam").at(SMALL)
    weight, m, v, grad = (t.double() for t in load.inputs())
    v.requires_grad_(True)
    step = load.torch(weight, m, v, grad)[0]
    step.sum().backward()
    change = (v.grad * v.detach()).abs().max() * torch.finfo(torch.float32).eps  # by one rounding of the second moment
    assert float(change / step.detach().abs().max()) < 1e-4, "a tenth of the tolerance"


def test_a_sixteenth_has_a_sixteenth_of_the_elements():
    for whole, part in zip(WORKLOADS, SETS["first"], strict=True):
        assert prod(part.shapes[0]) * SHARE == prod(whole.shapes[0]), whole.name
        assert part.nbytes * SHARE == whole.nbytes, whole.name


def test_no_two_workloads_of_the_cpu_benchmark_share_a_name():
    names = [load.name for load in SETS["all"]]
    assert len(set(names)) == len(names) == sum(len(SETS[name]) for name in ("float", "first", "second", "third"))


def test_every_workload_stays_compiled_by_torch(monkeypatch):
    torch = needs("torch")
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    tiny = next(load for load in SECOND if load.name == "tiny_gelu")
    loads = [replace(tiny, name=f"gelu{number}") for number in range(10)]
    calls = [variant("compile", load, load.inputs(), load.outputs()) for load in loads]
    counters.clear()
    for call in calls + calls:
        call()
    assert counters["frames"] == {"total": len(loads), "ok": len(loads)}
