"""``python -m tests.bridge.calls [model ...]`` prints the cost of regions' calls beyond their kernels, in microseconds.

Models are those of `tests.bridge.models`, in training. On the CPU *call* is the processor time of one thread for a
region's call, *kernels* the time of its compiled functions alone, with their arrays in place, and *above* the
difference, which includes ops that the array library evaluates. On a GPU *call* is the least host time of a call while
the GPU is busy with something else, *a segment* is that time divided by the number of segments that run, and *eager*
the same for torch's ops in place of the call. Equal regions are one row, with their number. The line below is the
driver's time for one launch and torch's for allocating one tensor on this host: no call can take less than these for
its segments and outputs.

The last line of a model is the training step, alternately in eager mode and through the bridge: the least processor
time of one thread on the CPU, the least host time on a GPU.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tests.bridge.models import OWN, of_transformers
from tests.needs import needs

torch = needs("torch")
TINY = ("GPT-2", "nanoGPT")


def least(call: Callable[[], Any], clock: Callable[[], float], seconds: float) -> float:
    """The least time of a call, in microseconds."""
    began = clock()
    call()
    count = max(int(2e-3 / max(clock() - began, 1e-7)), 1)
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until or len(found) < 5:
        began = clock()
        for _ in range(count):
            call()
        found.append((clock() - began) / count)
    return min(found) * 1e6


def host_time(call: Callable[[], Any], seconds: float) -> float:
    """The host time of a call while the GPU is busy, in microseconds."""
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until or len(found) < 5:
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        began = time.perf_counter()
        for _ in range(20):
            call()
        found.append((time.perf_counter() - began) / 20)
    torch.cuda.synchronize()
    return min(found) * 1e6


def floor(seconds: float) -> str:
    """The host time of one launch and of allocating one tensor, as a line."""
    from fuser_lab.runtime.arrays import quick_empty

    x = torch.zeros(64, device="cuda")
    launches = _launches_of(x)
    stream = torch.cuda.current_stream().cuda_stream
    empty = quick_empty("cuda") or (lambda *form: torch.empty_strided(*form[:2], dtype=form[2], device="cuda"))
    launch = host_time(lambda: launches(stream), seconds)
    memory = host_time(lambda: empty((64, 64), (64, 1), torch.float32), seconds)
    return f"one launch {launch:.1f}, one tensor {memory:.1f}"


def _launches_of(x: Any) -> Any:
    """The launches of a fusion of one op, with their arguments in place."""
    import fuser_lab as fl

    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([64], contiguity=True, dtype=fl.DataType.Float)))
    prepared = fl.segment(fd, [x]).prepare("cuda")
    for _ in range(2):
        prepared.run([x])
    (launches,) = prepared._ready._kept[-1]._launches
    return launches


def kernels_of(region: Any, inputs: Sequence[Any]) -> Callable[[], Any]:
    """A region's compiled functions, with arrays in place that have the layout of its inputs."""
    prepared = region._prepared
    memory = prepared._run_memory
    arrays = memory.imported(inputs)
    variant = prepared._variants.of(memory.layouts(arrays))
    env = memory.environment(variant)
    memory.filled(env, variant, inputs, arrays, None)
    calls = [
        (call.function, [*(env.arguments[name] for name in call.arguments), *call.sizes])
        for calls in variant.calls for call in calls if hasattr(call, "arguments")
    ]  # fmt: skip

    def run() -> None:
        for function, arguments in calls:
            function(*arguments)

    return run


def seen_inputs(regions: Sequence[Any], step: Callable[[], Any]) -> dict[Any, tuple[Any, ...]]:
    """The arguments of regions in a step."""
    found: dict[Any, tuple[Any, ...]] = {}
    for region in regions:
        region.observer = lambda region, inputs: found.setdefault(region, tuple(x.detach() for x in inputs))
    step()
    for region in regions:
        region.observer = None
    return found


def table(name: str, make: Callable[[], tuple[Any, Any]], device: str, dtype: Any, seconds: float) -> None:
    """Prints the rows of one model."""
    import fuser_lab.torch as bridge

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = make()
    model, given = model.to(device, dtype), given.to(device, dtype if given.is_floating_point() else None)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(function: Callable[[Any], Any]) -> None:
        optimizer.zero_grad()
        function(given).backward()
        optimizer.step()

    compiled = torch.compile(model, backend="fuser_lab")
    for _ in range(3):
        step(compiled)
    regions = bridge.last().regions
    inputs = seen_inputs(regions, lambda: step(compiled))
    on_gpu = device != "cpu"
    print(f"\n{name}, {device}, {torch.__version__}\n")
    columns = "a segment | eager | times |" if on_gpu else "kernels | above |"
    print("| region | number | inputs | outputs | segments | call |", columns)
    print("|---" * (9 if on_gpu else 8) + "|")
    counts: dict[Any, int] = {}
    for region in regions:
        counts[region.signature] = counts.get(region.signature, 0) + 1
    for region in regions:
        number = counts.pop(region.signature, 0)
        if not number or region not in inputs:
            continue
        x = inputs[region]
        with torch.no_grad():
            for _ in range(3):
                region(*x)
            segments = sum(step.runs for step in region._prepared.steps(x))
            if on_gpu:
                call = host_time(lambda region=region, x=x: region(*x), seconds)
                eager = host_time(lambda region=region, x=x: region.fallback(*x), seconds)
                last = [call, call / max(segments, 1), eager, call / eager]
            else:
                call = least(lambda region=region, x=x: region(*x), time.thread_time, seconds)
                last = [call, least(kernels_of(region, x), time.thread_time, seconds)]
                last.append(last[0] - last[1])
        told = " | ".join(f"{value:.1f}" for value in last)
        names = ", ".join(op.target.split(".")[1] for op in region.ops[:4])
        print(f"| {names} | {number} | {len(x)} | {len(region.traced)} | {segments} | {told} |", flush=True)
    if on_gpu:
        print(f"\n{floor(seconds)}")
    rows: dict[str, list[float]] = {"eager": [], "fuser_lab": []}
    clock = time.perf_counter if on_gpu else time.thread_time
    until = time.perf_counter() + 20 * seconds
    while time.perf_counter() < until or len(rows["eager"]) < 20:
        for which, function in (("eager", model), ("fuser_lab", compiled)):
            if on_gpu:
                torch.cuda.synchronize()
            began = clock()
            step(function)
            rows[which].append(clock() - began)
    eager, ours = (min(rows[which]) * 1e3 for which in rows)
    print(f"\ntraining step: eager {eager:.2f} ms, fuser_lab {ours:.2f} ms, ratio {ours / eager:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"names of models; those there are of {', '.join(TINY)} by default")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=0.2, help="to spend on each number")
    chosen = parser.parse_args()
    import numba

    torch.set_num_threads(1)
    numba.set_num_threads(1)
    models = {**OWN, **dict(of_transformers())}
    for name in chosen.names or [name for name in TINY if name in models]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table(name, models[name], chosen.device, getattr(torch, chosen.dtype), chosen.seconds)


if __name__ == "__main__":
    main()
