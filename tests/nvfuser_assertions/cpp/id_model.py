"""Of tests/cpp/test_id_model.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_id_model.cpp")


@FILE.asserts(3299, can="pointwise")
def look_up_and_reshape(fd, ops):
    positions = fd.define_tensor([4], contiguity=True, dtype=DataType.Int)
    table = fd.define_tensor([32, 1440], contiguity=True)
    bias = fd.define_tensor([4, 1440], contiguity=True, dtype=DataType.BFloat16)
    thirty_two, zero = (fd.define_scalar(n, dtype=DataType.Int) for n in (32, 0))
    wrap = ops.set(ops.cast(ops.where(ops.lt(positions, zero), thirty_two, zero), DataType.Int32))
    rows = ops.index_select(table, ops.add(positions, wrap), 0)
    fd.add_output(ops.reshape(ops.add(ops.cast(bias, DataType.Float), rows), [4, 720, 2]))
