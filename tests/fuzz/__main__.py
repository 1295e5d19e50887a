"""``python -m tests.fuzz``: see `tests.fuzz.runner`."""

import sys

from tests.processes import one_thread_each

one_thread_each()

from tests.fuzz.runner import CAMPAIGN  # noqa: E402 - after the environment that it reads

sys.exit(CAMPAIGN.main())
