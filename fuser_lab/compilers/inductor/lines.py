"""Which op each line of a kernel's source computes: noted while Inductor writes the line, without changing its text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser_lab.compilers.inductor.names import InductorNames
from fuser_lab.compilers.record import LineOp

_KERNELS = ('extern "C"', "@triton")  # texts in the source of a kernel
_ORIGIN = "fuser_lab_origin"  # key in the meta of a loop body's node: the FX node that the loop body's node is from


class _Line(str):
    """A line of source with the op that it computes; a part of the line has the same op."""

    __slots__ = ("op",)

    op: LineOp

    def __getitem__(self, place: Any) -> "_Line":
        return _line(super().__getitem__(place), self.op)


def _line(text: str, op: LineOp) -> _Line:
    line = _Line(text)
    line.op = op
    return line


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A loop's function with the FX node for which Inductor made it; ``inside`` are those being traced."""

    node: str
    function: Callable[..., Any]
    inside: list[str]

    def __call__(self, *indices: Any) -> Any:
        """Return what the function returns."""
        self.inside.append(self.node)
        try:
            return self.function(*indices)
        finally:
            self.inside.pop()


def _lines_of(buffer: Any) -> list[Any]:
    lines: list[Any] = buffer._lines  # noqa: SLF001 - not every torch has a function that returns them
    return lines


def _op_of(line: Any) -> LineOp | None:
    """Return the op of a line, which may be one that Inductor leaves out if nothing reads what the line writes."""
    op: LineOp | None = getattr(getattr(line, "line", line), "op", None)
    return op


def _set_op(lines: list[Any], place: int, op: LineOp) -> None:
    if isinstance(lines[place], str):
        lines[place] = _line(lines[place], op)
    elif hasattr(lines[place], "line"):
        lines[place].line = _line(lines[place].line, op)


@dataclass(slots=True, kw_only=True)
class _Body:
    """A loop's body that is being interpreted, with the node of the scheduler for which it is."""

    interpreter: Any
    scheduled: Any
    _last: Any = field(default=None, init=False)  # the node whose op was asked for last
    _op: LineOp | None = field(default=None, init=False)

    def op(self) -> LineOp | None:
        """Return the op for which Inductor is writing code, if there is one."""
        node = self.interpreter.current_node
        if node is not self._last and hasattr(self.scheduled, "get_name"):
            operation = self.scheduled.get_name()
            self._op = LineOp(line=0, operation=operation, node=_origin(node) or _of_buffer(self.scheduled.node))
        self._last = node
        return self._op


class SourceLines:
    """Notes the op of each line that Inductor writes for a kernel.

    A loop of Inductor is a function that calls those of the loops fused into it. Each is called through one that says
    which FX node it is from while the loop's body is traced, so the body's nodes have this name, and so have the lines
    that are written for each.
    """

    def __init__(self, names: InductorNames) -> None:
        self._virtual = names.owner("set_choices")[0]
        self._inside: list[str] = []  # FX nodes of the functions that are being traced, the innermost last
        self._body: _Body | None = None  # the loop's body from which Inductor writes code, or traces another body
        self._texts: dict[int, list[tuple[list[str], tuple[LineOp | None, ...]]]] = {}  # by number of lines

    @property
    def wrappers(self) -> Mapping[str, Callable[..., Any]]:
        """The wrappers of torch's functions, by key of `InductorNames`."""
        return {
            "loops_made": self._make, "body_node": self._trace, "body_run": self._run, "line_written": self._write,
            "text": self._text, "accumulator_renamed": self._change, "sum_replaced": self._change,
        }

    def ops_of(self, source: str) -> tuple[LineOp, ...]:
        """Return the ops of a source's lines, with the number of each line; none if the source was not seen."""
        lines = [line.strip() for line in source.strip("\n").splitlines()]
        for texts, ops in self._texts.get(len(lines), ()):
            if all(op is None or text == line for text, op, line in zip(texts, ops, lines, strict=True)):
                return tuple(
                    LineOp(line=number, operation=op.operation, node=op.node) for number, op in enumerate(ops)
                    if op is not None
                )
        return ()

    def _make(self, original: Callable[..., Any], loops: Any, *args: Any) -> None:
        original(loops, *args)
        function = getattr(loops, "inner_fn", None)
        node = getattr(self._virtual.graph, "current_node", None)
        if function is None or node is None:
            return
        named = _Named(node=node.name, function=function, inside=self._inside)
        object.__setattr__(loops, "inner_fn", named)  # these classes are frozen

    def _trace(self, original: Callable[..., Any], tracer: Any, *args: Any, **more: Any) -> Any:
        node = original(tracer, *args, **more)
        if self._inside:
            node.meta[_ORIGIN] = self._inside[-1]
        else:  # the body is that of another order of loops, or the node stores or reduces the value
            body_node = None if self._body is None else self._body.interpreter.current_node
            node.meta[_ORIGIN] = "" if body_node is None else _origin(body_node)
        return node

    def _run(self, original: Callable[..., Any], interpreter: Any, *args: Any, **more: Any) -> Any:
        """Note the loop's body from which lines are written: a line is written too often to ask torch for each."""
        outside = self._body
        self._body = _Body(interpreter=interpreter, scheduled=getattr(self._virtual.kernel, "current_node", None))
        try:
            return original(interpreter, *args, **more)
        finally:
            self._body = outside

    def _write(self, original: Callable[..., Any], buffer: Any, line: Any) -> None:
        original(buffer, line)
        if self._body is None and type(line) is str:  # as most lines
            return
        op = _op_of(line) or (None if self._body is None else self._body.op())
        if op is not None:
            _set_op(_lines_of(buffer), -1, op)

    def _change(self, original: Callable[..., Any], buffer: Any, *args: Any) -> None:
        """Give lines that Inductor replaces, to rename a variable in them, the ops of those before."""
        ops = [_op_of(line) for line in _lines_of(buffer)]
        original(buffer, *args)
        for place, op in enumerate(ops):
            if op is not None:
                _set_op(_lines_of(buffer), place, op)

    def _text(self, original: Callable[..., str], buffer: Any, *args: Any) -> str:
        text = original(buffer, *args)
        if any(mark in text for mark in _KERNELS):
            ops: list[LineOp | None] = []
            for written, op in _texts_with_ops(_lines_of(buffer)):
                ops += [op] * (written.count("\n") + 1)
            if any(ops):
                self._note(text, ops)
        return text

    def _note(self, text: str, ops: Sequence[LineOp | None]) -> None:
        lines = text.rstrip("\n").split("\n")
        first = next(number for number, line in enumerate(lines) if line)
        texts = [line.strip() for line in lines[first:]]
        self._texts.setdefault(len(texts), []).append((texts, tuple(ops[first : len(lines)])))


def _texts_with_ops(lines: Sequence[Any]) -> Iterator[tuple[str, LineOp | None]]:
    """Yield the lines of a buffer that are in its text, each with its op; a deferred line may be left out."""
    for line in lines:
        if isinstance(line, str):
            yield line, _op_of(line)
        elif callable(line):
            text = line()
            if text is not None:
                yield text, _op_of(line)


def _origin(body_node: Any) -> str:
    """Return the FX node that a loop body's node is from; one that casts is from that of its operand."""
    for _ in range(len(body_node.graph.nodes)):
        if _ORIGIN in body_node.meta or not body_node.all_input_nodes:
            break
        body_node = body_node.all_input_nodes[-1]
    return str(body_node.meta.get(_ORIGIN, ""))


def _of_buffer(buffer: Any) -> str:
    """Return the FX node for which Inductor made the loop that computes a buffer; an empty text if there is none."""
    return str(getattr(getattr(getattr(buffer, "data", None), "inner_fn", None), "node", ""))
