"""``python -m tests.programs``: see `tests.programs.runner`."""

import sys

from tests.processes import one_thread_each

one_thread_each()

from tests.programs.runner import CAMPAIGN  # noqa: E402 - after the environment that it reads

sys.exit(CAMPAIGN.main())
