"""Reading the tables of ``configs/workload`` and ``configs/accelerator``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from experiments.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"


def names_in(folder: Path) -> tuple[str, ...]:
    """The names of a folder's tables."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def read_yaml(folder: Path, name: str) -> dict[str, Any]:
    """The mapping that a table holds, by safe load.

    Raises:
        ConfigError: no such table, or one that is not a mapping.
    """
    known = names_in(folder)
    if name not in known:
        raise ConfigError(f"there is no {folder.name} {name!r}; known: {', '.join(known)}")
    try:
        values = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{folder.name}/{name}.yaml: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{folder.name}/{name}.yaml must hold a mapping, got {values!r}")
    return values
