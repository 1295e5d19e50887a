"""``python -m tests.bridge.new_sizes [model]`` prints the cost of a training step at sizes that are new to a model.

A model of `tests.bridge.models` (by default nanoGPT) is compiled with ``dynamic=True``. Each row is a batch size and a
length: processor time of the first step at these sizes and of the third, how many graphs Dynamo has captured, and how
many kernels are compiled or read from disk for these sizes. The first row includes the capture.
"""

import argparse
import time
import warnings

from tests.bridge.models import OWN, of_transformers
from tests.needs import needs

torch = needs("torch")

SIZES = ((9, 0), (10, 1), (11, 3), (9, 2), (12, 1), (14, 4), (10, 0))  # batch size, and how much shorter the rows are


def main() -> None:
    import fuser_lab.torch  # noqa: F401 - registers the backend
    from fuser_lab.runtime import cpu_kernels

    known = {**OWN, **dict(of_transformers())}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="nanoGPT")
    chosen = parser.parse_args()
    if chosen.name not in known:
        parser.error(f"no model {chosen.name!r}; choose from {', '.join(known)} (others need transformers)")
    warnings.simplefilter("ignore")
    made: list[str] = []
    make = cpu_kernels._make

    def counted(source: str) -> object:
        made.append(source)
        return make(source)

    cpu_kernels._make = counted
    torch.manual_seed(0)
    model, given = known[chosen.name]()
    step = torch.compile(model, backend="fuser_lab", dynamic=True)
    print("| sizes | new, ms | known, ms | graphs | kernels |\n|---|---|---|---|---|")
    for batch, less in SIZES:
        words = given[:1, : given.shape[1] - less].expand(batch, -1).contiguous()
        before, times = len(made), []
        for _ in range(4):
            began = time.process_time()
            step(words).backward()
            times.append(1e3 * (time.process_time() - began))
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        row = f"{batch} x {words.shape[1]} | {times[0]:.0f} | {min(times[2:]):.1f} | {graphs} | {len(made) - before}"
        print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
