"""The page of what Inductor's decisions cost, measured on this machine: ``python -m tests.pages.inductor_prices``.

``--share 0.1`` takes a tenth of the functions of the corpus and of the tiny models, ``--edits N`` the most cuts and
glues of each; ``--seed`` chooses others. After ``--minutes`` of processor time no function is begun, and none after an
interrupt: the page then has what was measured.
"""

import argparse
import datetime as dt
import math
import os
import random
import resource
import statistics
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import fuser_lab as fl
from fuser_lab.compilers.kernels import CompiledWhy
from fuser_lab.compilers.plan import CompiledPlan, EditTimes
from fuser_lab.cost.amounts import bytes_label, seconds_label
from fuser_lab.errors import FuserLabError, IllegalEdit
from fuser_lab.runtime.processors import processor_name
from tests.bridge.inductor_functions import MODELS, model_of
from tests.bridge.speed import of_corpus
from tests.needs import needs

torch = needs("torch")
_WIDTH = 120
_CONFIDENCE = 0.95
CUT = "fused pairs, cut"
Edit = tuple[str, str, Callable[[], CompiledPlan]]  # the reason, the place, and what makes it


@dataclass
class Row:
    """What edits of one kind gave: those that Inductor refused, and the times of the others, with their names.

    ``passing`` are the edits that seemed faster or slower, and did not when they were made and timed again.
    """

    pairs: int = 0
    refused: int = 0
    passing: int = 0
    times: list[tuple[str, EditTimes]] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """The number of edits that were tried."""
        return len(self.times) + self.passing + self.refused

    @property
    def faster(self) -> list[tuple[str, EditTimes]]:
        """The edits whose interval is below 1."""
        return [(name, times) for name, times in self.times if effect(times) < 0]

    @property
    def slower(self) -> list[tuple[str, EditTimes]]:
        """The edits whose interval is above 1."""
        return [(name, times) for name, times in self.times if effect(times) > 0]

    def lost(self) -> tuple[float, float, float]:
        """The seconds that the faster edits save, by the median and by both ends of their intervals."""
        saved = [
            (times.before * (1 - ratio) for ratio in (statistics.median(times.ratios), *interval(times.ratios)))
            for _, times in self.faster
        ]
        median, high, low = (sum(each) for each in zip(*saved, strict=True)) if saved else (0.0, 0.0, 0.0)
        return median, low, high


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The interval of the median: two ordered values with the median between them in 95 of 100 samples, or more."""
    ordered, count = sorted(ratios), len(ratios)
    outside = 0.0
    for rank in range(count // 2):
        outside += math.comb(count, rank) / 2**count
        if 2 * outside > 1 - _CONFIDENCE:
            return (ordered[rank - 1], ordered[-rank]) if rank else (0.0, math.inf)
    return ordered[max(count // 2 - 1, 0)], ordered[count // 2]


def drawn(edits: Sequence[Edit], most: int, draw: random.Random) -> list[Edit]:
    """Random edits, for as many reasons as there are: first one of each, then a second of each."""
    seen = Counter[str]()
    ranked = []
    for edit in draw.sample(edits, len(edits)):
        ranked.append((seen[edit[0]], edit))
        seen[edit[0]] += 1
    return [edit for _, edit in sorted(ranked, key=lambda entry: entry[0])][:most]


def confirmed(times: EditTimes | None, make: Callable[[], CompiledPlan]) -> EditTimes | None:
    """The times of an edit, the second ones if the first have an effect; None if the second have another effect."""
    if times is None or effect(times) == 0:
        return times
    again = make().edited
    return again if again is not None and effect(again) == effect(times) else None


def effect(times: EditTimes) -> int:
    """-1 for an edit that is faster, 1 for one that is slower, and 0 if the times do not say."""
    low, high = interval(times.ratios)
    return (low > 1) - (high < 1)


@dataclass
class Prices:
    """The rows by reason, and sums over all graphs."""

    rows: dict[str, Row] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    kernels: int = 0
    regions: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("inductor", "optimal"), 0.0))
    crossing: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("inductor", "optimal"), 0))
    device: str = ""
    failed: list[str] = field(default_factory=list)

    def add(self, name: str, plan: CompiledPlan, most: int, draw: random.Random) -> None:
        """Edit a plan at random places, and compare its regions with the best partition."""
        self.kernels += len(plan.segments)
        opaque = {kernel.index for kernel in plan.segments if kernel.opaque}
        pairs = [why for why in (*plan.boundaries(), *plan.siblings()) if opaque.isdisjoint(why.kernels)]
        edits: list[Edit] = []
        for why in pairs:
            self.rows.setdefault(reason_of(why), Row()).pairs += 1
            edits.append((reason_of(why), f"kernels {why.kernels}", lambda why=why: plan.glue(*why.kernels)))
        for kernel in plan.segments:
            for buffer in filter(plan.can_cut, kernel.writes):
                self.rows.setdefault(CUT, Row()).pairs += 1
                edits.append((CUT, buffer, lambda buffer=buffer: plan.cut(buffer)))
        for reason, place, make in drawn(edits, most, draw):
            try:
                edited = make()
            except IllegalEdit:
                self.rows[reason].refused += 1
                continue
            times = confirmed(edited.edited, make)
            if times is None:
                self.rows[reason].passing += 1
            else:
                self.rows[reason].times.append((f"{name}, {place}", times))
        for region, fusion in enumerate(plan.fusions):
            best = plan.resegmented("optimal", region)
            self.regions += 1
            self.device = fusion.oracle.device.name
            for key, each in (("inductor", fusion), ("optimal", best)):
                self.seconds[key] += each.time_bound().seconds
                self.crossing[key] += each.bytes_crossing


def reason_of(why: CompiledWhy) -> str:
    """The reason of a pair, with who states it."""
    return f"{why.text} (inductor)" if why.by == "inductor" else f"`{why.code}` ({why.by})"


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each function and model, with a call that compiles it."""
    for name, case in of_corpus(small=True).items():
        yield name, lambda case=case: fl.from_inductor(
            case.compute, *(x.requires_grad_(case.backward and x.is_floating_point()) for x in case.inputs("cpu")),
            backward=case.backward,
        )
    for name in MODELS:
        yield f"{name}, tiny", lambda name=name: _model(name)


def _model(name: str) -> Any:
    model, inputs = model_of(name)
    return fl.from_inductor(model, *inputs)


def spent() -> float:
    """The minutes of processor time of this process and its compilers."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) / 60


def measured(share: float, edits: int, seed: int, minutes: float) -> Prices:
    """The prices over a share of the functions and models, in random order while there is time."""
    draw, prices, every = random.Random(seed), Prices(), list(cases())
    is_interrupted = False
    for name, compile_it in draw.sample(every, max(1, round(share * len(every)))):
        if is_interrupted or spent() > minutes:
            prices.failed.append(f"{name} (no time)")
            continue
        sys.stderr.write(f"{spent():5.1f} minutes: {name}\n")
        try:
            plans = compile_it().plans
            prices.functions.append(name)
            for plan in plans:
                prices.add(name, plan, max(1, edits // len(plans)), draw)
        except KeyboardInterrupt:
            is_interrupted = True
            if name not in prices.functions:
                prices.failed.append(f"{name} (no time)")
        except (FuserLabError, RuntimeError) as error:
            prices.failed.append(f"{name} ({type(error).__name__})")
    return prices


def page(prices: Prices, options: argparse.Namespace, load: float) -> str:
    """The page as Markdown; ``load`` was the load average at the beginning."""
    command = (
        f"python -m tests.pages.inductor_prices --share {options.share:g} --edits {options.edits} "
        f"--minutes {options.minutes:g} --seed {options.seed}"
    )
    rows = prices.rows.values()
    tried, faster, slower = (sum(map(len, lists)) for lists in zip(
        *((row.times, row.faster, row.slower) for row in rows), strict=True,
    )) if rows else (0, 0, 0)
    passing = sum(row.passing for row in rows)
    glues = [row for reason, row in prices.rows.items() if reason != CUT]
    refused, glued = sum(row.refused for row in glues), sum(row.tried for row in glues)
    optimal, own = prices.seconds["optimal"], prices.seconds["inductor"]
    what = (
        "Inductor's scheduler decides which operations one kernel computes. This page measures what its decisions "
        "cost: kernels that it leaves separate are glued, and kernels that it fuses are cut, by `plan.glue` and "
        "`plan.cut` of [`fl.from_inductor`](inductor.md), which compile the function again and compare the values."
    )
    how = (
        f"Measured on {dt.datetime.now(tz=dt.UTC).date()} with torch {torch.__version__} on {processor_name()}, with "
        f"{torch.get_num_threads()} thread, by `{command}`. The load average of the {os.cpu_count()} processors was "
        f"{load:.0f} at the beginning and {os.getloadavg()[0]:.0f} at the end, and the measurement took {spent():.0f} "
        f"minutes of processor time. It drew {len(prices.functions)} of the {len(list(cases()))} functions of the "
        f"corpus, in small sizes, and tiny models, and edits of their {prices.kernels} kernels: at most "
        f"{options.edits} edits of a function, for different reasons where it has several."
    )
    judged = (
        "Each edit is timed in 20 turns beside the plan without it, so that the load slows both. The interval of the "
        "median ratio of their times holds in 95 of 100 samples. An edit is *faster* if its interval is below 1, and "
        "*slower* if it is above 1, in two measurements, each with a compilation."
    )
    ratios = {kind: [statistics.median(times.ratios) for reason, row in prices.rows.items() for _, times in row.times
                     if (reason == CUT) == (kind == "cuts")] for kind in ("glues", "cuts")}
    medians = ", and ".join(
        f"{kind} take {statistics.median(each):.2f} of the time ({len(each)} from {min(each):.2f} to {max(each):.2f})"
        for kind, each in ratios.items() if each
    )
    result = (
        f"Of {tried + passing} edits that Inductor obeyed, {faster} are faster and {slower} slower; {passing} more "
        "seemed so, but not when measured again. "
        + (f"By the median, {medians}. " if medians else "")
        + f"Of {glued} glues Inductor refused {refused}, because it cannot write their kernels; only what it declines "
        "by choice has a price. "
        + ("No reason costs measurable time in this sample." if not faster else "")
    )
    bound = (
        f"The optimal partition of the same {prices.regions} regions is predicted at {seconds_label(optimal)} for the "
        f"{prices.device}, and Inductor's at {seconds_label(own)} ({own / optimal:.2f} times as much). Between kernels "
        f"it moves {bytes_label(prices.crossing['optimal'])}, Inductor's {bytes_label(prices.crossing['inductor'])}. "
        "These figures are predicted, and kernels from elsewhere are not among them."
    ) if optimal else ""
    lines = [f"<!-- Made by `{command} > docs/inductor_prices.md`. -->", "", "# What Inductor's decisions cost", ""]
    for paragraph in (what, how, judged, result):
        lines += [*_wrapped(paragraph.strip()), ""]
    ranked = sorted(prices.rows.items(), key=lambda item: (-item[1].lost()[0], -item[1].pairs))
    lines += [
        "| separate because | pairs | tried | refused | faster | slower | time lost (interval) | largest gain |",
        "|---|---|---|---|---|---|---|---|", *(_row(reason, row) for reason, row in ranked), "",
    ]
    rest = (
        "`pairs` are all neighbours in the sample, without kernels from elsewhere; `refused` edits are those for which "
        "Inductor emits other kernels than those asked for, so their price cannot be measured. The reasons of "
        "`fuser_lab` are explained beside [the others](inductor.md#reasons)."
    )
    names = f"Drawn: {'; '.join(prices.functions)}."
    for paragraph in filter(None, (rest, bound, names)):
        lines += [*_wrapped(paragraph), ""]
    if prices.failed:
        lines += [*_wrapped(f"Not measured: {'; '.join(prices.failed)}."), ""]
    return "\n".join(lines).rstrip()


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, _WIDTH, break_on_hyphens=False, break_long_words=False)


def _row(reason: str, row: Row) -> str:
    median, low, high = row.lost()
    lost = f"{seconds_label(median)} ({seconds_label(low)} to {seconds_label(high)})" if row.faster else "nothing"
    best = min(row.faster, key=lambda entry: statistics.median(entry[1].ratios), default=None)
    gain = "" if best is None else f"{best[0]}: {statistics.median(best[1].ratios):.2f} of the time"
    counts = (row.pairs, row.tried, row.refused, len(row.faster), len(row.slower))
    return f"| {reason} | {' | '.join(map(str, counts))} | {lost} | {gain} |"


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.1, help="share of the functions and models")
    parser.add_argument("--edits", type=int, default=4, help="most edits of a function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20, help="most minutes of processor time")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the time of a call then depends less on other programs
    load = os.getloadavg()[0]
    prices = measured(options.share, options.edits, options.seed, options.minutes)
    sys.stdout.write(page(prices, options, load) + "\n")


if __name__ == "__main__":
    main()
