"""Which experiments there are, and their configurations, put together by Hydra from ``configs/``.

The result is a frozen dataclass; nothing behind this file knows Hydra, and Hydra's own output
folders are not made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments import forestcoll, multitree, tacos, tensorstate
from experiments.config import build
from experiments.errors import ConfigError
from experiments.experiment import Experiment

CONFIGS = Path(__file__).parents[1] / "configs"

# The presets of a study: small enough for a test of seconds, or as large as in the paper.
SIZES = ("ci", "paper")

EXPERIMENTS = {
    "quickstart": Experiment("experiments.quickstart", "experiments.config:QuickstartConfig"),
    **tacos.EXPERIMENTS,
    **multitree.EXPERIMENTS,
    **forestcoll.EXPERIMENTS,
    **tensorstate.EXPERIMENTS,
}


def configure(arguments: Sequence[str]) -> tuple[str, Any]:
    """The experiment's name and configuration from ``experiment=NAME key=value ...``.

    A configuration with a ``size`` has a part for each size there is, such as ``ci`` and ``paper``;
    the entries of the one chosen stand beside the others, and the other parts are left out.

    Raises:
        ConfigError: no such experiment, key, size or value.
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
    return name, build(EXPERIMENTS[name].load_config(), _sized(values))


def _sized(values: Any) -> dict[str, Any]:
    """The values with the part of the chosen size unfolded."""
    if "size" not in values:
        return values
    sizes = [key for key in values if key in SIZES]
    if values["size"] not in sizes:
        raise ConfigError(f"unknown size {values['size']!r}; known: {', '.join(sizes)}")
    common = {key: value for key, value in values.items() if key not in SIZES}
    return {**common, **values[values["size"]]}
