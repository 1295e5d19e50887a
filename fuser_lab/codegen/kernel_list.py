"""One launch for a list of kernels: each block finds its entry in the list, and runs the kernel of that entry.

The parameters are those of all entries, and the first block of each. Kernels with the same code, which differ only in
their arguments, are one function of the source; the entries of a function are adjacent. A block searches its entry by
halving the list, so the search costs a few comparisons with parameters.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate

from fuser_lab.codegen.kernel_ir import Kernel, Phase, Size
from fuser_lab.codegen.numba_cuda import CudaEmitter, pointed_name
from fuser_lab.codegen.pipeline import GeneratedKernel, without_comments
from fuser_lab.dtypes import DataType
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.state import Style

MOST_ARGUMENTS = 4096  # bytes of a kernel's parameters that every GPU takes (CUDA C++ Programming Guide)
_WORD = 8  # bytes of a pointer, and of a size at most
_BLOCK = "entry_block"  # the number of a block among those of its entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPhase(Phase):
    """A launch whose blocks run the phases ``entries``, those of one entry after those of another; it has no body."""

    entries: tuple[Phase, ...]

    @staticmethod
    def listed(name: str, entry: int) -> str:
        """Return the name that a parameter of an entry has among those of the list."""
        return f"{name}_{entry}"


def _parameters(phase: Phase) -> Iterator[str]:
    yield from (buffer.name for buffer in phase.buffers)
    yield from (size.name for size in phase.sizes)


def form_of(generated: GeneratedKernel) -> tuple[object, ...]:
    """Return a key that is equal for kernels with the same code, which differ only in their arguments."""
    phase = generated.kernel_ir.phases[0]
    return without_comments(generated.source), tuple(map(pointed_name, phase.buffers))


def may_be_listed(generated: GeneratedKernel) -> bool:
    """Whether a kernel is one launch that computes its elements separately, with only tensors as arguments."""
    phases = generated.kernel_ir.phases
    if len(phases) != 1 or generated.kernel_ir.workspace or phases[0].scalars:
        return False
    schedule = phases[0].schedule
    return schedule is not None and schedule.style is Style.ELEMENTS


def most_entries(buffers: int, sizes: int = 1) -> int:
    """Return the number of entries whose parameters a launch can take, with their first blocks."""
    return max(1, MOST_ARGUMENTS // (_WORD * (buffers + sizes) + DataType.Int32.itemsize))


def list_kernel(kernels: Sequence[GeneratedKernel]) -> tuple[GeneratedKernel, tuple[int, ...]]:
    """Return one kernel for a list of kernels, and the numbers of the kernels in the order of its entries.

    The kernels are such as `may_be_listed` accepts, compute the same ops, and have blocks of the same shape.
    """
    forms = list(dict.fromkeys(map(form_of, kernels)))
    order = sorted(range(len(kernels)), key=lambda n: forms.index(form_of(kernels[n])))
    entries = tuple(kernels[n].kernel_ir.phases[0] for n in order)
    numbers = [forms.index(form_of(kernels[n])) for n in order]
    first, kernel = entries[0], kernels[order[0]].kernel_ir
    *starts, blocks = accumulate((phase.launch.blocks for phase in entries), initial=0)
    named = ListPhase.listed
    buffers = tuple(replace(b, name=named(b.name, n)) for n, phase in enumerate(entries) for b in phase.buffers)
    sizes = [replace(size, name=named(size.name, n)) for n, phase in enumerate(entries) for size in phase.sizes]
    phase = ListPhase(
        name=f"{first.name}_list", buffers=buffers, scalars=(), body=(), launch=replace(first.launch, blocks=blocks),
        sizes=(*sizes, *map(_first, range(len(starts)), starts)), entries=entries,
    )
    inputs = {named(buffer.name, n) for n, k in enumerate(order) for buffer in kernels[k].kernel_ir.inputs}
    listed = replace(
        kernel, name=f"{kernel.name}_list", phases=(phase,),
        inputs=tuple(buffer for buffer in buffers if buffer.name in inputs),
        outputs=tuple(buffer for buffer in buffers if buffer.name not in inputs),
    )
    source = _ListEmitter(listed, numbers).source()
    lines = len(source.origins)
    generated = GeneratedKernel(
        kernel_ir=listed, source=source.text, line_origins=source.origins, line_statements=(None,) * lines, repeats={},
        compiler=source.compiler,
    )
    return generated, tuple(order)


def _first(entry: int, block: int) -> Size:
    return Size(name=f"first_{entry}", dtype=DataType.Int32, value=block)


class _ListEmitter(CudaEmitter):
    """Prints a list: a device function for each form of its kernels, and the kernel that finds the entry of a block."""

    def __init__(self, kernel: Kernel, numbers: Sequence[int]) -> None:
        """Take the kernel of a list, and the number of the form of each entry."""
        super().__init__(kernel)
        self._numbers = list(numbers)
        self._in_form = False

    def decorator(self, phase: Phase) -> None:
        """Print that a form is a function of the device, or the launch of the list."""
        if self._in_form:
            self._line("@cuda.jit(device=True)")
            return
        super().decorator(phase)

    def hardware(self, parallel: ParallelType) -> str:
        """Return the index of a block among those of its entry, or that of a thread."""
        return _BLOCK if parallel is ParallelType.grid_x else super().hardware(parallel)

    def _function(self, number: int, phase: Phase) -> None:
        assert isinstance(phase, ListPhase)
        forms = {form: phase.entries[self._numbers.index(form)] for form in dict.fromkeys(self._numbers)}
        self._in_form = True
        block = Size(name=_BLOCK, dtype=DataType.Int32, value=0)
        for form, entry in forms.items():
            super()._function(number, replace(entry, name=f"{entry.name}_{form}", sizes=(*entry.sizes, block)))
            self._line("")
            self._line("")
        self._in_form = False
        self.decorator(phase)
        names = [*(b.name for b in phase.buffers), *(size.name for size in phase.sizes)]
        self._line(f"def {phase.name}({', '.join(names)}):")
        with self._indent():
            self._line(f"block = index32(cuda.{self.loops[ParallelType.grid_x]})")
            for form, entry in forms.items():
                start = self._numbers.index(form)
                stop = start + self._numbers.count(form)
                if len(forms) > 1:
                    self._line(f"{'if' if start == 0 else 'elif'} block < first_{stop}:" if stop < len(self._numbers)
                               else "else:")
                with self._indent() if len(forms) > 1 else nullcontext():
                    self._find(phase, start, stop)
                    arguments = [*_parameters(entry), "block - first"]
                    self._line(f"{entry.name}_{form}({', '.join(arguments)})")

    def _find(self, phase: ListPhase, start: int, stop: int) -> None:
        """Print the search for a block's entry among those of one form."""
        if stop - start == 1:
            for name in _parameters(phase.entries[start]):
                self._line(f"{name} = {phase.listed(name, start)}")
            self._line(f"first = first_{start}")
            return
        middle = (start + stop) // 2
        self._line(f"if block < first_{middle}:")
        with self._indent():
            self._find(phase, start, middle)
        self._line("else:")
        with self._indent():
            self._find(phase, middle, stop)
