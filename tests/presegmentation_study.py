"""When do cuts at reshapes and resizes pay? ``python -m tests.presegmentation_study --count 2000 --seed 17``.

Random fusions of pointwise ops, row sums, reshapes, slices and pads over 1024 x 1024 floats, with several outputs, and
the gallery, each segmented bottom-up and top-down with every set of cuts. It prints how often the second moves fewer
bytes, and how often more; lesson 04 shows these rows.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import FuserLabError
from fuser_lab.search.presegmentation import CUTS, alternatives

GALLERY = Path(__file__).parent / "data" / "gallery.json"
SHAPES = ([1024, 1024], [512, 2048], [2048, 512])


@dataclass
class Tally:
    """Counts of fusions in which a set of cuts moves fewer, equal or more bytes than bottom-up, and the shares."""

    fewer: int = 0
    same: int = 0
    more: int = 0
    shares: list[float] = field(default_factory=list)

    def add(self, share):
        self.shares.append(share)
        if share == 1:
            self.same += 1
        elif share < 1:
            self.fewer += 1
        else:
            self.more += 1

    def row(self, cuts):
        best, worst = min(self.shares, default=1.0), max(self.shares, default=1.0)
        total = len(self.shares)
        return f"{cuts:24} {total:7} {self.fewer:6} {self.same:6} {self.more:6} {best:7.2f} {worst:7.2f}"


HEAD = f"{'top-down with':24} {'fusions':>7} {'fewer':>6} {'equal':>6} {'more':>6} {'best':>7} {'worst':>7}"


def random_definition(seed, index):
    """Return a fusion by number; most have a reshape of a value that is computed."""
    rng = Random(f"presegmentation {seed} {index}")
    with FusionDefinition() as fd:
        values = [(fd.define_tensor(SHAPES[0], contiguity=True), SHAPES[0]) for _ in range(rng.randint(1, 3))]
        inputs, read = len(values), set()

        def pick(shape=None):
            chosen = rng.choice([v for v in values if shape is None or v[1] == shape][-5:])
            read.add(id(chosen))
            return chosen

        for step in range(rng.randint(4, 10)):
            x, shape = pick()
            kind = 6 if step == 1 else rng.randrange(9)
            if kind < 3:
                new = getattr(fd.ops, rng.choice(("exp", "sin", "neg", "relu")))(x)
            elif kind < 5:
                new = getattr(fd.ops, rng.choice(("add", "mul", "sub")))(x, pick(shape)[0])
            elif kind == 5:
                total = fd.ops.sum(x, dims=[1], keepdim=True)
                new = getattr(fd.ops, rng.choice(("truediv", "sub")))(pick(shape)[0], total)
            elif kind < 8:
                shape = rng.choice([other for other in SHAPES if other != shape])
                new = fd.ops.reshape(x, new_shape=shape)
            else:
                new = fd.ops.pad(fd.ops.slice(x, [0, 0], [shape[0], shape[1] // 2]), [0, shape[1] // 2])
            values.append((new, shape))
        for value in values[inputs:]:
            if id(value) not in read or rng.random() < 0.2:
                fd.add_output(value[0])
    return fd


def gallery_definitions():
    """Yield the definitions of the gallery with inputs."""
    for case in json.loads(GALLERY.read_text()):
        with FusionDefinition() as fd:
            exec(case["python"], {"fd": fd, "DataType": DataType})
        yield fd, [
            fl.spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]
        ]


def tallied(plans):
    """Return a tally for each set of cuts."""
    tallies = {cuts: Tally() for cuts in CUTS}
    for plan in plans:
        for one in alternatives(plan):
            tallies[one.cuts].add(one.share)
    return tallies


def random_plans(seed, count):
    """Yield bottom-up plans of random fusions."""
    for index in range(count):
        try:
            plan = fl.segment(random_definition(seed, index))
        except FuserLabError as error:
            sys.stderr.write(f"{index}: {error}\n")
            continue
        if all(segment.scheduler for segment in plan.segments):
            yield plan


def table(tallies):
    """Return the rows of a study."""
    return "\n".join([HEAD, *(tally.row(cuts) for cuts, tally in tallies.items())])


def main():
    """Print the requested study."""
    parser = argparse.ArgumentParser(prog="python -m tests.presegmentation_study", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    start = time.perf_counter()
    sys.stdout.write(f"gallery\n{table(tallied(fl.segment(*one) for one in gallery_definitions()))}\n\n")
    sys.stdout.write(f"random fusions\n{table(tallied(random_plans(arguments.seed, arguments.count)))}\n")
    sys.stdout.write(f"\n{time.perf_counter() - start:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
