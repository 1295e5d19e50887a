"""A region of a jaxpr: arrays of JAX, computed by the plan's kernels on the CPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fuser_lab.bridge.jax_graph import Known, Step, bound
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.requirement import jax_for
from fuser_lab.bridge.signature import Cutting
from fuser_lab.targets import CPU

if TYPE_CHECKING:
    from fuser_lab.runtime.plan.executor import PreparedPlan


class JaxRegion(Region):
    """Equations of a jaxpr that run as one fusion."""

    library: ClassVar[str] = "JAX"

    def __init__(self, index: int, nodes: Sequence[Step], cutting: Cutting, *, checked: bool = False) -> None:
        super().__init__(index, nodes, cutting, checked=checked)
        self._prepared: PreparedPlan | None = None

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        jnp = jax_for("fuser_lab.bridge").numpy
        if self._prepared is None:
            self._prepared = self.recorded.plan.prepare(CPU.name, evaluate_refused=True)
        outputs = self._prepared.run([np.asarray(x) for x in inputs])
        # JAX may adopt memory without a copy, and the plan may return memory of an input or its own.
        return [jnp.array(y, copy=True) for y in outputs]

    def _by_library(self, inputs: Sequence[Any]) -> Sequence[Any]:
        values = dict(zip(self.input_nodes, inputs, strict=True))
        for node in self._nodes:
            evaluate(node, values)
        return [values[node] for node in self.output_nodes]


def evaluate(node: Step, values: dict[Step, Any]) -> None:
    """Compute the results of a node with JAX, and add them to the values."""
    if node.equation is None:
        if node.op == "call_function":  # one of several results
            source, place = node.args
            values[node] = values[source][place]
        return
    operands = [operand.value if isinstance(operand, Known) else values[operand] for operand in node.value]
    results = bound(node.equation, operands)
    values[node] = results[0] if len(results) == 1 else results
