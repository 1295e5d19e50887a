"""A target is one record: with a toy target registered, plans generate, evaluate and time kernels for it."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import targets
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.numba_cuda import CudaEmitter
from fuser_lab.errors import DefinitionError, InputError
from fuser_lab.runtime.clocks import HostClock
from fuser_lab.runtime.cpu.host import HostMemory
from fuser_lab.runtime.environment import Environment
from fuser_lab.targets import Form, Target, registry


class LockStepMemory(HostMemory):
    """Host memory whose kernels are evaluated in lock step rather than compiled."""

    target = "lockstep"

    def __init__(self, number: int | None) -> None:
        assert number is None
        self.kernels: list[str] = []

    def calls(self, generated: Any) -> Any:
        def call(env: Environment) -> None:
            self.kernels.append(generated.kernel_ir.target)
            evaluate_kernel(generated.kernel_ir, env.arguments)

        return (call,)

    def ready_runs(self, outputs: object, check: object = None) -> None:
        return None

    def label(self) -> str:
        return "lock step"


TOY = Target(
    name="lockstep", form=Form.BLOCKS, on_host=True, emitter=lambda: CudaEmitter, memory=lambda: LockStepMemory,
    clock=lambda: HostClock,
)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> fl.Plan:
    monkeypatch.setattr(registry, "_TARGETS", dict(registry._TARGETS))
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.softmax(x, 1))
    return fl.segment(fd, [fl.spec((6, 40), "float32")])


def test_a_registered_target_runs_plans(plan: fl.Plan) -> None:
    targets.register(TOY)
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    prepared = plan.prepare("lockstep")
    (out,) = prepared.run([x])
    expected = np.exp(x.astype(float)) / np.exp(x.astype(float)).sum(1, keepdims=True)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    assert prepared.memory.kernels == ["lockstep"] * len(plan.segments)
    assert "generated for lockstep" in plan.segments[0].source("lockstep")
    changed = plan.with_params(0, target="lockstep", threads=64)
    assert changed.segments[0].params("lockstep")[0].schedule.threads[0] == 64


def test_loops_set_by_hand_are_lowered_for_a_target_with_blocks_and_run_there(plan: fl.Plan) -> None:
    targets.register(TOY)
    text, threads = str(plan.segments[0].schedule), r"factor=\d+(, inner_split=True\)  # threads of a block, in x)"
    by_hand = plan.with_schedule(0, re.sub(threads, r"factor=10\1", text))
    assert by_hand.segments[0].loops
    assert by_hand.segments[0].kernel("lockstep").kernel_ir.target == "lockstep"
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    prepared = by_hand.prepare("lockstep")
    np.testing.assert_allclose(*prepared.run([x]), *plan.prepare("cpu").run([x]), rtol=1e-5)
    assert prepared.memory.kernels == ["lockstep"]


def test_a_target_that_is_not_registered_is_refused(plan: fl.Plan) -> None:
    with pytest.raises(InputError, match="target must be 'cpu' or 'cuda', given 'lockstep'"):
        plan.segments[0].source("lockstep")
    with pytest.raises(InputError, match="'cpu', 'cuda' or a device as 'cuda:1', given 'lockstep'"):
        plan.prepare("lockstep")


def test_names_are_taken_once_and_are_words(plan: fl.Plan) -> None:
    assert targets.register(targets.CPU) is targets.CPU
    with pytest.raises(DefinitionError, match="a target named 'cpu' already exists"):
        targets.register(replace(TOY, name="cpu"))
    with pytest.raises(DefinitionError, match="must be a lower-case word"):
        replace(TOY, name="my target")


@pytest.mark.parametrize(
    ("device", "number"), [("cpu", None), ("cuda", None), ("cuda:0", 0), ("cuda:17", 17)],
)
def test_devices_of_targets(device: str, number: int | None) -> None:
    assert targets.target_of(device).number(device) == number


@pytest.mark.parametrize("device", ["", "tpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:12345", "cuda:\u0661"])
def test_what_is_not_a_device(device: str) -> None:
    assert targets.find(device) is None
    with pytest.raises(KeyError):
        targets.target_of(device)
