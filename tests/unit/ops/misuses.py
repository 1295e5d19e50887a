"""Illegal calls of every op, and what their errors say.

Calls of pointwise ops follow from the kinds of numbers that they accept; those of other ops are listed. A call is
Python over ``fd``, ``DataType`` and these inputs: ``x`` Float [3, 4], ``y`` Float [3, 5], ``v`` Float [4], ``s`` Float
[], ``n`` Int [3, 4], ``m`` Bool [3, 4], ``h`` Half [3, 4], ``z`` ComplexFloat [3, 4], ``d`` a Double scalar and ``i``
an Int scalar; ``{4d x}`` is ``x`` with two broadcast axes before its own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.dtypes import Kind
from fuser_lab.errors import ArgumentTypeError, DefinitionError, UnsupportedError
from fuser_lab.ir import OpKind
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.ops.registry import OpDef

Calls = Sequence[tuple[str, str] | tuple[str, str, type[Exception]]]


@dataclass(frozen=True, slots=True)
class Misuse:
    """An illegal call and part of its error message."""

    call: str
    says: str
    error: type[Exception] = DefinitionError


_UNARY: Calls = (
    ("{op}()", "{op}(x, /): missing a required argument: 'x'", ArgumentTypeError),
    ("{op}(x=x)", "{op}(x, /): ", ArgumentTypeError),
    ("{op}('a')", "{op}: x must be a tensor, scalar or number, given str", ArgumentTypeError),
    ("{op}(None)", "{op}: x is None", ArgumentTypeError),
)
_BINARY: Calls = (
    ("{op}({number})", "{op}(lhs, rhs, /): missing a required argument", ArgumentTypeError),
    ("{op}(lhs={a}, rhs={a})", "{op}(lhs, rhs, /): ", ArgumentTypeError),
    ("{op}({a}, 'a')", "{op}: rhs must be a tensor, scalar or number", ArgumentTypeError),
    ("{op}(None, {a})", "{op}: lhs is None", ArgumentTypeError),
    ("{op}({a}, {b})", "{op}: operands have sizes 4 and 5 on axis 1"),
    ("{op}({a}, 1 << 70)", "{op}: rhs is "),
)
_NEEDED = {
    frozenset({Kind.BOOL, Kind.INTEGER}): "integer or boolean input is required",
    frozenset({Kind.INTEGER}): "integer input is required",
    frozenset({Kind.FLOAT, Kind.COMPLEX}): "floating point input is required",
    frozenset({Kind.BOOL, Kind.INTEGER, Kind.FLOAT}): "complex input is not supported",
}
_OF_KIND = {Kind.BOOL: "m", Kind.INTEGER: "n", Kind.FLOAT: "x", Kind.COMPLEX: "z"}


def _filled(calls: Calls, name: str, words: Mapping[str, str]) -> Iterator[Misuse]:
    for call, says, *error in calls:
        text = re.sub(r"{4d (.)}", r"fd.ops.broadcast(\1, [True, True, False, False])", call)
        for word, value in ({"{op}(": f"fd.ops.{name}("} | words).items():
            text = text.replace(word, value)
        yield Misuse(text, says.replace("{op}", name), *error)


def _of_pointwise(entry: OpDef) -> Iterator[Misuse]:
    """The calls that a pointwise op of one or two operands refuses."""
    operands = tuple(entry.signature.parameters)
    calls = _UNARY if operands == ("x",) else _BINARY if operands == ("lhs", "rhs") else ()
    kinds = frozenset(arg.dtype.kind for sample in entry.samples for arg in sample.args)
    plain = Kind.FLOAT in kinds
    a, b = ("x", "y") if plain else ("fd.ops.cast(x, DataType.Int)", "fd.ops.cast(y, DataType.Int)")
    yield from _filled(calls, entry.name, {"{a}": a, "{b}": b, "{number}": "2.0" if plain else "2"})
    if calls:
        refused = (", ".join([letter] * len(operands)) for kind, letter in _OF_KIND.items() if kind not in kinds)
        yield from (
            Misuse(f"fd.ops.{entry.name}({letters})", f"{entry.name}: {_NEEDED.get(kinds, '')}") for letters in refused
        )


_OF_EVERY_KIND = ("real", "imag")  # although their samples are of some kinds
_LISTED: tuple[tuple[tuple[str, ...], Calls], ...] = (
    (("broadcast",), (
        ("{op}(x, [True, False])", "{op}: is_broadcast_dim=[True, False] keeps 1 axes, but the tensor has 2"),
        ("{op}(x, [False, False, False])", "keeps 3 axes"),
        ("{op}(x, True)", "is_broadcast_dim must be a list of True and False", ArgumentTypeError),
        ("{op}(x, [0.5, False])", "{op}: is_broadcast_dim[0] must be one of True and False", ArgumentTypeError),
        ("{op}(d, [True])", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("squeeze",), (
        ("{op}(x, [0])", "{op}: axis 0 has size 3; only axes of size 1 can be squeezed"),
        ("{op}(fd.ops.broadcast(v, [True, False]), [0, -2])", "{op}: dims=[0, -2] names an axis twice"),
        (
            "{op}(fd.ops.broadcast_in_dim(v, [3, 4], [1]), [0])",
            "{op}: axis 0 is expanded to 3; pass squeeze_expanded=True",
        ),
        ("{op}(x, 0)", "{op}: dims must be a list of ints", ArgumentTypeError),
    )),
    (("squeeze", "flip"), (
        ("{op}(x, [2])", "{op}: dims=2 is outside [-2, 2)"),
    )),
    (("squeeze", "stride_order", "pad"), (
        ("{op}(d, [])", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("expand",), (
        ("{op}(x, [3, 8])", "{op}: invalid expand size 8 for axis 1, which has size 4"),
        ("{op}(x, [3])", "{op}: shape has 1 entries for a tensor with 2 axes"),
        ("{op}(x, [3, -2])", "{op}: invalid expand size -2"),
        ("{op}(x, 3)", "{op}: shape must be a list of ints", ArgumentTypeError),
        ("{op}(x, [3, d])", "{op}: shape[1] is d0; it must be an integer", ArgumentTypeError),
        ("{op}(d, [3])", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("cast",), (
        ("{op}(x)", "{op}(arg, dtype): missing a required argument: 'dtype'", ArgumentTypeError),
        ("{op}(x, 'float')", "{op}: dtype must be a DataType, given 'float'", ArgumentTypeError),
        ("{op}('a', DataType.Float)", "{op}: arg must be a tensor, scalar or number", ArgumentTypeError),
        ("{op}(x, DataType.Null)", "{op}: dtype is DataType.Null"),
        ("{op}(x, DataType.Float4_e2m1fn)", "{op}: dtype is DataType.Float4_e2m1fn;", UnsupportedError),
        ("{op}(x, DataType.Float4_e2m1fn_x2)", "{op}: dtype is DataType.Float4_e2m1fn_x2", UnsupportedError),
    )),
    (("set", "segment_set"), (
        ("{op}(d)", "{op}: x must be a tensor, given the scalar", ArgumentTypeError),
        ("{op}(x=x)", "{op}(x, /)", ArgumentTypeError),
    )),
    (("set", "segment_set", "real", "imag", "sign"), (
        ("{op}(None)", "{op}: x is None", ArgumentTypeError),
    )),
    (("permute",), (
        ("{op}(x, [0])", "{op}: dims=[0] has 1 entries for a tensor with 2 axes"),
        ("{op}(x, [0, 0])", "{op}: dims=[0, 0] names an axis twice"),
        ("{op}(x, [0, 2])", "{op}: dims=2 is outside [-2, 2)"),
        ("{op}(x, [0, -3])", "{op}: dims=-3 is outside [-2, 2)"),
        ("{op}(x, [0.5, 1])", "{op}: dims[0] must be an int, given 0.5", ArgumentTypeError),
        ("{op}(d, [])", "{op}: arg must be a tensor, given the scalar", ArgumentTypeError),
    )),
    (("permute", "welford", "var", "var_mean"), (
        ("{op}(x, 1)", "{op}: dims must be a list of ints", ArgumentTypeError),
        ("{op}(x)", "missing a required argument: 'dims'", ArgumentTypeError),
    )),
    (("stride_order",), (
        ("{op}(x, [0, 0])", "{op}: [0, 0] is not a permutation of 0..1"),
        ("{op}(x, [1])", "{op}: [1] is not a permutation of 0..1"),
        ("{op}(x, 1)", "{op}: stride_order must be a list of ints", ArgumentTypeError),
    )),
    (("reshape",), (
        ("{op}(x, [-1, -1])", "{op}: a maximum of one value of -1 can be given, new_shape is [-1, -1]"),
        ("{op}(x, [5, -1])", "{op}: total element counts must match, given [3, 4] and new_shape [5, -1]"),
        ("{op}(x, [2, 5])", "{op}: total element counts must match"),
        ("{op}(x, [-3, -4])", "{op}: new_shape is [-3, -4]; its entries are sizes, 0 or more"),
        ("{op}(x, [0, -1])", "{op}: total element counts must match"),
        ("{op}(x, 12)", "{op}: new_shape must be a list of ints and integer scalars", ArgumentTypeError),
        ("{op}(x, [d])", "{op}: new_shape[0] is d0; it must be an integer", ArgumentTypeError),
        ("{op}(x, [x])", "{op}: new_shape[0] is T0", ArgumentTypeError),
        ("{op}(x, [12.0])", "{op}: new_shape[0] is double(12); it must be an integer", ArgumentTypeError),
        ("{op}(d, [1])", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("full",), (
        ("{op}([2], 1.0)", "missing a required argument: 'dtype'", ArgumentTypeError),
        ("{op}(2, 1.0, DataType.Float)", "{op}: shape must be a list", ArgumentTypeError),
        ("{op}([2.5], 1.0, DataType.Float)", "{op}: shape[0]", ArgumentTypeError),
        ("{op}([x], 1.0, DataType.Float)", "{op}: shape[0]", ArgumentTypeError),
        ("{op}([-1], 1.0, DataType.Float)", "{op}: shape has the entry -1"),
        ("{op}([2], 1.0, 'float')", "{op}: dtype must be a DataType", ArgumentTypeError),
        ("{op}([2], 1.0, DataType.Null)", "{op}: dtype is DataType.Null"),
        ("{op}([2], s, DataType.Float)", "{op}: fill_value must be a scalar", ArgumentTypeError),
        ("{op}([2], None, DataType.Float)", "{op}: fill_value is None", ArgumentTypeError),
        ("{op}([2], float('nan'), DataType.Int)", "{op}: fill_value is nan"),
        ("{op}([2], 2**40, DataType.Int32)", "{op}: fill_value is 1099511627776"),
    )),
    (("iota",), (
        ("{op}()", "missing a required argument: 'length'", ArgumentTypeError),
        ("{op}(3.0)", "{op}: length must be an integer"),
        ("{op}(d)", "{op}: length must be an integer"),
        ("{op}(x)", "{op}: length must be a scalar", ArgumentTypeError),
        ("{op}('a')", "{op}: length must be", ArgumentTypeError),
        ("{op}(-2)", "{op}: length is -2"),
        ("{op}(3, 0.5)", "{op}: start has dtype DataType.Double"),
        ("{op}(3, 0, 0.5)", "{op}: step has dtype DataType.Double"),
        ("{op}(3, 1, 1.0, DataType.Float)", "{op}: start has dtype DataType.Int"),
        ("{op}(3, 0, 0)", "{op}: step is 0"),
        ("{op}(3, 0.0, 0.0, DataType.Float)", "{op}: step is 0"),
        ("{op}(3, float('inf'), 1.0, DataType.Float)", "{op}: start is inf; it must be finite"),
        ("{op}(3, 0.0, float('nan'), DataType.Float)", "{op}: step is nan; it must be finite"),
        ("{op}(3, dtype=DataType.Bool)", "{op}: dtype must be an integer or a real"),
        ("{op}(3, dtype=DataType.ComplexFloat)", "{op}: dtype must be an integer or a real"),
    )),
    (("matmul",), (
        ("{op}(x, y)", "{op}: contracted sizes 4 and 3 differ"),
        ("{op}(x, x)", "{op}: contracted sizes 4 and 3 differ"),
        ("{op}(x, s)", "{op}: arg2 has 0 axes"),
        ("{op}(fd.ops.broadcast(v, [False, True]), x)", "{op}: contracted sizes 1 and 3 differ"),
        ("{op}(x, 2.0)", "arg2 must be a tensor", ArgumentTypeError),
    )),
    (("matmul", "linear"), (
        ("{op}(s, x)", "{op}: arg1 has 0 axes"),
        ("{op}(x, h)", "must have equal dtypes"),
        ("{op}(x)", "missing a required argument: 'arg2'", ArgumentTypeError),
    )),
    (("linear",), (
        ("{op}(x, y)", "{op}: contracted sizes 4 and 5 differ"),
        ("{op}(x, v)", "{op}: arg2 has 1 axes"),
        ("{op}(x, x, s)", "{op}: bias has 0 axes"),
        ("{op}(x, x, v)", "{op}: bias has size 4 where the product has 3"),
        ("{op}(h, h, v)", "must have equal dtypes"),
        ("{op}(x, x, 1.0)", "bias must be a tensor", ArgumentTypeError),
    )),
    (("grouped_mm",), (
        ("{op}(x, x, n)", "{op}: offsets must be integers with 1 axis"),
        ("{op}(v, x, n)", "{op}: mat1 and mat2 have 1 and 2 axes"),
        ("{op}(x, h, n)", "must have equal dtypes"),
        ("{op}(x, x)", "missing a required argument: 'offsets'", ArgumentTypeError),
        ("{op}(x, x, n, v, v)", "only the form (mat1, mat2, offsets)", UnsupportedError),
    )),
    (("uniform", "normal"), (
        ("{op}(0, 1, [4], rng_seed=i)", "{op}: rng_seed and rng_offset must be given together"),
        ("{op}(0, 1, [4], rng_offset=i)", "{op}: rng_seed and rng_offset must be given together"),
        ("{op}(0, 1, [4], rng_seed=1, rng_offset=i)", "rng_seed must be a scalar of", ArgumentTypeError),
        ("{op}(0, 1, [4], rng_seed=i, rng_offset=1)", "rng_offset must be a scalar of", ArgumentTypeError),
        ("{op}(0, 1, [4], rng_seed=x, rng_offset=i)", "rng_seed must be a scalar", ArgumentTypeError),
        ("{op}(0, 1, [4], rng_seed=i, rng_offset=d)", "{op}: rng_offset must be an integer scalar"),
        ("{op}(0, 1, [4], dtype=DataType.Int)", "only create floating point types"),
        ("{op}(0, 1, [4], dtype=DataType.ComplexFloat)", "only create floating point types"),
        ("{op}(0, 1, [4], dtype='a')", "{op}: dtype must be a DataType", ArgumentTypeError),
        ("{op}(0, 1, 4)", "{op}: shape must be a list", ArgumentTypeError),
        ("{op}(0, 1, [-1])", "{op}: shape has the entry -1"),
        ("{op}(0, 1, [2.0])", "{op}: shape[0]", ArgumentTypeError),
        ("{op}(0, 1)", "missing a required argument: 'shape'", ArgumentTypeError),
    )),
    (("uniform",), (
        ("{op}(x, 1, [4])", "{op}: minval must be a scalar or number", ArgumentTypeError),
        ("{op}(0, None, [4])", "{op}: maxval is None", ArgumentTypeError),
        ("{op}(0, 1j, [4])", "{op}: maxval is 1j; it must be a real number"),
    )),
    (("normal",), (
        ("{op}(x, 1, [4])", "{op}: mean must be a scalar or number", ArgumentTypeError),
        ("{op}(0, None, [4])", "{op}: std is None", ArgumentTypeError),
        ("{op}(0, 1j, [4])", "{op}: std is 1j; it must be a real number"),
    )),
    (("sdpfa_fwd",), (
        ("{op}(x, x, x)", "{op}: query has 2 axes"),
        ("{op}(x, x)", "missing a required argument: 'value'", ArgumentTypeError),
        ("{op}(1.0, x, x)", "query must be a tensor", ArgumentTypeError),
        ("{op}({4d x}, x, {4d x})", "{op}: key has 2 axes"),
        ("{op}({4d x}, {4d x}, {4d h})", "must have equal floating point dtypes"),
        ("{op}({4d x}, {4d y}, {4d x})", "the features of query and key have sizes 4 and 5"),
        ("{op}({4d x}, {4d x}, {4d x}, x)", "{op}: bias has 2 axes"),
        ("{op}({4d x}, {4d x}, {4d x}, None, {4d x})", "mask must have dtype DataType.Bool"),
        ("{op}({4d x}, {4d x}, {4d x}, {4d x})", "{op}: bias has size 4 on axis 3"),
        ("{op}({4d x}, {4d x}, {4d x}, dropout_p=1.5)", "dropout_p is 1.5"),
        ("{op}({4d x}, {4d x}, {4d x}, is_causal=d)", "is_causal must be a boolean"),
        ("{op}({4d x}, {4d x}, {4d x}, scale=1j)", "scale must be a real number"),
        ("{op}({4d x}, {4d x}, {4d x}, scale=x)", "scale must be a scalar", ArgumentTypeError),
    )),
    (("sdpfa_bwd",), (
        ("{op}(x, x, x)", "missing a required argument: 'value'", ArgumentTypeError),
        ("{op}(x, x, x, x, x, x, 0.0, False, n, n, None)", "{op}: query has 2 axes"),
        (
            "{op}({4d x}, {4d x}, {4d x}, {4d x}, {4d x}, x, 0.0, False, n, n, None)",
            "{op}: logsumexp must be Float with 3 axes",
        ),
        (
            "{op}({4d x}, {4d x}, {4d x}, {4d x}, {4d x}, fd.ops.sum({4d x}, [3]), 0.0, False, n, n, None)",
            "{op}: philox_seed must be integers with at most 1 axis",
        ),
        (
            "{op}({4d x}, {4d x}, {4d x}, {4d x}, {4d x}, x, 0.0, False, 1, n, None)",
            "philox_seed must be a tensor",
            ArgumentTypeError,
        ),
    )),
    (("bitcast",), (
        ("{op}(x, DataType.Short)", "{op}: DataType.Float to DataType.Short is not between"),
        ("{op}(m, DataType.Byte)", "{op}: DataType.Bool to DataType.Byte is not between"),
        ("{op}(z, DataType.Int)", "{op}: DataType.ComplexFloat to DataType.Int is not between"),
        ("{op}(d, DataType.Int)", "{op}: arg must be a tensor", ArgumentTypeError),
        ("{op}(x, 'int')", "{op}: dtype must be a DataType, given 'int'", ArgumentTypeError),
        ("{op}(x)", "{op}(arg, dtype): missing a required argument", ArgumentTypeError),
    )),
    (("real", "imag", "sign"), (
        ("{op}()", "{op}(x, /): missing a required argument: 'x'", ArgumentTypeError),
        ("{op}(x=x)", "{op}(x, /): ", ArgumentTypeError),
        ("{op}('a')", "{op}: x must be a tensor, scalar or number, given str", ArgumentTypeError),
    )),
    (("imag",), (
        ("{op}(x)", "{op}: complex input is required, given"),
        ("{op}(n)", "{op}: complex input is required, given"),
        ("{op}(m)", "{op}: complex input is required, given"),
        ("{op}(h)", "{op}: complex input is required, given"),
    )),
    (("complex",), (
        ("{op}(1.0, 2.0)", "{op}: real must be a tensor or a scalar", ArgumentTypeError),
        ("{op}(x, 2.0)", "{op}: imag must be a tensor or a scalar", ArgumentTypeError),
        ("{op}(x)", "{op}(real, imag): missing a required argument", ArgumentTypeError),
        ("{op}(x, d)", "{op}: real and imag must both be tensors or both scalars"),
        ("{op}(x, h)", "{op}: real and imag must both be Float or both Double, given"),
        ("{op}(z, z)", "{op}: real and imag must both be Float or both Double, given"),
        ("{op}(n, n)", "{op}: real and imag must both be Float or both Double, given"),
        ("{op}(x, y)", "{op}: operands have sizes 4 and 5 on axis 1"),
    )),
    (("sum", "prod", "max", "min", "welford", "var", "var_mean", "logsumexp"), (
        ("{op}(x, [])", "{op}: dims is empty"),
    )),
    (("sum", "prod", "max", "min"), (
        ("{op}(x, [0, -2])", "names an axis twice"),
        ("{op}(x, 2)", "is outside [-2, 2)"),
        ("{op}(x, [0, -3])", "is outside [-2, 2)"),
        ("{op}(s, 1)", "is outside [-1, 1)"),
        ("{op}(x, [0], dim=0)", "give dims or dim, not both"),
        ("{op}(x, dim=[0])", "{op}: dim must be an int", ArgumentTypeError),
        ("{op}(x, [0], 'a')", "keepdim must be True or False", ArgumentTypeError),
        ("{op}(x, keepdim=True)", "keepdim requires dim or dims", ArgumentTypeError),
        ("{op}(x, [0], dtype='a')", "dtype must be a DataType", ArgumentTypeError),
        ("{op}(d)", "must be a tensor", ArgumentTypeError),
        ("{op}()", "missing a required argument", ArgumentTypeError),
    )),
    (("sum", "prod", "max", "min", "flip"), (
        ("{op}(x, 'a')", "{op}: dims must be a list of ints", ArgumentTypeError),
    )),
    (("max", "min"), (
        ("{op}(x, [0], False, DataType.Double)", "{op}: dtype must be omitted"),
        ("{op}(x, DataType.Float)", "{op}: dtype must be omitted"),
        ("{op}(z, [0])", "{op}: complex numbers have no order"),
    )),
    (("welford",), (
        ("{op}(x, None)", "{op}: dims must be a list of ints", ArgumentTypeError),
        ("{op}(x, [1, -1])", "names an axis twice"),
        ("{op}(n, [1])", "must be of a real floating point type"),
        ("{op}(z, [1])", "must be of a real floating point type"),
        ("{op}(2.0, [0])", "must be a tensor", ArgumentTypeError),
    )),
    (("welford", "var", "var_mean"), (
        ("{op}(x, [2])", "is outside [-2, 2)"),
    )),
    (("slice",), (
        ("{op}(x, [0], [1])", "{op}: start_indices has 1 entries for a tensor with 2 axes"),
        ("{op}(x, [0, 0], [1])", "{op}: end_indices has 1 entries"),
        ("{op}(x, [0, 0], [1, 1], [1])", "{op}: strides has 1 entries"),
        ("{op}(x, [-1, 0], [2, 2])", "{op}: axis 0 begins at -1; start_indices are 0 or more"),
        ("{op}(x, [0, 2], [1, 1])", "{op}: axis 1 has bounds [2, 1)"),
        ("{op}(x, [0, i], [1, -1])", "{op}: axis 1 has bounds [i1, -1)"),
        ("{op}(x, [0, 0], [2, 2], [1, 0])", "{op}: strides are numbers above 0, given 0 for axis 1"),
        ("{op}(x, [0, 0], [2, 2], [-1, 1])", "given -1 for axis 0; flip reverses an axis"),
        ("{op}(x, [0, 0], [2, 2], [i, 1])", "strides are numbers above 0, given i1 for axis 0"),
        (
            "{op}(x, [0, 0], [2, 9], None, True)",
            "{op}: axis 1 of size 4 has bounds [0, 9), which manual_normalization=True",
        ),
        (
            "{op}(x, [0, 0], [2, 9], [1, 2], True)",
            "{op}: axis 1 of size 4 has bounds [0, 9), which manual_normalization=True",
        ),
        ("{op}(x, [0, 0], [2, 2], None, 'a')", "{op}: manual_normalization must be True or False", ArgumentTypeError),
        ("{op}(x, 0, 1)", "{op}: start_indices must be a list of ints", ArgumentTypeError),
        ("{op}(x, [0, d], [1, 1])", "{op}: start_indices[1] is d0; it must be an integer", ArgumentTypeError),
        ("{op}(d, [], [])", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("pad",), (
        ("{op}(x, [1])", "{op}: pad_widths has 1 entries; it must have pairs"),
        ("{op}(x, [0] * 6)", "{op}: pad_widths has 6 entries"),
        ("{op}(x, [-3, -2])", "{op}: axis 1 of size 4 cannot be padded by (-3, -2)"),
        (
            "{op}(n, [1, 1], 0.5)",
            "{op}: value has dtype DataType.Double, which is of a different kind from the tensor's DataType.Int",
        ),
        ("{op}(x, [1, 1], 1)", "{op}: value has dtype DataType.Int, which is of a different kind"),
        ("{op}(x, [1, 1], v)", "{op}: value must be a scalar, given the tensor T2", ArgumentTypeError),
        ("{op}(x, [0.5, 1])", "{op}: pad_widths[0] is double(0.5); it must be an integer", ArgumentTypeError),
        ("{op}(x, 1)", "{op}: pad_widths must be a list of ints", ArgumentTypeError),
    )),
    (("cat",), (
        ("{op}([])", "{op}: tensors is empty"),
        ("{op}([x, v])", "{op}: tensors have 2 and 1 axes"),
        ("{op}([x, n])", "can't concatenate tensors with different data types, DataType.Float and DataType.Int"),
        ("{op}([x, y])", "{op}: sizes 4 and 5 differ on axis 1; only axis 0 may differ"),
        ("{op}([x, x], 2)", "{op}: Invalid dimension to cat, dim=2 is outside [-2, 2)"),
        ("{op}([x, x], -3)", "{op}: Invalid dimension to cat"),
        ("{op}([s, s])", "{op}: Invalid dimension to cat"),
        ("{op}([x, x], 'a')", "{op}: dim must be an int", ArgumentTypeError),
        ("{op}(x)", "{op}: tensors must be a list of tensors", ArgumentTypeError),
        ("{op}([x, 1.0])", "{op}: tensors[1] must be a tensor, given the scalar double(1)", ArgumentTypeError),
        ("{op}([x, x], 0, 'a')", "{op}: manual_padding must be True or False", ArgumentTypeError),
    )),
    (("embedding_fwd",), (
        ("{op}(n, v)", "{op}: weight has 1 axes; it must have 2"),
        ("{op}(x, y)", "{op}: input must be an integer tensor, given DataType.Flo"),
        ("{op}(n, x, 1)", "padding_idx must be a scalar", ArgumentTypeError),
        ("{op}(n, x, max_norm=1.0)", "max_norm must be a scalar", ArgumentTypeError),
        ("{op}(n, x, sparse=True)", "sparse must be a scalar", ArgumentTypeError),
        ("{op}(n, x, d)", "padding_idx must be an integer, given DataType.Double"),
        ("{op}(n, x, sparse=i)", "sparse must be a Bool, given DataType.Int"),
        ("{op}(n)", "missing a required argument: 'weight'", ArgumentTypeError),
        ("{op}(i, x)", "{op}: input must be a tensor", ArgumentTypeError),
    )),
    (("select",), (
        ("{op}(x, 1.0, 0)", "{op}: index must be a scalar of the definition", ArgumentTypeError),
        ("{op}(x, True, 0)", "{op}: index must be a scalar of the definition", ArgumentTypeError),
        ("{op}(x, 3, 0)", "{op}: index has the value 3, out of range"),
        ("{op}(x, -4, 0)", "{op}: index has the value -4, out of range"),
        ("{op}(x, n, 0)", "{op}: index must be a scalar of the definition", ArgumentTypeError),
        ("{op}(x, d, 0)", "{op}: index must be an integer, given DataType.Double"),
        ("{op}(x, i, 2)", "so dim argument must satisfy -2 <= dim < 2"),
        ("{op}(x, i, -3)", "so dim argument must satisfy -2 <= dim < 2"),
        ("{op}(s, i, 0)", "so dim argument must satisfy 0 <= dim < 0"),
        ("{op}(x, i)", "missing a required argument: 'dim'", ArgumentTypeError),
        ("{op}(x, i, 0.5)", "{op}: dim must be an int", ArgumentTypeError),
        ("{op}(d, i, 0)", "{op}: arg must be a tensor", ArgumentTypeError),
        ("{op}(x, fd.define_scalar(3), 0)", "{op}: index has the value 3, out of range"),
        ("{op}(x, fd.define_scalar(-4), 0)", "{op}: index has the value -4, out of range"),
    )),
    (("index_select",), (
        ("{op}(x, n, 0)", "index_tv must be a 1d or scalar tensor."),
        ("{op}(x, v, 0)", "{op}: index must be an integer tensor, given DataType.Fl"),
        ("{op}(x, 1, 0)", "{op}: index must be a tensor", ArgumentTypeError),
        ("{op}(x, fd.ops.cast(v, DataType.Int), 2)", "so dim argument must satisfy -2 <= dim < 2"),
        ("{op}(x, fd.ops.cast(v, DataType.Int), 'a')", "must be an int", ArgumentTypeError),
        ("{op}(x, fd.ops.cast(v, DataType.Int))", "argument: 'dim'", ArgumentTypeError),
    )),
    (("index_select", "gather", "take_along_axis"), (
        ("{op}(x, i, 0)", "{op}: index must be a tensor", ArgumentTypeError),
    )),
    (("gather", "take_along_axis"), (
        ("{op}(x, n, 2)", "so dim argument must satisfy -2 <= dim < 2"),
        ("{op}(x, n, -3)", "so dim argument must satisfy -2 <= dim < 2"),
        ("{op}(s, fd.ops.cast(s, DataType.Int), 0)", "so dim argument must satisfy 0 <= dim < 0"),
        ("{op}(x, y, 0)", "{op}: index must be an integer tensor, given DataType.Float"),
        ("{op}(x, m, 0)", "{op}: index must be an integer tensor, given DataType.Bool"),
        ("{op}(v, n, 0)", "{op}: arg has 1 axes and index has 2; they must have the same number"),
        ("{op}(x, n)", "missing a required argument: 'dim'", ArgumentTypeError),
        ("{op}(x, n, None)", "{op}: dim must be an int", ArgumentTypeError),
    )),
    (("gather",), (
        ("{op}(x, fd.ops.cast(y, DataType.Int), 0)", "{op}: index has size 5 on axis 1, arg only"),
    )),
    (("take_along_axis",), (
        (
            "{op}(x, fd.ops.cast(y, DataType.Int), 0)",
            "{op}: arg has size 4 and index 5 on axis 1; they must be equal or 1",
        ),
    )),
    (("cumsum", "cumprod", "cummin", "cummax", "logcumsumexp", "argsort", "size"), (
        ("{op}(x)", "missing a required argument: 'dim'", ArgumentTypeError),
        ("{op}(d, 0)", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("cumsum", "cumprod", "cummin", "cummax", "logcumsumexp", "argsort"), (
        ("{op}(x, 2)", "{op}: Tried to access out of boundary index 2"),
    )),
    (("cumsum", "cumprod", "cummin", "cummax", "logcumsumexp"), (
        ("{op}(x, -3)", "{op}: Tried to access out of boundary index -3"),
        ("{op}(s, 0)", "{op}: Tried to access out of boundary index 0"),
        ("{op}(x, 0.0)", "{op}: dim must be an int", ArgumentTypeError),
        ("{op}(x, 0, 1.0)", "{op}: init must be a scalar of the definition", ArgumentTypeError),
        ("{op}(x, 0, s)", "{op}: init must be a scalar of the definition", ArgumentTypeError),
    )),
    (("cummin", "cummax", "logcumsumexp", "argsort"), (
        ("{op}(z, 0)", "{op}: arg has dtype DataType.ComplexFloat"),
    )),
    (("logcumsumexp",), (
        ("{op}(n, 0)", "{op}: arg has dtype DataType.Int"),
    )),
    (("scatter", "scatter_add"), (
        ("{op}(x, n, x, 2)", "so dim argument must satisfy -2 <= dim < 2"),
        ("{op}(v, n, v, 0)", "{op}: arg has 1 axes and index has 2"),
        ("{op}(x, n, h, 0)", "{op}: arg has dtype DataType.Float and src DataType.Half"),
        ("{op}(x, n, x)", "missing a required argument: 'dim'", ArgumentTypeError),
    )),
    (("scatter",), (
        ("{op}(x, y, x, 0)", "{op}: index must be an integer tensor, given DataType.Float"),
        ("{op}(x, n, v, 0)", "{op}: arg has 2 axes and src has 1"),
        ("{op}(x, n, 1.0, 0)", "{op}: src must be a scalar of the def", ArgumentTypeError),
        ("{op}(x, n, None, 0)", "{op}: src is None", ArgumentTypeError),
        ("{op}(x, i, x, 0)", "{op}: index must be a tensor", ArgumentTypeError),
        ("{op}(x, fd.ops.cast(y, DataType.Int), y, 0)", "{op}: index has size 5 on axis 1, arg"),
    )),
    (("scatter_add",), (
        ("{op}(x, y, x, 0)", "{op}: index must be an integer tensor"),
        ("{op}(x, n, 1.0, 0)", "{op}: src must be a scalar of the", ArgumentTypeError),
        ("{op}(x, fd.ops.cast(y, DataType.Int), y, 0)", "{op}: index has size 5 on axis 1, arg only 4"),
    )),
    (("argsort",), (
        ("{op}(s, 1)", "{op}: Tried to access out of boundary index 1"),
        ("{op}(x, 0, 'a')", "{op}: descending must be True or False", ArgumentTypeError),
        ("{op}(x, 0, stable=2)", "{op}: stable must be True or False", ArgumentTypeError),
    )),
    (("topk",), (
        ("{op}(x, 3)", "{op}: k must be a scalar of the definition", ArgumentTypeError),
        ("{op}(x, s)", "{op}: k must be a scalar of the definition", ArgumentTypeError),
        ("{op}(x, d)", "{op}: k must be an integer, given DataType.Double"),
        ("{op}(x, fd.define_scalar(3, DataType.Int), 2)", "{op}: Tried to access out of boundary index 2"),
        ("{op}(s, fd.define_scalar(3, DataType.Int))", "{op}: k is 3; it must be 1 for a tensor without axes"),
        ("{op}(s, fd.define_scalar(3, DataType.Int), 1)", "{op}: Tried to access out of boundary index 1"),
        (
            "{op}(x, fd.define_scalar(3, DataType.Int), largest='a')",
            "{op}: largest must be True or False",
            ArgumentTypeError,
        ),
        (
            "{op}(x, fd.define_scalar(3, DataType.Int), sorted=None)",
            "{op}: sorted must be True or False",
            ArgumentTypeError,
        ),
        ("{op}(x, fd.define_scalar(5))", "{op}: k is 5, out of range for axis 1 of size 4"),
        ("{op}(x, fd.define_scalar(-1))", "{op}: k is -1, out of range for axis 1"),
        ("{op}(z, fd.define_scalar(3, DataType.Int))", "{op}: arg has dtype DataType.ComplexFloat"),
        ("{op}(x)", "missing a required argument: 'k'", ArgumentTypeError),
    )),
    (("where",), (
        ("{op}(x, x, x)", "{op}: condition should be of DataType.Bool, given DataType.Float"),
        ("{op}(n, x, x)", "{op}: condition should be of DataType.Bool, given DataType.Int"),
        ("{op}(m, x)", "{op}(condition, x, y, /): missing a required argument", ArgumentTypeError),
        ("{op}(m, None, x)", "{op}: x is None", ArgumentTypeError),
        ("{op}(m, x, y)", "{op}: operands have sizes 4 and 5 on axis 1"),
    )),
    (("clamp",), (
        ("{op}()", "{op}(x, min=None, max=None, /): missing a required argument", ArgumentTypeError),
        ("{op}(x, min=0)", "{op}(x, min=None, max=None, /): ", ArgumentTypeError),
        ("{op}(x, x, x)", "{op}: min must be a scalar, given the tensor"),
        ("{op}(x, 0, 'a')", "{op}: max must be a tensor, scalar or number", ArgumentTypeError),
        ("{op}(n, float('nan'), 1)", "{op}: min is nan, which has no value of dtype"),
    )),
    (("clamp", "threshold"), (
        ("{op}(z, 0, 1)", "{op}: complex input is not supported"),
    )),
    (("threshold",), (
        ("{op}(x, 0.5)", "{op}(x, threshold, value, /): missing", ArgumentTypeError),
        ("{op}(x, x, 0.5)", "{op}: threshold must be a scalar, given the tensor"),
        ("{op}(x, 0.5, x)", "{op}: value must be a scalar, given the tensor"),
        ("{op}(x, None, 0.5)", "{op}: threshold is None", ArgumentTypeError),
    )),
    (("lerp",), (
        ("{op}(x, x)", "{op}(start, end, weight, /): missing a required argument", ArgumentTypeError),
        ("{op}(x, x, None)", "{op}: weight is None", ArgumentTypeError),
        ("{op}(x, y, 0.5)", "{op}: operands have sizes 4 and 5 on axis 1"),
    )),
    (("rand_like", "randn_like"), (
        ("{op}(n)", "{op}: x must be of a floating point type"),
        ("{op}(m)", "{op}: x must be of a floating point type"),
        ("{op}(z)", "{op}: x must be of a floating point type"),
        ("{op}(1.0)", "{op}: x must be a tensor", ArgumentTypeError),
    )),
    (("rand_like",), (
        ("{op}(x=x)", "rand_like", ArgumentTypeError),
    )),
    (("randn_like",), (
        ("{op}(x=x)", "randn_like", ArgumentTypeError),
    )),
    (("broadcast_in_dim",), (
        ("{op}(v, [3, 4], [0, 1])", "{op}: 2 broadcast_dims for a tensor"),
        ("{op}(x, [3], [0, 1])", "{op}: shape has 1 entries for a tensor"),
        ("{op}(x, [3, 4], [0, 0])", "broadcast_dims=[0, 0] names an axis twice"),
        ("{op}(x, [4, 3], [1, 0])", "broadcast_dims=[1, 0] must be increasing"),
        ("{op}(v, [3, 4], [2])", "broadcast_dims=2 is outside [-2, 2)"),
        ("{op}(v, [3, 5], [1])", "{op}: invalid expand size 5 for axis 1"),
        ("{op}(v, 3, [1])", "{op}: shape must be a list", ArgumentTypeError),
        ("{op}(v, [3, 4], 1)", "broadcast_dims must be a list", ArgumentTypeError),
        ("{op}(d, [3], [])", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("size", "max_with_indices", "min_with_indices", "argmax", "argmin", "softmax", "log_softmax"), (
        ("{op}(x, 2)", "{op}: dim=2 is outside [-2, 2)"),
    )),
    (("size",), (
        ("{op}(s, 0)", "{op}: dim=0 is outside [-0, 0)"),
        ("{op}(x, 'a')", "{op}: dim must be an int", ArgumentTypeError),
    )),
    (("shape",), (
        ("{op}(d)", "{op}: arg must be a tensor, given the scalar", ArgumentTypeError),
        ("{op}([x])", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("triu",), (
        ("{op}(v)", "input tensor for triu must have 2 or more dims, but got 1 dims"),
        ("{op}(s)", "input tensor for triu must have 2 or more dims, but got 0 dims"),
        ("{op}(x, 0.5)", "{op}: diagonal must be an integer, given double(0.5)"),
        ("{op}(x, n)", "{op}: diagonal must be an integer, given T"),
        ("{op}(d)", "{op}: arg must be a tensor", ArgumentTypeError),
        ("{op}(x, None)", "{op}: diagonal is None", ArgumentTypeError),
    )),
    (("gelu", "softplus", "leaky_relu", "dropout"), (
        ("{op}(n)", "{op}: arg must be of a real floating point type, given DataType.Int"),
        ("{op}(m)", "{op}: arg must be of a real floating point type, given DataType.Bool"),
        ("{op}(z)", "{op}: arg must be of a real floating point type, given DataType.ComplexFloat"),
    )),
    (("gelu", "softplus", "leaky_relu", "dropout", "mean", "std", "norm"), (
        ("{op}(1.0)", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    ((
        "gelu", "softplus", "leaky_relu", "dropout", "layer_norm", "rms_norm", "group_norm", "batch_norm",
        "max_with_indices", "min_with_indices", "argmax", "argmin",
    ), (
        ("{op}()", "missing a required argument: 'arg'", ArgumentTypeError),
    )),
    (("gelu",), (
        ("{op}(x, 'exact')", "{op}: approximate is 'exact'; it must be one of 'none', 'tanh'"),
        ("{op}(x, True)", "{op}: approximate must be one of 'none', 'tanh'", ArgumentTypeError),
    )),
    (("swiglu",), (
        ("{op}(n, x)", "{op}: gate must be of a real floating point type, given DataType.Int"),
        ("{op}(x, z)", "{op}: up must be of a real floating point type"),
        ("{op}(x)", "{op}(gate, up): missing a required argument: 'up'", ArgumentTypeError),
        ("{op}(x, 1.0)", "{op}: up must be a tensor", ArgumentTypeError),
    )),
    (("softplus",), (
        ("{op}(x, x)", "{op}: beta must be a real number or scalar", ArgumentTypeError),
        ("{op}(x, 1, 1j)", "{op}: threshold must be a real number", ArgumentTypeError),
    )),
    (("leaky_relu",), (
        ("{op}(x, None)", "{op}: negative_slope is None", ArgumentTypeError),
        ("{op}(x, True)", "{op}: negative_slope must be a number", ArgumentTypeError),
    )),
    (("dropout",), (
        ("{op}(x, 1.5)", "{op}: p is 1.5; it must be a number from 0 to 1"),
        ("{op}(x, -1)", "{op}: p is -1; it must be a number from 0 to 1"),
        ("{op}(x, float('nan'))", "{op}: p is nan; it must be a number from 0 to 1"),
        ("{op}(x, 'a')", "{op}: p must be a number from 0 to 1", ArgumentTypeError),
        ("{op}(x, 0.5, 'a')", "{op}: training must be True or False", ArgumentTypeError),
        ("{op}(x, 0.5, rng_seed=i)", "{op}: rng_seed and rng_offset must", ArgumentTypeError),
    )),
    (("cross_entropy",), (
        ("{op}(n, n)", "{op}: arg must be of a real floating point type"),
        ("{op}(s, s)", "{op}: arg has no axes"),
        ("{op}(x, n)", "{op}: target has shape [3, 4]; for arg of shape [3, 4]"),
        ("{op}(x, y)", "{op}: target has dtype DataType.Float and shape [3, 5]"),
        ("{op}(x, m)", "{op}: target has dtype DataType.Bool"),
        ("{op}(x, x, x)", "{op}: weight has shape [3, 4]; it must have shape [4]"),
        ("{op}(x, x, reduction='max')", "reduction is 'max'; it must be one of 'mean', 'sum'"),
        ("{op}(x, x, label_smoothing=2)", "label_smoothing is 2; it must be a number from 0"),
        ("{op}(x, x, ignore_index=0.5)", "ignore_index must be an int", ArgumentTypeError),
        ("{op}(x, 1)", "{op}: target must be a tensor", ArgumentTypeError),
        ("{op}(x)", "missing a required argument: 'target'", ArgumentTypeError),
    )),
    (("var", "var_mean"), (
        ("{op}(x, [0, 0])", "names an axis twice"),
        ("{op}(x, [0], -1)", "{op}: correction is -1"),
        ("{op}(x, [0], float('inf'))", "{op}: correction is inf; it must be a finite number"),
        ("{op}(x, [0], True)", "{op}: correction must be a number", ArgumentTypeError),
        ("{op}(x, [0], 'a')", "{op}: correction must be a number", ArgumentTypeError),
        ("{op}(x, [0], 1, 'a')", "{op}: keepdim must be True or False", ArgumentTypeError),
        ("{op}(1.0, [0])", "must be a tensor", ArgumentTypeError),
    )),
    (("var_mean",), (
        ("{op}(h, [0])", "please upcast to float"),
        ("{op}(n, [0])", "must be of a floating point or complex type"),
    )),
    (("mean", "std", "norm"), (
        ("{op}(n)", "{op}: arg must be of a floating point or complex type, given DataType.Int"),
        ("{op}(m)", "{op}: arg must be of a floating point or complex type, given DataType.Bool"),
        ("{op}(x, dims=[])", "{op}: dims is empty"),
        ("{op}(x, dims=2)", "{op}: dims=2 is outside [-2, 2)"),
        ("{op}(x, dims=[0, -2])", "names an axis twice"),
        ("{op}(x, dims='a')", "{op}: dims must be a list of ints", ArgumentTypeError),
        ("{op}(x, keepdim='a')", "{op}: keepdim must be True or False", ArgumentTypeError),
        ("{op}()", "{op}(arg", ArgumentTypeError),
    )),
    (("mean", "std"), (
        ("{op}(x, 0, dim=0)", "{op}: give dims or dim, not both"),
    )),
    (("mean",), (
        ("{op}(x, dtype=DataType.Int)", "{op}: dtype must be a floating point or complex type"),
        ("{op}(x, dtype='a')", "{op}: dtype must be a DataType", ArgumentTypeError),
    )),
    (("std",), (
        ("{op}(x, 0, -1)", "{op}: correction is -1"),
        ("{op}(x, 0, 'a')", "{op}: correction must be a number", ArgumentTypeError),
    )),
    (("norm",), (
        ("{op}(x, 'fro')", "{op}: p must be a number, given 'fro'", ArgumentTypeError),
        ("{op}(x, float('nan'))", "{op}: p is nan; it must be a number"),
    )),
    (("layer_norm", "rms_norm"), (
        ("{op}(n, [4])", "{op}: arg must be of a real floating point type, given DataType.Int"),
        ("{op}(z, [4])", "{op}: arg must be of a real floating point type, given DataType.ComplexFloat"),
        ("{op}(1.0, [4])", "{op}: arg must be a tensor", ArgumentTypeError),
        ("{op}(x, [4], eps=x)", "{op}: eps must be a real number or scalar", ArgumentTypeError),
        ("{op}(x, [4], eps='a')", "{op}: eps must be", ArgumentTypeError),
        ("{op}(x, [3])", "{op}: normalized_shape=[3] does not name the last axes of arg, whose shape is"),
        ("{op}(x, [2, 3, 4])", "{op}: normalized_shape=[2, 3, 4] does not name"),
        ("{op}(x, [])", "{op}: normalized_shape=[] does not name"),
        ("{op}(x, 4)", "{op}: normalized_shape must be a list", ArgumentTypeError),
        ("{op}(x, [4.0])", "{op}: normalized_shape[0] is", ArgumentTypeError),
        ("{op}(x, [4], x)", "{op}: weight has shape [3, 4]; it must have shape [4]"),
        ("{op}(x, [4], fd.ops.cast(v, DataType.Int))", "{op}: weight must be of a real floating"),
        ("{op}(x)", "missing a required argument: 'normalized_shape'", ArgumentTypeError),
    )),
    (("layer_norm",), (
        ("{op}(x, [4], None, s)", "{op}: bias has shape []; it must have shape [4]"),
    )),
    (("group_norm",), (
        ("{op}(n, 2)", "{op}: arg must be of a real floating point type, given DataType.Int"),
        ("{op}(z, 2)", "{op}: arg must be of a real floating point type, given DataType.ComplexFloat"),
        ("{op}(1.0, 2)", "{op}: arg must be a tensor", ArgumentTypeError),
        ("{op}(x, 2, eps=x)", "{op}: eps must be a real number or scalar", ArgumentTypeError),
        ("{op}(x, 2, eps='a')", "{op}: eps must be", ArgumentTypeError),
        ("{op}(x, 3)", "{op}: num_groups=3 does not divide the 4 channels of axis 1"),
        ("{op}(x, 0)", "{op}: num_groups=0 does not divide the 4 channels"),
        ("{op}(v, 2)", "{op}: arg has 1 axes; it needs at least 2, with channels on axis 1"),
        ("{op}(x, 2.0)", "{op}: num_groups must be an int", ArgumentTypeError),
        ("{op}(x, 2, x)", "{op}: weight has shape [3, 4]; it must have shape [4]"),
        ("{op}(x)", "missing a required argument: 'num_groups'", ArgumentTypeError),
    )),
    (("batch_norm",), (
        ("{op}(n, v, v)", "{op}: arg must be of a real floating point type, given DataType.Int"),
        ("{op}(z, v, v)", "{op}: arg must be of a real floating point type, given DataType.ComplexFloat"),
        ("{op}(1.0, v, v)", "{op}: arg must be a tensor", ArgumentTypeError),
        ("{op}(x, v, v, eps=x)", "{op}: eps must be a real number or scalar", ArgumentTypeError),
        ("{op}(x, v, v, eps='a')", "{op}: eps must be", ArgumentTypeError),
        ("{op}(v, s, s)", "{op}: arg has 1 axes; it needs at least 2"),
        ("{op}(x)", "{op}: running_mean and running_var must be given", ArgumentTypeError),
        ("{op}(x, v)", "running_mean and running_var must be given together", ArgumentTypeError),
        ("{op}(x, v, x)", "{op}: running_var has shape [3, 4]; it must have shape [4]"),
        ("{op}(x, v, v, training=2)", "training must be True or False", ArgumentTypeError),
        ("{op}(x, v, v, momentum=None)", "{op}: momentum is None", ArgumentTypeError),
        (
            "{op}(fd.ops.slice(x, [0, 0], [1, 4]), training=True)",
            "{op}: arg has one value per channel; training needs more than one",
        ),
    )),
    (("flip",), (
        ("{op}(x, [0, -2])", "{op}: dims=[0, -2] names an axis twice"),
        ("{op}(x)", "{op}(arg, dims): missing a required argument: 'dims'", ArgumentTypeError),
    )),
    (("flip", "max_with_indices", "min_with_indices", "argmax", "argmin", "softmax", "log_softmax", "logsumexp"), (
        ("{op}(1.0, 0)", "{op}: arg must be a tensor", ArgumentTypeError),
    )),
    (("max_with_indices", "min_with_indices", "argmax", "argmin"), (
        ("{op}(z, 0)", "{op}: complex numbers have no order, given DataType.ComplexFloat"),
        ("{op}(x, [0])", "{op}: dim must be an int", ArgumentTypeError),
        ("{op}(x, 0, 'a')", "{op}: keepdim must be True or False", ArgumentTypeError),
        ("{op}(fd.ops.slice(x, [0, 0], [3, 0]), 1)", "{op}: axis 1 has size 0"),
    )),
    (("index",), (
        ("{op}(x, [])", "{op}: indices has 0 entries, 0 of them tensors, for a tensor with 2 axes"),
        ("{op}(x, [None])", "{op}: indices has 1 entries, 0 of them tensors"),
        ("{op}(x, [n, n, n])", "{op}: indices has 3 entries, 3 of them tensors"),
        ("{op}(x, [None, y])", "{op}: indices[1] must be an integer tensor, given DataType.Float"),
        ("{op}(x, [m])", "{op}: indices[0] must be an integer tensor, given DataType.Bool"),
        ("{op}(x, n)", "{op}: indices must be a list of tensors and None", ArgumentTypeError),
        ("{op}(x)", "{op}(arg, indices): missing a required argument: 'indices'", ArgumentTypeError),
    )),
    (("index_put",), (
        ("{op}(x, [], 1.0)", "{op}: indices has 0 entries"),
        ("{op}(x, [m], 1.0)", "{op}: indices[0] must be an integer tensor"),
        ("{op}(x, [n], h)", "{op}: arg has dtype DataType.Float and values DataType.Half"),
        ("{op}(x, [n, n], y)", "{op}: values has shape [3, 5], which does not broadcast to"),
        ("{op}(x, [n], 1.0, 2)", "{op}: accumulate must be True or False", ArgumentTypeError),
        ("{op}(x, [n])", "missing a required argument: 'values'", ArgumentTypeError),
    )),
    (("as_strided",), (
        ("{op}(x, [2], [1, 1])", "{op}: size has 1 entries and stride 2; they must agree"),
        ("{op}(x, [2, 3], [9, 2])", "reach element 13 of a tensor with 12 elements"),
        ("{op}(x, [2], [-1])", "{op}: size=[2], stride=[-1] and storage_offset=0 must be 0"),
        ("{op}(x, 2, 1)", "{op}: size must be a list of ints", ArgumentTypeError),
        ("{op}(x, [2], [1], 0.5)", "{op}: storage_offset must be an int", ArgumentTypeError),
        ("{op}(x, [2])", "missing a required argument: 'stride'", ArgumentTypeError),
    )),
    (("softmax", "log_softmax", "logsumexp"), (
        ("{op}(n, 0)", "{op}: arg must be of a real floating point type, given DataType.Int"),
        ("{op}(m, 0)", "{op}: arg must be of a real floating point type, given DataType.Bool"),
        ("{op}(z, 0)", "{op}: arg must be of a real floating point type, given DataType.ComplexFloat"),
    )),
    (("softmax", "log_softmax"), (
        ("{op}(s, 1)", "{op}: dim=1 is outside [-1, 1)"),
        ("{op}(x, 'a')", "{op}: dim must be", ArgumentTypeError),
        ("{op}()", "{op}(arg, dim=-1): missing a required argument", ArgumentTypeError),
    )),
    (("softmax",), (
        ("{op}(x, [1])", "{op}: dim must be an int, given [1]", ArgumentTypeError),
    )),
    (("log_softmax",), (
        ("{op}(x, None)", "{op}: dim must be an int, given None", ArgumentTypeError),
    )),
    (("logsumexp",), (
        ("{op}(x, 2)", "{op}: dims=2 is outside [-2, 2)"),
        ("{op}(s, 1)", "{op}: dims=1 is outside [-1, 1)"),
        ("{op}(x, 'a')", "{op}: dims must be", ArgumentTypeError),
        ("{op}()", "{op}(arg, dims, keepdim=False): missing a required argument", ArgumentTypeError),
        ("{op}(x, None)", "{op}: dims must be an int or a list", ArgumentTypeError),
        ("{op}(x, 0, 2)", "{op}: keepdim must be True or False", ArgumentTypeError),
    )),
    (("bucketize",), (
        ("{op}(x, y)", "{op}: boundaries must have one axis, given 2"),
        ("{op}(z, v)", "{op}: complex numbers have no order, given DataType.Float and"),
        ("{op}(x, v, 2)", "{op}: out_int32 must be True or False", ArgumentTypeError),
        ("{op}(x, v, right=None)", "{op}: right must be True or False", ArgumentTypeError),
        ("{op}(1.0, v)", "{op}: arg must be a tensor", ArgumentTypeError),
        ("{op}(x)", "missing a required argument: 'boundaries'", ArgumentTypeError),
    )),
    (("searchsorted",), (
        ("{op}(x, v)", "{op}: sorted_sequence has shape [3, 4] and arg [4]"),
        ("{op}(s, x)", "{op}: sorted_sequence has shape [] and arg [3, 4]"),
        ("{op}(x, z)", "{op}: complex numbers have no order"),
        ("{op}(v, x, right=2)", "{op}: right must be True or False", ArgumentTypeError),
        ("{op}(v)", "missing a required argument: 'arg'", ArgumentTypeError),
    )),
    (("sign",), (
        ("{op}(z)", "{op}: complex input is not supported"),
    )),
    (("addcmul",), (
        ("{op}(x, x, x)", "{op}(x, y, z, alpha, /): missing a required argument: 'alpha'", ArgumentTypeError),
        ("{op}(x, x, x, x)", "{op}: alpha must be a scalar, given the tensor"),
        ("{op}(x, x, None, 1.0)", "{op}: z is None", ArgumentTypeError),
        ("{op}(x, x, x, 'a')", "{op}: alpha must be a tensor, scalar", ArgumentTypeError),
    )),
    (("logical_right_shift",), (
        ("{op}(x, 1)", "{op}: integer input is required"),
        ("{op}(n, 1.0)", "{op}: integer input is required"),
        ("{op}(m, 1)", "{op}: integer input is required"),
        ("{op}(n)", "{op}(x, shift, /): missing", ArgumentTypeError),
        ("{op}(n, None)", "{op}: shift is None", ArgumentTypeError),
    )),
)


def misuses() -> dict[str, tuple[Misuse, ...]]:
    """The illegal calls of each op by its name."""
    found: dict[str, list[Misuse]] = {name: [] for name in (*OPS, *COMPOSITES)}
    for name, entry in OPS.items():
        if entry.kind is OpKind.POINTWISE and name not in _OF_EVERY_KIND:
            found[name] += _of_pointwise(entry)
    for names, calls in _LISTED:
        for name in names:
            found[name] += _filled(calls, name, {})
    return {name: tuple(calls) for name, calls in found.items()}


MISUSES = misuses()
