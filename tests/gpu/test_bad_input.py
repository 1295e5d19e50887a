"""Bad input and bad moments on a GPU: other devices, other streams, interrupts; the next call works."""

import gc
import signal
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build
from backend.reductions import softmax
from needs import needs

import fuser_lab as fl
from fuser_lab.cost.device import A100
from fuser_lab.errors import InputError
from fuser_lab.ir import Fusion
from fuser_lab.runtime.gpu import cubins
from fuser_lab.runtime.plan.executor import PreparedPlan
from tests.kernels import generate, prepare

torch = needs("torch")
pytestmark = pytest.mark.gpu


def chain(size: int, factor: float) -> PreparedPlan:
    """Six segments with six kernels; another factor gives different kernels."""

    def record(fd: Any, x: Any) -> Any:
        total = x
        for n in range(6):
            total = fd.ops.add(fd.ops.mul(x, factor + n), total)
        return total

    whole = build(record, [(size,)], D.Float)
    parts = [whole.exprs[n : n + 2] for n in range(0, len(whole.exprs), 2)]
    segments = [
        (Fusion(
            inputs=tuple(dict.fromkeys(tv for e in part for tv in e.tensor_inputs if tv not in {p.out for p in part})),
            exprs=tuple(part), outputs=(part[-1].out,),
        ), S.POINTWISE)
        for part in parts
    ]
    return prepare(whole, segments, "cuda", allow_fallback=False, compile_now=False)


def wanted(x: Any, factor: float) -> Any:
    return x * (1 + sum(factor + n for n in range(6)))


def added() -> fl.FusionDefinition:
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(x, y))
    return fd


def test_a_tensor_of_the_host_beside_one_of_the_gpu_is_told_in_a_sentence() -> None:
    x = torch.ones(3, 4)
    fd = added()
    with pytest.raises(InputError, match="on different devices, (cpu and cuda:0|cuda:0 and cpu)"):
        fd.execute([x, x.cuda()])
    assert torch.equal(fd.execute([x.cuda(), x.cuda()])[0].cpu(), 2 * x)


def test_an_interrupt_while_compiling_leaves_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any,
) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    plan, x = chain(1000, 0.37), torch.randn(1000, device="cuda")
    compiled = []
    original = cubins.compile_phases

    def interrupted(*given: Any) -> Any:
        compiled.append(given)
        if len(compiled) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(cubins, "compile_phases", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plan.run([x])
    torch.testing.assert_close(plan.run([x])[0], wanted(x, 0.37), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("at", [1, 4])
def test_an_interrupt_between_two_launches_frees_what_the_run_had(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser_lab.runtime.gpu.device import DeviceCall

    plan, x = chain(1 << 20, 0.5), torch.randn(1 << 20, device="cuda")
    plan.prepare([x])
    gc.collect()  # so that garbage of earlier tests is not freed in between
    held = torch.cuda.memory_allocated()
    launched = []
    original = DeviceCall.__call__

    def interrupted(self: Any, env: Any) -> None:
        launched.append(self)
        if len(launched) == at:
            signal.raise_signal(signal.SIGINT)
        original(self, env)

    with monkeypatch.context() as patch:
        patch.setattr(DeviceCall, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plan.run([x])
    assert len(launched) == at
    gc.collect()
    assert torch.cuda.memory_allocated() <= held + plan.storage_bytes
    torch.testing.assert_close(plan.run([x])[0], wanted(x, 0.5), rtol=1e-5, atol=1e-4)
    assert torch.cuda.memory_allocated() <= held + plan.storage_bytes


def test_an_input_that_another_stream_still_writes_is_waited_for_where_the_caller_says_so() -> None:
    plan, side = chain(1 << 22, 0.25), torch.cuda.Stream()
    x = torch.zeros(1 << 22, device="cuda")
    plan.run([x])
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(2.0)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(plan.run([x])[0], wanted(torch.full_like(x, 2.0), 0.25))


def test_a_run_on_a_side_stream_reads_what_that_stream_wrote() -> None:
    plan, side = chain(1 << 22, 0.25), torch.cuda.Stream()
    x = torch.zeros(1 << 22, device="cuda")
    plan.run([x])
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        (got,) = plan.run([x])
    side.synchronize()
    torch.testing.assert_close(got, wanted(torch.full_like(x, 3.0), 0.25))


@pytest.mark.parametrize("columns", [40_000, 70_000, 131_072])
def test_kernels_within_the_limits_of_a_smaller_gpu_are_right(columns: int) -> None:
    """An A100 has less shared memory and fewer multiprocessors; its kernels run on any later GPU."""
    fusion = build(softmax, [(150, columns)], D.BFloat16)
    plan = prepare(fusion, [(fusion, S.INNER_PERSISTENT)], "cuda", allow_fallback=False, compile_now=False)
    plan.memory.gpu = A100
    assert plan.memory.gpu.sms < torch.cuda.get_device_properties(0).multi_processor_count
    x = torch.randn(150, columns, device="cuda", dtype=torch.bfloat16)
    (got,) = plan.run([x])
    torch.testing.assert_close(got.float(), torch.softmax(x.float(), 1), rtol=1e-2, atol=1e-6)
    kernel = generate(fusion, S.INNER_PERSISTENT, "cuda", device=A100).kernel_ir
    assert [p.launch for p in plan.steps([x])[0].generated.kernel_ir.phases] == [p.launch for p in kernel.phases]
    assert all(phase.launch.shared <= A100.shared_per_block for phase in kernel.phases)


def test_outputs_of_the_host_are_filled_and_wrong_ones_refused() -> None:
    fd, x = added(), torch.ones(3, 4, device="cuda")
    plan = fl.segment(fd, [x, x]).prepare("cuda")
    with pytest.raises(InputError, match="out"):
        plan.run([x, x], [torch.empty(3, 5, device="cuda")])
    with pytest.raises(InputError, match="out"):
        plan.run([x, x], [torch.empty(3, 4, device="cuda", dtype=torch.int32)])
    given = np.zeros((3, 4), np.float32)
    plan.run([x, x], [given])
    np.testing.assert_array_equal(given, 2)
