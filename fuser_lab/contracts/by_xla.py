"""The partition that jax.jit makes of a function."""

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from fuser_lab.api.subject import Subject
from fuser_lab.arguments import brief, short_text
from fuser_lab.bridge.jax_model import from_jax
from fuser_lab.bridge.requirement import jax_for
from fuser_lab.compilers.xla import from_xla
from fuser_lab.contracts.by_segmenter import costs_of_plans
from fuser_lab.contracts.call import Call, Compiled, check_function, circumstances, options_text
from fuser_lab.contracts.graph_parts import decisions_between, kernel_groups
from fuser_lab.contracts.partition import (
    GraphPartition,
    OpNote,
    Origin,
    Partition,
    kernels_in_order,
    stable_names,
)
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.plan.planning import device_of


def partition_by_xla(call: Call) -> Compiled:
    """Return the partition with the plan of `from_xla`; the bound is that of our own capture of the function."""
    jax = jax_for(call.who)
    check_function(call)
    with _jax_device(jax, call):
        made = from_xla(call.function, *call.inputs, keywords=call.keywords, **call.options)
    plan = made.plans[0]
    record = plan.record
    computed = dict.fromkeys(name for kernel in plan.segments for name in kernel.nodes)
    origins = {
        name: Origin(called=record.calls[name].original or record.calls[name].target,
                     part=record.calls[name].target.replace("-", "_"), note=OpNote(place=record.calls[name].place))
        for name in computed
    }
    names = stable_names(computed, origins)
    kernels = kernels_in_order(kernel_groups(plan), names)
    graph = GraphPartition(
        kind="inference", ops={names[op]: origins[op].note for op in names}, kernels=kernels,
        decisions=tuple(decisions_between(plan, kernels)),
    )
    costs: dict[str, Any] = {"bytes": sum(kernel.bytes for kernel in kernels)}
    with suppress(FuserLabError):
        captured = from_jax(getattr(call.function, "__wrapped__", call.function), *call.inputs, keywords=call.keywords)
        subject = Subject(caller=call.who, captured=captured)
        costs = {**costs_of_plans(subject, tuple(region.plan for region in captured.regions)), **costs, "seconds": 0.0}
    partition = Partition(
        compiler="xla", device=str(jax.devices()[0].device_kind), model=device_of(None).name, graphs=(graph,),
        options=options_text(call.options), **costs,
        **circumstances(call, {"jax": str(jax.__version__), "jaxlib": str(__import__("jaxlib").__version__)}),
    )
    return Compiled(call=call, partition=partition, plans=(plan,))


def _jax_device(jax: Any, call: Call) -> AbstractContextManager[Any]:
    if call.device is None:
        return nullcontext()
    try:
        made: AbstractContextManager[Any] = jax.default_device(jax.devices(call.device)[0])
    except RuntimeError as error:
        msg = f"{call.who}: JAX has no device {short_text(call.device)}: {brief(str(error).partition(chr(10))[0])}"
        raise InputError(msg) from None
    return made
