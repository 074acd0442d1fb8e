"""``python -m tests.execute.differential [--cases N] [--seed N]`` compares random calls."""

from __future__ import annotations

import sys

from tests.execute.differential.comparison import main

sys.exit(main())
