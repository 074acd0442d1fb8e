"""Runs an experiment: ``python -m experiments experiment=NAME [key=value ...]``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from experiments.configure import EXPERIMENTS, configure
from experiments.errors import CheckError, ConfigError


def prepare_devices(platform: str, count: int) -> None:
    """Choose JAX's platform and number of virtual CPU devices; JAX reads both as it starts.

    A platform or a number of devices that is already chosen in the environment is left.
    """
    os.environ.setdefault("JAX_PLATFORMS", platform)
    flag = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "")
    if platform == "cpu" and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={count}".strip()


def main(arguments: Sequence[str]) -> int:
    """Runs the experiment named; returns 2 for a bad configuration, 1 for a failed check."""
    try:
        name, config = configure(arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    devices = getattr(config, "devices", None)
    if devices is not None:
        prepare_devices(*devices)
    try:
        EXPERIMENTS[name].load().run(config)
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
