"""``python -m tests.bridge.first_step [model]`` prints the time of the first training step beside torch's own tracing.

Each row is a separate process, on a model of `tests.bridge.models` (by default the tiny GPT-2) that has made a step in
eager mode. The clock starts at the first call of the compiled model, after torch, Dynamo and fuser_lab have been
imported, and stops after forward, backward and optimizer. ``eager`` is Dynamo's time to trace the function;
``aot_eager`` also traces and partitions the ATen graphs. Neither compiles anything. *Cold* begins with an empty cache,
*warm* with the cache that *cold* leaves. Processor time excludes child processes; elapsed time is meaningful on idle
cores only.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings

from tests.bridge.models import OWN, of_transformers
from tests.needs import needs

torch = needs("torch")


def first_step(name: str, backend: str) -> tuple[float, float]:
    """Seconds of the first step: processor time of this process, and elapsed time."""
    import torch._dynamo.backends.common
    import torch._inductor.config

    import fuser_lab.torch  # noqa: F401 - registers the backend

    torch.manual_seed(0)
    model, given = {**OWN, **dict(of_transformers())}[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend=backend)
    for run in (model, compiled):
        began = time.process_time(), time.perf_counter()
        optimizer.zero_grad()
        run(given).backward()
        optimizer.step()
    return time.process_time() - began[0], time.perf_counter() - began[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="GPT-2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", help="measure this one in this process")
    chosen = parser.parse_args()
    known = {**OWN, **dict(of_transformers())}
    if chosen.name not in known:
        parser.error(f"no model {chosen.name!r}; choose from {', '.join(known)} (others need transformers)")
    if chosen.backend:
        warnings.simplefilter("ignore")
        print(*first_step(chosen.name, chosen.backend))
        return
    print("| | processor time, s | elapsed, s |\n|---|---|---|")
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for row in ("eager", "aot_eager", "cold", "warm"):
                backend = row if row.endswith("eager") else "fuser_lab"
                command = [sys.executable, "-m", "tests.bridge.first_step", chosen.name, "--backend", backend]
                env = {**os.environ, "FUSER_LAB_CACHE": cache}
                printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True).stdout
                busy, elapsed = map(float, printed.split()[-2:])
                print(f"| {row} | {busy:.1f} | {elapsed:.1f} |", flush=True)


if __name__ == "__main__":
    main()
