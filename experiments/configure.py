"""Which experiments there are, and their configurations, put together by Hydra from ``configs/``.

The result is a frozen dataclass; nothing behind this file knows Hydra, and Hydra's own output
folders are not made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.config import QuickstartConfig, build
from experiments.errors import ConfigError

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
