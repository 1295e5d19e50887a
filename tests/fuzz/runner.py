"""Random definitions over all ops, computed in every way and compared."""

from tests.campaign import Campaign, Trial
from tests.fuzz.analysis import DRAWN
from tests.fuzz.check import Way, check
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import ENTRIES, Generator
from tests.fuzz.program import Program
from tests.fuzz.shrink import smaller

# Single ops take the most kernels and find the fewest defects.
STRATEGIES = (*["bottom_up"] * 7, *["top_down"] * 2, "unfused")
TARGETS = (("cpu",), ("cuda",), ("cpu",), ("cuda",), ("cpu", "cuda"))
MOST_STEPS, MOST_COMPILED_STEPS = 60, 14  # a kernel takes a third of a second to compile
COVERED_FROM = 5000  # definitions, among which every op occurs


def draw(trial: Trial) -> Program:
    """Return the program of a trial."""
    generator = Generator(Seeded(trial.seed, trial.number))
    program = generator.program(MOST_COMPILED_STEPS if trial.compiled else MOST_STEPS)
    trial.counts.update(("ops", name) for name in program.ops())
    return program


def check_in_turn(program: Program, trial: Trial) -> None:
    """Check a program for the strategy and the targets whose turn it is."""
    strategy = STRATEGIES[trial.number // len(TARGETS) % len(STRATEGIES)]
    trial.counts["strategies", strategy] += 1
    check(program, Way(strategy=strategy, targets=TARGETS[trial.number % len(TARGETS)], compiled=trial.compiled))


CAMPAIGN = Campaign(
    module="tests.fuzz.runner", noun="definitions", draw=draw, check=check_in_turn, smaller=smaller, compile_every=64,
    chunk=50, occurring_from=COVERED_FROM,
    occurring=lambda: [("ops", name) for name, entry in ENTRIES.items() if entry.samples and name not in DRAWN],
)
