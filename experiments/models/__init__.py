"""Models to trace, search and train: a family per file, sizes in ``configs/model``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from experiments.config import build, one_of
from experiments.errors import ConfigError
from experiments.models import gpt, gpt_scan, llama, mlp, moe, vgg, vit
from experiments.models.training_step import Model

CONFIGS = Path(__file__).parents[2] / "configs" / "model"

FAMILIES: Mapping[str, ModuleType] = {
    "mlp": mlp,
    "gpt": gpt,
    "gpt_scan": gpt_scan,
    "llama": llama,
    "moe": moe,
    "vgg": vgg,
    "vit": vit,
}


def build_model(values: Mapping[str, Any], **changed: Any) -> Model:
    """A model from a mapping: its ``family`` and the fields of that family's ``Config``.

    Args:
        changed: fields that take the place of those of the mapping.

    Raises:
        ConfigError: no such family, or fields that do not fit it.
    """
    fields = {**values, **changed}
    name = fields.pop("family", "")
    one_of("model.family", name, tuple(FAMILIES))
    family = FAMILIES[name]
    return family.model(build(family.Config, fields, "model"))


def load_model(name: str, **changed: Any) -> Model:
    """The model of ``configs/model/NAME.yaml``, with some fields changed.

    Raises:
        ConfigError: no such file, or fields that do not fit.
    """
    path = CONFIGS / f"{name}.yaml"
    known = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"there is no model {name!r}; known: {', '.join(known)}")
    return build_model(yaml.safe_load(path.read_text()), **changed)


__all__ = ["FAMILIES", "Model", "build_model", "load_model"]
