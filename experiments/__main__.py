"""Runs an experiment: ``python -m experiments experiment=NAME [key=value ...]``.

Configurations are in ``configs/``, put together by Hydra and turned into frozen dataclasses at
once; nothing behind this file knows Hydra.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.config import QuickstartConfig, build
from experiments.errors import CheckError, ConfigError

CONFIGS = Path(__file__).parents[1] / "configs"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment: the module whose ``run(config)`` it is, and the type of its configuration."""

    module: str
    config: type


EXPERIMENTS = {"quickstart": Experiment("experiments.quickstart", QuickstartConfig)}


def configure(arguments: Sequence[str]) -> tuple[str, QuickstartConfig]:
    """The experiment's name and configuration from ``experiment=NAME key=value ...``.

    Raises:
        ConfigError: no such experiment, key or value.
    """
    name = ""
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ConfigError(f"arguments are key=value, got {argument!r}")
        name = value if key == "experiment" else name
    if name not in EXPERIMENTS:
        given = f"there is no experiment {name!r}" if name else "which experiment? experiment=NAME"
        raise ConfigError(f"{given}; known: {', '.join(EXPERIMENTS)}")
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = compose("config", overrides=list(arguments))
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        text, _, _ = str(error).partition("Config search path")
        raise ConfigError(" ".join(text.split())) from error
    return name, build(EXPERIMENTS[name].config, values)


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
    prepare_devices(config.hardware.platform, config.topology.num_ranks)
    module = importlib.import_module(EXPERIMENTS[name].module)
    try:
        module.run(config)
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
