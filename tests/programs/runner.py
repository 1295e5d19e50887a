"""Random programs, and norm-like ones over short rows, against torch in float64."""

from collections import Counter

from tests.campaign import Campaign, Trial
from tests.programs.check import Way, check
from tests.programs.generator import program_of, row_program
from tests.programs.program import Program
from tests.programs.shrink import smaller

STRATEGIES = (*["bottom_up"] * 4, "top_down", "top_down", "saving", "optimal", "fastest", "fastest", "unfused")
MOST_CALLS, MOST_COMPILED_CALLS = 24, 10  # a kernel takes a third of a second to compile
ROWS_EVERY = 2  # one program in two is norm-like


def draw(trial: Trial) -> Program:
    """Return the program of a trial."""
    refused = Counter[str]()
    number, rest = divmod(trial.number, ROWS_EVERY)
    if rest:
        program = row_program(trial.seed, number, refused)
    else:
        program = program_of(
            trial.seed, number, refused, most_calls=MOST_COMPILED_CALLS if trial.compiled else MOST_CALLS,
        )
    trial.counts.update({("refused as definitions", text): count for text, count in refused.items()})
    trial.counts.update(("ops", call.op) for call in program.calls)
    return program


def check_in_turn(program: Program, trial: Trial) -> None:
    """Check a program for the strategy and the target whose turn it is, and after random edits of one plan in three."""
    number = trial.number // ROWS_EVERY
    strategy = STRATEGIES[number % len(STRATEGIES)]
    plans, edited = check(program, Way(
        strategy=strategy, target=("cpu", "cuda")[number // len(STRATEGIES) % 2],
        edits=number if number % 3 == 0 else None, compiled=trial.compiled,
    ))
    trial.counts.update({("strategies", strategy): 1, ("plans", "checked"): plans, ("plans", "edited"): edited})


CAMPAIGN = Campaign(
    module="tests.programs.runner", noun="programs", draw=draw, check=check_in_turn, smaller=smaller,
    compile_every=100, tries=300,
)
