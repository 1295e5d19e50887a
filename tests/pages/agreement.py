"""The table of nvFuser's rules: ``python -m tests.pages.agreement > docs/agreement.md``."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby

import fuser_lab.schedule
import fuser_lab.segmentation
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import COMMIT, Rule
from fuser_lab.cost.rules import RULES as DECLARED
from tests.pages import rules
from tests.pages.builders import table
from tests.pages.not_followed import NOT_FOLLOWED
from tests.pages.sides import PREFIX, SIDES, SLOT, Sides
from tests.unit.segmentation.test_known_answers import CASES, holds, segmented

COMMAND = "python -m tests.pages.agreement > docs/agreement.md"
NOT_ASSERTED = "no test; from nvFuser's source"
R = ReasonCode

for _package in (fuser_lab.schedule, fuser_lab.segmentation):
    for _module in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)  # each module declares its rules

_PLACES = {f"{PREFIX}{name}": place for place, name in enumerate(SIDES)}
# In the order of their examples, whichever module was imported first; last those without examples.
RULES = sorted(DECLARED, key=lambda rule: (_PLACES.get(rule.ours, len(_PLACES)), rule.file, rule.lines))

# Known answers that nvFuser's tests assert, by the function here that decides them, and the reason.
ASSERTED: Mapping[str, Mapping[ReasonCode | None, str]] = {
    "schedule.facts.CandidateFacts.gate": {R.MATMUL_INSIDE: "matmul_sin_cast"},
    "schedule.facts.CandidateFacts._shape_gates": {
        R.NOT_CONNECTED: "disconnected_pair", R.RESIZE_AND_INDEXING: "slice_and_gather",
    },
    "schedule.facts.CandidateFacts.reshapes": {R.CONFLICTING_RESHAPES: "reshape_conflict_same_source"},
    "schedule.facts.CandidateFacts.index_input": {R.INDEX_INPUT: "dynamic_reshape_slice"},
    "schedule.facts.CandidateFacts.pattern_mismatch": {R.PATTERN_MISMATCH: "three_sums_mixed_axes"},
    "schedule.facts.CandidateFacts.unique_broadcasts": {R.BROADCAST_NOT_UNIQUE: "multi_concretization_reduce"},
    "schedule.facts.CandidateFacts.transposed": {R.ONE_INNERMOST_AXIS: "permute_3d_ends"},
    "schedule.facts.CandidateFacts._cannot_lead": {R.OUTPUT_NOT_COVERED: "factory_blocks_reference"},
    "schedule.expr_eval.ExprEval.can_schedule": {R.NOT_VIEWS: "reshape_only"},
    "schedule.no_op.NoOp.can_schedule": {R.CONCRETE_OUTPUT: "zero_dim_add"},
    "schedule.matmul.Matmul.can_schedule": {R.MATMUL_OFF: "matmul_sin_cast_fused"},
    "schedule.reduction._kept_axes_refusal": {R.PERSISTENT_BUFFER: "split_reshape_reduce_1_3"},
    "schedule.reduction._widened_again": {R.BROADCAST_AFTER_REDUCTION: "sum_keepdim_add"},
    "schedule.reduction._new_input": {R.NEW_INPUT_AFTER_REDUCTION: "back_to_back_inner_sums"},
    "schedule.reduction.reshape_mixes": {R.RESHAPE_MIXES: "split_reshape_reduce_m1_m2_m3"},
    "schedule.resize.Resize.can_schedule": {R.NO_RESIZE: "rotate_halves"},
    "schedule.transpose.Transpose._large_enough": {R.TRANSPOSE_SMALL_RESHAPED: "small_transpose_after_merge"},
    "schedule.persistent.needs_buffer": {R.NO_PERSISTENT_BUFFER: "welford_var_and_sum"},
    "schedule.persistent.broadcast_elsewhere": {R.BROADCAST_ELSEWHERE: "norm_with_new_input_first"},
    "schedule.inner_persistent.InnerPersistent._fits": {R.BUFFER_TOO_LARGE: "norm_too_big_3d"},
    "schedule.outer_persistent.OuterPersistent._fits": {R.COLUMNS_TOO_LARGE: "combine_vertical"},
    "schedule.inner_outer_persistent._not_complementary": {R.NOT_COMPLEMENTARY: "inner_outer_match"},
    "schedule.inner_outer_persistent.InnerOuterPersistent._fits": {R.ROWS_AND_SUMS_TOO_LARGE: "rms_norm_backward"},
    "schedule.greedy.Greedy.can_schedule": {R.GREEDY_FOREIGN_OP: "topk_with_adds"},
    "segmentation.hints.refused_by_hint": {R.SEGMENT_SET_INSIDE: "segment_set_chain"},
    "segmentation.privatization.replicas_of": {None: "privatize_upcast_and_squeeze"},
    "segmentation.bottom_up._Finder._revert_privatization": {None: "revert_privatized_upcast_and_squeeze"},
    "segmentation.forwarding.forwarded_chains": {None: "forward_until_binary"},
    "segmentation.bottom_up._Finder._cat_with_pads": {None: "rotate_halves_residual"},
    "segmentation.reduction_sets.ReductionSets.masks": {None: "combine_vertical"},
    "segmentation.level_rounds.LevelRound._candidates": {None: "reduce_then_softmax"},
    "segmentation.bottom_up._Finder._final_pairs": {R.CYCLE: "reduction_chain_and_late_join"},
    "segmentation.welford.rewrite_answer": {None: "welford_twice"},
}

BY_ID = {case["id"]: case for case in CASES}


def resolved(name: str) -> object:
    """Return the object of a dotted name: a module or a member of one.

    Raises
    ------
    ImportError, AttributeError
        If the name does not exist.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute)
        return found
    msg = f"{name} is not importable."
    raise ImportError(msg)


def asserted_by(case: str) -> str:
    """Return the test of nvFuser that asserts a known answer, or a note that none does."""
    known = BY_ID.get(case)
    if known is None or known["segments_status"] != "asserted":
        return NOT_ASSERTED
    source: str = known["source"]
    return source.removeprefix("tests/cpp/").replace(":", ": ", 1).partition(" (")[0]


def name_of(rule: Rule) -> str:
    """Return the dotted name of a rule's function here without that of the package."""
    return rule.ours.removeprefix(PREFIX)


def place_of(rule: Rule) -> str:
    """Return file, function and lines of a rule in nvFuser."""
    return f"{rule.file.removeprefix('csrc/')}: {rule.function} ({rule.lines[0]}-{rule.lines[1]})"


def rows() -> Iterator[str]:
    """Yield a line of the table for each rule."""
    for rule in RULES:
        name = name_of(rule)
        codes = [code for code in rule.reasons if isinstance(code, ReasonCode)]
        said = ", ".join(f"[`{code.value}`](reasons.md#{code.value})" for code in codes) or rule.text
        of = {sides.scheduler.value for sides in sides_of(rule) if sides.scheduler is not None}
        asserted = [ASSERTED.get(name, {}).get(code) for code in (codes or [None])]
        tests = ", ".join(asserted_by(case) for case in asserted if case) or NOT_ASSERTED
        who = ", ".join(sorted(of)) or "segmenter"
        yield f"| {who} | {said} | {place_of(rule)} | [`{name}`](#{anchor(name)}) | {tests} |"
    for number, rule in enumerate(rules.RULES, 1):
        places = [place_of(declared) for declared in RULES if declared.ours == rule.ours]
        ours = f"`{rule.ours.removeprefix(PREFIX)}`, [example {number}](#example-{number})"
        cells = rule.of, rule.text, rule.nvfuser or ", ".join(places), ours
        yield f"| {' | '.join(cells)} | {rule.asserted or NOT_ASSERTED} |"


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as the site makes it."""
    return heading.lower().replace(".", "")


def sides_of(rule: Rule) -> tuple[Sides, ...]:
    """Return the definitions on both sides of a rule."""
    wanted: tuple[object, ...] = rule.reasons or (None,)
    return tuple(sides for sides in SIDES.get(name_of(rule), ()) if sides.code in wanted)


def outcome_of(sides: Sides) -> str:
    """Return what the two definitions give."""
    first, second = f"`{sides.refused or ' '}` for `{SLOT}`", f"`{sides.accepted or ' '}`"
    if any(sides.cut):
        text = f"The segments are {sides.cut[0]} with {first}, and {sides.cut[1]} with {second}"
    elif sides.scheduler is None:
        what = f"`{sides.code.value}`" if sides.code is not None else f"an accepted attempt “{sides.phase}”"
        text = f"The segmenter's log has {what} with {first}, but not with {second}"
    else:
        assert sides.code is not None
        other = "accepts" if sides.later is None else f"gives only `{sides.later.value}` with"
        text = f"{sides.scheduler.value} gives `{sides.code.value}` with {first}, and {other} {second}"
        if sides.refused == sides.accepted:
            text = f"{sides.scheduler.value} gives `{sides.code.value}` with the option in brackets only"
    options = [f"{key}={getattr(value, 'name', value)}" for key, value in sides.options.items() if key != "inputs"]
    more = [f"({key}={getattr(value, 'name', value)})" for key, value in sides.refused_with.items()]
    return f"{text}; {', '.join((*options, *more))}" if options or more else text


def both_sides() -> Iterator[str]:
    """Yield the definitions on both sides of each rule, by function."""
    for name, group in groupby(RULES, name_of):
        wanted = {code for rule in group for code in (rule.reasons or (None,))}
        yield from (f"### {name}", "")
        for sides in (sides for sides in SIDES.get(name, ()) if sides.code in wanted):
            yield from (f"{outcome_of(sides)}:", "", "```python", sides.source, "```", "")


def example(number: int, rule: rules.Rule) -> Iterator[str]:
    """Yield the definitions that demonstrate a rule."""
    yield f"### Example {number}"
    yield ""
    yield rule.text
    for name, given in rule.options.items():
        listed = ", ".join(f"`{item}`" for item in given)
        yield f"With `{name}`: {listed}."
    yield ""
    for source, schedulers in rule.shows.items():
        yield f"{schedulers}:"
        yield ""
        yield "```python"
        yield source.strip()
        yield "```"
        yield ""


def compared() -> tuple[int, int]:
    """Return the number of compared segmentations that nvFuser's tests assert, and the number that agree."""
    asserted = [case for case in CASES if case["segments_status"] == "asserted"]
    return len(asserted), sum(holds(case, segmented(case)) for case in asserted)


def page() -> str:
    """Return the page."""
    count, good = compared()
    lines = [
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        "# Agreement with nvFuser",
        "",
        f"Of {count} segmentations that nvFuser's own tests assert, {good} agree, in the number of segments and, where",
        "it is asserted, in the schedulers.",
        "[The design](design.md#deliberate-differences-from-nvfuser) lists the intended differences from nvFuser.",
        "",
        f"The table has a line for each of {len(RULES)} places in nvFuser's source (commit `{COMMIT[:8]}`, below",
        "`csrc`) that a function of fuser_lab follows, as declared beside that function, with the",
        "[reason](reasons.md) for a refusal or what the function does. [Both sides](#both-sides) of each rule are",
        "asserted by tests: a definition that is just refused, and one that is just accepted. The lines at the end are",
        "shown by [definitions](#definitions) whose segments and, if they are small, values are asserted.",
        "[What is not followed](#what-is-not-followed) lists other functions of nvFuser that decide something, and",
        "says which of them were not read.",
        "",
        "| scheduler | rule | nvFuser | fuser_lab | asserted by nvFuser's test |",
        "|---|---|---|---|---|",
        *rows(),
        "",
        "## What is not followed",
        "",
        "| nvFuser | why |",
        "|---|---|",
        *(f"| {place} | {why} |" for place, why in NOT_FOLLOWED.items()),
        "",
        "## What op builders return",
        "",
        "A definition keeps the calls as they were written. When sizes are known, a call that does less than its name",
        "says becomes what nvFuser's builder returns. Each call below reads `x`, the result of an op; the second",
        "column says what is special about the call or the tensor. The last one is what the fusion has, with the",
        "reason if this differs.",
        "",
        *table(),
        "",
        "## Both sides",
        "",
        "`tensor(8, 16)` is a contiguous float32 input of that shape, `ops` is `fd.ops`, and the target is an H200",
        "unless stated otherwise. Each definition is asked about as a whole.",
        "",
        *both_sides(),
        "## Definitions",
        "",
        "Each definition follows the schedulers of its segments.",
        "",
    ]
    for number, rule in enumerate(rules.RULES, 1):
        lines += example(number, rule)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
