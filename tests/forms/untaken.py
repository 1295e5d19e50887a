"""Branches of code generation and scheduling that no kernel form takes, with the reasons."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.forms.trace import ROOT, Arc, branches

# By reason and module: how the line begins that a branch leads from, and the line that it leads to, which is empty at
# the end of a function. Texts remain when lines are inserted elsewhere.
UNTAKEN: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]] = {
    "Sets of schedulers register when their module is imported, before any form.": {
        "schedule/sets": [
            ("if any(chosen.name == other.name or chosen.schedulers == other.schedul", "_SETS.append(chosen)"),
        ],
    },
    "Only for a target that somebody registers beside those of the package.": {
        "schedule/templates": [
            ("if choice.target != _DEFAULTS[kind]:", 'args.append(("target", choice.ta'),
        ],
    },
    "nvFuser has this rule, but vectors divide the columns, so that the next configuration always needs more rounds.": {
        "schedule/outer_persistent": [
            ("if adjusted is not None:", "for place, (wide, across) in enu"),
            ("if _quotient(groups, following) <= _quotient(groups, wide):", "return None"),
        ],
    },
    "nvFuser has this rule, but a launch that exists fills at least half of the multiprocessors.": {
        "schedule/outer_persistent": [
            ("if used < least:", "return no("),
        ],
    },
    "A segment that no scheduler accepts is an error before its kernel is asked for.": {
        "codegen/pipeline": [
            ("if scheduler is None:", 'return "no scheduler accepts it"'),
        ],
    },
    "InnerOuterPersistent accepts only segments with elements and with reductions of both kinds.": {
        "codegen/column_sums": [
            ("if not columns or len(columns) == len(reductions):", "return None"),
            ("if not nest.kept or not nest.reduced or prod(a.extent for a in nest.ax", "return None"),
        ],
    },
    "Outputs without elements have no nest, so phases store something, and loops over blocks have iterations.": {
        "codegen/emitter": [
            ("if not phase.body:", 'self._line("pass")'),
        ],
        "codegen/kernel_eval": [
            ("if count:", "self._env, self._mask, self._wid"),
        ],
    },
    "The values at one point of a nest have no loops.": {
        "codegen/nests": [
            ("if isinstance(statement, ir.Loop):", "return True"),
        ],
    },
    "Writers give a loop the same bounds in all threads of a block; the verifier allows for others.": {
        "codegen/kernel_verifier": [
            ("if self._varies(loop.start) or self._varies(loop.stop):", "self._divides = loop"),
        ],
    },
    "Bounds of loops are not read from memory.": {
        "codegen/kernel_steps": [
            ("if value is None:", "return 0"),
        ],
    },
    "Outputs are stored at positions that follow from the loops, not at positions in memory.": {
        "codegen/vectorize": [
            ("if has_loads(position) or not (names - {around.loop.var}).isdisjoint(arou", "return None"),
        ],
    },
    "Rounding an integer is a copy, so no kernel rounds one.": {
        "codegen/emitter": [
            ('if fn in {"floor", "ceil", "round", "trunc"}:', "return self._strong(args[0])"),
        ],
    },
    "Conditions under which a tensor without elements would be read never hold.": {
        "codegen/kernel_eval": [
            ("if not len(stored):", "return np.zeros(self._mask.shape"),
        ],
    },
    "Each pass over rows or columns has a reduction, or stores a value that needs the results of the passes before.": {
        "codegen/gpu_kept_columns": [
            ("if exprs or stored:", "for number in range(facts.passes):"),
        ],
        "codegen/gpu_row_parts": [
            ("if not folds:", "continue"),
        ],
        "codegen/gpu_rows": [
            ("if not exprs and not stored and not scans and not any(s.written == numb", "continue"),
        ],
    },
    "No form reduces a tensor of one element in several passes, whose nest has no axes.": {
        "codegen/gpu_facts": [
            ("if not axes:", "return 1"),
        ],
    },
    "An expression is visited when a place of one of its tensors is found, from which the other's follows.": {
        "codegen/index_map": [
            ("if out in self.components:", ""),
            ("if source in self.components:", ""),
        ],
    },
    "An element of a plain view or of a reshape is an element of its operand.": {
        "codegen/index_map": [
            ("if index is not None:", "backward = self.complete(source)"),
            ("if index is not None:", ""),
            ("if index is None:", "return"),
        ],
    },
    "Conditions that always or never hold are decided before.": {
        "codegen/windows": [
            ("if high < bound:", "return None"),
            ("if low < bound:", "for condition in (part for whole"),
            ("if places:", "for place, condition in places:"),
        ],
        "codegen/scheduled_elements": [
            ("if not isinstance(part, Const) or not part.value:", "for part in dict.fromkeys(simpli"),
        ],
    },
    "Elements of views are chosen by the order of positions, not by their equality.": {
        "codegen/windows": [
            ("if pair is None:", "others.append(condition)"),
            ("case Apply(_, fn, (a, b)) if fn in _STRICT and is_index(a) and is_inde", "case _:"),
        ],
    },
    "The part of a position that varies with a loop over a vector is a number in each iteration.": {
        "codegen/windows": [
            ("if None not in numbers.values():", "for load, needed in _loads_of(bo"),
        ],
    },
    "Blocks form a cluster only to combine results, for which they wait.": {
        "codegen/cuda_reductions": [
            ("if self.awaited:", 'yield "cluster_arrive()"'),
        ],
    },
    "A name of a reduced float is assigned once where it is visible.": {
        "codegen/rewrites": [
            ("if any(let.place < other.place < let.end or other.place < let.place <", "return None"),
        ],
    },
    "Loops over vectors, and branches in them, contain only values, stores and branches.": {
        "codegen/vectorize": [
            ("case ir.If():", "case _:"),
            ("case ir.Let(value=value) | ir.Store(value=value):", "case _:"),
        ],
    },
    "An error follows: a schedule by hand has loops of a tensor that no reader has.": {
        "codegen/scheduled_loops": [
            ("for expr in self.scheduled.consumers(name):", "return False"),
            ("if len(loop_match.pairs) + len(loop_match.absent_in_consumer) < len(te", "continue"),
        ],
    },
    "Inputs of a candidate are read by its expressions.": {
        "schedule/innermost_axes": [
            ("if tensor.name not in self.exact.classes:  # an input that no expressi", "continue"),
        ],
    },
    "If nothing can be kept, all that is needed again is partly reduced.": {
        "schedule/persistent": [
            ("if partly is not None:", "for buffer in facts.flow.needed_"),
        ],
    },
    "A quotient is computed for an expression of the segment.": {
        "codegen/gpu_common": [
            ("if expr is None:", "return True"),
        ],
    },
    "Of the threads that reach a loop, some have iterations of it.": {
        "codegen/kernel_profile": [
            ("if self._times and self._mask.any():", "self._seen.clear()"),
        ],
    },
    "An innermost loop reads and writes an array only at its own place.": {
        "codegen/long_loops": [
            ("if len(places) > 1 or not self._is_apart(buffer, *places):", "yield accesses[0][0]"),
        ],
    },
    "The sum of the elements whose squared deviations a nest adds up is in the same nest.": {
        "codegen/persistence": [
            ("if squared.total is not pair[0] or squared.count != count:", "return None"),
        ],
    },
    "The axes or loops of a tensor are all that its transforms end with.": {
        "codegen/scheduled_loops": [
            ("if step.outer.id in indices and step.inner.id in indices:", "for step in reversed(steps):"),
        ],
    },
    "Conditions that vary with a loop of a schedule by hand compare an index with a size.": {
        "codegen/scheduled_statements": [
            ('if not (isinstance(condition, Apply) and condition.fn == "lt"', "return None"),
        ],
    },
    "A minimum is where a loop ends, neither where one begins nor a term of a sum.": {
        "codegen/sizes": [
            ('case Apply(_, "min", _):', "return self.bound(term"),
        ],
    },
    "An element that is known from outside of a scope is known in a scope with statements of its own.": {
        "codegen/values": [
            ("while scope.inlined and scope.parent is not None:", "scope = scope.parent"),
        ],
    },
    "Operands of a cat are pads, whose ranges are known, so no value decides which of them an element is read from.": {
        "codegen/values": [
            ("if is_index(condition):", "return Apply(term.dtype, term.fn"),
        ],
    },
    "The form that wrote a segment's schedule writes one for every split and factor.": {
        "schedule/templates": [
            ("if written is None:", "continue"),
            ("if again is None:", "continue"),
        ],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The lines of a module, without indentation."""

    module: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, module: str) -> "Source":
        """Return a module's lines."""
        text = (ROOT / f"{module}.py").read_text()
        return cls(module=module, lines=tuple(line.strip() for line in text.splitlines()))

    def line(self, number: int) -> str:
        """Return a line; a number below 1 is the end of a function, which has no text."""
        return self.lines[number - 1] if number > 0 else ""


def reasons(source: Source, first: int, then: int) -> tuple[str, ...]:
    """Return the listed reasons why no kernel takes a branch between two lines."""
    return tuple(
        reason for reason, modules in UNTAKEN.items()
        if any(_leads(pair, source, first, then) for pair in modules.get(source.module, ()))
    )


def stale(
    listed: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]], taken: Collection[Arc],
) -> Iterator[str]:
    """Yield which listed branches do not exist, or are taken by kernels wherever these texts occur."""
    for module in sorted({module for modules in listed.values() for module in modules}):
        if not (ROOT / f"{module}.py").exists():
            yield f"there is no module {module}."
            continue
        source, every = Source.of(module), branches(module)[module]
        for pair in (pair for modules in listed.values() for pair in modules.get(module, ())):
            matching = [(module, first, then) for first, then in every if _leads(pair, source, first, then)]
            if all(branch in taken for branch in matching):
                why = "is taken by a kernel" if matching else "does not exist"
                yield f"the branch of {module} from {pair[0]!r} to {pair[1]!r} {why}."


def _leads(pair: tuple[str, str], source: Source, first: int, then: int) -> bool:
    """Whether a branch leads from a line that begins like the first of two texts to one that begins like the second."""
    a, b = source.line(first), source.line(then)
    return a.startswith(pair[0]) and (b.startswith(pair[1]) if pair[1] else not b)
