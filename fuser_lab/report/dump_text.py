"""A plan as nvFuser prints a segmented fusion: ``NVFUSER_DUMP=segmented_fusion``."""

from collections.abc import Iterator, Mapping
from typing import Any

from fuser_lab.definition.axis_numbers import AxisNumbers
from fuser_lab.definition.dump import SCALAR_DTYPES
from fuser_lab.definition.dump.building import laid_out
from fuser_lab.definition.dump.calls import Context, call_of
from fuser_lab.definition.dump.terms import Axis, Domains, Value, listed_value, statement, with_listed
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.files.json_text import json_text
from fuser_lab.ir import Expr, Fusion, Scalar, TensorDomain, TensorView, Val
from fuser_lab.ir.printer import domain_lines, expression_texts, kernel_text, math_text
from fuser_lab.ops import OPS
from fuser_lab.segmentation import SegmentedFusion, SegmentedGroup


def dump_text(segmented: SegmentedFusion, definition: Fusion, form: str = "math") -> str:
    """Return a segmented fusion in the form of nvFuser's dump.

    Comments hold what math text omits (layouts of inputs, which of two equal axes a permutation moved), so that parsing
    the text gives an equal segmentation.

    Parameters
    ----------
    segmented
        The fusion, after the passes, and its groups.
    definition
        The fusion as it was defined.
    form
        How the rewritten fusion is printed: ``"math"`` as nvFuser did until February 2026 (``Fusion::printMath``),
        ``"print"`` as it has done since (``Fusion::print``), with the domains of every tensor.
    """
    fusion = segmented.fusion
    listed = {} if form == "math" else {tv.name: _domains_of(tv) for tv in fusion.tensors.values()}
    head = "Segmented_Fusion Dump: -- "
    lines = ["Segment the fusion (Original Fusion Un-modified): ", math_text(definition), ""]
    lines += [f"{head}Re-written complete fusion:{{", math_text(fusion) if form == "math" else kernel_text(fusion)]
    lines.append("} // {Re-written complete fusion}")
    rest = "\n".join([*_segments(segmented, head), ""])
    return "\n".join([*lines, *_comments(segmented, listed), rest])


def _segments(segmented: SegmentedFusion, head: str) -> Iterator[str]:
    place = segmented.fusion.positions
    labels = [f"{_scheduler(g)}{{{', '.join(str(place[n]) for n in g.names)}}}" for g in segmented.groups]
    yield from (f"{head}fusion segments:", "Segmented_Fusion{ ", "groups: ")
    yield from (f"  {label}" for label in labels)
    yield "edges: "
    for source, group in enumerate(segmented.groups):
        for tensor in group.outputs:
            for target in sorted(segmented.successors[source]):
                if tensor in segmented.groups[target].tensor_inputs:
                    yield f"  e{{ {labels[source]} -> {labels[target]}({tensor}) }}"
    yield from ("", "group details:")
    texts = expression_texts(segmented.fusion, frozenset(segmented.crossing))
    for index, group in enumerate(segmented.groups):
        yield from (f"g{{({_scheduler(group)})", f"group id: {index}", "inputs:")
        yield from _value_lines(group.inputs)
        yield "outputs:"
        yield from _value_lines(group.outputs)
        yield from ("", "")
        for name in group.names:
            yield from (texts[name], f"({place[name]})")
        yield from ("", "}", "")
    yield "} //Segmented_Fusion"


def _scheduler(group: SegmentedGroup) -> str:
    return group.scheduler.value if group.scheduler else "none"


def _value_lines(values: tuple[Val, ...]) -> Iterator[str]:
    yield from (f"  {value} {value.dtype.ir_name}" for value in sorted(values, key=lambda v: _order(v.name)))


def _order(name: str) -> tuple[int, str]:
    digits = "".join(c for c in name if c.isdecimal())
    return int(digits or 0), name


def _domains_of(tensor: TensorView) -> Domains:
    """Return the domains of a tensor as its lines in the dump are read."""
    domains = Domains()
    for line in domain_lines(tensor):
        domains = with_listed(domains, line.strip())
    return domains


def _comments(segmented: SegmentedFusion, listed: Mapping[str, Domains]) -> Iterator[str]:
    """Yield comments for what reading the text alone does not give; ``listed`` are domains that it lists."""
    fusion = segmented.fusion
    texts = expression_texts(fusion)
    recorded: dict[str, dict[str, Any]] = {}
    for value in fusion.inputs:
        recorded[value.name] = _of_input(value, listed)
    for expr in fusion.exprs:
        recorded[expr.name] = _of_call(expr, texts[expr.name])
        inferred = OPS[expr.op.name].infer(expr.inputs, dict(expr.attrs), AxisNumbers())
        for value, result in zip(expr.outputs, inferred, strict=True):
            if isinstance(value, TensorView) and result.domain is not None:
                read = laid_out(result.domain, listed.get(value.name, Domains()))
                recorded[value.name] = recorded.get(value.name, {}) | _layout(value.domain, read)
    for name, original in segmented.replicas.items():
        recorded[name] = recorded.get(name, {}) | {"repeats": original}
    whole = {
        "aliases": [[a.name, b.name] for a, b in fusion.aliases],
        "hidden": sorted(tv.name for tv in fusion.hidden),
        "stride_orders": [[tv.name, list(ranks)] for tv, ranks in fusion.stride_orders],
    }
    recorded["fusion"] = {key: value for key, value in whole.items() if value}
    yield from (f"// fuser_lab: {name} {json_text(data)}" for name, data in recorded.items() if data)


def _of_input(value: Val, listed: Mapping[str, Domains]) -> dict[str, Any]:
    if isinstance(value, Scalar):
        return {} if SCALAR_DTYPES.get(value.name[0]) is value.dtype else {"dtype": value.dtype.name}
    plain = TensorDomain(
        logical=value.domain.logical,
        contiguity=tuple(None if axis.is_broadcast else True for axis in value.domain.axes),
    )
    read = laid_out(plain, listed.get(value.name, Domains()))
    return _layout(value.domain, read) | ({"is_cpu": True} if value.is_cpu else {})


def _layout(domain: TensorDomain, read: TensorDomain) -> dict[str, Any]:
    if (domain.allocation, domain.contiguity) == (read.allocation, read.contiguity):
        return {}
    return {"allocation": _json_of(domain.allocation), "contiguity": _json_of(domain.contiguity)}


def _of_call(expr: Expr, text: str) -> dict[str, Any]:
    """Return op and attributes where the text is read as others, or not at all."""
    try:
        context = Context(
            statement=statement(text, 0), sizes={},
            axes={tv.name: _axes(tv) for tv in expr.tensor_inputs},
            shapes={tv.name: tv.shape for tv in expr.tensor_inputs},
        )
        call = call_of(context)
    except FuserLabError:
        call = None
    if call is not None and call.op == expr.op.name and tuple(call.attrs.items()) == expr.attrs:
        return {}
    return {"op": expr.op.name, "attrs": [[key, _json_of(value)] for key, value in expr.attrs]}


def _axes(tensor: TensorView) -> tuple[Axis, ...]:
    value = listed_value(str(tensor), 0)
    return value.axes or () if isinstance(value, Value) else ()


def _json_of(value: object) -> Any:
    if isinstance(value, tuple):
        return [_json_of(entry) for entry in value]
    return {"dtype": value.name} if isinstance(value, DataType) else value
