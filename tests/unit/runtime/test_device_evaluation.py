"""On a device, segments of the scheduler Greedy are computed there: by torch, and by our kernels."""

import warnings

import numpy as np
import pytest
from gpu.evaluated_ops import cases, outcome
from needs import needs
from stand_in_gpu import stand_in_gpu

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.runtime import evaluate
from tests.kernels import prepare

torch = needs("torch")
GREEDY = SchedulerType.GREEDY


def prepared(plan):
    return prepare(plan.fusion, [(one.fusion, one.scheduler) for one in plan.segments], "cuda:0")


@pytest.fixture
def no_copies(monkeypatch):
    """Fail if anything that the library evaluates is copied to the host."""

    def refused(array):
        msg = f"a tensor of {tuple(array.shape)} is copied to the host."
        raise AssertionError(msg)

    monkeypatch.setattr(evaluate, "to_numpy", refused)


def rows():
    """Rows without equal elements, exact in BFloat16."""
    return torch.stack([torch.randperm(64) for _ in range(16)]) - 30.0


def running_sums():
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True)
        fd.add_output(fd.ops.mul(fd.ops.cumsum(fd.ops.abs(x), 1), 0.5))
    return fd, lambda: [rows()], lambda x: [x.abs().cumsum(1) * 0.5]


def sorted_and_scattered():
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True)
        places = fd.ops.argsort(fd.ops.neg(x), 1)
        fd.add_output(fd.ops.add(places, 1))
        fd.add_output(fd.ops.mul(fd.ops.scatter(x, places, fd.ops.relu(x), 1), 2.0))

    def wanted(x):
        places = torch.argsort(-x, dim=1)
        return [places + 1, x.scatter(1, places, x.relu()) * 2]

    return fd, lambda: [rows()], wanted


def largest():
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True, dtype=DataType.BFloat16)
        values, places = fd.ops.topk(fd.ops.mul(fd.ops.cast(x, dtype=DataType.Float), 2.0), fd.define_scalar(4), 1)
        fd.add_output(fd.ops.neg(values))
        fd.add_output(places)

    def wanted(x):
        values, places = (x.float() * 2).topk(4, 1)
        return [-values, places]

    return fd, lambda: [rows().bfloat16()], wanted


def with_a_number():
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True)
        factor = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.mul(fd.ops.cumsum(fd.ops.mul(x, factor), 1), 0.5))
    return fd, lambda: [rows(), 2.0], lambda x, factor: [(x * factor).cumsum(1) * 0.5]


@pytest.mark.usefixtures("no_copies")
@pytest.mark.parametrize("make", [running_sums, sorted_and_scattered, largest, with_a_number])
def test_nothing_goes_through_the_host(make):
    fd, inputs, wanted = make()
    plan = fl.segment(fd, inputs())
    assert GREEDY in [one.scheduler for one in plan.segments]
    with stand_in_gpu() as launched:
        run = prepared(plan)
        for seed in range(3):
            torch.manual_seed(seed)
            given = inputs()
            outputs = run.run(given)
            into = [torch.full_like(one, 7) for one in outputs]
            run.run(given, into)
            for a, b, c in zip(outputs, into, wanted(*given), strict=True):
                torch.testing.assert_close(a, c)
                torch.testing.assert_close(b, a, rtol=0, atol=0)
    assert launched.phases, "kernels compute the rest"


@pytest.mark.usefixtures("no_copies")
def test_segments_around_it_read_and_write_the_same_memory():
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True)
        shares = fd.ops.softmax(x, 1)
        sums = fd.ops.mul(fd.ops.cumsum(shares, 1), 0.5)
        fd.add_output(fd.ops.sum(sums, [0]))
        fd.add_output(sums)
    plan = fl.segment(fd)
    assert len(plan.segments) > 1
    with stand_in_gpu():
        run = prepared(plan)
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(16, 64)
            bound = run.bind([x])
            for step in bound.steps:
                step()
            bound.finish()
            wanted = x.softmax(1).cumsum(1) * 0.5
            for a, b in zip(bound.outputs, [wanted.sum(0), wanted], strict=True):
                torch.testing.assert_close(a, b)


def test_running_sums_are_written_where_they_belong(monkeypatch):
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True)
        fd.add_output(fd.ops.cumsum(x, 1))
        fd.add_output(fd.ops.cumprod(x, 0))
        fd.add_output(fd.ops.cumsum(x, 0, fd.define_scalar(2.0)))
    plan = fl.segment(fd)
    x, copied = rows() / 30, []
    with stand_in_gpu():
        run = prepared(plan)
        copy = type(run.memory).copy
        monkeypatch.setattr(type(run.memory), "copy", lambda memory, *two: (copied.append(two), copy(memory, *two)))
        got = run.run([x])
    torch.testing.assert_close(got, [x.cumsum(1), x.cumprod(0), x.cumsum(0) + 2], rtol=1e-5, atol=1e-5)
    assert len(copied) == 1, "only torch's sums have no preceding kernel"


def test_a_result_with_elements_that_share_memory_is_copied_there():
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 64], contiguity=True)
        fd.add_output(fd.ops.broadcast_in_dim(fd.ops.cumsum(fd.ops.abs(x), 1), [16, 64, 8], [0, 1]))
    fusion, x = fl.segment(fd).fusion, rows()
    with stand_in_gpu():
        (got,) = prepare(fusion, [(fusion, GREEDY)], "cuda:0").run([x])
    assert got.stride() == (64, 1, 0)
    torch.testing.assert_close(got, x.abs().cumsum(1)[:, :, None].expand(16, 64, 8))


@pytest.mark.usefixtures("no_copies")
def test_single_elements_are_computed_by_one_thread():
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([], contiguity=[]) for _ in range(2))
        row = fd.define_tensor([-1], contiguity=[False])
        factor = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.neg(fd.ops.mul(fd.ops.mul(a, b), factor)))
        fd.add_output(fd.ops.relu(fd.ops.slice(row, [2], [3])))
        fd.add_output(fd.ops.broadcast(b, [True]))
        fd.add_output(fd.ops.full([], 7.0, DataType.Float))
    given = [torch.tensor(3.0), torch.tensor(4.0), torch.arange(16.0)[::2], 0.5]
    plan = fl.segment(fd, given)
    assert {one.scheduler for one in plan.segments} <= {SchedulerType.NO_OP, SchedulerType.EXPR_EVAL}
    with stand_in_gpu() as launched:
        run = prepared(plan)
        for _ in range(2):
            expected = [torch.tensor(-6.0), torch.tensor([4.0]), torch.tensor([4.0]), torch.tensor(7.0)]
            torch.testing.assert_close(run.run(given), expected)
    assert len({phase.name for phase in launched.phases}) == 3, "a view needs no kernel"


# What torch has no kernel for

SCARCE = ("UInt64", "Bool", "Half", "Float8_e4m3fn", "Float8_e8m0fnu")


@pytest.mark.parametrize("name", SCARCE)
def test_ops_that_torch_lacks_in_a_dtype_are_computed_from_copies(name):
    """The last sample of each op; ``python -m tests.gpu.evaluated_ops`` tries all of them, on any device."""
    one_of_each = {case.op: case for case in cases() if case.dtype is DataType[name]}
    assert len(one_of_each) > 15
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {op: outcome(case, "cpu") for op, case in one_of_each.items()}
    assert "torch" in found.values()
    assert name == "Half" or "numpy" in found.values()


def test_a_number_out_of_range_becomes_the_integer_that_a_kernel_gives():
    numbers = torch.tensor([float("nan"), float("inf"), -1.5, 300.7, 1e10, -1e20, 2.0**63], dtype=torch.float64)
    for target in ("Int", "Int32", "UInt64", "Byte", "Short"):
        with FusionDefinition() as fd:
            x = fd.define_tensor([7], contiguity=True, dtype=DataType.Double)
            fd.add_output(fd.ops.cast(x, dtype=DataType[target]))
        fusion = fl.segment(fd).fusion
        (got,) = evaluate.evaluate_segment(fusion, {fusion.inputs[0].name: numbers}).values()
        np.testing.assert_array_equal(got.numpy(), fd.reference([numbers.numpy()])[0])


def test_an_error_other_than_a_missing_kernel_is_raised(monkeypatch):
    def broken(*_, **__):
        msg = "CUDA error: an illegal memory access was encountered"
        raise RuntimeError(msg)

    monkeypatch.setattr(torch, "argsort", broken)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.argsort(fd.define_tensor([7], contiguity=True), 0))
    fusion = fl.segment(fd).fusion
    with pytest.raises(RuntimeError, match="illegal memory access"):
        evaluate.evaluate_segment(fusion, {fusion.inputs[0].name: torch.ones(7)})
