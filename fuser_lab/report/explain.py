"""A plan explained: its segments, why adjacent ones are separate, and the whole decision log."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from fuser_lab.cost.verdict import Verdict
from fuser_lab.ir import Fusion
from fuser_lab.ir.tensor_names import named_text, names_by_tensor
from fuser_lab.report.passes import view_passes
from fuser_lab.report.text import decisions_text, plan_text
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.segmentation import Certificate, SegmentedFusion, SegmenterOptions, Why
from fuser_lab.segmentation.events import DecisionLog


class ExplainedPlan(Protocol):
    """What is asked of a plan beyond what is drawn of it."""

    name: str
    strategy: str
    hash: str
    fusion: Fusion
    target: str
    options: SegmenterOptions
    segments: Sequence[Any]
    segmented: SegmentedFusion
    crossing_bytes: Mapping[str, int]
    bytes_crossing: int
    decisions: DecisionLog

    def certificate(self) -> Certificate:
        """Return what the plan costs and what every plan costs at least."""

    def boundaries(self) -> tuple[Why, ...]:
        """Return why segments with a tensor between them are separate."""


def explain_text(plan: Any, *, log: bool = False, certificate: bool = False) -> str:
    """Return a plan with the reason for each of its boundaries as text.

    ``log`` adds every attempt, ``certificate`` what a cheaper plan saves, or why there is none.
    """
    said: ExplainedPlan = plan
    changed = {key: value for key, value in options_data(said.options).items() if value != _DEFAULTS[key]}
    options = ", ".join(f"{key}={value!r}" for key, value in changed.items()) or "nvFuser's defaults"
    called = names_by_tensor(getattr(said, "names", ()))
    parts = [f"target: {said.target}; options: {options}"]
    ops = [f"S{s.index}: " + ", ".join(f"{e.name} = {e.op.name}" for e in s.exprs) for s in said.segments]
    parts.append("\n".join(ops))
    parts += [
        f"S{s.index} goes beyond nvFuser's rules {', '.join(s.beyond)}: nvFuser would not make one kernel of it."
        for s in said.segments if s.beyond
    ]
    boundaries = said.boundaries()
    for why in boundaries:
        crossing = between(said.segmented, *why.segments)
        size = bytes_label(sum(said.crossing_bytes[tv.name] for tv in crossing))
        names = ", ".join(tv.name for tv in crossing)
        parts.append(f"Between S{why.segments[0]} and S{why.segments[1]} ({names}, {size}): {replace(why, called=())}")
    if not boundaries:
        parts.append("No tensor passes between segments.")
    if certificate:
        parts.append(f"Certificate: {said.certificate()}")
    accepted = sum(attempt.accepted for attempt in said.decisions)
    if log:
        parts.append(decisions_text(said.decisions))
    else:
        attempts = len(said.decisions)
        how = f"{accepted} of them accepted" if attempts != 1 else "accepted" if accepted else "refused"
        parts.append(f"{plural(attempts, 'attempt')}, {how}")
    return "\n\n".join([plan_text(plan), named_text("\n\n".join(parts), called)])


def explain_data(plan: Any, *, certificate: bool = False) -> dict[str, Any]:
    """Return the same as data for JSON, with the whole decision log."""
    said: ExplainedPlan = plan
    head, *records = (json.loads(line) for line in said.decisions.to_json().splitlines())
    return {
        "schema": "fuser_lab.explanation",
        "version": 1,
        "plan": {
            "name": said.name,
            "strategy": said.strategy,
            "target": said.target,
            "hash": said.hash,
            "options": options_data(said.options),
            "bytes_crossing": said.bytes_crossing,
        },
        "segments": [
            {
                "index": s.index,
                "scheduler": s.scheduler.value if s.scheduler else None,
                "beyond": list(s.beyond),
                "exprs": [{"name": e.name, "op": e.op.name} for e in s.exprs],
                "inputs": [tv.name for tv in s.inputs],
                "outputs": [tv.name for tv in s.outputs],
                "bytes_in": s.bytes_in,
                "bytes_out": s.bytes_out,
                "bytes_crossing": s.bytes_crossing,
                "verdicts": [verdict_data(v) for v in s.verdicts],
            }
            for s in said.segments
        ],
        "boundaries": [
            {
                "segments": list(why.segments),
                "tensors": [tv.name for tv in between(said.segmented, *why.segments)],
                "relation": why.relation.value,
                "text": why.text,
                "verdicts": [verdict_data(v) for v in why.verdicts],
                "attempts": list(why.attempts),
            }
            for why in said.boundaries()
        ],
        "passes": [
            {"name": step.name, "outcome": step.outcome, "before": list(step.before), "after": list(step.after)}
            for step in view_passes(plan)
        ],
        **({"certificate": said.certificate().to_dict()} if certificate else {}),
        "log": {
            **head,
            "passes": [record["pass"] for record in records if "pass" in record],
            "attempts": [record for record in records if "pass" not in record and "layout" not in record],
            "layouts": [record["layout"] for record in records if "layout" in record],
        },
    }


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """Return one scheduler's answer for JSON."""
    return {
        "scheduler": verdict.scheduler.value,
        "accepted": verdict.accepted,
        "code": verdict.code,
        "text": verdict.text,
        "params": dict(verdict.reason.params) if verdict.reason is not None else {},
        **({"beyond": [code.value for code in verdict.beyond]} if verdict.beyond else {}),
    }


def options_data(options: SegmenterOptions) -> dict[str, Any]:
    """Return the switches of the segmenter for JSON."""
    return {field.name: _plain(getattr(options, field.name)) for field in fields(options)}


def between(segmented: SegmentedFusion, a: int, b: int) -> list[Any]:
    """Return the tensors that one of two segments writes and the other reads."""
    first, second = segmented.groups[a], segmented.groups[b]
    ways = ((first.outputs, second.tensor_inputs), (second.outputs, first.tensor_inputs))
    return [tv for written, read in ways for tv in written if tv in read]


def _plain(value: object) -> Any:
    value = getattr(value, "value", value)
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


_DEFAULTS = options_data(SegmenterOptions())
