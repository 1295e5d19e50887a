"""The page of the prices of nvFuser's rules over the corpus: ``python -m tests.pages.prices [PATTERN]``."""

import shlex
import sys
import textwrap

import fuser_lab as fl
from fuser_lab.cost.amounts import bytes_label, seconds_label
from fuser_lab.pricing.prices import Prices, RulePrice

COMMAND = "python -m tests.pages.prices{pattern} > docs/prices.md"
_WIDTH = 120


def prices_markdown(prices: Prices, pattern: str = "*") -> str:
    """Return the page of prices over the entries of the corpus whose names match a pattern."""
    matching = "" if pattern == "*" else f" whose names match `{pattern}`"
    what = (
        "nvFuser's schedulers refuse some merges that one kernel could compute. `fl.price(fd, inputs)` segments a "
        "fusion with all rules, then again without each rule that refused a merge, and reports the bytes and the "
        "predicted time that this saves. A scheduler without a rule accepts everything that passes its other rules and "
        "that fuser_lab lowers to one kernel without rereading a tensor, so every plan in this table can run. "
        "`fl.segment(..., schedulers=fl.OPEN_SCHEDULERS)` segments without all of these rules, and `segment.beyond` "
        "names those that a segment breaks."
    )
    over = (
        f"The table covers {prices.fusions} fusions of the [corpus](corpus.md){matching} at real sizes, cut bottom-up "
        f"for the {prices.target}: predicted at {seconds_label(prices.seconds)} under nvFuser's rules. Times are "
        "predicted for the kernels as scheduled (`plan.predicted_time()`); nothing on this page is measured. A "
        "rule *gains* in a fusion if the plan without it is predicted to be faster. The segmenter is greedy, so "
        "lifting a rule can also make a plan slower, which counts against the rule. Lifting all rules together gains "
        f"in {prices.together.gaining} fusions. This row is not the sum of the others, because one merge can need two "
        "rules to be lifted, two rules can prevent the same merge, and bottom-up then merges in another order, in "
        "which merging a small pair may prevent merging a large one. `strategy='saving'` begins with the merge that "
        "saves the most bytes."
    )
    command = COMMAND.format(pattern="" if pattern == "*" else f" {shlex.quote(pattern)}")
    lines = [f"<!-- Made by `{command}`. -->", "", "# What each rule costs", ""]
    for paragraph in (what, over):
        lines += [*textwrap.wrap(paragraph, _WIDTH, break_on_hyphens=False), ""]
    lines += [
        "| rule | fusions | gaining | refused attempts | bytes saved | time saved | largest gain |",
        "|---|---|---|---|---|---|---|",
        *(_row(row) for row in prices.rows if row.example is not None), _row(prices.together), "",
    ]
    others = [row for row in prices.rows if row.example is None]
    if others:
        named = ", ".join(f"[{row.rule}](reasons.md#{row.rule}) ({row.refusals})" for row in others)
        text = f"No fusion gains from lifting one of these rules alone (refused attempts in parentheses): {named}."
        lines += [*textwrap.wrap(text, _WIDTH, break_on_hyphens=False, break_long_words=False), ""]
    lines += [
        "```python",
        "prices = fl.price(fd, inputs)                  # one fusion: a table, prices.to_pandas(), prices.save(path)",
        "prices = fl.price(fd, inputs, measure=True)    # also times the plans of each rule's example on this machine",
        'prices = fl.price(fl.corpus("llama*"))         # over entries of the corpus: a ranking',
        'fl.segment(fd, inputs, schedulers=fl.without_rules("index_input"))     # the plan without a rule',
        'print(prices.issue("index_input"))             # the text of an issue, with a reduced example',
        "```", "",
        "`python -m fuser_lab price FILE` prints the table of a repro script, `--issue RULE` the text of an issue.", "",
        *_issues(prices),
    ]
    return "\n".join(lines)


def _issues(prices: Prices) -> list[str]:
    """Return, as lines, the text of an issue for each rule with an example."""
    rules = [row.rule for row in prices.rows if row.example is not None]
    if not rules:
        return []
    about = (
        "Each rule that costs any fusion something has the text of an issue for nvFuser's developers, ready to be "
        "pasted. The script is the example with the largest gain, reduced to the smallest fusion found that still "
        "gains if only this rule is lifted."
    )
    lines = ["## Issues", "", *textwrap.wrap(about, _WIDTH, break_on_hyphens=False), ""]
    for rule in rules:
        lines += [f"### {rule}", "", "````markdown", *prices.issue(rule).rstrip().splitlines(), "````", ""]
    return lines


def _row(row: RulePrice) -> str:
    example = row.example
    most = "" if example is None else f"`{example.name}`, {bytes_label(example.bytes)}"
    name = row.rule if " " in row.rule else f"[{row.rule}](reasons.md#{row.rule})"
    sign = "-" if row.bytes < 0 else ""
    slower = "-" if row.seconds < 0 else ""
    return (
        f"| {name} | {row.fusions} | {row.gaining} | {row.refusals:,} | {sign}{bytes_label(abs(row.bytes))} | "
        f"{slower}{seconds_label(abs(row.seconds))} | {most} |"
    )


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "*"
    sys.stdout.write(prices_markdown(fl.price(fl.corpus(chosen)), chosen))
