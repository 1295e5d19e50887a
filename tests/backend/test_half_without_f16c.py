"""Half on a processor without F16C: libgcc converts; if it cannot, kernels are rejected."""

import os
import re
import subprocess
import sys

import pytest

FIRST_KERNEL = """
import ctypes, sys
import numpy as np
import fuser_lab as fl

if sys.argv[1] == "missing":
    real = ctypes.CDLL
    ctypes.CDLL = lambda name, *rest, **more: real(None if name.startswith("libgcc") else name, *rest, **more)
with fl.FusionDefinition() as fd:
    x = fd.define_tensor([4], dtype=fl.DataType.Half)
    y = fd.ops.add(x, 1.0)
    for dtype in (fl.DataType.Half, fl.DataType.Float8_e4m3fn, fl.DataType.Half):
        y = fd.ops.cast(y, dtype=dtype)
    fd.add_output(y)
print(*fl.segment(fd).run([np.array([0.1, 65504, -2, np.inf], "float16")])[0])
"""


@pytest.mark.parametrize(("libgcc", "status", "said"), [
    ("here", 0, "1.125 448.0 -1.0 448.0"),
    ("missing", 1, "does not compile for the CPU: .* this processor has no F16C"),
])
def test_the_first_kernel_of_a_process_converts_or_is_refused(libgcc, status, said, tmp_path):
    """Nothing compiled before has declared the functions to LLVM, which aborts the process without them."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_KERNEL, libgcc], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "FUSER_LAB_CACHE": str(tmp_path)},
    )
    assert done.returncode == status, done.stderr
    assert re.search(said, done.stdout + done.stderr)
