"""Which experiments there are, and their configurations, put together by Hydra from ``configs/``.

The result is a frozen dataclass; behind this file and ``__main__`` nothing knows Hydra.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments import autoccl, direct_connect, forestcoll, multitree, tacos, tensorstate
from experiments.config import build
from experiments.errors import ConfigError
from experiments.study import Experiment

CONFIGS = Path(__file__).parents[1] / "configs"
ROOT = "config"  # the file there that lists the groups

# The presets of a study: small enough for a test of seconds, or as large as in the paper.
SIZES = ("ci", "paper")

EXPERIMENTS = {
    "quickstart": Experiment(
        "experiments.quickstart.quickstart", "experiments.config:QuickstartConfig"
    ),
    **tacos.EXPERIMENTS,
    **multitree.EXPERIMENTS,
    **forestcoll.EXPERIMENTS,
    **direct_connect.EXPERIMENTS,
    **tensorstate.EXPERIMENTS,
    **autoccl.EXPERIMENTS,
}


def configure(arguments: Sequence[str]) -> tuple[str, Any]:
    """The experiment's name and configuration from ``experiment=NAME key=value ...``.

    The entries of ``configs/experiment/NAME.yaml`` come first, then those of the size in
    ``configs/preset/NAME/SIZE.yaml``, then the arguments.

    Raises:
        ConfigError: no such experiment, key, size or value.
    """
    name, size = "", SIZES[0]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ConfigError(f"arguments are key=value, got {argument!r}")
        name = value if key == "experiment" else name
        size = value if key == "size" else size
    if name not in EXPERIMENTS:
        given = f"there is no experiment {name!r}" if name else "which experiment? experiment=NAME"
        raise ConfigError(f"{given}; known: {', '.join(EXPERIMENTS)}")
    sizes = presets(name)
    if size not in (sizes or SIZES[:1]):
        known = f"known: {', '.join(sizes)}" if sizes else f"{name} has one size only"
        raise ConfigError(f"unknown size {size!r}; {known}")
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = compose(ROOT, overrides=list(arguments))
        return name, checked(name, composed)
    except (HydraException, OmegaConfBaseException) as error:
        text, _, _ = str(error).partition("Config search path")
        raise ConfigError(" ".join(text.split())) from error


def presets(name: str) -> list[str]:
    """The sizes that an experiment has a preset for; none if it has a single size."""
    return sorted(path.stem for path in (CONFIGS / "preset" / name).glob("*.yaml"))


def checked(name: str, composed: DictConfig) -> Any:
    """The configuration of an experiment as its frozen dataclass.

    Raises:
        ConfigError: an entry is missing, unknown or of another type.
    """
    values = typing.cast(
        dict[str, Any], OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    )
    if not presets(name):
        del values["size"]
    return build(EXPERIMENTS[name].load_config(), values)
