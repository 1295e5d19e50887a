"""Definitions as Python and as IR text, verbatim; every legal call is printed, executed and equal."""

import pytest

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.python_text import definition_text, number_text
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion
from fuser_lab.ir.printer import math_text
from tests.unit.builders import record
from tests.unit.ops.sampling import ENTRIES, LAYOUTS, LETTERS

HEAD = "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"


def again(fusion: Fusion) -> Fusion:
    """Return the fusion that the printed definition records."""
    names = {"DataType": DataType, "FusionDefinition": FusionBuilder}
    exec(definition_text(fusion), names)
    return record(names["nvfuser_fusion"])


def lines(body) -> list[str]:
    """Return the statements of a printed definition, after checking that they record it again."""
    fusion = record(body)
    text = definition_text(fusion)
    assert text.startswith(HEAD)
    assert text.endswith("\n")
    assert again(fusion) == fusion
    assert hash(again(fusion)) == hash(fusion)
    return [line.removeprefix("    ") for line in text.removeprefix(HEAD).splitlines()]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_legal_call_prints_as_itself(name):
    symbolic = next(layout for layout in LAYOUTS if layout.name == "symbolic")
    for sample in ENTRIES[name].samples:
        with FusionBuilder() as fd:
            names = {x: symbolic.declare(fd, arg) for x, arg in zip(LETTERS, sample.args, strict=False)}
            found = eval(sample.call, {"fd": fd, "DataType": DataType, **names})
            for value in found if isinstance(found, list | tuple) else [found]:
                tensor = hasattr(value, "ndim")
                fd.add_output(value if tensor else fd.ops.full([1], value, value.dtype))
        assert again(fd.fusion) == fd.fusion, definition_text(fd.fusion)
        assert math_text(fd.fusion).endswith("} // %kernel_math \n")


def test_inputs_and_outputs():
    def body(fd):
        flags = [None, True, False]
        x = fd.define_tensor([-1, 1, 4], contiguity=flags, dtype=DataType.Half, stride_order=[1, 2, 0])
        scale, n = fd.define_scalar(), fd.define_scalar(DataType.Int)
        y = fd.define_tensor([], dtype=DataType.Double, is_cpu=True)
        z = fd.ops.where(fd.ops.lt(scale, n), x, fd.ops.cast(y, DataType.Half))
        fd.add_output(z, x)
        fd.add_output(fd.ops.set(y))
        fd.add_output(z)

    layout = "shape=[-1, 1, 4], contiguity=[None, True, False], dtype=DataType.Half, is_cpu=False"
    assert lines(body) == [
        f"tv0 = fd.define_tensor({layout}, stride_order=[1, 2, 0])",
        "c1 = fd.define_scalar(None, dtype=DataType.Double)",
        "c2 = fd.define_scalar(None, dtype=DataType.Int)",
        "tv1 = fd.define_tensor(shape=[], contiguity=[], dtype=DataType.Double, is_cpu=True)",
        "c3 = fd.ops.cast(c2, dtype=DataType.Double)",
        "c4 = fd.ops.lt(c1, c3)",
        "tv2 = fd.ops.cast(tv1, dtype=DataType.Half)",
        "tv3 = fd.ops.broadcast(tv2, is_broadcast_dim=[True, True, True])",
        "tv4 = fd.ops.where(c4, tv0, tv3)",
        "tv5 = fd.ops.set(tv1)",
        "fd.add_output(tv5)",
        "fd.add_output(tv4, tv0)",
        "fd.add_output(tv4)",
    ]


def test_calls():
    def body(fd):
        x = fd.define_tensor([-1, 4], contiguity=True)
        total = fd.ops.sum(fd.ops.relu(x), dims=-1, keepdim=True)
        mean, _, _ = fd.ops.welford(x, [1])
        fd.add_output(fd.ops.where(fd.ops.gt(x, 0.5), fd.ops.div(x, total), 2.0))
        fd.add_output(fd.ops.broadcast_in_dim(mean, [fd.ops.size(x, 0), 4], [0]))
        fd.add_output(fd.ops.cat([x, fd.ops.slice(x, [0, 1], [3, 9])], 1))
        fd.add_output(fd.ops.pad(x, [1, -1], 3.0))
        fd.add_output(fd.ops.cast(fd.ops.max(x, [0]), DataType.BFloat16))
        fd.add_output(fd.ops.iota(5, 1, 2, DataType.Int))
        fd.add_output(fd.ops.iota(x.size(0)))

    assert lines(body) == [
        "tv0 = fd.define_tensor(shape=[-1, 4], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)",
        "tv1 = fd.ops.relu(tv0)",
        "tv2 = fd.ops.sum(tv1, dims=[1])",
        "tv3 = fd.ops.broadcast(tv2, is_broadcast_dim=[False, True])",
        "tv4, _, _ = fd.ops.welford(tv0, dims=[1])",
        "tv7 = fd.ops.gt(tv0, 0.5)",
        "tv8 = fd.ops.div(tv0, tv3)",
        "tv9 = fd.ops.where(tv7, tv8, 2.0)",
        "tv10 = fd.ops.broadcast(tv4, is_broadcast_dim=[False, True])",
        "c0 = fd.ops.size(tv0, dim=0)",
        "tv11 = fd.ops.expand(tv10, shape=[c0, 4])",
        "tv12 = fd.ops.slice(tv0, start_indices=[0, 1], end_indices=[3, 9], strides=[1, 1])",
        "tv13 = fd.ops.pad(tv0, pad_widths=[0, 3])",
        "tv14 = fd.ops.pad(tv12, pad_widths=[4, 0])",
        "tv15 = fd.ops.cat([tv13, tv14], dim=1, manual_padding=True)",
        "tv16 = fd.ops.pad(tv0, pad_widths=[1, -1], value=3.0)",
        "tv17 = fd.ops.max(tv0, dims=[0])",
        "tv18 = fd.ops.cast(tv17, dtype=DataType.BFloat16)",
        "tv19 = fd.ops.iota(5, start=1, step=2, dtype=DataType.Int)",
        "tv20 = fd.ops.iota(c0, dtype=DataType.Int)",
        *(f"fd.add_output(tv{n})" for n in (9, 11, 15, 16, 18, 19, 20)),
    ]


def test_sizes_and_constants_have_names_of_their_own():
    def body(fd):
        x = fd.define_tensor([-1], contiguity=True)
        n = fd.define_scalar(DataType.Int)
        two = fd.define_scalar(2, DataType.Float)
        fd.add_output(fd.ops.full([n * 2, fd.ops.size(x, 0) - n], two + n, DataType.Float))
        fd.add_output(fd.ops.where(fd.ops.gt(x, 1), two, fd.define_scalar(1.0, DataType.Float)))
        keys = [fd.define_scalar(k) for k in (3, 5)]
        fd.add_output(fd.ops.uniform(-1.0, 1.0, [n], rng_seed=keys[0], rng_offset=keys[1]))
        fd.add_output(fd.ops.cumsum(x, 0))

    assert lines(body)[1:-4] == [
        "c1 = fd.define_scalar(None, dtype=DataType.Int)",
        "c2 = fd.ops.mul(c1, 2)",
        "c0 = fd.ops.size(tv0, dim=0)",
        "c3 = fd.ops.sub(c0, c1)",
        "c4 = fd.ops.cast(c1, dtype=DataType.Float)",
        "c6 = fd.define_scalar(2.0, dtype=DataType.Float)",
        "c5 = fd.ops.add(c6, c4)",
        "tv1 = fd.ops.full(shape=[c2, c3], fill_value=c5, dtype=DataType.Float)",
        "tv2 = fd.ops.gt(tv0, 1.0)",
        "c7 = fd.define_scalar(1.0, dtype=DataType.Float)",
        "tv3 = fd.ops.where(tv2, c6, c7)",
        "c8 = fd.define_scalar(3, dtype=DataType.Int)",
        "c9 = fd.define_scalar(5, dtype=DataType.Int)",
        "tv4 = fd.ops.uniform(-1.0, 1.0, [c1], rng_seed=c8, rng_offset=c9)",
        "tv5 = fd.ops.cumsum(tv0, dim=0)",
    ]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (True, "True"), (-3, "-3"), (3.0, "3.0"), (0.1, "0.1"), (1 / 3, "0.3333333333333333"), (-0.0, "-0.0"),
        (float("inf"), 'float("inf")'), (float("-inf"), 'float("-inf")'), (float("nan"), 'float("nan")'),
        (1 + 2j, "1.0+2.0j"), (complex(-1.5, -2), "complex(-1.5, -2.0)"), (complex(0, -0.0), "complex(0.0, -0.0)"),
        (complex(float("nan"), 1), 'complex(float("nan"), 1.0)'),
    ],
)
def test_numbers_are_exact(number, text):
    assert number_text(number) == text
    assert repr(eval(text)) == repr(number)


def math(body) -> str:
    return math_text(record(body)).partition("%kernel_math {\n")[2].removesuffix("} // %kernel_math \n")


def test_ir_text_of_movement():
    def body(fd):
        x = fd.define_tensor([-1, 4], contiguity=True)
        y = fd.ops.segment_set(fd.ops.set(x))
        w = fd.ops.squeeze(fd.ops.broadcast(y, [True, False, False]), [0])
        fd.add_output(fd.ops.reshape(fd.ops.permute(w, [1, 0]), [-1, 2]))
        fd.add_output(fd.ops.pad(fd.ops.slice(x, [0, 1], [fd.ops.size(x, 0), 3]), [1, 2], 2.5))

    assert math(body) == """\
T1_l_float[iS2{i0}, iS3{4}]
   = Set( T0_g_float[iS0{i0}, iS1{4}], cache_op=Streaming )
T2_l_float[iS4{i0}, iS5{4}]
   = SegmenterSet( T1_l_float[iS2{i0}, iS3{4}], cache_op=Streaming )
T3_l_float[bS6{1}, iS7{i0}, iS8{4}]
   = broadcast( T2_l_float[iS4{i0}, iS5{4}], flags = {true, false, false} )
T4_l_float[iS9{i0}, iS10{4}]
   = squeeze( T3_l_float[bS6{1}, iS7{i0}, iS8{4}], flags = {true, false, false} )
T5_l_float[iS12{4}, iS11{i0}]
   = Set.Permute( T4_l_float[iS9{i0}, iS10{4}], cache_op=Streaming )
T6_g_float[?S15{i1}rf, iS16{2}rf] = reshape( T5_l_float[iS12{4}, iS11{i0}] )
T7_l_float[iS17{i0}, iS19{2}rf]
   = slice( T0_g_float[iS0{i0}, iS1{4}], { {0, i0, 1} {1, 3, 1} } )
T8_g_float[iS20{i0}, iS22{5}rf]
   = pad( T7_l_float[iS17{i0}, iS19{2}rf], {0, 0, 1, 2}, float(2.5) )
"""


def test_ir_text_of_arithmetic():
    def body(fd):
        x = fd.define_tensor([8], contiguity=True, dtype=DataType.Half)
        n = fd.define_scalar(DataType.Int)
        y = fd.ops.maximum(fd.ops.exp(x), fd.ops.cast(n * 2, DataType.Float))
        wide = fd.ops.cast(fd.ops.round(fd.ops.neg(y)), DataType.Double)
        fd.add_output(fd.ops.where(fd.ops.isnan(wide), wide, 1.5))
        fd.add_output(fd.ops.max(y, [0]))
        fd.add_output(fd.ops.welford(y, [0])[0])

    assert math(body) == """\
T1_l_float[iS1{8}]
   = __half2float(T0_g___half[iS0{8}]);
T2_l_float[iS2{8}]
   = expf(T1_l_float[iS1{8}]);
i1 = i0 * 2;
f2 = (float)(i1);
T3_l_float[iS3{8}]
   = fmax(T2_l_float[iS2{8}]
  , f2);
T4_l_float[iS4{8}]
   = -T3_l_float[iS3{8}];
T5_l_float[iS5{8}]
   = nearbyintf(T4_l_float[iS4{8}]);
T6_l_double[iS6{8}]
   = (double)(T5_l_float[iS5{8}]);
T7_l_bool[iS7{8}]
   = isnan(T6_l_double[iS6{8}]);
T8_g_double[iS8{8}]
   = where(T7_l_bool[iS7{8}]
  , T6_l_double[iS6{8}]
  , double(1.5));
T9_g_float[rS9{8}]
   = reduction( T3_l_float[iS3{8}], op = fmax, initial value = float(-inf), allreduce = false )
T10_g_float[rS10{8}](Avg),
T11_l_float[rS11{8}](Var),
T12_l_int64_t[rS12{8}](Count)
 = Welford ( T3_l_float[iS3{8}](Avg), 
  allreduce = false )
"""  # noqa: W291 - nvFuser's own line ends so
