"""``python -m tests.execute.differential [--cases N] [--seed N]`` compares random calls."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"

from tests.execute.differential.runs import main

sys.exit(main())
