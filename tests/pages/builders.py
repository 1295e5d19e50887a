"""What nvFuser's op builders make of calls that do less than their name says, and what a bound fusion has here."""

from dataclasses import dataclass

from fuser_lab.definition.binding import bind, default_inputs
from fuser_lab.ir import Fusion
from tests.pages.rules import definition

ALIAS = "csrc/ops/alias.cpp"
ARITH = "csrc/ops/arith.cpp"
VIEW = "csrc/transform_view.cpp"
INDEXING = "csrc/ops/indexing.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A call, the ops that nvFuser's builder makes of it, where, and the ops of the bound fusion.

    ``call`` is over ``x``, the result of an op on a tensor of ``shape``. ``why`` is the reason if the two differ.
    """

    call: str
    case: str
    nvfuser: str
    lines: str
    ours: str
    shape: tuple[int, ...] = (8, 16)
    why: str = ""


def _row(call: str, case: str, nvfuser: str, lines: str, shape: tuple[int, ...] = (8, 16)) -> Built:
    return Built(call=call, case=case, nvfuser=nvfuser, lines=lines, ours=nvfuser, shape=shape)


OPERAND = "the operand"
NO_COPY = "The copy has the axes of its operand; a call that changes nothing is left out when it is recorded."

BUILT = (
    _row("ops.cast(x, DataType.Float)", "the tensor's dtype", "set", f"{ARITH}:28-31"),
    _row("ops.pad(x, [0, 0])", "all widths 0", "set", f"{ALIAS}:589-615"),
    _row("ops.pad(x, [])", "no widths", "set", f"{ALIAS}:589-615"),
    _row("ops.pad(x, [0, 1])", "a width above 0", "pad", f"{ALIAS}:617-627"),
    _row("ops.slice(x, [0, 0], [8, 16])", "the whole tensor", "set", f"{ALIAS}:933-965"),
    _row("ops.slice(x, [0, 0], [9, 99])", "bounds beyond the size", "set", f"{ALIAS}:829-853, 933-965"),
    _row("ops.slice(x, [0, 0], [8, 15])", "less than an axis", "slice", f"{ALIAS}:966-976"),
    _row("ops.cat([x], 0)", "one tensor", "set", f"{ALIAS}:682-685"),
    _row("ops.reshape(x, [8, 16])", "the sizes of the tensor", OPERAND, f"{VIEW}:969-990"),
    _row("ops.reshape(x, [-1, 16])", "the sizes of the tensor, one computed", OPERAND, f"{VIEW}:969-990"),
    _row("ops.reshape(x, [8, 1, 16])", "only sizes 1 are new", "broadcast", f"{VIEW}:581-591, 984-987"),
    _row("ops.reshape(x, [8, 16])", "only sizes 1 are gone", "squeeze", f"{VIEW}:599-626, 974-977", (8, 1, 16)),
    _row("ops.reshape(x, [8, 16, 1])", "a size 1 moves", "squeeze, broadcast", f"{VIEW}:969-990", (8, 1, 16)),
    _row("ops.reshape(x, [8, 1, 16])", "a size 1 stays", OPERAND, f"{VIEW}:561-579", (8, 1, 16)),
    _row("ops.reshape(x, [1, 128])", "axes merge beside a new size 1", "reshape, broadcast", f"{VIEW}:969-990"),
    _row("ops.reshape(x, [128])", "axes merge across a size 1", "squeeze, reshape", f"{VIEW}:969-990", (8, 1, 16)),
    _row("ops.reshape(x, [4, 32])", "axes merge and split", "reshape", f"{VIEW}:969-990"),
    _row("ops.reshape(x, [0, 7])", "no elements", "full", f"{ALIAS}:70-92", (3, 0)),
    _row("ops.reshape(x, [1, 1])", "a tensor without axes", "broadcast", f"{VIEW}:777-790", ()),
    _row("ops.permute(x, [])", "a tensor without axes", "set", f"{ALIAS}:395-411", ()),
    _row("ops.squeeze(x, [])", "no axes", "set", f"{ALIAS}:356-359"),
    _row("ops.sum(x, [0])", "a tensor without axes", "set", f"{ARITH}:1245-1251, 1373-1376", ()),
    _row("ops.sum(x, [1])", "an axis of size 1", "squeeze", f"{ARITH}:1406-1426", (8, 1)),
    _row("ops.sum(x, [1], keepdim=True)", "a kept axis of size 1", "squeeze, broadcast", f"{ARITH}:1456-1460", (8, 1)),
    _row("ops.max(x, [0, 1])", "an axis of size 1 among others", "squeeze, max", f"{ARITH}:1406-1432", (8, 1)),
    _row("ops.cumsum(x, 1)", "an axis of size 1", "set", f"{ARITH}:2599-2605", (8, 1)),
    _row("ops.real(x)", "a real tensor", "set", f"{ARITH}:615-629"),
    Built(
        call="ops.permute(x, [0, 1])", case="axes in order", nvfuser="set with equal axes", lines=f"{ALIAS}:413-439",
        ours="set",
    ),
    Built(
        call="ops.broadcast(x, [False, False])", case="no axes", nvfuser=OPERAND, lines=f"{ALIAS}:1050-1052",
        ours="set",
        why="A call of fd.ops always makes a tensor of its own.",
    ),
    Built(
        call="ops.expand(x, [8, 16])", case="equal sizes", nvfuser="set", lines=f"{ALIAS}:1178-1179", ours=OPERAND,
        why=NO_COPY,
    ),
    Built(
        call="ops.broadcast_in_dim(x, [8, 16], [0, 1])", case="equal sizes", nvfuser="set",
        lines="python/python_direct/ops.cpp:2444-2446", ours=OPERAND, why=NO_COPY,
    ),
    Built(
        call="ops.argsort(x, 0)", case="a tensor without axes", nvfuser="full", lines=f"{ARITH}:2267-2270",
        ours="argsort", shape=(), why="The result is the same zero.",
    ),
    Built(
        call="ops.index_select(x, tensor(dtype=DataType.Int), 0)", case="an index without axes",
        nvfuser="select, broadcast", lines=f"{INDEXING}:84-88", ours="index_select",
        why="fd.ops.select takes no tensor as its index.",
    ),
)


def recorded(built: Built) -> Fusion:
    """Return the definition of a call, followed by an op that reads its result."""
    given = ", ".join(map(str, built.shape))
    source = f"x = ops.neg(tensor({given}))\nfd.add_output(ops.neg({built.call}))"
    return definition(source).fusion


def bound_ops(built: Built) -> str:
    """Return the ops that the bound fusion has for a call."""
    fusion = recorded(built)
    operand = fusion.exprs[0].out.name
    *between, _ = bind(fusion, default_inputs(fusion)).fusion.exprs
    return ", ".join(expr.op.name for expr in between if expr.out.name != operand) or OPERAND


def table() -> list[str]:
    """Return the lines of the table."""
    lines = ["| call | case | nvFuser | its lines | fuser_lab |", "|---|---|---|---|---|"]
    for built in BUILT:
        ours = built.ours if not built.why else f"{built.ours}: {built.why[0].lower()}{built.why[1:]}"
        lines.append(f"| `{built.call}` | {built.case} | {built.nvfuser} | {built.lines} | {ours.rstrip('.')} |")
    return lines
