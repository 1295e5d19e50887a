"""``python -m fuser_lab``."""

import sys

from fuser_lab.cli import main

sys.exit(main())
