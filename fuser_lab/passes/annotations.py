"""Annotations: ``segment_set`` inserted into a fusion, found in it, and removed again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fuser_lab.arguments import brief, listing
from fuser_lab.errors import IllegalEdit
from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.ir.tensor_names import tensor_named
from fuser_lab.ops import OPS
from fuser_lab.passes.rewriter import Axes, result_named

HINT = "segment_set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A ``segment_set`` of a fusion: the tensor that it copies, its result, and the results of its readers."""

    tensor: str
    hint: str
    readers: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as ``T2 -> T4, T5``."""
        return f"{self.tensor} -> {', '.join(self.readers) or 'output'}"


def annotations_of(fusion: Fusion) -> tuple[Annotation, ...]:
    """Return every ``segment_set`` of a fusion in order."""
    return tuple(
        Annotation(
            tensor=expr.inputs[0].name, hint=expr.name,
            readers=tuple(user.name for user in fusion.users.get(expr.out, ()) if user.tensor_outputs),
        )
        for expr in fusion.exprs if expr.op.name == HINT
    )


def with_segment_set(fusion: Fusion, tensor: str, readers: str | Sequence[str] | None = None) -> Fusion:
    """Return the fusion with a ``segment_set`` of a tensor before the first of the readers that read it instead.

    All other tensors keep their names, and outputs stay outputs. The new tensor is named after the one it copies.

    Parameters
    ----------
    fusion
        A fusion, concretized or not.
    tensor
        Name of an input or of a tensor that is computed.
    readers
        Names of the results of those readers that read the copy; by default, all except ``segment_set``.

    Raises
    ------
    IllegalEdit
        If there is no such tensor, nothing reads it, or a given reader does not read it.
    """
    source = tensor_named(fusion, tensor)
    if _is_hint(fusion, source):
        msg = f"{tensor} is already the result of a segment_set; name the tensor that it copies, or another one."
        raise IllegalEdit(msg)
    chosen = _readers(fusion, source, readers)
    name = _new_name(fusion, tensor)
    copy = result_named(name, HINT, (source,), {}, Axes(fusion))
    exprs: list[Expr] = []
    for expr in fusion.exprs:
        if expr in chosen and not any(made.name == name for made in exprs):
            exprs.append(Expr(op=OPS[HINT], inputs=(source,), outputs=(copy,), attrs=()))
        exprs.append(_reading(expr, source, copy) if expr in chosen else expr)
    return replace(fusion, exprs=tuple(exprs))


def without_segment_set(fusion: Fusion, tensor: str, readers: str | Sequence[str] | None = None) -> Fusion:
    """Return the fusion in which readers of each ``segment_set`` of a tensor read the tensor itself.

    A ``segment_set`` without readers is removed; one whose result is an output of the fusion becomes a plain copy,
    ``set``.

    Parameters
    ----------
    fusion
        A fusion, concretized or not.
    tensor
        Name of a tensor that a ``segment_set`` copies, or of the result of one.
    readers
        Names of the results of those readers; all by default.

    Raises
    ------
    IllegalEdit
        If there is no such tensor, no ``segment_set`` of it, or a given reader does not read one.
    """
    source = tensor_named(fusion, tensor)
    if _is_hint(fusion, source):
        hints = [fusion.producers[source]]
    else:
        hints = [user for user in fusion.users.get(source, ()) if user.op.name == HINT]
    if not hints:
        msg = f"{brief(tensor)} has no segment_set; there are {_list_text(annotations_of(fusion)) or 'none'}."
        raise IllegalEdit(msg)
    requested = None if readers is None else dict.fromkeys((readers,) if isinstance(readers, str) else readers)
    reading: set[str] = set()
    for hint in hints:
        users = [user for user in fusion.users.get(hint.out, ()) if requested is None or user.name in requested]
        reading.update(user.name for user in users)
        if users or requested is None:
            fusion = _release(fusion, hint, {user.name for user in users})
    for name in requested or ():
        if name not in reading:
            raise IllegalEdit(f"{brief(name)} does not read {brief(tensor)} through a segment_set.")
    return fusion


def bare(fusion: Fusion) -> Fusion:
    """Return the fusion without any ``segment_set``."""
    for annotation in annotations_of(fusion):
        fusion = without_segment_set(fusion, annotation.hint)
    return fusion


def _release(fusion: Fusion, hint: Expr, readers: set[str]) -> Fusion:
    """Return the fusion in which some readers of a hint read its operand."""
    source = hint.inputs[0]
    exprs = [
        _reading(expr, hint.out, source) if expr.name in readers and hint.out in expr.inputs else expr
        for expr in fusion.exprs
    ]
    if not any(hint.out in expr.inputs for expr in exprs):
        if hint.out in fusion.outputs:
            exprs = [replace(expr, op=OPS["set"]) if expr.name == hint.name else expr for expr in exprs]
        else:
            exprs = [expr for expr in exprs if expr.name != hint.name]
    return replace(fusion, exprs=tuple(exprs))


def _is_hint(fusion: Fusion, tensor: TensorView) -> bool:
    maker = fusion.producers.get(tensor)
    return maker is not None and maker.op.name == HINT


def _readers(fusion: Fusion, tensor: TensorView, readers: str | Sequence[str] | None) -> set[Expr]:
    """Return the expressions that will read a copy of a tensor."""
    users = {expr.name: expr for expr in fusion.users.get(tensor, ()) if expr.tensor_outputs}
    plain = {name: expr for name, expr in users.items() if expr.op.name != HINT}
    if readers is None:
        if not plain:
            why = "every reader of it is already a segment_set" if users else "nothing reads it"
            raise IllegalEdit(f"a segment_set cannot be inserted after {tensor.name}: {why}.")
        return set(plain.values())
    chosen = set()
    for name in (readers,) if isinstance(readers, str) else readers:
        expr = next((e for e in plain.values() if name in {tv.name for tv in e.tensor_outputs}), None)
        if expr is None:
            is_hint = name in users
            why = "is a segment_set itself" if is_hint else f"does not read {tensor.name}"
            raise IllegalEdit(f"{brief(name)} {why}; readers of {tensor.name} are {listing(plain) or 'none'}.")
        chosen.add(expr)
    if not chosen:
        raise IllegalEdit(f"readers of {tensor.name} must name at least one of {listing(plain) or 'none'}.")
    return chosen


def _reading(expr: Expr, old: Val, new: Val) -> Expr:
    inputs = tuple(new if value == old else value for value in expr.inputs)
    return Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs)


def _new_name(fusion: Fusion, tensor: str) -> str:
    taken = {*fusion.tensors, *(value.name for value in fusion.inputs)}
    name, number = f"{tensor}_hint", 2
    while name in taken:
        name, number = f"{tensor}_hint{number}", number + 1
    return name


def _list_text(listed: Iterable[Annotation]) -> str:
    return "; ".join(map(str, listed))
