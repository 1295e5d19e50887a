"""The origin of names that the user did not give: the pass or the segmenter's rule that created them."""

import re
from collections.abc import Iterable, Mapping, Sequence

from fuser_lab.ir import Fusion
from fuser_lab.ir.tensor_names import entry_for
from fuser_lab.passes import PASSES, Pass
from fuser_lab.segmentation.events import DecisionLog, Kind
from fuser_lab.segmentation.hints import is_hint
from fuser_lab.segmentation.options import SegmenterOptions, run_passes
from fuser_lab.segmentation.privatization import replicas_in
from fuser_lab.segmentation.recomputation import copies_in

_COMMENT = re.compile(r"^[ \t]*# +(\w+)(?:, \w+)* = .*$", re.MULTILINE)
_NAME = re.compile(r"\b[A-Za-z]\w*\b")
# The creator of names that consist of a tensor's name and one of these suffixes.
_RULES = {
    Kind.CAST: ("the option io_to_lower_precision", ("_lower", "_back")),
    Kind.REWRITE: ("the rewriting of a Welford as sums", ("_",)),
}


def origins(
    bound: Fusion, final: Fusion, options: SegmenterOptions, log: DecisionLog, passes: Sequence[Pass] = PASSES,
) -> dict[str, str]:
    """Return the creator of each expression that the user did not record, by the name of its result.

    A result that keeps the user's name counts if a pass turned it into a hint.

    Parameters
    ----------
    bound
        The concretized fusion before the pre-segmentation passes, which are run once more if any changed it.
    final
        The fusion of the plan.
    options
        The options under which it was segmented.
    log
        The passes and decisions that made the plan.
    passes
        The passes that ran.
    """
    makers: dict[str, str] = {}

    def note(step: Pass, before: Fusion, after: Fusion, _seconds: float) -> None:
        names = set(before.tensors)
        hints = {expr.name for expr in before.exprs if is_hint(expr)}
        made = (e.name for e in after.exprs if e.name not in names or (is_hint(e) and e.name not in hints))
        makers.update(dict.fromkeys(made, f"the pass {step.name}"))

    cut = run_passes(bound, options, passes, note) if log.passes else bound
    names_before = {expr.name for expr in cut.exprs}
    added = [expr.name for expr in final.exprs if expr.name not in names_before]
    for attempt in log:
        if not attempt.accepted:
            continue
        if attempt.kind is Kind.PRIVATIZE:
            makers.update((replica.name, "privatization") for replica in replicas_in(attempt))
        elif attempt.kind is Kind.RECOMPUTE:
            makers.update((name, "recomputation") for name in copies_in(attempt)[0].copies)
        elif attempt.kind in _RULES:
            maker, suffixes = _RULES[attempt.kind]
            starts = tuple(name + suffix for name in attempt.subjects[0] for suffix in suffixes)
            makers |= {name: maker for name in added if name.startswith(starts) and name not in makers}
    return makers


def origins_text(texts: Iterable[str], made: Mapping[str, str]) -> str:
    """Return the creators of the names in texts, as far as ``made`` has them; empty if it has none."""
    by: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for text in texts for name in _NAME.findall(text)):
        if name in made:
            by.setdefault(made[name], []).append(name)
    return "; ".join(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} created by {maker}" for maker, names in by.items()
    )


def source_lines(texts: Iterable[str], sources: Mapping[str, str]) -> tuple[str, ...]:
    """Return each line of the user's code that tensors named in texts came from, with those tensors."""
    by: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for text in texts for name in _NAME.findall(text)) if sources else ():
        if line := entry_for(name, sources):
            by.setdefault(line, []).append(name)
    return tuple(
        f"  {', '.join(names)} {'comes' if len(names) == 1 else 'come'} from {line}" for line, names in by.items()
    )


def with_sources(source: str, sources: Mapping[str, str]) -> str:
    """Return a generated kernel whose comments on tensors also hold the user's lines; no line is added.

    ``# T3 = exp(T2)`` becomes ``# T3 = exp(T2)  <- layers.0: F.softmax(x) (model.py:41)``.
    """
    def with_line(match: re.Match[str]) -> str:
        line = entry_for(match[1], sources)
        return f"{match[0]}  <- {line}" if line else match[0]

    return _COMMENT.sub(with_line, source) if sources else source
