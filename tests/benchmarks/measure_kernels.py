"""Times of a few hundred segments under several schedules each: python -m tests.benchmarks.measure_kernels --out FILE.

The model of a kernel's time is fitted to the file: ``python -m tests.fitting FILE``. Segments come from the corpus, the
examples, both sets of the benchmark and small definitions at many sizes, in a random order that is the same in every
run, so that a run that ends early has measured some of everything. Some processes segment, lower and compile; another
one measures the candidates of a few segments alternately, with a cold L2 cache on a GPU, and is restarted if a kernel
ends it. A failure is a line with its reason. The file is written every few seconds; the command ends after
``--seconds``.
"""

import argparse
import multiprocessing
import os
import queue
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.codegen.kernel_profile import kernel_features, largest_phase
from fuser_lab.codegen.pipeline import GeneratedKernel, evaluated_because
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.definition.spec import Fill
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.lab.environment import environment, now
from fuser_lab.runtime.arrays import TORCH_OF
from fuser_lab.runtime.binding import slot_of
from fuser_lab.runtime.clocks import HostClock
from fuser_lab.runtime.gpu.this_gpu import this_gpu
from fuser_lab.runtime.plan.ahead import compile_kernel
from fuser_lab.runtime.processors import processors
from fuser_lab.schedule.parameter_values import Values
from fuser_lab.schedule.parameters import LoopChange
from fuser_lab.schedule.suggestions import suggestions
from tests.benchmarks.gpu.workloads import WORKLOADS
from tests.benchmarks.second import SECOND
from tests.benchmarks.written import F, Written
from tests.fitting.measurements import Measurement, Measurements, save
from tests.kernels import generate, prepare

Given = tuple[FusionDefinition, list[Any]]
MOST: Final = {"cuda": 1 << 30, "cpu": 1 << 26}  # bytes that a segment reads and writes
SEGMENTS: Final = 2  # of one fusion
CANDIDATES: Final = 5  # in addition to the heuristics' choice
SAMPLES: Final = 15
BATCH: Final = 8  # segments that are measured alternately
WRITE_EVERY: Final = 20.0  # seconds
LAST: Final = 6.0  # seconds to write the file and end
SILENT: Final = 60.0  # seconds without a row after which the measuring process is restarted
INTEGERS: Final = 8  # bound of integer inputs
NAMES: Final = {DataType.Float: "float32", DataType.BFloat16: "bfloat16", DataType.Half: "float16"}


# What is measured


def built() -> list[str]:
    """Return names of small definitions: kind, dtype, rows, columns."""
    forms = ("copy", "gelu", "add3", "row_sum", "column_sum", "softmax", "layer_norm", "transpose", "column_norm")
    sizes = ((4, 256), (64, 512), (512, 1024), (4096, 96), (1024, 4096), (256, 32768), (65536, 64), (8192, 8192))
    dtypes = (DataType.Float, DataType.BFloat16, DataType.Half, DataType.Double)
    return [
        f"built/{form}/{dtypes[(n + m) % len(dtypes)].name}/{rows}/{columns}"
        for n, form in enumerate(forms) for m, (rows, columns) in enumerate(sizes)
    ]


def build(form: str, dtype: DataType, rows: int, columns: int) -> Given:
    """Return one of the small definitions."""
    count = {"add3": 3}.get(form, 1)
    with FusionDefinition() as fd:
        o = fd.ops
        given = [fd.define_tensor([-1, -1], contiguity=True, dtype=dtype) for _ in range(count)]
        wide = [o.cast(t, dtype=F) if dtype in NAMES and dtype is not F else t for t in given]
        x = wide[0]
        match form:
            case "copy":
                y = o.neg(x)
            case "gelu":
                y = o.mul(x, o.add(o.tanh(o.mul(x, 0.797)), 1.0))
            case "add3":
                y = o.add(o.mul(wide[0], wide[1]), wide[2])
            case "row_sum":
                y = o.sum(x, [1])
            case "column_sum":
                y = o.sum(x, [0])
            case "softmax":
                powers = o.exp(o.sub(x, o.max(x, [1], keepdim=True)))
                y = o.div(powers, o.sum(powers, [1], keepdim=True))
            case "layer_norm":
                variance, mean = o.var_mean(x, [1], 0, keepdim=True)
                y = o.mul(o.sub(x, mean), o.rsqrt(o.add(variance, 1e-5)))
            case "column_norm":
                y = o.sub(x, o.mul(o.sum(x, [0], keepdim=True), 1.0 / rows))
            case _:
                y = o.permute(x, [1, 0])
        fd.add_output(o.cast(y, dtype=dtype))
    return fd, [fl.spec((rows, columns), dtype)] * count


def written(loads: Sequence[Written], name: str, divisor: str = "1") -> Given:
    load = next(w for w in loads if w.name == name).at(int(divisor))
    return load.definition(), load.specs()


def from_example(name: str, size: str) -> Given:
    fd, inputs = fl.example(name, size)
    return fd, [fl.spec(v.shape, v.dtype) if hasattr(v, "dtype") and hasattr(v, "shape") else v for v in inputs]


def load(name: str) -> Given:
    """Return the definition of a name, with abstract inputs."""
    kind, _, rest = name.partition("/")
    match kind:
        case "built":
            form, dtype, rows, columns = rest.split("/")
            return build(form, getattr(DataType, dtype), int(rows), int(columns))
        case "first":
            return written(WORKLOADS, rest)
        case "second":
            return written(SECOND, *rest.split("/"))
        case "example":
            return from_example(*rest.split("/"))
        case "small":
            return fl.corpus()[rest].load(small=True)
        case _:
            return fl.corpus()[rest].load()


def names() -> list[str]:
    """Return all names in a random order, alternating between kinds."""
    corpus = list(fl.corpus())
    kinds = [
        built(),
        [f"corpus/{one.name}" for one in corpus if one.bytes <= 2 * MOST["cuda"]],
        [f"second/{one.name}/{d}" for one in SECOND for d in (1, 16, 256) if not (d == 256 and one.view)],
        [f"small/{one.name}" for one in corpus if one.small_script],
        [f"first/{one.name}" for one in WORKLOADS],
        [f"example/{name}/{size}" for name in fl.examples.names() for size in ("full", "small")],
    ]
    for kind in kinds:
        random.Random(len(kind)).shuffle(kind)
    return [kind[n] for n in range(max(map(len, kinds))) for kind in kinds if n < len(kind)]


def segments(name: str, device: Device, target: str) -> list[tuple[int, Any]]:
    """Return the largest segments of a fusion that have kernels, with their numbers."""
    fd, inputs = load(name)
    plan = fl.segment(fd, inputs, target=device)
    found = [
        (number, segment) for number, segment in enumerate(plan.segments)
        if not evaluated_because(segment.fusion, segment.scheduler) and segment.bytes <= MOST[target]
    ]
    return sorted(found, key=lambda one: -one[1].bytes)[:SEGMENTS]


# Processes that compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One kernel of a segment, compiled and on disk: its changed parameters, and the row to fill in."""

    changes: tuple[LoopChange, ...]
    row: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One segment with its candidates."""

    name: str
    number: int
    candidates: tuple[Candidate, ...]


def chosen(name: str, kernel: GeneratedKernel, target: str, count: int = CANDIDATES) -> list[tuple[LoopChange, ...]]:
    """Return the heuristics' choice and some candidates of `fl.tune`, the same in every run."""
    found: list[tuple[LoopChange, ...]] = [()]
    options = [
        LoopChange(target=target, nest=nest.number, values=values)
        for nest in kernel.kernel_ir.nests for values in suggestions(nest) if values != (("specialized", True),)
    ]
    picked = random.Random(crc32(name.encode()))
    return found + [(one,) for one in picked.sample(options, min(count, len(options)))]


def said(values: Values) -> str:
    return " ".join(f"{name}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in values)


def compiled(
    name: str, number: int, segment: Any, device: Device, target: str, count: int = CANDIDATES,
) -> Work:
    """Return a segment with its candidates after compiling them."""
    fusion, scheduler = segment.fusion, segment.scheduler
    base = generate(fusion, scheduler, target, device=device)
    made, seen = [], set()
    for changes in chosen(f"{name}#{number}", base, target, count):
        row = Measurement(
            fusion=f"{name}#{number}", scheduler=scheduler.value, features=kernel_features(fusion, base.kernel_ir),
            params=" ".join(said(change.values) for change in changes),
        )
        try:
            kernel = generate(fusion, scheduler, target, changes=changes, device=device) if changes else base
            key = kernel.source + repr([phase.launch for phase in kernel.kernel_ir.phases])
            if key in seen:
                continue
            seen.add(key)
            row = replace(row, features=kernel_features(fusion, kernel.kernel_ir))
            if target == "cuda":
                facts = fl_facts(kernel, device)
                row = replace(row, features=kernel_features(
                    fusion, kernel.kernel_ir, registers=facts.registers, spilled=facts.spilled, shared=facts.shared,
                    resident=facts.resident,
                ))
            else:
                compile_kernel(kernel, None)
        except Exception as error:  # noqa: BLE001 - one kernel must not end the run, and its line says why
            row = replace(row, note=brief(error))
        made.append(Candidate(changes=changes, row=row))
    return Work(name=name, number=number, candidates=tuple(made))


def fl_facts(kernel: GeneratedKernel, device: Device) -> Any:
    """Return the facts of a kernel's largest phase, compiled or from disk."""
    from fuser_lab.runtime.gpu.facts import launch_facts

    return launch_facts(kernel, device)[largest_phase(kernel.kernel_ir)]


def brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:120]


def work(order: list[str], taken: Any, results: Any, device: Device, target: str, count: int) -> None:
    """Process one name after another, and put its segments into a queue once they are compiled."""
    warnings.simplefilter("ignore")
    while True:
        with taken.get_lock():
            place, taken.value = taken.value, taken.value + 1
        if place >= len(order):
            return
        name = order[place]
        try:
            for number, segment in segments(name, device, target):
                results.put(compiled(name, number, segment, device, target, count))
        except Exception as error:  # noqa: BLE001 - one fusion must not end the run, and a line says why
            results.put((name, brief(error)))


# Measuring, one segment after another


class Gpu:
    """Arrays and clock of the GPU."""

    def __init__(self) -> None:
        import torch

        from fuser_lab.runtime.clocks import DeviceClock

        self.torch, self.clock = torch, DeviceClock()

    def array(self, dtype: DataType, shape: Sequence[int], strides: Sequence[int], below: int) -> Any:
        """Return a tensor with strides: integers from 0 up, other numbers near 0."""
        torch = self.torch
        kind = getattr(torch, TORCH_OF[dtype])
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        if dtype is DataType.Bool:
            flat = torch.rand(count, device="cuda") < 0.5
        elif dtype.is_integral:
            flat = torch.randint(0, below, (count,), device="cuda", dtype=torch.int32).to(kind)
        else:
            flat = torch.randn(count, device="cuda").to(kind)
        return flat.as_strided(tuple(shape), tuple(strides))

    def measured(self, call: Callable[[], object]) -> Callable[[], float]:
        return self.clock.measured(call)

    def free(self) -> None:
        self.torch.cuda.empty_cache()

    def facts(self) -> dict[str, str]:
        torch = self.torch
        source = torch.empty(1 << 29, dtype=torch.bfloat16, device="cuda")
        target = torch.empty_like(source)
        call = self.clock.measured(lambda: target.copy_(source))
        seconds = sorted(call() for _ in range(SAMPLES))[SAMPLES // 2]
        return {
            "device": torch.cuda.get_device_name(), "copy": f"{2 * source.nbytes / seconds / 1e9:.0f} GB/s",
            "clocks": self.clock.rates(), "torch": torch.__version__,
        }


class Host:
    """Arrays and clock of the CPU."""

    def array(self, dtype: DataType, shape: Sequence[int], strides: Sequence[int], below: int) -> Any:
        fill = Fill(kind="integers", high=below) if dtype.is_integral and dtype is not DataType.Bool else None
        return fl.spec(shape, dtype, strides, fill).materialize()

    def measured(self, call: Callable[[], object]) -> Callable[[], float]:
        return HostClock().measured(call)

    def free(self) -> None:
        pass

    def facts(self) -> dict[str, str]:
        return {"device": f"CPU {environment().to_dict()['cpu']}", "clocks": HostClock().rates()}


def inputs_of(fusion: Fusion, machine: Any) -> list[Any]:
    """Return inputs of a segment: dense arrays in their allocation order, and numbers."""
    found: list[Any] = []
    below = INTEGERS
    for expr in fusion.tensor_exprs:
        if expr.kind in {OpKind.INDEXING, OpKind.SCATTER}:  # integers may be positions in this tensor
            below = max(min(below, *expr.tensor_inputs[0].shape), 1)
    for value in fusion.inputs:
        if value in fusion.tensor_inputs:
            found.append(machine.array(value.dtype, value.shape, slot_of(value).dense, below))
        else:
            found.append(True if value.dtype is DataType.Bool else 1 if value.dtype.is_integral else 1.0)
    return found


def prepared(found: Work, machine: Any, device: Device, target: str) -> list[tuple[Measurement, Any]]:
    """Return the rows of a segment, each with the function that measures its kernel, or None with a note."""
    rows: list[tuple[Measurement, Any]] = []
    try:
        segment = dict(segments(found.name, device, target))[found.number]
        fusion = segment.fusion
        inputs, outputs = inputs_of(fusion, machine), None
    except Exception as error:  # noqa: BLE001 - as above
        return [(replace(c.row, note=c.row.note or brief(error)), None) for c in found.candidates]
    for candidate in found.candidates:
        row = candidate.row
        if row.note:
            rows.append((row, None))
            continue
        try:
            plan = prepare(
                fusion, [(fusion, segment.scheduler)], target, allow_fallback=False, changes={0: candidate.changes},
            )
            if outputs is None:
                outputs = plan.reusable(plan.run(inputs))
            bound = plan.bind(inputs, outputs)
            if len(bound.steps) != 1 or not plan.steps(inputs)[0].runs:
                rows.append((replace(row, note="the segment is not one kernel"), None))
                continue
            rows.append((row, machine.measured(bound.steps[0])))
        except Exception as error:  # noqa: BLE001 - as above
            rows.append((replace(row, note=brief(error)), None))
    return rows


def timed(batch: Sequence[tuple[Measurement, Any]], until: float) -> Iterator[Measurement]:
    """Yield the rows with their quartiles; kernels are measured round-robin."""
    taken: list[list[float]] = [[] for _ in batch]
    notes = [row.note for row, _ in batch]
    for turn in range(SAMPLES):
        order = range(len(batch)) if turn % 2 == 0 else reversed(range(len(batch)))
        for place in order:
            call = batch[place][1]
            if call is None or notes[place] or time.monotonic() > until:
                continue
            try:
                taken[place].append(call())
            except Exception as error:  # noqa: BLE001 - as above
                notes[place] = brief(error)
    for (row, _), seconds, note in zip(batch, taken, notes, strict=True):
        found = sorted(seconds)
        if note or len(found) < SAMPLES // 3:
            yield replace(row, note=note or "no time left")
            continue
        low, median, high = (found[round(q * (len(found) - 1))] for q in (0.25, 0.5, 0.75))
        yield replace(row, median=median, low=low, high=high, samples=len(found))


def batches(compiled_ones: Any, rows: Any, until: float) -> Iterator[list[Work]]:
    """Yield a few segments at a time as they are compiled, until the time is up."""
    batch: list[Work] = []
    while time.monotonic() < until:
        try:
            found = compiled_ones.get(timeout=0.5)
        except queue.Empty:
            found = None
        if isinstance(found, tuple):
            rows.put({f"failed {found[0]}": found[1]})
        elif found is not None:
            batch.append(found)
        if batch and (len(batch) == BATCH or found is None):
            yield batch
            batch = []


def measure(compiled_ones: Any, rows: Any, device: Device, target: str, until: float) -> None:
    """Measure compiled segments until the time is up or a kernel has made the GPU unusable."""
    warnings.simplefilter("ignore")
    machine = Gpu() if target == "cuda" else Host()
    rows.put(machine.facts())
    for found in batches(compiled_ones, rows, until):
        batch = [one for segment in found for one in prepared(segment, machine, device, target)]
        done = list(timed(batch, until))
        rows.put(done)
        del batch
        if all(row.note for row in done) and any("illegal" in row.note or "CUDA_ERROR" in row.note for row in done):
            rows.put({"started again": done[0].fusion})
            return
        machine.free()


def collected(
    start: Callable[[], Any], queued: Any, until: float, is_done: Callable[[], bool], facts: dict[str, str],
) -> Iterator[Measurement]:
    """Yield rows as they are measured, and add facts; a process that has ended or hangs is restarted."""
    process, heard = start(), time.monotonic()
    try:
        while time.monotonic() < until:
            try:
                found = queued.get(timeout=0.5)
            except queue.Empty:
                found = ()
            if isinstance(found, dict):
                facts |= found
            else:
                yield from found
            if found:
                heard = time.monotonic()
            elif is_done():
                return
            elif not process.is_alive() or time.monotonic() - heard > SILENT:
                process.kill()
                process, heard = start(), time.monotonic()
    finally:
        process.kill()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=280.0, help="after which the command ends")
    parser.add_argument("--out", type=Path, required=True, help="the file; gzipped if its name ends in .gz")
    text = "of each segment beside the heuristics' choice, at random; 1000 for all"
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help=text)
    parser.add_argument("--processes", type=int, default=max(processors() - 2, 1), help="processes that compile")
    options = parser.parse_args(arguments)
    until, target, count = begun + options.seconds - LAST, options.device, options.candidates
    device = this_gpu() if target == "cuda" else DEFAULT
    context = multiprocessing.get_context("spawn")
    taken, compiled_ones, queued, order = context.Value("l", 0), context.Queue(), context.Queue(), names()
    others = [
        context.Process(target=work, args=(order, taken, compiled_ones, device, target, count), daemon=True)
        for _ in range(options.processes)
    ]
    for process in others:
        process.start()

    def start() -> Any:
        process = context.Process(target=measure, args=(compiled_ones, queued, device, target, until), daemon=True)
        process.start()
        return process

    def is_done() -> bool:
        return compiled_ones.empty() and not any(process.is_alive() for process in others)

    facts = {"name": device.name if target == "cuda" else "this CPU", "begun": now()}
    rows: list[Measurement] = []
    saved = begun
    for row in collected(start, queued, until, is_done, facts):
        rows.append(row)
        if time.monotonic() - saved > WRITE_EVERY:
            save(Measurements(facts=facts, rows=tuple(rows)), options.out)
            saved = time.monotonic()
            print(f"{saved - begun:.0f} s: {len(rows)} kernels", flush=True)
    facts["fusions"] = f"{min(taken.value, len(order))} of {len(order)}"
    save(Measurements(facts=facts, rows=tuple(rows)), options.out)
    good = sum(row.is_good for row in rows)
    print(f"{good} of {len(rows)} kernels of {len({row.fusion for row in rows})} segments measured on "
          f"{facts.get('device', '?')} in {time.monotonic() - begun:.0f} s, from {facts['fusions']} fusions; "
          f"{options.out.stat().st_size / 1e3:.0f} kB", flush=True)
    for process in others:
        process.kill()
    os._exit(0)  # queues would wait until their items are read


if __name__ == "__main__":
    main()
