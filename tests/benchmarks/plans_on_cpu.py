"""Whether plans of a fusion are predicted in order on this CPU: python -m tests.benchmarks.plans_on_cpu.

The rates come first: ``python -m fuser_lab fit --this-cpu``. Each fusion is cut by several strategies, with and without
nvFuser's rules; its plans are measured in turn, in the small form where the fusion has one. Prints a line for each
fusion, then the mean of Spearman's rank correlation, the share of pairs that differ by 10 % or more and are predicted
in their measured order, and the share of plans and of kernels predicted within 20 %.
"""

import argparse
import math
from itertools import combinations
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab.runtime.clocks import HostClock

STRATEGIES = ("bottom_up", "unfused", "saving", "top_down", "fastest")
MOST = 64 << 20  # bytes of inputs and outputs
ROUNDS = 25
APART = 1.1
WITHIN = 0.2
FEWEST = 3  # plans of a fusion whose ranks are compared


def plans_of(fd: Any, inputs: list[Any]) -> list[fl.Plan]:
    """Return plans for this CPU that differ."""
    found: dict[Any, fl.Plan] = {}
    for schedulers in (fl.SCHEDULERS, fl.OPEN_SCHEDULERS):
        for strategy in STRATEGIES:
            plan = fl.segment(fd, inputs, strategy=strategy, target="this CPU", schedulers=schedulers)
            if all(segment.scheduler is not None for segment in plan.segments):
                found.setdefault(plan.segmented.key, plan)
    return list(found.values())


def measured(plans: list[fl.Plan], inputs: list[Any]) -> list[float]:
    """Return the least seconds of each plan, measured in turn: what other programs add is left out."""
    arrays = [one.materialize() if hasattr(one, "materialize") else one for one in inputs]
    clocks = []
    for plan in plans:
        prepared = plan.prepared("cpu")
        bound = prepared.bind(arrays)
        clocks.append(HostClock().measured(lambda steps=bound.steps: [step() for step in steps]))
    samples = [[clock() for clock in clocks] for _ in range(ROUNDS)]
    return [min(column) for column in zip(*samples, strict=True)]


def main() -> None:
    """Run the command."""
    from scipy.stats import spearmanr

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="*/*/0", metavar="PATTERN")
    parser.add_argument("--every", type=int, default=1, help="take one of so many entries")
    options = parser.parse_args()
    ranks, pairs, factors = [], [], []
    for entry in list(fl.corpus(options.corpus))[:: options.every]:
        small = bool(entry.small_script)
        if not small and entry.bytes > MOST:
            continue
        try:
            fd, inputs = entry.load(small=small)
            plans = plans_of(fd, inputs)
            if len(plans) < FEWEST:
                continue
            times = measured(plans, inputs)
        except fl.FuserLabError as error:
            print(f"{entry.name}: {error}", flush=True)
            continue
        predictions = [plan.predicted_time().seconds for plan in plans]
        ranks.append(float(spearmanr(times, predictions).statistic))
        for n, m in combinations(range(len(plans)), 2):
            if max(times[n], times[m]) >= APART * min(times[n], times[m]):
                pairs.append((times[n] < times[m]) == (predictions[n] < predictions[m]))
        factors += [guess / time for guess, time in zip(predictions, times, strict=True)]
        told = " ".join(f"{1e6 * t:.0f}/{1e6 * p:.0f}" for t, p in sorted(zip(times, predictions, strict=True)))
        print(f"{entry.name}: {ranks[-1]:.2f}  {told}", flush=True)
    known = [rank for rank in ranks if not math.isnan(rank)]  # NaN where all are predicted alike
    within = np.mean(np.abs(np.array(factors) - 1) <= WITHIN)
    print(f"{len(known)} fusions: rank correlation {np.mean(known):.2f}, median {np.median(known):.2f}; "
          f"{np.mean(pairs):.0%} of {len(pairs)} pairs in order; {within:.0%} of {len(factors)} plans within 20 %, "
          f"median factor {np.exp(np.median(np.abs(np.log(factors)))):.2f}")


if __name__ == "__main__":
    main()
