"""Shortcuts to query schedulers in tests."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fuser_lab import examples
from fuser_lab.cost.verdict import Answer, SchedulerType
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation.oracle import candidate

CASES = Path(__file__).resolve().parents[2] / "data" / "segmentation_cases.json"
BY_NAME = {kind.value.replace("_", ""): kind for kind in SchedulerType}


def fusion_of(body: Callable[[Any], None]) -> Fusion:
    """The fusion that ``body`` records with static sizes."""
    with FusionBuilder() as fd:
        body(fd)
    return bind(fd.fusion, [spec(tv.shape, tv.dtype) for tv in fd.fusion.tensor_inputs]).fusion


def example(name: str, size: str = "full") -> Fusion:
    found = examples.get(name)
    with FusionBuilder() as fd:
        found.define(fd, size)
    return bind(fd.fusion, found.specs(size)).fusion


def ask(fusion: Fusion, names: Iterable[str] | None = None, registry: SchedulerRegistry | None = None) -> Answer:
    """The answer about some expressions of a fusion, or all."""
    wanted = None if names is None else set(names)
    exprs = [expr for expr in fusion.exprs if wanted is None or expr.name in wanted]
    return (registry or SchedulerRegistry()).ask(candidate(fusion, exprs))


def codes(answer: Answer) -> dict[SchedulerType, str]:
    """The code of each verdict."""
    return {verdict.scheduler: verdict.code for verdict in answer.verdicts}


def tensor(fd: Any, *shape: int, dtype: DataType = DataType.Float) -> Any:
    return fd.define_tensor(shape=list(shape), contiguity=[None if n == 1 else True for n in shape], dtype=dtype)


def known_cases() -> list[dict[str, Any]]:
    return json.loads(CASES.read_text())


def case_fusion(case: dict[str, Any]) -> Fusion:
    """The fusion of a known-answer case; raises UnsupportedError for ops that do not exist."""
    with FusionBuilder() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    given = [i["scalar"] if "scalar" in i else spec(i["shape"], i["dtype"]) for i in case["inputs"]]
    return bind(fd.fusion, given).fusion
