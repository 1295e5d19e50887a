"""The cases of a replay, and their texts: kernels of both targets, the plan that they belong to, and its decision log.

Cases are chosen by digests of their names, so that a new example or region hardly changes which others are replayed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final
from zlib import crc32

import numpy as np
from backend.fusions import CASES
from backend.lookups import LOOKUPS
from backend.matrix import DTYPES, RECORDS, Form, forms, fusion_of

import fuser_lab as fl
from fuser_lab.codegen.pipeline import GeneratedKernel, evaluated_because
from fuser_lab.cost.device import DEVICES, Device
from fuser_lab.errors import FuserLabError
from fuser_lab.plan.clock import given_strides, layouts_and_idle, read_layouts
from fuser_lab.segmentation import STRATEGIES
from fuser_lab.targets import CPU, CUDA
from tests.benchmarks.measure_kernels import load, names
from tests.benchmarks.second import SECOND
from tests.forms.check import made
from tests.forms.corpus import read
from tests.forms.trace import Untraced
from tests.kernels import generate, kernel_of
from tests.unit.ops.sampling import ENTRIES
from tests.unit.ops.sampling import build as sample_of

REGIONS: Final = {"corpus": 300, "small": 150}  # regions of functions and models at real and at small sizes
SAMPLES: Final = 8  # per op
# Cases of each stratum in the short form, by its whole name or the first word of it: about 150 kernels in 5 s.
SHORT: Final = {
    "example/unfused": 0, "gallery/unfused": 0, "second/views": 0, "example": 1, "gallery": 1, "corpus": 4, "small": 3,
    "built": 3, "first": 3, "second": 3, "matrix": 2, "segments": 4, "form": 8, "ops": 12,
}
SEARCHES: Final = {"optimal", "fastest"}  # they take a second at the real sizes of the gallery
TARGETS: Final = (CPU.name, CUDA.name)
PLAN, LOG = "plan", "log"  # the parts of a case that are not kernels
Texts = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case by name: ``texts()`` yields pairs of a part, such as ``"S0 cuda"``, and its text."""

    name: str
    stratum: str
    texts: Callable[[], Texts]


def cases(pattern: str = "*") -> list[Case]:
    """Return the cases whose names match a pattern with wildcards; the slowest strategies come first."""
    every = [*_examples(), *_regions(), *_benchmarks(), *_matrix(), *_segments(), *_forms(), *_ops()]
    return [case for case in every if fnmatchcase(case.name, pattern)]


def short(every: Iterable[Case]) -> list[Case]:
    """Return a few cases of each stratum that need neither torch nor much time."""
    taken: Counter[str] = Counter()
    chosen = []
    for case in sorted(every, key=lambda case: _order(case.name)):
        kind = case.stratum.partition("/")[0]
        if taken[case.stratum] < SHORT.get(case.stratum, SHORT[kind]):
            taken[case.stratum] += 1
            chosen.append(case)
    return sorted(chosen, key=lambda case: case.name)


def _order(name: str) -> tuple[int, str]:
    return crc32(name.encode()), name


def _device(name: str) -> Device:
    return DEVICES[crc32(name.encode()) % len(DEVICES)]


def _examples() -> Iterator[Case]:
    pairs = [(f"example/{name}/{size}", "example") for name in fl.examples.names() for size in ("full", "small")]
    gallery = fl.corpus(kind="gallery")
    pairs += [(f"{size}/{entry.name}", "gallery") for entry in gallery for size in ("corpus", "small")]
    for strategy in reversed(STRATEGIES):
        for name, kind in pairs:
            if strategy in SEARCHES and name.startswith("corpus/"):
                continue
            yield _planned(name, f"{kind}/{strategy}", strategy=strategy)
    for name, kind in pairs:
        yield _planned(name, f"{kind}/open", schedulers=fl.OPEN_SCHEDULERS)
    for device in DEVICES:
        for name, kind in pairs:
            yield _planned(name, f"{kind}/{device.name}", device=device)


def _regions() -> Iterator[Case]:
    regions = [*fl.corpus(kind="forward"), *fl.corpus(kind="backward")]
    for size, count in REGIONS.items():
        every = [f"{size}/{entry.name}" for entry in regions if size != "small" or entry.small_script]
        for name in sorted(every, key=_order)[:count]:
            yield _planned(name, size)


def _benchmarks() -> Iterator[Case]:
    """Yield the sets of the benchmark and small definitions at many sizes."""
    views = {one.name for one in SECOND if one.view is not None}  # which torch makes
    for name in sorted(names()):
        kind, rest = name.split("/", 1)
        if kind in {"built", "first", "second"}:
            yield _planned(name, "second/views" if rest.split("/")[0] in views else kind)


def _matrix() -> Iterator[Case]:
    """Yield every scheduler that has kernels, in every dtype, on awkward shapes and layouts."""
    for dtype in DTYPES:
        for form in forms(dtype, large=True):
            for record in RECORDS:
                def texts(record: str = record, form: Form = form, dtype: fl.DataType = dtype) -> Texts:
                    fusion, scheduler = fusion_of(record, form, dtype)
                    memory = _memory(form, dtype, fusion.tensor_inputs[0].name)
                    return _kernels(0, partial(generate, fusion, scheduler, **memory))

                yield Case(name=f"matrix/{record}/{form.name}/{dtype.name}", stratum=f"matrix/{record}", texts=texts)


def _memory(form: Form, dtype: fl.DataType, name: str) -> dict[str, Any]:
    """Return the strides and the alignment of a form's matrix, whose memory holds numbers of the dtype."""
    whole = np.empty(form.size + 1, np.int8)
    matrix = form.view(whole)
    first = (matrix.ctypes.data - whole.ctypes.data) * dtype.itemsize if matrix.size else 0
    return {"strides": {name: matrix.strides}, "alignment": {name: min(first & -first or 16, 16)}}


def _segments() -> Iterator[Case]:
    for one in (*CASES, *LOOKUPS):
        def texts(one: Any = one) -> Texts:
            return _kernels(0, partial(generate, one.fusion(), one.scheduler))

        yield Case(name=f"segments/{one.name}", stratum="segments", texts=texts)


def _forms() -> Iterator[Case]:
    """Yield the kernel forms, which take the branches of schedules and writers."""
    for form in read():
        def texts(form: Any = form) -> Texts:
            result = made(form, Untraced())
            for index, kernel in sorted(result.kernels.items()):
                yield f"S{index} {form.target}", _text(kernel)
            if result.refusal:
                yield f"refusal {form.target}", result.refusal

        yield Case(name=f"form/{crc32(form.text().encode()):08x}", stratum="form", texts=texts)


def _ops() -> Iterator[Case]:
    for name, entry in sorted(ENTRIES.items()):
        for number, sample in enumerate(entry.samples[:SAMPLES]):
            def define(sample: Any = sample) -> tuple[Any, Sequence[Any]]:
                built = sample_of(sample)
                return built.fd, built.inputs

            yield _planned(f"ops/{name}/{number}", "ops", define)


def _planned(
    name: str, stratum: str, define: Callable[[], tuple[Any, Sequence[Any]]] | None = None, *,
    device: Device | None = None, **options: Any,
) -> Case:
    """Return the case of a definition that is segmented."""
    def texts() -> Texts:
        fd, inputs = load(name) if define is None else define()
        return _texts_of(fl.segment(fd, inputs, target=device or _device(name), tuned=False, **options))

    return Case(name=" ".join([name, *stratum.split("/")[1:]]), stratum=stratum, texts=texts)


def _texts_of(plan: fl.Plan) -> Texts:
    """Yield the plan, its log, and the kernels that it runs for inputs with its strides."""
    yield PLAN, _plan_text(plan)
    yield LOG, _log_text(plan.decisions)
    layouts, idle = layouts_and_idle(plan.segmented, given_strides(plan.inputs))
    for segment in plan.segments:
        if segment.index in idle or evaluated_because(segment.fusion, segment.scheduler):
            continue
        strides = read_layouts(segment.inputs, layouts)
        yield from _kernels(segment.index, partial(kernel_of, segment, strides=strides))


def _kernels(index: int, generated: Callable[[str], GeneratedKernel]) -> Texts:
    """Yield the kernels of a segment for each target, or the errors by which the package refuses them."""
    for target in TARGETS:
        try:
            text = _text(generated(target))
        except FuserLabError as error:
            text = f"{type(error).__name__}: {error}\n"
        yield f"S{index} {target}", text


def _text(kernel: GeneratedKernel) -> str:
    """Return the source of a kernel and how it is launched."""
    launches = [f"# {phase.launch}\n" for phase in kernel.kernel_ir.phases]
    return "".join([kernel.source, *launches])


def _plan_text(plan: fl.Plan) -> str:
    """Return the segments with their schedulers and expressions, and the layouts between them."""
    lines = [f"{plan.strategy} for {plan.target}, {plan.bytes_crossing} bytes cross", *plan.decisions.layouts]
    for segment in plan.segments:
        scheduler = segment.scheduler.value if segment.scheduler else "no scheduler"
        lines += [f"S{segment.index}: {scheduler}, content {segment.fusion.digest[:16]}", segment.fusion]
    return "".join(f"{line}\n" for line in lines)


def _log_text(log: fl.DecisionLog) -> str:
    """Return a log with one line per pass, attempt and verdict, without the seconds that they took."""
    lines: list[object] = [replace(applied, seconds=0.0) for applied in log.passes]
    for attempt in log:
        lines.append(replace(attempt, seconds=0.0, verdicts=()))
        lines += [f"  {verdict}" for verdict in attempt.verdicts]
    return "".join(f"{line}\n" for line in lines)
