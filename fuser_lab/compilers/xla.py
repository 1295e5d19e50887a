"""`fuser_lab.from_xla`: what XLA makes of a JAX function, read from its dumps; such a plan is read-only."""

import hashlib
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.bridge.requirement import jax_for
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.compilers.reasons import loops_text
from fuser_lab.compilers.record import KernelRecord, LineOp, PlanRecord, TracedCall
from fuser_lab.compilers.recorded import RecordedModel
from fuser_lab.errors import ArgumentTypeError, UnsupportedError
from fuser_lab.segmentation.events import Attempt, Kind, Outcome, VerdictRecord

XLA = "xla"  # who states a reason

_LIBRARY = frozenset({"dot", "convolution", "custom-call", "fft", "sort", "cholesky", "triangular-solve", "topk"})
_SILENT = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})  # no code runs for these
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)(?:, (.*))?$")
# Lines of HLO text: the head of a computation, and the shape of a value, such as f32[64,512].
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_SHAPE = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
_FRAMES = re.compile(r"const frames = (\[.*\]);?\s*$", re.MULTILINE)
_ATTEMPT = re.compile(r"(Not fusing|About to fuse|Fused) \|([^|]+)\| into \|([^|]+)\|(?: as (.*))?")
_ALSO = " ; multi-output fusion not supported by this pass"  # ends each reason of one pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def called(self) -> str:
        """The computation that a fusion or call runs; an empty text for others."""
        match = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", self.attributes)
        return match[1] if match is not None and self.opcode in {"fusion", "call"} else ""

    @property
    def is_library(self) -> bool:
        """Whether a library computes it, as a matrix product or a fusion that XLA hands on."""
        return self.opcode in _LIBRARY or "kind=kCustom" in self.attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """An HLO module: instructions by computation, the text of each, the entry's name, and lines by frame."""

    computations: Mapping[str, tuple[_Instruction, ...]]
    texts: Mapping[str, str]
    entry: str
    places: Mapping[str, str]

    def call(self, instruction: _Instruction) -> TracedCall:
        """Return an instruction as a call with the user's line."""
        name = re.search(r'op_name="([^"]*)"', instruction.attributes)
        frame = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
        older = re.search(r'source_file="([^"]*)".*?source_line=(\d+)', instruction.attributes)
        place = self.places.get(frame[1], "") if frame else f"{PurePath(older[1]).name}:{older[2]}" if older else ""
        primitive = name[1].rpartition("/")[2] if name else ""
        return TracedCall(target=instruction.opcode, original=primitive, place=place)


def from_xla(function: Callable[..., Any], *inputs: Any, keywords: Mapping[str, Any] | None = None) -> RecordedModel:
    """Return what XLA makes of a JAX function: its kernels, and the reasons that it gives for not fusing two.

    The function is compiled, not run. XLA cannot be told how to fuse, so the plan is read-only.

    Parameters
    ----------
    function
        A function that ``jax.jit`` accepts, or one that it returned.
    *inputs
        Its arguments.
    keywords
        Its keyword arguments.

    Raises
    ------
    ArgumentTypeError
        If ``function`` cannot be called.
    UnsupportedError
        If JAX is not installed, or XLA writes no dumps.
    """
    jax = jax_for("from_xla")
    if not callable(function) or isinstance(function, type):
        raise ArgumentTypeError(f"from_xla: function must be a function, given {short_text(function)}.")
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True, "xla_dump_fusion_visualization": True}
        compiled = jitted.lower(*inputs, **(keywords or {})).compile(compiler_options=options)
        pages = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*_fusion*.html"))]
        is_dumped = any(Path(folder).iterdir())
    if not is_dumped:
        msg = "from_xla: XLA wrote no dumps, as for a function from a persistent cache; turn the cache off."
        raise UnsupportedError(msg)
    return RecordedModel(plans=(plan_of(compiled.as_text(), pages),), map="", note="")


def plan_of(hlo: str, pages: Sequence[str]) -> CompiledPlan:
    """Return the plan in the text of an HLO module after optimizations; ``pages`` are its pages of fusions."""
    module = _module(hlo)
    entry = module.computations[module.entry]
    shapes = {instruction.name: instruction.shape for instruction in entry}
    constants = {instruction.name for instruction in entry if instruction.opcode == "constant"}
    kernels = [instruction for instruction in entry if instruction.opcode not in _SILENT]
    inner = {
        kernel.name: tuple(i for i in _inside(module, kernel) if i.opcode not in {"parameter", "constant"})
        for kernel in kernels
    }
    calls = {instruction.name: module.call(instruction) for each in inner.values() for instruction in each}
    made = tuple(
        KernelRecord(
            names=(kernel.name,), writes=(kernel.name,),
            reads=tuple(name for name in kernel.operands if name not in constants),
            nodes=tuple(instruction.name for instruction in inner[kernel.name]), function=kernel.name, launch=number,
            opaque=kernel.is_library, loops=_loops(kernel.shape),
            bytes=_bytes(kernel.shape) + sum(_bytes(shapes.get(name, "")) for name in set(kernel.operands)),
        )
        for number, kernel in enumerate(kernels)
    )
    names = {kernel.name for kernel in kernels}
    record = PlanRecord(
        compiler=XLA, number=0, kind="inference",
        digest=hashlib.sha256(re.sub(r"metadata=\{[^}]*\}", "", hlo).encode()).hexdigest()[:16],
        calls=calls, attempts=tuple(_attempts(pages, names)), kernels=made, groups=tuple(k.names for k in made),
        through={i.name: i.operands for i in entry if i.opcode in _SILENT and i.operands},
        writers={name: name for name in names},
        read_by={kernel.name: tuple(name for name in kernel.operands if name in names) for kernel in kernels},
        sources={kernel.name: module.texts[kernel.called] for kernel in kernels if kernel.called in module.texts},
        lines={
            kernel.name: tuple(_lines(module.texts[kernel.called], kernel.name, calls)) for kernel in kernels
            if kernel.called in module.texts
        },
        output_code=hlo, sizes={kernel.name: _bytes(kernel.shape) for kernel in kernels},
        unfusable=tuple(kernel.name for kernel in kernels if kernel.opcode in _LIBRARY),
    )
    return CompiledPlan(record=record)


def _inside(module: _Module, instruction: _Instruction) -> Iterator[_Instruction]:
    """Yield the instructions that a kernel computes."""
    if not instruction.called:
        yield instruction
        return
    for inner in module.computations.get(instruction.called, ()):
        yield from _inside(module, inner)


def _lines(text: str, kernel: str, calls: Mapping[str, TracedCall]) -> Iterator[LineOp]:
    """Yield the lines of a computation that have an instruction of a kernel."""
    for number, line in enumerate(text.splitlines()):
        match = _INSTRUCTION.match(line)
        if match is not None and match[2] in calls:
            yield LineOp(line=number, operation=kernel, node=match[2])


def _module(hlo: str) -> _Module:
    computations: dict[str, list[_Instruction]] = {}
    texts: dict[str, list[str]] = {}
    entry = current = ""
    for line in hlo.splitlines():
        begins = _COMPUTATION.match(line)
        if begins is not None:
            current = begins[2]
            computations[current], texts[current] = [], []
            entry = current if begins[1] else entry
        if current:
            texts[current].append(line)
            match = _INSTRUCTION.match(line)
            if match is not None:
                computations[current].append(_Instruction(
                    name=match[2], shape=match[3], opcode=match[4], root=bool(match[1]), attributes=match[6] or "",
                    operands=tuple(dict.fromkeys(re.findall(r"%([\w.\-]+)", match[5]))),
                ))
        if line == "}":
            current = ""
    if not entry:
        raise UnsupportedError("from_xla: the text of the HLO module has no entry computation.")
    return _Module(
        computations={name: tuple(instructions) for name, instructions in computations.items()},
        texts={name: "\n".join(lines) for name, lines in texts.items()}, entry=entry, places=_places(hlo),
    )


def _places(hlo: str) -> dict[str, str]:
    """Return the user's line of each stack frame."""
    named = hlo.partition("FileNames")[2].partition("FunctionNames")[0]
    files = dict(re.findall(r'^(\d+) "([^"]*)"$', named, re.MULTILINE))
    locations = {
        number: f"{PurePath(files.get(file, '')).name}:{line}"
        for number, file, line in re.findall(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", hlo, re.MULTILINE)
    }
    frames = re.findall(r"^(\d+) \{file_location_id=(\d+)", hlo, re.MULTILINE)
    return {number: locations.get(location, "") for number, location in frames}


def _attempts(pages: Sequence[str], names: set[str]) -> Iterator[Attempt]:
    """Yield the attempts on XLA's pages, under the names of kernels that instructions are in at last."""
    texts = [str(frame[1]) for page in pages for match in _FRAMES.findall(page) for frame in json.loads(match)]
    matches = [match for text in texts if (match := _ATTEMPT.match(text)) is not None]
    renamed: dict[str, str] = {}  # the reader of a first fusion becomes that fusion
    for before, after in itertools.pairwise(matches):
        if (before[1], after[1]) == ("About to fuse", "Fused") and before[3] != after[3]:
            renamed[before[3]] = after[3]

    def last(name: str) -> str:
        for _ in renamed:  # a chain has at most as many names
            if name in names or name not in renamed:
                break
            name = renamed[name]
        return name

    number = 0
    for match in matches:
        if match[1] == "About to fuse":
            continue
        accepted = match[1] == "Fused"
        text = (match[4] or "").removesuffix(_ALSO).strip()
        yield Attempt(
            phase="fusion", kind=Kind.MERGE, subjects=((last(match[2]),), (last(match[3]),)), text=text,
            outcome=Outcome.ACCEPTED if accepted else Outcome.REFUSED, code="" if accepted else XLA, seq=number,
            verdicts=(VerdictRecord(scheduler=XLA, accepted=accepted, code="" if accepted else XLA, text=text),),
        )
        number += 1


def _bytes(shape: str) -> int:
    """Return the bytes of a shape such as ``f32[64,128]{1,0}``, or of a tuple of shapes."""
    total = 0
    for kind, bits, sizes in _SHAPE.findall(shape):
        width = 1 if kind == "pred" else int(bits or 8) // 8
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size)
        total += width * count
    return total


def _loops(shape: str) -> str:
    match = _SHAPE.search(shape)
    return loops_text((tuple(match[3].split(",")) if match is not None and match[3] else (), ()))
