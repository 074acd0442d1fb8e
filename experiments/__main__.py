"""Runs an experiment: ``python -m experiments experiment=NAME [key=value ...]``; ``-m`` sweeps."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from experiments.config import (
    CONFIGS,
    EXPERIMENTS,
    ROOT,
    checked,
    configure,
    has_ended,
    mark_ended,
    meant,
)
from experiments.study import CheckError, ConfigError
from jaxcoll.progress import working


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
    """Runs the experiment named; returns 2 for a bad configuration, 1 for a failed check.

    Hydra reads the arguments: ``-m`` sweeps, ``--help`` and ``--cfg job`` work as its users know
    them, and the configuration is recorded in ``.hydra`` beside the results.
    """
    try:
        if not any(argument.startswith("-") for argument in arguments):
            configure(arguments)  # one line instead of Hydra's, if anything is wrong
    except ConfigError as error:
        return _failed(error, 2)
    # Its parser takes no override behind a flag that follows another.
    sweeps = [each for each in arguments if each in ("-m", "--multirun")]
    command = [sys.argv[0], *sweeps, *(each for each in arguments if each not in sweeps)]
    # Hydra reads sys.argv, and nothing else.
    previous, sys.argv = sys.argv, command
    try:
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=ROOT)(_job)()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = previous
    return 0


def _job(composed: DictConfig) -> None:
    """One run: the only one, or one of a sweep."""
    context = HydraConfig.get()
    name = context.runtime.choices["experiment"]
    try:
        if name not in EXPERIMENTS:
            raise ConfigError(f"there is no experiment {name!r}; {meant(name, EXPERIMENTS)}")
        composed.results = context.runtime.output_dir
        config = checked(name, composed)
    except ConfigError as error:
        sys.exit(_failed(error, 2))
    folder = Path(composed.results)
    # Only in a sweep: a single command is asked for now, whatever ran before.
    if context.mode == RunMode.MULTIRUN and has_ended(composed, folder):
        print(f"{folder}: has ended before")
        return
    devices = getattr(config, "devices", None)
    if devices is not None:
        prepare_devices(*devices)
    try:
        with working(f"running {name}"):
            EXPERIMENTS[name].load()(config)
    except CheckError as error:
        sys.exit(_failed(error, 1))
    if context.mode == RunMode.MULTIRUN:
        mark_ended(composed, folder)


def _failed(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
