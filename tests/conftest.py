"""Every test process sees 16 CPU devices, so that meshes of 8 and of 16 can be built in it.

Both variables are read once, when JAX starts, which is after this file is imported.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=16".strip()
