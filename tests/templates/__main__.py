"""``python -m tests.templates``: see `tests.templates.runner`."""

import sys

from tests.processes import one_thread_each

one_thread_each()

from tests.templates.runner import CAMPAIGN  # noqa: E402 - after the environment that it reads

sys.exit(CAMPAIGN.main())
