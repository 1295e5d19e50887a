"""``python -m tests.programs``: see `tests.programs.runner`."""

import os
import sys

# Read when the libraries are imported; worker processes inherit them. One process per core is parallel enough.
for name, value in (
    ("OMP_WAIT_POLICY", "passive"), ("OMP_NUM_THREADS", "1"), ("MKL_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1"),
    ("NUMBA_NUM_THREADS", "1"), ("FUSER_LAB_VERIFY", "1"),
):
    os.environ.setdefault(name, value)

from tests.programs.runner import main  # noqa: E402 - after the environment that it reads

sys.exit(main())
