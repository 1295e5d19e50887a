"""Reduce a fusion that is cut, or refused, to the smallest one that still is, for the same reason."""

import difflib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.arguments import number, optional, short_text, takes, whole
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer
from fuser_lab.definition.binding import bind, default_inputs
from fuser_lab.definition.repro import read_script, script_text
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.errors import ArgumentTypeError, FuserLabError, InputError
from fuser_lab.ir import Expr, Fusion, Number, Scalar, TensorDomain, TensorView, Val, needed_exprs
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import definition_of, described_input, flatten, segment

Keep = Callable[[Plan], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """A small fusion that is cut in the same way as a large one.

    Attributes
    ----------
    fd, inputs
        The small definition and descriptions of its inputs; all sizes are fixed.
    plan
        Its plan. Tensors have new numbers.
    script
        The repro script of the small fusion, for an issue.
    kept
        What was kept, as a sentence; the names in it are those of the large fusion.
    ops
        Numbers of operations before and after.
    tried
        Number of plans made during the search.
    """

    fd: FusionDefinition
    inputs: tuple[TensorSpec | Number, ...]
    plan: Plan
    script: str
    kept: str
    ops: tuple[int, int]
    tried: int

    def __repr__(self) -> str:
        """Return how much the fusion shrank, and the definition."""
        before, after = self.ops
        return f"{before} ops became {after} ({self.tried} plans tried); {self.kept}.\n{self.fd}"


@takes(most_plans=whole(0), seconds=optional(number(0)))
def shrink(
    fd: object,
    inputs: Sequence[Any] | None = None,
    *,
    keep: tuple[str, str] | str | Keep | None = None,
    most_plans: int = 2000,
    seconds: float | None = None,
    **segment_options: Any,
) -> Shrunk:
    """Return the smallest fusion found that is still cut at the same place, or refused for the same reason.

    Delta debugging (A. Zeller, R. Hildebrandt, IEEE TSE 28(2), 2002) over a fusion's expressions: leading expressions
    become inputs, trailing ones are removed, operations are bypassed, outputs and inputs are removed, in large parts
    and then one by one, until nothing more can be removed.

    Parameters
    ----------
    fd
        A definition or a fusion.
    inputs
        As for `segment`.
    keep
        What must remain true: two tensors in different segments, ``("T3", "T7")``; the code of a reason
        (docs/reasons.md) that keeps two segments apart or leaves a segment without a scheduler; or a function of the
        plan. By default, the cut across which the most bytes pass.
    most_plans
        Maximum number of plans to make.
    seconds
        Maximum time of the search; no limit by default.
    **segment_options
        As for `segment`.

    Raises
    ------
    InputError
        If ``keep`` does not hold for the given fusion, or names an unknown reason.
    ArgumentTypeError
        If ``keep`` has another type.
    """
    definition = definition_of(fd)
    described = default_inputs(definition) if inputs is None else tuple(described_input(v) for v in flatten(inputs))
    bound = bind(definition, described)
    by_name = dict(zip((v.name for v in bound.fusion.inputs), bound.inputs, strict=True))
    first = segment(bound.fusion, list(bound.inputs), **segment_options)
    holds, statement = _keeping(first, keep)
    if not holds(first):
        raise InputError(f"shrink: this does not hold in the plan of the given fusion: {statement}.")
    tried = 0
    ends = math.inf if seconds is None else time.monotonic() + seconds

    def still(fusion: Fusion) -> bool:
        nonlocal tried
        tried += 1
        try:
            return holds(segment(fusion, _inputs_of(fusion, by_name), **segment_options))
        except FuserLabError:
            return False

    fusion = bound.fusion
    progress = True
    while progress and tried < most_plans and time.monotonic() < ends:
        progress = False
        for smaller in _smaller(fusion):
            if tried >= most_plans or time.monotonic() >= ends:
                break
            if still(smaller):
                fusion, progress = smaller, True
                break
    specs = _inputs_of(fusion, by_name)
    script = script_text(fusion, specs)
    small, _ = read_script(script, FusionDefinition)
    return Shrunk(
        fd=small, inputs=tuple(specs), plan=segment(small, specs, **segment_options), script=script, kept=statement,
        ops=(len(bound.fusion.tensor_exprs), len(fusion.tensor_exprs)), tried=tried,
    )


def _keeping(plan: Plan, keep: object) -> tuple[Keep, str]:
    """Return the test that every smaller plan must pass, and its description."""
    if keep is None:
        keep = _widest_cut(plan)
    if callable(keep):
        return lambda plan: bool(keep(plan)), f"{getattr(keep, '__name__', 'keep')}(plan) holds"
    if isinstance(keep, str):
        code = _known_reason(keep)
        return lambda plan: code in _reasons(plan), f"the reason {code} occurs"
    if isinstance(keep, tuple | list) and len(keep) == 2 and all(isinstance(name, str) for name in keep):
        a, b = keep
        for name in keep:
            if name not in plan.fusion.tensors:
                raise InputError(f"shrink: keep names {name}, which is not a tensor of the plan.")
        cause = _cause(plan, a, b)
        text = f"{a} and {b} are in different segments"
        if cause is None:
            return lambda _: False, text
        return lambda plan: _cause(plan, a, b) == cause, f"{text} ({', '.join(cause)})"
    raise ArgumentTypeError(
        "shrink: keep must be two tensor names, a reason code, or a function of the plan; "
        f"given {short_text(keep)}."
    )


def _widest_cut(plan: Plan) -> tuple[str, str]:
    """Return a tensor and a result computed from it in another segment, where the most bytes pass."""
    homes = _homes(plan)
    crossing = [
        (tensor, result)
        for expr in plan.fusion.tensor_exprs
        for tensor in expr.tensor_inputs
        for result in expr.tensor_outputs
        if tensor in plan.fusion.producers and homes[tensor.name].isdisjoint(homes[result.name])
    ]
    if not crossing:
        raise InputError("shrink: no tensor passes between segments of this plan; pass keep to say what must remain.")
    tensor, result = max(crossing, key=lambda pair: pair[0].nbytes)
    return tensor.name, result.name


def _known_reason(code: str) -> str:
    codes = [reason.value for reason in ReasonCode]
    if code not in codes:
        close = difflib.get_close_matches(code, codes, n=1)
        hint = f"; did you mean {close[0]}?" if close else "; docs/reasons.md lists them."
        raise InputError(f"shrink: keep is {short_text(code)}, which is not a reason code{hint}")
    return code


def _reasons(plan: Plan) -> set[str]:
    """Return the codes of all reasons that keep segments apart or leave one without a scheduler."""
    answers = [why.verdicts for why in plan.boundaries()]
    answers += [part.verdicts for part in plan.segments if part.scheduler is None]
    return {v.reason.code.value for verdicts in answers for v in Answer(verdicts).decisive if v.reason is not None}


def _homes(plan: Plan) -> dict[str, set[int]]:
    homes: dict[str, set[int]] = {}
    for part in plan.segments:
        for expr in part.exprs:
            for tensor in expr.tensor_outputs:
                homes.setdefault(tensor.name, set()).add(part.index)
    return homes


def _cause(plan: Plan, a: str, b: str) -> tuple[str, ...] | None:
    """Return why two tensors are separate: the relation and the codes of the decisive refusals.

    None if they are together.
    """
    homes = _homes(plan)
    if a not in homes or b not in homes or not homes[a].isdisjoint(homes[b]):
        return None
    why = plan.why(a, b)
    codes = {v.reason.code.value for v in Answer(why.verdicts).decisive if v.reason is not None}
    return (why.relation.value, *sorted(codes))


def _inputs_of(fusion: Fusion, by_name: Mapping[str, TensorSpec | Number]) -> list[TensorSpec | Number]:
    """Return the descriptions of inputs: those given, and dense ones for tensors that became inputs."""
    return [
        by_name[v.name] if v.name in by_name else spec(tuple(v.extents), v.dtype)  # type: ignore[union-attr, arg-type]
        for v in fusion.inputs
    ]


def _smaller(fusion: Fusion) -> Iterator[Fusion]:
    """Yield smaller fusions, the largest reductions first."""
    exprs = fusion.exprs
    parts = sorted({len(exprs) * share // 8 for share in range(1, 8)} - {0})
    for size in reversed(parts):
        yield from _legal(fusion, exprs[size:], fusion.outputs)  # leading expressions become inputs
    for size in parts:
        yield from _legal(fusion, exprs[:size], None)  # trailing expressions are removed
    for output in fusion.outputs:
        if len(fusion.outputs) > 1:
            yield from _legal(fusion, exprs, tuple(tv for tv in fusion.outputs if tv != output))
    for place in reversed(range(len(exprs))):
        yield from _legal(fusion, exprs[:place] + exprs[place + 1 :], fusion.outputs)
    for expr in exprs:
        for operand in expr.tensor_inputs:
            if len(expr.outputs) == 1 and _alike(operand, expr.outputs[0]):
                yield from _legal(fusion, exprs, fusion.outputs, {expr.outputs[0]: operand})
    tensors = fusion.tensor_inputs
    for place, old in enumerate(tensors):
        for new in tensors[:place]:
            if _alike(new, old):
                yield from _legal(fusion, exprs, fusion.outputs, {old: new})


def _alike(a: Val, b: Val) -> bool:
    return (
        isinstance(a, TensorView) and isinstance(b, TensorView) and a.dtype is b.dtype and a.extents == b.extents
        and [x.is_broadcast for x in a.domain.axes] == [x.is_broadcast for x in b.domain.axes]
    )


def _legal(
    fusion: Fusion, exprs: Iterable[Expr], outputs: Sequence[TensorView] | None,
    instead: Mapping[Val, Val] | None = None,
) -> Iterator[Fusion]:
    """Yield the fusion of some of the expressions, if it is legal and smaller.

    With ``outputs=None``, all unread results are outputs.
    """
    try:
        smaller = _of(fusion, tuple(exprs), outputs, instead or {})
    except FuserLabError:
        return
    if smaller is not None and _size(smaller) < _size(fusion):
        yield smaller


def _size(fusion: Fusion) -> tuple[int, int]:
    return len(fusion.exprs), len(fusion.inputs) + len(fusion.outputs)


def _of(
    fusion: Fusion, exprs: tuple[Expr, ...], outputs: Sequence[TensorView] | None, instead: Mapping[Val, Val],
) -> Fusion | None:
    """Return the fusion of some expressions, without unused ones; operands that none of them computes become inputs."""
    instead_of: dict[Val, Val] = dict(instead)

    def now(value: Val) -> Val:
        if value in instead_of or not isinstance(value, TensorView) or value in made or value in fusion.inputs:
            return instead_of.get(value, value)
        axes = value.domain.axes
        domain = TensorDomain(
            logical=axes, allocation=value.domain.allocation,
            contiguity=tuple(None if axes[p].is_broadcast else True for p in value.domain.allocation_order),
        )
        instead_of[value] = replace(value, domain=domain)
        return instead_of[value]

    rest = [e for e in exprs if not any(out in instead for out in e.outputs)]
    made = {out for expr in rest for out in expr.outputs}
    rest = [replace(e, inputs=tuple(map(now, e.inputs))) for e in rest]
    read = {v for e in rest for v in e.inputs}
    if outputs is None:
        ends = [tv for e in rest for tv in e.tensor_outputs if tv in fusion.outputs or tv not in read]
    else:
        ends = [tv for tv in dict.fromkeys(map(now, outputs)) if tv in made]  # type: ignore[misc]
    live = needed_exprs(rest, ends)
    if not live:
        return None
    loose = {v for e in live for v in e.inputs} - made
    scalars = {v for v in fusion.inputs if isinstance(v, Scalar)}
    inputs = [v for v in fusion.inputs if v in loose or (v in scalars and v.name in fusion.deciding_scalars)]
    inputs += [v for v in instead_of.values() if v in loose and v not in inputs]
    if any(isinstance(v, Scalar) and v.value is None and v not in inputs for v in loose):
        return None
    return Fusion(
        inputs=tuple(inputs),
        exprs=live,
        outputs=tuple(ends),
        aliases=tuple((a, b) for a, b in fusion.aliases if a in ends and b in inputs),
        hidden=frozenset(tv for tv in fusion.hidden if tv in ends and len(fusion.hidden) < len(ends)),
        stride_orders=tuple((tv, ranks) for tv, ranks in fusion.stride_orders if tv in ends),
    )
