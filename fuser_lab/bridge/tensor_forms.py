"""The memory of the tensors of a graph: each is a form of a base, whose memory its views share."""

import math
from collections.abc import Sequence
from typing import Any

from fuser_lab.bridge.lowerings.views import VIEWS
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.traced import Node, target_of, traced_tensor

Form = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, and elements from the first one of the base
Unit = Any  # a node, or a region


def forms_of(units: Sequence[Unit]) -> dict[Node, tuple[Node, Form]]:
    """Return the base of each tensor, and its form in it."""
    forms: dict[Node, tuple[Node, Form]] = {}
    nodes: list[Node] = []
    computed: set[Node] = set()
    for unit in units:
        nodes += (*unit.output_nodes, *unit.view_nodes) if isinstance(unit, Region) else (unit,)
        computed.update(unit.output_nodes if isinstance(unit, Region) else ())
    for node in nodes:
        value = node.meta.get("val")
        traced = traced_tensor(value) if node.op != "output" else None
        if traced is None:
            continue
        base, start = node, 0
        if node not in computed and target_of(node) in VIEWS and node.args[0] in forms:
            source = forms[node.args[0]][0]
            held = source.meta["val"]
            if _storage(value) == _storage(held) and value.dtype is held.dtype:
                base, start = source, value.storage_offset() - held.storage_offset()
        forms[node] = base, (traced.shape, traced.strides, start)
    return forms


def _storage(value: Any) -> int:
    return int(value.untyped_storage()._cdata)  # noqa: SLF001 - a fake tensor has no address


def is_same_memory(form: Form, traced: Form) -> bool:
    """Whether two forms cover exactly the same memory: both are dense."""
    return form[2] == 0 and math.prod(form[0]) == math.prod(traced[0]) and is_dense(form) and is_dense(traced)


def is_dense(form: Form) -> bool:
    """Whether a form has all elements of its memory, each once."""
    step = 1
    for stride, size in sorted(pair for pair in zip(form[1], form[0], strict=True) if pair[1] != 1):
        if stride != step:
            return False
        step *= size
    return True
