"""What every test process needs: 16 CPU devices, and property tests without a stop-watch.

Sixteen devices, so that meshes of 8 and of 16 can be built in one process. JAX reads both variables
once, when it starts, which is after this file is imported.
"""

from __future__ import annotations

import os

import hypothesis

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=16".strip()

# The first example of a test may compile for seconds; a deadline would only measure that.
hypothesis.settings.register_profile("jaxcoll", deadline=None)
hypothesis.settings.load_profile("jaxcoll")
