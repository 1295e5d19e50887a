"""Templates of real programs with random mutations, computed by plans of two strategies each."""

from tests.campaign import Campaign, Trial
from tests.templates.case import Case, case_of, recorded
from tests.templates.check import Way, check

STRATEGIES = ("bottom_up", "fastest", "top_down", "saving", "optimal", "unfused")
TARGETS = ("cpu", "cuda")


def draw(trial: Trial) -> Case:
    """Return the case of a trial."""
    case = case_of(trial.seed, trial.number)
    trial.counts["templates", case.template] += 1
    return case


def check_in_turn(case: Case, trial: Trial) -> None:
    """Check a case for the strategies and the target whose turn it is."""
    number, count = trial.number, len(STRATEGIES)
    first = number % count
    strategies = STRATEGIES[first], STRATEGIES[(first + 1 + number // 7 % (count - 1)) % count]
    plans = check(case, Way(
        strategies=strategies, targets=(TARGETS[number // count % 2],), edits=True, compiled=trial.compiled,
    ))
    trial.counts["plans", "checked"] += plans


def text(case: Case) -> str:
    """Return a case, its definition and its inputs."""
    recording = recorded(case)
    inputs = [f"# {x.name} = {x.array().shape} {x.dtype!r}, strides {x.array().strides}" for x in recording.inputs]
    return "\n".join((f"# {case}", repr(recording.fd), *inputs))


CAMPAIGN = Campaign(
    module="tests.templates.runner", noun="mutated templates", draw=draw, check=check_in_turn, smaller=Case.smaller,
    text=text, compile_every=16, tries=60,
)
